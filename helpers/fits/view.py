"""What fits, for people: the rows against the ceiling as a table and a stacked bar, what is solved
for, how to start it, and what would work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Literal

from helpers.fits.answer import FitsAnswer
from helpers.fits.contexts import Contexts
from helpers.fits.headline import (
    headline,
    incomplete_file,
    longest_line,
    per_card,
    with_the_context,
)
from helpers.fits.ways import Way
from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import GIB, MIB, show_bytes
from helpers.tell.figure_style import PALETTE, SERIES, Look
from helpers.tell.prose import SCREEN, wrapped
from helpers.tell.resources import words
from helpers.tell.shown import Shown
from helpers.tell.values import Column

if TYPE_CHECKING:
    from helpers.tell.sheet import Drawing

End = Literal["bytes", "low_bytes", "high_bytes"]
ENDS: tuple[End, ...] = ("bytes", "low_bytes", "high_bytes")
ASK = "casebook fits MODEL --gpu NAME --context N"


def rows_table(answer: FitsAnswer) -> Shown:
    """Each part with its likely size, and where all parts together take the least and the most; its
    source; their sum, and the card.
    """
    names = words("fits")["parts"]
    rows = [row for row in answer.rows if row["bytes"] != 0 or row["high_bytes"] != 0]
    columns = []
    for end in ENDS:
        columns.append(_adding_up([row[end] for row in rows]))
    sources = [row["source"] for row in rows]
    parts = [names[row["part"]] for row in rows]
    if answer.ceiling_bytes is not None:
        source = "the sum of the rows"
        if fills_its_share(answer):
            source = f"all that {answer.program} may take: the cache has what the others leave"
        for column, end in zip(columns, ENDS, strict=True):
            column += [_gib(answer.total[end]), _gib(answer.ceiling_bytes)]
        parts += ["total", names["ceiling"]]
        sources += [source, answer.ceiling_source]
    notes = []
    if any(row["high_bytes"] is None for row in rows):
        notes.append("-: no bound is known")
    sizes = [
        Column(f"{head}, GiB", "0.01") for head in ("likely", "at best", "at worst")
    ]
    return Shown(
        f"What {answer.program} needs",
        [f"part{per_card(answer)}", *sizes, "source"],
        list(zip(parts, *columns, sources, strict=True)),
        notes=notes,
        result=headline(answer),
    )


def _gib(size: int | None) -> float | None:
    return None if size is None else size / GIB


def _adding_up(sizes: Sequence[int | None]) -> list[float | None]:
    """Sizes in GiB, rounded so that they add up to their rounded sum."""
    parts: list[float | None] = []
    sum_bytes = 0
    shown_gib = 0.0
    for size in sizes:
        if size is None:
            parts.append(None)
            continue
        sum_bytes += size
        end = round(sum_bytes / GIB, 2)
        parts.append(end - shown_gib)
        shown_gib = end
    return parts


def fills_its_share(answer: FitsAnswer) -> bool:
    """Whether the cache takes what the other rows leave, so that the sum is always the same."""
    total = answer.total["bytes"]
    low = answer.total["low_bytes"]
    high = answer.total["high_bytes"]
    ceiling = answer.ceiling_bytes
    if total is None or low is None or ceiling is None or total - ceiling >= MIB:
        return False
    is_range = any(row["low_bytes"] != row["high_bytes"] for row in answer.rows)
    most = total if high is None else max(total, high)
    return is_range and most - low < MIB


def total_line(answer: FitsAnswer) -> str:
    """What all rows come to, with which context, beside what the card has; empty where a row is not
    known.
    """
    total = answer.total["bytes"]
    if total is None or answer.ceiling_bytes is None or answer.ran is not None:
        return ""
    card = show_bytes(answer.ceiling_bytes)
    if fills_its_share(answer):
        not_taken = [
            row["bytes"] for row in answer.rows if row["part"] in ("reserve", "others")
        ]
        taken = show_bytes(total - sum(filter(None, not_taken)))
        return (
            f"{answer.program} takes {taken} of {card}{per_card(answer)}, whatever the context: its "
            "cache gets what the other parts leave"
        )
    says = f"Total{per_card(answer)}{_counted_context(answer)}"
    low = answer.total["low_bytes"]
    high = answer.total["high_bytes"]
    if low == total == high:
        return f"{says}: {show_bytes(total)} of {card}"
    if low == total and high is None:
        return f"{says}: at least {show_bytes(total)}; available: {card}"
    most = "no bound is known" if high is None else f"at most {show_bytes(high)}"
    span = f"at least {show_bytes(low)}, {most}"
    if total > answer.ceiling_bytes:
        return f"{says}: likely {show_bytes(total)} ({span}); available: {card}"
    return f"{says}: likely {show_bytes(total)} of {card} ({span})"


def _counted_context(answer: FitsAnswer) -> str:
    """Which context the rows are counted for; empty where it is not known."""
    tokens = answer.cache["n_ctx"]
    contexts = answer.contexts
    if contexts.asked is None and tokens == contexts.default != contexts.model:
        return f" with {answer.program}'s default context of {contexts.default:,}"
    if not tokens:
        return ""
    return f" with a context of {int(tokens):,}"


def bar(answer: FitsAnswer) -> Shown:
    """The rows as one stacked bar against the ceiling."""
    view = rows_table(answer).without("source")
    return replace(view, title=headline(answer), draw=partial(_draw, answer))


def _draw(answer: FitsAnswer) -> Drawing:
    # Here, as matplotlib is slow to load, and a terminal needs none.
    from helpers.tell import sheet

    page = sheet.FigurePage(headline(answer))
    names = words("fits")["parts"]
    sizes = {names[row["part"]]: row["bytes"] for row in answer.rows if row["bytes"]}
    pieces = [
        sheet.BarPiece(name, size, Look(colour, "white"))
        for (name, size), colour in zip(sizes.items(), cycle(SERIES), strict=False)
    ]
    total = sum(sizes.values())
    ceiling = total if answer.ceiling_bytes is None else answer.ceiling_bytes
    if ceiling < total:
        page.stacked(pieces, total, mark=ceiling)
        page.footnote(f"The line: the end of the card, {show_bytes(ceiling)}.")
        return page.done()
    if ceiling > total:
        pieces.append(sheet.BarPiece("left", ceiling - total, PALETTE["free"]))
    page.stacked(pieces, ceiling)
    return page.done()


def solved_lines(answer: FitsAnswer) -> list[str]:
    """How long the context may be, and what each other unknown may be, a line each."""
    says = words("fits")["solved"]
    lines = []
    contexts = answer.contexts
    is_range = not contexts.longest_low == contexts.longest == contexts.longest_high
    if contexts.longest and is_range and answer.ran is None and not contexts.has_no_end:
        lines.append(_range_of_the_context(answer))
    if contexts.asked is None and contexts.default is not None and answer.ran is None:
        default = f"Default context: {contexts.default:,}"
        lines.append(f"{default}, {contexts.default_source}")
    if contexts.token_bytes:
        size = show_bytes(contexts.token_bytes)
        lines.append(f"Each token of context takes {size}{per_card(answer)}")
    if contexts.has_no_end:
        return lines
    left_out = {"slots"}  # said last, as it names the tokens of each
    if answer.ran is None:
        left_out.add("context")
    if answer.start:
        left_out.add("utilisation")  # the line to start it has the share
    for name, value in answer.solved.items():
        if value and name not in left_out:
            lines.append(says[name].format(value))
    if answer.solved["slots"]:
        lines.append(_requests_at_once(answer))
    return lines


def _requests_at_once(answer: FitsAnswer) -> str:
    tokens = answer.cache["request_tokens"]
    length = f" of {int(tokens):,} tokens" if tokens else ""
    return f"Requests{length} that fit at once: {answer.solved['slots']:,.0f}"


def _range_of_the_context(answer: FitsAnswer) -> str:
    """How long the context may be at both ends, and why that is a range."""
    contexts = answer.contexts
    high = contexts.longest_high
    names = words("fits")["parts"]
    open_rows = [
        names[row["part"]]
        for row in answer.rows
        if row["part"] != "kv" and row["low_bytes"] != row["high_bytes"]
    ]
    says = "At worst no context fits"
    if contexts.certain:
        says = f"At worst {contexts.certain:,} tokens fit"
    says += f", likely {contexts.longest:,}"
    if high not in (None, contexts.longest):
        says += f", at best {high:,}"
    parts = _listed(open_rows)
    return f"{says}: how much {answer.program} takes for {parts} is not known exactly"


def _listed(names: Sequence[str]) -> str:
    """Names as a person lists them: *a, b and c*."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _how_sure_of_the_line(contexts: Contexts) -> str:
    """What else the line to start it may ask for, or that it asks for more than is certain; empty
    where it has the longest context.
    """
    certain = contexts.certain
    likely = contexts.likely
    if not certain or not likely or contexts.has_no_end:
        return ""
    if contexts.to_start_with > certain:
        return f"Only {certain:,} tokens certainly fit: ask for fewer if this runs out of memory"
    if contexts.to_start_with == certain < likely:
        return f"Up to {likely:,} tokens likely fit: try that if you need more"
    return ""


