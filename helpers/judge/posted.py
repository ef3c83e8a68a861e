"""Processes in posted tool output: nvidia-smi's table and CSV, gpustat, rocm-smi --showpids, ps, fuser, lsof.

Only rows in the tool's own form are read; a description of an output gives none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.grammar import lazy
from helpers.judge.evidence import CaseEvidence, Observation, is_described, note
from helpers.look.bundle import Text
from helpers.look.reading import GIB, MIB

_SMI = lazy(
    r"(?:^|\|) {0,8}(?P<gpu>\d{1,3}) +(?:\S+ +\S+ +)?(?P<pid>\d{1,9}) +(?:C|G|C\+G|M\+C) +"
    r"(?P<name>\S[^|\n]{0,80}?) +(?P<mib>\d{1,8}) ?MiB",
    re.MULTILINE,
)  # nvidia-smi, Processes
_CSV = lazy(
    r"^\s*(?P<pid>\d{1,9}) *, *(?:(?P<name>[^,\n\d][^,\n]{0,120}), *)?(?P<mib>\d{1,8}) MiB",
    re.MULTILINE,
)
_STAT = lazy(
    r"\b(?P<name>[A-Za-z_][\w.-]{0,31})(?:[:/][\w./-]{1,48})?\((?P<mib>\d{2,7})M\)"
)  # gpustat -c
_PS = lazy(
    r"^\s*(?:(?P<user>[\w.+-]{1,32})\s+)?(?P<pid>\d{1,9})\s[^\n]{0,80}?\s(?P<state>[DRSTZtI][sl+N<L]{0,5})\s[^\n]{0,60}?(?P<name>\S[^\n]{0,120})$",
    re.MULTILINE,
)
_FUSER = lazy(
    r"/dev/(?:nvidia|kfd|dri|accel)\S{0,24}:?(?P<rows>(?:\s+[\w.+-]*\s*\d{1,9}[a-zA-Z.]*)+)"
)
_LSOF = lazy(
    r"^(?![-bcdl][rwx-]{9})(?P<name>\S{1,32})\s+(?P<pid>\d{1,9})\s+\S+\s[^\n]{0,100}/dev/(?:nvidia|kfd|dri)",
    re.MULTILINE,
)
_EMPTY = lazy(
    r"No running (?:compute )?processes found|No KFD PIDs currently running|No running processes",
    re.IGNORECASE,
)
_NODE = lazy(
    r"\bc(?P<mode>[rwx-]{9})[+.]? {1,8}\d+ +\S+ +\S+ [^\n]{0,60}?(?:kfd|renderD\d+|nvidia\S{0,8})$",
    re.MULTILINE,
)
_GROUP_ONLY = lazy(
    r"^c(?:rw[-x]){2}---[+.]? +\d+ +\S+ +(?P<group>\S+) [^\n]{0,60}?/?(?P<node>kfd|renderD\d+)$", re.MULTILINE
)
_ID = lazy(r"^uid=[^\n]{1,120} groups=(?P<groups>[^\n]{1,400})$", re.MULTILINE)
_OPENERS = lazy(r"(?:sudo )?(?:fuser|lsof)\b")
_NOTHING = lazy(r"\s*\(?(?:empty|no output|nothing|none)?\)?\s*", re.IGNORECASE)
_LIMIT = 60_000


@dataclass(frozen=True)
class PostedProcess:
    """One process as a tool listed it; ``state`` is ps's letter, ``gpu`` the tool's index (None: it names none)."""

    pid: int | None
    name: str
    bytes: int | None
    gpu: int | None
    state: str
    source: str


def processes(evidence: CaseEvidence) -> tuple[PostedProcess, ...]:
    """Every process row of the posted tools."""
    return tuple(row for source, text in evidence.tools for row in _rows(source, text[:_LIMIT]))


def _rows(source: str, text: str) -> Iterator[PostedProcess]:
    def number(value: str | None) -> int | None:
        return int(value) if value else None

    for pattern in (_SMI, _CSV, _STAT):
        for match in pattern.finditer(text):
            got = match.groupdict()
            yield PostedProcess(
                number(got.get("pid")), (got.get("name") or "").strip(), int(got["mib"]) * MIB,
                number(got.get("gpu")), "", source,
            )  # fmt: skip
    if "PID" in text and "KFD" in text or "showpids" in source:
        from helpers.look import rocm

        listed, _ = rocm.parse_pids(Text(text, "ok", "", source, ""))
        for row in listed:
            size = int(row.vram.value or 0) if row.vram.ok else None
            yield PostedProcess(row.pid, row.name, size, None, "", source)
    if re.search(r"\bps\b|\bSTAT\b", f"{source}\n{text[:200]}"):
        for match in _PS.finditer(text):
            yield PostedProcess(
                int(match["pid"]), match["name"], None, None, match["state"][0], source
            )
    for match in _LSOF.finditer(text):
        yield PostedProcess(int(match["pid"]), match["name"], None, None, "open", source)
    if "fuser" in source:
        for match in _FUSER.finditer(text):
            for pid in re.findall(r"\d{2,9}", match["rows"]):
                yield PostedProcess(int(pid), "", None, None, "open", source)


def process_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the rows say of who holds the memory."""
    rows = processes(evidence)
    holders = [row for row in rows if row.bytes is not None]
    found = [*_of_holders(holders), *_of_states(rows), *_membership(evidence)]
    for source, text in evidence.tools:
        if _OPENERS.match(source) and _NOTHING.fullmatch(text):
            found.append(note("no-openers", "(no output)", source, "tool"))
        node = _NODE.search(text)
        if node and "rw" not in node["mode"][3:]:
            found.append(note("node-root-only", node.group()[:80], source, "tool"))
        match = _EMPTY.search(text)
        if match and not holders:
            hard = not is_described(text)
            found.append(note("list-empty", match.group(), source, "tool", hard=hard))
    return found


