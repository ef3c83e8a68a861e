"""What a failure means for its worker, a study that loses and repeats nothing, and the command that runs one."""

import json
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from functools import partial

import kill_study
import pytest

from helpers import cli
from helpers.ground.child import process_of
from helpers.trials import tuning
from helpers.trials.tuning import StudySettings, command, outcome_of

optuna = pytest.importorskip("optuna")

X = {"x": optuna.distributions.FloatDistribution(0, 1)}
OUT_OF_MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
OBJECTIVE = """
import os, time
def plain(p):
    print("noise on stdout")
    with open(os.environ["DONE"], "a") as file:
        file.write(repr(p["x"]) + chr(10))
    return (p["x"] - 0.3) ** 2
def fails(p):
    first = not os.path.exists(os.environ["DONE"])
    open(os.environ["DONE"], "a").close()
    if first:
        os.kill(os.getpid(), 9)
    if p["k"] == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB")
    if p["k"] == "assert":
        raise RuntimeError("CUDA error: device-side assert triggered")
    if p["k"] == "error":
        raise ValueError("wrong")
    return 1
def dies(p):
    os._exit(3)
def nan(p):
    return float("nan")
def daemon(p):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for end in (0, 1, 2):
                os.close(end)
            time.sleep(60)
        os._exit(0)
    os.wait()
    return p["x"]
def slow(p):
    time.sleep(30 if p["x"] > 0.5 else 0)
    return p["x"]
"""


