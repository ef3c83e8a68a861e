"""What worker.py asks of torch's Python, answered by the C++ of a ROCm build: its workers import this file as ``torch``."""

import contextlib
import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
__version__ = (HERE / "version").read_text(encoding="utf-8")
uint8 = "uint8"
_library = ctypes.CDLL(str(HERE / "liballocator.so"))
_library.words.restype = ctypes.c_char_p
_stream = 0  # the current one


class OutOfMemoryError(RuntimeError):
    """As torch.cuda.OutOfMemoryError."""


def _call(name, *arguments):
    """Raises OutOfMemoryError or RuntimeError with the allocator's own words."""
    code = getattr(_library, name)(*arguments)
    if code:
        raise (OutOfMemoryError if code == 1 else RuntimeError)(_library.words().decode())


def _told(name):
    _call(name)
    return json.loads(_library.words())


def _init():
    """Settings are read from the environment here, under the name that every ROCm build reads."""
    conf = os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", "")
    if "hipMallocAsync" in conf:
        raise RuntimeError("backend:hipMallocAsync is not the caching allocator; not compared here")
    if conf:
        os.environ["PYTORCH_HIP_ALLOC_CONF"] = conf
    _call("start")


def _whole(number):
    return ctypes.c_uint64(number)


def _allocate(size, stream):
    at = ctypes.c_uint64()
    _call("allocate", _whole(size), _whole(stream), ctypes.byref(at))
    return at.value


class _Tensor:
    """Bytes on the device, given back when the last reference goes."""

    def __init__(self, size):
        held = ctypes.c_uint64()
        at = ctypes.c_uint64()
        self.held = 0
        where = ctypes.byref(held), ctypes.byref(at)
        _call("make_tensor", _whole(size), _whole(_stream), *where)
        self.held = held.value
        self.at = at.value

    def __del__(self):
        if self.held:
            _call("drop_tensor", _whole(self.held))

    def data_ptr(self):
        return self.at

    def record_stream(self, stream):
        _call("record_stream", _whole(self.held), _whole(stream))


class _Graph:
    """As torch.cuda.CUDAGraph: what is allocated between begin and end is the pool's, until the last graph of it goes."""

    def capture_begin(self, pool):
        self.pool = _whole(pool[1])
        self.stream = _whole(_stream)
        _call("begin_capture", self.pool, self.stream)

    def capture_end(self):
        _call("end_capture", self.pool, self.stream)

    def __del__(self):
        _call("release_pool", self.pool)


def empty(size, dtype, device):
    return _Tensor(size)


@contextlib.contextmanager
def _current(stream):
    global _stream
    before = _stream
    _stream = stream
    try:
        yield
    finally:
        _stream = before


cuda = SimpleNamespace(
    OutOfMemoryError=OutOfMemoryError,
    init=_init,
    CUDAGraph=_Graph,
    stream=_current,
    ExternalStream=int,
    default_stream=int,
    empty_cache=lambda: _call("empty_cache"),
    synchronize=lambda: _call("synchronize"),
    reset_peak_memory_stats=lambda: _call("reset_peak"),
    set_per_process_memory_fraction=lambda fraction, _: _call(
        "set_fraction", ctypes.c_double(fraction)
    ),
    memory_snapshot=lambda: _told("segments"),
)
_C = SimpleNamespace(
    _cuda_cudaCachingAllocator_raw_alloc=_allocate,
    _cuda_cudaCachingAllocator_raw_delete=lambda at: _call("give_back", _whole(at)),
    _cuda_beginAllocateToPool=lambda _, pool: _call("begin_pool", _whole(pool[1])),
    _cuda_endAllocateToPool=lambda _, pool: _call("end_pool", _whole(pool[1])),
    _cuda_releasePool=lambda _, pool: _call("release_pool", _whole(pool[1])),
    _cuda_memoryStats=lambda _: _told("statistics"),
    _accelerator_setAllocatorSettings=lambda conf: _call("settings", conf.encode()),
)
