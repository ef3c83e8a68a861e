"""The typed part of a verdict: its cause, how sure it is, and the numbers that it rests on.

Titles, summaries and sentences of a verdict can quote a program's output or the name of a process,
so they stay at home; the words of a cause come from the workbook's own table instead.
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
"""The one in C takes a tenth of the time; it is not everywhere."""
TABLE: dict[str, Any] = yaml.load(
    Path(__file__).with_name("issue.yaml").read_text("utf-8"), Loader=_LOADER
)
"""The trackers, their forms, and each cause in words for those who were not there."""
NO_ANSWER = "No run came to an answer"
ASIDE = "The answer to a notebook's own question, which is in the workbook"


def about_cause(verdict: Verdict | None) -> dict[str, Any]:
    """The row of issue.yaml for a verdict's cause; ``none`` where there is no verdict."""
    causes: dict[str, dict[str, Any]] = TABLE["causes"]
    if verdict is None:
        return causes["none"]
    if _is_aside(verdict):
        return causes["aside"]
    return causes[verdict.label]


def _is_aside(verdict: Verdict) -> bool:
    """Whether it answers a notebook's own question, in words that stay at home."""
    return verdict.state == "aside" and verdict.label == "other"


def headline(verdict: Verdict | None) -> str:
    """The answer in the workbook's own words, never in those that the verdict brings."""
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
    """The causes that the evidence leaves open, each with how sure that is."""
    named = [row for row in verdict.alternatives if row.cause != "other"]
    return [f"{CAUSE_WORDS[row.cause]} ({row.confidence})" for row in named]


def filled_in(verdict: Verdict, bundle: Bundle | None) -> list[Evidence]:
    """The evidence whose reading no machine printed: it was filled in for a recorded box."""
    if bundle is None:
        return []
    constructed = constructed_items(bundle)
    filled = []
    for row in (*verdict.evidence, *verdict.against):
        sources = re.split(r"; | [-+] ", row.reading.source)
        if constructed.intersection([row.reading.item, *sources]):
            filled.append(row)
    return filled


def numbers(verdict: Verdict, bundle: Bundle | None) -> list[list[str]]:
    """The numbers that a verdict rests on, those for it first: for what each speaks, its value,
    where it was read.
    """
    filled = filled_in(verdict, bundle)
    rows = []
    for speaks, evidence in (
        ("for it", verdict.evidence),
        ("against it", verdict.against),
    ):
        for row in evidence:
            value = public.number(row.reading)
            source = public.source_or_kind(row.reading.source)
            if row in filled:
                source += WRITTEN_UP
            if value:
                rows.append([speaks, value, source])
    return rows
