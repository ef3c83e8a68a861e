"""Estimates how long a batch will still take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from .shapes import Run

LEAST_OF_NEXT_UNIT = 90
"""From this many seconds or minutes on the next unit is shown; "1 min" would be too rough for
less.
"""


def time_left_s(runs: Sequence[Run], side_by_side: int = 1) -> float | None:
    """Seconds until the end, with this many runs ``side_by_side``; None if that is not known.

    The rest is taken to last as long as the runs before it in the mean; before the first run has
    ended, the plan's estimates count, if every run has one.
    """
    rest = [run for run in runs if run.state in ("planned", "started")]
    ended = [run for run in runs if run.state not in ("planned", "started", "skipped")]
    ended_s = [run.seconds for run in ended if run.seconds is not None]
    if ended_s:
        return mean(ended_s) * len(rest) / side_by_side
    estimates_s = [run.estimate_s for run in rest if run.estimate_s is not None]
    if len(estimates_s) < len(rest):
        return None
    return sum(estimates_s) / side_by_side


def short_time(seconds: float) -> str:
    """A rough time in the unit in which it has two digits: ``40 s``, ``12 min``, ``3 h 10 min``."""
    if seconds < LEAST_OF_NEXT_UNIT:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    if minutes < LEAST_OF_NEXT_UNIT:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"
