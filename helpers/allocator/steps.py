"""The steps of a program: the passes of its main loop, found in the requests of a trace.

A step begins where a line is reached again, a line of the program's own or of a library that runs
its loop, such as a trainer. Between two beginnings a backward pass runs, or modules are called,
or live memory rises and falls as far as in any such loop. Building layers, moving weights and
making an optimizer's state are no steps.

A *candidate* is a line or a request with which steps may begin. Its *passes* are what happens from
one beginning to the next.
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
"""Fewer cannot be told from a start: growth is seen in three steps after the first, each of which
keeps something for two more steps.
"""
# The shares and bounds below are choices; test_growth.py and test_growers.py hold programs that
# need them.
SAME_HEIGHT = 0.5
"""A loop over steps raises live memory at least so far, as a share of the loop that raises it most:
a loop over parts of a step, such as layers, holds only a part of its activations.
"""
SAME_COUNT = 0.9
"""Loops with so many passes, as a share of the most, count as equal: of one loop some lines are
reached once less, as in its first or last pass.
"""
IN_MOST = 0.5
"""Share of the passes in which something happens that belongs to each step: a step may be skipped.
"""
DEEPEST = 24
"""Lines of a stack, outermost first, in which loops are looked for; deeper ones are in layers.
Candidates that are requests have this depth or one more, so that they come after all lines.
"""
MOST_CANDIDATES = 400
"""Each takes a pass over the trace, so their number bounds the time."""
MOST_LOOPS = 16
"""Growth is looked for in each of them, so their number bounds the time."""
BUILDS = " __init__"
"""The function in which a program builds what its steps use."""


@dataclass(frozen=True, eq=False)
class Steps:
    """A loop of the program. ``begins``: the operation with which each step begins; ``line``: the
    program's line there; ``trains``: a backward pass runs in most of them.
    """

    begins: Numbers
    line: str
    trains: bool = False

    def __len__(self) -> int:
        return len(self.begins)


def loops_of(requests: Requests) -> list[Steps]:
    """The loops of a trace that have FEWEST_STEPS or more: the main loop first, if it has so many,
    then loops of other phases, such as a validation. At most MOST_LOOPS.

    Raises LinesError where there is none.
    """
    candidates = _step_candidates(requests)
    main = _main_loop(requests, candidates)
    seen = "no loop"
    if main is not None:
        candidates = [main, *candidates]
        seen = f"{len(main.begins)} steps"
    # Candidates of one function with equally many passes are lines of the same loop: the first
    # counts.
    loops: dict[tuple[tuple[str, ...], int], Steps] = {}
    for candidate in candidates:
        begins = _of_a_phase(requests, candidate, main)
        if len(begins) >= FEWEST_STEPS:
            key = (candidate.path, len(begins))
            steps = Steps(begins, candidate.line, candidate.runs_backward)
            loops.setdefault(key, steps)
    if loops:
        return list(loops.values())[:MOST_LOOPS]
    # Raises for a trace without call sites, which has no steps either.
    require_lines(requests)
    raise LinesError(
        f"the trace shows {seen} of the program; expected at least {FEWEST_STEPS} steps, which can "
        "be told from its start: record a longer run"
    )


def steps_begun(requests: Requests) -> int:
    """How many steps of the main loop a trace begins; 0 where it shows no loop."""
    # A line that is reached again is a sure sign of a loop; a few repeated requests are not.
    sure = [
        candidate
        for candidate in _step_candidates(requests)
        if candidate.is_line or len(candidate.begins) >= FEWEST_STEPS
    ]
    main = _main_loop(requests, sure)
    return 0 if main is None else len(main.begins)


def _of_a_phase(
    requests: Requests, candidate: _Candidate, main: _Candidate | None
) -> Numbers:
    """The beginnings of a loop that count; an empty array for a loop that does not count at all.

    Of the main loop all count. Another loop, such as a validation, runs in phases, each between two
    steps of the main loop. Of it those of one phase count: the phase in which the program ran out
    of memory or was fullest, or the last phase before that. A loop does not count if it ends before
    a training begins, or if it runs in most steps, since it is then a part of a step.
    """
    none: Numbers = candidate.begins[:0]
    if main is None or candidate is main:
        return candidate.begins
    if main.runs_backward and candidate.begins[-1] < main.begins[0]:
        return none
    if len(main.begins) < FEWEST_STEPS:  # too few steps to tell phases by
        return candidate.begins
    phase = np.searchsorted(main.begins, candidate.begins, "right")
    is_part_of_steps = len(np.unique(phase)) > len(main.begins) / 2
    if is_part_of_steps:
        return none
    last = int(np.searchsorted(candidate.begins, requests.fullest, "right")) - 1
    in_phase: Mask = phase == phase[max(last, 0)]
    return candidate.begins[in_phase]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A line or a request with which steps may begin, and what happens in its passes.

    ``begins``: the operations with which the passes begin. ``path``: the lines through which the
    function of the loop was called; ``depth``: how many these are. ``line``: the name of the line.
    ``inside``: it is in the forward of a module or in what a backward pass runs, where no main loop
    is. ``height``: by how many bytes live memory rises and falls in a pass, as the median.
    ``runs_backward``, ``calls_modules``, ``frees``: a backward pass, a call of a module, or a free
    happens in most passes. ``prepares``: no pass calls a module, but one is called after the last
    pass, so the loop prepares what follows. ``may_be_layers``: it is in a module that another
    module calls, so its passes may be layers.
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
    def is_line(self) -> bool:
        """Whether it is a line; else it is a request, see ``_repeated_requests``."""
        return self.depth < DEEPEST

    @property
    def builds(self) -> bool:
        """Whether the loop is in a function that builds what steps use, or was called from one."""
        return any(line.endswith(BUILDS) for line in (*self.path, self.line))


class _Outline:
    """The lines of a stack in which a loop may be, outermost first: the program's own lines, and
    outside of forwards those of its libraries.

    ``inside``: for each line whether it is in a module's forward or in what a backward pass runs.
    ``has_own``: one of the lines is the program's. ``calls``: how many calls of modules the stack
    has.
    """

    def __init__(self, frames: tuple[str, ...]) -> None:
        self.lines: list[str] = []
        self.inside: list[bool] = []
        self.has_own = any(map(own_line, frames))
        self.calls = 0
        inside = False
        for frame in reversed(frames):  # they are innermost first
            calls = CALLS.match(frame) is not None
            self.calls += calls
            inside = inside or calls or frame.endswith(" forward")
            if own_line(frame) or (library_line(frame) and not inside):
                self.lines.append(frame)
                self.inside.append(inside)

    def name(self, depth: int) -> str:
        """The line of that depth as shown to people: a library's line after the program's own line
        that called it.
        """
        line = self.lines[depth]
        if own_line(line):
            return line
        outer = [frame for frame in self.lines[:depth] if own_line(frame)]
        if not outer:
            return line
        return f"{outer[-1]}, in {line}"


def _candidates(requests: Requests, stacks: list[_Outline]) -> Iterator[_Candidate]:
    """Repeated lines, then repeated requests; the likeliest come first."""
    # The last place is that of a request without a stack, -1.
    has_lines = np.array([stack.has_own for stack in stacks] + [False])
    numbers = np.flatnonzero((requests.at >= 0) & has_lines[requests.stack])
    yield from _repeated_lines(requests, numbers, stacks)
    yield from _repeated_requests(requests, numbers, stacks)


def _repeated_lines(
    requests: Requests, numbers: np.ndarray, stacks: list[_Outline]
) -> Iterator[_Candidate]:
    """A candidate for each line that asks, through the same calling lines, after another line has
    asked in between; those of the outermost functions first.

    ``numbers``: the requests that have a line of the program in their stacks. ``stacks``: the
    outline of each stack of the trace.
    """
    deepest = max((len(stack.lines) for stack in stacks), default=0)
    for depth in range(min(DEEPEST, deepest)):
        # A path: the lines of a stack from the outermost down to this depth, by a number. Of the
        # stacks with the same path the first one's outline is kept.
        paths: dict[tuple[str, ...], int] = {}
        outlines: dict[int, _Outline] = {}
        path_of_stack = np.full(len(stacks) + 1, -1)  # -1: no line so deep
        for number, stack in enumerate(stacks):
            if depth < len(stack.lines):
                path = paths.setdefault(tuple(stack.lines[: depth + 1]), len(paths))
                path_of_stack[number] = path
                outlines.setdefault(path, stack)
        path_of_request = path_of_stack[requests.stack[numbers]]
        at = requests.at[numbers]
        for path, begins in _occurrences(at, path_of_request, anew=True):
            outline = outlines[path]
            yield _Candidate(
                path=tuple(outline.lines[:depth]),
                depth=depth,
                begins=begins,
                line=outline.name(depth),
                inside=outline.inside[depth],
            )


def _repeated_requests(
    requests: Requests, numbers: np.ndarray, stacks: list[_Outline]
) -> Iterator[_Candidate]:
    """Candidates for loops in which one line asks for everything, so that no other line shows where
    a pass begins. A pass then begins where the line's first request is repeated, with its stack and
    size.

    The first request of a line is the earliest one outside of modules, or else in the fewest calls
    of modules. Its repeats count first where a request of another stack or size came before them;
    then, as candidates of their own that come last, all its repeats. ``numbers``: the requests that
    have a line of the program in their stacks.
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
    outermost_first = np.lexsort((at, calls))  # by the calls of modules, then by time
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
    """Each number from 0 up that occurs at least twice in ``numbers``, with the operations at which
    it does; -1 stands for none. ``at``: the operation of each entry. With ``anew`` an entry that is
    equal to the one before it does not count.
    """
    counts = numbers >= 0
    if anew:
        counts[1:] &= numbers[1:] != numbers[:-1]
    order = np.argsort(numbers[counts], kind="stable")
    in_order = numbers[counts][order]
    operations = at[counts][order]
    _, begins, lengths = np.unique(in_order, return_index=True, return_counts=True)
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        if length >= 2:
            yield int(in_order[begin]), operations[begin : begin + length]


