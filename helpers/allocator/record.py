"""A program run unchanged under torch's memory history: started, its signals passed on, and
what it left collected.

The recorder itself runs inside (helpers/allocator/under_torch/recorder.py), put there by a
sitecustomize on PYTHONPATH: the program, its arguments, its input and output stay as they are.
There is no limit of time. A process that nothing could be put into is named.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
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


class RecordError(ValueError):
    """Nothing was run: one line with what was seen, what was expected and what to do."""


class NameTakenError(RecordError):
    """Something is kept under the name of a new recording already."""


@dataclass(frozen=True)
class Recording:
    """What was kept.

    ``exit_code`` is what the program's would be in a shell: 128 + n where signal n ended it
    (``signal``).

    ``trace`` is the snapshot to replay; None: ``why_no_trace``. ``folder`` holds every snapshot,
    the stacks, and record.json, which says all of this and one entry per process.
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
    """Run ``command`` to its end and keep its trace at ``out`` (a .pickle).

    The rest goes to a folder beside it.

    ``max_events`` is the length of the ring buffer of each device; ``hang_after_s`` asks for
    stacks and a snapshot when a process that imported torch neither allocated nor wrote
    anything for so long; ``python`` runs the command in place of the ``python`` that it names;
    ``term_s`` above 0 ends all of it so many seconds after a SIGTERM, which ``ends_after_s``
    above 0 sends by itself. Raises RecordError where
    nothing can be run.
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

    def hearing(number: int) -> list[int]:
        """The processes that get a signal of ours."""
        if number == signal.SIGTERM and term_s:
            return carrying(f"CASEBOOK_RECORD={environ['CASEBOOK_RECORD']}")
        if number != signal.SIGUSR1:
            return []
        return [
            row["pid"]
            for row in process_rows(folder)
            if row["signals"].get("SIGUSR1") == "recorder" and not row["ended"]
        ]

    began = time.monotonic()
    try:
        code = run_here(argv, environ, hearing, term_s, ends_after_s)
    except OSError as error:
        folder.rmdir()
        raise RecordError(
            f"{argv[0]}: {error.strerror}; expected a program; give the command after "
            "--"
        ) from error
    seconds = round(time.monotonic() - began, 3)
    processes, notes = collect(folder)
    snapshot = best_snapshot(processes)
    trace = None
    why_no_trace = ""
    if snapshot:
        trace = _keep_trace(folder / snapshot, out)
    else:
        why_no_trace = _why_no_trace(notes)
    ended_by = ""
    if code < 0:
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


def _claim(out: Path, folder: Path) -> None:
    """Make the folder of a recording.

    Raises NameTakenError where something of that name is kept, and FileExistsError where another
    recording takes it at the same moment.
    """
    kept = {path.suffix for path in folder.glob("*")} & {".pickle", ".stacks"}
    if (folder / "record.json").is_file() and not kept:
        # Of a recording that kept nothing, so that it can be tried again.
        shutil.rmtree(folder)
    for path in (out, out.with_suffix(".pickle"), folder):
        if path.exists():
            raise NameTakenError(
                f"{path}: exists already; expected a new name; choose another --out, "
                "or add --force"
            )
    folder.mkdir(parents=True)


def _keep_trace(snapshot: Path, out: Path) -> Path:
    trace = out.with_suffix(snapshot.suffix)
    try:
        os.link(snapshot, trace)
    except OSError:
        shutil.copyfile(snapshot, trace)  # a file system without hard links
    return trace


def _why_no_trace(notes: Sequence[str]) -> str:
    reasons = [note for note in notes if "not available because" in note]
    if reasons:
        return "; ".join(reasons)
    return notes[-1] if notes else "nothing was allocated while it was recorded"


def remove(out: Path) -> None:
    """Take away what an earlier recording kept under that name.

    Files that no recording's folder stands beside are left.
    """
    folder = out.with_suffix(".record")
    if (folder / "record.json").is_file():
        shutil.rmtree(folder)
        out.with_suffix(".pickle").unlink(missing_ok=True)


def under(python: str, command: Sequence[str]) -> list[str]:
    """The command, run by ``python`` unless that is empty.

    Raises RecordError for no command, or one that is no Python's.
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
    """The program's own environment, with the recorder's folder first on PYTHONPATH, and what
    the recorder is to do.
    """
    path = os.pathsep.join(filter(None, [str(INJECT), environ.get("PYTHONPATH", "")]))
    options = json.dumps({"folder": str(folder), **settings})
    return {**environ, "PYTHONPATH": path, "CASEBOOK_RECORD": options}
