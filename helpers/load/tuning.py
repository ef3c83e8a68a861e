"""A tuning study that survives its workers: trials run in processes, one supervisor writes the study, no trial is run twice.

A trial is first a slot (0 to trials - 1), whose sampler is seeded by its number, then one or more Optuna trials: where a
supervisor died over one, that one is marked failed ("interrupted") and the slot asked again with the same parameters. A
worker's answer is written to its trial before the study is told, so what the study has not heard is told at the resume.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.child import Ended, json_row, program, watch
from helpers.look.messages import of_device, of_host, read_message

LONGEST_BACKOFF_S, END_S = 60.0, 5.0
TRIES = 3
ANSWER = ("outcome", "peak_bytes", "left_bytes", "cleanup_s", "seconds", "message")


@dataclass(frozen=True)
class Settings:
    """How the study is run: ``parallel`` workers, ``limit_s`` seconds a trial. A worker is replaced after ``recycle_after``
    trials, or when ``growth_bytes`` more are left after a trial's cleanup than after its first. ``restarts``: unplanned ones
    in a row before it gives up; the n-th waits ``backoff_s`` * 2 ** (n - 1)."""

    parallel: int = 1
    recycle_after: int = 50
    growth_bytes: int = 256 << 20
    limit_s: float = 3600.0
    restarts: int = 5
    backoff_s: float = 1.0
    direction: str = "minimize"
    seed: int = 0


@dataclass
class Tuned:
    """``results``: a row a slot, in order, with the number of its Optuna trial, its params and value, and ``outcome``: ok, oom,
    host_oom, device_assert, error, crashed or timed_out; sizes in bytes. How often a worker was restarted unplanned and
    recycled as planned in this life of the supervisor, trials that an earlier one left over, and why it gave up, if so."""

    results: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    restarts: int = 0
    recycled: int = 0
    interrupted: int = 0
    gave_up: str = ""


def worker(python: str, objective: str) -> list[str]:
    """The command line of a worker, under any interpreter, for the objective ``FILE.py:FUNCTION``."""
    return program(python, "helpers.torchside.tuning_trial", objective)


def outcome_of(told: Mapping[str, Any]) -> str:
    """What a worker's answer means: ok, oom, host_oom, device_assert (its context is poisoned: replace the worker) or error.

    A context that was used after the failure, and lived or did not, decides before any words do.
    """
    context = told.get("context")
    if "value" in told:
        return "ok" if context != "dead" else "device_assert"
    read = read_message(str(told.get("message", ""))).messages
    faulty = any(one.event in ("assert", "fault") for one in read)
    if context == "dead" or (context != "alive" and faulty):
        return "device_assert"
    if any(map(of_device, read)):
        return "oom"
    return "host_oom" if any(map(of_host, read)) else "error"


def tune(
    storage: Path,
    argv: Sequence[str],
    space: Mapping[str, Any],
    trials: int,
    settings: Settings = Settings(),
    *,
    sampler: Callable[[int], Any] | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Run ``trials`` trials, or what is left of them, of the study in the SQLite file ``storage``.

    ``argv`` starts a ``worker``, ``space`` names Optuna distributions, ``sampler`` makes one for a seed (default: TPE). Raises
    ValueError where another supervisor has this study, or the storage cannot be used.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{storage}.lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = "another supervisor runs this study; wait for it or end it"
            raise ValueError(f"{storage}: {other}") from None
        study = _study(optuna, storage, settings.direction)
        made = sampler or (lambda seed: optuna.samplers.TPESampler(seed=seed))
        given = (optuna.trial, study, argv, env, space, trials, settings, made, on_line)
        return _Supervisor(*given).run()


def _study(optuna: Any, storage: Path, direction: str) -> Any:
    """The study; a new storage is made under another name first, so that a kill leaves none or a whole one."""

    def opened(path: Path) -> Any:
        wait = {"connect_args": {"timeout": 60.0}}  # longer than any reader holds the file
        rdb = optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}", engine_kwargs=wait)
        how = {"study_name": "tuning", "direction": direction, "load_if_exists": True}
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
    """One life of a study's supervisor; ``optuna`` is the package's module of trials. A thread a worker, one at the study."""

    optuna: Any
    study: Any
    argv: Sequence[str]
    env: Mapping[str, str] | None
    space: Mapping[str, Any]
    trials: int
    set: Settings
    sampler: Callable[[int], Any]
    say: Callable[[str], None]
    done: Tuned = field(default_factory=Tuned)
    in_a_row: int = 0
    turn: Any = field(default_factory=threading.RLock)

    def run(self) -> Tuned:
        self._resume()
        more = range(self.set.parallel - 1)
        others = [threading.Thread(target=self._lane, daemon=True) for _ in more]
        for one in others:
            one.start()
        self._lane()
        for one in others:
            one.join()
        for trial in self.study.get_trials(deepcopy=False):
            has = trial.user_attrs
            if trial.state.is_finished() and "answer" in has:
                row = {"slot": has["slot"], "number": trial.number, "params": trial.params}
                self.done.results.append(row | has["answer"])
        self.done.results.sort(key=lambda row: row["slot"])
        values = [row["value"] for row in self.done.results if row["value"] is not None]
        self.done.best = (min if self.set.direction == "minimize" else max)(values, default=None)
        return self.done

    def _resume(self) -> None:
        """What a dead supervisor left running: told where it was answered, else failed and asked again."""
        states, trials = self.optuna.TrialState, self.study.get_trials(deepcopy=False)
        waiting = {one.user_attrs.get("slot") for one in trials if one.state == states.WAITING}
        for one in (one for one in trials if one.state == states.RUNNING):
            slot, trial = one.user_attrs.get("slot"), self.optuna.Trial(self.study, one._trial_id)
            if "answer" in one.user_attrs:
                self._tell(trial, one.user_attrs["answer"])
                continue
            self.done.interrupted += 1
            trial.set_user_attr("outcome", "interrupted")
            params = {**one.system_attrs.get("fixed_params", {}), **one.params}
            if slot is not None and slot not in waiting and set(params) == set(self.space):
                # First this, then failed: killed between the two, the next resume finds it waiting, and does not ask twice.
                self.study.enqueue_trial(params, user_attrs={"slot": slot, "again": one.number})
            self.study.tell(one.number, state=states.FAIL)
            self.say(f"trial {one.number} was interrupted, its slot {slot} is asked again")

    def _next(self) -> Any | None:
        """The trial of the next free slot; None where there is none, or it gave up."""
        with self.turn:
            taken = {
                one.user_attrs.get("slot")
                for one in self.study.get_trials(deepcopy=False)
                if one.user_attrs.get("outcome") != "interrupted"
                and one.state != self.optuna.TrialState.WAITING
            }
            slot = next((slot for slot in range(self.trials) if slot not in taken), None)
            if slot is None or self.done.gave_up:
                return None
            self.study.sampler = self.sampler(self.set.seed + slot)
            trial = self.study.ask(fixed_distributions=dict(self.space))
            if "slot" not in trial.user_attrs:
                trial.set_user_attr("slot", slot)
            return trial

    def _lane(self) -> None:
        """Workers one after the other, until there is nothing more to try. A trial that a worker died in is tried again."""
        trial, tries = self._next(), 0
        while trial is not None:
            left, ended = self._worker(trial)
            if left is None:
                trial, tries = self._next(), 0
                continue
            tries = tries + 1 if left.number == trial.number else 1
            late, why = ended.how == "timed_out", f"the worker {ended.fate} in trial {left.number}"
            trial = left
            if not late and tries < TRIES and self._wait(f"{why}, which is tried again"):
                continue
            self._answer(left, "timed_out" if late else "crashed", {"message": why})
            if late or tries >= TRIES:
                self._wait(why)
            trial, tries = self._next(), 0

    def _worker(self, trial: Any) -> tuple[Any | None, Ended]:
        """One worker's life from its first trial on: the trial in its hand when it ended (None: it had answered), its end."""
        hand: Any = trial
        answered, first_left, poisoned = 0, 0, ""
        asked, writing = os.pipe()
        give = os.fdopen(writing, "w", encoding="utf-8")

        def ask() -> float:
            give.write(json.dumps({"number": hand.number, "params": hand.params}) + "\n")
            give.flush()
            return self.set.limit_s

        def take(line: str) -> float | None:
            nonlocal hand, answered, first_left, poisoned
            told = json_row(line)
            if hand is None or told.get("number") != hand.number:
                return None
            outcome, left = outcome_of(told), told.get("left_bytes") or 0
            self._answer(hand, outcome, told)
            answered, first_left = answered + 1, first_left if answered else left
            grown = left - first_left > self.set.growth_bytes
            if outcome == "device_assert":
                hand, poisoned = None, f"trial {hand.number}: {outcome}"
            elif grown or answered >= self.set.recycle_after:
                hand, self.in_a_row, self.done.recycled = None, 0, self.done.recycled + 1
                left_over = f", {left} B left after cleanup" * grown
                self.say(f"worker recycled after {answered} trials{left_over}")
            else:
                self.in_a_row = 0
                hand = self._next()
            if hand is not None:
                return ask()
            give.close()  # the end of its stdin, by which it ends
            return END_S

        try:
            ask()
            ended = watch(self.argv, self.set.limit_s, env=self.env, on_line=take, stdin=asked)
        finally:
            os.close(asked)
            give.close()
        if poisoned:
            self._wait(poisoned)
        return hand, ended

    def _answer(self, trial: Any, outcome: str, told: Mapping[str, Any]) -> None:
        """The answer first, whole, then the study."""
        answer = {key: told[key] for key in ANSWER if told.get(key) not in (None, "")}
        answer |= {"outcome": outcome, "value": told.get("value") if outcome == "ok" else None}
        with self.turn:
            trial.set_user_attr("answer", answer)
            self._tell(trial, answer)

    def _tell(self, trial: Any, answer: Mapping[str, Any]) -> None:
        for key in ANSWER:
            if key in answer:
                trial.set_user_attr(key, answer[key])
        state = self.optuna.TrialState.FAIL if answer["value"] is None else None
        self.study.tell(trial.number, answer["value"], state=state)

    def _wait(self, why: str) -> bool:
        """Before a worker that replaces one which ended unplanned: longer each time. False: it gives up."""
        with self.turn:
            self.done.restarts += 1
            self.in_a_row += 1
            wait_s = min(self.set.backoff_s * 2 ** (self.in_a_row - 1), LONGEST_BACKOFF_S)
            if self.in_a_row > self.set.restarts:
                many = f"{self.in_a_row} workers in a row ended unplanned"
                self.done.gave_up = f"{many}, the last: {why}"
                self.say(f"giving up after {self.in_a_row} failures in a row: {why}")
                return False
            self.say(f"restarting a worker in {wait_s:.1f} s: {why}")
        time.sleep(wait_s)
        return True