@lru_cache(2)  # loops_of and steps_begun ask for it with the same requests
def _step_candidates(requests: Requests) -> list[_Candidate]:
    """The candidates whose passes are steps (``_is_step``), with what happens in their passes."""
    stacks = [_Outline(frames) for frames in requests.trace.frames]
    # The last place is that of a request without a stack, -1.
    calls = np.array([stack.calls > 0 for stack in stacks] + [False])
    live = requests.live_before
    # How often each of these happened before each operation.
    backward = _count_at(requests, requests.at[requests.backward])
    modules = _count_at(requests, requests.at[calls[requests.stack]])
    is_freed = requests.until < len(requests.trace)
    freed = _count_at(requests, requests.until[is_freed])
    scored = []
    for candidate in islice(_candidates(requests, stacks), MOST_CANDIDATES):
        begins = candidate.begins
        # The highest point of each pass, above the higher of its two ends.
        ends = np.maximum(live[begins[:-1]], live[begins[1:]])
        heights = np.maximum.reduceat(live[1:], begins)[:-1] - ends
        modules_before = modules[begins[0]]
        modules_after = modules[begins[-1]]
        calls_none = modules_before == modules_after
        measured = replace(
            candidate,
            height=float(np.median(heights)),
            frees=_in_most(freed[begins]),
            runs_backward=_in_most(backward[begins]),
            calls_modules=_in_most(modules[begins]),
            prepares=bool(calls_none and modules[-1] > modules_after),
        )
        # A loop in a forward, or in what builds, counts only if it runs backward passes: under some
        # trainers whole steps are in a forward (_not_inside_forward).
        is_outside = not (measured.inside or measured.builds)
        if is_outside or measured.runs_backward:
            scored.append(measured)
    highest = max((candidate.height for candidate in scored), default=0.0)
    return [candidate for candidate in scored if _is_step(candidate, highest)]


