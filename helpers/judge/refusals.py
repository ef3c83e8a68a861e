"""What failure messages are evidence of: their event, who says it, and what the account of their numbers adds up to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Callable

from helpers.grammar import lazy, meaning
from helpers.judge.account import CONTEXT_BYTES, LIKELY, POSSIBLE, Account, above, account, plus
from helpers.judge.evidence import (
    SILENT,
    CaseEvidence,
    Observation,
    is_described,
    note,
    observation_name,
    texts,
)
from helpers.look.messages import Message, read_message
from helpers.look.reading import GIB, MIB, show_bytes

NEAR_END = 0.9
"""A process that holds this share of the card is what fills it; the rest is context and granules (account.NEAR_FULL)."""
OWN_SHARE = 3
"""A process that holds over three times what others do is the first to ask for less; below that, ask who they are."""
SOURCE = "error text"
BROKEN = ("fault", "assert")
FAMILIES = {"row:jax": ("XLA", ("workspace", "mismatch")), "row:miopen": ("MIOpen", ("workspace",))}
OWN_POOL = ("TensorFlow", "XLA", "JAX")
NEAR_CHARACTERS = 1500
_TORCH_ERROR = lazy(r"(?:RuntimeError|AcceleratorError): (?:CUDA|HIP) error")
_PINNED = lazy(
    r"pin_memory|(?:cuda|hip)Host(?:Alloc|Malloc|Register)|(?:cuda|hip)MallocHost"
    r"|\.(?:to|copy_)\([^)\n]{0,20}cpu[^)\n]{0,20}non_blocking ?= ?True"
)
"""Page-locked memory by name, or torch's copy to the CPU that need not be waited for, whose target it pins (_to_copy)."""
_CONTEXT = lazy(
    r"cuCtxCreate|cuDevicePrimaryCtxRetain|cuInit|hipInit|(?:cuda|hip)SetDevice|_lazy_init|_cuda_init"
)
_UNSURE = lazy(
    r"NOT_INITIALIZED|CUDNN_STATUS_EXECUTION|library not initialized|INTERNAL_ERROR(?!_)|handle failed",
    re.IGNORECASE,
)

Say = Callable[..., Observation]


