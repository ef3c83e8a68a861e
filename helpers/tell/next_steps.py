"""The next step of a verdict as what a person does one after the other, each with its command."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from helpers.ground.shapes import NextStep, Verdict
from helpers.tell.html_table import text_html
from helpers.tell.prose import SCREEN, flat, parted, typed, wrapped

NOTHING = "none"
"""What a step's ``precondition`` says that needs nothing first, its ``blast_radius`` that harms
nothing.
"""
CHECK = "Check that it worked:"


class TypedStep(NamedTuple):
    """One thing that a person does: in words, and the one command that is typed for it. Either
    may be empty.
    """

    says: str
    command: str


def lead(verdict: Verdict) -> str:
    """The sentence above the steps that says what they are for. It is empty where there is at most
    one command: that is then a step itself, with this sentence as its words.
    """
    if len(_commands(verdict.next_step.command)) < 2:
        return ""
    return flat(verdict.next_step.what)


def steps(verdict: Verdict) -> list[TypedStep]:
    """The next step of a verdict as single steps with at most one command each; after them a reboot
    where one is needed, the check, and how to undo it, each where the verdict has it.
    """
    step = verdict.next_step
    listed = [TypedStep(flat(step.what), step.command)]
    if lead(verdict):  # there are several commands, each with words of its own
        listed = _commands(step.command)
    if step.reboot:
        listed.append(TypedStep("Reboot: the change takes effect at the next boot", ""))
    if step.check:
        listed.append(TypedStep(CHECK, step.check))
    if step.undo:
        listed.append(TypedStep("Only if it did not help, undo it:", step.undo))
    return listed


def _commands(text: str) -> list[TypedStep]:
    """The commands of a text as steps. The words of a step are the comments above its command and
    in its line. Comments below the last command stay with that command; a text of comments alone
    has no steps.
    """
    listed: list[TypedStep] = []
    comments: list[str] = []
    for line in text.splitlines():
        command, comment = parted(line)
        # After a comment a new command begins, even where its line is indented.
        if listed and not comments:
            last = listed[-1]
            # An indented line, or one below a backslash, belongs to the command before it.
            if line.startswith(" ") or last.command.endswith("\\"):
                listed[-1] = TypedStep(last.says, f"{last.command}\n{line}")
                continue
        if comment:
            comments.append(comment)
        if command:
            listed.append(TypedStep(flat(". ".join(comments)), command))
            comments = []
    if listed:
        last = listed.pop()
        lines = [last.command, *(f"# {comment}" for comment in comments)]
        listed.append(TypedStep(last.says, "\n".join(lines)))
    return listed


def typed_steps(verdict: Verdict, listed: list[TypedStep]) -> list[str]:
    """Lines for a terminal: the steps, numbered where there are several, each with its command;
    above them what they are for and need first, below them what they may harm.
    """
    step = verdict.next_step
    lines = []
    for text in (lead(verdict), needed_first(step)):
        if text:
            lines += wrapped(text, "  ", columns=SCREEN)
    for number, row in enumerate(listed, 1):
        mark = ""
        if len(listed) > 1:
            mark = f"{number}. "
        commands = typed(row.command, "     ")
        if row.says:
            indent_below = "  " + " " * len(mark)
            lines += wrapped(mark + row.says, "  ", indent_below, SCREEN)
        elif mark:  # without words, its number stands before the command
            commands[0] = f"  {mark}{commands[0].lstrip()}"
        lines += commands
    if harm(step):
        lines += wrapped(harm(step), "  ", columns=SCREEN)
    return lines


def needed_first(step: NextStep) -> str:
    """The sentence about what a step needs first; empty where it needs nothing."""
    if step.precondition in ("", NOTHING):
        return ""
    return flat(f"First make sure: {step.precondition}")


def harm(step: NextStep) -> str:
    """The sentence about what a step may harm; empty where it harms nothing."""
    if step.blast_radius in ("", NOTHING):
        return ""
    return flat(f"Side effects: {step.blast_radius}")


def steps_html(verdict: Verdict) -> str:
    """The next step as a numbered list with the commands as lines to copy; above it what it is
    for and needs, below it what it may harm.
    """
    step = verdict.next_step
    items = [
        f"<li>{escape(row.says)}{text_html(row.command)}</li>" for row in steps(verdict)
    ]
    above = _paragraph(lead(verdict)) + _paragraph(needed_first(step))
    below = _paragraph(harm(step))
    return f"<div class=casebook>{above}<ol>{''.join(items)}</ol>{below}</div>"


def _paragraph(words: str) -> str:
    """Words as a paragraph of HTML; empty where there are none."""
    if not words:
        return ""
    return f"<p>{escape(words)}</p>"


class NextSteps(NamedTuple):
    """The next step of a verdict as text and as HTML: what to do, to check and to undo."""

    verdict: Verdict

    def __str__(self) -> str:
        return "\n".join(typed_steps(self.verdict, steps(self.verdict)))

    def _repr_html_(self) -> str:
        return steps_html(self.verdict)
