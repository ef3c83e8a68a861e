"""A change with which a program of your own fits a card, found by rehearsing it."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.fix.answer import (
    FailedProgram,
    NoFix,
    SearchLimits,
    change_for,
    failure_of,
)
from helpers.fix.bench import TorchChoice, rehearsals
from helpers.fix.league import league
from helpers.fix.search import TriedChange
from helpers.fix.view import (
    how_to_make,
    in_lines,
    none_in_lines,
    tried_table,
    verdict_on_change,
)
from helpers.ground.shapes import NextStep, Verdict
from helpers.ground.units import cut
from helpers.look.boxes import open_box
from helpers.look.cards import find_card
from helpers.rehearse.box_settings import settings_of
from helpers.rehearse.forks import Forks
from helpers.rehearse.rehearsal import RehearsalLimits
from helpers.rehearse.scratch import working_in
from helpers.tell.display import progress
from helpers.tell.shown import Shown
from helpers.trials.user_program import check_script

ASK_AGAIN = NextStep(
    "If you meant something else, change `command`, `folder` or `gpu` in the first cell, and run "
    "the notebook again"
)
NO_COMMAND = 'No program was given. To look for a change: command = "python train.py"'


class ProgramFix(Result):
    """The answer of a search: the change that fits, and all that were tried.

    ``failure`` is None where nothing was looked for; ``why`` says why.
    """

    def __init__(
        self,
        failure: FailedProgram | None = None,
        winner: TriedChange | None = None,
        trials: list[TriedChange] | None = None,
        why: str = "",
    ) -> None:
        self.failure = failure
        self.winner = winner
        self.trials = trials or []
        self.why = why

    @property
    def view(self) -> Shown:
        """Every change that was tried."""
        if self.failure is None:
            return Shown("Changes that were tried", ["change"], [], none=self.why)
        return tried_table(self.trials, self.failure.first)

    @property
    def league(self) -> Shown:
        """The peak of each change against the card, hatched where the program runs out."""
        if self.failure is None:
            return self.view
        return league(self.winner, self.trials, self.failure.first)

    @property
    def words(self) -> str:
        """What is wrong, the change, its peak, its results and its cost."""
        if self.failure is None:
            return self.why
        lines = none_in_lines(self.trials)
        if self.winner is not None:
            lines = in_lines(self.winner, self.failure.first)
        return "\n\n".join([self.failure.verdict.title, *lines])

    def verdict(self) -> Answer:
        """The verdict: the change that was found, that none was, or why none was looked for."""
        if self.failure is not None:
            return Answer(verdict_on_change(self.failure, self.winner, self.trials))
        title = f"No change was looked for: {self.why.partition(': ')[0]}"
        return Answer(
            Verdict(
                "other",
                "likely",
                ASK_AGAIN,
                state="aside",
                title=title,
                summary=self.why,
            )
        )

    @property
    def diff(self) -> str:
        """The change as a diff, a command line or both; empty where none was found."""
        if self.failure is None or self.winner is None:
            return ""
        return how_to_make(self.failure.program, self.winner.change)


def _words(command: str) -> list[str]:
    """The words of a command as a shell reads them. Raises ValueError."""
    try:
        return shlex.split(command)
    except ValueError as error:
        expected = (
            "expected each quotation mark closed, and nothing behind the last backslash"
        )
        raise ValueError(f"command {cut(command, 80)!r}: {expected}") from error


def fix_program(
    command: str = "",
    *,
    folder: str = "",
    gpu: str = "",
    capacity: str = "",
    box: str = "",
    seconds: float = 180.0,
    tries: int = 9,
) -> ProgramFix:
    """A change with which a command, typed in ``folder`` (by default here), fits a card.

    ``gpu`` names the card; else it is the largest of ``box``, or has ``capacity``, such as 20GiB.
    It ends after ``seconds`` or so many ``tries``. Without a command nothing runs. Raises ValueError
    in one line.
    """
    if not command:
        return ProgramFix(why=NO_COMMAND)
    words = _words(command)
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ValueError(
            f"folder {folder!r} is not there; expected the one of your program"
        )
    bundle = open_box(box) if box else None
    card = find_card(gpu, capacity, bundle=bundle)
    box_settings = settings_of(box)
    with (
        working_in(place),
        tempfile.TemporaryDirectory(prefix="fix-") as scratch,
        Forks() as forks,
    ):
        check_script(words)
        run, prover = rehearsals(words, TorchChoice(), box_settings, forks)
        search = SearchLimits(RehearsalLimits(), seconds, tries)
        progress("Running your program unchanged on a simulated GPU ...")
        try:
            failure = failure_of(words, card, run, Path(scratch), search.limits)
            winner, trials = change_for(
                failure,
                run,
                prover.prove,
                search,
                on_start=lambda start: progress(f"Trying: {start.change.title} ..."),
            )
        except NoFix as why:
            return ProgramFix(why=str(why))
        finally:
            progress("")  # takes the last line away
    return ProgramFix(failure, winner, trials)
