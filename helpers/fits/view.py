"""What fits, for people: the rows against the ceiling as a table and a stacked bar, and what is
solved for in words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

from helpers.fits.answer import Answer
from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.tell.figure_style import PALETTE, SERIES, Look
from helpers.tell.prose import SCREEN, wrapped
from helpers.tell.resources import words
from helpers.tell.shown import Shown
from helpers.tell.values import Column

ASK = "casebook fits MODEL --gpu NAME --context N"


def headline(answer: Answer) -> str:
    """Yes, no, or what is missing to say it."""
    left = answer.spare_bytes
    within = ""
    if answer.ceiling_bytes is not None:
        within = f" in {show_bytes(answer.ceiling_bytes)}"
    if answer.fits is None:
        why = "; ".join(answer.missing[:2])
        if answer.incomplete:
            least = show_bytes(sum(row["low_bytes"] or 0 for row in answer.rows))
            part = f"{answer.incomplete}; what is here needs at least {least}"
            return f"Cannot tell whether it fits{within}: {part}"
        if left is None:
            return f"Cannot tell whether it fits{within}: {why}"
        likely = "fits" if left >= 0 else f"does not fit, by {show_bytes(-left)}"
        return f"Likely {likely}{within}, not certainly; missing is {why}"
    head = ("Fits" if answer.fits else "Does not fit") + within
    if left is None or (left >= 0) is not answer.fits:
        return head
    rest = "to spare" if answer.fits else "too much"
    return f"{head}: {show_bytes(abs(left))} {rest}"


def rows_table(answer: Answer) -> Shown:
    """Each part with its likely bytes and their range, and its source."""
    names = words("fits")["parts"]
    cells = [
        [
            names[row["part"]],
            row["bytes"],
            row["low_bytes"],
            "no bound" if row["high_bytes"] is None else row["high_bytes"],
            row["source"],
        ]
        for row in answer.rows
        if row["bytes"] != 0 or row["high_bytes"] != 0 or row["source"] == "as given"
    ]
    sizes = [Column(name, "bytes") for name in ("likely", "at least", "at most")]
    columns = ["part", *sizes, "source"]
    return Shown(f"What {answer.program} needs", columns, cells, result=headline(answer))


def bar(answer: Answer) -> Shown:
    """The rows as one stacked bar against the ceiling."""
    view = rows_table(answer).without("source")
    return replace(view, title=headline(answer), draw=partial(_draw, answer))


def _draw(answer: Answer) -> Any:
    from helpers.tell import sheet  # matplotlib is slow to come, and a terminal needs none

    page = sheet.Sheet(headline(answer))
    names = words("fits")["parts"]
    sizes = {names[row["part"]]: row["bytes"] for row in answer.rows if row["bytes"]}
    pieces = [
        sheet.Piece(name, size, Look(colour, "white"))
        for (name, size), colour in zip(sizes.items(), cycle(SERIES), strict=False)
    ]
    whole = sum(sizes.values())
    top = answer.ceiling_bytes or 0
    if top > whole:
        pieces.append(sheet.Piece("left", top - whole, PALETTE["free"]))
    page.stacked(pieces, max(top, whole))
    return page.done()


def solved_lines(answer: Answer) -> list[str]:
    """What each open unknown may be, in a line each."""
    says = words("fits")["solved"]
    figures = {"asked": answer.cache["n_ctx"], **answer.solved}
    return [says[name].format(value) for name, value in figures.items() if value is not None]


def verdict(answer: Answer) -> Verdict:
    """The answer as a notebook's verdict."""
    names = words("fits")["parts"]
    lines = solved_lines(answer) or answer.missing
    evidence = [
        Evidence(row["part"], seen(row["bytes"], "bytes", row["source"]), names[row["part"]])
        for row in answer.rows
        if row["bytes"]
    ]
    causes = {True: "other", False: "true-capacity", None: "cannot-tell"}
    step = words("fits")["steps"][str(answer.fits)].format(lines[0])
    return Verdict(
        cause=causes[answer.fits],
        state="aside",
        title=headline(answer),
        confidence="likely",
        summary="; ".join(lines),
        evidence=evidence,
        missing=[Missing(reading, ASK) for reading in answer.missing],
        next_step=NextStep(step, ASK),
    )


def as_text(answer: Answer) -> str:
    """The answer of the command ``fits`` for a terminal."""
    out = [headline(answer), "", rows_table(answer).text(0), ""]
    if answer.ceiling_source:
        out.append(f"Against: {answer.ceiling_source}")
    missing = [f"Missing: {reading}" for reading in answer.missing]
    for line in [*solved_lines(answer), *answer.notes, *missing]:
        out += wrapped(line, "", "  ", SCREEN)
    return "\n".join(out)
