"""Runs of a script that are forks of one Python: what the script finds, how it ends, and when none is forked."""

import json
import os
import signal
import subprocess
import sys

import pytest

from helpers.allocator.record import INJECT
from helpers.ground.child import carrying
from helpers.rehearse.forks import Forks
from helpers.rehearse.words import PROGRAMS

TORCH = """import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()} ")
os.environ["SET_BY_TORCH"] = "1"
"""
SCRIPT = """import json, os, sys
import torch, beside
def finds():
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "name": __name__, "file": __file__,
        "folder": os.getcwd(), "beside": beside.__file__, "input": sys.stdin.read(),
        "environment": {name: value for name, value in os.environ.items() if name != "_"},
        "umask": os.umask(0),
    }
print(json.dumps(finds()))
sys.exit(int(sys.argv[1]))
"""
IMPORTS_FIRST = {"imports_torch_as_started": True, "has_compiler": False}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script that imports a torch, which notes where it is imported."""
    (tmp_path / "libraries" / "torch").mkdir(parents=True)
    (tmp_path / "libraries" / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "beside.py").touch()
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return [sys.executable, "train.py"]


def variables(tmp_path, **more):
    paths = [str(INJECT), str(tmp_path / "libraries")]
    options = {"folder": str(tmp_path), "max_events": 1, "hang_after_s": None}
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "IMPORTS": str(tmp_path / "imports"),
        "CASEBOOK_REHEARSE": str(tmp_path),
        "CASEBOOK_PROGRAMS": str(PROGRAMS),
        "CASEBOOK_NEEDS": str(tmp_path / "needs"),
        "CASEBOOK_RECORD": json.dumps(options),
        **more,
    }


def started(words, tmp_path, **more):
    environment = {**os.environ, **variables(tmp_path, **more)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env=environment, **pipes)


def learned(forks, script, tmp_path, **changes):
    row = {"parent": os.getpid(), **IMPORTS_FIRST, **changes}
    forks.learn(script, variables(tmp_path), [row], ())
    return forks.before(script, variables(tmp_path))


def imports(tmp_path):
    return (tmp_path / "imports").read_text().split()


def test_a_forked_script_finds_what_it_finds_in_a_python_of_its_own(script, tmp_path):
    alone = started([*script, "3", "--lr"], tmp_path, FAKE_VRAM_BYTES="7")
    said_alone, _ = alone.communicate("typed")
    (tmp_path / "imports").unlink()
    with Forks() as forks:
        before = learned(forks, script, tmp_path)
        for _ in range(2):
            forked = started([*before, *script, "3", "--lr"], tmp_path, FAKE_VRAM_BYTES="7")
            said, _ = forked.communicate("typed")
            assert json.loads(said) == json.loads(said_alone)
            assert forked.returncode == alone.returncode == 3
        assert imports(tmp_path) == [str(forks.process.pid)]


def test_a_forked_script_gets_signals_and_is_recognized_by_its_environment(script, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys, time, torch\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    with Forks() as forks:
        before = learned(forks, script, tmp_path)
        entry = f"CASEBOOK_RECORD={variables(tmp_path)['CASEBOOK_RECORD']}"
        for number in (signal.SIGINT, signal.SIGUSR2, signal.SIGTERM):
            process = started([*before, *script], tmp_path)
            pid = int(process.stdout.readline())
            assert sorted(carrying(entry)) == sorted([process.pid, pid])
            receivers = [process.pid, pid] if number == signal.SIGTERM else [process.pid]
            for receiver in receivers:
                os.kill(receiver, number)
            process.communicate()
            assert process.returncode == -number


def test_a_script_runs_in_a_python_of_its_own_where_the_one_to_fork_has_ended(script, tmp_path):
    with Forks() as forks:
        before = learned(forks, script, tmp_path)
        forks.process.kill()
        forks.process.wait()
        process = started([*before, *script, "4"], tmp_path)
        process.communicate("")
        assert process.returncode == 4
        assert imports(tmp_path)[-1] == str(process.pid)


def test_a_run_and_what_it_started_end_with_who_asked_for_it(script, tmp_path):
    (tmp_path / "train.py").write_text(
        "import subprocess, torch\nprint('begun', flush=True)\nsubprocess.run(['sleep', '60'])\n"
    )
    with Forks() as forks:
        process = started([*learned(forks, script, tmp_path), *script], tmp_path)
        process.stdout.readline()
        process.kill()
        said, _ = process.communicate()  # to the end of its output, which all of them hold
        assert said == ""


def test_no_process_is_left_when_the_runs_are_over(script, tmp_path):
    with Forks() as forks:
        assert learned(forks, script, tmp_path)
        python = forks.process
        assert python.poll() is None
    assert python.returncode is not None
    assert not os.path.exists(forks.socket)


@pytest.mark.parametrize(
    "report", [{"imports_torch_as_started": False}, {"parent": -1}], ids=["variables", "launcher"]
)
def test_nothing_is_forked_where_the_first_run_shows_that_it_might_differ(script, tmp_path, report):
    with Forks() as forks:
        assert learned(forks, script, tmp_path, **report) == []
        assert forks.process is None


@pytest.mark.parametrize(
    ("variable", "value", "is_forked"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", False),
        ("FAKE_VRAM_BYTES", "1024", True),
        ("OMP_NUM_THREADS", "3", False),
    ],
)
def test_a_run_is_forked_only_with_the_variables_of_an_import(
    script, tmp_path, variable, value, is_forked
):
    with Forks() as forks:
        learned(forks, script, tmp_path)
        changed = variables(tmp_path, **{variable: value})
        assert bool(forks.before(script, changed)) == is_forked


def test_a_program_that_is_compared_on_the_cpu_is_a_fork_without_a_gpu_and_no_rehearsal(
    script, tmp_path
):
    (tmp_path / "train.py").write_text(
        "import json, os, torch\nprint(json.dumps(dict(os.environ)))\n"
    )
    with Forks() as forks:
        learned(forks, script, tmp_path)
        alone = forks.without_gpu()
        words = [*forks.before(script, alone), *script]
        done = subprocess.run(words, env={**os.environ, **alone}, capture_output=True, check=True)
        environment = json.loads(done.stdout)
        assert imports(tmp_path) == [str(forks.process.pid)]
    assert environment["CUDA_VISIBLE_DEVICES"] == "" and environment["FAKE_DEVICES"] == "0"
    assert not any(name.startswith("CASEBOOK_") for name in environment)


def test_a_module_is_not_forked(script, tmp_path):
    with Forks() as forks:
        learned(forks, script, tmp_path)
        assert forks.before([script[0], "-m", "train"], variables(tmp_path)) == []