@pytest.fixture
def storage(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    return tmp_path / "s.db"


@pytest.fixture
def tuned(storage, tmp_path, monkeypatch):
    """Runs a study of an objective of OBJECTIVE; gives what came of it and the lines that it said."""

    def run(function, trials, space=X, sampler=None, **settings):
        lines = []
        if sampler:
            monkeypatch.setattr(tuning, "sampler", sampler)
        monkeypatch.setenv("DONE", str(tmp_path / "done"))
        of = partial(command, sys.executable, f"{tmp_path / 'objective.py'}:{function}")
        study = tuning.tune(storage, of, space, trials, StudySettings(**settings), lines.append)
        return study, lines

    return run


def finished_in(storage):
    """Number and value of every complete trial; {} where there is no storage yet."""
    if not storage.exists():
        return {}
    complete = "SELECT t.number, v.value FROM trials t JOIN trial_values v USING (trial_id) WHERE t.state = 'COMPLETE'"
    with closing(sqlite3.connect(storage)) as database:
        return dict(database.execute(complete))


def states_in(storage):
    """How many trials of the study are in each state."""
    with closing(sqlite3.connect(storage)) as database:
        states = database.execute("SELECT state FROM trials").fetchall()
    return Counter(state for (state,) in states)


@pytest.mark.parametrize(
    ("message", "context", "outcome"),
    [
        (None, "alive", "ok"),
        (None, "dead", "device_assert"),
        (OUT_OF_MEMORY, "alive", "oom"),
        (OUT_OF_MEMORY, None, "oom"),
        # The words say memory, the context is dead: an assert came first.
        (OUT_OF_MEMORY, "dead", "device_assert"),
        ("CUDA error: device-side assert triggered", None, "device_assert"),
        (f"HIP error: device-side assert triggered. {OUT_OF_MEMORY}", None, "device_assert"),
        # A text that speaks of an assert does not cost a living context.
        ("ValueError: device-side assert triggered, says the log", "alive", "error"),
        ("ValueError: wrong", None, "error"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "none", "host_oom"),
    ],
)
def test_an_assert_is_not_taken_for_memory_nor_memory_for_an_assert(message, context, outcome):
    told = {"message": message, "context": context} if message else {"value": 1, "context": context}
    assert outcome_of(told) == outcome


@pytest.mark.filterwarnings("ignore:PartialFixedSampler is experimental")
def test_each_failure_is_told_as_what_it_is_and_a_killed_trial_is_tried_again(tuned, storage):
    kinds = ["fine", "oom", "assert", "error"]
    samplers = optuna.samplers

    def sampler(seed):
        return samplers.PartialFixedSampler({"k": kinds[seed]}, samplers.RandomSampler())

    space = {"k": optuna.distributions.CategoricalDistribution(kinds)}
    study, lines = tuned("fails", 4, space, sampler=sampler)
    outcomes = {row["params"]["k"]: row["outcome"] for row in study.results}
    assert outcomes == {"fine": "ok", "oom": "oom", "assert": "device_assert", "error": "error"}
    assert lines == ["trial 0: its process was ended by SIGKILL"]
    assert states_in(storage) == {"COMPLETE": 1, "FAIL": 3}


def test_a_finished_study_is_not_run_again(tuned, storage, tmp_path):
    first, _ = tuned("plain", 5, parallel=2)
    assert [row["number"] for row in first.results] == list(range(5))
    again, _ = tuned("plain", 5, parallel=2)
    assert again.results == first.results
    assert len((tmp_path / "done").read_text().splitlines()) == 5
    assert finished_in(storage) == {row["number"]: row["value"] for row in first.results}
    assert all(row["peak_bytes"] for row in first.results)


def test_a_trial_that_always_dies_is_crashed_after_three_tries_and_the_next_goes_on(tuned, storage):
    study, lines = tuned("dies", 2)
    assert [row["outcome"] for row in study.results] == ["crashed"] * 2 and study.best is None
    assert len(lines) == 6 and states_in(storage) == {"FAIL": 2}


def test_a_trial_that_passes_its_time_is_stopped_and_said_and_the_others_go_on(tuned):
    def sampler(seed):
        return optuna.samplers.RandomSampler(seed=seed)

    study, lines = tuned("slow", 4, parallel=2, limit_s=2, sampler=sampler)
    late = [row["params"]["x"] > 0.5 for row in study.results]
    assert [row["outcome"] == "timed_out" for row in study.results] == late
    assert len(late) == 4 and len(lines) == sum(late) > 0


def test_an_objective_that_gives_nan_has_failed_as_the_study_says(tuned, storage):
    study, _ = tuned("nan", 2)
    assert [row["outcome"] for row in study.results] == ["error", "error"]
    assert "the objective gave nan" in study.results[0]["message"] and study.best is None
    assert states_in(storage) == Counter({"FAIL": 2})
    assert outcome_of({"value": float("nan")}) == "error"


def test_a_daemon_of_an_objective_is_ended_and_said(tuned):
    study, lines = tuned("daemon", 2)
    assert [row["outcome"] for row in study.results] == ["ok", "ok"]
    assert len(lines) == 2
    for number, line in enumerate(lines):
        assert line.startswith(f"trial {number}: left behind and ended here: python")
        assert not process_of(int(line.rpartition("(")[2].rstrip(")"))).running


def test_the_command_runs_a_study_and_goes_on_with_it(tmp_path, capsys):
    objective = (
        "def loss(p):\n    print('noise')\n    return p['x'] ** 2 + p['n'] + (p['k'] == 'bad')\n"
    )
    (tmp_path / "mine.py").write_text(objective)
    given = ["tune", f"{tmp_path / 'mine.py'}:loss", "--study", str(tmp_path / "s.db")]
    for parameter in ("x=-1.0..1.0", "n=1..3", "k=good,bad"):
        given += ["--param", parameter]
    given += ["--torch-python", sys.executable]
    assert cli.main([*given, "--trials", "2", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.main([*given, "--trials", "4", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert [row["outcome"] for row in second["results"]] == ["ok"] * 4
    assert second["results"][:2] == first["results"]
    params = [row["params"] for row in second["results"]]
    assert all(isinstance(one["n"], int) and one["k"] in ("good", "bad") for one in params)
    assert second["best"] == min(row["value"] for row in second["results"])
    assert cli.main([*given, "--trials", "4"]) == 0
    assert f"best {second['best']}" in capsys.readouterr().out
    for wrong in (["tune", "nowhere.py:f", "--study", "t.db"], [*given, "--param", "x"]):
        assert cli.main(wrong) == 2 and "expected" in capsys.readouterr().err


def test_what_is_no_storage_is_refused(storage):
    storage.write_text("not a database, and long enough to be looked at as one " * 20)
    with pytest.raises(ValueError, match="Optuna storage"):
        tuning.tune(storage, lambda params: ["true"], {}, 1)


# Studies that are killed.


@pytest.mark.slow
def test_a_study_killed_before_any_write_loses_and_repeats_nothing():
    found = kill_study.failpoint_kills(30)
    assert found["kills"] >= 30 and found["boundaries_killed_at"] == 30 < found["boundaries"]
    assert (found["identical"], found["lost"], found["repeated"]) == (30, 0, 0)
    assert {"storage pwrite64", "storage unlink", "os rename"} <= set(found["of"])
