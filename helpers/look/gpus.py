"""The GPUs of a box, each under its PCI address, with every layer's name, pools and holders for
it side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helpers.ground.shapes import Reading, not_available, seen
from helpers.look.bundle import Bundle

from . import drm, framework, kfd, nvidia, pci, rocm, ttm
from .archive import BundleHostile
from .holders import Holder, blind_spots, holders_of, unattributed
from .machine import machine
from .nvidia import MigSlice, NvidiaGpu

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA"}


@dataclass(frozen=True)
class Pool:
    """One layer's account of one pool of memory, in bytes.

    ``pci`` is empty for a pool of the host.

    ``layer`` is the layer in its own words ("sysfs VRAM", "KFD bank", "TTM limit",
    "nvidia-smi", "torch"); the readings carry the sources.
    """

    pci: str
    layer: str
    total: Reading
    used: Reading
    free: Reading


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    ``indices`` maps each index space (drm card, render node, kfd node, rocm-smi, torch, ...) to
    its name there.

    ``unattributed`` is what is in use and no process seen here accounts for; ``blind_spots``
    say which holders cannot be seen. ``slices`` are MIG devices, each with memory of its own;
    ``window`` is BAR1, through which the CPU and other devices reach the memory.
    """

    pci: str
    vendor: str
    name: Reading
    driver: str
    integrated: bool | None
    indices: dict[str, str]
    pools: tuple[Pool, ...]
    holders: tuple[Holder, ...]
    unattributed: Reading
    blind_spots: tuple[str, ...]
    slices: tuple[MigSlice, ...] = ()
    window: Pool | None = None

    @property
    def parts(self) -> tuple[Pool, ...]:
        """Its MIG devices and its window, which are parts of its memory, as pools."""
        pools = [
            Pool(self.pci, f"MIG device {part.index}", part.total, part.used, part.free)
            for part in self.slices
        ]
        return (*pools, self.window) if self.window else tuple(pools)


MOST_GPUS = 256
# What each layer says of one GPU, under the layer's name; a layer that does not know it is left
# out.
_NAMES = (
    "nvidia.name torch.name agent.marketing_name amd_smi.name card.product rocm_smi.name".split()
)
"""The layers' names of a GPU, in the order in which they are useful to a person."""
_INDICES = {
    "drm card": "card.card",
    "render node": "card.render",
    "kfd node": "node.node",
    "kfd gpu_id": "node.gpu_id",
    "gfx": "node.gfx",
    "rocm-smi": "rocm_smi.index",
    "amd-smi": "amd_smi.index",
    "HIP": "amd_smi.hip",
    "nvidia-smi": "nvidia.index",
    "torch": "torch.index",
}
"""Each layer's own number for a GPU. They differ; visibility variables renumber some of them."""


def gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    """Every AMD or NVIDIA GPU that any layer knows, by PCI address.

    A server's display chip is none.
    """
    return bundle.once("gpus", lambda: _gpus(bundle))


def _gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    by_layer: dict[str, dict[str, Any]] = {
        "device": {d.pci: d for d in pci.pci_devices(bundle) if d.is_gpu},
        "card": {c.pci: c for c in drm.cards(bundle)},
        "node": {n.pci: n for n in kfd.nodes(bundle)},
        "agent": {_address(a): a for a in rocm.agents(bundle) if a.kind == "gpu"},
        "rocm_smi": {_address(c): c for c in rocm.cards(bundle)},
        "amd_smi": {_address(g): g for g in rocm.gpus(bundle)},
        "nvidia": {g.pci: g for g in nvidia.gpus(bundle)},
        "torch": {d.pci: d for d in framework.framework(bundle).devices},
    }
    addresses = sorted(filter(None, set().union(*by_layer.values())))
    if len(addresses) > MOST_GPUS:
        count = len(addresses)
        raise BundleHostile(f"{bundle.box}: {count} GPUs, more than a box has; do not use it")
    cards = []
    for address in addresses:
        layers = {name: by_pci[address] for name, by_pci in by_layer.items() if address in by_pci}
        vendor = _vendor(layers)
        if vendor:
            cards.append(_gpu(bundle, address, vendor, layers))
    return tuple(cards)


def _address(device: rocm.Agent | rocm.SmiCard) -> str:
    return str(device.pci.value) if device.pci.ok else ""


def _vendor(layers: dict[str, Any]) -> str:
    if "nvidia" in layers:
        return "NVIDIA"
    if layers.keys() & {"node", "agent", "rocm_smi", "amd_smi"}:
        return "AMD"
    ids = layers.get("device") or layers.get("card")
    if ids is None:
        return ""
    return VENDORS.get(ids.vendor_id, "")


def _gpu(bundle: Bundle, address: str, vendor: str, layers: dict[str, Any]) -> Gpu:
    integrated = _integrated(layers)
    holders = holders_of(bundle, address, layers, integrated)
    of_nvidia: NvidiaGpu | None = layers.get("nvidia")
    drivers = [layers[name].driver for name in ("device", "card") if name in layers]
    if "nvidia" in layers:
        drivers.append("nvidia")
    return Gpu(
        pci=address,
        vendor=vendor,
        name=_name(layers),
        driver=next(filter(None, drivers), ""),
        integrated=integrated,
        indices=_numbers(layers),
        pools=_pools(bundle, address, layers, vendor),
        holders=holders,
        unattributed=unattributed(bundle, layers, integrated, holders),
        blind_spots=blind_spots(bundle, vendor),
        slices=of_nvidia.slices if of_nvidia else (),
        window=_window(of_nvidia) if of_nvidia else None,
    )


