"""``vram_peak`` in a test file of somebody's own: what passes, what fails with which words, and when it is skipped."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

EXTENSION = Path(__file__).resolve().parents[1] / "helpers/magics/extension"
TESTS = """
def step():
    print("one step")

def test_step(vram_peak):
    assert vram_peak(step, limit="8GiB") == 1024

def test_lambda(vram_peak):
    vram_peak(lambda: None, limit="8GiB")
"""
CASEBOOK = """#!{python}
import subprocess, sys
command = sys.argv[sys.argv.index("--") + 1:]
subprocess.run(command, check=True)
sys.stderr.write({says!r})
raise SystemExit({code})
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["vram_casebook_pytest"]\n')
    (tmp_path / "test_own.py").write_text(TESTS)
    return tmp_path


def run(folder, *names, path, **environ):
    environment = {**os.environ, "PYTHONPATH": str(EXTENSION), "PATH": path, **environ}
    options = ["-q", "-rfs", "-p", "no:cacheprovider", "--color=no", *names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env={**environment, "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def stand_in(folder, says, code=0):
    """A casebook that runs the program on no card, and answers what it was told to."""
    program = folder / "bin/casebook"
    program.parent.mkdir()
    program.write_text(CASEBOOK.format(python=sys.executable, says=says, code=code))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program.parent)


def answer(**changed):
    shape = {"fits": True, "ooms": 0, "error": "", "peak_reserved_bytes": 1024, **changed}
    return f"a warning of torch\n{json.dumps(shape, indent=1)}\n"


def test_a_function_that_fits_gives_its_peak(project):
    output = run(project, "-k", "step", path=stand_in(project, answer()))
    assert "1 passed" in output


def test_a_function_that_does_not_fit_fails_with_torchs_own_words(project):
    says = answer(fits=False, ooms=1, error="OutOfMemoryError: CUDA out of memory.")
    output = run(project, "-k", "step", path=stand_in(project, says, code=1))
    assert "step does not fit into 8GiB: OutOfMemoryError: CUDA out of memory." in output


def test_a_function_that_raises_fails_with_its_error(project):
    says = answer(fits=False, error="KeyError: 'x'")
    output = run(project, "-k", "step", path=stand_in(project, says, code=1))
    assert "step failed: KeyError: 'x'" in output


def test_without_a_cuda_build_of_torch_the_test_is_skipped_and_says_why(project):
    empty = project / "no cache"
    output = run(project, "-k", "step", path=os.environ["PATH"], XDG_CACHE_HOME=str(empty))
    assert "SKIPPED" in output and (
        "a rehearsal needs one alone" in output or "is missing" in output
    )
    assert not empty.exists()


def test_a_function_inside_another_is_refused_in_one_line(project):
    output = run(project, "-k", "lambda", path=stand_in(project, answer()))
    assert (
        "ValueError: vram_peak: seen test_lambda.<locals>.<lambda>; expected a function" in output
    )
