"""run.json, the truth about one run: written whole or not at all, moved only by legal moves, read with tolerance."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from helpers.child import process_of
from helpers.look.files import write_atomic
from helpers.shapes import one_line

from .shapes import Run

EARLIER = "earlier"  # below a run's folder: what its earlier attempts left, by number
BLAMED = ("died", "timed_out", "stuck", "rebooted", "node_lost")
"""What a run is to blame for: each is a strike, and such a run is never repeated by itself."""
LEGAL = {"planned": ("started", "skipped"), "started": ("answered", "failed", *BLAMED)}
NEVER_RAN = ("interrupt", "limit", "quarantine", "disk", "box")
"""What may have kept a skipped run from its start that need not be so the next time."""
PLANNED = {
    *("run_id", "batch_id", "box", "notebook", "parameters", "preset", "danger", "gpu"),
    *("estimate_s", "strikes", "plan_sha256", "tool_version"),
}
"""What the record of another attempt keeps."""
SHOWN = ("attempt", "strikes", "node", "gpu", "gate", "quarantined", "seconds")
TIME = "%Y-%m-%dT%H:%M:%SZ"


class IllegalMove(ValueError):
    """A state was asked for that a run cannot reach from the one it is in."""


class RecordUnreadable(ValueError):
    """A run.json that is torn, from another version or no record at all. One line."""


def move(run: Run, state: str, **changes: Any) -> Run:
    """The run in its next state, with a strike where it is to blame. Raises IllegalMove: what ended never changes its state.

    Another attempt at a run that ended is another record: ``again``.
    """
    allowed = LEGAL.get(run.state, ())
    if state not in allowed:
        expected = " or ".join(allowed) or "no further move"
        raise IllegalMove(f"{run.run_id}: from {run.state} to {state}; expected {expected}")
    strikes = run.strikes + (state in BLAMED)
    return Run.model_validate({**run.model_dump(), "state": state, "strikes": strikes, **changes})


def next_attempt(run: Run, after_strikes: int, ooms: int | None) -> int:
    """The attempt at a run that a resumed batch makes by itself, or 0 where the run stays as it is.

    One that never started keeps its number. One that the user interrupted is tried again, and so is one whose batch ended
    while it ran, until it has more than ``after_strikes`` strikes; never where ``ooms``, the OOM kills by now, rose meanwhile.
    """
    if run.state == "skipped":
        return run.attempt if run.stopped_by in NEVER_RAN else 0
    if run.state == "failed" and run.stopped_by == "interrupt":
        return run.attempt + 1
    if run.state == "died" and run.stopped_by == "batch_end" and run.strikes <= after_strikes:
        known = ooms is not None and run.ooms_before is not None and run.boot_id == boot_id()
        return 0 if known and (ooms or 0) > (run.ooms_before or 0) else run.attempt + 1
    return 0


def again(run: Run, attempt: int) -> Run:
    """The planned record of another attempt at a run that ended: what was planned, and its strikes. Raises IllegalMove."""
    if run.state in LEGAL:
        raise IllegalMove(f"{run.run_id}: {run.state}; expected a run that has ended")
    return Run(**run.model_dump(include=PLANNED), attempt=attempt)


def write_run(folder: Path, run: Run) -> None:
    """Write a run's record into its folder. Raises OSError."""
    write_atomic(folder / "run.json", run.model_dump_json(indent=1) + "\n")


def _from_1(raw: dict[str, Any]) -> dict[str, Any]:
    """Version 1 said only in words what had stopped a run."""
    words = {
        ("skipped", "interrupted"): "interrupt",
        ("skipped", "the plan's limit"): "limit",
        ("skipped", "this box could not"): "box",
        ("failed", "interrupted by"): "interrupt",
    }
    state, cause = raw.get("state"), str(raw.get("cause"))
    kinds = [kind for (of, start), kind in words.items() if of == state and cause.startswith(start)]
    return {**raw, "schema_version": 2, "stopped_by": (kinds or [""])[0]}


MIGRATIONS = {1: _from_1}
"""Each lifts a record from its version to the next."""


def read_run(path: Path) -> Run:
    """Read one run.json, also of an earlier version. Raises RecordUnreadable."""
    try:
        text = path.read_bytes()
        try:
            return Run.model_validate_json(text)
        except ValidationError:  # the slow way: it says what is wrong, and lifts
            raw = json.loads(text)
            while isinstance(raw, dict) and type(version := raw.get("schema_version")) is int:
                if version not in MIGRATIONS:
                    break
                raw = MIGRATIONS[version](raw)
            return Run.model_validate(raw)
    except OSError as error:
        raise RecordUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise RecordUnreadable(one_line(error, str(path))) from error
    except (ValueError, RecursionError) as error:
        why = "no whole JSON; expected a record; its run counts as unknown"
        raise RecordUnreadable(f"{path}: {why}") from error


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


