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
from helpers.look.text_file import read_text
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
    in_words = verdict.as_text if arguments.wide else verdict.brief
    print(in_words(answer))
    is_recorded = evidence.bundle is not None and arguments.box not in ("", "live")
    if is_recorded and answer.next_step.command and answer.state != "healthy":
        whose = f"the recorded one, {arguments.box}"
        show(f"\nCommands that look at or change a machine are for {whose}.")
    unused = message.not_used(evidence, answer)
    if unused:
        show(f"\nNot used: {unused}")
    _print_last_resorts(recovery(answer, evidence))
    if arguments.wide:
        print("\n" + "\n\n".join(map(str, _tables(evidence))))
    return 0


def _print_last_resorts(steps: Sequence[NextStep]) -> None:
    if steps:
        print("\nLast resorts, mildest first (this tool never runs them)")
    for number, step in enumerate(steps, 1):
        lines = wrapped(f"{number}. {step.what}", "  ", "     ", SCREEN)
        lines += wrapped(next_steps.needed_first(step), "     ", "       ", SCREEN)
        print("\n".join([*lines, *typed(step.command, "     ")]))


def _tables(evidence: CaseEvidence) -> list[object]:
    """What a verdict stands on: the numbers of the messages, and the GPUs, pools, holders and ledger of the box."""
    # An answer without tables, such as that of a text, does not wait for the readers of a box.
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
    """What was handed over: a case, a box or a snapshot, a text, or a text with one of them."""
    if arguments.case and (arguments.box or arguments.message):
        raise WrongUse("--case: expected alone, without a box or --message")
    if arguments.case:
        return evidence_from_case(arguments.case)
    if arguments.message == "":
        raise WrongUse(
            "--message '' is empty; expected a file with the error text, or -"
        )
    pasted = None
    if arguments.message is not None:
        pasted = _pasted(arguments.message)
        if not arguments.box:
            return pasted
    if _is_trace(arguments.box):
        from helpers.allocator.program_facts import evidence_from_trace

        evidence = evidence_from_trace(arguments.box)
    else:
        evidence = evidence_from_bundle(_bundle(arguments.box or "live"))
    if pasted is None:
        return evidence
    return replace(pasted, bundle=evidence.bundle, program=evidence.program)


def _bundle(name: str) -> Bundle:
    try:
        return open_box(name)
    except BundleError as error:
        start = files.read("", os.path.abspath(name), 4096)[0]
        if start is None or not_text(start):
            raise
        advice = f"an error text is read by: diagnose --message {name}"
        if start.lstrip()[:1] == b"{":  # as `record` and the oracle write a trace
            advice = f"a trace of allocations is read by: whatif {name}; what grows: leaks {name}"
        raise WrongUse(f"{error}; {advice}") from error


def _pasted(name: str) -> CaseEvidence:
    """The text of a file or of standard input, in bounded memory and time."""
    is_standard_input = name in ("-", "/dev/stdin")
    try:
        file = read_text(name, sys.stdin.fileno() if is_standard_input else None)
        kind = not_text(file.start)
        pasted = evidence_from_message("" if kind else file.text)
        if not pasted.error_text.strip():
            why = kind or file.note or "empty"
            if "pickle" in kind:
                why += f"; a memory snapshot is read by: {PROGRAM} diagnose FILE"
            raise WrongUse(f"no error text in it: {why}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WrongUse(
            f"{name}: {reason}; expected a file with the error text, or -"
        ) from error
    unused = "; ".join(filter(None, (file.note, pasted.unused)))
    log = pasted.log if is_standard_input else word(name)
    return replace(pasted, log=log, unused=unused)


def _is_trace(name: str) -> bool:
    """Whether a recording is given in place of a box, by its name or its first bytes."""
    start = files.read("", os.path.abspath(name), 4096)[0]
    named = name.endswith((".pickle", ".pkl"))
    return start is not None and (
        named or not_text(start) in ("a pickle", "a Parquet file")
    )
