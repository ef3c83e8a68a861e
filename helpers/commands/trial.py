"""Commands about whether a fix worked: trial, tune, criteria."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.commands.use import ROOT, Verb, WrongUse, print_json

if TYPE_CHECKING:
    from helpers.load.workloads import Workload


def register(verb: Verb) -> None:
    """trial, tune and criteria."""
    criteria = verb(
        "criteria",
        _criteria,
        "the success criteria of the case studies, from a log and an Optuna study",
    )
    criteria.add_argument("--log", default="", metavar="FILE", help="a run's log, of any size")
    criteria.add_argument(
        "--study", default="", metavar="URL", help="an Optuna storage, only read: sqlite:///FILE"
    )
    trial = verb(
        "trial",
        _trial,
        "a workload under presets, each trial a process beside a control: does it help here?",
    )
    trial.add_argument(
        "workload", nargs="*", help="a built-in, such as training:batch=8, or -- and a command"
    )
    trial.add_argument(
        "--preset", action="append", default=[], metavar="P", help="of env/presets, or a .env file"
    )
    trial.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="trials of each (default: 5)"
    )
    trial.add_argument(
        "--goal",
        default="memory",
        choices=("memory", "time"),
        help="what it should save (default: memory)",
    )
    trial.add_argument(
        "--seconds", type=float, default=120.0, metavar="S", help="the most that one trial may take"
    )
    trial.add_argument(
        "--host-memory", default="", metavar="SIZE", help="the most memory of a trial's processes"
    )
    trial.add_argument(
        "--step",
        default="",
        metavar="REGEX",
        help="marks a step in a command's output; a group is its loss",
    )
    trial.add_argument(
        "--torch-python", default="", metavar="PATH", help="the interpreter that owns torch"
    )
    trial.add_argument(
        "--out",
        default="",
        metavar="FOLDER",
        help="where records are kept (default: outputs/trials)",
    )
    trial.add_argument("--seed", type=int, default=0, help="of the order and the data")
    tune = verb(
        "tune", _tune, "a tuning study in worker processes that loses and repeats no finished trial"
    )
    tune.add_argument(
        "objective", metavar="FILE.py:FUNCTION", help="takes a dict of parameters, gives a number"
    )
    tune.add_argument(
        "--study",
        required=True,
        metavar="FILE",
        help="the Optuna storage, in SQLite; one that is there goes on",
    )
    tune.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=A..B",
        help="or NAME=A..B:log, or NAME=this,that",
    )
    tune.add_argument(
        "--trials", type=int, default=20, metavar="N", help="of the whole study (default: 20)"
    )
    tune.add_argument(
        "--parallel",
        type=int,
        default=1,
        metavar="N",
        help="trials at once, each in a process (default: 1)",
    )
    tune.add_argument(
        "--seconds",
        type=float,
        default=3600.0,
        metavar="S",
        help="the most that one trial may take",
    )
    tune.add_argument(
        "--recycle",
        type=int,
        default=50,
        metavar="N",
        help="trials after which a worker is replaced",
    )
    tune.add_argument("--maximize", action="store_true", help="the largest value is the best")
    tune.add_argument(
        "--torch-python", default="", metavar="PATH", help="the interpreter that runs the objective"
    )
    tune.add_argument("--seed", type=int, default=0, help="of the sampler")


def _trial(arguments: argparse.Namespace) -> int:
    from helpers.load import fixplan
    from helpers.load.box import torch_interpreter
    from helpers.load.fixplan import Arm, Pair
    from helpers.load.remedies import Remedy, measured
    from helpers.load.trial import Limits, TrialError
    from helpers.load.workloads import WorkloadError
    from helpers.look.reading import parse_size
    from helpers.settings.presets import PresetError, load
    from helpers.tell.tables import table

    try:
        wanted = _workload(arguments)
        presets = [load(name) for name in arguments.preset]
        if not presets:
            raise WrongUse("trial: no --preset; expected one or more to try beside the control")
        host = parse_size(arguments.host_memory) if arguments.host_memory else None
        limits = Limits(seconds=arguments.seconds, host_bytes=host)
        control = Arm(wanted.words, wanted)
        pairs = [
            Pair(preset.name, control, Arm(f"{wanted.words} under {preset.name}", wanted, preset))
            for preset in presets
        ]
        plan = fixplan.plan(
            pairs, repeats=arguments.repeats, budget_s=float("inf"), seed=arguments.seed
        )
        ran = fixplan.run(
            plan,
            python=arguments.torch_python or torch_interpreter(),
            limits=limits,
            out=Path(arguments.out) if arguments.out else ROOT / "outputs" / "trials",
            on_trial=lambda planned, record: print(
                f"{planned.arm.name}, repeat {planned.repeat}: "
                f"{record.outcome if record else 'refused'}",
                file=sys.stderr,
            ),
        )
    except (PresetError, WorkloadError, TrialError, fixplan.PlanError, ValueError) as error:
        raise WrongUse(str(error)) from error
    told = []
    for pair in pairs:
        found = measured(pair, Remedy(pair.name, pair.name, "measured", goal=arguments.goal), ran)
        why = ran.refused.get(pair.treated.name, found.why)
        verdict = "not_supported" if pair.treated.name in ran.refused else found.verdict
        told.append(
            {
                "preset": pair.name,
                "workload": wanted.words,
                "verdict": verdict,
                "why": why,
                "memory": asdict(found.memory),
                "time": asdict(found.time),
                "troubles": list(ran.troubles),
                "kept": list(ran.kept),
            }
        )
    if arguments.json:
        print_json(told)
    else:
        print(
            table(
                [
                    [row["preset"], str(row["verdict"]).replace("_", " "), row["why"]]
                    for row in told
                ],
                ["preset", "verdict", "why"],
                widest=None,
            )
        )
        print("\n".join(ran.remarks))
    return int(any(row["verdict"] == "harmful" for row in told))


def _tune(arguments: argparse.Namespace) -> int:
    from helpers.child import program
    from helpers.load.box import torch_interpreter
    from helpers.load.targets import environment
    from helpers.load.tuning import Settings, tune
    from helpers.tell.tables import table

    settings = Settings(
        parallel=max(1, arguments.parallel),
        recycle_after=arguments.recycle,
        limit_s=arguments.seconds,
        direction="maximize" if arguments.maximize else "minimize",
        seed=arguments.seed,
    )
    argv = program(
        arguments.torch_python or torch_interpreter(),
        "helpers.torchside.tuning_trial",
        arguments.objective,
    )
    if not Path(arguments.objective.rpartition(":")[0]).is_file():
        raise WrongUse(
            f"tune: {arguments.objective}; expected FILE.py:FUNCTION, of a file that is there"
        )
    try:
        space = dict(_range(part) for part in arguments.param)
        done = tune(
            Path(arguments.study),
            argv,
            space,
            arguments.trials,
            settings,
            env=environment(),
            on_line=lambda line: print(line, file=sys.stderr),
        )
    except ValueError as error:
        raise WrongUse(str(error)) from error
    if arguments.json:
        print_json(asdict(done))
    else:
        rows = [
            [
                str(row["slot"]),
                row["outcome"],
                row["value"],
                ", ".join(f"{k}={v}" for k, v in row["params"].items()),
                row.get("message"),
            ]
            for row in done.results
        ]
        print(table(rows, ["trial", "outcome", "value", "parameters", "message"]))
        print(
            f"best {done.best}; {done.restarts} restarts, {done.recycled} workers recycled"
            + f"; gave up: {done.gave_up}" * bool(done.gave_up)
        )
    return 0


def _range(text: str) -> tuple[str, object]:
    """A parameter's name and its Optuna distribution: lr=1e-5..1e-1:log, layers=2..8, optimizer=adam,sgd."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    name, given, values = text.partition("=")
    low, ranged, high = values.removesuffix(":log").partition("..")
    if not given or not values:
        raise WrongUse(
            f"tune: --param {text!r}; expected NAME=A..B, NAME=A..B:log or NAME=this,that"
        )
    if not ranged:
        return name, CategoricalDistribution(values.split(","))
    log = values.endswith(":log")
    try:
        return name, IntDistribution(int(low), int(high), log)
    except ValueError:
        return name, FloatDistribution(float(low), float(high), log)


