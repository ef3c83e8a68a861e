"""Whose fault it is that a rehearsal failed: memory, the program or the rehearsal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from helpers.allocator.record import Recording
from helpers.ground.child import signal_name
from helpers.rehearse.reports import Report, Reports, is_exact, unanswered
from helpers.rehearse.words import WORDS
from helpers.settings.trouble import SettingsTrouble, settings_trouble

OUT_OF_MEMORY = re.compile(WORDS["ends"][0]["seen"])
OF_LAUNCHERS = {"ChildFailedError", "CellExecutionError", "PapermillExecutionError"}
"""Errors of torchrun, nbconvert and papermill, which only repeat what another process raised."""


def whose_fault(recording: Recording, reports: Reports, torch: str = "") -> str:
    """Whose fault it is, and why, in one line; ``torch`` is the release that was run."""
    for process in recording.processes:
        trouble = refused_setting(process, torch)
        if trouble is not None:
            return f"the program: {trouble.says}; {trouble.advice}"
    errors = " ".join(errors_in_words(reports))
    signal = ended_by(recording)
    missing = unanswered(reports)
    named = [name for name in missing if name in errors]
    if named:
        fault = WORDS["named"]
        missing = named
    else:
        fault = _fault_of_end(errors, signal, reports)
    names = ", ".join(missing[:3])
    says = fault["says"].format(signal=signal, code=recording.exit_code, names=names)
    return f"{fault['whose']}: {says}"


def refused_setting(process: Mapping[str, Any], torch: str) -> SettingsTrouble | None:
    """The allocator's setting at which torch stopped, where it kept nothing of this process."""
    if process["snapshots"]:
        return None
    build = process["torch"] or {"version": torch, "cuda": "here"}
    trouble = settings_trouble(process.get("allocator_variables", {}), {}, build)
    if trouble is None or not trouble.fatal:
        return None
    return trouble


def _fault_of_end(errors: str, signal: str, reports: Reports) -> dict[str, str]:
    """What a program's last errors, else the signal that ended it, say of whose fault it is."""
    row: dict[str, str]
    for row in WORDS["ends"]:
        if re.search(row["seen"], errors or signal):
            return row
    if errors:
        kind = "other" if is_exact(reports) else "sizes"
    elif signal:
        kind = "crash"
    else:
        kind = "unanswered" if unanswered(reports) else "exit"
    return dict(WORDS[kind])


def ended_by(recording: Recording) -> str:
    """The name of the signal that ended it, or its child; empty: none did."""
    if recording.signal:
        return recording.signal
    code = recording.exit_code
    return signal_name(code - 128) if 128 < code < 193 else ""


def errors_in_words(reports: Reports) -> list[str]:
    """The last errors of the processes that raised one."""
    return [f"{report['error']}: {report['message']}" for report in _failed(reports)]


def only_a_kernel_died(reports: Reports) -> bool:
    """Whether all that failed is a notebook, whose kernel died."""
    return {report["error"] for report in reports} - {""} == {"DeadKernelError"}


def _failed(reports: Reports) -> list[Report]:
    """The processes that raised an error; without launchers, unless only they did."""
    failed = [report for report in reports if report["error"]]
    first_hand = [report for report in failed if report["error"] not in OF_LAUNCHERS]
    return first_hand or failed


def ran_out_in_words(reports: Reports) -> int:
    """How many of the last errors say that memory ran out."""
    errors = errors_in_words(reports)
    return len([error for error in errors if OUT_OF_MEMORY.search(error)])
