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
from fleet_stand_in import ROOT, Loopback, soon, stand_in

from helpers.batch.box_state import Gates
from helpers.batch.fleet import Fleet, FleetError, needs
from helpers.batch.record import node, read_run, write_run
from helpers.batch.shapes import Plan, Run
from helpers.look.bundle import open_bundle

FIGURE = Path(__file__).parent / "notebooks" / "answers_with_a_figure.ipynb"
NIGHT = "20260101T000000Z-night"


def planned(name, **about):
    return Run(run_id=name, batch_id=NIGHT, notebook=FIGURE.name, **{"box": "", **about})


class Batch:
    """A batch's folder with planned runs of the stand-in. ``shared``: whether the nodes see the folder too."""

    def __init__(self, folder, fleet, shared=True):
        self.folder = folder / NIGHT
        self.fleet = fleet
        self.log = folder / "log"
        self.futures = {}
        self.ticks = []
        self.folder.mkdir(parents=True)
        if not shared:  # the nodes find another text where the batch's own would be
            (self.folder / f".fleet-{fleet.key[:8]}").write_text("another batch")

    def submit(self, name, *, danger="looks", gpu="", box="", given=(), **parameters):
        run = planned(name, danger=danger, gpu=gpu, box=box)
        folder = self.folder / name
        folder.mkdir()
        write_run(folder, run)
        own = {"log": str(self.log), **dict(given), **parameters}
        job = {"source": str(FIGURE), "cell_s": 60, "run_s": 90, "mark": f"m{name}"}

        def tick(*word):
            self.ticks.append((name, *word))

        future = self.fleet.submit(folder, run, {**job, "parameters": own}, tick)
        self.futures[name] = future
        return future

    def starts(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[0] for line in lines if not line.startswith("stopped")]

    def record(self, name):
        return read_run(self.folder / name / "run.json")

    def said(self, name):
        return json.loads((self.folder / name / "said.json").read_text())


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
def fleet(calm):
    fleet = joined(calm.address, 2, run_one=stand_in, limit_bytes=100_000)
    yield fleet
    fleet.close()


@pytest.fixture
def batch(fleet, tmp_path):
    return Batch(tmp_path, fleet)


@pytest.fixture
def away(fleet, tmp_path):
    return Batch(tmp_path, fleet, shared=False)


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


def test_a_run_comes_home_with_its_record_and_its_files(away, calm):
    home = str(away.folder / "000-a")
    run = away.submit("000-a", do="big", seconds=2, given={"out": home}).result(60)
    assert (run.state, run.node) == ("answered", node()) and run == away.record("000-a")
    assert run.files == ["said.json", "sub/small.bin"]
    assert (away.folder / "000-a" / "sub" / "small.bin").read_bytes() == b"s" * 1000
    assert ("000-a", 1, 2) in {word[:3] for word in away.ticks}
    out = Path(away.said("000-a")["out"])
    assert out.name == "000-a" and out.parent.name.startswith(f"{NIGHT}.")
    assert away.folder not in out.parents
    assert run.notes == [f"big.bin (300000 bytes) was left on {node()} in {out}"]
    # What came home whole is removed from the node.
    away.submit("001-b").result(60)
    away.fleet.close()
    left = [path.parent for path in calm.folder.glob("*/*/casebook/*/*") if path.is_dir()]
    assert (out / "big.bin").stat().st_size == 300_000 and out.parent in left
    assert not [path for path in left if (path / "001-b").exists()]


def test_runs_that_start_at_once_both_answer_and_nothing_is_copied_on_shared_storage(batch):
    first = batch.submit("000-a", do="big")
    second = batch.submit("001-b")
    assert first.result(60).state == second.result(60).state == "answered"
    assert sorted(batch.starts()) == ["000-a", "001-b"]
    assert first.result().files == ["big.bin", "said.json", "sub/small.bin"]
    assert first.result().notes == []
    batch.fleet.close()
    assert not list(batch.folder.glob(".node-*"))


def test_the_start_is_in_the_record_while_the_run_goes_on_and_a_stop_reaches_the_node(batch):
    future = batch.submit("000-a", seconds=30)
    record = soon(lambda: (found := batch.record("000-a")).state == "started" and found)
    assert record.node == node() and record.boot_id and record.pid is None
    batch.fleet.stop.signal = "SIGINT"
    batch.fleet.stop.times = 1
    later = batch.submit("001-b")
    assert future.result(20).cause == "interrupted by SIGINT"
    assert "stopped 000-a" in batch.log.read_text()
    assert (later.result(20).state, later.result().stopped_by) == ("skipped", "interrupt")


def test_a_run_that_loads_goes_only_where_there_is_a_gpu(batch):
    for number in range(3):
        batch.submit(f"00{number}-a", danger="loads")
    assert {future.result(60).state for future in batch.futures.values()} == {"answered"}
    pids = {str(batch.record(name).pid) for name in batch.futures}
    assert {line.split()[1] for line in batch.log.read_text().splitlines()} == pids
    assert len(pids) == 1


def test_what_no_worker_has_is_refused_before_anything_is_submitted(fleet):
    def plan(gpu):
        step = planned("000-a", danger="looks", gpu=gpu)
        return SimpleNamespace(plan=Plan(name="p", runs=[{"notebook": "n"}]), steps=[step])

    assert needs(planned("000-a", gpu="0000:43:00.0")) == {"GPU": 1, "0000:43:00.0": 1}
    assert needs(planned("000-a", danger="looks")) == {}
    fleet.check(plan("0000:03:00.0"))
    why = "000-a: seen no worker with GPU=1,0000:43:00.0=1 among 2; expected one"
    with pytest.raises(FleetError, match=why) as refused:
        fleet.check(plan("0000:43:00.0"))
    assert "\n" not in str(refused.value)


