"""What was observed: every reader of evidence in one list, and the readers of messages and of
marks.

Messages are read by the grammar, and the account of their numbers says whose the memory is.
Marks (marks.json) are words that programs print. Prose is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Callable

from helpers.ground.tables import lazy
from helpers.ground.units import GIB, MIB, show_bytes
from helpers.judge import form, table
from helpers.judge.evidence import (
    SILENT,
    CaseEvidence,
    Observation,
    is_described,
    note,
    observation_name,
    texts,
)
from helpers.judge.owner import CONTEXT_BYTES, LIKELY, POSSIBLE, Account, above, account, plus
from helpers.judge.posted import figure_observations, posted_observations
from helpers.look.message import Message
from helpers.look.messages import read_message
from helpers.look.parts import APU, CARD, device_list
from helpers.look.wordings import meaning

NEAR_END = 0.9
"""A process that holds this share of the card is what fills it; the rest is context and
granules (account.NEAR_FULL).
"""
OWN_SHARE = 3
"""A process that holds over three times what others do is the first to ask for less; below
that, ask who they are.
"""
SOURCE = "error text"
BROKEN = ("fault", "assert")
FAMILIES = {"row:jax": ("XLA", ("workspace", "mismatch")), "row:miopen": ("MIOpen", ("workspace",))}
OWN_POOL = ("TensorFlow", "XLA", "JAX")
NEAR_CHARACTERS = 1500

Say = Callable[..., Observation]


def observe(evidence: CaseEvidence) -> tuple[Observation, ...]:
    """Everything that the evidence shows, from all its parts; one observation can stand there
    from several sources.
    """
    found = message_observations(evidence)
    found += posted_observations(evidence)
    if evidence.bundle is not None:
        from helpers.judge.box import box_observations

        found += box_observations(evidence.bundle, evidence.messages)
    if evidence.snapshot is not None:
        from helpers.judge.box import snapshot_observations

        found += snapshot_observations(evidence.snapshot)
    failed = any(o.name.endswith(("-refused", "-unsure")) and o.hard for o in found)
    failed = failed or bool(re.search(r"\w{3}", form("warning").sub("", evidence.error_text)))
    found += mark_observations(evidence)
    if not failed and evidence.tools:
        found.append(note("nothing-failed", "no error text", SOURCE, "message", hard=False))
    return (*found, *figure_observations(evidence), *_of_programs(evidence))


def message_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the messages of the error text say, and those in posted tool output; in a description
    of it they are hearsay.
    """
    found: list[Observation] = []
    for message in evidence.messages:
        found += _of_message(message, "message", SOURCE, evidence.error_text)
    events = {m.event for m in evidence.messages} - set(SILENT)
    if len(events) > 1 and events & set(BROKEN):
        first = next(m for m in evidence.messages if m.event in BROKEN)
        found.append(note("fault-then-others", first.words or first.row, SOURCE, "message"))
    for origin, source, text in texts(evidence):
        if origin == "tool":
            hard = not is_described(text)
            for message in read_message(text).messages:
                made = _of_message(message, origin, source, text)
                found += [replace(one, hard=hard, proof=one.proof and hard) for one in made]
    each = {(one.name, one.origin): one for one in reversed(found)}
    return [one for one in found if each[one.name, one.origin] is one]


def _of_message(m: Message, origin: str, source: str, text: str) -> Iterator[Observation]:
    """What one message is evidence of: its event, what follows from which program says it, and
    its account.
    """
    words = m.words or m.row
    name = observation_name(m.side, m.event)
    says = meaning(m.row) or f"{m.program or 'A program'} says so"

    def also(name: str, says: str = "") -> Observation:
        return note(name, words, source, origin, says)

    if name == "workspace-refused" and form("unsure handle").search(words):
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
    if form("pinned").search(near):
        yield also("pinned-refused")
    elif form("context").search(near):
        yield also("context-refused")
    elif m.row.startswith("runtime-") and form("torch's error").search(near):
        # torch's own allocator prints what was asked for; this is a raw call of the runtime.
        yield also("raw-call-refused")


def _of_account(a: Account, origin: str, source: str) -> Iterator[Observation]:
    m = a.message
    request = a.message.requested
    total = a.message.capacity
    free = a.message.free

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
    request = a.message.requested
    free = a.message.free
    stranded = a.stranded.bytes
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
        lacks = free + stranded < asked
        if lacks or (not idle and max(own / NEAR_END, asked + own) > total):
            yield say("ours-fills", own, end=table("account")["ends"][str(lacks)])


def mark_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """What stands in the words themselves, and kinds of GPU."""
    for origin, source, text in texts(evidence):
        for name, pattern, places, hard in marks():
            if (origin in places or source in places) and (match := pattern.search(text)):
                words = text if origin == "environment" else match.group().strip()
                yield note(name, words, source, origin, hard=hard)
    kinds = {row.kind for _, _, text in texts(evidence) for row in device_list(text)}
    if {APU, CARD} <= kinds:
        yield note("two-kinds-of-gpu", "an APU and a card", "device list", "tool")


@lru_cache(1)
def marks() -> tuple[tuple[str, re.Pattern[str], tuple[str, ...], bool], ...]:
    """(observation, pattern, the kinds and names of texts it is looked for in, whether it is
    hard): marks.json.
    """
    rows = table("marks")["marks"]
    return tuple((row["name"], lazy(row["pattern"]), tuple(row["in"]), row["hard"]) for row in rows)


def _of_programs(evidence: CaseEvidence) -> Iterator[Observation]:
    """Two frameworks that need device memory in one story."""
    names: dict[str, str] = {}
    for origin, source, text in texts(evidence):
        for name, pattern, takes_card in frameworks():
            if name not in names and pattern.search(f"{source} {text}"[:20_000]):
                names[name] = source
                if takes_card:
                    yield note("preallocator", name, source, origin, hard=False, framework=name)
    if len(names) > 1:
        yield note("other-library", ", ".join(names), "all texts", "tool", hard=False)


@lru_cache(1)
def frameworks() -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """(name, pattern, whether it reserves most of the card when it starts) of each framework:
    marks.json.
    """
    rows = table("marks")["frameworks"]
    return tuple((r["name"], lazy(r["form"], re.IGNORECASE), "takes_card" in r) for r in rows)
