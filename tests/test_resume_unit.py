"""The systemd unit that resumes a batch: what it says of itself, and that its command is one of ours."""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UNIT = ROOT / "env" / "casebook-resume.service"


def test_the_unit_resumes_a_plan_and_outlives_a_run_that_is_out_of_memory():
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    assert (service["Type"], service["OOMPolicy"]) == ("oneshot", "continue")
    assert service["KillMode"] == "mixed" and unit["Install"]["WantedBy"] == "default.target"
    command = re.search(r"exec \.venv/bin/casebook run (\S+) --resume'", service["ExecStart"])
    assert (ROOT / command[1]).is_file()
    text = UNIT.read_text()
    for words in ("enable-linger", "daemon-reload", "disable --now", "rm ~/.config/systemd/"):
        assert words in text
    assert "sudo" not in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_finds_nothing_to_say_about_the_unit(tmp_path):
    argv = ["systemd-analyze", "--user", "verify", "--man=no", str(UNIT)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if UNIT.name in line]
    if done.returncode and not said:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()[:100]}")
    assert (done.returncode, said) == (0, [])
