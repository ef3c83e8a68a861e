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
from collections.abc import Callable, Iterable
from contextlib import suppress
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
OLD_DRIVER = "not in this driver; NVML is read from driver 525 on"
SIZES = ("total_bytes", "reserved_bytes", "free_bytes", "used_bytes")
WINDOW = ("bar1_total_bytes", "bar1_used_bytes")
LINK = ("pcie_speed", "pcie_max_speed", "pcie_width", "pcie_max_width")
"""Speeds are counted by PCIe's generation, widths are lanes."""

_INT = ctypes.c_uint
_LONG = ctypes.c_ulonglong


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_v2_t: ``used`` leaves out what the driver reserves."""

    _fields_ = [
        ("version", _INT),
        ("total", _LONG),
        ("reserved", _LONG),
        ("free", _LONG),
        ("used", _LONG),
    ]


MEMORY_VERSION = ctypes.sizeof(NvmlMemory) | 2 << 24
"""nvmlMemory_v2 of nvml.h: the size of the structure and its version."""


class Window(ctypes.Structure):
    """nvmlBAR1Memory_t: the window through which the CPU reaches the memory."""

    _fields_ = [("bar1Total", _LONG), ("bar1Free", _LONG), ("bar1Used", _LONG)]


class Pci(ctypes.Structure):
    """nvmlPciInfo_t (version 3)."""

    _fields_ = [
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", _INT),
        ("bus", _INT),
        ("device", _INT),
        ("pciDeviceId", _INT),
        ("pciSubSystemId", _INT),
        ("busId", ctypes.c_char * 32),
    ]


class NvmlProcess(ctypes.Structure):
    """nvmlProcessInfo_t, as the functions of version 3 fill it: with the MIG instance."""

    _fields_ = [
        ("pid", _INT),
        ("usedGpuMemory", _LONG),
        ("gpuInstanceId", _INT),
        ("computeInstanceId", _INT),
    ]


class NvmlError(Exception):
    """A call that NVML refused, with its number and its own words."""

    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code = code

    @property
    def unread(self) -> dict[str, str]:
        """Why a field has no value."""
        status = "not_available"
        if self.code == NO_PERMISSION:
            status = "not_allowed"
        return {"status": status, "why": str(self)}


class Nvml:
    """The loaded library.

    Raises OSError where there is none, NvmlError where it refuses to start.
    """

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
        """Call one function of the library.

        Raises NvmlError for every answer but success, also for a function that this driver lacks.
        """
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError(FUNCTION_NOT_FOUND, f"{name}: {OLD_DRIVER}")
        code = function(*arguments)
        if code == FUNCTION_NOT_FOUND:
            raise NvmlError(code, f"{name}: {OLD_DRIVER}")
        if code != 0:
            raise NvmlError(code, f"{name}: {self._words(code)}")

    def _words(self, code: int) -> str:
        describe = self._library.nvmlErrorString
        describe.restype = ctypes.c_char_p
        words: bytes | None = describe(code)
        if not words:
            return f"error {code}"
        return words.decode("utf-8", "replace")

    def text(self, name: str, *handle: object) -> str:
        """The answer of a function that fills a buffer."""
        buffer = ctypes.create_string_buffer(256)
        self.call(name, *handle, buffer, ctypes.c_uint(256))
        return buffer.value.decode("utf-8", "replace")

    def number(self, name: str, *handle: object) -> int:
        """The answer of a function that fills an int."""
        value = ctypes.c_uint()
        self.call(name, *handle, ctypes.byref(value))
        return value.value

    def gpu(self, index: int) -> dict[str, Any]:
        """One GPU as a row; a field that could not be read is null and named in ``unread`` with
        its reason.
        """
        row: dict[str, Any] = {"index": index, "status": "ok", "unread": {}}
        handle = ctypes.c_void_p()
        pointer = ctypes.byref(handle)
        try:
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), pointer)
        except NvmlError as error:
            return {**row, **error.unread}
        # Each of them gives one value for each of its fields.
        readers: dict[
            tuple[str, ...], Callable[[ctypes.c_void_p], Iterable[object]]
        ] = {
            ("pci",): self._pci,
            ("name",): self._name,
            SIZES: self._memory,
            WINDOW: self._window,
            LINK: self._link,
            ("compute",): partial(self._processes, "Compute"),
            ("graphics",): partial(self._processes, "Graphics"),
        }
        for fields, read in readers.items():
            try:
                row.update(zip(fields, read(handle)))  # noqa: B905 - Python 3.8
            except NvmlError as error:
                row.update(dict.fromkeys(fields))
                row["unread"].update(dict.fromkeys(fields, error.unread))
        return row

    def _pci(self, handle: ctypes.c_void_p) -> list[str]:
        info = Pci()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return [info.busId.decode("ascii", "replace")]

    def _name(self, handle: ctypes.c_void_p) -> list[str]:
        return [self.text("nvmlDeviceGetName", handle)]

    def _memory(self, handle: ctypes.c_void_p) -> list[int]:
        memory = NvmlMemory(version=MEMORY_VERSION)
        self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
        return [memory.total, memory.reserved, memory.free, memory.used]

    def _window(self, handle: ctypes.c_void_p) -> list[int]:
        window = Window()
        self.call("nvmlDeviceGetBAR1MemoryInfo", handle, ctypes.byref(window))
        return [window.bar1Total, window.bar1Used]

    def _link(self, handle: ctypes.c_void_p) -> list[int]:
        names = (
            "nvmlDeviceGetCurrPcieLinkGeneration",
            "nvmlDeviceGetMaxPcieLinkGeneration",
            "nvmlDeviceGetCurrPcieLinkWidth",
            "nvmlDeviceGetMaxPcieLinkWidth",
        )
        return [self.number(name, handle) for name in names]

    def _processes(
        self, kind: str, handle: ctypes.c_void_p
    ) -> list[list[dict[str, int | None]]]:
        """The processes of one kind, ``Compute`` or ``Graphics``: one value, a list of rows."""
        name = f"nvmlDeviceGet{kind}RunningProcesses_v3"
        size = 32
        while True:
            count = ctypes.c_uint(size)
            array = (NvmlProcess * size)()
            try:
                self.call(name, handle, ctypes.byref(count), array)
                return [[_process_row(process) for process in array[: count.value]]]
            except NvmlError as error:
                if error.code != INSUFFICIENT_SIZE or size >= MOST_PROCESSES:
                    raise
                size = min(MOST_PROCESSES, max(size, count.value) * 2)


def _process_row(process: NvmlProcess) -> dict[str, int | None]:
    used: int | None = process.usedGpuMemory
    if used == NOT_MEASURED:
        used = None
    return {
        "pid": process.pid,
        "gpu_instance": process.gpuInstanceId,
        "used_bytes": used,
    }


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
    with suppress(NvmlError):
        cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2")
        release = {"cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}"}
    if not count:
        return [{"status": "not_available", "why": "NVML counts no GPU", **release}]
    return [{**nvml.gpu(index), **release} for index in range(count)]


if __name__ == "__main__":
    for _row in report():
        sys.stdout.write(json.dumps(_row) + "\n")
