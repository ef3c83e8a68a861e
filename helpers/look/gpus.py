"""The GPUs of a box, each under its PCI address, with every layer's name, pools and holders for it side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import drm, framework, kfd, nvidia, pci, processes, rocm, rocminfo, ttm
from .access import identity
from .bundle import Bundle
from .machine import machine
from .reading import Reading, not_available, seen

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x8086": "Intel"}


@dataclass(frozen=True)
class Pool:
    """One layer's account of one pool of memory, in bytes. ``pci`` is empty for a pool of the host.

    ``layer`` is the layer in its own words ("sysfs VRAM", "KFD bank", "TTM limit", "nvidia-smi", "torch"); the readings carry
    the sources.
    """

    pci: str
    layer: str
    total: Reading
    used: Reading
    free: Reading


@dataclass(frozen=True)
class Holder:
    """A process that holds device memory, as one source saw it. ``note`` says what is odd (a zombie, a host PID)."""

    pci: str
    pid: int
    name: str
    uid: int | None
    state: str
    memory: Reading
    source: str
    note: str


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``indices`` maps each index space (drm card, render node, kfd node, rocm-smi, torch, ...) to its name there.

    ``unattributed`` is what is in use and no process seen here accounts for; ``blind_spots`` say which holders cannot be seen.
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


@dataclass(frozen=True)
class _Layers:
    """What every layer says of one GPU; None where a layer does not know it."""

    device: pci.PciDevice | None
    card: drm.Card | None
    node: kfd.KfdNode | None
    agent: rocminfo.Agent | None
    rocm_smi: rocm.SmiCard | None
    amd_smi: rocm.SmiCard | None
    nvidia: nvidia.NvidiaGpu | None
    torch: framework.TorchDevice | None


def gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    """Every AMD, NVIDIA or Intel GPU that any layer knows, by PCI address. A server's display chip is none."""
    known: dict[str, dict[str, Any]] = {
        "device": {d.pci: d for d in pci.pci_devices(bundle) if d.is_gpu},
        "card": {c.pci: c for c in drm.cards(bundle)},
        "node": {n.pci: n for n in kfd.nodes(bundle)},
        "agent": {str(a.pci.value or ""): a for a in rocminfo.agents(bundle) if a.kind == "gpu"},
        "rocm_smi": {str(c.pci.value or ""): c for c in rocm.cards(bundle)},
        "amd_smi": {str(g.pci.value or ""): g for g in rocm.gpus(bundle)},
        "nvidia": {g.pci: g for g in nvidia.gpus(bundle)},
        "torch": {d.pci: d for d in framework.framework(bundle).devices},
    }
    found = []
    for address in sorted(filter(None, set().union(*known.values()))):
        layers = _Layers(**{name: by_pci.get(address) for name, by_pci in known.items()})
        vendor = _vendor(layers)
        if vendor:
            found.append(_gpu(bundle, address, vendor, layers))
    return tuple(found)


def _vendor(layers: _Layers) -> str:
    if layers.nvidia:
        return "NVIDIA"
    if layers.node or layers.agent or layers.rocm_smi or layers.amd_smi:
        return "AMD"
    known = layers.device or layers.card
    return VENDORS.get(known.vendor_id, "") if known else ""


def _gpu(bundle: Bundle, address: str, vendor: str, layers: _Layers) -> Gpu:
    integrated = _integrated(layers)
    holders = _holders(bundle, address, layers, integrated)
    drivers = [known.driver for known in (layers.device, layers.card) if known]
    return Gpu(
        address,
        vendor,
        _name(layers),
        next(filter(None, drivers), "nvidia" if layers.nvidia else ""),
        integrated,
        _indices(layers),
        _pools(bundle, address, layers, vendor),
        holders,
        _unattributed(bundle, layers, integrated, holders),
        _blind_spots(bundle, vendor),
    )


def _integrated(layers: _Layers) -> bool | None:
    if layers.torch and layers.torch.integrated is not None:
        return layers.torch.integrated
    if layers.agent and layers.agent.integrated:
        return True
    if layers.nvidia:
        return False
    return layers.device.integrated if layers.device else None


def _name(layers: _Layers) -> Reading:
    """The first name that a layer has, in the order in which names are useful to a person."""
    known = [layer.name for layer in (layers.nvidia, layers.torch) if layer]
    known += [layers.agent.marketing_name] if layers.agent else []
    known += [layers.amd_smi.name] if layers.amd_smi else []
    known += [layers.card.product] if layers.card else []
    known += [layers.rocm_smi.name] if layers.rocm_smi else []
    for reading in known:
        if reading.ok and str(reading.value).strip():
            return reading
    if layers.node and layers.node.gfx:
        return seen(layers.node.gfx, "text", layers.node.gpu_id.source, layers.node.gpu_id.item)
    ids = layers.device or layers.card
    if ids:
        words = f"{ids.vendor_id[2:]}:{ids.device_id[2:]}"
        return seen(words, "text", "PCI vendor and device id")
    return not_available("no layer names it", "text", "")


