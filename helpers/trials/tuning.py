"""A tuning study that survives its trials: each runs in a process of its own, and none is run twice.

The sampler is seeded by the number of the trial, so a study gives the same trials however often
it was interrupted. What a trial told is written to it before the study is told its value,
``outcome`` last, so what the study has not heard is told at the resume.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import Trial, TrialState

from helpers.ground import umask
from helpers.ground.child import ProcessMark, program, transcript
from helpers.look.message import of_device, of_host
from helpers.look.messages import read_message
from helpers.trials.targets import environment

PROGRAM = "helpers.trials.under_torch.tuning_trial"
TRIES = 3
END_S = 5.0
Direction = Literal["minimize", "maximize"]
MEASURED = ("peak_bytes", "seconds", "message")


@dataclass(frozen=True)
class StudySettings:
    """How the study is run: ``parallel`` trials at once, ``limit_s`` seconds for each."""

    parallel: int = 1
    limit_s: float = 3600.0
    direction: Direction = "minimize"
    seed: int = 0


@dataclass(frozen=True)
class Tuned:
    """A row for each trial, in order; the best value; trials that an earlier run left unfinished.

    A row has the number, params and value of the trial, its ``outcome`` (ok, oom, host_oom,
    device_assert, error, crashed or timed_out), the bytes at its peak and its seconds.
    """

    results: tuple[dict[str, Any], ...]
    best: float | None
    interrupted: int


def command(python: str, objective: str, params: Mapping[str, object]) -> list[str]:
    """The command line of one trial of ``FILE.py:FUNCTION``, under any interpreter."""
    options = json.dumps({"objective": objective, "params": params})
    return program(python, PROGRAM, options)


def outcome_of(result: Mapping[str, Any]) -> str:
    """What the result of a trial means: ok, oom, host_oom, device_assert or error.

    A context that was used after the failure, and lived or did not, decides before any words do.
    """
    context = result.get("context")
    messages = read_message(str(result.get("message", ""))).messages
    faulty = any(message.event in ("assert", "fault") for message in messages)
    if context == "dead" or (context != "alive" and faulty):
        return "device_assert"
    if "value" in result and not math.isnan(result["value"]):
        return "ok"
    if any(map(of_device, messages)):
        return "oom"
    return "host_oom" if any(map(of_host, messages)) else "error"


def sampler(seed: int) -> optuna.samplers.BaseSampler:
    """What draws the parameters of one trial."""
    return optuna.samplers.TPESampler(seed=seed)


def tune(
    storage: Path,
    command_of: Callable[[Mapping[str, object]], Sequence[str]],
    space: Mapping[str, BaseDistribution],
    trials: int,
    settings: StudySettings = StudySettings(),
    say: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Run ``trials`` trials, or what is left of them, of the study in the SQLite file ``storage``.

    ``command_of`` gives the command line for the parameters of a trial, ``space`` names Optuna
    distributions, ``say`` gets a line on each thing that did not go as planned. Raises
    ValueError where another supervisor has this study, or the storage cannot be used.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{storage}.lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{storage}: another supervisor runs this study; wait for it or end it"
            ) from None
        study = _study(storage, settings.direction)
        return _Supervisor(study, command_of, space, trials, settings, say).run()


def _study(storage: Path, direction: Direction) -> optuna.Study:
    """The study; a new storage is made under another name first, so that a kill leaves none or
    a whole one.
    """
    if not storage.exists():
        part = storage.with_name(f".{storage.name}.new")
        for old in (part, Path(f"{part}-journal")):
            old.unlink(missing_ok=True)
        _opened(part, direction)._storage._backend.engine.dispose()  # type: ignore[attr-defined]
        os.replace(part, storage)
    try:
        return _opened(storage, direction)
    except Exception as error:  # SQLAlchemy, alembic and Optuna each have their own
        first = str(error).splitlines()[0][:200]
        raise ValueError(
            f"{storage}: cannot be used as an Optuna storage ({first})"
        ) from error


def _opened(path: Path, direction: Direction) -> optuna.Study:
    wait = {"connect_args": {"timeout": 60.0}}  # longer than any reader holds the file
    return optuna.create_study(
        storage=optuna.storages.RDBStorage(
            f"sqlite:///{path.absolute()}", engine_kwargs=wait
        ),
        study_name="tuning",
        direction=direction,
        load_if_exists=True,
    )


@dataclass
class _Supervisor:
    """One run of a study: a thread for each trial at once, one of them at the study."""

    study: optuna.Study
    command_of: Callable[[Mapping[str, object]], Sequence[str]]
    space: Mapping[str, BaseDistribution]
    trials: int
    settings: StudySettings
    say: Callable[[str], None]
    unfinished: list[int] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> Tuned:
        self._resume()
        interrupted = len(self.unfinished)
        lanes = [
            threading.Thread(target=self._lane, daemon=True)
            for _ in range(self.settings.parallel - 1)
        ]
        for lane in lanes:
            lane.start()
        self._lane()
        for lane in lanes:
            lane.join()
        results = [
            {"number": trial.number, "params": trial.params, **trial.user_attrs}
            for trial in self.study.get_trials(deepcopy=False)
            if "outcome" in trial.user_attrs
        ]
        values = [row["value"] for row in results if row["value"] is not None]
        best = min if self.settings.direction == "minimize" else max
        return Tuned(tuple(results), best(values, default=None), interrupted)

    def _resume(self) -> None:
        """Trials that a dead supervisor left running: told where they were answered, else to be
        run again.
        """
        for trial in self.study.get_trials(
            deepcopy=False, states=(TrialState.RUNNING,)
        ):
            if "outcome" in trial.user_attrs:
                self._tell(trial.number, trial.user_attrs["value"])
            else:
                self.unfinished.append(trial._trial_id)
                self.say(f"trial {trial.number} was interrupted")

    def _lane(self) -> None:
        """Trials one after the other, until there is none left."""
        while trial := self._next():
            outcome, result = self._evaluated(trial)
            self._answer(trial, outcome, result)

    def _next(self) -> Trial | None:
        """The next trial with its parameters: an unfinished one, or a new one."""
        with self.turn:
            count = len(self.study.get_trials(deepcopy=False))
            if self.unfinished:
                trial = Trial(self.study, self.unfinished.pop())
            elif count < self.trials:
                trial = self.study.ask()
            else:
                return None
            self.study.sampler = sampler(self.settings.seed + trial.number)
            trial = Trial(self.study, trial._trial_id)
            for name, distribution in self.space.items():
                trial._suggest(name, distribution)
            return trial

    def _evaluated(self, trial: Trial) -> tuple[str, Mapping[str, Any]]:
        """The outcome of a trial and what it told; one whose process dies is tried again, TRIES
        times in all.
        """
        ending = ""
        for _ in range(TRIES):
            mark = ProcessMark()
            try:
                answer = transcript(
                    self.command_of(trial.params),
                    self.settings.limit_s,
                    {"result": END_S},
                    env=environment(more=mark.variables),
                    umask=umask.users_umask,  # the objective is the user's
                )
            finally:
                for line in mark.swept():
                    self.say(f"trial {trial.number}: {line}")
            result = answer.last("result")
            if result:
                return outcome_of(result), result
            ending = f"its process {answer.ended.fate}"
            self.say(f"trial {trial.number}: {ending}")
            if answer.ended.how == "timed_out":
                return "timed_out", {"message": ending}
            if answer.ended.how == "stuck":
                break
        return "crashed", {"message": ending}

    def _answer(self, trial: Trial, outcome: str, result: Mapping[str, Any]) -> None:
        """Keep what a trial told, ``outcome`` last, and then tell the study its value: what a kill
        keeps from the study is told at the resume.
        """
        value = result.get("value") if outcome == "ok" else None
        attributes = {
            key: result[key] for key in MEASURED if result.get(key) not in (None, "")
        }
        attributes.update(value=value, outcome=outcome)
        with self.turn:
            for key, content in attributes.items():
                trial.set_user_attr(key, content)
            self._tell(trial.number, value)

    def _tell(self, number: int, value: float | None) -> None:
        self.study.tell(number, value, state=TrialState.FAIL if value is None else None)
