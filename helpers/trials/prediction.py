"""What is a remedy expected to do on a box? By the audit of its settings, or by a replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from helpers.allocator.driver import Card
from helpers.allocator.trace import Trace
from helpers.allocator.trace_file import read_trace
from helpers.allocator.whatif import whatif
from helpers.ground.child import CHECKOUT
from helpers.ground.replays import Replay
from helpers.ground.units import show_bytes
from helpers.settings.allocator_text import SettingsError
from helpers.settings.presets import Preset, findings
from helpers.settings.presets import load as load_preset
from helpers.settings.table import CONF_NAMES, HOST_NAMES
from helpers.trials.catalogue import Remedy, not_for
from helpers.trials.effect import LEAST
from helpers.trials.workload import Workload

UNKNOWN = "not_enough_evidence"
RECORDED_RUNS = CHECKOUT / "env" / "traces" / "remedies"
"""What each workload asked of torch's own allocator on a card that is not there
(tests/record_remedies.py).
"""
INERT = {"ineffective", "misspelt", "too_late", "shadowed", "unsupported"}
"""Verdicts of the audit under which a setting does nothing."""


@dataclass(frozen=True)
class Prediction:
    """What a remedy is expected to do. ``verdict`` is one of the fix verdicts.

    ``audited``: the audit of the settings alone decided, so no trial is needed to know it.
    ``saves``: the share of the peak that a replay saved, ``rehearsed``: of what this very
    remedy and its control asked of torch's own allocator. ``elsewhere``: it is for the other
    vendor.
    """

    verdict: str
    why: str
    audited: bool = False
    elsewhere: bool = False
    saves: float | None = None
    rehearsed: bool = False

    @property
    def settles(self) -> bool:
        """Whether the build or the chip decides: trials that show nothing, or none, only agree."""
        return self.audited and self.verdict in ("ineffective", "not_supported")


@dataclass(frozen=True)
class PredictedPeak:
    """What a rehearsal says of one run on a card, as a Replay does."""

    passes: bool
    peak_reserved_high_bytes: int
    flags: tuple[str, ...] = ()
    danger: str = ""


def predict(
    remedy: Remedy,
    capacity_bytes: int,
    trace: Trace | None,
    torch: str,
    build: str,
    gfx: str = "",
) -> Prediction:
    """What the preset of a remedy would do on a card of that size: by the audit of its
    settings, then by a replay of ``trace``.

    ``torch`` as it prints itself, ``build`` cuda or rocm. A remedy without a preset changes the
    work itself: see rehearsed. Without a trace where one is needed nothing is predicted; nor is
    a preset for the other vendor, which is not supported.
    """
    if not remedy.preset:
        return rehearsed(remedy, capacity_bytes, torch, build)
    preset = load_preset(remedy.preset)
    if set(preset.environ) <= set(HOST_NAMES):
        why = "only a trial shows what a setting of the C library or OpenMP does"
        return Prediction(UNKNOWN, why)
    audited = _audited(preset, torch, build, gfx)
    conf = next(filter(None, map(preset.environ.get, CONF_NAMES)), "")
    if audited.audited or not conf:
        return audited
    if trace is None:
        return Prediction(UNKNOWN, "no trace to replay")
    try:
        answer = whatif(
            trace, Card(capacity_bytes), torch=torch, build=build, confs=["", conf]
        )
    except SettingsError as error:
        return Prediction("not_supported", str(error))
    except ValueError as error:
        return Prediction(UNKNOWN, str(error))
    rows = {row.settings: row for row in answer.rows}
    return _replayed(rows[""], rows[conf], capacity_bytes, answer.needs_bytes)


def recorded_path(work: Workload) -> Path:
    """Where the requests of a built-in workload with these parameters are kept, if they were
    recorded.
    """
    words = [
        work.name,
        *(f"{key}-{value}" for key, value in sorted(work.parameters.items())),
    ]
    return RECORDED_RUNS / f"{'-'.join(words).replace('_', '-')}.parquet"


def rehearsed(
    remedy: Remedy, capacity_bytes: int, torch: str, build: str
) -> Prediction:
    """What a change of the work does on a card of that size: it and its control, as they were
    rehearsed, replayed there.

    Their requests are those of torch 2.14.1 on an A100 that is not there; the card, the release
    and the build are the box's. What it does to time and to the answer only a trial shows.
    """
    if remedy.unrehearsed:
        return Prediction(UNKNOWN, f"not rehearsed because {remedy.unrehearsed}")
    pair = remedy.pair()
    try:
        control, treated = (
            _replay_of(recorded_path(arm.workload), capacity_bytes, torch, build)
            for arm in (pair.control, pair.treated)
        )
    except ValueError as error:
        return Prediction(UNKNOWN, f"not rehearsed because {error}")
    return beside_control(control, treated, capacity_bytes)


def beside_control(
    control: Replay | PredictedPeak, treated: Replay | PredictedPeak, card_bytes: int
) -> Prediction:
    """What two rehearsals on a card of ``card_bytes`` come to: a remedy beside its control."""
    prediction = _replayed(control, treated, card_bytes, without="its control")
    return replace(prediction, why=f"rehearsed: {prediction.why}", rehearsed=True)


@lru_cache(maxsize=256)
def _replay_of(path: Path, capacity_bytes: int, torch: str, build: str) -> Replay:
    answer = whatif(
        read_trace(path), Card(capacity_bytes), torch=torch, build=build, confs=[""]
    )
    return answer.rows[0]


def _audited(preset: Preset, torch: str, build: str, gfx: str) -> Prediction:
    """What the audit says of its settings, ``audited`` where that decides; else what the
    preset's own status says.
    """
    other_vendor = not_for(preset, build)
    if other_vendor:
        return Prediction("not_supported", other_vendor, audited=True, elsewhere=True)
    listed = findings(preset, torch, build, gfx)
    verdicts = {finding.verdict for finding in listed}
    # What says more than that a setting does nothing comes first.
    telling = sorted(listed, key=lambda finding: finding.verdict == "ineffective")
    first = "no table of settings knows it"
    if telling:
        first = f"{telling[0].name}: {telling[0].says}"
    if listed and verdicts <= INERT:
        for finding in telling:
            if finding.verdict == "unsupported":
                return Prediction("not_supported", finding.says, audited=True)
        return Prediction("ineffective", first, audited=True)
    if verdicts & {"dangerous", "contradictory"}:
        return Prediction("harmful", first, audited=True)
    status = "harmful" if preset.fields.get("status") == "harmful" else "no_effect"
    return Prediction(status, first)


def _replayed(
    control: Replay | PredictedPeak,
    treated: Replay | PredictedPeak,
    card_bytes: int,
    needs_bytes: int = 0,
    without: str = "default settings",
) -> Prediction:
    """What the replay of both says: a danger first, then who passes, then the peaks.

    ``needs_bytes``: what is missing where both run out; ``without``: what the control is called.
    """
    peak_bytes = treated.peak_reserved_high_bytes
    control_bytes = control.peak_reserved_high_bytes
    ratio = peak_bytes / max(1, control_bytes)
    verdict, why = _by_replays(control, treated, ratio, without)
    if not control.passes and not treated.passes and not treated.flags and needs_bytes:
        why += f", and {show_bytes(needs_bytes)} more are needed"
    peaks = f"peak reserved {show_bytes(peak_bytes)}, with {without} {show_bytes(control_bytes)}"
    return Prediction(
        verdict,
        f"{why}: on {show_bytes(card_bytes)} {peaks}",
        saves=1 - ratio if treated.passes else None,
    )


def _by_replays(
    control: Replay | PredictedPeak,
    treated: Replay | PredictedPeak,
    ratio: float,
    without: str,
) -> tuple[str, str]:
    """The verdict and why of two replays; ``ratio`` is that of the treated's peak to the other."""
    the_other = f"the {without}"
    if without == "its control":
        the_other = without
    if treated.danger:
        return "harmful", treated.danger
    if treated.flags:
        return "ineffective", treated.flags[0]
    if treated.passes and not control.passes:
        return "helps", f"it passes, {the_other} run out"
    if control.passes and not treated.passes:
        return "harmful", f"it runs out, {the_other} pass"
    if not treated.passes:
        return "no_effect", "both run out"
    why = "every request is met either way"
    if min(ratio, 1 / ratio) > 1 - LEAST["memory"]:
        return "no_effect", why
    if ratio < 1:
        return "helps", why
    return "harmful", why