def server_line(answer: FitsAnswer) -> str:
    """Which server is reckoned with, on how many cards, and whether anybody named it."""
    server = f"Server: {answer.program}"
    if answer.cards_alike > 1:
        server += f" on {answer.cards_alike} cards"
    if not answer.assumed:
        return server
    return f"{server}, assumed for this file; {words('fits')['servers']}"


def ways_table(answer: FitsAnswer) -> Shown:
    """What to change, first on this card."""
    cells = [
        [
            way.option,
            way.context,
            _gib(way.total_bytes),
            _gib(way.most_bytes),
            "certain" if way.certain else "likely",
            way.says,
        ]
        for way in answer.ways
    ]
    none = "It fits as asked, so nothing needs to change."
    if not answer.fits:
        none = "No change is known that would make it fit."
    tokens = Column("context, tokens", "1,000")
    sizes = [Column(head, "0.01") for head in ("likely, GiB", "at most, GiB")]
    columns = ["change", tokens, *sizes, "how sure", "effect"]
    return Shown("What would work", columns, cells, widest=None, none=none)


def _lines_of_a_way(way: Way) -> list[str]:
    """A way with what results, and the lines to paste."""
    says = f"{way.option}: {way.says}"
    if way.context:
        fit = f"likely fit (about {show_bytes(way.total_bytes)}{per_card(way)})"
        if way.certain:
            fit = f"certainly fit (at most {show_bytes(way.most_bytes)}{per_card(way)})"
        says += f"; {way.context:,} tokens {fit}"
    lines = wrapped(says, "  ", "      ", SCREEN)
    if way.kind != "card":  # on another card the line is the same
        lines += [f"      {line}" for line in "\n".join(way.start).splitlines()]
    return lines


