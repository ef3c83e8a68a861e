"""The program that failed, as the texts name it: by its process numbers, and by its name.

A line of the kernel's log says which process it is about; it is evidence where that is this
program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.judge import form
from helpers.judge.evidence import CaseEvidence, once
from helpers.judge.observation import NEUTRAL_EVENTS
from helpers.look.message import Message, of_device
from helpers.look.squeezed import prefix

KERNEL = "kernel"
KILLS = ("killed", "sigkill")


@dataclass(frozen=True)
class FailingProgram:
    """The program that failed, as the texts name it.

    ``words``: what it printed, without lines of the kernel's log. ``pids``: its process numbers.
    ``was_killed``: a signal killed it, or a part of it.
    """

    words: str
    pids: frozenset[int]
    was_killed: bool

    def has_name(self, process: str) -> bool:
        """Whether the text names a program ``process``; a traceback names Python."""
        if not process:
            return False
        is_python = form("python's process").match(process)
        if is_python and form("traceback").search(self.words):
            return True
        name = rf"(?<![\w.-]){re.escape(process)}(?![\w-])"
        return re.search(name, self.words) is not None


@once
def failing_program(evidence: CaseEvidence) -> FailingProgram | None:
    """The program that the text is about; None where the text is the kernel's alone, or empty."""
    # Loading it takes longer than reading a message.
    from helpers.look import kernel_log

    printed = []
    for line in evidence.error_text.splitlines():
        without_prefix = line[prefix(line) :]
        if not kernel_log.parse(without_prefix):
            printed.append(line)
    words = "\n".join(printed)
    if not words.strip():
        return None
    pids = {account.own_pid for account in evidence.accounts if account.own_pid}
    messages = [message for message in evidence.messages if message.program != KERNEL]
    for message in messages:
        if not message.others:  # else the numbers are those of other processes
            pids.update(message.pids)
    was_killed = any(message.event in KILLS for message in messages)
    return FailingProgram(words, frozenset(pids), was_killed)


def of_another(message: Message, evidence: CaseEvidence) -> bool:
    """Whether a pasted line of the kernel names a process that is not the program which failed
    in the same text. Where no program failed in it, the person asks about that line.
    """
    # Only the kernel's lines name processes that may be any on the machine.
    names_somebody = message.program == KERNEL and bool(message.pids)
    of_programs = [other for other in evidence.messages if other.program != KERNEL]
    if not names_somebody or all(
        other.event in NEUTRAL_EVENTS for other in of_programs
    ):
        return False
    failing = failing_program(evidence)
    if failing is None or failing.pids & set(message.pids):
        return False
    return not failing.has_name(message.name)


def went_on(message: Message, evidence: CaseEvidence) -> bool:
    """Whether the program survived a refusal of device memory: it counts steps after it, and
    something else ended it later, or no traceback ended it.

    A line with the prefix of a rank does not tell: one rank may go on after another has died.
    *Progress* is a line that counts steps, such as a bar of tqdm (forms.json).
    """
    text = evidence.error_text
    if not of_device(message) or form("rank").search(line_before(message, text)):
        return False
    progress = form("progress").search(text, message.start + len(message.words))
    if progress is None:
        return False
    later = [other for other in evidence.messages if other.start > progress.start()]
    if any(map(of_device, later)):
        return False  # memory was refused again: that may have ended it
    if any(other.event not in NEUTRAL_EVENTS for other in later):
        return True
    error = last_error(text)
    # One line of progress may have been on its way; a second one was not.
    if error is None:
        counts_on = form("progress").search(text, progress.end())
        return counts_on is not None
    return error.start() > progress.start()


def line_before(message: Message, text: str) -> str:
    """The beginning of the line in which a message stands, up to the message."""
    begin = text.rfind("\n", 0, message.start) + 1
    return text[begin : message.start]


def last_error(text: str) -> re.Match[str] | None:
    """The exception of the last traceback; None where there is none."""
    start = text.rfind("Traceback (most recent call last)")
    if start < 0:
        return None
    return form("exception").search(text, start)
