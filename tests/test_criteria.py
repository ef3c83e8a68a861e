"""Counts of a log and an Optuna storage, growth by its interval, and the table of criteria."""

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from helpers.load.criteria import asked, criteria, with_runs
from helpers.load.log_counts import BLOCK_BYTES, count_log
from helpers.load.study_counts import growth, read_study
from helpers.load.training import PathResult
from helpers.tell.criteria import criteria_table

CRASHES, SAVED = "it ends without a crash", "the model's files are saved and load again"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU 0 has a total capacity of 15.98 GiB of which "
    "12.00 MiB is free. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
    "unallocated.\n"
)
ASSERT = "RuntimeError: CUDA error: device-side assert triggered\n"
THREAD = "Loss.cu:250: kernel: block: [0,0,0], thread: [{},0,0] Assertion `t < n_classes` failed.\n"


def log_of(tmp_path, text):
    path = tmp_path / "run.log"
    path.write_text(text)
    return path


def storage_of(tmp_path, trials, studies=("one",)):
    """A storage with the tables that are read; trials are (state, {attribute: JSON text})."""
    path = tmp_path / "study.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE studies (study_id INTEGER PRIMARY KEY, study_name TEXT)")
        database.execute(
            "CREATE TABLE trials (trial_id INTEGER PRIMARY KEY, number INTEGER, study_id INTEGER, state TEXT)"
        )
        database.execute(
            "CREATE TABLE trial_user_attributes (trial_id INTEGER, key TEXT, value_json TEXT)"
        )
        database.executemany(
            "INSERT INTO studies (study_name) VALUES (?)", [(name,) for name in studies]
        )
        for number, (state, attributes) in enumerate(trials):
            database.execute("INSERT INTO trials VALUES (?, ?, 1, ?)", (number + 1, number, state))
            database.executemany(
                "INSERT INTO trial_user_attributes VALUES (?, ?, ?)",
                [(number + 1, key, value) for key, value in attributes.items()],
            )
    return path


def states(found):
    return {row.criterion: row.state for row in found.rows}


def test_every_repeat_of_a_message_counts(tmp_path):
    text = (
        "".join(OOM.format(size % 7) + f"step {size}\n" for size in range(500))
        + "except torch.OutOfMemoryError:\n"
    )
    assert count_log(log_of(tmp_path, text)).oom == 500


def test_a_message_wrapped_over_lines_counts_once(tmp_path):
    text = OOM.format(16).replace("MiB. ", "MiB.\n").replace("free. ", "free.\n")
    assert count_log(log_of(tmp_path, "start\n" + text + "end\n" + text)).oom == 2


@pytest.mark.parametrize("shift", [0, 1, 40, 150, 299])
def test_a_message_across_two_blocks_counts_once(tmp_path, shift):
    line = "x" * 99 + "\n"
    text = line * (BLOCK_BYTES // 100 - 2) + "y" * shift + "\n" + OOM.format(16) + line
    assert count_log(log_of(tmp_path, text)).oom == 1


def test_assert_errors_count_and_the_kernels_own_lines_do_not_count_twice(tmp_path):
    burst = "".join(THREAD.format(thread) for thread in range(64))
    text = (
        burst
        + ASSERT
        + "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        + "ok\n" * 9000
        + burst
    )
    assert count_log(log_of(tmp_path, text)).asserts == 2


def test_restarts_count_and_what_denies_one_does_not(tmp_path):
    text = (
        "Restarting worker in 2 s\nsupervisor: restart attempt 2\nwill not restart\nmax restarts: 5\n"
        "all restart attempts exhausted\nWorker 3 recycled after 50 trials\nEpoch 2/10\nEpoch 3/10\n"
    )
    counts = count_log(log_of(tmp_path, text))
    assert (counts.restarts, counts.exhausted, counts.recycled, counts.epoch, counts.epochs) == (
        2,
        1,
        1,
        3,
        10,
    )


def test_a_log_without_lines_is_read_in_pieces(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(random.Random(1).randbytes(9 << 20).replace(b"\n", b" "))
    assert count_log(path).bytes == 9 << 20


def test_a_storage_is_counted_and_left_as_it_is(tmp_path):
    path = storage_of(
        tmp_path,
        [
            ("COMPLETE", {"peak_bytes": "5"}),
            ("FAIL", {"outcome": '"oom"'}),
            ("RUNNING", {}),
            ("PRUNED", {}),
        ],
    )
    path.chmod(0o444)
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir()))
    found = read_study(f"sqlite:///{path}")
    assert (found.complete, found.failed, found.running, found.pruned) == (1, 1, 1, 1)
    assert (found.memory, found.outcomes) == (((0, 5),), ("oom",))
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == before


def test_a_storage_whose_writer_holds_it_is_read_as_of_its_last_commit(tmp_path):
    path = storage_of(tmp_path, [("COMPLETE", {})])
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE trials SET state = 'FAIL'")
        assert read_study(str(path)).complete == 1


