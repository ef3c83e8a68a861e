"""The next step of a verdict: what a person does, one thing after the other, each with its command."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from helpers.ground.shapes import NextStep, Verdict
from helpers.tell.html_table import text_html
from helpers.tell.prose import SCREEN, flat, parted, typed, wrapped

NOTHING = "none"
"""What a step says that needs nothing first, or harms nothing."""
CHECK = "Check that it worked:"


class TypedStep(NamedTuple):
    """One thing that a person does: what it is in words, and the one command that is typed."""

    says: str
    command: str


def lead(verdict: Verdict) -> str:
    """What the steps are for, above them; empty where the only command says it beside itself."""
    if len(_commands(verdict.next_step.command)) < 2:
        return ""
    return flat(verdict.next_step.what)


def steps(verdict: Verdict) -> list[TypedStep]:
    """The next step as what a person does one after the other, a command a step."""
    step = verdict.next_step
    listed = [TypedStep(flat(step.what), step.command)]
    if lead(verdict):
        listed = _commands(step.command)
    if step.reboot:
        listed.append(TypedStep("Reboot: the change takes effect at the next boot", ""))
    if step.check:
        listed.append(TypedStep(CHECK, step.check))
    if step.undo:
        listed.append(TypedStep("Only if it did not help, undo it:", step.undo))
    return listed


def _commands(text: str) -> list[TypedStep]:
    """Commands that are typed one after the other, each with the comment before or behind it.

    Comments that no command follows stay with the last one.
    """
    listed: list[TypedStep] = []
    comments: list[str] = []
    for line in text.splitlines():
        command, comment = parted(line)
        if listed and not comments and _goes_on(listed[-1].command, line):
            listed[-1] = TypedStep(listed[-1].says, f"{listed[-1].command}\n{line}")
            continue
        if comment:
            comments.append(comment)
        if command:
            listed.append(TypedStep(flat(". ".join(comments)), command))
            comments = []
    if comments and listed:
        says, command = listed.pop()
        below = "\n".join(f"# {comment}" for comment in comments)
        listed.append(TypedStep(says, f"{command}\n{below}"))
    return listed


def _goes_on(command: str, line: str) -> bool:
    """Whether a line belongs to the command before it."""
    return line.startswith(" ") or command.endswith("\\")


def typed_steps(verdict: Verdict, listed: list[TypedStep]) -> list[str]:
    """Steps, by number where there are several, each with its command as it is typed; above them
    what they are for and need first, below them what they may harm.
    """
    step = verdict.next_step
    lines = []
    for text in (lead(verdict), needed_first(step)):
        if text:
            lines += wrapped(text, "  ", columns=SCREEN)
    for number, row in enumerate(listed, 1):
        mark = f"{number}. " if len(listed) > 1 else ""
        commands = typed(row.command, "     ")
        if row.says:
            lines += wrapped(mark + row.says, "  ", "  " + " " * len(mark), SCREEN)
        elif mark:
            commands[0] = f"  {mark}{commands[0].lstrip()}"
        lines += commands
    if harm(step):
        lines += wrapped(harm(step), "  ", columns=SCREEN)
    return lines


def needed_first(step: NextStep) -> str:
    """What a step needs first, in words; empty where that is nothing."""
    if step.precondition in ("", NOTHING):
        return ""
    return flat(f"First make sure: {step.precondition}")


def harm(step: NextStep) -> str:
    """What a step may harm, in words; empty where that is nothing."""
    if step.blast_radius in ("", NOTHING):
        return ""
    return flat(f"Side effects: {step.blast_radius}")


def steps_html(verdict: Verdict) -> str:
    """The next step as a numbered list, what is typed as lines to copy, above it what it is for
    and needs, below it what it may harm.
    """
    step = verdict.next_step
    above = "".join(
        f"<p>{escape(line)}</p>" for line in (lead(verdict), needed_first(step)) if line
    )
    listed = "".join(
        f"<li>{escape(row.says)}{text_html(row.command)}</li>" for row in steps(verdict)
    )
    below = f"<p>{escape(harm(step))}</p>" if harm(step) else ""
    return f"<div class=casebook>{above}<ol>{listed}</ol>{below}</div>"


class NextSteps(NamedTuple):
    """The next step of a verdict: what to do, to check and to undo."""

    verdict: Verdict

    def __str__(self) -> str:
        return "\n".join(typed_steps(self.verdict, steps(self.verdict)))

    def _repr_html_(self) -> str:
        return steps_html(self.verdict)
