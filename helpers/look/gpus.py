"""The GPUs of a box, each under its PCI address, with every layer's name, pools and holders for
it side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from helpers.ground.shapes import Reading, not_available, seen, sum_of
from helpers.look.access import identity
from helpers.look.bundle import Bundle

from . import drm, framework, kfd, nvidia, pci, processes, rocm, ttm
from .archive import BundleHostile
from .machine import machine

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x8086": "Intel"}
HOST_PID = "a host PID"
NUMBERED_BY_HOST = ("KFD", "nvidia-smi")
HOSTS = (*NUMBERED_BY_HOST, "amd-smi")
"""These list processes by the host's numbers, which name others inside a PID namespace."""


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
class Holder:
    """A process that holds device memory, as one source saw it.

    ``note`` says what is odd (a zombie, a host PID).
    """

    pci: str
    pid: int
    name: str
    uid: int | None
    state: str
    memory: Reading
    source: str
    note: str


def one_each(holders: Iterable[Holder]) -> list[Holder]:
    """Each process once, with the most that any source saw it hold; largest first, those not
    measured last.
    """
    first: dict[int, Holder] = {}
    for holder in sorted(holders, key=_largest):
        first.setdefault(holder.pid, holder)
    return list(first.values())


def _largest(holder: Holder) -> tuple[int, int, str]:
    order = 1
    if holder.memory.ok:
        order = -holder.memory.bytes
    return order, holder.pid, holder.source


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    ``indices`` maps each index space (drm card, render node, kfd node, rocm-smi, torch, ...) to
    its name there.

    ``unattributed`` is what is in use and no process seen here accounts for; ``blind_spots``
    say which holders cannot be seen.
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
    """Every AMD, NVIDIA or Intel GPU that any layer knows, by PCI address.

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
    holders = _holders(bundle, address, layers, integrated)
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
        unattributed=_unattributed(bundle, layers, integrated, holders),
        blind_spots=_blind_spots(bundle, vendor),
    )


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
            pools.append(_pool(pci, "of it reserved by the driver", nvidia_gpu.reserved))
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


def _outside(bundle: Bundle) -> bool:
    """Whether the capture ran in a PID namespace of its own, where a host's PID names another
    process.
    """
    who = identity(bundle)
    return who is not None and who.init_pid_ns is False


class _Holders:
    """The holders of one GPU, gathered source by source."""

    def __init__(self, bundle: Bundle, address: str):
        self.address = address
        self.processes = {process.pid: process for process in processes.processes(bundle)}
        self.is_outside = _outside(bundle)
        self.by_source: dict[tuple[int, str], Holder] = {}

    def add(self, pid: int, memory: Reading, source: str, name: str = "", note: str = "") -> None:
        """Add what one source says; its sizes for the same process add up."""
        process = self.processes.get(pid)
        notes = [note]
        if self.is_outside and source in NUMBERED_BY_HOST:
            # Inside a container a host PID says nothing about the process of this number here.
            process = None
            notes = [HOST_PID, note]
        earlier = self.by_source.get((pid, source))
        if earlier and earlier.memory.ok and memory.ok:
            memory = sum_of([earlier.memory, memory])
        name = name.rsplit("/", 1)[-1]
        uid = None
        state = ""
        if process:
            name = name or process.name
            uid = process.uid
            state = process.state
        self.by_source[pid, source] = Holder(
            pci=self.address,
            pid=pid,
            name=name,
            uid=uid,
            state=state,
            memory=memory,
            source=source,
            note="; ".join(filter(None, notes)),
        )


def _holders(
    bundle: Bundle, address: str, layers: dict[str, Any], integrated: bool | None
) -> tuple[Holder, ...]:
    holders = _Holders(bundle, address)
    source = "DRM fdinfo (VRAM and GTT)" if integrated else "DRM fdinfo"
    for client in drm.clients(bundle):
        if client.pci != address:
            continue
        memory = client.region("vram")
        gtt = client.region("gtt")
        if integrated and memory.ok and gtt.ok:
            memory = sum_of([memory, gtt])
        note = ""
        if len(client.pids) > 1:
            others = ", ".join(str(pid) for pid in client.pids[1:])
            note = f"the same client is open in pid {others}"
        holders.add(client.pids[0], memory, source, note=note)
    if "node" in layers:
        gpu_id = layers["node"].gpu_id.value
        for process in kfd.processes(bundle):
            vram = process.vram.get(gpu_id)
            if vram is not None:
                is_idle = vram.ok and vram.value == 0
                note = "only opened the device" if is_idle else ""
                holders.add(process.pid, vram, "KFD", note=note)
    for holder in nvidia.holders(bundle):
        if holder.pci == address:
            note = f"GPU instance {holder.gpu_instance}" if holder.gpu_instance else ""
            holders.add(holder.pid, holder.memory, "nvidia-smi", name=holder.name, note=note)
    listed = {pid for pid, _ in holders.by_source}
    for smi in rocm.processes(bundle):
        if smi.pci == address and smi.pid not in listed:
            holders.add(smi.pid, smi.vram, "amd-smi", name=smi.name)
    return tuple(sorted(holders.by_source.values(), key=_largest))


def _unattributed(
    bundle: Bundle, layers: dict[str, Any], integrated: bool | None, holders: tuple[Holder, ...]
) -> Reading:
    """What is in use less what processes hold; each process counts once, with the most that any
    source saw it hold.

    In a PID namespace of its own one process has another number in each source (KFD and
    nvidia-smi count the host's), so there the source that explains most stands for all.
    """
    card = layers.get("card")
    used = not_available("no layer says how much is in use", "bytes", "")
    if card and card.vram_used.ok:
        sizes = [card.vram_used]
        if integrated and card.gtt_used.ok:
            sizes.append(card.gtt_used)
        used = sum_of(sizes)
    elif "nvidia" in layers:
        used = layers["nvidia"].used
    if not used.ok:
        return used
    measured = [holder for holder in holders if holder.memory.ok]
    unmeasured = {holder.pid for holder in holders} - {holder.pid for holder in measured}
    if unmeasured:
        why = f"what {len(unmeasured)} process(es) hold was not measured"
        return not_available(why, "bytes", used.source, used.item)
    by_source: Counter[str] = Counter()
    for holder in measured:
        by_source[holder.source] += holder.memory.bytes
    explained = sum(holder.memory.bytes for holder in one_each(measured))
    if _outside(bundle):
        explained = max(by_source.values(), default=0)
    rest = max(0, used.bytes - explained)
    return seen(rest, "bytes", f"{used.source} less the processes above", used.item)


def holding(gpu: Gpu) -> list[Holder]:
    """Those that hold something of a GPU, as far as that was measured; one with nothing only
    opened it (ROCm#4411).
    """
    return [holder for holder in gpu.holders if not holder.memory.ok or holder.memory.bytes > 0]


def numbered_by_host(holder: Holder) -> bool:
    """Whether its number is the host's, which here, in another PID namespace, names another
    process or none.
    """
    return holder.note.startswith(HOST_PID)


def in_sight(bundle: Bundle, gpu: Gpu) -> tuple[list[Holder], list[Holder], list[Holder]]:
    """Each holder once: those that can be matched with /proc, those that only the host's lists
    name, and who is elsewhere.

    In a PID namespace of its own KFD and nvidia-smi number processes as the host does, so they
    cannot be matched with those in /proc; whom they name is elsewhere where all could be looked
    at and none here has the GPU open.
    """
    holders = holding(gpu)
    who = identity(bundle)
    if who is None or who.init_pid_ns is not False:
        alive = {process.pid for process in processes.processes(bundle)}
        matched = one_each(holders)
        gone = [h for h in matched if h.source == "KFD" and alive and h.pid not in alive]
        return matched, [], gone
    by_host = one_each(h for h in holders if h.source in HOSTS)
    prefix = "/dev/nvidia" if gpu.vendor == "NVIDIA" else "/dev/kfd"
    opened = (str(row.get("target", "")) for row in bundle.table("device_files"))
    all_seen = bundle.read("device_files").ok and not drm.refused_pids(bundle)
    elsewhere = all_seen and not any(path.startswith(prefix) for path in opened)
    inside = one_each(h for h in holders if h.source not in HOSTS)
    if not elsewhere:
        return inside, by_host, []
    return inside, by_host, by_host


def _blind_spots(bundle: Bundle, vendor: str) -> tuple[str, ...]:
    """Which holders cannot be seen from where the capture ran, and why."""
    spots = []
    who = identity(bundle)
    if _outside(bundle):
        spots.append("processes outside this container's PID namespace are not in its /proc")
    if who is not None and who.hidepid not in ("", "0"):
        spots.append("/proc is mounted with hidepid: processes of other users are not in it")
    refused = drm.refused_pids(bundle)
    if refused:
        whose = f"{len(refused)} process(es) of other users"
        spots.append(f"the open files of {whose} may not be read without root")
    table = bundle.read("device_files")
    if not table.ok:
        spots.append(f"open device files were not listed ({table.why})")
    listed = kfd.processes(bundle) or bundle.sources("/sys/class/kfd/kfd/proc")
    if vendor == "AMD" and not listed:
        spots.append("KFD's process list was not captured or is empty")
    count = nvidia.holder_count(bundle)
    if vendor == "NVIDIA" and not count.ok:
        spots.append("nvidia-smi gave no process list: " + count.why)
    return tuple(spots)
