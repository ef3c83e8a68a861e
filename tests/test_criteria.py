"""Counts of a log and an Optuna storage, growth by its interval, and the table of criteria."""

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from helpers.trials.criteria import (
    ASKED,
    BLOCK_BYTES,
    count_log,
    criteria,
    growth,
    loaded,
    read_study,
    with_runs,
)
from helpers.trials.training import PathResult
from helpers.trials.training_view import criteria_table, study_text

CRASHES = "it ends without a crash"
SAVED = "the model's files are saved and load again"
IN_A_ROW = "500 trials in a row without a device-side assert"
UNKNOWN = "not measured because"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU 0 has a total capacity of 15.98 GiB of which "
    "12.00 MiB is free. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
    "unallocated.\n"
)
WRAPPED = OOM.format(16).replace("MiB. ", "MiB.\n").replace("free. ", "free.\n")
ASSERT = "RuntimeError: CUDA error: device-side assert triggered\n"
ENABLE = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
THREAD = "Loss.cu:250: kernel: block: [0,0,0], thread: [{},0,0] Assertion `t < n_classes` failed.\n"
BURST = "".join(THREAD.format(thread) for thread in range(64))
SUPERVISOR = (
    "Restarting worker in 2 s\nsupervisor: restart attempt 2\nwill not restart\nmax restarts: 5\n"
    "all restart attempts exhausted\nWorker 3 recycled after 50 trials\nEpoch 2/10\nEpoch 3/10\n"
)


@pytest.fixture
def log(tmp_path):
    def path(text):
        (tmp_path / "run.log").write_text(text)
        return tmp_path / "run.log"

    return path


TABLES = """
CREATE TABLE studies (study_id INTEGER PRIMARY KEY, study_name TEXT);
CREATE TABLE trials (trial_id INTEGER PRIMARY KEY, number INTEGER, study_id INTEGER, state TEXT);
CREATE TABLE trial_user_attributes (trial_id INTEGER, key TEXT, value_json TEXT);
"""


@pytest.fixture
def storage(tmp_path):
    """A storage with the tables that are read; trials are (state, {attribute: JSON text})."""

    def path(trials, studies=("one",), name="study.db"):
        with closing(sqlite3.connect(tmp_path / name)) as database, database:
            database.executescript(TABLES)
            write = database.executemany
            write("INSERT INTO studies (study_name) VALUES (?)", [(one,) for one in studies])
            rows = [(at + 1, at, state) for at, (state, _) in enumerate(trials)]
            write("INSERT INTO trials VALUES (?, ?, 1, ?)", rows)
            values = [(at + 1, *one) for at, (_, has) in enumerate(trials) for one in has.items()]
            write("INSERT INTO trial_user_attributes VALUES (?, ?, ?)", values)
        return tmp_path / name

    return path


def states(found):
    return {row.criterion: row.state for row in found.rows}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (
            "".join(OOM.format(at % 7) + f"step {at}\n" for at in range(500))
            + "except torch.OutOfMemoryError:\n",
            {"oom": 500},
        ),
        ("start\n" + WRAPPED + "end\n" + WRAPPED, {"oom": 2}),
        (BURST + ASSERT + ENABLE + "ok\n" * 9000 + BURST, {"asserts": 2}),
        ("OSError: [Errno 12] Cannot allocate memory\n", {"host_memory": 1}),
        (SUPERVISOR, {"restarts": 2, "exhausted": 1, "recycled": 1, "epoch": 3, "epochs": 10}),
        ("Traceback (most recent call last):\nValueError: x\n", {"crashes": 1, "oom": 0}),
        (
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes.\n",
            {"host_memory": 1, "oom": 0, "epoch": None},
        ),
    ],
    ids=["repeats", "wrapped", "asserts", "fork", "supervisor", "crash", "host"],
)
def test_a_log_is_counted(log, text, counts):
    found = count_log(log(text))
    assert {name: getattr(found, name) for name in counts} == counts


@pytest.mark.parametrize("shift", [0, 1, 40, 150, 299])
def test_a_message_across_two_blocks_counts_once(log, shift):
    line = "x" * 99 + "\n"
    text = line * (BLOCK_BYTES // 100 - 2) + "y" * shift + "\n" + OOM.format(16) + line
    assert count_log(log(text)).oom == 1


def test_a_log_without_lines_is_read_in_pieces(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(random.Random(1).randbytes(9 << 20).replace(b"\n", b" "))
    assert count_log(path).bytes == 9 << 20


def test_a_storage_is_counted_and_left_as_it_is(storage, tmp_path):
    ended = [("COMPLETE", {"peak_bytes": "5"}), ("FAIL", {"outcome": '"oom"'})]
    path = storage([*ended, ("RUNNING", {}), ("PRUNED", {})])
    path.chmod(0o444)
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir()))
    found = read_study(f"sqlite:///{path}")
    assert (found.complete, found.failed, found.running, found.pruned) == (1, 1, 1, 1)
    assert (found.memory, found.outcomes, found.finished) == (((0, 5),), ("oom",), 3)
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == before


