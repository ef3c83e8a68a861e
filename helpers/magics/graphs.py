"""What graphs of autograd keep: the tensors that a backward pass of a name would need.

Nothing of the person's is called: what a node has saved is read as it lies, and hooks of saved
tensors do not run.
"""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..allocator.under_torch.keepers import Storage, storage_of

SAVED = "_raw_saved_"
"""How torch's nodes name what they have saved (tools/autograd/gen_autograd_functions.py)."""
OF_A_LEAF = "AccumulateGrad"


@dataclass
class Graph:
    """What a graph keeps.

    ``storages``: by their addresses. ``uses``: how often it uses the same parameter, at most.
    """

    storages: dict[int, Storage] = field(default_factory=dict)
    uses: int = 0


def graph_of(
    tensors: Iterable[Any], torch: ModuleType, devices: tuple[str, ...], ends_at: float
) -> Graph:
    """The graph behind some tensors, as far as there is time.

    It has no storages where this torch does not show what a node has saved (before 2.13).
    """
    graph = Graph()
    uses: collections.Counter[int] = collections.Counter()
    seen: dict[int, Any] = {}  # as long as a node is here, its id is that of no other
    waiting = [tensor.grad_fn for tensor in tensors]
    while waiting and time.thread_time() <= ends_at:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        for tensor in _saved_by(node, torch):
            storage = storage_of(tensor, devices)
            if storage is not None:
                graph.storages[storage.address] = storage
        further = [step for step, _ in node.next_functions if step is not None]
        uses.update(id(step) for step in further if type(step).__name__ == OF_A_LEAF)
        waiting += further
    graph.uses = max(uses.values(), default=0)
    return graph


def _saved_by(node: Any, torch: ModuleType) -> Iterator[Any]:
    """The tensors that a node has saved; none of those that a backward pass has let go of. The node
    of a parameter has the parameter.
    """
    kind: Any = type(node)
    if kind.__name__ == OF_A_LEAF:
        yield node.variable
    for name in _names_of_saved(kind):
        try:
            saved = getattr(node, name)
        except RuntimeError:
            continue  # a backward pass was there
        for entry in saved if isinstance(saved, tuple) else (saved,):
            tensor = getattr(entry, "data", None)
            if isinstance(tensor, torch.Tensor):
                yield tensor


@functools.cache
def _names_of_saved(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(SAVED))
