"""What was observed, as named signals: from error texts, posted tool output, environment and a narrative.

A signal is one observation with its reading and where it came from. It says nothing about causes; ``failures`` does. The
patterns are data: a name, what a text must hold, and what that means. ``box_signals`` takes signals from a captured bundle.
Sources: PyTorch's, NCCL's, ROCr's and the kernel's own message texts; the pages named in ``failures``.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.look.bundle import Bundle
from helpers.look.reading import Reading, seen, show_bytes

from .oom_message import OomMessage, arithmetic, read_message
from .wording import PATTERNS

MIB, GIB = 1 << 20, 1 << 30
LONGEST_TEXT = 60_000
"""Characters of one text that the patterns see: its beginning, its end, and what stands around each failure in it."""
CONTEXT_BYTES = 1200 * MIB
"""What a CUDA or HIP context with its libraries and a small desktop may take beside the allocator (NVIDIA: 0.3 to 1 GiB)."""
HARD = ("message", "tool", "bundle", "environment")


@dataclass(frozen=True)
class Signal:
    """One observation. ``origin`` is message, tool, bundle, environment or narrative; the last is hearsay."""

    name: str
    reading: Reading
    says: str
    origin: str

    @property
    def hard(self) -> bool:
        return self.origin in HARD


@dataclass(frozen=True)
class CaseEvidence:
    """Everything a person handed over about one failure. ``facts`` are the environment's words (gpu, gfx, ram_gib, ...)."""

    messages: tuple[OomMessage, ...] = ()
    error_text: str = ""
    bundle: Bundle | None = None
    tools: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    narrative: str = ""
    unused: str = ""

    def fact(self, name: str) -> str:
        return dict(self.facts).get(name, "")


