"""The GPUs of a box, each under its PCI address, with every layer's name, pools and holders for it side by side."""

from __future__ import annotations

from dataclasses import dataclass

from . import amd_smi, drm, framework, kfd, nvidia, pci, processes, rocm, rocminfo, ttm
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
    amd_smi: amd_smi.SmiGpu | None
    nvidia: nvidia.NvidiaGpu | None
    torch: framework.TorchDevice | None


def gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    """Every AMD, NVIDIA or Intel GPU that any layer knows, by PCI address. A server's display chip is none."""
    devices = {d.pci: d for d in pci.pci_devices(bundle) if d.is_gpu}
    cards = {c.pci: c for c in drm.cards(bundle) if c.pci}
    nodes = {n.pci: n for n in kfd.nodes(bundle) if n.pci}
    agents = {str(a.pci.value): a for a in rocminfo.agents(bundle) if a.pci.ok and a.kind == "gpu"}
    smi_cards = {str(c.pci.value): c for c in rocm.cards(bundle) if c.pci.ok}
    smi_gpus = {str(g.pci.value): g for g in amd_smi.gpus(bundle) if g.pci.ok}
    green = {g.pci: g for g in nvidia.gpus(bundle)}
    torches = {d.pci: d for d in framework.framework(bundle).devices if d.pci}
    found = []
    for address in sorted({*devices, *cards, *nodes, *agents, *smi_cards, *smi_gpus, *green, *torches}):
        layers = _Layers(devices.get(address), cards.get(address), nodes.get(address), agents.get(address),
                         smi_cards.get(address), smi_gpus.get(address), green.get(address), torches.get(address))
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
    pools = _pools(bundle, address, layers, vendor)
    holders = _holders(bundle, address, layers, integrated)
    device, card = layers.device, layers.card
    driver = (device.driver if device else "") or (card.driver if card else "") or ("nvidia" if layers.nvidia else "")
    return Gpu(address, vendor, _name(layers), driver, integrated, _indices(layers), pools, holders,
               _unattributed(bundle, layers, integrated, holders), _blind_spots(bundle, vendor))


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
    known = [reading for layer, field in ((layers.nvidia, "name"), (layers.torch, "name"), (layers.agent, "marketing_name"),
                                          (layers.amd_smi, "name"), (layers.card, "product"), (layers.rocm_smi, "name"))
             if layer is not None for reading in [getattr(layer, field)]]
    for reading in known:
        if reading.ok and str(reading.value).strip():
            return reading
    if layers.node and layers.node.gfx:
        return seen(layers.node.gfx, "text", layers.node.gpu_id.source, layers.node.gpu_id.item)
    if layers.device or layers.card:
        ids = layers.device or layers.card
        assert ids is not None
        return seen(f"{ids.vendor_id[2:]}:{ids.device_id[2:]}", "text", "PCI vendor and device id", "")
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
        found["HIP"] = layers.amd_smi.indices.get("hip", "")
    if layers.nvidia and layers.nvidia.index.ok:
        found["nvidia-smi"] = str(layers.nvidia.index.value)
    if layers.torch:
        found["torch"] = str(layers.torch.index)
    return {space: name for space, name in found.items() if name}


