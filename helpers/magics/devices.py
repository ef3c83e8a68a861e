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
"""Files that exist where NVIDIA's driver, AMD's driver, or a GPU of Windows in WSL does."""


@dataclass(frozen=True)
class DeviceUse:
    """One GPU, such as ``cuda:0``, in bytes.

    ``allocated``: of tensors of this kernel; ``reserved``: what torch holds for it; ``free`` and
    ``total``: of the card.
    """

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

    It runs while the notebook's objects are looked at; ``other_processes`` takes the answer.
    """
    if not any(map(os.path.exists, DEVICE_FILES)):
        return None
    # Imported here, so that the extension loads fast.
    from .workbook import WorkbookCommand

    return WorkbookCommand("monitor", "--count", "1")


def other_processes(question: WorkbookCommand | None) -> list[OtherProcess]:
    """The other processes that ``question_of_others`` found and this user may see; none where no
    answer came in time.
    """
    if question is None:
        return []
    processes = {}
    for holder in question.answer().get("holders", ()):
        pid = holder.get("pid")
        if pid != os.getpid():  # this kernel's own memory is told by torch's counters
            name = str(holder.get("name", ""))
            processes[pid] = OtherProcess(pid, name, _size(holder))
    return list(processes.values())


def _size(holder: Mapping[str, object]) -> int | None:
    """The bytes that a process has on the card and in the host memory that the card maps (GTT of
    amdgpu), as far as they were measured; None where neither was.
    """
    pools = (holder.get("vram"), holder.get("gtt"))
    sizes = [size for size in pools if isinstance(size, int)]
    if not sizes:
        return None
    return sum(sizes)
