"""The search for a change with which a program fits: each is made in a copy and rehearsed."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from helpers.fix.change import Change, Results, together
from helpers.fix.program import Program, changed_copy
from helpers.fix.proof import Proof
from helpers.rehearse.counterfactual import UPLOADS_OFF
from helpers.rehearse.rehearsal import STOPPED, Rehearsal

FURTHER = 1.02
"""A change helps if the program makes more than so many times the allocations before it runs out of
memory: a few more may come from the change's own statements.
"""
INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a rehearsal that Ctrl-C ended."""
MOST_TOGETHER = 3
"""Changes that are made at once where none alone is enough; a larger diff is hard to review."""
NO_TRACE = 1
"""Events in the trace of a changed program: only its peaks are read, and record takes no fewer."""
SHARE_OF_TIME_LEFT = 0.5
"""The share of the time left that one change may take: a program that fits may run for hours, and
the next changes need time, too.
"""


@dataclass(frozen=True)
class TriedChange:
    """A change that was made in a copy of the program and rehearsed."""

    change: Change
    rehearsal: Rehearsal
    proof: Proof | None = None

    @property
    def passes(self) -> bool:
        """The changed program came to its end, or to the step at which --steps ends it, and at no
        time ran out of memory.

        A program that fits only with the smallest workspaces of its libraries passes, too: where
        cuDNN cannot have as large a one as it asks for, torch has it choose a smaller one
        (ATen/native/cudnn/Conv_v8.cpp).
        """
        rehearsal = self.rehearsal
        came_to_its_end = rehearsal.stopped in ("", "--steps")
        return rehearsal.fits and came_to_its_end and not rehearsal.ooms

    @property
    def measured(self) -> Results | None:
        """What the change was measured to do to the results; None where that was not possible."""
        if self.proof is None:
            return None
        return self.proof.results

    @property
    def expected(self) -> Results:
        """What the change should do to the results.

        What was measured, or what its rule says if that is worse, since a CPU does not show all
        that a rule knows; of a change that cuts graphs, what was measured. Where nothing was
        measured, what its rule says. Different results where the programs differed with smaller
        numbers, or where nothing was measured and the change shows only at the end.
        """
        claimed = self.change.results
        if self.proof is not None and self.proof.differs:
            return Results.OTHER
        if self.measured is None:
            if self.change.shows_late:
                return Results.OTHER
            return claimed
        if self.change.cuts_graphs:
            return self.measured
        return max(claimed, self.measured, key=lambda results: results.severity)

    @property
    def results(self) -> Results:
        """The results that may be relied on: the expected ones, but different results where these
        had to be measured and were not, or not to the program's end though they show only there.
        """
        if self.measured is None and self.change.only_if_measured:
            return Results.OTHER
        was_seen_to_its_end = self.proof is not None and self.proof.to_its_end
        if self.change.shows_late and not was_seen_to_its_end:
            return Results.OTHER
        return self.expected

    @property
    def is_refuted(self) -> bool:
        """The measurement shows that the change leaves weights without gradients, or that results
        differ which its rule says to be the same without any measurement.
        """
        if self.loses_gradients:
            return True
        change = self.change
        is_promise = change.results is not Results.OTHER and not change.only_if_measured
        return is_promise and self.measured is Results.OTHER

    @property
    def loses_gradients(self) -> bool:
        """Weights that had gradients have none."""
        return self.proof is not None and self.proof.loses_gradients

    @property
    def ended_early(self) -> bool:
        """Its time was up before it came to its end, and it had not run out of memory."""
        rehearsal = self.rehearsal
        was_stopped = rehearsal.stopped != "" or rehearsal.exit_code == STOPPED
        return was_stopped and not self.passes and not rehearsal.ooms

    def helps(self, first: Rehearsal) -> bool:
        """It came further than the program as it is, before it ran out of memory."""
        came_further = self.rehearsal.allocations > FURTHER * first.allocations
        return self.rehearsal.ooms > 0 and came_further


@dataclass(frozen=True)
class Start:
    """A change that is about to be rehearsed. ``following``: the title of the next one, empty where
    none is planned; ``tries`` and ``seconds``: what is left of both.
    """

    change: Change
    following: str
    tries: int
    seconds: float


