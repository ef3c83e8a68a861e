"""What grows in a recorded program, who keeps it, and the line that keeps it.

The trace says which line asked for what stays; the record beside it says, where the program ran
out of memory, from which names the tensors of that moment were reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

import numpy as np

from helpers.allocator.call_sites import LinesError, Requests, requests_of
from helpers.allocator.circumstances import record_of
from helpers.allocator.growth import KEPT, Grower, Growth, growth_of
from helpers.allocator.recorded_processes import Fields
from helpers.allocator.steps import steps_begun
from helpers.allocator.trace import Trace, TraceError
from helpers.allocator.trace_file import read_trace
from helpers.ground.units import show_bytes
from helpers.judge.program_questions import LEAST_KEPT
from helpers.settings.in_force import MIN_BLOCK_BYTES

WITHOUT_LIMIT = "without-limit.pickle"
MOST_STEPS = 100_000
LEAST_SHARE = 1 / 3
"""The share of what grows that is reached from a name which is said to keep it."""


class KeeperRow(TypedDict, total=False):
    """A name that the tensors were reached from when memory ran out, as a record has it.

    ``addresses``: of the blocks reached; ``bytes``: of their tensors; ``graphs``: how many of
    these carry a graph of autograd; ``collection``: the name of the collection, "" for a
    variable; ``length``: of the collection; ``where``: the frame, function or module;
    ``lines``: that put something into it; ``kind``: "circle" for objects that refer to each other.
    """

    name: str
    collection: str
    where: str
    lines: Sequence[str]
    length: int
    graphs: int
    bytes: int
    addresses: Sequence[int]
    kind: str


@dataclass(frozen=True)
class Keeper:
    """Who keeps tensors: a collection or a variable of the program.

    ``name``: as the program writes it, such as "self.history"; ``where``: the frame, function or
    module that has the name; ``lines``: of the program, that put something into it, such as
    "train.py:36 evaluate"; ``length``: entries of the collection, 0 for a variable;
    ``with_graph``: what it keeps carries a graph of autograd, which keeps the rest;
    ``own_bytes``: of the tensors themselves, without what their graphs keep;
    ``in_circle``: objects that refer to each other, which no garbage collector takes away.
    """

    name: str
    where: str
    lines: tuple[str, ...]
    length: int
    with_graph: bool
    own_bytes: int = 0
    in_circle: bool = False

    @property
    def is_one_with_graph(self) -> bool:
        """Whether a single variable keeps it all, through a graph that is never cut."""
        return self.with_graph and self.length == 0 and not self.in_circle


@dataclass(frozen=True)
class KeptGrower:
    """A call site that keeps more with each step, and who keeps it; None where nobody is known.

    ``held_bytes``: what it has kept when the trace runs out of memory, else when most is live.
    """

    grower: Grower
    keeper: Keeper | None
    held_bytes: int

    @property
    def line(self) -> str:
        """The program's line to look at: the one that keeps, else the one that asked."""
        if self.keeper is not None and self.keeper.lines:
            return self.keeper.lines[0]
        return self.grower.site.name

    @property
    def words(self) -> str:
        """Who keeps it and where, then where it was asked for, in one phrase."""
        if self.keeper is None:
            return self.grower.site.name
        graph = " with its graph" if self.keeper.with_graph else ""
        place = ", ".join(self.keeper.lines) or self.keeper.where
        kept = f"{self.keeper.name} keeps it{graph} ({place})"
        allocated_at = self.grower.site.name
        if allocated_at in self.keeper.lines:
            return kept
        return f"{kept}; it is allocated at {allocated_at}"


