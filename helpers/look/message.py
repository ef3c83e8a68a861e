"""One failure that a program printed, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from helpers.ground.units import Quantity
from helpers.look.wordings import Line, WordingRow

REFUSALS = ("refused", "refused-by-limit", "workspace", "collective", "driver-refused")
"""Events in which somebody asked for memory and did not get it."""


@dataclass(frozen=True)
class Message:
    """One failure found in a text. A number that the text does not give is None.

    ``row`` is the id of the table's row, ``side`` whose memory it is about, ``event`` what
    happened (helpers/look/wordings.py has both lists). ``allocated`` of torch counts what tensors
    hold plus, where ``private_pools`` is given, the idle blocks of private pools: torch adds
    them (CUDACachingAllocator.cpp, get_size_block over the pools' free blocks).
    ``reserved_unallocated`` is also what torch 1.0 to 1.3 called "cached". ``requested`` of
    torch is a segment, not the tensor. ``pids`` goes with ``others``, entry by entry; NVML
    gives host numbers, so in a container one of them may be this process itself. ``words`` is
    the message as it stands, ``start`` where.
    """

    row: str
    program: str = ""
    side: str = "none"
    event: str = "note"
    backend: str = ""
    device: int | None = None
    requested: Quantity | None = None
    capacity: Quantity | None = None
    free: Quantity | None = None
    allowed: Quantity | None = None
    process: Quantity | None = None
    allocated: Quantity | None = None
    reserved_unallocated: Quantity | None = None
    reserved_total: Quantity | None = None
    private_pools: Quantity | None = None
    non_torch: Quantity | None = None
    used: Quantity | None = None
    weights: Quantity | None = None
    cache: Quantity | None = None
    buffer: Quantity | None = None
    others: tuple[Quantity, ...] = ()
    pids: tuple[int, ...] = ()
    tokens: int | None = None
    fits_tokens: int | None = None
    layers: int | None = None
    rank: int | None = None
    code: int | None = None
    share: float | None = None
    name: str = ""
    hints: tuple[str, ...] = ()
    words: str = ""
    start: int = 0

    @property
    def numbers(self) -> tuple[Quantity, ...]:
        """Every size that the message gives."""
        values = [getattr(self, field.name) for field in fields(self)]
        return (
            *(value for value in values if isinstance(value, Quantity)),
            *self.others,
        )


@dataclass(frozen=True)
class MessageReading:
    """The failures of a text in its order.

    ``unused`` says in one line what could not be used, and is empty where all was.
    """

    messages: tuple[Message, ...]
    unused: str


def of_device(failure: Message | WordingRow | Line) -> bool:
    """Whether it says that memory of a GPU was refused: by its driver, or a limit; a warning
    about a workspace does not.
    """
    hints = getattr(failure, "hints", ())
    refused = failure.event in REFUSALS and failure.side == "device"
    return refused and "workspace_warning" not in hints


def of_host(failure: Message | WordingRow | Line) -> bool:
    """Whether it says that the host's memory ran out, or that a process was killed for it or by
    nobody knows whom.
    """
    if failure.event in ("killed", "sigkill"):
        return True
    return failure.event in REFUSALS and failure.side in ("host", "commit", "cgroup")
