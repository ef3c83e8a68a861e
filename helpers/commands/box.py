"""Commands about a box: diagnose, ttm, boxes, check, gate, monitor."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.use import WrongUse, listed, print_json, say, show, waits_for
from helpers.ground.contract import to_json
from helpers.ground.places import PROGRAM
from helpers.ground.shell import word
from helpers.look import files
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED, open_box, recorded_names

if TYPE_CHECKING:
    from helpers.judge.evidence import CaseEvidence
    from helpers.look.bundle import Bundle


def boxes(arguments: argparse.Namespace) -> int:
    """List the recorded boxes, each with its story.

    Example: boxes
    """
    names = recorded_names()
    stories = json.loads((RECORDED / "stories.json").read_text(encoding="utf-8"))
    width = max(map(len, names), default=0) + 2
    return say(
        arguments, names, *(listed(name, stories[name], width) for name in names)
    )


def diagnose(arguments: argparse.Namespace) -> int:
    """Find the cause of a failure, from this box, a bundle, an error message or a memory snapshot.

    [box]: live (this machine, the default), a bundle, a recorded box or a memory snapshot
    --message FILE = None: an error text or a log; - reads standard input
    --case FILE: diagnose a posted case, as JSON, instead of a box
    --wide: show all the evidence, and its tables
    Example: diagnose rx7900xt-container --wide
    """
    from helpers.judge import diagnosis
    from helpers.judge.next_step import recovery
    from helpers.tell import verdict
    from helpers.tell.message import not_used
    from helpers.tell.prose import SCREEN, typed, wrapped

    with waits_for("reading and weighing the evidence"):
        evidence = _evidence(arguments)
        answer = diagnosis.diagnose(evidence)
    if arguments.json:
        print(to_json(answer, indent=1))
        return 0
    print(verdict.as_text(answer) if arguments.wide else verdict.brief(answer))
    is_recorded = evidence.bundle is not None and arguments.box not in ("", "live")
    if is_recorded and answer.next_step.command and answer.state != "healthy":
        name = arguments.box
        show(
            f"\nCommands that look at or change a machine are for the recorded one, {name}."
        )
    if unused := not_used(evidence, answer):
        show("\nNot used: " + unused)
    for number, step in enumerate(recovery(answer, evidence), 1):
        if number == 1:
            print("\nLast resorts, mildest first (this tool never runs them)")
        lines = wrapped(f"{number}. {step.what}", "  ", "     ", SCREEN)
        if needed := verdict.needed_first(step):
            lines += wrapped(needed, "     ", "       ", SCREEN)
        print("\n".join([*lines, *typed(step.command, "     ")]))
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
    return shown or ["No table to show: no box, and no message with numbers."]


def _evidence(arguments: argparse.Namespace) -> CaseEvidence:
    """What was handed over: a case, a box or a snapshot, a text, or a text with one of them."""
    from dataclasses import replace

    from helpers.judge.evidence import evidence_from_bundle, evidence_from_case

    if arguments.case and (arguments.box or arguments.message):
        raise WrongUse("--case: expected alone, without a box or --message")
    if arguments.case:
        return evidence_from_case(arguments.case)
    if arguments.message == "":
        raise WrongUse(
            "--message '' is empty; expected a file with the error text, or -"
        )
    pasted = None if arguments.message is None else _pasted(arguments.message)
    if pasted is not None and not arguments.box:
        return pasted
    if _is_trace(arguments.box):
        from helpers.allocator.program_facts import evidence_from_trace

        recorded = evidence_from_trace(arguments.box)
        return recorded if pasted is None else replace(pasted, program=recorded.program)
    bundle = _bundle(arguments.box or "live")
    return (
        evidence_from_bundle(bundle)
        if pasted is None
        else replace(pasted, bundle=bundle)
    )


def _bundle(name: str) -> Bundle:
    from helpers.judge.evidence import not_text

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
    from dataclasses import replace

    from helpers.judge.evidence import evidence_from_message, not_text
    from helpers.look.text_file import read_text

    is_standard_input = name in ("-", "/dev/stdin")
    try:
        file = read_text(name, sys.stdin.fileno() if is_standard_input else None)
        kind = not_text(file.start)
        pasted = evidence_from_message("" if kind else file.text)
        if not is_standard_input:
            pasted = replace(pasted, log=word(name))
        if pasted.error_text.strip():
            return replace(
                pasted, unused="; ".join(filter(None, (file.note, pasted.unused)))
            )
        snapshot = f"; a memory snapshot is read by: {PROGRAM} diagnose FILE"
        other = snapshot if "pickle" in kind else ""
        raise WrongUse(f"no error text in it: {kind or file.note or 'empty'}{other}")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise WrongUse(
            f"{name}: {why}; expected a file with the error text, or -"
        ) from error


def _is_trace(name: str) -> bool:
    """Whether a recording is given in place of a box, by its name or its first bytes."""
    from helpers.judge.evidence import not_text

    start = files.read("", os.path.abspath(name), 4096)[0]
    named = name.endswith((".pickle", ".pkl"))
    return start is not None and (
        named or not_text(start) in ("a pickle", "a Parquet file")
    )


def ttm(arguments: argparse.Namespace) -> int:
    """Show every limit between the RAM and torch, the lowest one, and how to raise it safely.

    [box]: live (this machine, the default), a bundle or a recorded box
    --reserve SIZE: RAM to keep for the system, such as 8GiB
    --target SIZE: the limit itself, such as 120GiB
    --verify EARLIER: check a change against this bundle from before it
    Example: ttm strix-halo-3-gttsize --target 120GiB
    """
    from dataclasses import asdict

    from helpers.judge.ttm_limit import wanted_bytes
    from helpers.judge.ttm_plan import ttm_answer
    from helpers.judge.ttm_verify import verify
    from helpers.tell.ttm import as_text, verify_table

    now = open_box(arguments.box or "live")
    reserve = wanted_bytes(arguments.reserve)
    target = wanted_bytes(arguments.target)
    if arguments.verify:
        result = verify(open_box(arguments.verify), now, reserve, target)
        say(arguments, asdict(result), verify_table(result))
        return 0 if result.took else 1
    answer = ttm_answer(now, reserve, target)
    print(to_json(answer, indent=1) if arguments.json else as_text(answer))
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Check that torch works on this box; each check is a child process with limits.

    --gpu PCI: check only this GPU, even if another process uses it
    --ladder: find the largest single allocation (loads the card)
    --to-the-limit: let the ladder go beyond half of the free memory
    --torch-python PATH: the Python that has torch
    Example: check --gpu 0000:03:00.0 --ladder
    """
    from dataclasses import asdict

    from helpers.look.capture import Options, capture
    from helpers.tell.shown import Shown
    from helpers.trials.checks import as_rows, check_box

    def on_result(result: Any) -> None:
        print(f"{result.pci} {result.check}: {result.state}", file=sys.stderr)

    bundle = capture(Options(torch=False, torch_python=arguments.torch_python))
    names = ("gpu", "ladder", "to_the_limit", "torch_python")
    how = {name: getattr(arguments, name) for name in names}
    results = check_box(bundle, on_result=on_result, **how)
    rows = as_rows(results)
    shown = Shown("", rows[0], rows[1:], widest=None)
    say(arguments, [asdict(result) for result in results], shown)
    return int(any(result.state not in ("passed", "not_run") for result in results))


