"""The runs of a batch on the workers of a Dask cluster that its user started (env/FLEET.md).

Dask carries runs there and their records back, and decides nothing: the batch gives each run to
one worker, and a run is never repeated by Dask. The package distributed is imported here alone,
when a scheduler is named.
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
    from distributed import Client

TICK_S = 0.5
ANSWER_S = 10
GUIDE = "see env/FLEET.md"


class Worker(TypedDict):
    """What the scheduler says of a worker."""

    name: str
    memory_limit: int
    resources: dict[str, float]


Workers = dict[str, Worker]
"""Workers by their addresses."""


class Cluster(Local):
    """Carries out each run on a free worker of the scheduler at ``address``.

    A worker whose connection ends is lost: its run is node_lost. One on which a run is stuck gets
    no other.

    Raises PlanError in one line where there is no scheduler or no worker, and where others could
    reach one of them without TLS.
    """

    one_box = False

    def __init__(
        self,
        address: str,
        *,
        stop: Stop | None = None,
        run_one: Callable[..., Run] = run_one,
        connect_s: float = 60,
    ):
        from distributed import Event

        super().__init__(1, stop, run_one)
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
        """Raise PlanError for a worker that must not take part, and for a step that wants what
        no worker has.
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
            if not self._usable(resources_for(step)):
                names = " ".join(f"{name}=1" for name in resources_for(step))
                seen = f"seen no worker with {names} among {len(self.workers)}"
                advice = f'start one with --resources "{names}", or take the run out'
                raise PlanError(f"{step.run_id}: {seen}; expected one; {advice}")

    def carried(self) -> str:
        """Which workers carry the runs out, and where results land."""
        names = ", ".join(sorted(worker["name"] for worker in self.workers.values()))
        most = show_bytes(MOST_BYTES)
        left = f"of a run above {most} the largest stay on its worker, and its record says where"
        return f"Carried out by the workers {names}. The files of each run come home into its folder there; {left}."

    def close(self) -> None:
        """Let go of the cluster; what still runs there is ended by its worker."""
        self.client.close()

    def carry(self, folder: Path, run: Run, job: Job, tick: Tick) -> Run:
        """Carry out a planned run on a free worker; its record, whatever became of the worker.

        A run that reads what only this box has is carried out here.
        """
        if reads_home(folder, run, job):
            if resources_for(run):
                why = "seen paths of this box and a wish for a worker's GPU; expected one of them"
                return move(run, "skipped", cause=why)
            with self.at_home:
                return super().carry(folder, run, job, tick)
        worker = ""
        while not worker:
            if self.stop.signal:
                why = f"interrupted ({self.stop.signal})"
                return move(run, "skipped", cause=why, stopped_by="interrupt")
            with suppress(OSError):
                self.workers = self._look()
            if not self._usable(resources_for(run)):
                why = "; ".join(["no worker that may run it is left", *self._refused()])
                return move(run, "skipped", cause=why, stopped_by="box")
            worker = self._borrow(resources_for(run))
            if not worker:
                time.sleep(TICK_S)
        try:
            ended = kept(folder, self._carried_by(worker, folder, run, job, tick))
        finally:
            with self.choosing:
                self.busy.discard(worker)
        if ended.state == "stuck":
            self.stuck.add(worker)
        return ended

    def _carried_by(
        self, worker: str, folder: Path, run: Run, job: Job, tick: Tick
    ) -> Run:
        source = Path(job["source"])
        name = self._name(worker)
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
        task = self.client.submit(
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
        _, node, boot = self.about[worker]
        started = move(run, "started", node=node, boot_id=boot, started_at=now())
        kept(folder, started)
        began = time.monotonic()
        while not task.done() and self._is_there(worker):
            tick(0, 0, time.monotonic() - began)
            if self.stop.signal and not self.stopping.is_set():
                self.stopping.set()
            with suppress(NotYet, TimeoutError):
                task.result(timeout=TICK_S)
        if task.status == "finished":
            return _brought(folder, started, task.result())
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

    def _is_there(self, worker: str) -> bool:
        with suppress(OSError):
            self.workers = self._look()
        return worker in self.workers

    def _look(self) -> Workers:
        """The workers as the scheduler knows them now.

        Raises OSError where it does not answer, PlanError where one can be reached without TLS.
        """
        assert self.client.scheduler is not None
        seen = self.client.sync(self.client.scheduler.identity, callback_timeout=5)
        workers: Workers = seen["workers"]
        for address in (seen["address"], *workers):
            refuse_open_door(address)
        return workers

    def _usable(self, wanted: dict[str, float]) -> list[str]:
        """The workers that may get a run that wants these resources."""
        return [
            worker
            for worker, about in self.workers.items()
            if worker not in self.stuck
            and wanted.keys() <= about["resources"].keys()
            and self._version_of(worker) == __version__
        ]

    def _version_of(self, worker: str) -> str:
        """The version of the workbook that a worker runs from, or what it says instead; each is
        asked once.
        """
        if worker not in self.about:
            try:
                self.about |= self.client.sync(
                    self.client._run,
                    about_worker,
                    workers=[worker],
                    on_error="return",
                    callback_timeout=ANSWER_S,
                )
            except (OSError, TimeoutError) as error:
                return f"no answer ({in_words(error)})"
        about = self.about.get(worker)
        return about[0] if isinstance(about, tuple) else f"no VRAM Casebook ({about!r})"

    def _name(self, worker: str) -> str:
        """A worker by the name that it was started with, and its address."""
        name = self.workers[worker]["name"] if worker in self.workers else ""
        return worker if name in ("", worker) else f"{name} ({worker})"

    def _refused(self) -> list[str]:
        """The workers of another version, in words."""
        versions = {worker: self._version_of(worker) for worker in self.workers}
        return [
            f"worker {self._name(worker)}: seen {version}; expected VRAM Casebook {__version__} as here"
            for worker, version in versions.items()
            if version != __version__
        ]

    def _borrow(self, wanted: dict[str, float]) -> str:
        """A free worker that has what is wanted, the one with the fewest resources; or nothing."""
        with self.choosing:
            free = [
                worker for worker in self._usable(wanted) if worker not in self.busy
            ]
            if not free:
                return ""
            worker = min(
                free, key=lambda address: len(self.workers[address]["resources"])
            )
            self.busy.add(worker)
            return worker


def refuse_open_door(address: str) -> None:
    """Raise PlanError where others can reach an address of the cluster without TLS.

    Whoever reaches it can run any program there.
    """
    scheme, _, place = address.rpartition("://")
    host = place.rpartition(":")[0].strip("[]")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name of a machine
        is_loopback = False
    if scheme == "tls" or (scheme == "tcp" and is_loopback):
        return
    seen = f"seen {scheme}:// beyond loopback" if scheme else "seen no tls:// before it"
    raise PlanError(
        f"{address}: {seen}; expected tls://, by Dask's TLS configuration; {GUIDE}"
    )


def resources_for(run: Run | Step) -> dict[str, float]:
    """What a run wants of a worker, as resources that the worker was started with.

    ``GPU=1`` for what loads or provokes or names a GPU; a named one also wants its PCI address.
    """
    if run.gpu:
        return {"GPU": 1.0, run.gpu: 1.0}
    return {"GPU": 1.0} if run.danger in ("loads", "provokes") else {}


def reads_home(folder: Path, run: Run, job: Job) -> bool:
    """Whether a run reads what only this box has: the batch's folder, or a bundle by its path."""
    parameters = job["parameters"]
    if run.box != "live" and Path(str(parameters.get("box", ""))).is_absolute():
        return True
    texts = [value for name, value in parameters.items() if name != "box"]
    return str(folder.parent) in str(texts).replace(str(folder), "")


def _connected(address: str, connect_s: float) -> Client:
    """A client of the scheduler at this address. Raises PlanError where none answers."""
    from distributed import Client

    # The records say what is lost.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=connect_s, set_as_default=False, name="casebook")
    except (
        OSError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # TypeError: TLS without keys
        raise PlanError(
            f"{address}: no scheduler answers ({in_words(error)}); expected "
            f"one; {GUIDE}"
        ) from error


def _brought(folder: Path, started: Run, outcome: RunOutcome) -> Run:
    """Write the files that a worker sent into the run's folder, none elsewhere; the run's record."""
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
