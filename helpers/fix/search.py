"""The search for a change with which a program fits: each is made in a copy and rehearsed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from helpers.fix.change import Change, Results, edited, together
from helpers.fix.program import Program
from helpers.rehearse.counterfactual import UPLOADS_OFF
from helpers.rehearse.rehearsal import Rehearsal
from helpers.rehearse.scratch import copied, in_copy

FURTHER = 1.02
"""A change helps if the program makes at least so many times the allocations before it fails."""
MOST_TOGETHER = 3


@dataclass(frozen=True)
class Trial:
    """A change that was made in a copy of the program and rehearsed."""

    change: Change
    rehearsal: Rehearsal

    @property
    def passes(self) -> bool:
        """The changed program came to its own end on the card."""
        return self.rehearsal.fits and not self.rehearsal.stopped

    def helps(self, first: Rehearsal) -> bool:
        """It came further than the program as it is, before it ran out of memory."""
        return (
            bool(self.rehearsal.ooms) and self.rehearsal.allocations > FURTHER * first.allocations
        )


@dataclass
class Trials:
    """Trials of changes of the program in ``folder``, on the card of its ``first`` rehearsal.

    ``run`` rehearses a command (rehearse.run.rehearse, with its torch and limits). It ends after
    ``seconds`` or so many ``tries``. ``on_start`` gets each change before it is rehearsed,
    ``on_trial`` what came of it; ``done`` are all.
    """

    program: Program
    folder: Path
    first: Rehearsal
    run: Callable[..., Rehearsal]
    seconds: float
    tries: int
    on_start: Callable[[Change], None]
    on_trial: Callable[[Trial], None]
    done: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ends_at = time.monotonic() + self.seconds

    def best(self, changes: Iterable[Change]) -> Trial | None:
        """The first change, or the first few together, with which the program passes; those that
        keep its results before the others. None where none was found.
        """
        try:
            kept: list[Change] = []
            other: list[Change] = []
            for change in changes:
                (other if change.results is Results.OTHER else kept).append(change)
            return self._first_that_passes(kept) or self._first_that_passes(other)
        except _NoMore:
            return None

    def _first_that_passes(self, changes: Sequence[Change]) -> Trial | None:
        for change in changes:
            trial = self._tried(change)
            if trial is not None and trial.passes:
                return trial
        for several in self._combinations():
            trial = self._tried(several)
            if trial is not None and trial.passes:
                return trial
        return None

    def _combinations(self) -> Iterator[Change]:
        """Those that help, together: first the two that came furthest, then three."""
        helpful = [trial for trial in self.done if trial.helps(self.first)]
        helpful.sort(key=lambda trial: -trial.rehearsal.allocations)
        singles = [trial.change for trial in helpful]
        for count in range(2, MOST_TOGETHER + 1):
            for several in combinations(singles, count):
                change = together(several)
                if change is not None:
                    yield change

    def _tried(self, change: Change) -> Trial | None:
        """The trial of a change; None where it was tried before. Raises _NoMore."""
        if any(trial.change == change for trial in self.done):
            return None
        left_s = self._ends_at - time.monotonic()
        if len(self.done) >= self.tries or left_s < self.first.seconds:
            raise _NoMore
        self.on_start(change)
        trial = Trial(change, self._rehearsed(change, left_s))
        self.done.append(trial)
        self.on_trial(trial)
        return trial

    def _rehearsed(self, change: Change, left_s: float) -> Rehearsal:
        with copied(self.folder) as copy, tempfile.TemporaryDirectory(prefix="fix-") as scratch:
            for name, text in changed_files(self.program, change).items():
                (copy / name).write_bytes(text)
            words = in_copy(changed_command(self.program, change), self.folder, copy)
            out = Path(scratch) / "run.pickle"
            conf = next(iter(change.environment.values()), None)
            settings = {} if conf is None else {"conf": conf}
            return self.run(
                words,
                self.first.device,
                out,
                extra=UPLOADS_OFF,
                log=out.with_suffix(".log"),
                working_folder=copy,
                ends_after_s=max(left_s / 2, self.first.seconds),
                **settings,
            )


class _NoMore(Exception):
    """The tries or the time are used up."""


def changed_files(program: Program, change: Change) -> dict[str, bytes]:
    """The files that a change touches, by name, as they are with it."""
    texts = {source.name: source.text for source in program.sources}
    names = dict.fromkeys(edit.name for edit in change.edits)
    return {
        name: edited(texts[name], [edit for edit in change.edits if edit.name == name])
        for name in names
    }


def changed_command(program: Program, change: Change) -> list[str]:
    """The program's command line with what the change puts into it."""
    return [change.replaces.get(at, word) for at, word in enumerate(program.command)]
