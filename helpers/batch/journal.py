"""The folder of a batch, locked by the one process that carries it out: its plan and a record of
every run, and what a resumed batch does with them.

A record is on the disk, synced, before its run starts. A record that the disk refuses is held in
memory and written when there is room.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from helpers import __version__
from helpers.look.boxes import recorded_names
from helpers.look.files import read_whole, write_atomic

from . import kernel_process
from .one_run import mark_of
from .plan import CheckedPlan
from .plan_yaml import PlanError
from .record import (
    EARLIER,
    RecordUnreadable,
    again,
    boot_id,
    command_line,
    is_alive,
    last_words_before,
    move,
    node,
    read_run,
    write_run,
)
from .reserve import FULL, Reserve
from .resumption import attempt_on_resume
from .runner import closed
from .shapes import Run
from .step import Step
from .watched import KILL_S

PLAN = "plan.yaml"
LOCK = ".lock"
LAST_RUNNER_S = 20.0
"""Time for a runner whose batch has ended to stop its kernel (3 s) and to save the notebook."""
LOOK_S = 0.05  # between two looks whether a runner has ended
MOST_HOLDER_BYTES = 200
"""Of the line in the lock's file that says which process holds it."""


class Journal:
    """The runs of a batch in the order of its plan.

    ``held`` has the reason for each record that is not on the disk, by the id of its run. ``lock``
    is the file descriptor of the folder's lock.
    """

    def __init__(self, folder: Path, checked: CheckedPlan, lock: int):
        self.folder = folder
        self.checked = checked
        self._lock = lock
        self.runs = [
            _planned(step, folder.name, checked.sha256) for step in checked.steps
        ]
        self._number = {run.run_id: number for number, run in enumerate(self.runs)}
        self.held: dict[str, str] = {}
        self.reserve = Reserve(folder)
        self._note = ""  # says that the reserve was released; goes into the next record

    @classmethod
    def begin(cls, out_root: Path, checked: CheckedPlan) -> Journal:
        """Make a new folder in ``out_root`` with a record of every run, all planned.

        Raises PlanError if it cannot be written.
        """
        folder = _new_folder(out_root, checked)
        try:
            journal = cls(folder, checked, _locked(folder))
            for run in journal.runs:
                (folder / run.run_id).mkdir()
                write_run(folder / run.run_id, run)
            # Last: a folder without a plan cannot be resumed.
            write_atomic(folder / PLAN, checked.text)
        except OSError as error:
            raise PlanError(
                f"{folder}: cannot be written: {error.strerror}; expected room "
                "for the batch; free some"
            ) from error
        journal.reserve.fill()
        return journal

    @classmethod
    def reopen(
        cls, folder: Path, checked: CheckedPlan, repeat: Collection[str] = ()
    ) -> Journal:
        """Open the folder of a batch that was begun earlier. Every run gets the state that it
        really has, and a run that is tried again becomes planned.

        ``repeat`` has the ids of runs that a person wants again whatever their state. Raises
        PlanError if the folder is no batch, if another process is carrying it out, or if it was
        begun with another plan.
        """
        folder = folder.resolve()
        try:
            text = read_whole(folder / PLAN).decode()
            if not any(folder.glob("*/run.json")):
                raise PlanError(
                    f"{folder}: holds no record of a run; expected the folder "
                    "of a batch; start a new one"
                )
            journal = cls(folder, checked, _locked(folder))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", "no text")  # UnicodeDecodeError has none
            raise PlanError(
                f"{folder}: cannot be resumed: {why}; expected the folder of a "
                f"batch with its {PLAN}"
            ) from error
        try:
            if text != checked.text:
                raise PlanError(
                    f"{folder}: was begun with another plan; expected the same "
                    f"as its {PLAN}; start a new batch"
                )
            journal._read()
            journal._settle()
            journal._put_back_to_planned(repeat)
        except BaseException:
            journal.close()
            raise
        journal.reserve.fill()
        return journal

    def put(self, run: Run) -> None:
        """Write a record to the disk; if that fails, it is ``held`` in memory until there is
        room.
        """
        if self._note:
            run = run.model_copy(update={"notes": [*run.notes, self._note]})
            self._note = ""
        self.runs[self._number[run.run_id]] = run
        folder = self.folder / run.run_id
        try:
            if not _is_written(folder, run):
                write_run(folder, run)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in FULL and self.make_room(why):
                self.put(run)  # ends: make_room is true only once
                return
            self.held[run.run_id] = why
        else:
            self.held.pop(run.run_id, None)

    def retry(self) -> None:
        """Try again to write the records that are held."""
        for run_id in list(self.held):
            self.put(self.runs[self._number[run_id]])

    def make_room(self, why: str) -> bool:
        """Free the reserved room on the disk and note it in the next record. Returns whether any
        was reserved.
        """
        note = self.reserve.release(why)
        if note:
            self._note = note
        return bool(note)

    def close(self) -> None:
        """Unlock the folder and free the reserved room."""
        self.reserve.release("the batch has ended")
        os.close(self._lock)

    def _read(self) -> None:
        """Read the records of all runs; a run without one, whose batch ended as it began, gets one.

        If a record cannot be read, it stays as it is and its run is skipped: it may have started
        before. Raises PlanError if the records are of other runs or another box.
        """
        recorded = {path.parent.name for path in self.folder.glob("*/run.json")}
        planned = list(self.runs)
        missing = []
        for number, run in enumerate(planned):
            folder = self.folder / run.run_id
            has_files = folder.is_dir() and any(folder.iterdir())
            if run.run_id not in recorded and not has_files:
                missing.append(run)
                continue
            try:
                self.runs[number] = read_run(folder / "run.json")
            except RecordUnreadable as error:
                why = f"{error}; not started again"
                self.runs[number] = move(run, "skipped", stopped_by="record", cause=why)
        self._refuse_other_records(planned, recorded)
        for run in missing:
            with suppress(OSError):
                (self.folder / run.run_id).mkdir(exist_ok=True)
            self.put(run)

    def _refuse_other_records(self, planned: list[Run], recorded: set[str]) -> None:
        """Raise PlanError unless the records are of the planned runs, on the same boxes."""
        seen = ""
        if recorded - set(self._number):
            seen = "other runs; expected the same"
        for run, record in zip(planned, self.runs, strict=True):
            if run.box != record.box:
                seen = f"the box {run.box!r}; expected {record.box!r}"
        if seen:
            raise PlanError(
                f"{self.folder}: seen {seen} as when the batch was begun; give "
                "the same --box and plan"
            )

    def _settle(self) -> None:
        """Find out how each run ended that was going on when the batch ended, and end its processes
        if they still run.
        """
        for run in self.runs:
            if run.state == "started":
                self.put(_ended_since(self.folder / run.run_id, run))
            elif run.stopped_by == "record":  # unreadable: it may have been going on
                _end_processes(self.folder / run.run_id)
        # Temporary files of files.write_atomic, whose processes were killed while they wrote.
        orphans = [*self.folder.glob(".*.tmp"), *self.folder.glob("*/.*.tmp")]
        for orphan in orphans:
            with suppress(OSError):
                orphan.unlink()

    def _put_back_to_planned(self, repeat: Collection[str]) -> None:
        """Plan another attempt at each run that ``repeat`` names or that resumption repeats, and at
        a closing report if a run before it is tried again. Raises PlanError.
        """
        unknown = sorted(set(repeat) - set(self._number))
        if unknown:
            raise PlanError(
                f"{unknown[0]}: no run of {self.folder}; expected one such as "
                f"{self.runs[0].run_id}; see: status"
            )
        for run in list(self.runs):
            if run.run_id in repeat:
                self.put(_from_its_start(run))
        ooms = kernel_process.oom_kills()
        another_is_tried = False
        for step, run in zip(self.checked.steps, list(self.runs), strict=True):
            attempt = attempt_on_resume(run, ooms, step.resumes)  # 0: none
            if run.from_start > run.attempt:  # a person wants it: _from_its_start
                attempt = run.from_start
            # The report of an earlier attempt does not know the runs that are tried again.
            if step.closes and another_is_tried and run.state == "answered":
                attempt = run.attempt + 1
            another_is_tried |= run.state == "planned" or attempt > 0
            if run.state != "planned" and attempt:
                self._plan_again(run, attempt)

    def _plan_again(self, run: Run, attempt: int) -> None:
        """Write the record of a new attempt, after the files of the last one were moved away."""
        try:
            if attempt > run.attempt:
                keep(self.folder / run.run_id, run.attempt)
            self.put(again(run, attempt))
        except OSError as error:
            why = f"cannot be kept: {error.strerror}"
            self.held[run.run_id] = f"what its attempt {run.attempt} left {why}"


