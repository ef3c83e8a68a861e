"""A verdict in words: for a terminal, for a notebook and as data, all three from one object.

``show`` emits one notebook output that holds them together, so that a program reads back
exactly what a person saw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from helpers.ground.contract import as_dict
from helpers.ground.shapes import (
    BESIDE,
    SUM,
    VERDICT_MIME,
    Evidence,
    Verdict,
    causes,
)
from helpers.ground.units import plain
from helpers.judge.observation import WRITTEN_UP  # noqa: F401  verdict.html.j2 takes it off a text
from helpers.tell.display import display
from helpers.tell.next_steps import CHECK, NextSteps, TypedStep, steps, typed_steps
from helpers.tell.prose import SCREEN, bold, flat, typed, wrapped
from helpers.tell.resources import words
from helpers.tell.shown import Shown

from .tables import one_source

CAUSE_WORDS = {code: row["says"] for code, row in causes().items()}
CONFIDENCE_WORDS: dict[str, str] = words("confidence")
FINE = "nothing failed, and every reading looks right"
UNDECIDED = "undecided: the next step gets what is missing"
SUMS = "The numbers of the message, added up"
NOTHING_AGAINST = "No reading speaks against it."
NOTHING_MISSING = "No further reading would change this answer."

MOST_WHY = 3
"""Reasons that are shown first, and lines of a screen for what each of them quotes."""
MOST_OF_AN_ERROR = 2
"""Lines of a screen for the program's own error."""
LINES = 25
"""Lines of one screen."""


def label(verdict: Verdict) -> str:
    """How sure it is, in words.

    Where nothing wrong was seen or nothing is decided there is nothing to be sure of.
    """
    instead = {"healthy": FINE, "cannot-tell": UNDECIDED}
    return instead.get(verdict.label) or CONFIDENCE_WORDS[verdict.confidence]


def tagged(verdict: Verdict) -> str:
    """The answer in a line: its headline, behind it in brackets its name and how sure it is."""
    if verdict.label in ("healthy", "cannot-tell"):
        return f"{verdict.headline} [{verdict.name}]"
    if verdict.label == "other":
        return f"{verdict.headline} [{label(verdict)}]"
    return f"{verdict.headline} [{verdict.name}; {label(verdict)}]"


def summary(verdict: Verdict) -> str:
    """The summary without the title that it may begin with: the headline has said that."""
    return after_title(verdict, verdict.summary)


def after_title(verdict: Verdict, text: str) -> str:
    """A text without the title that it may begin with, where more follows."""
    title = flat(verdict.title).rstrip(".") + ". "
    text = flat(text)
    if title != ". " and f"{text} ".startswith(title):
        return text[len(title) :]
    return text


def rows(verdict: Verdict) -> list[Evidence]:
    """The evidence that is readings, without the sums."""
    return [row for row in verdict.evidence if not row.id.startswith(SUM)]


def why(verdict: Verdict) -> list[Evidence]:
    """The three pieces of evidence to look at first: sizes, each once, then the rest in their
    order.
    """
    reasons = [row for row in rows(verdict) if not row.id.startswith(BESIDE)]
    # Reversed, so that of several rows of one size the first stays.
    sizes = {r.reading.value: r for r in reversed(reasons) if r.reading.unit == "bytes"}
    first = [row for row in reasons if row in sizes.values()]
    return [*first, *(row for row in reasons if row.reading.unit != "bytes")][:MOST_WHY]


def beside(verdict: Verdict) -> list[str]:
    """What was seen that has another cause than the verdict's, each a sentence or two."""
    return [row.says for row in verdict.evidence if row.id.startswith(BESIDE)]


def quoted(row: Evidence, error: str = "") -> str:
    """What was read, as it stands beside what it says: a size, or the words of a log; a lone
    word is a code, and left out, as is what stands in the ``error`` above it.
    """
    value = plain(row.reading.show())
    is_a_code = " " not in value or value in row.says or value in error
    if row.reading.unit == "text" and is_a_code:
        return ""
    return value


def sums(verdict: Verdict) -> list[Evidence]:
    """The evidence that is arithmetic on one message, line by line."""
    return [row for row in verdict.evidence if row.id.startswith(SUM)]


