"""Who carries out the runs of a batch: this box, and the base of what does so elsewhere."""

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

    ``run_one`` may be another function with the signature of the one here, as a stand-in. With
    ``one_box`` all runs share a machine, and what loads or provokes runs alone there.
    """

    one_box = True

    def __init__(
        self,
        slots: int = 1,
        stop: Stop | None = None,
        run_one: Callable[..., Run] = run_one,
    ):
        self.slots = slots
        self.stop = stop or Stop()
        self.run_one = run_one

    def check(self, checked: CheckedPlan) -> None:
        """Raise PlanError for a plan that cannot be carried out here, before its first run."""

    def carried(self) -> str:
        """Which workers carry the runs out and where results land; empty where all is done here."""
        return ""

    def submit(self, folder: Path, run: Run, job: Job, tick: Tick) -> Future[Run]:
        """Carry out a planned run in its folder.

        The future holds its record, whatever became of it. In a thread of its own: a runner
        ends with the thread that started it (prctl(2)).
        """
        future: Future[Run] = Future()

        def fulfil() -> None:
            try:
                future.set_result(self.carry(folder.resolve(), run, job, tick))
            except BaseException as error:  # noqa: BLE001  a fault of ours is this run's record, not the end of the batch
                why = f"its supervisor broke: {in_words(error)}"
                future.set_result(move(move(run, "started"), "failed", cause=why))

        threading.Thread(target=fulfil, daemon=True).start()
        return future

    def carry(self, folder: Path, run: Run, job: Job, tick: Tick) -> Run:
        """Carry out one run, from its own thread."""
        return self.run_one(folder, run, job, stop=self.stop, tick=tick)

    def close(self) -> None:
        """Close what this carrier opened."""
