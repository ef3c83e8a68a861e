"""run.json, the record of one run: written whole or not at all; its state changes only in the legal
order; what cannot be read is named.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError

from helpers.ground.child import process_of
from helpers.ground.contract import one_line
from helpers.ground.units import TIME
from helpers.ground.units import now as now
from helpers.look.earlier_boot import last_lines
from helpers.look.files import boot_id as boot_id
from helpers.look.files import read, read_whole, write_atomic

from .shapes import Run

EARLIER = "earlier"
"""The folder in a run's own that has its earlier attempts, each in a folder by its number."""
BLAMED = ("died", "timed_out", "stuck", "rebooted", "node_lost")
"""Ends that a run is to blame for: each is a strike."""
LEGAL = {"planned": ("started", "skipped"), "started": ("answered", "failed", *BLAMED)}
"""The next states of a state; a state that is not here is an end."""
KEPT = set(
    "run_id batch_id box notebook parameters preset danger gpu estimate_s from_start "
    "strikes plan_sha256 tool_version".split()
)
"""Fields that the record of another attempt has from the one before."""
MOST_BYTES = 16 << 20
"""Above the largest record, which has a verdict with all of its evidence."""
MOST_VALUES = 100_000
"""Of one record: pydantic reports each wrong value, which for more would not fit into memory."""


MOST_ERROR = 300
"""Letters of another package's error in a cause, which is one line of a table."""


class IllegalMove(ValueError):
    """A run cannot go from its state to the one that was asked for."""


class RecordUnreadable(ValueError):
    """A run.json is torn, from another version or no record at all. One line."""


def move(run: Run, state: str, **changes: object) -> Run:
    """The record in its next state, with these fields changed, and one strike more for a state of
    BLAMED.

    Raises IllegalMove: a run that has ended keeps its state; another attempt at it has another
    record (``again``).
    """
    allowed = LEGAL.get(run.state, ("no further move",))
    if state not in allowed:
        raise IllegalMove(
            f"{run.run_id}: from {run.state} to {state}; expected "
            f"{' or '.join(allowed)}"
        )
    moved = {**run.model_dump(), "state": state, **changes}
    if state in BLAMED:
        moved["strikes"] = run.strikes + 1
    return Run.model_validate(moved)


def again(run: Run, attempt: int) -> Run:
    """The record of another attempt, planned, at a run that has ended. Raises IllegalMove."""
    if run.state in LEGAL:
        raise IllegalMove(f"{run.run_id}: {run.state}; expected a run that has ended")
    return Run(**run.model_dump(include=KEPT), attempt=attempt)


def write_run(folder: Path, run: Run) -> None:
    """Write a run's record into its folder. Raises OSError."""
    write_atomic(folder / "run.json", run.model_dump_json(indent=1) + "\n")


def read_run(path: Path) -> Run:
    """Read one run.json. Raises RecordUnreadable, also if it is the record of another folder."""
    try:
        raw = read_whole(path, MOST_BYTES)
        if raw.count(b",") > MOST_VALUES:  # commas separate values in JSON
            raise RecordUnreadable(
                f"{path}: more than {MOST_VALUES:,} values; expected a record; "
                "its run counts as unknown"
            )
        run = Run.model_validate_json(raw)
    except OSError as error:
        raise RecordUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        if error.errors()[0]["type"] != "json_invalid":
            raise RecordUnreadable(one_line(error, str(path))) from error
        # The file is torn, and pydantic's own words about it say less.
        raise RecordUnreadable(
            f"{path}: no whole JSON; expected a record; its run counts as unknown"
        ) from error
    folder = path.absolute().parent
    if folder.parent.name == EARLIER:  # RUN/earlier/ATTEMPT/run.json
        folder = folder.parents[1]
    if folder.is_symlink() or run.run_id != folder.name:
        raise RecordUnreadable(
            f"{path}: is the record of {run.run_id}, and its folder another's "
            "or a link; its run counts as unknown"
        )
    return run


@dataclass(frozen=True)
class BatchView:
    """The records of a batch; ``unreadable`` has one line for each that cannot be read."""

    folder: Path
    runs: tuple[Run, ...]
    unreadable: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many runs are in each state, in order of first appearance."""
        return dict(Counter(run.state for run in self.runs))


def is_batch(folder: Path) -> bool:
    """Whether a folder is that of a batch: it has a plan, or the record of a run."""
    return (folder / "plan.yaml").is_file() or any(folder.glob("*/run.json"))


def read_batch(folder: Path) -> BatchView:
    """Every run of a batch, in the order of the plan. A bad record is named, never raised."""
    runs: list[Run] = []
    unreadable: list[str] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            runs.append(read_run(path))
        except RecordUnreadable as error:
            unreadable.append(str(error))
    return BatchView(folder, tuple(runs), tuple(unreadable))


def is_alive(run: Run) -> bool:
    """Whether the process of a started run is still there on this machine: one with its number and
    with the run's folder on its command line, as another process may have got the number.
    """
    if run.pid is None or not process_of(run.pid).running:
        return False
    folder = f"/{run.run_id}".encode()
    return any(word.endswith(folder) for word in command_line(run.pid))


def command_line(pid: int | str) -> list[bytes]:
    """The words of a process's command line, with an empty one after the last
    (proc_pid_cmdline(5)); none if the process is gone or may not be read.
    """
    content, _, _ = read("", f"/proc/{pid}/cmdline")
    if content is None:
        return []
    return content.split(b"\0")


def gone(run: Run) -> str:
    """Why a run whose record says "started" does not run any more, in words; empty if it runs, has
    ended, or was started on another machine.
    """
    if run.state != "started":
        return ""
    if run.boot_id and run.boot_id != boot_id():
        if run.node not in ("", node()):
            return ""
        return "started under another boot"
    if run.pid is None or is_alive(run):
        return ""
    return "started, and its process is gone"


def in_words(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its text."""
    first_line, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}: {first_line[:MOST_ERROR]}"


def replaced(value: object, old: str, new: str) -> object:
    """The value of a parameter, in whose text ``new`` replaces ``old``, also in lists of texts."""
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    if isinstance(value, str):
        return value.replace(old, new)
    return value


def last_words_before(run: Run) -> list[str]:
    """The last lines of the kernel log before this machine went down during a run, or a line that
    says why there are none.
    """
    began_s = time.time() - seconds_since(run.started_at)
    first, *others = last_lines(run.boot_id, began_s)
    return [f"The kernel's last words before it, {first}", *others]


def node() -> str:
    """The name of this machine."""
    return os.uname().nodename


def seconds_since(started_at: str) -> float:
    """Seconds since a time as records have it (``units.TIME``, UTC); 0 if it is none."""
    try:
        began = datetime.strptime(started_at, TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.now(timezone.utc) - began).total_seconds())


def files_below(folder: Path) -> list[str]:
    """The files that a run left, by path relative to its folder: without its record and its
    runner's log, hidden and empty files, and those of earlier attempts.
    """
    names = []
    for path in folder.rglob("*"):
        below = path.relative_to(folder)
        is_hidden = path.name.startswith(".")
        if is_hidden or path.name in ("run.json", "runner.log"):
            continue
        if below.parts[0] == EARLIER:
            continue
        if path.is_file() and path.stat().st_size:
            names.append(str(below))
    return sorted(names)