def _planned(step: Step, batch_id: str, plan_sha256: str) -> Run:
    """The record of a run of the plan that has not started."""
    return Run.model_validate(
        {
            "run_id": step.run_id,
            "batch_id": batch_id,
            "box": step.box_name,
            "notebook": step.notebook,
            "parameters": step.parameters,
            "preset": step.preset,
            "danger": step.danger,
            "gpu": step.gpu,
            "estimate_s": step.estimate_s,
            "plan_sha256": plan_sha256,
            "tool_version": __version__,
        }
    )


def _from_its_start(run: Run) -> Run:
    """The record of a run that a person wants again from its start: it says so in ``from_start``,
    so that a batch which is killed before the new attempt still knows it when it is resumed.

    Raises PlanError if the record cannot be read.
    """
    if run.stopped_by == "record":
        raise PlanError(
            f"{run.cause}; expected a record; move its folder away and resume"
        )
    attempt = run.attempt + 1
    if run.state in ("planned", "skipped"):  # this attempt never ran
        attempt = run.attempt
    return run.model_copy(update={"from_start": attempt})


def _is_written(folder: Path, run: Run) -> bool:
    """Whether the disk has exactly this record already, so that it need not be written."""
    try:
        return read_run(folder / "run.json") == run
    except RecordUnreadable:
        return False


