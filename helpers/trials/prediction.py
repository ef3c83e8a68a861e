"""Predicts what a remedy does on a box: by the audit of its settings, or by a replay.

The audit knows from the tables of settings what a build of torch does with each. A replay carries
out recorded requests for GPU memory on a model of torch's allocator; its flags say why a setting is
never recommended. A rehearsal is a replay of the requests of the remedy's own workload, which were
recorded on a simulated card. The control is the same work without the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
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
"""The requests that each workload made to torch's own allocator on a simulated card
(tests/record_remedies.py).
"""
INERT = {"ineffective", "misspelt", "too_late", "shadowed", "unsupported"}
"""Verdicts of the audit on a setting that does nothing."""


@dataclass(frozen=True)
class Prediction:
    """What a remedy is expected to do.

    ``verdict`` is helps, harmful, no_effect, ineffective, not_supported or UNKNOWN. ``audited``:
    the audit of the settings decided, and no trial is needed. ``saves`` is the share of the peak
    that is saved in a replay; ``rehearsed``: the replay is of the requests of this remedy and its
    control, not of a trace of another program. ``elsewhere``: it is for the other vendor.
    """

    verdict: str
    why: str
    audited: bool = False
    elsewhere: bool = False
    saves: float | None = None
    rehearsed: bool = False

    @property
    def settles(self) -> bool:
        """Whether the build or the chip rules an effect out, so that trials without one only
        agree.
        """
        return self.audited and self.verdict in ("ineffective", "not_supported")


@dataclass(frozen=True)
class PredictedPeak:
    """The result of a rehearsal on a card, in the fields of a Replay that are compared."""

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
    """Predict what a remedy does on a card of ``capacity_bytes``.

    The preset of a remedy is audited; if that does not decide, ``trace`` is replayed under it.
    Without a trace, or with one that cannot be replayed, the verdict is UNKNOWN. A remedy without a
    preset changes the work itself (``rehearsed``). ``torch`` is the release as
    torch prints it, ``build`` is cuda or rocm, ``gfx`` the target of a ROCm card.
    """
    if not remedy.preset:
        return rehearsed(remedy, capacity_bytes, torch, build)
    preset = load_preset(remedy.preset)
    # A trace holds requests for GPU memory, which settings of the host do not change.
    if set(preset.environ) <= set(HOST_NAMES):
        why = "only a trial shows what a setting of the C library or OpenMP does"
        return Prediction(UNKNOWN, why)
    audited = _audited(preset, torch, build, gfx)
    confs = [preset.environ[name] for name in CONF_NAMES if preset.environ.get(name)]
    if audited.audited or not confs:
        return audited
    if trace is None:
        return Prediction(UNKNOWN, "no trace to replay")
    default = ""  # the allocator's settings if nothing is set
    conf = confs[0]
    card = Card(capacity_bytes)
    try:
        answer = whatif(trace, card, torch=torch, build=build, confs=[default, conf])
    except SettingsError as error:
        return Prediction("not_supported", str(error))
    except ValueError as error:
        return Prediction(UNKNOWN, str(error))
    rows = {row.settings: row for row in answer.rows}
    return _replayed(rows[default], rows[conf], capacity_bytes, answer.needs_bytes)


def recorded_path(work: Workload) -> Path:
    """The file with the requests of a built-in workload with these parameters, which exists if they
    were recorded.
    """
    parameters = [f"{key}-{value}" for key, value in sorted(work.parameters.items())]
    stem = "-".join([work.name, *parameters]).replace("_", "-")
    return RECORDED_RUNS / f"{stem}.parquet"


def rehearsed(
    remedy: Remedy, capacity_bytes: int, torch: str, build: str
) -> Prediction:
    """Predict what a change of the work does on a card of that size: the recorded requests of it
    and of its control are replayed there.

    They were recorded with torch 2.14.1 on a simulated A100; the replay is for the card, the
    release and the build of the box. It does not show time and answers.
    """
    if remedy.unrehearsed:
        return Prediction(UNKNOWN, f"not rehearsed because {remedy.unrehearsed}")
    pair = remedy.pair()
    on_card = partial(
        _replay_of, capacity_bytes=capacity_bytes, torch=torch, build=build
    )
    try:
        control = on_card(recorded_path(pair.control.workload))
        treated = on_card(recorded_path(pair.treated.workload))
    except ValueError as error:
        return Prediction(UNKNOWN, f"not rehearsed because {error}")
    return beside_control(control, treated, capacity_bytes)


def beside_control(
    control: Replay | PredictedPeak, treated: Replay | PredictedPeak, card_bytes: int
) -> Prediction:
    """The prediction by two rehearsals on a card of ``card_bytes``: of a remedy and of its
    control.
    """
    prediction = _replayed(control, treated, card_bytes, is_rehearsal=True)
    return replace(prediction, why=f"rehearsed: {prediction.why}", rehearsed=True)


@lru_cache(maxsize=256)
def _replay_of(path: Path, capacity_bytes: int, torch: str, build: str) -> Replay:
    """The replay of recorded requests under default settings. Raises ValueError."""
    answer = whatif(
        read_trace(path), Card(capacity_bytes), torch=torch, build=build, confs=[""]
    )
    return answer.rows[0]


def _audited(preset: Preset, torch: str, build: str, gfx: str) -> Prediction:
    """The prediction by the audit of a preset's settings.

    The audit decides, and ``audited`` is set, in three cases: the preset is for the other vendor
    (not_supported); all of its settings do nothing (not_supported if the audit calls one of them
    unsupported, else ineffective); a setting is dangerous or contradicts another (harmful). Else
    ``audited`` is false, and the verdict is harmful if the preset's own file says so, or no_effect.
    """
    other_vendor = not_for(preset, build)
    if other_vendor:
        return Prediction("not_supported", other_vendor, audited=True, elsewhere=True)
    listed = findings(preset, torch, build, gfx)
    verdicts = {finding.verdict for finding in listed}
    # The reason is that of the first finding. "Ineffective" says least, and comes last: False sorts
    # before True.
    telling = sorted(listed, key=lambda finding: finding.verdict == "ineffective")
    why = "no table of settings knows it"
    if telling:
        why = f"{telling[0].name}: {telling[0].says}"
    if listed and verdicts <= INERT:
        for finding in telling:
            if finding.verdict == "unsupported":
                return Prediction("not_supported", finding.says, audited=True)
        return Prediction("ineffective", why, audited=True)
    if verdicts & {"dangerous", "contradictory"}:
        return Prediction("harmful", why, audited=True)
    if preset.fields.get("status") == "harmful":
        return Prediction("harmful", why)
    return Prediction("no_effect", why)


def _replayed(
    control: Replay | PredictedPeak,
    treated: Replay | PredictedPeak,
    card_bytes: int,
    needs_bytes: int = 0,
    is_rehearsal: bool = False,
) -> Prediction:
    """The prediction by two replays, whose reason ends with both peaks of reserved memory.

    ``needs_bytes`` is how much memory is missing if both run out (0: none is named). The
    ``control`` is a replay of the same trace under default settings, or, with ``is_rehearsal``, a
    replay of the requests of the remedy's control workload; the reason names it accordingly.
    """
    treated_bytes = treated.peak_reserved_high_bytes
    control_bytes = control.peak_reserved_high_bytes
    ratio = treated_bytes / max(1, control_bytes)
    with_control = "with default settings"
    the_control = "the default settings"
    if is_rehearsal:
        with_control = "with its control"
        the_control = "its control"
    verdict, why = _by_replays(control, treated, ratio, the_control)
    both_run_out = not control.passes and not treated.passes
    # A flag has its own reason, to which the missing memory does not belong.
    if needs_bytes and both_run_out and not treated.flags:
        why += f", and {show_bytes(needs_bytes)} more are needed"
    peaks = f"peak reserved {show_bytes(treated_bytes)}, {with_control} {show_bytes(control_bytes)}"
    saves = None
    # A replay that runs out does not meet every request: its peak is not that of the whole work.
    if treated.passes:
        saves = 1 - ratio
    return Prediction(
        verdict, f"{why}: on {show_bytes(card_bytes)} {peaks}", saves=saves
    )


def _by_replays(
    control: Replay | PredictedPeak,
    treated: Replay | PredictedPeak,
    ratio: float,
    the_control: str,
) -> tuple[str, str]:
    """(verdict, why) of two replays.

    The first of these that applies decides: a danger of the remedy; another reason never to
    recommend it (``flags``); which of the two replays runs out of memory; the ``ratio`` of the
    remedy's peak to the control's. ``the_control`` is what the reason calls the control.
    """
    if treated.danger:
        return "harmful", treated.danger
    if treated.flags:
        return "ineffective", treated.flags[0]
    if treated.passes and not control.passes:
        return "helps", f"it passes, {the_control} run out"
    if control.passes and not treated.passes:
        return "harmful", f"it runs out, {the_control} pass"
    if not treated.passes:
        return "no_effect", "both run out"
    why = "every request is met either way"
    # The smaller peak as a share of the larger: a saving and a cost are judged by one threshold,
    # the share of memory below which a measured effect counts as none, too (effect.LEAST).
    smaller_to_larger = min(ratio, 1 / ratio)
    if smaller_to_larger > 1 - LEAST["memory"]:
        return "no_effect", why
    if ratio < 1:
        return "helps", why
    return "harmful", why