@dataclass(frozen=True)
class RecordedGrowth:
    """What grows in a recorded program.

    ``growth``: over the steps of the trace, or of the same program recorded without a limit
    (``is_longer``), whose ``requests`` are these; None where neither shows enough steps:
    ``why_not``. ``is_later``: these steps come after the request that failed, so they say nothing
    of what was kept until then. ``growers``: those of growth, each with its keeper. ``steps_begun``: in the
    trace itself, before it ran out of memory; ``ran_out``: whether it did;
    ``ended_well``: its record says that it came to its end by itself. ``may_be_one_step``: no
    backward pass was recorded, and a state that joins the passes carries a graph.
    ``asked_bytes``: live when it was fullest, without what was there when the trace began.
    """

    requests: Requests
    steps_begun: int
    ran_out: bool
    growth: Growth | None = None
    growers: tuple[KeptGrower, ...] = ()
    is_longer: bool = False
    is_later: bool = False
    why_not: str = ""
    ended_well: bool = False
    may_be_one_step: bool = False
    asked_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """What the growers hold when the trace runs out of memory, else when most is live."""
        return sum(row.held_bytes for row in self.growers)

    @property
    def is_leak(self) -> bool:
        """Whether what grows ends this program or a longer run of it: a good part of what was
        live when it ran out of memory; or it was ended in its steps, and so many more of them
        as nobody runs would double what it holds at its peak.
        """
        if self.growth is None or not self.growers:
            return False
        if self.ran_out:
            return LEAST_KEPT * self.held_bytes >= self.asked_bytes
        longest_run = MOST_STEPS * self.growth.bytes_per_step
        is_large = longest_run >= int(self.requests.live.max())
        return self.growth.goes_on and is_large and not self.ended_well

    @property
    def first_step(self) -> int:
        """The operation at which the steps begin: what is asked for before is built; 0 where no
        steps are seen.
        """
        return 0 if self.growth is None else int(self.growth.steps.begins[0])

    @property
    def reached_first_step(self) -> bool:
        """Whether the first step had ended when the program ran out of memory."""
        return self.steps_begun > 1


# A verdict, its growth and its remedies are each asked about with the same trace.
@lru_cache(2)
def growth_of_recording(trace: Trace, path: Path | None = None) -> RecordedGrowth:
    """What grows in a recorded program, who keeps it, and the line that keeps it.

    ``path``: of the trace's file, beside which its record lies (run.pickle,
    run.record/record.json); without one no keeper is known. Where the record holds the same
    program without a limit, the steps are taken from that, unless all of them come after the
    request that failed, as those of a second validation, or they sum up losses whose graphs a
    later backward pass frees there. Raises nothing: what is missing or cannot be read is not
    used, and ``why_not`` says why no steps are seen.
    """
    requests = requests_of(trace)
    record = record_of(path)
    allocated = requests.alive(requests.fullest) & (requests.at >= 0)
    recorded = RecordedGrowth(
        requests=requests,
        steps_begun=steps_begun(requests),
        ran_out=trace.ran_out,
        ended_well=record.get("exit_code") == 0 and not record.get("stopped"),
        asked_bytes=int(requests.size[allocated].sum()),
    )
    sums_losses = _sums_losses(keepers_of(record))
    shown = []
    why_not = ""
    for steps_from in filter(None, (_longer(path), requests)):
        try:
            seen = _with_growth(recorded, steps_from, record)
        except LinesError as error:
            why_not = str(error)
            continue
        shown.append(seen)
        if not seen.is_later and (seen.growers or not sums_losses):
            break
    if not shown:
        return replace(recorded, why_not=why_not)
    return min(shown, key=lambda seen: (seen.is_later, not seen.growers))


def _with_growth(
    recorded: RecordedGrowth, steps_from: Requests, record: Fields
) -> RecordedGrowth:
    """The recording with what grows over the steps of these requests: its own, or those of the
    same program without a limit. Raises LinesError where they show too few steps.
    """
    requests = recorded.requests
    is_longer = steps_from is not requests
    growth = growth_of(steps_from, until_given_up=is_longer)
    rows = keepers_of(record)
    growers = [_kept(grower, growth, requests, rows) for grower in growth.growers]
    if not growth.steps.trains or growth.steps.line in lines_of_step(record, "loops"):
        lines = lines_of_step(record)
        growers = [row for row in growers if not _lies_in_step(row, steps_from, lines)]
        growth = replace(growth, growers=tuple(row.grower for row in growers))
    begun = recorded.steps_begun
    if is_longer:
        begun = growth.steps_at(requests.fullest)
    has_backward = bool(steps_from.backward.any())
    return replace(
        recorded,
        requests=steps_from,
        steps_begun=begun,
        growth=growth,
        growers=tuple(growers),
        is_longer=is_longer,
        is_later=is_longer and bool(growers) and not begun,
        may_be_one_step=not has_backward and _hand_on_a_state(growers, rows),
    )


