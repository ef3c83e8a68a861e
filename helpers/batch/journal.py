"""A batch's folder, held by one process: its plan, a record of every run, and what is done
about them when it is resumed.

A record is on the disk, synced, before its run starts. What the disk refuses is held in memory
and written when there is room.
"""

from __future__ import annotations

import fcntl
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
LAST_RUNNER_S = 20.0  # a runner whose batch has ended stops its kernel, saves, and ends


class Journal:
    """The runs of a batch in the order of its plan.

    ``held`` says of each record that is not on the disk why.
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
        self._note = ""  # that the reserve was released: for the next record

    @classmethod
    def begin(cls, out_root: Path, checked: CheckedPlan) -> Journal:
        """A new folder below ``out_root`` with every run planned.

        Raises PlanError where it cannot be written.
        """
        folder = _new_folder(out_root, checked)
        try:
            journal = cls(folder, checked, _locked(folder))
            for run in journal.runs:
                (folder / run.run_id).mkdir()
                write_run(folder / run.run_id, run)
            # Last: a folder without a plan is no batch.
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
        """A batch that was begun earlier, with every run in a true state and those planned that
        are to be tried again.

        ``repeat`` names runs that a person wants again whatever they did. Raises PlanError: the
        folder is no batch, another process carries it out, or it was begun with another plan.
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
            why = error.strerror if isinstance(error, OSError) else "no text"
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
        """Keep a record; where the disk refuses it, it is held here until there is room."""
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
                self.put(run)
                return
            self.held[run.run_id] = why
        else:
            self.held.pop(run.run_id, None)

    def retry(self) -> None:
        """Write what is held, if there is room by now."""
        for run_id in list(self.held):
            self.put(self.runs[self._number[run_id]])

    def make_room(self, why: str) -> bool:
        """Release the room that was reserved, and say so in the next record; whether there was any."""
        note = self.reserve.release(why)
        if note:
            self._note = note
        return bool(note)

    def close(self) -> None:
        """Give the folder back, and the room that was reserved."""
        self.reserve.release("the batch has ended")
        os.close(self._lock)

    def _read(self) -> None:
        """The records as they are.

        One that cannot be read is left alone, and its run not started: it may have been before.
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
        boxes = {
            (run.box, record.box)
            for run, record in zip(planned, self.runs, strict=True)
        }
        others = [(box, expected) for box, expected in sorted(boxes) if box != expected]
        if others or recorded - set(self._number):
            seen = "other runs; expected the same"
            if others:
                seen = f"the box {others[0][0]!r}; expected {others[0][1]!r}"
            raise PlanError(
                f"{self.folder}: seen {seen} as when the batch was begun; give "
                "the same --box and plan"
            )
        for run in missing:
            with suppress(OSError):
                (self.folder / run.run_id).mkdir(exist_ok=True)
            self.put(run)

    def _settle(self) -> None:
        """Give every run that was going on when the batch ended the state that it has now."""
        for run in self.runs:
            if run.state == "started":
                self.put(_ended_since(self.folder / run.run_id, run))
            elif run.stopped_by == "record":
                _end_processes(self.folder / run.run_id)
        # Files of writers that were killed. By now no writer is left.
        orphans = [*self.folder.glob(".*.tmp"), *self.folder.glob("*/.*.tmp")]
        for orphan in orphans:
            with suppress(OSError):
                orphan.unlink()

    def _put_back_to_planned(self, repeat: Collection[str]) -> None:
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
        is_outdated = False
        for step, run in zip(self.checked.steps, list(self.runs), strict=True):
            attempt = attempt_on_resume(run, ooms, step.resumes)
            if run.from_start > run.attempt:
                attempt = run.from_start
            if step.closes and is_outdated and run.state == "answered":
                attempt = run.attempt + 1
            is_outdated |= run.state == "planned" or attempt > 0
            if run.state == "planned" or not attempt:
                continue
            try:
                if attempt > run.attempt:
                    keep(self.folder / run.run_id, run.attempt)
                self.put(again(run, attempt))
            except OSError as error:
                why = f"cannot be kept: {error.strerror}"
                self.held[run.run_id] = f"what its attempt {run.attempt} left {why}"


def _planned(step: Step, batch_id: str, plan_sha256: str) -> Run:
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
    """The record of a run that a person wants again from its start.

    The record itself says so, and so it holds although the batch is killed before the new attempt.
    """
    if run.stopped_by == "record":
        raise PlanError(
            f"{run.cause}; expected a record; move its folder away and resume"
        )
    never_ran = run.state in ("planned", "skipped")
    attempt = run.attempt if never_ran else run.attempt + 1
    return run.model_copy(update={"from_start": attempt})


def _is_written(folder: Path, run: Run) -> bool:
    try:
        return read_run(folder / "run.json") == run
    except RecordUnreadable:
        return False


def keep(folder: Path, attempt: int) -> None:
    """Move what an attempt left into ``earlier/<attempt>/``, its record last: a power cut
    leaves it there to go on from.

    Raises OSError.
    """
    past = folder / EARLIER / str(attempt)
    past.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.name not in (EARLIER, "run.json"):
            os.replace(path, past / path.name)
    write_atomic(past / "run.json", (folder / "run.json").read_text(encoding="utf-8"))


def _ended_since(folder: Path, run: Run) -> Run:
    """What became of a run that reads as started and whose batch has ended.

    Its processes are ended if they are still there.
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
    deadline = time.monotonic() + limit_s
    while _is_its_runner(folder, run) and time.monotonic() < deadline:
        time.sleep(0.05)


def _end_processes(folder: Path) -> None:
    """End what still works for a run whose record cannot be read: its runner by the command
    line, the rest by its marks.
    """
    its_last_words = [b"--one", os.fsencode(folder), b""]
    for entry in os.listdir("/proc"):
        if entry.isdigit() and command_line(entry)[-3:] == its_last_words:
            with suppress(OSError):
                os.kill(int(entry), signal.SIGKILL)
    for attempt in range(1, 2 + len(list(folder.glob(f"{EARLIER}/*")))):
        kernel_process.sweep(mark_of(folder, attempt))


def _is_its_runner(folder: Path, run: Run) -> bool:
    """Whether the process of a record works in this very folder, and not in one that this is a
    copy of.
    """
    if run.pid is None or not is_alive(run):
        return False
    return os.fsencode(folder.resolve()) in command_line(run.pid)


def _locked(folder: Path) -> int:
    """An open file that holds the folder for this process, until it is closed or the process
    ends (flock(2)).
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(lock, 200, 0).decode("utf-8", "replace").strip()
        os.close(lock)
        raise PlanError(
            f"{folder}: {who or 'another process'} is running this batch; expected none; wait for "
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
    """A folder by moment and plan, and by box where all runs are about one recorded box."""
    stem = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{checked.plan.name}"
    boxes = {step.box_name for step in checked.steps} - {""}
    if len(boxes) == 1 and boxes <= {*recorded_names()}:
        stem += f"-{boxes.pop()}"
    folder = out_root.resolve() / stem
    number = 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{stem}-{number}")
        except OSError as error:
            raise PlanError(
                f"{out_root}: cannot be written: {error.strerror}; "
                "expected a folder for results; give another"
            ) from error
