"""What graphs of autograd keep: the tensors that a backward pass of a name would need.

Nothing of the person's is called: what a node has saved is read as it lies, and hooks of saved
tensors do not run.
"""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from ..allocator.under_torch.storages import Storage, storage_of
from .holder import Holder, is_listed, sizes_by_device

SAVED = "_raw_saved_"
"""How torch's nodes name what they have saved (tools/autograd/gen_autograd_functions.py)."""
NODE_OF_A_PARAMETER = "AccumulateGrad"
"""The class of the node of a leaf: a parameter, or another tensor that wants a gradient."""
DEVICES = ("cuda", "xpu", "mps", "cpu")
SHARE_OF_NEARLY_ALL = 0.9
"""Of the largest graph: one of so many bytes is nearly the same."""


class Graph(NamedTuple):
    """The graphs of a holder's tensors: the storages that they keep, and the bytes of these."""

    holder: Holder
    storages: list[Storage]
    size: int


def add_graphs(
    with_graphs: list[tuple[Holder, list[Storage]]],
    counted: set[int],
    torch: ModuleType,
    ends_at: float,
) -> dict[int, Storage]:
    """Count what only graphs keep for the holder of a tensor that carries them, as far as time
    allows: for a name of the person before an output or an error, and for the largest graph first.
    Returns what was counted, by the id of the tensor.

    ``with_graphs``: the holders, each with those of its tensors that carry a graph. ``counted``: the
    addresses of storages that have a holder; those that are counted here are added to it.
    """
    graphs = [
        _graph_of(holder, tensors, torch, ends_at)
        for holder, tensors in with_graphs
        if tensors
    ]
    nearly_all = SHARE_OF_NEARLY_ALL * max((graph.size for graph in graphs), default=0)

    def turn(graph: Graph) -> tuple[bool, bool, int]:
        """Of graphs that are nearly the same the inner one, which others go through, is first."""
        if graph.size >= nearly_all:
            return graph.holder.is_left_over, False, graph.size
        return graph.holder.is_left_over, True, -graph.size

    graphs.sort(key=turn)
    added: dict[int, Storage] = {}
    owners: dict[int, Holder] = {}
    for holder, storages, _ in graphs:
        new = [storage for storage in storages if storage.address not in counted]
        holder.graph_bytes = sizes_by_device(new)
        holder.add(new)
        counted |= holder.addresses
        owners.update(dict.fromkeys(holder.addresses, holder))
        added.update({id(storage.tensor): storage for storage in new})
    for other, storages, _ in graphs:
        for storage in storages:
            if storage.address in owners:
                owners[storage.address].note_other_name(other.name)
    return added


def _graph_of(
    holder: Holder, tensors: list[Storage], torch: ModuleType, ends_at: float
) -> Graph:
    """The graph behind some tensors of a holder, as far as there is time; how often it uses a
    parameter is noted in the holder.

    It has no storages where this torch does not show what a node has saved (before 2.13).
    """
    kept: dict[int, Storage] = {}
    uses: collections.Counter[int] = collections.Counter()
    seen: dict[
        int, object
    ] = {}  # as long as a node is here, its id is that of no other
    waiting: list[Any] = [storage.tensor.grad_fn for storage in tensors]
    while waiting and time.thread_time() <= ends_at:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        for tensor in _saved_by(node, torch):
            storage = storage_of(tensor, DEVICES)
            if storage is not None and is_listed(storage):
                kept[storage.address] = storage
        further = [step for step, _ in node.next_functions if step is not None]
        uses.update(
            id(step) for step in further if type(step).__name__ == NODE_OF_A_PARAMETER
        )
        waiting += further
    holder.parameter_uses = max(uses.values(), default=0)
    storages = list(kept.values())
    return Graph(holder, storages, sum(storage.bytes for storage in storages))


def _saved_by(node: Any, torch: ModuleType) -> Iterator[Any]:
    """The tensors that a node has saved; none of those that a backward pass has let go of. The node
    of a parameter has the parameter.
    """
    kind: Any = type(node)
    if kind.__name__ == NODE_OF_A_PARAMETER:
        yield node.variable
    for name in _names_of_saved(kind):
        try:
            saved = getattr(node, name)
        except RuntimeError:
            continue  # a backward pass was there
        if not isinstance(saved, tuple):
            saved = (saved,)
        for entry in saved:
            # torch's own record of a saved tensor; other entries are no tensors.
            tensor = getattr(entry, "data", None)
            if isinstance(tensor, torch.Tensor):
                yield tensor


@functools.cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(SAVED))
