"""Which fixes help on a box: the table, the forest plot of measured effects, what to adopt, and
the verdict.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.settings.presets import load
from helpers.tell.sheet import ACCENT, ALARM, MUTED, PALE, SMALL, Bar, Look, Sheet, drawn, titled
from helpers.tell.shown import Shown
from helpers.tell.values import Column, percent
from helpers.trials.box_study import FixStudy
from helpers.trials.catalogue import remedies
from helpers.trials.fixes import RECORDED, FixRow, adopt, forest

EFFECTS = {"helps": ACCENT, "harms": ALARM, "no effect": MUTED, "untested": MUTED}
"""What a remedy does on a box, in the order in which it is shown, each with its colour."""
UNSAID = ("", "not predicted", "not tried", RECORDED)
WAYS = ("trials", "rehearsal", "replay", "audit", "argument")
BY_REHEARSAL = (
    "By rehearsal: what the remedy and its control asked of the allocator of torch 2.14.1, cuda, on a card that is not there, "
    "replayed on this card under this release and build. Time and answers it does not show."
)
NOTHING_HELPS = (
    "Nothing here is known to help this box: record the failing run and ask what is missing"
)
SHELL = (
    "the program is started anew; a running one keeps what it has",
    "programs started from this shell",
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


def counts(study: FixStudy) -> Shown:
    """How many remedies help, harm, have no effect or are untested on this box, by what that
    rests on.
    """
    rows = [
        [effect, len(own), *(sum(row.by == way for row in own) for way in WAYS)]
        for effect, own in _by_effect(study).items()
    ]
    heads = ["on this box", "remedies", *(f"by {way}" for way in WAYS)]
    named = ", ".join(f"{count} for {other}" for other, count in study.elsewhere.items())
    left = [f"Left out, as they are for other boxes: {named}."] if named else []
    left += [BY_REHEARSAL] if any(row.by == "rehearsal" for row in study.rows) else []
    return Shown(counted(study), heads, rows, left)


def counted(study: FixStudy) -> str:
    """The answer in one line: ``helps 4, harms 5, no effect 4, untested 26``."""
    return ", ".join(f"{effect} {len(rows)}" for effect, rows in _by_effect(study).items())


def _by_effect(study: FixStudy) -> dict[str, list[FixRow]]:
    """The remedies by what they do on this box; those that save most memory first, those of no
    known saving last.
    """
    known = sorted(study.rows, key=lambda row: 1e9 if row.saved is None else -row.saved)
    return {effect: [row for row in known if row.effect == effect] for effect in EFFECTS}


def ranked(study: FixStudy) -> list[FixRow]:
    """The remedies as they are shown: those that help first."""
    return [row for rows in _by_effect(study).values() for row in rows]


def fixes_table(study: FixStudy) -> Shown:
    """Each remedy for this box: what it does, the memory it saves, what that rests on, and why
    in full.
    """
    rows = [
        [row.says, row.effect, row.saved, row.by, _reasons(row), " ".join(row.claims) or None]
        for row in ranked(study)
    ]
    saved = Column("memory saved", "%")
    why = Column("why", "", None)
    columns = ["remedy", "on this box", saved, "by", why, "claims"]
    title = "Remedies for this box, most memory saved first"
    says = counted(study)
    return Shown(title, columns, rows, widest=60, result=says)


def _reasons(row: FixRow) -> str:
    """Why, and then what else was predicted, measured and argued."""
    said = [row.why]
    for name in ("predicted", "measured", "argued"):
        words = getattr(row, name)
        if words not in UNSAID and row.why not in words:
            in_words = words.replace(row.guess, row.guess.replace("_", " "), 1)
            said.append(f"{name}: {in_words}")
    return "; ".join(one.rstrip(".") for one in said)


def saved_bars(study: FixStudy) -> Shown:
    """The memory that each remedy saves, as far as trials, a rehearsal or a replay say so: a
    bar is what is left of the peak.
    """
    known = [row for row in ranked(study) if row.saved is not None]
    title = "No rehearsal, replay or trial says how much memory a remedy saves here"
    if known:
        best = max(known, key=lambda row: row.saved or 0)
        title = f"{best.says}: {best.saved:.0%} less memory, by {best.by}"
    cells = [[row.says, row.effect, row.saved, row.by] for row in known]
    columns = ["remedy", "on this box", Column("memory saved", "%"), "by"]
    return Shown(title, columns, cells, draw=partial(_draw_saved, known, title), none=title)


def _draw_saved(rows: list[FixRow], title: str) -> Figure:
    sheet = Sheet(title)
    top = max([1.0, *(1 - (row.saved or 0) for row in rows)])
    sheet.heading("Peak with the remedy, of the peak without it")
    for row in rows:
        left = 1 - (row.saved or 0)
        fills = [(1.0, Look(PALE)), (left, Look(EFFECTS[row.effect]))]
        sheet.bars([Bar(row.says, f"{row.effect}, {left:.0%}", fills)], top)
    sheet.footnote(
        "Pale: the peak without it. The table says why a remedy harms that saves memory."
    )
    return sheet.done()


def forest_plot(study: FixStudy) -> Shown:
    """Measured effects with their 99 % intervals: left of one is less memory or time than the
    control.
    """
    effects = forest(study.rows)
    rows = [
        [
            f"{one['remedy']} {one['what']}",
            f"x {one['ratio']:.2f} ({one['low']:.2f} to {one['high']:.2f})",
        ]
        for one in effects
    ]
    none = f"No effect was measured on this box: {study.why or 'no pair had enough trials'}."
    head = ["effect", "of the control"]
    high = max(1.6, 0.24 * len(effects) + 1.1)
    if not effects:
        return Shown("Measured effects", head, rows, none=none)
    best = min(effects, key=lambda one: one["ratio"])
    title = f"{best['remedy']} helps most: {best['what']} x {best['ratio']:.2f} of the control"
    draw = partial(drawn, partial(_draw_forest, effects, title), high)
    return Shown(title, head, rows, draw=draw)


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
    lines = []
    for name in adopt(study.rows):
        lines += [f"# {name}: {load(name).fields.get('why', '')}", *_exports(name)]
    return "\n".join(lines) or "No preset was measured to help on this box: adopt none."


def _exports(preset: str) -> list[str]:
    return [f"export {key}={value}" for key, value in load(preset).environ.items()]


def _short(row: FixRow) -> str:
    known = row.saved is not None and round(row.saved, 2) > 0
    return f"{row.effect}, {percent(row.saved or 0)} less memory" if known else row.effect


def verdict(study: FixStudy) -> Verdict:
    """How many help and harm, which, and the one to begin with: what trials, else a replay of
    the trace given, saw save most.
    """
    by = _by_effect(study)
    ways = ("trials", "replay", *WAYS)
    best = next((row for way in ways for row in by["helps"] if row.by == way), None)
    how = "this notebook with box = live and a time budget"
    record = "python3 -m helpers record --out run.pickle -- python your_program.py"
    step = NextStep(what=NOTHING_HELPS, command=record)
    if best:
        first = "First" if best.by == "trials" else "First to try"
        own = {one.id: one.preset for one in remedies()}.get(best.remedy)
        lines = _exports(own) if own else []
        step = NextStep(f"{first}: {best.says}", "\n".join(lines), *(SHELL if lines else ()))
    named = [
        f"{effect.capitalize()}: {'; '.join(row.says for row in by[effect]) or 'nothing known here'}."
        for effect in ("helps", "harms")
    ]
    return Verdict(
        cause="other",
        state="aside",
        title=counted(study),
        confidence="likely" if best and best.by == "trials" else "weak",
        summary=" ".join(named),
        evidence=[
            Evidence(row.remedy, seen(_short(row), "text", row.by), row.says)
            for row in (*by["helps"], *by["harms"])
        ],
        missing=[] if study.plan else [Missing("the remedies tried on this box", how)],
        next_step=step,
    )