def _criteria(arguments: argparse.Namespace) -> int:
    from helpers.load.criteria import criteria
    from helpers.tell.tables import table

    if not arguments.log and not arguments.study:
        raise WrongUse("criteria: nothing to read; expected --log FILE, --study URL, or both")
    try:
        found = criteria(Path(arguments.log) if arguments.log else None, arguments.study or None)
    except ValueError as error:
        raise WrongUse(str(error)) from error
    except OSError as error:
        raise WrongUse(
            f"{arguments.log or arguments.study}: {error.strerror or error}; expected a file to read"
        ) from error
    if arguments.json:
        print_json(asdict(found))
    else:
        print(
            table(
                [
                    [row.study, row.criterion, row.expected, row.seen, row.state]
                    for row in found.rows
                ],
                ["case", "criterion", "expected", "seen", "state"],
                widest=70,
            )
        )
    return 0


def _workload(arguments: argparse.Namespace) -> Workload:
    from helpers.load.workloads import BUILT_IN, command, workload

    words = arguments.workload
    name, _, rest = (words[0] if words else "").partition(":")
    if len(words) > 1 or (name and name not in BUILT_IN and Path(name).exists()):
        return command(words, arguments.step)
    if not name:
        raise WrongUse(
            f"trial: no workload; expected one of {', '.join(BUILT_IN)}, or -- and a command"
        )
    known = BUILT_IN[name].parameters if name in BUILT_IN else {}
    parameters: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, given, value = part.partition("=")
        if not given:
            raise WrongUse(f"trial: {part!r} in the workload; expected name=value")
        own = known.get(key)
        try:
            parameters[key] = value if isinstance(own, str) or own is None else type(own)(value)
        except ValueError as error:
            raise WrongUse(f"trial: {key}={value}; expected something like {own!r}") from error
    return workload(name, **parameters)