def test_a_storage_whose_writer_holds_it_is_read_as_of_its_last_commit(storage):
    path = storage([("COMPLETE", {})])
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE trials SET state = 'FAIL'")
        assert read_study(str(path)).complete == 1


DYING = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in ("PRAGMA cache_size = 1", "BEGIN", "UPDATE trials SET state = 'FAIL'",
             "INSERT INTO trial_user_attributes SELECT trial_id, 'k', hex(randomblob(4000)) FROM trials"):
    database.execute(line)
os._exit(0)
"""


def test_a_storage_whose_writer_was_killed_in_a_commit_is_read_as_before_it(storage):
    path = storage([("COMPLETE", {})] * 50)
    subprocess.run([sys.executable, "-c", DYING, str(path)], check=True)
    journal = Path(f"{path}-journal")
    before = (path.read_bytes(), journal.read_bytes())
    found = read_study(str(path))
    assert (found.complete, found.failed) == (50, 0)
    assert (path.read_bytes(), journal.read_bytes()) == before


def test_what_is_no_storage_is_one_line(storage, log, tmp_path):
    several = storage([], studies=("one", "two"))
    text = log("no database, only text that is long enough to be looked at\n" * 20)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE a (b)")
    absent = tmp_path / "absent.db"
    other = tmp_path / "other.db"
    for url in (absent, several, text, other, "mysql://host/db", f"{several}#three"):
        with pytest.raises(ValueError, match="expected|give") as error:
            read_study(str(url))
        assert "\n" not in str(error.value)
    assert not absent.exists() and read_study(f"{several}#one").complete == 0
    with pytest.raises(FileNotFoundError):
        count_log(tmp_path / "absent.log")


def test_growth_needs_its_interval_above_zero_and_two_percent():
    rng = random.Random(3)
    noisy = [(at, 1e9 + rng.gauss(0, 2e6)) for at in range(200)]
    assert growth(noisy).says == "stable"
    grown = growth([(at, size + at * 1e6) for at, size in noisy])
    assert grown.says == "grows" and grown.low < 1e6 + 5e3 < grown.high + 1e4
    slight = [(at, size + at * 5e4) for at, size in noisy]
    assert growth(slight).says == "stable"  # above 0, and 1 % in all
    assert growth([(at, 1e9 + rng.gauss(0, 3e8)) for at in range(9)]).says == "unclear"
    assert growth(noisy[:5]) is None and growth([(1, size) for _, size in noisy]) is None


def test_the_table_says_met_not_met_or_why_not_measured(log, storage):
    trials = [("COMPLETE", {"peak_bytes": str(10**9 + at * 10**7)}) for at in range(60)]
    text = OOM.format(2) + "Epoch 3/3\nTraining finished\n"
    found = states(criteria(log(text), str(storage(trials)), card_bytes=2 * 10**9))
    assert {name: found[name] for name in found if not found[name].startswith(UNKNOWN)} == {
        "no out of memory of the GPU": "not met",
        "training goes through every epoch": "met",
        "a first epoch ends": "met",
        "it ends without a crash": "met",
        "all of several epochs end": "met",
        "memory of each GPU stays low": "met",
        "the peak uses the card and leaves room": "met",
        "memory does not grow from trial to trial": "not met",
        "the GPU's memory is reset every 50 trials": "not met",
        "the supervisor does not run out of restarts": "met",
        "5000 trials without anybody's help": "not met",
    }
    assert found[IN_A_ROW].startswith(f"{UNKNOWN} 60 of 500") and len(found) == 19
    for empty in (criteria(None, None), criteria(log(""), None)):
        assert all(state.startswith(UNKNOWN) for state in states(empty).values())


DEATHS = [
    "Killed",
    "bash: line 1: 4711 Killed                  python train.py",
    "terminate called after throwing an instance of 'c10::Error'",
    "Aborted (core dumped)",
    "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Unknown.",
    "torch.AcceleratorError: CUDA error: device-side assert triggered",
    "python: alloc.cpp:82: Assertion `size > 0' failed.",
    "exitcode: -9 (pid: 2345)",
    "Fatal Python error: Segmentation fault",
    "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "KeyboardInterrupt",
    "Terminated",
    "Process finished with exit code 1",
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T10:11:00 DUE TO TIME LIMIT ***",
]


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("epoch", [2, 3])
def test_of_a_run_that_died_nothing_is_met_that_its_end_would_show(log, death, epoch):
    says = f"2026-01-01 10:00:00 10 % of the data\nEpoch 1/3\nEpoch {epoch}/3\n2026-01-01 10:05:00 loss\n"
    found = states(criteria(log(f"{says}{death}\nrestart 1 of 5\n"), None))
    met = {name for name, state in found.items() if state == "met"}
    assert found[CRASHES] == "not met" and met == {"a first epoch ends"}


def test_a_log_that_just_stops_meets_nothing_and_one_that_says_its_end_or_its_exit_code_does(log):
    at_last = "Epoch 3/3\nloss 0.1\n"
    stops = states(criteria(log(at_last), None))
    assert (
        f"{UNKNOWN} the log stops" in stops[CRASHES] and stops["all of several epochs end"] != "met"
    )
    for text, code in ((at_last + "{'train_runtime': 5}\n", None), (at_last, 0)):
        assert states(criteria(log(text), None, exit_code=code))[CRASHES] == "met"
    assert states(criteria(log(at_last), None, exit_code=137))[CRASHES] == "not met"
    hope = at_last + "the model is saved when training is done\n"
    assert states(criteria(log(hope), None))[CRASHES].startswith(UNKNOWN)
    again = "Training finished\nEpoch 1/3\nKilled\n"
    assert states(criteria(log(again), None))["no out of memory of the GPU"] != "met"


def test_time_and_share_of_the_data_are_read_from_the_log(log):
    text = "2026-01-01 10:00:00 on {} % of the data\n2026-01-01T1{}:20:00 Training finished\n"
    for percent, hour, told in ((10, 0, ("met", "met")), (5, 1, ("not met", "not met"))):
        found = states(criteria(log(text.format(percent, hour)), None))
        names = ("it is of a tenth of the data at least", "training takes a reasonable time")
        assert tuple(found[name] for name in names) == told


def test_files_are_loaded_weights_only_or_it_is_said_why_not(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    model, about, code = (tmp_path / name for name in ("m.pt", "m_metadata.json", "code.pt"))
    torch.save({"a": torch.ones(2)}, model)
    about.write_text("{}")
    torch.save(tmp_path, code)  # a class of Python: only code could make it
    (tmp_path / "torn.pt").write_bytes(model.read_bytes()[:99])
    bad = (code, tmp_path / "torn.pt", tmp_path / "nosuch.pt")
    once = loaded(list(map(str, (model, about, *bad))))
    with monkeypatch.context() as patch:
        patch.setattr("helpers.trials.criteria.loaded", lambda files: {f: once[f] for f in files})
        rows = criteria(None, None, files=[str(model), str(about)]).rows
        saved = {row.criterion: row for row in rows}
        assert (saved[SAVED].state, saved[SAVED].seen) == ("met", "2 files load")
        for one in bad:
            assert states(criteria(None, None, files=[str(one), str(about)]))[SAVED] == "not met"
    monkeypatch.setattr("helpers.trials.criteria.torch_files", lambda python: ("", ""))
    assert "no torch" in states(criteria(None, None, files=[str(model)]))[SAVED]


def test_every_criterion_has_its_measure_or_says_why_it_never_can():
    for row in ASKED:
        assert {"case", "criterion", "expected"} <= set(row)
        assert ("measure" in row) != ("never" in row)
        assert set(row.get("needs", [])) <= {"log", "study", "files", "card"}
        assert row.get("runs", "ended") in ("ended", "resumed")


def test_asserts_are_told_by_the_outcomes_of_the_trials_where_they_have_them(storage):
    ok = ("COMPLETE", {"outcome": '"ok"'})
    bad = ("FAIL", {"outcome": '"device_assert"'})
    long = storage([bad, *[ok] * 500])
    broken = storage([*[ok] * 300, bad, *[ok] * 300], name="b")
    assert states(criteria(None, str(long)))[IN_A_ROW] == "met"
    assert states(criteria(None, str(broken)))[IN_A_ROW] == "not met"


def path(name, state="ran", equal="bitwise"):
    return PathResult(name, state, "", equal_to_single=equal)


def test_what_the_training_paths_show_fills_only_rows_that_no_file_measured(log):
    single = path("single device", equal="not applicable")
    results = [single, path("resume after a kill"), path("DDP", "not_run")]
    none = criteria(None, None).rows
    found = {row.criterion: row for row in with_runs(none, results)}
    assert found[CRASHES].seen == "0 of 2 training paths failed here"
    assert "resume after a kill" in found[SAVED].seen
    assert {name for name, row in found.items() if row.state == "met"} == {CRASHES, SAVED}
    worse = with_runs(none, [path("DDP", "failed"), path("resume after a kill", equal="no")])
    assert {row.criterion for row in worse if row.state == "not met"} == {CRASHES, SAVED}
    logged = criteria(log("Traceback (most recent call last):\nValueError: x\n"), None)
    with_log = {row.criterion: row.state for row in with_runs(logged.rows, results)}
    assert with_log[CRASHES] == "not met" and with_runs(none, []) == none
    text = str(criteria_table(results=results))
    assert f"{UNKNOWN} no log was given" in text and "0 of 2 training paths" in text


def test_how_far_a_study_is_is_told_by_states_and_outcomes(storage):
    ended = [("FAIL", {"outcome": '"oom"'}), ("COMPLETE", {"outcome": '"ok"'})]
    text = study_text(str(storage([*ended, ended[1], ("RUNNING", {})])))
    assert text == "one: 2 complete, 1 failed, 0 pruned, 1 running, 0 waiting\nended 2 ok, 1 oom"
    assert study_text() == "not read because no study was given"
