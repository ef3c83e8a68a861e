"""The requests of one line of the program, call by call of that line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from helpers.allocator.call_sites import Requests
from helpers.allocator.edits.edit import Edit
from helpers.allocator.stack_frames import own_line

CONTAINER = "torch/nn/modules/container.py"
_CONTAINER_FORWARD = f"{CONTAINER} forward"
_MODULE_CALL = "_call_impl"


def requests_under(requests: Requests, is_frame: Callable[[str], object]) -> np.ndarray:
    """The requests with such a frame in their stack, as a mask."""
    in_stack = [any(map(is_frame, frames)) for frames in requests.trace.frames]
    return np.array([*in_stack, False])[requests.stack]  # a stack of -1 is the last


def requests_of_line(requests: Requests, edit: Edit) -> np.ndarray:
    """The requests asked for while the edited line ran, as a mask; not those of a backward pass."""
    return requests_under(requests, edit.is_line_of) & ~requests.backward


def workspaces(requests: Requests, mask: np.ndarray) -> np.ndarray:
    """Of the requests of a mask what a library keeps for good after its first call.

    Of its stack it alone is never freed, though later ones are.
    """
    stacks = requests.stack
    stack_count = len(requests.trace.frames) + 1
    never_freed = requests.until >= len(requests.trace)
    freed = np.flatnonzero(mask & ~never_freed)
    last_freed = np.full(stack_count, -1)
    np.maximum.at(last_freed, stacks[freed], freed)
    kept = mask & never_freed & (np.arange(len(requests)) < last_freed[stacks])
    kept_of_stack = np.bincount(stacks[kept], minlength=stack_count)
    return kept & (kept_of_stack[stacks] == 1)


class LineCalls:
    """The requests that one line asks for, without the workspaces of libraries.

    ``numbers``: all of them; ``calls``: those of each time that the line ran.
    """

    def __init__(self, requests: Requests, edit: Edit, mask: np.ndarray) -> None:
        self.requests = requests
        self.edit = edit
        self._with_workspaces = np.flatnonzero(mask)
        self._is_workspace = workspaces(requests, mask)
        self.numbers: list[int] = np.flatnonzero(mask & ~self._is_workspace).tolist()
        callees = [self._callee(frames) for frames in requests.trace.frames]
        self._callees = callees
        self._may_be_anywhere = [
            not callee or callee.startswith(CONTAINER) or own_line(callee) for callee in callees
        ]

    def calls(self) -> Iterator[list[int]]:
        """The requests of each time that the line ran."""
        gaps = np.flatnonzero(np.diff(self._with_workspaces) != 1) + 1
        for group in np.split(self._with_workspaces, gaps):
            neighbours = [number for number in group.tolist() if not self._is_workspace[number]]
            yield from self._cut(neighbours)

    def _cut(self, neighbours: list[int]) -> Iterator[list[int]]:
        """Neighbours cut where they repeat; else where a call begins anew."""
        length = self._requests_a_call(neighbours)
        call: list[int] = []
        for number in neighbours:
            if call:
                ends = len(call) == length if length else self._begins_anew(call, number)
                if ends:
                    yield call
                    call = []
            call.append(number)
        if call:
            yield call

    def _begins_anew(self, call: list[int], number: int) -> bool:
        """Whether a request is the first of another call: what the line calls is at its first
        line again after another. Where that is torch's, the first stack has come again.
        """
        first = self.requests.stack[call[0]]
        last = self.requests.stack[call[-1]]
        stack = self.requests.stack[number]
        if self._callees[stack] == self._callees[first] != self._callees[last]:
            return True
        return not self._may_be_anywhere[stack] and stack == first != last

    def _requests_a_call(self, neighbours: list[int]) -> int:
        """How many requests the line asks for each time, where neighbours repeat; else 0.

        No stack tells the next call of the line from a loop further in. All that lies below one
        line further in is taken for such a loop, unless no single call would be so: layers of
        torch alone, of unequal sizes or two of a kind in a row.
        """
        frames = self.requests.trace.frames
        stacks = self.requests.stack[neighbours].tolist()
        sizes = self.requests.size[neighbours].tolist()
        stack_period = _period(stacks)
        period = _period(list(zip(stacks, sizes, strict=True)))
        if stack_period == len(neighbours):
            return 0
        below = [self._frames_below(frames[stack]) for stack in stacks]
        shared = len(os.path.commonprefix(below))
        shared_frames = below[0][:shared]
        if not any(own_line(frame) or frame.endswith(" forward") for frame in shared_frames):
            return stack_period if stack_period > 1 else period
        only_layers = not any(_calls_other_code(frames[shared:]) for frames in below)
        two_of_a_kind = period > 1 and stacks[0] == stacks[period - 1]
        unequal_sizes = len({*sizes[:period]}) > 1
        if only_layers and (two_of_a_kind or unequal_sizes):
            return period
        return len(neighbours)

    def _frames_below(self, frames: tuple[str, ...]) -> tuple[str, ...]:
        """What a stack holds below the edited line, outermost first.

        Of deep stacks torch's frames are left out but its calls of modules: two of these in a
        row have one between, which is taken for a container.
        """
        at_line = (at for at, frame in enumerate(frames) if self.edit.is_line_of(frame))
        names: list[str] = []
        for frame in reversed(frames[: next(at_line, 0)]):
            if frame.endswith("_wrapped_call_impl"):
                continue
            if frame.endswith(" _call_impl"):
                if names and names[-1] == _MODULE_CALL:
                    names.append(_CONTAINER_FORWARD)
                names.append(_MODULE_CALL)
            elif frame.startswith(CONTAINER):
                names.append(_CONTAINER_FORWARD)
            else:
                names.append(frame)
        return tuple(names)

    def _callee(self, frames: tuple[str, ...]) -> str:
        """The frame that the edited line called, past those by which torch calls a module; ""
        for none.
        """
        below = (frame for frame in self._frames_below(frames) if frame != _MODULE_CALL)
        return next(below, "")


def _period(sequence: list) -> int:
    """How long the shortest part is that a sequence repeats; its own length where it repeats
    none.
    """
    count = len(sequence)
    for length in range(1, count // 2 + 1):
        if count % length == 0 and sequence[length:] == sequence[:-length]:
            return length
    return count


def _calls_other_code(frames: tuple[str, ...]) -> bool:
    """Whether a call goes through a line of the program, or through a module of torch that
    calls others and is no container.
    """
    calls = [at for at, frame in enumerate(frames) if frame.endswith("_call_impl")]
    callers = frames[: max(calls, default=0)]
    modules = (frame for frame in callers if not frame.startswith(CONTAINER))
    return any(map(own_line, frames)) or any(frame.endswith(" forward") for frame in modules)
