"""Next steps and phrases that several answers about a recorded program share."""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.shapes import Missing, NextStep, Verdict
from helpers.ground.units import show_bytes
from helpers.judge.program_facts import ProgramFacts, Refusal

EXAMPLE_CARD = "--gpu 4090"
EXAMPLE_PROGRAM = "python train.py"
"""What stands in a command where the recording does not name the card or the program."""


def allowed_in_words(facts: ProgramFacts, refusal: Refusal, usable: str = "") -> str:
    """How much the process can have, and whether the program itself limits that; ``usable``: the
    size in words, where they are more exact than usual.
    """
    if not usable:
        usable = show_bytes(refusal.usable_bytes)
    if not refusal.is_limited:
        return usable
    return f"{usable} (set_per_process_memory_fraction {facts.fraction:g})"


def gets_past(setting: str) -> str:
    """That the replay meets the refused request with a setting, as the end of a title."""
    return f"{setting} gets past this request; the rest was not recorded"


def start_anew(advice: str, command: str, check: str = "") -> NextStep:
    """A step that changes a variable of the program's environment."""
    return NextStep(
        what=advice,
        command=command,
        check=check,
        blast_radius="every program that you start from this shell uses the setting, in place of "
        "the variable's earlier value",
    )


def rehearse_command(facts: ProgramFacts) -> str:
    """The command that rehearses the program that was recorded, on its card."""
    card = facts.card_options
    if not card:
        card = EXAMPLE_CARD
    program = facts.command
    if not program:
        program = EXAMPLE_PROGRAM
    return f"casebook rehearse {card} -- {program}"


def check_by_rehearsing(facts: ProgramFacts) -> str:
    """The command that shows whether a change helped."""
    return f"{rehearse_command(facts)}  # runs the program on simulated GPU memory of this size; needs no GPU"


def repeat_would_decide(facts: ProgramFacts) -> Missing:
    """What is missing where only the recorded run is known."""
    return Missing(
        "a run of the same program without a memory limit; only a rehearsal can do that",
        rehearse_command(facts),
    )


def likely_until_repeated(verdict: Verdict, facts: ProgramFacts) -> Verdict:
    """The verdict as a likely one, which a run without a memory limit would decide."""
    missing = [repeat_would_decide(facts)]
    return replace(verdict, confidence="likely", missing=missing)


def end_of_room(facts: ProgramFacts, refusal: Refusal) -> str:
    """When a program that grows has to fail, as the end of a sentence."""
    if not refusal.is_limited:
        return "the card is full"
    return f"it reaches its own limit of {allowed_in_words(facts, refusal)}"
