"""A verdict in words: for a terminal, for a notebook and as data, all three from one object.

``show`` emits one notebook output that holds them together, so that a program reads back exactly what a person saw.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from helpers.shapes import VERDICT_MIME, Evidence, Verdict, as_dict

from .shown import WIDE as WIDE
from .shown import bold, cut, plain, words, wrapped
from .tables import one_source

CAUSE_WORDS: dict[str, str] = words("causes")
CONFIDENCE_WORDS: dict[str, str] = words("confidence")
HEALTHY = "healthy"
UNDECIDED = "the reading that decides is named below"
SUM, SUMS = "sum-", "The sums of the message"
NOTHING_AGAINST = "Nothing that was read speaks against it."
NOTHING_MISSING = "No reading is missing that would change it."

LONGEST_HEADLINE, LONGEST_TITLE, MOST_WHY = 90, 140, 3
SCREEN, LINES = 80, 25


def headline(verdict: Verdict) -> str:
    """The answer in words: its own title, else the cause's words; outside the list the first clause of its summary."""
    if verdict.title.strip():
        return cut(_flat(verdict.title).rstrip("."), LONGEST_TITLE)
    if verdict.cause == "other" and verdict.summary.strip():
        clause = re.split(r"[.:;]\s", _flat(verdict.summary))[0].rstrip(".")
        while len(clause) > LONGEST_HEADLINE and ", " in clause:
            clause = clause.rpartition(", ")[0]
        return cut(clause, LONGEST_HEADLINE)
    return CAUSE_WORDS[verdict.cause]


def named(verdict: Verdict) -> str:
    """Its label: the cause's, or that nothing is wrong."""
    return HEALTHY if verdict.state == HEALTHY else verdict.cause


def label(verdict: Verdict) -> str:
    """How sure it is, in words. Where nothing wrong was seen or nothing is decided there is nothing to be sure of."""
    if verdict.state == HEALTHY:
        return "nothing failed, and what was read is as it should be"
    return UNDECIDED if verdict.cause == "cannot-tell" else CONFIDENCE_WORDS[verdict.confidence]


def summary(verdict: Verdict) -> str:
    """The summary without the title that it may begin with: the headline has said that."""
    title, text = _flat(verdict.title).rstrip("."), _flat(verdict.summary)
    return text[len(title) :].lstrip(". ") if title and text.startswith(title + ".") else text


def rows(verdict: Verdict) -> list[Evidence]:
    """The evidence that is readings, without the sums."""
    return [row for row in verdict.evidence if not row.id.startswith(SUM)]


def why(verdict: Verdict) -> list[Evidence]:
    """The three pieces of evidence to look at first: sizes, each once, then the rest in their order."""
    sizes = {
        row.reading.value: row for row in reversed(rows(verdict)) if row.reading.unit == "bytes"
    }
    first = [row for row in rows(verdict) if row in sizes.values()]
    return [*first, *(row for row in rows(verdict) if row.reading.unit != "bytes")][:MOST_WHY]


def steps(verdict: Verdict) -> list[tuple[str, str, str]]:
    """The next step as what a person does one after the other: title, words, and what is typed there."""
    step = verdict.next_step
    listed = [("Do", _flat(step.what), step.command)]
    if step.reboot:
        listed.append(("Reboot", "it takes effect at the next boot", ""))
    listed += [("Check", "", step.check)] if step.check else []
    return listed + ([("Undo", "if it did not help", step.undo)] if step.undo else [])


def sums(verdict: Verdict) -> list[Evidence]:
    """The evidence that is arithmetic on one message, line by line."""
    return [row for row in verdict.evidence if row.id.startswith(SUM)]


def brief(verdict: Verdict) -> str:
    """The answer on one screen, SCREEN columns by LINES lines: cause, how sure, why and the next step.

    Commands are never cut or wrapped. Where they take too much room, how to check and undo is left to ``as_text``.
    """
    head = [bold(line) for line in wrapped(headline(verdict), columns=SCREEN)]
    head += wrapped(f"({named(verdict)}; {label(verdict)})", columns=SCREEN)
    reasons = (
        ["", bold("Why")] if why(verdict) else ["", *wrapped(summary(verdict), columns=SCREEN)]
    )
    for row in why(verdict):
        value, says = plain(row.reading.show()), _flat(row.says)
        if row.reading.unit != "text":
            says = f"{value}: {says}"
        reasons += wrapped(says, "  ", "    ", SCREEN)
        if row.reading.unit == "text" and " " in value and value not in says:
            reasons.append("    " + cut(value, SCREEN - 4))  # a line of a log, not a code
    step, listed = verdict.next_step, steps(verdict)
    after = wrapped(f"Before it: {step.precondition}", "  ", "    ", SCREEN)
    after = after * bool(step.precondition)
    after += wrapped(f"What it may harm: {step.blast_radius}", "  ", "    ", SCREEN)
    counts = [f"{len(verdict.evidence)} for it", f"{len(verdict.against) or 'none'} against"]
    counts += [f"{len(verdict.missing)} missing"] * bool(verdict.missing)
    counts += [f"{len(verdict.alternatives)} still open"] * bool(verdict.alternatives)
    more = f"All evidence ({', '.join(counts)}), the sums and the tables"
    while True:
        undo = ", and how to check and undo it" * (len(listed) < len(steps(verdict)))
        end = ["", *wrapped(f"{more}{undo}: --wide", columns=SCREEN)]
        out = [*head, *reasons, "", bold("Next step"), *_typed(listed)]
        if len(out + after + end) <= LINES or len(listed) == 1:
            return "\n".join([*out, *after, *end])
        listed.pop()


