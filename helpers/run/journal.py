"""A batch's folder, held by one process: its plan, a record of every run, and what is done about them when it is resumed.

A record is on the disk, synced, before its run starts. What the disk refuses is held in memory and written when there is room.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from helpers import __version__
from helpers.look.files import write_atomic

from . import kernel
from .one import KILL_S, mark_of, salvaged
from .plan import CheckedPlan, PlanError, Step
from .record import (
    EARLIER,
    RecordUnreadable,
    again,
    boot_id,
    is_alive,
    move,
    next_attempt,
    node,
    now,
    read_run,
    write_run,
)
from .shapes import Run

PLAN, LOCK = "plan.yaml", ".lock"
DIFF_LINES = 20
LAST_RUNNER_S = 20.0  # a runner whose batch has ended stops its kernel, saves, and ends


class Journal:
    """The runs of a batch in the order of its plan. ``held`` says of each record that is not on the disk why."""

    def __init__(self, folder: Path, checked: CheckedPlan, lock: int):
        self.folder, self.checked, self._lock = folder, checked, lock
        self.runs = [_planned(step, folder.name, checked.sha256) for step in checked.steps]
        self._number = {run.run_id: number for number, run in enumerate(self.runs)}
        self.held: dict[str, str] = {}
        self.unreadable: list[str] = []

    @classmethod
    def begin(cls, out_root: Path, checked: CheckedPlan) -> Journal:
        """A new folder below ``out_root`` with every run planned. Raises PlanError where it cannot be written."""
        folder = _new_folder(out_root, checked)
        try:
            journal = cls(folder, checked, _locked(folder))
            for run in journal.runs:
                (folder / run.run_id).mkdir()
                write_run(folder / run.run_id, run)
            write_atomic(folder / PLAN, checked.text)  # last: a folder without it is no batch
        except OSError as error:
            raise PlanError(
                f"{folder}: cannot be written: {error.strerror}; expected room for the batch; free some"
            ) from error
        return journal

    @classmethod
    def reopen(cls, folder: Path, checked: CheckedPlan, repeat: Collection[str] = ()) -> Journal:
        """A batch that was begun earlier, with every run in a true state and those planned that are to be tried again.

        ``repeat`` names runs that a person wants again whatever they did. Raises PlanError: the folder is no batch, another
        process carries it out, or it was begun with another plan.
        """
        folder = folder.resolve()
        try:
            text = (folder / PLAN).read_text(encoding="utf-8")
            if not any(folder.glob("*/run.json")):
                raise PlanError(
                    f"{folder}: holds no record of a run; expected the folder of a batch; start a new one"
                )
            journal = cls(folder, checked, _locked(folder))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "no text"
            raise PlanError(
                f"{folder}: cannot be resumed: {why}; expected the folder of a batch with its {PLAN}"
            ) from error
        try:
            if text != checked.text:
                raise PlanError(
                    f"{folder}: was begun with another plan; expected the same; start a new batch, or take back:\n"
                    + _difference(text, checked.text)
                )
            journal._read()
            journal._settle()
            journal._plan_again(repeat)
        except BaseException:
            journal.close()
            raise
        return journal

    def put(self, run: Run) -> bool:
        """Keep a record; False where the disk refuses it, and then it is held here until there is room."""
        self.runs[self._number[run.run_id]] = run
        here = self.folder / run.run_id
        try:
            if not self._is_written(here, run):
                write_run(here, run)
        except OSError as error:
            self.held[run.run_id] = error.strerror or str(error)
            return False
        self.held.pop(run.run_id, None)
        return True

    def retry(self) -> None:
        """Write what is held, if there is room by now."""
        for run_id in list(self.held):
            self.put(self.runs[self._number[run_id]])

    def close(self) -> None:
        """Give the folder back."""
        os.close(self._lock)

    def _is_written(self, here: Path, run: Run) -> bool:
        try:
            return read_run(here / "run.json") == run
        except RecordUnreadable:
            return False

    def _read(self) -> None:
        """The records as they are. One that cannot be read is left alone, and its run not started: it may have been before."""
        known = {path.parent.name for path in self.folder.glob("*/run.json")}
        planned, missing = self.runs, []
        self.runs = list(planned)
        for number, run in enumerate(planned):
            here = self.folder / run.run_id
            if run.run_id not in known and not (here.is_dir() and any(here.iterdir())):
                missing.append(run)
                continue
            try:
                found = self.runs[number] = read_run(here / "run.json")
                if found.run_id != run.run_id:
                    raise RecordUnreadable(
                        f"{here / 'run.json'}: is the record of {found.run_id}; its run counts as unknown"
                    )
            except RecordUnreadable as error:
                self.unreadable.append(str(error))
                self.runs[number] = move(
                    run, "skipped", stopped_by="record", cause=f"{error}; not started again"
                )
        boxes = [
            (run.box, found.box)
            for run, found in zip(planned, self.runs, strict=True)
            if run.box != found.box
        ]
        if boxes or known - set(self._number):
            seen = (
                f"the box {boxes[0][0]!r}; expected {boxes[0][1]!r}"
                if boxes
                else "other runs; expected the same"
            )
            raise PlanError(
                f"{self.folder}: seen {seen} as when the batch was begun; give the same --box and plan"
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
        for folder in [self.folder, *(self.folder / run.run_id for run in self.runs)]:
            for orphan in folder.glob(
                ".*.tmp"
            ):  # of a writer that was killed, and by now none of them is left
                with suppress(OSError):
                    orphan.unlink()

    def _plan_again(self, repeat: Collection[str]) -> None:
        if unknown := sorted(set(repeat) - set(self._number)):
            raise PlanError(
                f"{unknown[0]}: no run of {self.folder}; expected one such as {self.runs[0].run_id}; see: status"
            )
        stop, ooms = self.checked.plan.stop, kernel.oom_kills()
        for run in list(self.runs):
            asked = run.run_id in repeat and run.state != "planned"
            if asked and run.stopped_by == "record":
                raise PlanError(f"{run.cause}; expected a record; move its folder away and resume")
            attempt = (
                run.attempt + (run.state != "skipped")
                if asked
                else next_attempt(run, stop.after_strikes, ooms)
            )
            try:
                if attempt > run.attempt:
                    keep(self.folder / run.run_id, run.attempt)
                if attempt:
                    self.put(again(run, attempt))
            except OSError as error:
                self.held[run.run_id] = (
                    f"what its attempt {run.attempt} left cannot be kept: {error.strerror}"
                )


def _planned(step: Step, batch_id: str, plan_sha256: str) -> Run:
    return Run.model_validate(
        {
            **{
                name: getattr(step, name)
                for name in ("run_id", "notebook", "preset", "parameters", "danger", "gpu")
            },
            "batch_id": batch_id,
            "box": step.box_name,
            "plan_sha256": plan_sha256,
            "tool_version": __version__,
            "estimate_s": None if step.estimate_from == "its limit" else step.estimate_s,
        }
    )  # a limit is no estimate


def keep(folder: Path, attempt: int) -> None:
    """Move what an attempt left into ``earlier/<attempt>/``, its record last: a power cut leaves it there to go on from.

    Raises OSError.
    """
    past = folder / EARLIER / str(attempt)
    past.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.name not in (EARLIER, "run.json"):
            os.replace(path, past / path.name)
    write_atomic(past / "run.json", (folder / "run.json").read_text(encoding="utf-8"))


def _ended_since(folder: Path, run: Run) -> Run:
    """What became of a run that reads as started and whose batch has ended. Its processes are ended if they are still there."""
    here = run.node in ("", node())
    if run.boot_id and run.boot_id != boot_id():
        state, cause = (
            ("rebooted", "the machine restarted while it ran")
            if here
            else (
                "node_lost",
                f"its batch ended while it ran on {run.node}; nothing more was heard of it",
            )
        )
        return move(run, state, cause=cause, ended_at=now(), **salvaged(folder))
    mark = mark_of(folder, run.attempt)
    deadline = time.monotonic() + LAST_RUNNER_S
    while _is_its_runner(folder, run) and time.monotonic() < deadline:
        time.sleep(0.1)
    if run.pid is not None and _is_its_runner(folder, run):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(run.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_S
        while _is_its_runner(folder, run) and time.monotonic() < deadline:
            time.sleep(0.05)
    ended, there = kernel.sweep(mark)
    kernel.clear_sockets(mark)
    with suppress(RecordUnreadable):
        run = read_run(folder / "run.json")
    if run.state != "started":
        return run  # it completed its record after all
    ooms = kernel.oom_kills()
    kills = ooms - run.ooms_before if ooms is not None and run.ooms_before is not None else 0
    cause = "its batch ended while it ran" + (
        f"; OOM kills counted since its start: {kills}" if kills > 0 else ""
    )
    if there or _is_its_runner(folder, run):
        return move(
            run,
            "stuck",
            cause=f"{cause}; SIGKILL does not end {', '.join(there) or 'its runner'}",
            ended_at=now(),
            left_behind=ended,
            **salvaged(folder),
        )
    return move(
        run,
        "died",
        cause=cause,
        stopped_by="batch_end",
        ended_at=now(),
        left_behind=ended,
        **salvaged(folder),
    )


def _end_processes(folder: Path) -> None:
    """End what still works for a run whose record cannot be read: its runner by the command line, the rest by its marks."""
    for entry in os.listdir("/proc"):
        with suppress(OSError):
            words = (
                Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0") if entry.isdigit() else []
            )
            if words[-3:] == [b"--one", os.fsencode(folder), b""]:
                os.kill(int(entry), signal.SIGKILL)
    for attempt in range(1, 2 + len(list(folder.glob(f"{EARLIER}/*")))):
        kernel.sweep(mark_of(folder, attempt))


def _is_its_runner(folder: Path, run: Run) -> bool:
    """Whether the process of a record works in this very folder, and not in one that this is a copy of."""
    try:
        return is_alive(run) and os.fsencode(folder.resolve()) in Path(
            f"/proc/{run.pid}/cmdline"
        ).read_bytes().split(b"\0")
    except OSError:
        return False


def _locked(folder: Path) -> int:
    """An open file that holds the folder for this process, until it is closed or the process ends (flock(2))."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(lock, 200, 0).decode("utf-8", "replace").strip() or "another process"
        os.close(lock)
        raise PlanError(
            f"{folder}: {who} carries this batch out; expected none; wait for it or stop it"
        ) from None
    except OSError as error:
        os.close(lock)
        raise PlanError(
            f"{folder}: cannot be locked: {error.strerror}; expected one with locks; give another --out"
        ) from error
    with suppress(OSError):  # a full disk: the lock itself needs no room
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {node()}\n".encode(), 0)
    return lock


def _difference(old: str, new: str) -> str:
    lines = list(
        difflib.unified_diff(
            old.splitlines(), new.splitlines(), "plan of the batch", "plan given", lineterm="", n=1
        )
    )
    more = [f"... and {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
    return "\n".join(lines[:DIFF_LINES] + more)


def _new_folder(out_root: Path, checked: CheckedPlan) -> Path:
    stem = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{checked.plan.name}"
    for number in range(1, 100):
        folder = out_root.resolve() / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise PlanError(
                f"{out_root}: cannot be written: {error.strerror}; expected a folder for results; give another"
            ) from error
    raise PlanError(f"{out_root / stem}: 99 batches of this second exist; wait a second")
