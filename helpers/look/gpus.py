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
HOSTS = ("KFD", "nvidia-smi", "amd-smi")
"""These list processes by the host's numbers, which inside a PID namespace of its own name others."""


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
    return -holder.memory.bytes if holder.memory.ok else 1, holder.pid, holder.source


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
"""Each layer's own number for a GPU. They differ, and visibility variables renumber some of them."""


def gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    """Every AMD, NVIDIA or Intel GPU that any layer knows, by PCI address.

    A server's display chip is none.
    """
    return bundle.once("gpus", lambda: _gpus(bundle))


def _gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    known: dict[str, dict[str, Any]] = {
        "device": {d.pci: d for d in pci.pci_devices(bundle) if d.is_gpu},
        "card": {c.pci: c for c in drm.cards(bundle)},
        "node": {n.pci: n for n in kfd.nodes(bundle)},
        "agent": {str(a.pci.value or ""): a for a in rocm.agents(bundle) if a.kind == "gpu"},
        "rocm_smi": {str(c.pci.value or ""): c for c in rocm.cards(bundle)},
        "amd_smi": {str(g.pci.value or ""): g for g in rocm.gpus(bundle)},
        "nvidia": {g.pci: g for g in nvidia.gpus(bundle)},
        "torch": {d.pci: d for d in framework.framework(bundle).devices},
    }
    found = []
    addresses = sorted(filter(None, set().union(*known.values())))
    if (count := len(addresses)) > MOST_GPUS:
        raise BundleHostile(f"{bundle.box}: {count} GPUs, more than a box has; do not use it")
    for address in addresses:
        layers = {name: by_pci[address] for name, by_pci in known.items() if address in by_pci}
        vendor = _vendor(layers)
        if vendor:
            found.append(_gpu(bundle, address, vendor, layers))
    return tuple(found)


def _vendor(layers: dict[str, Any]) -> str:
    if "nvidia" in layers:
        return "NVIDIA"
    if layers.keys() & {"node", "agent", "rocm_smi", "amd_smi"}:
        return "AMD"
    ids = layers.get("device") or layers.get("card")
    return VENDORS.get(ids.vendor_id, "") if ids else ""


def _gpu(bundle: Bundle, address: str, vendor: str, layers: dict[str, Any]) -> Gpu:
    integrated = _integrated(layers)
    holders = _holders(bundle, address, layers, integrated)
    drivers = [layers[name].driver for name in ("device", "card") if name in layers]
    numbers = {space: _field(layers, place) for space, place in _INDICES.items()}
    indices = {k: n.value if isinstance(n, Reading) else n for k, n in numbers.items()}
    return Gpu(
        address,
        vendor,
        _name(layers),
        next(filter(None, drivers), "nvidia" if "nvidia" in layers else ""),
        integrated,
        {space: str(name) for space, name in indices.items() if name not in (None, "")},
        _pools(bundle, address, layers, vendor),
        holders,
        _unattributed(bundle, layers, integrated, holders),
        _blind_spots(bundle, vendor),
    )


