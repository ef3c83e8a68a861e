"""What grows in a recorded program, who keeps it, and the line that keeps it.

The trace says which line asked for the memory that stays. The record, a file of JSON beside it,
says, if the program ran out of memory, from which names its tensors were reached at that moment.

A grower is a call site (a line that asks for memory) that keeps more with each step (growth.py).
Its keeper is the collection or variable from which the kept tensors are reached
(recorded_keepers.py). The longer recording is a second one of the same program, run without a
memory limit. A trace is fullest when it runs out of memory, or else when most is live.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from helpers.allocator.call_sites import LinesError, Requests, requests_of
from helpers.allocator.circumstances import record_of
from helpers.allocator.growth import KEPT, Grower, Growth, growth_of, is_usual_gap
from helpers.allocator.recorded_keepers import (
    Keeper,
    KeeperRow,
    carries_state,
    keeper_of,
    keepers_of,
    lines_of_step,
    sums_losses,
)
from helpers.allocator.recorded_processes import Fields
from helpers.allocator.steps import steps_begun
from helpers.allocator.trace import Trace, TraceError
from helpers.allocator.trace_file import read_trace
from helpers.ground.units import show_bytes
from helpers.judge.program_questions import LEAST_KEPT

WITHOUT_LIMIT = "without-limit.pickle"
"""In the folder of a record: the trace of the same program, run without a memory limit."""
MOST_STEPS = 100_000
"""Chosen as more steps than a run has: growth that does not matter over so many is no leak."""


@dataclass(frozen=True)
class KeptGrower:
    """A call site that keeps more with each step, and who keeps it; None where nobody is known.

    ``held_bytes``: what it has kept when the trace runs out of memory, else when most is live.
    """

    grower: Grower
    keeper: Keeper | None
    held_bytes: int

    @property
    def line(self) -> str:
        """The program's line to look at: the one that keeps, else the one that asked."""
        if self.keeper is not None and self.keeper.lines:
            return self.keeper.lines[0]
        return self.grower.site.name

    @property
    def words(self) -> str:
        """Who keeps the memory and where, then where it is allocated, in one phrase. The line alone
        that asked where no keeper is known; one line is not named twice.
        """
        if self.keeper is None:
            return self.grower.site.name
        kept = f"{self.keeper.name} keeps it"
        if self.keeper.with_graph:
            kept += " with its graph"
        place = ", ".join(self.keeper.lines) or self.keeper.where
        kept += f" ({place})"
        allocated_at = self.grower.site.name
        if allocated_at in self.keeper.lines:
            return kept
        return f"{kept}; it is allocated at {allocated_at}"


