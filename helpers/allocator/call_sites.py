"""Whose line asked for it: the requests of a trace by call site, and what of each is live when.

A call site is the innermost frame in the program's own files, ``train.py:82 step``: no
package's, no standard library's, none of torch's. Where a stack has none (a library's own
thread) its innermost Python frame outside torch stands in. The backward pass of a GPU runs on a
thread without Python frames (torch/csrc/autograd/engine.cpp): its requests belong to the line
that called ``backward``, which asked for the first gradient just before. Any other request
without a Python frame belongs to no line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helpers.allocator.driver import round_up
from helpers.allocator.stack_frames import own_line
from helpers.allocator.trace import Op, Trace
from helpers.settings.in_force import MIN_BLOCK_BYTES

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
BEFORE = "there when the recording began"
NO_LINE = "no line of Python"
_PLACE = re.compile(r"(?P<file>.*?)(?::|, line )(?P<line>-?\d+) (?P<function>.*)")
_CALLS_BACKWARD = re.compile(
    r"torch/(?:autograd/__init__\.py:|_tensor\.py:\d+ backward$)|autograd::engine"
)
"""Frames of the call that starts a backward pass."""
_IN_BACKWARD = re.compile(r"torch/(?:utils/checkpoint|autograd/function)\.py:")
"""Frames of Python that a backward pass runs itself, on its own thread."""


class LinesError(ValueError):
    """A trace that says nothing of a program's lines.

    The message is one line: what is missing and what to do.
    """


class CallSite(NamedTuple):
    """A call site; ``in_program``: whether it is a line of the program's own files.

    ``file``, ``line`` and ``function`` are "", 0 and "" where it is no line of Python.
    """

    name: str
    in_program: bool
    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of a trace in order, what was live at its start first; all columns of equal
    length.

    ``at``: the operation that asked, -1 for what was live before. ``until``: the operation that
    freed it (that asked for it to be freed), the trace's length where none did. ``size``: bytes
    on the card, each request rounded up to 512. ``site``: index into ``sites``. ``id``: the
    block's. ``stack``: index into the trace's frames, -1 for none. ``backward``: asked for by a
    backward pass, as far as that is known.
    """

    trace: Trace
    at: Numbers
    until: Numbers
    size: Numbers
    site: Numbers
    id: Numbers
    stack: Numbers
    backward: Mask
    sites: tuple[CallSite, ...]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def have_lines(self) -> bool:
        """Whether any request has a line of the program's own."""
        return any(site.in_program for site in self.sites)

    @cached_property
    def live(self) -> Numbers:
        """Live bytes after each operation."""
        change = np.zeros(len(self.trace) + 2, np.int64)
        np.add.at(change, self.at + 1, self.size)
        np.add.at(change, self.until + 1, -self.size)
        return np.cumsum(change)[1:-1]

    @property
    def live_before(self) -> Numbers:
        """Live bytes before each operation, and at last those at the end."""
        return np.append(0, self.live)

    @property
    def peak(self) -> int:
        """The operation after which most is live, the first of them; -1 for an empty trace."""
        return int(self.live.argmax()) if len(self.trace) else -1

    @cached_property
    def fullest(self) -> int:
        """The operation that ran out of memory, the last of them; else the peak."""
        return max(self.trace.refused, default=self.peak)

    @cached_property
    def freed_in_backward(self) -> Mask:
        """Which requests were freed by a backward pass, as what a graph keeps is; as a mask.

        Those before whose free the last request was asked for by a backward pass.
        """
        before_free = np.searchsorted(self.at, self.until) - 1
        return self.backward[before_free] & (self.until < len(self.trace))

    def alive(self, operation: int) -> Mask:
        """Which requests are live after that operation, as a mask."""
        return (self.at <= operation) & (self.until > operation)

    def with_stack(self, holds: Callable[[tuple[str, ...]], bool]) -> Mask:
        """Which requests have a stack of which this holds, as a mask."""
        return _stacks_of(self.trace, holds)[self.stack]

    def asked_at(self, number: int) -> int:
        """The operation that asks for a request; behind the last of them the trace's end."""
        return int(self.at[number]) if number < len(self) else len(self.trace)

    def by_site(self, mask: Mask) -> Numbers:
        """Bytes of the requests of a mask for each call site."""
        sums = np.bincount(self.site[mask], self.size[mask], len(self.sites))
        return sums.astype(np.int64)

    def largest_lines(self, held_bytes: Numbers) -> list[int]:
        """The call sites in the program's own files by their numbers, those that hold most
        first; ``held_bytes``: of each call site.
        """
        largest_first = np.argsort(-held_bytes).tolist()
        return [number for number in largest_first if self.sites[number].in_program]


