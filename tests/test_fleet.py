"""A fleet carries out each run once, on one node; a node that is lost costs its own run, and a batch always ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "distributed", reason="the package distributed, which fleets need, is not installed"
)

from fleet_stand_in import Loopback, soon, stand_in

from helpers import __version__
from helpers.look.bundle import open_bundle
from helpers.run import fleet_worker
from helpers.run.fleet import Fleet, FleetError, needs
from helpers.run.record import node, read_run, write_run
from helpers.run.shapes import Gates, Plan, Run

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = Path(__file__).parent / "notebooks"


class Batch:
    """A batch's folder with planned runs of the stand-in."""

    def __init__(self, folder, fleet):
        self.folder, self.fleet, self.futures, self.ticks = (
            folder / "20260101T000000Z-night",
            fleet,
            {},
            [],
        )
        self.log = folder / "log"
        self.folder.mkdir(parents=True)

    def submit(self, name, *, danger="looks", gpu="", box="", given=(), **parameters):
        run = Run(
            run_id=name,
            batch_id=self.folder.name,
            box=box,
            notebook="stand_in.ipynb",
            danger=danger,
            gpu=gpu,
        )
        folder = self.folder / name
        folder.mkdir()
        write_run(folder, run)
        job = {
            "source": str(NOTEBOOKS / "answers_with_a_figure.ipynb"),
            "cell_s": 60,
            "run_s": 90,
            "mark": f"m{name}",
            "parameters": {"log": str(self.log), **dict(given), **parameters},
        }
        self.futures[name] = self.fleet.submit(
            folder, run, job, lambda *word: self.ticks.append((name, *word))
        )
        return self.futures[name]

    def starts(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[0] for line in lines if not line.startswith("stopped")]

    def record(self, name):
        return read_run(self.folder / name / "run.json")


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Two workers that live through all tests, one of them with a GPU."""
    grid = Loopback(tmp_path_factory.mktemp("calm"))
    try:
        grid.worker("plain")
        grid.worker("card", "--resources", "GPU=1 0000:03:00.0=1")
        yield grid
    finally:
        grid.end()


@pytest.fixture
def batch(calm, tmp_path):
    fleet = joined(calm.address, 2, run_one=stand_in, limit_bytes=100_000)
    yield Batch(tmp_path, fleet)
    fleet.close()


def joined(address, count, **options):
    """A fleet of so many workers, which may still be starting."""

    def try_it():
        try:
            fleet = Fleet(address, **options)
        except FleetError as error:
            assert "seen no worker" in str(error)
            return None
        if len(fleet.workers) < count:
            fleet.close()
            return None
        return fleet

    return soon(try_it)


def not_shared(batch):
    """The nodes find another text where the batch's own would be, as on another disk."""
    (batch.folder / f".fleet-{batch.fleet.key[:8]}").write_text("another batch")


def test_a_run_comes_home_with_its_record_and_its_files(batch):
    not_shared(batch)
    home = str(batch.folder / "000-a")
    run = batch.submit("000-a", do="big", seconds=2, given={"out": home}).result(60)
    assert (run.state, run.node) == ("answered", node()) and run == batch.record("000-a")
    assert run.files == ["said.json", "sub/small.bin"]
    assert (batch.folder / "000-a" / "sub" / "small.bin").read_bytes() == b"s" * 1000
    assert ("000-a", 1, 2) in {word[:3] for word in batch.ticks}
    out = Path(json.loads((batch.folder / "000-a" / "said.json").read_text())["out"])
    assert (
        out.name == "000-a"
        and out.parent.name.startswith(f"{batch.folder.name}.")
        and batch.folder not in out.parents
    )
    assert run.notes == [f"big.bin (300000 bytes) was left on {node()} in {out}"]
    assert (out / "big.bin").stat().st_size == 300_000


def test_runs_that_start_at_once_in_a_fresh_batch_both_answer(batch):
    for futures in [batch.submit(name) for name in ("000-a", "001-b")]:
        assert futures.result(60).state == "answered"
    assert sorted(batch.starts()) == ["000-a", "001-b"]


def test_what_came_home_whole_is_removed_from_the_node(batch, calm):
    not_shared(batch)
    batch.submit("000-a").result(60)
    out = Path(json.loads((batch.folder / "000-a" / "said.json").read_text())["log"])
    assert out == batch.log
    batch.fleet.close()
    assert not list(
        calm.folder.glob(f"*/dask-scratch-space*/casebook/{batch.folder.name}*")
    ) or all("big" in str(list(path.rglob("*"))) for path in calm.folder.glob("*/*/casebook/*"))


def test_on_storage_that_the_node_sees_too_nothing_is_copied(batch):
    run = batch.submit("000-a", do="big").result(60)
    assert run.files == ["big.bin", "said.json", "sub/small.bin"] and run.notes == []
    batch.fleet.close()
    assert not list(batch.folder.glob(".node-*"))