def _pools(bundle: Bundle, address: str, layers: _Layers, vendor: str) -> tuple[Pool, ...]:
    found: list[Pool] = []

    def add(layer: str, total: Reading, used: Reading | None = None, free: Reading | None = None) -> None:
        used = used or not_available("this layer gives a total only", "bytes", total.source, total.item)
        found.append(Pool(address, layer, total, used, free or _less(total, used)))

    if layers.card and layers.card.driver == "amdgpu":
        add("sysfs VRAM", layers.card.vram_total, layers.card.vram_used)
        add("sysfs GTT", layers.card.gtt_total, layers.card.gtt_used)
    if layers.node:
        add("KFD bank", layers.node.framebuffer)
    if layers.agent:
        add("HSA pool", layers.agent.memory)
    elif vendor == "AMD":
        add("HSA pool", rocminfo.agent_count(bundle))
    for name, tool in (("rocm-smi", layers.rocm_smi), ("amd-smi", layers.amd_smi)):
        for pool in ("vram", "gtt") if tool else ():
            said = tool.pools if tool else {}
            total, used = said.get(f"{pool} total"), said.get(f"{pool} used")
            if total and (total.ok or (used and used.ok)):
                add(f"{name} {pool.upper()}", total, used)
    if layers.nvidia:
        add("nvidia-smi", layers.nvidia.total, layers.nvidia.used, layers.nvidia.free)
        if layers.nvidia.reserved.ok:
            add("of it reserved by the driver", layers.nvidia.reserved)
    if layers.torch:
        add("torch", layers.torch.total, None, layers.torch.free if layers.torch.free.ok else None)
    return tuple(found)


def _less(total: Reading, used: Reading) -> Reading:
    if total.ok and used.ok:
        left = max(0, int(total.value or 0) - int(used.value or 0))
        return seen(left, "bytes", f"{total.source} - {used.source}", total.item)
    missing = used if total.ok else total
    return not_available(missing.why, "bytes", missing.source, missing.item)


def host_pools(bundle: Bundle) -> tuple[Pool, ...]:
    """Memory of the host that a GPU may draw on: RAM, swap, the TTM limit, and the control group's limit."""
    box = machine(bundle)

    def pool(layer: str, total: Reading, free: Reading | None, used: Reading | None = None) -> Pool:
        if used is None and free is not None:
            used = _less(total, free)
        used = used or not_available("this layer gives a total only", "bytes", total.source, total.item)
        return Pool("", layer, total, used, free or _less(total, used))

    found = [pool("RAM", box.ram_total, box.ram_available), pool("swap", box.swap_total, box.swap_free)]
    found += [pool(f"{p.module} limit", p.live_bytes, None) for p in ttm.parameters(bundle)
              if p.name == "pages_limit" and p.live.ok]
    if box.cgroup_limit.ok:
        found.append(pool("control group", box.cgroup_limit, None, box.cgroup_used))
    return tuple(found)


def _holders(bundle: Bundle, address: str, layers: _Layers, integrated: bool | None) -> tuple[Holder, ...]:
    known = {p.pid: p for p in processes.processes(bundle)}
    who = identity(bundle)
    outside = who is not None and who.init_pid_ns is False
    held: dict[tuple[int, str], Holder] = {}

    def add(pid: int, name: str, memory: Reading, source: str, note: str = "", host_pid: bool = False) -> None:
        # Inside a container a host PID says nothing about the process that has this number here.
        process = None if host_pid and outside else known.get(pid)
        earlier = held.get((pid, source))
        if earlier and earlier.memory.ok and memory.ok:
            total = int(earlier.memory.value or 0) + int(memory.value or 0)
            memory = seen(total, "bytes", f"{earlier.memory.source} + {memory.source}", memory.item)
        held[pid, source] = Holder(address, pid, name or (process.name if process else ""), process.uid if process else None,
                                   process.state if process else "", memory, source, note)

    for client in drm.clients(bundle):
        if client.pci != address:
            continue
        memory = client.region("vram")
        gtt = client.region("gtt")
        if integrated and memory.ok and gtt.ok:
            memory = seen(int(memory.value or 0) + int(gtt.value or 0), "bytes", memory.source, memory.item)
        shared = [str(pid) for pid in client.pids[1:]]
        note = "the same client is open in pid " + ", ".join(shared) if shared else ""
        add(client.pids[0], "", memory, "DRM fdinfo" + (" (VRAM and GTT)" if integrated else ""), note)
    gpu_id = layers.node.gpu_id.value if layers.node and layers.node.gpu_id.ok else None
    for process in kfd.processes(bundle):
        held_here = process.vram.get(int(gpu_id)) if isinstance(gpu_id, int) else None
        if held_here is not None:
            notes = ["a host PID"] * outside + ["only opened the device"] * (held_here.ok and held_here.value == 0)
            add(process.pid, "", held_here, "KFD", "; ".join(notes), host_pid=True)
    for holder in nvidia.holders(bundle):
        if holder.pci == address:
            notes = ["a host PID"] * outside + [f"GPU instance {holder.gpu_instance}"] * bool(holder.gpu_instance)
            add(holder.pid, holder.name.rsplit("/", 1)[-1], holder.memory, "nvidia-smi", "; ".join(notes), host_pid=True)
    seen_pids = {pid for pid, _ in held}
    for smi in amd_smi.processes(bundle):
        if smi.pci == address and smi.pid not in seen_pids:
            add(smi.pid, smi.name.rsplit("/", 1)[-1], smi.vram, "amd-smi")
    return tuple(sorted(held.values(), key=lambda h: (-int(h.memory.value or 0) if h.memory.ok else 1, h.pid, h.source)))


