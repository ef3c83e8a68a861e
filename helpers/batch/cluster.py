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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import __version__

from .box_state import Gates
from .cluster_worker import Order, Outcome, carry_out, tool_version
from .plan import CheckedPlan, PlanError, Step
from .record import BLAMED, files_below, in_words, move, now
from .runner import Job, Local, Stop, Tick, kept, run_one
from .shapes import Run

TICK_S = 0.5
GUIDE = "see env/FLEET.md"


@dataclass(frozen=True)
class Word:
    """What a worker said of a run last, and when it came here (time.monotonic)."""

    node: str
    boot_id: str
    folder: str
    cell: int
    cells: int
    seconds: float
    heard: float


class Cluster(Local):
    """Carries out each run on a free worker of the scheduler at ``address``.

    A worker whose connection ends, or that says nothing for ``silent_s`` seconds (``first_s``
    before its first word), is lost: its run is node_lost, and it gets no other.

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
        first_s: float = 60,
        silent_s: float = 60,
    ):
        from distributed import Event

        super().__init__(1, stop, run_one)
        refuse_open_door(address)
        self.address = address
        self.first_s = first_s
        self.silent_s = silent_s
        self.gates = Gates()
        self.node_strikes = 0
        self.strikes: Counter[str] = Counter()
        self.topic = f"casebook-{uuid.uuid4().hex}"
        self.words: dict[str, Word] = {}
        self.closed: dict[str, str] = {}  # workers that get no further run, and why
        self.busy: set[str] = set()
        self.choosing = threading.Lock()
        self.at_home = threading.Lock()
        self.client = _connected(address, first_s)
        self.stopping = Event(f"{self.topic}-stop", client=self.client)
        try:
            self.workers = self._look()
            if not self.workers:
                raise PlanError(f"{address}: seen no worker; expected one for each GPU; {GUIDE}")
            self.client.subscribe_topic(self.topic, self._hear)
        except BaseException:
            self.client.close()
            raise

    @property
    def slots(self) -> int:
        """Workers that may get a run; at least 1, so that the rest is skipped run by run."""
        return max(1, len(self._usable({})))

    def check(self, checked: CheckedPlan) -> None:
        """Take the plan's gates and rules.

        Raises PlanError for a worker that must not take part, and for a step that wants what no
        worker has.
        """
        self.gates = checked.plan.gates
        self.node_strikes = checked.plan.stop.node_strikes or 0
        for about in self.workers.values():
            if about["memory_limit"]:
                seen = f"worker {about['name']}: seen a memory limit, at which Dask would end it"
                raise PlanError(f"{seen}; expected none; start it with --memory-limit 0")
        versions = self.client.run(tool_version, on_error="return")
        for worker, version in versions.items():
            if version != __version__:
                seen = in_words(version) if isinstance(version, Exception) else version
                expected = f"expected VRAM Casebook {__version__}; start it in its checkout"
                raise PlanError(f"worker {worker}: seen {seen}; {expected}")
        for step in checked.steps:
            if not self._usable(resources_for(step)):
                names = " ".join(f"{name}=1" for name in resources_for(step))
                seen = f"seen no worker with {names} among {len(self.workers)}"
                advice = f'start one with --resources "{names}", or take the run out'
                raise PlanError(f"{step.run_id}: {seen}; expected one; {advice}")

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
                why = "; ".join(["no worker that may run it is left", *self.closed.values()])
                return move(run, "skipped", cause=why[:500], stopped_by="quarantine")
            worker = self._borrow(resources_for(run))
            if not worker:
                time.sleep(TICK_S)
        try:
            ended = self._carried_by(worker, folder, run, job, tick)
        finally:
            with self.choosing:
                self.busy.discard(worker)
        self._close_for(worker, ended)
        return kept(folder, ended)

    def _carried_by(self, worker: str, folder: Path, run: Run, job: Job, tick: Tick) -> Run:
        key = f"{run.run_id}-{uuid.uuid4().hex}"
        source = Path(job["source"])
        order = Order(
            key=key,
            topic=self.topic,
            run=run,
            job=job,
            home=str(folder),
            name=source.name,
            notebook=source.read_bytes(),
            gates=self.gates if self._is_alone(worker) else None,
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
        began = time.monotonic()
        while not task.done():
            word = self.words.get(key)
            if word:
                run = _started(folder, run, word.node, word.boot_id)
                tick(word.cell, word.cells, word.seconds)
            trouble = self._trouble(worker, word, began)
            if trouble:
                task.cancel(force=True)
                return self._lost(folder, run, worker, key, trouble)
            if self.stop.signal and not self.stopping.is_set():
                self.stopping.set()
            with suppress(NotYet, TimeoutError):
                task.result(timeout=TICK_S)
        if task.status == "finished":
            return _brought(folder, run, task.result())
        if task.status == "error" and type(task.exception()).__name__ != "KilledWorker":
            run = _started(folder, run, "", "")
            why = f"its worker broke: {in_words(task.exception())}"
            return move(run, "failed", cause=why, ended_at=now())
        return self._lost(folder, run, worker, key, "its connection ended")

    def _trouble(self, worker: str, word: Word | None, began: float) -> str:
        """Why a run that has not come back is not waited for any longer."""
        patience_s = self.silent_s if word else self.first_s
        is_silent = time.monotonic() - (word.heard if word else began) > patience_s
        try:
            self.workers = self._look()
        except OSError as error:
            if is_silent:
                return f"the scheduler does not answer ({in_words(error)})"
            return ""
        if worker not in self.workers:
            return "its connection ended"
        return f"no word for {patience_s:g} s" if is_silent else ""

    def _lost(self, folder: Path, run: Run, worker: str, key: str, trouble: str) -> Run:
        """The record of a run whose worker is lost, with the last word on it."""
        self.closed[worker] = f"{worker}: {trouble}"
        word = self.words.get(key)
        if word is None:
            run = _started(folder, run, "", "")
            cause = f"worker {worker} is lost: {trouble}; it had not said that it starts"
            return move(run, "node_lost", cause=cause, ended_at=now())
        run = _started(folder, run, word.node, word.boot_id)
        ago_s = time.monotonic() - word.heard
        place = f"cell {word.cell} of {word.cells}" if word.cells else "it starts"
        cause = f"worker {worker} is lost: {trouble}; its last word, {ago_s:.0f} s before: {place}"
        notes = [f"what it wrote lies on {word.node} in {word.folder}"]
        files = files_below(folder)
        return move(run, "node_lost", cause=cause, notes=notes, files=files, ended_at=now())

    def _close_for(self, worker: str, run: Run) -> None:
        """Keep further runs from a worker, or from its whole box, after what one did there."""
        if run.state in BLAMED:
            self.strikes[run.node] += 1
        strikes = self.strikes[run.node]
        too_many = 0 < self.node_strikes <= strikes
        why = run.gate or run.cause
        if too_many:
            why = f"{strikes} strikes on {run.node}"
        if too_many or run.quarantined or run.state == "stuck":
            host = self.workers.get(worker, {}).get("host")
            for name, about in self.workers.items():
                if about["host"] == host:
                    self.closed[name] = f"{about['name']}: closed after {run.run_id}: {why}"

    def _look(self) -> dict[str, dict[str, Any]]:
        """The workers by their addresses, as the scheduler knows them now.

        Raises OSError where it does not answer, PlanError where one can be reached without TLS.
        """
        seen = self.client.sync(self.client.scheduler.identity, callback_timeout=5)
        for address in (seen["address"], *seen["workers"]):
            refuse_open_door(address)
        workers: dict[str, dict[str, Any]] = seen["workers"]
        return workers

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        _, told_by_worker = event
        self.words[told_by_worker["key"]] = Word(
            node=told_by_worker["node"],
            boot_id=told_by_worker["boot_id"],
            folder=told_by_worker["folder"],
            cell=told_by_worker["cell"],
            cells=told_by_worker["cells"],
            seconds=told_by_worker["seconds"],
            heard=time.monotonic(),
        )

    def _usable(self, wanted: dict[str, float]) -> list[str]:
        """The workers that may get a run that wants these resources."""
        return [
            worker
            for worker, about in self.workers.items()
            if worker not in self.closed
            and all(about["resources"].get(name, 0) >= count for name, count in wanted.items())
        ]

    def _borrow(self, wanted: dict[str, float]) -> str:
        """A free worker that has what is wanted, the one with the fewest resources; or nothing."""
        with self.choosing:
            free = [worker for worker in self._usable(wanted) if worker not in self.busy]
            free.sort(key=lambda worker: len(self.workers[worker]["resources"]))
            self.busy.update(free[:1])
            return free[0] if free else ""

    def _is_alone(self, worker: str) -> bool:
        """Whether no other worker uses the box of this one."""
        hosts = Counter(about["host"] for about in self.workers.values())
        return worker in self.workers and hosts[self.workers[worker]["host"]] == 1


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
    raise PlanError(f"{address}: {seen}; expected tls://, by Dask's TLS configuration; {GUIDE}")


def resources_for(run: Run | Step) -> dict[str, float]:
    """What a run wants of a worker, as resources that the worker was started with.

    ``GPU=1`` for what loads or provokes or names a GPU; a named one also wants its PCI address.
    """
    if run.gpu:
        return {"GPU": 1.0, run.gpu: 1.0}
    return {"GPU": 1.0} if run.danger in ("loads", "provokes") else {}


def reads_home(folder: Path, run: Run, job: Job) -> bool:
    """Whether a run is given the batch's folder, or a bundle by its path: only this box has them."""
    parameters = job["parameters"]
    if run.box != "live" and Path(str(parameters.get("box", ""))).is_absolute():
        return True
    texts = [value for name, value in parameters.items() if name != "box"]
    return str(folder.parent) in str(texts).replace(str(folder), "")


