"""What a failure means for its worker, a study that loses and repeats nothing, and the command that runs one."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from helpers.load.study_counts import read_study
from helpers.load.tuning import outcome_of

ROOT = Path(__file__).resolve().parents[1]
WORKER = "from helpers.torchside.tuning_trial import main; main()"
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
OBJECTIVE = """
import os, sys, time
seen = []
def plain(p):
    print("noise on stdout")
    with open(os.environ["DONE"], "a") as file:
        file.write(repr(p["x"]) + chr(10))
    time.sleep(float(os.environ.get("NAP", "0")))
    return (p["x"] - 0.3) ** 2
def fails(p):
    seen.append(1)
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
    return len(seen)
def leaks(p):
    seen.append(bytearray(os.urandom(1)) * (30 << 20))
    return p["x"]
def dies(p):
    os._exit(3)
def slow(p):
    time.sleep(30 if p["x"] > 0.5 else 0)
    return p["x"]
"""
SUPERVISOR = """
import sys, json, os, signal, optuna, sqlalchemy
from pathlib import Path
from helpers.load.tuning import tune, Settings
at, seen = int(os.environ.get("KILL_AT_COMMIT", "0")), []
@sqlalchemy.event.listens_for(sqlalchemy.engine.Engine, "commit")
def committing(connection):
    seen.append(1)
    if len(seen) == at:
        os.kill(os.getpid(), signal.SIGKILL)
folder, python, worker = Path(sys.argv[1]), sys.executable, sys.argv[2]
space = {"x": optuna.distributions.FloatDistribution(0, 1)}
done = tune(folder / "s.db", [python, "-c", worker, str(folder / "objective.py") + ":plain"], space, 12,
            Settings(parallel=1, recycle_after=5, seed=3, limit_s=20))
