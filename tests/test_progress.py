"""Progress of several runs side by side: live and in lines, on a terminal that goes away, into a log, with the time left."""

import io
import os
import pty
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.batch.batch import Live, Plain, for_terminal, into_file
from helpers.batch.record import short_time, time_left_s
from helpers.batch.shapes import STATES, Run

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


@pytest.mark.parametrize("kind", [Plain, Live])
def test_each_run_is_named_with_how_it_ended_and_all_are_summed_up(tmp_path, kind):
    out = io.StringIO()
    play(kind(out), runs(4), tmp_path)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"4 runs into {tmp_path}"
    died = "run 2 of 4: 1.ipynb on apu: died; killed by SIGKILL (10.0 s)"
    assert any(line.startswith(died) for line in lines)
    assert "run 4 of 4: 1.ipynb on apu: skipped; interrupted (SIGINT) (0.0 s)" in lines
    assert lines[-1] == "2 answered, 1 died, 1 skipped"
    cells = [line for line in lines if line.endswith("cell 3 of 9, 4 s")]
    assert cells == ["run 3 of 4: cell 3 of 9, 4 s"] * (kind is Plain)


def test_lines_come_after_2_4_8_seconds_and_at_most_every_30():
    out = io.StringIO()
    told = Plain(out)
    told.started("/out", runs(2))
    told.run_started(0, runs(2)[0])
    for seconds in range(0, 130):
        told.tick(0, 0, 0, float(seconds))
    ticks = re.findall(r"starting, (\d+) s", out.getvalue())
    assert ticks == ["2", "4", "8", "16", "32", "62", "92", "122"]
    assert isinstance(for_terminal(out), Plain) and not isinstance(for_terminal(out), Live)


def test_the_live_table_shows_every_run_that_goes_on_with_counts_time_and_memory(tmp_path):
    out = io.StringIO()
    told = Live(out)
    planned = runs(40)
    told.console.width = 100
    told.started(tmp_path, planned)
    for number in range(20):
        told.run_started(number, planned[number])
        told.tick(number, 2, 12, 14.0)
    told.run_ended(0, ended(planned[0], seconds=14.0))
    told.run_ended(1, ended(planned[1], seconds=14.0))
    with told.console.capture() as shown:
        told.console.print(told.table())
    text = shown.get()
    for words in ("1.ipynb on apu", "cell 2 of 12", "14 s", "and 2 more"):
        assert words in text
    assert "18 running, 20 planned, 2 answered; about 16 s left" in text
    told.ended()


@pytest.mark.parametrize("kind", [Live, Plain])
def test_a_terminal_that_goes_away_in_the_middle_ends_nothing(tmp_path, kind):
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")
    assert isinstance(for_terminal(stream), Live)
    told = kind(stream)
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


def test_a_log_takes_over_in_the_middle_with_the_time_of_day_and_keeps_what_was_there(tmp_path):
    planned = runs(3)
    planned[0] = ended(planned[0])
    (tmp_path / "batch.log").write_text("before\n")
    told = into_file(tmp_path / "batch.log")
    told.started(tmp_path, planned)
    told.tick(1, 1, 5, 130.0)  # of a run that began before the log
    told.run_ended(1, ended(planned[1], "died"))
    lines = (tmp_path / "batch.log").read_text().splitlines()
    begun = f" 3 runs into {tmp_path}, 1 of them ended before"
    assert lines[0] == "before" and lines[1].endswith(begun)
    assert lines[2].endswith("run 2 of 3: cell 1 of 5, 130 s")
    assert "died (10.0 s); about 10 s left" in lines[3]
    assert all(re.match(r"\d\d:\d\d:\d\dZ ", line) for line in lines[1:])


def test_a_full_disk_under_the_log_ends_nothing(tmp_path):
    with open("/dev/full", "w", buffering=1) as full:
        play(Plain(full), runs(4), tmp_path)
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_the_time_left_comes_from_runs_like_it_then_from_the_plan_then_from_any_run():
    assert time_left_s(runs(4)) is None
    planned = runs(4, estimate_s=60.0)
    assert time_left_s(planned) == 240
    planned[0] = ended(planned[0], seconds=10.0)
    assert time_left_s(planned) == 10 + 60 + 60  # the third has the notebook of the first
    assert time_left_s(planned, {2: 4.0}) == 6 + 120
    # over its time: nothing is left, never less; two side by side
    assert time_left_s(planned, {2: 4.0, 1: 100.0}) == (6 + 0 + 60) / 2
    assert time_left_s([ended(runs(1)[0], seconds=8.0), runs(2)[1]]) == 8


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
