"""Commands about a box: diagnose, ttm, boxes, check."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from helpers.commands.use import WrongUse, print_json, waits_for
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED, open_box, recorded_names
from helpers.shapes import to_json

if TYPE_CHECKING:
    from helpers.judge.evidence import CaseEvidence
    from helpers.look.bundle import Bundle


def boxes(arguments: argparse.Namespace) -> int:
    """The recorded boxes, each with its story.

    Example: boxes
    """
    names = recorded_names()
    stories = json.loads((RECORDED / "stories.json").read_text(encoding="utf-8"))
    width = max(map(len, names), default=0)
    lines = [f"{name:<{width}}  {stories[name]}" for name in names]
    print(json.dumps(names) if arguments.json else "\n".join(lines))
    return 0


def diagnose(arguments: argparse.Namespace) -> int:
    """The cause of a failure with its evidence, from a box, an error message, or both.

    [box]: live (default), a bundle, a name from env/boxes, or a snapshot
    --message FILE: an error text or a log; - reads standard input
    --case FILE: a posted case as JSON, in place of a box
    --wide: all the evidence, and the tables that it stands on
    Example: diagnose rx7900xt-container --wide
    """
    from helpers.judge import diagnosis
    from helpers.tell import verdict
    from helpers.tell.message import not_used

    with waits_for("reading and weighing what is there"):
        evidence = _evidence(arguments)
        answer = diagnosis.diagnose(evidence)
    if arguments.json:
        print(to_json(answer, indent=1))
        return 0
    print(verdict.as_text(answer) if arguments.wide else verdict.brief(answer))
    if evidence.not_text:
        snapshot = "; a memory snapshot is read by: python -m helpers diagnose FILE"
        other = snapshot if "pickle" in evidence.not_text else ""
        print(f"\nNot text: {arguments.message or 'the message'} is {evidence.not_text}{other}")
    if unused := not_used(evidence, answer):
        print("\nNot used: " + unused)
    for number, step in enumerate(diagnosis.recovery(answer, evidence), 1):
        if number == 1:
            print("\nIf it comes to that, mildest first (printed, never run)")
        print(f"  {number}. {step.what}: {step.command}")
        if arguments.wide:
            print(f"     before it: {step.precondition}; it may harm: {step.blast_radius}")
    if arguments.wide:
        print("\n" + "\n\n".join(map(str, _tables(evidence))))
    return 0


def _tables(evidence: CaseEvidence) -> list[object]:
    """What a verdict stands on: the numbers of the messages, and the GPUs, pools, holders and ledger of the box."""
    from helpers.look.gpus import gpus, host_pools
    from helpers.tell import box as words
    from helpers.tell import message, tables

    shown: list[object] = []
    if evidence.messages:
        shown += [message.message_table(evidence), message.sums(evidence)]
    if evidence.bundle is not None:
        cards = gpus(evidence.bundle)
        books = message.books(evidence)
        shown += [
            words.machine_line(evidence.bundle),
            tables.gpus_table(cards),
            tables.pools_table([*cards, *host_pools(evidence.bundle)]),
            tables.holders_table(cards),
            *([words.ledger_table(books)] if books else []),
        ]
    return shown or ["No table to show: no box, and no message with numbers."]


def _evidence(arguments: argparse.Namespace) -> CaseEvidence:
    """What was handed over: a case, a box or a snapshot, a text, or a text with one of them."""
    from dataclasses import replace

    from helpers.judge.evidence import evidence_from_bundle, evidence_from_case

    if arguments.case and (arguments.box or arguments.message):
        raise WrongUse("--case: expected alone, without a box or --message")
    if arguments.case:
        return evidence_from_case(arguments.case)
    pasted = _pasted(arguments.message) if arguments.message else None
    if pasted is not None and not arguments.box:
        return pasted
    if _is_pickle(arguments.box):
        from helpers.judge.snapshot import evidence_from_snapshot

        box = evidence_from_snapshot(arguments.box)
        return box if pasted is None else replace(pasted, snapshot=box.snapshot)
    bundle = _bundle(arguments.box or "live")
    return evidence_from_bundle(bundle) if pasted is None else replace(pasted, bundle=bundle)


def _bundle(name: str) -> Bundle:
    from helpers.judge.evidence import not_text

    try:
        return open_box(name)
    except BundleError as error:
        if os.path.isfile(name):
            with open(name, "rb") as file:
                if not not_text(file.read(4096)):
                    advice = f"an error text is read by: diagnose --message {name}"
                    raise WrongUse(f"{error}; {advice}") from error
        raise


def _pasted(name: str) -> CaseEvidence:
    """The text of a file or of standard input, in bounded memory and time."""
    from dataclasses import replace

    from helpers.judge.evidence import CaseEvidence, evidence_from_message, not_text
    from helpers.look.text import TextFile

    own = name in ("-", "/dev/stdin")
    try:
        with TextFile(name, sys.stdin.fileno() if own else None, waits=own) as file:
            if kind := not_text(file.start):
                return CaseEvidence(not_text=kind)
            pasted = evidence_from_message(file.lines())
            return replace(pasted, unused="; ".join(filter(None, (file.note, pasted.unused))))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise WrongUse(f"{name}: {why}; expected a file with the error text, or -") from error


def _is_pickle(name: str) -> bool:
    """Whether a box is given as a memory snapshot, by its name or its first bytes."""
    from helpers.judge.evidence import not_text

    if not os.path.isfile(name):
        return False
    try:
        with open(name, "rb") as file:
            return name.endswith((".pickle", ".pkl")) or not_text(file.read(4096)) == "a pickle"
    except OSError:
        return False


def ttm(arguments: argparse.Namespace) -> int:
    """Every ceiling between the RAM and torch, the one that binds, and a safe way to raise it.

    [box]: live (default), a bundle, or a name from env/boxes
    --reserve SIZE: RAM to keep for the system, such as 8GiB
    --target SIZE: the limit itself, such as 120GiB
    --verify EARLIER: a bundle from before the change: did it take?
    Example: ttm strix-halo-3-gttsize --target 120GiB
    """
    from dataclasses import asdict

    from helpers.judge import ttm_plan
    from helpers.judge.ttm_verify import verify
    from helpers.tell.ttm import as_text, verify_table

    now = open_box(arguments.box or "live")
    reserve = ttm_plan.wanted_bytes(arguments.reserve)
    target = ttm_plan.wanted_bytes(arguments.target)
    if arguments.verify:
        result = verify(open_box(arguments.verify), now, reserve, target)
        print(json.dumps(asdict(result), indent=1) if arguments.json else verify_table(result))
        return 0 if result.took else 1
    answer = ttm_plan.ttm(now, reserve, target)
    print(to_json(answer, indent=1) if arguments.json else as_text(answer))
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Functional checks of torch on this box, each in a child process with limits.

    --gpu PCI: only this GPU, and even if somebody holds it
    --ladder: find the largest single allocation (loads the card)
    --pairs: peer access, copies, all-reduce and DataParallel per pair of GPUs
    --to-the-limit: let the ladder go beyond half of the free memory
    --torch-python PATH: the interpreter that owns torch
    Example: check --gpu 0000:03:00.0 --ladder
    """
    from dataclasses import asdict

    from helpers.load.checks import as_rows, check_box
    from helpers.look.capture import Options, capture
    from helpers.tell.tables import table

    def on_result(result: Any) -> None:
        print(f"{result.pci} {result.check}: {result.state}", file=sys.stderr)

    bundle = capture(Options(torch=False, torch_python=arguments.torch_python))
    names = ("gpu", "ladder", "pairs", "to_the_limit", "torch_python")
    how = {name: getattr(arguments, name) for name in names}
    results = check_box(bundle, on_result=on_result, **how)
    if arguments.json:
        print_json([asdict(result) for result in results])
    else:
        rows = as_rows(results, people=True)
        print(table(rows[1:], rows[0], widest=None))
    return int(any(result.state not in ("passed", "not_run") for result in results))


VERBS = (diagnose, ttm, boxes, check)