def test_a_run_that_reads_the_batch_is_carried_out_here(batch):
    given = {"batch": str(batch.folder)}
    run = batch.submit("000-a", given=given).result(60)
    assert run.state == "answered" and run.pid == os.getpid()
    loads = batch.submit("001-b", given=given, danger="loads").result(60)
    assert loads.state == "skipped" and "a wish for a worker's GPU" in loads.cause


def test_live_means_the_node_and_its_bundle_comes_home(away):
    run = away.submit("000-a", box="live").result(120)
    box = Path(away.said("000-a")["box"])
    assert run.state == "answered" and box.name == "box.tar.gz" and away.folder not in box.parents
    assert open_bundle(away.folder / "000-a" / "box.tar.gz").box


@pytest.mark.slow
def test_a_notebook_answers_on_a_node_as_it_does_here(calm, tmp_path):
    fleet = joined(calm.address, 2)
    try:
        ended = Batch(tmp_path, fleet, shared=False).submit("000-real").result(120)
    finally:
        fleet.close()
    assert (ended.state, ended.cause, ended.cells) == ("answered", "", {"completed": 4})
    assert {"figures/01.png", "figures/02.png", "notebook.ipynb"} <= set(ended.files)


def test_what_runs_in_a_worker_imports_no_torch_and_no_notebook_engine():
    heavy = "{'torch', 'papermill', 'nbclient'}"
    code = f"import sys, helpers.batch.fleet_worker; print(sorted({heavy} & set(sys.modules)))"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_fleet_that_cannot_be_is_refused_in_one_line(tmp_path):
    with pytest.raises(FleetError, match="no scheduler answers") as refused:
        Fleet("tcp://127.0.0.1:1", first_s=0.5)
    assert "\n" not in str(refused.value)
    grid = Loopback(tmp_path, stock=True)
    try:
        grid.worker("only")
        fleet = joined(grid.address, 1)
        plan = SimpleNamespace(gates=None, stop=SimpleNamespace(node_strikes=0), insecure=True)
        with pytest.raises(FleetError, match="seen allowed-failures 3; expected 0"):
            fleet.check(SimpleNamespace(plan=plan, steps=[]))
        fleet.close()
    finally:
        grid.end()


LOST = {
    "000-kills": "its connection to the scheduler ended",
    "001-freezes": "no word for 4 s",
    "004-cut": "no word for 4 s",
}
ON = ("012-on", "013-on", "014-waits")


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """One of five workers is killed by its run, one freezes, one is cut off; then the scheduler is killed."""
    folder = tmp_path_factory.mktemp("night")
    grid = Loopback(folder)
    fleet = None
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
        for name in ON:
            batch.submit(name, seconds=60)
        soon(lambda: [batch.record(name).state for name in ON].count("started") == 2)
        grid.send("scheduler", signal.SIGKILL)
        late = {name: batch.futures[name].result(60) for name in ON}

        def all_ended():
            dead = [grid.processes[name].poll() is not None for name in ("well", "fine")]
            return batch.log.read_text().count("stopped 01") == 2 or all(dead)

        yield batch, early, late, slots, soon(all_ended)
    finally:
        if fleet:
            fleet.close()
        grid.end()


@pytest.mark.slow
def test_the_run_of_a_lost_node_says_so_with_the_nodes_last_word(night):
    batch, early, _, _, _ = night
    for name, why in LOST.items():
        run = early[name]
        assert (run.state, run.node, run.strikes) == ("node_lost", node(), 1)
        assert run == batch.record(name)
        assert why in run.cause and "last word" in run.cause and "\n" not in run.cause
    cause = early["004-cut"].cause
    assert "cut (tcp://127.0.0.1:" in cause and "cell 1 of 2 after" in cause


@pytest.mark.slow
def test_no_run_is_started_twice_and_the_others_go_elsewhere(night):
    batch, early, _, slots, _ = night
    assert len(batch.starts()) == len(set(batch.starts())) and slots == 2
    others = {run.state for name, run in early.items() if name not in LOST}
    assert others == {"answered"}


@pytest.mark.slow
def test_without_its_scheduler_a_batch_ends_and_so_do_its_runs_on_the_nodes(night):
    _, _, late, _, stopped = night
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
        record = batch.record("000-a")
        assert record.quarantined == "box" and record.gate.startswith("box: ")
        cause = batch.submit("001-b").result(30).cause
        assert "only (tcp://127.0.0.1:" in cause and "closed after 000-a: box: " in cause
        fleet.close()
        fleet = joined(grid.address, 1, run_one=stand_in)
        batch = Batch(tmp_path / "killed", fleet)
        batch.submit("000-kills", do="SIGKILL")
        later = batch.submit("001-a")
        assert batch.futures["000-kills"].result(30).state == "node_lost"
        assert (later.result(30).state, later.result().stopped_by) == ("skipped", "quarantine")
        assert "no worker that may run it is left; only (tcp" in later.result().cause
        assert fleet.slots == 1 and batch.starts() == ["000-kills"]
        fleet.close()
    finally:
        grid.end()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fleet")]
