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
from helpers.look.printed import PrintedLine, printed_lines, without

MOST_NAMED = 4
"""Processes that a sentence names."""
MOST_PIDS = 8
"""Process numbers that a reading lists."""
LEAST_RANKS = 3
EQUAL_TIMES = 1.1
"""So many processes of which the largest is at most so many times the smallest are ranks of one
job.
"""
LEAST_LEFT_BYTES = GIB // 4
"""Less is a context alone, and no run that is left over."""
STATES = {"zombie-listed": ("Z",), "stopped-listed": ("T", "t")}
"""The observation about a process, and the states of ps in which it is made."""
INIT = 1
"""The number of the process that adopts those whose parent has ended."""


@dataclass(frozen=True)
class PostedProcess:
    """One process as a tool listed it; None is not printed.

    ``state`` is ps's letter, or "open" for one that has a device open. ``leads``: it leads a
    session, as a process that a service manager starts does.
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
    """What the processes that posted tools list say of who holds the memory."""
    rows = processes(evidence)
    holders = [row for row in rows if row.bytes is not None]
    yield from _of_holders(holders)
    yield from _of_states(rows)
    yield from _of_left_over(evidence, rows)
    yield from _of_rests(evidence)
    yield from _of_outside(evidence, holders)


def _rows(source: str, text: str) -> Iterator[PostedProcess]:
    """The processes in one output: of its tables as they were printed last, of ps, and of the lists
    without a head that posted.json knows.
    """
    lines = printed_lines(text)
    lists = [line for line in lines if _lists_process(line)]
    latest = max((line.when for line in lists), default=0)
    for row in lists:
        if row.pid is None or row.when != latest:
            continue
        sizes = [size for _measure, pool, size in row.sizes if pool == "process"]
        most = max((size.bytes for size in sizes if size), default=None)
        name = row.name
        if name.upper() in ("N/A", "UNKNOWN"):
            name = ""
        yield PostedProcess(row.pid, name, most, "", source)
    of_ps = [line for line in lines if line.state or line.parent is not None]
    for row in of_ps:
        # Of Ssl+ the first letter is the state, and s says that it leads a session (ps(1)).
        state = row.state[:1]
        if not state and "<defunct>" in row.name:
            state = "Z"
        leads = "s" in row.state
        yield PostedProcess(row.pid, row.name, None, state, source, row.parent, leads)
    # Lists without a head (posted.json) are searched in the rest of the text: without the rows of
    # processes above, and without lines of other tables, which have neither a process nor a tool.
    of_processes = {*lists, *of_ps}
    of_tables = [line for line in lines if line.pid is None and not line.tool]
    read = [line for line in lines if line in of_processes or line in of_tables]
    yield from _of_lists(source, without(text, read))


def _lists_process(line: PrintedLine) -> bool:
    """Whether a line has the memory of a process among its sizes."""
    return any(pool == "process" for _measure, pool, _size in line.sizes)


def _of_lists(source: str, text: str) -> Iterator[PostedProcess]:
    """The processes in lists without a head, each by its form in posted.json."""
    for data in table("posted")["lists"].values():
        if not re.search(data.get("text_has", ""), f"{source}\n{text[:200]}"):
            continue
        for match in re.finditer(data["form"], text):
            yield from _of_match(match, data.get("state", ""), source)


def _of_match(match: re.Match[str], state: str, source: str) -> Iterator[PostedProcess]:
    """The processes of one matched row, of which fuser lists several; ``state`` is that of all
    rows of the list, empty where each row has its own.
    """
    groups = match.groupdict("")
    pids = [groups.get("pid", "")]
    if "pids" in groups:
        pids = re.findall(r"\d{2,9}", groups["pids"])
    if not state:
        state = groups.get("state", "")[:1]
    printed = groups.get("size", "")
    if not printed:
        printed = groups.get("mib", "")
    size = quantity(printed, "MiB")
    size_bytes = None
    if size is not None:
        size_bytes = size.bytes
    name = groups.get("name", "").strip()
    for pid in pids:
        number = None
        if pid:
            number = int(pid)
        yield PostedProcess(number, name, size_bytes, state, source)


def _of_holders(holders: list[PostedProcess]) -> Iterator[Observation]:
    """The largest holder, a holder without a name, processes of equal size (ranks of one job), and
    a list in which no process has a size above 0.
    """
    # A display server has little and always runs: it is never the answer.
    programs = [row for row in holders if not form("display").search(row.name)]
    large = [row for row in programs if _bytes(row) > GIB]
    if large:
        most = max(large, key=_bytes)
        holder = f"process {most.pid}"
        if most.name:
            holder = most.name
        if most.name and most.pid:
            holder += f" (pid {most.pid})"
        says = f"Held by {holder}, as {most.source} lists it"
        yield make_observation("process-listed", most.bytes, most.source, "tool", says)
    nameless = [row for row in holders if form("nameless").search(row.name)]
    yield from _first_listed("nameless-listed", nameless)
    pids = sorted({row.pid for row in large if row.pid})
    sizes = [_bytes(row) for row in large]
    if len(pids) >= LEAST_RANKS and max(sizes) <= EQUAL_TIMES * min(sizes):
        words = str(pids[:MOST_PIDS])
        yield make_observation("equal-processes", words, large[0].source, "tool")
    if holders and not any(row.bytes for row in holders):
        words = holders[0].name
        if not words:
            words = str(holders[0].pid)
        yield make_observation("listed-with-nothing", words, holders[0].source, "tool")


def _first_listed(name: str, rows: list[PostedProcess]) -> Iterator[Observation]:
    """The observation ``name`` about the first of the processes; nothing without one."""
    for row in rows[:1]:
        yield make_observation(name, f"{row.pid} {row.name}", row.source, "tool")


def _bytes(row: PostedProcess | Figure) -> int:
    """The size that was printed; 0 where none was."""
    if row.bytes is None:
        return 0
    return row.bytes


def _of_states(rows: tuple[PostedProcess, ...]) -> Iterator[Observation]:
    """The first zombie, the first stopped process, the first orphan where that one is Python's,
    and processes that have a device open.
    """
    for name, states in STATES.items():
        yield from _first_listed(name, [row for row in rows if row.state in states])
    orphan = next((row for row in rows if is_orphan(row, rows)), None)
    if orphan is not None and form("python's process").search(orphan.name):
        yield from _first_listed("orphan-listed", [orphan])
    opened = [row for row in rows if row.state == "open"]
    if opened:
        pids = ", ".join(str(row.pid) for row in opened[:MOST_PIDS])
        yield make_observation("device-open", pids, opened[0].source, "tool")


def is_orphan(row: PostedProcess, rows: Iterable[PostedProcess]) -> bool:
    """Whether the program that started a process is gone: init is its parent, and it leads no
    session, as a service does. In a container process 1 may be the program that started it.
    """
    if row.parent != INIT or row.leads or row.state == "Z":
        return False
    first = next((other.name for other in rows if other.pid == INIT), "init")
    return form("init").search(first) is not None


def _of_left_over(
    evidence: CaseEvidence, rows: tuple[PostedProcess, ...]
) -> Iterator[Observation]:
    """Processes that ps shows stopped or orphaned, with the memory that a message or another tool
    says they hold.
    """
    sizes = {row.pid: row.bytes for row in rows if row.bytes}
    for account in evidence.accounts:
        sizes.update({pid: size.bytes for pid, size in account.others if pid})
    own_pids = {account.own_pid for account in evidence.accounts}
    # ps prints the state and the parent, and no memory of the GPU.
    of_ps = [row for row in rows if row.bytes is None]
    for row in of_ps:
        size = sizes.get(row.pid, 0)
        if row.pid in own_pids or size <= LEAST_LEFT_BYTES:
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
    """Each figure of the memory in use on a card, with the figures of the processes that the same
    output lists on that card.
    """
    listed: dict[object, list[Figure]] = defaultdict(list)  # by output and card
    for figure in evidence.figures:
        if figure.pool == "process":
            listed[figure.source, figure.when, figure.device].append(figure)
    for used in evidence.figures:
        beside = listed[used.source, used.when, used.device]
        if used.measure == "used" and used.pool == "vram" and beside:
            yield used, beside


def _of_rests(evidence: CaseEvidence) -> Iterator[Observation]:
    """Memory that a tool shows in use on a card, and none of the processes holds that it lists."""
    for used, listed in listed_beside(evidence):
        by_processes = sum(map(_bytes, listed))
        rest = _bytes(used) - by_processes
        # A list in which no process has a size does not show who uses the rest.
        if by_processes and is_unexplained(rest, by_processes + rest):
            says = (
                "In use on the card, but by none of the processes that the tool lists"
            )
            yield make_observation("unattributed", rest, used.source, used.origin, says)


def _of_outside(
    evidence: CaseEvidence, holders: list[PostedProcess]
) -> Iterator[Observation]:
    """Whether the processes that a tool lists hold the memory that a message counts outside the
    failing program.
    """
    for account in evidence.accounts:
        failing = expected_range(account.this_process, account.reserved)
        if failing is None or account.outside is None:
            continue
        measured = [row for row in holders if row.bytes]
        # Without those that may be the failing program itself.
        others = [row for row in measured if not is_within(_bytes(row), [failing])]
        by_others = sum(map(_bytes, others))
        if by_others >= NAMED_SHARE * account.outside.bytes > 0:
            names = ", ".join(f"{row.name} ({row.pid})" for row in others[:MOST_NAMED])
            says = f"Held by processes that are listed, of {show_bytes(account.outside.bytes)} "
            says += f"outside the program: {names}"
            yield make_observation(
                "outside-named", by_others, others[0].source, "tool", says
            )
