"""What the AMD compute driver (KFD) says: its nodes and their memory banks, and which process
holds how much on which GPU.

Sources: drivers/gpu/drm/amd/amdkfd/kfd_topology.c (nodes), kfd_process.c (proc) and kfd_crat.h
(heap types) of the kernel. In a container the node of a GPU that was not passed in answers
EPERM (kfd_devcgroup_check_permission), which is a finding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.ground.shapes import Reading, not_available, sum_of
from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle

from .drm import cards
from .files import natural, sources

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_PROC = "/sys/class/kfd/kfd/proc"
FILES = sources("files", "kfd")
# kfd_crat.h: heap types 1 and 2 are the framebuffer, public and private.
_FRAMEBUFFER = (1, 2)


@dataclass(frozen=True)
class KfdNode:
    """One node of a GPU or CPU; of a refused one only the number and ``gpu_id`` (not allowed)
    are known.

    ``gfx`` is the target as compilers name it ("gfx1100"), empty for a CPU. ``framebuffer`` is
    the pool behind HIP's total memory, its banks together; on an APU what the kernel lets HIP
    allocate from, carve-out or GTT.
    """

    node: int
    gpu_id: Reading
    gfx: str
    pci: str
    framebuffer: Reading


@dataclass(frozen=True)
class KfdProcess:
    """One process that has /dev/kfd open, or had it and was not cleaned up.

    ``vram`` is in bytes by KFD gpu_id.

    ``pid`` counts in the HOST's PID namespace even inside a container (rocm-systems#3752). On
    an APU ``vram`` includes what was redirected to GTT. A process with 0 bytes on every GPU
    merely opened the device (ROCm#4411).
    """

    pid: int
    vram: dict[int, Reading]


def gfx_name(version: int) -> str:
    """The target of a gfx_target_version: 110501 is gfx1151, 90010 is gfx90a; empty for 0 (a
    CPU node).
    """
    if not 10000 <= version < 1000000:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def nodes(bundle: Bundle) -> tuple[KfdNode, ...]:
    """Every node of the topology, CPU nodes included, by number."""
    sources = bundle.sources(f"{_NODES}/*/gpu_id") + bundle.sources(
        f"{_NODES}/*/properties"
    )
    numbers = {source.split("/")[7] for source in sources}
    card_addresses = {card.pci for card in cards(bundle)}
    in_order = sorted(
        (n for n in numbers if re.fullmatch(r"[0-9]{1,9}", n)), key=natural
    )
    return tuple(_node(bundle, number, card_addresses) for number in in_order)


def _node(bundle: Bundle, number: str, card_addresses: set[str]) -> KfdNode:
    folder = f"{_NODES}/{number}"
    gpu_id = bundle.number(folder + "/gpu_id", "count")
    read = bundle.read(folder + "/properties")
    if read.status == "not_allowed" and not gpu_id.ok:
        gpu_id = read.missing(unit="count")
    values = _properties(read.text)
    gfx = gfx_name(values.get("gfx_target_version", 0))
    # Only GPUs are checked against the container's device list, so a refused node is one.
    is_gpu = (
        values.get("simd_count", 0) > 0
        or gpu_id.status == "not_allowed"
        or gpu_id.bytes != 0
    )
    pci = ""
    if is_gpu and "location_id" in values:
        pci = _address(values, gfx, card_addresses)
    return KfdNode(int(number), gpu_id, gfx, pci, _framebuffer(bundle, folder))


def _address(values: dict[str, int], gfx: str, card_addresses: set[str]) -> str:
    """The PCI address in location_id and domain. ``card_addresses`` are those of DRM cards.

    Of an Instinct GPU that is split into several nodes the node's number is mixed in: by some
    kernels into bits 28 to 31, by others into the function's bits (kfd_topology_add_device, for
    gfx 9.4.3).
    """
    location = values["location_id"]
    domain = values.get("domain", 0) & 0xFFFFFFFF
    device = f"{domain:04x}:{location >> 8 & 0xFF:x}:{location >> 3 & 0x1F:x}"
    pci = pci_address(f"{device}.{location & 7}")
    first_function = pci_address(f"{device}.0")
    is_split = first_function in card_addresses or gfx.startswith(("gfx94", "gfx95"))
    if is_split and pci not in card_addresses:
        return first_function
    return pci


def _properties(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {
        p[0]: int(p[1])
        for p in pairs
        if len(p) == 2 and re.fullmatch(r"-?[0-9]{1,20}", p[1])
    }


def _framebuffer(bundle: Bundle, folder: str) -> Reading:
    sizes = []
    for source in bundle.sources(f"{folder}/mem_banks/*/properties"):
        got = bundle.read(source)
        values = _properties(got.text)
        if values.get("heap_type") in _FRAMEBUFFER:
            size = values.get("size_in_bytes")
            if size is None:
                sizes.append(got.missing("no size_in_bytes line", "bytes"))
            else:
                sizes.append(got.seen(size, "bytes"))
    if not sizes:
        return not_available("no framebuffer bank", "bytes", folder + "/mem_banks")
    return sum_of(sizes)


def processes(bundle: Bundle) -> tuple[KfdProcess, ...]:
    """Every process KFD knows, by PID.

    Bytes of its further contexts (context_N, in amdkfd since late 2025) are added.
    """
    by_pid: dict[int, dict[int, list[Reading]]] = {}
    sources: list[str] = []
    for pattern in FILES:
        if pattern.startswith(_PROC):
            sources += bundle.sources(pattern)
    for source in sources:
        pid = source.split("/")[6]
        kind, _, gpu = source.rsplit("/", 1)[-1].partition("_")
        if re.fullmatch(r"[0-9]{1,10}", pid):
            by_gpu = by_pid.setdefault(int(pid), {})
            if kind == "vram" and re.fullmatch(r"[0-9]{1,10}", gpu):
                by_gpu.setdefault(int(gpu), []).append(bundle.number(source))
    listed = []
    for number, by_gpu in sorted(by_pid.items()):
        vram = {gpu_id: sum_of(parts) for gpu_id, parts in sorted(by_gpu.items())}
        listed.append(KfdProcess(number, vram))
    return tuple(listed)


def driver_version(bundle: Bundle) -> Reading:
    """The version of an out-of-tree amdgpu ("6.14.14"); the inbox driver has none and goes by
    its kernel.
    """
    return bundle.word("/sys/module/amdgpu/version")