def test_the_start_is_in_the_record_while_the_run_goes_on_and_a_stop_reaches_the_node(batch):
    future = batch.submit("000-a", seconds=30)
    record = soon(lambda: (found := batch.record("000-a")).state == "started" and found)
    assert record.node == node() and record.boot_id and record.pid is None
    batch.fleet.stop.signal, batch.fleet.stop.times = "SIGINT", 1
    later = batch.submit("001-b")
    assert (
        future.result(20).cause == "interrupted by SIGINT"
        and "stopped 000-a" in batch.log.read_text()
    )
    assert (later.result(20).state, later.result().stopped_by) == ("skipped", "interrupt")


def test_a_run_that_loads_goes_only_where_there_is_a_gpu(batch):
    for number in range(3):
        batch.submit(f"00{number}-a", danger="loads")
    for name, future in batch.futures.items():
        assert future.result(60).state == "answered"
        assert {line.split()[1] for line in batch.log.read_text().splitlines()} == {
            str(batch.record(name).pid)
        }


def test_what_no_worker_has_is_refused_before_anything_is_submitted(batch):
    def plan(gpu):
        run = Run(run_id="000-a", batch_id="b", box="", notebook="n", danger="looks", gpu=gpu)
        return SimpleNamespace(plan=Plan(name="p", runs=[{"notebook": "n"}]), steps=[run])

    assert [needs(plan(gpu).steps[0]) for gpu in ("0000:43:00.0", "")] == [
        {"GPU": 1, "0000:43:00.0": 1},
        {},
    ]
    batch.fleet.check(plan("0000:03:00.0"))
    with pytest.raises(
        FleetError, match="000-a: seen no worker with GPU=1,0000:43:00.0=1 among 2; expected one"
    ) as refused:
        batch.fleet.check(plan("0000:43:00.0"))
    assert "\n" not in str(refused.value)


def test_a_run_that_reads_the_batch_is_carried_out_here(batch):
    run = batch.submit("000-a", given={"batch": str(batch.folder)}).result(60)
    assert run.state == "answered" and run.pid == os.getpid()


def test_live_means_the_node_and_its_bundle_comes_home(batch):
    not_shared(batch)
    run = batch.submit("000-a", box="live").result(120)
    box = Path(json.loads((batch.folder / "000-a" / "said.json").read_text())["box"])
    assert run.state == "answered" and box.name == "box.tar.gz" and batch.folder not in box.parents
    assert open_bundle(batch.folder / "000-a" / "box.tar.gz").box


def test_a_notebook_answers_on_a_node_as_it_does_here(calm, tmp_path):
    fleet = joined(calm.address, 2)
    try:
        batch = Batch(tmp_path, fleet)
        not_shared(batch)
        folder = batch.folder / "000-real"
        folder.mkdir()
        run = Run(
            run_id="000-real",
            batch_id=batch.folder.name,
            box="",
            notebook="answers_with_a_figure.ipynb",
            danger="looks",
        )
        write_run(folder, run)
        job = {
            "source": str(NOTEBOOKS / run.notebook),
            "parameters": {},
            "cell_s": 60,
            "run_s": 90,
            "mark": "real" * 8,
        }
        ended = fleet.submit(folder, run, job, lambda *word: None).result(120)
    finally:
        fleet.close()
    assert (ended.state, ended.cause, ended.cells) == ("answered", "", {"completed": 4})
    assert {"figures/01.png", "figures/02.png", "notebook.ipynb"} <= set(ended.files)
    assert (folder / "figures" / "01.png").read_bytes().startswith(b"\x89PNG")


