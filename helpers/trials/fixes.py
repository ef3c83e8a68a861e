"""The fix table: what of each remedy was predicted, measured and argued, and what it does here.

Measured, predicted and argued stay apart: a verdict other than ``predicted`` rests on trials on
this very box, or on what the audit of its settings knows of its build and chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from helpers.tell.claims import claims
from helpers.trials.catalogue import Remedy
from helpers.trials.effect import Comparison, Effect
from helpers.trials.fixplan import NOT_RUN, Pair, Ran
from helpers.trials.measurement import comparison
from helpers.trials.prediction import UNKNOWN, Prediction

RECORDED = "not available because recorded"
EFFECTS = {
    "helps": "helps",
    "harmful": "harms",
    "no_effect": "no effect",
    "ineffective": "no effect",
    "not_supported": "no effect",
}
"""What a verdict comes to for whoever asks what to do; any other is ``untested``."""


@dataclass(frozen=True)
class FixRow:
    """A line of the fix table.

    ``predicted``, ``measured`` and ``argued`` are columns in words; ``memory`` and ``time`` are
    the measured effects, if any. ``guess`` is the verdict that was predicted, else argued,
    ``saves`` the share of memory predicted, ``why`` the reason in full. ``rehearsed`` and
    ``audited`` say what the prediction rests on (see Prediction); ``reasoned``: it is argued, and
    nothing was predicted; ``elsewhere``: it is for the other vendor.
    """

    remedy: str
    says: str
    claims: tuple[str, ...]
    predicted: str
    measured: str
    argued: str
    verdict: str
    memory: Effect | None = None
    time: Effect | None = None
    guess: str = ""
    saves: float | None = None
    why: str = ""
    rehearsed: bool = False
    audited: bool = False
    reasoned: bool = False
    elsewhere: bool = False

    @property
    def effect(self) -> str:
        """What it does on this box: helps, harms, no effect, or untested."""
        verdict = self.guess if self.verdict == "predicted" else self.verdict
        return EFFECTS.get(verdict, "untested")

    @property
    def saved(self) -> float | None:
        """The share of memory saved, as measured, else as predicted."""
        if self.memory is None:
            return self.saves
        return 1 - self.memory.ratio

    @property
    def by(self) -> str:
        """What its effect rests on: trials, audit, argument, rehearsal or replay.

        Nothing where it is untested.
        """
        if self.memory is not None:
            return "trials"
        if self.verdict not in ("predicted", UNKNOWN):
            return "audit"
        if self.effect == "untested":
            return ""
        if self.reasoned:
            return "argument"
        if self.rehearsed:
            return "rehearsal"
        return "audit" if self.saves is None else "replay"


def verdict_of(
    prediction: Prediction | None,
    compared: Comparison | None,
    *,
    argued: bool,
    recorded: bool,
) -> str:
    """The verdict on a remedy for a box: what its trials showed. Where they show no effect and the
    build or the chip settles it, what is settled; without trials ``predicted``, or not known.

    ``compared`` are its trials; ``argued``: it is argued for. On a recorded box no verdict is
    more than ``predicted``.
    """
    is_known = argued
    if prediction is not None:
        is_known = prediction.verdict != UNKNOWN
    verdict = "predicted" if is_known else UNKNOWN
    if compared is not None:
        verdict = compared.verdict
    shows_an_effect = verdict in ("helps", "harmful")
    if prediction is None or not prediction.settles or recorded or shows_an_effect:
        return verdict
    return prediction.verdict


def fix_table(
    wanted: Sequence[Remedy],
    *,
    recorded: bool,
    predictions: Mapping[str, Prediction],
    tried: Sequence[Pair] = (),
    ran: Ran = NOT_RUN,
    not_tried: Mapping[str, str] = MappingProxyType({}),
) -> list[FixRow]:
    """A row for each remedy: what was predicted, measured and argued, and the verdict for this
    box.

    ``tried`` and ``ran`` are a plan's pairs and what came of them; ``not_tried`` says why of
    the others. On a recorded box nothing is measured, and no verdict is more than
    ``predicted``. What the claims say stands among the arguments.
    """
    compared = {}
    if not recorded:
        compared = {pair.name: comparison(pair, ran) for pair in tried}
    rows = []
    for remedy in wanted:
        untried = not_tried.get(remedy.id, "not tried")
        row = _row(
            remedy,
            predictions.get(remedy.id),
            compared.get(remedy.id),
            untried=RECORDED if recorded else untried,
            recorded=recorded,
        )
        rows.append(row)
    return rows


def _row(
    remedy: Remedy,
    prediction: Prediction | None,
    compared: Comparison | None,
    *,
    untried: str,
    recorded: bool,
) -> FixRow:
    """One line of the table; ``untried`` is what stands for its trials where there are none."""
    is_argued = remedy.how == "argued"
    argument = _first_claim(remedy)
    if is_argued:
        argument = f"{remedy.verdict}: {remedy.why}"
    expected = Prediction(remedy.verdict, remedy.why)
    predicted = "not predicted"
    is_known = is_argued
    if prediction is not None:
        expected = prediction
        predicted = f"{prediction.verdict}: {prediction.why}"
        is_known = prediction.verdict != UNKNOWN
    why = expected.why
    if argument and not is_known:
        why = argument
    measured = untried
    memory = None
    time = None
    if compared is not None:
        why = compared.why
        measured = compared.why
        memory = compared.memory
        time = compared.time
        if compared.verdict == "not_supported":
            measured = f"not available because {compared.why}"
    return FixRow(
        remedy=remedy.id,
        says=remedy.says,
        claims=remedy.claims,
        predicted=predicted,
        measured=measured,
        argued=argument,
        verdict=verdict_of(prediction, compared, argued=is_argued, recorded=recorded),
        memory=memory,
        time=time,
        guess=expected.verdict,
        saves=expected.saves,
        why=why,
        rehearsed=expected.rehearsed,
        audited=expected.audited,
        reasoned=is_argued and prediction is None,
        elsewhere=expected.elsewhere,
    )


def _first_claim(remedy: Remedy) -> str:
    """What became of the first claim that a remedy belongs to, or empty."""
    for claim in claims():
        if claim.id in remedy.claims[:1]:
            return f"claim {claim.id}, {claim.verdict}: {claim.reason}"
    return ""
