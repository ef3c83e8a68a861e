"""Finds who keeps the tensors of this process: the variables, lists, attributes and closures of the
program's own code through which each of them is reached.

The allocator knows which line asked for a block, and not why it is still there. The objects of
Python show that: they are walked once, from the frames and modules of the program on. Nothing of
the program is called. A tensor that only a graph of autograd keeps is not reached; the tensor that
carries the graph is, and ``graphs`` counts it.
"""

from __future__ import annotations

import gc
import linecache
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import ModuleType

from .cells import cells, place
from .keeping_lines import (
    carrying_lines,
    functions_by_line,
    joining_lines,
    keeping_lines,
    remaking_lines,
)
from .own_files import files_of_the_program, only_line
from .references import ANY_ENTRY, Reference, length_of
from .roots import roots
from .storages import Storage, referred_to, storages_of
from .walk import Walk

LONGEST_S = 1.5
"""Of a walk: the program waits for it once, at its first out-of-memory."""
MOST_KEEPERS = 40
"""Those with most bytes, and as many others with a graph, which may keep more than their own bytes.
"""
MOST_LINES = 4
"""Lines named of a keeper."""
COLLECTOR_OFF = re.compile(r"\bgc\.(?:disable\(|set_threshold\(\s*0)")
"""A line that switches Python's garbage collector off."""
OPENING_BRACKET = re.compile(r"(?<!\])\[")
"""The bracket of a first key, as of 0 in "a[0][1]". A bracket right behind another is passed over:
the lines that put into "a[0]" are those of "a", as keeping_lines looks for the last name alone.
"""


@dataclass
class Keeper:
    """One name of the program and the tensors that are reached through it.

    ``name``: as the program would write it, "history[...]['logits']". ``kind``: who has the name's
    first part: a running function (variable), a module (global), a frame that an exception or a
    generator keeps (exception, generator), a closure or a default (function), functools.lru_cache
    (cache); or "circle" for objects that refer to each other while the garbage collector is off.
    ``where``: the frame, function or module that has the name; of a circle the line that switches
    the collector off.
    ``collection``: the longest collection on the way, as the program would write it, with its type,
    ``container``, and its ``length``. ``tensors`` and ``graphs``: how many tensors, and how many of
    them carry a graph of autograd. ``bytes`` and ``addresses``: of their storages on the device.
    ``lines``: lines of the program that put something into the collection, or that make a new value
    of the variable from its old one; at most MOST_LINES.
    """

    name: str
    kind: str
    where: str
    collection: str = ""
    container: str = ""
    length: int = 0
    tensors: int = 0
    bytes: int = 0
    graphs: int = 0
    addresses: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def is_attribute_with_graph(self) -> bool:
        """Whether an object, and no collection, keeps a tensor with its graph."""
        return self.graphs > 0 and "." in self.name and not self.collection

    @property
    def is_entry_with_graph(self) -> bool:
        """Whether one key of a dictionary keeps a tensor with its graph."""
        return (
            self.graphs == 1
            and self.name.endswith("]")
            and not self.name.endswith(ANY_ENTRY)
        )


def keepers_of(torch: ModuleType, device: str = "cuda") -> dict[str, object]:
    """The fact "keepers" of a recording: under ``keepers`` the keepers of all tensors on a kind of
    device, a dictionary each, most bytes first.

    ``reached`` and ``not_reached`` are the bytes of storages that the walk did and did not reach;
    ``complete`` is False where it stopped at its limit of objects or of time.
    """
    storages = storages_of(torch, device)
    walk = Walk(storages, LONGEST_S)
    walk.run(roots())
    keepers = keepers_in(walk.reached, storages)
    reached = sum(keeper.bytes for keeper in keepers)
    not_reached = {storage.address: storage.bytes for storage in storages.values()}
    for keeper in keepers:
        for address in keeper.addresses:
            del not_reached[address]
    # A collector that is on would have freed circles; a walk that was cut short may have missed a
    # name that leads to them.
    if walk.complete and not gc.isenabled():
        unreached = [
            storage for storage in storages.values() if storage.address in not_reached
        ]
        keepers += _in_circles(referred_to(unreached))
    keepers.sort(key=lambda keeper: -keeper.bytes)
    # Beside the largest others with a graph, which may keep more than their own bytes.
    smaller = [keeper for keeper in keepers[MOST_KEEPERS:] if keeper.graphs]
    named = keepers[:MOST_KEEPERS] + smaller[:MOST_KEEPERS]
    find_lines(named)
    return {
        "keepers": [asdict(keeper) for keeper in named],
        "reached": reached,
        "not_reached": sum(not_reached.values()),
        "complete": walk.complete,
    }