def keep(folder: Path, attempt: int) -> None:
    """Move the files of an attempt into ``earlier/<attempt>/`` and copy its record there.

    The record is last, and stays in ``folder`` until that of the next attempt replaces it: after a
    power cut the next resumption moves the rest. Raises OSError.
    """
    past = folder / EARLIER / str(attempt)
    past.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.name not in (EARLIER, "run.json"):
            os.replace(path, past / path.name)
    write_atomic(past / "run.json", (folder / "run.json").read_text(encoding="utf-8"))


def _ended_since(folder: Path, run: Run) -> Run:
    """The record of a run whose record says "started" and whose batch has ended: how it ended.

    A run under another boot is node_lost if it ran on another machine, else rebooted. Of a run
    under this boot the runner gets time to end by itself; then its processes are killed. Its state
    is that of its own record if the runner completed it, else stuck if SIGKILL does not end a
    process, else died.
    """
    if run.boot_id and run.boot_id != boot_id():
        if run.node not in ("", node()):
            cause = (
                f"its batch ended while it ran on {run.node}; "
                "nothing more was heard of it"
            )
            return closed(folder, run, "node_lost", cause)
        notes = [*run.notes, *last_words_before(run)]
        cause = "the machine restarted while it ran"
        return closed(folder, run, "rebooted", cause, notes=notes)
    _wait_for_end(folder, run, LAST_RUNNER_S)
    if run.pid is not None and _is_its_runner(folder, run):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(run.pid, signal.SIGKILL)
        _wait_for_end(folder, run, KILL_S)
    ended, deaf = kernel_process.sweep(mark_of(folder, run.attempt))
    with suppress(RecordUnreadable):
        run = read_run(folder / "run.json")
    if run.state != "started":
        return run  # it completed its record after all
    cause = "its batch ended while it ran"
    kills = kernel_process.kills_since(run.ooms_before, kernel_process.oom_kills())
    if kills:
        cause += f"; OOM kills counted since its start: {kills}"
    if _is_its_runner(folder, run) and not deaf:
        deaf = ["its runner"]
    if deaf:
        cause += f"; SIGKILL does not end {', '.join(deaf)}"
        return closed(folder, run, "stuck", cause, left_behind=ended)
    return closed(folder, run, "died", cause, left_behind=ended, stopped_by="batch_end")


def _wait_for_end(folder: Path, run: Run, limit_s: float) -> None:
    """Wait until the run's runner has ended, for ``limit_s`` seconds at most."""
    deadline = time.monotonic() + limit_s
    while _is_its_runner(folder, run) and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _end_processes(folder: Path) -> None:
    """Kill the processes of a run whose record cannot be read: the runner, found by its command
    line, and its descendants, found by the mark of each attempt that there may have been.
    """
    # one_run starts "... --one FOLDER"; /proc/PID/cmdline ends with a NUL, after which b"" follows.
    its_last_words = [b"--one", os.fsencode(folder), b""]
    for entry in os.listdir("/proc"):
        if (
            entry.isdigit()
            and command_line(entry)[-len(its_last_words) :] == its_last_words
        ):
            with suppress(OSError):
                os.kill(int(entry), signal.SIGKILL)
    latest_attempt = len(list(folder.glob(f"{EARLIER}/*"))) + 1
    for attempt in range(1, latest_attempt + 1):
        kernel_process.sweep(mark_of(folder, attempt))


def _is_its_runner(folder: Path, run: Run) -> bool:
    """Whether the process that the record names is alive and works in this folder; the record may
    also be a copy, whose process works in the original folder.
    """
    if run.pid is None or not is_alive(run):
        return False
    return os.fsencode(folder.resolve()) in command_line(run.pid)


def _locked(folder: Path) -> int:
    """Lock the folder for this process, until the file descriptor that this returns is closed or
    the process ends (flock(2)). Raises PlanError if another process holds it.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(lock, MOST_HOLDER_BYTES, 0).decode("utf-8", "replace").strip()
        if not who:
            who = "another process"
        os.close(lock)
        raise PlanError(
            f"{folder}: {who} is running this batch; expected none; wait for "
            "it or stop it"
        ) from None
    except OSError as error:
        os.close(lock)
        raise PlanError(
            f"{folder}: cannot be locked: {error.strerror}; expected one with "
            "locks; give another --out"
        ) from error
    with suppress(OSError):  # a full disk: the lock itself needs no room
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {node()}\n".encode(), 0)
    return lock


def _new_folder(out_root: Path, checked: CheckedPlan) -> Path:
    """Make a folder named TIME-PLAN, or TIME-PLAN-BOX if all runs are about one recorded box; "-2"
    and so on follows if there is one of that name. Raises PlanError.
    """
    stem = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{checked.plan.name}"
    boxes = {step.box_name for step in checked.steps} - {""}
    if len(boxes) == 1 and boxes <= {*recorded_names()}:
        stem += f"-{boxes.pop()}"
    folder = out_root.resolve() / stem
    for number in itertools.count(2):
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder = folder.with_name(f"{stem}-{number}")
        except OSError as error:
            raise PlanError(
                f"{out_root}: cannot be written: {error.strerror}; "
                "expected a folder for results; give another"
            ) from error
    return folder
