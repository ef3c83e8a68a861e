"""The device under test: whether this torch can use it, which card it is, and how much a
program may still take.
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


class Failed(Exception):
    """A check has its answer, and the answer is bad: one sentence, and what was measured."""

    def __init__(self, says: str, **measured: object):
        super().__init__(says)
        self.measured = measured


class Device:
    """One GPU or the CPU, as torch names it, and the parent's ``spec``.

    ``trouble`` says why torch cannot use it at all (``reason``: torch's own words), ``wrong``
    why what torch sees is not the card that the spec names; all are empty when all is well, and
    neither question takes device memory.
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
        """Random numbers, the same in every run."""
        generator: torch.Generator = self.torch.Generator()
        return generator.manual_seed(SEED)

    def wait(self) -> None:
        """Wait until everything queued has run: an error of a kernel shows only then."""
        if self.gpu:
            self.torch.cuda.synchronize(0)

    def limit_memory(self, most_bytes: int) -> None:
        """Let torch's allocator take at most ``most_bytes`` of the GPU.

        The context and library handles come on top.
        """
        if self.gpu:
            limit_gpu(self.torch, most_bytes)

    def reset_peaks(self) -> None:
        """Count the allocator's peaks anew."""
        if self.gpu:
            self.torch.cuda.reset_peak_memory_stats(0)

    def peaks(self) -> dict[str, int]:
        """The allocator's peaks since the last reset; nothing is counted on a CPU."""
        if not self.gpu:
            return {}
        return {
            "allocated_bytes": self.torch.cuda.max_memory_allocated(0),
            "reserved_bytes": self.torch.cuda.max_memory_reserved(0),
        }

    def free_bytes(self) -> int:
        """Free memory of the GPU, or of the host; on an integrated GPU, whose memory is the
        host's, the smaller.
        """
        if not self.gpu:
            return host_available_bytes()
        cuda = self.torch.cuda
        # HIP's free bytes may exceed its total on an integrated GPU (ROCm issue 6004).
        free_bytes: int = min(cuda.mem_get_info(0))
        if getattr(cuda.get_device_properties(0), "is_integrated", 0):
            return min(free_bytes, host_available_bytes())
        return free_bytes


class Peak:
    """The most memory that is used after a moment: resident memory of this process (VmHWM,
    proc(5)), or what torch took of the GPU.
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
        """Bytes at the start, and at most until now."""
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
    """(why this torch cannot use any GPU, its own words); both empty when it can."""
    hip = getattr(torch.version, "hip", None)
    if torch.version.cuda is None and hip is None:
        return "this torch is a CPU build and cannot use a GPU", ""
    build = "ROCm" if hip else "CUDA"
    sees_none = f"torch, built for {build}, sees no GPU"
    try:
        torch.cuda.init()
        if torch.cuda.device_count():
            return "", ""
        return sees_none, ""
    except (RuntimeError, AssertionError, ImportError, OSError) as error:
        return sees_none, one_line(error)


def wrong_card(torch: ModuleType, spec: Row) -> str:
    """Why the visible GPU is not the one that ``spec`` names, or empty.

    Without an address in ``spec`` no GPU is to be visible.
    """
    wanted = spec["pci"]
    expected = 1 if wanted else 0
    count = torch.cuda.device_count()
    if count != expected:
        return f"torch sees {count} GPUs here and should see {expected}"
    if not wanted:
        return ""
    seen = pci_address(torch, 0)
    if seen and seen != wanted:
        return f"torch sees {seen} here and should see {wanted}"
    if not seen and spec.get("several"):
        return "which GPU torch sees cannot be told"
    return ""


def pci_address(torch: ModuleType, index: int) -> str:
    """The PCI address of a torch device, or empty: as torch's properties of the device say, or,
    in older releases, its runtime.
    """
    card = torch.cuda.get_device_properties(index)
    if not hasattr(card, "pci_bus_id"):
        return _address_by_runtime(index)
    return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"


def _address_by_runtime(index: int) -> str:
    """The PCI address by the HIP or CUDA runtime library that this process has loaded."""
    maps = text_of(Path("/proc/self/maps"))
    for path in sorted(set(re.findall(r"/.*", maps))):
        library = re.search(r"/lib(amdhip64|cudart)[^/]*\.so[^/]*$", path)
        if library:
            prefix = "hip" if library[1] == "amdhip64" else "cuda"
            ask = getattr(ctypes.CDLL(path), f"{prefix}DeviceGetPCIBusId")
            answer = ctypes.create_string_buffer(32)
            if ask(answer, 32, index) == 0:
                return answer.value.decode("ascii", "replace").lower()
    return ""
