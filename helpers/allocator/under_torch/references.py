"""Lists the objects to which an object of the program refers, each with the expression that leads
there.

Nothing of the program is called: no repr, no property, no __getattr__. So a class is asked for
nothing that it may have overridden: methods are those of the built-in type, type.__dict__ and the
like.
"""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from .cells import place
from .own_files import is_own, is_own_class

LONGEST_KEY = 40
"""Characters of a key that is written out: a longer one is data."""
MOST_NAMED = 16
"""A dictionary with more entries is taken for a collection of data: its entries share one name."""
ANY_ENTRY = "[...]"
PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")
"""Dictionaries of a torch.nn.Module whose entries the program writes as attributes."""
SEQUENCES = (list, tuple, set, frozenset, collections.deque)
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, types.CodeType)
NOT_WALKED = frozenset(map(id, (*PLAIN, *weakref.ProxyTypes)))
"""The ids of types, as a metaclass may have a hash of its own. A weak proxy keeps nothing, and one
whose object is gone raises at every question.
"""


class Reference(NamedTuple):
    """An object, and how the program reaches it.

    ``name``: the expression that leads there, "history[...]['logits']". ``kind`` and ``where``:
    what the first name in it is, and which frame, function or module has that name (see
    ``Keeper``). ``container``: the longest collection on the way, None for no collection;
    ``collection``: the expression for it, "" for none.
    """

    value: Any
    name: str
    kind: str
    where: str
    collection: str = ""
    container: object = None


def is_plain(value: object) -> bool:
    """Whether an object refers to nothing that could lead to a tensor."""
    return id(type(value)) in NOT_WALKED


def length_of(collection: Any) -> int:
    """The length of a dictionary, of one of SEQUENCES, or of an object of a subclass, whose own
    __len__ is not called. Other collections are never passed.
    """
    if type(collection) in (list, dict):
        return len(collection)
    kinds = (dict, *SEQUENCES)
    built_in = next(kind for kind in kinds if issubclass(type(collection), kind))
    return int(built_in.__len__(collection))


def variables_of(frame: types.FrameType, kind: str) -> Iterator[Reference]:
    """The local variables of a frame. A module's frame has none: they are its global names."""
    if frame.f_locals is frame.f_globals:
        return
    where = f"{place(frame.f_code.co_filename, frame.f_lineno)} {frame.f_code.co_name}"
    for name, value in list(frame.f_locals.items()):
        yield Reference(value, name, kind, where)


def variables_kept_by(candidate: Any) -> Iterator[Reference]:
    """The variables of the frames that an exception or a suspended generator keeps; none for any
    other object.
    """
    kind = type(candidate)
    if issubclass(kind, BaseException):
        # The slot itself is asked: a subclass may have a property of this name.
        trace = BaseException.__dict__["__traceback__"].__get__(candidate)
        while trace is not None:
            yield from variables_of(trace.tb_frame, "exception")
            trace = trace.tb_next
    elif kind is types.GeneratorType and candidate.gi_frame is not None:
        yield from variables_of(candidate.gi_frame, "generator")


def inside_tensor(reference: Reference) -> Iterator[Reference]:
    """The objects to which a tensor of the program refers, its gradient first."""
    tensor = reference.value
    # Only these get a gradient by themselves; to ask a tensor that is no leaf makes torch warn.
    if tensor.is_leaf and tensor.requires_grad:
        yield _extended(reference, tensor.grad, f"{reference.name}.grad")
    yield from _attributes(reference)


def inside(reference: Reference) -> Iterator[Reference]:  # noqa: C901  a branch for each kind of object
    """The objects to which an object that is no tensor refers; none for classes and functions of
    libraries, for modules and for frames: the program's modules and frames are roots themselves.
    """
    value = reference.value
    kind = type(value)
    if issubclass(kind, type) and not is_own_class(value):
        return
    if issubclass(kind, dict):
        yield from _entries(reference)
    elif issubclass(kind, SEQUENCES):
        yield from _alike(reference, _items(value), value)
    elif issubclass(kind, types.FunctionType):
        yield from _of_function(reference)
    elif issubclass(kind, functools._lru_cache_wrapper):
        yield from _of_lru_cache(value)
    elif issubclass(kind, types.MethodType):
        yield _extended(reference, value.__self__, f"{reference.name}.__self__")
    elif issubclass(kind, functools.partial):
        yield _extended(reference, value.args, f"{reference.name}.args")
        yield _extended(reference, value.keywords, f"{reference.name}.keywords")
    elif issubclass(kind, (types.GeneratorType, BaseException)):
        for variable in variables_kept_by(value):
            # Named by its own frame; but a list of exceptions is still the collection on the way.
            yield variable._replace(
                collection=reference.collection, container=reference.container
            )
    elif _is_array_of_objects(value):
        entries = sys.modules["numpy"].ndarray.tolist(value)
        yield from _alike(reference, entries, entries)
    elif not issubclass(kind, (types.ModuleType, types.FrameType)):
        yield from _attributes(reference)


def _is_array_of_objects(value: Any) -> bool:
    """Whether a value is a numpy array of Python objects. Python's collector does not know what
    such an array refers to, so ``_attributes`` would find nothing.
    """
    # Without numpy (), of which nothing is a subclass.
    array: Any = getattr(sys.modules.get("numpy"), "ndarray", ())
    return issubclass(type(value), array) and value.dtype.hasobject


