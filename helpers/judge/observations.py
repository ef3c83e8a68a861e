"""What was observed: every reader of evidence in one list, and the plain facts that need no reader of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from re import Pattern
from typing import Tuple

from helpers.grammar import lazy
from helpers.judge.evidence import CaseEvidence, Observation, is_described, note, texts
from helpers.judge.refusals import SOURCE, message_observations
from helpers.judge.sizes import size_observations
from helpers.judge.stack import stack_observations
from helpers.judge.statements import read_statements
from helpers.look.parts import APU, CARD, device_list
from helpers.look.reading import show_bytes
from helpers.units import printed_size

Mark = Tuple[str, "Pattern[str]", Tuple[str, ...], bool]  # made when imported, also on Python 3.8
DATA = Path(__file__).with_name("marks.json")
_FAILED = lazy(r"\w{3}")
_WARNING = lazy(r"^[^\n]{0,200}\w*Warning:[^\n]*", re.MULTILINE)
_TOOL = lazy(
    r"smi|(?<!slab)(?<!\bs)top\b|monitor|get|(?<!vm)(?<!,)stat|(?<!mem)info|shows|vram ?%|vitals|manager",
    re.IGNORECASE,
)  # of a GPU: slabtop, vmstat and meminfo are of the host
_FIGURE = lazy(
    r"\d ?(?:[KMGT]i?B?\b|%)|%\)?: ?\d|\?\?|N/A|not supported|(?<!\w)0(?!\w)", re.IGNORECASE
)
_STATISTIC = lazy(
    r"\b(allocated|reserved)\b[^\n:=]{0,40}[:=] {0,8}(\d{1,6}(?:\.\d{1,3})?) ?([GM])i?B",
    re.IGNORECASE,
)
_COUNTER = lazy(r"(?i)^.{0,20}?(?:step|epoch|iter\w*|cycle|run) ?\d+ ?:?")
_NUMBER = lazy(r"(?<![\w.])~?(\d{1,7}(?:\.\d{1,4})?) ?(?:[KMG]i?B)?(?![\w.%])")
_SERIES = lazy(r"reserved|allocated|memory|vram|used|usage|rss", re.IGNORECASE)
_SIZE = r"(\d{1,5}(?:\.\d{1,3})?) ?([KMG])i?B"
_LOOSE = {
    "requested": rf"(?:alloc\w*|for|ask\w*(?: for)?|request\w*(?: of)?|attempted) {_SIZE}"
    r"(?! (?:is )?(?:free|available|reserved))",
    "free": rf"{_SIZE}(?: is| are| was| were)? (?:free|available)",
    "stranded": rf"{_SIZE}[^.,;]{{0,30}}?(?:reserved[- ]but[- ]|and )?unallocated",
}


@lru_cache(1)
def marks() -> tuple[Mark, ...]:
    """(observation, pattern, the kinds and names of texts it is looked for in, whether it is hard): marks.json."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))["marks"]
    return tuple((row["name"], lazy(row["pattern"]), tuple(row["in"]), row["hard"]) for row in rows)


