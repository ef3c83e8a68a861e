"""A fleet: the runs of a batch carried out by the workers of a dask.distributed scheduler, which is transport and no more.

The batch itself decides which worker gets which run, one at a time; nothing is ever repeated by the scheduler. How workers
are started is in env/FLEET.md. The package distributed is optional and imported here alone, when a fleet is asked for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers import __version__
from helpers.look.files import write_atomic

from .carrier import Local, Tick
from .fleet_worker import ASK_S, LOST, Board, carry, forget, unfit
from .one import Stop, run_one
from .plan import CheckedPlan, PlanError
from .record import BLAMED, files_below, move, node, now, write_run
from .shapes import Gates, Run

TICK_S = 0.5


class FleetError(PlanError):
    """A fleet that cannot carry out the batch. One line: seen, expected, what to do."""


def needs(run: Any) -> dict[str, float]:
    """What a Run or Step wants of a worker, as resources that the worker was started with.

    ``GPU=1`` for what loads or provokes or names a GPU; a named one also wants its PCI address as a resource.
    """
    named = {run.gpu: 1.0} if run.gpu else {}
    return {"GPU": 1.0, **named} if named or run.danger in ("loads", "provokes") else {}


class Fleet:
    """A Carrier: ``slots`` workers, one run each. Raises FleetError where there is no scheduler, no worker, or the wrong ones.

    A worker that is silent for ``silent_s`` seconds (``first_s`` before its first word), or whose connection ends, is lost:
    its run is node_lost, and it gets no other. Its node ends that run when it has heard nothing from here for ``lease_s``.
    What a run leaves comes home up to ``limit_bytes``; where the node sees the batch's folder too, it is moved there instead.
    """

    one_box = False

    def __init__(
        self,
        address: str,
        *,
        stop: Stop | None = None,
        run_one: Callable[..., Run] = run_one,
        first_s: float = 60,
        silent_s: float = 30,
        lease_s: float = 60,
        limit_bytes: int = 64 << 20,
    ):
        self.address, self.stop, self.run_one = address, stop or Stop(), run_one
        self.first_s, self.silent_s, self.lease_s, self.limit_bytes = (
            first_s,
            silent_s,
            lease_s,
            limit_bytes,
        )
        self.key, self.token, self.beat, self.gone, self.scheduler = (
            uuid.uuid4().hex,
            uuid.uuid4().hex,
            0,
            "",
            "",
        )
        self.gates, self.node_strikes, self.strikes = Gates(), 0, Counter[str]()
        self.workers: dict[str, dict[str, Any]] = {}
        self.said: dict[str, dict[str, Any]] = {}  # the last word on each run, by its key
        self.out: dict[str, str] = {}  # workers that get no further run, and why
        self.busy: set[str] = set()
        self.tokens: set[Path] = set()
        self.given_up: list[str] = []
        self.forgets: list[Any] = []
        self.at_home, self.changed, self.closed = (
            threading.Lock(),
            threading.Condition(),
            threading.Event(),
        )
        self.client = _connect(address, first_s)
        self.board = Board(self.client.sync, lambda: self.client.scheduler, self.key)
        self.beats = threading.Thread(target=self._beat, name="fleet", daemon=True)
        try:
            self._look()
            self._shake_hands()
        except (*LOST, FleetError) as error:
            self.client.close(timeout=ASK_S)
            if isinstance(error, FleetError):
                raise
            raise FleetError(
                f"{address}: the scheduler fell silent ({type(error).__name__}); start it anew"
            ) from error
        self.beats.start()

    @property
    def slots(self) -> int:
        """Workers that may get a run; at least 1, so that a batch whose workers are gone is told so run by run."""
        return max(1, len(self._usable()))

    def check(self, checked: CheckedPlan) -> None:
        """Take the plan's gates and rules. Raises FleetError where a step wants what no worker has, before any run is given."""
        self.gates, self.node_strikes = checked.plan.gates, checked.plan.stop.node_strikes or 0
        for step in checked.steps:
            if not self._usable(needs(step)):
                wanted = ",".join(f"{name}=1" for name in needs(step))
                raise FleetError(
                    f"{step.run_id}: seen no worker with {wanted} among {len(self.workers)}; expected one; start "
                    f"it with --resources {wanted}, or take the run out"
                )

    def submit(self, folder: Path, run: Run, job: dict[str, Any], tick: Tick) -> Future[Run]:
        """Carry out a planned run on the next free worker. The future holds its record, whatever became of its node."""
        return Local(1, self.stop, self._carried).submit(folder.resolve(), run, job, tick)

    def close(self) -> None:
        """End the lease: what still runs on a node is ended there."""
        until = time.monotonic() + ASK_S
        while (
            not self.gone
            and time.monotonic() < until
            and not all(one.done() for one in self.forgets)
        ):
            time.sleep(TICK_S / 10)
        self.closed.set()
        self.beats.join(ASK_S)
        with suppress(*LOST, AttributeError):  # closed before
            self.board.put(None)
        self.client.close(timeout=ASK_S)
        for token in self.tokens:
            token.unlink(missing_ok=True)

    def _carried(self, folder: Path, run: Run, job: dict[str, Any], stop: Stop, tick: Tick) -> Run:
        if _reads_home(folder, run, job):
            if needs(run):
                return move(
                    run,
                    "skipped",
                    cause="seen paths of this box and a wish for a worker's GPU; expected one of them",
                )
            with self.at_home:
                return self.run_one(folder, run, job, stop=stop, tick=tick)
        while True:
            worker, why = self._borrow(needs(run))
            if not worker:
                return move(
                    run,
                    "skipped",
                    cause=why,
                    stopped_by="interrupt" if stop.signal else "quarantine",
                )
            try:
                ended = self._on(worker, folder, run, job, tick)
            finally:
                with self.changed:
                    self.busy.discard(worker)
                    self.changed.notify_all()
            if ended is not None:
                return _kept(folder, ended)

    def _borrow(self, wanted: dict[str, float]) -> tuple[str, str]:
        """(a free worker that has what is wanted, or nothing and why). Waits for one while any is there."""
        with self.changed:
            while True:
                usable = self._usable(wanted)
                if self.stop.signal or self.gone or not usable:
                    none = "; ".join(
                        ["no worker that may run it is left", *list(self.out.values())]
                    )[:500]
                    return (
                        "",
                        f"interrupted ({self.stop.signal})"
                        if self.stop.signal
                        else self.gone or none,
                    )
                if free := sorted(
                    set(usable) - self.busy,
                    key=lambda one: (len(self.workers[one]["resources"]), one),
                ):
                    self.busy.add(free[0])
                    return free[0], ""
                self.changed.wait(TICK_S)

    def _on(
        self, worker: str, folder: Path, run: Run, job: dict[str, Any], tick: Tick
    ) -> Run | None:
        """The record of a run given to a worker, or None where it was not started there and will not be."""
        name, key = self._name(worker), f"{run.run_id}-{uuid.uuid4().hex}"
        task = self.client.submit(
            carry,
            self._order(worker, key, folder, run, job),
            self.run_one,
            key=key,
            workers=[worker],
            allow_other_workers=False,
            retries=0,
            pure=False,
            resources=needs(run),
        )
        word: dict[str, Any] = {}
        back: dict[str, Any] = {}
        heard = time.monotonic()
        while (
            not (trouble := self._trouble(worker, task, heard, bool(word)))
            and task.status != "finished"
        ):
            if (new := self.said.get(key, {})) != word:
                heard, run, word = time.monotonic(), _started(folder, run, new), new
                tick(word["cell"], word["cells"], word["seconds"])
            time.sleep(TICK_S / 2)
        if not trouble:
            try:
                back = task.result(timeout=self.silent_s)
            except Exception as error:  # noqa: BLE001  whatever the worker, or the way to it, raised
                trouble = f"its result is lost: {_line(error)}"
        if "run" in back:
            ended = _brought(folder, _started(folder, run, back), back)
            if not back["left"] and ended.notes == Run.model_validate_json(back["run"]).notes:
                self.forgets.append(
                    self.client.submit(
                        forget, back["there"], workers=[worker], pure=False, retries=0
                    )
                )
            self._judge(worker, ended)
            return ended
        trouble = self.out[worker] = f"{name}: {trouble or back.get('refused')}"
        word = self._give_up(key, word)
        task.release()
        if not word:
            return None
        at = (
            f"cell {word['cell']} of {word['cells']} after {word['seconds']:.0f} s"
            if word.get("cells")
            else "it starts"
        )
        cause = f"the node of worker {trouble}; its last word, {time.monotonic() - heard:.0f} s before: {at}"
        return move(
            _started(folder, run, word),
            "node_lost",
            ended_at=now(),
            cause=cause,
            files=files_below(folder),
            notes=[f"what it wrote lies on {word['node']} in {word['there']}"],
        )

    def _order(
        self, worker: str, key: str, folder: Path, run: Run, job: dict[str, Any]
    ) -> dict[str, Any]:
        """What a worker is told, the notebook included. A node with several workers is watched by their named GPUs alone."""
        token, source, about = (
            folder.parent / f".fleet-{self.key[:8]}",
            Path(job["source"]),
            self.workers[worker],
        )
        with self.changed:  # one of the runs that start at once
            if not token.exists():
                write_atomic(token, self.token)
            self.tokens.add(token)
        gpus = [name for name in about["resources"] if ":" in name]
        alone = sum(other["host"] == about["host"] for other in self.workers.values()) == 1
        return {
            "fleet": self.key,
            "key": key,
            "version": __version__,
            "lease_s": self.lease_s,
            "limit_bytes": self.limit_bytes,
            "box": node(),
            "batch": folder.parent.name,
            "home": str(folder),
            "token": str(token),
            "token_text": self.token,
            "run": run.model_dump_json(),
            "job": job,
            "name": source.name,
            "notebook": source.read_bytes(),
            "gpus": gpus,
            "gates": self.gates.model_dump(),
            "watched": "box" if alone else "gpus" if gpus else "",
        }

    def _trouble(self, worker: str, task: Any, heard: float, began: bool) -> str:
        """Why a run that has not come back is not waited for any longer."""
        if task.status == "finished":
            return ""
        if (
            task.status == "error"
            and type(error := task.exception(timeout=ASK_S)).__name__ != "KilledWorker"
        ):
            return _line(error)
        if self._is_gone():
            return self.gone
        if worker not in self.workers or task.status != "pending":
            return "its connection to the scheduler ended"
        patience_s = self.silent_s if began else self.first_s
        return f"no word for {patience_s:g} s" if time.monotonic() - heard > patience_s else ""

    def _give_up(self, key: str, word: dict[str, Any]) -> dict[str, Any]:
        """The last word on a run that is given up; none only where it is certain that it was not and will not be started."""
        try:
            self.given_up.append(key)
            self._lease()
            return self.board.get("said", key) or word
        except (*LOST, AttributeError):
            return word or {"node": "a node", "there": "its scratch folder"}

    def _judge(self, worker: str, run: Run) -> None:
        """Keep further runs from a worker, or from its whole node, after what one did there."""
        self.strikes[run.node] += run.state in BLAMED
        many = 0 < self.node_strikes <= self.strikes[run.node]
        if run.quarantined or run.state == "stuck" or many:
            why = run.gate or (f"{self.strikes[run.node]} strikes" if many else run.cause)
            for one, about in self.workers.items():
                if one == worker or (
                    (many or "box" in run.quarantined)
                    and about["host"] == self.workers[worker]["host"]
                ):
                    self.out[one] = f"{self._name(one)}: closed after {run.run_id}: {why}"

    def _beat(self) -> None:
        """Renew the lease and look at the workers until closed; without an answer for ``silent_s`` the scheduler is gone."""
        answered = time.monotonic()
        while not self.closed.wait(TICK_S) and not self.gone:
            try:
                self._look()
                answered = time.monotonic()
            except (
                *LOST,
                AttributeError,
            ) as error:  # the client has no scheduler while it looks for it
                if time.monotonic() - answered > self.silent_s:
                    self.gone = f"the scheduler {self.address} is gone: no answer for {self.silent_s:g} s ({_line(error)})"
            with self.changed:
                self.changed.notify_all()

    def _look(self) -> None:
        """One exchange with the scheduler. Raises one of LOST."""
        self._lease()
        seen = self.client.sync(self.client.scheduler.identity, callback_timeout=ASK_S)
        if self.scheduler not in ("", seen["id"]):
            self.gone = (
                f"the scheduler {self.address} was started anew; it knows nothing of this batch"
            )
        self.said = self.board.get("said") or {}
        for one in self.workers.keys() - seen["workers"].keys():
            self.out.setdefault(one, f"{self._name(one)}: its connection to the scheduler ended")
        self.scheduler, self.workers = seen["id"], seen["workers"]

    def _lease(self) -> None:
        self.beat += 1
        said = {"stop": self.stop.signal, "times": self.stop.times}
        self.board.put({"beat": self.beat, "given_up": self.given_up, **said}, "lease")

    def _shake_hands(self) -> None:
        """Refuse a scheduler or workers that a batch must not be given to."""
        import dask.config

        allowed = self.client.run_on_scheduler(
            dask.config.get, "distributed.scheduler.allowed-failures"
        )
        if allowed != 0:
            raise FleetError(
                f"{self.address}: seen allowed-failures {allowed}; expected 0, or what kills a node goes to more; "
                "start the scheduler with DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=0"
            )
        try:
            why = self.client.run_on_scheduler(unfit, __version__)
        except ImportError as error:
            why = f"seen {error}; expected a scheduler that was started in the checkout"
        why = why or ("" if self.workers else "seen no worker; expected one for each GPU")
        if why:
            raise FleetError(f"{self.address}: {why}; start it as env/FLEET.md says")

    def _is_gone(self) -> bool:
        if not self.gone and self.client.status != "running":
            self.gone = f"the connection to the scheduler {self.address} ended"
        return bool(self.gone)

    def _usable(self, wanted: dict[str, float] | None = None) -> list[str]:
        return (
            []
            if self._is_gone()
            else [
                one
                for one, about in self.workers.items()
                if one not in self.out
                and all(about["resources"].get(name, 0) >= n for name, n in (wanted or {}).items())
            ]
        )

    def _name(self, worker: str) -> str:
        name = self.workers.get(worker, {}).get("name") or worker
        return worker if name == worker else f"{name} ({worker})"


