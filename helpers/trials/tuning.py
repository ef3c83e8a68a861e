"""A tuning study that survives failing trials: each runs in a process of its own, and a study that
was killed continues where it stopped.

The sampler is seeded by the number of the trial, so that a study has the same trials however often
it was interrupted. The result of a trial is written to the storage as its attributes, ``outcome``
last; then Optuna is told its value. If a kill comes between, Optuna is told when the study
continues.
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
"""A trial whose process dies may have had bad luck, such as another program's out-of-memory."""
END_S = 5.0
"""Time for a process to end after its result."""
STORAGE_WAIT_S = 60.0
"""How long SQLite waits for a lock: longer than any reader holds the file."""
MOST_ERROR = 200
Direction = Literal["minimize", "maximize"]
MEASURED = ("peak_bytes", "seconds", "message")
"""What of a trial's result is kept in its attributes, with ``value`` and ``outcome``."""


@dataclass(frozen=True)
class StudySettings:
    """How the study is run: ``parallel`` trials at once, up to ``limit_s`` seconds for each; the
    parameters of a trial are drawn with ``seed`` and its number.
    """

    parallel: int = 1
    limit_s: float = 3600.0
    direction: Direction = "minimize"
    seed: int = 0


@dataclass(frozen=True)
class Tuned:
    """The results of a study: a row for each trial, in order; the ``best`` value; how many trials
    an earlier run left unfinished (``interrupted``).

    A row has the ``number``, ``params`` and ``value`` of the trial, its ``outcome`` (ok, oom,
    host_oom, device_assert, error, crashed or timed_out), and what there is of MEASURED.
    """

    results: tuple[dict[str, Any], ...]
    best: float | None
    interrupted: int


def command(python: str, objective: str, params: Mapping[str, object]) -> list[str]:
    """The command line of one trial of ``FILE.py:FUNCTION``, under any interpreter."""
    options = json.dumps({"objective": objective, "params": params})
    return program(python, PROGRAM, options)


def outcome_of(result: Mapping[str, Any]) -> str:
    """The outcome of a trial that told its result (under_torch/tuning_trial.py): ok, oom, host_oom,
    device_assert or error.

    A test of the GPU's context after a failure (``context``: alive or dead) decides before the
    words of the message: with a dead context the outcome is device_assert, whatever they say, and
    with a live one it is not. The other outcomes are by the value and by the message.
    """
    context = result.get("context")
    messages = read_message(str(result.get("message", ""))).messages
    says_fault = any(message.event in ("assert", "fault") for message in messages)
    if context == "dead" or (says_fault and context != "alive"):
        return "device_assert"
    if "value" in result and not math.isnan(result["value"]):
        return "ok"
    if any(map(of_device, messages)):
        return "oom"
    if any(map(of_host, messages)):
        return "host_oom"
    return "error"


def sampler(seed: int) -> optuna.samplers.BaseSampler:
    """The sampler that draws the parameters of one trial."""
    return optuna.samplers.TPESampler(seed=seed)


def tune(
    storage: Path,
    command_of: Callable[[Mapping[str, object]], Sequence[str]],
    space: Mapping[str, BaseDistribution],
    trials: int,
    settings: StudySettings = StudySettings(),
    say: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Run ``trials`` trials, or those that are left of them, of the study in the SQLite file
    ``storage``.

    ``command_of`` returns the command line for the parameters of a trial; ``space`` has the
    distribution of each parameter; ``say`` gets a line about each thing that went wrong. Raises
    ValueError if another process runs this study, or if the storage cannot be used.
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
    """The study in this storage. A new storage is made under another name and then renamed, so that
    a kill leaves a whole one or none. Raises ValueError.
    """
    if not storage.exists():
        part = storage.with_name(f".{storage.name}.new")
        for old in (part, Path(f"{part}-journal")):
            old.unlink(missing_ok=True)
        # Close its connections, so that all is written before the file gets its name.
        _opened(part, direction)._storage._backend.engine.dispose()  # type: ignore[attr-defined]
        os.replace(part, storage)
    try:
        return _opened(storage, direction)
    # SQLAlchemy, alembic and Optuna have errors of their own.
    except Exception as error:
        first_line, _, _ = str(error).partition("\n")
        raise ValueError(
            f"{storage}: cannot be used as an Optuna storage ({first_line[:MOST_ERROR]})"
        ) from error


def _opened(path: Path, direction: Direction) -> optuna.Study:
    """The study in a SQLite file, which is made if there is none."""
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{path.absolute()}",
        engine_kwargs={"connect_args": {"timeout": STORAGE_WAIT_S}},
    )
    return optuna.create_study(
        storage=storage,
        study_name="tuning",
        direction=direction,
        load_if_exists=True,
    )


