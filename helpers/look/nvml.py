"""What NVML says of every NVIDIA GPU, as JSON lines: a program of its own, run in a child by
helpers.look.nvidia.

Standard library only and no import of this package, so that any interpreter can run its text.
Loading NVML takes no CUDA context, but it can hang in a sick driver, hence the child.
Structures and error numbers are those of nvml.h, compared in a test with nvidia-ml-py 13.615.
"""

from __future__ import annotations

import ctypes
import json
import sys
from functools import partial
from typing import Any

LIBRARIES = (
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
)
NO_PERMISSION = 4
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
NOT_MEASURED = (1 << 64) - 1
MOST_PROCESSES = 10_000


_INT = ctypes.c_uint
_LONG = ctypes.c_ulonglong


class Memory(ctypes.Structure):
    """nvmlMemory_t: ``used`` includes what the driver reserves."""

    _fields_ = [(name, _LONG) for name in ("total", "free", "used")]


class MemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t, since driver 510: ``reserved`` apart from ``used``."""

    _sizes = ("total", "reserved", "free", "used")
    _fields_ = [("version", _INT), *((name, _LONG) for name in _sizes)]


class Pci(ctypes.Structure):
    """nvmlPciInfo_t (version 3)."""

    _numbers = ("domain", "bus", "device", "pciDeviceId", "pciSubSystemId")
    _fields_ = [
        ("busIdLegacy", ctypes.c_char * 16),
        *((name, _INT) for name in _numbers),
        ("busId", ctypes.c_char * 32),
    ]


class ProcessV1(ctypes.Structure):
    """nvmlProcessInfo_v1_t."""

    _fields_ = [("pid", _INT), ("usedGpuMemory", _LONG)]


class ProcessV2(ctypes.Structure):
    """nvmlProcessInfo_v2_t, and version 3 alike: with the MIG instance."""

    _fields_ = [*ProcessV1._fields_, ("gpuInstanceId", _INT), ("computeInstanceId", _INT)]


class NvmlError(Exception):
    """A call that NVML refused, with its number and its own words."""

    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code = code

    @property
    def unread(self) -> dict[str, str]:
        """Why a field has no value."""
        status = "not_allowed" if self.code == NO_PERMISSION else "not_available"
        return {"status": status, "why": str(self)}


class Nvml:
    """The loaded library. Raises OSError where there is none, NvmlError where it refuses to start."""

    def __init__(self) -> None:
        why = []
        for name in LIBRARIES:
            try:
                self._library = ctypes.CDLL(name)
                break
            except OSError as error:
                why.append(str(error))
        else:
            raise OSError(why[0])
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: object) -> None:
        """Call one function; NvmlError for every answer but success, also for a function this
        driver lacks.
        """
        function = getattr(self._library, name, None)
        code = function(*arguments) if function else FUNCTION_NOT_FOUND
        if code != 0:
            words = self._words(code) if function else "not in this driver"
            raise NvmlError(code, f"{name}: {words}")

    def _words(self, code: int) -> str:
        describe = self._library.nvmlErrorString
        describe.restype = ctypes.c_char_p
        return (describe(code) or b"").decode("utf-8", "replace") or f"error {code}"

    def text(self, name: str, *handle: object) -> str:
        """The answer of a function that fills a buffer."""
        buffer = ctypes.create_string_buffer(256)
        self.call(name, *handle, buffer, ctypes.c_uint(256))
        return buffer.value.decode("utf-8", "replace")

    def number(self, name: str) -> int:
        """The answer of a function that fills an int."""
        value = ctypes.c_uint()
        self.call(name, ctypes.byref(value))
        return value.value

    def gpu(self, index: int) -> dict[str, Any]:
        """One GPU as a row; a field that could not be read is null and named in ``unread`` with
        its reason.
        """
        row: dict[str, Any] = {"index": index, "status": "ok", "unread": {}}
        handle = ctypes.c_void_p()
        try:
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        except NvmlError as error:
            return {**row, **error.unread}
        for fields, read in (
            (("pci",), self._pci),
            (("name",), self._name),
            (tuple(f"{part}_bytes" for part in MemoryV2._sizes), self._memory),
            (("compute",), partial(self._processes, "Compute")),
            (("graphics",), partial(self._processes, "Graphics")),
        ):
            try:
                values = read(handle)
                row.update({name: values[at] for at, name in enumerate(fields)})
            except NvmlError as error:
                row.update(dict.fromkeys(fields))
                row["unread"].update(dict.fromkeys(fields, error.unread))
        return row

    def _pci(self, handle: ctypes.c_void_p) -> list[Any]:
        info = Pci()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return [info.busId.decode("ascii", "replace")]

    def _name(self, handle: ctypes.c_void_p) -> list[Any]:
        return [self.text("nvmlDeviceGetName", handle)]

    def _memory(self, handle: ctypes.c_void_p) -> list[Any]:
        memory: ctypes.Structure = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        try:
            self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
        except NvmlError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
            memory = Memory()
            self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return [getattr(memory, part, None) for part in MemoryV2._sizes]

    def _processes(self, kind: str, handle: ctypes.c_void_p) -> list[Any]:
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        for suffix, shape in (("_v3", ProcessV2), ("_v2", ProcessV2), ("", ProcessV1)):
            try:
                found = self._listed(name + suffix, shape, handle)
            except NvmlError as error:
                if error.code != FUNCTION_NOT_FOUND:
                    raise
                continue
            return [[_process(one) for one in found]]
        raise NvmlError(FUNCTION_NOT_FOUND, f"{name}: not in this driver")

    def _listed(self, name: str, shape: type[Any], handle: ctypes.c_void_p) -> list[Any]:
        size = 32
        while True:
            count = ctypes.c_uint(size)
            array = (shape * size)()
            try:
                self.call(name, handle, ctypes.byref(count), array)
                return list(array[: count.value])
            except NvmlError as error:
                if error.code != INSUFFICIENT_SIZE or size >= MOST_PROCESSES:
                    raise
                size = min(MOST_PROCESSES, max(size, count.value) * 2)


def _process(one: Any) -> dict[str, Any]:
    used = None if one.usedGpuMemory == NOT_MEASURED else one.usedGpuMemory
    instance = getattr(one, "gpuInstanceId", None)
    return {"pid": one.pid, "gpu_instance": instance, "used_bytes": used}


def report() -> list[dict[str, Any]]:
    """One row per GPU, or one row that says why there is none."""
    try:
        nvml = Nvml()
        count = nvml.number("nvmlDeviceGetCount_v2")
    except OSError as error:
        return [{"status": "not_available", "why": f"no NVML library: {error}"}]
    except NvmlError as error:
        return [dict(error.unread)]
    release: dict[str, Any] = {"cuda_driver": None}
    try:
        cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2")
        release = {"cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}"}
    except NvmlError as error:
        release["cuda_driver_why"] = str(error)
    if not count:
        return [{"status": "not_available", "why": "NVML counts no GPU", **release}]
    return [{**nvml.gpu(index), **release} for index in range(count)]


if __name__ == "__main__":
    for _row in report():
        sys.stdout.write(json.dumps(_row) + "\n")
