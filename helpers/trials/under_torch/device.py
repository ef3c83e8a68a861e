"""The device under test: whether this torch can use it, which card it is, and how much a
program may still take.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from helpers.ground.child.proc import text_of
from helpers.trials.under_torch import frame
from helpers.trials.under_torch.frame import one_line
from helpers.trials.under_torch.host_memory import host_available_bytes

SEED = 20240229


class Failed(Exception):
    """A check has its answer, and the answer is bad: one sentence, and what was measured."""

    def __init__(self, says: str, **measured: Any):
        super().__init__(says)
        self.measured = measured


class Device:
    """One GPU or the CPU, as torch names it, and the parent's ``spec``.

    ``trouble`` says why torch cannot use it at all (``reason``: torch's own words), ``wrong``
    why what torch sees is not the card that the spec names; all are empty when all is well, and
    neither question takes device memory.
    """

    def __init__(self, torch: Any, spec: dict[str, Any]):
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

    def generator(self) -> Any:
        """Random numbers, the same in every run."""
        return self.torch.Generator().manual_seed(SEED)

    def wait(self) -> None:
        """Until everything queued has run: an error of a kernel shows only then."""
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

        HIP's free may exceed its total there (ROCm issue 6004).
        """
        if not self.gpu:
            return host_available_bytes()
        free = min(self.torch.cuda.mem_get_info(0))
        integrated = getattr(
            self.torch.cuda.get_device_properties(0), "is_integrated", 0
        )
        return min(free, host_available_bytes()) if integrated else free


class Peak:
    """Memory from its making on: resident memory of this process (VmHWM, proc(5)), or what
    torch took of the GPU.
    """

    def __init__(self, torch: Any, device: str):
        self.cuda = None if device == "cpu" else torch.cuda
        if self.cuda:
            self.cuda.reset_peak_memory_stats()
        self.start_bytes = (
            self.cuda.memory_allocated() if self.cuda else frame.restart_peak()
        )

    def figures(self) -> dict[str, int]:
        """Bytes at the start, and at most until now."""
        most = (
            self.cuda.max_memory_allocated() if self.cuda else frame.own_bytes("VmHWM")
        )
        return {"start_bytes": self.start_bytes, "peak_bytes": most}


def limit_gpu(torch: Any, most_bytes: int) -> None:
    """Let torch's allocator take at most ``most_bytes`` of the GPU."""
    share = most_bytes / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), 0)


def gpu_trouble(torch: Any) -> tuple[str, str]:
    """Why this torch cannot use any GPU, and its own words; both empty when it can."""
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
    """Why the visible GPU is not the one that ``spec`` names, or empty."""
    wanted = spec["pci"]
    expected = 1 if wanted else 0
    count = torch.cuda.device_count()
    if count != expected:
        return f"torch sees {count} GPUs here and should see {expected}"
    seen = pci_address(torch, 0) if count else ""
    if count and not seen:
        return "which GPU torch sees cannot be told" if spec.get("several") else ""
    return "" if seen == wanted else f"torch sees {seen} here and should see {wanted}"


def pci_address(torch: Any, index: int) -> str:
    """The PCI address of a torch device, or empty: from its properties where this torch has it
    there, else from its runtime.
    """
    card = torch.cuda.get_device_properties(index)
    if hasattr(card, "pci_bus_id"):
        return (
            f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
        )
    mapped = {
        line.split(None, 5)[-1]
        for line in text_of(Path("/proc/self/maps")).splitlines()
        if "/" in line
    }
    for path in sorted(mapped):
        library = re.search(r"/lib(amdhip64|cudart)[^/]*\.so[^/]*$", path)
        if library:
            prefix = "hip" if library[1] == "amdhip64" else "cuda"
            ask = getattr(ctypes.CDLL(path), prefix + "DeviceGetPCIBusId")
            answer = ctypes.create_string_buffer(32)
            if ask(answer, 32, index) == 0:
                return answer.value.decode("ascii", "replace").lower()
    return ""
