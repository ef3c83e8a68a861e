"""Training paths: which ran here, what each took, whether it is the same training, and the one to take."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from helpers.load.endurance import Endurance
from helpers.load.training import PathResult
from helpers.look.reading import MIB, seen, show_bytes
from helpers.shapes import Evidence, Missing, NextStep, Verdict

from .sheet import (
    ACCENT,
    BODY,
    MARGIN,
    MUTED,
    PALE,
    RULE,
    SMALL,
    UNKNOWN,
    WIDTH,
    Look,
    Sheet,
    fit,
    inches,
    wrap,
)
from .tables import table

SAVES = (
    "gradient accumulation",
    "gradient checkpointing",
    "accumulation and checkpointing",
    "FSDP",
    "batch back-off",
)


def above_start(one: PathResult) -> int | None:
    """Bytes that the training itself took at its peak."""
    return (
        None
        if one.peak_bytes is None or one.start_bytes is None
        else max(0, one.peak_bytes - one.start_bytes)
    )


def same_table(results: Sequence[PathResult]) -> str:
    """Each path, whether it ran, and whether it is the same training as on a single device: the same on every run."""
    return table(
        [[one.name, one.state.replace("_", " "), one.equal_to_single] for one in results],
        ["path", "state", "equal to single device"],
    )


def cost_table(results: Sequence[PathResult]) -> str:
    """What each path took here, and what it says of itself."""
    rows = []
    for one in results:
        took = above_start(one)
        size = show_bytes(took) if took is not None else None
        rows.append(
            [
                one.name,
                f"{one.seconds:.1f} s" if one.state == "ran" else None,
                size,
                one.says or one.why,
            ]
        )
    return table(rows, ["path", "time", "memory above start", "says"], widest=90)


def paths_figure(results: Sequence[PathResult]) -> Figure:
    """Memory that each path took above its start, a bar each; hatched where it did not run."""
    sheet, right = Sheet(), WIDTH - MARGIN
    top = max([above_start(one) or 0 for one in results], default=0) or 1
    sheet.heading("Memory of the training itself", "above the process's start")
    for one in results:
        took = above_start(one)
        value = (
            show_bytes(took)
            if took is not None and one.state == "ran"
            else one.state.replace("_", " ")
        )
        sheet.y += 0.17
        sheet.text(right, value, SMALL, MUTED, ha="right")
        sheet.text(
            MARGIN, fit(one.name, right - MARGIN - inches(value, SMALL) - 0.2, BODY), weight="bold"
        )
        sheet.y += 0.06
        if took is None or one.state != "ran":
            sheet.box(MARGIN, right - MARGIN, 0.12, Look(edge=RULE, hatch=UNKNOWN))
        else:
            sheet.box(MARGIN, right - MARGIN, 0.12, Look(PALE))
            sheet.box(MARGIN, took / top * (right - MARGIN), 0.12, Look(ACCENT))
        sheet.y += 0.2
    sheet.y += 0.1
    for line in wrap(
        f"The longest bar is {top / MIB:.1f} MiB. Hatched: it did not run here.",
        right - MARGIN,
        SMALL,
    ):
        sheet.text(MARGIN, line, SMALL, MUTED)
        sheet.y += 0.14
    return sheet.done()


def paths_alt(results: Sequence[PathResult]) -> str:
    """The figure in words."""
    parts = [
        f"{one.name} {show_bytes(above_start(one) or 0)}" for one in results if one.state == "ran"
    ]
    return f"Memory above start of {len(parts)} training paths that ran: {'; '.join(parts)}."


def endurance_text(found: Endurance | None) -> str:
    """How many batches trained before memory ran out, and what other settings would have done."""
    if found is None:
        return "not run because no limit was given"
    if found.died_length is None:
        return f"{found.batches} batches trained within {show_bytes(found.limit_bytes)}: nothing ran out of memory"
    lines = [
        f"{found.batches} batches trained within {show_bytes(found.limit_bytes)}; the next, of {found.died_length} "
        f"tokens a sequence, ran out: {found.message[:200]}"
    ]
    if found.answer is not None:
        use = found.answer.use or "the default settings"
        words = f"use {use}: {found.answer.why}"
        if found.answer.needs_bytes:
            words = f"no setting helps, it needs {show_bytes(found.answer.needs_bytes)} more"
        lines.append(f"as if on a card of that size: {words}")
    elif found.why_no_answer:
        lines.append(f"no what-if: {found.why_no_answer}")
    return "\n".join(lines)


def verdict(results: Sequence[PathResult]) -> Verdict:
    """The path to take: the one that saves most memory among those that are the same training."""
    ran = [one for one in results if one.state == "ran"]
    single = next((one for one in ran if one.name == "single device"), None)
    base = above_start(single) if single else None
    equal = ("bitwise", "within tolerance")
    same = [
        (above_start(one) or 0, one)
        for one in ran
        if one.name in SAVES and one.equal_to_single in equal and above_start(one) is not None
    ]
    evidence = [
        Evidence(
            id=one.name.replace(" ", "-"),
            reading=seen(above_start(one) or 0, "bytes", "measured here"),
            says=f"{one.name}: {one.equal_to_single}, in {one.seconds:.1f} s",
        )
        for one in ran
    ]
    against = [
        Evidence(
            id=one.name.replace(" ", "-"),
            reading=seen(one.why or one.says or one.state, "text", "measured here"),
            says=f"{one.name} {one.state.replace('_', ' ')}",
        )
        for one in results
        if one.state == "failed"
    ]
    missing = [
        Missing(reading=f"{one.name}: {one.why}", how="a box or a torch that has it")
        for one in results
        if one.state == "not_run"
    ][:4]
    if not same or base is None:
        return Verdict(
            cause="other",
            state="aside",
            confidence="weak",
            evidence=evidence,
            against=against,
            missing=missing,
            summary="No path that saves memory ran beside the single device.",
            next_step=NextStep(
                what="Run the paths that save memory: accumulation and checkpointing first"
            ),
        )
    least, best = min(same, key=lambda pair: pair[0])
    share = f"{least / base:.0%} of" if base else "beside"
    return Verdict(
        cause="other",
        state="aside",
        confidence="likely",
        evidence=evidence,
        against=against,
        missing=missing,
        summary=f"{best.name} takes {show_bytes(least)}, {share} the single device's {show_bytes(base)}, and is the "
        f"same training ({best.equal_to_single}).",
        next_step=NextStep(
            what=f"Train with {best.name}, and checkpoint so that a kill loses nothing"
        ),
    )
