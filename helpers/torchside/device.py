"""The device under test: whether this torch can use it, which card it is, and how much a program may still take."""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
SEED = 20240229


class Failed(Exception):
    """A check has its answer, and the answer is bad: one sentence, and what was measured."""

    def __init__(self, says: str, **measured: Any):
        super().__init__(says)
        self.measured = measured


class NotRun(Exception):
    """A check cannot be made here: one sentence that begins with "not run because"."""


class Device:
    """One GPU, two of them (``spec["peer"]``) or the CPU, as torch names it, and the parent's ``spec``.

    ``trouble`` says why torch cannot use it at all (``reason``: torch's own words), ``wrong`` why what torch sees is not what
    was asked for; all are empty when all is well, and neither question takes device memory.
    """

    def __init__(self, torch: Any, spec: dict[str, Any]):
        self.torch, self.spec = torch, spec
        self.name: str = spec["device"]
        self.gpu = self.name != "cpu"
        self.count = 2 if spec.get("peer") else 1
        self.trouble, self.reason = gpu_trouble(torch) if self.gpu else ("", "")
        self.wrong = wrong_card(torch, spec) if self.gpu and not self.trouble else ""

    def generator(self) -> Any:
        return self.torch.Generator().manual_seed(SEED)

    def wait(self) -> None:
        """Until everything queued has run: an error of a kernel shows only then."""
        if self.gpu:
            for index in range(self.count):
                self.torch.cuda.synchronize(index)

    def limit_memory(self, most_bytes: int) -> None:
        """Let torch's allocator take at most ``most_bytes`` of each GPU; the context and library handles come on top."""
        if self.gpu:
            for index in range(self.count):
                total = self.torch.cuda.get_device_properties(index).total_memory
                self.torch.cuda.set_per_process_memory_fraction(min(1.0, most_bytes / total), index)

    def reset_peaks(self) -> None:
        if self.gpu:
            for index in range(self.count):
                self.torch.cuda.reset_peak_memory_stats(index)

    def peaks(self) -> dict[str, int]:
        """The allocator's peaks since the last reset, on the GPU that had the higher one; nothing is counted on a CPU."""
        if not self.gpu:
            return {}
        cuda, indices = self.torch.cuda, range(self.count)
        return {
            "allocated_bytes": max(cuda.max_memory_allocated(i) for i in indices),
            "reserved_bytes": max(cuda.max_memory_reserved(i) for i in indices),
        }

    def free_bytes(self) -> int:
        """Free memory of the first GPU, or of the host; on an integrated GPU, whose memory is the host's, the smaller.

        HIP's free may exceed its total there (ROCm issue 6004).
        """
        if not self.gpu:
            return host_available_bytes()
        free = min(self.torch.cuda.mem_get_info(0))
        integrated = getattr(self.torch.cuda.get_device_properties(0), "is_integrated", 0)
        return min(free, host_available_bytes()) if integrated else free

    def is_oom(self, error: BaseException) -> bool:
        # The CPU allocator (c10/core/impl/alloc_cpu.cpp) raises a plain RuntimeError that begins with its name.
        return isinstance(
            error, (MemoryError, self.torch.cuda.OutOfMemoryError)
        ) or "DefaultCPUAllocator" in str(error)


def gpu_trouble(torch: Any) -> tuple[str, str]:
    """Why this torch cannot use any GPU, and what it says itself; both empty when it can."""
    hip = getattr(torch.version, "hip", None)
    if torch.version.cuda is None and hip is None:
        return "this torch is a CPU build and cannot use a GPU", ""
    says = f"torch, built for {'ROCm' if hip else 'CUDA'}, sees no GPU"
    try:
        torch.cuda.init()
        return "" if torch.cuda.device_count() else says, ""
    except (RuntimeError, AssertionError, ImportError, OSError) as error:
        return says, one_line(error)


def wrong_card(torch: Any, spec: dict[str, Any]) -> str:
    """Why the visible GPUs are not those that were asked for, or empty."""
    wanted = [pci for pci in (spec["pci"], spec.get("peer")) if pci]
    count = torch.cuda.device_count()
    if count != len(wanted):
        return f"torch sees {count} GPUs here and should see {len(wanted)}"
    found = [pci_address(torch, index) for index in range(count)]
    if "" in found:
        return "which GPU torch sees cannot be told" if spec.get("several") else ""
    return (
        ""
        if found == wanted
        else f"torch sees {' and '.join(found)} here and should see {' and '.join(wanted)}"
    )


def pci_address(torch: Any, index: int) -> str:
    """The PCI address of a torch device, or empty: from its properties where this torch tells it, else from its runtime."""
    properties = torch.cuda.get_device_properties(index)
    if hasattr(properties, "pci_bus_id"):
        return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    mapped = {line.split(None, 5)[-1] for line in _lines("", "/proc/self/maps") if "/" in line}
    for path in sorted(mapped):
        library = re.search(r"/lib(amdhip64|cudart)[^/]*\.so[^/]*$", path)
        if library:
            ask = getattr(
                ctypes.CDLL(path),
                ("hip" if library[1] == "amdhip64" else "cuda") + "DeviceGetPCIBusId",
            )
            answer = ctypes.create_string_buffer(32)
            if ask(answer, 32, index) == 0:
                return answer.value.decode("ascii", "replace").lower()
    return ""


def one_line(error: BaseException) -> str:
    """An error as one line of at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def host_available_bytes(root: str = "") -> int:
    """What this process may still take of the host: the smallest of MemAvailable, its cgroups' rest and RLIMIT_AS's rest."""
    fields = {}
    for line in _lines(root, "/proc/meminfo") + _lines("", "/proc/self/status"):
        name, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            fields[name] = int(value.split()[0]) * 1024
    left = [fields["MemAvailable"]]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        left.append(limit - fields["VmSize"])
    for line in _lines(root, "/proc/self/cgroup"):
        controllers, path = (line.split(":", 2) + ["", ""])[1:3]
        if not controllers:
            left += _cgroup_left(
                Path(root + "/sys/fs/cgroup"), path, "memory.max", "memory.current"
            )
        elif "memory" in controllers.split(","):
            left += _cgroup_left(
                Path(root + "/sys/fs/cgroup/memory"),
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
    return max(0, min(left))


def _cgroup_left(base: Path, path: str, most: str, used: str) -> list[int]:
    """The rest of a group's limit and of each group above it; a group with no limit, or none to be seen, has none."""
    here = base / path.lstrip("/")
    numbers = [
        [" ".join(_lines("", str(group / name))) for name in (most, used)]
        for group in (here, *here.parents)
    ]
    return [
        int(limit) - int(usage) for limit, usage in numbers if limit.isdigit() and usage.isdigit()
    ]


def _lines(root: str, path: str) -> list[str]:
    try:
        return Path(root + path).read_text(errors="replace").splitlines()
    except OSError:
        return []
