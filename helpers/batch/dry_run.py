"""What a plan would run: its runs in the order they start, as data and for a terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from helpers.ground.units import show_bytes

from .plan import CheckedPlan
from .shapes import DANGERS
from .step import ITS_LIMIT

FIELDS = (
    *("run_id", "notebook", "gpu", "preset", "parameters", "danger", "waits"),
    *("estimate_s", "estimate_from", "cell_s", "run_s"),
)
COLUMNS = ("run_id", "danger", "box")


def total_estimate_s(checked: CheckedPlan) -> float:
    """Seconds that a plan will take: runs that only look go side by side, all others alone."""
    looks_s = sum(step.estimate_s for step in checked.steps if step.danger == "looks")
    all_s = sum(step.estimate_s for step in checked.steps)
    return all_s - looks_s + looks_s / checked.plan.jobs


def dry_run(checked: CheckedPlan) -> list[dict[str, Any]]:
    """The runs of a plan in the order they start, as data."""
    return [
        {"box": step.box_name, **{name: getattr(step, name) for name in FIELDS}}
        for step in checked.steps
    ]


def dry_run_text(checked: CheckedPlan) -> str:
    """The runs of a plan in the order they start, and what holds for all of them, for a terminal."""
    gates = checked.plan.gates
    rows = dry_run(checked)
    widths = {name: max(len(row[name]) for row in rows) for name in COLUMNS}
    lines = []
    for row in rows:
        settings = [f"{name}={value}" for name, value in row["parameters"].items() if name != "gpu"]
        words = " ".join(" ".join([row["gpu"], row["preset"], *settings]).split())[:60]
        cells = "  ".join(f"{row[name]:<{width}}" for name, width in widths.items())
        lines.append(f"{cells}  {row['estimate_s']:6.1f} s  {words}".rstrip())
    total_s = total_estimate_s(checked)
    over = ""
    if total_s > checked.total_s:
        over = "; that is more than the plan's limit: its last runs are skipped, but for the closing report"
    guesses = sum(row["estimate_from"] == ITS_LIMIT for row in rows)
    dangers = [row["danger"] for row in rows]
    counts = ", ".join(f"{dangers.count(danger)} {danger}" for danger in DANGERS)
    cell_s = max(row["cell_s"] for row in rows)
    run_s = max(row["run_s"] for row in rows)
    heat = f", below {gates.temperature_c} C" if gates.temperature_c else ""
    return "\n".join(
        [
            *lines,
            f"{len(rows)} runs ({counts}); of those that only look, {checked.plan.jobs} at once.",
            f"Estimated: {timedelta(seconds=round(total_s))}, {guesses} runs of it at their limit{over}.",
            f"Limits: a cell {cell_s:g} s, a run {run_s:g} s, all of it {checked.total_s:g} s.",
            "What only looks always starts. What loads waits until the box is ready, and is skipped after "
            f"{gates.settle_s:g} s: {show_bytes(gates.disk_free_bytes)} free on the disk, GPU memory back to within "
            f"{gates.memory_back_fraction:.0%}{heat}, no new holder, {show_bytes(gates.host_free_bytes)} of RAM "
            "available. A run about a recorded box waits for the disk alone.",
            f"Resume is refused once this file changes (now {checked.sha256[:12]}).",
        ]
    )
