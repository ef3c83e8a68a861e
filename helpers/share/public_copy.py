"""Copies of facts as others may read them: without a name of a box, and with its numbers.

Whatever is judged, written or drawn of a copy has no name in it either, so tables, figures and
verdicts come from the same functions as on the pages of their owner.
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
"""Fields whose texts are of a fixed list."""
TYPED = frozenset("pci driver native".split())
"""Fields of which public.GRAMMARS has one."""
PROCESS = re.compile(
    r"(?:(?<=names, )|\b(?:[Pp]rocess|PID|pid) )(\d{1,10})\b(?!\.\d| ?[KMGT]i?B)"
)
LINES = frozenset("line where asked_at".split())
EXAMPLE = {"trace": "run.pickle", "command": "python your_program.py"}
"""Of a recorded program: fields that name lines, and what stands for its files."""
NOT_READ = "no value was read"
NOT_SHOWN = "it is not shown on this page"
STEP_NOT_SHOWN = "Ask whoever sent you this page: its words are not shown here."
ASK = "ask whoever sent you this page"
SUMMARY_NOT_SHOWN = "The explanation is not shown on this page."
HIDDEN = "A reading whose words are not shown on this page"
"""In place of what is left out: the page never says that there was none."""


class PublicCopy:
    """Makes copies of the facts of a case; ``said`` are texts that passed, as they were."""

    def __init__(self, evidence: CaseEvidence) -> None:
        self.names = Names()
        self.said: set[str] = set()
        self._replaced: dict[str, str] = {}
        if evidence.bundle is None:
            return
        self._replaced[evidence.bundle.box] = self.names.box(evidence.bundle.box)
        for gpu in gpus(evidence.bundle):
            for holder in gpu.holders:
                name = f"{holder.name or 'process'} ({holder.pid})"
                self._replaced[name] = self.names.of("process", holder.pid)

    def text(self, text: object) -> str:
        """A text in the workbook's own words, with numbers in place of names; else nothing."""
        spoken = PLACE.sub(self.names.line, str(text))
        spoken = PROCESS.sub(self._process, spoken)
        for name, number in self._replaced.items():
            spoken = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", number, spoken)
        if not public.chip(spoken) and not is_ours(spoken):
            return ""
        self.said.add(str(text))
        return spoken

    def _process(self, number: re.Match[str]) -> str:
        return self.names.of("process", int(number[1]))

    def of(self, fact: Fact) -> Fact:
        """A copy of a fact and of the facts in it; of a list without what became nothing."""
        copy: Any = fact
        if isinstance(fact, str):
            copy = self.text(fact)
        elif isinstance(fact, (tuple, list)):
            copy = type(fact)(part for part in map(self.of, fact) if part != "")
        elif isinstance(fact, dict):
            copy = {name: self.of(value) for name, value in fact.items()}
        elif isinstance(fact, Reading):
            copy = self._reading(fact)
        elif is_dataclass(fact):
            copy = replace(copy, **self._public_fields(copy))
        return cast("Fact", copy)

    def _public_fields(self, fact: DataclassInstance) -> dict[str, Any]:
        """The fields of a fact as others may read them, by name."""
        public_fields = {
            field.name: self._field(field.name, getattr(fact, field.name))
            for field in fields(fact)
        }
        if isinstance(fact, Holder):
            public_fields["name"] = self.names.of("process", fact.pid)
            public_fields["state"] = public.typed("state", fact.state)
        if isinstance(fact, LedgerRow) and not public_fields["words"]:
            public_fields["words"] = fact.kind.replace("_", " ")
        if isinstance(fact, Event):
            name = self.names.of("process", fact.pid or fact.process)
            public_fields.update(process=name, pid=None, text=self._printed_anew(fact))
        return public_fields

    def _field(self, name: str, value: object) -> object:
        if name == "source":
            return public.source_or_kind(str(value))
        if name in CODES:
            return value
        if name in TYPED and isinstance(value, str):
            return public.typed(name, value)
        return self.of(value)

    def _reading(self, reading: Reading) -> Reading:
        """A reading with its number or its words, and the public part of its source."""
        copy = replace(reading, source=public.source_or_kind(reading.source), item="")
        if reading.ok:
            copy = replace(copy, why="")
        if public.is_number(reading.value):
            return copy
        if not reading.ok:
            return replace(copy, why=self.text(reading.why) or NOT_READ)
        events = kernel_log.parse(str(reading.value))
        messages = read_message(str(reading.value)).messages
        words = self.text(reading.value) or "; ".join(map(printed_anew, messages))
        if events:  # a line of the kernel, in which any word may be a name
            words = "; ".join(map(self._printed_anew, events))
        if words:
            return replace(copy, value=words)
        return replace(copy, value=None, status=NOT_AVAILABLE, why=NOT_SHOWN)

    def _printed_anew(self, event: Event) -> str:
        """What a line of the kernel means, with its numbers."""
        says = [meaning(event.row).removesuffix(".")]
        for name, value in event.facts.items():
            if name.endswith("_bytes"):
                says.append(f"{name[:-6].replace('_', ' ')} {show_bytes(int(value))}")
            elif isinstance(value, int):
                says.append(f"{name.replace('_', ' ')} {value:,}")
            elif re.fullmatch("0x[0-9a-fA-F]{1,13}", value):
                says.append(f"{name.replace('_', ' ')} {value}")
        return "; ".join(filter(None, says))

    def program(self, facts: Fact) -> Fact:
        """The facts of a recording, with numbers in place of the lines and variables that they
        name, and with a command of no program.
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
        """A verdict with the sentences that pass."""
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
            missing=[
                row if row.reading and row.how else Missing(reading=HIDDEN, how=ASK)
                for row in copy.missing
            ],
        )

    @property
    def rules(self) -> dict[str, Rule]:
        """What a column lets through of a cell, by the class that a table gives it (values.Column)."""
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
        """What a reading is called."""
        if str(cell) in public.READINGS:
            return str(cell)
        return self._said(cell)

    def _measured(self, cell: object) -> object:
        """A cell that is a number or was read."""
        if public.is_number(cell):
            return cell
        return self._said(cell)

    def _said(self, cell: object) -> object:
        """A cell in the workbook's own words, or what was read."""
        if cell is None or isinstance(cell, Reading):
            return self.of(cell)
        return self.text(cell)


def _with_words(row: Evidence) -> Evidence:
    """A row of evidence that says at least that its words are hidden."""
    if row.says:
        return row
    return replace(row, says=HIDDEN)


def text_of(cell: object) -> str:
    """A cell as a text; of a reading what was read, nothing where that failed."""
    if isinstance(cell, Reading):
        cell = cell.value
    return "" if cell is None else str(cell)


def _of_text(rule: Rule, cell: object) -> object:
    """What a rule lets through of a cell as a text."""
    return rule(text_of(cell))
