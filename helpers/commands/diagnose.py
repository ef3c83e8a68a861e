"""The command that finds the cause of a failure."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

from helpers.commands.signs import waits_for
from helpers.commands.use import WrongUse, show
from helpers.ground.contract import to_json
from helpers.ground.places import PROGRAM
from helpers.ground.shapes import NextStep
from helpers.ground.shell import word
from helpers.judge import diagnosis
from helpers.judge.evidence import (
    CaseEvidence,
    evidence_from_bundle,
    evidence_from_case,
    evidence_from_message,
    not_text,
)
from helpers.judge.next_step import recovery
from helpers.look import files
from helpers.look.archive import BundleError
from helpers.look.boxes import open_box
from helpers.look.bundle import Bundle
from helpers.look.text_file import TextFile, read_text
from helpers.tell import message, next_steps, verdict
from helpers.tell.prose import SCREEN, typed, wrapped


def diagnose(arguments: Namespace) -> int:
    """Find the cause of a failure, from this box, a bundle, an error message or a memory snapshot.

    [box]: live (this machine, the default), a bundle, a recorded box or a memory snapshot
    --message FILE = None: an error text or a log; - reads standard input
    --case FILE: diagnose a posted case, as JSON, instead of a box
    --wide: show all the evidence, and its tables
    Example: diagnose rx7900xt-container --wide
    """
    with waits_for("reading and weighing the evidence"):
        evidence = _evidence(arguments)
        answer = diagnosis.diagnose(evidence)
    if arguments.json:
        print(to_json(answer, indent=1))
        return 0
    if arguments.wide:
        print(verdict.as_text(answer))
    else:
        print(verdict.brief(answer))
    is_other_box = evidence.bundle is not None and arguments.box not in ("", "live")
    has_commands = answer.next_step.command and answer.state != "healthy"
    if is_other_box and has_commands:
        whose = f"the recorded one, {arguments.box}"
        show(f"\nCommands that look at or change a machine are for {whose}.")
    unused = message.not_used(evidence, answer)
    if unused:
        show(f"\nNot used: {unused}")
    _print_last_resorts(recovery(answer, evidence))
    if arguments.wide:
        for table in _tables(evidence):
            print(f"\n{table}")
    return 0


def _print_last_resorts(steps: Sequence[NextStep]) -> None:
    """Print the steps that free memory by ending or resetting something, each with its commands."""
    if steps:
        print("\nLast resorts, mildest first (this tool never runs them)")
    for number, step in enumerate(steps, 1):
        lines = wrapped(f"{number}. {step.what}", "  ", "     ", SCREEN)
        lines += wrapped(next_steps.needed_first(step), "     ", "       ", SCREEN)
        print("\n".join([*lines, *typed(step.command, "     ")]))


def _tables(evidence: CaseEvidence) -> list[object]:
    """The evidence of a verdict, in the order of the page: the numbers of the messages, the GPUs,
    pools and holders of the box, and its ledger.
    """
    # Imported here, because an answer without tables does not need the readers of a box.
    from helpers.look.gpus import gpus, host_pools
    from helpers.tell import box as words
    from helpers.tell import tables

    shown: list[object] = []
    if evidence.messages:
        shown.append(message.message_table(evidence))
    if evidence.bundle is not None:
        cards = gpus(evidence.bundle)
        shown += [
            words.box_line(evidence.bundle),
            tables.gpus_table(cards),
            tables.pools_table([*cards, *host_pools(evidence.bundle)]),
            tables.holders_table(cards),
        ]
    books = message.books(evidence)
    if books:
        shown.append(words.ledger_table(books))
    if not shown:
        shown.append("No table to show: no box, and no message with numbers.")
    return shown


def _evidence(arguments: Namespace) -> CaseEvidence:
    """The evidence in what the command line names: a case, a box or a memory snapshot, an error
    text, or an error text together with one of them. Raises WrongUse.
    """
    if arguments.case and (arguments.box or arguments.message):
        raise WrongUse("--case: expected alone, without a box or --message")
    if arguments.case:
        return evidence_from_case(arguments.case)
    if arguments.message == "":
        raise WrongUse(
            "--message '' is empty; expected a file with the error text, or -"
        )
    if arguments.message is None:
        return _evidence_of_box(arguments.box)
    pasted = _pasted(arguments.message)
    if not arguments.box:
        return pasted
    evidence = _evidence_of_box(arguments.box)
    return replace(pasted, bundle=evidence.bundle, program=evidence.program)


def _evidence_of_box(name: str) -> CaseEvidence:
    """The evidence of a memory snapshot or a box of that name; of this machine for no name."""
    if not name:
        return evidence_from_bundle(_bundle("live"))
    if _is_trace(name):
        from helpers.allocator.program_facts import evidence_from_trace

        return evidence_from_trace(name)
    return evidence_from_bundle(_bundle(name))


def _first_bytes(name: str) -> bytes | None:
    """The beginning of a file, enough to tell its kind; None where it cannot be read."""
    start, _, _ = files.read("", os.path.abspath(name), 4096)
    return start


def _bundle(name: str) -> Bundle:
    """The box of that name. Raises WrongUse with the command to use where it is a text or a trace,
    else BundleError.
    """
    try:
        return open_box(name)
    except BundleError as error:
        start = _first_bytes(name)
        if start is None or not_text(start):  # unreadable, or no text
            raise
        advice = f"an error text is read by: diagnose --message {name}"
        if start.lstrip().startswith(b"{"):  # a trace in JSON lines, as the oracle's
            advice = f"a trace of allocations is read by: whatif {name}; what grows: leaks {name}"
        raise WrongUse(f"{error}; {advice}") from error


def _pasted(name: str) -> CaseEvidence:
    """The evidence in the text of a file or of standard input, read in bounded memory and time.

    Raises WrongUse where it cannot be read or holds no text.
    """
    is_standard_input = name in ("-", "/dev/stdin")
    descriptor = None
    if is_standard_input:
        descriptor = sys.stdin.fileno()
    try:
        file = read_text(name, descriptor)
        pasted = _evidence_of_text(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WrongUse(
            f"{name}: {reason}; expected a file with the error text, or -"
        ) from error
    unused = "; ".join(filter(None, (file.note, pasted.unused)))
    pasted = replace(pasted, unused=unused)
    if is_standard_input:
        return pasted
    return replace(pasted, log=word(name))


def _evidence_of_text(file: TextFile) -> CaseEvidence:
    """The evidence in a text. Raises WrongUse, with the kind of file, where there is no
    text in it.
    """
    other_kind = not_text(file.start)
    if other_kind:
        why = other_kind
        if "pickle" in other_kind:
            why += f"; a memory snapshot is read by: {PROGRAM} diagnose FILE"
        raise WrongUse(f"no error text in it: {why}")
    evidence = evidence_from_message(file.text)
    if not evidence.error_text.strip():
        raise WrongUse(f"no error text in it: {file.note or 'empty'}")
    return evidence


def _is_trace(name: str) -> bool:
    """Whether a recording is given in place of a box, by its name or its first bytes."""
    start = _first_bytes(name)
    if start is None:  # a folder, or the name of a recorded box
        return False
    is_named_so = name.endswith((".pickle", ".pkl"))
    return is_named_so or not_text(start) in ("a pickle", "a Parquet file")
