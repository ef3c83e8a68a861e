"""What holds the tensors of this kernel, by the names that the person gave.

Names come before what the notebook keeps by itself: outputs of cells, the exception of the last
failed cell, and what no name leads to. Nothing of the person's objects is called: no repr, no
property. Numbers are bytes of storages, each counted once, under the first name that reaches it.
"""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..allocator.garbage import without_collection
from ..allocator.under_torch.keepers import (
    Keeper,
    Step,
    Storage,
    Walk,
    find_lines,
    globals_by_module,
    keepers_in,
    length_of,
    lines_that_join,
    referred_to,
    storages_of,
    variables_of,
)
from ..allocator.under_torch.own_files import is_own
from .graphs import graph_of
from .kinds import (
    COLLECTION,
    MODULE,
    OPTIMIZER,
    described,
    is_of_another_library,
    lacks_model,
    rank,
    states_of_optimizers,
)
from .names import names_of_the_person

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


OF_A_LIBRARY = "variable of a library"
"""The kind of what a library's function has: no line of the notebook puts anything there."""
DEVICES = ("cuda", "xpu", "mps", "cpu")
LEFT_OVER = ("output", "error", "circle")
LARGE_ON_CPU = 1 << 20
"""Bytes. A smaller tensor in host memory is not listed."""
LONGEST_LOOK_S = 1.1
"""From the first tensor to the last name. Seconds of work: a busy machine answers later."""
LONGEST_SECOND_LOOK_S = 0.4
MOST_OTHER_NAMES = 4
MOST_WITH_GRAPHS = 4
NEARLY = 0.9
STOPPED = (
    "The look stopped after {seconds:.1f} s of work, when names had led to {share}: what a name "
    "holds is at least its size, and the rest may have names."
)


@dataclass(frozen=True)
class Root:
    """Where the look begins: an object, and the name and the kind under which it is listed.

    ``steps``: where to begin inside it, where that is not the object itself.
    """

    object: Any
    name: str
    kind: str
    steps: tuple[Step, ...] = ()

    @property
    def beginnings(self) -> tuple[Step, ...]:
        return self.steps or (Step(self.object, self.name, self.kind, ""),)


@dataclass
class NamedTensors:
    """One name, and the tensors that no earlier name reaches.

    ``kind``: variable, output (of a cell), error (its frames), module, thread, widgets (that are
    open), circle (of objects), graph (of autograd, which alone keeps them), library (which alone
    keeps them), unnamed (no tensor of Python) or unknown. ``bytes``: by device. ``parts``: where in
    the object they lie, most bytes first. ``also``: other names that reach some of them.
    ``grows``: whether it may grow while cells run, which a module or an optimizer does not.
    ``is_mutable``: whether it has a method clear. ``is_exception``: whether it is an exception that
    a variable keeps. ``lacks_model``: whether it is an optimizer whose parameters no module has.
    ``graph_bytes``: by device, of ``bytes`` what only graphs of its tensors keep. ``uses``: how
    often they use the same parameter.
    ``with_parameters``, ``of_optimizers``: the names of the parts that are parameters, and states
    of optimizers. ``joins``: the lines that join its largest part, a tensor, with others.
    """

    name: str
    kind: str
    what: str = ""
    bytes: dict[str, int] = field(default_factory=dict)
    tensors: int = 0
    parts: list[Keeper] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    addresses: frozenset[int] = frozenset()
    grows: bool = False
    is_mutable: bool = False
    is_exception: bool = False
    lacks_model: bool = False
    graph_bytes: dict[str, int] = field(default_factory=dict)
    uses: int = 0
    with_parameters: frozenset[str] = frozenset()
    of_optimizers: frozenset[str] = frozenset()
    joins: list[str] = field(default_factory=list)

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
            and name not in self.also
            and len(self.also) < MOST_OTHER_NAMES
        ):
            self.also.append(name)

    @property
    def other_variables(self) -> list[str]:
        """Of the other names that reach its tensors those of variables."""
        return [name for name in self.also if name.isidentifier() and name.strip("_")]

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

    holders: list[NamedTensors]
    other_libraries: list[str]
    stopped: str = ""

    def of_kind(self, *kinds: str) -> list[NamedTensors]:
        """The holders of some kinds."""
        return [holder for holder in self.holders if holder.kind in kinds]

    def owners_of_graphs(self) -> list[str]:
        """The names that reach a tensor with a graph; what that keeps, this torch does not show."""
        return [holder.name for holder in self.holders if holder.has_graph]

    def total(self, device: str) -> int:
        """Bytes on a device, such as "cuda:0"."""
        return sum(holder.bytes.get(device, 0) for holder in self.holders)


