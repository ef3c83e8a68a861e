"""Which remedies help on a box, and which harm: predicted, rehearsed or tried."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.face.box import Box, as_box
from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.tell.shown import Shown
from helpers.trials import view
from helpers.trials.box_study import FixStudy, fix_study


class Fixes(Result):
    """Each remedy with all that is known of its effect on a box.

    ``study`` holds the rows as data; sizes are bytes.
    """

    def __init__(self, box: Box, study: FixStudy) -> None:
        self.box = box
        self.study = study

    @property
    def view(self) -> Shown:
        return view.fixes_table(self.study)

    @property
    def words(self) -> str:
        """What the table is for, in one line, and why a remedy could not be tried."""
        return view.study_words(self.study)

    @property
    def bars(self) -> Shown:
        """The peak with each remedy, as a bar, for the remedies with a measured or
        computed peak.
        """
        return view.saved_bars(self.study)

    @property
    def effects(self) -> Shown:
        """The effects that trials on this box measured, with their intervals."""
        return view.effects_table(self.study)

    @property
    def preset(self) -> str:
        """What to adopt for good, ready for a preset file."""
        return view.preset_text(self.study)

    @property
    def claims(self) -> Shown | None:
        """What became of the claims of the box's case study; None where it comes from none."""
        return self.box.claims

    def verdict(self) -> Answer:
        """The verdict: which remedy to adopt, and the one next step."""
        return Answer(view.verdict_on_trials(self.study), sources=False)


def try_fixes(
    box: Box | str = "live",
    remedies: Sequence[str] = (),
    *,
    trace: str = "growing-loop",
    capacity: str = "",
    repeats: int = 3,
    budget_s: float = 0.0,
    seed: int = 0,
) -> Fixes:
    """Which remedies help on a box: predicted, and also tried where it is this machine.

    ``remedies`` are names of env/remedies.yaml (default: all that suit this box). Settings are
    replayed on ``trace``. ``capacity`` is a card's memory such as ``24GiB`` (default: the box's
    own). ``repeats`` is how often a remedy, and its control, is tried; ``budget_s`` the seconds
    that all trials may take (0: none runs). Raises ValueError in one line.
    """
    box = as_box(box)
    study = fix_study(
        box.facts,
        remedies,
        trace=trace,
        capacity=capacity,
        repeats=repeats,
        budget_s=budget_s,
        seed=seed,
    )
    return Fixes(box, study)