def brief(verdict: Verdict, more: str = "") -> str:
    """The answer on one screen, SCREEN columns by LINES lines: cause, how sure, why and the
    next step.

    ``more``: how to see the rest, where that is not ``--wide``. Commands and how to undo them are
    never cut. Where they take too much room, how to check, then reasons, are left to ``as_text``.
    """
    reasons = _reasons(verdict)
    listed = steps(verdict)
    lines = _screen(verdict, reasons, listed, more)
    if len(lines) > LINES:
        listed = [step for step in listed if step.says != CHECK]
        lines = _screen(verdict, reasons, listed, more)
    while len(lines) > LINES and len(reasons) > 1:
        reasons.pop()
        lines = _screen(verdict, reasons, listed, more)
    return "\n".join(lines)


def _screen(
    verdict: Verdict, reasons: list[Evidence], listed: list[TypedStep], more: str
) -> list[str]:
    """The lines of ``brief`` with these reasons and these steps."""
    lines = [bold(line) for line in wrapped(verdict.headline, columns=SCREEN)]
    lines += wrapped(f"({label(verdict)})", columns=SCREEN)
    lines += _error_lines(verdict, MOST_OF_AN_ERROR)
    lines += ["", *_why_lines(verdict, reasons)]
    lines += ["", bold("Next step"), *typed_steps(verdict, listed), ""]
    if more:
        return [*lines, *more.splitlines()]
    for text in _more(verdict, len(listed) < len(steps(verdict))):
        lines += wrapped(text, columns=SCREEN)
    return lines


def why_lines(verdict: Verdict) -> list[str]:
    """The evidence to look at first, in lines of a terminal below their heading."""
    return _why_lines(verdict, _reasons(verdict))


def _reasons(verdict: Verdict) -> list[Evidence]:
    """The evidence to look at first, without what the title says already."""
    return [
        row
        for row in why(verdict)
        if not (row.says and verdict.title.startswith(row.says.rstrip(".")))
    ]


def _why_lines(verdict: Verdict, reasons: Iterable[Evidence]) -> list[str]:
    """The heading and these reasons; the summary where there is none."""
    lines = [bold("Why")]
    quotes = {verdict.error}  # _reason adds what it quotes
    for row in reasons:
        lines += _reason(row, after_title(verdict, row.says), quotes)
    if len(lines) == 1:
        lines += wrapped(summary(verdict), "  ", "    ", SCREEN)
    if beside(verdict):
        lines += wrapped(f"Also seen: {beside(verdict)[0]}", "  ", "    ", SCREEN)
    return lines


def _error_lines(verdict: Verdict, most: int | None = None) -> list[str]:
    """What the program printed when it failed, in ``most`` lines of a terminal."""
    if not verdict.error:
        return []
    return wrapped(verdict.error, "  | ", "  | ", SCREEN, most)


def _more(verdict: Verdict, some_steps_are_left_out: bool) -> list[str]:
    """What was read in numbers, and what ``--wide`` shows beyond one screen."""
    lines = []
    taken_next = set(verdict.next_step.command.splitlines())
    missing = [
        row
        for row in verdict.missing
        if not taken_next.issuperset(row.how.splitlines())
    ]
    if missing:
        lines.append(flat(f"Missing: {'; '.join(row.reading for row in missing)}"))
    still_open = [causes()[other.cause]["name"] for other in verdict.alternatives]
    if still_open and verdict.cause != "cannot-tell":
        lines.append(f"Less likely, but possible: {', '.join(still_open)}")
    shows = "All evidence and the tables"
    if some_steps_are_left_out:
        shows = "How to check it, all evidence and the tables"
    return [*lines, f"{shows}: --wide"]


def _reason(row: Evidence, says: str, quotes: set[str]) -> list[str]:
    """A piece of evidence, with what it says, in lines of a terminal.

    ``quotes``: the texts quoted above, which are not quoted again; this one is added.
    """
    value = quoted(row, " ".join(quotes))
    if row.reading.unit != "text":
        return wrapped(f"{value}: {says}", "  ", "    ", SCREEN)
    lines = wrapped(says, "  ", "    ", SCREEN)
    if value:
        lines += wrapped(value, "    ", columns=SCREEN, most=MOST_WHY)
    quotes.add(value)
    return lines


