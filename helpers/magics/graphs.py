"""What graphs of autograd keep: the tensors that a backward pass of a name would need.

No code of the person's runs: what a node has saved is read without unpacking it, so hooks of saved
tensors are not called.
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
"""How the attributes of torch's nodes begin that have saved tensors as SavedTensor, without
unpacking them (tools/autograd/gen_autograd_functions.py).
"""
NODE_OF_A_PARAMETER = "AccumulateGrad"
"""The class of the node of a leaf: a parameter, or another tensor that wants a gradient."""
DEVICES = ("cuda", "xpu", "mps", "cpu")
"""Types of torch's devices on which storages are counted."""
NEARLY_THE_SAME = 0.9
"""A graph with this share of the bytes of the largest one is taken for a part of it."""


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
    """Count tensors that only a graph keeps for the holder of the tensor whose graph it is.

    A tensor that several graphs keep is counted for a name of the person before an output or an
    error, and for a larger graph before a smaller one. Looking ends at the thread time ``ends_at``.

    ``with_graphs``: the holders, each with those of its tensors that have a graph. ``counted``: the
    addresses of storages that have a holder; those that are counted here are added. Returns what
    was counted here, by the id of the tensor.
    """
    graphs = [
        _graph_of(holder, tensors, torch, ends_at)
        for holder, tensors in with_graphs
        if tensors
    ]
    largest = max((graph.size for graph in graphs), default=0)

    def turn(graph: Graph) -> tuple[bool, bool, int]:
        """The key that sorts graphs: names of the person first, then by size, the largest first.

        Among graphs nearly as large as the largest the smallest is first: of `loss = f(output)` the
        graph of `loss` goes through that of `output`, and `output` shall have it.
        """
        is_nearly_the_largest = graph.size >= NEARLY_THE_SAME * largest
        if is_nearly_the_largest:
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
    """The graphs of some tensors of a holder, looked at until the thread time ``ends_at``.

    The largest number of uses of one parameter is noted in the holder. A graph has no storages
    where torch does not show what a node has saved (before 2.13).
    """
    kept: dict[int, Storage] = {}  # by address
    # By the id of a parameter's node.
    uses: collections.Counter[int] = collections.Counter()
    # A node is kept here, so that no other one gets its id.
    seen: dict[int, object] = {}
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
        for following, _ in node.next_functions:
            if following is None:
                continue
            waiting.append(following)
            if type(following).__name__ == NODE_OF_A_PARAMETER:
                uses[id(following)] += 1
    holder.parameter_uses = max(uses.values(), default=0)
    storages = list(kept.values())
    return Graph(holder, storages, sum(storage.bytes for storage in storages))


def _saved_by(node: Any, torch: ModuleType) -> Iterator[Any]:
    """The tensors that a node has saved, except those that a backward pass has freed; of the node
    of a parameter, the parameter.
    """
    kind: Any = type(node)
    if kind.__name__ == NODE_OF_A_PARAMETER:
        yield node.variable
    for name in _names_of_saved(kind):
        try:
            saved = getattr(node, name)
        except RuntimeError:
            continue  # freed by a backward pass
        if not isinstance(saved, tuple):
            saved = (saved,)
        for entry in saved:
            # A SavedTensor has its tensor as ``data`` since 2.13; numbers have none.
            tensor = getattr(entry, "data", None)
            if isinstance(tensor, torch.Tensor):
                yield tensor


@functools.cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """The names of the attributes in which nodes of a class have what they saved."""
    return tuple(name for name in dir(kind) if name.startswith(SAVED))