def _typed(listed: list[tuple[str, str, str]]) -> list[str]:
    """Steps by number, each with its commands as they are typed."""
    out = []
    for number, (title, says, command) in enumerate(listed, 1):
        words = f"{number}. {title}: {says}" if says else f"{number}. {title}:"
        out += wrapped(words, "  ", "     ", SCREEN)
        out += ["     " + plain(line) for line in command.splitlines()]
    return out


def as_text(verdict: Verdict, sources: bool = True) -> str:
    """The verdict with all its evidence; ``sources=False`` leaves out where each reading came from."""
    out = [headline(verdict), f"({named(verdict)}; {label(verdict)})"]
    if summary(verdict):
        out += ["", *_prose(summary(verdict), "")]
    out += ["", "Evidence", *_items(rows(verdict), "None.", sources)]
    if sums(verdict):
        out += ["", SUMS, *(line for row in sums(verdict) for line in _prose(row.says))]
    out += ["", "Against", *_items(verdict.against, NOTHING_AGAINST, sources), "", "Missing"]
    missing = [line for m in verdict.missing for line in _prose(f"{m.reading}: {m.how}")]
    out += missing or ["  " + NOTHING_MISSING]
    if verdict.alternatives:
        out += ["", "Still open", *("  " + line for line in alternatives(verdict))]
    step = verdict.next_step
    out += ["", "Next step", *_typed(steps(verdict))]
    if step.precondition:
        out += _prose("Before it: " + step.precondition)
    out += _prose("What it may harm: " + step.blast_radius)
    return "\n".join(out)


def as_markdown(verdict: Verdict) -> str:
    """The verdict as Markdown. Text from the box is escaped, so that it can neither format nor inject anything."""
    step, lines = verdict.next_step, [_escaped(row.says) for row in sums(verdict)]
    missing = [f"{_escaped(m.reading)}: {_escaped(m.how)}" for m in verdict.missing]
    parts = [
        f"**{_escaped(headline(verdict))}**",
        f"`{named(verdict)}`, {label(verdict)}",
        _escaped(summary(verdict)),
        _listed("Evidence", map(_item, rows(verdict)), "None."),
        _listed(SUMS, lines) if lines else "",
        _listed("Against", map(_item, verdict.against), NOTHING_AGAINST),
        _listed("Missing", missing, NOTHING_MISSING),
        _listed("Still open", alternatives(verdict)) if verdict.alternatives else "",
        "**Next step**",
        _escaped(step.what),
        "\n".join("    " + plain(line) for line in step.command.splitlines()),
        "Before it: " + _escaped(step.precondition) if step.precondition else "",
        "What it may harm: " + _escaped(step.blast_radius),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def against(verdict: Verdict, sources: bool = True) -> str:
    """What speaks against the verdict and which causes stay open, as text."""
    out = _items(verdict.against, NOTHING_AGAINST, sources)
    return "\n".join([*out, *(f"  Still open: {line}" for line in alternatives(verdict))])


def show(verdict: Verdict) -> None:
    """Show the verdict: in a notebook one output with its data, Markdown and text; elsewhere the text, printed."""
    if "IPython" in sys.modules:
        from IPython import get_ipython
        from IPython.display import display

        if get_ipython() is not None:
            display(
                {
                    VERDICT_MIME: as_dict(verdict),
                    "text/markdown": as_markdown(verdict),
                    "text/plain": as_text(verdict),
                },
                raw=True,
            )
            return
    print(as_text(verdict))


def alternatives(verdict: Verdict) -> list[str]:
    """The causes that the evidence leaves open, in words."""
    return [f"{CAUSE_WORDS[a.cause]} ({a.cause}, {a.confidence})" for a in verdict.alternatives]


def _items(items: list[Evidence], none: str, sources: bool) -> list[str]:
    """Each piece of evidence, its value under what it says."""
    out = []
    for e in items:
        source = f"   from {one_source([e.reading])}" if sources else ""
        out += [*_prose(f"{e.id}: {e.says}"), f"      {plain(e.reading.show())}{source}"]
    return out or ["  " + none]


def _prose(text: str, indent: str = "  ") -> list[str]:
    return wrapped(_flat(text), indent)


def _item(e: Evidence) -> str:
    value, source = _escaped(e.reading.show()), _code(one_source([e.reading]))
    return f"{_escaped(e.says)} **{value}** from {source} ({_escaped(e.id)})"


def _listed(title: str, lines: Iterable[str], none: str = "") -> str:
    """A title with a list below it, or what an empty one says."""
    return f"**{title}**\n\n" + ("\n".join("- " + line for line in lines) or none)


def _flat(text: str) -> str:
    return plain(" ".join(text.split()))


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", _flat(text))


def _code(text: str) -> str:
    """A code span that holds any text: its fence is longer than any run of backticks inside."""
    text = plain(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    if not text:
        return "an unnamed source"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"