def _integrated(layers: dict[str, Any]) -> bool | None:
    torch, agent, device = (layers.get(name) for name in ("torch", "agent", "device"))
    if torch and torch.integrated is not None:
        return bool(torch.integrated)
    if agent and agent.integrated:
        return True
    if "nvidia" in layers:
        return False
    return device.integrated if device else None


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
    found: list[tuple[Any, ...]] = []
    names = ("card", "node", "agent", "nvidia", "torch")
    card, node, agent, green, torch = map(layers.get, names)
    if card and card.driver == "amdgpu":
        found.append(("sysfs VRAM", card.vram_total, card.vram_used))
        found.append(("sysfs GTT", card.gtt_total, card.gtt_used))
    if node:
        found.append(("KFD bank", node.framebuffer))
    if agent or vendor == "AMD":
        found.append(("HSA pool", agent.memory if agent else rocm.agent_count(bundle)))
    for name in ("rocm-smi", "amd-smi"):
        tool: Any = layers.get(name.replace("-", "_"))
        for pool in ("vram", "gtt") if tool else ():
            total, used = (tool.pools[f"{pool} {part}"] for part in ("total", "used"))
            if total.ok or used.ok:
                found.append((f"{name} {pool.upper()}", total, used))
    if green:
        found.append(("nvidia-smi", green.total, green.used, green.free))
        if green.reserved.ok:
            found.append(("of it reserved by the driver", green.reserved))
    if torch:
        found.append(("torch", torch.total, None, torch.free if torch.free.ok else None))
    return tuple(_pool(pci, *row) for row in found)


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
    found = [_pool("", "RAM", box.ram_total, free=box.ram_available)]
    found.append(_pool("", "swap", box.swap_total, free=box.swap_free))
    for parameter in ttm.parameters(bundle):
        if parameter.name == "pages_limit" and parameter.live.ok:
            found.append(_pool("", f"{parameter.module} limit", parameter.live_bytes))
    if box.cgroup_limit.ok:
        found.append(_pool("", "control group", box.cgroup_limit, box.cgroup_used))
    return tuple(found)


def _outside(bundle: Bundle) -> bool:
    """Whether the capture ran in a PID namespace of its own, where a host's PID names another
    process.
    """
    who = identity(bundle)
    return who is not None and who.init_pid_ns is False


def _holders(
    bundle: Bundle, address: str, layers: dict[str, Any], integrated: bool | None
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
            memory = sum_of([earlier.memory, memory])
        name = name.rsplit("/", 1)[-1] or (process.name if process else "")
        uid, state = (process.uid, process.state) if process else (None, "")
        note = "; ".join([HOST_PID] * (host and outside) + [note for note in notes if note])
        held[pid, source] = Holder(address, pid, name, uid, state, memory, source, note)

    for client in drm.clients(bundle):
        if client.pci == address:
            memory = client.region("vram")
            gtt = client.region("gtt")
            if integrated and memory.ok and gtt.ok:
                memory = sum_of([memory, gtt])
            others = ", ".join(str(pid) for pid in client.pids[1:])
            note = f"the same client is open in pid {others}" if others else ""
            source = "DRM fdinfo" + (" (VRAM and GTT)" if integrated else "")
            add(client.pids[0], "", memory, source, [note])
    gpu_id = layers["node"].gpu_id.value if "node" in layers else None
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
    return tuple(sorted(held.values(), key=_largest))


def _unattributed(
    bundle: Bundle, layers: dict[str, Any], integrated: bool | None, holders: tuple[Holder, ...]
) -> Reading:
    """What is in use less what processes hold; each process counts once, with the most that any
    source saw it hold.

    In a PID namespace of its own one process has another number in each source (KFD and
    nvidia-smi count the host's), so there the source that explains most stands for all.
    """
    card = layers.get("card")
    green = layers.get("nvidia")
    used = green.used if green else not_available("no layer says how much is in use", "bytes", "")
    if card and card.vram_used.ok:
        both = integrated and card.gtt_used.ok
        used = sum_of([card.vram_used, card.gtt_used][: 1 + bool(both)])
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
    return [one for one in gpu.holders if not one.memory.ok or one.memory.bytes > 0]


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
        each = one_each(holders)
        return each, [], [h for h in each if h.source == "KFD" and alive and h.pid not in alive]
    by_host = one_each(h for h in holders if h.source in HOSTS)
    prefix = "/dev/nvidia" if gpu.vendor == "NVIDIA" else "/dev/kfd"
    opened = (str(row.get("target", "")) for row in bundle.table("device_files"))
    all_seen = bundle.read("device_files").ok and not drm.refused_pids(bundle)
    elsewhere = all_seen and not any(path.startswith(prefix) for path in opened)
    inside = one_each(h for h in holders if h.source not in HOSTS)
    return inside, by_host, by_host if elsewhere else []


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
    count = nvidia.holder_count(bundle)
    if vendor == "NVIDIA" and not count.ok:
        found.append("nvidia-smi gave no process list: " + count.why)
    return tuple(found)