def _unattributed(bundle: Bundle, layers: _Layers, integrated: bool | None, holders: tuple[Holder, ...]) -> Reading:
    """What is in use less what processes hold; each process counts once, with the most that any source saw it hold.

    In a PID namespace of its own one process has another number in each source (KFD and nvidia-smi count the host's), so there
    the source that explains most stands for all.
    """
    used = not_available("no layer says how much is in use", "bytes", "")
    if layers.card and layers.card.vram_used.ok:
        used = layers.card.vram_used
        if integrated and layers.card.gtt_used.ok:
            both = int(used.value or 0) + int(layers.card.gtt_used.value or 0)
            used = seen(both, "bytes", f"{used.source} + {layers.card.gtt_used.source}", used.item)
    elif layers.nvidia:
        used = layers.nvidia.used
    if not used.ok:
        return used
    unmeasured = {h.pid for h in holders if not h.memory.ok} - {h.pid for h in holders if h.memory.ok}
    if unmeasured:
        return not_available(f"what {len(unmeasured)} process(es) hold was not measured", "bytes", used.source, used.item)
    most: dict[int, int] = {}
    by_source: dict[str, int] = {}
    for holder in holders:
        size = int(holder.memory.value or 0)
        most[holder.pid] = max(most.get(holder.pid, 0), size)
        by_source[holder.source] = by_source.get(holder.source, 0) + size
    who = identity(bundle)
    outside = who is not None and who.init_pid_ns is False
    explained = max(by_source.values(), default=0) if outside else sum(most.values())
    rest = max(0, int(used.value or 0) - explained)
    return seen(rest, "bytes", f"{used.source} less the processes above", used.item)


def _blind_spots(bundle: Bundle, vendor: str) -> tuple[str, ...]:
    """Which holders cannot be seen from where the capture ran, and why."""
    found = []
    who = identity(bundle)
    if who is not None and who.init_pid_ns is False:
        found.append("processes outside this container's PID namespace are not in its /proc")
    if who is not None and who.hidepid not in ("", "0"):
        found.append("/proc is mounted with hidepid: processes of other users are not in it")
    refused = drm.refused_pids(bundle)
    if refused:
        found.append(f"the open files of {len(refused)} process(es) of other users may not be read without root")
    table = bundle.read("device_files")
    if not table.ok:
        found.append(f"open device files were not listed ({table.why})")
    if vendor == "AMD" and not kfd.processes(bundle) and not bundle.sources("/sys/class/kfd/kfd/proc"):
        found.append("KFD's process list was not captured or is empty")
    if vendor == "NVIDIA" and not nvidia.holder_count(bundle).ok:
        found.append("nvidia-smi gave no process list: " + nvidia.holder_count(bundle).why)
    return tuple(found)