@dataclass(frozen=True)
class RecordedGrowth:
    """What grows in a recorded program.

    ``growth``: what grows over the steps of the trace itself, or, if ``is_longer``, of the longer
    recording; None where neither shows enough steps, and ``why_not`` says why. ``requests``: of
    the recording that ``growth`` is about. ``growers``: those of ``growth``, each with its keeper.
    ``is_later``: the steps come after the request that failed, so they say nothing of what was kept
    until then.

    About the trace itself: ``steps_begun``: how many steps begin before it ran out of memory;
    ``ran_out``: whether it did; ``ended_well``: its record says that the program came to its end
    by itself; ``asked_bytes``: what was live when it was fullest, without what was there when it
    began. ``may_be_one_step``: no backward pass was recorded, and each pass of the loop hands a
    state with its graph of autograd on to the next, so that what looks like many steps may be the
    forward of one.
    """

    requests: Requests
    steps_begun: int
    ran_out: bool
    growth: Growth | None = None
    growers: tuple[KeptGrower, ...] = ()
    is_longer: bool = False
    is_later: bool = False
    why_not: str = ""
    ended_well: bool = False
    may_be_one_step: bool = False
    asked_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that the growers hold when the trace is fullest."""
        return sum(row.held_bytes for row in self.growers)

    @property
    def is_leak(self) -> bool:
        """Whether what grows ends this program or a longer run of it.

        If the program ran out of memory: whether the growers held a good part (a LEAST_KEPT-th)
        of what was live then. Else: whether the program was ended in the middle of its steps, not
        by itself, and MOST_STEPS of them would double what it holds at its peak.
        """
        if self.growth is None or not self.growers:
            return False
        if self.ran_out:
            return LEAST_KEPT * self.held_bytes >= self.asked_bytes
        longest_run = MOST_STEPS * self.growth.bytes_per_step
        is_large = longest_run >= int(self.requests.live.max())
        return self.growth.goes_on and is_large and not self.ended_well

    @property
    def steps_begin_at(self) -> int:
        """The operation at which the first step begins; until then the program builds what its
        steps use. 0 where no steps are seen.
        """
        if self.growth is None:
            return 0
        return int(self.growth.steps.begins[0])

    @property
    def reached_first_step(self) -> bool:
        """Whether the first step had ended, because a second one had begun, when the program ran
        out of memory.
        """
        return self.steps_begun > 1


# A verdict, its growth and its remedies are each asked about with the same trace.
@lru_cache(2)
def growth_of_recording(trace: Trace, path: Path | None = None) -> RecordedGrowth:
    """What grows in a recorded program, who keeps it, and the line that keeps it.

    ``path``: of the trace's file, beside which its record lies (run.pickle,
    run.record/record.json); without one no keeper is known.

    The steps are those of the longer recording, if the record has one that shows enough steps.
    They are those of the trace itself in two other cases. First, all steps of the longer recording
    come after the request that failed, as those of a second validation do. Second, the program
    sums up losses and the longer recording shows no grower: there a later backward pass frees the
    graphs of these losses. Raises nothing: what is missing or cannot be read is not used, and
    ``why_not`` says why no steps are seen.
    """
    requests = requests_of(trace)
    record = record_of(path)
    allocated = requests.alive(requests.fullest) & (requests.at >= 0)
    recorded = RecordedGrowth(
        requests=requests,
        steps_begun=steps_begun(requests),
        ran_out=trace.ran_out,
        ended_well=record.get("exit_code") == 0 and not record.get("stopped"),
        asked_bytes=int(requests.size[allocated].sum()),
    )
    only_losses = sums_losses(keepers_of(record))
    shown = []
    why_not = ""
    sources = [requests]
    longer = _longer(path)
    if longer is not None:  # looked at first
        sources.insert(0, longer)
    for steps_from in sources:
        try:
            seen = _with_growth(recorded, steps_from, record)
        except LinesError as error:
            why_not = str(error)
            continue
        shown.append(seen)
        if not seen.is_later and (seen.growers or not only_losses):
            break
    if not shown:
        return replace(recorded, why_not=why_not)
    # The best are steps from before the failure (False sorts before True), and among these the
    # steps that show a grower.
    return min(shown, key=lambda seen: (seen.is_later, not seen.growers))


def _with_growth(
    recorded: RecordedGrowth, steps_from: Requests, record: Fields
) -> RecordedGrowth:
    """``recorded`` with what grows over the steps of ``steps_from``: the requests of the trace
    itself, or those of the longer recording. Raises LinesError where they show too few steps.
    """
    requests = recorded.requests
    is_longer = steps_from is not requests
    growth = growth_of(steps_from, until_given_up=is_longer)
    rows = keepers_of(record)
    growers = [_kept(grower, growth, requests, rows) for grower in growth.growers]
    # These steps may be only parts of one training step, whose backward pass frees what they keep.
    # Then a grower counts only if something else keeps it.
    loops_in_step = lines_of_step(record, "loops")
    if not growth.steps.trains or growth.steps.line in loops_in_step:
        lines = lines_of_step(record)
        growers = [row for row in growers if not _lies_in_step(row, steps_from, lines)]
        growth = replace(growth, growers=tuple(row.grower for row in growers))
    begun = recorded.steps_begun
    if is_longer:  # which is taken to have the same operations up to there
        begun = growth.steps_at(requests.fullest)
    has_backward = bool(steps_from.backward.any())
    return replace(
        recorded,
        requests=steps_from,
        steps_begun=begun,
        growth=growth,
        growers=tuple(growers),
        is_longer=is_longer,
        is_later=is_longer and bool(growers) and not begun,
        may_be_one_step=not has_backward and _hand_on_a_state(growers, rows),
    )


def growth_words(trace: Trace, path: Path | None = None) -> str:
    """A sentence about memory that grows without end, with its bytes per step and the line that
    keeps most of it. Empty where nothing grows so, or where too few steps are seen to tell.
    """
    recorded = growth_of_recording(trace, path)
    if recorded.growth is None or not recorded.is_leak:
        return ""
    size = show_bytes(round(recorded.growth.bytes_per_step))
    return f"memory grows by {size} each step, most of it at {recorded.growers[0].line}"


def _longer(path: Path | None) -> Requests | None:
    """The requests of the longer recording; None where there is none, or where its file cannot be
    read.
    """
    if path is None:
        return None
    try:
        return requests_of(read_trace(path.with_suffix(".record") / WITHOUT_LIMIT))
    except (OSError, TraceError):
        return None


def _lies_in_step(
    row: KeptGrower, requests: Requests, step_lines: frozenset[str]
) -> bool:
    """Whether a grower only keeps what the running training step needs for its backward pass, which
    frees it. That is so if ``step_lines``, the lines of the step, asked for most of its requests,
    and no name is known that keeps them for their own sake, without their graph.
    """
    if row.keeper is not None and not row.keeper.with_graph:
        return False
    # On a thread of a backward pass a stack has no line of Python, so the test of stacks below
    # would miss it; its call site is the line that called ``backward``.
    if row.grower.site.name in step_lines:
        return True
    live = live_requests_of(row.grower, requests, requests.fullest)
    in_step = requests.with_stack(lambda frames: not step_lines.isdisjoint(frames))
    return bool(in_step[live].sum() > len(live) / 2)


def _kept(
    grower: Grower, growth: Growth, requests: Requests, rows: list[KeeperRow]
) -> KeptGrower:
    """A grower with the keeper of what it asked for, as it was when the trace was fullest."""
    live = live_requests_of(grower, requests, requests.fullest)
    addresses = requests.trace.address
    blocks: dict[
        int, int
    ] = {}  # bytes by address; by addresses a record names what is reached
    if addresses is not None:
        sizes = requests.size[live].tolist()
        blocks = dict(zip(addresses[requests.at[live]].tolist(), sizes, strict=True))
    held_bytes, _ = kept_at(grower, growth, requests, requests.fullest)
    return KeptGrower(grower, keeper_of(blocks, rows), held_bytes)


def live_requests_of(grower: Grower, requests: Requests, operation: int) -> np.ndarray:
    """The numbers of the requests of a grower's call site that are live after an operation."""
    sites = np.array([site == grower.site for site in requests.sites])
    return np.flatnonzero(requests.alive(operation) & sites[requests.site])


