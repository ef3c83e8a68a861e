"""Training paths: which ran here, what each took, whether it is the same training, and the one
to take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.tell.shown import Shown
from helpers.tell.values import Column
from helpers.trials.training import WAYS, PathResult


def above_start(one: PathResult) -> int | None:
    """Bytes that the training itself took at its peak."""
    if one.peak_bytes is None or one.start_bytes is None:
        return None
    return max(0, one.peak_bytes - one.start_bytes)


def same_table(results: Sequence[PathResult]) -> Shown:
    """Each path, whether it ran, and whether it is the same training as on a single device: the
    same on every run.
    """
    rows = [[one.name, one.state.replace("_", " "), one.equal_to_single] for one in results]
    return Shown("Training paths", ["path", "state", "equal to single device"], rows)


def cost_table(results: Sequence[PathResult]) -> Shown:
    """What each path took here, and what it says of itself; drawn as the memory of each, a stub
    where it did not run.
    """
    alike = [one for one in results if one.state == "ran"]
    ran = [(above_start(one) or 0, one.name) for one in alike]
    title = "No training path ran here"
    if ran:
        title = f"{min(ran)[1]} takes least memory: {show_bytes(min(ran)[0])} above its start"
    rows: list[list[Any]] = []
    for one in results:
        took = one.seconds if one.state == "ran" else None
        rows.append([one.name, took, above_start(one), one.says or one.why])
    head = ["path", Column("time", "0.1 s"), Column("memory above start", "bytes"), "says"]
    return Shown(title, head, rows, draw=partial(_draw_paths, results, title), widest=90)


def _draw_paths(results: Sequence[PathResult], title: str) -> Any:
    from helpers.tell.sheet import Sheet  # here: a table needs no matplotlib

    sheet = Sheet(title)
    top = max([above_start(one) or 0 for one in results], default=0) or 1
    sheet.heading("Memory of the training itself", "above the process's start")
    sheet.bars(map(_path_bar, results), top)
    if any(one.state != "ran" for one in results):
        sheet.footnote("Hatched stub: it did not run here.")
    return sheet.done()


def _path_bar(one: PathResult) -> Any:
    from helpers.tell.sheet import ACCENT, NOT_KNOWN, Bar, Look

    took = above_start(one)
    small = list(filter(None, [one.says or one.why]))
    if took is None or one.state != "ran":
        return Bar(one.name, one.state.replace("_", " "), [(None, NOT_KNOWN)], small, "bold")
    value = f"{show_bytes(took)} in {one.seconds:.1f} s"
    return Bar(one.name, value, [(took, Look(ACCENT))], small, "bold")


def _evidence(one: PathResult, value: int | str, says: str) -> Evidence:
    unit = "bytes" if isinstance(value, int) else "text"
    reading = seen(value, unit, "measured here")
    return Evidence(one.name.replace(" ", "-"), reading, one.name + says)


def verdict(results: Sequence[PathResult]) -> Verdict:
    """The path to take: the one that saves most memory among those that are the same training."""
    ran = [one for one in results if one.state == "ran"]
    single = next((one for one in ran if one.name == "single device"), None)
    base = above_start(single) if single else None
    equal = ("bitwise", "within tolerance")
    same = [
        (above_start(one) or 0, one)
        for one in ran
        if WAYS[one.name].get("saves")
        and one.equal_to_single in equal
        and above_start(one) is not None
    ]
    evidence = [
        _evidence(one, above_start(one) or 0, f": {one.equal_to_single}, in {one.seconds:.1f} s")
        for one in ran
    ]
    against = [
        _evidence(one, one.why or one.says or one.state, " " + one.state.replace("_", " "))
        for one in results
        if one.state == "failed"
    ]
    absent = [one for one in results if one.state == "not_run"][:4]
    how = "a box or a torch that has it"
    made = Verdict(
        cause="other",
        state="aside",
        confidence="weak",
        evidence=evidence,
        against=against,
        missing=[Missing(reading=f"{one.name}: {one.why}", how=how) for one in absent],
        summary="No path that saves memory ran beside the single device.",
        next_step=NextStep("Run the paths that save memory: accumulation and checkpointing first"),
    )
    if not same or base is None:
        return made
    least, best = min(same, key=lambda pair: pair[0])
    share = f"{least / base:.0%} of" if base else "beside"
    summary = f"{best.name} takes {show_bytes(least)}, {share} the single device's {show_bytes(base)}, and is the "
    summary += f"same training ({best.equal_to_single})."
    step = NextStep(f"Train with {best.name}, and checkpoint so that a kill loses nothing")
    title = summary.rstrip(".")
    return replace(made, confidence="confirmed", title=title, summary=summary, next_step=step)
