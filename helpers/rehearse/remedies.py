"""Remedies rehearsed beside their controls, and what that says of each in the fix table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from helpers.ground.child import CHECKOUT, json_row
from helpers.ground.units import show_bytes
from helpers.look import files
from helpers.look.cards import GpuCard
from helpers.rehearse import build, run, torches
from helpers.rehearse.box_settings import conf_name
from helpers.rehearse.rehearsal import UNLIMITED, Rehearsal, RehearsalLimits
from helpers.rehearse.words import WORDS
from helpers.settings.presets import Preset
from helpers.settings.table import CONF_NAMES
from helpers.trials.box_study import FixStudy
from helpers.trials.catalogue import Remedy
from helpers.trials.fixes import FixRow
from helpers.trials.fixplan import Arm
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.prediction import PredictedPeak, beside_control
from helpers.trials.targets import Target
from helpers.trials.workload import argv

ALLOCATOR = {*CONF_NAMES, *WORDS["decides"]}
Arms = Mapping[str, "tuple[Arm, Arm]"]
"""By the remedy's name: its control and its treated arm."""


def preset_settings(preset: Preset) -> tuple[str, dict[str, str]]:
    """What a preset sets of the allocator, under whatever name, and its other variables.

    A CUDA build reads the allocator's settings under its own name.
    """
    conf = preset.environ.get(conf_name(preset.environ), "")
    other = dict(preset.environ)
    for name in CONF_NAMES:
        other.pop(name, None)
    return conf, other


def arms(wanted: Sequence[Remedy]) -> dict[str, tuple[Arm, Arm]]:
    """The remedies that a rehearsal can try, each beside its control: changes of the work, and
    settings of the allocator.
    """
    pairs = {}
    for remedy in wanted:
        # No run decides what is argued. Of several processes each would have the simulated card
        # to itself (unrehearsed).
        if remedy.how == "argued" or remedy.needs == "cpu" or remedy.unrehearsed:
            continue
        pair = remedy.pair()
        preset = pair.treated.preset
        # Settings that a driver or a kernel reads change nothing on a simulated card.
        if not preset.environ or preset.unknown or ALLOCATOR & {*preset.environ}:
            pairs[pair.name] = (pair.control, pair.treated)
    return pairs


def rehearsed_arms(
    wanted: Arms,
    card: GpuCard,
    *,
    python: str = "",
    limits: RehearsalLimits = UNLIMITED,
) -> Iterator[tuple[str, Rehearsal, Rehearsal]]:
    """Each pair rehearsed on that card, an arm that several share once.

    The traces are gone when the next pair is asked for. Raises NotReady and RecordError.
    """
    rehearsals: dict[str, Rehearsal] = {}
    torch = build.ready_torch(python or torch_interpreter(), "", torches.cache_folder())
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        for name, pair in wanted.items():
            for arm in pair:
                if arm.name not in rehearsals:
                    rehearsals[arm.name] = _rehearsed(
                        arm, card, python, torch, limits, folder
                    )
            control, treated = pair
            yield name, rehearsals[control.name], rehearsals[treated.name]


def _rehearsed(
    arm: Arm,
    card: GpuCard,
    python: str,
    torch: torches.Torch,
    limits: RehearsalLimits,
    folder: str,
) -> Rehearsal:
    """One arm; a workload that refuses ends with 1 and says why. ``folder`` is scratch."""
    workload = arm.workload
    target = Target(device="cuda:0", pci="0000:01:00.0")
    words = argv(workload, python or torch_interpreter(), 0, target)
    if not workload.command:
        # It imports helpers from this checkout wherever it is run.
        words = ["env", "-C", str(CHECKOUT), *words]
    conf, extra = preset_settings(arm.preset)
    log = Path(folder) / "log"
    rehearsal = run.rehearse(
        words,
        card,
        Path(tempfile.mkdtemp(dir=folder)) / "run",
        torch=torch,
        cache=torches.cache_folder(),
        conf=conf,
        extra=extra,
        python=python if workload.command else "",
        log=log,
        limits=limits,
    )
    if workload.command:
        return rehearsal
    for row in map(json_row, files.text("", str(log)).splitlines()):
        if "why" in row:
            return replace(rehearsal, exit_code=1, error=str(row["why"]))
    return rehearsal


def rehearse_study(
    study: FixStudy,
    wanted: Sequence[Remedy],
    card: GpuCard,
    *,
    python: str,
    limits: RehearsalLimits,
    on_row: Callable[[FixRow], None],
) -> tuple[FixStudy, list[str]]:
    """The fix table with what the real allocator showed of each remedy that is for its box and
    that a rehearsal can try.

    What a trial measured stays; ``on_row`` gets each row as it comes. Returns what the
    rehearsals take for granted, too, a line each. Raises NotReady and RecordError.
    """
    by_remedy = {row.remedy: row for row in study.rows}
    names = {
        row.remedy for row in study.rows if row.memory is None and not row.elsewhere
    }
    tried = {name: pair for name, pair in arms(wanted).items() if name in names}
    lines: list[str] = []
    rehearsed = rehearsed_arms(tried, card, python=python, limits=limits)
    for name, control, treated in rehearsed:
        by_remedy[name] = measured(by_remedy[name], control, treated)
        control_arm, _ = tried[name]
        for rehearsal in (control, treated):
            lines.append(control.label)
            if control_arm.workload.command:
                lines += rehearsal.trust
            else:
                # The rest of what a built-in workload takes for granted is known to hold.
                lines += rehearsal.trust[-1:]
        on_row(by_remedy[name])
    rows = tuple(by_remedy[row.remedy] for row in study.rows)
    return replace(study, rows=rows), list(dict.fromkeys(lines))


def measured(row: FixRow, control: Rehearsal, treated: Rehearsal) -> FixRow:
    """A row with what two rehearsals showed.

    Unless an audit settled it, they say its effect too, as ``predicted``.
    """
    row = replace(row, measured=measured_words(control, treated))
    peak = _decided_peak(treated)
    control_peak = _decided_peak(control)
    is_settled = row.audited or control.stopped != treated.stopped
    if is_settled or peak is None or control_peak is None:
        if row.verdict == "not_enough_evidence":
            row = replace(row, why=row.measured)
        return row
    effect = beside_control(control_peak, peak, control.device.total_bytes)
    return replace(
        row,
        guess=effect.verdict,
        saves=effect.saves,
        why=effect.why,
        verdict="predicted",
        rehearsed=True,
    )


def _decided_peak(rehearsal: Rehearsal) -> PredictedPeak | None:
    """Its peak, where it says by itself that the work fits, or does not; else None."""
    if rehearsal.failed_otherwise or rehearsal.between:
        return None
    if not rehearsal.peak_reserved_bytes:
        return None
    return PredictedPeak(rehearsal.fits, rehearsal.peak_reserved_bytes)


def measured_words(control: Rehearsal, treated: Rehearsal) -> str:
    """One rehearsal beside another in the words of the fix table's measured column."""
    both = f"{_in_words(treated)}; default {_in_words(control)}"
    return f"{both}; measured by the real allocator, {treated.label}"


def _in_words(rehearsal: Rehearsal) -> str:
    """How a rehearsal ended, its peak, and how often the cache was emptied."""
    outcome = rehearsal.outcome
    if outcome == "fits":
        outcome = "passes"
    if rehearsal.failed_otherwise:
        return f"{outcome}: {rehearsal.error}"
    words = f"{outcome} with {show_bytes(rehearsal.peak_reserved_bytes)}"
    if rehearsal.retries:
        words += f", retries: {rehearsal.retries}"
    return words
