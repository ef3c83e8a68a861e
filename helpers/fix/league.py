"""The changes that were tried, as a figure: the peak of each beside the memory of the card."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from helpers.fix.search import TriedChange
from helpers.fix.view import outcome
from helpers.ground.units import show_bytes
from helpers.rehearse.rehearsal import Rehearsal
from helpers.tell.figure_style import PALE, Look
from helpers.tell.sheet import Bar, Drawing, FigurePage
from helpers.tell.shown import Shown
from helpers.tell.values import columns

FITS = Look("#4e8f5b")
"""A bar of a program that runs to its end: green."""
FAILS = Look("#c46a4f", "white", "////")
"""A bar of one that does not: red, and hatched for those who do not see the colour."""


def league(
    winner: TriedChange | None, trials: Sequence[TriedChange], first: Rehearsal
) -> Shown:
    """A table of the peaks of the program as it is and with each change, which draws the figure."""
    title = "No change that was tried lets the program finish"
    if winner is not None:
        title = f"The program {outcome(winner, first)} with: {winner.change.title}"
    rows = [("as it is", "runs out of memory", first.peak_reserved_bytes, False)]
    for trial in trials:
        peak = trial.rehearsal.peak_reserved_bytes
        rows.append((trial.change.title, outcome(trial, first), peak, trial.passes))
    head = columns("change:word, outcome:word, peak reserved:number:bytes")
    cells = [list(row[:3]) for row in rows]
    return Shown(
        title, head, cells, draw=partial(_draw, title, rows, first.usable_bytes)
    )


def _draw(
    title: str, rows: Sequence[tuple[str, str, int | None, bool]], card_bytes: int
) -> Drawing:
    """A bar for each row: the title of the change, how the program ended with it, its reserved peak
    in bytes (None: unknown), and whether it passed.
    """
    sheet = FigurePage(title)
    sheet.heading(
        "Peak of reserved memory, of the card", f"the card has {show_bytes(card_bytes)}"
    )
    for words, ended, peak_bytes, passes in rows:
        look = FAILS
        if passes:
            look = FITS
        value, _, _ = ended.partition(": ")  # without the text of an error
        if peak_bytes:
            value += f", {show_bytes(peak_bytes)}"
        fills = [(float(card_bytes), Look(PALE)), (peak_bytes, look)]
        sheet.bars([Bar(words, value, fills)], float(card_bytes))
    sheet.footnote(
        "Pale: the card. Hatched: it does not come to its end. All are rehearsed."
    )
    return sheet.done()
