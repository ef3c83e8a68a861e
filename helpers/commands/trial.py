"""Commands about whether a fix worked, and about volume profiles: trial, tune, vpoc."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.use import WrongUse, may_write, say
from helpers.ground.places import OUTPUTS

if TYPE_CHECKING:
    from helpers.settings.presets import Preset
    from helpers.trials.targets import Target
    from helpers.trials.workload import Workload

THERE = (
    "--gpu CARD, such as 4090, or --box BUNDLE, to rehearse on a card that is not there"
)


def trial(arguments: argparse.Namespace) -> int:
    """Try settings on a workload: each trial is a process of its own beside a control.

    [workload ...]: a built-in workload, such as training:batch=8, or -- and a command; without
        presets, names of remedies
    --preset P ...: a name from env/presets, or a .env file; can be repeated
    --repeats N <int> = 5: the number of trials of each (default: 5)
    --gpu CARD: rehearse on a simulated card, such as 4090; without presets, every remedy that suits
        it
    --box B: rehearse on the largest card of this box or bundle, with the memory that others use
        there
    --goal {memory,time} = memory: what a preset should save (default: memory)
    --seconds S <float> = 120: the time limit of one trial (default: 120)
    --host-memory SIZE: the memory limit of a trial's processes
    --step REGEX: the pattern of a step in the command's output; a group in it is the loss
    --torch-python PATH: the Python that has torch
    --out FOLDER: the folder of the records (default: outputs/trials)
    --seed N <int> = 0: the seed of the order and the data
    Example: trial churn --preset cuda-expandable --gpu 4090
    """
    from helpers.ground.units import parse_size
    from helpers.settings.presets import load
    from helpers.tell.shown import Shown
    from helpers.trials.interpreter import torch_interpreter
    from helpers.trials.measurement import preset_trials
    from helpers.trials.record import TrialLimits

    def on_trial(planned: Any, record: Any) -> None:
        outcome = record.outcome if record else "refused"
        print(
            f"{planned.arm.name}, repeat {planned.repeat}: {outcome}", file=sys.stderr
        )

    if arguments.gpu or arguments.box:
        return _rehearsed(arguments)
    if not arguments.preset:
        raise WrongUse(
            f"trial: no --preset; expected one or more beside a control, or {THERE}"
        )
    wanted = _workload(arguments)
    host_bytes = parse_size(arguments.host_memory) if arguments.host_memory else None
    presets = [load(name) for name in arguments.preset]
    rows, remarks = preset_trials(
        wanted,
        presets,
        goal=arguments.goal,
        repeats=arguments.repeats,
        seed=arguments.seed,
        limits=TrialLimits(seconds=arguments.seconds, host_bytes=host_bytes),
        python=arguments.torch_python or torch_interpreter(),
        out=may_write(Path(arguments.out) if arguments.out else OUTPUTS / "trials"),
        target=_target(presets),
        on_trial=on_trial,
    )
    cells = [
        [row["preset"], row["verdict"].replace("_", " "), row["why"]] for row in rows
    ]
    shown = Shown("", ["preset", "verdict", "why"], cells, widest=None)
    say(arguments, rows, shown, "\n".join(remarks))
    return int(any(row["verdict"] == "harmful" for row in rows))


def _target(presets: Sequence[Preset]) -> Target:
    """What trials of these presets load: the CPU where no setting acts on a GPU, else the first GPU that nobody uses."""
    from helpers.look.boxes import open_box
    from helpers.settings.table import HOST_NAMES
    from helpers.trials.targets import CPU, free_targets
    from helpers.trials.trial import DROPPED

    acting = [
        preset.name
        for preset in presets
        if preset.environ.keys() & (DROPPED - {*HOST_NAMES})
    ]
    free, why = free_targets(open_box("live")) if acting else ([CPU], "")
    if why:
        raise WrongUse(f"trial: {acting[0]} acts on a GPU, and {why}; expected {THERE}")
    return free[0]


def _rehearsed(arguments: argparse.Namespace) -> int:
    """The same on a card that is not there: presets, or each remedy that is for it, rehearsed beside its control."""
    from helpers.look.boxes import open_box
    from helpers.look.cards import find_card
    from helpers.rehearse import torches
    from helpers.rehearse.rehearsal import RehearsalLimits
    from helpers.rehearse.remedies import rehearse_study
    from helpers.settings.presets import load
    from helpers.tell.shown import Shown
    from helpers.tell.values import percent
    from helpers.trials.box_study import fix_study
    from helpers.trials.catalogue import Remedy, chosen
    from helpers.trials.trial import DROPPED
    from helpers.trials.view import counted, ranked

    if arguments.goal == "time":
        raise WrongUse(
            "trial: --goal time; a card that is not there takes none: expected memory"
        )
    bundle = open_box(arguments.box) if arguments.box else None
    card = find_card(arguments.gpu, bundle=bundle)
    work = _workload(arguments) if arguments.preset else None
    presets = [
        Remedy(load(preset).name, preset, "predicted", preset=preset, work=work)
        for preset in arguments.preset
    ]
    names = [] if work else arguments.workload
    for name in (
        DROPPED & os.environ.keys()
    ):  # as in a trial: only the presets' settings act
        del os.environ[name]
    study, trust = rehearse_study(
        fix_study(bundle or card, names, of=presets),
        presets or chosen(names),
        card,
        python=torches.interpreter(
            work.command if work else (), arguments.torch_python
        ),
        limits=RehearsalLimits(seconds=arguments.seconds),
        on_row=lambda row: print(f"{row.remedy}: {row.measured}", file=sys.stderr),
    )
    cells = []
    for row in ranked(study):
        saved = percent(row.saved) if row.saved else "-"
        cells.append([row.says, row.effect, saved, row.by, row.why])
    shown = Shown(
        "", ["tried", "on this card", "saves", "by", "why"], cells, widest=None
    )
    note = f"{counted(study)} on {card.words}: predicted by one rehearsal each, and no trial"
    shapes = [{**asdict(row), "effect": row.effect, "by": row.by} for row in study.rows]
    say(arguments, shapes, shown, note, *trust)
    return int(bool(work) and any(row.effect == "harms" for row in study.rows))


def _workload(arguments: argparse.Namespace) -> Workload:
    """The workload that the words name: a built-in and its parameters, or the user's command."""
    from helpers.trials.user_program import check_script
    from helpers.trials.workload import BUILT_IN, command, workload

    words = arguments.workload
    name, _, rest = (words[0] if words else "").partition(":")
    if len(words) > 1 or (name and name not in BUILT_IN and Path(name).exists()):
        check_script(words)
        return command(words, arguments.step)
    if not name:
        expected = f"expected one of {', '.join(BUILT_IN)}, or -- and a command"
        raise WrongUse(f"trial: no workload; {expected}")
    defaults = BUILT_IN[name].parameters if name in BUILT_IN else {}
    parameters: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise WrongUse(f"trial: {part!r} in the workload; expected name=value")
        default = defaults.get(key, "")
        try:
            parameters[key] = type(default)(value)
        except ValueError as error:
            raise WrongUse(
                f"trial: {key}={value}; expected something like {default!r}"
            ) from error
    return workload(name, **parameters)


