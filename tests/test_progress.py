"""Progress of several runs side by side, on a terminal that goes away, with the time left."""

import io
import os
import pty
import re
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.batch.progress import Plain
from helpers.batch.shapes import STATES, Run
from helpers.batch.time_left import short_time, time_left_s
from helpers.commands.signs import says_it_runs

SKIPPED = {"state": "skipped", "cause": "interrupted (SIGINT)"}


def runs(count, **about):
    own = {"batch_id": "b", "box": "apu", **about}
    return [Run(run_id=f"{n:03d}", notebook=f"{n % 2}.ipynb", **own) for n in range(count)]


def ended(run, state="answered", seconds=10.0, cause=""):
    return run.model_copy(update={"state": state, "seconds": seconds, "cause": cause})


def play(told, planned, folder):
    """Three runs side by side, of which one dies; the fourth is skipped."""
    told.started(folder, planned)
    for number in range(3):
        told.run_started(number, planned[number])
    for seconds in (0.5, 2.5, 4.5):
        for number in range(3):
            told.tick(number, number + 1, 9, seconds)
    told.run_ended(1, ended(planned[1], "died", cause="killed by SIGKILL"))
    told.run_ended(0, ended(planned[0]))
    told.run_ended(2, ended(planned[2]))
    told.run_ended(3, planned[3].model_copy(update=SKIPPED))
    told.ended()


def test_each_run_is_named_with_how_it_ended_and_all_are_summed_up(tmp_path):
    out = io.StringIO()
    play(Plain(out), runs(4), tmp_path)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"4 runs into {tmp_path}"
    died = "run 2 of 4: 1.ipynb on apu: died; killed by SIGKILL (10.0 s)"
    assert any(line.startswith(died) for line in lines)
    assert "run 4 of 4: 1.ipynb on apu: skipped; interrupted (SIGINT) (0.0 s)" in lines
    assert lines[-1] == "2 answered, 1 died, 1 skipped"
    cells = [line for line in lines if line.endswith("cell 3 of 9, 4 s")]
    assert cells == ["run 3 of 4: cell 3 of 9, 4 s"]


def test_lines_come_after_2_4_8_seconds_and_at_most_every_30():
    out = io.StringIO()
    told = Plain(out)
    told.started("/out", runs(2))
    told.run_started(0, runs(2)[0])
    for seconds in range(0, 130):
        told.tick(0, 0, 0, float(seconds))
    ticks = re.findall(r"starting, (\d+) s", out.getvalue())
    assert ticks == ["2", "4", "8", "16", "32", "62", "92", "122"]


def test_a_terminal_that_goes_away_in_the_middle_ends_nothing(tmp_path):
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")
    told = Plain(stream)
    planned = runs(4)
    told.started(tmp_path, planned)
    told.run_started(0, planned[0])
    os.close(ours)
    play(told, planned, tmp_path)
    with pytest.raises(OSError):
        os.write(theirs, b"gone")
    assert told.counts() == {"answered": 2, "died": 1, "skipped": 1}
    os.dup2(os.open(os.devnull, os.O_WRONLY), theirs)
    stream.close()


def test_a_full_disk_under_the_log_ends_nothing(tmp_path):
    with open("/dev/full", "w", buffering=1) as full:
        play(Plain(full), runs(4), tmp_path)
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_the_time_left_is_that_of_runs_so_far_else_of_the_plan():
    assert time_left_s(runs(4)) is None
    planned = runs(4, estimate_s=60.0)
    assert time_left_s(planned) == 240 and time_left_s(planned, 2) == 120
    planned[0] = ended(planned[0], seconds=10.0)
    assert time_left_s(planned) == 30


CALLS = st.tuples(st.integers(0, 5), st.sampled_from(["go", "at", "end"]), st.sampled_from(STATES))


@given(st.lists(CALLS, max_size=30))
@settings(max_examples=50)
def test_whatever_is_told_in_whatever_order_every_run_is_counted_once(told):
    plain = Plain(io.StringIO())
    six = runs(6)
    plain.started("/out", six)
    for number, what, state in told:
        if what == "go":
            plain.run_started(number, six[number])
        elif what == "at":
            plain.tick(number, 1, 3, 2.0)
        else:
            plain.run_ended(number, ended(six[number], state))
        assert sum(plain.counts().values()) == 6 and plain.summary()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (89, "89 s"), (91, "2 min"), (5300, "88 min"), (11400, "3 h 10 min")],
)
def test_a_time_is_said_as_roughly_as_it_is_known(seconds, words):
    assert short_time(seconds) == words


def test_a_program_that_runs_long_is_said_to_run_and_how_much_ram_it_uses(tmp_path, monkeypatch):
    said = io.StringIO()  # capsys may lose a line that a thread writes while it is read
    monkeypatch.setattr(sys, "stderr", said)
    record = tmp_path / "run.record"
    environ = {**os.environ, "CASEBOOK_REHEARSE": str(record)}
    waits = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waits, env=environ, stdin=subprocess.PIPE) as program:
        with says_it_runs(record, quiet=False, first_s=0.2):
            while not re.search(r"still running: .*[1-9][.0-9]* [KMG]iB of RAM", said.getvalue()):
                time.sleep(0.05)
            program.communicate(b"\n")
            while "the program has ended; its recording is being read" not in said.getvalue():
                time.sleep(0.05)
    assert " 0 B" not in said.getvalue()
    said.truncate(0)
    with says_it_runs(record, quiet=True, first_s=0.0):
        assert not said.getvalue()
