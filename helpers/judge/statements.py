"""Statements that people make in prose: a subject and an event in one sentence (who holds it, what ended it, what changed).

Prose is hearsay: a statement is never hard, whatever it stands in. The words and the statements are data (statements.json):
``words`` are classes of synonyms, ``statements`` say which classes stand in one sentence, or in two that follow each other.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from re import Pattern
from typing import AbstractSet, NamedTuple

from helpers.grammar import lazy
from helpers.judge.evidence import CaseEvidence, Observation, is_described, note, texts

DATA = Path(__file__).with_name("statements.json")
SENTENCES_LIMIT, SENTENCE_LIMIT = 400, 600
_END = lazy(r"(?<=[.;!?])\s+|\n+|(?<=,) (?=but |and yet |while )")
CLASSES = ("all", "any", "none", "near")


class Statement(NamedTuple):
    """``all_of`` must stand in the sentence, of ``any_of`` one, of ``none_of`` none; ``near`` in it or in the one before."""

    name: str
    all_of: tuple[str, ...]
    any_of: tuple[str, ...]
    none_of: tuple[str, ...]
    near: tuple[str, ...]
    says: str


@lru_cache(1)
def lexicon() -> dict[str, Pattern[str]]:
    """Each class of words as one pattern."""
    words = json.loads(DATA.read_text(encoding="utf-8"))["words"]
    return {
        name: lazy(r"(?<!\w)(?:" + "|".join(forms) + r")(?!\w)", re.IGNORECASE)
        for name, forms in words.items()
    }


@lru_cache(1)
def statements() -> tuple[Statement, ...]:
    """Every statement of the data file, in its order."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))["statements"]
    return tuple(
        Statement._make([row["name"], *(tuple(row.get(key, ())) for key in CLASSES), row["says"]])
        for row in rows
    )


def sentences(text: str) -> list[str]:
    """The sentences of a text, bounded in number and length."""
    return [part[:SENTENCE_LIMIT] for part in _END.split(text)[:SENTENCES_LIMIT] if part.strip()]


def is_prose(text: str) -> bool:
    """Whether a posted tool output is a description in words: it says so, or it is one line without columns."""
    return is_described(text) or not ("\n" in text.strip() or "|" in text or "=" in text)


def read_statements(evidence: CaseEvidence) -> list[Observation]:
    """One observation for each statement, with the sentence it stands in."""
    found: dict[str, Observation] = {}
    for origin, source, text in texts(evidence):
        if origin == "environment" or (origin == "message" and evidence.messages):
            continue  # a program's own text is no prose
        if origin == "tool" and not is_prose(text):
            continue
        before: AbstractSet[str] = frozenset()
        for sentence in sentences(f"{source}: {text}" if origin == "tool" else text):
            here = classes(sentence)
            for row in statements():
                if row.name not in found and _made(row, here, before):
                    found[row.name] = note(row.name, sentence, source, origin, row.says, hard=False)
            before = here
    return list(found.values())


@lru_cache(256)
def classes(sentence: str) -> frozenset[str]:
    """The classes of words that a sentence has."""
    return frozenset(name for name, pattern in lexicon().items() if pattern.search(sentence))


def _made(row: Statement, here: AbstractSet[str], before: AbstractSet[str]) -> bool:
    return (
        all(word in here for word in row.all_of)
        and (not row.any_of or any(word in here for word in row.any_of))
        and not any(word in here for word in row.none_of)
        and all(word in here or word in before for word in row.near)
    )
