"""The command that records a program of the user's own as it is."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from functools import partial

from helpers.allocator.record import Recording
from helpers.allocator.record import record as record_program
from helpers.allocator.recorded_processes import card_options, redacted
from helpers.commands import recording as shared
from helpers.commands.signs import print_notes, says_if_slow
from helpers.commands.use import WrongUse
from helpers.ground import shell
from helpers.ground.places import PROGRAM
from helpers.rehearse.view import where_recorded
from helpers.tell.verdict import brief
from helpers.trials.user_program import check_torch


def record(arguments: Namespace) -> int:
    """Run your program unchanged and record every request it makes to torch's allocator.

    <recording>
    --max-events N <int> = 200000: keep the last N events (default: 200000)
    --hang-after S <float>: save stacks and a snapshot after S seconds without an allocation or
        output
    Example: record --out run.pickle -- python train.py
    """
    command = shared.checked_command(arguments)
    recording = _recording(arguments, command)
    if arguments.json:
        print(json.dumps(asdict(recording), default=str), file=sys.stderr)
        return recording.exit_code
    rehearsal = _deciding_rehearsal(recording, command, arguments.torch_python)
    # The reason for no trace is said at the end.
    notes = [note for note in recording.notes if note != recording.why_no_trace]
    print_notes(*notes)
    _print_end_of_recording(recording, command, rehearsal)
    return recording.exit_code


def _recording(arguments: Namespace, command: list[str]) -> Recording:
    """Run the program to its end and record it. Raises WrongUse where that is impossible."""
    if not command:
        raise WrongUse(
            "record: no command; expected: record [OPTIONS] -- python train.py"
        )
    # Without a GPU there are no requests to record, but the stacks of a hang are of use.
    check_torch(command, arguments.torch_python, needs_gpu=not arguments.hang_after)

    record_at = partial(
        record_program,
        command,
        max_events=arguments.max_events,
        hang_after_s=arguments.hang_after or None,
        python=arguments.torch_python,
    )
    return shared.recorded(arguments, "trace", record_at)


def _deciding_rehearsal(recording: Recording, command: list[str], python: str) -> str:
    """The command that decides by a rehearsal why a recorded program ran out of memory.

    Empty where the program did not run out, or went on afterwards. The program itself is not run
    again on the real card.
    """
    ran_out = [row for row in recording.processes if row["ooms"] and row["devices"]]
    if not ran_out or not recording.exit_code:
        return ""
    devices = ran_out[0]["devices"]  # of the first process that ran out
    fullest = max(devices, key=lambda device: device["stats"].get("num_ooms", 0))
    options = card_options(recording.processes, fullest["total_bytes"])
    words = [*PROGRAM.split(), "rehearse", *options]
    if python:
        words += ["--torch-python", python]
    words.append("--")
    # Only words with a secret are replaced: `redacted` also writes the home folder as ~, which a
    # shell does not expand inside quotes.
    for word, without_secrets in zip(command, redacted(command), strict=True):
        if "***" in without_secrets:
            word = without_secrets
        words.append(word)
    return shell.line(words)


def _print_end_of_recording(
    recording: Recording, command: list[str], rehearsal: str
) -> None:
    """Print why the recorded program failed, or that it did not, and where its recording is.

    ``rehearsal``: the command that makes sure of the cause; empty where none is needed.
    """
    trace = recording.trace
    if not trace:
        print_notes(f"nothing was recorded: {recording.why_no_trace}")
        return
    with says_if_slow(shared.ANALYSED):
        verdict = shared.verdict_on_recording(trace, command)
    print(f"\n{PROGRAM}:", file=sys.stderr)
    if verdict:
        more = f"All evidence: {PROGRAM} diagnose {shell.word(str(trace))} --wide"
        print(brief(verdict, more), file=sys.stderr)
    print_notes(where_recorded(trace))
    if rehearsal:
        print_notes("to be sure of the cause, rehearse the program:")
        print(f"    {rehearsal}", file=sys.stderr)
