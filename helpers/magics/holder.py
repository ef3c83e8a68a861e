"""The names that hold the tensors of a kernel, with what each of them holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..allocator.under_torch.keepers import Keeper
from ..allocator.under_torch.storages import Storage

LARGE_ON_CPU = 1 << 20
"""Bytes. A smaller tensor in host memory is not listed."""
LEFT_OVER = ("output", "error", "circle")
"""Kinds of a holder that the notebook keeps by itself."""
MOST_OTHER_NAMES = 4
"""Names in the sentence "also reached from"."""
MOST_WITH_GRAPHS = 4
"""Small parts whose lines are looked for, which takes time for each."""


@dataclass
class Holder:
    """One name, and the tensors that it reaches and no earlier name does.

    ``kind``: variable, output (of a cell), error (the calls that it came through), module (a global
    of one), thread, widgets (that are open), circle (objects that only refer to each other), graph
    (tensors that only autograd keeps), library (tensors that only C++ code keeps), unnamed (blocks
    without a tensor in Python) or unknown. ``description``: the value in a few words.

    ``bytes``: by device. ``graph_bytes``: the share of it that only graphs of its tensors keep.
    ``tensors``: how many there are. ``addresses``: of their storages. ``parts``: the places in the
    object that refer to them, most bytes first. ``other_names``: later names that reach some of
    them too.

    ``may_grow``: whether it can grow while cells run, as all but modules and optimizers can.
    ``is_mutable``: whether it has a method ``clear``. ``is_exception``: whether it is a variable
    with an exception. ``lacks_model``: whether it is an optimizer whose parameters no module has.
    ``parameter_uses``: how often its graphs use the same parameter. ``with_parameters`` and
    ``of_optimizers``: the names of the parts that are parameters, and states of optimizers.
    ``joining_lines``: the lines that make its largest part by joining it with other tensors.
    """

    name: str
    kind: str
    description: str = ""
    bytes: Counter[str] = field(default_factory=Counter)
    tensors: int = 0
    parts: list[Keeper] = field(default_factory=list)
    other_names: list[str] = field(default_factory=list)
    addresses: frozenset[int] = frozenset()
    may_grow: bool = False
    is_mutable: bool = False
    is_exception: bool = False
    lacks_model: bool = False
    graph_bytes: Counter[str] = field(default_factory=Counter)
    parameter_uses: int = 0
    with_parameters: frozenset[str] = frozenset()
    of_optimizers: frozenset[str] = frozenset()
    joining_lines: list[str] = field(default_factory=list)

    def add(self, storages: Iterable[Storage]) -> None:
        """Add the bytes and addresses of storages, each storage once."""
        self.bytes.update(sizes_by_device(storages))
        self.addresses |= {storage.address for storage in storages}

    @property
    def has_graph(self) -> bool:
        """Whether some of its tensors carry a graph of autograd."""
        return any(part.graphs for part in self.parts)

    @property
    def parts_worth_a_line(self) -> list[Keeper]:
        """The largest part, and some that have graphs: these may be small and keep much."""
        with_graphs = [part for part in self.parts[1:] if part.graphs]
        return self.parts[:1] + with_graphs[:MOST_WITH_GRAPHS]

    @property
    def main_part(self) -> Keeper:
        """The part to name in a description: the largest, or where graphs keep more than half of
        all bytes, the first part with a graph whose line is known.
        """
        graphs_keep_most = sum(self.graph_bytes.values()) > self.total / 2
        if graphs_keep_most:
            for part in self.parts_worth_a_line:
                if part.graphs and part.lines:
                    return part
        return self.parts[0]

    def note_other_name(self, name: str) -> None:
        """Add a name that reaches some of its tensors too, up to MOST_OTHER_NAMES of them."""
        is_known = name == self.name or name in self.other_names
        if not is_known and len(self.other_names) < MOST_OTHER_NAMES:
            self.other_names.append(name)

    @property
    def other_variables(self) -> list[str]:
        """The other names that are variables of the person: not ``_``, ``Out[3]`` or a module's."""
        return [
            name for name in self.other_names if name.isidentifier() and name.strip("_")
        ]

    @property
    def is_left_over(self) -> bool:
        """Whether the notebook keeps it by itself, without a name that the person gave."""
        return self.kind in LEFT_OVER

    @property
    def is_worth_a_row(self) -> bool:
        """Whether it holds something on a GPU, or much in host memory."""
        on_host = self.bytes.get("cpu", 0)
        on_gpus = self.total - on_host
        return on_host >= LARGE_ON_CPU or on_gpus > 0

    @property
    def total(self) -> int:
        """Bytes on all devices."""
        return sum(self.bytes.values())


@dataclass
class Holdings:
    """All holders, most bytes first.

    ``stopped``: a sentence that says that the look ran out of time; empty if it did not.
    ``other_libraries``: variables with arrays of other libraries, which are not counted.
    """

    holders: list[Holder]
    other_libraries: list[str]
    stopped: str = ""

    def of_kind(self, *kinds: str) -> list[Holder]:
        """The holders of some kinds."""
        return [holder for holder in self.holders if holder.kind in kinds]

    def totals(self) -> dict[str, int]:
        """Bytes by device, such as "cuda:0"."""
        totals: Counter[str] = Counter()
        for holder in self.holders:
            totals.update(holder.bytes)
        return dict(sorted(totals.items()))


def is_listed(storage: Storage) -> bool:
    """Whether a storage is listed: a large one, or one of a tensor with a graph, which may keep
    much.
    """
    return storage.has_graph or is_large(storage)


def is_large(storage: Storage) -> bool:
    """Whether a storage is on a GPU, or large in host memory."""
    if storage.tensor.is_cpu:
        return storage.bytes >= LARGE_ON_CPU
    return storage.bytes > 0


def sizes_by_device(storages: Iterable[Storage]) -> Counter[str]:
    """Bytes of storages by device, each storage counted once."""
    by_address = {storage.address: storage for storage in storages}
    sizes: Counter[str] = Counter()
    for storage in by_address.values():
        sizes[str(storage.tensor.device)] += storage.bytes
    return sizes