def test_a_storage_whose_writer_was_killed_in_a_commit_is_read_as_before_it(tmp_path):
    path = storage_of(tmp_path, [("COMPLETE", {})] * 50)
    dying = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in ("PRAGMA cache_size = 1", "BEGIN", "UPDATE trials SET state = 'FAIL'",
             "INSERT INTO trial_user_attributes SELECT trial_id, 'k', hex(randomblob(4000)) FROM trials"):
    database.execute(line)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", dying, str(path)], check=True)
    journal = Path(f"{path}-journal")
    before = (path.read_bytes(), journal.read_bytes())
    found = read_study(str(path))
    assert (found.complete, found.failed) == (50, 0)
    assert (path.read_bytes(), journal.read_bytes()) == before


def test_what_is_no_storage_is_one_line(tmp_path):
    several = storage_of(tmp_path, [], studies=("one", "two"))
    text = log_of(tmp_path, "no database, only text that is long enough to be looked at\n" * 20)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE a (b)")
    for url in (
        tmp_path / "absent.db",
        several,
        text,
        tmp_path / "other.db",
        "mysql://host/db",
        f"{several}#three",
    ):
        with pytest.raises(ValueError, match="expected|give") as error:
            read_study(str(url))
        assert "\n" not in str(error.value)
    assert not (tmp_path / "absent.db").exists()
    assert read_study(f"{several}#one").complete == 0
    with pytest.raises(ValueError, match="cannot be read"):
        count_log(tmp_path / "absent.log")


def test_growth_needs_its_interval_above_zero_and_two_percent():
    rng = random.Random(3)
    noisy = [(at, 1e9 + rng.gauss(0, 2e6)) for at in range(200)]
    assert growth(noisy).says == "stable"
    grown = growth([(at, size + at * 1e6) for at, size in noisy])
    assert grown.says == "grows" and grown.low < 1e6 + 5e3 < grown.high + 1e4
    assert (
        growth([(at, size + at * 5e4) for at, size in noisy]).says == "stable"
    )  # above 0, and 1 % in all
    assert growth([(at, 1e9 + rng.gauss(0, 3e8)) for at in range(9)]).says == "unclear"
    assert growth(noisy[:5]) is None


def test_the_table_says_met_not_met_or_why_not_measured(tmp_path):
    log = log_of(tmp_path, OOM.format(2) + "Epoch 3/3\n")
    trials = [("COMPLETE", {"peak_bytes": str(10**9 + at * 10**7)}) for at in range(60)]
    found = states(criteria(log, str(storage_of(tmp_path, trials))))
    assert found["no out of memory of the GPU"] == "not met"
    assert found["training goes through every epoch"] == "met"
    assert found["memory of each GPU stays low"] == "met"
    assert found["memory does not grow from trial to trial"] == "not met"
    assert found["the GPU's memory is reset every 50 trials"] == "not met"
    asserts = found["500 trials in a row without a device-side assert"]
    assert asserts.startswith("not measured because 60 of 500") and len(found) == 15
    assert all(
        state.startswith("not measured because") for state in states(criteria(None, None)).values()
    )
    assert all(
        state.startswith("not measured because")
        for state in states(criteria(log_of(tmp_path, ""), None)).values()
    )


def test_every_criterion_has_its_measure_or_says_why_it_never_can():
    for row in asked():
        assert {"case", "criterion", "expected"} <= set(row) and ("measure" in row) != (
            "never" in row
        )
        assert set(row.get("needs", [])) <= {"log", "study"} and row.get("runs", "ended") in (
            "ended",
            "resumed",
        )


def test_asserts_are_told_by_the_outcomes_of_the_trials_where_they_have_them(tmp_path):
    ok, bad = ("COMPLETE", {"outcome": '"ok"'}), ("FAIL", {"outcome": '"device_assert"'})
    name = "500 trials in a row without a device-side assert"
    assert states(criteria(None, str(storage_of(tmp_path, [bad, *[ok] * 500]))))[name] == "met"
    (tmp_path / "b").mkdir()
    assert (
        states(criteria(None, str(storage_of(tmp_path / "b", [*[ok] * 300, bad, *[ok] * 300]))))[
            name
        ]
        == "not met"
    )


def test_what_the_training_paths_show_fills_only_rows_that_no_file_measured(tmp_path):
    def path(name, state="ran", equal="bitwise"):
        return PathResult(name, state, "", 1.0, 6, None, None, 0.5, equal, "")

    results = [
        path("single device", equal="not applicable"),
        path("resume after a kill"),
        path("DataParallel", "not_run"),
    ]
    found = {row.criterion: row for row in with_runs(criteria(None, None).rows, results)}
    assert (found[CRASHES].state, found[CRASHES].seen) == (
        "met",
        "0 of 2 training paths failed here",
    )
    assert found[SAVED].state == "met" and "resume after a kill" in found[SAVED].seen
    assert sum(row.state == "met" for row in found.values()) == 2
    worse = with_runs(
        criteria(None, None).rows, [path("DDP", "failed"), path("resume after a kill", equal="no")]
    )
    assert {row.criterion for row in worse if row.state == "not met"} == {CRASHES, SAVED}
    logged = criteria(log_of(tmp_path, "Traceback (most recent call last):\nValueError: x\n"), None)
    assert (
        next(row for row in with_runs(logged.rows, results) if row.criterion == CRASHES).state
        == "not met"
    )
    assert with_runs(criteria(None, None).rows, []) == criteria(None, None).rows
    text = criteria_table(results=results)
    assert "not measured because no log was given" in text and "0 of 2 training paths" in text