@dataclass
class _Supervisor:
    """One run of a study. ``parallel`` threads run trials; the lock ``turn`` lets one at a time use
    the study. ``unfinished`` has Optuna's ids of trials that an earlier run left without a result.
    """

    study: optuna.Study
    command_of: Callable[[Mapping[str, object]], Sequence[str]]
    space: Mapping[str, BaseDistribution]
    trials: int
    settings: StudySettings
    say: Callable[[str], None]
    unfinished: list[int] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> Tuned:
        """Run the trials that are left, and return all results of the study."""
        self._resume()
        interrupted = len(self.unfinished)
        others = [
            threading.Thread(target=self._run_trials, daemon=True)
            for _ in range(self.settings.parallel - 1)
        ]
        for thread in others:
            thread.start()
        self._run_trials()
        for thread in others:
            thread.join()
        results = [
            {"number": trial.number, "params": trial.params, **trial.user_attrs}
            for trial in self.study.get_trials(deepcopy=False)
            if "outcome" in trial.user_attrs
        ]
        values = [row["value"] for row in results if row["value"] is not None]
        best = max(values, default=None)
        if self.settings.direction == "minimize":
            best = min(values, default=None)
        return Tuned(tuple(results), best, interrupted)

    def _resume(self) -> None:
        """Find the trials that a killed run left in the state running: tell Optuna the value of
        those that have a result, and note the others as unfinished.
        """
        for trial in self.study.get_trials(
            deepcopy=False, states=(TrialState.RUNNING,)
        ):
            if "outcome" in trial.user_attrs:
                self._tell(trial.number, trial.user_attrs["value"])
            else:
                self.unfinished.append(trial._trial_id)
                self.say(f"trial {trial.number} was interrupted")

    def _run_trials(self) -> None:
        """Run trials one after the other until none is left."""
        while trial := self._next():
            outcome, result = self._evaluated(trial)
            self._answer(trial, outcome, result)

    def _next(self) -> Trial | None:
        """The next trial with its parameters: an unfinished one, or a new one; None if all are
        made.
        """
        with self.turn:
            count = len(self.study.get_trials(deepcopy=False))
            if self.unfinished:
                trial = Trial(self.study, self.unfinished.pop())
            elif count < self.trials:
                trial = self.study.ask()
            else:
                return None
            self.study.sampler = sampler(self.settings.seed + trial.number)
            trial = Trial(self.study, trial._trial_id)  # with the new sampler
            # Draws each parameter; of an unfinished trial the ones that were drawn before stay.
            for name, distribution in self.space.items():
                trial._suggest(name, distribution)
            return trial

    def _evaluated(self, trial: Trial) -> tuple[str, Mapping[str, Any]]:
        """Run a trial: (its outcome, the row that it told). If its process dies without a result,
        the trial is run again, up to TRIES times in all, and then it is "crashed". One that passes
        its limit is "timed_out" and not run again, nor is one whose process SIGKILL does not end.
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
        """Write the result of a trial to its attributes, ``outcome`` last, and then tell Optuna."""
        value = None
        if outcome == "ok":
            value = result["value"]
        attributes = {
            key: result[key] for key in MEASURED if result.get(key) not in (None, "")
        }
        attributes.update(value=value, outcome=outcome)
        with self.turn:
            for key, content in attributes.items():
                trial.set_user_attr(key, content)
            self._tell(trial.number, value)

    def _tell(self, number: int, value: float | None) -> None:
        """Tell Optuna the value of a trial, or that it failed (None)."""
        if value is None:
            self.study.tell(number, state=TrialState.FAIL)
        else:
            self.study.tell(number, value)
