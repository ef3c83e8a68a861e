import os

import torch

history = None
entries = []
longest = 0
allocated = count = 0


def _record_memory_history(enabled="all", *args, **kwargs):
    _impl(enabled, **kwargs)


def _impl(enabled="all", context="all", stacks="all", max_entries=0):
    global history, longest
    if "SICK_HISTORY" in os.environ:
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory.")
    history = enabled
    longest = max_entries


def event(action, address, size):
    if history is not None:
        entries.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": []})
        del entries[:-longest]


def allocate(size):
    global allocated, count
    allocated = allocated + size
    count = count + 1
    event("alloc", count, size)
    return count


def free(address, size):
    global allocated
    allocated -= size
    event("free_completed", address, size)


def _snapshot(device=None):
    hasattr(torch, "_inductor")  # as torch/csrc/profiler/python/combined_traceback.cpp asks
    return {"segments": [], "device_traces": [list(entries)], "pid": os.getpid()}
