"""What fits, for people: the rows against the ceiling as a table and a stacked bar, what is solved
for, how to start it, and what would work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, cycle, pairwise
from typing import Any

from helpers.fits.answer import FitsAnswer
from helpers.fits.contexts import Contexts
from helpers.fits.headline import (
    headline,
    incomplete_file,
    longest_line,
    per_card,
    with_the_context,
)
from helpers.fits.start import tokens_to_serve
from helpers.fits.ways import Way
from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import GIB, MIB, show_bytes
from helpers.tell.figure_style import PALETTE, SERIES, Look
from helpers.tell.prose import SCREEN, wrapped
from helpers.tell.resources import words
from helpers.tell.shown import Shown
from helpers.tell.values import Column

ENDS = ("bytes", "low_bytes", "high_bytes")
ASK = "casebook fits MODEL --gpu NAME --context N"


def rows_table(answer: FitsAnswer) -> Shown:
    """Each part with its likely size, and where all parts together take the least and the most; its
    source; their sum, and the card.
    """
    names = words("fits")["parts"]
    rows = [row for row in answer.rows if row["bytes"] != 0 or row["high_bytes"] != 0]
    is_open = any(row["high_bytes"] is None for row in rows)
    columns = [_adding_up([row[end] for row in rows]) for end in ENDS]
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
    cells = list(zip(parts, *columns, sources, strict=True))
    sizes = [
        Column(f"{head}, GiB", "0.01") for head in ("likely", "at best", "at worst")
    ]
    return Shown(
        f"What {answer.program} needs",
        [f"part{per_card(answer)}", *sizes, "source"],
        [list(row) for row in cells],
        notes=["-: no bound is known"] if is_open else [],
        result=headline(answer),
    )


def _gib(size: int | None) -> float | None:
    if size is None:
        return None
    return size / GIB


def _adding_up(sizes: Sequence[int | None]) -> list[float | None]:
    """Sizes in GiB, rounded so that they add up to their rounded sum."""
    sums = [round(total / GIB, 2) for total in accumulate(size or 0 for size in sizes)]
    rounded = [end - begin for begin, end in pairwise([0.0, *sums])]
    return [
        None if size is None else part
        for size, part in zip(sizes, rounded, strict=True)
    ]


def fills_its_share(answer: FitsAnswer) -> bool:
    """Whether the cache takes what the other rows leave, so that the sum is always the same."""
    total = answer.total["bytes"]
    low = answer.total["low_bytes"]
    high = answer.total["high_bytes"]
    if total is None or low is None or total - (answer.ceiling_bytes or 0) >= MIB:
        return False
    is_range = any(row["low_bytes"] != row["high_bytes"] for row in answer.rows)
    return is_range and max(total, high or 0) - low < MIB


def total_line(answer: FitsAnswer) -> str:
    """What all rows come to, with which context, beside what the card has; empty where a row is not
    known.
    """
    total = answer.total["bytes"]
    if total is None or answer.ceiling_bytes is None or answer.ran is not None:
        return ""
    card = show_bytes(answer.ceiling_bytes)
    card_sizes = per_card(answer)
    if fills_its_share(answer):
        not_taken = [
            row["bytes"] or 0
            for row in answer.rows
            if row["part"] in ("reserve", "others")
        ]
        taken = show_bytes(total - sum(not_taken))
        return (
            f"{answer.program} takes {taken} of {card}{card_sizes}, whatever the context: its cache gets "
            "what the other parts leave"
        )
    context = answer.cache["n_ctx"]
    with_context = f" with a context of {int(context):,}" if context else ""
    contexts = answer.contexts
    if contexts.asked is None and context == contexts.default != contexts.model:
        with_context = (
            f" with {answer.program}'s default context of {contexts.default:,}"
        )
    total_words = f"Total{card_sizes}{with_context}"
    low = answer.total["low_bytes"]
    high = answer.total["high_bytes"]
    if low == total == high:
        return f"{total_words}: {show_bytes(total)} of {card}"
    if low == total and high is None:
        return f"{total_words}: at least {show_bytes(total)}; available: {card}"
    most = "no bound is known" if high is None else f"at most {show_bytes(high)}"
    span = f"at least {show_bytes(low)}, {most}"
    if total > answer.ceiling_bytes:
        return f"{total_words}: likely {show_bytes(total)} ({span}); available: {card}"
    return f"{total_words}: likely {show_bytes(total)} of {card} ({span})"


def bar(answer: FitsAnswer) -> Shown:
    """The rows as one stacked bar against the ceiling."""
    view = rows_table(answer).without("source")
    return replace(view, title=headline(answer), draw=partial(_draw, answer))


def _draw(answer: FitsAnswer) -> Any:
    from helpers.tell import (
        sheet,
    )  # matplotlib is slow to come, and a terminal needs none

    page = sheet.FigurePage(headline(answer))
    names = words("fits")["parts"]
    sizes = {names[row["part"]]: row["bytes"] for row in answer.rows if row["bytes"]}
    pieces = [
        sheet.BarPiece(name, size, Look(colour, "white"))
        for (name, size), colour in zip(sizes.items(), cycle(SERIES), strict=False)
    ]
    total = sum(sizes.values())
    top = answer.ceiling_bytes or 0
    if top > total:
        pieces.append(sheet.BarPiece("left", top - total, PALETTE["free"]))
    is_too_much = 0 < top < total
    page.stacked(pieces, max(top, total), mark=top if is_too_much else None)
    if is_too_much:
        page.footnote(f"The line: the end of the card, {show_bytes(top)}.")
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
        lines.append(
            f"Default context: {contexts.default:,}, {contexts.default_source}"
        )
    if contexts.token_bytes:
        size = show_bytes(contexts.token_bytes)
        lines.append(f"Each token of context takes {size}{per_card(answer)}")
    shown = {name: value for name, value in answer.solved.items() if name != "context"}
    requests = shown.pop("slots", None)
    if contexts.has_no_end:
        shown = {}
    if answer.start:
        shown.pop("utilisation", None)  # the line to start it has the share
    if answer.ran is not None:
        shown = {"context": answer.solved.get("context"), **shown}
    lines += [says[name].format(value) for name, value in shown.items() if value]
    if requests and not contexts.has_no_end:
        lines.append(_requests_at_once(answer, int(requests)))
    return lines


def _requests_at_once(answer: FitsAnswer, requests: int) -> str:
    tokens = answer.cache["request_tokens"]
    length = f" of {int(tokens):,} tokens" if tokens else ""
    return f"Requests{length} that fit at once: {requests:,}"


def _range_of_the_context(answer: FitsAnswer) -> str:
    """How long the context may be at both ends, and why that is a range."""
    contexts = answer.contexts
    low = contexts.longest_low
    high = contexts.longest_high
    names = words("fits")["parts"]
    open_rows = [
        names[row["part"]]
        for row in answer.rows
        if row["part"] != "kv" and row["low_bytes"] != row["high_bytes"]
    ]
    ends = [f"at worst {low:,} tokens fit" if low else "at worst no context fits"]
    ends.append(f"likely {contexts.longest:,}")
    if high not in (None, contexts.longest):
        ends.append(f"at best {high:,}")
    why = f"how much {answer.program} takes for {_and(open_rows)} is not known exactly"
    return f"{', '.join(ends).capitalize()}: {why}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _how_sure_of_the_line(contexts: Contexts) -> str:
    """What else the line to start it may ask for, or that it asks for more than is certain; empty
    where it has the longest context.
    """
    certain = contexts.longest_low
    likely = contexts.longest
    served = tokens_to_serve(contexts)
    if not certain or not likely or contexts.has_no_end:
        return ""
    if served > certain:
        return f"Only {certain:,} tokens certainly fit: ask for fewer if this runs out of memory"
    if served == certain < likely:
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
            _certainty(way),
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


def _certainty(way: Way) -> str:
    if way.certain:
        return "certain"
    return "likely"


def _lines_of_a_way(way: Way) -> list[str]:
    """A way with what results, and the lines to paste."""
    says = f"{way.option}: {way.says}"
    if way.context:
        total = f"likely fit (about {show_bytes(way.total_bytes)}{per_card(way)})"
        if way.certain:
            total = (
                f"certainly fit (at most {show_bytes(way.most_bytes)}{per_card(way)})"
            )
        says += f"; {way.context:,} tokens {total}"
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
        asked = answer.contexts.asked
        wanted = f" for {asked:,} tokens" if asked else ""
        out += ["", f"What to change{wanted} (first on this card, then on others)"]
    for way in answer.ways:
        out += _lines_of_a_way(way)
    return out


def verdict_on_fit(answer: FitsAnswer) -> Verdict:
    """The answer as a notebook's verdict."""
    names = words("fits")["parts"]
    longest = longest_line(answer)
    lines = [
        line for line in (longest, *solved_lines(answer)) if line
    ] or answer.missing
    evidence = [
        Evidence(
            row["part"], seen(row["bytes"], "bytes", row["source"]), names[row["part"]]
        )
        for row in answer.rows
        if row["bytes"]
    ]
    causes = {True: "other", False: "true-capacity", None: "cannot-tell"}
    kind = str(answer.fits)
    if answer.cut_off and answer.fits:
        kind = "cut off"
    step = words("fits")["steps"][kind].format(lines[0])
    command = "\n".join(answer.start) or ASK
    if answer.fits is False and answer.ways:
        way = answer.ways[0]
        step = f"Make it fit: {way.option} ({way.says})"
        command = "\n".join(way.start) or command
    return Verdict(
        cause=causes[answer.fits],
        state="aside",
        title=headline(answer),
        confidence="likely",
        summary=". ".join(lines),
        evidence=evidence,
        missing=[Missing(reading, ASK) for reading in answer.missing],
        next_step=NextStep(step, command),
    )


def as_text(answer: FitsAnswer, wide: bool = False) -> str:
    """The answer of the command ``fits`` for a terminal: whether it fits, with which server, the sum,
    what to do, and then the rows; ``wide`` has their sources.
    """
    table = rows_table(answer)
    head, longest = headline(answer), longest_line(answer)
    if longest:
        head = f"{incomplete_file(answer)}{with_the_context(answer)}"
    out = [*wrapped(head, "", "  ", SCREEN)]
    if longest:
        out += wrapped(longest, "", "  ", SCREEN)
    out += wrapped(server_line(answer), "", "  ", SCREEN)
    if total_line(answer):
        out += wrapped(total_line(answer), "", "  ", SCREEN)
    out += _first_lines(answer)
    out += ["", (table if wide else table.without("source")).text(0), ""]
    if answer.ceiling_source:
        out.append(f"Card: {answer.ceiling_source}")
    for line in [*solved_lines(answer), *answer.notes]:
        out += wrapped(line, "", "  ", SCREEN)
    if answer.missing:
        out.append("")
    for reading in answer.missing:
        out += wrapped(f"Missing: {reading}", "", "  ", SCREEN)
    return "\n".join(out)