def is_alive(run: Run) -> bool:
    """Whether the process of a started run is there on this machine: its number, and its run's name on its command line."""
    words = command_line(run.pid) if run.pid is not None and process_of(run.pid).running else []
    return any(word.endswith(f"/{run.run_id}".encode()) for word in words)


def command_line(pid: int | str) -> list[bytes]:
    """The words of a process's command line; none where it is gone or may not be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def gone(run: Run) -> str:
    """Why a run that reads as started is not running any more, or nothing: its process is gone or the machine restarted.

    Of a run on another node nothing is known here.
    """
    if run.state != "started":
        return ""
    if run.boot_id and run.boot_id != boot_id():
        return "started under another boot" if run.node in ("", node()) else ""
    return "started, and its process is gone" if run.pid is not None and not is_alive(run) else ""


def strikes_by_node(runs: Iterable[Run]) -> Counter[str]:
    """How many strikes the runs of each node have."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.node] += run.strikes
    return counts


def time_left_s(runs: Sequence[Run]) -> float | None:
    """Seconds that what is left should take one after the other, by the runs' own estimates; None where one has none."""
    left = 0.0
    for run in runs:
        if run.state in ("planned", "started"):
            if run.estimate_s is None:
                return None
            spent_s = _seconds_since(run.started_at) if run.state == "started" else 0.0
            left += max(0.0, run.estimate_s - spent_s)
    return left


def status_json(view: BatchView) -> dict[str, Any]:
    """The state of a batch as data."""
    return {
        "batch": view.folder.name,
        "counts": view.counts,
        "unreadable": list(view.unreadable),
        "left_s": time_left_s(view.runs),
        "runs": [
            {
                **{name: getattr(run, name) for name in ("run_id", "notebook", "box", "state")},
                "cause": run.cause or gone(run),
                "gone": bool(gone(run)),
                **{name: getattr(run, name) for name in SHOWN},
                "answer": run.verdict.cause if run.verdict else None,
            }
            for run in view.runs
        ],
    }


def status_text(view: BatchView) -> str:
    """The state of a batch for a terminal: one line a run, read from its records alone."""
    width = max((len(run.run_id) for run in view.runs), default=0)
    left_s, left = time_left_s(view.runs) or 0.0, ""
    if left_s:
        time = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        left = f"; about {time} left"
    counts = ", ".join(f"{n} {state}" for state, n in view.counts.items()) or "no runs"
    lines = [f"{view.folder.name}: {counts}{left}"]
    nodes = len({run.node for run in view.runs if run.node}) > 1
    for run in view.runs:
        words = [
            f"on {run.node}" if nodes and run.node else "",
            f"attempt {run.attempt}" if run.attempt > 1 else "",
            run.verdict.short if run.verdict else "",
            run.cause or gone(run),
            run.gate and f"afterwards: {run.gate}",
            run.quarantined and f"closed: {run.quarantined}",
            f"{run.strikes} strike{'s' * (run.strikes > 1)}" if run.strikes else "",
            *run.notes,
        ]
        seconds = f"{run.seconds:6.1f} s" if run.seconds is not None else " " * 8
        about = "; ".join(filter(None, words))
        lines.append(f"  {run.run_id:<{width}}  {run.state:<9} {seconds}  {about}".rstrip())
    return "\n".join([*lines, *(f"  not readable: {line}" for line in view.unreadable)])


def node() -> str:
    """The name of this machine."""
    return os.uname().nodename


def boot_id() -> str:
    """The id that this machine drew when it last started, or nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def now() -> str:
    """The time as records write it: UTC, whole seconds."""
    return datetime.now(timezone.utc).strftime(TIME)


def _seconds_since(started_at: str) -> float:
    try:
        began = datetime.strptime(started_at, TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.now(timezone.utc) - began).total_seconds())


def files_below(folder: Path, skip: Iterable[str] = ("run.json", "runner.log")) -> list[str]:
    """Files of a run, relative to its folder, without empty ones and those of earlier attempts."""
    own = [path for path in folder.rglob("*") if path.name not in skip and path.name[0] != "."]
    files = [path.relative_to(folder) for path in own if path.is_file() and path.stat().st_size]
    return sorted(str(path) for path in files if path.parts[0] != EARLIER)
