"""run.json, the truth about one run: written whole or not at all, moved only by legal moves, read with tolerance."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .kernel import is_running
from .shapes import Run, one_line

LEGAL: dict[str, tuple[str, ...]] = {
    "planned": ("started", "skipped"),
    "started": ("answered", "failed", "died", "timed_out", "stuck", "rebooted", "node_lost"),
}


class IllegalMove(ValueError):
    """A state was asked for that a run cannot reach from the one it is in."""


class RecordUnreadable(ValueError):
    """A run.json that is torn, from another version or no record at all. One line."""


def move(run: Run, state: str, **changes: Any) -> Run:
    """The run in its next state. Raises IllegalMove: a run that ended never changes its state again."""
    allowed = LEGAL.get(run.state, ())
    if state not in allowed:
        raise IllegalMove(f"{run.run_id}: from {run.state} to {state}; expected {' or '.join(allowed) or 'no further move'}")
    return Run.model_validate({**run.model_dump(), "state": state, **changes})


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that a reader, a killed writer or a power cut leaves the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_run(folder: Path, run: Run) -> None:
    """Write a run's record into its folder."""
    write_atomic(folder / "run.json", run.model_dump_json(indent=1) + "\n")


def read_run(path: Path) -> Run:
    """Read one run.json. Raises RecordUnreadable."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Run.model_validate(raw)
    except OSError as error:
        raise RecordUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise RecordUnreadable(one_line(error, str(path))) from error
    except (ValueError, RecursionError) as error:
        raise RecordUnreadable(f"{path}: no whole JSON; expected a record; its run counts as unknown") from error


@dataclass(frozen=True)
class BatchView:
    """What the records of a batch say; ``unreadable`` holds one line for each record that cannot be believed."""

    folder: Path
    runs: tuple[Run, ...]
    unreadable: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many runs are in each state, in order of first appearance."""
        return dict(Counter(run.state for run in self.runs))


def read_batch(folder: Path) -> BatchView:
    """Every run of a batch in order. Never raises on a bad record: it is named and the others are still read."""
    runs: list[Run] = []
    unreadable: list[str] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            runs.append(read_run(path))
        except RecordUnreadable as error:
            unreadable.append(str(error))
    return BatchView(folder, tuple(runs), tuple(unreadable))


def gone(run: Run) -> str:
    """Why a run that reads as started is not running any more, or nothing: its process is gone or the machine restarted.

    True only on the machine that ran it: a record copied from elsewhere has another boot id.
    """
    if run.state != "started":
        return ""
    if run.boot_id and run.boot_id != boot_id():
        return "started under another boot"
    if run.pid is not None and not is_running(run.pid):
        return "started, and its process is gone"
    return ""


def status_json(view: BatchView) -> dict[str, Any]:
    """The state of a batch as data."""
    return {"batch": view.folder.name, "counts": view.counts, "unreadable": list(view.unreadable),
            "runs": [{"run_id": run.run_id, "notebook": run.notebook, "box": run.box, "state": run.state,
                      "cause": run.cause or gone(run), "seconds": run.seconds,
                      "answer": run.verdict.cause if run.verdict else None} for run in view.runs]}


def status_text(view: BatchView) -> str:
    """The state of a batch for a terminal: one line a run, read from its records alone."""
    width = max((len(run.run_id) for run in view.runs), default=0)
    lines = [f"{view.folder.name}: " + (", ".join(f"{n} {state}" for state, n in view.counts.items()) or "no runs")]
    for run in view.runs:
        answer = f"{run.verdict.cause} ({run.verdict.confidence})" if run.verdict else ""
        seconds = f"{run.seconds:6.1f} s" if run.seconds is not None else " " * 8
        words = "; ".join(filter(None, (answer, run.cause or gone(run))))
        lines.append(f"  {run.run_id:<{width}}  {run.state:<9} {seconds}  {words}".rstrip())
    lines += [f"  not readable: {line}" for line in view.unreadable]
    return "\n".join(lines)


def boot_id() -> str:
    """The id that this machine drew when it last started, or nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def now() -> str:
    """The time as records write it: UTC, whole seconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def files_below(folder: Path, skip: Iterable[str] = ("run.json", "runner.log")) -> list[str]:
    """Files of a run, relative to its folder, without empty ones."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")
                  if path.is_file() and path.name not in skip and not path.name.startswith(".") and path.stat().st_size)
