"""Who keeps the tensors of this process: the variables, lists, attributes and closures of the
program's own code from which each of them is reached.

The allocator knows which line asked for a block, and not why it is still there. The objects of
Python do: they are walked once, from the frames and modules of the program outwards. Nothing of
the program is called: no repr, no property, no __getattr__. Tensors that only a graph of
autograd keeps are not reached; the tensor that carries the graph is, and says so.
"""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import linecache
import os
import re
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from .cells import cells, place
from .keeping_lines import (
    carrying_lines,
    functions_by_line,
    joining_lines,
    keeping_lines,
    remaking_lines,
)
from .own_files import (
    files_of_the_program,
    is_own,
    is_own_class,
    only_line,
    running_frames,
)

LONGEST_S = 1.5
MOST_OBJECTS = 400_000
MOST_BETWEEN_CLOCKS = 64
"""Objects between two looks at the clock, which is a call of the system."""
MOST_KEEPERS = 40
MOST_LINES = 4
LONGEST_KEY = 40
MOST_NAMED = 16
"""A dictionary of more entries is one of data, and its entries are one name together."""
ANY = "[...]"
OF_MODULES = ("_parameters", "_buffers", "_modules")
COLLECTOR_OFF = re.compile(r"\bgc\.(?:disable\(|set_threshold\(\s*0)")
SEQUENCES = (list, tuple, set, frozenset, collections.deque)
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, types.CodeType)
NOT_WALKED = frozenset(map(id, (*PLAIN, *weakref.ProxyTypes)))
"""The ids of types: a metaclass is not asked for a hash. A weak proxy keeps nothing, and one whose
object is gone answers no question.
"""


