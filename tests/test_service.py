"""The texts that let a batch go on by itself: every path arrives whole, whatever is in its name."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.batch.batch import resume_argv, resume_texts, unit_name

ODD = 'a b%20 $HOME\'s "q" \\n=1'
FAKE = "import json, sys\nopen(sys.argv[-1] + '/said.json', 'w').write(json.dumps(sys.argv))\n"


@pytest.fixture
def batch(tmp_path):
    """(plan, checkout, folder) below a folder with an odd name; the checkout's program writes down what it was given."""
    top = tmp_path / ODD
    (top / "helpers").mkdir(parents=True)
    (top / "helpers" / "__main__.py").write_text(FAKE)
    (top / "out").mkdir()
    return top / "plan.yaml", top, top / "out"


def arrived(batch):
    return json.loads((batch[2] / "said.json").read_text())


def started(unit):
    """What systemd would start: quotes and backslashes taken off, then %% and $$ (systemd.service(5), systemd.unit(5))."""
    line = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1)
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|(\S+)', line)
    plain = [
        re.sub(r"\\(.)", r"\1", double) if double else single or bare
        for double, single, bare in words
    ]
    assert not any(re.search(r"(?<!%)%(%%)*(?!%)", word) for word in plain), (
        "a % that systemd would expand"
    )
    return [word.replace("%%", "%").replace("$$", "$") for word in plain]


def test_the_unit_starts_the_resumed_batch_with_every_word_whole(batch):
    unit = resume_texts(*batch, batch[1])[0]
    subprocess.run(started(unit), check=True, cwd="/")
    assert arrived(batch) == resume_argv(*batch)[1:]
    here = re.search(r"^WorkingDirectory=(.*)$", unit, re.MULTILINE).group(1)
    assert here.replace("%%", "%") == str(batch[1])


LETTERS = st.characters(codec="utf-8", exclude_characters="/", exclude_categories=["Cc", "Cs"])


@settings(max_examples=50, deadline=None)
@given(st.text(LETTERS, min_size=1, max_size=20))
def test_any_name_without_a_line_break_survives(name):
    folder = Path("/nowhere") / name
    if name in (".", "..") or name.endswith(("\\", " ")):
        return
    argv = resume_argv(folder / "plan.yaml", folder, folder)
    unit, at_reboot, _ = resume_texts(folder / "plan.yaml", folder, folder, folder)
    assert started(unit) == ["/bin/sh", "-c", 'exec "$@"', "sh", *argv]
    assert re.fullmatch(r"casebook-[A-Za-z0-9._-]+\.service", unit_name(folder))
    assert not re.search(r"(?<!\\)%", at_reboot.split("\n")[1]), "cron ends a command at a %"


def test_the_unit_is_whole_says_how_it_is_removed_and_outlives_a_run_that_is_out_of_memory(batch):
    unit = resume_texts(*batch, batch[1])[0]
    parsed = configparser.RawConfigParser(strict=True)
    parsed.optionxform = str
    parsed.read_string(unit)
    assert parsed["Service"]["Type"] == "oneshot" and parsed["Service"]["OOMPolicy"] == "continue"
    assert parsed["Install"]["WantedBy"] == "default.target"
    remove = (f"disable --now {unit_name(batch[2])}", "rm ~/.config/systemd/")
    for said in ("loginctl enable-linger", "daemon-reload", *remove):
        assert said in unit
    assert "sudo" not in unit


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_finds_nothing_to_say_about_the_unit(batch, tmp_path):
    unit = tmp_path / unit_name(batch[2])
    runtime = tmp_path / "runtime"
    unit.write_text(resume_texts(*batch, batch[1])[0])
    runtime.mkdir(mode=0o700)
    argv = ["systemd-analyze", "--user", "verify", "--man=no", str(unit)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    if done.returncode and not said:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()[:100]}")
    assert (done.returncode, said) == (0, [])


def test_the_crontab_line_starts_the_same(batch):
    comment, line = resume_texts(*batch, batch[1])[1].splitlines()
    assert comment.startswith("#") and "Remove" in comment and line.startswith("@reboot ")
    command = line.removeprefix("@reboot ").replace("\\%", "%")
    subprocess.run(["/bin/sh", "-c", command], check=True, cwd="/")
    assert arrived(batch) == resume_argv(*batch)[1:] and (batch[2] / "resumed.log").exists()


def test_the_lines_for_a_shell_start_the_same(batch):
    lines = [
        line for line in resume_texts(*batch, batch[1])[2].splitlines() if not line.startswith("#")
    ]
    nohup, tmux = lines
    subprocess.run(["/bin/sh", "-c", f"{nohup}\nwait"], check=True, cwd="/", capture_output=True)
    assert arrived(batch) == resume_argv(*batch)[1:]
    assert shlex.split(shlex.split(tmux)[-1]) == resume_argv(*batch)


@pytest.mark.parametrize("name", ["two\nlines", "bell\x07", "backslash\\", "blank "])
def test_a_path_that_no_unit_can_hold_is_refused_in_one_line(name):
    with pytest.raises(ValueError, match="expected a plain path") as refused:
        resume_argv(Path("/nowhere/plan.yaml"), Path("/nowhere"), Path("/nowhere") / name)
    assert "\n" not in str(refused.value)


def test_the_interpreter_is_the_one_that_runs_now():
    assert resume_argv(Path("p"), Path("c"), Path("f"))[0] == sys.executable
