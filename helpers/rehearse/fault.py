"""Whose fault it is that a rehearsal failed: memory, the program or the rehearsal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from helpers.allocator.record import Recording
from helpers.ground.child import signal_name
from helpers.rehearse.rehearsal import Told
from helpers.rehearse.trust import exact, unanswered
from helpers.rehearse.words import WORDS
from helpers.settings.trouble import SettingsTrouble, settings_trouble

OUT_OF_MEMORY = re.compile(WORDS["ends"][0]["seen"])
OF_LAUNCHERS = {"ChildFailedError", "CellExecutionError", "PapermillExecutionError"}
"""Errors of torchrun, nbconvert and papermill, which only repeat what another process raised."""


def whose(recording: Recording, told: Told, torch: str = "") -> str:
    """Whose fault it is, and why, in one line; ``torch`` is the release that was run."""
    for process in recording.processes:
        trouble = refused_setting(process, torch)
        if trouble is not None:
            return f"the program: {trouble.says}; {trouble.advice}"
    errors = " ".join(errors_in_words(told))
    missing = unanswered(told)
    named = [name for name in missing if name in errors]
    signal = ended_by(recording)
    row = _row(errors, signal, bool(named), bool(missing), exact(told))
    says = row["says"].format(
        signal=signal,
        code=recording.exit_code,
        names=", ".join((named or missing)[:3]),
    )
    return f"{row['whose']}: {says}"


def refused_setting(process: Mapping[str, Any], torch: str) -> SettingsTrouble | None:
    """The allocator's setting at which torch stopped, where it kept nothing of this process."""
    if process["snapshots"]:
        return None
    about = process["torch"] or {"version": torch, "cuda": "here"}
    trouble = settings_trouble(process.get("allocator_variables", {}), {}, about)
    return trouble if trouble and trouble.fatal else None


def _row(
    errors: str, signal: str, named: bool, missing: bool, is_exact: bool
) -> dict[str, str]:
    """The row of words that says so."""
    row: dict[str, str]
    if named:
        row = WORDS["named"]
        return row
    for row in WORDS["ends"]:
        if re.search(row["seen"], errors or signal):
            return row
    if errors:
        row = WORDS["other" if is_exact else "sizes"]
    elif signal:
        row = WORDS["crash"]
    else:
        row = WORDS["unanswered" if missing else "exit"]
    return row


def ended_by(recording: Recording) -> str:
    """The name of the signal that ended it, or its child; empty: none did."""
    if recording.signal:
        return recording.signal
    code = recording.exit_code
    return signal_name(code - 128) if 128 < code < 193 else ""


def errors_in_words(told: Told) -> list[str]:
    """The last errors of the processes that raised one."""
    return [f"{row['error']}: {row['message']}" for row in _raised(told)]


def only_a_kernel_died(told: Told) -> bool:
    """Whether all that failed is a notebook, whose kernel died."""
    return {row["error"] for row in told} - {""} == {"DeadKernelError"}


def _raised(told: Told) -> list[Mapping[str, Any]]:
    """The processes that raised; without launchers, unless only they did."""
    rows = [row for row in told if row["error"]]
    first_hand = [row for row in rows if row["error"] not in OF_LAUNCHERS]
    return first_hand or rows


def ran_out_in_words(told: Told) -> int:
    """How many of the last errors say that memory ran out."""
    return sum(1 for words in errors_in_words(told) if OUT_OF_MEMORY.search(words))
