"""The processes that posted tools list, and what they say of who holds the memory.

Only rows in a tool's own form are read; a description of an output gives none. Tables are read by
look.printed; the forms of what stands under no head are data: posted.json (``text_has``: what their
text or its source must have).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from helpers.ground.units import GIB, quantity, show_bytes
from helpers.judge import form, table
from helpers.judge.evidence import LONGEST_TEXT, CaseEvidence
from helpers.judge.holders import NAMED_SHARE, expected_range, is_unexplained, is_within
from helpers.judge.observation import Observation, make_observation
from helpers.look.figures import Figure
from helpers.look.printed import printed_lines, without

MOST_NAMED = 4
STATES = {"zombie-listed": ("Z",), "stopped-listed": ("T", "t")}
INIT = 1


@dataclass(frozen=True)
class PostedProcess:
    """One process as a tool listed it; ``state`` is ps's letter, ``leads`` whether it leads a
    session, as what a service manager starts does.
    """

    pid: int | None
    name: str
    bytes: int | None
    state: str
    source: str
    parent: int | None = None
    leads: bool = False


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
    yield from _of_left_over(evidence, rows)
    yield from _of_rests(evidence)
    yield from _of_outside(evidence, holders)


def _rows(source: str, text: str) -> Iterator[PostedProcess]:
    """The rows of tables as they were printed last; forms read what stands under no head."""
    lines = printed_lines(text)
    lists = [line for line in lines if "process" in [pool for _, pool, _ in line.sizes]]
    latest = max((line.when for line in lists), default=0)
    for row in lists:
        if row.pid is None or row.when != latest:
            continue
        sizes = [size for _, pool, size in row.sizes if pool == "process"]
        most = max((size.bytes for size in sizes if size), default=None)
        name = row.name
        if name.upper() in ("N/A", "UNKNOWN"):
            name = ""
        yield PostedProcess(row.pid, name, most, "", source)
    of_ps = [line for line in lines if line.state or line.parent is not None]
    for row in of_ps:
        state = row.state[:1]
        if not state and "<defunct>" in row.name:
            state = "Z"
        leads = "s" in row.state
        yield PostedProcess(row.pid, row.name, None, state, source, row.parent, leads)
    is_read = {*lists, *of_ps}
    read = [
        line
        for line in lines
        if line in is_read or (line.pid is None and not line.tool)
    ]
    text = without(text, read)
    for data in table("posted")["lists"].values():
        if not re.search(data.get("text_has", ""), f"{source}\n{text[:200]}"):
            continue
        for match in re.finditer(data["form"], text):
            yield from _of_match(match, data.get("state", ""), source)


def _of_match(match: re.Match[str], state: str, source: str) -> Iterator[PostedProcess]:
    """The processes of one matched row; fuser lists several in a line."""
    groups = match.groupdict("")
    pids = [groups.get("pid", "")]
    if "pids" in groups:
        pids = re.findall(r"\d{2,9}", groups["pids"])
    size = quantity(groups.get("size") or groups.get("mib", ""), "MiB")
    for pid in pids:
        yield PostedProcess(
            pid=int(pid) if pid else None,
            name=groups.get("name", "").strip(),
            bytes=size.bytes if size else None,
            state=state or groups.get("state", "")[:1],
            source=source,
        )


def _of_holders(holders: list[PostedProcess]) -> Iterator[Observation]:
    """The largest holder, holders without a name, ranks of one job, and rows of nothing."""
    named = [row for row in holders if not form("display").search(row.name)]
    large = [row for row in named if _bytes(row) > GIB]
    if large:
        most = max(large, key=_bytes)
        holder = f"process {most.pid}"
        if most.name:
            holder = most.name
        if most.name and most.pid:
            holder += f" (pid {most.pid})"
        says = f"Held by {holder}, as {most.source} lists it"
        yield make_observation("process-listed", most.bytes, most.source, "tool", says)
    for row in holders:
        if form("nameless").search(row.name):
            yield make_observation(
                "nameless-listed", f"{row.pid} {row.name}", row.source, "tool"
            )
            break
    pids = sorted({row.pid for row in large if row.pid})
    sizes = [_bytes(row) for row in large]
    if len(pids) >= 3 and max(sizes) <= 1.1 * min(sizes):
        yield make_observation(
            "equal-processes", str(pids[:8]), large[0].source, "tool"
        )
    if holders and not any(row.bytes for row in holders):
        words = holders[0].name or str(holders[0].pid)
        yield make_observation("listed-with-nothing", words, holders[0].source, "tool")


def _bytes(row: PostedProcess | Figure) -> int:
    """What was measured; 0 where nothing was."""
    return row.bytes or 0


def _of_states(rows: tuple[PostedProcess, ...]) -> Iterator[Observation]:
    for name, states in STATES.items():
        row = next((row for row in rows if row.state in states), None)
        if row is not None:
            yield make_observation(name, f"{row.pid} {row.name}", row.source, "tool")
    orphan = next((row for row in rows if is_orphan(row, rows)), None)
    if orphan is not None and form("python's process").search(orphan.name):
        yield make_observation(
            "orphan-listed", f"{orphan.pid} {orphan.name}", orphan.source, "tool"
        )
    opened = [row for row in rows if row.state == "open"]
    if opened:
        pids = ", ".join(str(row.pid) for row in opened[:8])
        yield make_observation("device-open", pids, opened[0].source, "tool")


def is_orphan(row: PostedProcess, rows: Iterable[PostedProcess]) -> bool:
    """Whether the program that started a process is gone: init is its parent, and it leads no
    session, as a service of its own does. In a container number 1 may be that very program.
    """
    if row.parent != INIT or row.leads or row.state == "Z":
        return False
    first = next((other.name for other in rows if other.pid == INIT), "init")
    return form("init").search(first) is not None


def _of_left_over(
    evidence: CaseEvidence, rows: tuple[PostedProcess, ...]
) -> Iterator[Observation]:
    """What a message or a tool says that a process holds which ps shows stopped or orphaned."""
    sizes = {row.pid: row.bytes for row in rows if row.bytes}
    for account in evidence.accounts:
        sizes.update({pid: size.bytes for pid, size in account.others if pid})
    own_pids = {account.own_pid for account in evidence.accounts}
    for row in rows:
        size = sizes.get(row.pid, 0)
        if row.bytes is not None or row.pid in own_pids or size <= GIB // 4:
            continue
        says = f"Held by process {row.pid} {row.name}".rstrip()
        if row.state in STATES["stopped-listed"]:
            says += (
                ", which is stopped: it keeps its memory until it goes on or is ended"
            )
            yield make_observation("stopped-holder", size, row.source, "tool", says)
        elif is_orphan(row, rows):
            says += ", whose parent has ended: it outlived the run that started it"
            yield make_observation("orphan-holder", size, row.source, "tool", says)


def listed_beside(evidence: CaseEvidence) -> Iterator[tuple[Figure, list[Figure]]]:
    """What a tool shows in use of a card, and each process that it lists there beside it."""
    listed: dict[object, list[Figure]] = defaultdict(list)
    for figure in evidence.figures:
        if figure.pool == "process":
            listed[figure.source, figure.when, figure.device].append(figure)
    for used in evidence.figures:
        processes_there = listed[used.source, used.when, used.device]
        if (used.measure, used.pool) == ("used", "vram") and processes_there:
            yield used, processes_there


def _of_rests(evidence: CaseEvidence) -> Iterator[Observation]:
    """What a tool shows in use of a card, less what the processes that it lists beside it hold."""
    for used, listed in listed_beside(evidence):
        by_processes = sum(map(_bytes, listed))
        rest = _bytes(used) - by_processes
        if by_processes and is_unexplained(rest, by_processes + rest):
            says = (
                "In use on the card, but by none of the processes that the tool lists"
            )
            yield make_observation("unattributed", rest, used.source, used.origin, says)


def _of_outside(
    evidence: CaseEvidence, holders: list[PostedProcess]
) -> Iterator[Observation]:
    """That the processes which a tool lists beside a message hold what is outside the program."""
    for account in evidence.accounts:
        failing = expected_range(account.this_process, account.reserved)
        if failing is None or account.outside is None:
            continue
        others = [
            row for row in holders if row.bytes and not is_within(row.bytes, [failing])
        ]
        by_others = sum(map(_bytes, others))
        if by_others >= NAMED_SHARE * account.outside.bytes > 0:
            names = ", ".join(f"{row.name} ({row.pid})" for row in others[:MOST_NAMED])
            says = f"Held by processes that are listed, of {show_bytes(account.outside.bytes)} "
            says += f"outside the program: {names}"
            yield make_observation(
                "outside-named", by_others, others[0].source, "tool", says
            )
