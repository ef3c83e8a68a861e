"""An error text in words: what it says, the sums of its numbers, and which notebook comes next."""

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
TEXT_SOURCES = ("error text", "the numbers of the error text")
"""Sources of readings that were taken from the text itself."""


def gathered(message: str, box: str) -> CaseEvidence:
    """The evidence of a text, of a box, or of both; a text given takes the place of the box's own."""
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


def _kind(message: Message) -> str:
    return (
        message.event if message.side == "none" else f"{message.event}: {message.side}"
    )


def message_table(evidence: CaseEvidence) -> Shown:
    """Every number that the messages of a text name, in bytes, with what its printed digits
    leave open.
    """
    rows: list[list[object]] = []
    for number, message in enumerate(evidence.messages, 1):
        sizes = _named_sizes(message)
        for name, size in sizes:
            precision = f"+- {show_bytes(size.precision_bytes)}"
            rows.append(
                [number, _kind(message), name, size.text, size.bytes, precision]
            )
        if not sizes:
            rows.append([number, _kind(message), "no number", "", "", ""])
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
    """A message as its program prints it, from the fields that were read alone.

    Of the wordings that the table of messages knows, it is the one that the message has. What the
    table does not know of it, such as a name, is an ellipsis.
    """
    form = form_of(message.row, squeeze(message.words))
    if not form:
        return f"{message.program}: {meaning(message.row)}"
    line = re.sub(r"(?:\s*…)+", " …", _printed(form, message))
    return line.strip(" …")


def _printed(nodes: Sequence[Node], message: Message) -> str:
    line = ""
    for before, node, after in zip(["", *nodes], nodes, [*nodes[1:], ""]):
        if isinstance(node, Alternatives):
            line += _printed(_branch(node, message, before, after), message)
        elif isinstance(node, Gap):
            line += " … "
        elif isinstance(node, Field):
            line += _printed_field(node, message)
        else:
            line += node
    return line


def _printed_field(field: Field, message: Message) -> str:
    value = _read(field, message)
    if isinstance(value, Quantity):
        return _in_unit(value, field.unit)
    return str(value)


def _branch(
    choice: Alternatives, message: Message, before: Node, after: Node
) -> list[Node]:
    """The branch of a choice that a message has between its neighbours in the form; else what its
    program prints most often: the first, or nothing where it is optional.
    """
    if [message.backend.upper()] in choice.branches:
        return [message.backend.upper()]
    for branch in choice.branches:
        if _stands([before, *branch, after], message):
            return branch
    if choice.optional:
        return []
    return choice.branches[0]


def _stands(nodes: Iterable[Node], message: Message) -> bool:
    """Whether a message has these words, those beside each other in one piece, and these fields."""
    flat = squeeze(message.words)
    words = ""
    for node in (*nodes, Gap(0)):
        if isinstance(node, str):
            words += node
            continue
        if squeeze(words) not in flat:
            return False
        words = ""
        if isinstance(node, Field) and _read(node, message) == NOT_READ:
            return False
    return True


def _in_unit(size: Quantity, unit: str) -> str:
    """A size in the unit that a form puts behind it, else as it was printed."""
    if not unit:
        return size.text
    amount, _, printed_unit = size.text.partition(" ")
    if printed_unit == unit:
        return amount
    return f"{size.bytes / _UNITS.get(unit, 1):.2f}".removesuffix(".00")


def _read(field: Field, message: Message) -> object:
    """What a message gives for a field of its form; an ellipsis for a name, and for none."""
    if field.name == "name":
        return NOT_READ
    value = getattr(message, field.name, None)
    if value is None:
        return NOT_READ
    return value


def anew_table(evidence: CaseEvidence) -> Shown:
    """Each message printed anew, and every size that it names."""
    head = columns(
        "message:number, printed anew:word, its number:word, size:number:bytes",
        widest=None,
    )
    rows: list[list[object]] = []
    for number, message in enumerate(evidence.messages, 1):
        line = printed_anew(message)
        sizes = _named_sizes(message)
        rows.append([number, line, *(sizes[0] if sizes else ("", None))])
        rows += [[number, "", name, size] for name, size in sizes[1:]]
    for row in rows:
        if isinstance(row[3], Quantity):
            row[3] = row[3].bytes
    return Shown("The error message", head, rows)


def not_used(evidence: CaseEvidence, verdict: Verdict) -> str:
    """What of a text or a log could not be used; that it names nothing is not said under a
    verdict that was made from it.
    """
    from_text = any(
        r.reading.source in TEXT_SOURCES for r in (*verdict.evidence, *verdict.against)
    )
    parts = evidence.unused.split("; ") if evidence.unused else []
    parts = [part for part in parts if part != NOTHING_KNOWN or not from_text]
    if evidence.bundle is not None:
        from helpers.look.kernel_log import not_whole  # only a captured box has a log

        parts += filter(None, [not_whole(evidence.bundle)])
    return "; ".join(parts)


def sums(evidence: CaseEvidence) -> Shown:
    """The arithmetic of each message with numbers, line by line."""
    rows: list[list[object]] = []
    for number, account in enumerate(evidence.accounts, 1):
        rows += [[number, line] for line in account.lines]
    heads = ["message", "its numbers, added up"]
    return Shown(
        "The sums",
        heads,
        rows,
        none="No message here has numbers to add up.",
        widest=None,
        again=True,
    )