@dataclass
class Keeper:
    """One name of the program and the tensors that are reached through it.

    ``name``: as the program would write it, "history[...]['logits']". ``kind``: variable, global,
    exception, generator, function (its closure or defaults), cache (of functools.lru_cache),
    circle (of objects that refer to each other, while the garbage collector is off). ``where``:
    the frame, function or module that has the name, or the line that switches the collector off.
    ``collection``, ``container`` and ``length``: the longest collection on the way, as the program
    would write it, of which type, of how many entries. ``graphs``: how many of the tensors carry a
    graph of autograd. ``addresses``: of their storages on the device. ``lines``: of the program,
    that put something into the collection, or make the variable anew of what it was.
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
        return bool(self.graphs and "." in self.name and not self.collection)

    @property
    def is_entry_with_graph(self) -> bool:
        """Whether one key of a dictionary keeps a tensor with its graph."""
        return bool(
            self.graphs == 1 and self.name.endswith("]") and not self.name.endswith(ANY)
        )


class Step(NamedTuple):
    """An object on the way from a name of the program, and how the way to it is written."""

    object: Any
    name: str
    kind: str
    where: str
    collection: str = ""
    container: Any = None


class Storage(NamedTuple):
    """A tensor with the address and the size of its storage on the device, and whether it carries
    a graph of autograd.
    """

    tensor: Any
    address: int
    bytes: int
    has_graph: bool


def keepers_of(torch: Any, device: str = "cuda") -> dict[str, Any]:
    """The keepers of all tensors on a kind of device, most bytes first, and what was not reached.

    ``reached`` and ``not_reached`` are bytes of storages; ``complete`` is False where the walk
    stopped at its limit of objects or of time.
    """
    storages = storages_of(torch, device)
    walk = Walk(storages, LONGEST_S)
    walk.run(_roots())
    keepers = keepers_in(walk.reached, storages)
    reached = sum(keeper.bytes for keeper in keepers)
    sizes = {storage.address: storage.bytes for storage in storages.values()}
    for keeper in keepers:
        for address in keeper.addresses:
            del sizes[address]
    if walk.complete and not gc.isenabled():
        unreached = [
            storage for storage in storages.values() if storage.address in sizes
        ]
        keepers += _in_circles(referred_to(unreached))
    keepers.sort(key=lambda keeper: -keeper.bytes)
    smaller = [keeper for keeper in keepers[MOST_KEEPERS:] if keeper.graphs]
    named = keepers[:MOST_KEEPERS] + smaller[:MOST_KEEPERS]
    find_lines(named)
    return {
        "keepers": [asdict(keeper) for keeper in named],
        "reached": reached,
        "not_reached": sum(sizes.values()),
        "complete": walk.complete,
    }


def storages_of(torch: Any, *devices: str) -> dict[int, Storage]:
    """The storages of all tensors on some kinds of device, by the id of the tensor."""
    storages = {id(tensor): storage_of(tensor, devices) for tensor in tensors_of(torch)}
    return {key: storage for key, storage in storages.items() if storage is not None}


def storage_of(tensor: Any, devices: Sequence[str]) -> Storage | None:
    """The storage of a tensor; None where it lies on no device of these kinds."""
    try:
        storage = tensor.untyped_storage()
        if (
            _kind_of(storage.device) not in devices
        ):  # of a fake tensor it is meta: it has no bytes
            return None
        return Storage(
            tensor=tensor,
            address=storage.data_ptr(),
            bytes=storage.nbytes(),
            has_graph=not tensor.is_leaf,
        )
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # a wrapper without a storage of its own; what it wraps is a tensor too


@functools.cache
def _kind_of(device: Any) -> str:
    """The kind of a device, "cuda" of "cuda:0"; kept, since torch writes it anew each time."""
    return str(device.type)


def tensors_of(torch: Any) -> Iterator[Any]:
    """All tensors that Python knows, and their gradients, which it knows once they are asked for."""
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.Tensor):
            yield candidate
            if candidate.is_leaf and candidate.grad is not None:
                yield candidate.grad


class Walk:
    """A walk from names to tensors, the shortest way first.

    ``reached``: of each tensor, by its id, the step that reached it. ``longest_s``: seconds of work
    after which the walk stops.
    """

    def __init__(self, storages: dict[int, Storage], longest_s: float):
        self.storages = storages
        self.reached: dict[int, Step] = {}
        self._groups = 0
        self._group_of: dict[int, int] = {}
        self._is_in_time = True
        self._ends_at = time.thread_time() + longest_s

    @property
    def has_all(self) -> bool:
        """Whether every tensor is reached."""
        return len(self.reached) == len(self.storages)

    @property
    def complete(self) -> bool:
        """Whether no name can lead to a tensor that is not reached."""
        return self._is_in_time or self.has_all

    def run(self, groups: Iterable[Iterable[Step]]) -> None:
        """Walk from the roots of each group; a later group gets what the earlier ones left."""
        for roots in groups:
            if not self.has_all:
                self.run_from(roots)

    def run_from(self, roots: Iterable[Step]) -> list[Step]:
        """Walk from some roots to all that is new. Returns the steps to what earlier ones had."""
        self._groups += 1
        self._look_at_the_clock()
        shared = []
        waiting = collections.deque(roots)
        while waiting and self._is_in_time:
            step = waiting.popleft()
            if self._group_of.get(id(step.object), self._groups) != self._groups:
                shared.append(step)
            waiting.extend(self._further_from(step))
        return shared

    def _look_at_the_clock(self) -> None:
        has_time = (
            len(self._group_of) <= MOST_OBJECTS and time.thread_time() <= self._ends_at
        )
        self._is_in_time = self._is_in_time and has_time

    def _further_from(self, step: Step) -> Iterable[Step]:
        """What an object refers to; nothing where that was asked before."""
        key = id(step.object)
        if key in self._group_of or _is_plain(step.object):
            return ()
        self._group_of[key] = self._groups
        count = len(self._group_of)
        if count > MOST_OBJECTS or count % MOST_BETWEEN_CLOCKS == 0:
            self._look_at_the_clock()
        if key not in self.storages:
            return _inside(step)
        self.reached[key] = step
        return _inside_tensor(step)


def _is_plain(value: Any) -> bool:
    return id(type(value)) in NOT_WALKED


def _roots() -> list[Iterable[Step]]:
    """Frames come before modules, and the program's own names before those of libraries."""
    return [_frames_own(), modules_own(), _left_behind(), *_frames_of_libraries()]


def _frames_own() -> Iterator[Step]:
    """The variables of the program's own functions that run now, the innermost first."""
    for frame in running_frames():
        if is_own(frame.f_code.co_filename):
            yield from variables_of(frame, "variable")