def _indices(layers: _Layers) -> dict[str, str]:
    """Each layer's own number for the GPU. They differ, and visibility variables renumber some of them."""
    found: dict[str, str] = {}
    if layers.card:
        found["drm card"], found["render node"] = layers.card.card, layers.card.render
    if layers.node:
        found["kfd node"] = str(layers.node.node)
        found["kfd gpu_id"] = layers.node.gpu_id.show() if layers.node.gpu_id.ok else ""
        found["gfx"] = layers.node.gfx
    if layers.rocm_smi:
        found["rocm-smi"] = str(layers.rocm_smi.index)
    if layers.amd_smi:
        found["amd-smi"] = str(layers.amd_smi.index)
        found["HIP"] = layers.amd_smi.hip
    if layers.nvidia and layers.nvidia.index.ok:
        found["nvidia-smi"] = str(layers.nvidia.index.value)
    if layers.torch:
        found["torch"] = str(layers.torch.index)
    return {space: name for space, name in found.items() if name}


def _pool(
    pci: str, layer: str, total: Reading, used: Reading | None = None, free: Reading | None = None
) -> Pool:
    if used is None and free is not None and not pci:
        used = _less(total, free)
    why = "this layer gives a total only"
    used = used or not_available(why, "bytes", total.source, total.item)
    return Pool(pci, layer, total, used, free or _less(total, used))


def _pools(bundle: Bundle, pci: str, layers: _Layers, vendor: str) -> tuple[Pool, ...]:
    found: list[Pool] = []
    card, green, torch = layers.card, layers.nvidia, layers.torch
    if card and card.driver == "amdgpu":
        found.append(_pool(pci, "sysfs VRAM", card.vram_total, card.vram_used))
        found.append(_pool(pci, "sysfs GTT", card.gtt_total, card.gtt_used))
    if layers.node:
        found.append(_pool(pci, "KFD bank", layers.node.framebuffer))
    if layers.agent or vendor == "AMD":
        hsa = layers.agent.memory if layers.agent else rocminfo.agent_count(bundle)
        found.append(_pool(pci, "HSA pool", hsa))
    for name, tool in (("rocm-smi", layers.rocm_smi), ("amd-smi", layers.amd_smi)):
        for pool in ("vram", "gtt"):
            if tool is None:
                break
            total, used = (tool.pools[f"{pool} {part}"] for part in ("total", "used"))
            if total.ok or used.ok:
                found.append(_pool(pci, f"{name} {pool.upper()}", total, used))
    if green:
        found.append(_pool(pci, "nvidia-smi", green.total, green.used, green.free))
        if green.reserved.ok:
            found.append(_pool(pci, "of it reserved by the driver", green.reserved))
    if torch:
        free = torch.free if torch.free.ok else None
        found.append(_pool(pci, "torch", torch.total, None, free))
    return tuple(found)


def _less(total: Reading, used: Reading) -> Reading:
    if total.ok and used.ok:
        left = max(0, total.bytes - used.bytes)
        return seen(left, "bytes", f"{total.source} - {used.source}", total.item)
    missing = used if total.ok else total
    return not_available(missing.why, "bytes", missing.source, missing.item)


def _plus(one: Reading, other: Reading) -> Reading:
    source = one.source if one.source == other.source else f"{one.source} + {other.source}"
    return seen(one.bytes + other.bytes, "bytes", source, one.item)


def host_pools(bundle: Bundle) -> tuple[Pool, ...]:
    """Memory of the host that a GPU may draw on: RAM, swap, the TTM limit, and the control group's limit."""
    box = machine(bundle)
    found = [_pool("", "RAM", box.ram_total, free=box.ram_available)]
    found.append(_pool("", "swap", box.swap_total, free=box.swap_free))
    for parameter in ttm.parameters(bundle):
        if parameter.name == "pages_limit" and parameter.live.ok:
            found.append(_pool("", f"{parameter.module} limit", parameter.live_bytes))
    if box.cgroup_limit.ok:
        found.append(_pool("", "control group", box.cgroup_limit, box.cgroup_used))
    return tuple(found)


def _outside(bundle: Bundle) -> bool:
    """Whether the capture ran in a PID namespace of its own, where a host's PID names another process."""
    who = identity(bundle)
    return who is not None and who.init_pid_ns is False


