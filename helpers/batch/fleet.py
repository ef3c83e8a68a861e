"""A fleet: the runs of a batch carried out by the workers of a dask.distributed scheduler,
which is transport and no more.

The batch itself decides which worker gets which run, one at a time; nothing is ever repeated by
the scheduler. How workers are started is in env/FLEET.md. The package distributed is imported
here alone, when a fleet is asked for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.look.files import write_atomic

from .box_state import Gates
from .fleet_worker import (
    ASK_S,
    GUIDE,
    KEYS,
    LOST,
    Board,
    FleetError,
    carry,
    forget,
    loaded,
    security,
    unfit,
)
from .plan import CheckedPlan
from .record import BLAMED, files_below, in_words, move, node, now
from .runner import Job, Local, Stop, Tick, kept, run_one
from .shapes import Run

TICK_S = 0.5
# While the client looks for its scheduler it has none.
CUT_OFF = (*LOST, AttributeError)


def needs(run: Any) -> dict[str, float]:
    """What a Run or Step wants of a worker, as resources that the worker was started with.

    ``GPU=1`` for what loads or provokes or names a GPU; a named one also wants its PCI address
    as a resource.
    """
    named = {run.gpu: 1.0} if run.gpu else {}
    return {"GPU": 1.0, **named} if named or run.danger in ("loads", "provokes") else {}


class Fleet(Local):
    """Carries out runs on ``slots`` workers, one each; ``keys`` are those of a tls:// address.

    Raises FleetError where there is no scheduler, no worker, or a wrong one.

    A worker that is silent for ``silent_s`` seconds (``first_s`` before its first word), or
    whose connection ends, is lost: its run is node_lost, and it gets no other. Its node ends
    that run when it has heard nothing from here for ``lease_s``. What a run leaves comes home
    up to ``limit_bytes``; where the node sees the batch's folder too, it is moved there
    instead.
    """

    one_box = False

    def __init__(
        self,
        address: str,
        *,
        keys: Path | None = None,
        stop: Stop | None = None,
        run_one: Callable[..., Run] = run_one,
        first_s: float = 60,
        silent_s: float = 30,
        lease_s: float = 60,
        limit_bytes: int = 64 << 20,
    ):
        super().__init__(1, stop, run_one)
        self.address = address
        self.first_s = first_s
        self.silent_s = silent_s
        self.lease_s = lease_s
        self.limit_bytes = limit_bytes
        self.key = uuid.uuid4().hex
        self.token = uuid.uuid4().hex
        self.beat = 0
        self.gone = ""
        self.scheduler = ""
        self.gates = Gates()
        self.node_strikes = 0
        self.strikes = Counter[str]()
        self.workers: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}  # also of those that are gone
        self.words: dict[str, dict[str, Any]] = {}  # the last word on each run, by its key
        self.out: dict[str, str] = {}  # workers that get no further run, and why
        self.busy: set[str] = set()
        self.tokens: set[Path] = set()
        self.given_up: list[str] = []
        self.forgets: list[Any] = []
        self.at_home = threading.Lock()
        self.changed = threading.Condition()
        self.closed = threading.Event()
        self.insecure = False
        self.checkout = loaded()
        self.client = _connect(address, keys, first_s)
        self.board = Board(self.client.sync, lambda: self.client.scheduler, self.key)
        self.beats = threading.Thread(target=self._beat, name="fleet", daemon=True)
        try:
            self._look()
            if not self.workers:
                why = "seen no worker; expected one for each GPU"
                raise FleetError(f"{address}: {why}; start it {GUIDE}")
        except (*LOST, FleetError) as error:
            self.client.close(timeout=ASK_S)
            if isinstance(error, FleetError):
                raise
            why = f"the scheduler fell silent ({type(error).__name__}); start it anew"
            raise FleetError(f"{address}: {why}") from error
        self.beats.start()

    @property
    def slots(self) -> int:
        """Workers that may get a run; at least 1, so that a batch whose workers are gone is
        told so run by run.
        """
        return max(1, len(self._usable()))

    def check(self, checked: CheckedPlan) -> None:
        """Take the plan's gates and rules.

        Raises FleetError where a step wants what no worker has, before any run is given.
        """
        self.gates = checked.plan.gates
        self.node_strikes = checked.plan.stop.node_strikes or 0
        self.insecure = checked.plan.insecure
        self._inspect()
        for step in checked.steps:
            if not self._usable(needs(step)):
                wanted = ",".join(f"{name}=1" for name in needs(step))
                seen = f"seen no worker with {wanted} among {len(self.workers)}"
                advice = f"start it with --resources {wanted}, or take the run out"
                raise FleetError(f"{step.run_id}: {seen}; expected one; {advice}")

    def close(self) -> None:
        """End the lease: what still runs on a node is ended there."""
        until = time.monotonic() + ASK_S
        while not self.gone and time.monotonic() < until:
            if all(one.done() for one in self.forgets):
                break
            time.sleep(TICK_S / 10)
        self.closed.set()
        self.beats.join(ASK_S)
        with suppress(*CUT_OFF):  # closed before
            self.board.put(None)
        self.client.close(timeout=ASK_S)
        for token in self.tokens:
            token.unlink(missing_ok=True)

    def carry(self, folder: Path, run: Run, job: Job, tick: Tick) -> Run:
        """Carry out a planned run on the next free worker; its record, whatever became of its
        node.
        """
        if _reads_home(folder, run, job):
            if needs(run):
                why = "seen paths of this box and a wish for a worker's GPU; expected one of them"
                return move(run, "skipped", cause=why)
            with self.at_home:
                return super().carry(folder, run, job, tick)
        while True:
            worker, why = self._borrow(needs(run))
            if not worker:
                kind = "interrupt" if self.stop.signal else "quarantine"
                return move(run, "skipped", cause=why, stopped_by=kind)
            try:
                ended = self._on(worker, folder, run, job, tick)
            finally:
                with self.changed:
                    self.busy.discard(worker)
                    self.changed.notify_all()
            if ended is not None:
                return kept(folder, ended)

    def _borrow(self, wanted: dict[str, float]) -> tuple[str, str]:
        """(a free worker that has what is wanted, or nothing and why).

        Waits for one while any is there.
        """
        with self.changed:
            while True:
                usable = self._usable(wanted)
                if self.stop.signal:
                    return "", f"interrupted ({self.stop.signal})"
                if self.gone or not usable:
                    none = ["no worker that may run it is left", *self.out.values()]
                    return "", self.gone or "; ".join(none)[:500]
                free = [(len(self.workers[one]["resources"]), one) for one in usable]
                free = sorted(one for one in free if one[1] not in self.busy)
                if free:
                    self.busy.add(free[0][1])
                    return free[0][1], ""
                self.changed.wait(TICK_S)

    def _on(self, worker: str, folder: Path, run: Run, job: Job, tick: Tick) -> Run | None:
        """The record of a run given to a worker, or None where it was not started there and
        will not be.
        """
        key = f"{run.run_id}-{uuid.uuid4().hex}"
        options = {"workers": [worker], "allow_other_workers": False, "resources": needs(run)}
        order = self._order(worker, key, folder, run, job)
        task = self._submit(carry, order, self.run_one, key=key, **options)
        word: dict[str, Any] = {}
        back: dict[str, Any] = {}
        heard = time.monotonic()
        while not (trouble := self._trouble(worker, task, heard, bool(word))):
            if task.status == "finished":
                break
            if (new := self.words.get(key, {})) != word:
                heard = time.monotonic()
                run = _started(folder, run, new)
                word = new
                tick(word["cell"], word["cells"], word["seconds"])
            time.sleep(TICK_S / 2)
        if not trouble:
            try:
                back = task.result(timeout=self.silent_s)
            except Exception as error:  # noqa: BLE001  whatever the worker, or the way to it, raised
                trouble = f"its result is lost: {in_words(error)}"
        if "run" in back:
            ended = _brought(folder, _started(folder, run, back), back)
            if not back["left"] and ended.notes == Run.model_validate_json(back["run"]).notes:
                self.forgets.append(self._submit(forget, back["there"], workers=[worker]))
            self._judge(worker, ended)
            return ended
        trouble = self.out[worker] = f"{self._name(worker)}: {trouble or back.get('refused')}"
        word = self._give_up(key, word)
        task.release()
        return self._lost(folder, run, word, trouble, heard) if word else None

    def _submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self.client.submit(call, *arguments, pure=False, retries=0, **options)

    def _lost(
        self, folder: Path, run: Run, word: dict[str, Any], trouble: str, heard: float
    ) -> Run:
        """The record of a run whose node is lost, with the last word on it."""
        at = "it starts"
        if word.get("cells"):
            at = f"cell {word['cell']} of {word['cells']} after {word['seconds']:.0f} s"
        last = f"its last word, {time.monotonic() - heard:.0f} s before: {at}"
        cause = f"the node of worker {trouble}; {last}"
        files = files_below(folder)
        notes = [f"what it wrote lies on {word['node']} in {word['there']}"]
        changes: dict[str, Any] = {"cause": cause, "files": files, "notes": notes}
        return move(_started(folder, run, word), "node_lost", ended_at=now(), **changes)

    def _order(self, worker: str, key: str, folder: Path, run: Run, job: Job) -> dict[str, Any]:
        """What a worker gets, the notebook included.

        A node with several workers is watched by their named GPUs alone.
        """
        order: dict[str, Any]
        token = folder.parent / f".fleet-{self.key[:8]}"
        source = Path(job["source"])
        with self.changed:  # one of the runs that start at once
            if not token.exists():
                write_atomic(token, self.token)
            self.tokens.add(token)
        gpus = [name for name in self.workers[worker]["resources"] if ":" in name]
        alone = len(self._beside(worker)) == 1
        watched = "box" if alone else "gpus" if gpus else ""
        order = {"fleet": self.key, "key": key, "checkout": self.checkout, "box": node()}
        order["insecure"] = self.insecure
        order |= {"lease_s": self.lease_s, "limit_bytes": self.limit_bytes}
        order |= {"home": str(folder), "batch": folder.parent.name}
        order |= {"token": str(token), "token_text": self.token}
        order |= {"run": run.model_dump_json(), "job": job}
        order |= {"name": source.name, "notebook": source.read_bytes()}
        return {**order, "gpus": gpus, "gates": self.gates, "watched": watched}

    def _trouble(self, worker: str, task: Any, heard: float, began: bool) -> str:
        """Why a run that has not come back is not waited for any longer."""
        if task.status == "finished":
            return ""
        if task.status == "error":
            error = task.exception(timeout=ASK_S)
            if type(error).__name__ != "KilledWorker":
                return in_words(error)
        if self._is_gone():
            return self.gone
        if worker not in self.workers or task.status != "pending":
            return "its connection to the scheduler ended"
        patience_s = self.silent_s if began else self.first_s
        return f"no word for {patience_s:g} s" if time.monotonic() - heard > patience_s else ""

    def _give_up(self, key: str, word: dict[str, Any]) -> dict[str, Any]:
        """The last word on a run that is given up; none only where it is certain that it was
        not and will not be started.
        """
        try:
            self.given_up.append(key)
            self._lease()
            return self.board.get("said", key) or word
        except CUT_OFF:
            return word or {"node": "a node", "there": "its scratch folder"}

    def _judge(self, worker: str, run: Run) -> None:
        """Keep further runs from a worker, or from its whole node, after what one did there."""
        self.strikes[run.node] += run.state in BLAMED
        many = 0 < self.node_strikes <= self.strikes[run.node]
        if run.quarantined or run.state == "stuck" or many:
            why = run.gate or (f"{self.strikes[run.node]} strikes" if many else run.cause)
            whole = many or "box" in run.quarantined
            for one in self._beside(worker) if whole else [worker]:
                self.out[one] = f"{self._name(one)}: closed after {run.run_id}: {why}"

    def _beside(self, worker: str) -> list[str]:
        """The workers of a worker's node, itself among them."""
        host = self.workers[worker]["host"] if worker in self.workers else None
        return [one for one, about in self.workers.items() if about["host"] == host]

    def _beat(self) -> None:
        """Renew the lease and look at the workers until closed; without an answer for
        ``silent_s`` the scheduler is gone.
        """
        answered = time.monotonic()
        while not self.closed.wait(TICK_S) and not self.gone:
            try:
                self._look()
                answered = time.monotonic()
            except CUT_OFF as error:
                if time.monotonic() - answered > self.silent_s:
                    why = f"no answer for {self.silent_s:g} s ({in_words(error)})"
                    self.gone = f"the scheduler {self.address} is gone: {why}"
            with self.changed:
                self.changed.notify_all()

    def _look(self) -> None:
        """One exchange with the scheduler. Raises one of LOST."""
        self._lease()
        seen = self.client.sync(self.client.scheduler.identity, callback_timeout=ASK_S)
        if self.scheduler not in ("", seen["id"]):
            why = "was started anew; it knows nothing of this batch"
            self.gone = f"the scheduler {self.address} {why}"
        self.words = self.board.get("said") or {}
        for one in self.workers.keys() - seen["workers"].keys():
            self.out.setdefault(one, f"{self._name(one)}: its connection to the scheduler ended")
        self.scheduler = seen["id"]
        self.workers = seen["workers"]
        self.names |= {one: about["name"] for one, about in self.workers.items()}

    def _lease(self) -> None:
        self.beat += 1
        lease = {"beat": self.beat, "given_up": self.given_up}
        self.board.put({**lease, "stop": self.stop.signal, "times": self.stop.times}, "lease")

    def _inspect(self) -> None:
        """Refuse a scheduler or workers of another checkout, or with doors open.

        One that is silent shows when it gets a run.
        """
        asked = (self.checkout, self.insecure)
        whose = "expected one started in the checkout"
        try:
            seen = {self.address: self.client.run_on_scheduler(unfit, *asked)}
        except (ImportError, *CUT_OFF) as error:
            seen = {self.address: f"seen {in_words(error)}; {whose}"}
        with suppress(*CUT_OFF):
            ask = {"on_error": "return", "callback_timeout": self.first_s}
            seen.update(self.client.sync(self.client._run, unfit, *asked, **ask))
        for address, why in seen.items():
            if why and not isinstance(why, CUT_OFF):
                why = f"seen {in_words(why)}; {whose}" if isinstance(why, Exception) else why
                raise FleetError(f"{self._name(address)}: {why}; see env/FLEET.md")

    def _is_gone(self) -> bool:
        if not self.gone and self.client.status != "running":
            self.gone = f"the connection to the scheduler {self.address} ended"
        return bool(self.gone)

    def _usable(self, wanted: dict[str, float] | None = None) -> list[str]:
        """The workers that may get a run that wants these resources."""
        if self._is_gone():
            return []

        def has(about: dict[str, Any]) -> bool:
            own = about["resources"]
            needs = (wanted or {}).items()
            return all(own.get(name, 0) >= count for name, count in needs)

        return [one for one, about in self.workers.items() if one not in self.out and has(about)]

    def _name(self, worker: str) -> str:
        name = self.names.get(worker) or worker
        return worker if name == worker else f"{name} ({worker})"


