"""Carries out a batch: starts each run of a plan when it may start, and keeps its record.

Runs that only look may run side by side; a run that loads the box or provokes an out-of-memory has
the box to itself; one that reads the batch's records waits for all runs before it.
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
"""Writes an evidence bundle of this box to a path, and returns the path of the bundle."""
INTERRUPTED = 130
"""The exit status of a shell for a program that Ctrl-C ended: 128 + SIGINT."""


@dataclass(frozen=True)
class BatchResult:
    """Every run of a batch in the order of the plan.

    ``interrupted`` is the name of the signal that stopped the batch, or empty. ``unrecorded`` has a
    line for each run whose record could not be written: only this result has that record.
    """

    folder: Path
    runs: tuple[Run, ...]
    interrupted: str = ""
    unrecorded: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: every run answered, and its record is on the disk; 1: not so; 130: interrupted."""
        if self.interrupted:
            return INTERRUPTED
        all_answered = all(run.state == "answered" for run in self.runs)
        if all_answered and not self.unrecorded:
            return 0
        return 1


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
    """Run a plan into a new folder in ``out_root``, or go on with the batch in the folder
    ``resume``.

    ``box`` replaces the box ``live``. ``capture`` is called once, before the first run, if a run
    needs it. ``again`` has the ids of runs of a resumed batch that are repeated whatever their
    state. A ``carrier`` must have the same ``stop``, so that it notices signals. ``measure`` looks
    at the box between runs (``box_state.measure``); without it nothing does.

    Raises PlanError before the first run; what goes wrong later is in the records.
    """
    checked = load_plan(path, box, seconds_by_notebook(out_root))
    if capture is None and any(map(_wants_live, checked.steps)):
        raise PlanError(
            f"{path}: a run wants the box 'live' and nothing captures it here; "
            "give a recorded box"
        )
    if stop is None:
        stop = Stop()
    if carrier is None:
        carrier = Local(checked.plan.jobs, stop)
    if progress is None:
        progress = Plain()
    journal = None
    try:
        with stop.listening():
            carrier.check(checked)
            if resume:
                journal = Journal.reopen(resume, checked, again)
            else:
                journal = Journal.begin(out_root, checked)
            supervisor = _Supervisor(journal, carrier, stop, progress, measure)
            return supervisor.carry_out(capture)
    finally:
        carrier.close()
        if journal:
            journal.close()