@dataclass
class Trials:
    """Trials of changes of a program, until one passes, or the tries or the time are used up."""

    program: Program
    folder: Path
    """The program's."""
    first: Rehearsal
    """Of the unchanged program; trials take place on its card."""
    run: Callable[..., Rehearsal]
    """rehearse.run.rehearse, with its torch and limits."""
    prove: Callable[[Program, Change], Proof]
    """Compares what the program and a changed one compute."""
    seconds: float
    tries: int
    on_start: Callable[[Start], None]
    """Gets each change before it is rehearsed."""
    on_trial: Callable[[TriedChange], None]
    """Gets each trial when it has ended."""
    rehearsed: Mapping[str, Rehearsal] = field(default_factory=dict)
    """Rehearsals of the unchanged program, by the allocator's settings that they had."""
    done: list[TriedChange] = field(default_factory=list)
    fallback: TriedChange | None = None
    """The first change that passes, but with other results than its rule expects: taken where no
    change passes with them.
    """

    def __post_init__(self) -> None:
        self._ends_at = time.monotonic() + self.seconds

    def best(self, changes: Iterable[Change]) -> TriedChange | None:
        """The first change, or the first few together, with which the program passes: one that
        keeps its results, else another. None where none was found.
        """
        try:
            return next(self._that_pass(list(changes)), None)
        except _NoMore:
            return self.fallback

    def _that_pass(self, changes: Sequence[Change]) -> Iterator[TriedChange]:
        """Trials that pass, in the order in which they are worth taking: early changes alone,
        several of them together, the fallback, late changes alone (Change.comes_late), any
        together.
        """
        early = [change for change in changes if not change.comes_late]
        late = [change for change in changes if change.comes_late]
        yield from self._passing(early)
        yield from self._passing_together(early)
        if self.fallback is not None:
            yield self.fallback
        yield from self._passing(late)
        yield from self._passing_together(changes)

    def _passing(self, changes: Sequence[Change]) -> Iterator[TriedChange]:
        """Trials of changes, one by one, that pass with the results that their rules promise."""
        for change, following in zip_longest(changes, changes[1:]):
            # A cut of the graph that passes, though with other results, is kept while further
            # cuts are tried, and taken before a change of another kind.
            if self.fallback is not None:
                cuts_graphs = self.fallback.change.cuts_graphs
                if cuts_graphs and not change.cuts_graphs:
                    yield self.fallback
            next_title = ""
            if following is not None:
                next_title = following.title
            trial = self._tried(change, next_title)
            if trial is None or not trial.passes or trial.is_refuted:
                continue
            if trial.results is not Results.OTHER or change.comes_late:
                yield trial
            elif self.fallback is None:
                self.fallback = trial

    def _passing_together(self, changes: Sequence[Change]) -> Iterator[TriedChange]:
        """Trials that pass of the changes that help, together: the two with which the program came
        furthest, then three. A change that excludes one before it is left out.
        """
        helpful = [trial for trial in self.done if trial.helps(self.first)]
        helpful = [trial for trial in helpful if trial.change in changes]
        helpful.sort(key=lambda trial: -trial.rehearsal.allocations)
        several: list[Change] = []
        for trial in helpful:
            if together([*several, trial.change]) is not None:
                several.append(trial.change)
        for count in range(2, min(MOST_TOGETHER, len(several)) + 1):
            joined = together(several[:count])
            if joined is not None:
                yield from self._passing([joined])

    def _tried(self, change: Change, following: str) -> TriedChange | None:
        """The trial of a change; None where it was tried before. Raises _NoMore where the tries
        are used up, or where less time is left than the unchanged program took: the first change is
        tried even then.
        """
        if any(trial.change == change for trial in self.done):
            return None
        left_s = self._ends_at - time.monotonic()
        is_too_late = left_s < self.first.seconds and bool(self.done)
        if len(self.done) >= self.tries or is_too_late:
            raise _NoMore
        self.on_start(Start(change, following, self.tries - len(self.done), left_s))
        trial = TriedChange(change, self._rehearsed(change, left_s))
        # A setting needs no proof: the program stays as it is.
        may_be_the_same = change.cuts_graphs or change.results is not Results.OTHER
        if trial.passes and may_be_the_same and not change.is_setting:
            trial = replace(trial, proof=self.prove(self.program, change))
        if trial.rehearsal.exit_code == INTERRUPTED:
            # somebody ended fix, not the trial
            raise KeyboardInterrupt
        self.done.append(trial)
        self.on_trial(trial)
        return trial

    def _rehearsed(self, change: Change, left_s: float) -> Rehearsal:
        """The rehearsal of a changed copy of the program."""
        # The only variable that a rule sets is the text of the allocator's settings; None: those
        # of the box.
        conf = next(iter(change.environment.values()), None)
        if conf is not None and change.is_setting and conf in self.rehearsed:
            return self.rehearsed[conf]
        changed = changed_copy(self.program, change, self.folder)
        scratch_folder = tempfile.TemporaryDirectory(prefix="fix-")
        with changed as (copy, words), scratch_folder as scratch:
            out = Path(scratch) / "run.pickle"
            return self.run(
                words,
                self.first.device,
                out,
                extra=UPLOADS_OFF,
                log=out.with_suffix(".log"),
                working_folder=copy,
                ends_after_s=max(SHARE_OF_TIME_LEFT * left_s, self.first.seconds),
                max_events=NO_TRACE,
                conf=conf,
            )


class _NoMore(Exception):
    """The tries or the time are used up."""
