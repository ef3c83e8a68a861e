"""What the figures at hand are evidence of: the kind of GPU, what they say of each other, and which ceiling binds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from helpers.grammar import lazy
from helpers.judge.binding import decide, numbers_of
from helpers.judge.evidence import CaseEvidence, Observation, note, texts, vendor_of
from helpers.look.figures import Figure, figures_of, figures_of_message
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, card_sizes, gpu_kind, is_unified_size
from helpers.look.reading import GIB, MIB, show_bytes
from helpers.look.relations import relations
from helpers.units import printed_size

NAMES = ("gpu", "gfx", "card", "device", "chip")
KINDS = {APU: "apu", UNIFIED: "unified-memory", CARD: "card"}
LAYERS = {
    "ttm-gtt-cap": "ttm",
    "carveout-only": "carveout",
    "hsa-pool-cap": "hsa",
    "metric-misreport": "metric",
}
_NAMED_SIZE = lazy(r"\d{1,3}(?:\.\d)? ?Gi?B\b")
SMALL_CARVE_OUTS = (256 * MIB, 512 * MIB, GIB, 2 * GIB)
"""Sizes of a frame buffer that no system with a desktop has as its whole RAM (firmware menus of APUs)."""
PROGRAM_POOLS, TOOL_POOLS = ("runtime", "hsa", "kfd", "opencl", "vulkan"), ("vram", "visible-vram")


def is_hip(evidence: CaseEvidence) -> bool:
    """Whether the program runs on ROCm: by its message, or by what is said of the stack."""
    said = " ".join(evidence.fact(name) for name in ("torch", "rocm", "gpu", "gfx"))
    named = re.search(r"rocm|hip|amd|radeon|instinct|gfx\d", said, re.IGNORECASE)
    return any(m.backend == "hip" for m in evidence.messages) or bool(named)


def kind_of(evidence: CaseEvidence) -> str:
    """apu, card, nvidia-unified or unknown: by the GPU's own names first, then by what the texts name."""
    total = next((m.capacity.bytes for m in evidence.messages if m.capacity), None)
    # "gfx1035 as gfx1030": the chip is the first, the second is what it is passed off as.
    facts = [value for name, value in evidence.facts if name in NAMES]
    own = [re.split(r" (?:as|presented|seen)\b", value)[0] for value in facts]
    kind = gpu_kind(own, (), evidence.bundle, total)
    if kind != UNKNOWN:
        return kind
    said = [text for _, text in evidence.tools] + [evidence.error_text]
    kind = gpu_kind(facts + said, (), evidence.bundle, total)
    if kind == UNKNOWN and total and vendor_of(evidence.messages) == "NVIDIA":
        return UNIFIED if is_unified_size(total) else kind
    return kind


