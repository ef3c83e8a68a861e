"""Each run of a batch goes once to one worker of a Dask cluster, and its record comes home."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster_stand_in import ROOT, LoopbackCluster, soon, stand_in

from helpers import __version__
from helpers.batch.cluster import Cluster, refuse_open_door, resources_for
from helpers.batch.plan import PlanError
from helpers.batch.record import node, read_run, write_run
from helpers.batch.shapes import Plan, Run
from helpers.look.bundle import open_bundle

FIGURE = Path(__file__).parent / "notebooks" / "answers_with_a_figure.ipynb"
NIGHT = "20260101T000000Z-night"


def planned(name, **about):
    return Run(run_id=name, batch_id=NIGHT, notebook=FIGURE.name, **{"box": "", **about})


class Batch:
    """A batch's folder with planned runs of the stand-in."""

    def __init__(self, folder, cluster):
        self.folder = folder / NIGHT
        self.cluster = cluster
        self.log = folder / "log"
        self.folder.mkdir(parents=True)

    def submit(self, name, *, danger="looks", box="", parameters=(), **more):
        run = planned(name, danger=danger, box=box)
        folder = self.folder / name
        folder.mkdir()
        write_run(folder, run)
        job = {"source": str(FIGURE), "cell_s": 60, "run_s": 90, "mark": f"m{name}"}
        job["parameters"] = {"log": str(self.log), **dict(parameters), **more}
        return self.cluster.submit(folder, run, job, lambda *word: None)

    def starts(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[0] for line in lines if not line.startswith("stopped")]

    def record(self, name):
        return read_run(self.folder / name / "run.json")


