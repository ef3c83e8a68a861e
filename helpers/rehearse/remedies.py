"""Remedies rehearsed beside their controls, and the rows of the fix table that follow from it."""

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
"""Variables that decide what torch allocates."""
Arms = Mapping[str, "tuple[Arm, Arm]"]
"""By the remedy's name: its control and its treated arm."""


def preset_settings(preset: Preset) -> tuple[str, dict[str, str]]:
    """A preset's settings of the allocator, whatever variable has them (a rehearsal gives them to a
    CUDA build under its own name), and the preset's other variables.
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
        # No run can decide an argued remedy, and one for the CPU uses no card; ``unrehearsed`` says
        # why others cannot be rehearsed, such as several processes of one card.
        if remedy.how == "argued" or remedy.needs == "cpu" or remedy.unrehearsed:
            continue
        pair = remedy.pair()
        preset = pair.treated.preset
        sets_allocator = bool(ALLOCATOR & preset.environ.keys())
        # Other known settings are read by a driver or a kernel: here they would change nothing.
        if not preset.environ or preset.unknown or sets_allocator:
            pairs[pair.name] = (pair.control, pair.treated)
    return pairs


def rehearsed_arms(
    wanted: Arms,
    card: GpuCard,
    *,
    python: str = "",
    limits: RehearsalLimits = UNLIMITED,
) -> Iterator[tuple[str, Rehearsal, Rehearsal]]:
    """Each remedy's name, and its control and its treated arm rehearsed on that card. An arm that
    several pairs share runs once.

    The traces are deleted at the end. Raises NotReady and RecordError.
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
    """Rehearse one arm. A built-in workload that refuses the card ends with exit code 1, and the
    error says why. ``folder``: for its files.
    """
    workload = arm.workload
    # The simulated card is the first one; its address is any that a box may have.
    target = Target(device="cuda:0", pci="0000:01:00.0")
    own_python = python
    if not python:
        own_python = torch_interpreter()
    words = argv(workload, own_python, 0, target)
    if not workload.command:
        # A built-in workload imports helpers from this checkout, wherever it is run.
        words = ["env", "-C", str(CHECKOUT), *words]
        python = ""
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
        python=python,
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
    """The fix table with what rehearsals showed of each remedy that is for its box and that a
    rehearsal can try, and what these take for granted, a line each.

    What a trial measured stays; ``on_row`` gets each new row when it is known. Raises NotReady and
    RecordError.
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
                # The last line is about what no rehearsal counts. Of the rest a built-in workload
                # is known to hold.
                lines += rehearsal.trust[-1:]
        on_row(by_remedy[name])
    rows = tuple(by_remedy[row.remedy] for row in study.rows)
    return replace(study, rows=rows), list(dict.fromkeys(lines))


def measured(row: FixRow, control: Rehearsal, treated: Rehearsal) -> FixRow:
    """A row of the fix table with what two rehearsals showed. The effect is ``predicted`` from
    them, unless an audit settled it or one of the two has no peak that decides.
    """
    row = replace(row, measured=measured_words(control, treated))
    peak = _decided_peak(treated)
    control_peak = _decided_peak(control)
    # Runs that a limit ended differently did different work, so their peaks do not compare.
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
    """The reserved peak, and whether the work fits with it; None where this is not known for
    certain.
    """
    if rehearsal.failed_otherwise or rehearsal.between:
        return None
    if not rehearsal.peak_reserved_bytes:
        return None
    return PredictedPeak(rehearsal.fits, rehearsal.peak_reserved_bytes)


def measured_words(control: Rehearsal, treated: Rehearsal) -> str:
    """Two rehearsals in the words of the fix table's column ``measured``."""
    both = f"{_in_words(treated)}; default {_in_words(control)}"
    return f"{both}; measured by the real allocator, {treated.label}"


def _in_words(rehearsal: Rehearsal) -> str:
    """How a rehearsal ended, its peak, and how often the cache was emptied."""
    outcome = rehearsal.outcome
    if outcome == "fits":
        outcome = "passes"  # as trials say it in that column
    if rehearsal.failed_otherwise:
        return f"{outcome}: {rehearsal.error}"
    words = f"{outcome} with {show_bytes(rehearsal.peak_reserved_bytes)}"
    if rehearsal.retries:
        words += f", retries: {rehearsal.retries}"
    return words
