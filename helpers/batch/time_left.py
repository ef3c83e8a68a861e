"""How long a batch will still take, said as roughly as it is known."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from .shapes import Run


def time_left_s(runs: Sequence[Run], side_by_side: int = 1) -> float | None:
    """Seconds until the end if the rest goes like the runs before; None while nothing is known.

    Before the first run has ended the plan's estimates count.
    """
    rest = [run for run in runs if run.state in ("planned", "started")]
    ended_s = [
        run.seconds
        for run in runs
        if run.seconds is not None
        and run.state not in ("planned", "started", "skipped")
    ]
    if ended_s:
        return mean(ended_s) * len(rest) / side_by_side
    estimates_s = [run.estimate_s for run in rest if run.estimate_s is not None]
    return sum(estimates_s) / side_by_side if len(estimates_s) == len(rest) else None


def short_time(seconds: float) -> str:
    """A time that is only about right: ``40 s``, ``12 min``, ``3 h 10 min``."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"