@lru_cache(1)
def frameworks() -> tuple[tuple[str, Pattern[str], bool], ...]:
    """(name, pattern, whether it reserves most of the card when it starts) of each framework: marks.json."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))["frameworks"]
    return tuple((r["name"], lazy(r["form"], re.IGNORECASE), "takes_card" in r) for r in rows)


def observe(evidence: CaseEvidence) -> tuple[Observation, ...]:
    """Everything that the evidence shows, from all its parts; one observation can stand there from several sources."""
    found = message_observations(evidence)
    if evidence.tools:
        from helpers.judge.posted import process_observations

        found += process_observations(evidence)
    found += size_observations(evidence)
    found += stack_observations(evidence)
    found += read_statements(evidence)
    if evidence.bundle is not None:
        from helpers.judge.box import box_observations

        found += box_observations(evidence.bundle, evidence.messages)
    if evidence.snapshot is not None:
        from helpers.judge.snapshot import snapshot_observations

        found += snapshot_observations(evidence.snapshot)
    failed = any(o.name.endswith(("-refused", "-unsure")) and o.hard for o in found)
    failed = failed or bool(_FAILED.search(_without_warnings(evidence.error_text)))
    found += _plain(evidence)
    if not failed and (evidence.tools or evidence.narrative):
        found.append(note("nothing-failed", "no error text", SOURCE, "message", hard=False))
    return tuple([*found, *_of_tools(evidence), *_of_programs(evidence)])


def _without_warnings(text: str) -> str:
    return _WARNING.sub("", text) if "Warning:" in text else text


def _plain(evidence: CaseEvidence) -> Iterator[Observation]:
    """What stands in the words themselves, kinds of GPU, and numbers told in a sentence of free words."""
    for origin, source, text in texts(evidence):
        for name, pattern, places, hard in marks():
            if (origin in places or source in places) and (match := pattern.search(text)):
                words = text if origin == "environment" else match.group().strip()
                yield note(name, words, source, origin, hard=hard and origin != "narrative")
    kinds = {row.kind for _, _, text in texts(evidence) for row in device_list(text)}
    if {APU, CARD} <= kinds:
        yield note("two-kinds-of-gpu", "an APU and a card", "device list", "tool")
    if not any(m.capacity for m in evidence.messages):
        yield from _loose_numbers(evidence)


def _loose_numbers(evidence: CaseEvidence) -> Iterator[Observation]:
    """What was asked for, free and stranded, in a sentence of free words: hearsay with numbers."""
    for origin, source, text in texts(evidence):
        if origin not in ("message", "narrative") or "unallocated" not in text:
            continue
        got: dict[str, int] = {}
        for name, pattern in _LOOSE.items():
            if match := re.search(pattern, text, re.IGNORECASE):
                got[name] = printed_size(match[1], match[2])
        if len(got) == 3 and got["stranded"] >= got["requested"] > got["free"]:
            request = show_bytes(got["requested"])
            yield note(
                "stranded-said", got["stranded"], source, origin, hard=False, request=request
            )
            return


def _of_tools(evidence: CaseEvidence) -> Iterator[Observation]:
    """Posted tools: that there is a figure at all, torch's statistics, series of one figure over time, modules."""
    statistics: dict[str, int] = {}
    for source, text in evidence.tools:
        for name, number, unit in _STATISTIC.findall(text):
            statistics.setdefault(name.lower(), printed_size(number, unit))
        if _TOOL.search(f"{source} {text[:300]}") and _FIGURE.search(text):
            hard = not is_described(text)
            yield note("tool-figure", text[:80], source, "tool", hard=hard)
        if re.search("allocated", source) and re.search(r"between|constant|stays|flat", text):
            yield note("allocated-flat", text, source, "tool", hard=False)
        yield from _series(source, text)
    if statistics.get("reserved", 0) > 1.5 * statistics.get("allocated", 1e15):
        words = ", ".join(f"{name} {show_bytes(n)}" for name, n in statistics.items())
        live = statistics["allocated"] > 0
        name = "reserved-far-above-allocated" if live else "reserved-and-nothing-live"
        yield note(name, words, "torch's statistics", "tool")


def _series(source: str, text: str) -> Iterator[Observation]:
    """At least three readings of one figure that only rise, a line each or in one line."""
    names = [name.lower() for name in _SERIES.findall(source) or _SERIES.findall(text[:80])]
    if not names or is_described(text) or len(text) > 4000:
        return
    lines = [_COUNTER.sub("", line) for line in text.splitlines()]
    sizes = [float(number) for line in lines for number in _NUMBER.findall(line)]
    if len(sizes) < 3 or (len(lines) > 1 and len(sizes) != len(lines)):
        return
    if all(a < b for a, b in zip(sizes, sizes[1:])) and sizes[-1] > 1.2 * sizes[0]:
        words = ", ".join(f"{size:g}" for size in sizes[:8])
        made = "reserved-series-grows" if "reserved" in names else "series-grows"
        yield note(made, words, source, "tool")


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
        yield note("other-library", ", ".join(names), "all texts", "narrative", hard=False)