def _frames_of_libraries() -> list[list[Step]]:
    """The variables of each running function of a library, the outermost function first: what a
    caller has outlives what it handed on.
    """
    frames = [
        frame for frame in running_frames() if not is_own(frame.f_code.co_filename)
    ]
    return [list(variables_of(frame, "variable")) for frame in reversed(frames)]


def variables_of(frame: types.FrameType, kind: str) -> Iterator[Step]:
    if frame.f_locals is frame.f_globals:
        return  # the frame of a module: its names are those of the module
    where = f"{place(frame.f_code.co_filename, frame.f_lineno)} {frame.f_code.co_name}"
    for name, value in list(frame.f_locals.items()):
        yield Step(value, name, kind, where)


def modules_own() -> Iterator[Step]:
    """The global names of the program's own modules."""
    for steps in globals_by_module().values():
        yield from steps


def globals_by_module() -> dict[str, list[Step]]:
    """The global names of each module of the program, by the name with which it is imported."""
    steps = {}
    for name, module in list(sys.modules.items()):
        file = (
            vars(module).get("__file__")
            if isinstance(module, types.ModuleType)
            else None
        )
        if name == "__main__" or (isinstance(file, str) and is_own(file)):
            where = os.path.basename(file) if isinstance(file, str) else name
            steps[name] = [
                Step(value, variable, "global", where)
                for variable, value in list(vars(module).items())
            ]
    return steps


def _left_behind() -> Iterator[Step]:
    """What no running frame has: kept exceptions with their frames, and suspended generators."""
    for candidate in gc.get_objects():
        yield from _frames_kept_by(candidate)


def _frames_kept_by(candidate: Any) -> Iterator[Step]:
    """The variables of the frames that an exception or a suspended generator keeps."""
    kind = type(candidate)
    if issubclass(kind, BaseException):
        # The slot itself is asked: a subclass may have a property of this name.
        trace = BaseException.__dict__["__traceback__"].__get__(candidate)
        while trace is not None:
            yield from variables_of(trace.tb_frame, "exception")
            trace = trace.tb_next
    elif kind is types.GeneratorType and candidate.gi_frame is not None:
        yield from variables_of(candidate.gi_frame, "generator")


def _inside_tensor(step: Step) -> Iterable[Step]:
    """What a tensor of the program refers to, its gradient first."""
    attributes = _attributes(step, step.object)
    if step.object.is_leaf and step.object.requires_grad:
        return [_further(step, step.object.grad, f"{step.name}.grad"), *attributes]
    return attributes


def _inside(step: Step) -> Iterator[Step]:  # noqa: C901  a branch for each kind of object
    """The objects that an object refers to, each with its name."""
    inside = step.object
    kind = type(inside)
    if issubclass(kind, type) and not is_own_class(inside):
        return
    if issubclass(kind, dict):
        yield from _entries(step, inside)
    elif issubclass(kind, SEQUENCES):
        yield from _alike(step, _items(inside), inside)
    elif issubclass(kind, types.FunctionType):
        yield from _of_function(step, inside)
    elif issubclass(kind, functools._lru_cache_wrapper):
        yield from _of_lru_cache(step, inside)
    elif issubclass(kind, types.MethodType):
        yield _further(step, inside.__self__, f"{step.name}.__self__")
    elif issubclass(kind, functools.partial):
        yield _further(step, inside.args, f"{step.name}.args")
        yield _further(step, inside.keywords, f"{step.name}.keywords")
    elif issubclass(kind, (types.GeneratorType, BaseException)):
        for variable in _frames_kept_by(inside):
            yield variable._replace(
                collection=step.collection, container=step.container
            )
    elif _is_array_of_objects(inside):
        entries = sys.modules["numpy"].ndarray.tolist(inside)
        yield from _alike(step, entries, entries)
    elif not issubclass(kind, (types.ModuleType, types.FrameType)):
        yield from _attributes(step, inside)


def _is_array_of_objects(inside: Any) -> bool:
    """Whether it is an array of numpy that refers to objects, which Python's collector never sees."""
    numpy = sys.modules.get("numpy")
    array: Any = getattr(numpy, "ndarray", None)
    return (
        array is not None and issubclass(type(inside), array) and inside.dtype.hasobject
    )


def length_of(collection: Any) -> int:
    """The length of a collection; the program's own __len__ is not called."""
    if type(collection) in (list, dict):
        return len(collection)
    kind = next(
        kind for kind in (dict, *SEQUENCES) if issubclass(type(collection), kind)
    )
    return int(kind.__len__(collection))