def _stacks_of(trace: Trace, holds: Callable[[tuple[str, ...]], bool]) -> Mask:
    """Of each stack of a trace whether this holds; False at the last place, for none (-1)."""
    return np.array([*map(holds, trace.frames), False])


def site_of(stack: tuple[str, ...]) -> CallSite:
    """The call site of a stack, innermost frame first."""
    program = [frame for frame in stack if own_line(frame)]
    python = [frame for frame in stack if ".py:" in frame]
    library = [
        frame for frame in python if not frame.startswith(("torch/", "python/", "<"))
    ]
    # The program's innermost frame; where it has none a library's, then torch's.
    candidates = program or library or python
    if not candidates:
        return CallSite(NO_LINE, in_program=False)
    frame = candidates[0]
    in_program = bool(program)
    parts = _PLACE.fullmatch(frame)
    if parts is None:
        return CallSite(frame, in_program)
    return CallSite(
        frame, in_program, parts["file"], int(parts["line"]), parts["function"]
    )


# What grows, what is live and what a card must have are asked of the same trace.
@lru_cache(2)
def requests_of(trace: Trace) -> Requests:
    """The requests of a trace with their call sites.

    A request that the card refused is none: nothing was handed out.
    """
    allocated = [block for _, block in trace.live_at_start if block.state == "A"]
    live_before = np.array(
        [(block.id, block.size) for block in allocated], np.int64
    ).reshape(-1, 2)
    served = (trace.op == Op.ALLOC) & (trace.id >= 0)
    served[np.array(trace.refused, np.int64)] = False
    alloc_at = np.flatnonzero(served)
    ids = np.concatenate((live_before[:, 0], trace.id[alloc_at]))
    rounded = round_up(trace.size[alloc_at], MIN_BLOCK_BYTES)
    stack = np.full(len(alloc_at), -1)
    if trace.frame is not None:
        stack = trace.frame[alloc_at].astype(np.int64)

    places = {CallSite(BEFORE, False): 0, CallSite(NO_LINE, False): 1}
    site_of_stack = [
        places.setdefault(site_of(frames), len(places)) for frames in trace.frames
    ]
    site_of_stack.append(1)  # of a stack of -1
    caller = _backward_callers(trace, stack)
    in_backward = caller >= 0
    site = np.array(site_of_stack)[np.where(in_backward, caller, stack)]
    zeros = np.zeros(len(live_before), np.int64)  # a column of what was live before
    return Requests(
        trace=trace,
        at=np.concatenate((zeros - 1, alloc_at)),
        until=trace.freed_at[ids],
        size=np.concatenate((live_before[:, 1], rounded)),
        site=np.concatenate((zeros, site)),
        id=ids,
        stack=np.concatenate((zeros - 1, stack)),
        backward=np.concatenate((zeros > 0, in_backward)),
        sites=tuple(places),
    )


def _backward_callers(trace: Trace, stacks: np.ndarray) -> np.ndarray:
    """For each request the stack that called the backward pass which asked for it; -1 where
    none is known to.
    """
    calls = _stacks_of(trace, lambda frames: any(map(_CALLS_BACKWARD.match, frames)))
    inside = _stacks_of(trace, lambda frames: any(map(_IN_BACKWARD.match, frames)))
    python = _stacks_of(trace, lambda frames: ".py:" in "\n".join(frames))
    has_no_python = ~python[stacks]
    # For each request the last one so far that Python outside of a backward pass asked for: it
    # may be the call of the backward pass.
    from_outside = ~has_no_python & ~(inside & ~calls)[stacks]
    last = np.maximum.accumulate(np.where(from_outside, np.arange(len(stacks)), -1))
    last_stack = np.where(last >= 0, stacks[last], -1)
    in_backward = (has_no_python & calls[last_stack]) | calls[stacks]
    caller = np.where(has_no_python, last_stack, stacks)
    return np.where(in_backward, caller, -1)


def requests_with_lines(trace: Trace) -> Requests:
    """The requests of a trace, where any has a line of the program's own; else LinesError says
    what is missing.
    """
    return require_lines(requests_of(trace))


def require_lines(requests: Requests) -> Requests:
    """The same requests, where any has a line of the program's own; else LinesError says what
    is missing.
    """
    if requests.have_lines:
        return requests
    frames = len(requests.trace.frames)
    if any(site.name not in (BEFORE, NO_LINE) for site in requests.sites):
        seen = "every call site of the trace lies in a package, none in the program's own files"
    elif frames:
        seen = f"none of the {frames} call sites of the trace is a line of Python"
    else:
        seen = "no request of the trace has a call site"
    raise LinesError(
        f"{seen}; expected stacks: record again with casebook record -- COMMAND"
    )
