"""What is wrong with a command line of the user's own, said before it runs."""

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
LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
"""Programs that start a script: the first word that is no option and no option's value."""
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
TAKE_A_VALUE = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python with a word of their own behind them."""
NO_SCRIPT = re.compile(r"-|-[a-zA-Z]*[cm].*")
"""Options of Python with which it runs a module, a text or its input."""
DEVICES = "/dev/nvidia* /dev/kfd /dev/dxg /dev/nvhost* /dev/nvgpu* /dev/nvmap".split()
"""The device nodes through which torch reaches a GPU: NVIDIA, AMD, WSL, and those of a Jetson.

A build for one vendor may run on the other's card (ZLUDA), so any of them counts.
"""


class CannotRunError(ValueError):
    """A command that would fail: one line with what was seen and what to do."""


def script_of(command: Sequence[str]) -> str:
    """The Python file that a command runs, as it is written there; empty where it names none, or
    where that is not sure.
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
    """The Python file that a launcher starts, by the words after its name; empty where it starts
    none.
    """
    rest = iter(words)
    for word in rest:
        option = word.replace("_", "-")
        if option in RUN_NO_FILE:
            return ""
        if not word.startswith("-"):
            return word if word.endswith(".py") else ""
        has_its_value = "=" in word or re.match("-[^-].", word)
        if option not in FLAGS_OF_LAUNCHERS and not has_its_value:
            next(rest, "")
    return ""


def check_script(
    command: Sequence[str], folder: Path | None = None, place: str = ""
) -> None:
    """Raises CannotRunError where the command's Python file is not there.

    ``folder``: where the command runs, if not here, and ``place`` what that is called.
    """
    if folder is None:
        folder = Path.cwd()
    script = script_of(command)
    if script and not (folder / script).exists():
        where = place or f"in {folder}"
        raise CannotRunError(f"{script} does not exist {where}; check its path")


def check_torch(command: Sequence[str], python: str = "", *, needs_gpu: bool) -> None:
    """Raises CannotRunError where the Python of a command has no torch or, with ``needs_gpu``, a
    torch that cannot use a GPU here. ``python`` takes the place of the one that the command names.

    Which Python other programs start is not known before they run.
    """
    if not python:
        python = _python_of(command)
    program = shutil.which(python)
    if not program:
        return
    named = python if os.path.dirname(python) else f"`{python}` on your PATH"
    origin, version = torch_files(program)
    if version and not origin:
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
    """The Python that a command names, itself or in the first line of a launcher; empty where it
    names none.
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
    return python if PYTHON.fullmatch(os.path.basename(python)) else ""


def _why_no_gpu(origin: str) -> str:
    """The torch at this place and why it uses no GPU; empty where it does, or nobody knows."""
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
    """The Python of the user's own code where no command names one: that of the active environment,
    or `python` on the PATH if it has torch; else the one that owns torch by the set-up's record.
    """
    python = shutil.which("python")
    if python is None:
        return torch_interpreter()
    environment = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    is_active = bool(environment) and python.startswith(f"{environment}{os.sep}")
    origin, _ = torch_files(python)
    return python if is_active or origin else torch_interpreter()
