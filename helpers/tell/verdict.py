"""A verdict in words, for a terminal and as Markdown; ``show`` puts both and the verdict's data
into one output of a notebook, so that a program reads back exactly what a person saw.

A row is a piece of evidence: a sentence with the reading behind it. The ids of some rows begin with
SUM (a line of arithmetic on a message) or with BESIDE (something that has another cause).
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
from helpers.judge.observation import WRITTEN_UP  # noqa: F401  verdict.html.j2 uses it
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

# Chosen so that most answers fit one screen.
MOST_REASONS = 3
"""Reasons that are shown first."""
MOST_OF_A_QUOTE = 3
"""Lines for the text that a reason quotes."""
MOST_OF_AN_ERROR = 2
"""Lines for the program's own error."""
LINES = 25
"""Lines of the screen of a terminal, as a VT100 and most windows since have them."""


def label(verdict: Verdict) -> str:
    """How sure the verdict is, in words; for a healthy box that nothing failed, and for a cause
    that cannot be told that nothing is decided.
    """
    if verdict.label == "healthy":
        return FINE
    if verdict.label == "cannot-tell":
        return UNDECIDED
    return CONFIDENCE_WORDS[verdict.confidence]


def tagged(verdict: Verdict) -> str:
    """The answer in a line: its headline, then in brackets its name and how sure it is. Healthy and
    undecided answers are not more or less sure, and one of another cause (other) has no name.
    """
    if verdict.label in ("healthy", "cannot-tell"):
        return f"{verdict.headline} [{verdict.name}]"
    if verdict.label == "other":
        return f"{verdict.headline} [{label(verdict)}]"
    return f"{verdict.headline} [{verdict.name}; {label(verdict)}]"


def summary(verdict: Verdict) -> str:
    """The summary, without the title if it begins with that: the headline above says it."""
    return after_title(verdict, verdict.summary)


def after_title(verdict: Verdict, text: str) -> str:
    """A text in one line, without the verdict's title if it begins with that."""
    title = flat(verdict.title).rstrip(".") + ". "
    text = flat(text)
    if title != ". " and f"{text} ".startswith(title):
        return text[len(title) :]
    return text


def rows(verdict: Verdict) -> list[Evidence]:
    """The evidence without the sums of a message."""
    return [row for row in verdict.evidence if not row.id.startswith(SUM)]


def why(verdict: Verdict) -> list[Evidence]:
    """The MOST_REASONS pieces of evidence to look at first: sizes, each once, then the rest, both
    in the order of the verdict; neither sums nor what has another cause.
    """
    sizes: dict[object, Evidence] = {}
    others = []
    for row in rows(verdict):
        if row.id.startswith(BESIDE):
            continue
        if row.reading.unit == "bytes":
            sizes.setdefault(row.reading.value, row)
        else:
            others.append(row)
    return [*sizes.values(), *others][:MOST_REASONS]


def beside(verdict: Verdict) -> list[str]:
    """What was seen that has another cause than the verdict's, each a sentence or two."""
    return [row.says for row in verdict.evidence if row.id.startswith(BESIDE)]


def quoted(row: Evidence, above: str = "") -> str:
    """The value of a piece of evidence as it is quoted beside its sentence: a number, or the words
    of a log. A text is not quoted (empty) where it is one word, which is a code of ours, or where
    it stands in the sentence or in ``above`` already.
    """
    value = plain(row.reading.show())
    if row.reading.unit != "text":
        return value
    if " " not in value or value in row.says or value in above:
        return ""
    return value


def sums(verdict: Verdict) -> list[Evidence]:
    """The evidence that is arithmetic on one message, line by line."""
    return [row for row in verdict.evidence if row.id.startswith(SUM)]


