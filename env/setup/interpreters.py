"""Which Python on this box owns a torch that can drive a GPU? Answered without importing torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .pip import QUIET

PROBE_LIMIT_S = 20
MARK = "casebook-probe:"
OLDEST_PYTHON = (3, 9)
OLDEST_TORCH = (1, 13)
CPU_BUILD = "a build for the CPU"

# Runs under the candidate, which may be any Python 3. torch/version.py is read as text: importing torch can take seconds,
# take a context on a card, or hang in a driver.
PROBE = r"""
import json, os, site, sys
said = {"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "at": None, "text": None, "why": None, "user": None}
try:
    from importlib.util import find_spec
    spec = find_spec("torch")
    said["user"] = site.USER_SITE if site.ENABLE_USER_SITE else None
    places = list(spec.submodule_search_locations or []) if spec else []
    if places:
        said["at"] = places[0]
        with open(os.path.join(places[0], "version.py")) as file:
            said["text"] = file.read(20000)
except Exception as error:
    said["why"] = "%s: %s" % (type(error).__name__, error)
print("casebook-probe:" + json.dumps(said))
"""
STARTER = """#!/bin/sh
# Restores what {one.path} finds its torch through: the {one.through}.
unset PYTHONNOUSERSITE
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{theirs} exec {python} "$@"
"""


@dataclass(frozen=True)
class Interpreter:
    """One Python that was looked at. `why` says in words what speaks against using its torch; empty where nothing does.

    `through` is how it finds its torch where that hangs on the caller's environment: "PYTHONPATH" or "user site".
    """

    path: str
    how_found: str
    python: str | None = None
    prefix: str | None = None
    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None
    torch_at: str | None = None
    through: str = ""
    why: str = ""

    @property
    def usable(self) -> bool:
        return not self.why

    def line(self) -> str:
        kind = f", HIP {self.hip}" if self.hip else f", CUDA {self.cuda}" if self.cuda else ""
        says = [f"torch {self.torch}{kind}" if self.torch else "", self.why]
        return f"{self.path} ({self.how_found}): " + "; ".join(filter(None, says))


def stated(text: str, name: str) -> str | None:
    """What torch/version.py assigns to a name, as text; None for None or no such line."""
    found = re.search(rf"^{name}\s*(?::[^=\n]+)?=\s*(['\"])(.*?)\1", text, re.MULTILINE)
    return found[2] or None if found else None


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:2])


def user_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the user's own torch is found: theirs, without what would bend another Python."""
    bending = ("PYTHONHOME", "PYTHONSTARTUP")
    return {name: value for name, value in environ.items() if name not in bending}


def probe(
    path: str, how_found: str, environ: Mapping[str, str], limit_s: float = PROBE_LIMIT_S
) -> Interpreter:
    """Look at one interpreter in a child with a time limit; a broken or silent one is answered with the reason."""
    pipes = {**QUIET, "stderr": subprocess.PIPE, "env": user_environment(environ)}
    try:
        child = subprocess.Popen([path, "-c", PROBE], cwd="/", start_new_session=True, **pipes)
    except OSError as error:
        return Interpreter(path, how_found, why=f"does not start: {error.strerror or error}")
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Interpreter(path, how_found, why=f"did not answer within {limit_s:g} s")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    answer = [line for line in out.splitlines() if line.startswith(MARK)]
    if child.returncode or not answer:
        last = (err.strip().splitlines() or ["nothing printed"])[-1]
        return Interpreter(path, how_found, why=f"exit {child.returncode}: {last}")
    return judged(path, how_found, json.loads(answer[-1][len(MARK) :]), environ)


def judged(
    path: str, how_found: str, said: Mapping[str, str | None], environ: Mapping[str, str]
) -> Interpreter:
    text = said["text"] or ""
    at = said["at"]
    python = said["python"] or "0"
    torch = stated(text, "__version__")
    cuda = stated(text, "cuda")
    hip = stated(text, "hip")
    if said["why"]:
        why = str(said["why"])
    elif not at:
        why = "no torch"
    elif not torch:
        why = "torch/version.py names no version"
    elif numbers(python) < OLDEST_PYTHON or numbers(torch) < OLDEST_TORCH:
        why = "too old: Python 3.9 and torch 1.13 are the oldest that can be used"
    else:
        why = "" if cuda or hip else CPU_BUILD
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    home = os.path.dirname(os.path.abspath(at)) if at else ""
    through = "user site" if home and home == said["user"] else ""
    if home in [os.path.abspath(entry) for entry in entries if entry]:
        through = "PYTHONPATH"
    return Interpreter(path, how_found, python, said["prefix"], torch, cuda, hip, at, through, why)


def candidates(environ: Mapping[str, str], system: Path = Path("/")) -> Iterator[tuple[str, str]]:
    """(path, how it was found) in the order of preference. The workbook's own .venv is not one of them."""
    yield sys.executable, "the running python3"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name):
            yield os.path.join(environ[name], "bin", "python"), f"active, {name}"
    on_path = shutil.which("python3", path=environ.get("PATH"))
    if on_path:
        yield on_path, "python3 on PATH"
    conda = system / "opt/conda"
    for folder in (system / "opt/venv", conda, *sorted((conda / "envs").glob("*"))):
        yield str(folder / "bin/python"), f"/{folder.relative_to(system)}"
    home = Path(environ.get("HOME") or "/nonexistent")
    for torch in sorted(home.glob(".local/lib/python3.*/site-packages/torch"), reverse=True):
        owner = shutil.which(torch.parts[-3], path=environ.get("PATH"))
        if owner:
            yield owner, "~/.local"


def find(
    environ: Mapping[str, str],
    venv: Path,
    asked: str | None = None,
    system: Path = Path("/"),
    limit_s: float = PROBE_LIMIT_S,
) -> list[Interpreter]:
    """Every interpreter that was looked at, in the order of preference, each environment (sys.prefix) once."""
    found: list[Interpreter] = []
    paths = set()
    prefixes = {str(venv), os.path.realpath(venv)}
    first = [(asked, "--torch-python")] if asked else []
    for path, how in [*first, *candidates(environ, system)]:
        there = os.path.lexists(path) or path == asked
        if not there or path in paths or path.startswith(f"{venv}{os.sep}"):
            continue
        paths.add(path)
        seen = probe(path, how, environ, limit_s)
        if seen.prefix not in prefixes:
            found.append(seen)
            prefixes |= {seen.prefix} if seen.prefix else set()
    return found


def starter(one: Interpreter, environ: Mapping[str, str]) -> str:
    """A script that starts the interpreter so that it finds its torch, for one whose torch hangs on the caller's environment.

    The workbook's own children run with PYTHONNOUSERSITE and a PYTHONPATH of their own.
    """
    theirs = shlex.quote(environ.get("PYTHONPATH", "")) if one.through == "PYTHONPATH" else ""
    return STARTER.format(one=one, theirs=theirs, python=shlex.quote(one.path))