def _holders(
    bundle: Bundle, address: str, layers: _Layers, integrated: bool | None
) -> tuple[Holder, ...]:
    known = {p.pid: p for p in processes.processes(bundle)}
    outside = _outside(bundle)
    held: dict[tuple[int, str], Holder] = {}

    def add(
        pid: int, name: str, memory: Reading, source: str, notes: Iterable[str], host: bool = False
    ) -> None:
        # Inside a container a host PID says nothing about the process that has this number here.
        process = None if host and outside else known.get(pid)
        earlier = held.get((pid, source))
        if earlier and earlier.memory.ok and memory.ok:
            memory = _plus(earlier.memory, memory)
        name = name.rsplit("/", 1)[-1] or (process.name if process else "")
        uid, state = (process.uid, process.state) if process else (None, "")
        note = "; ".join(["a host PID"] * (host and outside) + [note for note in notes if note])
        held[pid, source] = Holder(address, pid, name, uid, state, memory, source, note)

    for client in drm.clients(bundle):
        if client.pci == address:
            memory, gtt = client.region("vram"), client.region("gtt")
            if integrated and memory.ok and gtt.ok:
                memory = _plus(memory, gtt)
            others = ", ".join(str(pid) for pid in client.pids[1:])
            note = f"the same client is open in pid {others}" if others else ""
            source = "DRM fdinfo" + (" (VRAM and GTT)" if integrated else "")
            add(client.pids[0], "", memory, source, [note])
    gpu_id = layers.node.gpu_id.value if layers.node else None
    for process in kfd.processes(bundle):
        for here in [process.vram[gpu] for gpu in process.vram if gpu == gpu_id]:
            idle = "only opened the device" if here.ok and here.value == 0 else ""
            add(process.pid, "", here, "KFD", [idle], True)
    for holder in nvidia.holders(bundle):
        if holder.pci == address:
            note = f"GPU instance {holder.gpu_instance}" if holder.gpu_instance else ""
            add(holder.pid, holder.name, holder.memory, "nvidia-smi", [note], True)
    listed = {pid for pid, _ in held}
    for smi in rocm.processes(bundle):
        if smi.pci == address and smi.pid not in listed:
            add(smi.pid, smi.name, smi.vram, "amd-smi", [])

    def largest(holder: Holder) -> tuple[int, int, str]:
        return -holder.memory.bytes if holder.memory.ok else 1, holder.pid, holder.source

    return tuple(sorted(held.values(), key=largest))


def _unattributed(
    bundle: Bundle, layers: _Layers, integrated: bool | None, holders: tuple[Holder, ...]
) -> Reading:
    """What is in use less what processes hold; each process counts once, with the most that any source saw it hold.

    In a PID namespace of its own one process has another number in each source (KFD and nvidia-smi count the host's), so there
    the source that explains most stands for all.
    """
    used = not_available("no layer says how much is in use", "bytes", "")
    card = layers.card
    if card and card.vram_used.ok:
        both = integrated and card.gtt_used.ok
        used = _plus(card.vram_used, card.gtt_used) if both else card.vram_used
    elif layers.nvidia:
        used = layers.nvidia.used
    if not used.ok:
        return used
    measured = [holder for holder in holders if holder.memory.ok]
    unmeasured = {holder.pid for holder in holders} - {holder.pid for holder in measured}
    if unmeasured:
        why = f"what {len(unmeasured)} process(es) hold was not measured"
        return not_available(why, "bytes", used.source, used.item)
    most: dict[int, int] = {}
    by_source: dict[str, int] = {}
    for holder in measured:
        most[holder.pid] = max(most.get(holder.pid, 0), holder.memory.bytes)
        by_source[holder.source] = by_source.get(holder.source, 0) + holder.memory.bytes
    explained = sum(most.values())
    if _outside(bundle):
        explained = max(by_source.values(), default=0)
    rest = max(0, used.bytes - explained)
    return seen(rest, "bytes", f"{used.source} less the processes above", used.item)


def _blind_spots(bundle: Bundle, vendor: str) -> tuple[str, ...]:
    """Which holders cannot be seen from where the capture ran, and why."""
    found = []
    who = identity(bundle)
    if _outside(bundle):
        found.append("processes outside this container's PID namespace are not in its /proc")
    if who is not None and who.hidepid not in ("", "0"):
        found.append("/proc is mounted with hidepid: processes of other users are not in it")
    refused = drm.refused_pids(bundle)
    if refused:
        whose = f"{len(refused)} process(es) of other users"
        found.append(f"the open files of {whose} may not be read without root")
    table = bundle.read("device_files")
    if not table.ok:
        found.append(f"open device files were not listed ({table.why})")
    listed = kfd.processes(bundle) or bundle.sources("/sys/class/kfd/kfd/proc")
    if vendor == "AMD" and not listed:
        found.append("KFD's process list was not captured or is empty")
    told = nvidia.holder_count(bundle)
    if vendor == "NVIDIA" and not told.ok:
        found.append("nvidia-smi gave no process list: " + told.why)
    return tuple(found)