def find_holdings(torch: ModuleType, shell: InteractiveShell) -> Holdings:
    """Who holds the tensors of this kernel now. Takes two seconds at the most."""
    began = time.thread_time()
    with looking(torch):
        return holdings_of(large_storages(torch), torch, shell, began)


@contextmanager
def looking(torch: ModuleType) -> Iterator[None]:
    """No tensor class of the person's is asked, and no garbage is collected meanwhile."""
    with torch._C.DisableTorchFunctionSubclass(), without_collection():
        yield


def holdings_of(
    storages: dict[int, Storage],
    torch: ModuleType,
    shell: InteractiveShell,
    began: float,
) -> Holdings:
    """Who holds these storages; the look ``began`` at that thread time. Those that only graphs keep
    are added to them.
    """
    roots = list(_roots(torch, shell))
    walk = Walk(storages, began + LONGEST_LOOK_S - time.thread_time())
    counted: set[int] = set()
    holders = []
    with_graphs = []
    shared = []
    for root in roots:
        before = len(walk.reached)
        steps = walk.run_from(root.beginnings)
        reached = dict(itertools.islice(walk.reached.items(), before, None))
        addresses = {storages[key].address for key in reached}
        shared.append((root.name, addresses & counted, steps))
        if reached:
            holder = _holder(root, reached, storages, counted, torch)
            holder.what = described(root.object, torch)
            holder.is_mutable = issubclass(
                type(root.object), (dict, list, set, collections.deque)
            )
            is_exception = issubclass(type(root.object), BaseException)
            holder.is_exception = is_exception and root.kind == "variable"
            order = rank(root.object, torch)
            holder.grows = order not in (MODULE, OPTIMIZER)
            holder.lacks_model = order == OPTIMIZER and lacks_model(root.object, torch)
            holders.append(holder)
            tensors = [
                storages[key].tensor for key in reached if storages[key].has_graph
            ]
            with_graphs.append(tensors)
    is_complete = walk.complete
    share = f"{len(walk.reached):,} of {len(storages):,} tensors"
    storages |= _add_graphs(list(zip(holders, with_graphs)), counted, torch)
    holders += _without_a_name(storages, counted, is_complete)
    holders = [holder for holder in holders if holder.is_worth_a_row]
    holders.sort(key=lambda holder: -holder.total)
    holdings = Holdings(holders, _other_libraries(shell))
    if is_complete:
        _add_other_names(holders, shared, storages)
    else:
        holdings.stopped = STOPPED.format(
            seconds=time.thread_time() - began, share=share
        )
    return holdings


def large_storages(torch: ModuleType) -> dict[int, Storage]:
    """Of the GPU all storages, of host memory those worth listing, by the id of the tensor."""
    storages = storages_of(torch, *DEVICES)
    return {key: storage for key, storage in storages.items() if _is_listed(storage)}


def _is_listed(storage: Storage) -> bool:
    """Whether it is worth listing. A small one may carry a large graph."""
    return storage.has_graph or is_large(storage)


def is_large(storage: Storage) -> bool:
    """Whether it is on a GPU, or large in host memory."""
    if storage.tensor.is_cpu:
        return storage.bytes >= LARGE_ON_CPU
    return storage.bytes > 0


def outputs_with_tensors(
    storages: dict[int, Storage], shell: InteractiveShell
) -> list[int]:
    """The numbers of the outputs of cells that reach a tensor, as far as time allows."""
    numbers = []
    ends_at = time.thread_time() + LONGEST_SECOND_LOOK_S
    for number, value in list(shell.user_ns.get("Out", {}).items()):
        walk = Walk(storages, ends_at - time.thread_time())
        walk.run_from([Step(value, "", "output", "")])
        if walk.reached:
            numbers.append(number)
    return numbers


