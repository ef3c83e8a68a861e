"""The processes that posted tools list, and what they say of who holds the memory.

Only rows in a tool's own form are read; a description of an output gives none. Tables are read by
look.printed; the forms of what stands under no head are data: posted.json (``of``: what their
text or its source must have).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.ground.units import GIB, MIB
from helpers.judge import form, table
from helpers.judge.evidence import LONGEST_TEXT, CaseEvidence
from helpers.judge.holders import is_unexplained
from helpers.judge.observation import Observation, make_observation
from helpers.look.printed import printed_lines, without

STATES = {"zombie-listed": ("Z",), "stopped-listed": ("T", "t"), "orphan-listed": ("orphan",)}


@dataclass(frozen=True)
class PostedProcess:
    """One process as a tool listed it; ``state`` is ps's letter."""

    pid: int | None
    name: str
    bytes: int | None
    state: str
    source: str


def processes(evidence: CaseEvidence) -> tuple[PostedProcess, ...]:
    """Every process row of the posted tools."""
    rows: list[PostedProcess] = []
    for source, text in evidence.tools:
        rows += _rows(source, text[:LONGEST_TEXT])
    return tuple(rows)


def process_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """What the rows say of who holds the memory."""
    rows = processes(evidence)
    holders = [row for row in rows if row.bytes is not None]
    yield from _of_holders(holders)
    yield from _of_states(rows)
    yield from _of_rests(evidence)


def _rows(source: str, text: str) -> Iterator[PostedProcess]:
    """The rows of tables as they were printed last; forms read what stands under no head."""
    lines = printed_lines(text)
    lists = [line for line in lines if any(pool == "process" for _, pool, _ in line.sizes)]
    latest = max((line.when for line in lists), default=0)
    for row in lists:
        if row.pid is not None and row.when == latest:
            held = [size.bytes for _, pool, size in row.sizes if pool == "process" and size]
            name = "" if row.name.upper() in ("N/A", "UNKNOWN") else row.name
            yield PostedProcess(row.pid, name, max(held, default=None), "", source)
    read = [line for line in lines if line in lists or (line.pid is None and not line.tool)]
    text = without(text, read)
    for data in table("posted")["lists"].values():
        if not re.search(data.get("of", ""), f"{source}\n{text[:200]}"):
            continue
        for match in re.finditer(data["form"], text):
            yield from _of_match(match, data.get("state", ""), source)


def _of_match(match: re.Match[str], state: str, source: str) -> Iterator[PostedProcess]:
    """The processes of one matched row; fuser lists several in a line."""
    groups = match.groupdict("")
    pids = [groups.get("pid", "")]
    if "pids" in groups:
        pids = re.findall(r"\d{2,9}", groups["pids"])
    mib = groups.get("mib", "")
    for pid in pids:
        yield PostedProcess(
            pid=int(pid) if pid else None,
            name=groups.get("name", "").strip(),
            bytes=int(mib) * MIB if mib else None,
            state=state or groups.get("state", "")[:1],
            source=source,
        )


def _of_holders(holders: list[PostedProcess]) -> Iterator[Observation]:
    """The largest holder, holders without a name, ranks of one job, and rows of nothing."""
    named = [row for row in holders if not form("display").search(row.name)]
    large = [row for row in named if row.bytes and row.bytes > GIB]
    if large:
        most = max(large, key=lambda row: row.bytes or 0)
        says = f"A process is listed that holds this much: {most.name or most.pid}"
        yield make_observation("process-listed", most.bytes, most.source, "tool", says)
    for row in holders:
        if form("nameless").search(row.name):
            yield make_observation("nameless-listed", f"{row.pid} {row.name}", row.source, "tool")
            break
    pids = sorted({row.pid for row in large if row.pid})
    sizes = [row.bytes for row in large if row.bytes]
    if len(pids) >= 3 and max(sizes) <= 1.1 * min(sizes):
        yield make_observation("equal-processes", str(pids[:8]), large[0].source, "tool")
    if holders and not any(row.bytes for row in holders):
        words = holders[0].name or str(holders[0].pid)
        yield make_observation("listed-with-nothing", words, holders[0].source, "tool")


def _of_states(rows: tuple[PostedProcess, ...]) -> Iterator[Observation]:
    for name, states in STATES.items():
        row = next((row for row in rows if row.state in states), None)
        if row is not None:
            yield make_observation(name, f"{row.pid} {row.name}", row.source, "tool")
    opened = [row for row in rows if row.state == "open"]
    if opened:
        pids = ", ".join(str(row.pid) for row in opened[:8])
        yield make_observation("device-open", pids, opened[0].source, "tool")


def _of_rests(evidence: CaseEvidence) -> Iterator[Observation]:
    """What a tool shows in use of a card, less what the processes that it lists beside it hold."""
    held: Counter[object] = Counter()
    for figure in evidence.figures:
        if figure.pool == "process":
            held[figure.source, figure.when, figure.device] += figure.bytes or 0
    for used in evidence.figures:
        listed = held[used.source, used.when, used.device]
        rest = (used.bytes or 0) - listed
        is_of_card = (used.what, used.pool) == ("used", "vram")
        if is_of_card and listed and is_unexplained(rest, listed + rest):
            says = "In use on the card, and held by none of the processes that the tool lists"
            yield make_observation("unattributed", rest, used.source, used.origin, says)
