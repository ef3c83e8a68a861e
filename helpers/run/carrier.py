"""Where runs are carried out: processes on this box, each watched by a thread that lives as long as its run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from . import one
from .plan import CheckedPlan
from .record import move
from .shapes import Run

Tick = Callable[[int, int, float], None]
RunOne = Callable[..., Run]


class Carrier(Protocol):
    """Where runs are carried out: processes on this box, or the workers of a fleet.

    With ``one_box`` all runs share a machine, and what loads or provokes runs alone there.
    """

    one_box: bool

    @property
    def slots(self) -> int:
        """How many runs may go on at once."""
        ...

    def check(self, checked: CheckedPlan) -> None:
        """Raise PlanError for a plan that cannot be carried out here, before its first run."""
        ...

    def submit(self, folder: Path, run: Run, job: dict[str, Any], tick: Tick) -> Future[Run]:
        """Carry out a planned run in its folder. The future holds its record, whatever became of it."""
        ...

    def close(self) -> None: ...


class Local:
    """Runs on this box. ``run_one`` may be another function with the signature of ``one.run_one``, as a stand-in."""

    one_box = True

    def __init__(self, slots: int = 1, stop: one.Stop | None = None, run_one: RunOne | None = None):
        self._slots, self.stop, self.run_one = slots, stop or one.Stop(), run_one or one.run_one

    @property
    def slots(self) -> int:
        return self._slots

    def check(self, checked: CheckedPlan) -> None:
        pass

    def submit(self, folder: Path, run: Run, job: dict[str, Any], tick: Tick) -> Future[Run]:
        """Start the run in a thread of its own: its process ends with the thread that started it (prctl(2))."""
        future: Future[Run] = Future()
        threading.Thread(
            target=self._carry_out, args=(future, folder, run, job, tick), daemon=True
        ).start()
        return future

    def close(self) -> None:
        pass

    def _carry_out(
        self, future: Future[Run], folder: Path, run: Run, job: dict[str, Any], tick: Tick
    ) -> None:
        try:
            future.set_result(self.run_one(folder, run, job, stop=self.stop, tick=tick))
        except BaseException as error:  # noqa: BLE001  a fault of ours is this run's record, not the end of the batch
            started = run if run.state == "started" else move(run, "started")
            future.set_result(
                move(
                    started,
                    "failed",
                    cause=f"its supervisor broke: {type(error).__name__}: {error}"[:300],
                )
            )