def _items(collection: Any) -> list[Any]:
    """What is in a sequence or set; the program's own __iter__ is not called."""
    if type(collection) in SEQUENCES:
        return list(collection)
    return gc.get_referents(collection)


def _entries(step: Step, inside: dict[Any, Any]) -> Iterator[Step]:
    """The entries of a dictionary, by their keys where they are few."""
    entries = list(dict.items(inside))
    if len(entries) > MOST_NAMED:
        yield from _alike(step, [entry for _, entry in entries], inside)
        return
    for key, entry in entries:
        if not _is_plain(entry):
            yield _further(step, entry, f"{step.name}[{_key(key)}]", container=inside)


def _alike(step: Step, entries: list[Any], collection: Any) -> Iterator[Step]:
    """The entries of a collection, all by one name."""
    _, *way = _further(step, None, step.name + ANY, container=collection)
    return (Step(entry, *way) for entry in entries if not _is_plain(entry))


def _of_function(step: Step, function: types.FunctionType) -> Iterator[Step]:
    """What a function of the program keeps: its closure and its defaults."""
    if not is_own(function.__code__.co_filename):
        return
    code = function.__code__
    where = f"{place(code.co_filename, code.co_firstlineno)} {function.__qualname__}"
    for number, cell in enumerate(function.__closure__ or ()):
        name = code.co_freevars[number]
        try:
            value = cell.cell_contents
        except ValueError:
            continue  # not filled yet
        yield step._replace(object=value, name=name, kind="function", where=where)
    for value in function.__defaults__ or ():
        yield step._replace(
            object=value, name="a default", kind="function", where=where
        )


def _of_lru_cache(step: Step, cache: Any) -> Iterator[Step]:
    """What functools.lru_cache keeps for a function of the program: results and arguments."""
    code = getattr(inspect.unwrap(cache), "__code__", None)
    if code is None or not is_own(code.co_filename):
        return
    name = f"the lru_cache of {code.co_name}"
    where = f"{place(code.co_filename, code.co_firstlineno)} {code.co_name}"
    held = [kept for kept in gc.get_referents(cache) if kept is not vars(cache)]
    by_arguments = [kept for kept in held if type(kept) is dict][
        -1
    ]  # results come before it
    for kept in held:
        yield Step(kept, name, "cache", where, collection=name, container=by_arguments)


def _attributes(step: Step, inside: Any) -> Iterable[Step]:
    """The attributes of an object, read where they stand: no property of it is called."""
    kind = type(inside)
    referents = [value for value in gc.get_referents(inside) if value is not kind]
    return _named(step, inside, referents) if referents else ()


def _named(step: Step, inside: Any, referents: list[Any]) -> Iterator[Step]:
    """What an object refers to: first by the names of its attributes."""
    if issubclass(type(inside), type):
        attributes = dict(type.__dict__["__dict__"].__get__(inside))
    else:
        try:
            attributes = dict(object.__getattribute__(inside, "__dict__"))
        except AttributeError:
            attributes = dict(_slots(inside))
    for group in OF_MODULES:  # a module's parts are written as its attributes
        if isinstance(attributes.get(group), dict):
            attributes.update(attributes.pop(group))
    for name, value in attributes.items():
        yield _further(step, value, f"{step.name}.{name}")
    for value in referents:
        if not issubclass(type(value), (dict, type, types.ModuleType, types.FrameType)):
            yield _further(step, value, step.name)