def brief(verdict: Verdict, more: str = "") -> str:
    """The answer on one screen, SCREEN columns by LINES lines: the cause, how sure it is, why, and
    the next step.

    ``more`` says how to see the rest, where that is not ``--wide``. Commands and what undoes them
    are never cut. Where the answer is too long, the check of the step is left out, then reasons
    but the first: ``as_text`` has them.
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
    """The lines of ``brief`` with these reasons and these steps, however many they are. ``more``
    are its last lines; empty for the usual ones about what is missing and about ``--wide``.
    """
    lines = [bold(line) for line in wrapped(verdict.headline, columns=SCREEN)]
    lines += wrapped(f"({label(verdict)})", columns=SCREEN)
    lines += _error_lines(verdict, MOST_OF_AN_ERROR)
    lines += ["", *_why_lines(verdict, reasons)]
    lines += ["", bold("Next step"), *typed_steps(verdict, listed), ""]
    if more:
        return [*lines, *more.splitlines()]
    is_check_left_out = len(listed) < len(steps(verdict))
    for text in _last_lines(verdict, is_check_left_out):
        lines += wrapped(text, columns=SCREEN)
    return lines


def why_lines(verdict: Verdict) -> list[str]:
    """The evidence to look at first, in lines of a terminal below their heading."""
    return _why_lines(verdict, _reasons(verdict))


def _reasons(verdict: Verdict) -> list[Evidence]:
    """The evidence to look at first, without what the title says already."""
    reasons = []
    for row in why(verdict):
        sentence = row.says.rstrip(".")
        if not row.says or not verdict.title.startswith(sentence):
            reasons.append(row)
    return reasons


def _why_lines(verdict: Verdict, reasons: list[Evidence]) -> list[str]:
    """The heading *Why* and these reasons, the summary where there are none, and the first thing
    that was also seen and has another cause.
    """
    lines = [bold("Why")]
    quotes = [verdict.error]  # _reason_lines adds what it quotes
    for row in reasons:
        lines += _reason_lines(row, after_title(verdict, row.says), quotes)
    if not reasons:
        lines += wrapped(summary(verdict), "  ", "    ", SCREEN)
    if beside(verdict):
        lines += wrapped(f"Also seen: {beside(verdict)[0]}", "  ", "    ", SCREEN)
    return lines


def _error_lines(verdict: Verdict, most: int | None = None) -> list[str]:
    """What the program printed when it failed, in at most ``most`` lines of a terminal (None: all)."""
    if not verdict.error:
        return []
    return wrapped(verdict.error, "  | ", "  | ", SCREEN, most)


def _last_lines(verdict: Verdict, is_check_left_out: bool) -> list[str]:
    """The last lines of a screen: what is missing, which causes stay possible, and what ``--wide``
    shows; with the check of the next step, where that was left out above.
    """
    lines = []
    # The next step may be the command that gets what is missing: then it is not said again.
    next_commands = set(verdict.next_step.command.splitlines())
    missing = [
        row.reading
        for row in verdict.missing
        if not next_commands.issuperset(row.how.splitlines())
    ]
    if missing:
        lines.append(flat(f"Missing: {'; '.join(missing)}"))
    still_open = [causes()[other.cause]["name"] for other in verdict.alternatives]
    if still_open and verdict.cause != "cannot-tell":
        lines.append(f"Less likely, but possible: {', '.join(still_open)}")
    shows = "All evidence and the tables"
    if is_check_left_out:
        shows = "How to check it, all evidence and the tables"
    return [*lines, f"{shows}: --wide"]


def _reason_lines(row: Evidence, says: str, quotes: list[str]) -> list[str]:
    """A piece of evidence in lines of a terminal: a number before its sentence ``says``, the words
    of a log below it.

    ``quotes`` are the texts that are quoted above. None of them is quoted again, and the list gets
    the one that is quoted here.
    """
    value = quoted(row, " ".join(quotes))
    if row.reading.unit != "text":
        return wrapped(f"{value}: {says}", "  ", "    ", SCREEN)
    lines = wrapped(says, "  ", "    ", SCREEN)
    if value:
        lines += wrapped(value, "    ", columns=SCREEN, most=MOST_OF_A_QUOTE)
    quotes.append(value)
    return lines


def as_text(verdict: Verdict) -> str:
    """The verdict with all its evidence."""
    lines = [*wrapped(verdict.headline), f"({label(verdict)})", *_error_lines(verdict)]
    if summary(verdict):
        lines += ["", *_paragraph(summary(verdict), "")]
    lines += ["", "Evidence", *_evidence_lines(rows(verdict), "None.")]
    if sums(verdict):
        lines += ["", SUMS]
        for row in sums(verdict):
            lines += _paragraph(row.says)
    lines += [
        "",
        "Evidence against it",
        *_evidence_lines(verdict.against, NOTHING_AGAINST),
        "",
        "Missing",
    ]
    for missing in verdict.missing:
        lines += [*_paragraph(f"{missing.reading}:"), *typed(missing.how, "      ")]
    if not verdict.missing:
        lines.append(f"  {NOTHING_MISSING}")
    if verdict.alternatives:
        lines += ["", "Other causes that are still possible"]
        lines += [f"  {line}" for line in alternatives(verdict)]
    return "\n".join([*lines, "", "Next step", *typed_steps(verdict, steps(verdict))])


def as_markdown(verdict: Verdict) -> str:
    """The verdict as Markdown, without the parts that notebooks show apart: sums of a message, what
    speaks against it, the next step.

    Text from the box is escaped, so that it can neither format nor inject anything.
    """
    parts = [f"**{_escaped(verdict.headline)}**"]
    if verdict.error:
        parts.append(code(verdict.error))
    parts.append(label(verdict))
    if summary(verdict):
        parts.append(_escaped(summary(verdict)))
    parts.append(
        _list_in_markdown("Evidence", map(_item_in_markdown, rows(verdict)), "None.")
    )
    missing = [
        f"{_escaped(row.reading)}: {_how_in_markdown(row.how)}"
        for row in verdict.missing
    ]
    parts.append(_list_in_markdown("Missing", missing, NOTHING_MISSING))
    return "\n\n".join(parts) + "\n"


def against(verdict: Verdict, sources: bool = True) -> Shown:
    """The evidence against the verdict, with its sources if wanted, and the other causes that stay
    possible.
    """
    view = Shown(
        "What speaks against it",
        ["against", "value", "source"],
        [[row.says, row.reading, row.reading.source] for row in verdict.against],
        [f"Still possible: {line}" for line in alternatives(verdict)],
        none=NOTHING_AGAINST,
        widest=None,
    )
    if sources:
        return view
    return view.without("source")


def show(verdict: Verdict) -> None:
    """Show the verdict: in a notebook as one output with its data, Markdown and text; elsewhere
    print the text.
    """
    forms: dict[str, object] = {
        VERDICT_MIME: as_dict(verdict),
        "text/markdown": as_markdown(verdict),
    }
    display(as_text(verdict), forms)


def next_step(verdict: Verdict) -> None:
    """Show only the next step, what to do, to check and to undo: as a list in a notebook, else as
    text.
    """
    shown = NextSteps(verdict)
    display(str(shown), {"text/html": shown._repr_html_()})


def alternatives(verdict: Verdict) -> list[str]:
    """The causes that the evidence leaves open, in words."""
    listed = []
    for other in verdict.alternatives:
        listed.append(f"{CAUSE_WORDS[other.cause]} ({other.confidence})")
    return listed


def _evidence_lines(items: list[Evidence], none: str) -> list[str]:
    """Lines for a terminal: each piece of evidence, and below it its value and source."""
    if not items:
        return [f"  {none}"]
    lines = []
    for row in items:
        value = plain(row.reading.show())
        lines += _paragraph(row.says)
        lines.append(f"      {value}   from {one_source([row.reading])}")
    return lines


def _paragraph(text: str, indent: str = "  ") -> list[str]:
    """A text as one paragraph in lines of a terminal."""
    return wrapped(flat(text), indent)


def _item_in_markdown(row: Evidence) -> str:
    """A piece of evidence in Markdown: its sentence, value and source."""
    value = _escaped(row.reading.show())
    source = code(one_source([row.reading]))
    return f"{_escaped(row.says)} **{value}** from {source}"


def _list_in_markdown(title: str, lines: Iterable[str], none: str) -> str:
    """A title in Markdown with a list below it; ``none`` in place of an empty list."""
    items = "\n".join(f"- {line}" for line in lines)
    if not items:
        items = none
    return f"**{title}**\n\n{items}"


def _how_in_markdown(text: str) -> str:
    """How to get a missing reading, in Markdown: one line is a sentence, of several lines each is a
    command (in code) or a comment.
    """
    lines = text.split("\n")
    if len(lines) == 1:
        return _escaped(text)
    parts = []
    for line in lines:
        if line.startswith("#"):
            parts.append(_escaped(line.lstrip("# ")))
        else:
            parts.append(code(line))
    return " ".join(parts)


def _escaped(text: str) -> str:
    """Text in one line in which no character formats anything, in Markdown, HTML or LaTeX."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", flat(text))


def code(text: str, none: str = "an unnamed source") -> str:
    """A code span in Markdown: its fence has more backticks than any run of them in the text.

    ``none`` is returned for an empty text; most texts are sources.
    """
    text = flat(text)
    if not text:
        return none
    if "`" not in text:
        return f"`{text}`"
    fence = "`" + max(re.findall("`+", text), key=len)
    return f"{fence} {text} {fence}"
