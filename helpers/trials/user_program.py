"""Checks a command line of the user's before it runs: its script, its torch and its GPU."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from helpers.allocator.recorded_processes import redacted
from helpers.ground.places import PROGRAM
from helpers.ground.shell import line
from helpers.look import files
from helpers.trials.interpreter import stated_by_torch, torch_files, torch_interpreter

PYTHON = re.compile(r"python[0-9.]*")
"""The file name of an interpreter, such as python3.12."""
LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
"""Programs that start a script: their first word that is no option and no value of one."""
FLAGS_OF_LAUNCHERS = """
-h --help --standalone --run-path --virtual-local-rank
-q --quiet --cpu --multi-gpu --tpu --enable-cpu-affinity --use-deepspeed --use-fsdp
--use-parallelism-config --use-megatron-lm --same-network --tpu-cluster --no-tpu-cluster
--tpu-use-sudo --downcast-bf16 --debug --dynamo-use-fullgraph --dynamo-use-dynamic
--dynamo-use-regional-compilation --fp8-use-autocast-during-eval
--no-local-rank --no-ssh --no-ssh-check --force-multi --save-pid --elastic-training
--bind-cores-to-rank --detect-nvlink-pairs
""".split()
"""Their options without a value, by torch/distributed/run.py, accelerate/commands/launch.py and
deepspeed/launcher/runner.py; all others have one.
"""
RUN_NO_FILE = ("-m", "--module", "--no-python")
"""Options of launchers with which they run a module or another program."""
TAKE_A_VALUE = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python whose value is the next word."""
NO_SCRIPT = re.compile(r"-|-[a-zA-Z]*[cm].*")
"""Options of Python with which it runs its stdin (-), a text (-c) or a module (-m), as in -um."""
DEVICES = "/dev/nvidia* /dev/kfd /dev/dxg /dev/nvhost* /dev/nvgpu* /dev/nvmap".split()
"""The device nodes through which torch reaches a GPU: NVIDIA, AMD, WSL, and those of a Jetson.

A build for one vendor may run on the other's card (ZLUDA), so any of them counts.
"""


class CannotRunError(ValueError):
    """A command that would fail: one line with what was seen and what to do."""


def script_of(command: Sequence[str]) -> str:
    """The Python file that a command runs, as it is written there; empty if it runs none, or if
    that is not certain.
    """
    if not command:
        return ""
    name = os.path.basename(command[0])
    if name.endswith(".py"):
        return command[0]
    if name == "accelerate":  # accelerate launch SCRIPT
        return _launched(command[2:])
    if name in LAUNCHERS:
        return _launched(command[1:])
    if not PYTHON.fullmatch(name):
        return ""
    words = iter(command[1:])
    for word in words:
        if word in TAKE_A_VALUE:
            next(words, "")
        elif NO_SCRIPT.fullmatch(word):
            return ""
        elif not word.startswith("-"):
            return word
    return ""


def _launched(words: Sequence[str]) -> str:
    """The Python file that a launcher starts, by the words after its name; empty if it starts none.
    Options before the file are skipped, with their values.
    """
    rest = iter(words)
    for word in rest:
        option = word.replace("_", "-")  # torchrun takes both
        if option in RUN_NO_FILE:
            return ""
        if not word.startswith("-"):
            if word.endswith(".py"):
                return word
            return ""
        has_its_value = "=" in word or re.match("-[^-].", word)  # --nnodes=2, -n2
        if option not in FLAGS_OF_LAUNCHERS and not has_its_value:
            next(rest, "")
    return ""


def check_script(
    command: Sequence[str], folder: Path | None = None, place: str = ""
) -> None:
    """Raise CannotRunError if the command's Python file does not exist.

    The command runs in ``folder``, by default the current one; ``place`` says which in words, such
    as "at main (a1b2c3)".
    """
    if folder is None:
        folder = Path.cwd()
    if not place:
        place = f"in {folder}"
    script = script_of(command)
    if script and not (folder / script).exists():
        raise CannotRunError(f"{script} does not exist {place}; check its path")


def check_torch(command: Sequence[str], python: str = "", *, needs_gpu: bool) -> None:
    """Raise CannotRunError if the Python of a command has no torch or, with ``needs_gpu``, a torch
    that can use no GPU here.

    ``python`` replaces the one that the command names. Without either nothing is checked: the
    Python of another program is not known before it runs.
    """
    if not python:
        python = _python_of(command)
    program = shutil.which(python)
    if not program:
        return
    named = python
    if not os.path.dirname(python):
        named = f"`{python}` on your PATH"
    origin, version = torch_files(program)
    if version and not origin:  # without a version it did not run, and nothing is known
        raise CannotRunError(
            f"{named} has no torch; activate the environment that you train in, "
            "or name its Python with --torch-python"
        )
    why = _why_no_gpu(origin)
    if needs_gpu and why:
        raise CannotRunError(
            f"{named} has {why}, and a recording needs a GPU; simulate the GPU instead: "
            f"{PROGRAM} rehearse --gpu 4090 -- {line(redacted(command))}"
        )


def _python_of(command: Sequence[str]) -> str:
    """The Python of a command: its first word, or the one in the first line of a launcher (#!);
    empty if it has none.
    """
    if not command:
        return ""
    if PYTHON.fullmatch(os.path.basename(command[0])):
        return command[0]
    program = shutil.which(command[0])
    if not program or os.path.basename(program) not in LAUNCHERS:
        return ""
    first_line, _, _ = files.text("", program).partition("\n")
    python = first_line.removeprefix("#!").strip()
    if not PYTHON.fullmatch(os.path.basename(python)):
        return ""
    return python


def _why_no_gpu(origin: str) -> str:
    """The release of the torch at this place and why it can use no GPU, in words; empty if it may
    use one, or if its version cannot be read.
    """
    stated = stated_by_torch(origin)
    version = stated.get("__version__", "")
    if not version:
        return ""
    if "cuda" not in stated and "hip" not in stated:
        return f"torch {version}, a build for the CPU"
    if any(glob.glob(node) for node in DEVICES):
        return ""
    return f"torch {version}, which finds no GPU here (no /dev/nvidia* and no /dev/kfd)"


def callers_python() -> str:
    """The Python for code of the user that comes without a command: `python` on the PATH, if it is
    of the active environment or has torch; else the one that set-up recorded.
    """
    python = shutil.which("python")
    if python is None:
        return torch_interpreter()
    environment = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    is_active = environment and python.startswith(f"{environment}{os.sep}")
    origin, _ = torch_files(python)
    if is_active or origin:
        return python
    return torch_interpreter()
