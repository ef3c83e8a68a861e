"""An error text in words: what it says, the sums of its numbers, and which notebook comes next.

A form is how messages.json describes the wording of a message: words, fields (numbers, names),
gaps, and choices between branches (ground/grammar.py). A message has the fields that were read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from helpers.ground.grammar import Alternatives, Field, Gap, Node, squeeze
from helpers.ground.shapes import Verdict
from helpers.ground.units import GIB, KIB, MIB, Quantity, show_bytes
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import (
    CaseEvidence,
    evidence_from_bundle,
    evidence_from_message,
)
from helpers.look.boxes import open_box
from helpers.look.message import Message
from helpers.look.messages import NOTHING_KNOWN
from helpers.look.wordings import form_of, meaning
from helpers.tell.shown import Shown
from helpers.tell.values import columns

if TYPE_CHECKING:
    from helpers.judge.ledger_rows import GpuLedger

# Units of the forms in messages.json; nearly every program prints binary ones as KB, MB and GB.
_UNITS = {
    "KiB": KIB,
    "KB": KIB,
    "kB": KIB,
    "MiB": MIB,
    "MB": MIB,
    "GiB": GIB,
    "GB": GIB,
}
NOT_READ = "…"
"""In place of a part of a message that was not read."""
TEXT_SOURCES = ("error text", "the numbers of the error text")
"""Sources of readings that were taken from the text itself."""


def gathered(message: str, box: str) -> CaseEvidence:
    """The evidence of a text, of a box, or of both; the text then replaces the box's own message.

    Either may be empty.
    """
    if not box:
        return evidence_from_message(message)
    evidence = evidence_of(box)
    if not message.strip():
        return evidence
    return replace(evidence_from_message(message), bundle=evidence.bundle)


def evidence_of(box: str) -> CaseEvidence:
    """The evidence of a box by its name: ``live``, a bundle's path or a recorded one, with the
    message that it holds.
    """
    return evidence_from_bundle(open_box(box))


def books(evidence: CaseEvidence) -> tuple[GpuLedger, ...]:
    """The ledgers of the box, and of the first message that refuses memory of the device."""
    from helpers.judge.ledger import ledgers_of  # reads every layer of a box

    return ledgers_of(evidence)


def _event_and_side(message: Message) -> str:
    """What happened, and to whose memory: ``refused: device``; only the first where a message is
    about nobody's memory (side none).
    """
    if message.side == "none":
        return message.event
    return f"{message.event}: {message.side}"


def message_table(evidence: CaseEvidence) -> Shown:
    """Every number that the messages of a text name, in bytes, with the precision of its printed
    digits.
    """
    rows: list[list[object]] = []
    for number, message in enumerate(evidence.messages, 1):
        kind = _event_and_side(message)
        sizes = _named_sizes(message)
        for name, size in sizes:
            precision = f"+- {show_bytes(size.precision_bytes)}"
            rows.append([number, kind, name, size.text, size.bytes, precision])
        if not sizes:
            rows.append([number, kind, "no number", "", "", ""])
    notes = []
    unused = not_used(evidence, diagnose(evidence))
    if unused:
        notes.append(f"Not used: {unused}")
    head = ["message", "kind", "number", "as printed", "bytes", "precision"]
    return Shown("The numbers of the text", head, rows, notes)


def _named_sizes(message: Message) -> list[tuple[str, Quantity]]:
    """Every size of a message by its name, and those of the other processes that it names."""
    sizes = []
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, Quantity):
            sizes.append((field.name.replace("_", " "), value))
    return sizes + [("another process", size) for size in message.others]


def printed_anew(message: Message) -> str:
    """A message as its program prints it, made only from its form and the fields that were read,
    so that nothing else of a user's text is in it.

    Of several forms of a program it is the one that fits the message. A part that is not read, such
    as a name, is an ellipsis. Without a form it is what the message means.
    """
    form = form_of(message.row, squeeze(message.words))
    if not form:
        return f"{message.program}: {meaning(message.row)}"
    line = re.sub(r"(?:\s*…)+", " …", _printed_nodes(form, message))
    return line.strip(" …")


def _printed_nodes(nodes: Sequence[Node], message: Message) -> str:
    """The nodes of a form with the fields of a message filled in."""
    line = ""
    for before, node, after in zip(["", *nodes], nodes, [*nodes[1:], ""]):
        if isinstance(node, Alternatives):
            branch = _branch(node, message, before, after)
            line += _printed_nodes(branch, message)
        elif isinstance(node, Gap):
            line += " … "
        elif isinstance(node, Field):
            line += _printed_field(node, message)
        else:
            line += node
    return line


def _printed_field(field: Field, message: Message) -> str:
    """What a message gives for a field of its form. A size is written as the message has it, but
    where the form has a unit behind the field, only the number in that unit.
    """
    value = _value_of_field(field, message)
    if isinstance(value, Quantity) and field.unit:
        amount, _, printed_unit = value.text.partition(" ")
        if printed_unit == field.unit:
            return amount
        in_unit = value.bytes / _UNITS.get(field.unit, 1)
        return f"{in_unit:.2f}".removesuffix(".00")
    if isinstance(value, Quantity):
        return value.text
    return str(value)


def _branch(
    choice: Alternatives, message: Message, before: Node, after: Node
) -> list[Node]:
    """The branch of a choice that a message has. ``before`` and ``after`` are the nodes of the form
    around the choice: a branch counts if the words of the message have it between these.

    Where none is found it is an empty branch if the choice is optional, else the first branch, in
    which forms have the program's usual words.
    """
    backend: list[Node] = [message.backend.upper()]  # CUDA or HIP, read apart
    if backend in choice.branches:
        return backend
    for branch in choice.branches:
        if _is_printed([before, *branch, after], message):
            return branch
    if choice.optional:
        return []
    return choice.branches[0]


def _is_printed(nodes: Iterable[Node], message: Message) -> bool:
    """Whether a message has what these nodes stand for: their words, those of adjacent nodes as one
    piece of text, and a value for each of their fields.
    """
    squeezed = squeeze(message.words)
    words = ""
    for node in (*nodes, Gap(0)):  # the gap ends the last words
        if isinstance(node, str):
            words += node
            continue
        if squeeze(words) not in squeezed:
            return False
        words = ""
        if isinstance(node, Field) and _value_of_field(node, message) == NOT_READ:
            return False
    return True


def _value_of_field(field: Field, message: Message) -> object:
    """What a message gives for a field of its form; NOT_READ where it gives nothing. It is
    NOT_READ, too, for a name: names are a user's own and stay with the user.
    """
    if field.name == "name":
        return NOT_READ
    value = getattr(message, field.name, None)
    if value is None:
        return NOT_READ
    return value


def anew_table(evidence: CaseEvidence) -> Shown:
    """Each message printed anew, and every size that it names."""
    rows: list[list[object]] = []
    for number, message in enumerate(evidence.messages, 1):
        line = printed_anew(message)
        sizes = _named_sizes(message)
        for name, size in sizes:
            rows.append([number, line, name, size.bytes])
            line = ""  # only the first of its rows has it
        if not sizes:
            rows.append([number, line, "", None])
    return Shown(
        "The error message",
        columns(
            "message:number, printed anew:word, its number:word, size:number:bytes",
            widest=None,
        ),
        rows,
    )


def not_used(evidence: CaseEvidence, verdict: Verdict) -> str:
    """The parts of a text or a log that could not be used, in words; empty where all were used.
    That the text names nothing known (NOTHING_KNOWN) is left out where the verdict rests on the
    text nevertheless.
    """
    parts = []
    if evidence.unused:
        parts = evidence.unused.split("; ")
    pieces = (*verdict.evidence, *verdict.against)
    if any(piece.reading.source in TEXT_SOURCES for piece in pieces):
        parts = [part for part in parts if part != NOTHING_KNOWN]
    if evidence.bundle is not None:
        from helpers.look.kernel_log import not_whole  # only a captured box has a log

        gap_in_log = not_whole(evidence.bundle)
        if gap_in_log:
            parts.append(gap_in_log)
    return "; ".join(parts)


def sums(evidence: CaseEvidence) -> Shown:
    """The arithmetic of each message that has numbers, line by line."""
    rows: list[list[object]] = []
    for number, account in enumerate(evidence.accounts, 1):
        rows += [[number, line] for line in account.lines]
    return Shown(
        "The sums",
        ["message", "its numbers, added up"],
        rows,
        none="No message here has numbers to add up.",
        widest=None,
        again=True,
    )
