"""Commands about whether a fix worked: trial, tune, criteria."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.use import ROOT, Verb, WrongUse, print_json

if TYPE_CHECKING:
    from helpers.load.workloads import Workload

TORCH_PYTHON = "the interpreter that owns torch"


def register(verb: Verb) -> None:
    """trial, tune and criteria."""
    says = "the success criteria of the case studies, from a log and an Optuna study"
    add = verb("criteria", _criteria, says).add_argument
    add("--log", default="", metavar="FILE", help="a run's log, of any size")
    storage = "an Optuna storage, only read: sqlite:///FILE"
    add("--study", default="", metavar="URL", help=storage)

    says = "a workload under presets, each trial a process beside a control: does it help here?"
    add = verb("trial", _trial, says).add_argument
    add("workload", nargs="*", help="a built-in, such as training:batch=8, or -- and a command")
    presets = "of env/presets, or a .env file"
    add("--preset", action="append", default=[], metavar="P", help=presets)
    add("--repeats", type=int, default=5, metavar="N", help="trials of each (default: 5)")
    goals = "what it should save (default: memory)"
    add("--goal", default="memory", choices=("memory", "time"), help=goals)
    most = "the most that one trial may take"
    add("--seconds", type=float, default=120.0, metavar="S", help=most)
    add("--host-memory", default="", metavar="SIZE", help="the most memory of a trial's processes")
    step = "marks a step in a command's output; a group is its loss"
    add("--step", default="", metavar="REGEX", help=step)
    add("--torch-python", default="", metavar="PATH", help=TORCH_PYTHON)
    kept = "where records are kept (default: outputs/trials)"
    add("--out", default="", metavar="FOLDER", help=kept)
    add("--seed", type=int, default=0, help="of the order and the data")

    says = "a tuning study in worker processes that loses and repeats no finished trial"
    add = verb("tune", _tune, says).add_argument
    objective = "takes a dict of parameters, gives a number"
    add("objective", metavar="FILE.py:FUNCTION", help=objective)
    storage = "the Optuna storage, in SQLite; one that is there goes on"
    add("--study", required=True, metavar="FILE", help=storage)
    ranges = "or NAME=A..B:log, or NAME=this,that"
    add("--param", action="append", default=[], metavar="NAME=A..B", help=ranges)
    trials = "of the whole study (default: 20)"
    add("--trials", type=int, default=20, metavar="N", help=trials)
    at_once = "trials at once, each in a process (default: 1)"
    add("--parallel", type=int, default=1, metavar="N", help=at_once)
    add("--seconds", type=float, default=3600.0, metavar="S", help=most)
    recycle = "trials after which a worker is replaced"
    add("--recycle", type=int, default=50, metavar="N", help=recycle)
    add("--maximize", action="store_true", help="the largest value is the best")
    add("--torch-python", default="", metavar="PATH", help="the interpreter of the objective")
    add("--seed", type=int, default=0, help="of the sampler")


def _trial(arguments: argparse.Namespace) -> int:
    from helpers.load.remedies import preset_trials
    from helpers.load.targets import torch_interpreter
    from helpers.load.trial import Limits
    from helpers.look.reading import parse_size
    from helpers.settings.presets import load
    from helpers.tell.tables import table

    def on_trial(planned: Any, record: Any) -> None:
        outcome = record.outcome if record else "refused"
        print(f"{planned.arm.name}, repeat {planned.repeat}: {outcome}", file=sys.stderr)

    try:
        wanted = _workload(arguments)
        if not arguments.preset:
            raise WrongUse("trial: no --preset; expected one or more to try beside the control")
        host = parse_size(arguments.host_memory) if arguments.host_memory else None
        rows, remarks = preset_trials(
            wanted,
            [load(name) for name in arguments.preset],
            goal=arguments.goal,
            repeats=arguments.repeats,
            seed=arguments.seed,
            python=arguments.torch_python or torch_interpreter(),
            limits=Limits(seconds=arguments.seconds, host_bytes=host),
            out=Path(arguments.out) if arguments.out else ROOT / "outputs" / "trials",
            on_trial=on_trial,
        )
    except ValueError as error:
        raise WrongUse(str(error)) from error
    if arguments.json:
        print_json(rows)
    else:
        shown = [[row["preset"], row["verdict"].replace("_", " "), row["why"]] for row in rows]
        print(table(shown, ["preset", "verdict", "why"], widest=None))
        print("\n".join(remarks))
    return int(any(row["verdict"] == "harmful" for row in rows))


def _workload(arguments: argparse.Namespace) -> Workload:
    """The workload that the words name: a built-in and its parameters, or the user's command."""
    from helpers.load.workloads import BUILT_IN, command, workload

    words = arguments.workload
    name, _, rest = (words[0] if words else "").partition(":")
    if len(words) > 1 or (name and name not in BUILT_IN and Path(name).exists()):
        return command(words, arguments.step)
    if not name:
        expected = f"expected one of {', '.join(BUILT_IN)}, or -- and a command"
        raise WrongUse(f"trial: no workload; {expected}")
    known = BUILT_IN[name].parameters if name in BUILT_IN else {}
    parameters: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, given, value = part.partition("=")
        if not given:
            raise WrongUse(f"trial: {part!r} in the workload; expected name=value")
        own = known.get(key, "")
        try:
            parameters[key] = type(own)(value)
        except ValueError as error:
            raise WrongUse(f"trial: {key}={value}; expected something like {own!r}") from error
    return workload(name, **parameters)


