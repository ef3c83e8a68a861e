"""Commands about whether a fix worked: trial, criteria."""

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
    """trial and criteria."""
    criteria = verb("criteria", _criteria, "the success criteria of the case studies, from a log and an Optuna study")
    criteria.add_argument("--log", default="", metavar="FILE", help="a run's log, of any size")
    criteria.add_argument("--study", default="", metavar="URL", help="an Optuna storage, only read: sqlite:///FILE")
    trial = verb("trial", _trial, "a workload under presets, each trial a process beside a control: does it help here?")
    trial.add_argument("workload", nargs="*", help="a built-in, such as training:batch=8, or -- and a command")
    trial.add_argument("--preset", action="append", default=[], metavar="P", help="of env/presets, or a .env file")
    trial.add_argument("--repeats", type=int, default=5, metavar="N", help="trials of each (default: 5)")
    trial.add_argument("--goal", default="memory", choices=("memory", "time"), help="what it should save (default: memory)")
    trial.add_argument("--seconds", type=float, default=120.0, metavar="S", help="the most that one trial may take")
    trial.add_argument("--host-memory", default="", metavar="SIZE", help="the most memory of a trial's processes")
    trial.add_argument("--step", default="", metavar="REGEX", help="marks a step in a command's output; a group is its loss")
    trial.add_argument("--torch-python", default="", metavar="PATH", help="the interpreter that owns torch")
    trial.add_argument("--out", default="", metavar="FOLDER", help="where records are kept (default: outputs/trials)")
    trial.add_argument("--seed", type=int, default=0, help="of the order and the data")


def _trial(arguments: argparse.Namespace) -> int:
    from helpers.load import fixplan
    from helpers.load.box import torch_interpreter
    from helpers.load.fixplan import Arm, Pair
    from helpers.load.limits import Limits
    from helpers.load.remedies import Remedy, measured
    from helpers.load.trial_record import TrialError
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
        pairs = [Pair(preset.name, control, Arm(f"{wanted.words} under {preset.name}", wanted, preset)) for preset in presets]
        plan = fixplan.plan(pairs, repeats=arguments.repeats, budget_s=float("inf"), seed=arguments.seed)
        ran = fixplan.run(plan, python=arguments.torch_python or torch_interpreter(), limits=limits,
                          out=Path(arguments.out) if arguments.out else ROOT / "outputs" / "trials",
                          on_trial=lambda planned, record: print(f"{planned.arm.name}, repeat {planned.repeat}: "
                                                                 f"{record.outcome if record else 'refused'}", file=sys.stderr))
    except (PresetError, WorkloadError, TrialError, fixplan.PlanError, ValueError) as error:
        raise WrongUse(str(error)) from error
    told = []
    for pair in pairs:
        found = measured(pair, Remedy(pair.name, pair.name, "measured", goal=arguments.goal), ran)
        why = ran.refused.get(pair.treated.name, found.why)
        verdict = "not_supported" if pair.treated.name in ran.refused else found.verdict
        told.append({"preset": pair.name, "workload": wanted.words, "verdict": verdict, "why": why,
                     "memory": asdict(found.memory), "time": asdict(found.time), "troubles": list(ran.troubles)})
    if arguments.json:
        print_json(told)
    else:
        print(table([[row["preset"], str(row["verdict"]).replace("_", " "), row["why"]] for row in told],
                    ["preset", "verdict", "why"], widest=None))
        print("\n".join(ran.troubles))
    return int(any(row["verdict"] == "harmful" for row in told))


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
        raise WrongUse(f"{arguments.log or arguments.study}: {error.strerror or error}; expected a file to read") from error
    if arguments.json:
        print_json(asdict(found))
    else:
        print(table([[row.study, row.criterion, row.expected, row.seen, row.state] for row in found.rows],
                    ["case", "criterion", "expected", "seen", "state"], widest=70))
    return 0


def _workload(arguments: argparse.Namespace) -> Workload:
    from helpers.load.workloads import BUILT_IN, command, workload

    words = arguments.workload
    name, _, rest = (words[0] if words else "").partition(":")
    if len(words) > 1 or (name and name not in BUILT_IN and Path(name).exists()):
        return command(words, arguments.step)
    if not name:
        raise WrongUse(f"trial: no workload; expected one of {', '.join(BUILT_IN)}, or -- and a command")
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
