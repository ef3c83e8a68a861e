"""The runs of a batch on the workers of a Dask cluster that its user started (env/FLEET.md).

Dask only transports runs to workers and records back: the batch chooses the worker of each run, and
Dask never repeats a run. Only this module and ``cluster_worker`` import the package distributed,
and only when a scheduler is named.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from helpers import __version__
from helpers.ground.units import show_bytes

from .carrier import Local
from .cluster_worker import MOST_BYTES, Order, RunOutcome, about_worker, carry_out
from .one_run import kept, run_one
from .plan import CheckedPlan, PlanError, Step
from .record import files_below, in_words, move, now
from .shapes import Run
from .stop import Stop
from .watched import Job, Tick

if TYPE_CHECKING:
    from distributed import Client, Future

TICK_S = 0.5
"""Seconds between two looks at a run, and between two tries to find a free worker."""
SCHEDULER_ANSWER_S = 5
"""The scheduler answers from memory; on a LAN that takes milliseconds."""
WORKER_ANSWER_S = 10
"""A worker imports this package before its first answer, which takes longer."""
GUIDE = "see env/FLEET.md"


class Worker(TypedDict):
    """What the scheduler says of a worker.

    ``name`` and ``resources`` (such as {"GPU": 1.0}) are what it was started with; ``memory_limit``
    is in bytes, 0 for none.
    """

    name: str
    memory_limit: int
    resources: dict[str, float]


Workers = dict[str, Worker]
"""Workers by their addresses."""


class Cluster(Local):
    """Carries out each run on a free worker of the scheduler at ``address``.

    If the connection to a worker ends, its run is node_lost. A worker on which a run is stuck gets
    no other run. Workers are named by their addresses: ``busy`` have a run, ``stuck`` get no more,
    ``about`` has the answer of each (``about_worker``). ``choosing`` guards ``busy``; ``at_home``
    lets one run at a time use this box.

    Raises PlanError in one line if there is no scheduler or no worker, or if others could reach one
    of them without TLS.
    """

    one_box = False

    def __init__(
        self,
        address: str,
        *,
        stop: Stop | None = None,
        run_one: Callable[..., Run] = run_one,
        connect_s: float = 60,  # as long as a scheduler and its workers take to start together
    ):
        from distributed import Event

        super().__init__(stop=stop, run_one=run_one)
        refuse_open_door(address)
        self.busy: set[str] = set()
        self.stuck: set[str] = set()
        self.choosing = threading.Lock()
        self.at_home = threading.Lock()
        self.client = _connected(address, connect_s)
        self.stop_name = f"casebook-stop-{uuid.uuid4().hex}"
        self.stopping = Event(self.stop_name, client=self.client)
        try:
            self.workers = self._look()
            if not self.workers:
                raise PlanError(
                    f"{address}: seen no worker; expected one for each GPU; {GUIDE}"
                )
            self.slots = len(self.workers)
            self.about: dict[str, Any] = {}
            for worker in self.workers:
                self._version_of(worker)
        except BaseException:
            self.client.close()
            raise

    def check(self, checked: CheckedPlan) -> None:
        """Raise PlanError if a worker has a memory limit or another version, or if a step wants
        resources that no worker has.
        """
        for worker in self.workers.values():
            if worker["memory_limit"]:
                raise PlanError(
                    f"worker {worker['name']}: seen a memory limit, at which "
                    "Dask would end it; expected none; start it with "
                    "--memory-limit 0"
                )
        refused = self._refused()
        if refused:
            raise PlanError(f"{refused[0]}; update its checkout, start it again")
        for step in checked.steps:
            wanted = resources_for(step)
            if not self._usable(wanted):
                names = " ".join(f"{name}=1" for name in wanted)
                seen = f"seen no worker with {names} among {len(self.workers)}"
                advice = f'start one with --resources "{names}", or take the run out'
                raise PlanError(f"{step.run_id}: {seen}; expected one; {advice}")

    def carried(self) -> str:
        """A sentence with the workers that carry the runs out, and where results go."""
        names = ", ".join(sorted(worker["name"] for worker in self.workers.values()))
        most = show_bytes(MOST_BYTES)
        left = f"of a run above {most} the largest stay on its worker, and its record says where"
        return f"Carried out by the workers {names}. The files of each run come home into its folder there; {left}."

    def close(self) -> None:
        """Disconnect from the cluster; workers stop runs that the batch no longer waits for."""
        self.client.close()

    def carry(self, folder: Path, run: Run, job: Job, tick: Tick) -> Run:
        """Carry out a planned run and return its record.

        A run that reads what only this box has (``reads_home``) is carried out on this box, or
        skipped if it also wants the GPU of a worker. Any other run waits for a free worker and is
        carried out there; it is skipped if the batch is stopped meanwhile, or if no worker is left
        that may run it.
        """
        wanted = resources_for(run)
        if reads_home(folder, run, job):
            if wanted:
                why = "seen paths of this box and a wish for a worker's GPU; expected one of them"
                return move(run, "skipped", cause=why)
            with self.at_home:
                return super().carry(folder, run, job, tick)
        worker = ""
        while not worker:
            if self.stop.signal:
                why = f"interrupted ({self.stop.signal})"
                return move(run, "skipped", cause=why, stopped_by="interrupt")
            self._update_workers()
            if not self._usable(wanted):
                why = "; ".join(["no worker that may run it is left", *self._refused()])
                return move(run, "skipped", cause=why, stopped_by="box")
            worker = self._borrow(wanted)
            if not worker:
                time.sleep(TICK_S)
        try:
            ended = self._carried_by(worker, folder, run, job, tick)
            kept(folder, ended)  # writes the record into the run's folder
        finally:
            with self.choosing:
                self.busy.discard(worker)
        if ended.state == "stuck":
            self.stuck.add(worker)
        return ended

    def _carried_by(
        self, worker: str, folder: Path, run: Run, job: Job, tick: Tick
    ) -> Run:
        """Carry out a run on this worker and return its record: the worker's own record if the run
        came to its end there, "failed" if the code around the run raised an exception on the
        worker, and "node_lost" if the connection to the worker ended.
        """
        name = self._name(worker)
        task = self._submitted(worker, folder, run, job)
        _, node, boot = self.about[worker]
        started = move(run, "started", node=node, boot_id=boot, started_at=now())
        # writes the record, so that a resumed batch knows the node
        kept(folder, started)
        began = time.monotonic()
        while not task.done():
            self._update_workers()
            if worker not in self.workers:
                break
            tick(0, 0, time.monotonic() - began)  # no worker tells which cell it is in
            if self.stop.signal and not self.stopping.is_set():
                self.stopping.set()
            with suppress(NotYet, TimeoutError):
                task.result(timeout=TICK_S)
        if task.status == "finished":
            return _brought(folder, started, task.result())
        # Dask raises KilledWorker if the connection to the worker of a task ended.
        if task.status == "error" and type(task.exception()).__name__ != "KilledWorker":
            why = f"its worker broke: {in_words(task.exception())}"
            return move(started, "failed", cause=why, ended_at=now())
        task.cancel(force=True)
        cause = f"worker {name} on {node} was lost: its connection ended"
        look = f"look at {node}'s kernel log, start the worker again"
        cause += f"; {look}, then: casebook run PLAN --resume --again {run.run_id}"
        return move(
            started, "node_lost", cause=cause, files=files_below(folder), ended_at=now()
        )

    def _submitted(
        self, worker: str, folder: Path, run: Run, job: Job
    ) -> Future[RunOutcome]:
        """The task of a run, on this worker alone and never repeated by Dask."""
        source = Path(job["source"])
        key = f"{run.run_id}-{uuid.uuid4().hex}"
        order = Order(
            key=key,
            stop=self.stop_name,
            run=run,
            job=job,
            home=str(folder),
            name=source.name,
            notebook=source.read_bytes(),
        )
        return self.client.submit(
            carry_out,
            order,
            self.run_one,
            key=key,
            workers=[worker],
            allow_other_workers=False,
            resources=resources_for(run),
            pure=False,
            retries=0,
        )

    def _update_workers(self) -> None:
        """Ask the scheduler which workers there are; without an answer they stay as they were."""
        with suppress(OSError):
            self.workers = self._look()

    def _look(self) -> Workers:
        """The workers as the scheduler knows them now.

        Raises OSError if it does not answer, PlanError if others can reach one without TLS.
        """
        assert self.client.scheduler is not None
        seen = self.client.sync(
            self.client.scheduler.identity, callback_timeout=SCHEDULER_ANSWER_S
        )
        workers: Workers = seen["workers"]
        for address in (seen["address"], *workers):
            refuse_open_door(address)
        return workers

    def _usable(self, wanted: dict[str, float]) -> list[str]:
        """The workers that may get a run that wants these resources, whether they are free or not:
        no run is stuck there, they were started with these resources, and have this version.
        """
        return [
            worker
            for worker, about in self.workers.items()
            if worker not in self.stuck
            and wanted.keys() <= about["resources"].keys()
            and self._version_of(worker) == __version__
        ]

    def _version_of(self, worker: str) -> str:
        """The version of this project on a worker, or words that say why it is not known; a worker
        is asked until it has answered once.
        """
        if worker not in self.about:
            try:
                self.about |= self.client.sync(
                    self.client._run,
                    about_worker,
                    workers=[worker],
                    on_error="return",
                    callback_timeout=WORKER_ANSWER_S,
                )
            except (OSError, TimeoutError) as error:
                return f"no answer ({in_words(error)})"
        about = self.about.get(worker)
        # The exception that the worker raised, or None if it left before it answered.
        if not isinstance(about, tuple):
            return f"no VRAM Casebook ({about!r})"
        version: str = about[0]
        return version

    def _name(self, worker: str) -> str:
        """The worker's address, after the name that it was started with, if it has one."""
        name = worker  # Dask's default
        if worker in self.workers:
            name = self.workers[worker]["name"]
        if name in ("", worker):  # it was started without a name
            return worker
        return f"{name} ({worker})"

    def _refused(self) -> list[str]:
        """A sentence for each worker that does not have this version of the project."""
        versions = {worker: self._version_of(worker) for worker in self.workers}
        return [
            f"worker {self._name(worker)}: seen {version}; expected VRAM Casebook {__version__} as here"
            for worker, version in versions.items()
            if version != __version__
        ]

    def _borrow(self, wanted: dict[str, float]) -> str:
        """Mark a free worker that has these resources as busy and return it; empty if none is free.

        The one with the fewest resources is taken, so that runs that want more find theirs free.
        """
        with self.choosing:
            free = [
                worker for worker in self._usable(wanted) if worker not in self.busy
            ]
            if not free:
                return ""
            worker = min(free, key=self._count_of_resources)
            self.busy.add(worker)
            return worker

    def _count_of_resources(self, worker: str) -> int:
        return len(self.workers[worker]["resources"])


