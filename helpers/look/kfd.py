"""What the AMD compute driver (KFD) says about its nodes and their memory banks, and about the
memory that each process holds on each GPU.

Sources: drivers/gpu/drm/amd/amdkfd/kfd_topology.c (nodes), kfd_process.c (proc) and kfd_crat.h
(heap types) of the kernel. In a container the node of a GPU that was not passed in answers
EPERM (kfd_devcgroup_check_permission), which is itself evidence.
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
    """One node, which is a GPU or a CPU. If it was refused, only its number is known, and
    ``gpu_id`` is not allowed.

    ``gfx`` is the target as compilers name it ("gfx1100"), empty for a CPU. ``framebuffer`` is the
    sum of the memory banks that HIP reports as total memory; on an APU they are the carve-out or
    GTT.
    """

    node: int
    gpu_id: Reading
    gfx: str
    pci: str
    framebuffer: Reading


@dataclass(frozen=True)
class KfdProcess:
    """One process that has /dev/kfd open, or had it and was not cleaned up.

    ``pid`` is its number in the host's PID namespace, also inside a container
    (rocm-systems#3752). ``vram`` is in bytes by KFD's gpu_id; on an APU it includes allocations
    that the kernel moved to GTT. A process with 0 bytes on every GPU only opened the device
    (ROCm#4411).
    """

    pid: int
    vram: dict[int, Reading]


def gfx_name(version: int) -> str:
    """The target of a gfx_target_version, in which major, minor and stepping have two decimal
    digits each: 110501 is gfx1151, 90010 is gfx90a. Empty for 0, a CPU node.
    """
    if not 1_00_00 <= version <= 99_99_99:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def nodes(bundle: Bundle) -> tuple[KfdNode, ...]:
    """Every node of the topology, CPU nodes included, in the order of their numbers."""
    sources = bundle.sources(f"{_NODES}/*/gpu_id")
    sources += bundle.sources(f"{_NODES}/*/properties")
    names = {_entry(_NODES, source) for source in sources}
    card_addresses = {card.pci for card in cards(bundle)}
    numbers = [name for name in names if re.fullmatch("[0-9]{1,9}", name)]
    numbers.sort(key=natural)
    return tuple(_node(bundle, number, card_addresses) for number in numbers)


def _entry(folder: str, path: str) -> str:
    """The name in a folder through which a path leads: ``3`` for FOLDER/3/gpu_id."""
    return path.replace(f"{folder}/", "", 1).partition("/")[0]


def _node(bundle: Bundle, number: str, card_addresses: set[str]) -> KfdNode:
    """The node with that number. ``card_addresses``: the PCI addresses of DRM cards (see _address)."""
    folder = f"{_NODES}/{number}"
    gpu_id = bundle.number(folder + "/gpu_id", "count")
    properties = bundle.read(folder + "/properties")
    # In a container both files of a GPU that was not passed in are refused; the refusal counts.
    if properties.status == "not_allowed" and not gpu_id.ok:
        gpu_id = properties.missing(unit="count")
    values = _properties(properties.text)
    gfx = gfx_name(values.get("gfx_target_version", 0))
    has_simds = values.get("simd_count", 0) > 0
    # Only GPUs are checked against the container's device list, so a refused node is one. A CPU has
    # the gpu_id 0.
    is_gpu = has_simds or gpu_id.status == "not_allowed" or gpu_id.bytes != 0
    pci = ""
    if is_gpu and "location_id" in values:
        pci = _address(values, gfx, card_addresses)
    return KfdNode(int(number), gpu_id, gfx, pci, _framebuffer(bundle, folder))


def _address(values: dict[str, int], gfx: str, card_addresses: set[str]) -> str:
    """The PCI address in location_id and domain. ``card_addresses`` are those of DRM cards.

    An Instinct GPU can be split into several nodes, whose numbers are mixed in: by some kernels
    into bits 28 to 31, by others into the bits of the function (kfd_topology_add_device, for gfx
    9.4.3). Then the card has function 0.
    """
    # Bits 8 to 15 are the bus, 3 to 7 the device, 0 to 2 the function (pci_dev_id).
    location = values["location_id"]
    bus = location >> 8 & 0xFF
    device = location >> 3 & 0x1F
    function = location & 7
    domain = values.get("domain", 0) & 0xFFFFFFFF
    place = f"{domain:04x}:{bus:x}:{device:x}"
    pci = pci_address(f"{place}.{function}")
    function_0 = pci_address(f"{place}.0")
    may_be_split = function_0 in card_addresses or gfx.startswith(("gfx94", "gfx95"))
    if may_be_split and pci not in card_addresses:
        return function_0
    return pci


def _properties(text: str) -> dict[str, int]:
    """The numbers of a file properties, whose lines are a name and a number."""
    values = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and re.fullmatch(r"-?[0-9]{1,20}", words[1]):
            values[words[0]] = int(words[1])
    return values


def _framebuffer(bundle: Bundle, folder: str) -> Reading:
    """The sum of a node's memory banks that are framebuffer."""
    sizes = []
    for source in bundle.sources(f"{folder}/mem_banks/*/properties"):
        text = bundle.read(source)
        values = _properties(text.text)
        if values.get("heap_type") in _FRAMEBUFFER:
            size_bytes = values.get("size_in_bytes")
            if size_bytes is None:
                sizes.append(text.missing("no size_in_bytes line", "bytes"))
            else:
                sizes.append(text.seen(size_bytes, "bytes"))
    if not sizes:
        return not_available("no framebuffer bank", "bytes", folder + "/mem_banks")
    return sum_of(sizes)


def processes(bundle: Bundle) -> tuple[KfdProcess, ...]:
    """Every process that KFD lists, in the order of their numbers.

    Its files are proc/PID/vram_GPU and, for further contexts, proc/PID/context_N/vram_GPU (amdkfd
    since late 2025); their bytes are added up.
    """
    parts_by_pid: dict[int, dict[int, list[Reading]]] = {}
    for pattern in FILES:
        if not pattern.startswith(_PROC):
            continue
        for source in bundle.sources(pattern):
            pid = _entry(_PROC, source)
            kind, _, gpu_id = source.rpartition("/")[2].partition("_")
            if not re.fullmatch(r"[0-9]{1,10}", pid):
                continue
            parts = parts_by_pid.setdefault(int(pid), {})
            if kind == "vram" and re.fullmatch(r"[0-9]{1,10}", gpu_id):
                parts.setdefault(int(gpu_id), []).append(bundle.number(source))
    listed = []
    for number, parts in sorted(parts_by_pid.items()):
        vram = {gpu: sum_of(sizes) for gpu, sizes in sorted(parts.items())}
        listed.append(KfdProcess(number, vram))
    return tuple(listed)


def driver_version(bundle: Bundle) -> Reading:
    """The version of an amdgpu driver that AMD ships apart from the kernel, such as "6.14.14"; the
    kernel's own has none.
    """
    return bundle.word("/sys/module/amdgpu/version")