def _membership(evidence: CaseEvidence) -> Iterator[Observation]:
    """A node that is for a group alone, beside an ``id`` that does not name that group. Root needs none."""
    nodes = [(m, source) for source, text in evidence.tools for m in _GROUP_ONLY.finditer(text)]
    users = [m for _, text in evidence.tools for m in _ID.finditer(text)]
    if not nodes or len(users) != 1 or users[0].group().startswith("uid=0"):
        return
    groups = set(re.findall(r"[\w.-]+", users[0]["groups"]))
    for node, source in nodes:
        if node["group"] not in groups:
            theirs = users[0]["groups"]
            yield note(
                "not-in-group", node["node"], source, "tool", group=node["group"], groups=theirs
            )
            return


def _b(row: PostedProcess) -> int:
    return row.bytes or 0


def _of_holders(holders: list[PostedProcess]) -> Iterator[Observation]:
    big = [row for row in holders if _b(row) > GIB]
    if big:
        most = max(big, key=_b)
        yield note("process-listed", most.bytes, most.source, "tool", who=most.name or most.pid)
    pids = sorted({row.pid for row in big if row.pid})
    sizes = [_b(row) for row in big]
    if len(pids) >= 3 and max(sizes) <= 1.1 * min(sizes):
        yield note("equal-processes", str(pids[:8]), big[0].source, "tool")
    where: dict[int, set[int]] = {}
    for row in holders:
        if row.gpu is not None and row.pid:
            where.setdefault(row.pid, set()).add(row.gpu)
    spread = [pid for pid, gpus in where.items() if len(gpus) > 1]
    shared = set.intersection(*(where[pid] for pid in spread)) if spread else set()
    if shared and (len(spread) > 1 or 0 in shared):
        yield note("rank-on-two-gpus", str(spread[:8]), holders[0].source, "tool")
    if holders and not any(row.bytes for row in holders):
        words = holders[0].name or str(holders[0].pid)
        yield note("listed-with-nothing", words, holders[0].source, "tool")


def _of_states(rows: tuple[PostedProcess, ...]) -> Iterator[Observation]:
    for name, states in (("zombie-listed", "Z"), ("stopped-listed", "Tt")):
        row = next((row for row in rows if row.state and row.state in states), None)
        if row is not None:
            yield note(name, f"{row.pid} {row.name}", row.source, "tool")
    opened = [row for row in rows if row.state == "open"]
    if opened:
        pids = ", ".join(str(row.pid) for row in opened[:8])
        yield note("device-open", pids, opened[0].source, "tool")
