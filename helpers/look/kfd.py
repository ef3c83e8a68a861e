"""What the AMD compute driver (KFD) says: its nodes and their memory banks, and which process holds how much on which GPU.

Sources: drivers/gpu/drm/amd/amdkfd/kfd_topology.c (nodes), kfd_process.c (proc) and kfd_crat.h (heap types) of the kernel.
In a container the node of a GPU that was not passed in answers EPERM (kfd_devcgroup_check_permission), which is a finding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.units import pci_address

from .bundle import Bundle, natural
from .drm import cards
from .reading import Reading, not_allowed, not_available, seen

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_PROC = "/sys/class/kfd/kfd/proc"
FILES: tuple[str, ...] = (
    f"{_NODES}/*/gpu_id", f"{_NODES}/*/name", f"{_NODES}/*/properties", f"{_NODES}/*/mem_banks/*/properties",
    "/sys/class/kfd/kfd/topology/generation_id", "/sys/class/kfd/kfd/topology/system_properties",
    f"{_PROC}/*/pasid", f"{_PROC}/*/vram_*", f"{_PROC}/*/sdma_*", f"{_PROC}/*/queues/*/gpuid",
    f"{_PROC}/*/context_*/vram_*", f"{_PROC}/*/context_*/sdma_*", "/sys/module/amdgpu/version",
)
COMMANDS: tuple[tuple[str, ...], ...] = ()
HEAPS = ("system", "framebuffer public", "framebuffer private", "GDS", "LDS", "scratch", "SVM", "MMIO")


@dataclass(frozen=True)
class KfdBank:
    """One memory bank of a node. On an APU the framebuffer bank is what the kernel lets HIP allocate from, carve-out or GTT."""

    heap_type: int
    size: Reading

    @property
    def heap(self) -> str:
        return HEAPS[self.heap_type] if 0 <= self.heap_type < len(HEAPS) else f"heap type {self.heap_type}"


@dataclass(frozen=True)
class KfdNode:
    """One node. A CPU node has ``is_gpu`` false; of a refused one only the number and ``gpu_id`` (not allowed) are known.

    ``gfx`` is the target as compilers name it ("gfx1100"), ``render`` the DRM render node ("renderD128"); both may be empty.
    """

    node: int
    gpu_id: Reading
    name: Reading
    is_gpu: bool
    gfx: str
    pci: str
    render: str
    properties: dict[str, int]
    banks: tuple[KfdBank, ...]

    @property
    def framebuffer(self) -> Reading:
        """Bytes of the framebuffer banks together: the pool behind HIP's total memory."""
        sizes = [bank.size for bank in self.banks if bank.heap_type in (1, 2)]
        return _sum(sizes) if sizes else not_available("no framebuffer bank", "bytes", f"{_NODES}/{self.node}/mem_banks")


@dataclass(frozen=True)
class KfdProcess:
    """One process that has /dev/kfd open, or had it and was not cleaned up. ``vram`` (bytes), ``sdma`` (microseconds) and
    ``queues`` (how many) go by KFD gpu_id.

    ``pid`` counts in the HOST's PID namespace even inside a container (rocm-systems#3752). ``seen_in_proc`` says only whether
    that number is in the table ``processes``; in a container it proves neither that it is that process, nor that it is not one
    of the container's own under its other number. On an APU ``vram`` includes what was redirected to GTT. A process with 0
    bytes on every GPU merely opened the device (ROCm#4411).
    """

    pid: int
    pasid: Reading
    vram: dict[int, Reading]
    sdma: dict[int, Reading]
    queues: dict[int, int]
    seen_in_proc: bool


def gfx_name(version: int) -> str:
    """The target of a gfx_target_version: 110501 is gfx1151, 90010 is gfx90a; empty for 0 (a CPU node)."""
    if not 10000 <= version < 1000000:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def nodes(bundle: Bundle) -> tuple[KfdNode, ...]:
    """Every node of the topology, CPU nodes included, by number."""
    numbers = {s.split("/")[7] for name in ("gpu_id", "properties") for s in bundle.sources(f"{_NODES}/*/{name}")}
    known = {card.pci for card in cards(bundle)}
    whole = sorted((n for n in numbers if re.fullmatch(r"[0-9]{1,9}", n)), key=natural)
    return tuple(_node(bundle, number, known) for number in whole)


