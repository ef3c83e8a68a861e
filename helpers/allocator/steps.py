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

import numpy as np

from helpers.allocator.call_sites import (
    LinesError,
    Mask,
    Numbers,
    Requests,
    require_lines,
)
from helpers.allocator.stack_frames import CALLS, library_line, own_line

FEWEST_STEPS = 5
"""Three steps after the first that keep something, seen two steps later, are the least that can
be distinguished from a start.
"""
SAME_HEIGHT = 0.5
SAME_COUNT = 0.9
IN_MOST = 0.5
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

    begins: Numbers
    line: str
    trains: bool = False

    def __len__(self) -> int:
        return len(self.begins)


def loops_of(requests: Requests) -> list[Steps]:
    """The loops of a trace whose passes are steps, of FEWEST_STEPS at least: the main one first,
    then those of other phases, such as a validation.

    Raises LinesError where there is none.
    """
    rows = _step_candidates(requests)
    main = _main_loop(requests, rows)
    if main is not None:
        rows.insert(0, main)
    loops: dict[tuple[tuple[str, ...], int], Steps] = {}
    for row in rows:
        begins = _of_a_phase(requests, row, main)
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
    rows = _step_candidates(requests)
    # From DEEPEST on they are no lines but requests (_first_requests): sure where there are many.
    sure = [
        row for row in rows if row.depth < DEEPEST or len(row.begins) >= FEWEST_STEPS
    ]
    main = _main_loop(requests, sure)
    return 0 if main is None else len(main.begins)


def _of_a_phase(
    requests: Requests, row: _Candidate, main: _Candidate | None
) -> Numbers:
    """The passes of a loop that count: of the main one all; of another those in the phase in
    which the program ran out of memory, or the last before it, where a phase lies between two
    steps of the main one. None of a loop that is a part of most steps, or that only prepared
    what they train on.
    """
    none: Numbers = row.begins[:0]
    if main is None or row is main:
        return row.begins
    if main.runs_backward and row.begins[-1] < main.begins[0]:
        return none
    if len(main.begins) < FEWEST_STEPS:
        return row.begins
    phase = np.searchsorted(main.begins, row.begins, "right")
    is_part_of_steps = len(np.unique(phase)) > len(main.begins) / 2
    if is_part_of_steps:
        return none
    last = int(np.searchsorted(row.begins, requests.fullest, "right")) - 1
    in_phase: Mask = phase == phase[max(last, 0)]
    return row.begins[in_phase]


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
    one.
    """

    path: tuple[str, ...]
    depth: int
    begins: Numbers
    line: str
    inside: bool
    height: float = 0.0
    runs_backward: bool = False
    calls_modules: bool = False
    frees: bool = False
    prepares: bool = False
    may_be_layers: bool = False

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
        self.calls = 0
        inside = False
        for frame in reversed(frames):
            calls = CALLS.match(frame) is not None
            self.calls += calls
            inside = inside or calls or frame.endswith(" forward")
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
    # A kind: the requests of one stack and size.
    stack_and_size = np.stack((stack, requests.size[numbers]))
    _, first_of_kind, kind = np.unique(
        stack_and_size, axis=1, return_index=True, return_inverse=True
    )
    places: dict[tuple[str, ...], int] = {}
    path_of_stack = [
        places.setdefault(tuple(outline.lines), len(places)) for outline in stacks
    ]
    path = np.array(path_of_stack, np.int64)[stack]
    calls = np.array([outline.calls for outline in stacks])[stack]
    outermost_first = np.lexsort((at, calls))
    _, first = np.unique(path[outermost_first], return_index=True)
    is_first_kind = np.isin(kind, kind[outermost_first[first]])
    first_kinds = np.where(is_first_kind, kind, -1)
    for depth, anew in ((DEEPEST, True), (DEEPEST + 1, False)):
        for number, begins in _occurrences(at, first_kinds, anew=anew):
            outline = stacks[int(stack[first_of_kind[number]])]
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
def _step_candidates(requests: Requests) -> list[_Candidate]:
    """The candidates between whose beginnings something happens that makes it a step."""
    stacks = [_Outline(frames) for frames in requests.trace.frames]
    calls = np.array([stack.calls > 0 for stack in stacks] + [False])
    live = requests.live_before
    backward = _count_at(requests, requests.at[requests.backward])
    modules = _count_at(requests, requests.at[calls[requests.stack]])
    is_freed = requests.until < len(requests.trace)
    freed = _count_at(requests, requests.until[is_freed])
    scored = []
    for candidate in islice(_candidates(requests, stacks), MOST_CANDIDATES):
        begins = candidate.begins
        ends = np.maximum(live[begins[:-1]], live[begins[1:]])
        heights = np.maximum.reduceat(live[1:], begins)[:-1] - ends
        no_modules = modules[begins[0]] == modules[begins[-1]]
        row = replace(
            candidate,
            height=float(np.median(heights)),
            frees=_in_most(freed[begins]),
            runs_backward=_in_most(backward[begins]),
            calls_modules=_in_most(modules[begins]),
            prepares=bool(no_modules and modules[-1] > modules[begins[-1]]),
        )
        scored.append(row)
    outside = [
        row for row in scored if row.runs_backward or not (row.inside or row.builds)
    ]
    highest = max((row.height for row in outside), default=0.0)
    return [row for row in outside if _is_step(row, highest)]


def _in_most(counts: Numbers) -> bool:
    """Whether something happens in most passes: ``counts`` has how often so far, at each
    beginning.
    """
    return bool((np.diff(counts) > 0).mean() >= IN_MOST)


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


def _main_loop(requests: Requests, rows: list[_Candidate]) -> _Candidate | None:
    """The main loop: in training the loop whose passes run a backward pass, else the outermost.

    Left are, one after the other, the loops in which memory rises highest and falls again, and
    those with most passes; of these it is the one with least live when its passes begin.
    """
    trains = any(row.runs_backward for row in rows)
    loops = _not_inside_forward(rows, trains)
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
    live = requests.live_before
    return min(
        with_most_passes, key=lambda row: float(live[row.begins].mean()), default=None
    )


def _not_inside_forward(rows: list[_Candidate], trains: bool) -> list[_Candidate]:
    """Those that are not inside of a module's forward, which is no main loop.

    Unless whole steps run in a forward, as where a trainer wraps them in one. And a main loop
    has forwards in it, which a loop that loads weights before it has not (2026-11).
    """
    inside = [row for row in rows if row.inside and (row.runs_backward or not trains)]
    forwards = np.sort(
        np.concatenate([*(row.begins for row in inside), np.zeros(0, np.int64)])
    )
    outside = [row for row in rows if not row.inside]
    if len(forwards):
        outside = [
            row
            for row in outside
            if np.ptp(np.searchsorted(forwards, row.begins[[0, -1]])) > 0
        ]
    return outside or [row for row in rows if row.runs_backward]
