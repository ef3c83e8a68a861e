"""The rows of a ledger, and the ledger that they make up: who has what of one GPU's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.ground.shapes import Reading, seen
from helpers.ground.units import show_bytes

DRIVER = "driver"
MESSAGE = "message"
TOOL = "tool"


@dataclass(frozen=True)
class LedgerRow:
    """One part of what is in use.

    ``kind``: process (the failing one), other_process, outside, reserved, unattributed.

    ``bytes`` without a value is a holder whose share was not measured; it is then within the
    unattributed rest. A negative rest means that processes were counted twice (shared memory)
    or at another moment; a contradiction then says so.
    """

    kind: str
    words: str
    bytes: Reading
    source: str
    pid: int = 0
    """The process, where the row is one that a number names."""


@dataclass(frozen=True)
class GpuLedger:
    """One source's account of one GPU; ``pci`` is empty where a message does not tell which GPU
    it means.

    ``account`` is driver, message or tool, ``left`` what total less used is. The rows that have a
    value add up to ``used`` within ``tolerance_bytes``. Where ``used`` is not known there is no
    unattributed row.
    """

    pci: str
    account: str
    total: Reading
    used: Reading
    rows: tuple[LedgerRow, ...]
    tolerance_bytes: int
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left: str = "free"
    part: str = ""
    """The MIG device whose memory it counts, where the GPU is cut into several."""

    @property
    def place(self) -> str:
        """The GPU by its address, and the part of it."""
        return f"{self.pci} {self.part}".strip()

    def sum_bytes(self, *kinds: str) -> int:
        """What the rows of these kinds (all, where none is given) hold together; rows without a
        value count nothing.
        """
        return sum(
            row.bytes.bytes for row in self.rows if not kinds or row.kind in kinds
        )


def with_rest(book: GpuLedger, words: str) -> GpuLedger:
    """The ledger with its rest.

    A rest below zero is named, and stands as a row only where it is more than the tolerance.
    """
    used = book.used
    counted = book.sum_bytes()
    rest = used.bytes - counted
    if not used.ok or -book.tolerance_bytes <= rest <= 0:
        return book
    against = book.contradictions
    if rest < 0:
        more = (
            f"the parts make {show_bytes(counted)}, more than the {show_bytes(used.bytes)} in use "
            f"({used.source})"
        )
        against = (*against, more)
        words = "counted more than once, or at another moment"
    left = seen(rest, "bytes", f"{used.source} less the rows above", used.item)
    row = LedgerRow("unattributed", words, left, used.source)
    return replace(book, rows=(*book.rows, row), contradictions=against)