def gate(arguments: argparse.Namespace) -> int:
    """Check whether this box is ready for the next job: exit code 0 if it is, 1 with a line for
    each reason, 3 if it shows no GPU and --gpus is not given.

    --gpu PCI ...: look only at this GPU and not at the RAM, because other jobs may run; can be
        repeated
    --gpus N <int>: the number of GPUs that must be seen; 0 for a node without any
    --save FILE: save this look, for a later --since
    --since FILE: compare with a saved look: memory that was in use then is allowed, and the kernel
        log counts from then on
    --settle S <float> = 10: wait at most S seconds for memory to be freed (default: 10)
    --disk FOLDER = .: the folder whose disk must be writable, with 1 GiB free (default: this one)
    Example: gate --gpus 8 --save /run/gate.json
    """
    from dataclasses import asdict, replace

    from helpers.batch import box_state, clean
    from helpers.batch.look_shapes import BoxState, Gates, read_state
    from helpers.ground.units import pci_address

    asked = [pci_address(gpu) or gpu for gpu in arguments.gpu]
    since = arguments.since
    try:
        before = read_state(files.read_whole(since)) if since else None
        if before is not None and asked:
            before = replace(before, available_bytes=None)
        os.stat(arguments.disk)
        state = box_state.measure(asked, folder=arguments.disk, since=before)
        if arguments.save:
            files.write_atomic(Path(arguments.save), to_json(state))
    except (OSError, ValueError) as error:
        name = getattr(error, "filename", "")
        why = getattr(error, "strerror", "") or error
        expected = "expected a file written by gate --save, and an existing folder"
        raise WrongUse(f"{name or since}: {why}; {expected}") from error
    looks = iter([state])

    def look() -> BoxState:
        nonlocal state
        state = next(looks, None) or box_state.measure(
            asked, folder=arguments.disk, since=state
        )
        return state

    limits = Gates(settle_s=arguments.settle, host_free_bytes=0)
    troubles = [*clean.settle(before or clean.idle(state), limits, look)]
    troubles += clean.missing(state, asked, arguments.gpus)
    seen = [gpu.pci for gpu in state.gpus]
    exit_code = int(bool(troubles))
    if not (seen or troubles) and arguments.gpus is None:
        troubles = [clean.NOTHING_SEEN]
        exit_code = 3
    if arguments.json:
        reasons = [asdict(trouble) for trouble in troubles]
        print_json(
            {"clean": not troubles, "exit": exit_code, "gpus": seen, "reasons": reasons}
        )
    elif troubles:
        for trouble in troubles:
            print(f"not clean: {trouble.scope}: {trouble.why}")
    else:
        print(f"clean: {', '.join(seen) or 'no GPU, as expected'}")
    if before is not None and not state.log and not arguments.json:
        print(
            "not looked at: the kernel log, which this user may not read",
            file=sys.stderr,
        )
    return exit_code


def monitor(arguments: argparse.Namespace) -> int:
    """Watch GPU memory, RAM and the processes that use them, live; uses no GPU memory itself.

    [pid]: the process to watch
    --every S <float>: seconds between samples (default: 0.5 in a terminal, else 2)
    --count N <int>: end after N samples
    Example: monitor 4711
    """
    from helpers.tell.panels import terminal

    if arguments.pid and not arguments.pid.isdigit():
        raise WrongUse(f"monitor: seen {arguments.pid}; expected a PID as a number")
    if arguments.every is not None and not 0.1 <= arguments.every <= 3600:
        raise WrongUse(
            f"monitor: seen --every {arguments.every:g}; expected 0.1 to 3600 seconds"
        )
    return terminal.watch(
        int(arguments.pid or 0), arguments.every, arguments.count, arguments.json
    )


VERBS = (diagnose, ttm, boxes, check, gate, monitor)
