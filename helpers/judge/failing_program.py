"""The program that failed, as the texts handed over name it: by its numbers, and by its name.

A line of the kernel's log says whom it is about; it is evidence where that is this program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.judge import form
from helpers.judge.evidence import CaseEvidence, once
from helpers.judge.observation import SILENT
from helpers.look.message import Message, of_device
from helpers.look.squeezed import prefix

KERNEL = "kernel"
KILLS = ("killed", "sigkill")


@dataclass(frozen=True)
class FailingProgram:
    """The program that failed, as the texts beside the kernel's lines name it.

    ``words``: what it printed, without the kernel's own lines. ``was_killed``: it, or a part of
    it, by a signal.
    """

    words: str
    pids: frozenset[int]
    was_killed: bool

    def has_name(self, process: str) -> bool:
        """Whether the text speaks of a program of this name; a traceback is Python's."""
        if form("python's process").match(process) and form("traceback").search(
            self.words
        ):
            return True
        name = rf"(?<![\w.-]){re.escape(process)}(?![\w-])"
        return bool(process) and re.search(name, self.words) is not None


@once
def failing_program(evidence: CaseEvidence) -> FailingProgram | None:
    """The program that the text is about; None where the text is the kernel's alone, or empty."""
    # It takes longer to load than a message to read.
    from helpers.look import kernel_log

    lines = evidence.error_text.splitlines()
    words = "\n".join(
        line for line in lines if not kernel_log.parse(line[prefix(line) :])
    )
    if not words.strip():
        return None
    pids = {account.own_pid for account in evidence.accounts if account.own_pid}
    messages = [message for message in evidence.messages if message.program != KERNEL]
    for message in messages:
        if not message.others:
            pids.update(message.pids)
    was_killed = any(message.event in KILLS for message in messages)
    return FailingProgram(words, frozenset(pids), was_killed)


def of_another(message: Message, evidence: CaseEvidence) -> bool:
    """Whether a pasted line of the kernel names a process that is not the program which failed
    in the same text. Where no program failed in it, the line is what is asked about.
    """
    names_somebody = message.program == KERNEL and bool(message.pids)
    of_programs = [other for other in evidence.messages if other.program != KERNEL]
    if not names_somebody or all(other.event in SILENT for other in of_programs):
        return False
    failing = failing_program(evidence)
    if failing is None or failing.pids & set(message.pids):
        return False
    return not failing.has_name(message.name)


def went_on(message: Message, evidence: CaseEvidence) -> bool:
    """Whether the program survived a refusal of device memory: it counts steps behind it, and
    something else ended it later, or no traceback ended it. Of several ranks one may go on while
    another has died.
    """
    text = evidence.error_text
    line = text[text.rfind("\n", 0, message.start) + 1 : message.start]
    if not of_device(message) or form("rank").search(line):
        return False
    progress = form("progress").search(text, message.start + len(message.words))
    if progress is None:
        return False
    later = [other for other in evidence.messages if other.start > progress.start()]
    if any(map(of_device, later)):
        return False
    if any(other.event not in SILENT for other in later):
        return True
    error = last_error(text)
    if error is None:
        return form("progress").search(text, progress.end()) is not None
    return error.start() > progress.start()


def last_error(text: str) -> re.Match[str] | None:
    """The exception of the last traceback; None where there is none."""
    start = text.rfind("Traceback (most recent call last)")
    return form("exception").search(text, start) if start >= 0 else None