def _window(gpu: NvidiaGpu) -> Pool | None:
    """BAR1 as a pool; None where nobody gives its size."""
    if not gpu.bar1_total.ok:
        return None
    return _pool(gpu.pci, "BAR1 window", gpu.bar1_total, gpu.bar1_used)


def _numbers(layers: dict[str, Any]) -> dict[str, str]:
    """The number of a GPU in each index space that has one."""
    numbers = {}
    for space, place in _INDICES.items():
        number = _field(layers, place)
        if isinstance(number, Reading):
            number = number.value
        if number not in (None, ""):
            numbers[space] = str(number)
    return numbers


def _integrated(layers: dict[str, Any]) -> bool | None:
    torch, agent, device = (layers.get(name) for name in ("torch", "agent", "device"))
    if torch and torch.integrated is not None:
        return bool(torch.integrated)
    if agent and agent.integrated:
        return True
    if "nvidia" in layers:
        return False
    if device is None:
        return None
    integrated: bool | None = device.integrated
    return integrated


def _name(layers: dict[str, Any]) -> Reading:
    """The first name that a layer has; else the target, or the PCI ids."""
    for place in _NAMES:
        reading: Reading | None = _field(layers, place)
        if reading is not None and reading.ok and str(reading.value).strip():
            return reading
    node = layers.get("node")
    ids = layers.get("device") or layers.get("card")
    if node and node.gfx:
        return seen(node.gfx, "text", node.gpu_id.source, node.gpu_id.item)
    if ids:
        words = f"{ids.vendor_id[2:]}:{ids.device_id[2:]}"
        return seen(words, "text", "PCI vendor and device id")
    return not_available("no layer names it", "text", "")


def _field(layers: dict[str, Any], place: str) -> Any:
    layer, _, field = place.partition(".")
    return getattr(layers.get(layer), field, None)


def _pool(
    pci: str, layer: str, total: Reading, used: Reading | None = None, free: Reading | None = None
) -> Pool:
    if used is None and free is not None and not pci:
        used = _less(total, free)
    why = "this layer gives a total only"
    used = used or not_available(why, "bytes", total.source, total.item)
    return Pool(pci, layer, total, used, free or _less(total, used))


def _pools(bundle: Bundle, pci: str, layers: dict[str, Any], vendor: str) -> tuple[Pool, ...]:
    pools = []
    card = layers.get("card")
    if card and card.driver == "amdgpu":
        pools.append(_pool(pci, "sysfs VRAM", card.vram_total, card.vram_used))
        pools.append(_pool(pci, "sysfs GTT", card.gtt_total, card.gtt_used))
    if "node" in layers:
        pools.append(_pool(pci, "KFD bank", layers["node"].framebuffer))
    if "agent" in layers:
        pools.append(_pool(pci, "HSA pool", layers["agent"].memory))
    elif vendor == "AMD":
        pools.append(_pool(pci, "HSA pool", rocm.agent_count(bundle)))
    for name, layer in (("rocm-smi", "rocm_smi"), ("amd-smi", "amd_smi")):
        if layer in layers:
            pools += _tool_pools(pci, name, layers[layer])
    nvidia_gpu = layers.get("nvidia")
    if nvidia_gpu:
        sizes = (nvidia_gpu.total, nvidia_gpu.used, nvidia_gpu.free)
        pools.append(_pool(pci, "nvidia-smi", *sizes))
        if nvidia_gpu.reserved.ok:
            pools.append(_pool(pci, "reserved by the driver", nvidia_gpu.reserved))
    torch = layers.get("torch")
    if torch:
        free = torch.free if torch.free.ok else None
        pools.append(_pool(pci, "torch", torch.total, free=free))
    return tuple(pools)


def _tool_pools(pci: str, name: str, card: rocm.SmiCard) -> list[Pool]:
    pools = []
    for pool in ("vram", "gtt"):
        total = card.pools[f"{pool} total"]
        used = card.pools[f"{pool} used"]
        if total.ok or used.ok:
            pools.append(_pool(pci, f"{name} {pool.upper()}", total, used))
    return pools


def _less(total: Reading, used: Reading) -> Reading:
    if total.ok and used.ok:
        left = max(0, total.bytes - used.bytes)
        return seen(left, "bytes", f"{total.source} - {used.source}", total.item)
    missing = used if total.ok else total
    return not_available(missing.why, "bytes", missing.source, missing.item)


def host_pools(bundle: Bundle) -> tuple[Pool, ...]:
    """Memory of the host that a GPU may draw on: RAM, swap, the TTM limit, and the control
    group's limit.
    """
    box = machine(bundle)
    pools = [_pool("", "RAM", box.ram_total, free=box.ram_available)]
    pools.append(_pool("", "swap", box.swap_total, free=box.swap_free))
    for parameter in ttm.parameters(bundle):
        if parameter.name == "pages_limit" and parameter.live.ok:
            pools.append(_pool("", f"{parameter.module} limit", parameter.live_bytes))
    if box.cgroup_limit.ok:
        pools.append(_pool("", "control group", box.cgroup_limit, box.cgroup_used))
    return tuple(pools)
