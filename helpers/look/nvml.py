"""What NVML says of every NVIDIA GPU, as JSON lines: a program of its own, run in a child by helpers.look.nvidia.

Standard library only and no import of this package, so that any interpreter can run its text. Loading NVML takes no CUDA
context, but it can hang in a sick driver, hence the child. Structures and error numbers are those of nvml.h, compared in a
test with nvidia-ml-py 13.615.
"""

from __future__ import annotations

import ctypes
import json
import sys

LIBRARIES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
             "/run/opengl-driver/lib/libnvidia-ml.so.1")
NO_PERMISSION, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 4, 7, 13
NOT_MEASURED = (1 << 64) - 1
MOST_PROCESSES = 10_000


class Memory(ctypes.Structure):
    """nvmlMemory_t: ``used`` includes what the driver reserves."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class MemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t, since driver 510: ``reserved`` apart from ``used``."""

    _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong),
                ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Pci(ctypes.Structure):
    """nvmlPciInfo_t (version 3)."""

    _fields_ = [("busIdLegacy", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint),
                ("device", ctypes.c_uint), ("pciDeviceId", ctypes.c_uint), ("pciSubSystemId", ctypes.c_uint),
                ("busId", ctypes.c_char * 32)]


class ProcessV1(ctypes.Structure):
    """nvmlProcessInfo_v1_t."""

    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


class ProcessV2(ctypes.Structure):
    """nvmlProcessInfo_v2_t, and version 3 alike: with the MIG instance."""

    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong),
                ("gpuInstanceId", ctypes.c_uint), ("computeInstanceId", ctypes.c_uint)]


class NvmlError(Exception):
    """A call that NVML refused, with its number and its own words."""

    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code = code

    @property
    def unread(self) -> dict[str, str]:
        """Why a field has no value."""
        return {"status": "not_allowed" if self.code == NO_PERMISSION else "not_available", "why": str(self)}


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
        """Call one function; NvmlError for every answer but success, also for a function this driver lacks."""
        function = getattr(self._library, name, None)
        code = function(*arguments) if function else FUNCTION_NOT_FOUND
        if code != 0:
            raise NvmlError(code, f"{name}: {self._words(code) if function else 'not in this driver'}")

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

    def gpu(self, index: int) -> dict[str, object]:
        """One GPU as a row; a field that could not be read is null and named in ``unread`` with its reason."""
        row: dict[str, object] = {"index": index, "status": "ok", "unread": {}}
        handle = ctypes.c_void_p()
        try:
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        except NvmlError as error:
            return {**row, **error.unread}
        for fields, read in ((("pci",), self._pci), (("uuid",), self._uuid), (("name",), self._name),
                             (("total_bytes", "free_bytes", "used_bytes", "reserved_bytes"), self._memory),
                             (("compute",), self._compute), (("graphics",), self._graphics)):
            try:
                row.update(read(handle))
            except NvmlError as error:
                row.update(dict.fromkeys(fields))
                row["unread"].update(dict.fromkeys(fields, error.unread))  # type: ignore[attr-defined]
        return row

    def _pci(self, handle: ctypes.c_void_p) -> dict[str, object]:
        info = Pci()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return {"pci": info.busId.decode("ascii", "replace")}

    def _uuid(self, handle: ctypes.c_void_p) -> dict[str, object]:
        return {"uuid": self.text("nvmlDeviceGetUUID", handle)}

    def _name(self, handle: ctypes.c_void_p) -> dict[str, object]:
        return {"name": self.text("nvmlDeviceGetName", handle)}

    def _memory(self, handle: ctypes.c_void_p) -> dict[str, object]:
        new = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        try:
            self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(new))
        except NvmlError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
            old = Memory()
            self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(old))
            return {"total_bytes": old.total, "free_bytes": old.free, "used_bytes": old.used, "reserved_bytes": None}
        return {"total_bytes": new.total, "free_bytes": new.free, "used_bytes": new.used, "reserved_bytes": new.reserved}

    def _compute(self, handle: ctypes.c_void_p) -> dict[str, object]:
        return {"compute": self._processes("nvmlDeviceGetComputeRunningProcesses", handle)}

    def _graphics(self, handle: ctypes.c_void_p) -> dict[str, object]:
        return {"graphics": self._processes("nvmlDeviceGetGraphicsRunningProcesses", handle)}

    def _processes(self, name: str, handle: ctypes.c_void_p) -> list[dict[str, object]]:
        for suffix, shape in (("_v3", ProcessV2), ("_v2", ProcessV2), ("", ProcessV1)):
            size = 32
            while True:
                count, array = ctypes.c_uint(size), (shape * size)()
                try:
                    self.call(name + suffix, handle, ctypes.byref(count), array)
                except NvmlError as error:
                    if error.code == INSUFFICIENT_SIZE and size < MOST_PROCESSES:
                        size = min(MOST_PROCESSES, max(size, count.value) * 2)
                        continue
                    if error.code == FUNCTION_NOT_FOUND and suffix:
                        break
                    raise
                return [{"pid": process.pid, "gpu_instance": getattr(process, "gpuInstanceId", None),
                         "used_bytes": None if process.usedGpuMemory == NOT_MEASURED else process.usedGpuMemory}
                        for process in array[:count.value]]
        raise NvmlError(FUNCTION_NOT_FOUND, f"{name}: not in this driver")


def report() -> list[dict[str, object]]:
    """One row per GPU, or one row that says why there is none."""
    try:
        nvml = Nvml()
        count = nvml.number("nvmlDeviceGetCount_v2")
    except OSError as error:
        return [{"status": "not_available", "why": f"no NVML library: {error}"}]
    except NvmlError as error:
        return [dict(error.unread)]
    versions: dict[str, object] = {"driver": None, "cuda_driver": None}
    try:
        versions["driver"] = nvml.text("nvmlSystemGetDriverVersion")
        cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2")
        versions["cuda_driver"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    except NvmlError as error:
        versions["versions_why"] = str(error)
    if not count:
        return [{"status": "not_available", "why": "NVML counts no GPU", **versions}]
    return [{**nvml.gpu(index), **versions} for index in range(count)]


if __name__ == "__main__":
    for _row in report():
        sys.stdout.write(json.dumps(_row) + "\n")
