"""Sentences of the judge as others may read them.

A sentence passes if it was made here and now, from facts, and if each word of it stands in the
workbook's own code and tables; the name of a holder has a number first. So a name that a sentence
quotes keeps it at home.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from helpers.ground.places import CHECKOUT
from helpers.ground.shapes import Evidence, Verdict, seen
from helpers.judge import diagnosis
from helpers.judge.evidence import CaseEvidence
from helpers.look.gpus import gpus
from helpers.look.wordings import table

from . import public
from .public import Names

SPOKEN = """
helpers/judge/*.py helpers/judge/*.json helpers/settings/*.json helpers/ground/*.json
helpers/ground/units.py helpers/tell/tables.py helpers/tell/box.py helpers/tell/ttm.py
helpers/allocator/views/replays.py helpers/trials/view.py helpers/trials/training_view.py
env/remedies.yaml
"""
"""Where the words of the workbook's sentences and tables stand."""
WORD = re.compile(r"\d+(?:\.\d+)+\w*|[^\s=:/.,;()\[\]{}|'\"`+*<>~^$\\!?#&%@-]+")
NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9}){0,2}(?:[KMGT]i?B)?")


@cache
def vocabulary() -> frozenset[str]:
    """The words of the workbook's own code and tables."""
    words: set[str] = set()
    for place in SPOKEN.split():
        for file in CHECKOUT.glob(place):
            words.update(WORD.findall(file.read_text("utf-8").replace("\\n", " ")))
    for row in table():
        words.update(WORD.findall(row["says"]))
    return frozenset(map(str.lower, words))


class Speaker:
    """Lets through the sentences of a verdict; ``said`` keeps those that passed, as they were."""

    def __init__(self, evidence: CaseEvidence, names: Names) -> None:
        self.said: set[str] = set()
        self._evidence = evidence
        self._names: dict[str, str] = {}
        if evidence.bundle is not None:
            for gpu in gpus(evidence.bundle):
                for holder in gpu.holders:
                    name = f"{holder.name or 'process'} ({holder.pid})"
                    self._names[name] = names.of("process", holder.pid)

    def sentence(self, text: str) -> str:
        """The sentence with numbers in place of names; nothing where a word of it is not known."""
        spoken = text
        for name, number in self._names.items():
            spoken = spoken.replace(name, number)
        words = WORD.findall(public.PCI_ADDRESS.sub(" ", spoken))
        if not all(map(_is_known, words)):
            return ""
        self.said.add(text)
        return spoken

    def judged(self, recorded: Verdict | None) -> Verdict | None:
        """What the judge says of the evidence now; None where a record has another answer."""
        if self._evidence.bundle is None and not self._evidence.messages:
            return None
        verdict = diagnosis.diagnose(self._evidence)
        if recorded is not None and recorded.label != verdict.label:
            return None
        return self.verdict(verdict)

    def verdict(self, judged: Verdict) -> Verdict:
        """The verdict with the sentences that pass, and its readings without their sources' names."""
        step = judged.next_step
        spoken_step = replace(
            step,
            what=self.sentence(step.what),
            command=self.sentence(step.command),
            precondition=self.sentence(step.precondition),
            blast_radius=self.sentence(step.blast_radius),
            check=self.sentence(step.check),
            undo=self.sentence(step.undo),
        )
        missing = [row for row in judged.missing if self.sentence(f"{row.reading}: {row.how}")]
        return replace(
            judged,
            title=self.sentence(judged.title),
            summary=self.sentence(judged.summary),
            evidence=self._rows(judged.evidence),
            against=self._rows(judged.against),
            missing=missing,
            next_step=spoken_step,
        )

    def _rows(self, rows: Iterable[Evidence]) -> list[Evidence]:
        passing = []
        for row in rows:
            says = self.sentence(row.says)
            reading = public.reading(row.reading)
            if row.reading.ok and row.reading.unit == "text":
                words = self.sentence(str(row.reading.value))
                reading = seen(words, "text", reading.source)
            if says:
                passing.append(replace(row, says=says, reading=reading))
        return passing


def _is_known(word: str) -> bool:
    return word.lower() in vocabulary() or NUMBER.fullmatch(word) is not None
