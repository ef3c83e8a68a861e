"""One failure that a program printed, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from helpers.ground.units import Quantity
from helpers.look.wordings import Line, WordingRow

REFUSALS = ("refused", "refused-by-limit", "workspace", "collective", "driver-refused")
"""Events in which somebody asked for memory and did not get it."""


@dataclass(frozen=True)
class Message:
    """One failure that a text names. A number that the text does not give is None.

    ``row`` is the id of its row in messages.json, ``side`` whose memory it is about (device, host,
    ...), ``event`` what happened (refused, killed, ...).

    Of torch, ``requested`` is a segment, not the tensor; ``allocated`` is what tensors hold plus,
    if ``private_pools`` is given, the idle blocks of private pools, which torch adds
    (CUDACachingAllocator.cpp, get_size_block over the pools' free blocks);
    ``reserved_unallocated`` is also what torch 1.0 to 1.3 called "cached".

    ``others`` are the sizes that other processes hold, and ``pids`` their numbers in the same
    order; NVML gives the host's numbers, so in a container one of them may be this process.
    ``words`` is the message as it was printed, ``start`` its place in the text.
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
        sizes = [value for value in values if isinstance(value, Quantity)]
        return (*sizes, *self.others)


@dataclass(frozen=True)
class MessageReading:
    """The failures that a text names, in its order. ``unused`` says in one line which parts of it
    could not be used, or is empty.
    """

    messages: tuple[Message, ...]
    unused: str


def of_device(failure: Message | WordingRow | Line) -> bool:
    """Whether it says that memory of a GPU was refused, by its driver or by a limit. A warning
    about a workspace does not: the program goes on without it.
    """
    hints = getattr(failure, "hints", ())  # a Line has none
    is_refused = failure.event in REFUSALS and failure.side == "device"
    return is_refused and "workspace_warning" not in hints


def of_host(failure: Message | WordingRow | Line) -> bool:
    """Whether it says that the host's memory ran out, or that a process was killed, perhaps for it."""
    if failure.event in ("killed", "sigkill"):
        return True
    return failure.event in REFUSALS and failure.side in ("host", "commit", "cgroup")
