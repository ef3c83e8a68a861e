"""Which fixes help on a box: the table, the forest plot of measured effects, what to adopt, and the verdict."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from helpers.load.remedies import FixRow, FixStudy, adopt, forest
from helpers.look.reading import seen, show_bytes
from helpers.settings.presets import load
from helpers.shapes import Evidence, Missing, NextStep, Verdict

from .sheet import ACCENT, ALARM, MUTED, SMALL, drawn, titled
from .shown import Shown

ORDER = "helps harmful ineffective not_supported no_effect predicted not_enough_evidence".split()
"""Verdicts on a remedy, in the order in which they are shown."""
NOTHING_HELPS = (
    "Nothing here is known to help this box: record the failing run and ask what is missing"
)
RATIOS = (0.1, 0.25, 0.5, 1, 2, 4, 10)


def study_words(study: FixStudy) -> str:
    """What the table is for, in one line, and what could not be tried."""
    head = (
        f"{len(study.rows)} remedies for a card of {show_bytes(study.capacity_bytes)}, torch {study.torch}, {study.build}; "
        f"{len(study.plan.trials) if study.plan else 0} trials made here"
    )
    below = [f"Not measured: {study.why}"] if study.why else []
    return "\n".join([head, *below, *(study.ran.remarks if study.ran else ())])


def fixes_table(study: FixStudy) -> Shown:
    """Each remedy with what was predicted, what was measured, and its verdict on this box."""
    rows = [
        [
            row.says,
            " ".join(row.claims) or None,
            expected(row),
            row.measured,
            row.verdict.replace("_", " "),
        ]
        for row in ranked(study)
    ]
    columns = ["remedy", "claims", "predicted or argued", "measured", "verdict"]
    return Shown("Remedies on this box", columns, rows, widest=60)


def ranked(study: FixStudy) -> list[FixRow]:
    """The remedies by their verdict, those that help first."""
    return sorted(study.rows, key=lambda row: ORDER.index(row.verdict))


def expected(row: FixRow) -> str:
    """What a remedy is expected to do: as predicted, else as argued."""
    return row.argued if row.predicted == "not predicted" else row.predicted


def in_full(row: FixRow) -> str:
    """All that is known of one remedy."""
    said = {
        "verdict": row.verdict.replace("_", " "),
        "predicted": row.predicted,
        "measured": row.measured,
        "argued": row.argued,
        "claims": ", ".join(row.claims),
    }
    lines = (textwrap.indent(f"{name}: {words}", "  ") for name, words in said.items() if words)
    return "\n".join([row.says, *lines])


def forest_plot(study: FixStudy) -> Shown:
    """Measured effects with their 99 % intervals: left of one is less memory or time than the control."""
    effects = forest(study.rows)
    rows = [
        [
            f"{one['remedy']} {one['what']}",
            f"x {one['ratio']:.2f} ({one['low']:.2f} to {one['high']:.2f})",
        ]
        for one in effects
    ]
    none = f"No effect was measured on this box: {study.why or 'no pair had enough trials'}."
    title, high = none, max(1.6, 0.24 * len(effects) + 1.1)
    if effects:
        best = min(effects, key=lambda one: one["ratio"])
        title = f"{best['remedy']} helps most: {best['what']} x {best['ratio']:.2f} of the control"
    draw = partial(drawn, partial(_draw_forest, effects, title), high)
    return Shown(title, ["effect", "of the control"], rows, none=none, draw=draw)


def _draw_forest(effects: list[dict[str, Any]], title: str, figure: Figure) -> None:
    axes = figure.subplots()
    names = [f"{one['remedy']}, {one['what']}" for one in reversed(effects)]
    for at, one in enumerate(reversed(effects)):
        color = ACCENT if one["high"] < 1 else ALARM if one["low"] > 1 else MUTED
        mark = "o" if one["what"] == "memory" else "s"
        axes.plot([one["low"], one["high"]], [at, at], color=color, linewidth=1.4)
        axes.plot(one["ratio"], at, mark, color=color, markersize=4)
    axes.axvline(1, color=MUTED, linewidth=1)
    axes.set(xscale="log", xlim=(0.1, 10))  # an interval that goes beyond says nothing yet
    axes.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(effects)), names, fontsize=SMALL)
    axes.set(xlabel="treated over control, with 99 % intervals (circles memory, squares time)")
    titled(axes, title)


def preset_text(study: FixStudy) -> str:
    """What to adopt as lines of a preset file, or why there is none."""
    names = adopt(study.rows)
    lines = [
        f"# {name}: {load(name).fields.get('why', '')}\n"
        + "\n".join(f"export {key}={value}" for key, value in load(name).environ.items())
        for name in names
    ]
    return "\n".join(lines) or "No preset was measured to help on this box: adopt none."


def verdict(study: FixStudy) -> Verdict:
    """What to do first of all that was predicted and measured."""
    by = {word: [row for row in study.rows if row.verdict == word] for word in ORDER}
    measured = [(row.memory.ratio, row.remedy, row) for row in by["helps"] if row.memory]
    best = min(measured)[2] if measured else None
    hoped = [row for row in study.rows if row.predicted.startswith("helps")]
    harmful = [row for row in study.rows if row.predicted.startswith("harmful")]
    worst = [row for row in study.rows if row.verdict == "harmful" or row in harmful]
    here = [(row, row.measured, "trials on this box", "helps") for row in by["helps"][:5]]
    said = [
        (row, row.predicted, "replay and audit", "predicted")
        for row in (*hoped, *worst)[:5]
        if row not in by["helps"]
    ]
    how = "this notebook with box = live and a time budget"
    missing = [] if study.plan else [Missing("the remedies tried on this box", how)]
    counts = ", ".join(f"{len(rows)} {word.replace('_', ' ')}" for word, rows in by.items() if rows)
    record = "python -m helpers record --out run.pickle -- python your_program.py"
    step = NextStep(what=NOTHING_HELPS, command=record)
    if best or hoped:
        step = NextStep(what=f"First: {best.says}" if best else f"First to try: {hoped[0].says}")
    return Verdict(
        cause="other",
        state="aside",
        confidence="likely" if best else "weak",
        summary=f"{counts}.",
        evidence=[
            Evidence(row.remedy, seen(value, "text", source), f"{row.says}: {word}")
            for row, value, source, word in (*here, *said)
        ],
        missing=missing,
        next_step=step,
    )