def as_text(verdict: Verdict) -> str:
    """The verdict with all its evidence."""
    lines = [*wrapped(verdict.headline), f"({label(verdict)})", *_error_lines(verdict)]
    if summary(verdict):
        lines += ["", *_prose(summary(verdict), "")]
    lines += ["", "Evidence", *_items(rows(verdict), "None.")]
    if sums(verdict):
        lines += ["", SUMS]
        for row in sums(verdict):
            lines += _prose(row.says)
    lines += [
        "",
        "Evidence against it",
        *_items(verdict.against, NOTHING_AGAINST),
        "",
        "Missing",
    ]
    for missing in verdict.missing:
        lines += [*_prose(f"{missing.reading}:"), *typed(missing.how, "      ")]
    if not verdict.missing:
        lines.append(f"  {NOTHING_MISSING}")
    if verdict.alternatives:
        lines += ["", "Other causes that are still possible"]
        lines += [f"  {line}" for line in alternatives(verdict)]
    return "\n".join([*lines, "", "Next step", *typed_steps(verdict, steps(verdict))])


def as_markdown(verdict: Verdict) -> str:
    """The verdict as Markdown, without what has views of its own: sums of a message, what
    speaks against it, the next step.

    Text from the box is escaped, so that it can neither format nor inject anything.
    """
    missing = [f"{_escaped(m.reading)}: {_how(m.how)}" for m in verdict.missing]
    parts = [
        f"**{_escaped(verdict.headline)}**",
        code(verdict.error) if verdict.error else "",
        label(verdict),
        _escaped(summary(verdict)),
        _listed("Evidence", map(_item, rows(verdict)), "None."),
        _listed("Missing", missing, NOTHING_MISSING),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def against(verdict: Verdict, sources: bool = True) -> Shown:
    """What speaks against the verdict, and which causes stay open."""
    head = ["against", "value"]
    cells: list[list[object]] = [[row.says, row.reading] for row in verdict.against]
    if sources:
        head.append("source")
        cells = [[row.says, row.reading, row.reading.source] for row in verdict.against]
    still_open = [f"Still possible: {line}" for line in alternatives(verdict)]
    return Shown(
        "What speaks against it",
        head,
        cells,
        still_open,
        none=NOTHING_AGAINST,
        widest=None,
    )


def show(verdict: Verdict) -> None:
    """Show the verdict: in a notebook one output with its data, Markdown and text; elsewhere
    the text, printed.
    """
    display(
        as_text(verdict),
        {VERDICT_MIME: as_dict(verdict), "text/markdown": as_markdown(verdict)},
    )


def next_step(verdict: Verdict) -> None:
    """Show the one next step alone: what to do, to check and to undo, as a list in a notebook,
    else as text.
    """
    shown = NextSteps(verdict)
    display(str(shown), {"text/html": shown._repr_html_()})


def alternatives(verdict: Verdict) -> list[str]:
    """The causes that the evidence leaves open, in words."""
    return [f"{CAUSE_WORDS[a.cause]} ({a.confidence})" for a in verdict.alternatives]


def _items(items: list[Evidence], none: str) -> list[str]:
    """Each piece of evidence, its value under what it says."""
    if not items:
        return [f"  {none}"]
    lines = []
    for row in items:
        value = plain(row.reading.show())
        lines += [
            *_prose(row.says),
            f"      {value}   from {one_source([row.reading])}",
        ]
    return lines


def _prose(text: str, indent: str = "  ") -> list[str]:
    return wrapped(flat(text), indent)


def _item(e: Evidence) -> str:
    value = _escaped(e.reading.show())
    source = code(one_source([e.reading]))
    return f"{_escaped(e.says)} **{value}** from {source}"


def _listed(title: str, lines: Iterable[str], none: str) -> str:
    """A title with a list below it, or what an empty one says."""
    items = "\n".join(f"- {line}" for line in lines)
    return f"**{title}**\n\n{items or none}"


def _how(text: str) -> str:
    """How a reading is taken: several lines as code spans, comments as words."""
    lines = text.split("\n")
    if len(lines) == 1:
        return _escaped(text)
    return " ".join(
        _escaped(line.lstrip("# ")) if line.startswith("#") else code(line)
        for line in lines
    )


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", flat(text))


def code(text: str, none: str = "an unnamed source") -> str:
    """A code span that holds any text: its fence is longer than any run of backticks inside.

    ``none``: what stands instead of an empty text, which is most often that of a source.
    """
    text = flat(text)
    if not text:
        return none
    if "`" not in text:
        return f"`{text}`"
    fence = "`" + max(re.findall("`+", text), key=len)
    return f"{fence} {text} {fence}"