def refuse_open_door(address: str) -> None:
    """Raise PlanError if others can reach an address of the cluster without TLS: whoever reaches it
    can run any program there.

    Allowed are tls://HOST:PORT, and tcp://HOST:PORT if HOST is this machine's loopback.
    """
    scheme, _, place = address.rpartition("://")
    host, _, _ = place.rpartition(":")
    host = host.strip("[]")  # around an IPv6 address
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name, which is not looked up
        is_loopback = False
    if scheme == "tls" or (scheme == "tcp" and is_loopback):
        return
    seen = f"seen {scheme}:// beyond loopback" if scheme else "seen no tls:// before it"
    raise PlanError(
        f"{address}: {seen}; expected tls://, by Dask's TLS configuration; {GUIDE}"
    )


def resources_for(run: Run | Step) -> dict[str, float]:
    """The resources that a worker must have been started with to get this run.

    A run that names a GPU wants one GPU and the resource with that GPU's PCI address; any other run
    that does more than look wants any GPU (env/FLEET.md). A run that only looks wants nothing, and
    any worker may get it.
    """
    if run.gpu:
        return {"GPU": 1.0, run.gpu: 1.0}
    if run.danger in ("loads", "provokes"):
        return {"GPU": 1.0}
    return {}


def reads_home(folder: Path, run: Run, job: Job) -> bool:
    """Whether a run reads what only this box has: a bundle by its path, or the batch's folder.

    The run's own ``folder``, which is in the batch's, does not count: a worker has its own for it.
    """
    parameters = job["parameters"]
    # A run about the box ``live`` has the path of a bundle, too, but its worker captures another.
    if run.box != "live" and Path(str(parameters.get("box", ""))).is_absolute():
        return True
    others = [value for name, value in parameters.items() if name != "box"]
    texts = str(others).replace(str(folder), "")
    return str(folder.parent) in texts


def _connected(address: str, connect_s: float) -> Client:
    """A client of the scheduler at this address. Raises PlanError if none answers."""
    from distributed import Client

    # Dask logs each lost connection; the records of the runs say what was lost.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=connect_s, set_as_default=False, name="casebook")
    # TypeError: an address with tls:// and no keys configured.
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise PlanError(
            f"{address}: no scheduler answers ({in_words(error)}); expected "
            f"one; {GUIDE}"
        ) from error


def _brought(folder: Path, started: Run, outcome: RunOutcome) -> Run:
    """Write the files that a worker sent into the run's folder, and return the run's record.

    A file name that leads out of the folder is ignored.
    """
    run = outcome.run
    notes = list(run.notes)
    try:
        for name, content in outcome.files.items():
            path = folder / name
            if ".." not in path.parts and path.is_relative_to(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except OSError as error:
        notes.append(f"not all files could be written here: {error.strerror}")
    for name, size_bytes in outcome.left.items():
        notes.append(
            f"{name} ({size_bytes} bytes) was left on {run.node} in {outcome.folder}"
        )
    changes = {
        "notes": notes,
        "files": files_below(folder),
        "started_at": started.started_at,
    }
    return run.model_copy(update=changes)