def kept_at(
    grower: Grower, growth: Growth, requests: Requests, operation: int
) -> tuple[int, int]:
    """The bytes that a call site has kept up to an operation, and over how many steps: from the
    first in which it kept something to the running one. Over all steps that have begun where it
    kept nothing, and for a grower that is LARGER.

    Each of the last two steps counts with no more than the usual bytes per step: it also holds
    variables that the next steps replace. The first step counts with no more than the most that a
    later step kept, and not at all if the next step that keeps something comes unusually late: a
    library makes its workspace in the first step, and that stays.
    """
    live = live_requests_of(grower, requests, operation)
    sizes = requests.size[live]
    begun = growth.steps_at(operation)
    if grower.how != KEPT:  # LARGER: the newest step holds all of it
        return int(sizes.sum()), begun
    step = np.searchsorted(growth.steps.begins, requests.at[live], "right") - 1
    in_steps = step >= 0
    kept = np.bincount(step[in_steps], sizes[in_steps], begun)  # bytes by step
    kept[-2:] = np.minimum(kept[-2:], grower.bytes_per_step)  # the last two steps
    kept[:1] = np.minimum(kept[:1], kept[1:].max(initial=0))  # the first step
    keeping = np.flatnonzero(kept)
    if not len(keeping):
        return 0, begun
    first, *later = keeping.tolist()
    gaps = np.diff(keeping)
    if later and first == 0 and not is_usual_gap(gaps[0], gaps):
        first = later[0]
    return round(kept[first:].sum()), begun - first


def _hand_on_a_state(growers: list[KeptGrower], rows: list[KeeperRow]) -> bool:
    """Whether no collection keeps what grows, and each pass of the loop hands a state on to the
    next with its graph of autograd.
    """
    in_collection = any(row.keeper and row.keeper.length for row in growers)
    return not in_collection and carries_state(rows)
