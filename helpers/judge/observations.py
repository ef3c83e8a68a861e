"""What was observed: every reader of evidence in one list, and the plain facts that need no reader of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.grammar import lazy
from helpers.judge.evidence import CaseEvidence, Observation, is_described, note, texts
from helpers.judge.refusals import SOURCE, message_observations
from helpers.judge.sizes import size_observations
from helpers.judge.stack import stack_observations
from helpers.judge.statements import read_statements
from helpers.look.parts import APU, CARD, device_list
from helpers.look.reading import show_bytes

POWERS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_OOM = lazy(
    r"out[- ]of[- ](?:GPU[- ]|device[- ])?memory|OutOfMemory|\bOOM\b"
    r"|runs? out of (?:gpu |video )?(?:memory|vram)",
    re.IGNORECASE,
)
_CRASH = lazy(
    r"segmentation fault|segfault|core dumped|SIGSEGV|SIGABRT|\babort(?:s|ed)?\b", re.IGNORECASE
)
_UNKNOWN_ERROR = lazy(r"(?:CUDA|HIP) unknown error")
_FAILED = lazy(r"\w{3}")
_WARNING = lazy(r"^[^\n]{0,200}\w*Warning:[^\n]*", re.MULTILINE)
_WINDOWS = lazy(r"windows|wsl|microsoft", re.IGNORECASE)
_TOOL = lazy(r"smi|top|monitor|get|stat|info|shows|%|vitals|manager", re.IGNORECASE)
_FIGURE = lazy(r"\d|N/A|\?\?")
_ADDS_UP = lazy(
    r"^[^\n#]{0,60}\b\w{0,30}loss\w{0,30}\s*\+=\s*"
    r"(?!.{0,80}(?:\.item\(|\.detach\(|float\(|\.numpy\())[\w.\[\]()]{1,60}\s*$",
    re.MULTILINE,
)
FRAMEWORKS = {
    "torch": r"\b(?:py)?torch\b",
    "TensorFlow": r"\btensorflow|\bkeras\b|\btf\.",
    "JAX": r"\bjax(?:lib)?\b|\bxla\b",
    "ONNX Runtime": r"\bonnx",
    "CuPy": r"\bcupy\b",
    "Paddle": r"\bpaddle",
    "RAPIDS": r"\b(?:cudf|rmm|cuml|rapids)\b",
    "Dr.Jit": r"\bdrjit|mitsuba",
    "Numba": r"\bnumba\b",
}
_STATISTIC = lazy(
    r"\b(allocated|reserved)\b[^\n:=]{0,40}[:=] ?(\d{1,6}(?:\.\d{1,3})?) ?([GM])i?B", re.IGNORECASE
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
    """Out of memory or a crash in plain words, Windows, and numbers told in a sentence of free words."""
    for origin, source, text in texts(evidence):
        if match := _OOM.search(text):
            yield note("memory-ran-out", match.group(), source, origin, hard=False)
        if origin == "message" and (match := _UNKNOWN_ERROR.search(text)):
            yield note("runtime-error", match.group(), source, origin)
        if origin == "message" and (match := _CRASH.search(text)):
            yield note("crash-bare", match.group(), source, origin)
    system = " ".join(evidence.fact(name) for name in ("os", "kernel", "container"))
    if _WINDOWS.search(system):
        yield note("windows", system[:80], "os", "environment")
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
                got[name] = int(float(match[1]) * POWERS[match[2].upper()])
        if len(got) == 3 and got["stranded"] >= got["requested"] > got["free"]:
            request = show_bytes(got["requested"])
            yield note(
                "stranded-said", got["stranded"], source, origin, hard=False, request=request
            )
            return


def _of_tools(evidence: CaseEvidence) -> Iterator[Observation]:
    """Posted tools: that there is a figure at all, torch's statistics, series of one figure over time, modules."""
    statistics: dict[str, float] = {}
    for source, text in evidence.tools:
        for name, number, unit in _STATISTIC.findall(text):
            statistics.setdefault(name.lower(), float(number) * POWERS[unit.upper()])
        if _TOOL.search(f"{source} {text[:300]}") and _FIGURE.search(text):
            hard = not is_described(text)
            yield note("tool-figure", text[:80], source, "tool", hard=hard)
        if re.search(r"^amdttm\b", text, re.MULTILINE) and re.search(r"^ttm\b", text, re.MULTILINE):
            yield note("two-ttm-modules", "amdttm and ttm", source, "tool")
        if re.search("allocated", source) and re.search(r"between|constant|stays|flat", text):
            yield note("allocated-flat", text, source, "tool", hard=False)
        yield from _series(source, text)
    if statistics.get("reserved", 0) > 1.5 * statistics.get("allocated", 1e15):
        words = ", ".join(f"{name} {show_bytes(int(n))}" for name, n in statistics.items())
        yield note("reserved-far-above-allocated", words, "torch's statistics", "tool")


def _series(source: str, text: str) -> Iterator[Observation]:
    """At least three readings of one figure that only rise, a line each or in one line."""
    name = _SERIES.search(source) or _SERIES.search(text[:80])
    if name is None or is_described(text) or len(text) > 4000:
        return
    lines = [_COUNTER.sub("", line) for line in text.splitlines()]
    sizes = [float(number) for line in lines for number in _NUMBER.findall(line)]
    if len(sizes) < 3 or (len(lines) > 1 and len(sizes) != len(lines)):
        return
    if all(a < b for a, b in zip(sizes, sizes[1:])) and sizes[-1] > 1.2 * sizes[0]:
        reserved = name.group().lower() == "reserved"
        words = ", ".join(f"{size:g}" for size in sizes[:8])
        yield note("reserved-series-grows" if reserved else "series-grows", words, source, "tool")


def _of_programs(evidence: CaseEvidence) -> Iterator[Observation]:
    """Lines of a posted program that keep graphs (PyTorch FAQ), and two frameworks in one story."""
    names: dict[str, str] = {}
    for origin, source, text in texts(evidence):
        match = _ADDS_UP.search(text) if origin in ("tool", "message") and "+=" in text else None
        if match:
            yield note("code-keeps-graph", match.group().strip(), source, origin)
        for name, pattern in FRAMEWORKS.items():
            if re.search(pattern, f"{source} {text}"[:20_000], re.IGNORECASE):
                names.setdefault(name, source)
    if len(names) > 1:
        yield note("other-library", ", ".join(names), "all texts", "narrative", hard=False)
