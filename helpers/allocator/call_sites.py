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
"""The names of the two call sites that are no line of Python."""
_PLACE = re.compile(r"(?P<file>.*?)(?::|, line )(?P<line>-?\d+) (?P<function>.*)")
"""A frame as stack_frames.frame_text writes it: "train.py:82 step", "cell 6, line 1 <module>"."""
_CALLS_BACKWARD = re.compile(
    r"torch/(?:autograd/__init__\.py:|_tensor\.py:\d+ backward$)|autograd::engine"
)
"""Frames of the call that starts a backward pass: torch.autograd.backward and grad,
Tensor.backward, and the engine's own frames of C++.
"""
_IN_BACKWARD = re.compile(r"torch/(?:utils/checkpoint|autograd/function)\.py:")
"""Frames of Python that a backward pass runs itself, on its own thread: what a checkpoint computes
again, and the backward of a torch.autograd.Function.
"""


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
    """The requests of a trace in order; in front of them what was live at its start, which counts
    as a request each. All columns have an entry for each request, and a request is named by its
    number, its place in them.

    ``at``: the operation that asked, -1 for what was live before. ``until``: the operation that
    freed it (for a free in two parts, that asked for it), the trace's length where none did.
    ``size``: bytes on the card, each request rounded up to 512. ``site``: index into ``sites``.
    ``id``: the block's. ``stack``: index into the trace's frames, -1 for none. ``backward``: asked
    for by a backward pass, as far as that is known.
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
        count = len(self.trace)
        # Place k + 1 is that of operation k; place 0 is that of what was there before (at: -1),
        # and place count + 1 that of what nobody frees (until: count).
        change = np.zeros(count + 2, np.int64)
        np.add.at(change, self.at + 1, self.size)
        np.add.at(change, self.until + 1, -self.size)
        return np.cumsum(change)[1 : count + 1]

    @property
    def live_before(self) -> Numbers:
        """Live bytes before each operation, and at last those at the end."""
        return np.append(0, self.live)

    @property
    def peak(self) -> int:
        """The operation after which most is live, the first of them; -1 for an empty trace."""
        if not len(self.trace):
            return -1
        return int(self.live.argmax())

    @cached_property
    def fullest(self) -> int:
        """The operation that ran out of memory, the last of them; else the peak."""
        return max(self.trace.refused, default=self.peak)

    @cached_property
    def freed_in_backward(self) -> Mask:
        """Which requests were freed by a backward pass, as a mask. A backward pass frees what a
        graph of autograd keeps.

        The trace does not say who frees. A backward pass is taken to free a request if it made
        the last request before the free.
        """
        before_free = np.searchsorted(self.at, self.until) - 1
        return self.backward[before_free] & (self.until < len(self.trace))

    def alive(self, operation: int) -> Mask:
        """Which requests are live after that operation, as a mask."""
        return (self.at <= operation) & (self.until > operation)

    def with_stack(self, holds: Callable[[tuple[str, ...]], bool]) -> Mask:
        """Which requests have a stack for which ``holds`` is true, as a mask."""
        return _stacks_of(self.trace, holds)[self.stack]

    def asked_at(self, number: int) -> int:
        """The operation that makes a request, by its number; the trace's length where the trace has
        fewer requests.
        """
        if number >= len(self):
            return len(self.trace)
        return int(self.at[number])

    def by_site(self, mask: Mask) -> Numbers:
        """For each call site, by its number, the bytes of those of its requests that a mask has."""
        sums = np.bincount(self.site[mask], self.size[mask], len(self.sites))
        return sums.astype(np.int64)

    def largest_lines(self, held_bytes: Numbers) -> list[int]:
        """The numbers of the call sites in the program's own files, those with most bytes first.

        ``held_bytes``: the bytes of each call site, by its number, as ``by_site`` returns them.
        """
        largest_first = np.argsort(-held_bytes).tolist()
        return [number for number in largest_first if self.sites[number].in_program]


def _stacks_of(trace: Trace, holds: Callable[[tuple[str, ...]], bool]) -> Mask:
    """For each stack of a trace whether ``holds`` is true of it. One more entry, False, stands at
    the end, where a request without a stack (-1) finds it.
    """
    return np.array([*map(holds, trace.frames), False])


def site_of(stack: tuple[str, ...]) -> CallSite:
    """The call site of a stack, innermost frame first (see the head of this file)."""
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
        # no line of Python that stack_frames.py wrote, so no file is known
        return CallSite(frame, in_program)
    return CallSite(
        frame, in_program, parts["file"], int(parts["line"]), parts["function"]
    )


# Many answers about a program ask the same trace, and that of the program without a limit.
@lru_cache(2)
def requests_of(trace: Trace) -> Requests:
    """The requests of a trace with their call sites, and before them what was live at its start.

    A request that the card refused is left out: nothing was handed out. So are blocks that were
    freed before the start and only awaited events then.
    """
    # "A": allocated, not awaiting its free.
    allocated = [block for _, block in trace.live_at_start if block.state == "A"]
    ids_before = np.array([block.id for block in allocated], np.int64)
    sizes_before = np.array([block.size for block in allocated], np.int64)
    # Requests that got a block: all but those that were refused.
    served = (trace.op == Op.ALLOC) & (trace.id >= 0)
    served[np.array(trace.refused, np.int64)] = False
    alloc_at = np.flatnonzero(served)
    ids = np.concatenate((ids_before, trace.id[alloc_at]))
    rounded = round_up(trace.size[alloc_at], MIN_BLOCK_BYTES)
    stack = np.full(len(alloc_at), -1)
    if trace.frame is not None:
        stack = trace.frame[alloc_at].astype(np.int64)
    sites, site_of_stack = _sites_of(trace)
    caller = _backward_callers(trace, stack)
    in_backward = caller >= 0
    site = site_of_stack[np.where(in_backward, caller, stack)]

    # Of what was live before: it has no operation, no stack, and the call site BEFORE, the first.
    none = np.full(len(allocated), -1)
    first_site = np.zeros(len(allocated), np.int64)
    not_backward = np.zeros(len(allocated), bool)
    return Requests(
        trace=trace,
        at=np.concatenate((none, alloc_at)),
        until=trace.freed_at[ids],
        size=np.concatenate((sizes_before, rounded)),
        site=np.concatenate((first_site, site)),
        id=ids,
        stack=np.concatenate((none, stack)),
        backward=np.concatenate((not_backward, in_backward)),
        sites=sites,
    )


def _sites_of(trace: Trace) -> tuple[tuple[CallSite, ...], Numbers]:
    """The call sites of a trace, first BEFORE and NO_LINE, and for each stack the number of its
    call site. One more entry, NO_LINE's, stands at the end, where a request without a stack (-1)
    finds it.
    """
    numbers = {CallSite(BEFORE, False): 0, CallSite(NO_LINE, False): 1}
    site_of_stack = [
        numbers.setdefault(site_of(frames), len(numbers)) for frames in trace.frames
    ]
    site_of_stack.append(1)  # NO_LINE
    return tuple(numbers), np.array(site_of_stack)


def _backward_callers(trace: Trace, stacks: np.ndarray) -> np.ndarray:
    """For each request, given by its stack, the stack that called the backward pass which made the
    request; -1 where no backward pass made it, as far as that is known.

    A backward pass makes a request if the request's own stack has the call of a backward pass.
    It makes a request without a Python frame if the last request from outside has that call in
    its stack; from outside are those that have a Python frame and that no code inside a backward
    pass made (_IN_BACKWARD).
    """
    calls = _stacks_of(trace, lambda frames: any(map(_CALLS_BACKWARD.match, frames)))
    inside = _stacks_of(trace, lambda frames: any(map(_IN_BACKWARD.match, frames)))
    python = _stacks_of(trace, lambda frames: ".py:" in "\n".join(frames))
    has_no_python = ~python[stacks]
    is_inside = (inside & ~calls)[stacks]
    from_outside = ~has_no_python & ~is_inside
    numbers = np.arange(len(stacks))
    # For each request the number, and the stack, of the last request from outside.
    last = np.maximum.accumulate(np.where(from_outside, numbers, -1))
    last_stack = np.where(last >= 0, stacks[last], -1)
    in_backward = (has_no_python & calls[last_stack]) | calls[stacks]
    caller = np.where(has_no_python, last_stack, stacks)
    return np.where(in_backward, caller, -1)


def requests_with_lines(trace: Trace) -> Requests:
    """The requests of a trace. Raises LinesError where none has a line of the program's own."""
    return require_lines(requests_of(trace))


def require_lines(requests: Requests) -> Requests:
    """The same requests. Raises LinesError, which says what is missing, where none has a line of
    the program's own.
    """
    if requests.have_lines:
        return requests
    frames = len(requests.trace.frames)
    # Three things can be missing: the program's own lines, lines of Python, all stacks.
    if any(site.name not in (BEFORE, NO_LINE) for site in requests.sites):
        seen = "every call site of the trace lies in a package, none in the program's own files"
    elif frames:
        seen = f"none of the {frames} call sites of the trace is a line of Python"
    else:
        seen = "no request of the trace has a call site"
    raise LinesError(
        f"{seen}; expected stacks: record again with casebook record -- COMMAND"
    )