def _tune(arguments: argparse.Namespace) -> int:
    from helpers.load.targets import environment, torch_interpreter
    from helpers.load.tuning import Settings, tune, worker
    from helpers.tell.tables import table

    if not Path(arguments.objective.rpartition(":")[0]).is_file():
        expected = "expected FILE.py:FUNCTION, of a file that is there"
        raise WrongUse(f"tune: {arguments.objective}; {expected}")
    settings = Settings(
        parallel=max(1, arguments.parallel),
        recycle_after=arguments.recycle,
        limit_s=arguments.seconds,
        direction="maximize" if arguments.maximize else "minimize",
        seed=arguments.seed,
    )
    how: dict[str, Any] = {"env": environment(), "on_line": _on_stderr}
    argv = worker(arguments.torch_python or torch_interpreter(), arguments.objective)
    try:
        space = dict(map(_range, arguments.param))
        done = tune(Path(arguments.study), argv, space, arguments.trials, settings, **how)
    except ValueError as error:
        raise WrongUse(str(error)) from error
    if arguments.json:
        print_json(asdict(done))
        return 0
    rows = []
    for row in done.results:
        parameters = ", ".join(f"{name}={value}" for name, value in row["params"].items())
        rows.append(
            [str(row["slot"]), row["outcome"], row["value"], parameters, row.get("message")]
        )
    print(table(rows, ["trial", "outcome", "value", "parameters", "message"]))
    gave_up = f"; gave up: {done.gave_up}" * bool(done.gave_up)
    print(f"best {done.best}; {done.restarts} restarts, {done.recycled} workers recycled{gave_up}")
    return 0


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _range(text: str) -> tuple[str, Any]:
    """A parameter's name and its Optuna distribution: lr=1e-5..1e-1:log, layers=2..8, optimizer=adam,sgd."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    name, given, values = text.partition("=")
    low, ranged, high = values.removesuffix(":log").partition("..")
    if not given or not values:
        expected = "expected NAME=A..B, NAME=A..B:log or NAME=this,that"
        raise WrongUse(f"tune: --param {text!r}; {expected}")
    if not ranged:
        return name, CategoricalDistribution(values.split(","))
    log = values.endswith(":log")
    try:
        return name, IntDistribution(int(low), int(high), log)
    except ValueError:
        return name, FloatDistribution(float(low), float(high), log)


def _criteria(arguments: argparse.Namespace) -> int:
    from helpers.load.criteria import criteria
    from helpers.tell.training import criteria_table

    log, study = arguments.log, arguments.study
    if not log and not study:
        raise WrongUse("criteria: nothing to read; expected --log FILE, --study URL, or both")
    try:
        if arguments.json:
            print_json(asdict(criteria(Path(log) if log else None, study or None)))
        else:
            print(criteria_table(log, study))
    except ValueError as error:
        raise WrongUse(str(error)) from error
    return 0
