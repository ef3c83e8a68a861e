"""A tuning study that survives its workers: trials run in processes, one supervisor writes the
study, no trial is run twice.

A slot (0 to trials - 1) is one Optuna trial, whose sampler is seeded by its number; where a
supervisor died over one, the next goes on with it. A worker's answer is written to its trial
before the study is told, ``outcome`` last, so what the study has not heard is told at the
resume.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from helpers.ground import umask
from helpers.ground.child import json_row, program, watch
from helpers.look.message import of_device, of_host
from helpers.look.messages import read_message

LONGEST_BACKOFF_S = 60.0
END_S = 5.0
TRIES = 3
MEASURED = ("peak_bytes", "left_bytes", "cleanup_s", "seconds", "message")


@dataclass(frozen=True)
class Settings:
    """How the study is run: ``parallel`` workers, ``limit_s`` seconds a trial.

    A worker is replaced after ``recycle_after`` trials, or when ``growth_bytes`` more are left
    after a trial's cleanup than after its first. ``restarts``: unplanned ones in a row before
    it gives up; the n-th waits ``backoff_s`` * 2 ** (n - 1). ``sampler`` makes one for a seed
    (default: TPE).
    """

    parallel: int = 1
    recycle_after: int = 50
    growth_bytes: int = 256 << 20
    limit_s: float = 3600.0
    restarts: int = 5
    backoff_s: float = 1.0
    direction: str = "minimize"
    seed: int = 0
    sampler: Callable[[int], Any] = lambda seed: optuna.samplers.TPESampler(seed=seed)


@dataclass
class Tuned:
    """``results``: a row a slot, in order, with the number of its Optuna trial, its params and
    value, and ``outcome``: ok, oom, host_oom, device_assert, error, crashed or timed_out;
    sizes in bytes. How often a worker was restarted unplanned and recycled as planned in
    this life of the supervisor, trials that an earlier one left over, and why it gave up, if
    so.
    """

    results: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    restarts: int = 0
    recycled: int = 0
    interrupted: int = 0
    gave_up: str = ""


def worker(python: str, objective: str) -> list[str]:
    """The command line of a worker, under any interpreter, for the objective ``FILE.py:FUNCTION``."""
    return program(python, "helpers.trials.under_torch.tuning_trial", objective)


def outcome_of(told: Mapping[str, Any]) -> str:
    """What a worker's answer means: ok, oom, host_oom, device_assert (its context is poisoned:
    replace the worker) or error.

    A context that was used after the failure, and lived or did not, decides before any words do.
    """
    context = told.get("context")
    read = read_message(str(told.get("message", ""))).messages
    faulty = any(one.event in ("assert", "fault") for one in read)
    if context == "dead" or (context != "alive" and faulty):
        return "device_assert"
    if "value" in told or any(map(of_device, read)):
        return "ok" if "value" in told else "oom"
    return "host_oom" if any(map(of_host, read)) else "error"


def tune(
    storage: Path,
    argv: Sequence[str],
    space: Mapping[str, Any],
    trials: int,
    settings: Settings = Settings(),
    env: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Run ``trials`` trials, or what is left of them, of the study in the SQLite file ``storage``.

    ``argv`` starts a ``worker``, ``space`` names Optuna distributions, ``say`` gets a line on
    each thing that did not go as planned. Raises ValueError where another supervisor has this
    study, or the storage cannot be used.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{storage}.lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = "another supervisor runs this study; wait for it or end it"
            raise ValueError(f"{storage}: {other}") from None
        study = _study(storage, settings.direction)
        return _Supervisor(study, argv, env, space, trials, settings, say).run()


def _study(storage: Path, direction: str) -> optuna.Study:
    """The study; a new storage is made under another name first, so that a kill leaves none or
    a whole one.
    """

    def opened(path: Path) -> Any:
        wait = {"connect_args": {"timeout": 60.0}}  # longer than any reader holds the file
        rdb = optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}", engine_kwargs=wait)
        how: Any = {"study_name": "tuning", "direction": direction, "load_if_exists": True}
        return optuna.create_study(storage=rdb, **how)

    if not storage.exists():
        part = storage.with_name(f".{storage.name}.new")
        for old in (part, Path(f"{part}-journal")):
            old.unlink(missing_ok=True)
        opened(part)._storage._backend.engine.dispose()
        os.replace(part, storage)
    try:
        return opened(storage)
    except Exception as error:  # SQLAlchemy, alembic and Optuna each have their own
        first = str(error).splitlines()[0][:200]
        raise ValueError(f"{storage}: cannot be used as an Optuna storage ({first})") from error


@dataclass
class _Supervisor:
    """One life of a study's supervisor: a thread a worker, one of them at the study; ``left``
    are trials to go on with.
    """

    study: optuna.Study
    argv: Sequence[str]
    env: Mapping[str, str] | None
    space: Mapping[str, Any]
    trials: int
    set: Settings
    say: Callable[[str], None]
    done: Tuned = field(default_factory=Tuned)
    left: list[Trial] = field(default_factory=list)
    tries: Counter[int] = field(default_factory=Counter)
    in_a_row: int = 0
    turn: Any = field(default_factory=threading.RLock)

    def run(self) -> Tuned:
        self._resume()
        others = range(self.set.parallel - 1)
        lanes = [threading.Thread(target=self._lane, daemon=True) for _ in others]
        for lane in lanes:
            lane.start()
        self._lane()
        for lane in lanes:
            lane.join()
        for trial in (one for one in self.left if self.tries[one.number]):
            self._answer(trial, "crashed", {"message": self.done.gave_up})
        self.done.results = [
            {"number": one.number, "params": one.params, **one.user_attrs}
            for one in self.study.get_trials(deepcopy=False)
            if "outcome" in one.user_attrs
        ]
        self.done.results.sort(key=lambda row: row["slot"])
        values = [row["value"] for row in self.done.results if row["value"] is not None]
        self.done.best = (min if self.set.direction == "minimize" else max)(values, default=None)
        return self.done

    def _resume(self) -> None:
        """What a dead supervisor left running: told where it was answered, gone on with where
        it was asked, else failed.
        """
        for one in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            has = one.user_attrs
            trial = Trial(self.study, one._trial_id)
            if "outcome" in has:
                self._tell(trial, has["value"])
                continue
            self.done.interrupted += 1
            self.say(f"trial {one.number} was interrupted")
            if has.get("slot") is not None and set(one.params) == set(self.space):
                self.left.append(trial)
            else:
                trial.set_user_attr("slot", None)
                self._tell(trial, None)

    def _next(self) -> Trial | None:
        """The trial of the next free slot; None where there is none, or it gave up."""
        with self.turn:
            if self.done.gave_up or self.left:
                return None if self.done.gave_up else self.left.pop()
            taken = {one.user_attrs.get("slot") for one in self.study.get_trials(deepcopy=False)}
            slot = next((slot for slot in range(self.trials) if slot not in taken), None)
            if slot is None:
                return None
            self.study.sampler = self.set.sampler(self.set.seed + slot)
            trial = self.study.ask(fixed_distributions=dict(self.space))
            trial.set_user_attr("slot", slot)
            return trial

    def _lane(self) -> None:
        """Workers one after the other, until there is nothing more to try."""
        while trial := self._next():
            self._worker(trial)

    def _worker(self, hand: Trial | None) -> None:
        """One worker's life from its first trial on.

        The trial that it died in is tried again, TRIES times in all.
        """
        left: list[int] = []
        unplanned = ""
        asked, writing = os.pipe()
        with open(asked, "rb") as stdin, open(writing, "w", encoding="utf-8") as give:

            def ask() -> float:
                """Ask the trial in hand; where there is none its stdin ends, and so does it.

                How long that may take.
                """
                if hand is None:
                    give.close()
                    return END_S
                job = {"number": hand.number, "params": hand.params}
                print(json.dumps(job), file=give, flush=True)
                return self.set.limit_s

            def take(line: str) -> float | None:
                nonlocal hand, unplanned
                told = json_row(line)
                if hand is None or told.get("number") != hand.number:
                    return None
                outcome = outcome_of(told)
                self._answer(hand, outcome, told)
                left.append(told.get("left_bytes") or 0)
                if outcome == "device_assert":
                    unplanned = f"trial {hand.number}: {outcome}"
                    hand = None
                    return ask()
                self.in_a_row = 0
                grown = left[-1] - left[0] > self.set.growth_bytes
                if full := grown or len(left) >= self.set.recycle_after:
                    self.done.recycled += 1
                    left_over = f", {left[-1]} B left after cleanup" * grown
                    self.say(f"worker recycled after {len(left)} trials{left_over}")
                hand = None if full else self._next()
                return ask()

            ask()
            how: Any = {"env": self.env, "on_line": take, "stdin": stdin.fileno()}
            how["umask"] = umask.users_umask  # the objective is the user's
            ended = watch(self.argv, self.set.limit_s, **how)
        if hand is not None:
            late = ended.how == "timed_out"
            unplanned = f"the worker {ended.fate} in trial {hand.number}"
            self.tries[hand.number] += 1
            if late or self.tries[hand.number] >= TRIES:
                self._answer(hand, "timed_out" if late else "crashed", {"message": unplanned})
            else:
                self.left.append(hand)
                unplanned += ", which is tried again"
        if unplanned:
            self._wait(unplanned)

    def _answer(self, trial: Trial, outcome: str, told: Mapping[str, Any]) -> None:
        """The answer first, whole, then the study."""
        value = told.get("value") if outcome == "ok" else None
        measured = {key: told[key] for key in MEASURED if told.get(key) not in (None, "")}
        with self.turn:
            for key, what in {**measured, "value": value, "outcome": outcome}.items():
                trial.set_user_attr(key, what)
            self._tell(trial, value)

    def _tell(self, trial: Trial, value: float | None) -> None:
        self.study.tell(trial.number, value, state=TrialState.FAIL if value is None else None)

    def _wait(self, why: str) -> None:
        """Before a worker that replaces one which ended unplanned: longer each time, until it
        gives up.
        """
        with self.turn:
            self.done.restarts += 1
            self.in_a_row += 1
            wait_s = min(self.set.backoff_s * 2 ** (self.in_a_row - 1), LONGEST_BACKOFF_S)
            if self.in_a_row > self.set.restarts:
                many = f"{self.in_a_row} workers in a row ended unplanned"
                self.done.gave_up = f"{many}, the last: {why}"
                self.say(f"giving up after {self.in_a_row} failures in a row: {why}")
                return
            self.say(f"restarting a worker in {wait_s:.1f} s: {why}")
        time.sleep(wait_s)