def joined(address, count, **options):
    """A cluster of so many workers, which may still be starting."""

    def try_it():
        try:
            cluster = Cluster(address, **options)
        except PlanError as error:
            assert "seen no worker" in str(error)
            return None
        if len(cluster.workers) < count:
            cluster.close()
            return None
        return cluster

    return soon(try_it)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Two workers that live through all tests, one of them with a GPU."""
    grid = LoopbackCluster(tmp_path_factory.mktemp("calm"))
    try:
        grid.worker("plain")
        grid.worker("card", "--resources", "GPU=1 0000:03:00.0=1")
        yield grid
    finally:
        grid.end()


@pytest.fixture
def batch(calm, tmp_path):
    cluster = joined(calm.address, 2, run_one=stand_in)
    yield Batch(tmp_path, cluster)
    cluster.close()


def test_a_run_comes_home_with_its_record_and_its_files_and_leaves_nothing(batch, calm):
    home = batch.folder / "000-a"
    run = batch.submit("000-a", seconds=1, parameters={"out": str(home)}).result(60)
    assert (run.state, run.node, run.files) == ("answered", node(), ["said.json"])
    assert run == batch.record("000-a")
    out = Path(json.loads((home / "said.json").read_text())["out"])
    assert out.name == "000-a" and out != home, "its paths are those of the worker"
    assert not out.exists()


def test_runs_go_side_by_side_each_once(batch):
    runs = [batch.submit(f"00{number}-a") for number in range(4)]
    assert {run.result(60).state for run in runs} == {"answered"}
    assert sorted(batch.starts()) == [f"00{number}-a" for number in range(4)]


def test_the_start_is_recorded_at_once_and_a_stop_reaches_the_worker(batch):
    run = batch.submit("000-a", seconds=60)
    soon(lambda: batch.record("000-a").state == "started")
    assert batch.record("000-a").node == node()
    batch.cluster.stop.signal = "SIGINT"
    later = batch.submit("001-b")
    assert run.result(30).stopped_by == "interrupt"
    assert "stopped 000-a" in batch.log.read_text()
    assert (later.result(30).state, later.result().stopped_by) == ("skipped", "interrupt")


def test_a_batch_that_is_gone_leaves_no_run_behind(calm, tmp_path):
    batch = Batch(tmp_path, joined(calm.address, 2, run_one=stand_in))
    batch.submit("000-a", seconds=60)
    soon(batch.starts)
    batch.cluster.close()
    soon(lambda: "stopped 000-a" in batch.log.read_text(), limit_s=30)


def test_what_loads_goes_only_where_there_is_a_gpu(batch):
    runs = [batch.submit(f"00{number}-a", danger="loads") for number in range(3)]
    assert {run.result(60).state for run in runs} == {"answered"}
    assert len({run.result().pid for run in runs}) == 1


def test_what_no_worker_has_is_refused_before_the_first_run(batch):
    def checked(gpu):
        plan = Plan(name="p", runs=[{"notebook": "n"}])
        return SimpleNamespace(plan=plan, steps=[planned("000-a", danger="looks", gpu=gpu)])

    assert resources_for(planned("000-a", danger="looks")) == {}
    batch.cluster.check(checked("0000:03:00.0"))
    with pytest.raises(PlanError, match="seen no worker with GPU=1 0000:43:00.0=1") as refused:
        batch.cluster.check(checked("0000:43:00.0"))
    assert "\n" not in str(refused.value)


def test_a_run_that_reads_the_batch_is_carried_out_here(batch):
    parameters = {"batch": str(batch.folder)}
    run = batch.submit("000-a", parameters=parameters).result(60)
    assert (run.state, run.pid) == ("answered", os.getpid())
    loads = batch.submit("001-b", parameters=parameters, danger="loads").result(60)
    assert loads.state == "skipped" and "a wish for a worker's GPU" in loads.cause


def test_live_means_the_workers_box_and_its_bundle_comes_home(batch):
    run = batch.submit("000-a", box="live").result(120)
    assert run.state == "answered"
    assert open_bundle(batch.folder / "000-a" / "box.tar.gz").box


@pytest.mark.slow
def test_a_notebook_answers_on_a_worker_as_it_does_here(calm, tmp_path):
    cluster = joined(calm.address, 2)
    try:
        run = Batch(tmp_path, cluster).submit("000-real").result(120)
    finally:
        cluster.close()
    assert (run.state, run.cause, run.cells) == ("answered", "", {"completed": 4})
    assert "notebook.ipynb" in run.files


def test_a_lost_worker_costs_its_own_run_and_the_others_go_on(tmp_path):
    grid = LoopbackCluster(tmp_path)
    try:
        for name in ("killed", "well"):
            grid.worker(name)
        cluster = joined(grid.address, 2, run_one=stand_in)
        batch = Batch(tmp_path, cluster)
        killed = batch.submit("000-kills", do="SIGKILL", seconds=2)
        assert killed.result(60).state == "node_lost"
        cause = killed.result().cause
        assert "its connection ended" in cause and f"on {node()} was lost" in cause
        assert cause.startswith(("worker killed (", "worker well ("))
        assert cause.endswith("then: casebook run PLAN --resume --again 000-kills")
        assert killed.result().strikes == 1 and batch.record("000-kills") == killed.result()
        later = [batch.submit(f"01{number}-on") for number in range(3)]
        assert {run.result(60).state for run in later} == {"answered"}
        assert batch.starts().count("000-kills") == 1, "never given to another"
        last = batch.submit("020-kills", do="SIGKILL")
        assert last.result(60).state == "node_lost"
        left = batch.submit("021-left").result(60)
        assert (left.state, left.stopped_by) == ("skipped", "box")
        assert "no worker that may run it is left" in left.cause
        cluster.close()
    finally:
        grid.end()


def test_a_worker_of_another_version_is_refused_by_name_and_one_that_comes_later_gets_no_run(
    tmp_path,
):
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "helpers", tmp_path / "old" / "helpers", ignore=leave)
    init = tmp_path / "old" / "helpers" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{__version__}"', '"0.0.7"'))
    plan = SimpleNamespace(plan=Plan(name="p", runs=[{"notebook": "n"}]), steps=[])
    grid = LoopbackCluster(tmp_path)
    try:
        grid.worker("well")
        cluster = joined(grid.address, 1, run_one=stand_in)
        cluster.check(plan)
        said = cluster.carried()
        assert "workers well" in said and "come home into its folder" in said
        grid.worker("ash-0", checkout=tmp_path / "old")
        soon(lambda: len(cluster._look()) == 2)
        with pytest.raises(
            PlanError, match=r"worker ash-0 \(tcp:.*seen 0.0.7; expected"
        ) as refused:
            joined(grid.address, 2).check(plan)
        assert "\n" not in str(refused.value)
        batch = Batch(tmp_path, cluster)
        runs = [batch.submit(f"00{number}-a") for number in range(4)]
        assert {run.result(60).state for run in runs} == {"answered"}
        assert len({run.result().pid for run in runs}) == 1
        grid.processes["well"].kill()
        soon(lambda: len(cluster._look()) == 1)
        left = batch.submit("009-left").result(60)
        assert (
            left.state == "skipped" and "worker ash-0" in left.cause and "seen 0.0.7" in left.cause
        )
        cluster.close()
    finally:
        grid.end()


def test_a_worker_that_dask_would_end_at_a_limit_is_refused(tmp_path):
    grid = LoopbackCluster(tmp_path)
    try:
        grid.worker("limited", memory_limit="2GiB")
        cluster = joined(grid.address, 1)
        plan = Plan(name="p", runs=[{"notebook": "n"}])
        with pytest.raises(PlanError, match="start it with --memory-limit 0"):
            cluster.check(SimpleNamespace(plan=plan, steps=[]))
        cluster.close()
    finally:
        grid.end()


@pytest.mark.parametrize("address", ["tls://10.0.0.1:8786", "tcp://127.0.0.1:1", "tcp://[::1]:1"])
def test_tls_and_loopback_are_let_through(address):
    refuse_open_door(address)


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.1:8786", "tcp://oak:8786", "10.0.0.1:8786", "ws://127.0.0.1:8786"]
)
def test_what_others_could_reach_without_tls_is_refused_in_one_line(address):
    with pytest.raises(PlanError, match=r"expected tls://.*see env/FLEET.md") as refused:
        Cluster(address)
    assert "\n" not in str(refused.value)


def test_without_a_scheduler_or_without_keys_one_line_says_so():
    for address in ("tcp://127.0.0.1:1", "tls://127.0.0.1:1"):
        with pytest.raises(PlanError, match="no scheduler answers") as refused:
            Cluster(address, connect_s=0.5)
        assert "\n" not in str(refused.value)
