"""A tuning study that survives: trials in worker processes or threads, one supervisor alone writes the study, nothing twice.

A trial is first a slot (0 to trials - 1), whose sampler is seeded by its number, then one or more Optuna trials: where a
supervisor died over one, that one is marked failed ("interrupted") and the slot asked again with the same parameters. What a
worker answered is written to a record before the study is told, so what the study has not heard is told at the resume.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.load.tuning_plan import outcome_of
from helpers.load.tuning_worker import Worker, ready
from helpers.look.files import write_atomic

LONGEST_BACKOFF_S = 60.0
TRIES = 3
SAID = ("outcome", "peak_bytes", "left_bytes", "cleanup_s", "seconds", "message")


@dataclass(frozen=True)
class Settings:
    """How the study is run: ``parallel`` trials at once, ``by`` processes or threads of one, as tuning_plan.plan_parallel plans
    them. What a thread does to the context it does to all: after a crash or a device-side assert each trial in hand is tried
    again, alone, to learn whose it was. A worker is replaced after ``recycle_after`` trials, or when ``growth_bytes`` more are
    left after a trial's cleanup than after its first. ``restarts``: unplanned ones in a row before it gives up; the n-th waits
    ``backoff_s`` * 2 ** (n - 1). ``limit_s`` is each trial's.
    """

    parallel: int = 1
    by: str = "processes"
    recycle_after: int = 50
    growth_bytes: int = 256 << 20
    limit_s: float = 3600.0
    restarts: int = 5
    backoff_s: float = 1.0
    direction: str = "minimize"
    seed: int = 0


@dataclass(frozen=True)
class Result:
    """One slot as it ended: the number of its Optuna trial, and ``outcome`` ok, oom, host_oom, device_assert, error, crashed or
    timed_out."""

    slot: int
    number: int
    outcome: str
    value: float | None
    params: Mapping[str, Any]
    peak_bytes: int | None
    left_bytes: int | None
    message: str


@dataclass(frozen=True)
class Tuned:
    """The study's slots in order; how often a worker was restarted unplanned and recycled as planned in this life of the
    supervisor, trials that an earlier one left over, and why it gave up (empty: it did not)."""

    results: tuple[Result, ...]
    best: float | None
    restarts: int
    recycled: int
    interrupted: int
    gave_up: str


def tune(storage: Path, argv: Sequence[str], space: Mapping[str, Any], trials: int, settings: Settings | None = None, *,
         sampler: Callable[[int], Any] | None = None, env: Mapping[str, str] | None = None,
         on_line: Callable[[str], None] | None = None) -> Tuned:
    """Run ``trials`` trials, or what is left of them, of the study in the SQLite file ``storage``; records lie beside it.

    ``argv`` starts a worker (helpers/torchside/tuning_trial.py), ``space`` names Optuna distributions, ``sampler`` makes one
    for a seed (default: TPE). Raises ValueError where another supervisor has this study, the storage cannot be
    used, optuna is not installed, or ``by`` is neither processes nor threads.
    """
    if settings and settings.by not in ("processes", "threads"):
        raise ValueError(f"by {settings.by!r}; expected processes or threads")
    storage.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{storage}.lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{storage}: another supervisor runs this study; wait for it or end it") from None
        return _Supervisor(storage, argv, space, trials, settings or Settings(), sampler, env, on_line).run()


class _Supervisor:
    def __init__(self, storage: Path, argv: Sequence[str], space: Mapping[str, Any], trials: int, settings: Settings,
                 sampler: Callable[[int], Any] | None, env: Mapping[str, str] | None, on_line: Callable[[str], None] | None):
        try:
            import optuna
        except ImportError:
            raise ValueError("optuna is not installed in this Python; install the project's requirements") from None
        self.optuna, self.argv, self.space, self.trials, self.set, self.env = optuna, argv, space, trials, settings, env
        self.sampler = sampler or (lambda seed: optuna.samplers.TPESampler(seed=seed))
        self.say = on_line or (lambda line: None)
        self.records = storage.with_name(storage.name + ".records")
        self.records.mkdir(exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = self._study(storage)
        self.state = optuna.trial.TrialState
        self.workers: list[Worker] = []
        self.restarts = self.recycled = self.interrupted = self.in_a_row = 0
        self.not_before = 0.0
        self.gave_up = ""
        self.again: list[dict[str, Any]] = []

    def _study(self, storage: Path) -> Any:
        """The study; a new storage is made under another name first, so that a kill leaves none or a whole one."""
        def opened(path: Path) -> Any:
            # Longer than any reader holds the file.
            rdb = self.optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}",
                                                  engine_kwargs={"connect_args": {"timeout": 60.0}})
            return self.optuna.create_study(storage=rdb, study_name="tuning", direction=self.set.direction, load_if_exists=True)

        if not storage.exists():
            part = storage.with_name(f".{storage.name}.new")
            for old in (part, Path(f"{part}-journal")):
                old.unlink(missing_ok=True)
            opened(part)._storage._backend.engine.dispose()
            os.replace(part, storage)
        try:
            return opened(storage)
        except Exception as error:  # SQLAlchemy, alembic and Optuna each have their own
            raise ValueError(f"{storage}: cannot be used as an Optuna storage ({str(error).splitlines()[0][:200]})") from error

    def run(self) -> Tuned:
        try:
            self._resume()
            while True:
                while self.gave_up and self.again:
                    self._ended(self.again.pop(), "crashed", {"message": "the supervisor gave up"})
                while not self.gave_up and time.monotonic() >= self.not_before and self._start_one():
                    pass
                busy = [worker for worker in self.workers if worker.jobs]
                if not busy and not self.again and (self.gave_up or self._free() is None):
                    break
                ready(busy, 0.05)
                for worker in busy:
                    for job, told in worker.read():
                        self._answered(worker, job, told)
        finally:
            for worker in self.workers:
                worker.stop(0 if worker.jobs else 5.0)
        results = self._results()
        values = [one.value for one in results if one.value is not None]
        best = (min if self.set.direction == "minimize" else max)(values, default=None)
        return Tuned(tuple(results), best, self.restarts, self.recycled, self.interrupted, self.gave_up)

    def _resume(self) -> None:
        """What a dead supervisor left running: told from its record where it was answered, else failed and asked again."""
        trials = self.study.get_trials(deepcopy=False)
        waiting = {one.user_attrs.get("slot") for one in trials if one.state == self.state.WAITING}
        for one in trials:
            if one.state != self.state.RUNNING:
                continue
            slot = one.user_attrs.get("slot")
            record = self._record(slot)
            if record is not None and record["number"] == one.number:
                self._tell(record)
                continue
            self.interrupted += 1
            trial = self.optuna.trial.Trial(self.study, one._trial_id)
            trial.set_user_attr("outcome", "interrupted")
            params = {**one.system_attrs.get("fixed_params", {}), **one.params}
            if slot is not None and slot not in waiting and set(params) == set(self.space):
                # First this, then failed: killed between the two, the next resume finds it waiting, and does not ask twice.
                self.study.enqueue_trial(params, user_attrs={"slot": slot, "again": one.number})
            self.study.tell(one.number, state=self.state.FAIL)
            self.say(f"trial {one.number} was interrupted, its slot {slot} is asked again")

    def _taken(self) -> set[int]:
        return {one.user_attrs["slot"] for one in self.study.get_trials(deepcopy=False)
                if "slot" in one.user_attrs and one.user_attrs.get("outcome") != "interrupted"
                and one.state != self.state.WAITING}

    def _free(self) -> int | None:
        taken = self._taken()
        return next((slot for slot in range(self.trials) if slot not in taken), None)

    def _start_one(self) -> bool:
        """Give a trial that is to be tried again, or the next slot's, to a worker with room; False where none may start."""
        held = [job for worker in self.workers for job in worker.jobs.values()]
        by_threads = self.set.by == "threads"
        if len(held) >= self.set.parallel or any(job.get("alone") for job in held) or (
                by_threads and any(worker.leaving for worker in self.workers)):
            return False
        if self.again:
            if self.again[0].get("alone") and held:
                return False
            self._give(self.again.pop(0))
            return True
        slot = self._free()
        if slot is None:
            return False
        self.study.sampler = self.sampler(self.set.seed + slot)
        trial = self.study.ask(fixed_distributions=dict(self.space))
        if "slot" not in trial.user_attrs:
            trial.set_user_attr("slot", slot)
        self._give({"number": trial.number, "slot": trial.user_attrs.get("slot", slot), "params": trial.params, "tries": 1})
        return True

    def _give(self, job: dict[str, Any]) -> None:
        worker = next((one for one in self.workers if len(one.jobs) < one.threads and not one.leaving), None)
        if worker is None:
            worker = Worker(self.argv, self.env, self.set.parallel if self.set.by == "threads" else 1)
            self.workers.append(worker)
        worker.give(job, self.set.limit_s)

    def _answered(self, worker: Worker, job: dict[str, Any], told: dict[str, Any]) -> None:
        died = told.get("died")
        outcome = ("timed_out" if died == "timed out" else "crashed") if died else outcome_of(told)
        shared = worker.threads > 1 and not job.get("alone")
        if told.get("innocent"):
            self.again.append(job)
            return
        if (outcome == "crashed" and job["tries"] < TRIES) or (outcome == "device_assert" and shared):
            self._replace(worker, f"{died or outcome} in trial {job['number']}, which is tried again{' alone' * shared}")
            if not self.gave_up:
                self.again.append({**job, "tries": job["tries"] + bool(died), "alone": shared or job.get("alone", False)})
                return
        self._ended(job, outcome, {**told, "message": died or told.get("message", "")})
        if outcome in ("device_assert", "timed_out", "crashed"):
            self._replace(worker, f"trial {job['number']}: {outcome}")
            return
        self.in_a_row = 0
        worker.trials += 1
        left = told.get("left_bytes")
        worker.first_left_bytes = left if worker.first_left_bytes is None else worker.first_left_bytes
        grown = left is not None and left - (worker.first_left_bytes or 0) > self.set.growth_bytes
        if (grown or worker.trials >= self.set.recycle_after) and not worker.leaving:
            worker.leaving = True
            self.recycled += 1
            self.say(f"worker recycled after {worker.trials} trials" + f", {left} B left after cleanup" * grown)
        if worker.leaving and not worker.jobs and worker in self.workers:
            self.workers.remove(worker)
            worker.stop()

    def _ended(self, job: Mapping[str, Any], outcome: str, told: Mapping[str, Any]) -> None:
        """The record first, then the study."""
        record: dict[str, Any] = {"number": job["number"], "slot": job["slot"], "params": job["params"], "outcome": outcome,
                  "value": told.get("value") if outcome == "ok" else None, "message": told.get("message", ""),
                  **{key: told[key] for key in ("peak_bytes", "left_bytes", "cleanup_s", "seconds") if key in told}}
        write_atomic(self.records / f"slot-{job['slot']:06d}.json", json.dumps(record))
        self._tell(record)

    def _tell(self, record: Mapping[str, Any]) -> None:
        trial = self.optuna.trial.Trial(self.study, self.study._storage.get_trial_id_from_study_id_trial_number(
            self.study._study_id, record["number"]))
        for key in SAID:
            if record.get(key) not in (None, ""):
                trial.set_user_attr(key, record[key])
        if record["value"] is not None:
            self.study.tell(record["number"], record["value"])
        else:
            self.study.tell(record["number"], state=self.state.FAIL)

    def _replace(self, worker: Worker, why: str) -> None:
        """An unplanned end of a worker: the next one starts after a wait that doubles, until it has been enough.

        What else it had in hand is tried again, alone: one of them may have done it.
        """
        if worker not in self.workers:
            return  # by another of its trials, and counted
        self.workers.remove(worker)
        self.again += [{**job, "alone": True} for job in worker.jobs.values()]
        worker.jobs.clear()
        worker.stop(0)
        self.restarts += 1
        self.in_a_row += 1
        wait_s = min(self.set.backoff_s * 2 ** (self.in_a_row - 1), LONGEST_BACKOFF_S)
        self.not_before = time.monotonic() + wait_s
        if self.in_a_row > self.set.restarts:
            self.gave_up = f"{self.in_a_row} workers in a row ended unplanned, the last: {why}"
        self.say(f"giving up after {self.in_a_row} failures in a row: {why}" if self.gave_up
                 else f"restarting a worker in {wait_s:.1f} s: {why}")

    def _record(self, slot: int | None) -> dict[str, Any] | None:
        path = self.records / f"slot-{-1 if slot is None else slot:06d}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def _results(self) -> list[Result]:
        """From the study, which the records must agree with."""
        found = []
        for one in self.study.get_trials(deepcopy=False):
            said = one.user_attrs
            if one.state.is_finished() and said.get("outcome", "interrupted") != "interrupted":
                found.append(Result(said["slot"], one.number, said["outcome"], one.value if one.values else None, one.params,
                                    said.get("peak_bytes"), said.get("left_bytes"), said.get("message", "")))
        return sorted(found, key=lambda one: one.slot)
