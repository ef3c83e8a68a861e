"""How long notebooks took in earlier batches on this machine."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

from .record import RecordUnreadable, node, read_run

NEWEST = 500
"""Records that are read: those of the last few nights, which takes well under a second."""


def seconds_by_notebook(outputs: Path) -> dict[str, float]:
    """The median of the seconds that each notebook took in the batches in ``outputs``, by the
    notebook's name as the plan has it. Runs on other machines do not count.
    """
    records = sorted(outputs.glob("*/*/run.json"), key=_changed_at)
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for path in records[-NEWEST:]:
        try:
            run = read_run(path)
        except RecordUnreadable:
            continue
        ran_here = run.node in ("", node())  # "" where none was recorded
        if run.state == "answered" and run.seconds and ran_here:
            taken[run.notebook].append(run.seconds)
    return {notebook: median(seconds) for notebook, seconds in taken.items()}


def _changed_at(path: Path) -> float:
    """When a record was written, in seconds of Unix time; 0 if it has just been deleted."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