def tune(arguments: argparse.Namespace) -> int:
    """Run a tuning study with each trial in its own process; a killed study goes on where it
    stopped.

    objective FILE.py:FUNCTION: a function that takes a dict of parameters and returns a number
    --study FILE !: the Optuna storage, in SQLite; an existing study goes on
    --param NAME=A..B ...: a range; also NAME=A..B:log or NAME=this,that; can be repeated
    --trials N <int> = 20: the number of trials of the whole study (default: 20)
    --parallel N <int> = 1: trials at once (default: 1)
    --seconds S <float> = 3600: the time limit of one trial (default: 3600)
    --maximize: look for the largest value, not the smallest
    --torch-python PATH: the Python that runs the function (default: that of the active environment)
    --seed N <int> = 0: the seed of the sampler
    Example: tune fit.py:loss --study s.db --param lr=1e-5..0.1
    """
    from helpers.tell.shown import Shown
    from helpers.trials.tuning import StudySettings, command
    from helpers.trials.tuning import tune as run_study
    from helpers.trials.user_program import callers_python

    if not Path(arguments.objective.rpartition(":")[0]).is_file():
        expected = "expected FILE.py:FUNCTION, with an existing file"
        raise WrongUse(f"tune: {arguments.objective}; {expected}")
    settings = StudySettings(
        parallel=max(1, arguments.parallel),
        limit_s=arguments.seconds,
        direction="maximize" if arguments.maximize else "minimize",
        seed=arguments.seed,
    )
    study = run_study(
        Path(arguments.study),
        partial(
            command, arguments.torch_python or callers_python(), arguments.objective
        ),
        dict(map(_range, arguments.param)),
        arguments.trials,
        settings,
        partial(print, file=sys.stderr),
    )
    rows = []
    for row in study.results:
        parameters = ", ".join(
            f"{name}={value}" for name, value in row["params"].items()
        )
        rows.append(
            [
                row["number"],
                row["outcome"],
                row["value"],
                parameters,
                row.get("message"),
            ]
        )
    shown = Shown("", ["trial", "outcome", "value", "parameters", "message"], rows)
    return say(arguments, asdict(study), shown, f"best {study.best}")