def _roots(torch: ModuleType, shell: InteractiveShell) -> Iterator[Root]:
    """Where tensors are looked for, in the order in which they are counted."""
    variables = names_of_the_person(shell)
    for name in sorted(variables, key=lambda name: _turn(variables[name], torch)):
        yield Root(variables[name], name, "variable")
    by_module = globals_by_module()
    by_module.pop("__main__", None)
    for module, of_module in by_module.items():
        for step in of_module:
            if not step.name.startswith("__"):
                yield Root(step.object, f"{module}.{step.name}", "module")
    yield from _threads()
    yield from _open_widgets()
    for number, value in shell.user_ns.get("Out", {}).items():
        yield Root(value, f"Out[{number}]", "output")
    for name in ("_", "__", "___"):
        if name in shell.user_ns:
            yield Root(shell.user_ns[name], name, "output")
    for error in kept_errors(shell):
        steps = tuple(_variables_of_failed_calls(error))
        if steps:
            yield Root(error, "the last error", "error", steps)


def _turn(value: Any, torch: ModuleType) -> tuple[int, int]:
    """When a value is looked at: a collection of many after those of few, where time may end."""
    order = rank(value, torch)
    return order, length_of(value) if order == COLLECTION else 0


def _threads() -> Iterator[Root]:
    """The variables of the program's own functions that run in other threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, innermost in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        frames = [frame for frame, _ in traceback.walk_stack(innermost)]
        own_frames = [frame for frame in frames if is_own(frame.f_code.co_filename)]
        steps = tuple(
            step for frame in own_frames for step in variables_of(frame, "thread")
        )
        if steps:
            yield Root(None, f"thread {names.get(ident, ident)}", "thread", steps)


def _open_widgets() -> Iterator[Root]:
    """ipywidgets keeps each widget, with its callbacks, until it is closed
    (ipywidgets/widgets/widget.py: _instances).
    """
    module = sys.modules.get("ipywidgets.widgets.widget")
    instances = vars(module).get("_instances") if module is not None else None
    if isinstance(instances, dict):
        yield Root(instances, "open widgets", "widgets")


def kept_errors(shell: InteractiveShell) -> list[BaseException]:
    """The exceptions that Python and IPython keep of cells that failed, each once."""
    candidates = [getattr(sys, name, None) for name in ("last_exc", "last_value")]
    result = shell.last_execution_result
    candidates += [getattr(result, "error_in_exec", None)]
    errors: dict[int, BaseException] = {}
    while candidates:
        error = candidates.pop()
        if isinstance(error, BaseException) and id(error) not in errors:
            errors[id(error)] = error
            candidates += [error.__cause__, error.__context__]
    return list(errors.values())


def _variables_of_failed_calls(error: BaseException) -> Iterator[Step]:
    """The variables of the functions that an error came through, from the notebook's first on:
    the frames before it are IPython's.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in itertools.dropwhile(
        lambda frame: not is_own(frame.f_code.co_filename), frames
    ):
        kind = "error" if is_own(frame.f_code.co_filename) else OF_A_LIBRARY
        yield from variables_of(frame, kind)


def _holder(
    root: Root,
    reached: dict[int, Step],
    storages: dict[int, Storage],
    counted: set[int],
    torch: ModuleType,
) -> NamedTensors:
    """The holder of the tensors that were reached; storages counted before are not its own."""
    new = {
        key: step
        for key, step in reached.items()
        if storages[key].address not in counted
    }
    parts = sorted(keepers_in(new, storages), key=lambda part: -part.bytes)
    holder = NamedTensors(root.name, root.kind, tensors=len(new), parts=parts)
    holder.with_parameters = frozenset(
        step.name
        for key, step in new.items()
        if issubclass(type(storages[key].tensor), torch.nn.Parameter)
    )
    may_be_states = [key for key, step in new.items() if ".state[" in step.name]
    if may_be_states:
        states = states_of_optimizers(torch)
        of_optimizers = [new[key].name for key in may_be_states if key in states]
        holder.of_optimizers = frozenset(of_optimizers)
    _count(holder, [storages[key] for key in new])
    counted |= holder.addresses
    return holder


