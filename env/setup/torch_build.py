"""Which torch do the programs that need one run under? The user's own where it can drive a GPU, else the CPU build in .venv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from . import WrongUse, interpreters, pip
from .interpreters import Interpreter
from .stamp import Torch, write_whole
from .venv import SOON, Filler

TORCH_INDEX = "https://download.pytorch.org/whl"
# kind: (local version, rough size). The builds of torch 2.13.0: its release notes name rocm7.2, cu130 is the default CUDA.
BUILDS = {
    "cpu": ("cpu", "0.2 GB to download, 0.8 GB on disk"),
    "rocm": ("rocm7.2", "several GB to download, over 10 GB on disk"),
    "cuda": ("cu130", "about 3 GB to download, over 6 GB on disk"),
}
KINDS = ("cpu", "rocm", "cuda", "none")


def version(root: Path) -> str:
    """The torch that env/torch.txt pins, without its local version."""
    pin = next(pin for pin in pip.pins(root / "env/torch.txt") if pin.startswith("torch=="))
    return pin.removeprefix("torch==").split("+")[0]


def chosen(found: list[Interpreter], asked: str | None) -> Interpreter | None:
    """The interpreter whose torch is used; None where the build in .venv is wanted. `asked`: one of KINDS, a path or None."""
    if asked in KINDS:
        return None
    return next((one for one in found if (one.path == asked if asked else one.usable)), None)


def check(asked: str | None, environ: Mapping[str, str], venv: Path) -> None:
    """WrongUse where a --torch-python cannot be used. A build for the CPU is good enough where it is asked for by path."""
    if asked is None or asked in KINDS:
        return
    one = interpreters.probe(asked, "--torch-python", environ)
    why = "is the workbook's own" if asked.startswith(f"{venv}/") else one.why
    if why and why != interpreters.CPU_BUILD:
        expected = "expected a Python 3.9 or newer that has torch 1.13 or newer"
        raise WrongUse(f"--torch-python {asked}: {why}; {expected}")


def settle(filler: Filler, asked: str | None) -> Torch:
    """Find the interpreter that owns torch, or put a build into .venv, and say which it is."""
    root = filler.root
    made = filler.made
    environ = filler.environ
    filler.progress.doing = "looking for torch"
    found = interpreters.find(environ, root / ".venv", asked if asked not in KINDS else None)
    one = chosen(found, asked)
    if one:
        python = one.path
        if one.through:
            starter = root / ".venv/torch-python"
            write_whole(starter, interpreters.starter(one, environ))
            starter.chmod(0o755)
            python = str(starter)
        torch = recorded(one, python)
    elif asked == "none":
        torch = Torch(why="--torch none was asked for")
    else:
        name = f"{version(root)}+{BUILDS[asked or 'cpu'][0]}"
        own = interpreters.probe(made.python, "in .venv", pip.clean(environ))
        why = "" if own.torch == name else install(filler, asked or "cpu")
        own = interpreters.probe(made.python, "in .venv", pip.clean(environ))
        torch = Torch(why=why) if why else recorded(own, made.python)
    torch = replace(torch, asked=asked, all=list(map(asdict, found)))
    filler.progress.say("\n".join(report(torch)))
    return torch


def recorded(one: Interpreter, python: str) -> Torch:
    return Torch(python, one.path, one.torch, one.cuda, one.hip, one.how_found)


def report(torch: Torch) -> list[str]:
    """The choice and every interpreter that was looked at, a line each."""
    others = [Interpreter(**one) for one in torch.all]
    head = f"  torch {torch.torch} of {torch.owner} ({torch.how_found}) is used"
    if not torch.torch_python:
        again = "`make setup TORCH=cpu` tries again"
        head = f"  no torch: {torch.why}. What needs it is left out; {again}"
    return [head, *(f"    seen: {one.line()}" for one in others if one.path != torch.owner)]


def install(filler: Filler, kind: str) -> str:
    """Put a build of torch into .venv. The answer is empty, or why nothing served it; set-up goes on either way."""
    local, size = BUILDS[kind]
    name = f"{version(filler.root)}+{local}"
    index = f"{TORCH_INDEX}/{local}"
    house = filler.wheelhouse.is_dir()
    where = str(filler.wheelhouse) if house else f"pip's own sources, else {index}"
    filler.progress.say(f"  torch {name}: {size}; from {where}")
    for options in ((),) if house else ((), ("--extra-index-url", index)):
        outcome = filler.install(torch=name, options=options, limits=SOON)
        if outcome.code == 0:
            break
    if outcome.code == 0 and kind == "cpu":
        outcome = filler.install([filler.root / "env/torch.txt"])
    return "" if outcome.code == 0 else f"nothing serves torch {name} ({outcome.said})"
