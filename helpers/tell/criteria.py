"""The success criteria of the case studies as one table: what was asked, what was seen, met or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers.load.criteria import criteria, with_runs
from helpers.load.training import PathResult

from .tables import table


def criteria_table(log: str = "", study: str = "", results: Sequence[PathResult] = ()) -> str:
    """Each criterion by a run's log, an Optuna storage and the training paths that ran here; what none of them shows says so.

    Raises ValueError (OSError), one line, for a log or storage that cannot be read.
    """
    found = criteria(Path(log) if log else None, study or None)
    rows = [
        [row.study, row.criterion, row.expected, row.seen or None, row.state]
        for row in with_runs(found.rows, results)
    ]
    return table(rows, ["case", "criterion", "expected", "seen", "state"], widest=70)
