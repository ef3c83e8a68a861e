"""Who keeps tensors, by the record of a program: the names from which they were reached when memory
ran out, and which of these keeps some blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from helpers.allocator.recorded_processes import Fields
from helpers.settings.in_force import MIN_BLOCK_BYTES

LEAST_SHARE = 1 / 3
"""A name is said to keep what grows if at least this share of the bytes is reached from it: a
choice, since a graph of autograd may keep the rest, which no name reaches.
"""
FORWARD = " forward"
"""What a frame of a module's forward ends with."""


class KeeperRow(TypedDict, total=False):
    """A name that the tensors were reached from when memory ran out, as a record has it.

    ``addresses``: of the blocks reached; ``bytes``: of their tensors; ``graphs``: how many of these
    tensors carry a graph of autograd; ``collection``: the name of the collection, "" for a
    variable; ``length``: how many entries that has; ``where``: the frame, function or module that
    has the name; ``lines``: lines that put something into the collection; ``kind``: "circle" for
    objects that refer to each other (under_torch.keepers.Keeper.kind).
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


def keepers_of(record: Fields) -> list[KeeperRow]:
    """The names that keep tensors, of all processes of a record."""
    rows: list[KeeperRow] = []
    for process in record.get("processes", ()):
        if process.get("keepers"):
            rows += process["keepers"].get("keepers", ())
    return rows


def lines_of_step(record: Fields, which: str = "lines") -> frozenset[str]:
    """Lines of the training step that was running when memory ran out, of all processes.

    ``which``: "lines" for all that compute what its backward pass goes through; "loops" for those
    of them that are in a loop, each pass of which is only a part of that step.
    """
    lines: set[str] = set()
    for process in record.get("processes", ()):
        if process.get("part_of_step"):
            lines.update(process["part_of_step"].get(which, ()))
    return frozenset(lines)


def keeper_of(blocks: dict[int, int], rows: list[KeeperRow]) -> Keeper | None:
    """Who keeps these blocks, given as bytes by address: the collection or variable from which most
    of their bytes are reached. If no more than half of the bytes are reached from any name, a graph
    keeps the others, so it is then the best by ``_rank`` of the names that join graphs. None where
    neither rule finds a name.
    """
    reached = [_reached_bytes(row, blocks) for row in rows]
    total = sum(blocks.values())
    at_best_place, most = _at_best_place(rows, reached)
    if total and most >= LEAST_SHARE * total:
        candidates = at_best_place
    elif sum(reached) <= total / 2:
        candidates = _joining_graphs(rows)
    else:  # many names reach a little each: none of them is the reason
        return None
    if not candidates:
        return None
    return _keeper(max(candidates, key=_rank))


def _at_best_place(
    rows: list[KeeperRow], reached: list[int]
) -> tuple[list[KeeperRow], int]:
    """The rows that may be the keeper, and how many bytes are reached from their place together.

    Rows are of one place if the same lines put into them (``_place_of``). The place from which most
    bytes are reached counts, and at that place the rows that reach most; several where they are
    equal. ``reached``: the bytes that each row reaches.
    """
    by_place: Counter[tuple[str, ...]] = Counter()
    for row, size in zip(rows, reached, strict=True):
        by_place[_place_of(row)] += size
    most = max(by_place.values(), default=0)
    at_place = [
        (size, row)
        for row, size in zip(rows, reached, strict=True)
        if by_place[_place_of(row)] == most
    ]
    largest = max((size for size, _ in at_place), default=0)
    return [row for size, row in at_place if size == largest], most


def _reached_bytes(row: KeeperRow, blocks: dict[int, int]) -> int:
    """The bytes of these blocks, by address, that are reached from a name."""
    return sum(blocks.get(address, 0) for address in row["addresses"])


def _rank(row: KeeperRow) -> tuple[int, int, bool, int]:
    """A sort key: the name with the largest is the likeliest to keep a graph. In this order: it
    joins more graphs; it has more entries; it is an attribute, which outlives a call; it has fewer
    bytes, as a sum of losses has.
    """
    is_attribute = "." in row["name"]
    return row["graphs"], row["length"], is_attribute, -row["bytes"]


def _joining_graphs(rows: list[KeeperRow]) -> list[KeeperRow]:
    """The rows whose names join the graphs of several passes of a loop: a tensor with a graph is
    kept, and some line puts more into the name. Names in a forward are left out, because their
    graph is that of the running step.
    """
    outside = [row for row in rows if not row["where"].endswith(FORWARD)]
    return [row for row in outside if row["graphs"] and row.get("lines")]


def sums_losses(rows: list[KeeperRow]) -> bool:
    """Whether only losses join the graphs of several passes, so that each pass could have gone
    backward by itself. False where nothing joins graphs, and where a state that each pass makes
    from the state before joins them (``carries_state``).
    """
    joining = _joining_graphs(rows)
    if not joining or carries_state(rows):
        return False
    # A loss is one number, which takes one block of the least size.
    return all(
        row["bytes"] <= MIN_BLOCK_BYTES * max(1, row["length"]) for row in joining
    )


def carries_state(rows: list[KeeperRow]) -> bool:
    """Whether each pass hands on a state with its graph: a variable larger than a loss that is not
    only set in a forward. (A forward that runs may have the state too, under the same name.)
    """
    variables = [row for row in rows if row["graphs"] and not row["collection"]]
    return any(
        row["bytes"] > MIN_BLOCK_BYTES  # a loss takes one block of the least size
        and not all(line.endswith(FORWARD) for line in row.get("lines", ()))
        for row in variables
    )


def _place_of(row: KeeperRow) -> tuple[str, ...]:
    """The place of a row: two rows are of one place if this is equal. It is the lines that keep the
    row's tensors; without lines, where the name is and the name itself.
    """
    lines = tuple(row.get("lines", ()))
    if lines:
        return lines
    return row["where"], row["collection"] or row["name"]


def _keeper(row: KeeperRow) -> Keeper:
    """A row of a record as a keeper."""
    return Keeper(
        name=row["collection"] or row["name"],
        where=row["where"],
        lines=tuple(row.get("lines", ())),
        length=row["length"],
        with_graph=row["graphs"] > 0,
        own_bytes=row["bytes"],
        in_circle=row.get("kind") == "circle",
    )
