"""Shows which fixes help on a box: a table, the measured effects, the presets to use, the
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from helpers.ground.shapes import (
    Confidence,
    Evidence,
    Missing,
    NextStep,
    Verdict,
    seen,
)
from helpers.ground.units import show_bytes
from helpers.settings.presets import load
from helpers.tell.figure_style import ACCENT, ALARM, MUTED, PALE, Look
from helpers.tell.shown import Shown
from helpers.tell.values import Column, columns, percent
from helpers.trials.box_study import FixStudy
from helpers.trials.catalogue import remedies
from helpers.trials.effect import FEWEST_PAIRS, Effect
from helpers.trials.fixes import RECORDED, FixRow

if TYPE_CHECKING:
    from helpers.tell.sheet import Drawing

EFFECTS = {"helps": ACCENT, "harms": ALARM, "no effect": MUTED, "untested": MUTED}
"""The colour of each effect of a remedy on a box, in the order in which effects are shown."""
OF_ONE = {"no effect": "has no effect", "untested": "is untested"}
OF_SEVERAL = {
    "helps": "help",
    "harms": "harm",
    "no effect": "have no effect",
    "untested": "are untested",
}
"""An effect as the predicate of a sentence, after one remedy (others: as it is) and after
several.
"""
UNSAID = ("", "not predicted", "not tried", RECORDED)
"""Columns of the fix table that give no reason."""
BEST = ("trials", "replay", "rehearsal", "audit", "argument")
"""How an effect is known, the best first: a replay is of the trace that was given."""
BY_REHEARSAL = (
    "By rehearsal: what the remedy and its control asked of the allocator of torch 2.14.1, cuda, on a card that is not there, "
    "replayed on this card under this release and build. Time and answers it does not show."
)
NOTHING_HELPS = "Nothing here is known to help this box: record the failing run and ask what is missing"
SHELL = (
    "the program is started anew; a running one keeps what it has",
    "only programs started from this shell have it",
)


def study_words(study: FixStudy) -> str:
    """Lines above the table: the card and torch it is for, how many trials were made, why not, and
    what went wrong.
    """
    card = f"a card of {show_bytes(study.capacity_bytes)}, torch {study.torch}, {study.build}"
    trials = f"{study.trials} trials made here"
    if study.before:
        trials += f", {study.before} of them before this run was interrupted"
    lines = [f"{len(study.rows)} remedies for {card}; {trials}"]
    if study.why:
        lines.append(f"Not measured: {study.why}")
    return "\n".join([*lines, *study.troubles])


def counted(study: FixStudy) -> str:
    """The answer in one line: ``Of 13 remedies, 4 help, 1 harms, 8 are untested``."""
    parts = []
    for effect, rows in _by_effect(study).items():
        if len(rows) == 1:
            parts.append(f"1 {OF_ONE.get(effect, effect)}")
        elif rows:
            parts.append(f"{len(rows)} {OF_SEVERAL[effect]}")
    return f"Of {len(study.rows)} remedies, {', '.join(parts)}"


def _by_effect(study: FixStudy) -> dict[str, list[FixRow]]:
    """The remedies by their effect on this box; of each effect those first that save most
    memory.
    """
    by_effect: dict[str, list[FixRow]] = {effect: [] for effect in EFFECTS}
    for row in sorted(study.rows, key=_most_saved_first):
        by_effect[row.effect].append(row)
    return by_effect


def _most_saved_first(row: FixRow) -> float:
    """The sort key of a remedy: one whose saving is not known comes last."""
    if row.saved is None:
        return math.inf
    return -row.saved


def ranked(study: FixStudy) -> list[FixRow]:
    """The remedies in the order in which they are shown: those that help first."""
    by_effect = _by_effect(study)
    return list(chain.from_iterable(by_effect.values()))


def fixes_table(study: FixStudy) -> Shown:
    """Each remedy for this box: its effect, the memory that it saves, how this is known, and the
    reasons in full.
    """
    rows = [
        [
            row.says,
            row.effect,
            row.saved,
            row.by,
            _reasons(row),
            " ".join(row.claims) or None,
        ]
        for row in ranked(study)
    ]
    head = columns(
        "remedy:word, on this box:word, memory saved:number:%, by:word", widest=60
    )
    head += [Column("why", "", None), Column("claims", "", 60)]
    notes = []
    if study.elsewhere:
        named = ", ".join(
            f"{count} for {other}" for other, count in study.elsewhere.items()
        )
        notes.append(f"Left out, as they are for other boxes: {named}.")
    if any(row.by == "rehearsal" for row in study.rows):
        notes.append(BY_REHEARSAL)
    title = "Remedies for this box, most memory saved first"
    return Shown(title, head, rows, notes, result=counted(study))


def _reasons(row: FixRow) -> str:
    """The reason of a verdict, then what else was predicted, measured and argued: only what gives a
    reason, and does not repeat the first.
    """
    said = [row.why]
    for name in ("predicted", "measured", "argued"):
        words = getattr(row, name)
        if words not in UNSAID and row.why not in words:
            # A prediction begins with its verdict, such as no_effect.
            in_words = words.replace(row.guess, row.guess.replace("_", " "), 1)
            said.append(f"{name}: {in_words}")
    return "; ".join(words.rstrip(".") for words in said)


def saved_bars(study: FixStudy) -> Shown:
    """The memory that each remedy saves, if trials, a rehearsal or a replay say so, as a table and
    bars.
    """
    rows = [row for row in ranked(study) if row.saved is not None]
    title = "No rehearsal, replay or trial says how much memory a remedy saves here"
    if rows:
        best = min(rows, key=_left)
        title = f"{best.says}: {best.saved:.0%} less memory, by {best.by}"
    cells = [[row.says, row.effect, row.saved, row.by] for row in rows]
    head = columns("remedy:word, on this box:word, memory saved:number:%, by:word")
    return Shown(title, head, cells, draw=partial(_draw_saved, rows, title), none=title)


def _left(row: FixRow) -> float:
    """The share of the peak that is left with a remedy; all of it if no saving is known."""
    if row.saved is None:
        return 1.0
    return 1 - row.saved


def _draw_saved(rows: list[FixRow], title: str) -> Drawing:
    """For each remedy a bar of what is left of the peak, on a pale one of the whole peak."""
    # It loads matplotlib, which writes a list of fonts at home; `trial` and `tune` draw nothing.
    from helpers.tell.sheet import Bar, FigurePage

    sheet = FigurePage(title)
    top = max([1.0, *map(_left, rows)])
    sheet.heading("Peak with the remedy, of the peak without it")
    for row in rows:
        fills = [(1.0, Look(PALE)), (_left(row), Look(EFFECTS[row.effect]))]
        sheet.bars([Bar(row.says, f"{row.effect}, {_left(row):.0%}", fills)], top)
    sheet.footnote(
        "Pale: the peak without it. The table says why a remedy harms that saves memory."
    )
    return sheet.done()


def effects_table(study: FixStudy) -> Shown:
    """Measured effects with their 99 % intervals, the strongest first; a ratio below 1 is less
    memory or time than the control.
    """
    effects = measured_effects(study.rows)
    rows = []
    for name, effect in effects:
        interval = f"x {effect.ratio:.2f} ({effect.low:.2f} to {effect.high:.2f})"
        rows.append([f"{name} {effect.what}", interval])
    title = "Measured effects"
    if effects:
        name, best = min(effects, key=lambda row: row[1].ratio)
        title = f"{name} helps most: {best.what} x {best.ratio:.2f} of the control"
    why = study.why or "no pair had enough trials"
    none = f"No effect was measured on this box: {why}."
    return Shown(title, ["effect", "of the control"], rows, none=none)


def measured_effects(rows: Sequence[FixRow]) -> list[tuple[str, Effect]]:
    """(id of a remedy, effect) for each effect of enough pairs, the strongest first: half and
    double are equally strong.
    """
    effects = []
    for row in rows:
        for effect in (row.memory, row.time):
            if effect and effect.pairs >= FEWEST_PAIRS:
                effects.append((row.remedy, effect))
    return sorted(effects, key=lambda row: -abs(math.log(row[1].ratio)))


def adopt(rows: Sequence[FixRow]) -> list[str]:
    """The names of the presets that helped in trials on this box, those that save most memory
    first.
    """
    presets = {remedy.id: remedy.preset for remedy in remedies()}
    helping = [
        (row.memory.ratio, presets[row.remedy])
        for row in rows
        if row.verdict == "helps" and presets.get(row.remedy) and row.memory
    ]
    return [preset for _, preset in sorted(helping)]


def preset_text(study: FixStudy) -> str:
    """The settings of the presets of ``adopt`` as lines of a shell script, or a line that says that
    there are none.
    """
    lines = []
    for name in adopt(study.rows):
        lines += [f"# {name}: {load(name).fields.get('why', '')}", *_exports(name)]
    if not lines:
        return "No preset was measured to help on this box: adopt none."
    return "\n".join(lines)


def _exports(preset: str) -> list[str]:
    """The lines of a shell that set a preset."""
    return [f"export {key}={value}" for key, value in load(preset).environ.items()]


def verdict_on_trials(study: FixStudy) -> Verdict:
    """How many remedies help and harm, which, and which to try first: of those whose effect is
    known in the best way (BEST), the one that saves most.
    """
    by_effect = _by_effect(study)
    helping = sorted(by_effect["helps"], key=lambda row: BEST.index(row.by))
    best = next(iter(helping), None)
    confidence: Confidence = "weak"
    if best and best.by == "trials":
        confidence = "likely"
    summary = "None is known to help this box."
    if best:
        summary = f"To begin with: {best.says} ({_short(best)}, by {best.by})."
    missing = []
    if not study.trials:
        how = 'this notebook with box = "live" and budget_s, the seconds it may take'
        missing.append(Missing("the remedies tried on this box", how))
    return Verdict(
        cause="other",
        state="aside",
        title=counted(study),
        confidence=confidence,
        summary=summary,
        evidence=[
            Evidence(row.remedy, seen(_short(row), "text", row.by), row.says)
            for row in (*by_effect["helps"], *by_effect["harms"])
        ],
        missing=missing,
        next_step=_next_step(best),
    )


def _next_step(best: FixRow | None) -> NextStep:
    """The step with the best remedy, and the lines that set its preset if it has one."""
    if best is None:
        record = "casebook record --out run.pickle -- python your_program.py"
        return NextStep(what=NOTHING_HELPS, command=record)
    first = "First to try"
    if best.by == "trials":  # it was tried on this box
        first = "First"
    presets = {remedy.id: remedy.preset for remedy in remedies()}
    if not presets.get(best.remedy):
        return NextStep(f"{first}: {best.says}")
    lines = _exports(presets[best.remedy])
    return NextStep(f"{first}: {best.says}", "\n".join(lines), *SHELL)


def _short(row: FixRow) -> str:
    """The effect of a remedy, with the memory that it saves if that is known and at least 1 %."""
    if row.saved is None or round(row.saved, 2) <= 0:
        return row.effect
    return f"{row.effect}, {percent(row.saved)} less memory"
