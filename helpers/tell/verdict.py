"""A verdict in words: for a terminal, for a notebook and as data, all three from one object.

``show`` emits one notebook output that holds them together, so that a program reads back exactly what a person saw.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable

from helpers.shapes import VERDICT_MIME, Evidence, Verdict, as_dict

from .tables import cut, one_source, plain

CAUSE_WORDS = {
    "external-holder": "Another process holds the memory",
    "stale-holder": "A process that should be gone still holds the memory",
    "driver-leak": "The driver counts memory as used that no process owns",
    "true-capacity": "The work needs more memory than there is",
    "allocator-fragmentation": "The framework holds enough memory, in pieces too small",
    "allocator-cache-not-returned": "The framework's cache keeps memory that another one needs",
    "user-leak": "The program itself keeps more and more memory",
    "ttm-gtt-cap": "The kernel's TTM or GTT limit is below what the machine could give",
    "carveout-only": "Only the firmware's VRAM carve-out is in use",
    "hsa-pool-cap": "The ROCm runtime offers less memory than the driver",
    "version-mismatch": "Framework, runtime and driver do not fit each other",
    "unsupported-gfx": "This framework build does not support this GPU",
    "permission": "This user may not open the GPU",
    "metric-misreport": "A tool shows a wrong number; the memory itself is fine",
    "library-workspace": "A library cannot get its workspace",
    "host-oom": "The host ran out of memory, not the GPU",
    "context-corruption": "An earlier fault broke the GPU context; later errors mislead",
    "config-ineffective": "A setting was made and does not take effect",
    "multi-gpu-imbalance": "Several ranks or replicas landed on one GPU",
    "expandable-segments-unsupported": "Expandable segments do not work on this build",
    "other": "A cause outside the list",
    "cannot-tell": "The evidence does not decide",
}
CONFIDENCE_WORDS = {
    "confirmed": "confirmed: the evidence proves it",
    "likely": "likely: the evidence points to it and does not prove it",
    "weak": "weak: a hint, no more",
}
HEALTHY = "healthy"
UNDECIDED = "the reading that decides is named below"
SUM, SUMS = "sum-", "The sums of the message"
WIDE = 88
"""Columns of the text, so that it also fits the column of the page."""
NOTHING_AGAINST = "Nothing that was read speaks against it."
NOTHING_MISSING = "No reading is missing that would change it."

LONGEST_HEADLINE, LONGEST_TITLE = 90, 140


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


def sums(verdict: Verdict) -> list[Evidence]:
    """The evidence that is arithmetic on one message, line by line."""
    return [row for row in verdict.evidence if row.id.startswith(SUM)]


def as_text(verdict: Verdict, sources: bool = True) -> str:
    """The verdict for a terminal; ``sources=False`` leaves out where each reading came from."""
    out = [headline(verdict), f"({named(verdict)}; {label(verdict)})"]
    if summary(verdict):
        out += ["", *_wrapped(summary(verdict), "")]
    for title, items, none in _evidence(verdict):
        out += ["", title, *_items(items, none, sources)]
        if title == "Evidence" and sums(verdict):
            out += [
                "",
                SUMS,
                *(line for row in sums(verdict) for line in _wrapped(_flat(row.says), "  ")),
            ]
    out += ["", "Missing"]
    for m in verdict.missing:
        out += _wrapped(f"{_flat(m.reading)}: {_flat(m.how)}", "  ")
    if not verdict.missing:
        out.append("  " + NOTHING_MISSING)
    if verdict.alternatives:
        out += ["", "Still open", *("  " + line for line in alternatives(verdict))]
    step = verdict.next_step
    out += ["", "Next step", *_wrapped(_flat(step.what), "  ")]
    if step.command:
        out += ["", *("      " + plain(line) for line in step.command.splitlines()), ""]
    if step.precondition:
        out += _wrapped("Before it: " + _flat(step.precondition), "  ")
    out += _wrapped("What it may harm: " + _flat(step.blast_radius), "  ")
    return "\n".join(out)


def as_markdown(verdict: Verdict) -> str:
    """The verdict as Markdown. Text from the box is escaped, so that it can neither format nor inject anything."""
    out = [f"**{_escaped(headline(verdict))}**", f"`{named(verdict)}`, {label(verdict)}"]
    if summary(verdict):
        out.append(_escaped(summary(verdict)))
    for title, items, none in _evidence(verdict):
        lines = [
            f"- {_escaped(e.says)} **{_escaped(e.reading.show())}** from {_code(one_source([e.reading]))} "
            f"({_escaped(e.id)})"
            for e in items
        ]
        out += [f"**{title}**", "\n".join(lines) or none]
        if title == "Evidence" and sums(verdict):
            out += [f"**{SUMS}**", "\n".join(f"- {_escaped(row.says)}" for row in sums(verdict))]
    missing = [f"- {_escaped(m.reading)}: {_escaped(m.how)}" for m in verdict.missing]
    out += ["**Missing**", "\n".join(missing) or NOTHING_MISSING]
    if verdict.alternatives:
        out += ["**Still open**", "\n".join("- " + line for line in alternatives(verdict))]
    step = verdict.next_step
    out += ["**Next step**", _escaped(step.what)]
    if step.command:
        out.append("\n".join("    " + plain(line) for line in step.command.splitlines()))
    if step.precondition:
        out.append("Before it: " + _escaped(step.precondition))
    out.append("What it may harm: " + _escaped(step.blast_radius))
    return "\n\n".join(out) + "\n"


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


def _evidence(verdict: Verdict) -> Iterable[tuple[str, list[Evidence], str]]:
    return (("Evidence", rows(verdict), "None."), ("Against", verdict.against, NOTHING_AGAINST))


def _items(items: list[Evidence], none: str, sources: bool) -> list[str]:
    out = []
    for e in items:
        out += _wrapped(f"{plain(e.id)}: {_flat(e.says)}", "  ")
        out.append(
            "      "
            + plain(e.reading.show())
            + (f"   from {one_source([e.reading])}" if sources else "")
        )
    return out or ["  " + none]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDE,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent]


def _flat(text: str) -> str:
    return plain(" ".join(text.split()))


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", _flat(text))


def _code(text: str) -> str:
    """A code span that holds any text: its fence is longer than any run of backticks inside."""
    text = plain(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return (
        f"{fence} {text} {fence}" if "`" in text else f"`{text}`" if text else "an unnamed source"
    )
