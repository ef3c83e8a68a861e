"""Who holds memory of a GPU, by every source that lists processes, and who cannot be seen from
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.ground.shapes import Reading, not_available, seen, sum_of
from helpers.look.access import identity
from helpers.look.bundle import Bundle

from . import drm, kfd, nvidia, processes, rocm
from .layers import Layers

HOST_PID = "a host PID"
NUMBERED_BY_HOST = ("KFD", "nvidia-smi", "amd-smi")
"""These list processes by the host's numbers, which name others inside a PID namespace."""


@dataclass(frozen=True)
class Holder:
    """A process that holds device memory, as one source saw it.

    ``note`` says what is odd (a zombie, a host PID). ``gpu_instance`` is that of the MIG device
    that it runs in; empty on a card that is not cut.
    """

    pci: str
    pid: int
    name: str
    uid: int | None
    state: str
    memory: Reading
    source: str
    note: str
    gpu_instance: str = ""


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


def is_outside(bundle: Bundle) -> bool:
    """Whether the capture ran in a PID namespace of its own, where a host's PID names another
    process.
    """
    who = identity(bundle)
    return who is not None and who.init_pid_ns is False


class _Holders:
    """The holders of one GPU, gathered source by source."""

    def __init__(self, bundle: Bundle, address: str):
        self.bundle = bundle
        self.address = address
        self.processes = {
            process.pid: process for process in processes.processes(bundle)
        }
        self.is_outside = is_outside(bundle)
        self.by_source: dict[tuple[int, str], Holder] = {}

    def add(
        self,
        pid: int,
        memory: Reading,
        source: str,
        name: str = "",
        note: str = "",
        gpu_instance: str = "",
    ) -> None:
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
            gpu_instance=gpu_instance,
        )


def holders_of(
    bundle: Bundle, address: str, layers: Layers, integrated: bool | None
) -> tuple[Holder, ...]:
    """Who holds memory of the GPU at a PCI address, by every source, the largest first."""
    holders = _Holders(bundle, address)
    _add_drm_clients(holders, integrated=bool(integrated))
    if layers.node and layers.node.gpu_id.ok:
        _add_kfd_processes(holders, layers.node.gpu_id.bytes)
    for holder in nvidia.holders(bundle):
        if holder.pci == address:
            instance = holder.gpu_instance
            holders.add(
                pid=holder.pid,
                memory=holder.memory,
                source="nvidia-smi",
                name=holder.name,
                note=f"GPU instance {instance}" if instance else "",
                gpu_instance=instance,
            )
    listed = {pid for pid, _ in holders.by_source}
    for smi in rocm.processes(bundle):
        if smi.pci == address and smi.pid not in listed:
            holders.add(smi.pid, smi.vram, "amd-smi", name=smi.name)
    return tuple(sorted(holders.by_source.values(), key=_largest))


def _add_drm_clients(holders: _Holders, integrated: bool) -> None:
    """Those of the DRM's fdinfo; an APU's have their memory in two places."""
    source = "DRM fdinfo (VRAM and GTT)" if integrated else "DRM fdinfo"
    for client in drm.clients(holders.bundle):
        if client.pci != holders.address:
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


def _add_kfd_processes(holders: _Holders, gpu_id: int) -> None:
    """Those of KFD on the GPU with that number."""
    for process in kfd.processes(holders.bundle):
        vram = process.vram.get(gpu_id)
        if vram is not None:
            is_idle = vram.ok and vram.value == 0
            note = "only opened the device" if is_idle else ""
            holders.add(process.pid, vram, "KFD", note=note)


def unattributed(
    bundle: Bundle, layers: Layers, integrated: bool | None, holders: tuple[Holder, ...]
) -> Reading:
    """What is in use less what processes hold; each process counts once, with the most that any
    source saw it hold.

    In a PID namespace of its own one process has another number in each source (KFD and
    nvidia-smi count the host's), so there the source that explains most stands for all.
    """
    card = layers.card
    used = not_available("no layer says how much is in use", "bytes", "")
    if card and card.vram_used.ok:
        sizes = [card.vram_used]
        if integrated and card.gtt_used.ok:
            sizes.append(card.gtt_used)
        used = sum_of(sizes)
    elif layers.nvidia:
        used = layers.nvidia.used
    if not used.ok:
        return used
    measured = [holder for holder in holders if holder.memory.ok]
    unmeasured = {holder.pid for holder in holders} - {
        holder.pid for holder in measured
    }
    if unmeasured:
        why = f"what {len(unmeasured)} process(es) hold was not measured"
        return not_available(why, "bytes", used.source, used.item)
    by_source: Counter[str] = Counter()
    for holder in measured:
        by_source[holder.source] += holder.memory.bytes
    explained = sum(holder.memory.bytes for holder in one_each(measured))
    if is_outside(bundle):
        explained = max(by_source.values(), default=0)
    rest = max(0, used.bytes - explained)
    return seen(rest, "bytes", f"{used.source} less the processes above", used.item)


def holding(holders: Iterable[Holder]) -> list[Holder]:
    """Those that hold something of a GPU, as far as that was measured; one with nothing only
    opened it (ROCm#4411).
    """
    return [
        holder for holder in holders if not holder.memory.ok or holder.memory.bytes > 0
    ]


def numbered_by_host(holder: Holder) -> bool:
    """Whether its number is the host's, which here, in another PID namespace, names another
    process or none.
    """
    return holder.note.startswith(HOST_PID)


def in_sight(
    bundle: Bundle, vendor: str, listed: Iterable[Holder]
) -> tuple[list[Holder], list[Holder], list[Holder]]:
    """Each holder of a GPU once: those that can be matched with /proc, those that only the host's lists
    name, and who is elsewhere.

    In a PID namespace of its own KFD and nvidia-smi number processes as the host does, so they
    cannot be matched with those in /proc; whom they name is elsewhere where all could be looked
    at and none here has the GPU open.
    """
    holders = holding(listed)
    who = identity(bundle)
    if who is None or who.init_pid_ns is not False:
        alive = {process.pid for process in processes.processes(bundle)}
        matched = one_each(holders)
        gone = [
            h for h in matched if h.source == "KFD" and alive and h.pid not in alive
        ]
        return matched, [], gone
    by_host = one_each(h for h in holders if h.source in NUMBERED_BY_HOST)
    prefix = "/dev/nvidia" if vendor == "NVIDIA" else "/dev/kfd"
    opened = (str(row.get("target", "")) for row in bundle.table("device_files"))
    all_seen = bundle.read("device_files").ok and not drm.refused_pids(bundle)
    elsewhere = all_seen and not any(path.startswith(prefix) for path in opened)
    inside = one_each(h for h in holders if h.source not in NUMBERED_BY_HOST)
    if not elsewhere:
        return inside, by_host, []
    return inside, by_host, by_host


def blind_spots(bundle: Bundle, vendor: str) -> tuple[str, ...]:
    """Which holders cannot be seen from where the capture ran, and why."""
    spots = []
    who = identity(bundle)
    if is_outside(bundle):
        spots.append(
            "processes outside this container's PID namespace are not in its /proc"
        )
    if who is not None and who.hidepid not in ("", "0"):
        spots.append(
            "/proc is mounted with hidepid: processes of other users are not in it"
        )
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
