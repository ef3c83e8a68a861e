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
    """One part of the memory in use: who has it (``words``) and how much.

    ``kind``: process (the failing one), other_process, outside (not of this box), reserved (by
    the driver), unattributed (the rest). ``pid`` is 0 where the row is no single process.

    A holder whose memory was not measured has ``bytes`` without a value; it lies in the
    unattributed rest. A negative rest means that processes were counted twice (shared memory)
    or at another moment; a contradiction then says so.
    """

    kind: str
    words: str
    bytes: Reading
    source: str
    pid: int = 0


@dataclass(frozen=True)
class GpuLedger:
    """The account that one source gives of one GPU.

    ``pci`` is empty where a message does not tell which GPU it is about; ``part`` is the MIG
    device, where the GPU is split into several. ``account`` is DRIVER, MESSAGE or TOOL. ``left``
    is what total less used is called. The rows that have a value add up to ``used`` within
    ``tolerance_bytes``. Where ``used`` is not known there is no unattributed row.
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

    @property
    def place(self) -> str:
        """The GPU by its address, and the part of it."""
        return f"{self.pci} {self.part}".strip()

    def sum_bytes(self, *kinds: str) -> int:
        """The bytes of all rows of these kinds (of all rows where no kind is given); a row without
        a value counts as 0.
        """
        return sum(
            row.bytes.bytes for row in self.rows if not kinds or row.kind in kinds
        )


def with_rest(book: GpuLedger, words: str) -> GpuLedger:
    """The ledger with a row for what its rows leave of the memory in use; ``words`` say who may
    have it. Unchanged where nothing is left, or what is in use is not known.

    Rows that make more than is in use, beyond the tolerance, are a contradiction, and the row for
    the rest is negative.
    """
    used = book.used
    counted_bytes = book.sum_bytes()
    rest_bytes = used.bytes - counted_bytes
    # What is left above 0 is always shown: only a negative rest can come from rounding alone.
    if not used.ok or -book.tolerance_bytes <= rest_bytes <= 0:
        return book
    contradictions = book.contradictions
    if rest_bytes < 0:
        too_much = (
            f"the parts make {show_bytes(counted_bytes)}, more than the "
            f"{show_bytes(used.bytes)} in use ({used.source})"
        )
        contradictions = (*contradictions, too_much)
        words = "counted more than once, or at another moment"
    rest = seen(rest_bytes, "bytes", f"{used.source} less the rows above", used.item)
    row = LedgerRow("unattributed", words, rest, used.source)
    return replace(book, rows=(*book.rows, row), contradictions=contradictions)
