"""The steps of a program: each one pass of its main loop, read off the requests of a trace.

A step begins with a line of the program's own that comes again and again: between two
beginnings live memory rises to its height and falls back, and in a training program the
backward pass runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from helpers.allocator.call_sites import LinesError, Requests, require_lines
from helpers.allocator.stack_frames import CALLS, own_line

FEWEST_STEPS = 5
"""Three steps after the first that keep something, seen two steps later, are the least that can
be distinguished from a start.
"""
SAME_HEIGHT = 0.5
SAME_COUNT = 0.9
WITH_BACKWARD = 0.5
DEEPEST = 8
MOST_CANDIDATES = 300


@dataclass(frozen=True, eq=False)
class Steps:
    """``begins``: the operation with which each step begins; ``line``: the program's line there."""

    begins: np.ndarray
    line: str

    def __len__(self) -> int:
        return len(self.begins)


def steps_of(requests: Requests) -> Steps:
    """The steps of a trace. Raises LinesError where it shows fewer than FEWEST_STEPS."""
    steps = _main_loop(requests)
    if steps is not None and len(steps) >= FEWEST_STEPS:
        return steps
    require_lines(requests)  # without call sites there are no steps either
    seen = "no loop" if steps is None else f"{len(steps)} steps"
    raise LinesError(
        f"the trace shows {seen} of the program; expected at least {FEWEST_STEPS} steps, which can "
        "be told from its start: record a longer run"
    )


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Where a step may begin, and what happens between two of its beginnings.

    ``depth``: of the function in the stack. ``inside``: of the forward of a module, or of what a
    backward pass runs, where no main loop lies. ``height``: how far live memory rises and falls
    back, in bytes, in the middle one of them.
    """

    depth: int
    begins: np.ndarray
    line: str
    inside: bool
    height: float = 0.0
    runs_backward: bool = False


class _OwnLines:
    """The lines of the program's own in a stack, outermost first, each with whether it lies
    inside of a module's forward or of what a backward pass runs.
    """

    def __init__(self, frames: tuple[str, ...]) -> None:
        self.lines: list[str] = []
        self.inside: list[bool] = []
        inside = False
        for frame in reversed(frames):
            inside = inside or bool(CALLS.match(frame)) or frame.endswith(" forward")
            if own_line(frame):
                self.lines.append(frame)
                self.inside.append(inside)


def _candidates(requests: Requests) -> Iterator[_Candidate]:
    """Where a line of the program's own is come to anew, in the same function called from the
    same lines; then where what the same lines ask for first is asked for anew, then each time
    that it is.
    """
    stacks = [_OwnLines(frames) for frames in requests.trace.frames]
    has_lines = np.array([bool(stack.lines) for stack in stacks] + [False])
    asked = np.flatnonzero((requests.at >= 0) & has_lines[requests.stack])
    yield from _lines_come_to(requests, asked, stacks)
    yield from _first_requests(requests, asked, stacks)


def _lines_come_to(
    requests: Requests, asked: np.ndarray, stacks: list[_OwnLines]
) -> Iterator[_Candidate]:
    """Lines that are come to anew, those of the outermost functions first."""
    deepest = max((len(stack.lines) for stack in stacks), default=0)
    for depth in range(min(DEEPEST, deepest)):
        numbers: dict[tuple[str, ...], int] = {}
        inside: dict[int, bool] = {}
        path_of_stack = np.full(len(stacks) + 1, -1)
        for number, stack in enumerate(stacks):
            if depth < len(stack.lines):
                path = numbers.setdefault(tuple(stack.lines[: depth + 1]), len(numbers))
                path_of_stack[number] = path
                inside.setdefault(path, stack.inside[depth])
        paths = list(numbers)
        path_of_request = path_of_stack[requests.stack[asked]]
        for path, begins in _occurrences(requests.at[asked], path_of_request, anew=True):
            yield _Candidate(depth, begins, paths[path][-1], inside[path])


def _first_requests(
    requests: Requests, asked: np.ndarray, stacks: list[_OwnLines]
) -> Iterator[_Candidate]:
    """Requests of the stack and size with which the same lines first ask for something."""
    at = requests.at[asked]
    stack = requests.stack[asked]
    _, kind = np.unique(np.stack((stack, requests.size[asked])), axis=1, return_inverse=True)
    first_stack: dict[tuple[str, ...], int] = {}
    for number, outline in enumerate(stacks):
        first_stack.setdefault(tuple(outline.lines), number)
    path_of_stack = [first_stack[tuple(outline.lines)] for outline in stacks]
    path = np.array([*path_of_stack, -1])[stack]
    _, first = np.unique(path, return_index=True)
    firsts = np.where(np.isin(kind, kind[first]), kind, -1) if len(kind) else kind
    for depth, anew in ((DEEPEST, True), (DEEPEST + 1, False)):
        for number, begins in _occurrences(at, firsts, anew=anew):
            outline = stacks[int(stack[int(np.flatnonzero(kind == number)[0])])]
            yield _Candidate(depth, begins, outline.lines[-1], outline.inside[-1])


def _occurrences(
    at: np.ndarray, numbers: np.ndarray, *, anew: bool
) -> Iterator[tuple[int, np.ndarray]]:
    """Each number that occurs three times, with the operations; with ``anew`` only those before
    which another number stood.
    """
    counts = numbers >= 0
    if anew:
        counts[1:] &= numbers[1:] != numbers[:-1]
    order = np.argsort(numbers[counts], kind="stable")
    in_order = numbers[counts][order]
    operations = at[counts][order]
    cuts = np.flatnonzero(np.diff(in_order)) + 1
    for group, number in zip(np.split(operations, cuts), np.split(in_order, cuts), strict=True):
        if len(group) >= 3:
            yield int(number[0]), group


def _scored(requests: Requests) -> list[_Candidate]:
    """The candidates with what happens between two of their beginnings."""
    live = np.concatenate(([0], requests.live))
    backward = np.zeros(len(requests.trace) + 1, np.int64)
    np.add.at(backward, requests.at[requests.backward] + 1, 1)
    backward = np.cumsum(backward)
    scored = []
    for candidate in islice(_candidates(requests), MOST_CANDIDATES):
        begins = candidate.begins
        ends = np.maximum(live[begins[:-1]], live[begins[1:]])
        heights = np.maximum.reduceat(live[1:], begins)[:-1] - ends
        with_backward = (np.diff(backward[begins]) > 0).mean()
        runs_backward = bool(with_backward >= WITH_BACKWARD)
        height = float(np.median(heights))
        scored.append(replace(candidate, height=height, runs_backward=runs_backward))
    return scored


def _main_loop(requests: Requests) -> Steps | None:
    """Of all that may be beginnings those between which memory rises highest and falls again
    and, in training, the backward pass runs; of these the most; of these the one at which least
    is live. Without a backward pass the outermost loop is the main one.
    """
    trains = bool(requests.backward.any())
    scored = _not_inside_forward(_scored(requests), trains)
    if trains:
        scored = [row for row in scored if row.runs_backward]
    often = [row for row in scored if len(row.begins) >= FEWEST_STEPS]
    lines = [row for row in often if row.depth < DEEPEST]
    scored = lines or often or scored
    highest = max((row.height for row in scored), default=0.0)
    scored = [row for row in scored if row.height >= SAME_HEIGHT * highest]
    if not trains:
        outermost = min((row.depth for row in scored), default=0)
        scored = [row for row in scored if row.depth == outermost]
    most = max((len(row.begins) for row in scored), default=0)
    alike = [row for row in scored if len(row.begins) >= SAME_COUNT * most]
    if not alike:
        return None
    live = np.concatenate(([0], requests.live))
    best = min(alike, key=lambda row: float(live[row.begins].mean()))
    return Steps(best.begins, best.line)


def _not_inside_forward(scored: list[_Candidate], trains: bool) -> list[_Candidate]:
    """Those that are not inside of a module's forward, which is no main loop.

    Unless whole steps run in a forward, as where a trainer wraps them in one. And a main loop
    has forwards in it, which a loop that loads weights before it has not (2026-11).
    """
    inside = [row for row in scored if row.inside and (row.runs_backward or not trains)]
    forwards = np.sort(np.concatenate([*(row.begins for row in inside), np.zeros(0, np.int64)]))
    outside = [row for row in scored if not row.inside]
    if len(forwards):
        outside = [
            row for row in outside if np.ptp(np.searchsorted(forwards, row.begins[[0, -1]])) > 0
        ]
    return outside or [row for row in scored if row.runs_backward]
