"""The allocator model as machine code: numba compiles the functions of MODULES unchanged, with
arrays for their tables.

Importing this module without numba raises ImportError. The machine code is kept in numba's cache
folder (NUMBA_CACHE_DIR names another); where nothing can be written it is made anew in each
process. Threads may run it side by side: it holds no lock and no state.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit, typeof, types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from helpers.allocator import (
    allocator,
    blocks,
    driver,
    events,
    expandable,
    operations,
    records,
    stream_map,
    trace,
)
from helpers.allocator.machine_code import compile_and_keep
from helpers.allocator.records import TABLES, Allocator, dtype_of
from helpers.settings import allocator_text, in_force

_ALLOCATOR = dtype_of(Allocator)
MODULES = (
    records,
    driver,
    stream_map,
    blocks,
    expandable,
    events,
    allocator,
    operations,
)
"""The modules of the allocator model, each behind those that it imports from."""


def function(body: Callable[..., Any]) -> Any:
    """Compile a function that only compiled code calls.

    It is compiled once for each combination of argument types. By itself numba would compile it
    anew for each constant that a call has as an argument, which only takes time here.
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    # nogil: other threads of Python run meanwhile. numpy's model: no division is checked for 0.
    compiled: Any = njit(body, nogil=True, error_model="numpy", **options)
    resolve = compiled.get_call_template
    of_any_value: Callable[[Any], Any] = types.unliteral

    def resolve_any_value(args: Any, kws: Any) -> Any:
        """Find the compiled form for the types of the arguments, whatever their values."""
        named = {name: of_any_value(kind) for name, kind in dict(kws).items()}
        return resolve(tuple(map(of_any_value, args)), named)

    compiled.get_call_template = resolve_any_value
    return compiled


def accessor(name: str) -> Any:
    """The compiled form of an accessor of records.py, such as ``block_at``: a function that takes
    the allocator's record and a place, and returns the record at that place of the table ``name``.
    """
    dtype = dtype_of(TABLES[name])
    record_type = from_dtype(dtype)
    assert _ALLOCATOR.fields is not None, "a dtype of records"
    offset = _ALLOCATOR.fields[name][1]  # where the allocator's record has the address

    # The decorated function gives numba the types of the result and the arguments, and ``build``,
    # which writes the instructions.
    @intrinsic
    def record_at(_context: Any, a: Any, _place: Any) -> Any:
        def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            """The address of the record, as LLVM instructions: read the table's address from the
            allocator's record, and add to it the place times the bytes of a record.
            """
            allocator_pointer, place = arguments
            word = ir.IntType(64)
            begin = builder.ptrtoint(allocator_pointer, word)
            field = builder.inttoptr(
                builder.add(begin, word(offset)), word.as_pointer()
            )
            table = builder.load(field)
            record_offset = builder.mul(place, word(dtype.itemsize))
            record = builder.add(table, record_offset)
            return builder.inttoptr(record, context.get_value_type(record_type))

        return record_type(a, types.int64), build

    return record_at


def namespace() -> dict[str, Any]:
    """All names of MODULES in one dictionary, for compiled code: each function compiled, and each
    accessor of a table (``block_at``) replaced by a compiled one.
    """
    space: dict[str, Any] = {}
    for module in MODULES:
        space.update(vars(module))
    # A compiled function looks names up in ``space``, so it calls the compiled form of others.
    for module in MODULES:
        for name, body in vars(module).items():
            if hasattr(body, "table"):  # records.accessor made it
                space[name] = accessor(body.table)
            elif isinstance(body, FunctionType) and body.__module__ == module.__name__:
                space[name] = function(FunctionType(body.__code__, space, name))
    return space


_advance = namespace()["advance"]


def _kernel(sources: int) -> Any:
    """operations.advance as machine code.

    ``sources``: the checksum of all sources. numba takes kept code for current if this file has the
    same date and if the function closes over the same values. A change in another module would go
    unseen; therefore the function closes over the checksum, which it adds 0 times.
    """

    def advance(head: np.recarray, timeline: np.ndarray, begin: int, stop: int) -> int:
        """operations.advance; ``head`` has one row, the allocator's record."""
        done: int = _advance(head[0], timeline, begin, stop)
        return done + 0 * sources

    # The options of ``function``.
    return compile_and_keep(advance, nogil=True, error_model="numpy")


# MODULES take only numbers from these, but machine code contains the numbers, too.
_NUMBERS = (trace, in_force, allocator_text)
_SOURCES = zlib.crc32(
    b"".join(Path(str(m.__file__)).read_bytes() for m in (*MODULES, *_NUMBERS))
)
"""Changes with each change of a source from which the machine code is made."""
advance = _kernel(_SOURCES)


def _stamp() -> Path | None:
    """The file beside numba's cache by which ``ready`` knows that machine code is kept there. Its
    name depends on the sources, on numba's version and on the processor, so that code of another
    state has another stamp. None where numba keeps nothing.
    """
    if not advance.stats.cache_path:
        return None
    file = Path(__file__).stat()
    processor = binding.get_host_cpu_name()
    about = (
        f"{_SOURCES} {file.st_mtime_ns} {file.st_size} {numba.__version__} {processor}"
    )
    name = f"casebook-{sys.implementation.cache_tag}-{zlib.crc32(about.encode()):08x}.stamp"
    return Path(advance.stats.cache_path, name)


def ready() -> bool:
    """Whether the machine code is there: made by this process, or kept on disk."""
    if advance.signatures:
        return True
    stamp = _stamp()
    return stamp is not None and stamp.exists()


def make() -> None:
    """Compile the machine code for the types of replay's arguments, and touch its stamp."""
    head = np.zeros(1, _ALLOCATOR).view(np.recarray)
    timeline = np.zeros((0, 0), np.int64)
    argument_types = tuple(map(typeof, (head, timeline, 0, 0)))
    advance.compile(argument_types)
    stamp = _stamp()
    if stamp is not None:
        stamp.touch()