def growth_words(trace: Trace, path: Path | None = None) -> str:
    """What is seen to grow and never ends, in words; empty where nothing does, or where it cannot
    be said.
    """
    recorded = growth_of_recording(trace, path)
    if recorded.growth is None or not recorded.is_leak:
        return ""
    size = show_bytes(round(recorded.growth.bytes_per_step))
    return f"memory grows by {size} each step, most of it at {recorded.growers[0].line}"


def _longer(path: Path | None) -> Requests | None:
    """The same program recorded without a limit; None where it was not, or was not readable."""
    if path is None:
        return None
    try:
        return requests_of(read_trace(path.with_suffix(".record") / WITHOUT_LIMIT))
    except (OSError, TraceError):
        return None


def keepers_of(record: Fields) -> list[KeeperRow]:
    """What a record says of who keeps the tensors, of all processes."""
    rows: list[KeeperRow] = []
    for process in record.get("processes", ()):
        if process.get("keepers"):
            rows += process["keepers"].get("keepers", ())
    return rows


def lines_of_step(record: Fields, which: str = "lines") -> frozenset[str]:
    """The lines of the step that ran as the memory ran out, of those that a backward pass was to
    follow in the same pass of their loop; of all processes. ``which``: "loops" for those in loops
    whose passes are parts of that step.
    """
    lines: set[str] = set()
    for process in record.get("processes", ()):
        if process.get("part_of_step"):
            lines.update(process["part_of_step"].get(which, ()))
    return frozenset(lines)


def _lies_in_step(
    row: KeptGrower, requests: Requests, step_lines: frozenset[str]
) -> bool:
    """Whether a grower keeps what the running step needs for its backward pass, which frees it: a
    loop of these lines asked for it, and no name keeps it but with its graph.
    """
    if row.keeper is not None and not row.keeper.with_graph:
        return False
    if row.grower.site.name in step_lines:
        return True  # the threads of a backward pass have no frames
    live = live_requests_of(row.grower, requests, requests.fullest)
    in_step = requests.with_stack(lambda frames: not step_lines.isdisjoint(frames))
    return bool(in_step[live].sum() > len(live) / 2)


def _kept(
    grower: Grower, growth: Growth, requests: Requests, rows: list[KeeperRow]
) -> KeptGrower:
    """A grower with who keeps what it asked for."""
    live = live_requests_of(grower, requests, requests.fullest)
    addresses = requests.trace.address
    blocks: dict[int, int] = {}
    if addresses is not None:
        sizes = requests.size[live].tolist()
        blocks = dict(zip(addresses[requests.at[live]].tolist(), sizes, strict=True))
    held_bytes, _ = kept_at(grower, growth, requests, requests.fullest)
    return KeptGrower(grower, _keeper_of(blocks, rows), held_bytes)


def live_requests_of(grower: Grower, requests: Requests, operation: int) -> np.ndarray:
    """The requests of a grower's call site that are live after an operation, by their numbers."""
    sites = np.array([site == grower.site for site in requests.sites])
    return np.flatnonzero(requests.alive(operation) & sites[requests.site])


def kept_at(
    grower: Grower, growth: Growth, requests: Requests, operation: int
) -> tuple[int, int]:
    """The bytes that a call site has kept up to an operation, and in how many steps, the running
    one included.

    Of the last two steps no more than its growth, because the rest of theirs is freed when the
    next steps replace it. Of the first no more than a later one kept, and nothing where none
    followed for long: a library's workspace is made there, and stays.
    """
    live = live_requests_of(grower, requests, operation)
    sizes = requests.size[live]
    begun = growth.steps_at(operation)
    if grower.how != KEPT:
        return int(sizes.sum()), begun
    step = np.searchsorted(growth.steps.begins, requests.at[live], "right") - 1
    in_steps = step >= 0
    kept = np.bincount(step[in_steps], sizes[in_steps], begun)
    kept[-2:] = np.minimum(kept[-2:], grower.bytes_per_step)
    kept[:1] = np.minimum(kept[:1], kept[1:].max(initial=0))
    keeping = np.flatnonzero(kept)
    if not len(keeping):
        return 0, begun
    first, *later = keeping.tolist()
    gaps = np.diff(keeping)
    if later and first == 0 and gaps[0] > 3 * np.median(gaps) + 1:
        first = later[0]
    return round(kept[first:].sum()), begun - first


