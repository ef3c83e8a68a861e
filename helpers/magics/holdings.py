"""What holds the tensors of this kernel, by the names that the person gave.

Names come before what the notebook keeps by itself: outputs of cells, the exception of the last
failed cell, and what no name leads to. Nothing of the person's objects is called: no repr, no
property. Numbers are bytes of storages, each counted once, under the first name that reaches it.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from ..allocator.garbage import without_collection
from ..allocator.under_torch.keepers import find_lines, keepers_in, lines_that_join
from ..allocator.under_torch.references import Reference
from ..allocator.under_torch.storages import Storage, referred_to, storages_of
from ..allocator.under_torch.walk import Walk
from .graphs import DEVICES, add_graphs
from .holder import Holder, Holdings, is_listed
from .kinds import (
    MODULE,
    OPTIMIZER,
    described,
    is_of_another_library,
    lacks_model,
    rank,
    states_of_optimizers,
)
from .names import names_of_the_person
from .roots import OF_A_LIBRARY, Root, roots

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

LONGEST_LOOK_S = 1.1
"""For listing the tensors and finding their names. With the two shorter looks and the lines, an
answer takes two seconds. Seconds of processor time: on a busy machine it takes longer.
"""
LONGEST_SECOND_LOOK_S = 0.4
"""For the graphs, for other names, and for outputs, each."""
STOPPED = (
    "The look stopped after {seconds:.1f} s of work, when names had led to {progress}: what a name "
    "holds is at least its size, and the rest may have names."
)


def find_holdings(torch: ModuleType, shell: InteractiveShell) -> Holdings:
    """Who holds the tensors of this kernel now. Takes at most two seconds."""
    began = time.thread_time()
    with looking(torch):
        return holdings_of(large_storages(torch), torch, shell, began)


@contextmanager
def looking(torch: ModuleType) -> Iterator[None]:
    """While this is entered, torch calls no __torch_function__ of the person's classes, and no
    garbage is collected, so ids stay valid.
    """
    with torch._C.DisableTorchFunctionSubclass(), without_collection():
        yield


def large_storages(torch: ModuleType) -> dict[int, Storage]:
    """All storages on GPUs, and those in host memory that are listed, by the id of the tensor."""
    storages = storages_of(torch, *DEVICES)
    return {key: storage for key, storage in storages.items() if is_listed(storage)}


def holdings_of(
    storages: dict[int, Storage],
    torch: ModuleType,
    shell: InteractiveShell,
    began: float,
) -> Holdings:
    """Who holds these storages. Those that only graphs keep are added to ``storages``.

    ``began``: the thread time at which the look began, for LONGEST_LOOK_S.
    """
    walk_roots = list(roots(torch, shell))
    walk = Walk(storages, began + LONGEST_LOOK_S - time.thread_time())
    counted: set[int] = set()
    holders = []
    with_graphs = []
    also_reached = []
    for root in walk_roots:
        # The walk appends what it reaches, so what this root adds follows the earlier entries.
        earlier = len(walk.reached)
        references = walk.run_from(root.references)
        reached = dict(itertools.islice(walk.reached.items(), earlier, None))
        addresses = {storages[key].address for key in reached}
        also_reached.append((root.name, addresses & counted, references))
        if reached:
            holder = _holder(root, reached, storages, counted, torch)
            counted |= holder.addresses
            holders.append(holder)
            tensors = [storages[key] for key in reached if storages[key].has_graph]
            with_graphs.append((holder, tensors))
    is_complete = walk.complete  # whether the time sufficed for all roots
    # Counted here, before add_graphs adds to the storages.
    progress = f"{len(walk.reached):,} of {len(storages):,} tensors"
    ends_at = time.thread_time() + LONGEST_SECOND_LOOK_S
    storages |= add_graphs(with_graphs, counted, torch, ends_at)
    holders += _without_a_name(storages, counted, is_complete)
    holders = [holder for holder in holders if holder.is_worth_a_row]
    holders.sort(key=lambda holder: -holder.total)
    variables = names_of_the_person(shell).items()
    others = [name for name, value in variables if is_of_another_library(value)]
    holdings = Holdings(holders, sorted(others))
    if is_complete:
        _add_other_names(holders, also_reached, storages)
    else:
        seconds = time.thread_time() - began
        holdings.stopped = STOPPED.format(seconds=seconds, progress=progress)
    return holdings


def _holder(
    root: Root,
    reached: dict[int, Reference],
    storages: dict[int, Storage],
    counted: set[int],
    torch: ModuleType,
) -> Holder:
    """The holder for a root.

    ``reached``: the references at which the root's tensors were found, by the ids of the tensors.
    ``counted``: the addresses of storages that an earlier root's holder has; tensors of these are
    left out.
    """
    new = {
        key: reference
        for key, reference in reached.items()
        if storages[key].address not in counted
    }
    kind = type(root.value)
    order = rank(root.value, torch)
    holder = Holder(
        name=root.name,
        kind=root.kind,
        description=described(root.value, torch),
        tensors=len(new),
        parts=sorted(keepers_in(new, storages), key=lambda part: -part.bytes),
        may_grow=order not in (MODULE, OPTIMIZER),
        is_mutable=issubclass(kind, (dict, list, set, collections.deque)),
        is_exception=root.kind == "variable" and issubclass(kind, BaseException),
        lacks_model=order == OPTIMIZER and lacks_model(root.value, torch),
        with_parameters=frozenset(
            reference.name
            for key, reference in new.items()
            if issubclass(type(storages[key].tensor), torch.nn.Parameter)
        ),
    )
    # A reference into an optimizer has this in its name, and one into a dictionary of the person's
    # may have it too. Asking all optimizers takes time, so they are asked only then.
    may_be_states = [key for key in new if ".state[" in new[key].name]
    if may_be_states:
        states = states_of_optimizers(torch)
        of_optimizers = [new[key].name for key in may_be_states if key in states]
        holder.of_optimizers = frozenset(of_optimizers)
    holder.add([storages[key] for key in new])
    return holder


def _without_a_name(
    storages: dict[int, Storage], counted: set[int], complete: bool
) -> list[Holder]:
    """Holders for the tensors that no name leads to.

    They are a circle of objects for those that Python objects refer to, and one for the others,
    which only C++ keeps: graphs of autograd, or a library where no tensor has a graph. If the look
    was not ``complete``, names may lead to all of them, and there is one holder of unknown kind.
    """
    rest = [storage for storage in storages.values() if storage.address not in counted]
    if not rest:
        return []
    if not complete:
        holder = Holder("not looked at in time", "unknown")
        holder.add(rest)
        return [holder]
    circle = Holder("objects without a name", "circle")
    others = Holder("a library", "library")
    if any(storage.has_graph for storage in storages.values()):
        others = Holder("graphs of autograd", "graph")
    by_objects = referred_to(rest)
    of_circle = [storage for storage in rest if storage.address in by_objects]
    of_others = [storage for storage in rest if storage.address not in by_objects]
    for holder, unnamed in ((circle, of_circle), (others, of_others)):
        holder.add(unnamed)
        holder.tensors = len(unnamed)
    return [circle, others]


def _add_other_names(
    holders: list[Holder],
    also_reached: list[tuple[str, set[int], list[Reference]]],
    storages: dict[int, Storage],
) -> None:
    """Note in each holder the later names that reach some of its tensors, as far as time allows.

    ``also_reached``: for each name, the addresses of storages that it reached and that were counted
    for an earlier name, and the references at which its walk ended because an earlier name had
    reached the object.
    """
    ends_at = time.thread_time() + LONGEST_SECOND_LOOK_S
    for name, addresses, references in also_reached:
        walk = Walk(storages, ends_at - time.thread_time())
        walk.run_from(references)
        reached = addresses | {storages[key].address for key in walk.reached}
        for holder in holders:
            if not reached.isdisjoint(holder.addresses):
                holder.note_other_name(name)


def outputs_with_tensors(
    storages: dict[int, Storage], shell: InteractiveShell
) -> list[int]:
    """The numbers of the outputs of cells (the keys of Out) that reach a tensor, as far as time
    allows.
    """
    numbers = []
    ends_at = time.thread_time() + LONGEST_SECOND_LOOK_S
    for number, value in list(shell.user_ns.get("Out", {}).items()):
        walk = Walk(storages, ends_at - time.thread_time())
        walk.run_from([Reference(value, "", "output", "")])
        if walk.reached:
            numbers.append(number)
    return numbers


def add_lines(holders: list[Holder]) -> None:
    """Find the lines of the notebook that put tensors into each part, and the lines that join a
    single large tensor with others.
    """
    parts = [part for holder in holders for part in holder.parts_worth_a_line]
    find_lines([part for part in parts if part.kind != OF_A_LIBRARY])
    for holder in holders:
        if not holder.parts:
            continue
        largest = holder.parts[0]
        if largest.tensors == 1 and largest.kind != OF_A_LIBRARY:
            holder.joining_lines = lines_that_join(largest)
