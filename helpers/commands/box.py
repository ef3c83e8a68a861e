"""Commands about a box: diagnose, ttm, boxes, check."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from helpers.commands.use import Verb, WrongUse, open_named_box, print_json


def register(verb: Verb) -> None:
    """diagnose, ttm, boxes and check."""
    diagnose = verb("diagnose", _diagnose, "the cause of a failure with its evidence, from a box, an error message, or both")
    diagnose.add_argument("box", nargs="?", default="", help="live (default), a bundle, or a name from env/boxes")
    diagnose.add_argument("--message", default="", metavar="FILE", help="an error text or a log; - reads standard input")
    diagnose.add_argument("--case", default="", metavar="FILE", help="a posted case as JSON, in place of a box")
    ttm = verb("ttm", _ttm, "every ceiling between the RAM and torch, the one that binds, and a safe way to raise it")
    ttm.add_argument("box", nargs="?", default="live", help="live (default), a bundle, or a name from env/boxes")
    ttm.add_argument("--reserve", default="", metavar="SIZE", help="RAM to keep for the system, such as 8GiB")
    ttm.add_argument("--target", default="", metavar="SIZE", help="the limit itself, such as 120GiB")
    ttm.add_argument("--verify", default="", metavar="EARLIER", help="a bundle from before the change: did it take?")
    verb("boxes", _boxes, "the recorded boxes")
    check = verb("check", _check, "functional checks of torch on this box, each in a child process with limits")
    check.add_argument("--gpu", default="", metavar="PCI", help="only this GPU, and even if somebody holds it")
    check.add_argument("--ladder", action="store_true", help="find the largest single allocation (loads the card)")
    check.add_argument("--pairs", action="store_true", help="peer access, copies, all-reduce and DataParallel per pair of GPUs")
    check.add_argument("--to-the-limit", action="store_true", help="let the ladder go beyond half of the free memory")
    check.add_argument("--torch-python", default="", metavar="PATH", help="the interpreter that owns torch")


def _boxes(arguments: argparse.Namespace) -> int:
    from helpers.look.boxes import recorded_names

    print(json.dumps(recorded_names()) if arguments.json else "\n".join(recorded_names()))
    return 0


def _diagnose(arguments: argparse.Namespace) -> int:
    from helpers.judge.diagnosis import diagnose, recovery
    from helpers.tell import verdict

    evidence = _evidence(arguments)
    answer = diagnose(evidence)
    if arguments.json:
        print(answer.model_dump_json(indent=1))
        return 0
    if evidence.bundle is not None:
        from helpers.judge.ledger import ledger
        from helpers.look.gpus import gpus, host_pools
        from helpers.tell import box as words
        from helpers.tell import tables
        from helpers.tell.ledger_figure import ledger_table

        found, messages = gpus(evidence.bundle), [m for m in evidence.messages if m.kind == "oom"][:1]
        books = ledger(evidence.bundle, *messages)
        print("\n\n".join([words.machine_line(evidence.bundle), tables.gpus_table(found),
                           tables.pools_table([*found, *host_pools(evidence.bundle)]), tables.holders_table(found),
                           *([ledger_table(books)] if books else [])]) + "\n")
    print(verdict.as_text(answer))
    if evidence.unused:
        print("\nNot used: " + evidence.unused)
    for number, step in enumerate(recovery(answer, evidence), 1):
        print(("\nIf it comes to that, mildest first (printed, never run)\n" if number == 1 else "")
              + f"  {number}. {step.what}: {step.command}\n"
              f"     before it: {step.precondition}; it may harm: {step.blast_radius}")
    return 0


def _evidence(arguments: argparse.Namespace) -> Any:
    from dataclasses import replace

    from helpers.judge.signals import evidence_from_bundle, evidence_from_case, evidence_from_message

    if arguments.case and (arguments.box or arguments.message):
        raise WrongUse("--case: expected alone, without a box or --message")
    try:
        if arguments.case:
            return evidence_from_case(arguments.case)
        if not arguments.message:
            return evidence_from_bundle(open_named_box(arguments.box or "live"))
        if arguments.message == "-":
            said = evidence_from_message(sys.stdin)
        else:
            with open(arguments.message, encoding="utf-8", errors="replace") as lines:
                said = evidence_from_message(lines)
    except OSError as error:
        raise WrongUse(f"{arguments.message}: {error.strerror}; expected a file with the error text, or -") from error
    except ValueError as error:
        raise WrongUse(str(error)) from error
    return replace(said, bundle=open_named_box(arguments.box)) if arguments.box else said


def _ttm(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from helpers.judge.ttm_plan import ttm, wanted_bytes
    from helpers.judge.ttm_verify import verify
    from helpers.tell.ttm import as_text, verify_text

    now = open_named_box(arguments.box)
    try:
        reserve, target = wanted_bytes(arguments.reserve), wanted_bytes(arguments.target)
        if arguments.verify:
            result = verify(open_named_box(arguments.verify), now, reserve, target)
            print(json.dumps(asdict(result), indent=1) if arguments.json else verify_text(result))
            return 0 if result.took else 1
        answer = ttm(now, reserve, target)
    except ValueError as error:
        raise WrongUse(str(error)) from error
    print(answer.model_dump_json(indent=1) if arguments.json else as_text(answer))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from helpers.load.box import check_box
    from helpers.load.checks import as_rows
    from helpers.look.capture import Options, capture
    from helpers.tell.tables import table

    bundle = capture(Options(torch=False, torch_python=arguments.torch_python))
    try:
        results = check_box(bundle, gpu=arguments.gpu, ladder=arguments.ladder, pairs=arguments.pairs,
                            to_the_limit=arguments.to_the_limit, torch_python=arguments.torch_python,
                            on_result=lambda result: print(f"{result.pci} {result.check}: {result.state}", file=sys.stderr))
    except ValueError as error:
        raise WrongUse(str(error)) from error
    if arguments.json:
        print_json([asdict(result) for result in results])
    else:
        rows = as_rows(results, people=True)
        print(table(rows[1:], rows[0], widest=None))
    return int(any(result.state not in ("passed", "not_run") for result in results))
