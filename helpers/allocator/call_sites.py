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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from helpers.allocator.stack_frames import own_line
from helpers.allocator.trace import Op, Trace
from helpers.settings.in_force import MIN_BLOCK_BYTES

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
    """A call site; ``own``: whether it is a line of the program's own files.

    ``file``, ``line`` and ``function`` are "", 0 and "" where it is no line of Python.
    """

    name: str
    own: bool
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
    at: np.ndarray
    until: np.ndarray
    size: np.ndarray
    site: np.ndarray
    id: np.ndarray
    stack: np.ndarray
    backward: np.ndarray
    sites: tuple[CallSite, ...]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def have_lines(self) -> bool:
        """Whether any request has a line of the program's own."""
        return any(site.own for site in self.sites)

    @cached_property
    def live(self) -> np.ndarray:
        """Live bytes after each operation."""
        change = np.zeros(len(self.trace) + 2, np.int64)
        np.add.at(change, self.at + 1, self.size)
        np.add.at(change, self.until + 1, -self.size)
        return np.cumsum(change)[1:-1]

    @property
    def peak(self) -> int:
        """The operation after which most is live, the first of them; -1 for an empty trace."""
        return int(self.live.argmax()) if len(self.trace) else -1

    @cached_property
    def fullest(self) -> int:
        """The operation that ran out of memory, the last of them; else the peak."""
        refused = [call.event for call in self.trace.driver if call.action == "oom"]
        return max(refused, default=self.peak)

    @cached_property
    def freed_in_backward(self) -> np.ndarray:
        """Which requests were freed by a backward pass, as what a graph keeps is; as a mask."""
        before = np.searchsorted(self.at, self.until) - 1
        return self.backward[before] & (self.until < len(self.trace))

    def alive(self, operation: int) -> np.ndarray:
        """Which requests are live after that operation, as a mask."""
        return (self.at <= operation) & (self.until > operation)

    def asked_at(self, number: int) -> int:
        """The operation that asks for a request; behind the last of them the trace's end."""
        return int(self.at[number]) if number < len(self) else len(self.trace)

    def by_site(self, mask: np.ndarray) -> np.ndarray:
        """Bytes of the requests of a mask for each call site."""
        sums = np.bincount(self.site[mask], self.size[mask], len(self.sites))
        return sums.astype(np.int64)


def site_of(stack: tuple[str, ...]) -> CallSite:
    """The call site of a stack, innermost frame first."""
    own = [frame for frame in stack if own_line(frame)]
    python = [frame for frame in stack if ".py:" in frame]
    library = [frame for frame in python if not frame.startswith(("torch/", "python/", "<"))]
    innermost = [*own[:1], *library[:1], *python[:1]]
    if not innermost:
        return CallSite(NO_LINE, False)
    frame = innermost[0]
    parts = _PLACE.fullmatch(frame)
    if parts is None:
        return CallSite(frame, bool(own))
    return CallSite(frame, bool(own), parts["file"], int(parts["line"]), parts["function"])


@lru_cache(2)  # what grows, what is live and what a card must have are asked of the same trace
def requests_of(trace: Trace) -> Requests:
    """The requests of a trace with their call sites.

    A request that the card refused is none: nothing was handed out.
    """
    allocated = [block for _, block in trace.live_at_start if block.state == "A"]
    live_before = np.array([(block.id, block.size) for block in allocated], np.int64).reshape(-1, 2)
    refused = [call.event for call in trace.driver if call.action == "oom"]
    served = (trace.op == Op.ALLOC) & (trace.id >= 0)
    served[np.array(refused, np.int64)] = False
    asked = np.flatnonzero(served)
    ids = np.concatenate((live_before[:, 0], trace.id[asked]))
    rounded = -(-trace.size[asked] // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    freed_at = np.full(trace.ids + 1, len(trace), np.int64)
    frees = np.flatnonzero(np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED)) & (trace.id >= 0))
    np.minimum.at(freed_at, trace.id[frees], frees)
    stack = np.full(len(trace), -1) if trace.frame is None else trace.frame.astype(np.int64)
    places: dict[CallSite, int] = {CallSite(BEFORE, False): 0, CallSite(NO_LINE, False): 1}
    site_of_stack = [places.setdefault(site_of(frames), len(places)) for frames in trace.frames]
    site_of_stack.append(1)  # of a stack of -1
    caller = _backward_callers(trace, stack[asked])
    in_backward = caller >= 0
    site = np.array(site_of_stack, np.int64)[np.where(in_backward, caller, stack[asked])]
    zeros = np.zeros(len(live_before), np.int64)
    return Requests(
        trace=trace,
        at=np.concatenate((zeros - 1, asked)),
        until=freed_at[ids],
        size=np.concatenate((live_before[:, 1], rounded)),
        site=np.concatenate((zeros, site)),
        id=ids,
        stack=np.concatenate((zeros - 1, stack[asked])),
        backward=np.concatenate((zeros > 0, in_backward)),
        sites=tuple(places),
    )


def _backward_callers(trace: Trace, stacks: np.ndarray) -> np.ndarray:
    """For each request the stack that called the backward pass which asked for it; -1 where
    none is known to.
    """
    no_stack = [False]
    calls = np.array([any(map(_CALLS_BACKWARD.match, f)) for f in trace.frames] + no_stack)
    inside = np.array([any(map(_IN_BACKWARD.match, f)) for f in trace.frames] + no_stack)
    python = np.array([".py:" in "\n".join(frames) for frames in trace.frames] + no_stack)
    nameless = ~python[stacks]
    # The last request before that some other Python asked for: it may be the call of the
    # backward pass.
    speaks = ~nameless & ~(inside & ~calls)[stacks]
    last = np.where(speaks, np.arange(len(stacks)), -1)
    if len(stacks):
        last = np.maximum.accumulate(last)
    root = np.where(last >= 0, stacks[last], -1)
    in_backward = (nameless & calls[root]) | calls[stacks]
    return np.where(in_backward, np.where(nameless, root, stacks), -1)


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
    raise LinesError(f"{seen}; expected stacks: record again with casebook record -- COMMAND")
