"""Workloads that trials run: a built-in one with some of its parameters changed, or a command of
the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.ground.child import program
from helpers.ground.shell import line
from helpers.trials.targets import CPU, Target

PROGRAM = "helpers.trials.under_torch.workloads"
Parameter = int | float | str


class WorkloadError(ValueError):
    """There is no such workload or parameter: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class BuiltIn:
    """A workload of helpers/trials/under_torch: what it ``shows``, how many ``seconds`` a trial of
    it takes on a slow box, and its parameters with their defaults.
    """

    name: str
    shows: str
    seconds: float
    parameters: Mapping[str, Parameter]


def _built_in() -> dict[str, BuiltIn]:
    """The workloads of workloads.json by their names."""
    path = Path(__file__).with_name("workloads.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    workloads = {}
    for row in content["workloads"]:
        parameters = row["parameters"]
        if row.get("keeping"):
            # it tidies between steps: under_torch/workloads.py, tidy
            parameters |= content["keeping"]
        workloads[row["name"]] = BuiltIn(
            row["name"], row["shows"], row["seconds"], parameters
        )
    return workloads


BUILT_IN = _built_in()


@dataclass(frozen=True)
class Workload:
    """A workload: a built-in one by its ``name``, with the ``parameters`` that differ from its
    defaults, or a ``command`` of the user.

    ``step`` is a regular expression for the lines that a command prints at each step; a group in it
    is the loss.
    """

    name: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    step: str = ""

    @property
    def words(self) -> str:
        """The workload in one line, such as "training batch=8"."""
        if self.command:
            return line(self.command)
        changed = (f"{name}={value}" for name, value in sorted(self.parameters.items()))
        return " ".join([self.name, *changed])


def workload(name: str, **parameters: Parameter) -> Workload:
    """The built-in workload of this name with these parameters. Raises WorkloadError."""
    if name not in BUILT_IN:
        names = ", ".join(BUILT_IN)
        raise WorkloadError(
            f"workload {name!r}: expected one of {names}, or -- and a command"
        )
    built_in = BUILT_IN[name]
    for key, value in parameters.items():
        if key not in built_in.parameters:
            names = ", ".join(built_in.parameters)
            raise WorkloadError(
                f"{name}: parameter {key!r} is not known; expected one of {names}"
            )
        default = built_in.parameters[key]
        if not _fits(value, default):
            raise WorkloadError(
                f"{name}: {key} is {value!r}; expected something like {default!r}"
            )
    defaults = built_in.parameters
    changed = {
        key: value for key, value in parameters.items() if value != defaults[key]
    }
    return Workload(name, changed)


def _fits(value: Parameter, default: Parameter) -> bool:
    """Whether a value is of the default's kind: a text, or a number of 0 or more, which is whole if
    the default is.
    """
    if isinstance(value, bool):  # which isinstance takes for an int
        return False
    if isinstance(default, str) or isinstance(value, str):
        return type(value) is type(default)
    if isinstance(default, int) and not isinstance(value, int):
        return False
    return value >= 0


def command(argv: Sequence[str], step: str = "") -> Workload:
    """The workload of a user's command. Raises WorkloadError if it is empty, or if ``step`` is no
    regular expression.
    """
    if not argv:
        raise WorkloadError(
            "no command; expected one after --, such as: -- python train.py"
        )
    try:
        re.compile(step)
    except re.error as error:
        raise WorkloadError(
            f"step marker {step!r}: {error}; expected a regular expression "
            "such as 'loss=([0-9.]+)'"
        ) from error
    return Workload("command", command=tuple(argv), step=step)


def argv(wanted: Workload, python: str, seed: int, target: Target) -> list[str]:
    """The command line that runs a workload; a command of the user is not changed."""
    if wanted.command:
        return list(wanted.command)
    pci = target.pci
    if target.pci == CPU.pci:
        pci = ""
    spec = {
        "workload": wanted.name,
        "parameters": {**BUILT_IN[wanted.name].parameters, **wanted.parameters},
        "seed": seed,
        "device": target.device,
        "pci": pci,
        "several": target.several,
    }
    return program(python, PROGRAM, json.dumps(spec))
