"""A pytest fixture: does a function fit into this much GPU memory? No GPU is used.

    def test_a_training_step_fits(vram_peak):
        assert vram_peak(train_step, limit="8GiB") < 6 * 2**30

``casebook rehearse`` runs the function in a process of its own on a simulated card. pytest finds
the fixture where the workbook is installed with its extra ``pytest``; elsewhere a ``conftest.py``
names it: ``pytest_plugins = ["vram_casebook_pytest"]``. Nothing of the workbook is imported here.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

# Parts of the messages that say that this machine lacks what a rehearsal needs: of NotReady in
# helpers/rehearse/build.py, and of helpers/commands/rehearse.py.
NOT_READY = (
    "--setup",
    "is missing; install",
    "preloads a library",
    "could not be built",
)
WRONG_USE = 2  # an exit code of casebook


@pytest.fixture
def vram_peak(tmp_path: Path) -> Callable[[FunctionType, str], int]:
    """``vram_peak(function, limit="8GiB")``: the bytes that torch's allocator reserves at most.

    ``function`` takes no arguments and is defined at the top of its file. ``limit`` is the memory
    of the card. The test fails where the function runs out of it or raises, and is skipped where
    there is no CUDA build of torch: nothing is ever installed.
    """

    def peak(function: FunctionType, limit: str) -> int:
        recording = tmp_path / f"{function.__name__}.pickle"
        return _rehearsed_peak(function, limit, recording)

    return peak


def _rehearsed_peak(function: FunctionType, limit: str, recording: Path) -> int:
    """The peak of a function in bytes; fails the test where the function does not fit or raises."""
    is_nested = function.__qualname__ != function.__name__
    if is_nested or function.__name__ == "<lambda>":
        seen = f"seen {function.__qualname__}"
        raise ValueError(
            f"vram_peak: {seen}; expected a function at the top of its file"
        )
    call = [sys.executable, __file__, inspect.getfile(function), function.__name__]
    answer = _rehearsal(["--capacity", limit, "--out", str(recording), "--", *call])
    if answer["fits"]:
        return int(answer["peak_reserved_bytes"])
    outcome = "failed"
    if answer["ooms"]:
        outcome = f"does not fit into {limit}"
    pytest.fail(f"{function.__name__} {outcome}: {answer['error']}", pytrace=False)


def _rehearsal(arguments: list[str]) -> dict[str, Any]:
    """The JSON object of a rehearsal; skips the test where this machine cannot rehearse."""
    folders = [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)]
    casebook = shutil.which("casebook", path=os.pathsep.join(folders))
    if casebook is None:
        pytest.skip("casebook is not on the PATH")
    command = [casebook, "rehearse", "--json", "--no-counterfactual", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != WRONG_USE:
        # The JSON follows the output of the program and our notes.
        start = done.stderr.rindex("\n{\n")
        answer: dict[str, Any] = json.loads(done.stderr[start:])
        return answer
    reason = done.stderr.strip().splitlines()[-1]
    if any(words in reason for words in NOT_READY):
        pytest.skip(reason)
    raise ValueError(reason)


def _call(file: str, name: str) -> None:
    """Call a function of a test file, in the rehearsed process; what it prints goes to stderr."""
    sys.path.insert(0, os.path.dirname(file))
    module = importlib.import_module(os.path.splitext(os.path.basename(file))[0])
    with contextlib.redirect_stdout(sys.stderr):
        getattr(module, name)()


if __name__ == "__main__":
    _call(*sys.argv[1:])
