"""The steps of a program: each one pass of a loop of it, read off the requests of a trace.

A step begins with a line that comes again and again, of the program's own or of a library that
runs its loop, such as a trainer. Between two beginnings a backward pass runs, or modules are
called, or live memory rises and falls back as high as in any such loop. Building layers, moving
weights and making what an optimizer keeps are no steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from helpers.allocator.call_sites import LinesError, Requests, require_lines
from helpers.allocator.stack_frames import CALLS, library_line, own_line

FEWEST_STEPS = 5
"""Three steps after the first that keep something, seen two steps later, are the least that can
be distinguished from a start.
"""
SAME_HEIGHT = 0.5
SAME_COUNT = 0.9
WITH_BACKWARD = 0.5
DEEPEST = 24
MOST_CANDIDATES = 400
MOST_LOOPS = 16
BUILDS = " __init__"
"""The function in which a program builds what its steps use."""


@dataclass(frozen=True, eq=False)
class Steps:
    """``begins``: the operation with which each step begins; ``line``: the program's line there;
    ``trains``: a backward pass runs in most of them.
    """

    begins: np.ndarray
    line: str
    trains: bool = False

    def __len__(self) -> int:
        return len(self.begins)


def steps_of(requests: Requests) -> Steps:
    """The steps of a trace: the passes of its main loop.

    Raises LinesError where it shows fewer than FEWEST_STEPS.
    """
    return loops_of(requests)[0]


def loops_of(requests: Requests) -> list[Steps]:
    """The loops of a trace whose passes are steps, of FEWEST_STEPS at least: the main one first,
    then those of other phases, such as a validation.

    Raises LinesError where there is none.
    """
    rows = [row for row in _scored(requests) if row.is_step]
    main = _main_loop(requests, rows)
    loops: dict[tuple[Any, ...], Steps] = {}
    for row in [main, *rows] if main else rows:
        begins = row.begins if row is main else _of_a_phase(requests, row, main)
        if len(begins) >= FEWEST_STEPS:
            key = (row.path, len(begins))
            loops.setdefault(key, Steps(begins, row.line, row.runs_backward))
    if loops:
        return list(loops.values())[:MOST_LOOPS]
    require_lines(requests)  # without call sites there are no steps either
    seen = "no loop" if main is None else f"{len(main.begins)} steps"
    raise LinesError(
        f"the trace shows {seen} of the program; expected at least {FEWEST_STEPS} steps, which can "
        "be told from its start: record a longer run"
    )


def steps_begun(requests: Requests) -> int:
    """How many steps of the main loop a trace begins; 0 where it shows no loop."""
    rows = [row for row in _scored(requests) if row.is_step]
    sure = [
        row for row in rows if row.depth < DEEPEST or len(row.begins) >= FEWEST_STEPS
    ]
    main = _main_loop(requests, sure)
    return 0 if main is None else len(main.begins)


def _of_a_phase(
    requests: Requests, row: _Candidate, main: _Candidate | None
) -> np.ndarray:
    """The passes of another loop in that phase between two steps of the main one in which the
    program ran out of memory, or which was the last before. None where the other loop is a part
    of most steps, and where it only prepared what they train on.
    """
    if main is None:
        return row.begins
    if main.runs_backward and row.begins[-1] < main.begins[0]:
        return row.begins[:0]
    if len(main.begins) < FEWEST_STEPS:
        return row.begins
    step = np.searchsorted(main.begins, row.begins, "right")
    if len(np.unique(step)) > len(main.begins) / 2:
        return row.begins[:0]
    last = int(np.searchsorted(row.begins, requests.fullest, "right")) - 1
    return row.begins[step == step[max(last, 0)]]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Where a step may begin, and what happens between two of its beginnings.

    ``path``: the lines through which the function of the loop was called. ``depth``: of that
    function in the stack. ``inside``: of the forward of a module, or of what a backward pass
    runs, where no main loop lies. ``height``: how far live memory rises and falls back, in
    bytes, in the middle one of them. ``calls_modules``, ``frees``: in most of them modules are
    called, something is freed.
    ``prepares``: none of its passes calls a module, and what comes behind the last of them does, as
    where a training follows.
    ``may_be_layers``: a module that is called by another asks there: its passes may be layers of
    one. ``is_step``: what happens in between makes it a step.
    """

    path: tuple[str, ...]
    depth: int
    begins: np.ndarray
    line: str
    inside: bool
    height: float = 0.0
    runs_backward: bool = False
    calls_modules: bool = False
    frees: bool = False
    prepares: bool = False
    may_be_layers: bool = False
    is_step: bool = False

    @property
    def builds(self) -> bool:
        return any(line.endswith(BUILDS) for line in (*self.path, self.line))


