"""The part of a verdict that may be shared: its cause, how sure it is, and its numbers.

Titles, summaries and sentences of a verdict can quote a program's output or the name of a process,
so they are not shared; a cause is described by the workbook's own table instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from helpers.ground.shapes import Evidence, Verdict
from helpers.judge.observation import WRITTEN_UP, constructed_items
from helpers.look.bundle import Bundle
from helpers.tell.verdict import CAUSE_WORDS, label

from . import public

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C takes a tenth of the time; not every build of PyYAML has it."""
TABLE: dict[str, Any] = yaml.load(
    Path(__file__).with_name("issue.yaml").read_text("utf-8"), Loader=_LOADER
)
"""The trackers with their forms, and each cause with words for somebody who did not see the
failure.
"""
NO_ANSWER = "No run came to an answer"
ASIDE = "The answer to a notebook's own question, which is in the workbook"


def about_cause(verdict: Verdict | None) -> dict[str, Any]:
    """The row of issue.yaml for a verdict's cause; its row ``none`` where there is no verdict."""
    causes: dict[str, dict[str, Any]] = TABLE["causes"]
    if verdict is None:
        return causes["none"]
    if _is_aside(verdict):
        return causes["aside"]
    return causes[verdict.label]


def _is_aside(verdict: Verdict) -> bool:
    """Whether a verdict answers a notebook's own question, in words that are not shared."""
    return verdict.state == "aside" and verdict.label == "other"


def headline(verdict: Verdict | None) -> str:
    """The answer in words of the workbook's table, without a text of the verdict."""
    if verdict is None:
        return NO_ANSWER
    if _is_aside(verdict):
        return ASIDE
    return CAUSE_WORDS[verdict.label]


def how_sure(verdict: Verdict | None) -> str:
    """How sure the answer is, in a sentence."""
    if verdict is None:
        return "No answer was given."
    words = label(verdict)
    return f"{words[:1].upper()}{words[1:]}."


def still_open(verdict: Verdict) -> list[str]:
    """The causes that the evidence leaves open, each with its confidence; without the cause
    ``other``, which names none.
    """
    named = [row for row in verdict.alternatives if row.cause != "other"]
    return [f"{CAUSE_WORDS[row.cause]} ({row.confidence})" for row in named]


def filled_in(verdict: Verdict, bundle: Bundle | None) -> list[Evidence]:
    """The evidence whose readings were filled in for a recorded box: no machine printed them."""
    if bundle is None:
        return []
    constructed = constructed_items(bundle)
    filled = []
    for row in (*verdict.evidence, *verdict.against):
        # As public.source splits them.
        sources = re.split(r"; | [-+] ", row.reading.source)
        if constructed.intersection([row.reading.item, *sources]):
            filled.append(row)
    return filled


def numbers(verdict: Verdict, bundle: Bundle | None) -> list[list[str]]:
    """Rows of the numbers that support a verdict or speak against it: which of both, the value, and
    its source.
    """
    filled = filled_in(verdict, bundle)
    sides = (("for it", verdict.evidence), ("against it", verdict.against))
    rows = []
    for speaks, evidence in sides:
        for row in evidence:
            value = public.number(row.reading)
            source = public.source_or_kind(row.reading.source)
            if row in filled:
                source += WRITTEN_UP
            if value:
                rows.append([speaks, value, source])
    return rows