def _connect(address: str, first_s: float) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise FleetError(
            "seen no package distributed; expected it on every box of a fleet; see env/FLEET.md"
        ) from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is lost is told by records
    try:
        return Client(address, timeout=first_s, set_as_default=False, name="casebook")
    except (*LOST, ValueError) as error:
        raise FleetError(
            f"{address}: no scheduler answers ({type(error).__name__}); expected one; start it as "
            "env/FLEET.md says"
        ) from error


def _reads_home(folder: Path, run: Run, job: dict[str, Any]) -> bool:
    """Whether a run is given the batch's folder, or a bundle by its path: only this box is sure to have them."""
    own, given = str(folder), job["parameters"]
    words = str([value for name, value in given.items() if name != "box"]).replace(own, "")
    return str(folder.parent) in words or (
        run.box != "live" and os.path.isabs(str(given.get("box", "")))
    )


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _started(folder: Path, run: Run, word: dict[str, Any]) -> Run:
    """The record of a run whose worker has said that it starts; written the first time."""
    if run.state == "planned":
        return _kept(
            folder,
            move(
                run, "started", node=word["node"], boot_id=word.get("boot_id", ""), started_at=now()
            ),
        )
    return run


def _kept(folder: Path, run: Run) -> Run:
    with suppress(OSError):  # the batch holds the record, and tries again
        write_run(folder, run)
    return run


def _brought(folder: Path, started: Run, back: dict[str, Any]) -> Run:
    """What a worker sent, laid into the run's folder, and its record. Never writes outside of that folder."""
    ended, notes = Run.model_validate_json(back["run"]), []
    try:
        for path in (Path(back["there"]) / ended.run_id).iterdir() if back["shared"] else ():
            if path.name != "run.json":
                os.replace(path, folder / path.name)
        for name, content in back["files"].items():
            path = folder / name
            if ".." not in path.parts and path.is_relative_to(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except OSError as error:
        notes.append(
            f"not all files could be written here: {error.strerror}; they lie on {started.node} in {back['there']}"
        )
    notes += [
        f"{name} ({size} bytes) was left on {started.node} in {back['there']}/{ended.run_id}"
        for name, size in back["left"].items()
    ]
    return ended.model_copy(
        update={"node": started.node, "notes": [*ended.notes, *notes], "files": files_below(folder)}
    )
