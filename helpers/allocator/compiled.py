"""The same allocator as machine code: numba compiles the functions of these modules as they
stand, tables as arrays.

Importing this module without numba raises ImportError. The code is kept where numba keeps it
(NUMBA_CACHE_DIR says otherwise); where nothing can be written it is made anew in each process.
Threads may run it side by side: it holds no lock and no state.
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
    operations,
    records,
    stream_map,
    trace,
)
from helpers.allocator.machine_code import compile_and_keep
from helpers.allocator.records import TABLES, Allocator, dtype_of
from helpers.settings import allocator_text, in_force

_ALLOCATOR = dtype_of(Allocator)
MODULES = (records, driver, stream_map, blocks, events, allocator, operations)


def function(body: Callable[..., Any]) -> Any:
    """Compile for use from compiled code only: once, not anew for each constant that it is
    called with.
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Any = njit(body, nogil=True, error_model="numpy", **options)
    resolve = compiled.get_call_template
    compiled.get_call_template = lambda args, kws: resolve(
        tuple(map(types.unliteral, args)), kws
    )
    return compiled


def accessor(name: str) -> Any:
    """The record at a place of the table whose address the allocator's record holds under this
    name.
    """
    dtype = dtype_of(TABLES[name])
    record_type = from_dtype(dtype)
    offset = dict(_ALLOCATOR.fields or {})[name][1]

    @intrinsic
    def record_at(_context: Any, a: Any, _place: Any) -> Any:
        def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            field = builder.add(builder.ptrtoint(arguments[0], word), word(offset))
            address = builder.load(builder.inttoptr(field, word.as_pointer()))
            place = builder.add(
                address, builder.mul(arguments[1], word(dtype.itemsize))
            )
            return builder.inttoptr(place, context.get_value_type(record_type))

        return record_type(a, types.int64), build

    return record_at


def namespace() -> dict[str, Any]:
    """All names of the modules, their functions compiled where they are called from compiled ones."""
    space: dict[str, Any] = {}
    for module in MODULES:
        space.update(vars(module))
    for module in MODULES:
        for name, body in vars(module).items():
            if hasattr(body, "table"):
                space[name] = accessor(body.table)
            elif isinstance(body, FunctionType) and body.__module__ == module.__name__:
                space[name] = function(FunctionType(body.__code__, space, name))
    return space


_advance = namespace()["advance"]


def _kernel(sources: int) -> Any:
    """The compiled loop. numba looks at this file alone to see whether its cache is stale;
    sources stands for the others.
    """

    def advance(head: np.recarray, timeline: np.ndarray, begin: int, stop: int) -> int:
        """operations.advance."""
        done: int = _advance(head[0], timeline, begin, stop)
        return done + 0 * sources

    return compile_and_keep(advance, nogil=True, error_model="numpy")


# Of these modules the others take only numbers.
_NUMBERS = (trace, in_force, allocator_text)
_SOURCES = zlib.crc32(
    b"".join(Path(str(m.__file__)).read_bytes() for m in (*MODULES, *_NUMBERS))
)
advance = _kernel(_SOURCES)


def _stamp() -> Path | None:
    """The file beside numba's cache that says what was compiled: these sources, by this numba,
    on this processor.
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
    """Compile it, and say beside the cache that it is there."""
    head = np.zeros(1, _ALLOCATOR).view(np.recarray)
    timeline = np.zeros((0, 0), np.int64)
    advance.compile(tuple(map(typeof, (head, timeline, 0, 0))))
    stamp = _stamp()
    if stamp is not None:
        stamp.touch()