def _connected(address: str, connect_s: float) -> Any:
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # records say what is lost
    try:
        return Client(address, timeout=connect_s, set_as_default=False, name="casebook")
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # TypeError: TLS without keys
        why = f"no scheduler answers ({in_words(error)}); expected one"
        raise PlanError(f"{address}: {why}; {GUIDE}") from error


def _started(folder: Path, run: Run, name: str, boot: str) -> Run:
    """The record of a run that a worker starts; written the first time."""
    if run.state != "planned":
        return run
    return kept(folder, move(run, "started", node=name, boot_id=boot, started_at=now()))


def _brought(folder: Path, started: Run, outcome: Outcome) -> Run:
    """Lay what a worker sent into the run's folder, and nowhere else, and return its record."""
    run = outcome.run
    notes = list(run.notes)
    place = f"{run.node} in {outcome.folder}"
    try:
        for name, content in outcome.files.items():
            path = folder / name
            if ".." not in path.parts and path.is_relative_to(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except OSError as error:
        notes.append(f"not all files could be written here: {error.strerror}")
    for name, size_bytes in outcome.left.items():
        notes.append(f"{name} ({size_bytes} bytes) was left on {place}")
    changes = {"notes": notes, "files": files_below(folder)}
    return run.model_copy(update={**changes, "started_at": started.started_at or run.started_at})