def size_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the figures say of each other, what kind of GPU it is, and which ceiling binds."""
    kind, found = kind_of(evidence), []
    figures = list(figures_of(texts(evidence)))
    for message in evidence.messages:
        figures += figures_of_message(message)
    if kind in KINDS:
        found.append(note(KINDS[kind], kind, "the GPU's own name", "environment"))
    names = [value for name, value in evidence.facts if name in NAMES]
    cards = len({f.bytes for f in figures if f.what == "total" and f.pool == "vram"})
    for relation in relations(figures, kind, card_sizes(names), is_hip(evidence)):
        first, name = relation.figures[0], relation.name
        if name == "above-hardware" and kind == CARD and cards > 1:
            continue  # which of several cards it is, is not known
        if name == "runtime-below-driver" and kind == CARD:
            name = "runtime-below-card"
        if name == "totals-differ" and all(f.pool == "runtime" for f in relation.figures):
            name = "runtime-totals-differ"
        value = first.text if first.bytes is None else first.bytes
        made = note(name, value, first.source, first.origin, relation.says, relation.hard)
        found.append(replace(made, filled=any(f.filled for f in relation.figures)))
    pools = ("vram", "runtime", "gtt") if kind == APU else ("vram", "runtime")
    used = [f for f in figures if f.what == "used" and f.pool in pools]
    most = max(used, key=lambda f: f.bytes or 0, default=None)
    if most is not None and (most.bytes or 0) > GIB // 2 and not evidence.messages:
        found.append(note("card-in-use", most.bytes, most.source, most.origin, hard=most.read))
    ram = max((f.bytes or 0 for f in figures if f.what == "total" and f.pool == "ram"), default=0)
    needs = [f for f in figures if f.what == "wanted" and f.pool in ("runtime", "weights")]
    for f in [need for need in needs if ram and (need.bytes or 0) > ram][:1]:
        name, whole = "needs-more-than-ram", show_bytes(ram)
        found.append(note(name, f.bytes, f.source, f.origin, hard=f.read, ram=whole))
    if kind == APU:
        found += _carve_outs(figures)
    elif kind == UNKNOWN and is_hip(evidence):
        # ROCm runs on no card of so little memory (parts.json).
        least = [f for f in figures if f.pool == "runtime" and (f.bytes or 0) <= GIB]
        found += _carve_outs(least)
    posted = (
        figures if kind not in (APU, UNIFIED) else []
    )  # where RAM is shared, a total may be a limit
    found += _above_the_named_card(evidence, names, posted)
    return [*found, *_ceilings(evidence, figures, kind)]


def _above_the_named_card(
    evidence: CaseEvidence, names: list[str], figures: list[Figure]
) -> Iterator[Observation]:
    """A request without a total beside it that is larger than the card which is named, or than every total posted."""
    said = [printed_size(size) for text in names for size in _NAMED_SIZE.findall(text)]
    said += [f.bytes or 0 for f in figures if f.what == "total" and f.pool in ("vram", "runtime")]
    largest = max([*(size * GIB for size in card_sizes(names)), *said], default=0)
    for message in evidence.messages:
        if largest and message.requested and not message.capacity and message.side == "device":
            if message.requested.bytes > largest:
                words, total = message.requested.text, show_bytes(largest)
                yield note("request-above-card", words, "error text", "message", total=total)
                return


def _carve_outs(figures: list[Figure]) -> Iterator[Observation]:
    """A program's total, or a tool's, that is the carve-out of an APU."""
    totals = [f for f in figures if f.what == "total" and f.bytes]
    programs = [f for f in totals if f.pool in PROGRAM_POOLS]
    for f in programs:
        if f.bytes in SMALL_CARVE_OUTS:
            yield note("carve-out-size", f.bytes, f.source, f.origin, hard=f.read)
    for f in totals:
        if f.pool not in TOOL_POOLS or f.when == "boot":
            continue
        larger = next((p.bytes for p in programs if (p.bytes or 0) > 1.5 * (f.bytes or 0)), None)
        if larger or (f.bytes in SMALL_CARVE_OUTS and not programs):
            says = f"a program sees {show_bytes(larger)}" if larger else "the size of a carve-out"
            hard = f.read and larger is not None
            yield note("tool-shows-carve-out", f.bytes, f.source, f.origin, hard=hard, runtime=says)


def _ceilings(evidence: CaseEvidence, figures: list[Figure], kind: str) -> Iterator[Observation]:
    """The one decision about ceilings, of the box or of the figures that were posted."""
    total = next((m.capacity.bytes for m in evidence.messages if m.capacity), None)
    if evidence.bundle is not None:
        from helpers.judge.ceilings import ceiling_answer

        answers, hearsay, origin = ceiling_answer(evidence.bundle, total), set(), "bundle"
    else:
        kernel, failed = evidence.fact("kernel"), bool(evidence.messages)
        given = numbers_of(figures, kind, kernel, is_hip(evidence), failed)
        answers, hearsay, origin = [decide(given)], set(given.hearsay), "tool"
    for answer in answers:
        layer = LAYERS.get(answer.cause)
        if layer is None:
            continue
        name = f"ceiling-{layer}" + ("-hint" if answer.confidence == "weak" else "")
        size = answer.pattern if answer.binding_bytes is None else answer.binding_bytes
        hard, proof = not set(answer.rests) & hearsay, answer.confidence == "confirmed"
        source = f"the layers' totals ({answer.pattern})"
        yield note(name, size, source, origin, answer.says, hard, proof)
        if evidence.bundle is not None:
            from helpers.judge.box import layer_observations

            yield from layer_observations(evidence.bundle, name)
