"""Prints what NVML says about every NVIDIA GPU as JSON lines: a program that helpers.look.nvidia
runs in a child process.

Standard library only and no import of this package, so that any interpreter can run its text.
Loading NVML takes no CUDA context, but it can hang in a driver that has failed, hence the child.
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
"""The name for the loader, and the places of WSL, of Kubernetes' device plugin and of NixOS."""
NO_PERMISSION = 4
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
"""NVML_ERROR_NO_PERMISSION and so on of nvml.h."""
NOT_MEASURED = (1 << 64) - 1
"""NVML_VALUE_NOT_AVAILABLE of nvml.h."""
FIRST_PROCESSES = 32
MOST_PROCESSES = 10_000
"""For how many processes room is made, first and at most."""
BUFFER_BYTES = 256
"""More than the longest text of nvml.h needs (NVML_DEVICE_NAME_V2_BUFFER_SIZE, 96)."""
OLD_DRIVER = "not in this driver; NVML is read from driver 525 on"
SIZES = ("total_bytes", "reserved_bytes", "free_bytes", "used_bytes")
WINDOW = ("bar1_total_bytes", "bar1_used_bytes")
LINK = ("pcie_speed", "pcie_max_speed", "pcie_width", "pcie_max_width")
"""A speed is the number of a generation of PCIe, a width a number of lanes."""

_INT = ctypes.c_uint
_LONG = ctypes.c_ulonglong


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_v2_t: ``used`` does not include what the driver reserves."""

    _fields_ = [
        ("version", _INT),
        ("total", _LONG),
        ("reserved", _LONG),
        ("free", _LONG),
        ("used", _LONG),
    ]


MEMORY_VERSION = ctypes.sizeof(NvmlMemory) | 2 << 24
"""nvmlMemory_v2 of nvml.h: the size of the structure, and from bit 24 on its version, 2."""


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
    """A call that NVML refused: its error number ``code``, and its words for it."""

    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code = code

    @property
    def unread(self) -> dict[str, str]:
        """The status and the reason of a field that has no value."""
        status = "not_available"
        if self.code == NO_PERMISSION:
            status = "not_allowed"
        return {"status": status, "why": str(self)}


class Nvml:
    """The loaded library. Raises OSError if there is none, NvmlError if it refuses to start."""

    def __init__(self) -> None:
        reasons = []
        for name in LIBRARIES:
            try:
                self._library = ctypes.CDLL(name)
                break
            except OSError as error:
                reasons.append(str(error))
        else:
            raise OSError(reasons[0])
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: object) -> None:
        """Call one function of the library. Raises NvmlError for every answer but success, also for
        a function that this driver does not have.
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
        """NVML's own words for an error number."""
        describe = self._library.nvmlErrorString
        describe.restype = ctypes.c_char_p
        words: bytes | None = describe(code)
        if not words:
            return f"error {code}"
        return words.decode("utf-8", "replace")

    def text(self, name: str, *handle: object) -> str:
        """The text that a function of the library writes into a buffer."""
        buffer = ctypes.create_string_buffer(BUFFER_BYTES)
        self.call(name, *handle, buffer, ctypes.c_uint(BUFFER_BYTES))
        return buffer.value.decode("utf-8", "replace")

    def number(self, name: str, *handle: object) -> int:
        """The number that a function of the library writes into an unsigned int."""
        value = ctypes.c_uint()
        self.call(name, *handle, ctypes.byref(value))
        return value.value

    def gpu(self, index: int) -> dict[str, Any]:
        """The row of one GPU. A field that could not be read is null, and ``unread`` has its status
        and its reason.
        """
        row: dict[str, Any] = {"index": index, "status": "ok", "unread": {}}
        handle = ctypes.c_void_p()
        pointer = ctypes.byref(handle)
        try:
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), pointer)
        except NvmlError as error:
            return {**row, **error.unread}
        # Each function returns one value for each of its fields.
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
                row.update(dict.fromkeys(fields))  # null
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
        """The rows of the processes of one kind, ``Compute`` or ``Graphics``, as the value of its
        one field.
        """
        name = f"nvmlDeviceGet{kind}RunningProcesses_v3"
        room = FIRST_PROCESSES
        while True:
            count = ctypes.c_uint(room)
            array = (NvmlProcess * room)()
            try:
                self.call(name, handle, ctypes.byref(count), array)
                return [[_process_row(process) for process in array[: count.value]]]
            except NvmlError as error:
                if error.code != INSUFFICIENT_SIZE or room >= MOST_PROCESSES:
                    raise
                # It has said how many there are; until the next call there may be more.
                room = min(MOST_PROCESSES, max(room, count.value) * 2)


def _process_row(process: NvmlProcess) -> dict[str, int | None]:
    row: dict[str, int | None] = {
        "pid": process.pid,
        "gpu_instance": process.gpuInstanceId,
        "used_bytes": process.usedGpuMemory,
    }
    if row["used_bytes"] == NOT_MEASURED:
        row["used_bytes"] = None
    return row


def report() -> list[dict[str, Any]]:
    """One row for each GPU, or one row that says why there is none."""
    try:
        nvml = Nvml()
        count = nvml.number("nvmlDeviceGetCount_v2")
    except OSError as error:
        return [{"status": "not_available", "why": f"no NVML library: {error}"}]
    except NvmlError as error:
        return [dict(error.unread)]
    release: dict[str, Any] = {"cuda_driver": None}
    with suppress(NvmlError):
        cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2")  # 12040 for 12.4
        release = {"cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}"}
    if not count:
        return [{"status": "not_available", "why": "NVML counts no GPU", **release}]
    return [{**nvml.gpu(index), **release} for index in range(count)]


if __name__ == "__main__":
    for _row in report():
        sys.stdout.write(json.dumps(_row) + "\n")
