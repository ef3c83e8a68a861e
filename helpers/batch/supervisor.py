"""The loop of a batch: every run of a plan in a process of its own, each with its record.

What only looks may go on side by side; what loads or provokes has the box to itself, and what
reads the batch's own records waits for all runs before it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path

from .between_runs import BoxWatch, Measure
from .carrier import Local
from .earlier_times import seconds_by_notebook
from .journal import Journal
from .one_run import mark_of
from .plan import PlanError, Step, load_plan
from .progress import Plain
from .record import in_words, move, replaced
from .resumption import earlier_attempt, earlier_box
from .shapes import Run, StoppedBy
from .stop import Stop
from .watched import TICK_S, Job

Capture = Callable[[Path], Path]
"""Writes an evidence bundle of this box to the path that it is given and returns where it lies."""


@dataclass(frozen=True)
class BatchResult:
    """Every run of a batch in order. ``interrupted`` is the signal that stopped it, or empty.

    ``unrecorded`` names each run whose record could not be written, with the reason: what is
    said here of it is nowhere else.
    """

    folder: Path
    runs: tuple[Run, ...]
    interrupted: str = ""
    unrecorded: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: every run answered, and its record is kept; 1: some did not; 130: interrupted."""
        if self.interrupted:
            return 130
        all_answered = all(run.state == "answered" for run in self.runs)
        return 0 if all_answered and not self.unrecorded else 1


def run_plan(
    path: Path,
    out_root: Path,
    *,
    box: str = "",
    capture: Capture | None = None,
    progress: Plain | None = None,
    carrier: Local | None = None,
    resume: Path | None = None,
    measure: Measure | None = None,
    again: Collection[str] = (),
    stop: Stop | None = None,
) -> BatchResult:
    """Run a plan into a new folder below ``out_root``, or go on with the batch in ``resume``.

    Raises PlanError before the first run; later faults are in the records.

    ``box`` takes the place of ``live``. ``capture`` is called once, before the first run, where
    a run needs it. ``again`` names runs of a resumed batch that are repeated whatever they did.
    Give the same ``stop`` to a ``carrier`` of your own, so that it hears of signals. ``measure``
    looks at the box between runs (box_state.measure); without it no look is taken.
    """
    checked = load_plan(path, box, seconds_by_notebook(out_root))
    if capture is None and any(map(_wants_live, checked.steps)):
        raise PlanError(
            f"{path}: a run wants the box 'live' and nothing captures it here; "
            "give a recorded box"
        )
    stop = stop or Stop()
    carrier = carrier or Local(checked.plan.jobs, stop)
    journal = None
    try:
        with stop.listening():
            carrier.check(checked)
            if resume:
                journal = Journal.reopen(resume, checked, again)
            else:
                journal = Journal.begin(out_root, checked)
            supervisor = _Supervisor(
                journal, carrier, stop, progress or Plain(), measure
            )
            return supervisor.carry_out(capture)
    finally:
        carrier.close()
        if journal:
            journal.close()


