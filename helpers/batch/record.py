"""run.json, the truth about one run: written whole or not at all, moved only by legal moves,
read with tolerance.
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
"""The folder below a run's own in which its earlier attempts lie, by number."""
BLAMED = ("died", "timed_out", "stuck", "rebooted", "node_lost")
"""What a run is to blame for: each is a strike, and such a run is never repeated by itself."""
LEGAL = {"planned": ("started", "skipped"), "started": ("answered", "failed", *BLAMED)}
"""The states that a run may go to from a state that is no end."""
KEPT = set(
    "run_id batch_id box notebook parameters preset danger gpu estimate_s from_start "
    "strikes plan_sha256 tool_version".split()
)
"""What the record of another attempt keeps."""
MOST_BYTES = 16 << 20
# Of one record: a report on the faults of each would not fit into memory.
MOST_VALUES = 100_000


class IllegalMove(ValueError):
    """A state was asked for that a run cannot reach from the one it is in."""


class RecordUnreadable(ValueError):
    """A run.json that is torn, from another version or no record at all. One line."""


def move(run: Run, state: str, **changes: object) -> Run:
    """The run in its next state, with a strike where it is to blame.

    Raises IllegalMove: what ended never changes its state. Another attempt at a run that ended
    is another record: ``again``.
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
    """The planned record of another attempt at a run that ended: what was planned, and its strikes.

    Raises IllegalMove.
    """
    if run.state in LEGAL:
        raise IllegalMove(f"{run.run_id}: {run.state}; expected a run that has ended")
    return Run(**run.model_dump(include=KEPT), attempt=attempt)


def write_run(folder: Path, run: Run) -> None:
    """Write a run's record into its folder. Raises OSError."""
    write_atomic(folder / "run.json", run.model_dump_json(indent=1) + "\n")


def read_run(path: Path) -> Run:
    """Read one run.json. Raises RecordUnreadable, also where it is not that of its folder."""
    try:
        raw = read_whole(path, MOST_BYTES)
        if raw.count(b",") > MOST_VALUES:
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
        raise RecordUnreadable(
            f"{path}: no whole JSON; expected a record; its run counts as unknown"
        ) from error
    folder = path.absolute().parent
    if folder.parent.name == EARLIER:
        folder = folder.parents[1]
    if folder.is_symlink() or run.run_id != folder.name:
        raise RecordUnreadable(
            f"{path}: is the record of {run.run_id}, and its folder another's "
            "or a link; its run counts as unknown"
        )
    return run


@dataclass(frozen=True)
class BatchView:
    """What the records of a batch say; ``unreadable`` holds one line for each record that
    cannot be believed.
    """

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
    """Every run of a batch in order.

    Never raises on a bad record: it is named and the others are still read.
    """
    runs: list[Run] = []
    unreadable: list[str] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            runs.append(read_run(path))
        except RecordUnreadable as error:
            unreadable.append(str(error))
    return BatchView(folder, tuple(runs), tuple(unreadable))


def is_alive(run: Run) -> bool:
    """Whether the process of a started run is there on this machine: its number, and its run's
    name on its command line.
    """
    if run.pid is None or not process_of(run.pid).running:
        return False
    folder = f"/{run.run_id}".encode()
    return any(word.endswith(folder) for word in command_line(run.pid))


def command_line(pid: int | str) -> list[bytes]:
    """The words of a process's command line; none where it is gone or may not be read."""
    content, _, _ = read("", f"/proc/{pid}/cmdline")
    return [] if content is None else content.split(b"\0")


def gone(run: Run) -> str:
    """Why a run that reads as started is not running any more, or nothing: its process is gone
    or the machine restarted.

    Of a run on another node nothing is known here.
    """
    if run.state != "started":
        return ""
    if run.boot_id and run.boot_id != boot_id():
        was_here = run.node in ("", node())
        return "started under another boot" if was_here else ""
    if run.pid is None or is_alive(run):
        return ""
    return "started, and its process is gone"


def in_words(error: BaseException) -> str:
    """An exception in one line: its kind and the first line of what it says."""
    first_line, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}: {first_line[:300]}"


def replaced(value: object, old: str, new: str) -> object:
    """The value of a parameter with ``new`` for ``old`` in its text, also in lists of texts."""
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    if isinstance(value, str):
        return value.replace(old, new)
    return value


def last_words_before(run: Run) -> list[str]:
    """What the kernel of a run's machine logged last before it went down, or why not."""
    began_s = time.time() - seconds_since(run.started_at)
    first, *others = last_lines(run.boot_id, began_s)
    return [f"The kernel's last words before it, {first}", *others]


def node() -> str:
    """The name of this machine."""
    return os.uname().nodename


def seconds_since(started_at: str) -> float:
    """Seconds since a moment of a record; 0 where it names none."""
    try:
        began = datetime.strptime(started_at, TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.now(timezone.utc) - began).total_seconds())


def files_below(folder: Path) -> list[str]:
    """Files of a run, relative to its folder, without its record, empty ones and those of
    earlier attempts.
    """
    names = []
    for path in folder.rglob("*"):
        below = path.relative_to(folder)
        is_ours = path.name in ("run.json", "runner.log") or path.name.startswith(".")
        if is_ours or below.parts[0] == EARLIER:
            continue
        if path.is_file() and path.stat().st_size:
            names.append(str(below))
    return sorted(names)