def _connect(address: str, keys: Path | None, first_s: float) -> Any:
    from distributed import Client

    own = security(keys or KEYS) if address.startswith("tls:") else None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # records say what is lost
    try:
        options: dict[str, Any] = {"set_as_default": False, "name": "casebook"}
        return Client(address, timeout=first_s, security=own, **options)
    except (*LOST, ValueError) as error:
        keys_too = " that has the same keys" if own else ""
        why = f"no scheduler answers ({type(error).__name__}); expected one{keys_too}"
        why += f"; start it {GUIDE}"
        raise FleetError(f"{address}: {why}") from error


def _reads_home(folder: Path, run: Run, job: Job) -> bool:
    """Whether a run is given the batch's folder, or a bundle by its path: only this box is sure
    to have them.
    """
    own = str(folder)
    given = job["parameters"]
    words = str([value for name, value in given.items() if name != "box"]).replace(own, "")
    bundle = run.box != "live" and os.path.isabs(str(given.get("box", "")))
    return bundle or str(folder.parent) in words


def _started(folder: Path, run: Run, word: dict[str, Any]) -> Run:
    """The record of a run whose worker has said that it starts; written the first time."""
    if run.state != "planned":
        return run
    about = {"node": word["node"], "boot_id": word.get("boot_id", ""), "started_at": now()}
    return kept(folder, move(run, "started", **about))


def _brought(folder: Path, started: Run, back: dict[str, Any]) -> Run:
    """What a worker sent, laid into the run's folder, and its record.

    Never writes outside of that folder.
    """
    ended = Run.model_validate_json(back["run"])
    notes = []
    place = f"{started.node} in {back['there']}"
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
        why = f"not all files could be written here: {error.strerror}"
        notes.append(f"{why}; they lie on {place}")
    for name, size in back["left"].items():
        notes.append(f"{name} ({size} bytes) was left on {place}/{ended.run_id}")
    changes = {"notes": [*ended.notes, *notes], "files": files_below(folder)}
    return ended.model_copy(update={"node": started.node, **changes})
