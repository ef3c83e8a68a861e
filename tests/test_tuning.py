"""Parallelism by measured peaks, what a failure means for its worker, and a study that loses and repeats nothing."""

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
from pathlib import Path

import pytest

from helpers.load.study_counts import read_study
from helpers.load.tuning_plan import outcome_of, plan_parallel

ROOT = Path(__file__).resolve().parents[1]
GB = 10**9
WORKER = "from helpers.torchside.tuning_trial import main; main()"
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
OBJECTIVE = '''
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
def together(p):
    from threading import current_thread
    time.sleep(0.2)
    with open(os.environ["DONE"], "a") as file:
        file.write(f"{os.getpid()} {current_thread().name}" + chr(10))
    return (p["x"] - 0.3) ** 2
def one_asserts(p):
    time.sleep(0.1)
    if p["x"] > 0.9:
        raise RuntimeError("CUDA error: device-side assert triggered")
    if 0.8 < p["x"]:
        os.kill(os.getpid(), 9)
    time.sleep(0.3)
    return p["x"]
def slow(p):
    time.sleep(30 if p["x"] > 0.9 else 0.3)
    return p["x"]
'''
SUPERVISOR = '''
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
print(json.dumps([done.best, [[one.slot, one.params["x"], one.value] for one in done.results]]))
'''


