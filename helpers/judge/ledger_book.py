"""A ledger's rows and how one is closed: what the rows leave of what is in use becomes a row itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.look.reading import Reading, seen, show_bytes


@dataclass(frozen=True)
class LedgerRow:
    """One part of what is in use. ``kind``: process (the failing one), other_process, outside, reserved, unattributed.

    ``bytes`` without a value is a holder whose share was not measured; it is then within the unattributed rest. A negative
    rest means that processes were counted twice (shared memory) or at another moment; a contradiction then says so.
    """

    kind: str
    words: str
    bytes: Reading
    source: str


@dataclass(frozen=True)
class GpuLedger:
    """One source's account of one GPU; ``pci`` is empty where a message does not tell which GPU it means.

    ``account`` is driver or message, ``left`` what total less used is. The rows that have a value add up to ``used`` within
    ``tolerance_bytes``. Where ``used`` is not known there is no unattributed row.
    """

    pci: str
    account: str
    total: Reading
    used: Reading
    rows: tuple[LedgerRow, ...]
    tolerance_bytes: int
    contradictions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    left: str = "free"

    def sum_bytes(self, *kinds: str) -> int:
        """What the rows of these kinds (all, where none is given) hold together; rows without a value count nothing."""
        return sum(size(row.bytes) for row in self.rows if not kinds or row.kind in kinds)


def closed(book: GpuLedger, words: str) -> GpuLedger:
    """The ledger with its rest. A rest below zero is named, and stands as a row only where it is more than the tolerance."""
    if not book.used.ok:
        return book
    rest, against = size(book.used) - book.sum_bytes(), book.contradictions
    if rest < -book.tolerance_bytes:
        held = show_bytes(book.sum_bytes())
        against = (*against, f"the parts make {held}, more than the {show_bytes(size(book.used))} in use ({book.used.source})")
        words = "counted more than once, or at another moment"
    elif rest <= 0:
        return book
    row = LedgerRow("unattributed", words, seen(rest, "bytes", f"{book.used.source} less the rows above", book.used.item),
                    book.used.source)
    return replace(book, rows=(*book.rows, row), contradictions=against)


def size(reading: Reading) -> int:
    """The bytes of a reading, 0 where it has none."""
    return int(reading.value or 0) if reading.ok and not isinstance(reading.value, str) else 0