def message_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the messages of the error text say, and those in posted tool output; in prose they are hearsay."""
    found: list[Observation] = []
    for message in evidence.messages:
        found += _of_message(message, "message", SOURCE, evidence.error_text)
    events = {m.event for m in evidence.messages} - set(SILENT)
    if len(events) > 1 and events & set(BROKEN):
        first = next(m for m in evidence.messages if m.event in BROKEN)
        found.append(note("fault-then-others", first.words or first.row, SOURCE, "message"))
    for origin, source, text in texts(evidence):
        if origin in ("tool", "narrative"):
            hard = origin == "tool" and not is_described(text)
            for message in read_message(text).messages:
                made = _of_message(message, origin, source, text)
                found += [replace(one, hard=hard, proof=one.proof and hard) for one in made]
    each = {(one.name, one.origin): one for one in reversed(found)}
    return [one for one in found if each[one.name, one.origin] is one]


def _of_message(m: Message, origin: str, source: str, text: str) -> Iterator[Observation]:
    """What one message is evidence of: its event, what follows from which program says it, and its account."""
    words, name = m.words or m.row, observation_name(m.side, m.event)
    says = meaning(m.row) or f"{m.program or 'A program'} says so"

    def also(name: str, says: str = "") -> Observation:
        return note(name, words, source, origin, says)

    if name == "workspace-refused" and _UNSURE.search(words):
        name = "handle-unsure"
    if name:
        proof = m.event in ("killed", "leak")
        yield note(name, words, source, origin, says, proof=proof)
    if name == "device-refused":
        if not (m.capacity or m.free or m.allocated or m.requested):
            yield from _of_bare_refusal(m, also, text)
        elif "from-device" in m.row:
            yield also("reservation-refused")
        elif m.program.startswith(OWN_POOL):
            yield also("own-pool-exhausted")
    if m.event == "missing-library" and m.program != "loader":
        yield also("missing-runtime-library", says)
    for family, (program, events) in FAMILIES.items():
        if m.program.startswith(program) and m.event in events:
            yield also(family, says)
    if (m.capacity or m.allowed) and m.side in ("device", "none"):
        yield from _of_account(account(m), origin, source)
    elif m.requested and m.free and m.side == "device" and above(m.requested, m.free):
        if m.event in ("refused", "no-room-for-cache"):
            yield note("buffer-above-free", m.requested.bytes, source, origin, free=m.free.text)


def _of_bare_refusal(m: Message, also: Say, text: str) -> Iterator[Observation]:
    """A refusal without a number: of which call, by what stands around it."""
    near = text[max(0, m.start - NEAR_CHARACTERS) : m.start + NEAR_CHARACTERS]
    yield also("device-refused-bare")
    if _PINNED.search(near):
        yield also("pinned-refused")
    elif _CONTEXT.search(near):
        yield also("context-refused")
    elif m.row.startswith("runtime-") and _TORCH_ERROR.search(near):
        # torch's own allocator prints what was asked for; this is a raw call of the runtime.
        yield also("raw-call-refused")


def _of_account(a: Account, origin: str, source: str) -> Iterator[Observation]:
    m, request, total, free = a.message, a.message.requested, a.message.capacity, a.message.free

    def say(name: str, size: int, **words: str | int) -> Observation:
        known = {"total": total, "free": free, "request": request, "limit": a.limit}
        shown = {key: quantity.text for key, quantity in known.items() if quantity}
        return note(name, size, source, origin, "", True, False, **{**shown, **words})

    if free and total and above(free, total):
        yield say("free-above-total", free.bytes)
        return
    held = a.held.bytes if a.held else 0
    asked = request.bytes if request else 0
    if m.allowed and held + asked > m.allowed.bytes - max(a.tolerance_bytes, m.allowed.bytes // 50):
        if request is None or free is None or not above(request, free):
            yield say("limit-binds", m.allowed.bytes)
            return
    if request is None:
        return
    if total and above(request, total):
        yield say("request-above-card", asked)
    if a.beyond_limit and m.allocated:
        yield say("beyond-card", m.allocated.bytes + asked)
    yield from _of_stranded(a, say)
    if free and not m.allowed and free.bytes - asked > 64 * MIB + asked // 20:
        yield say("refused-with-room", free.bytes)
    if total and a.held and above(a.held, total):
        yield say("spilled", held)
    elif total and free:
        yield from _of_shares(a, say)


def _of_stranded(a: Account, say: Say) -> Iterator[Observation]:
    if a.stranded is None or a.stranded.bytes <= 0:
        return
    request, free, stranded = a.message.requested, a.message.free, a.stranded.bytes
    assert request is not None
    if a.fragmentation == LIKELY:
        yield say("stranded-decides", stranded)
    elif a.fragmentation == POSSIBLE:
        yield say("stranded-possible", stranded)
    elif free and above(request, free) and not a.beyond_limit and stranded > request.bytes // 4:
        if not above(request, plus(free, a.stranded)):
            yield say("free-and-stranded", stranded)
    if a.held and stranded > max(a.held.bytes // 4, GIB // 2):
        yield say("stranded-large", stranded, held=a.held.text)


def _of_shares(a: Account, say: Say) -> Iterator[Observation]:
    """Whose the bytes in use are: this process's, others', or it does not say."""
    m = a.message
    asked, total, free = (q.bytes if q else 0 for q in (m.requested, m.capacity, m.free))
    if a.own is None and a.held is None:
        if free < max(asked, total // 50):
            yield say("unexplained-full", total - free)
        return
    outside = a.outside.bytes if a.outside else 0
    # Where the message does not give this process, what is left with its context is its own.
    held = a.held.bytes if a.held else 0
    own = a.own.bytes if a.own else max(held, total - free - outside)
    stranded = max(0, a.stranded.bytes) if a.stranded else 0
    shown = show_bytes(own)
    if outside > max(total // 2, own):
        yield say("outside-most", outside, own=shown)
    small = outside <= a.tolerance_bytes + 2 * MIB or OWN_SHARE * outside < own
    if not small and free < asked and a.fits_alone and not a.beyond_limit:
        if a.fragmentation != LIKELY:
            yield say("outside-decides", outside, own=shown)
    if outside > CONTEXT_BYTES // 2:
        yield say("outside-some", outside, own=shown)
    alike = [size for _, size in a.others if abs(size.bytes - own) <= own // 10]
    if len(alike) >= 2:
        yield say("others-alike", len(alike) * own, count=len(alike))
    if a.fragmentation != LIKELY and small and stranded <= max(asked, own // 4):
        idle = 2 * stranded > own  # most of it is cached: whether that could have served is open
        if free + stranded < asked or (not idle and max(own / NEAR_END, asked + own) > total):
            yield say("ours-fills", own)
