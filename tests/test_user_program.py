"""What is wrong with a command of the user's own is said in one line before it runs."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import verb

from helpers.rehearse import commits
from helpers.trials import user_program
from helpers.trials.user_program import callers_python, script_of


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --out model.py", "train.py"),
        ("/opt/conda/bin/python3.12 -u -X dev -W ignore src/train.py", "src/train.py"),
        ("python -Wignore -O pkg", "pkg"),
        ("./fit.py --lr 1", "./fit.py"),
        ("torchrun --nproc_per_node 2 train.py", "train.py"),
        ("accelerate launch --config_file a.yaml run/train.py", "run/train.py"),
        (
            "accelerate launch --config_file presets.py --multi_gpu run/train.py eval.py",
            "run/train.py",
        ),
        ("torchrun --log-dir=a.py --standalone --rdzv_conf hosts.py -t3 fit.py --lr 1", "fit.py"),
        ("torchrun --nproc-per-node 2 -m package.train extra.py", ""),
        ("torchrun --nproc-per-node 2 --no-python sh run.sh eval.py", ""),
        ("accelerate-launch --num_processes 2 --mixed_precision bf16 fit.py", "fit.py"),
        ("deepspeed --include host:0,1 --hostfile h.py --no_ssh fit.py --deepspeed", "fit.py"),
        ("torchrun --nproc-per-node 2", ""),
        ("python -m package.train", ""),
        ("python -c 'import a' train.py", ""),
        ("python -uc 'import a' b.py", ""),
        ("python -", ""),
        ("python", ""),
        ("sh -c 'cd src && python train.py'", ""),
        ("make train.py", ""),
    ],
)
def test_the_file_that_a_command_runs(command, script):
    assert script_of(shlex.split(command)) == script


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "my prüject"
    place.mkdir()
    (place / "train.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(place)
    return place


def python_with(monkeypatch, tmp_path, version):
    """`python` on the PATH, whose torch has this version.py; none: it has no torch."""
    shims = tmp_path / "shims"
    shims.mkdir()
    script = f'#!/bin/sh\nexec "{sys._base_executable}" -S "$@"\n'
    if version:
        (shims / "torch").mkdir()
        (shims / "torch" / "__init__.py").touch()
        (shims / "torch" / "version.py").write_text(version)
        monkeypatch.setenv("PYTHONPATH", str(shims))
    (shims / "python").write_text(script)
    (shims / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{os.environ['PATH']}")


CPU = "__version__ = '2.9.1+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA = "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
ROCM = "__version__ = '2.9.1+rocm6.4'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.0'\n"


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("", "`python` on your PATH has no torch; activate the environment that you train in"),
        (CPU, "torch 2.9.1+cpu, a build for the CPU, and a recording needs a GPU"),
        (CUDA, "torch 2.9.1+cu128, which finds no GPU here"),
        (ROCM, "torch 2.9.1+rocm6.4, which finds no GPU here"),
    ],
)
def test_a_program_that_cannot_be_recorded_is_not_run(version, says, folder, tmp_path, monkeypatch):
    python_with(monkeypatch, tmp_path, version)
    monkeypatch.setattr(user_program, "DEVICES", ["/no/such"])
    done = verb(
        "record", "--out", "run.pickle", "--", "python", "train.py", "--token", "hf_" + "x" * 34
    )
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1
    assert "hf_x" not in done.err and os.listdir(folder) == ["train.py"]
    if version:
        assert "casebook rehearse --gpu 4090 -- python train.py" in done.err


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate launch"])
def test_a_launcher_whose_python_cannot_be_recorded_is_not_run(
    launcher, folder, tmp_path, monkeypatch
):
    python_with(monkeypatch, tmp_path, CPU)
    monkeypatch.setattr(user_program, "DEVICES", ["/no/such"])
    path = tmp_path / "shims" / launcher.split()[0]
    path.write_text(f"#!{tmp_path / 'shims/python'}\nraise SystemExit(7)\n")
    path.chmod(0o755)
    done = verb("record", "--", *launcher.split(), "train.py")
    assert done.code == 2 and "torch 2.9.1+cpu, a build for the CPU" in done.err
    assert done.err.count("\n") == 1 and os.listdir(folder) == ["train.py"]


def test_a_gpu_that_is_there_and_a_hang_on_the_cpu_are_recorded(folder, tmp_path, monkeypatch):
    python_with(monkeypatch, tmp_path, CPU)
    done = verb("record", "--out", "a.pickle", "--hang-after", "9", "--", "python", "train.py")
    assert done.code == 0 and Path("ran").exists(), done.err
    Path("ran").unlink()
    (tmp_path / "shims/torch/version.py").write_text(CUDA)
    monkeypatch.setattr(user_program, "DEVICES", [str(folder)])
    done = verb("record", "--out", "b.pickle", "--", "python", "train.py")
    assert done.code == 0 and Path("ran").exists(), done.err
    assert done.err.count("loaded the recorder") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("record -- python no.py", "no.py does not exist in"),
        ("rehearse --gpu 4090 -- torchrun no.py", "no.py does not exist in"),
        ("trial --preset cpu-one-thread -- python no.py", "no.py does not exist in"),
        ("record --out run.jsonl -- python train.py", "give run.pickle"),
        ("rehearse --gpu 4090 --out run.pt -- python train.py", "give run.pickle"),
    ],
)
def test_a_script_that_is_not_there_and_a_name_that_would_be_another_are_refused(
    words, says, folder
):
    done = verb(*words.split())
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1, done.err
    assert os.listdir(folder) == ["train.py"]


def test_a_trace_that_is_not_there_names_what_lies_beside_it(folder):
    (folder / "run.parquet").touch()
    done = verb("whatif", "run.pickle", "--capacity", "1GiB")
    assert done.code == 2
    assert done.err == "casebook: run.pickle does not exist; beside it: run.parquet\n"


def git(*words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


def test_a_script_named_by_its_full_path_is_at_a_commit_the_one_of_that_commit(folder, tmp_path):
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    command = ["python", str(folder / "train.py"), str(folder / "data")]
    with commits.checked_out("HEAD", tmp_path / "outputs") as (_, tree):
        words = commits.as_it_was(command, tree)
        assert words == ["python", f"{tree}/train.py", str(folder / "data")]
        assert commits.as_it_was(["python", "train.py"], tree) == ["python", "train.py"]


def test_an_objective_runs_under_the_python_of_the_active_environment(tmp_path, monkeypatch):
    active = tmp_path / "env"
    (active / "bin").mkdir(parents=True)
    (active / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{active}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(active))
    assert callers_python() == f"{active}/bin/python"
