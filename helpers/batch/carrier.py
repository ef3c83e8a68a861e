"""Carries out the runs of a batch on this box; base class for what does so on other boxes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from .one_run import run_one
from .plan import CheckedPlan
from .record import in_words, move
from .shapes import Run
from .stop import Stop
from .watched import Job, Tick


class Local:
    """Carries out the runs of a batch on this box, up to ``slots`` at once.

    ``run_one`` carries out one run; tests give another function with its signature. ``one_box``
    says that all runs share one machine, so that a run which does more than look has it to itself.
    """

    one_box = True

    def __init__(
        self,
        slots: int = 1,
        stop: Stop | None = None,
        run_one: Callable[..., Run] = run_one,
    ):
        self.slots = slots
        if stop is None:
            stop = Stop()
        self.stop = stop
        self.run_one = run_one

    def check(self, checked: CheckedPlan) -> None:
        """Raise PlanError for a plan that cannot be carried out here, before its first run."""

    def carried(self) -> str:
        """Which workers carry the runs out and where results go; empty if this box does all."""
        return ""

    def submit(self, folder: Path, run: Run, job: Job, tick: Tick) -> Future[Run]:
        """Carry out a planned run in its folder; the future holds its record, never an exception.

        Each run has its own thread, and no pool reuses it: a runner ends together with the thread
        that started it (PR_SET_PDEATHSIG of prctl(2)).
        """
        future: Future[Run] = Future()

        def fulfil() -> None:
            try:
                future.set_result(self.carry(folder.resolve(), run, job, tick))
            except BaseException as error:  # noqa: BLE001  a fault of ours is this run's record, not the end of the batch
                why = f"its supervisor broke: {in_words(error)}"
                # A planned run cannot fail: record.LEGAL.
                started = move(run, "started")
                future.set_result(move(started, "failed", cause=why))

        threading.Thread(target=fulfil, daemon=True).start()
        return future

    def carry(self, folder: Path, run: Run, job: Job, tick: Tick) -> Run:
        """Carry out one run, from its own thread."""
        return self.run_one(folder, run, job, stop=self.stop, tick=tick)

    def close(self) -> None:
        """Close connections that this carrier opened; this box needs none."""
