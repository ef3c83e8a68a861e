"""The GPUs that this kernel uses, by torch's own counters. Nothing here makes a context."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .workbook import WorkbookCommand

DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA's driver, AMD's, and Windows' in WSL."""


@dataclass(frozen=True)
class DeviceUse:
    """One GPU: bytes of tensors, bytes that torch has reserved, and bytes of the card."""

    name: str
    allocated: int
    reserved: int
    free: int
    total: int

    @property
    def cached(self) -> int:
        """Bytes that torch keeps for later and no tensor uses."""
        return self.reserved - self.allocated


@dataclass(frozen=True)
class OtherProcess:
    """Another process with the card open; ``bytes`` is None where nothing measured it."""

    pid: int
    name: str
    bytes: int | None


def initialised(torch: ModuleType) -> bool:
    """Whether this kernel has used a GPU already."""
    cuda = getattr(torch, "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())


def devices_in_use(torch: ModuleType) -> list[DeviceUse]:
    """The GPUs on which torch has reserved memory: only there this process has a context.

    Raises RuntimeError where a card does not answer.
    """
    if not initialised(torch):
        return []
    cuda = torch.cuda
    uses = []
    for index in range(cuda.device_count()):
        reserved = cuda.memory_reserved(index)
        if reserved:
            free, total = cuda.mem_get_info(index)
            allocated = cuda.memory_allocated(index)
            uses.append(DeviceUse(f"cuda:{index}", allocated, reserved, free, total))
    return uses


def allocated_bytes(torch: ModuleType) -> dict[str, int]:
    """Bytes of tensors on each GPU, by torch's own count; empty where this kernel has used none."""
    if not initialised(torch):
        return {}
    indices = range(torch.cuda.device_count())
    return {f"cuda:{index}": torch.cuda.memory_allocated(index) for index in indices}


def question_of_others() -> WorkbookCommand | None:
    """Begin to ask who else has a GPU of this box open; None where the box has none.

    It runs beside the look at the notebook's objects; ``other_processes`` takes the answer.
    """
    if not any(map(os.path.exists, DEVICE_FILES)):
        return None
    from .workbook import WorkbookCommand  # here: the extension is loaded without it

    return WorkbookCommand("monitor", "--count", "1")


def other_processes(question: WorkbookCommand | None) -> list[OtherProcess]:
    """The answer to ``question_of_others``, as far as this user may see them and as it came in time."""
    if question is None:
        return []
    processes = {}
    for holder in question.answer().get("holders", ()):
        pid = holder.get("pid")
        if pid != os.getpid():
            processes[pid] = OtherProcess(
                pid, str(holder.get("name", "")), _size(holder)
            )
    return list(processes.values())


def _size(holder: Mapping[str, object]) -> int | None:
    """Bytes on the card and in the host memory that it maps, as far as they were measured."""
    pools = (holder.get("vram"), holder.get("gtt"))
    sizes = [size for size in pools if isinstance(size, int)]
    return sum(sizes) if sizes else None