def _node(bundle: Bundle, number: str, known: set[str]) -> KfdNode:
    folder = f"{_NODES}/{number}"
    gpu_id = bundle.number(folder + "/gpu_id", "count")
    read = bundle.read(folder + "/properties")
    if read.status == "not_allowed" and not gpu_id.ok:
        gpu_id = not_allowed(read.why or "permission denied", "count", read.source, read.item)
    values = _properties(read.text)
    gfx = gfx_name(values.get("gfx_target_version", 0))
    # Only GPUs are checked against the container's device list, so a refused node is one.
    is_gpu = values.get("simd_count", 0) > 0 or gpu_id.status == "not_allowed" or bool(gpu_id.ok and gpu_id.value)
    pci = _address(values, gfx, known) if is_gpu and "location_id" in values else ""
    minor = values.get("drm_render_minor", 0)
    banks = tuple(_bank(bundle, source) for source in bundle.sources(f"{folder}/mem_banks/*/properties"))
    return KfdNode(int(number), gpu_id, bundle.word(folder + "/name"), is_gpu, gfx, pci,
                   f"renderD{minor}" if minor > 0 else "", values, banks)


def _address(values: dict[str, int], gfx: str, known: set[str]) -> str:
    """The PCI address in location_id and domain. ``known`` are the addresses of DRM cards.

    Of an Instinct GPU that is split into several nodes the node's number is mixed in: by some kernels into bits 28 to 31, by
    others into the function's bits (kfd_topology_add_device, for gfx 9.4.3).
    """
    location, domain = values["location_id"], values.get("domain", 0) & 0xffffffff
    whole = f"{domain:04x}:{location >> 8 & 0xff:x}:{location >> 3 & 0x1f:x}."
    pci, first = pci_address(f"{whole}{location & 7}"), pci_address(whole + "0")
    return first if pci not in known and (first in known or gfx.startswith(("gfx94", "gfx95"))) else pci


def _properties(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and re.fullmatch(r"-?[0-9]{1,20}", p[1])}


def _bank(bundle: Bundle, source: str) -> KfdBank:
    got = bundle.read(source)
    values = _properties(got.text)
    heap = values.get("heap_type", -1)
    if got.status == "not_allowed":
        return KfdBank(heap, not_allowed(got.why or "permission denied", "bytes", source, got.item))
    if "size_in_bytes" not in values:
        return KfdBank(heap, not_available(got.why or "no size_in_bytes line", "bytes", source, got.item))
    return KfdBank(heap, seen(values["size_in_bytes"], "bytes", source, got.item))


def processes(bundle: Bundle) -> tuple[KfdProcess, ...]:
    """Every process KFD knows, by PID. Bytes of its further contexts (context_N, in amdkfd since late 2025) are added."""
    found: dict[int, dict[str, list[str]]] = {}
    for kind in ("pasid", "vram_*", "sdma_*", "context_*/vram_*", "context_*/sdma_*", "queues/*/gpuid"):
        for source in bundle.sources(f"{_PROC}/*/{kind}"):
            pid = source.split("/")[6]
            if re.fullmatch(r"[0-9]{1,10}", pid):
                found.setdefault(int(pid), {}).setdefault(kind.split("/")[-1], []).append(source)
    known = {row.get("pid") for row in bundle.table("processes") if isinstance(row.get("pid"), int)}
    return tuple(KfdProcess(pid, bundle.number(f"{_PROC}/{pid}/pasid", "count"), _by_gpu(bundle, sources.get("vram_*", [])),
                            _by_gpu(bundle, sources.get("sdma_*", []), "count"), _queues(bundle, sources.get("gpuid", [])),
                            pid in known)
                 for pid, sources in sorted(found.items()))


def _by_gpu(bundle: Bundle, sources: list[str], unit: str = "bytes") -> dict[int, Reading]:
    readings: dict[int, list[Reading]] = {}
    for source in sources:
        gpu = source.rsplit("_", 1)[-1]
        if re.fullmatch(r"[0-9]{1,10}", gpu):
            readings.setdefault(int(gpu), []).append(bundle.number(source, unit))
    return {gpu: _sum(parts) for gpu, parts in sorted(readings.items())}


def _sum(parts: list[Reading]) -> Reading:
    """The parts together; one part without a value leaves the whole without one."""
    missing = [part for part in parts if not part.ok]
    if missing or len(parts) == 1:
        return (missing or parts)[0]
    return seen(sum(int(part.value or 0) for part in parts), parts[0].unit, " + ".join(p.source for p in parts), parts[0].item)


def _queues(bundle: Bundle, sources: list[str]) -> dict[int, int]:
    gpus = [bundle.number(source, "count").value for source in sources]
    return {int(gpu): gpus.count(gpu) for gpu in gpus if isinstance(gpu, int)}


def driver_version(bundle: Bundle) -> Reading:
    """The version of an out-of-tree amdgpu ("6.14.14"); the inbox driver has none and goes by its kernel."""
    return bundle.word("/sys/module/amdgpu/version")
