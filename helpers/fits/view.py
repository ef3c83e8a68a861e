"""An answer of fits in words: a table and a bar of what a server needs, the longest context, the
line that starts the server, and the changes with which it would fit.

A row of an answer is one part of what is needed (weights, cache, ...) with its bytes as they are
likely, at best and at worst (``Total`` of answer.py). The ceiling is what the card can give.
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

# The columns of a Total (see answer.py): likely, at best, at worst.
ColumnKey = Literal["bytes", "low_bytes", "high_bytes"]
COLUMNS: tuple[ColumnKey, ...] = ("bytes", "low_bytes", "high_bytes")
ASK = "casebook fits MODEL --gpu NAME --context N"


def rows_table(answer: FitsAnswer) -> Shown:
    """The rows of an answer as a table: each part with its three sizes and its source. Below them
    stand their sum and the card, where a card is known. A part that takes nothing is left out.
    """
    names = words("fits")["parts"]
    rows = [row for row in answer.rows if row["bytes"] != 0 or row["high_bytes"] != 0]
    columns = []
    for key in COLUMNS:
        columns.append(_gib_that_add_up([row[key] for row in rows]))
    sources = [row["source"] for row in rows]
    parts = [names[row["part"]] for row in rows]
    if answer.ceiling_bytes is not None:
        source = "the sum of the rows"
        if fills_its_share(answer):
            source = f"all that {answer.program} may take: the cache has what the others leave"
        for column, key in zip(columns, COLUMNS, strict=True):
            column += [_gib(answer.total[key]), _gib(answer.ceiling_bytes)]
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
    """A size in GiB; None where it is not known."""
    if size is None:
        return None
    return size / GIB


def _gib_that_add_up(sizes: Sequence[int | None]) -> list[float | None]:
    """Sizes in GiB with two decimals that add up to the rounded total as a reader adds them.

    Each is the difference of two rounded sums: that of the sizes up to it, and that of those before
    it. A size that is not known stays None and adds nothing.
    """
    parts: list[float | None] = []
    sum_bytes = 0
    rounded_gib = 0.0
    for size in sizes:
        if size is None:
            parts.append(None)
            continue
        sum_bytes += size
        before_gib = rounded_gib
        rounded_gib = round(sum_bytes / GIB, 2)
        parts.append(rounded_gib - before_gib)
    return parts


def fills_its_share(answer: FitsAnswer) -> bool:
    """Whether the server fills its share of the card: its cache takes all that the other rows
    leave.

    That is so where the sum reaches the ceiling, and some rows are ranges while the sum is none.
    Two sums within a MiB count as equal, as figures are rounded by so much.
    """
    total = answer.total["bytes"]
    low = answer.total["low_bytes"]
    ceiling = answer.ceiling_bytes
    if total is None or low is None or ceiling is None or total - ceiling >= MIB:
        return False
    most = total
    high = answer.total["high_bytes"]
    if high is not None:
        most = max(total, high)
    is_range = any(row["low_bytes"] != row["high_bytes"] for row in answer.rows)
    return is_range and most - low < MIB


def total_line(answer: FitsAnswer) -> str:
    """A line about the sum of all rows, the context that they are counted for, and what the card
    has.

    It is empty where a row or the card is not known, and for a log, whose headline says how its run
    ended. A range is said where the sum is not certain.
    """
    total = answer.total["bytes"]
    if total is None or answer.ceiling_bytes is None or answer.ran is not None:
        return ""
    card = show_bytes(answer.ceiling_bytes)
    if fills_its_share(answer):
        # What the server keeps free and what others hold are rows, but it does not take them.
        for row in answer.rows:
            if row["part"] in ("reserve", "others") and row["bytes"] is not None:
                total -= row["bytes"]
        return (
            f"{answer.program} takes {show_bytes(total)} of {card}{per_card(answer)}, whatever the "
            "context: its cache gets what the other parts leave"
        )
    says = f"Total{per_card(answer)}{_counted_context(answer)}"
    low = answer.total["low_bytes"]
    high = answer.total["high_bytes"]
    if low == total == high:
        return f"{says}: {show_bytes(total)} of {card}"
    if low == total and high is None:  # the likely sum is the least, so it says no more
        return f"{says}: at least {show_bytes(total)}; available: {card}"
    most = "no bound is known"
    if high is not None:
        most = f"at most {show_bytes(high)}"
    span = f"at least {show_bytes(low)}, {most}"
    if total > answer.ceiling_bytes:
        return f"{says}: likely {show_bytes(total)} ({span}); available: {card}"
    return f"{says}: likely {show_bytes(total)} of {card} ({span})"


def _counted_context(answer: FitsAnswer) -> str:
    """The words about the context that the rows are counted for; empty where it is not known.

    They call it the server's default where nobody asked for one, unless that default is the model's
    own maximum, which the line about the longest context names.
    """
    tokens = answer.cache["n_ctx"]
    contexts = answer.contexts
    if contexts.asked is None and tokens == contexts.default != contexts.model:
        return f" with {answer.program}'s default context of {contexts.default:,}"
    if not tokens:
        return ""
    return f" with a context of {int(tokens):,}"


def bar(answer: FitsAnswer) -> Shown:
    """The rows as a figure: one stacked bar, and a line at the end of the card."""
    view = rows_table(answer).without("source")
    return replace(view, title=headline(answer), draw=partial(_draw, answer))


def _draw(answer: FitsAnswer) -> Drawing:
    """Draw the figure of ``bar``. Where the card is larger than the sum, the last piece is what is
    left of it; where it is smaller, a line marks its end within the bar.
    """
    # here: it loads matplotlib, which a terminal does not need
    from helpers.tell import sheet

    page = sheet.FigurePage(headline(answer))
    names = words("fits")["parts"]
    colours = cycle(SERIES)
    pieces = []
    total = 0
    for row in answer.rows:
        if row["bytes"]:
            look = Look(next(colours), "white")
            pieces.append(sheet.BarPiece(names[row["part"]], row["bytes"], look))
            total += row["bytes"]
    ceiling = answer.ceiling_bytes
    if ceiling is None:  # no card: the bar is the sum alone
        ceiling = total
    if ceiling < total:
        page.stacked(pieces, total, mark=ceiling)
        page.footnote(f"The line: the end of the card, {show_bytes(ceiling)}.")
        return page.done()
    if ceiling > total:
        pieces.append(sheet.BarPiece("left", ceiling - total, PALETTE["free"]))
    page.stacked(pieces, ceiling)
    return page.done()


def solved_lines(answer: FitsAnswer) -> list[str]:
    """Lines about the context and every other unknown that was solved for. Of a log only the
    unknowns are said: its context is what it was.
    """
    lines = []
    contexts = answer.contexts
    is_log = answer.ran is not None
    is_range = not contexts.longest_low == contexts.longest == contexts.longest_high
    if contexts.longest and is_range and not (is_log or contexts.has_no_end):
        lines.append(_range_of_the_context(answer))
    if contexts.asked is None and contexts.default is not None and not is_log:
        default = f"Default context: {contexts.default:,}"
        lines.append(f"{default}, {contexts.default_source}")
    if contexts.token_bytes:
        size = show_bytes(contexts.token_bytes)
        lines.append(f"Each token of context takes {size}{per_card(answer)}")
    # Where any context fits, numbers of tokens and of requests of the longest one say nothing.
    if not contexts.has_no_end:
        lines += _lines_of_unknowns(answer)
    return lines


def _lines_of_unknowns(answer: FitsAnswer) -> list[str]:
    """A line for each unknown that was solved for and that no other line says."""
    forms = words("fits")["solved"]
    left_out = {"slots"}  # below: its line names the tokens of a request, too
    # Without a log, longest_line of headline.py says the context.
    if answer.ran is None:
        left_out.add("context")
    if answer.start:
        left_out.add("utilisation")  # the line that starts the server has the share
    lines = []
    for name, value in answer.solved.items():
        if value and name not in left_out:
            lines.append(forms[name].format(value))
    slots = answer.solved["slots"]
    if slots:
        requests = "Requests"
        tokens = answer.cache["request_tokens"]
        if tokens:
            requests += f" of {int(tokens):,} tokens"
        lines.append(f"{requests} that fit at once: {slots:,.0f}")
    return lines


def _range_of_the_context(answer: FitsAnswer) -> str:
    """A sentence about the longest context that fits: how many tokens that is at worst, likely and
    at best, and the parts of the sum that make it a range.

    At worst it may be none; at best is left out where it is not known, or the likely one. The cache
    (part ``kv``) is not among the parts that are named: how long a context is decides its size, or
    in a pool the other parts do, so its range is a result of theirs.
    """
    contexts = answer.contexts
    high = contexts.longest_high
    names = words("fits")["parts"]
    uncertain = []
    for row in answer.rows:
        if row["part"] != "kv" and row["low_bytes"] != row["high_bytes"]:
            uncertain.append(names[row["part"]])
    says = "At worst no context fits"
    if contexts.certain:
        says = f"At worst {contexts.certain:,} tokens fit"
    says += f", likely {contexts.longest:,}"
    if high not in (None, contexts.longest):
        says += f", at best {high:,}"
    parts = _listed(uncertain)
    return f"{says}: how much {answer.program} takes for {parts} is not known exactly"


def _listed(names: Sequence[str]) -> str:
    """Names as a person lists them: *a, b and c*; empty where there are none."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _how_sure_of_the_line(contexts: Contexts) -> str:
    """A sentence below the line that starts the server: a warning that its context may not fit, or
    a hint that a longer one likely fits.

    It is empty where neither is so, where no context certainly fits, and where any does.
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
    """The server that the answer is about, on how many cards; where nobody named a server, that it
    is assumed, and how to name another.
    """
    server = f"Server: {answer.program}"
    if answer.cards_alike > 1:
        server += f" on {answer.cards_alike} cards"
    if not answer.assumed:
        return server
    return f"{server}, assumed for this file; {words('fits')['servers']}"


def ways_table(answer: FitsAnswer) -> Shown:
    """The ways out, those on this card first: the change, the context and the sizes with it."""
    cells = []
    for way in answer.ways:
        how_sure = "likely"
        if way.certain:
            how_sure = "certain"
        sizes_gib = [_gib(way.total_bytes), _gib(way.most_bytes)]
        cells.append([way.option, way.context, *sizes_gib, how_sure, way.says])
    none = "It fits as asked, so nothing needs to change."
    if not answer.fits:
        none = "No change is known that would make it fit."
    tokens = Column("context, tokens", "1,000")
    sizes = [Column(head, "0.01") for head in ("likely, GiB", "at most, GiB")]
    columns = ["change", tokens, *sizes, "how sure", "effect"]
    return Shown("What would work", columns, cells, widest=None, none=none)


def _lines_of_a_way(way: Way) -> list[str]:
    """Lines of a terminal about a way: its changes; the context and the size with it, where it has
    one; and the lines to paste.
    """
    says = f"{way.option}: {way.says}"
    if way.context:
        fit = f"likely fit (about {show_bytes(way.total_bytes)}{per_card(way)})"
        if way.certain:
            fit = f"certainly fit (at most {show_bytes(way.most_bytes)}{per_card(way)})"
        says += f"; {way.context:,} tokens {fit}"
    lines = wrapped(says, "  ", "      ", SCREEN)
    if way.kind != "card":  # on another card the server is started by the same line
        lines += [f"      {line}" for line in "\n".join(way.start).splitlines()]
    return lines


def _first_lines(answer: FitsAnswer) -> list[str]:
    """Lines of a terminal about what to do: how to start the server, and the ways out; each only
    where the answer has it.
    """
    out = []
    if answer.start:
        out += ["", "Start it with"]
        out += [f"  {line}" for line in "\n".join(answer.start).splitlines()]
        how_sure = _how_sure_of_the_line(answer.contexts)
        if how_sure:
            out += wrapped(how_sure, "", "  ", SCREEN)
    if answer.ways:
        wanted = ""
        if answer.contexts.asked:
            wanted = f" for {answer.contexts.asked:,} tokens"
        out += ["", f"What to change{wanted} (first on this card, then on others)"]
    for way in answer.ways:
        out += _lines_of_a_way(way)
    return out


def verdict_on_fit(answer: FitsAnswer) -> Verdict:
    """The answer as a verdict, which a notebook shows as any other.

    Its summary is the longest context and the unknowns, or what is missing where neither is known.
    The next step is the first way out where the model does not fit, else a sentence of words.json.
    """
    names = words("fits")["parts"]
    lines = solved_lines(answer)
    longest = longest_line(answer)
    if longest:
        lines.insert(0, longest)
    if not lines:
        lines = answer.missing
    evidence = []
    for row in answer.rows:
        if row["bytes"]:
            size = seen(row["bytes"], "bytes", row["source"])
            evidence.append(Evidence(row["part"], size, names[row["part"]]))
    # "other": a verdict whose own words are the answer, as nothing has failed.
    causes = {True: "other", False: "true-capacity", None: "cannot-tell"}
    # words.json has a step for each value of fits, and one for a file that is cut off.
    kind = str(answer.fits)
    if answer.cut_off and answer.fits:
        kind = "cut off"
    step = words("fits")["steps"][kind].format(lines[0])
    typed = answer.start  # what a person types for the step
    if answer.fits is False and answer.ways:
        way = answer.ways[0]
        step = f"Make it fit: {way.option} ({way.says})"
        if way.start:
            typed = way.start
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
    """The answer of the command ``fits`` for a terminal: whether the model fits, the server, the
    sum, what to do, and then the rows, with their sources where it is ``wide``.
    """
    table = rows_table(answer)
    if not wide:
        table = table.without("source")
    head = headline(answer)
    longest = longest_line(answer)
    if longest:  # it has a line of its own here, so the headline is without it
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