def test_a_worker_that_imported_torch_or_has_another_workbook_is_unfit(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert fleet_worker.unfit(__version__) == ""
    assert "expected 9.9" in fleet_worker.unfit("9.9")
    monkeypatch.setitem(sys.modules, "torch", object())
    assert "seen torch imported" in fleet_worker.unfit(__version__)


def test_what_runs_in_a_worker_imports_no_torch_and_no_notebook_engine():
    code = "import sys, helpers.run.fleet_worker; print(sorted({'torch', 'papermill', 'nbclient'} & set(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


def test_without_the_package_a_fleet_is_refused_and_nothing_else_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(FleetError, match="seen no package distributed; expected it"):
        Fleet("tcp://127.0.0.1:1")


def test_no_scheduler_is_one_line():
    with pytest.raises(FleetError, match="no scheduler answers") as refused:
        Fleet("tcp://127.0.0.1:1", first_s=0.5)
    assert "\n" not in str(refused.value)


def test_a_scheduler_that_repeats_runs_or_has_no_worker_is_refused(tmp_path):
    grid = Loopback(tmp_path, allowed_failures=3)
    try:
        with pytest.raises(FleetError, match="seen allowed-failures 3; expected 0"):
            Fleet(grid.address)
    finally:
        grid.end()


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """One of five workers is killed by its run, one freezes, one is cut off; then the scheduler is killed."""
    folder = tmp_path_factory.mktemp("night")
    grid, fleet = Loopback(folder), None
    try:
        wire = grid.wire()
        for name in ("killed", "frozen", "well", "fine"):
            grid.worker(name)
        grid.worker("cut", "--resources", "GPU=1 LINE=1", address=wire.address)
        fleet = joined(grid.address, 5, run_one=stand_in, silent_s=4, lease_s=3)
        batch = Batch(folder, fleet)
        batch.submit("000-kills", do="SIGKILL", seconds=1)
        batch.submit("001-freezes", do="SIGSTOP", seconds=1)
        for name in ("002-a", "003-b"):
            batch.submit(name, seconds=1)
        batch.submit("004-cut", gpu="LINE", seconds=60)
        soon(lambda: ("004-cut", 1, 2) in {word[:3] for word in batch.ticks})
        wire.cut()
        for number in range(5, 12):
            batch.submit(f"{number:03d}-later", seconds=0.2)
        early = {name: future.result(60) for name, future in batch.futures.items()}
        slots = fleet.slots
        soon(lambda: "stopped 004-cut" in batch.log.read_text())
        for name in ("012-on", "013-on", "014-waits"):
            batch.submit(name, seconds=60)
        soon(
            lambda: (
                sum(
                    batch.record(name).state == "started"
                    for name in ("012-on", "013-on", "014-waits")
                )
                == 2
            )
        )
        grid.send("scheduler", signal.SIGKILL)
        late = {
            name: future.result(60) for name, future in batch.futures.items() if name not in early
        }
        stopped = soon(
            lambda: (
                batch.log.read_text().count("stopped 01") == 2
                or all(grid.processes[name].poll() is not None for name in ("well", "fine"))
            )
        )
        yield batch, early, late, slots, stopped
    finally:
        if fleet:
            fleet.close()
        grid.end()


def test_the_run_of_a_lost_node_says_so_with_the_nodes_last_word(night):
    batch, early, _, _, _ = night
    for name, why in (
        ("000-kills", "its connection to the scheduler ended"),
        ("001-freezes", "no word for 4 s"),
        ("004-cut", "no word for 4 s"),
    ):
        run = early[name]
        assert (run.state, run.node, run.strikes) == (
            "node_lost",
            node(),
            1,
        ) and run == batch.record(name)
        assert why in run.cause and "last word" in run.cause and "\n" not in run.cause
    assert (
        "cut (tcp://127.0.0.1:" in early["004-cut"].cause
        and "cell 1 of 2 after" in early["004-cut"].cause
    )


def test_no_run_is_started_twice_and_the_others_go_elsewhere(night):
    batch, early, late, slots, _ = night
    assert len(batch.starts()) == len(set(batch.starts()))
    assert {
        run.state
        for name, run in early.items()
        if name not in ("000-kills", "001-freezes", "004-cut")
    } == {"answered"}
    assert slots == 2


def test_without_its_scheduler_a_batch_ends_and_so_do_its_runs_on_the_nodes(night):
    batch, _, late, _, stopped = night
    assert sorted(run.state for run in late.values()) == ["node_lost", "node_lost", "skipped"]
    assert all("the scheduler" in run.cause for run in late.values()) and stopped


def test_when_no_worker_is_left_the_rest_is_skipped_with_the_reason(tmp_path):
    grid = Loopback(tmp_path)
    try:
        grid.worker("only")
        fleet = joined(grid.address, 1, run_one=stand_in)
        fleet.gates = Gates(disk_free_bytes=1 << 60, settle_s=0)
        batch = Batch(tmp_path / "unclean", fleet)
        assert batch.submit("000-a").result(30).state == "answered"
        assert batch.record("000-a").quarantined == "box" and batch.record("000-a").gate.startswith(
            "box: "
        )
        assert "only (tcp://127.0.0.1:" in batch.submit("001-b").result(30).cause
        assert "closed after 000-a: box: " in batch.futures["001-b"].result().cause
        fleet.close()
        fleet = joined(grid.address, 1, run_one=stand_in)
        batch = Batch(tmp_path / "killed", fleet)
        batch.submit("000-kills", do="SIGKILL")
        later = batch.submit("001-a")
        assert batch.futures["000-kills"].result(30).state == "node_lost"
        assert (later.result(30).state, later.result().stopped_by, fleet.slots) == (
            "skipped",
            "quarantine",
            1,
        )
        assert (
            "no worker that may run it is left; only (tcp" in later.result().cause
            and batch.starts() == ["000-kills"]
        )
        fleet.close()
    finally:
        grid.end()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fleet")]
