"""Stands in for torch and a GPU of 1 GiB in a child under test: counts bytes, keeps to the memory fraction, logs every call.

Each tensor takes its size rounded up to 512 bytes and nothing is cached. TINY_TORCH, a list of words, says what is odd about
it; TINY_LOG is the file of calls.
"""

import contextlib
import os
import sys
import types

WORDS = os.environ.get("TINY_TORCH", "").split()
TOTAL = 1 << 30
STATE = {"allocated": 0, "peak": 0, "allowed": TOTAL, "stream": 0, "made": 0}
__version__ = "9.9.9+tiny"
uint8 = "uint8"
version = types.SimpleNamespace(cuda=None if "cpu-build" in WORDS else "13.0", hip=None)


def log(*words):
    with open(os.environ["TINY_LOG"], "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


class OutOfMemoryError(RuntimeError):
    pass


class Stream:
    def __init__(self, device):
        STATE["made"] += 1
        self.number = STATE["made"]
        self.cuda_stream = 0x7000 * STATE["made"]


class Tensor:
    def __init__(self, size):
        self.size = size
        STATE["allocated"] += size
        STATE["peak"] = max(STATE["peak"], STATE["allocated"])

    def record_stream(self, stream):
        log("record_stream", stream.number)

    def __del__(self, log=log, state=STATE, ended=sys.is_finalizing):
        if not ended():
            state["allocated"] -= self.size
            log("free", self.size)


def empty(size, dtype, device):
    assert (dtype, device) == (uint8, "cuda:0")
    if "dies-at-once" in WORDS:
        os.abort()
    if "driver-error" in WORDS:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")
    rounded = -(-size // 512) * 512
    log("empty", size, STATE["stream"])
    if STATE["allocated"] + rounded > STATE["allowed"]:
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size} bytes.\nSee documentation"
        )
    return Tensor(rounded)


@contextlib.contextmanager
def on_stream(stream):
    before = STATE["stream"]
    STATE["stream"] = stream.number
    yield
    STATE["stream"] = before


def set_fraction(fraction, device):
    STATE["allowed"] = int(fraction * TOTAL)
    log("fraction", fraction)


def stats(device):
    return {
        "allocated_bytes.all.current": STATE["allocated"],
        "allocated_bytes.all.peak": STATE["peak"],
    }


def nested(device):
    now = {"all": {"current": STATE["allocated"]}}
    return {"allocated_bytes": now, "reserved_bytes": now}


def record_history(enabled, context="all", max_entries=0):
    log("history", enabled, context)


cuda = types.SimpleNamespace(
    OutOfMemoryError=OutOfMemoryError,
    Stream=Stream,
    stream=on_stream,
    init=lambda: None,
    device_count=lambda: 1,
    default_stream=lambda device: types.SimpleNamespace(number=0, cuda_stream=0),
    memory_stats=stats,
    memory_stats_as_nested_dict=nested,
    set_per_process_memory_fraction=set_fraction,
    empty_cache=lambda: log("empty_cache"),
    synchronize=lambda device: log("synchronize"),
    reset_peak_memory_stats=lambda device: log("reset_peak"),
    mem_get_info=lambda device: (TOTAL - (64 << 20), TOTAL),
    get_device_name=lambda device: "Tiny GPU",
    get_device_properties=lambda device: types.SimpleNamespace(total_memory=TOTAL, is_integrated=0),
    get_allocator_backend=lambda: "cudaMallocAsync" if "async" in WORDS else "native",
    memory=types.SimpleNamespace(
        _record_memory_history=record_history, _snapshot=lambda: {"segments": [], "stats": stats(0)}
    ),
)
print("a library prints on stdout")