def _items(collection: Any) -> list[object]:
    """The entries of a sequence or set; the program's own __iter__ is not called."""
    if type(collection) in SEQUENCES:
        return list(collection)
    # A subclass may iterate in its own way; its referents include its attributes.
    return gc.get_referents(collection)


def _entries(reference: Reference) -> Iterator[Reference]:
    """The values of a dictionary. Up to MOST_NAMED entries each is named by its key, of more all
    have one name; plain values, which lead to no tensor, are left out.
    """
    dictionary = reference.value
    entries = list(dict.items(dictionary))
    if len(entries) > MOST_NAMED:
        yield from _alike(reference, [entry for _, entry in entries], dictionary)
        return
    for key, entry in entries:
        if not is_plain(entry):
            name = f"{reference.name}[{_key(key)}]"
            yield _extended(reference, entry, name, container=dictionary)


def _alike(
    reference: Reference, entries: list[object], collection: object
) -> Iterator[Reference]:
    """The entries of a collection, all by one name, "history[...]"; plain entries, which lead to no
    tensor, are left out.
    """
    name = reference.name + ANY_ENTRY
    any_entry = _extended(reference, None, name, container=collection)
    for entry in entries:
        if not is_plain(entry):
            yield any_entry._replace(value=entry)


def _of_function(reference: Reference) -> Iterator[Reference]:
    """The closure and the defaults of a function of the program."""
    function = reference.value
    code = function.__code__
    if not is_own(code.co_filename):
        return
    where = f"{place(code.co_filename, code.co_firstlineno)} {function.__qualname__}"
    of_function = reference._replace(kind="function", where=where)
    if function.__closure__:
        for number, cell in enumerate(function.__closure__):
            name = code.co_freevars[number]
            try:
                yield of_function._replace(value=cell.cell_contents, name=name)
            except ValueError:
                continue  # not filled yet
    if function.__defaults__:
        for default in function.__defaults__:
            yield of_function._replace(value=default, name="a default")


def _of_lru_cache(cache: Any) -> Iterator[Reference]:
    """The results and arguments that functools.lru_cache keeps for a function of the program; none
    for the cache of a library's function.
    """
    code = getattr(inspect.unwrap(cache), "__code__", None)
    if code is None or not is_own(code.co_filename):
        return
    name = f"the lru_cache of {code.co_name}"
    where = f"{place(code.co_filename, code.co_firstlineno)} {code.co_name}"
    # vars(cache) is the dictionary of the wrapper's attributes, not of its results.
    referents = [value for value in gc.get_referents(cache) if value is not vars(cache)]
    # The last dictionary has the results by arguments (lru_cache_tp_traverse in
    # _functoolsmodule.c).
    results = [value for value in referents if type(value) is dict][-1]
    for value in referents:
        yield Reference(value, name, "cache", where, collection=name, container=results)


def _attributes(reference: Reference) -> Iterator[Reference]:
    """The attributes of an object, read from its dictionary or its slots, so that no property is
    called. Then all other objects to which it refers, which have the name of the object itself,
    since no expression is known for them.
    """
    owner = reference.value
    kind = type(owner)
    referents = [value for value in gc.get_referents(owner) if value is not kind]
    if not referents:
        return
    if issubclass(kind, type):
        attributes = dict(type.__dict__["__dict__"].__get__(owner))
    else:
        try:
            attributes = dict(object.__getattribute__(owner, "__dict__"))
        except AttributeError:
            attributes = dict(_slots(owner))
    for group in PARTS_OF_MODULES:
        if isinstance(attributes.get(group), dict):
            attributes.update(attributes.pop(group))
    for name, value in attributes.items():
        yield _extended(reference, value, f"{reference.name}.{name}")
    # A dictionary among the referents is the one whose attributes were named above. Classes,
    # modules and frames are the program's, and so roots themselves, or of libraries, which are not
    # walked.
    not_followed = (dict, type, types.ModuleType, types.FrameType)
    for value in referents:
        if not issubclass(type(value), not_followed):
            yield _extended(reference, value, reference.name)


def _slots(owner: object) -> Iterator[tuple[str, object]]:
    """The attributes of an object whose class names them in __slots__."""
    for kind in type.__dict__["__mro__"].__get__(type(owner)):
        for name, member in type.__dict__["__dict__"].__get__(kind).items():
            if type(member) is types.MemberDescriptorType:
                try:
                    yield name, member.__get__(owner)
                except AttributeError:
                    continue  # not set yet


def _extended(
    reference: Reference, value: object, name: str, container: object = None
) -> Reference:
    """The reference to an object to which the object of ``reference`` refers. ``container``: the
    object of ``reference`` where that is a collection, else None. Of two collections on the way the
    reference keeps the longer one, as the one that grows.
    """
    further = reference._replace(value=value, name=name)
    if container is None:
        return further
    longest = reference.container
    if longest is not None and length_of(longest) >= length_of(container):
        return further
    return further._replace(collection=reference.name, container=container)


def _key(key: object) -> str:
    """A key of a dictionary as the program writes it; "..." for a text longer than LONGEST_KEY, and
    for any other key, as its repr might be a method of the program.
    """
    if type(key) is str and len(key) <= LONGEST_KEY:
        return repr(key)
    return "..."