def keepers_in(
    reached: dict[int, Reference], storages: dict[int, Storage]
) -> list[Keeper]:
    """A keeper for each name by which tensors were reached, in the order of ``reached``.
    ``reached`` and ``storages`` have the id of a tensor as their key. Where several tensors share a
    storage, its bytes count for the keeper that was reached first.
    """
    keepers: dict[tuple[str, str], Keeper] = {}
    counted: set[int] = set()
    for tensor, reference in reached.items():
        storage = storages[tensor]
        name = (reference.where, reference.name)
        if name not in keepers:
            keepers[name] = Keeper(reference.name, reference.kind, reference.where)
        keeper = keepers[name]
        length = 0
        if reference.container is not None:
            length = length_of(reference.container)
        if length > keeper.length:
            keeper.collection = reference.collection
            keeper.container = type(reference.container).__name__
            keeper.length = length
        keeper.tensors += 1
        keeper.graphs += storage.has_graph
        if storage.address not in counted:
            counted.add(storage.address)
            keeper.bytes += storage.bytes
            keeper.addresses.append(storage.address)
    return list(keepers.values())


def _in_circles(sizes: dict[int, int]) -> list[Keeper]:
    """The one keeper of storages that no name of the program reaches but to which objects refer:
    these objects refer to each other, and the garbage collector, which would free them, is off.
    Empty for no such storage. ``sizes``: the bytes of each storage by its address.
    """
    if not sizes:
        return []
    return [
        Keeper(
            name="objects that refer to each other",
            kind="circle",
            where=only_line(COLLECTOR_OFF),
            tensors=len(sizes),
            bytes=sum(sizes.values()),
            addresses=list(sizes),
        )
    ]


def find_lines(keepers: list[Keeper]) -> None:
    """Fill in ``lines`` of each keeper, and set ``collection`` to the collection that these lines
    put something into, or to "" where they bind a name instead. Where no line is found it stays as
    it is.
    """
    sources = _sources()
    for keeper in keepers:
        if keeper.kind in ("cache", "circle"):
            # No line puts anything into these: the cached function, or the line that switches the
            # collector off ("" where that is not found), is the line to change.
            if keeper.where:
                keeper.lines = [keeper.where]
            continue
        if keeper.is_entry_with_graph:
            # Such as stats["loss"] += loss: the entry keeps the graphs of all steps, and the length
            # of its dictionary says nothing.
            keeper.lines = _lines_of(remaking_lines, keeper.name, keeper, sources)
        if keeper.lines:
            keeper.collection = ""
            continue
        for collection in _collections(keeper):
            keeper.lines = _lines_of(keeping_lines, collection, keeper, sources)
            if keeper.lines:
                # A variable with a graph has no collection, and keeps "".
                keeper.collection = keeper.collection and collection
                break
        # Such as self.state = state: the next step continues with it, and so with its graph.
        if keeper.is_attribute_with_graph and not keeper.lines:
            keeper.lines = _lines_of(carrying_lines, keeper.name, keeper, sources)


def lines_that_join(keeper: Keeper) -> list[str]:
    """The lines of the program that join the keeper's tensor with others and give its name to the
    result, such as kept = torch.cat((kept, new)).
    """
    return _lines_of(joining_lines, keeper.name, keeper, _sources())


def _sources() -> dict[str, str]:
    """The text of each file of the program, by its path."""
    paths = sorted(files_of_the_program())
    return {path: "".join(linecache.getlines(path)) for path in paths}


def _collections(keeper: Keeper) -> list[str]:
    """The expressions for whose lines ``find_lines`` looks, in turn: the longest collection on the
    way to the tensors, then the collections that contain it, the innermost first. Without a
    collection, the name of a variable that carries a graph; empty for a variable without one, which
    keeps no more than its own tensor.
    """
    if keeper.collection:
        keys = OPENING_BRACKET.finditer(keeper.collection)
        outer = [keeper.collection[: key.start()] for key in keys]
        return [keeper.collection, *reversed(outer)]
    if keeper.graphs:
        return [keeper.name]
    return []


def _lines_of(
    find: Callable[[str, str], tuple[int, ...]],
    name: str,
    keeper: Keeper,
    sources: dict[str, str],
) -> list[str]:
    """The lines that ``find`` finds for a name, as "train.py:12 step", at most MOST_LINES and all
    of one source. The file that has the keeper is searched first, then cells of a notebook from the
    one that ran last, then other files. Empty where none has such a line. ``find``: takes a source
    and a name, returns numbers of lines; ``sources``: texts by path.
    """
    numbers_of_cells = cells()

    def order(path: str) -> tuple[bool, int]:
        """The sort key of a source; False comes before True, and high numbers of cells first."""
        return not _is_in(keeper.where, path), -numbers_of_cells.get(path, 0)

    for path in sorted(sources, key=order):
        numbers = find(sources[path], name)[:MOST_LINES]
        if numbers:
            functions = functions_by_line(sources[path])
            return [
                f"{place(path, number)} {functions.get(number, '<module>')}"
                for number in numbers
            ]
    return []


def _is_in(where: str, path: str) -> bool:
    """Whether ``where`` of a keeper, "train.py:12 step", "train.py" or "cell 6, line 1", is in a
    file.
    """
    before_line = place(path, 0)[:-1]  # "train.py:" or "cell 6, line ": all but the 0
    return where.startswith((os.path.basename(path), before_line))
