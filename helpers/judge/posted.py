"""Processes and figures in posted tool output: nvidia-smi's table and CSV, gpustat, rocm-smi --showpids, ps, fuser, lsof.

Only rows in the tool's own form are read; a description of an output gives none. The forms are data: posted.json, whose
``lists`` are of processes (``of``: what their text or its source must have), and forms.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.judge import form, table
from helpers.judge.evidence import CaseEvidence, Observation, is_described, note
from helpers.look.bundle import Text
from helpers.look.reading import GIB, MIB, show_bytes
from helpers.units import printed_size

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
    for data in table("posted")["lists"].values():
        if not re.search(data.get("of", ""), f"{source}\n{text[:200]}"):
            continue
        for match in re.finditer(data["form"], text):
            got = match.groupdict()
            mib, gpu, name = got.get("mib"), got.get("gpu"), (got.get("name") or "").strip()
            size, index = int(mib) * MIB if mib else None, int(gpu) if gpu else None
            state = data.get("state") or (got.get("state") or "")[:1]
            pids = re.findall(r"\d{2,9}", got["pids"]) if "pids" in got else [got.get("pid")]
            for pid in pids:
                yield PostedProcess(int(pid) if pid else None, name, size, index, state, source)
    if "PID" in text and "KFD" in text or "showpids" in source:
        from helpers.look import rocm

        listed, _ = rocm.parse_pids(Text(text, "ok", "", source, ""))
        for row in listed:
            size = row.vram.bytes if row.vram.ok else None
            yield PostedProcess(row.pid, row.name, size, None, "", source)


def process_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the rows say of who holds the memory."""
    rows = processes(evidence)
    holders = [row for row in rows if row.bytes is not None]
    found = [*_of_holders(holders), *_of_states(rows), *_membership(evidence)]
    for source, text in evidence.tools:
        if form("openers").search(source) and form("nothing").search(text):
            found.append(note("no-openers", "(no output)", source, "tool"))
        node = form("node").search(text)
        if node and "rw" not in node["mode"][3:]:
            found.append(note("node-root-only", node.group()[:80], source, "tool"))
        match = form("empty").search(text)
        if match and not holders:
            hard = not is_described(text)
            found.append(note("list-empty", match.group(), source, "tool", hard=hard))
    return found


def _membership(evidence: CaseEvidence) -> Iterator[Observation]:
    """A node that is for a group alone, beside an ``id`` that does not name that group. Root needs none."""
    users = [m for _, text in evidence.tools for m in form("id").finditer(text)]
    if len(users) != 1 or users[0].group().startswith("uid=0"):
        return
    theirs = users[0]["groups"]
    node_form = form("group's node")
    nodes = ((m, source) for source, text in evidence.tools for m in node_form.finditer(text))
    for node, source in nodes:
        group = node["group"]
        if group not in re.findall(r"[\w.-]+", theirs):
            yield note("not-in-group", node["node"], source, "tool", group=group, groups=theirs)
            return


def _of_holders(holders: list[PostedProcess]) -> Iterator[Observation]:
    big = [(row.bytes, row) for row in holders if row.bytes and row.bytes > GIB]
    if big:
        size, most = max(big, key=lambda one: one[0])
        yield note("process-listed", size, most.source, "tool", who=most.name or most.pid)
    nameless = next((row for row in holders if form("nameless").search(row.name)), None)
    if nameless is not None:
        yield note("nameless-listed", f"{nameless.pid} {nameless.name}", nameless.source, "tool")
    pids = sorted({row.pid for _, row in big if row.pid})
    sizes = [size for size, _ in big]
    if len(pids) >= 3 and max(sizes) <= 1.1 * min(sizes):
        yield note("equal-processes", str(pids[:8]), big[0][1].source, "tool")
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
    kinds = (("zombie-listed", "Z"), ("stopped-listed", "Tt"), ("orphan-listed", ("orphan",)))
    for name, states in kinds:
        row = next((row for row in rows if row.state and row.state in states), None)
        if row is not None:
            yield note(name, f"{row.pid} {row.name}", row.source, "tool")
    opened = [row for row in rows if row.state == "open"]
    if opened:
        pids = ", ".join(str(row.pid) for row in opened[:8])
        yield note("device-open", pids, opened[0].source, "tool")


def figure_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """That there is a figure at all, torch's statistics, series of one figure over time."""
    statistics: dict[str, int] = {}
    for source, text in evidence.tools:
        for name, number, unit in form("statistic").findall(text):
            statistics.setdefault(name.lower(), printed_size(number, unit))
        if form("tool").search(f"{source} {text[:300]}") and form("figure").search(text):
            yield note("tool-figure", text[:80], source, "tool", hard=not is_described(text))
        if "allocated" in source and re.search(r"between|constant|stays|flat", text):
            yield note("allocated-flat", text, source, "tool", hard=False)
        yield from _series(source, text)
    if statistics.get("reserved", 0) > 1.5 * statistics.get("allocated", 1e15):
        words = ", ".join(f"{name} {show_bytes(n)}" for name, n in statistics.items())
        live = statistics["allocated"] > 0
        name = "reserved-far-above-allocated" if live else "reserved-and-nothing-live"
        yield note(name, words, "torch's statistics", "tool")


def _series(source: str, text: str) -> Iterator[Observation]:
    """At least three readings of one figure that only rise, a line each or in one line."""
    kinds = form("series").findall(source) or form("series").findall(text[:80])
    if not kinds or is_described(text) or len(text) > 4000:
        return
    lines = [form("counter").sub("", line) for line in text.splitlines()]
    sizes = [float(number) for line in lines for number in form("number").findall(line)]
    if len(sizes) < 3 or (len(lines) > 1 and len(sizes) != len(lines)):
        return
    if all(a < b for a, b in zip(sizes, sizes[1:])) and sizes[-1] > 1.2 * sizes[0]:
        words = ", ".join(f"{size:g}" for size in sizes[:8])
        reserved = "reserved" in [kind.lower() for kind in kinds]
        yield note("reserved-series-grows" if reserved else "series-grows", words, source, "tool")
