"""The device that a program of this folder uses: whether torch can use it, which card it is, and
how much memory may still be taken.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from helpers.ground.child.proc import text_of
from helpers.trials.under_torch import frame
from helpers.trials.under_torch.frame import Row, one_line
from helpers.trials.under_torch.host_memory import host_available_bytes

if TYPE_CHECKING:
    import torch

SEED = 20240229
"""Any number will do: it makes the numbers of a check the same in every run."""
LONGEST_ADDRESS = 32
"""A PCI address has 13 bytes with its NUL; the runtimes ask for at least these."""


class Failed(Exception):
    """A check failed: one sentence, and what was ``measured``, as fields of its row."""

    def __init__(self, says: str, **measured: object):
        super().__init__(says)
        self.measured = measured


class Device:
    """One GPU or the CPU, with its ``name`` for torch; ``spec`` is the parent's.

    ``trouble`` says why torch cannot use it (``reason``: torch's own words), and ``wrong`` why the
    GPU that torch sees is not the one in the spec; each is empty if all is well. Finding this out
    takes no memory of the GPU.
    """

    def __init__(self, torch: ModuleType, spec: Row):
        self.torch = torch
        self.spec = spec
        self.name: str = spec["device"]
        self.gpu = self.name != "cpu"
        self.trouble = ""
        self.reason = ""
        self.wrong = ""
        if self.gpu:
            self.trouble, self.reason = gpu_trouble(torch)
        if self.gpu and not self.trouble:
            self.wrong = wrong_card(torch, spec)

    def generator(self) -> torch.Generator:
        """A generator of random numbers, the same in every run."""
        generator: torch.Generator = self.torch.Generator()
        return generator.manual_seed(SEED)

    def wait(self) -> None:
        """Wait until all that is queued on the GPU has run: only then an error of a kernel is
        raised.
        """
        if self.gpu:
            self.torch.cuda.synchronize(0)

    def limit_memory(self, most_bytes: int) -> None:
        """Let torch's allocator take at most ``most_bytes`` of the GPU; the context and library
        handles come on top.
        """
        if self.gpu:
            limit_gpu(self.torch, most_bytes)

    def reset_peaks(self) -> None:
        """Begin to count the allocator's peaks anew."""
        if self.gpu:
            self.torch.cuda.reset_peak_memory_stats(0)

    def peaks(self) -> dict[str, int]:
        """The allocator's peaks since the last reset, as ``allocated_bytes`` and
        ``reserved_bytes``; empty on a CPU.
        """
        if not self.gpu:
            return {}
        return {
            "allocated_bytes": self.torch.cuda.max_memory_allocated(0),
            "reserved_bytes": self.torch.cuda.max_memory_reserved(0),
        }

    def free_bytes(self) -> int:
        """Free memory of the GPU, or of the host; of an integrated GPU, which uses the host's
        memory, the smaller of both.
        """
        if not self.gpu:
            return host_available_bytes()
        cuda = self.torch.cuda
        # (free, total); on an integrated GPU HIP's free may exceed its total (ROCm issue 6004).
        free_bytes: int = min(cuda.mem_get_info(0))
        if getattr(cuda.get_device_properties(0), "is_integrated", 0):
            return min(free_bytes, host_available_bytes())
        return free_bytes


class Peak:
    """Measures the peak of memory from now on: the resident memory of this process (VmHWM of
    proc_pid_status(5)), or what tensors take of the GPU.
    """

    def __init__(self, torch: ModuleType | None, device: str):
        self.cuda = None
        if torch and device != "cpu":
            self.cuda = torch.cuda
            self.cuda.reset_peak_memory_stats()
            self.start_bytes: int = self.cuda.memory_allocated()
        else:
            self.start_bytes = frame.restart_peak()

    def figures(self) -> dict[str, int]:
        """Bytes at the start, and at the peak until now."""
        if self.cuda:
            peak_bytes = self.cuda.max_memory_allocated()
        else:
            peak_bytes = frame.own_bytes("VmHWM")
        return {"start_bytes": self.start_bytes, "peak_bytes": peak_bytes}


def limit_gpu(torch: ModuleType, most_bytes: int) -> None:
    """Let torch's allocator take at most ``most_bytes`` of the GPU."""
    share = most_bytes / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), 0)


def gpu_trouble(torch: ModuleType) -> tuple[str, str]:
    """(why this torch can use no GPU, torch's own words about it); both are empty if it can."""
    hip = getattr(torch.version, "hip", None)
    if torch.version.cuda is None and hip is None:
        return "this torch is a CPU build and cannot use a GPU", ""
    build = "CUDA"
    if hip:
        build = "ROCm"
    sees_none = f"torch, built for {build}, sees no GPU"
    try:
        torch.cuda.init()
        if torch.cuda.device_count():
            return "", ""
        return sees_none, ""
    except (RuntimeError, AssertionError, ImportError, OSError) as error:
        return sees_none, one_line(error)


def wrong_card(torch: ModuleType, spec: Row) -> str:
    """Why the only visible GPU is not the one with the PCI address in ``spec``, in words; empty if
    it is, if its address cannot be told and the box has no other, or if the spec has no address and
    no GPU is visible.
    """
    wanted = spec["pci"]
    count = torch.cuda.device_count()
    if not wanted and count:
        return f"torch sees {count} GPUs here and should see 0"
    if not wanted:
        return ""
    if count != 1:
        return f"torch sees {count} GPUs here and should see 1"
    seen = pci_address(torch, 0)
    if seen and seen != wanted:
        return f"torch sees {seen} here and should see {wanted}"
    if not seen and spec.get("several"):
        return "which GPU torch sees cannot be told"
    return ""


def pci_address(torch: ModuleType, index: int) -> str:
    """The PCI address of a torch device: from torch's properties of the device, or, in older
    releases without these, from the runtime library; empty if neither has it.
    """
    card = torch.cuda.get_device_properties(index)
    if not hasattr(card, "pci_bus_id"):
        return _address_by_runtime(index)
    return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"


def _address_by_runtime(index: int) -> str:
    """The PCI address by the HIP or CUDA runtime library that this process has loaded: by
    hipDeviceGetPCIBusId or cudaDeviceGetPCIBusId, which return 0 for success.
    """
    prefixes = {"amdhip64": "hip", "cudart": "cuda"}
    maps = text_of(Path("/proc/self/maps"))
    for path in sorted(set(re.findall(r"/.*", maps))):
        library = re.search(r"/lib(amdhip64|cudart)[^/]*\.so[^/]*$", path)
        if library:
            ask = getattr(ctypes.CDLL(path), f"{prefixes[library[1]]}DeviceGetPCIBusId")
            answer = ctypes.create_string_buffer(LONGEST_ADDRESS)
            if ask(answer, LONGEST_ADDRESS, index) == 0:
                return answer.value.decode("ascii", "replace").lower()
    return ""
