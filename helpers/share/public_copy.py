"""Copies of facts that others may read: with the numbers of a box, and without its names.

A verdict, table or figure that is made of a copy has no names in it either, so the functions are
the same as for the pages of the box's owner.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from helpers.ground.shapes import NOT_AVAILABLE, Evidence, Missing, Reading, Verdict
from helpers.ground.units import show_bytes
from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger_rows import LedgerRow
from helpers.look import kernel_log
from helpers.look.gpus import gpus
from helpers.look.holders import Holder
from helpers.look.kernel_log import Event
from helpers.look.messages import read_message
from helpers.look.wordings import meaning
from helpers.tell.message import printed_anew
from helpers.tell.values import Rule

from . import public
from .names import PLACE, Names
from .wording import is_heading, is_ours

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Fact = TypeVar("Fact")
CODES = frozenset(
    "cause confidence state status unit id kind key layer layers binding account".split()
)
"""Fields whose texts are words of a fixed list, so they are copied as they are."""
TYPED = frozenset("pci driver native".split())
"""Fields whose form is in public.GRAMMARS."""
# The number of a process in a sentence; no size such as "process 12 MiB", and no release.
PROCESS = re.compile(
    r"(?:(?<=names, )|\b(?:[Pp]rocess|PID|pid) )(\d{1,10})\b(?!\.\d| ?[KMGT]i?B)"
)
LINES = frozenset("line where asked_at".split())
"""Fields of a recorded program that name lines of its files."""
EXAMPLE = {"trace": "run.pickle", "command": "python your_program.py"}
"""Fields of a recorded program that name its files or its command, with the text in their place."""
NOT_READ = "no value was read"
NOT_SHOWN = "it is not shown on this page"
STEP_NOT_SHOWN = "Ask whoever sent you this page: its words are not shown here."
ASK = "ask whoever sent you this page"
SUMMARY_NOT_SHOWN = "The explanation is not shown on this page."
HIDDEN = "A reading whose words are not shown on this page"
"""These texts stand in place of what is left out, so that a page does not seem to say there was
nothing.
"""


class PublicCopy:
    """Makes copies of the facts of a case that others may read.

    ``said`` has the original of each text that was let through, for the review.
    """

    def __init__(self, evidence: CaseEvidence) -> None:
        self.names = Names()
        self.said: set[str] = set()
        self._replaced: dict[str, str] = {}
        if evidence.bundle is None:
            return
        self._replaced[evidence.bundle.box] = self.names.box(evidence.bundle.box)
        for gpu in gpus(evidence.bundle):
            for holder in gpu.holders:
                # As verdicts name a process (judge.holders).
                name = f"process ({holder.pid})"
                if holder.name:
                    name = f"{holder.name} ({holder.pid})"
                self._replaced[name] = self.names.of("process", holder.pid)

    def text(self, text: object) -> str:
        """A text with labels in place of names, if it is then in the workbook's own words; else
        empty.
        """
        copy = PLACE.sub(self.names.line, str(text))
        copy = PROCESS.sub(self._process, copy)
        for name, label in self._replaced.items():
            copy = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", label, copy)
        if not public.chip(copy) and not is_ours(copy):
            return ""
        self.said.add(str(text))
        return copy

    def _process(self, match: re.Match[str]) -> str:
        """The label of a process that PROCESS found."""
        return self.names.of("process", int(match[1]))

    def of(self, fact: Fact) -> Fact:
        """A copy of a fact and of the facts in it. Texts that became empty are left out
        of a list.
        """
        copy: Any = fact
        if isinstance(fact, str):
            copy = self.text(fact)
        elif isinstance(fact, (tuple, list)):
            parts = [self.of(part) for part in fact]
            copy = type(fact)(part for part in parts if part != "")
        elif isinstance(fact, dict):
            copy = {name: self.of(value) for name, value in fact.items()}
        elif isinstance(fact, Reading):
            copy = self._reading(fact)
        elif is_dataclass(fact):
            copy = replace(copy, **self._public_fields(copy))
        return cast("Fact", copy)

    def _public_fields(self, fact: DataclassInstance) -> dict[str, Any]:
        """The fields of a dataclass as others may read them, by name."""
        public_fields = {
            field.name: self._field(field.name, getattr(fact, field.name))
            for field in fields(fact)
        }
        if isinstance(fact, Holder):
            public_fields["name"] = self.names.of("process", fact.pid)
            public_fields["state"] = public.typed("state", fact.state)
        if isinstance(fact, LedgerRow) and not public_fields["words"]:
            public_fields["words"] = fact.kind.replace("_", " ")  # a word of a list
        # The kernel prints names of processes into its lines, so the line is made anew.
        if isinstance(fact, Event):
            name = self.names.of("process", fact.pid or fact.process)
            public_fields.update(process=name, pid=None, text=self._printed_anew(fact))
        return public_fields

    def _field(self, name: str, value: object) -> object:
        """The value of a field as others may read it, by the name of the field."""
        if name == "source":
            return public.source_or_kind(str(value))
        if name in CODES:
            return value
        if name in TYPED and isinstance(value, str):
            return public.typed(name, value)
        return self.of(value)

    def _reading(self, reading: Reading) -> Reading:
        """A reading with its number or its words, and the public part of its source."""
        # The name of the item, a file of the bundle, is left out for good.
        copy = replace(reading, source=public.source_or_kind(reading.source), item="")
        if reading.ok:
            copy = replace(copy, why="")
        if public.is_number(reading.value):
            return copy
        if not reading.ok:
            why = self.text(reading.why)
            if not why:
                why = NOT_READ
            return replace(copy, why=why)
        words = self._words(str(reading.value))
        if words:
            return replace(copy, value=words)
        return replace(copy, value=None, status=NOT_AVAILABLE, why=NOT_SHOWN)

    def _words(self, text: str) -> str:
        """The words of a reading as others may read them; a line of the kernel or a known error
        message is printed anew from its numbers.
        """
        events = kernel_log.parse(text)
        if events:  # any word of such a line may be a name
            return "; ".join(map(self._printed_anew, events))
        copy = self.text(text)
        if copy:
            return copy
        return "; ".join(map(printed_anew, read_message(text).messages))

    def _printed_anew(self, event: Event) -> str:
        """The meaning of a line of the kernel, with its numbers and addresses; other texts of the
        line, such as the name of a process, are left out.
        """
        says = [meaning(event.row).removesuffix(".")]
        for name, value in event.facts.items():
            words = name.removesuffix("_bytes").replace("_", " ")
            if name.endswith("_bytes"):
                says.append(f"{words} {show_bytes(int(value))}")
            elif isinstance(value, int):
                says.append(f"{words} {value:,}")
            elif re.fullmatch("0x[0-9a-fA-F]{1,13}", value):
                # The address of a page fault.
                says.append(f"{words} {value}")
        return "; ".join(filter(None, says))

    def program(self, facts: Fact) -> Fact:
        """The facts of a recording, with labels in place of lines and variables, and an example in
        place of its command.
        """
        copy: Any = facts
        if isinstance(facts, tuple):
            copy = tuple(map(self.program, facts))
        elif is_dataclass(facts):
            values = {field.name: getattr(facts, field.name) for field in fields(facts)}
            for name in values:
                values[name] = self._field_of_program(name, values[name])
            copy = replace(copy, **values)
        return cast("Fact", copy)

    def _field_of_program(self, name: str, value: Any) -> object:
        """The value of a field of a recording as others may read it, by the name of the field."""
        if name in LINES:
            return self.names.lines(value)
        if name == "callers":
            return tuple(map(self.names.lines, value))
        if name == "keeper":
            return self.names.of("variable", value, " ")
        if name == "title":  # of a change of the program
            return self.names.variables(PLACE.sub(self.names.line, value))
        if name in EXAMPLE and value:
            return EXAMPLE[name]
        return self.program(value)

    def verdict(self, verdict: Verdict | None) -> Verdict | None:
        """A copy of a verdict; a sentence that is not in the workbook's words is replaced by a
        notice.
        """
        if verdict is None:
            return None
        copy = self.of(verdict)
        step = copy.next_step
        if verdict.next_step.what and not step.what:
            step = replace(step, what=STEP_NOT_SHOWN)
        summary = copy.summary
        if verdict.summary and not summary:
            summary = SUMMARY_NOT_SHOWN
        return replace(
            copy,
            summary=summary,
            next_step=step,
            evidence=list(map(_with_words, copy.evidence)),
            against=list(map(_with_words, copy.against)),
            missing=list(map(_with_both_texts, copy.missing)),
        )

    @property
    def rules(self) -> dict[str, Rule]:
        """By the class of a column (tell.values.Column), the function that returns the public part
        of a cell.
        """
        of_texts: dict[str, Rule] = {
            "heading": is_heading,
            "chip": public.chip,
            "version": public.version,
            "source": public.source_or_kind,
            "value": public.setting_value,
            "group": self.names.group,
            "process": partial(self.names.of, "process"),
            "line": self.names.lines,
        }
        for kind in public.GRAMMARS:
            of_texts[kind] = partial(public.typed, kind)
        return {
            "number": self._measured,
            "reading": self._reading_name,
            "word": self._said,
            "holder": self._said,
            **{kind: partial(_of_text, rule) for kind, rule in of_texts.items()},
        }

    def _reading_name(self, cell: object) -> object:
        """The name of a reading."""
        if str(cell) in public.READINGS:
            return str(cell)
        return self._said(cell)

    def _measured(self, cell: object) -> object:
        """A number, or a reading with its public part."""
        if public.is_number(cell):
            return cell
        return self._said(cell)

    def _said(self, cell: object) -> object:
        """A text in the workbook's own words, or a reading with its public part."""
        if cell is None or isinstance(cell, Reading):
            return self.of(cell)
        return self.text(cell)


def _with_words(row: Evidence) -> Evidence:
    """A row of evidence; without words it says that they are hidden."""
    if row.says:
        return row
    return replace(row, says=HIDDEN)


def _with_both_texts(row: Missing) -> Missing:
    """A row about a missing reading; without one of its texts both are hidden."""
    if row.reading and row.how:
        return row
    return Missing(reading=HIDDEN, how=ASK)


def text_of(cell: object) -> str:
    """A cell as a text; of a reading its value. Empty where there is none."""
    if isinstance(cell, Reading):
        cell = cell.value
    if cell is None:
        return ""
    return str(cell)


def _of_text(rule: Rule, cell: object) -> object:
    """The result of a rule for a cell as a text."""
    return rule(text_of(cell))
