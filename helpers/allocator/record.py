"""Runs a program unchanged under torch's memory history, passes signals on to it, and collects
the files that it leaves.

The recorder itself runs inside the program (helpers/allocator/under_torch/recorder.py); a
sitecustomize on PYTHONPATH puts it there. The program, its arguments, its input and output stay
as they are. There is no limit of time. Notes name each process that could not be recorded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helpers.allocator.recorded_processes import (
    best_snapshot,
    collect,
    process_rows,
    redacted,
)
from helpers.ground.child import carrying, run_here, signal_name

INJECT = Path(__file__).resolve().parent / "under_torch" / "inject"
DEFAULT_EVENTS = 200_000
"""Of the ring buffer of a device, as in under_torch/recorder.py."""


class RecordError(ValueError):
    """Nothing was run: one line with what was seen, what was expected and what to do."""


class NameTakenError(RecordError):
    """Files exist already under the name of a new recording."""


@dataclass(frozen=True)
class Recording:
    """The files of a recorded program, and how it ended.

    ``exit_code`` is the one that a shell would show: 128 + n where signal n ended the program,
    whose name is ``signal`` then.

    ``trace`` is the snapshot to replay; where it is None, ``why_no_trace`` says why. ``folder``
    holds every snapshot, the stacks, and record.json, which has these fields and a row for each
    process.
    """

    command: tuple[str, ...]
    exit_code: int
    signal: str
    seconds: float
    trace: Path | None
    why_no_trace: str
    folder: Path
    settings: dict[str, Any]
    processes: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


def record(
    command: Sequence[str],
    out: str | Path,
    *,
    max_events: int = DEFAULT_EVENTS,
    hang_after_s: float | None = None,
    python: str = "",
    term_s: float = 0.0,
    ends_after_s: float = 0.0,
) -> Recording:
    """Run ``command`` to its end and keep its trace at ``out`` (a .pickle). Its other files go to a
    folder beside that, OUT.record.

    ``max_events``: the length of the ring buffer of each device. ``hang_after_s``: stacks and a
    snapshot are kept when a process that imported torch has neither allocated nor written anything
    for so many seconds; None for no such watch. ``python``: runs the command in place of the
    ``python`` that it names; "" leaves the command as it is. ``term_s`` above 0: a SIGTERM to this
    process goes to every process of the program, and so many seconds later they are killed; at 0
    the program alone gets it. ``ends_after_s`` above 0: such a SIGTERM is sent after so many
    seconds. Raises RecordError where nothing can be run.
    """
    out = Path(out).absolute()
    folder = out.with_suffix(".record")
    argv = under(python, command)
    if max_events < 1 or (hang_after_s is not None and hang_after_s <= 0):
        raise RecordError(
            f"--max-events {max_events}, --hang-after {hang_after_s}: expected numbers "
            "above zero"
        )
    _claim(out, folder)
    settings = {"max_events": max_events, "hang_after_s": hang_after_s}
    environ = environment(os.environ, folder, settings)
    receivers = _receivers(folder, environ["CASEBOOK_RECORD"], ends_all=term_s > 0)
    began = time.monotonic()
    try:
        code = run_here(argv, environ, receivers, term_s, ends_after_s)
    except OSError as error:
        folder.rmdir()  # nothing ran, so it is empty, and the name stays free
        raise RecordError(
            f"{argv[0]}: {error.strerror}; expected a program; give the command after "
            "--"
        ) from error
    seconds = round(time.monotonic() - began, 3)
    processes, notes = collect(folder)
    trace = None
    why_no_trace = _why_no_trace(notes)
    snapshot = best_snapshot(processes)
    if snapshot:
        trace = _keep_trace(folder / snapshot, out)
        why_no_trace = ""
    ended_by = ""
    if code < 0:  # minus the signal's number
        ended_by = signal_name(-code)
        code = 128 - code
    recording = Recording(
        command=tuple(redacted(argv)),
        exit_code=code,
        signal=ended_by,
        seconds=seconds,
        trace=trace,
        why_no_trace=why_no_trace,
        folder=folder,
        settings=settings,
        processes=tuple(processes),
        notes=tuple(notes),
    )
    text = json.dumps({"schema_version": 1, **asdict(recording)}, indent=1, default=str)
    (folder / "record.json").write_text(text)
    return recording


def _receivers(
    folder: Path, record_variable: str, ends_all: bool
) -> Callable[[int], list[int]]:
    """A function that takes the number of a signal and returns the ids of the processes to which it
    is passed on. For an empty list run_here passes it to the program's first process alone.

    SIGUSR1 goes to the processes in which the recorder handles it, because it would end others.
    SIGTERM goes to all processes of the program if ``ends_all`` is set. These have
    ``record_variable``, the value of CASEBOOK_RECORD, in their environment.
    """

    def receivers(number: int) -> list[int]:
        """The process ids that get this signal."""
        if number == signal.SIGTERM and ends_all:
            return carrying(f"CASEBOOK_RECORD={record_variable}")
        if number != signal.SIGUSR1:
            return []
        pids = []
        for row in process_rows(folder):
            handled_by = row["signals"].get("SIGUSR1")
            if handled_by == "recorder" and not row["ended"]:
                pids.append(row["pid"])
        return pids

    return receivers


def _claim(out: Path, folder: Path) -> None:
    """Make the folder of a recording.

    Raises NameTakenError where files of that name exist, and FileExistsError where another
    recording takes it at the same moment.
    """
    results = {path.suffix for path in folder.glob("*")} & {".pickle", ".stacks"}
    if (folder / "record.json").is_file() and not results:
        # An earlier recording kept neither snapshots nor stacks: the name may be used again.
        shutil.rmtree(folder)
    for path in (
        out,
        out.with_suffix(".pickle"),
        folder,
    ):
        # the trace is written as .pickle
        if path.exists():
            raise NameTakenError(
                f"{path}: exists already; expected a new name; choose another --out, "
                "or add --force"
            )
    folder.mkdir(parents=True)


def _keep_trace(snapshot: Path, out: Path) -> Path:
    """The trace at ``out``: the file of the snapshot under a second name, or a copy of it."""
    trace = out.with_suffix(snapshot.suffix)
    try:
        os.link(snapshot, trace)
    except OSError:
        shutil.copyfile(snapshot, trace)  # a file system without hard links
    return trace


def _why_no_trace(notes: Sequence[str]) -> str:
    """Why there is no trace: the recorder's own reasons (NOT_AVAILABLE in under_torch/recorder.py),
    else the last note, since later notes are on the whole program, else that nothing was allocated.
    """
    reasons = [note for note in notes if "not available because" in note]
    if reasons:
        return "; ".join(reasons)
    if notes:
        return notes[-1]
    return "nothing was allocated while it was recorded"


def remove(out: Path) -> None:
    """Delete the files of an earlier recording of that name.

    A trace without a recording's folder beside it is left: it may be a file of somebody else.
    """
    folder = out.with_suffix(".record")
    if (folder / "record.json").is_file():
        shutil.rmtree(folder)
        out.with_suffix(".pickle").unlink(missing_ok=True)


def under(python: str, command: Sequence[str]) -> list[str]:
    """The command, run by ``python`` unless that is empty.

    Raises RecordError for no command, or one that does not run Python.
    """
    if not command:
        raise RecordError(
            "no command; expected one after --, such as: -- python train.py"
        )
    if not python:
        return list(command)
    if re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])):
        return [python, *command[1:]]
    if command[0].endswith(".py"):
        return [python, *command]
    raise RecordError(
        f"{command[0]}: expected python or a .py file with --torch-python; leave that "
        "option out"
    )


def environment(
    environ: Mapping[str, str], folder: Path, settings: Mapping[str, Any]
) -> dict[str, str]:
    """The program's own environment, with the recorder's folder first on PYTHONPATH, and the
    recorder's options as JSON in CASEBOOK_RECORD.
    """
    path = str(INJECT)
    if environ.get("PYTHONPATH"):
        path += os.pathsep + environ["PYTHONPATH"]
    options = json.dumps({"folder": str(folder), **settings})
    return {**environ, "PYTHONPATH": path, "CASEBOOK_RECORD": options}