class _Supervisor:
    """Starts what may start, waits for what goes on, and has the box looked at when nothing does."""

    def __init__(
        self,
        journal: Journal,
        carrier: Local,
        stop: Stop,
        progress: Plain,
        measure: Measure | None,
    ):
        self.journal = journal
        self.carrier = carrier
        self.stop = stop
        self.progress = progress
        self.checked = journal.checked
        self.box = BoxWatch(
            measure if carrier.one_box else None,
            journal.checked.plan.gates,
            journal.folder,
            interrupted=lambda: bool(stop.signal),
        )
        self.waiting = deque(
            number for number, run in enumerate(journal.runs) if run.state == "planned"
        )
        self.going: dict[Future[Run], int] = {}
        self.places: dict[int, tuple[int, int, float]] = {}
        self.unlooked: list[int] = []  # what ended since the box was last looked at
        self.live = ""
        self.no_live = ""
        self.began = time.monotonic()

    def carry_out(self, capture: Capture | None) -> BatchResult:
        self.progress.started(
            self.journal.folder, tuple(self.journal.runs), self.carrier.carried()
        )
        try:
            self._capture(capture)
            while self.waiting or self.going:
                self._start_what_may()
                if self.going:
                    self._wait()
        finally:
            self.journal.retry()
            self.progress.ended()
        unrecorded = [
            f"{name}: not recorded: {why}" for name, why in self.journal.held.items()
        ]
        runs = tuple(self.journal.runs)
        return BatchResult(
            self.journal.folder, runs, self.stop.signal, tuple(unrecorded)
        )

    def _start_what_may(self) -> None:
        """Start the next runs as long as there is room, and skip those that must not start."""
        while self.waiting:
            number = self.waiting[0]
            run = self.journal.runs[number]
            why, stopped_by = self._refusal(number)
            if not why and not self._has_room(number):
                return
            if not why and self.carrier.one_box:
                why = self.box.holds_back(run, self.journal.runs)
                stopped_by = "box"
                if self.stop.signal:  # it ended the wait for the box
                    continue
            self.waiting.popleft()
            if why:
                skipped = move(run, "skipped", cause=why, stopped_by=stopped_by)
                self._ended({number: skipped})
            else:
                self._start(number)

    def _wait(self) -> None:
        """Wait a moment for runs to end. A run whose start did not fit on the disk is tried again
        where it only looks and room could be made.
        """
        done, _ = wait(self.going, TICK_S, FIRST_COMPLETED)
        for number in self.going.values():
            if number in self.places:
                self.progress.tick(number, *self.places[number])
        runs = {self.going.pop(future): future.result() for future in done}
        why = "the start of a run could not be recorded"
        for number, run in list(runs.items()):
            may_retry = run.danger == "looks" and run.stopped_by == "disk"
            if may_retry and self.journal.make_room(why):
                self.waiting.appendleft(number)
                del runs[number]
        self._ended(runs)

    def _refusal(self, number: int) -> tuple[str, StoppedBy]:
        """Why a run must not start, and the kind of reason; empty where it may."""
        if self.stop.signal:
            return f"interrupted ({self.stop.signal})", "interrupt"
        step = self.checked.steps[number]
        if step.closes:
            return "", ""
        if self._left_s() <= 0:
            return (
                f"the plan's limit of {self.checked.total_s:g} s was reached",
                "limit",
            )
        if self.no_live and self._is_given_live(step):
            return self.no_live, "box"
        return "", ""

    def _is_given_live(self, step: Step) -> bool:
        """Whether a run gets the bundle that is captured here; workers capture their own box."""
        return _wants_live(step) and (self.carrier.one_box or step.waits)

    def _has_room(self, number: int) -> bool:
        """Whether a run may start beside those that are going on."""
        if not self.going:
            return True
        step = self.checked.steps[number]
        if step.waits or len(self.going) >= self.carrier.slots:
            return False
        if not self.carrier.one_box:
            return True
        steps = [step, *(self.checked.steps[beside] for beside in self.going.values())]
        only_looks = all(other.danger == "looks" for other in steps)
        return only_looks and len(self.going) < self.checked.plan.jobs

    def _start(self, number: int) -> None:
        run = self.journal.runs[number]
        shortage = self.journal.reserve.shortage()
        if run.danger == "looks" and shortage:
            self.journal.make_room(shortage)
        self.progress.run_started(number, run)

        # Called from the thread of the run.
        def tick(cell: int, cells: int, seconds: float) -> None:
            self.places[number] = (cell, cells, seconds)

        folder = self.journal.folder / run.run_id
        job = self._job(number)
        self.going[self.carrier.submit(folder, run, job, tick)] = number

    def _job(self, number: int) -> Job:
        """The notebook and every parameter in full.

        ``{batch}`` in a text means the batch's folder.
        """
        step = self.checked.steps[number]
        run = self.journal.runs[number]
        batch = str(self.journal.folder)
        folder = self.journal.folder / run.run_id
        box = step.box
        if box == "live" and self.live:
            box = self.live
        earlier = None
        if step.resumes and run.from_start != run.attempt:
            earlier = earlier_attempt(folder, run)
        if earlier and _wants_live(step):
            box = earlier_box(earlier, self.journal.folder) or box
        offered = {
            "box": box,
            "batch": batch,
            "out": str(folder),
            "preset": step.preset,
        }
        parameters: dict[str, object] = {
            name: value
            for name, value in offered.items()
            if name in step.takes and value
        }
        for name, value in step.parameters.items():
            parameters[name] = replaced(value, "{batch}", batch)
        run_s = step.run_s
        if not step.closes:
            run_s = min(run_s, self._left_s())
        return {
            "earlier": str(earlier or ""),
            "source": str(step.source),
            "parameters": parameters,
            "cell_s": step.cell_s,
            "run_s": run_s,
            "mark": mark_of(folder, run.attempt),
        }

    def _ended(self, runs: dict[int, Run]) -> None:
        """Keep what runs came to; when nothing goes on any more, have the box looked at."""
        for number, run in runs.items():
            self.journal.put(run)
            if run.state != "skipped":
                self.unlooked.append(number)
        if self.unlooked and not self.going:
            ended = [self.journal.runs[number] for number in self.unlooked]
            self.unlooked.clear()
            for run in self.box.after(ended):
                self.journal.put(run)
            self.journal.retry()
        for number in runs:
            self.progress.run_ended(number, self.journal.runs[number])

    def _left_s(self) -> float:
        return self.checked.total_s - (time.monotonic() - self.began)

    def _capture(self, capture: Capture | None) -> None:
        """Capture the bundle of this box that live runs are given, or note why there is none;
        another one each time the batch is resumed.
        """
        wanted = any(
            self._is_given_live(self.checked.steps[number]) for number in self.waiting
        )
        if capture is None or self.stop.signal or not wanted:
            return
        captured_before = len(list(self.journal.folder.glob("box*")))
        name = f"box-{captured_before + 1}" if captured_before else "box"
        try:
            self.stop.raises = True
            place = capture(self.journal.folder / name)
            self.live = str(place.resolve())
        except KeyboardInterrupt:
            self.no_live = "interrupted"
        except Exception as error:  # noqa: BLE001  a box that cannot be captured must not cost the runs on recorded ones
            self.no_live = f"this box could not be captured: {in_words(error)}"
        finally:
            self.stop.raises = False


def _wants_live(step: Step) -> bool:
    return step.box == "live" and "box" in step.takes
