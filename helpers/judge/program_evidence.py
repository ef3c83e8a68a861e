"""What the facts of a recorded program give as evidence, a line each."""

from __future__ import annotations

from helpers.ground.shapes import BESIDE, Evidence, seen
from helpers.ground.units import show_bytes
from helpers.judge.program_facts import (
    GrowerFacts,
    GrowthFacts,
    ProgramFacts,
    Refusal,
    Repeat,
)
from helpers.judge.program_questions import LEAST_KEPT, is_large

EXPANDABLE = "expandable_segments:True"
SOON_STEPS = 1_000
"""Memory that grows is worth a line where so many steps would fill the card: many programs train
for more.
"""


def keeps(grower: GrowerFacts, growth: GrowthFacts) -> str:
    """How much more the program keeps with each step, and where, as the end of a sentence."""
    says = f"keeps {show_bytes(growth.bytes_per_step)} more each step"
    if grower.keeper:
        says += f" in {grower.keeper}"
    return f"{says} ({grower.line})"


def of_growth(facts: ProgramFacts, growth: GrowthFacts) -> Evidence:
    """How much was kept over the steps, at which line, and how."""
    grower = growth.growers[0]
    says = f"Kept at {grower.line}"
    if grower.with_graphs:
        says += ", each entry with the graph of its step"
    elif grower.through_graph:
        says += ", with the graphs of all steps before it"
    # Where it is kept is the line to change; where it was allocated helps to find the tensor.
    if grower.asked_at and grower.asked_at != grower.line:
        says += f", allocated at {grower.asked_at}"
    others = len(growth.growers) - 1
    if others == 1:
        says += ", and at 1 more line"
    elif others:
        says += f", and at {others} more lines"
    steps = f"{growth.steps} steps"
    if growth.steps == 1:
        steps = "1 step"
    says += f": {show_bytes(growth.bytes_per_step)} a step over {steps}"
    if facts.refusal is not None:
        says += ", the failing one included"
    return size_evidence("grows", growth.kept_bytes, facts, says)


def also_grows(facts: ProgramFacts) -> list[Evidence]:
    """The memory that grows where that is not why the program failed; empty where it is not worth
    a line. It is worth one where it fills the card within SOON_STEPS steps, or where what was kept
    is a good part of the peak or, beside a refusal, of what the process can have.
    """
    growth = facts.growth
    if growth is None or not growth.growers:
        return []
    room = max(facts.usable_bytes, facts.peak_allocated_bytes)
    fills_soon = SOON_STEPS * growth.bytes_per_step >= room
    is_much = LEAST_KEPT * growth.kept_bytes >= facts.peak_allocated_bytes
    if facts.refusal is not None:
        is_much = is_large(growth, facts.refusal)
    if not fills_soon and not is_much:
        return []
    says = f"The program {keeps(growth.growers[0], growth)}"
    return [size_evidence(f"{BESIDE}grows", growth.kept_bytes, facts, says)]


def of_refusal(facts: ProgramFacts, refusal: Refusal) -> Evidence:
    """The size that was refused, where, and what the card was full of."""
    request = "Failed request"
    if refusal.fails_in_replay:
        request = "Request that fails in the replay"
    if refusal.where:
        request += f", at {refusal.where}"
    if refusal.callers:
        request += f", called from {', '.join(refusal.callers)}"
    says = (
        f"{request}; of {show_bytes(refusal.room_bytes)}, "
        f"{show_bytes(refusal.allocated_bytes)} was allocated, {show_bytes(refusal.unused_bytes)} "
        f"cached and {show_bytes(refusal.device_free_bytes)} free"
    )
    return size_evidence("refused", refusal.request_bytes, facts, says)


def of_repeat(repeat: Repeat, facts: ProgramFacts) -> Evidence:
    """The peak of a second run, and how that run ended."""
    # Of two kinds of repeat one has the settings of the recorded run and no limit.
    name = "without-limit"
    source = "repeat without a limit"
    says = "Peak allocated in a second run without a memory limit"
    if EXPANDABLE in repeat.conf:
        name = "expandable"
        source = "repeat with expandable segments"
        says = f"Peak allocated in a second run with {repeat.conf}"
    if repeat.stopped:
        says += ", until it was stopped; another run may get further"
    elif repeat.fits:
        says += "; that run finished"
    else:
        says += f"; that run used up {show_bytes(repeat.capacity_bytes)} and failed"
    return size_evidence(name, repeat.peak_allocated_bytes, facts, says, source)


def of_holding(facts: ProgramFacts) -> list[Evidence]:
    """The lines that hold most at the peak, with their sizes."""
    return [
        size_evidence(
            f"holds-{number}",
            holding.bytes,
            facts,
            f"Allocated at the peak by {holding.line}",
        )
        for number, holding in enumerate(facts.holding, 1)
    ]


def size_evidence(
    name: str, size: int, facts: ProgramFacts, says: str, source: str = ""
) -> Evidence:
    """A size in bytes as evidence, by default from the recording."""
    if not source:
        source = facts.source
    return Evidence(name, seen(size, "bytes", source), says)


def text_evidence(name: str, words: str, facts: ProgramFacts, says: str) -> Evidence:
    """Words from the recording as evidence."""
    return Evidence(name, seen(words, "text", facts.source), says)
