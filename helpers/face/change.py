"""A change with which a program of your own fits a card, found by rehearsing it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
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
    """The answer of a search for a change with which a program fits.

    ``failure``: the program and why it fails; None where no search was made, and ``why`` says the
    reason. ``winner``: the change that fits, None where there is none. ``trials``: all changes that
    were tried, in this order.
    """

    def __init__(
        self,
        failure: FailedProgram | None = None,
        winner: TriedChange | None = None,
        trials: Sequence[TriedChange] = (),
        why: str = "",
    ) -> None:
        self.failure = failure
        self.winner = winner
        self.trials = list(trials)
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
        reason, _, _ = self.why.partition(": ")  # what follows is advice
        verdict = Verdict(
            cause="other",
            confidence="likely",
            next_step=ASK_AGAIN,
            state="aside",
            title=f"No change was looked for: {reason}",
            summary=self.why,
        )
        return Answer(verdict)

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
        shown = cut(command, 80)  # enough to recognise it
        raise ValueError(f"command {shown!r}: {expected}") from error


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
    """Find a change with which a command, run in ``folder`` (default: the current one), fits a
    card.

    The card is ``gpu`` by its name, else the largest of ``box``, else one of ``capacity``, such as
    20GiB. The search ends after ``seconds`` or after so many ``tries``. Without a command nothing
    runs. Raises ValueError in one line.
    """
    if not command:
        return ProgramFix(why=NO_COMMAND)
    words = _words(command)
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ValueError(
            f"folder {folder!r} is not there; expected the one of your program"
        )
    bundle = None
    if box:
        bundle = open_box(box)
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
