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
MOST_OTHER_NAMES = 4
MOST_WITH_GRAPHS = 4


@dataclass
class Holder:
    """One name, and the tensors that no earlier name reaches.

    ``description``: what it is, in a few words. ``kind``: variable, output (of a cell), error (its
    frames), module, thread, widgets (that are open), circle (of objects), graph (of autograd, which
    alone keeps them), library (which alone keeps them), unnamed (no tensor of Python) or unknown.
    ``bytes``: by device; ``graph_bytes``: of these what only graphs of its tensors keep. ``parts``:
    where in the object they lie, most bytes first. ``other_names``: those that reach some of them,
    too. ``may_grow``: while cells run, which a module or an optimizer does not.
    ``is_mutable``: whether it has a method clear. ``is_exception``: whether it is an exception that
    a variable keeps. ``lacks_model``: whether it is an optimizer whose parameters no module has.
    ``parameter_uses``: how often its graphs use the same parameter. ``with_parameters``,
    ``of_optimizers``: the names of the parts that are parameters, and states of optimizers.
    ``joining_lines``: the lines that join its largest part, a tensor, with others.
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
        """Add storages, each once, to what it holds."""
        self.bytes.update(sizes_by_device(storages))
        self.addresses |= {storage.address for storage in storages}

    @property
    def has_graph(self) -> bool:
        """Whether some of its tensors carry a graph of autograd."""
        return any(part.graphs for part in self.parts)

    @property
    def parts_worth_a_line(self) -> list[Keeper]:
        """The largest part, and those with graphs, whose own bytes may be few."""
        with_graphs = [part for part in self.parts[1:] if part.graphs]
        return self.parts[:1] + with_graphs[:MOST_WITH_GRAPHS]

    @property
    def main_part(self) -> Keeper:
        """The part that is most of it: the largest, or the one whose graphs are."""
        with_lines = [
            part for part in self.parts_worth_a_line if part.graphs and part.lines
        ]
        if with_lines and 2 * sum(self.graph_bytes.values()) > self.total:
            return with_lines[0]
        return self.parts[0]

    def note_other_name(self, name: str) -> None:
        """Keep a name that reaches some of its tensors as well, where these are few so far."""
        if (
            name != self.name
            and name not in self.other_names
            and len(self.other_names) < MOST_OTHER_NAMES
        ):
            self.other_names.append(name)

    @property
    def other_variables(self) -> list[str]:
        """Of the other names that reach its tensors those of variables, such as no _ or Out[3] is."""
        return [
            name for name in self.other_names if name.isidentifier() and name.strip("_")
        ]

    @property
    def is_left_over(self) -> bool:
        """Whether the notebook keeps it by itself, and no name of the person."""
        return self.kind in LEFT_OVER

    @property
    def is_worth_a_row(self) -> bool:
        """Whether it holds something on a GPU, or much in host memory."""
        on_host = self.bytes.get("cpu", 0)
        return on_host >= LARGE_ON_CPU or self.total > on_host

    @property
    def total(self) -> int:
        """Bytes on all devices."""
        return sum(self.bytes.values())


@dataclass
class Holdings:
    """All holders, most bytes first.

    ``stopped``: where the look had to stop early, after how long and at how many tensors, as a
    sentence. ``other_libraries``: variables whose arrays are not torch's, and are not counted.
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
    """Whether it is worth listing. A small one may carry a large graph."""
    return storage.has_graph or is_large(storage)


def is_large(storage: Storage) -> bool:
    """Whether it is on a GPU, or large in host memory."""
    if storage.tensor.is_cpu:
        return storage.bytes >= LARGE_ON_CPU
    return storage.bytes > 0


def sizes_by_device(storages: Iterable[Storage]) -> Counter[str]:
    """Bytes of storages by device, each storage counted once."""
    sizes: Counter[str] = Counter()
    for storage in {storage.address: storage for storage in storages}.values():
        sizes[str(storage.tensor.device)] += storage.bytes
    return sizes
