"""Finds the requests of one line of the program, and groups them by each time that it ran."""

from __future__ import annotations

import os

import numpy as np

from helpers.allocator.call_sites import Mask, Numbers, Requests
from helpers.allocator.edits.edit import Edit
from helpers.allocator.stack_frames import own_line


def requests_of_line(requests: Requests, edit: Edit) -> Mask:
    """The requests made while the edited line ran, as a mask; without those of a backward pass, and
    without the workspaces of libraries, which an edit of the line does not change.
    """
    in_line = requests.with_stack(lambda frames: any(map(edit.is_line_of, frames)))
    forward = in_line & ~requests.backward
    return forward & ~_workspaces(requests, forward)


def _workspaces(requests: Requests, mask: Mask) -> Mask:
    """The workspaces among the requests of a mask, as a mask: memory that a library, such as
    cuBLAS, asks for at its first call and keeps. A request is taken for one if it is the only
    request of its stack that is never freed, and a later request of that stack is freed. So an
    output that a program keeps at each call is none.
    """
    stacks = requests.stack
    stack_count = len(requests.trace.frames) + 1  # with the last place for none, -1
    never_freed = requests.until >= len(requests.trace)
    freed = np.flatnonzero(mask & ~never_freed)
    last_freed: Numbers = np.full(stack_count, -1)
    np.maximum.at(last_freed, stacks[freed], freed)
    kept = mask & never_freed & (np.arange(len(requests)) < last_freed[stacks])
    kept_of_stack = np.bincount(stacks[kept], minlength=stack_count)
    is_single: Mask = kept_of_stack[stacks] == 1
    return kept & is_single


def calls_of_line(requests: Requests, edit: Edit, mask: Mask) -> list[list[int]]:
    """The requests of a line, by their numbers, in a list for each time that the line ran.
    ``mask``: all requests of the line. Where another line asked in between, the line ran again.
    """
    at_line = np.flatnonzero(mask)
    gaps = np.flatnonzero(np.diff(at_line) != 1) + 1
    calls: list[list[int]] = []
    for neighbours in np.split(at_line, gaps):
        calls += _cut(requests, edit, neighbours.tolist())
    return calls


def _cut(requests: Requests, edit: Edit, neighbours: list[int]) -> list[list[int]]:
    """``neighbours``, requests of a line that follow each other, in a list for each run of the
    line. It ran again where the stack of the first request returns after another stack. If the
    stacks share code that the line calls, such as a container of layers, the loop is in that code:
    all are one run then.
    """
    stacks = requests.stack[neighbours].tolist()
    if _share_code_below(requests, edit, stacks):
        return [neighbours]
    calls: list[list[int]] = []
    before = None
    for number, stack in zip(neighbours, stacks, strict=True):
        if before is None or (stack == stacks[0] and stack != before):
            calls.append([])
        calls[-1].append(number)
        before = stack
    return calls


def _share_code_below(requests: Requests, edit: Edit, stacks: list[int]) -> bool:
    """Whether all the stacks, given by their numbers, go through one line of code or one container
    of modules that the edited line calls.

    A snapshot keeps no frame of a container that is deep in a stack, only its call and those of the
    modules in it (snapshot.MORE_KEPT): two calls in a row have a container between them.
    """
    below = [_frames_below(requests.trace.frames[stack], edit) for stack in set(stacks)]
    shared = os.path.commonprefix(below)  # works on tuples as on texts
    module_calls = [frame for frame in shared if frame.endswith(" _call_impl")]
    through_code = any(
        own_line(frame) or frame.endswith(" forward") for frame in shared
    )
    return through_code or len(module_calls) > 1


def _frames_below(frames: tuple[str, ...], edit: Edit) -> tuple[str, ...]:
    """The frames that the edited line called, outermost first."""
    at_line = next(at for at, frame in enumerate(frames) if edit.is_line_of(frame))
    return frames[:at_line][::-1]