class _Supervisor:
    """Starts runs that may start, waits for those under way, and looks at the box between runs.

    Runs are given by their number in the plan, from 0. ``waiting`` have not started, ``going`` are
    under way, ``places`` has (cell, cells, seconds) of each, and ``unlooked`` have ended since the
    box was last looked at. ``live`` is the path of the captured bundle of this box; without one
    ``no_live`` says why.
    """

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
        if not carrier.one_box:  # the runs are on other boxes, which are not looked at
            measure = None
        self.box = BoxWatch(
            measure,
            journal.checked.plan.gates,
            journal.folder,
            interrupted=lambda: bool(stop.signal),
        )
        self.waiting = deque(
            number for number, run in enumerate(journal.runs) if run.state == "planned"
        )
        self.going: dict[Future[Run], int] = {}
        self.places: dict[int, tuple[int, int, float]] = {}
        self.unlooked: list[int] = []
        self.live = ""
        self.no_live = ""
        self.began = time.monotonic()

    def carry_out(self, capture: Capture | None) -> BatchResult:
        """Carry out all runs that are planned."""
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
        """Start the next runs in the order of the plan until one has to wait, which no later run
        overtakes; skip those that must not start, which need not wait for that.
        """
        while self.waiting:
            number = self.waiting[0]
            run = self.journal.runs[number]
            why, stopped_by = self._refusal(number)
            if not why and not self._has_room(number):
                return
            if not why and self.carrier.one_box:
                why = self.box.holds_back(run, self.journal.runs)
                stopped_by = "box"
                if self.stop.signal:  # it ended the wait; then _refusal says so
                    continue
            self.waiting.popleft()
            if why:
                skipped = move(run, "skipped", cause=why, stopped_by=stopped_by)
                self._ended({number: skipped})
            else:
                self._start(number)

    def _wait(self) -> None:
        """Wait a moment for runs to end, and keep the records of those that did.

        If the start of a run that only looks did not fit on the disk, the reserved room is freed
        and the run is tried again.
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
        """(why a run must not start, in words; the ``stopped_by`` of its record), empty if it
        may.
        """
        if self.stop.signal:
            return f"interrupted ({self.stop.signal})", "interrupt"
        step = self.checked.steps[number]
        if step.closes:  # it reports on the others, also when the plan's time is over
            return "", ""
        if self._left_s() <= 0:
            limit = f"the plan's limit of {self.checked.total_s:g} s"
            return f"{limit} was reached", "limit"
        if self.no_live and self._is_given_live(step):
            return self.no_live, "box"
        return "", ""

    def _is_given_live(self, step: Step) -> bool:
        """Whether a run gets the bundle that is captured on this machine.

        A worker captures its own, but a run that waits reads the batch's folder and so runs here.
        """
        return _wants_live(step) and (self.carrier.one_box or step.waits)

    def _has_room(self, number: int) -> bool:
        """Whether a run may start beside those that are going on."""
        if not self.going:
            return True
        step = self.checked.steps[number]
        if step.waits or len(self.going) >= self.carrier.slots:
            return False
        if not self.carrier.one_box:  # each slot is a worker that has one run at a time
            return True
        steps = [step, *(self.checked.steps[beside] for beside in self.going.values())]
        only_looks = all(other.danger == "looks" for other in steps)
        return only_looks and len(self.going) < self.checked.plan.jobs

    def _start(self, number: int) -> None:
        """Hand a run to the carrier. A run that only looks may use the reserved room on the disk;
        one that loads the box was held back if the disk is full.
        """
        run = self.journal.runs[number]
        shortage = self.journal.reserve.shortage()
        if run.danger == "looks" and shortage:
            self.journal.make_room(shortage)
        self.progress.run_started(number, run)

        # The thread of the run calls it; _wait passes the place on to the progress.
        def tick(cell: int, cells: int, seconds: float) -> None:
            self.places[number] = (cell, cells, seconds)

        folder = self.journal.folder / run.run_id
        job = self._job(number)
        self.going[self.carrier.submit(folder, run, job, tick)] = number

    def _job(self, number: int) -> Job:
        """The job of a run: its notebook, all of its parameters, and its limits."""
        step = self.checked.steps[number]
        run = self.journal.runs[number]
        folder = self.journal.folder / run.run_id
        earlier = None
        # A person may want this attempt to begin at its start: journal._from_its_start.
        if step.resumes and run.from_start != run.attempt:
            earlier = earlier_attempt(folder, run)
        run_s = step.run_s
        if not step.closes:  # a closing report runs also when the plan's time is over
            run_s = min(run_s, self._left_s())
        job: Job = {
            "earlier": "",
            "source": str(step.source),
            "parameters": self._parameters(step, folder, earlier),
            "cell_s": step.cell_s,
            "run_s": run_s,
            "mark": mark_of(folder, run.attempt),
        }
        if earlier:
            job["earlier"] = str(earlier)
        return job

    def _parameters(
        self, step: Step, folder: Path, earlier: Path | None
    ) -> dict[str, object]:
        """The parameters of a run in ``folder``: those of the plan, in which {batch} is replaced by
        the batch's folder, and of box, batch, out and preset those that the notebook takes.

        A run that continues an ``earlier`` attempt gets the box of that attempt.
        """
        batch = self.journal.folder
        box = step.box
        if box == "live" and self.live:
            box = self.live
        # The outputs that are kept of that attempt are about its bundle.
        if earlier and _wants_live(step):
            box = earlier_box(earlier, batch) or box
        offered = {
            "box": box,
            "batch": str(batch),
            "out": str(folder),
            "preset": step.preset,
        }
        parameters: dict[str, object] = {
            name: value
            for name, value in offered.items()
            if name in step.takes and value
        }
        for name, value in step.parameters.items():
            parameters[name] = replaced(value, "{batch}", str(batch))
        return parameters

    def _ended(self, runs: dict[int, Run]) -> None:
        """Keep the records of runs that ended; if no run is under way any more, look at the box."""
        for number, run in runs.items():
            self.journal.put(run)
            if run.state != "skipped":  # else it has done nothing to the box
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
        """Seconds that are left of the plan's limit."""
        return self.checked.total_s - (time.monotonic() - self.began)

    def _capture(self, capture: Capture | None) -> None:
        """Capture the bundle of this box, if a run needs it, and set ``live`` or ``no_live``.

        Each time the batch is resumed there is another bundle: box, box-2 and so on.
        """
        wanted = any(
            self._is_given_live(self.checked.steps[number]) for number in self.waiting
        )
        if capture is None or self.stop.signal or not wanted:
            return
        captured_before = len(list(self.journal.folder.glob("box*")))
        name = "box"
        if captured_before:
            name = f"box-{captured_before + 1}"
        try:
            self.stop.raises = True  # a signal ends the capture
            place = capture(self.journal.folder / name)
            self.live = str(place.resolve())
        except KeyboardInterrupt:
            self.no_live = "interrupted"
        except Exception as error:  # noqa: BLE001  a box that cannot be captured must not cost the runs on recorded ones
            self.no_live = f"this box could not be captured: {in_words(error)}"
        finally:
            self.stop.raises = False


def _wants_live(step: Step) -> bool:
    """Whether a run takes the box ``live``, for which a bundle is captured."""
    return step.box == "live" and "box" in step.takes