def _range(text: str) -> tuple[str, Any]:
    """A parameter's name and its Optuna distribution: lr=1e-5..1e-1:log, layers=2..8, optimizer=adam,sgd."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    name, equals, values = text.partition("=")
    low, ranged, high = values.removesuffix(":log").partition("..")
    if not equals or not values:
        expected = "expected NAME=A..B, NAME=A..B:log or NAME=this,that"
        raise WrongUse(f"tune: --param {text!r}; {expected}")
    if not ranged:
        return name, CategoricalDistribution(values.split(","))
    log = values.endswith(":log")
    try:
        return name, IntDistribution(int(low), int(high), log)
    except ValueError:
        return name, FloatDistribution(float(low), float(high), log)


def vpoc(arguments: argparse.Namespace) -> int:
    """Compute volume profiles, POC and value area from files of trades, within the free memory.

    file ...: CSV or Parquet with columns for price, volume, and time or session
    --tick SIZE = None: the tick size, or a product: 0.25, ES (default: guessed)
    --strategy S = fused: how to count: fused, chunked, flat, one_hot, list_cat, preallocated (default: fused)
    --device D = cpu: cpu or cuda:0, for the strategies that torch runs
    --zone ZONE: the time zone, if the times have none, such as America/Chicago
    --column ROLE=NAME ...: the column of the price, volume, time, session or instrument, if the guess is wrong;
        of a file without a header its place, as price=2
    --instrument NAME: the instrument, if the file has several (default: each by itself)
    --out NAME: write NAME.profiles.parquet and NAME.levels.parquet
    --force: replace files that are there
    Example: vpoc ticks.parquet --tick ES
    """
    from helpers.vpoc.files import check_strategy, profiles_of, write
    from helpers.vpoc.levels import USUAL
    from helpers.vpoc.reading import read_instruments
    from helpers.vpoc.view import levels_table, usual_levels

    answers = []
    views = []
    check_strategy(arguments.strategy, arguments.device)
    columns = _columns(arguments.column)
    for name in arguments.file:
        path = Path(name)
        out = Path(arguments.out) if arguments.out else OUTPUTS / path.stem
        if len(arguments.file) > 1 and arguments.out:
            out = out.with_name(f"{out.name}-{path.stem}")
        instruments = read_instruments(
            path,
            arguments.tick,
            zone=arguments.zone,
            columns=columns,
            instrument=arguments.instrument,
        )
        for instrument, trades in instruments.items():
            title = name
            if len(instruments) > 1:
                title = f"{name}, {instrument}"
            profiles = profiles_of(trades, arguments.strategy, arguments.device)
            try:
                files = write(
                    profiles, _out_of(out, instruments, instrument), arguments.force
                )
            except FileExistsError as error:
                raise WrongUse(str(error)) from error
            written = [str(file) for file in files]
            sessions = [
                {"session": row.session, "poc": row.poc, "val": row.val, "vah": row.vah}
                for row in usual_levels(profiles)
            ]
            answers.append(
                {
                    "file": name,
                    "instrument": instrument,
                    "rule": str(USUAL),
                    "sessions": sessions,
                    "notes": list(profiles.notes),
                    "written": written,
                }
            )
            views.append(levels_table(profiles, title, written))
    return say(arguments, answers, *views)


def _out_of(out: Path, instruments: Collection[str], instrument: str) -> Path:
    """Where the profiles of an instrument go: beside those of the others, where there are several."""
    if len(instruments) == 1:
        return out
    letters = re.sub(r"[^A-Za-z0-9._-]+", "-", instrument)[:40]
    if letters != instrument:
        letters += f"-{list(instruments).index(instrument) + 1}"
    return out.with_name(f"{out.name}-{letters}")


def _columns(roles: Sequence[str]) -> dict[str, str]:
    """Which column has which role, of words such as price=bid."""
    from helpers.vpoc.reading import COLUMNS

    columns = dict(text.partition("=")[::2] for text in roles)
    for role in columns:
        if role not in COLUMNS:
            raise WrongUse(
                f"--column {role}: expected ROLE=NAME with one of {', '.join(COLUMNS)}"
            )
    return columns


VERBS = (trial, tune, vpoc)
