"""The runs of a plan before anything runs, in the order they start: as data and for a terminal."""

from __future__ import annotations

from helpers.ground.units import show_bytes

from .look_shapes import Gates
from .plan import CheckedPlan, Step
from .status import aligned
from .time_left import short_time

FIELDS = """
run_id notebook gpu preset parameters danger waits estimate_s cell_s run_s
""".split()
"""Fields of a step that the data has, with its box name first."""
THIS_BATCH = "{batch}"
"""Stands in a plan for the folder of the batch that will run it."""
DOES = {
    "looks": "only look at the box",
    "loads": "load it",
    "provokes": "provoke an out-of-memory",
}
"""What a run of each danger does to the box, as the end of a sentence."""
MOST_LETTERS = 60
"""Of a run's settings in a line, which then fits most terminals."""


def total_estimate_s(checked: CheckedPlan) -> float | None:
    """Seconds that a plan will take; None if one of its notebooks has not run on this machine."""
    if any(step.estimate_s is None for step in checked.steps):
        return None
    return _known_s(checked)


def _known_s(checked: CheckedPlan) -> float:
    """Seconds for the runs whose notebooks have run on this machine before.

    Runs that only look share the time with the others of the plan's ``jobs``; all other runs have
    the box to themselves.
    """
    known_s = 0.0
    for step in checked.steps:
        if step.estimate_s is not None:
            side_by_side = checked.plan.jobs if step.danger == "looks" else 1
            known_s += step.estimate_s / side_by_side
    return known_s


def dry_run(checked: CheckedPlan) -> list[dict[str, object]]:
    """The runs of a plan in the order they start: a dict each, with ``box`` and FIELDS as keys."""
    rows = []
    for step in checked.steps:
        row: dict[str, object] = {"box": step.box_name}
        row.update((name, getattr(step, name)) for name in FIELDS)
        rows.append(row)
    return rows


def dry_run_text(checked: CheckedPlan) -> str:
    """The runs of a plan in the order they start, and what holds for all of them, for a
    terminal.
    """
    rows = []
    for step in checked.steps:
        settings = _settings(step)[:MOST_LETTERS]
        row = [step.run_id, step.danger, step.box_name, _took(step), settings]
        rows.append(row)
    return "\n".join([*aligned(rows), *_about_all(checked)])


def _took(step: Step) -> str:
    """How long a notebook took here before, in words."""
    if step.estimate_s is None:
        return "not known yet"
    return f"about {short_time(step.estimate_s)}"


def _settings(step: Step) -> str:
    """The GPU, preset and parameters of a run, in words; its box and the batch's folder left
    out.
    """
    parameters = [
        f"{name}={value}"
        for name, value in step.parameters.items()
        if name != "gpu" and value != THIS_BATCH  # the GPU comes first, as step.gpu
    ]
    words = " ".join([step.gpu, step.preset, *parameters])
    return " ".join(words.split())  # one line, without the gaps of what is empty


def _about_all(checked: CheckedPlan) -> list[str]:
    """Lines about the plan as a whole: counts, time, limits, what runs wait for, how to resume."""
    gates = checked.plan.gates
    dangers = [step.danger for step in checked.steps]
    counts = [
        f"{dangers.count(kind)} {does}"
        for kind, does in DOES.items()
        if kind in dangers
    ]
    cell_s = max(step.cell_s for step in checked.steps)
    run_s = max(step.run_s for step in checked.steps)
    jobs = checked.plan.jobs
    at_once = "One run at a time."
    if jobs > 1 and dangers.count("looks") > 1:
        at_once = (
            f"Runs that only look go up to {jobs} at a time, the others one by one."
        )
    return [
        f"Runs: {len(dangers)} ({', '.join(counts)}). {at_once}",
        _how_long(checked),
        f"Limits: {cell_s:g} s for a cell, {run_s:g} s for a run, {checked.total_s:g} s for all.",
        _waiting(gates, dangers),
        "To resume this batch later, leave the plan file as it is "
        f"(its SHA-256 now begins with {checked.sha256[:12]}).",
    ]


def _waiting(gates: Gates, dangers: list[str]) -> str:
    """What runs wait for that do more than look, or that there are no such runs."""
    if set(dangers) == {"looks"}:
        return "No run waits for the box to be ready, because all of them only look."
    heat = ""
    if gates.temperature_c:
        heat = f", each GPU is below {gates.temperature_c} C"
    return (
        f"Runs that only look never wait. Each other run waits up to {gates.settle_s:g} s until "
        f"{show_bytes(gates.disk_free_bytes)} of the disk is free, "
        f"{show_bytes(gates.host_free_bytes)} of RAM is available, "
        f"no new process has GPU memory, at most {gates.memory_back_fraction:.0%} more of it is "
        f"in use than at the start{heat}; otherwise the run is skipped. "
        "A run about a recorded box waits only for the disk."
    )


def _how_long(checked: CheckedPlan) -> str:
    """How long all runs take, by what their notebooks took here before."""
    total_s = total_estimate_s(checked)
    if total_s is None:
        new = {step.notebook for step in checked.steps if step.estimate_s is None}
        names = ", ".join(sorted(new))
        known_s = _known_s(checked)
        if not known_s:
            return f"Time: not known yet; these notebooks have not run on this machine: {names}."
        return (
            f"Time: about {short_time(known_s)} without these notebooks, "
            f"which have not run on this machine: {names}."
        )
    words = f"Time: about {short_time(total_s)}, by what these notebooks took on this machine."
    if total_s > checked.total_s:
        words += " That is more than the limit: the last runs would be skipped, but not the closing report."
    return words
