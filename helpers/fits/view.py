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
from helpers.tell.shown import SCREEN, Column, Shown, words, wrapped


def headline(answer: Answer) -> str:
    """Yes, no, or what is missing to say it."""
    left = answer.spare_bytes
    top = answer.ceiling_bytes
    of = "" if top is None else f" in {show_bytes(top)}"
    if answer.fits is None:
        why = "; ".join(answer.missing[:2])
        if left is None:
            return f"Cannot tell whether it fits{of}: {why}"
        by = "fits" if left >= 0 else f"does not fit, by {show_bytes(-left)}"
        return f"Likely {by}{of}, not certainly; missing is {why}"
    rest = "to spare" if answer.fits else "too much"
    known = left is not None and (left >= 0) is answer.fits
    by = f": {show_bytes(abs(left or 0))} {rest}" if known else ""
    return ("Fits" if answer.fits else "Does not fit") + of + by


def rows_table(answer: Answer) -> Shown:
    """Each part with its likely bytes and their range, and its source; drawn as one bar, what
    is left or too much at its end.
    """
    names = words("fits")["parts"]
    rows: list[list[Any]] = [
        [names[part], likely, low, "no bound" if high is None else high, source]
        for part, likely, low, high, source in map(dict.values, answer.rows)
        if likely != 0 or high != 0 or source == "as given"
    ]
    columns = ["part", *(Column(n, "bytes") for n in ("likely", "at least", "at most")), "source"]
    return Shown(f"What {answer.program} needs", columns, rows, result=headline(answer))


def bar(answer: Answer) -> Shown:
    """The rows as one stacked bar against the ceiling."""
    view = rows_table(answer).without("source")
    return replace(view, title=headline(answer), draw=partial(_draw, answer))


def _draw(answer: Answer) -> Any:
    from helpers.tell import sheet  # matplotlib is slow to come, and a terminal needs none

    page = sheet.Sheet(headline(answer))
    names = words("fits")["parts"]
    held = [(names[one["part"]], one["bytes"]) for one in answer.rows if one["bytes"]]
    looks = (sheet.Look(colour, "white") for colour in cycle(sheet.SERIES))
    pieces = [sheet.Piece(*row, look) for row, look in zip(held, looks, strict=False)]
    whole = sum(size for _, size in held)
    top = answer.ceiling_bytes or 0
    left = sheet.Piece("left", max(0, top - whole), sheet.Look(sheet.PALE, sheet.MUTED))
    page.stacked([*pieces, left] if top > whole else pieces, max(top, whole))
    return page.done()


def solved_lines(answer: Answer) -> list[str]:
    """What each open unknown may be, in a line each."""
    says = words("fits")["solved"]
    found = {"asked": answer.cache["n_ctx"], **answer.solved}
    return [says[name].format(value) for name, value in found.items() if value is not None]


def verdict(answer: Answer) -> Verdict:
    """The answer as a notebook's verdict."""
    names = words("fits")["parts"]
    lines = solved_lines(answer) or answer.missing
    known = [list(one.values()) for one in answer.rows if one["bytes"]]
    rows = [Evidence(one[0], seen(one[1], "bytes", one[-1]), names[one[0]]) for one in known]
    ask = "python3 -m helpers fits MODEL --gpu NAME --context N"
    return Verdict(
        cause="other" if answer.fits else "cannot-tell" if answer.fits is None else "true-capacity",
        state="aside",
        title=headline(answer),
        confidence="likely",
        summary="; ".join(lines),
        evidence=rows,
        missing=[Missing(one, ask) for one in answer.missing],
        next_step=NextStep(words("fits")["steps"][str(answer.fits)].format(lines[0]), ask),
    )


def as_text(answer: Answer) -> str:
    """The answer of the command ``fits`` for a terminal."""
    out = [headline(answer), "", rows_table(answer).text(0), ""]
    out += [f"Against: {answer.ceiling_source}"] * bool(answer.ceiling_source)
    lines = [*solved_lines(answer), *answer.notes, *(f"Missing: {one}" for one in answer.missing)]
    return "\n".join([*out, *(part for line in lines for part in wrapped(line, "", "  ", SCREEN))])
