"""How long will a run take, and a plan? From the records of earlier runs, else what a notebook says, else its limit."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from datetime import timedelta
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from helpers.look.reading import show_bytes

from .kernel import CHECKOUT
from .shapes import DANGERS

if TYPE_CHECKING:
    from .plan import CheckedPlan

OUTPUTS = CHECKOUT / "outputs"
MOST_RECORDS = 200
ROW = (
    "run_id",
    "notebook",
    "gpu",
    "preset",
    "parameters",
    "danger",
    "waits",
    "estimate_s",
    "estimate_from",
    "cell_s",
    "run_s",
)
BATCHES = "[0-9]*T[0-9]*Z-*"  # as batches are named: the newest has the last name


class Estimates:
    """Seconds of the newest answered runs below ``outputs``, by notebook with parameters and by notebook."""

    def __init__(self, outputs: Path = OUTPUTS):
        self.seconds: dict[str, list[float]] = defaultdict(list)
        records = (
            path
            for batch in sorted(outputs.glob(BATCHES), reverse=True)
            for path in sorted(batch.glob("*/run.json"))
        )
        for path in islice(records, MOST_RECORDS):
            try:
                run = json.loads(path.read_text(encoding="utf-8"))
                if run["state"] == "answered" and 0 < float(run["seconds"]) < math.inf:
                    self.seconds[str(run["run_id"]).partition("-")[2]].append(float(run["seconds"]))
                    self.seconds[str(run["notebook"])].append(float(run["seconds"]))
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                continue  # a torn or foreign record only makes the estimate poorer

    def of(self, notebook: str, name: str, said_s: float | None, run_s: float) -> tuple[float, str]:
        """(seconds, where they come from) of a run. ``name``: its id without the number; ``said_s``: what its notebook says."""
        for key, of_what in ((name, "like it"), (notebook, "of this notebook")):
            earlier = self.seconds.get(key, [])
            if earlier:
                return min(
                    round(median(earlier), 1), run_s
                ), f"{len(earlier)} earlier run{'s' * (len(earlier) > 1)} {of_what}"
        return (min(said_s, run_s), "the notebook's metadata") if said_s else (run_s, "its limit")


def total_estimate_s(checked: CheckedPlan) -> float:
    """Seconds that a plan will take: runs that only look go side by side, all others alone."""
    busy = [0.0] * checked.plan.jobs
    for step in checked.steps:
        if step.danger == "looks" and not step.waits:
            busy[busy.index(min(busy))] += step.estimate_s
        else:
            busy = [max(busy) + step.estimate_s] * len(busy)
    return max(busy)


def dry_run(checked: CheckedPlan) -> list[dict[str, Any]]:
    """The runs of a plan in the order they start, as data."""
    return [
        {"box": step.box_name, **{name: getattr(step, name) for name in ROW}}
        for step in checked.steps
    ]


def dry_run_text(checked: CheckedPlan) -> str:
    """The runs of a plan in the order they start, and what holds for all of them, for a terminal."""
    plan, gates, stop, rows = checked.plan, checked.plan.gates, checked.plan.stop, dry_run(checked)
    wide = {name: max(len(row[name]) for row in rows) for name in ("run_id", "danger", "box")}
    lines = []
    for row in rows:
        what = [
            row["gpu"],
            row["preset"],
            *(f"{name}={value}" for name, value in row["parameters"].items() if name != "gpu"),
        ]
        cells = "  ".join(f"{row[name]:<{width}}" for name, width in wide.items())
        lines.append(
            f"{cells}  {row['estimate_s']:6.1f} s  {' '.join(' '.join(filter(None, what)).split())[:60]}".rstrip()
        )
    total_s, guessed = (
        total_estimate_s(checked),
        sum(row["estimate_from"] == "its limit" for row in rows),
    )
    counts = ", ".join(
        f"{sum(row['danger'] == danger for row in rows)} {danger}" for danger in DANGERS
    )
    stops = [
        f"after {stop.after_failures} runs that failed" * bool(stop.after_failures),
        f"a node after {stop.node_strikes} strikes" * bool(stop.node_strikes),
        f"after a run that ends as {' or '.join(stop.on_states)}" * bool(stop.on_states),
    ]
    return "\n".join(
        [
            *lines,
            f"{len(rows)} runs ({counts}); of those that only look, {plan.jobs} at once.",
            f"Estimated: {timedelta(seconds=round(total_s))}, {guessed} runs of it at their limit for want of earlier ones"
            + "; that is more than the plan's limit: its last runs are skipped"
            * (total_s > checked.total_s)
            + ".",
            f"Limits: a cell {max(row['cell_s'] for row in rows):g} s, a run {max(row['run_s'] for row in rows):g} s, all of it "
            f"{checked.total_s:g} s.",
            f"Gate after each run: {show_bytes(gates.disk_free_bytes)} free on the disk, memory back to within "
            f"{gates.memory_back_fraction:.0%}, no holder left on its GPU, no new error in the kernel log"
            + f", below {gates.temperature_c} C" * bool(gates.temperature_c)
            + f"; else a quarantine after {gates.settle_s:g} s.",
            f"Stops: {'; '.join(filter(None, stops)) or 'only at its limit'}.",
            f"Resume is refused once this file changes (now {checked.sha256[:12]}); a run that ended keeps its record, and",
            "one that died, hung, timed out or took its box down is never repeated by itself.",
        ]
    )