def made(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    return lambda function: [sys.executable, "-c", WORKER, f"{tmp_path / 'objective.py'}:{function}"]


def records(storage):
    return [json.loads(path.read_text()) for path in sorted(Path(f"{storage}.records").glob("slot-*.json"))]


def test_four_trials_of_6_gb_do_not_fit_on_24_gb_and_three_do():
    for by in ("threads", "processes"):
        plan = plan_parallel(24 * GB, 6 * GB, GB // 2, by)
        assert plan.parallel == 3 and plan.left_bytes >= plan.margin_bytes and plan.next_bytes > 24 * GB
    assert plan_parallel(24 * GB, 6 * GB, GB // 2, "threads").needed_bytes == 18 * GB + GB // 2
    assert plan_parallel(24 * GB, 6 * GB, GB // 2).needed_bytes == 18 * GB + 3 * GB // 2


def test_processes_pay_a_context_each_and_the_margin_counts():
    assert plan_parallel(10 * GB, 2 * GB, GB, "threads", 0).parallel == 4
    assert plan_parallel(10 * GB, 2 * GB, GB, "processes", 0).parallel == 3
    assert plan_parallel(10 * GB, 2 * GB, GB, "processes", 0.2).parallel == 2
    assert plan_parallel(GB, 2 * GB, 0).parallel == 0
    for bad in ((0, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(ValueError, match="expected"):
            plan_parallel(*bad)


@pytest.mark.parametrize(("told", "outcome"), [
    ({"value": 1.0, "context": "alive"}, "ok"),
    ({"value": 1.0, "context": "dead"}, "device_assert"),
    ({"message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "context": "alive"}, "oom"),
    ({"message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}, "oom"),
    # The words say memory, the context is dead: an assert came first.
    ({"message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "context": "dead"}, "device_assert"),
    ({"message": "CUDA error: device-side assert triggered"}, "device_assert"),
    ({"message": "HIP error: device-side assert triggered. HIP out of memory. Tried to allocate 2.00 MiB"}, "device_assert"),
    # A text that speaks of an assert does not cost a living context.
    ({"message": "ValueError: device-side assert triggered, says the log", "context": "alive"}, "error"),
    ({"message": "ValueError: wrong"}, "error"),
])
def test_an_assert_is_not_taken_for_memory_nor_memory_for_an_assert(told, outcome):
    assert outcome_of(told) == outcome


@pytest.mark.filterwarnings("ignore:PartialFixedSampler is experimental")
def test_each_failure_is_told_as_what_it_is_and_costs_only_the_worker_it_must(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    argv, storage, lines = made(tmp_path)("fails"), tmp_path / "s.db", []
    kinds, by_slot = ["fine", "oom", "assert", "error"], optuna.samplers.PartialFixedSampler
    space, env = {"k": optuna.distributions.CategoricalDistribution(kinds)}, {**ENV, "DONE": str(tmp_path / "done")}
    done = tune(storage, argv, space, 4, Settings(backoff_s=0.01), env=env, on_line=lines.append,
                sampler=lambda seed: by_slot({"k": kinds[seed]}, optuna.samplers.RandomSampler()))
    assert sorted((one.params["k"], one.outcome) for one in done.results) == [
        ("assert", "device_assert"), ("error", "error"), ("fine", "ok"), ("oom", "oom")]
    assert (done.restarts, done.gave_up) == (2, "")  # the worker that was killed in its first trial, and the poisoned one
    assert any("SIGKILL" in line and "tried again" in line for line in lines)
    found = read_study(str(storage))
    assert (found.complete, found.failed, found.running) == (1, 3, 0)
    assert sorted(found.outcomes) == ["device_assert", "error", "ok", "oom"]
    assert sorted(found.outcomes) == sorted(one["outcome"] for one in records(storage))


def test_a_worker_is_recycled_by_count_and_a_finished_study_is_not_run_again(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    argv, storage, done_file = made(tmp_path)("plain"), tmp_path / "s.db", tmp_path / "done"
    space, env = {"x": optuna.distributions.FloatDistribution(0, 1)}, {**ENV, "DONE": str(done_file)}
    first = tune(storage, argv, space, 5, Settings(parallel=2, recycle_after=1), env=env)
    assert first.recycled == 5 and first.restarts == 0 and [one.slot for one in first.results] == list(range(5))
    again = tune(storage, argv, space, 5, Settings(parallel=2), env=env)
    assert again.results == first.results and len(done_file.read_text().splitlines()) == 5
    assert {one["number"]: one["value"] for one in records(storage)} == {one.number: one.value for one in first.results}
    assert all(one.peak_bytes and one.left_bytes for one in first.results)


def test_a_worker_that_keeps_memory_is_recycled_once_it_has_grown(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    lines, space = [], {"x": optuna.distributions.FloatDistribution(0, 1)}
    done = tune(tmp_path / "s.db", made(tmp_path)("leaks"), space, 6, Settings(growth_bytes=50 << 20), env=ENV,
                on_line=lines.append)
    assert done.recycled == 2 and done.restarts == 0
    assert all("after 3 trials" in line and "left after cleanup" in line for line in lines)


def thrice(tmp_path, function, trials, **settings):
    """One study by processes, one by threads, one trial after the other: its results, and what each objective wrote."""
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    found, space = [], {"x": optuna.distributions.FloatDistribution(0, 1)}
    for parallel, by in ((3, "processes"), (3, "threads"), (1, "processes")):
        folder = tmp_path / f"{parallel}-{by}"
        folder.mkdir()
        done = tune(folder / "s.db", made(folder)(function), space, trials, Settings(parallel, by, backoff_s=0.01, **settings),
                    sampler=lambda seed: optuna.samplers.RandomSampler(seed=seed), env={**ENV, "DONE": str(folder / "done")})
        assert read_study(str(folder / "s.db")).running == 0
        found.append((done, [(one.slot, one.params["x"], one.value, one.outcome) for one in done.results],
                      (folder / "done").read_text().split("\n") if (folder / "done").exists() else []))
    return found


def test_threads_of_one_process_finish_the_same_trials_as_processes(tmp_path):
    (processes, of_processes, wrote), (threads, of_threads, wrote_threads), (_, alone, _) = thrice(tmp_path, "together", 7)
    assert of_threads == of_processes == alone and [slot for slot, *_ in alone] == list(range(7))
    assert threads.restarts == processes.restarts == 0 and threads.best == processes.best

    def pids(lines):
        return {line.split()[0] for line in lines if line}

    assert len(pids(wrote_threads)) == 1 and len(pids(wrote)) == 3
    assert len({line.split()[1] for line in wrote_threads if line}) == 3
    assert all(one.peak_bytes for one in threads.results)
    # While others run, what is left is theirs too: only the last to end can tell.
    assert 1 <= sum(one.left_bytes is not None for one in threads.results) < 7


@pytest.mark.slow
def test_threads_are_recycled_with_their_process_once_none_is_in_hand(tmp_path):
    _, (done, rows, wrote), _ = thrice(tmp_path, "together", 7, recycle_after=3)
    assert done.recycled == 2 and done.restarts == 0 and len(rows) == 7
    assert len({line.split()[0] for line in wrote if line}) in (2, 3)  # those in hand when it is due end there too


@pytest.mark.slow
def test_an_assert_or_a_death_among_threads_costs_only_the_trial_that_did_it(tmp_path):
    (_, of_processes, _), (threads, of_threads, _), (_, alone, _) = thrice(tmp_path, "one_asserts", 7, restarts=50)
    assert of_threads == of_processes == alone and threads.restarts > 0
    expected = ["device_assert" if x > 0.9 else "crashed" if x > 0.8 else "ok" for _, x, _, _ in alone]
    assert [outcome for *_, outcome in alone] == expected and {"device_assert", "crashed", "ok"} == set(expected)


@pytest.mark.slow
def test_a_thread_that_never_ends_is_stopped_with_its_process_and_the_others_are_tried_again(tmp_path):
    _, (threads, of_threads, _), (_, alone, _) = thrice(tmp_path, "slow", 5, limit_s=1.5)
    assert of_threads == alone and "timed_out" in {outcome for *_, outcome in alone}
    assert threads.restarts == [outcome for *_, outcome in alone].count("timed_out")


def test_a_study_is_run_by_processes_or_threads_and_nothing_else(tmp_path):
    from helpers.load.tuning import Settings, tune

    with pytest.raises(ValueError, match="expected processes or threads"):
        tune(tmp_path / "s.db", ["true"], {}, 1, Settings(by="magic"))


def test_a_worker_that_always_dies_makes_the_supervisor_give_up_with_a_growing_wait(tmp_path):
    optuna = pytest.importorskip("optuna")
    from helpers.load.tuning import Settings, tune

    lines = []
    done = tune(tmp_path / "s.db", made(tmp_path)("dies"), {"x": optuna.distributions.FloatDistribution(0, 1)}, 9,
                Settings(restarts=3, backoff_s=0.01), env=ENV, on_line=lines.append)
    assert done.gave_up and done.restarts == 4 and done.best is None
    assert [line.split(" in ")[1].split(" s:")[0] for line in lines[:3]] == ["0.0", "0.0", "0.0"]
    assert read_study(str(tmp_path / "s.db")).running == 0


def test_what_is_no_storage_is_refused(tmp_path):
    pytest.importorskip("optuna")
    from helpers.load.tuning import tune

    (tmp_path / "s.db").write_text("not a database, and long enough to be looked at as one " * 20)
    with pytest.raises(ValueError, match="Optuna storage"):
        tune(tmp_path / "s.db", ["true"], {}, 1)


def lived(folder, kill_after_s=60.0, nap=0.0, commit=0):
    """A supervisor's life: what it printed at its end, or None where it was killed before."""
    env = {**ENV, "DONE": str(folder / "done"), "NAP": str(nap), "KILL_AT_COMMIT": str(commit)}
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(folder), WORKER], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
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
        return dict(database.execute(
            "SELECT t.number, v.value FROM trials t JOIN trial_values v USING (trial_id) WHERE t.state = 'COMPLETE'"))


def check_nothing_lost_or_repeated(folder, ended, undisturbed, kills):
    assert ended == undisturbed  # the same parameters and value in every slot, and so the same best
    assert [slot for slot, _, _ in ended[1]] == list(range(12))
    finished = finished_in(folder / "s.db")
    assert len(finished) == 12 and {one["number"]: one["value"] for one in records(folder / "s.db")} == finished
    evaluated = (folder / "done").read_text().splitlines()
    assert len(set(evaluated)) == 12 and len(evaluated) <= 12 + kills  # each kill redoes at most the one trial in hand
    assert read_study(str(folder / "s.db")).running == 0


@pytest.fixture
def two(tmp_path):
    pytest.importorskip("optuna")
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
        made(tmp_path / name)
    return tmp_path / "plain", tmp_path / "killed"


@pytest.mark.slow
def test_workers_killed_at_random_moments_cost_no_trial(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    from helpers.load import tuning_worker
    from helpers.load.tuning import Settings, tune

    rng, pids, killed, give = random.Random(5), [], [], tuning_worker.Worker.give

    def watched(self, job, limit_s):
        pids.append(self.process.pid)
        give(self, job, limit_s)

    def kill():
        while len(killed) < 5:
            time.sleep(rng.uniform(0.3, 0.6))
            if pids and pids[-1] not in killed:
                killed.append(pids[-1])
                os.kill(pids[-1], signal.SIGKILL)

    monkeypatch.setattr(tuning_worker.Worker, "give", watched)
    storage, thread = tmp_path / "s.db", threading.Thread(target=kill, daemon=True)
    thread.start()
    done = tune(storage, made(tmp_path)("plain"), {"x": optuna.distributions.FloatDistribution(0, 1)}, 20,
                Settings(backoff_s=0.01), env={**ENV, "DONE": str(tmp_path / "done"), "NAP": "0.25"})
    thread.join(20)
    assert len(killed) == 5 and done.restarts in (4, 5) and done.gave_up == ""  # one may have been idle, at its end
    assert [(one.slot, one.number, one.outcome) for one in done.results] == [(slot, slot, "ok") for slot in range(20)]
    assert {one["number"]: one["value"] for one in records(storage)} == finished_in(storage)


@pytest.mark.slow
def test_a_study_killed_before_its_writes_and_with_whole_processes_is_that_of_the_undisturbed_run():
    pytest.importorskip("optuna")
    pytest.importorskip("psutil")
    sys.path.insert(0, str(ROOT / "tests"))
    import kill_study

    found = kill_study.failpoint_kills(30)
    assert found["boundaries"] > 300 and found["kills"] >= 30 and found["boundaries_killed_at"] == 30
    assert (found["identical"], found["lost"], found["repeated"]) == (30, 0, 0)
    assert {"storage pwrite64", "storage unlink", "record sync", "os rename"} <= set(found["of"])
    whole = kill_study.process_kills(4)
    assert whole["kills"] == 4 and (whole["identical"], whole["lost"], whole["repeated"]) == (whole["studies"], 0, 0)


@pytest.mark.slow
def test_a_supervisor_killed_at_random_moments_loses_and_repeats_nothing(two):
    plain, killed = two
    began = time.time()
    undisturbed = lived(plain, nap=0.2)
    start_s = (plain / "s.db.records" / "slot-000000.json").stat().st_mtime - began - 0.2
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
    # No kill falls into a trial's own time here, so each was evaluated once.
    assert len((killed / "done").read_text().splitlines()) == 12
    check_nothing_lost_or_repeated(killed, ended, undisturbed, kills)