print(json.dumps([done.best, [[one["slot"], one["params"]["x"], one["value"]] for one in done.results]]))
"""


def made(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    return lambda function: [
        sys.executable,
        "-c",
        WORKER,
        f"{tmp_path / 'objective.py'}:{function}",
    ]


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ({"value": 1.0, "context": "alive"}, "ok"),
        ({"value": 1.0, "context": "dead"}, "device_assert"),
        (
            {
                "message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
                "context": "alive",
            },
            "oom",
        ),
        ({"message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}, "oom"),
        # The words say memory, the context is dead: an assert came first.
        (
            {
                "message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
                "context": "dead",
            },
            "device_assert",
        ),
        ({"message": "CUDA error: device-side assert triggered"}, "device_assert"),
        (
            {
                "message": "HIP error: device-side assert triggered. HIP out of memory. Tried to allocate 2.00 MiB"
            },
            "device_assert",
        ),
        # A text that speaks of an assert does not cost a living context.
        (
            {
                "message": "ValueError: device-side assert triggered, says the log",
                "context": "alive",
            },
            "error",
        ),
        ({"message": "ValueError: wrong"}, "error"),
    ],
)
def test_an_assert_is_not_taken_for_memory_nor_memory_for_an_assert(told, outcome):
    assert outcome_of(told) == outcome


@pytest.mark.filterwarnings("ignore:PartialFixedSampler is experimental")
def test_each_failure_is_told_as_what_it_is_and_costs_only_the_worker_it_must(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    argv, storage, lines = made(tmp_path)("fails"), tmp_path / "s.db", []
    kinds, by_slot = ["fine", "oom", "assert", "error"], optuna.samplers.PartialFixedSampler
    space, env = (
        {"k": optuna.distributions.CategoricalDistribution(kinds)},
        {**ENV, "DONE": str(tmp_path / "done")},
    )
    done = tune(
        storage,
        argv,
        space,
        4,
        Settings(backoff_s=0.01),
        env=env,
        on_line=lines.append,
        sampler=lambda seed: by_slot({"k": kinds[seed]}, optuna.samplers.RandomSampler()),
    )
    assert sorted((one["params"]["k"], one["outcome"]) for one in done.results) == [
        ("assert", "device_assert"),
        ("error", "error"),
        ("fine", "ok"),
        ("oom", "oom"),
    ]
    assert (done.restarts, done.gave_up) == (
        2,
        "",
    )  # the worker that was killed in its first trial, and the poisoned one
    assert any("SIGKILL" in line and "tried again" in line for line in lines)
    found = read_study(str(storage))
    assert (found.complete, found.failed, found.running) == (1, 3, 0)
    assert sorted(found.outcomes) == ["device_assert", "error", "ok", "oom"]


def test_a_worker_is_recycled_by_count_and_a_finished_study_is_not_run_again(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    argv, storage, done_file = made(tmp_path)("plain"), tmp_path / "s.db", tmp_path / "done"
    space, env = (
        {"x": optuna.distributions.FloatDistribution(0, 1)},
        {**ENV, "DONE": str(done_file)},
    )
    first = tune(storage, argv, space, 5, Settings(parallel=2, recycle_after=1), env=env)
    assert (
        first.recycled == 5
        and first.restarts == 0
        and [one["slot"] for one in first.results] == list(range(5))
    )
    again = tune(storage, argv, space, 5, Settings(parallel=2), env=env)
    assert again.results == first.results and len(done_file.read_text().splitlines()) == 5
    assert finished_in(storage) == {one["number"]: one["value"] for one in first.results}
    assert all(one["peak_bytes"] and one["left_bytes"] for one in first.results)


def test_a_worker_that_keeps_memory_is_recycled_once_it_has_grown(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    lines, space = [], {"x": optuna.distributions.FloatDistribution(0, 1)}
    done = tune(
        tmp_path / "s.db",
        made(tmp_path)("leaks"),
        space,
        6,
        Settings(growth_bytes=50 << 20),
        env=ENV,
        on_line=lines.append,
    )
    assert done.recycled == 2 and done.restarts == 0
    assert all("after 3 trials" in line and "left after cleanup" in line for line in lines)


def test_a_worker_that_always_dies_makes_the_supervisor_give_up_with_a_growing_wait(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    lines = []
    done = tune(
        tmp_path / "s.db",
        made(tmp_path)("dies"),
        {"x": optuna.distributions.FloatDistribution(0, 1)},
        9,
        Settings(restarts=3, backoff_s=0.01),
        env=ENV,
        on_line=lines.append,
    )
    assert done.gave_up and done.restarts == 4 and done.best is None
    assert [line.split(" in ")[1].split(" s:")[0] for line in lines[:3]] == ["0.0", "0.0", "0.0"]
    assert read_study(str(tmp_path / "s.db")).running == 0


def test_a_trial_that_passes_its_time_is_stopped_and_said_and_the_others_go_on(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    space = {"x": optuna.distributions.FloatDistribution(0, 1)}
    done = tune(
        tmp_path / "s.db",
        made(tmp_path)("slow"),
        space,
        4,
        Settings(parallel=2, limit_s=2, backoff_s=0.01),
        env=ENV,
        sampler=lambda seed: optuna.samplers.RandomSampler(seed=seed),
    )
    outcomes = {one["outcome"] for one in done.results if one["params"]["x"] > 0.5}
    assert (
        len(done.results) == 4
        and outcomes <= {"timed_out"}
        and done.restarts == sum(one["outcome"] == "timed_out" for one in done.results)
    )
    assert {one["outcome"] for one in done.results if one["params"]["x"] <= 0.5} <= {"ok"}


@pytest.mark.slow
def test_workers_killed_at_random_moments_cost_no_trial(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    from helpers.load import tuning

    rng, pids, killed, wrote, watch = random.Random(5), [], [], tmp_path / "done", tuning.watch
    monkeypatch.setattr(
        tuning, "watch", lambda *given, **more: watch(*given, **more, on_start=pids.append)
    )

    def kill():
        begun = set()  # no trial loses more than one worker, so that none uses up its tries
        while len(killed) < 5:
            time.sleep(rng.uniform(0.0, 0.5))
            now = set(wrote.read_text().split()) if wrote.exists() else set()
            if now > begun and pids[-1] not in killed:
                begun = now
                killed.append(pids[-1])
                os.kill(pids[-1], signal.SIGKILL)

    storage, thread = tmp_path / "s.db", threading.Thread(target=kill, daemon=True)
    thread.start()
    done = tuning.tune(
        storage,
        made(tmp_path)("plain"),
        {"x": optuna.distributions.FloatDistribution(0, 1)},
        20,
        tuning.Settings(backoff_s=0.01, restarts=9),
        env={**ENV, "DONE": str(wrote), "NAP": "0.25"},
    )
    thread.join(20)
    assert (
        len(killed) == 5 and done.restarts in (4, 5) and done.gave_up == ""
    )  # one may have been idle, at its end
    rows = [(one["slot"], one["number"], one["outcome"]) for one in done.results]
    assert rows == [(slot, slot, "ok") for slot in range(20)]
    assert {one["number"]: one["value"] for one in done.results} == finished_in(storage)


def test_the_command_runs_a_study_and_goes_on_with_it(tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")
    from helpers import cli

    (tmp_path / "mine.py").write_text(
        "def loss(p):\n    print('noise')\n    return p['x'] ** 2 + p['n'] + (p['k'] == 'bad')\n"
    )
    given = [
        "tune",
        f"{tmp_path / 'mine.py'}:loss",
        "--study",
        str(tmp_path / "s.db"),
        "--param",
        "x=-1.0..1.0",
        "--param",
        "n=1..3",
        "--param",
        "k=good,bad",
        "--torch-python",
        sys.executable,
        "--json",
    ]
    assert cli.main([*given, "--trials", "2"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.main([*given, "--trials", "4"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert [row["outcome"] for row in second["results"]] == ["ok"] * 4 and second["results"][
        :2
    ] == first["results"]
    assert all(
        isinstance(row["params"]["n"], int) and row["params"]["k"] in ("good", "bad")
        for row in second["results"]
    )
    assert second["best"] == min(row["value"] for row in second["results"])
    assert cli.main(["tune", "nowhere.py:f", "--study", str(tmp_path / "t.db")]) == 2


def test_what_is_no_storage_is_refused(tmp_path):
    pytest.importorskip("optuna")
    from helpers.load.tuning import tune

    (tmp_path / "s.db").write_text("not a database, and long enough to be looked at as one " * 20)
    with pytest.raises(ValueError, match="Optuna storage"):
        tune(tmp_path / "s.db", ["true"], {}, 1)


def lived(folder, kill_after_s=60.0, nap=0.0, commit=0):
    """A supervisor's life: what it printed at its end, or None where it was killed before."""
    env = {**ENV, "DONE": str(folder / "done"), "NAP": str(nap), "KILL_AT_COMMIT": str(commit)}
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), WORKER],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        out, _ = process.communicate(timeout=kill_after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return None
    assert process.returncode in (0, -signal.SIGKILL)
    return json.loads(out) if process.returncode == 0 else None


def finished_in(storage):
    """Number and value of every complete trial; {} where there is no storage yet."""
    if not storage.exists():
        return {}
    with closing(sqlite3.connect(storage)) as database:
        return dict(
            database.execute(
                "SELECT t.number, v.value FROM trials t JOIN trial_values v USING (trial_id) WHERE t.state = 'COMPLETE'"
            )
        )


def check_nothing_lost_or_repeated(folder, ended, undisturbed, kills):
    assert ended == undisturbed  # the same parameters and value in every slot, and so the same best
    assert [slot for slot, _, _ in ended[1]] == list(range(12))
    finished = finished_in(folder / "s.db")
    assert len(finished) == 12
    evaluated = (folder / "done").read_text().splitlines()
    assert (
        len(set(evaluated)) == 12 and len(evaluated) <= 12 + kills
    )  # each kill redoes at most the one trial in hand
    assert read_study(str(folder / "s.db")).running == 0


@pytest.fixture
def two(tmp_path):
    pytest.importorskip("optuna")
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
        made(tmp_path / name)
    return tmp_path / "plain", tmp_path / "killed"


@pytest.mark.slow
def test_a_study_killed_before_its_writes_and_with_whole_processes_is_that_of_the_undisturbed_run():
    pytest.importorskip("optuna")
    pytest.importorskip("psutil")
    sys.path.insert(0, str(ROOT / "tests"))
    import kill_study

    found = kill_study.failpoint_kills(30)
    assert (
        found["boundaries"] > 300 and found["kills"] >= 30 and found["boundaries_killed_at"] == 30
    )
    assert (found["identical"], found["lost"], found["repeated"]) == (30, 0, 0)
    assert {"storage pwrite64", "storage unlink", "os rename"} <= set(found["of"])
    whole = kill_study.process_kills(4)
    assert whole["kills"] == 4 and (whole["identical"], whole["lost"], whole["repeated"]) == (
        whole["studies"],
        0,
        0,
    )


@pytest.mark.slow
def test_a_supervisor_killed_at_random_moments_loses_and_repeats_nothing(two):
    plain, killed = two
    began = datetime.now()
    undisturbed = lived(plain, nap=0.2)
    with closing(sqlite3.connect(plain / "s.db")) as database:
        ((first,),) = database.execute("SELECT MIN(datetime_complete) FROM trials").fetchall()
    start_s = (datetime.fromisoformat(first) - began).total_seconds() - 0.2
    rng, finished, ended = random.Random(11), {}, None
    for _ in range(5):
        # Up to two trials a life, so that five lives never finish the twelve.
        assert lived(killed, rng.uniform(0.3 * start_s, start_s + 2 * 0.2), 0.2) is None
        now = finished_in(killed / "s.db")
        assert finished.items() <= now.items()  # what was finished stays, with its value
        finished = now
    ended = lived(killed)
    assert finished.items() <= finished_in(killed / "s.db").items()
    check_nothing_lost_or_repeated(killed, ended, undisturbed, 5)


@pytest.mark.slow
def test_a_supervisor_killed_before_each_commit_in_turn_loses_and_repeats_nothing(two):
    plain, killed = two
    undisturbed, kills, finished, ended = lived(plain), 0, {}, None
    while ended is None:
        # Its first lives die while they make the storage, the later ones between any two writes of a trial.
        ended = lived(killed, commit=kills + 1)
        kills += ended is None
        now = finished_in(killed / "s.db")
        assert finished.items() <= now.items()
        finished = now
    assert kills >= 12
    check_nothing_lost_or_repeated(killed, ended, undisturbed, kills)
