"""Whose fault it is that a rehearsal failed: memory, the program or the rehearsal."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from helpers.allocator.record import Recording
from helpers.ground.child import signal_name
from helpers.rehearse.reports import Report, Reports, is_exact, unanswered
from helpers.rehearse.words import WORDS
from helpers.settings.trouble import SettingsTrouble, settings_trouble

OUT_OF_MEMORY = re.compile(WORDS["ends"][0]["seen"])
"""How a last error says that memory ran out: the first row of "ends" in words.json."""
BEFORE_SIGNALS = 128
"""What a shell adds to the number of the signal that ended a program, for its exit code."""
SIGNAL_CODES = range(BEFORE_SIGNALS + 1, BEFORE_SIGNALS + signal.NSIG)
"""Exit codes of a program that a signal ended."""
MOST_NAMES = 3
"""Functions of libraries that are named in the line about a failure."""
OF_LAUNCHERS = {"ChildFailedError", "CellExecutionError", "PapermillExecutionError"}
"""Errors of torchrun, nbconvert and papermill, which only repeat what another process raised."""


def whose_fault(recording: Recording, reports: Reports, torch: str = "") -> str:
    """Whose fault a failure is, and why, as "the program: it asked ...". In this order it follows
    from a setting that torch refused, from a function without a stand-in that an error names, from
    the errors, from the signal that ended the program. ``torch``: the release that ran.
    """
    for process in recording.processes:
        trouble = refused_setting(process, torch)
        if trouble is not None:
            return f"the program: {trouble.says}; {trouble.advice}"
    errors = " ".join(errors_in_words(reports))
    signal_of_end = ended_by(recording)
    missing = unanswered(reports)
    named = [name for name in missing if name in errors]
    if named:
        fault = WORDS["named"]
        missing = named
    else:
        fault = _fault_of_end(errors, signal_of_end, reports)
    names = ", ".join(missing[:MOST_NAMES])
    code = recording.exit_code
    says = fault["says"].format(signal=signal_of_end, code=code, names=names)
    return f"{fault['whose']}: {says}"


def refused_setting(process: Mapping[str, Any], torch: str) -> SettingsTrouble | None:
    """The allocator's setting at which torch ended a process of a recording; None where no setting
    did. ``torch``: the release that ran, for a process that ended before it recorded its own.
    """
    if process["snapshots"]:
        return None  # torch took the settings, and recorded
    build = process["torch"]
    if not build:
        # Of which version its CUDA is does not matter, only that it is a CUDA build.
        build = {"version": torch, "cuda": "here"}
    trouble = settings_trouble(process.get("allocator_variables", {}), {}, build)
    if trouble is None or not trouble.fatal:
        return None
    return trouble


def _fault_of_end(errors: str, signal_of_end: str, reports: Reports) -> dict[str, str]:
    """The row of words.json (``whose`` and ``says``) for a program's last errors, else for the
    signal that ended it.
    """
    ending = errors
    if not errors:
        ending = signal_of_end
    row: dict[str, str]
    for row in WORDS["ends"]:
        if re.search(row["seen"], ending):
            return row
    if errors and is_exact(reports):
        kind = "other"
    elif errors:
        kind = "sizes"  # a size that was only assumed may be what the program failed at
    elif signal_of_end:
        kind = "crash"
    elif unanswered(reports):
        kind = "unanswered"
    else:
        kind = "exit"
    return dict(WORDS[kind])


def ended_by(recording: Recording) -> str:
    """The name of the signal that ended the program, or its child; empty where none did."""
    if recording.signal:
        return recording.signal
    if recording.exit_code in SIGNAL_CODES:
        return signal_name(recording.exit_code - BEFORE_SIGNALS)
    return ""


def errors_in_words(reports: Reports) -> list[str]:
    """The last errors of the processes that raised one, as "ValueError: its text"."""
    return [f"{report['error']}: {report['message']}" for report in _failed(reports)]


def only_a_kernel_died(reports: Reports) -> bool:
    """Whether all that failed is a notebook, whose kernel died."""
    return {report["error"] for report in reports} - {""} == {"DeadKernelError"}


def _failed(reports: Reports) -> list[Report]:
    """The processes that raised an error; without launchers, unless only they did."""
    failed = [report for report in reports if report["error"]]
    first_hand = [report for report in failed if report["error"] not in OF_LAUNCHERS]
    if not first_hand:
        return failed
    return first_hand


def ran_out_in_words(reports: Reports) -> int:
    """How many of the last errors say that memory ran out."""
    errors = errors_in_words(reports)
    return len([error for error in errors if OUT_OF_MEMORY.search(error)])