class _Outline:
    """The lines of a stack in which a loop may lie, outermost first, each with whether it lies
    inside of a module's forward or of what a backward pass runs: those of the program's own,
    and outside of forwards those of its libraries.

    ``calls``: how many calls of modules the stack goes through.
    """

    def __init__(self, frames: tuple[str, ...]) -> None:
        self.lines: list[str] = []
        self.inside: list[bool] = []
        self.has_own = any(map(own_line, frames))
        self.calls = sum(bool(CALLS.match(frame)) for frame in frames)
        inside = False
        for frame in reversed(frames):
            inside = inside or bool(CALLS.match(frame)) or frame.endswith(" forward")
            if own_line(frame) or (library_line(frame) and not inside):
                self.lines.append(frame)
                self.inside.append(inside)

    def name(self, depth: int) -> str:
        """The line of that depth as it is said: of a library's with the program's own that
        called it.
        """
        line = self.lines[depth]
        if own_line(line):
            return line
        outer = [frame for frame in self.lines[:depth] if own_line(frame)]
        return f"{outer[-1]}, in {line}" if outer else line


def _candidates(requests: Requests, stacks: list[_Outline]) -> Iterator[_Candidate]:
    """Where a line is come to anew, in the same function called from the same lines; then where
    what the same lines ask for first is asked for anew, then each time that it is.
    """
    has_lines = np.array([stack.has_own for stack in stacks] + [False])
    numbers = np.flatnonzero((requests.at >= 0) & has_lines[requests.stack])
    yield from _lines_come_to(requests, numbers, stacks)
    yield from _first_requests(requests, numbers, stacks)


def _lines_come_to(
    requests: Requests, numbers: np.ndarray, stacks: list[_Outline]
) -> Iterator[_Candidate]:
    """Lines that are come to anew, those of the outermost functions first.

    ``numbers``: of the requests that have a line of the program in their stacks.
    """
    deepest = max((len(stack.lines) for stack in stacks), default=0)
    for depth in range(min(DEEPEST, deepest)):
        paths: dict[tuple[str, ...], int] = {}
        outlines: dict[int, _Outline] = {}
        path_of_stack = np.full(len(stacks) + 1, -1)
        for number, stack in enumerate(stacks):
            if depth < len(stack.lines):
                path = paths.setdefault(tuple(stack.lines[: depth + 1]), len(paths))
                path_of_stack[number] = path
                outlines.setdefault(path, stack)
        path_of_request = path_of_stack[requests.stack[numbers]]
        for path, begins in _occurrences(
            requests.at[numbers], path_of_request, anew=True
        ):
            outline = outlines[path]
            lines = tuple(outline.lines[:depth])
            yield _Candidate(
                lines, depth, begins, outline.name(depth), outline.inside[depth]
            )


def _first_requests(
    requests: Requests, numbers: np.ndarray, stacks: list[_Outline]
) -> Iterator[_Candidate]:
    """Requests of the stack and size with which the same lines first ask for something, outside
    of modules rather than inside.

    ``numbers``: of the requests that have a line of the program in their stacks.
    """
    at = requests.at[numbers]
    stack = requests.stack[numbers]
    _, kind = np.unique(
        np.stack((stack, requests.size[numbers])), axis=1, return_inverse=True
    )
    first_stack: dict[tuple[str, ...], int] = {}
    for number, outline in enumerate(stacks):
        first_stack.setdefault(tuple(outline.lines), number)
    path_of_stack = [first_stack[tuple(outline.lines)] for outline in stacks]
    path = np.array([*path_of_stack, -1])[stack]
    calls = np.array([outline.calls for outline in stacks])[stack]
    outermost_first = np.lexsort((at, calls))
    _, first = np.unique(path[outermost_first], return_index=True)
    kinds = kind[outermost_first[first]]
    firsts = np.where(np.isin(kind, kinds), kind, -1) if len(kind) else kind
    for depth, anew in ((DEEPEST, True), (DEEPEST + 1, False)):
        for number, begins in _occurrences(at, firsts, anew=anew):
            outline = stacks[int(stack[int(np.flatnonzero(kind == number)[0])])]
            yield _Candidate(
                path=tuple(outline.lines),
                depth=depth,
                begins=begins,
                line=outline.name(-1),
                inside=outline.inside[-1],
                may_be_layers=outline.calls > 1,
            )


