"""torch's memory history: turned on, and kept as a snapshot."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .cells import cells
from .private_files import replacing


def start_history(torch: ModuleType, max_events: int, stacks: bool = True) -> str:
    """Turn torch's memory history on, as since torch 2.1; empty, or why this torch has none."""
    record = getattr(torch.cuda.memory, "_record_memory_history", None)
    needed = {"args", "max_entries"}
    if record is None or not needed & inspect.signature(record).parameters.keys():
        return f"torch {torch.__version__} records no such events; 2.1 is the first that does"
    if stacks:
        record(enabled="all", max_entries=max_events, context="all", stacks="python")
    else:
        record(enabled="all", max_entries=max_events, context=None)
    return ""


def write_snapshot(torch: ModuleType, path: str) -> dict[str, Any]:
    """torch's memory snapshot, written to ``path`` as a pickle of plain values; the snapshot.
    ``casebook_cells`` of it says which files are cells of a notebook.

    Raises OSError, RuntimeError.
    """
    with _compiler_left_alone(torch):
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    snapshot["casebook_cells"] = cells()
    # MemoryViz does not read protocol 5, the default of Python 3.14 (pytorch issue 183842).
    with replacing(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return snapshot


@contextlib.contextmanager
def _compiler_left_alone(torch: ModuleType) -> Iterator[None]:
    """Keep torch from importing its compiler, which takes some seconds.

    It asks the compiler which frames are of compiled code (torch/csrc/profiler/python/
    combined_traceback.cpp). A compiler that was never imported has compiled nothing.
    """
    lazy_modules: set[str] = getattr(torch, "_lazy_modules", set())
    is_lazy = "_inductor" in lazy_modules and "torch._inductor" not in sys.modules
    if is_lazy:
        lazy_modules.discard("_inductor")
    try:
        yield
    finally:
        if is_lazy:
            lazy_modules.add("_inductor")
