"""Commands that try settings or parameters, each trial in a process of its own: trial, tune."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from helpers.commands.use import WrongUse, may_write, say
from helpers.ground.places import OUTPUTS
from helpers.ground.units import parse_size
from helpers.look.boxes import open_box
from helpers.look.cards import find_card
from helpers.rehearse import torches
from helpers.rehearse.rehearsal import RehearsalLimits
from helpers.rehearse.remedies import rehearse_study
from helpers.settings.presets import Preset, load
from helpers.settings.table import HOST_NAMES
from helpers.tell.shown import Shown
from helpers.tell.values import percent
from helpers.trials import targets
from helpers.trials.box_study import fix_study
from helpers.trials.catalogue import Remedy, chosen
from helpers.trials.fixplan import Planned
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.measurement import preset_trials
from helpers.trials.record import TrialLimits, TrialRecord
from helpers.trials.trial import DROPPED
from helpers.trials.user_program import callers_python, check_script
from helpers.trials.view import counted, ranked
from helpers.trials.workload import BUILT_IN, Parameter, Workload, command, workload

if TYPE_CHECKING:
    from optuna import distributions

WITHOUT_A_GPU = (
    "--gpu CARD, such as 4090, or --box BUNDLE, to rehearse on a card that is not there"
)


def trial(arguments: Namespace) -> int:
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

    def on_trial(planned: Planned, record: TrialRecord | None) -> None:
        outcome = "refused"  # no trial was started
        if record:
            outcome = record.outcome
        says = f"{planned.arm.name}, repeat {planned.repeat}: {outcome}"
        print(says, file=sys.stderr)

    if arguments.gpu or arguments.box:
        return _rehearse_trials(arguments)
    if not arguments.preset:
        raise WrongUse(
            f"trial: no --preset; expected one or more beside a control, or {WITHOUT_A_GPU}"
        )
    host_bytes = None
    if arguments.host_memory:
        host_bytes = parse_size(arguments.host_memory)
    out = OUTPUTS / "trials"
    if arguments.out:
        out = Path(arguments.out)
    presets = [load(name) for name in arguments.preset]
    rows, remarks = preset_trials(
        _workload(arguments),
        presets,
        goal=arguments.goal,
        repeats=arguments.repeats,
        seed=arguments.seed,
        limits=TrialLimits(seconds=arguments.seconds, host_bytes=host_bytes),
        python=arguments.torch_python or torch_interpreter(),
        out=may_write(out),
        target=_target(presets),
        on_trial=on_trial,
    )
    cells = []
    for row in rows:
        verdict = row["verdict"].replace("_", " ")
        cells.append([row["preset"], verdict, row["why"]])
    shown = Shown("", ["preset", "verdict", "why"], cells, widest=None)
    say(arguments, rows, shown, "\n".join(remarks))
    is_harmful = any(row["verdict"] == "harmful" for row in rows)
    return int(is_harmful)


def _target(presets: Sequence[Preset]) -> targets.Target:
    """The CPU where no preset has a setting that acts on a GPU, else the first GPU that nobody
    uses.

    Raises WrongUse where no GPU is free.
    """
    of_a_gpu = DROPPED - {*HOST_NAMES}
    acting = [preset.name for preset in presets if preset.environ.keys() & of_a_gpu]
    if not acting:
        return targets.CPU
    free, why = targets.free_targets(open_box("live"))
    if why:
        raise WrongUse(
            f"trial: {acting[0]} acts on a GPU, and {why}; expected {WITHOUT_A_GPU}"
        )
    return free[0]


def _rehearse_trials(arguments: Namespace) -> int:
    """Rehearse presets, or each remedy that suits the card, beside a control on a simulated card.

    Returns the exit code: 1 where a preset harms.
    """
    if arguments.goal == "time":
        raise WrongUse(
            "trial: --goal time; a card that is not there takes none: expected memory"
        )
    bundle = None
    if arguments.box:
        bundle = open_box(arguments.box)
    card = find_card(arguments.gpu, bundle=bundle)
    # As in a trial, only the presets' settings act.
    for name in DROPPED & os.environ.keys():
        del os.environ[name]
    command: Sequence[str] = ()
    if arguments.preset:
        work = _workload(arguments)
        command = work.command
        remedies = []
        for preset in arguments.preset:
            name = load(preset).name
            remedies.append(
                Remedy(id=name, says=preset, how="predicted", preset=preset, work=work)
            )
        predicted = fix_study(bundle or card, of=remedies)
    else:
        remedies = [*chosen(arguments.workload)]
        predicted = fix_study(bundle or card, arguments.workload)
    study, trust = rehearse_study(
        predicted,
        remedies,
        card,
        python=torches.interpreter(command, arguments.torch_python),
        limits=RehearsalLimits(seconds=arguments.seconds),
        on_row=lambda row: print(f"{row.remedy}: {row.measured}", file=sys.stderr),
    )
    cells = []
    for row in ranked(study):
        saved = "-"
        if row.saved:
            saved = percent(row.saved)
        cells.append([row.says, row.effect, saved, row.by, row.why])
    columns = ["tried", "on this card", "saves", "by", "why"]
    shown = Shown("", columns, cells, widest=None)
    note = f"{counted(study)} on {card.words}: predicted by one rehearsal each, and no trial"
    shapes = [{**asdict(row), "effect": row.effect, "by": row.by} for row in study.rows]
    say(arguments, shapes, shown, note, *trust)
    harms = any(row.effect == "harms" for row in study.rows)
    # Of all remedies of a card some harm, which is an answer and no failure.
    if arguments.preset and harms:
        return 1
    return 0


def _workload(arguments: Namespace) -> Workload:
    """The workload that the words name: a built-in one such as ``training:batch=8,seq=512``, or the
    user's command. Raises WrongUse.
    """
    words = arguments.workload
    if not words:
        expected = f"expected one of {', '.join(BUILT_IN)}, or -- and a command"
        raise WrongUse(f"trial: no workload; {expected}")
    name, _, rest = words[0].partition(":")
    if len(words) > 1 or (name not in BUILT_IN and Path(name).exists()):
        check_script(words)
        return command(words, arguments.step)
    parameters: dict[str, Parameter] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise WrongUse(f"trial: {part!r} in the workload; expected name=value")
        # An unknown name stays a text; `workload` refuses it.
        # The default says of which type a value is.
        default: Parameter = ""
        if name in BUILT_IN:
            default = BUILT_IN[name].parameters.get(key, "")
        try:
            parameters[key] = type(default)(value)
        except ValueError as error:
            raise WrongUse(
                f"trial: {key}={value}; expected something like {default!r}"
            ) from error
    return workload(name, **parameters)


def tune(arguments: Namespace) -> int:
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
    from helpers.trials import tuning

    if not Path(arguments.objective.rpartition(":")[0]).is_file():
        expected = "expected FILE.py:FUNCTION, with an existing file"
        raise WrongUse(f"tune: {arguments.objective}; {expected}")
    direction: Literal["minimize", "maximize"] = "minimize"
    if arguments.maximize:
        direction = "maximize"
    settings = tuning.StudySettings(
        parallel=max(1, arguments.parallel),
        limit_s=arguments.seconds,
        direction=direction,
        seed=arguments.seed,
    )
    python = arguments.torch_python or callers_python()
    parameters = dict(_range(text) for text in arguments.param)
    study = tuning.tune(
        Path(arguments.study),
        partial(tuning.command, python, arguments.objective),
        parameters,
        arguments.trials,
        settings,
        partial(print, file=sys.stderr),
    )
    rows = []
    for row in study.results:
        values = [f"{name}={value}" for name, value in row["params"].items()]
        result = [row["number"], row["outcome"], row["value"]]
        rows.append([*result, ", ".join(values), row.get("message")])
    shown = Shown("", ["trial", "outcome", "value", "parameters", "message"], rows)
    return say(arguments, asdict(study), shown, f"best {study.best}")


def _range(text: str) -> tuple[str, distributions.BaseDistribution]:
    """A parameter's name and its Optuna distribution, of a --param such as ``lr=1e-5..1e-1:log``,
    ``layers=2..8`` or ``optimizer=adam,sgd``. Raises WrongUse.
    """
    from optuna import distributions

    name, equals, values = text.partition("=")
    low, dots, high = values.removesuffix(":log").partition("..")
    if not equals or not values:
        expected = "expected NAME=A..B, NAME=A..B:log or NAME=this,that"
        raise WrongUse(f"tune: --param {text!r}; {expected}")
    if not dots:
        return name, distributions.CategoricalDistribution(values.split(","))
    log = values.endswith(":log")
    try:
        return name, distributions.IntDistribution(int(low), int(high), log)
    except ValueError:
        return name, distributions.FloatDistribution(float(low), float(high), log)
