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
"""A change helps if the program makes at least so many times the allocations before it fails."""
INTERRUPTED = 128 + signal.SIGINT
"""How a rehearsal ends that Ctrl-C ended."""
MOST_TOGETHER = 3
"""Changes that are made at once where none alone is enough."""
NO_TRACE = 1
"""Events in the trace of a change: nobody reads more than its peaks."""
SHARE_OF_TIME_LEFT = 0.5
"""How much of it one change may take, since a program that fits runs to its end."""


@dataclass(frozen=True)
class TriedChange:
    """A change that was made in a copy of the program and rehearsed."""

    change: Change
    rehearsal: Rehearsal
    proof: Proof | None = None

    @property
    def passes(self) -> bool:
        """The changed program came to its end, or to the step at which it was to end, and at no
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
        return self.proof.results if self.proof else None

    @property
    def expected(self) -> Results:
        """What the change should do to the results.

        The worse of what was measured and what its rule says, since a CPU does not show all that
        a rule knows of; of a change that cuts graphs, what was measured. Where nothing was
        measured, what its rule says; but other results where the programs differed with smaller
        numbers, or where the change shows only at the end.
        """
        claimed = self.change.results
        if self.proof is not None and self.proof.differs:
            return Results.OTHER
        if self.measured is None:
            return Results.OTHER if self.change.shows_late else claimed
        if self.change.cuts_graphs:
            return self.measured
        return max(claimed, self.measured, key=list(Results).index)

    @property
    def results(self) -> Results:
        """The expected results as far as they may be relied on: other results where the rule
        holds only if it was measured, to the program's end if it shows only there.
        """
        if self.measured is None and self.change.only_if_measured:
            return Results.OTHER
        if self.change.shows_late and not (self.proof and self.proof.to_its_end):
            return Results.OTHER
        return self.expected

    @property
    def is_refuted(self) -> bool:
        """It was measured to leave weights without gradients, or to compute something else though
        its rule says that it never does.
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
    """A change that is about to be rehearsed: the title of the ``following`` one, empty where none
    is planned, and the tries and the seconds that are left.
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
    """Gets what came of each."""
    rehearsed: Mapping[str, Rehearsal] = field(default_factory=dict)
    """Rehearsals of the unchanged program, by the allocator's settings that they had."""
    done: list[TriedChange] = field(default_factory=list)
    fallback: TriedChange | None = None
    """It passes, but not with the results that its rule expects."""

    def __post_init__(self) -> None:
        self._ends_at = time.monotonic() + self.seconds

    def best(self, changes: Iterable[Change]) -> TriedChange | None:
        """The first change, or the first few together, with which the program passes; those that
        keep its results before the others. None where none was found.
        """
        try:
            return next(self._that_pass(list(changes)), None)
        except _NoMore:
            return self.fallback

    def _that_pass(self, changes: Sequence[Change]) -> Iterator[TriedChange]:
        """Trials that pass. First of changes that do not come late: each alone, then several
        together, then the fallback. Then all changes: those that come late alone, then together.
        """
        kept = [change for change in changes if not change.comes_late]
        yield from self._passing(kept)
        yield from self._passing_together(kept)
        if self.fallback is not None:
            yield self.fallback
        yield from self._passing([change for change in changes if change not in kept])
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
            next_title = "" if following is None else following.title
            trial = self._tried(change, next_title)
            if trial is None or not trial.passes or trial.is_refuted:
                continue
            if trial.results is Results.OTHER and not change.comes_late:
                self.fallback = self.fallback or trial
                continue
            yield trial

    def _passing_together(self, changes: Sequence[Change]) -> Iterator[TriedChange]:
        """Those of the changes that help, together: the two that came furthest, then three."""
        helpful = [trial for trial in self.done if trial.helps(self.first)]
        helpful = [trial for trial in helpful if trial.change in changes]
        helpful.sort(key=lambda trial: -trial.rehearsal.allocations)
        singles = [trial.change for trial in helpful]
        several: list[Change] = []
        for change in singles:
            if together([*several, change]) is not None:
                several.append(change)
        for count in range(2, min(MOST_TOGETHER, len(several)) + 1):
            joined = together(several[:count])
            if joined is not None:
                yield from self._passing([joined])

    def _tried(self, change: Change, following: str) -> TriedChange | None:
        """The trial of a change; None where it was tried before. Raises _NoMore where the tries
        are used up, or less time is left than the unchanged program took. The first change is tried
        in any case.
        """
        if any(trial.change == change for trial in self.done):
            return None
        left_s = self._ends_at - time.monotonic()
        is_too_late = left_s < self.first.seconds and bool(self.done)
        if len(self.done) >= self.tries or is_too_late:
            raise _NoMore
        self.on_start(Start(change, following, self.tries - len(self.done), left_s))
        trial = TriedChange(change, self._rehearsed(change, left_s))
        # A setting is not compared: the program stays as it is.
        may_be_the_same = change.cuts_graphs or change.results is not Results.OTHER
        if trial.passes and may_be_the_same and not change.is_setting:
            trial = replace(trial, proof=self.prove(self.program, change))
        if trial.rehearsal.exit_code == INTERRUPTED:
            raise KeyboardInterrupt
        self.done.append(trial)
        self.on_trial(trial)
        return trial

    def _rehearsed(self, change: Change, left_s: float) -> Rehearsal:
        """The rehearsal of a changed copy of the program."""
        # The only variable that a rule sets is the text of the allocator's settings.
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
