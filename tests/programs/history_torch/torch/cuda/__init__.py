import os
import types

import torch

from . import memory

TOTAL_BYTES = 1 << 20
_initialized = False
_queued = []
_pid = 0


class OutOfMemoryError(RuntimeError):
    pass


def is_available():
    return torch.version.cuda is not None


def _lazy_call(call):
    if _initialized:
        call()
    else:
        _queued.append(call)


def init():
    global _initialized, _pid
    if _initialized and os.getpid() != _pid:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
    if not _initialized:
        _pid = os.getpid()
        _initialized = True
        for call in _queued:
            call()


def allocate(size):
    """An address; the caller frees it by ``memory.free``."""
    init()
    if memory.allocated + size > TOTAL_BYTES:
        memory.event("oom", 0, size)
        for observer in torch.observers:
            observer(0, size, TOTAL_BYTES, TOTAL_BYTES - memory.allocated)
        raise OutOfMemoryError("CUDA out of memory.")
    return memory.allocate(size)


def device_count():
    return 1


def get_device_properties(index):
    return types.SimpleNamespace(name="Stand-in", total_memory=TOTAL_BYTES)


def memory_stats(index):
    return {
        "allocation.all.allocated": memory.count,
        "allocated_bytes.all.peak": memory.allocated,
        "allocated_bytes.small_pool.peak": 1,
        "num_ooms": 0,
    }