def _slots(inside: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object whose class names them in __slots__."""
    for kind in type.__dict__["__mro__"].__get__(type(inside)):
        for name, member in type.__dict__["__dict__"].__get__(kind).items():
            if type(member) is types.MemberDescriptorType:
                try:
                    yield name, member.__get__(inside)
                except AttributeError:
                    continue  # not set yet


def _further(step: Step, value: Any, name: str, container: Any = None) -> Step:
    """One step further from a name; the longest collection on the way stays."""
    longest = step.container
    if container is None or (
        longest is not None and length_of(longest) >= length_of(container)
    ):
        return step._replace(object=value, name=name)
    return Step(
        value, name, step.kind, step.where, collection=step.name, container=container
    )


def _key(key: Any) -> str:
    """A key as it is written, where that is short and calls nothing of the program's."""
    if type(key) is str and len(key) <= LONGEST_KEY:
        return repr(key)
    return "..."


def keepers_in(reached: dict[int, Step], storages: dict[int, Storage]) -> list[Keeper]:
    """The tensors reached by the same name together, each storage counted once."""
    keepers: dict[tuple[str, str], Keeper] = {}
    counted: set[int] = set()
    for tensor, step in reached.items():
        storage = storages[tensor]
        keeper = keepers.get((step.where, step.name))
        if keeper is None:
            keeper = Keeper(step.name, step.kind, step.where)
            keepers[step.where, step.name] = keeper
        if step.container is not None and length_of(step.container) > keeper.length:
            keeper.collection = step.collection
            keeper.container = type(step.container).__name__
            keeper.length = length_of(step.container)
        keeper.tensors += 1
        keeper.graphs += storage.has_graph
        if storage.address not in counted:
            counted.add(storage.address)
            keeper.bytes += storage.bytes
            keeper.addresses.append(storage.address)
    return list(keepers.values())


def referred_to(storages: list[Storage]) -> dict[int, int]:
    """The storages, bytes by address, to whose tensors an object of Python refers; the others are
    kept by a graph of autograd alone.
    """
    # gc.get_referrers compares each object with each tensor: minutes for 100,000 of them.
    referrers = [
        referrer for referrer in gc.get_objects() if type(referrer) is not Storage
    ]
    tensors = {id(storage.tensor) for storage in storages}
    named = tensors.intersection(map(id, gc.get_referents(*referrers)))
    return {
        storage.address: storage.bytes
        for storage in storages
        if id(storage.tensor) in named
    }


def _in_circles(sizes: dict[int, int]) -> list[Keeper]:
    """The keeper of storages, bytes by address, that objects keep, no name leads to, and the
    garbage collector, which is off, does not take away.
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
    """The lines that keep, in the file that has the name, else in another of the program's."""
    sources = _sources()
    for keeper in keepers:
        if keeper.kind in ("cache", "circle"):
            keeper.lines = [keeper.where] if keeper.where else []
            continue
        if keeper.is_entry_with_graph:
            keeper.lines = _lines_of(remaking_lines, keeper.name, keeper, sources)
        if keeper.lines:
            keeper.collection = ""
            continue
        for collection in _collections(keeper):
            keeper.lines = _lines_of(keeping_lines, collection, keeper, sources)
            if keeper.lines:
                keeper.collection = keeper.collection and collection
                break
        if keeper.is_attribute_with_graph and not keeper.lines:
            keeper.lines = _lines_of(carrying_lines, keeper.name, keeper, sources)


def lines_that_join(keeper: Keeper) -> list[str]:
    """The lines that join a tensor with others and give its name to the result."""
    return _lines_of(joining_lines, keeper.name, keeper, _sources())


def _sources() -> dict[str, str]:
    return {
        path: "".join(linecache.getlines(path))
        for path in sorted(files_of_the_program())
    }


def _collections(keeper: Keeper) -> list[str]:
    """What a line of the program may put into to keep this: the longest collection on the way,
    else one of those in which it lies, from within.
    """
    if not keeper.collection:
        return [keeper.name] if keeper.graphs else []
    outer = [
        keeper.collection[: key.start()]
        for key in re.finditer(r"(?<!\])\[", keeper.collection)
    ]
    return [keeper.collection, *reversed(outer)]


def _lines_of(
    find: Callable[[str, str], tuple[int, ...]],
    name: str,
    keeper: Keeper,
    sources: dict[str, str],
) -> list[str]:
    """The lines that ``find`` finds for a name, of the first source that has such; of a
    notebook's cells the one that ran last.
    """
    ran = cells()
    for path in sorted(
        sources, key=lambda path: (not _is_in(keeper.where, path), -ran.get(path, 0))
    ):
        numbers = find(sources[path], name)[:MOST_LINES]
        if numbers:
            functions = functions_by_line(sources[path])
            return [
                f"{place(path, number)} {functions.get(number, '<module>')}"
                for number in numbers
            ]
    return []


def _is_in(where: str, path: str) -> bool:
    return where.startswith((os.path.basename(path), place(path, 0)[:-1]))