def _first_lines(answer: FitsAnswer) -> list[str]:
    """What is to be done: the lines to start it with, and the changes with which it fits."""
    out = []
    if answer.start:
        out += ["", "Start it with"]
        out += [f"  {line}" for line in "\n".join(answer.start).splitlines()]
        if _how_sure_of_the_line(answer.contexts):
            out += wrapped(_how_sure_of_the_line(answer.contexts), "", "  ", SCREEN)
    if answer.ways:
        wanted = ""
        if answer.contexts.asked:
            wanted = f" for {answer.contexts.asked:,} tokens"
        out += ["", f"What to change{wanted} (first on this card, then on others)"]
    for way in answer.ways:
        out += _lines_of_a_way(way)
    return out


def verdict_on_fit(answer: FitsAnswer) -> Verdict:
    """The answer as a notebook's verdict."""
    names = words("fits")["parts"]
    longest = longest_line(answer)
    lines = list(filter(None, (longest, *solved_lines(answer)))) or answer.missing
    evidence = [
        Evidence(
            row["part"], seen(row["bytes"], "bytes", row["source"]), names[row["part"]]
        )
        for row in answer.rows
        if row["bytes"]
    ]
    causes = {True: "other", False: "true-capacity", None: "cannot-tell"}
    # words.json has the steps by True, False, None and "cut off"
    kind = str(answer.fits)
    if answer.cut_off and answer.fits:
        kind = "cut off"
    step = words("fits")["steps"][kind].format(lines[0])
    typed = answer.start
    if answer.fits is False and answer.ways:
        way = answer.ways[0]
        step = f"Make it fit: {way.option} ({way.says})"
        typed = way.start or typed
    return Verdict(
        cause=causes[answer.fits],
        state="aside",
        title=headline(answer),
        confidence="likely",
        summary=". ".join(lines),
        evidence=evidence,
        missing=[Missing(reading, ASK) for reading in answer.missing],
        next_step=NextStep(step, "\n".join(typed) or ASK),
    )


def as_text(answer: FitsAnswer, wide: bool = False) -> str:
    """The answer of the command ``fits`` for a terminal: whether it fits, with which server, the sum,
    what to do, and then the rows; ``wide`` has their sources.
    """
    table = rows_table(answer)
    if not wide:
        table = table.without("source")
    head = headline(answer)
    longest = longest_line(answer)
    if longest:
        head = f"{incomplete_file(answer)}{with_the_context(answer)}"
    out = []
    for line in (head, longest, server_line(answer), total_line(answer)):
        if line:
            out += wrapped(line, "", "  ", SCREEN)
    out += [*_first_lines(answer), "", table.text(0), ""]
    if answer.ceiling_source:
        out.append(f"Card: {answer.ceiling_source}")
    for line in [*solved_lines(answer), *answer.notes]:
        out += wrapped(line, "", "  ", SCREEN)
    if answer.missing:
        out.append("")
    for reading in answer.missing:
        out += wrapped(f"Missing: {reading}", "", "  ", SCREEN)
    return "\n".join(out)