def _keeper_of(blocks: dict[int, int], rows: list[KeeperRow]) -> Keeper | None:
    """Who keeps these blocks, bytes by address: the collection, else the variable, from which
    most of them are reached. Where most are reached from no name, a graph keeps them: then the
    best by ``_rank`` of those that join graphs.
    """
    reached = [
        sum(blocks.get(address, 0) for address in row["addresses"]) for row in rows
    ]
    by_place: Counter[tuple[str, ...]] = Counter()
    for row, size in zip(rows, reached, strict=True):
        by_place[_place_of(row)] += size
    most = max(by_place.values(), default=0)
    total = sum(blocks.values())
    if most >= LEAST_SHARE * total > 0:
        at_place = [
            (size, row)
            for row, size in zip(rows, reached, strict=True)
            if by_place[_place_of(row)] == most
        ]
        largest = max(size for size, _ in at_place)
        candidates = [row for size, row in at_place if size == largest]
    elif sum(reached) <= total / 2:
        candidates = _joining_graphs(rows)
    else:
        return None
    if not candidates:
        return None
    return _keeper(max(candidates, key=_rank))


def _rank(row: KeeperRow) -> tuple[int, int, bool, int]:
    """The higher, the likelier it keeps a graph: it joins more graphs, has more entries, is an
    attribute, which outlives a call, or is small, as a sum of losses is.
    """
    is_attribute = "." in row["name"]
    return row["graphs"], row["length"], is_attribute, -row["bytes"]


def _joining_graphs(rows: list[KeeperRow]) -> list[KeeperRow]:
    """The keepers that join the graphs of several passes: none of a forward, whose graph is that
    of the running step.
    """
    outside = [row for row in rows if not row["where"].endswith(" forward")]
    return [row for row in outside if row["graphs"] and row.get("lines")]


def _sums_losses(rows: list[KeeperRow]) -> bool:
    """Whether nothing but losses joins the graphs of several passes, and no state that each pass
    makes of the one before: each could have gone backward by itself.
    """
    joining = _joining_graphs(rows)
    if not joining or _carries_state(rows):
        return False
    return all(
        row["bytes"] <= MIN_BLOCK_BYTES * max(1, row["length"]) for row in joining
    )


def _hand_on_a_state(growers: list[KeptGrower], rows: list[KeeperRow]) -> bool:
    """Whether no collection keeps what grows, and a state joins the passes."""
    in_collection = any(row.keeper and row.keeper.length for row in growers)
    return not in_collection and _carries_state(rows)


def _carries_state(rows: list[KeeperRow]) -> bool:
    """Whether a variable larger than a loss is made anew of what it was, with its graph, outside
    of a forward; the forward that runs may have it too, under that name.
    """
    variables = [row for row in rows if row["graphs"] and not row["collection"]]
    return any(
        row["bytes"] > MIN_BLOCK_BYTES
        and not all(line.endswith(" forward") for line in row.get("lines", ()))
        for row in variables
    )


def _place_of(row: KeeperRow) -> tuple[str, ...]:
    """Where a row's tensors are kept: the lines that keep them, else the name."""
    lines = tuple(row.get("lines", ()))
    if lines:
        return lines
    return row["where"], row["collection"] or row["name"]


def _keeper(row: KeeperRow) -> Keeper:
    return Keeper(
        name=row["collection"] or row["name"],
        where=row["where"],
        lines=tuple(row.get("lines", ())),
        length=row["length"],
        with_graph=row["graphs"] > 0,
        own_bytes=row["bytes"],
        in_circle=row.get("kind") == "circle",
    )
