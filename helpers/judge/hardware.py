"""What kind of GPU a report is about, and whether the program runs on ROCm."""

from __future__ import annotations

import re

from helpers.judge.evidence import CaseEvidence, vendor_of
from helpers.look.parts import UNIFIED, UNKNOWN, gpu_kind, is_unified_size

NAME_FACTS = ("gpu", "gfx", "card", "device", "chip")
"""Names of facts about the environment that say what the GPU is called."""


def device_names(evidence: CaseEvidence) -> list[str]:
    """The names that the facts of the environment give the GPU."""
    return [value for name, value in evidence.facts if name in NAME_FACTS]


def total_of_message(evidence: CaseEvidence) -> int | None:
    """The capacity in the first message that prints one, in bytes; None where none does."""
    for message in evidence.messages:
        if message.capacity:
            return message.capacity.bytes
    return None


def is_hip(evidence: CaseEvidence) -> bool:
    """Whether the program runs on ROCm: by its message, or by the facts of the environment."""
    if any(message.backend == "hip" for message in evidence.messages):
        return True
    said = " ".join(evidence.fact(name) for name in ("torch", "rocm", "gpu", "gfx"))
    match = re.search(r"rocm|hip|amd|radeon|instinct|gfx\d", said, re.IGNORECASE)
    return match is not None


def kind_of(evidence: CaseEvidence) -> str:
    """The kind of GPU (APU, CARD, UNIFIED or UNKNOWN of look.parts): by the GPU's own names, else
    by what the texts name.
    """
    total = total_of_message(evidence)
    names = device_names(evidence)
    # "gfx1035 as gfx1030": the chip is the first, the second is what it is passed off as.
    chips = [re.split(r" (?:as|presented|seen)\b", name)[0] for name in names]
    kind = gpu_kind(chips, evidence.bundle, total)
    if kind != UNKNOWN:
        return kind
    texts = [text for _, text in evidence.tools]
    kind = gpu_kind([*names, *texts, evidence.error_text], evidence.bundle, total)
    is_nvidia = vendor_of(evidence.messages) == "NVIDIA"
    # No name tells; a total may, where no card of NVIDIA has such a one.
    if kind == UNKNOWN and is_nvidia and total and is_unified_size(total):
        return UNIFIED
    return kind
