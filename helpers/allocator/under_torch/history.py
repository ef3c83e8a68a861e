"""Turns torch's memory history on, and writes it as a snapshot."""

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
    """Turn torch's memory history on. Returns an empty text if it is on, else why this torch has
    none: before 2.1 the function is missing, or takes other parameters and keeps no events of
    segments.

    ``max_events``: the length of each device's ring buffer; ``stacks``: events have Python stacks.
    """
    record = getattr(torch.cuda.memory, "_record_memory_history", None)
    # Since 2.1 (enabled, *args, **kwargs), or with the parameters written out.
    of_new_form = {"args", "max_entries"}
    if record is None or not of_new_form & inspect.signature(record).parameters.keys():
        return f"torch {torch.__version__} records no such events; 2.1 is the first that does"
    if stacks:
        record(enabled="all", max_entries=max_events, context="all", stacks="python")
    else:
        record(enabled="all", max_entries=max_events, context=None)
    return ""


def write_snapshot(torch: ModuleType, path: str) -> dict[str, Any]:
    """Writes torch's memory snapshot to ``path`` as a pickle of plain values, and returns it. Its
    entry ``casebook_cells`` says which files are cells of a notebook.

    Raises OSError for the file, RuntimeError for what torch refuses.
    """
    with _compiler_left_alone(torch):
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    snapshot["casebook_cells"] = cells()
    # torch's viewer, MemoryViz.js, long read protocols 2 to 4 alone; Python 3.14 writes 5 by
    # default (pytorch issue 183842).
    with replacing(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return snapshot


@contextlib.contextmanager
def _compiler_left_alone(torch: ModuleType) -> Iterator[None]:
    """Keep torch from importing its compiler, which takes some seconds.

    A snapshot asks torch._inductor which frames are of compiled code (torch/csrc/profiler/python/
    combined_traceback.cpp), and to name it is to import it, as it is one of torch's lazy modules.
    A compiler that was never imported has compiled nothing.
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