def _add_graphs(
    holders: list[tuple[NamedTensors, list[Any]]], counted: set[int], torch: ModuleType
) -> dict[int, Storage]:
    """Count what only graphs keep for the holder of a tensor that carries them, as far as time
    allows: for a name of the person before an output or an error, and for the largest graph first.
    Returns what was counted.
    """
    ends_at = time.thread_time() + LONGEST_SECOND_LOOK_S
    graphs = []
    for holder, tensors in holders:
        if not tensors:
            continue
        graph = graph_of(tensors, torch, DEVICES, ends_at)
        storages = [
            storage for storage in graph.storages.values() if _is_listed(storage)
        ]
        holder.uses = graph.uses
        graphs.append((holder, storages, sum(storage.bytes for storage in storages)))
    nearly_all = NEARLY * max((size for _, _, size in graphs), default=0)

    def turn(graph: tuple[NamedTensors, list[Storage], int]) -> tuple[bool, bool, int]:
        """Of graphs that are nearly the same the inner one, which others go through, is first."""
        holder, _, size = graph
        is_largest = size >= nearly_all
        return holder.is_left_over, not is_largest, size if is_largest else -size

    graphs.sort(key=turn)
    added: dict[int, Storage] = {}
    for holder, storages, _ in graphs:
        new = [storage for storage in storages if storage.address not in counted]
        holder.graph_bytes = sizes_by_device(new)
        for device, size in holder.graph_bytes.items():
            holder.bytes[device] = holder.bytes.get(device, 0) + size
        holder.addresses |= {storage.address for storage in new}
        counted |= holder.addresses
        added.update({id(storage.tensor): storage for storage in new})
    owners = {
        address: holder for holder, _, _ in graphs for address in holder.addresses
    }
    for other, storages, _ in graphs:
        for storage in storages:
            if storage.address in owners:
                owners[storage.address].note_other_name(other.name)
    return added


def _count(holder: NamedTensors, storages: list[Storage]) -> None:
    """Count storages, each once, for a holder."""
    holder.bytes = sizes_by_device(storages)
    holder.addresses = frozenset(storage.address for storage in storages)


def sizes_by_device(storages: Iterable[Storage]) -> dict[str, int]:
    """Bytes of storages by device, each storage counted once."""
    sizes: collections.Counter[Any] = collections.Counter()
    for storage in {storage.address: storage for storage in storages}.values():
        sizes[storage.tensor.device] += storage.bytes
    return {str(device): size for device, size in sizes.items()}


def _without_a_name(
    storages: dict[int, Storage], counted: set[int], complete: bool
) -> list[NamedTensors]:
    """The tensors that no name leads to: those that objects refer to, and those that only a
    graph of autograd keeps, or a library where there is no graph. Where the look was not complete,
    nobody knows whether a name does.
    """
    rest = [storage for storage in storages.values() if storage.address not in counted]
    if not rest:
        return []
    if not complete:
        holder = NamedTensors("not looked at in time", "unknown")
        _count(holder, rest)
        return [holder]
    has_graph = any(storage.has_graph for storage in storages.values())
    circle = NamedTensors("objects without a name", "circle")
    others = (
        NamedTensors("graphs of autograd", "graph")
        if has_graph
        else NamedTensors("a library", "library")
    )
    by_objects = referred_to(rest)
    for holder in (circle, others):
        is_circle = holder is circle
        unnamed = [
            storage for storage in rest if (storage.address in by_objects) == is_circle
        ]
        _count(holder, unnamed)
        holder.tensors = len(unnamed)
    return [circle, others]


def _add_other_names(
    holders: list[NamedTensors],
    shared: list[tuple[str, set[int], list[Step]]],
    storages: dict[int, Storage],
) -> None:
    """Say of each holder which later names reach some of its tensors, as far as time allows.

    ``shared``: of each name the storages that earlier names had reached, by their addresses, and
    the steps to what these names had reached.
    """
    ends_at = time.thread_time() + LONGEST_SECOND_LOOK_S
    for name, addresses, steps in shared:
        walk = Walk(storages, ends_at - time.thread_time())
        walk.run_from(steps)
        reached = addresses | {storages[key].address for key in walk.reached}
        for holder in holders:
            if not reached.isdisjoint(holder.addresses):
                holder.note_other_name(name)


def _other_libraries(shell: InteractiveShell) -> list[str]:
    variables = names_of_the_person(shell)
    return sorted(
        name for name, value in variables.items() if is_of_another_library(value)
    )


def add_lines(holders: list[NamedTensors]) -> None:
    """Find the lines of the notebook that put tensors where the parts of each lie, and those that
    let a single tensor grow.
    """
    parts = [part for holder in holders for part in holder.parts_worth_a_line]
    find_lines([part for part in parts if part.kind != OF_A_LIBRARY])
    for holder in holders:
        if not holder.parts:
            continue
        largest = holder.parts[0]
        if largest.tensors == 1 and largest.kind != OF_A_LIBRARY:
            holder.joins = lines_that_join(largest)
