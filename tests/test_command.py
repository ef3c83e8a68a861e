"""The command that set-up installs: in any folder, under the workbook's own Python, with the caller's environment."""

import os
import shlex
import subprocess
import sys

import pytest
from bare_checkout import lay, ran, told

from helpers.ground import places


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout whose path has blanks and quotes, set up from wheels of a few bytes."""
    checkout = lay(tmp_path_factory.mktemp("command"))
    done = checkout.start("setup")
    assert done.returncode == 0, done.stderr
    return checkout


def command(checkout):
    return str(checkout.venv / "bin" / "casebook")


def test_it_runs_under_the_workbooks_python_and_hands_the_callers_environment_on(
    checkout, tmp_path
):
    bends = {"PYTHONPATH": "/theirs", "PYTHONHOME": "/no/such", "VIRTUAL_ENV": "/env"}
    bends |= {"CONDA_PREFIX": "/conda", "PATH": f"/env/bin{os.pathsep}{os.environ['PATH']}"}
    done = ran([command(checkout), "leaks", "a b.pickle", "--", "*"], env=bends, cwd=tmp_path)
    said = told(done)
    assert said["python"] == str(checkout.venv / "bin" / "python")
    assert said["argv"] == ["leaks", "a b.pickle", "--", "*"] and said["cwd"] == str(tmp_path)
    assert "/theirs" not in said["path"]
    assert {name: said["env"].get(name) for name in bends} == bends


def test_a_link_to_it_works_and_its_exit_code_is_kept(checkout, tmp_path):
    link = tmp_path / "lïnk"
    link.symlink_to(command(checkout))
    done = ran([link], env={"PATH": os.environ["PATH"], "TELL_EXIT": "3"}, cwd="/")
    assert done.returncode == 3 and told(done)["argv"] == []


def said_last(checkout, **environ):
    done = checkout.start("setup", **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_last_line_of_a_set_up_is_a_command_that_brings_it_onto_the_path(checkout, tmp_path):
    folder = checkout.home / ".local" / "bin"
    folder.mkdir(parents=True)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    said = said_last(checkout, PATH=path)
    assert said.startswith("to call casebook in any folder: ln -s")
    subprocess.run(["sh", "-c", said.partition(": ")[2]], check=True, cwd=tmp_path)
    done = ran(["casebook", "gate"], env={**checkout.env(), "PATH": path}, cwd=tmp_path)
    assert told(done)["argv"] == ["gate"]
    assert said_last(checkout, PATH=path) == "in any folder: casebook --help"


def test_where_no_folder_of_the_path_is_the_users_an_alias_is_named(checkout):
    said = said_last(checkout, PATH="/usr/bin:/bin", HOME="/nonexistent")
    assert shlex.split(said)[-1] == f"casebook={shlex.quote(command(checkout))}"


def test_the_first_use_of_another_verb_says_it_too_and_has_its_program_say_it_last(tmp_path):
    checkout = lay(tmp_path)
    done = checkout.start("diagnose")
    assert done.returncode == 0 and "to call casebook in any folder: " in done.stderr
    name = "CASEBOOK_SAY_LAST"
    assert told(done)["env"][name].startswith("to call casebook in any folder: ")
    assert name not in told(checkout.start("diagnose"))["env"]


def test_a_checkout_that_was_moved_names_the_way_out(checkout, tmp_path):
    moved = tmp_path / "moved"
    moved.write_text((checkout.venv / "bin" / "casebook").read_text().replace("check", "gone"))
    done = ran(["sh", moved, "gate"])
    assert done.returncode == 2 and "run make setup" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_a_set_up_from_before_the_command_gets_it_by_the_next_verb(checkout):
    os.unlink(command(checkout))
    assert checkout.start("diagnose").returncode == 0
    assert os.access(command(checkout), os.X_OK)


@pytest.mark.parametrize(
    ("program", "command", "typed"),
    [
        ("casebook", "casebook ttm live", "casebook ttm live"),
        ("python3 -m helpers", "casebook ttm live", "python3 -m helpers ttm live"),
        (
            "python3 -m helpers",
            "uname -r; casebook ttm live\ncasebook capture  # of casebook",
            "uname -r; python3 -m helpers ttm live\npython3 -m helpers capture  # of casebook",
        ),
        ("python3 -m helpers", "cat /srv/casebook run.log", "cat /srv/casebook run.log"),
        ("python3 capture.pyz", "casebook capture", "python3 capture.pyz capture"),
        ("python3 capture.pyz", "casebook fits a.log", "casebook fits a.log"),
    ],
)
def test_a_printed_command_can_be_pasted_where_it_is_printed(monkeypatch, program, command, typed):
    monkeypatch.setattr(places, "PROGRAM", program)
    assert places.typed_here(command) == typed


@pytest.mark.parametrize("asked", [["--help"], ["diagnose", "cpu-only"], ["nope"]])
def test_a_bare_checkout_spells_its_own_command(tmp_path, asked):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("helpers", "env", "notebooks", "pyproject.toml"):
        (bare / name).symlink_to(places.CHECKOUT / name)
    # Its folder is found by the file's own place, so the package is a copy.
    (bare / "helpers").unlink()
    subprocess.run(["cp", "-r", places.CHECKOUT / "helpers", bare / "helpers"], check=True)
    base = getattr(sys, "_base_executable", sys.executable)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = ran([base, "-B", "-m", "helpers", *asked], cwd=bare, env=env)
    assert "python3 -m helpers" in done.stdout + done.stderr
    assert "casebook diagnose" not in done.stdout + done.stderr