def _occurrences(
    at: np.ndarray, numbers: np.ndarray, *, anew: bool
) -> Iterator[tuple[int, np.ndarray]]:
    """Each number that occurs twice, with the operations; with ``anew`` only those before
    which another number stood.
    """
    counts = numbers >= 0
    if anew:
        counts[1:] &= numbers[1:] != numbers[:-1]
    order = np.argsort(numbers[counts], kind="stable")
    in_order = numbers[counts][order]
    operations = at[counts][order]
    cuts = np.flatnonzero(np.diff(in_order)) + 1
    for group, number in zip(
        np.split(operations, cuts), np.split(in_order, cuts), strict=True
    ):
        if len(group) >= 2:
            yield int(number[0]), group


@lru_cache(2)  # the loops and how many steps begin are asked of the same requests
def _scored(requests: Requests) -> list[_Candidate]:
    """The candidates with what happens between two of their beginnings."""
    stacks = [_Outline(frames) for frames in requests.trace.frames]
    calls = np.array([stack.calls > 0 for stack in stacks] + [False])
    live = np.concatenate(([0], requests.live))
    backward = _count_at(requests, requests.at[requests.backward])
    modules = _count_at(requests, requests.at[calls[requests.stack]])
    freed = _count_at(requests, requests.until[requests.until < len(requests.trace)])
    scored = []
    for candidate in islice(_candidates(requests, stacks), MOST_CANDIDATES):
        begins = candidate.begins
        ends = np.maximum(live[begins[:-1]], live[begins[1:]])
        heights = np.maximum.reduceat(live[1:], begins)[:-1] - ends
        with_backward = (np.diff(backward[begins]) > 0).mean()
        with_modules = (np.diff(modules[begins]) > 0).mean()
        with_frees = (np.diff(freed[begins]) > 0).mean()
        row = replace(
            candidate,
            height=float(np.median(heights)),
            frees=bool(with_frees >= WITH_BACKWARD),
            runs_backward=bool(with_backward >= WITH_BACKWARD),
            calls_modules=bool(with_modules >= WITH_BACKWARD),
            prepares=not with_modules and modules[-1] > modules[begins[-1]],
        )
        scored.append(row)
    outside = [
        row for row in scored if row.runs_backward or not (row.inside or row.builds)
    ]
    highest = max((row.height for row in outside), default=0.0)
    return [replace(row, is_step=_is_step(row, highest)) for row in outside]


def _is_step(row: _Candidate, highest: float) -> bool:
    """Whether what happens between two beginnings makes it a step of a loop."""
    if row.runs_backward:
        return True
    if row.prepares or (row.may_be_layers and not row.frees):
        return False
    rises = row.frees and row.height >= SAME_HEIGHT * highest
    return row.calls_modules or rises


def _count_at(requests: Requests, operations: np.ndarray) -> np.ndarray:
    """How many of these operations come before each operation of the trace."""
    counts = np.bincount(operations + 1, minlength=len(requests.trace) + 1)
    return np.cumsum(counts)


def _main_loop(requests: Requests, scored: list[_Candidate]) -> _Candidate | None:
    """The main loop: in training the loop whose passes run a backward pass, else the outermost.

    Left are, one after the other, the loops in which memory rises highest and falls again, and
    those with most passes; of these it is the one with least live when its passes begin.
    """
    trains = any(row.runs_backward for row in scored)
    loops = _not_inside_forward(scored, trains)
    if trains:
        loops = [row for row in loops if row.runs_backward]
    with_steps = [row for row in loops if len(row.begins) >= FEWEST_STEPS]
    at_lines = [row for row in with_steps if row.depth < DEEPEST]
    loops = at_lines or with_steps or loops
    highest = max((row.height for row in loops), default=0.0)
    high = [row for row in loops if row.height >= SAME_HEIGHT * highest]
    if not trains:
        outermost = min((row.depth for row in high), default=0)
        high = [row for row in high if row.depth == outermost]
    most = max((len(row.begins) for row in high), default=0)
    with_most_passes = [row for row in high if len(row.begins) >= SAME_COUNT * most]
    live = np.concatenate(([0], requests.live))
    return min(
        with_most_passes, key=lambda row: float(live[row.begins].mean()), default=None
    )


def _not_inside_forward(scored: list[_Candidate], trains: bool) -> list[_Candidate]:
    """Those that are not inside of a module's forward, which is no main loop.

    Unless whole steps run in a forward, as where a trainer wraps them in one. And a main loop
    has forwards in it, which a loop that loads weights before it has not (2026-11).
    """
    inside = [row for row in scored if row.inside and (row.runs_backward or not trains)]
    forwards = np.sort(
        np.concatenate([*(row.begins for row in inside), np.zeros(0, np.int64)])
    )
    outside = [row for row in scored if not row.inside]
    if len(forwards):
        outside = [
            row
            for row in outside
            if np.ptp(np.searchsorted(forwards, row.begins[[0, -1]])) > 0
        ]
    return outside or [row for row in scored if row.runs_backward]
