"""Which fixes help on a box: the table, the forest plot of measured effects, what to adopt, and the verdict."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from helpers.load.remedies import FixStudy, adopt, forest
from helpers.look.reading import seen, show_bytes
from helpers.settings.presets import load
from helpers.shapes import Evidence, Missing, NextStep, Verdict

from .sheet import ACCENT, ALARM, BODY, MUTED, SMALL, drawn
from .tables import table

ORDER = (
    "helps",
    "harmful",
    "ineffective",
    "not_supported",
    "no_effect",
    "predicted",
    "not_enough_evidence",
)


def study_words(study: FixStudy) -> str:
    """What the table is for, in one line, and what could not be tried."""
    head = (
        f"{len(study.rows)} remedies for a card of {show_bytes(study.capacity_bytes)}, torch {study.torch}, {study.build}; "
        f"{len(study.plan.trials) if study.plan else 0} trials made here"
    )
    return "\n".join(
        [
            head,
            *([f"Not measured: {study.why}"] if study.why else []),
            *(study.ran.remarks if study.ran else ()),
        ]
    )


def fixes_table(study: FixStudy) -> str:
    """Each remedy with what was predicted, what was measured, and its verdict on this box."""
    rows = sorted(study.rows, key=lambda row: ORDER.index(row.verdict))
    shown = [
        [
            row.says,
            " ".join(row.claims) or None,
            row.argued if row.predicted == "not predicted" else row.predicted,
            row.measured,
            row.verdict.replace("_", " "),
        ]
        for row in rows
    ]
    return table(
        shown, ["remedy", "claims", "predicted or argued", "measured", "verdict"], widest=60
    )


def forest_figure(study: FixStudy) -> Figure:
    """Measured effects with their 99 % intervals: left of one is less memory or time than the control."""
    found = forest(study.rows)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for at, one in enumerate(reversed(found)):
            color = ACCENT if one["high"] < 1 else ALARM if one["low"] > 1 else MUTED
            axes.plot([one["low"], one["high"]], [at, at], color=color, linewidth=1.4)
            axes.plot(
                one["ratio"], at, "o" if one["what"] == "memory" else "s", color=color, markersize=4
            )
        axes.axvline(1, color=MUTED, linewidth=1)
        axes.set(xscale="log", xlim=(0.1, 10))  # an interval that goes beyond says nothing yet
        axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 10], ["0.1", "0.25", "0.5", "1", "2", "4", "10"])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(
            range(len(found)),
            [f"{one['remedy']}, {one['what']}" for one in reversed(found)],
            fontsize=SMALL,
        )
        axes.set(xlabel="treated over control (circles memory, squares time)")
        axes.set_title(
            "Measured on this box, with 99 % intervals"
            if found
            else "Nothing was measured on this box",
            fontsize=BODY,
            loc="left",
        )

    return drawn(draw, max(1.6, 0.24 * len(found) + 0.9))


def forest_alt(study: FixStudy) -> str:
    """The forest plot in words."""
    found = forest(study.rows)
    if not found:
        return f"No effect was measured on this box: {study.why or 'no pair had enough trials'}."
    return (
        "Measured effects: "
        + "; ".join(
            f"{one['remedy']} {one['what']} x {one['ratio']:.2f} ({one['low']:.2f} to "
            f"{one['high']:.2f})"
            for one in found
        )
        + "."
    )


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
    worst = [
        row for row in study.rows if row.verdict == "harmful" or row.predicted.startswith("harmful")
    ]
    evidence = [
        Evidence(
            id=row.remedy,
            reading=seen(row.measured, "text", "trials on this box"),
            says=f"{row.says}: helps",
        )
        for row in by["helps"][:5]
    ]
    evidence += [
        Evidence(
            id=row.remedy,
            reading=seen(row.predicted, "text", "replay and audit"),
            says=f"{row.says}: predicted",
        )
        for row in (*hoped, *worst)[:5]
        if row not in by["helps"]
    ]
    missing = (
        []
        if study.plan
        else [
            Missing(
                reading="the remedies tried on this box",
                how="this notebook with box = live and a time budget",
            )
        ]
    )
    counts = ", ".join(f"{len(rows)} {word.replace('_', ' ')}" for word, rows in by.items() if rows)
    step = NextStep(
        what="Nothing here is known to help this box: record the failing run and ask what is missing",
        command="python -m helpers record --out run.pickle -- python your_program.py",
    )
    if best or hoped:
        step = NextStep(what=f"First: {best.says}" if best else f"First to try: {hoped[0].says}")
    return Verdict(
        cause="other",
        state="aside",
        confidence="likely" if best else "weak",
        summary=f"{counts}.",
        evidence=evidence,
        missing=missing,
        next_step=step,
    )