def _cut(text: str, messages: tuple[OomMessage, ...] = ()) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    around = [text[max(0, m.start - 1000):m.start + 1000] for m in messages[:5]]
    return "\n".join([text[:LONGEST_TEXT // 2], *around, text[-LONGEST_TEXT // 2:]])


def evidence_from_message(text: str | bytes | Iterable[str]) -> CaseEvidence:
    """Evidence of a pasted error text or a log. Never raises; ``unused`` says what could not be used."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if isinstance(text, str):
        got = read_message(text)
        return CaseEvidence(messages=got.messages, error_text=_cut(text, got.messages), unused=got.unused)
    head: list[str] = []
    tail: deque[str] = deque(maxlen=400)
    got = read_message(_watched(text, head, tail))
    shown = "".join([*head, "\n", *(m.words + "\n" for m in got.messages[:5]), *tail])
    return CaseEvidence(messages=got.messages, error_text=_cut(shown), unused=got.unused)


def _watched(lines: Iterable[str], head: list[str], tail: deque[str]) -> Iterator[str]:
    """The lines of a stream too long to hold, its first and last ones kept on the way."""
    size = 0
    for line in lines:
        size += len(line)
        if size <= LONGEST_TEXT // 2:
            head.append(line)
        else:
            tail.append(line[:2000])
        yield line


def evidence_from_bundle(bundle: Bundle) -> CaseEvidence:
    """Evidence of a captured box; its item ``message`` is the posted error text."""
    text = bundle.read("message")
    said = evidence_from_message(text.text) if text.ok else CaseEvidence()
    return CaseEvidence(messages=said.messages, error_text=said.error_text, bundle=bundle, unused=said.unused)


def evidence_from_case(path: str | Path) -> CaseEvidence:
    """Evidence of a posted case (JSON: ``evidence`` with error_text, tool_outputs, environment, narrative).

    Raises ValueError in one line where the file is no such JSON. ``truth`` and the like are not looked at.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"case {path}: {type(error).__name__}; expected JSON with an object 'evidence'") from error
    evidence = data.get("evidence", data) if isinstance(data, dict) else None
    if not isinstance(evidence, dict):
        raise ValueError(f"case {path}: no object 'evidence'; expected error_text, tool_outputs, environment, narrative")
    return case_evidence(evidence)


def case_evidence(evidence: Mapping[str, object], with_narrative: bool = True) -> CaseEvidence:
    """The same from the ``evidence`` object itself; odd values are taken as their text."""
    said = evidence_from_message(_text(evidence.get("error_text")))
    environment = evidence.get("environment")
    facts = {k: _text(v) for k, v in environment.items() if v not in (None, "", {})} if isinstance(environment, dict) else {}
    facts.pop("env_vars", None)
    named = environment.get("env_vars") if isinstance(environment, dict) else None
    tools = evidence.get("tool_outputs")
    return CaseEvidence(
        messages=said.messages, error_text=said.error_text, unused=said.unused, facts=tuple(facts.items()),
        tools=tuple((str(k), _cut(_text(v))) for k, v in tools.items()) if isinstance(tools, dict) else (),
        variables=tuple((str(k), _text(v)) for k, v in named.items()) if isinstance(named, dict) else (),
        narrative=_cut(_text(evidence.get("narrative"))) if with_narrative else "")


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)


_HINT = re.compile(r"Try (?:increasing|decreasing|reducing|setting|lowering)[^\n]{0,160}|If reserved (?:memory is|but "
    r"unallocated)[^\n]{0,200}|See documentation for Memory Management[^\n]{0,120}|"
                   r"For debugging consider passing [^\n]{0,60}|Decrease GPU memory utilization or reduce GPU memory used by "
                   r"other processes|Compile with `TORCH_USE_CUDA_DSA`[^\n]{0,80}|"
                   r"CUDA kernel errors might be asynchronously reported[^\n]{0,120}", re.IGNORECASE)
_PLACES = {"error": ("message",), "tool": ("tool",), "hard": ("message", "tool", "environment"), "told": ("narrative",),
           "any": ("message", "tool", "environment", "narrative")}


def texts(evidence: CaseEvidence) -> tuple[tuple[str, str, str], ...]:
    """(origin, source, text) of every text at hand; PyTorch's own advice is taken out, for it says nothing of this case."""
    found = [("message", "error text", _HINT.sub(" ", evidence.error_text))]
    found += [("tool", name, f"{name}: {text}") for name, text in evidence.tools]
    found += [("environment", name, f"{name}: {value}") for name, value in evidence.facts]
    found += [("environment", "variables", f"{name}={value}") for name, value in evidence.variables]
    found.append(("narrative", "narrative", evidence.narrative))
    return tuple(row for row in found if row[2].strip())


def word_signals(evidence: CaseEvidence) -> list[Signal]:
    """One signal for each pattern and origin that matches."""
    found = []
    rows = texts(evidence)
    for name, places, pattern, says in PATTERNS:
        done: set[str] = set()
        for origin, source, text in rows:
            if origin not in _PLACES[places] or origin in done:
                continue
            match = pattern.search(text)
            if match:
                done.add(origin)
                words = " ".join(match.group().split())[:160] or match.group()[:10]
                found.append(Signal(name, seen(words, "text", source), says, origin))
    return found


def _bytes(value: int, words: str) -> Reading:
    return seen(max(0, value), "bytes", words)


def message_signals(messages: Iterable[OomMessage]) -> list[Signal]:
    """What the numbers of out-of-memory messages say, and the kind of each failure."""
    found: list[Signal] = []

    def add(name: str, reading: Reading, says: str) -> None:
        if all(name != earlier.name for earlier in found):
            found.append(Signal(name, reading, says, "message"))

    for m in messages:
        add("kind_" + m.kind, seen(m.words[:160] or m.kind, "text", "error text"),
            f"The error text holds a failure of the kind {m.kind}")
        if m.capacity or m.allowed:
            _sums(m, add)
    return found


def _sums(m: OomMessage, add) -> None:  # type: ignore[no-untyped-def]
    def size(quantity) -> int | None:  # type: ignore[no-untyped-def]
        return None if quantity is None else quantity.bytes

    capacity, free, request, allowed = size(m.capacity), size(m.free), size(m.requested) or 0, size(m.allowed)
    allocated, stranded = size(m.allocated), size(m.reserved_unallocated)
    if stranded is None and m.reserved_total and allocated is not None:
        stranded = m.reserved_total.bytes - allocated
    slack = sum(q.precision_bytes for q in (m.capacity, m.free, m.requested, m.allocated) if q) + 2 * MIB
    limit = min(n for n in (capacity, allowed) if n is not None)
    held = (allocated or 0) + max(0, stranded or 0)
    sums = arithmetic(m)
    if capacity is not None and free is not None and free > capacity + slack:
        add("free_exceeds_total", _bytes(free, "error text"),
            f"Free is above the total of {show_bytes(capacity)}: they come from two layers")
        return
    if allowed is not None and held + request > allowed - slack and (free is None or free >= request):
        add("own_limit", _bytes(allowed, "error text"), "The process may take no more than this: a memory fraction was "
            "set" + ("" if free is None else f", and {show_bytes(free)} is free"))
        return
    if request > limit:
        add("request_exceeds_card", _bytes(request, "error text"), f"One request is larger than all of {show_bytes(limit)}")
    if sums.beyond_capacity or (allocated is not None and allocated + request > limit + slack):
        add("beyond_capacity", _bytes((allocated or 0) + request, "error text"),
            f"Allocated {show_bytes(allocated or 0)} and the request of {show_bytes(request)} exceed {show_bytes(limit)}: "
            "no packing of blocks can make that fit")
    if capacity is not None and held > capacity + slack:
        add("reserved_above_card", _bytes(held, "error text"),
            "torch holds more than the card has: the driver spills to host memory")
    elif capacity is not None and free is not None and allocated is not None:
        _shares(m, capacity, free, held, add)
    if free is not None and request and free >= request + request // 20 + 64 * MIB:
        add("free_yet_failed", _bytes(free, "error text"), f"This is said to be free, and {show_bytes(request)} failed")
    if allocated is None or stranded is None:
        return
    if sums.fragmentation in ("possible", "likely") and stranded >= request > 0 and allocated + request <= limit + slack:
        add("stranded_enough", _bytes(stranded, "error text"),
            f"Reserved and unallocated, after whole segments were released: at least the {show_bytes(request)} asked for")
        if stranded >= held // 4:
            add("much_stranded", _bytes(stranded, "error text"), f"It is a large part of the {show_bytes(held)} reserved")
    elif stranded + (free or 0) < request and request:
        add("cache_too_small", _bytes(stranded, "error text"),
            f"Reserved and unallocated: less than the {show_bytes(request)} asked for, so fragmentation alone is excluded")


def _shares(m: OomMessage, capacity: int, free: int, held: int, add) -> None:  # type: ignore[no-untyped-def]
    ours = m.process.bytes if m.process else held + (m.non_torch.bytes if m.non_torch else 0)
    others = sum(q.bytes for q in m.others)
    outside = max(capacity - free - ours, others)
    says = (f"Of {show_bytes(capacity)} this process accounts for {show_bytes(ours)} and {show_bytes(free)} is free; "
            "the rest is outside it")
    if outside > ours + (0 if m.process else CONTEXT_BYTES) and outside > capacity // 4:
        add("mostly_outside", _bytes(outside, "error text"), says)
    elif outside > CONTEXT_BYTES:
        add("some_outside", _bytes(outside, "error text"), says)
    if ours >= capacity // 2 and outside <= ours:
        add("mostly_ours", _bytes(ours, "error text"), "This process holds most of what is in use")
    alike = [q for q in m.others if abs(q.bytes - ours) <= ours // 5]
    if len(alike) >= 2:
        add("others_alike", _bytes(sum(q.bytes for q in alike), "error text"),
            f"{len(alike)} other process(es) of the same size as this one")