def _in_most(counts: Numbers) -> bool:
    """Whether something happens in most passes. ``counts``: for the beginning of each pass, how
    often it has happened before.
    """
    return bool((np.diff(counts) > 0).mean() >= IN_MOST)


def _is_step(candidate: _Candidate, highest: float) -> bool:
    """Whether the passes of a candidate are steps; ``highest``: the largest height of any
    candidate.
    """
    if candidate.runs_backward:
        return True
    if candidate.prepares:  # such as a loop that loads or moves weights
        return False
    # A loop over layers keeps what each makes; a step frees its own.
    if candidate.may_be_layers and not candidate.frees:
        return False
    is_high = candidate.height >= SAME_HEIGHT * highest
    return candidate.calls_modules or (candidate.frees and is_high)


def _count_at(requests: Requests, operations: np.ndarray) -> np.ndarray:
    """For each operation of the trace, and for its end, how many of ``operations`` come before it.
    An operation may be given several times.
    """
    counts = np.bincount(operations + 1, minlength=len(requests.trace) + 1)
    return np.cumsum(counts)


def _main_loop(requests: Requests, candidates: list[_Candidate]) -> _Candidate | None:
    """The main loop; None without candidates. If any loop runs backward passes, it is one of these;
    else it is one of the outermost.

    Each rule takes some of the candidates, as long as any are left: loops of FEWEST_STEPS or more,
    and of these lines rather than requests; loops that raise live memory about most; loops with
    about most passes. Of the rest it is the one with the least live memory at its beginnings, where
    a step has freed its own.
    """
    trains = any(candidate.runs_backward for candidate in candidates)
    loops = _not_inside_forward(candidates, trains)
    if trains:
        loops = [loop for loop in loops if loop.runs_backward]
    with_steps = [loop for loop in loops if len(loop.begins) >= FEWEST_STEPS]
    if with_steps:
        loops = with_steps
        at_lines = [loop for loop in with_steps if loop.is_line]
        if at_lines:
            loops = at_lines
    highest = max((loop.height for loop in loops), default=0.0)
    high = [loop for loop in loops if loop.height >= SAME_HEIGHT * highest]
    if not trains:
        # no backward pass tells steps from their parts, so the outermost loop counts
        outermost = min((loop.depth for loop in high), default=0)
        high = [loop for loop in high if loop.depth == outermost]
    most = max((len(loop.begins) for loop in high), default=0)
    with_most_passes = [loop for loop in high if len(loop.begins) >= SAME_COUNT * most]
    live = requests.live_before
    return min(
        with_most_passes, key=lambda loop: float(live[loop.begins].mean()), default=None
    )


def _not_inside_forward(candidates: list[_Candidate], trains: bool) -> list[_Candidate]:
    """The candidates that may be the main loop. They are not inside a module's forward; and where
    the trace shows loops inside forwards, some of those begin during their passes, which is not so
    in a loop that loads weights.

    Where no candidate is left, whole steps run in a forward, as under a trainer that wraps them in
    one. The answer is then the candidates whose passes run a backward pass. ``trains``: some
    candidate's do.
    """
    forwards = [np.zeros(0, np.int64)]  # concatenate needs at least one array
    for candidate in candidates:
        if candidate.inside and (candidate.runs_backward or not trains):
            forwards.append(candidate.begins)
    in_forward = np.sort(np.concatenate(forwards))
    outside = []
    for candidate in candidates:
        begin, end = np.searchsorted(in_forward, candidate.begins[[0, -1]])
        has_forwards = end > begin or not len(in_forward)
        if has_forwards and not candidate.inside:
            outside.append(candidate)
    if outside:
        return outside
    return [candidate for candidate in candidates if candidate.runs_backward]
