"""The fix table: for each remedy what was predicted, measured and argued, and the verdict.

These three stay apart: a verdict other than ``predicted`` comes from trials on this box, or from
the audit of the remedy's settings, which knows the build of torch and the chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
"""The effect of a remedy for each verdict, as a reader is told; for any other it is "untested"."""


@dataclass(frozen=True)
class FixRow:
    """A row of the fix table.

    ``remedy`` is its id, ``says`` its sentence; ``predicted``, ``measured`` and ``argued`` are
    columns in words; ``memory`` and ``time`` are the measured effects, if any. ``guess`` is the
    verdict that was predicted, else argued; ``saves`` is the share of memory that it is predicted
    to save; ``why`` is the reason in full. ``rehearsed`` and ``audited`` are as of Prediction;
    ``reasoned``: it is argued and not predicted; ``elsewhere``: it is for the other vendor.
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
        verdict = self.verdict
        if verdict == "predicted":
            verdict = self.guess
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

        Empty if it is untested.
        """
        if self.memory is not None:
            return "trials"
        # Without trials only the audit gives a verdict of its own (verdict_of).
        if self.verdict not in ("predicted", UNKNOWN):
            return "audit"
        if self.effect == "untested":
            return ""
        if self.reasoned:
            return "argument"
        if self.rehearsed:
            return "rehearsal"
        if self.saves is None:  # a replay says how much is saved
            return "audit"
        return "replay"


def verdict_of(
    prediction: Prediction | None,
    compared: Comparison | None,
    *,
    argued: bool,
    recorded: bool,
) -> str:
    """The verdict on a remedy for a box: that of its trials (``compared``), else ``predicted``, or
    UNKNOWN if it is neither predicted nor ``argued``.

    If the build or the chip settles what a remedy does (``Prediction.settles``), that is the
    verdict, unless trials show an effect, or the box is recorded.
    """
    if compared is not None and compared.verdict in ("helps", "harmful"):
        return compared.verdict
    if prediction is not None and prediction.settles and not recorded:
        return prediction.verdict
    if compared is not None:
        return compared.verdict
    if _is_known(prediction, argued):
        return "predicted"
    return UNKNOWN


def fix_table(
    wanted: Sequence[Remedy],
    *,
    recorded: bool,
    predictions: Mapping[str, Prediction],
    tried: Sequence[Pair] = (),
    ran: Ran = NOT_RUN,
    not_tried: Mapping[str, str] = MappingProxyType({}),
) -> list[FixRow]:
    """A row for each remedy.

    ``tried`` are the pairs of a plan and ``ran`` their trials; ``not_tried`` says why the others
    were not tried. ``predictions`` and ``not_tried`` are by the ids of remedies. On a recorded box
    nothing is measured.
    """
    compared = {}
    if not recorded:
        compared = {pair.name: comparison(pair, ran) for pair in tried}
    rows = []
    for remedy in wanted:
        untried = not_tried.get(remedy.id, "not tried")
        if recorded:
            untried = RECORDED
        row = _row(
            remedy,
            predictions.get(remedy.id),
            compared.get(remedy.id),
            untried=untried,
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
    """The row of a remedy; ``untried`` is the column of its trials if there are none."""
    is_argued = remedy.how == "argued"
    # The column "argued": the reason in the file of remedies, else a claim that others made.
    argument = _first_claim(remedy)
    if is_argued:
        argument = f"{remedy.verdict}: {remedy.why}"
    expected = Prediction(remedy.verdict, remedy.why)  # both empty unless it is argued
    predicted = "not predicted"
    if prediction is not None:
        expected = prediction
        predicted = f"{prediction.verdict}: {prediction.why}"
    why = expected.why
    # A prediction that leaves it open is a lesser reason than a claim.
    if argument and not _is_known(prediction, is_argued):
        why = argument
    row = FixRow(
        remedy=remedy.id,
        says=remedy.says,
        claims=remedy.claims,
        predicted=predicted,
        measured=untried,
        argued=argument,
        verdict=verdict_of(prediction, compared, argued=is_argued, recorded=recorded),
        guess=expected.verdict,
        saves=expected.saves,
        why=why,
        rehearsed=expected.rehearsed,
        audited=expected.audited,
        reasoned=is_argued and prediction is None,
        elsewhere=expected.elsewhere,
    )
    if compared is None:
        return row
    measured = compared.why
    if compared.verdict == "not_supported":
        measured = f"not available because {compared.why}"
    return replace(
        row,
        why=compared.why,
        measured=measured,
        memory=compared.memory,
        time=compared.time,
    )


def _is_known(prediction: Prediction | None, is_argued: bool) -> bool:
    """Whether a remedy is predicted to do something in particular, or argued to."""
    if prediction is None:
        return is_argued
    return prediction.verdict != UNKNOWN


def _first_claim(remedy: Remedy) -> str:
    """The first claim about a remedy, with its verdict and reason in words; empty if there is
    none.
    """
    for claim in claims():
        if claim.id in remedy.claims[:1]:
            return f"claim {claim.id}, {claim.verdict}: {claim.reason}"
    return ""
