"""The processes that hold memory of a GPU, as every source lists them (fdinfo, KFD, vendor tools),
and which processes the capture could not see.
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
"""The sources that list processes by the host's numbers. In a container, whose PID namespace has
numbers of its own, the same number is another process.
"""


@dataclass(frozen=True)
class Holder:
    """A process that holds device memory, according to one source.

    ``state`` is the kernel's letter, such as Z for a zombie. ``note`` says what is unusual about
    it. ``gpu_instance`` is that of its MIG device; empty on a card without MIG.
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
    """Each process once, by the source with the most memory for it; the largest first, those that
    were not measured last.
    """
    first: dict[int, Holder] = {}
    for holder in sorted(holders, key=_largest):
        first.setdefault(holder.pid, holder)
    return list(first.values())


def _largest(holder: Holder) -> tuple[int, int, str]:
    """A sort key: the most memory first, those without a measured size last."""
    if holder.memory.ok:
        return -holder.memory.bytes, holder.pid, holder.source
    return 1, holder.pid, holder.source


def is_outside(bundle: Bundle) -> bool:
    """Whether the capture ran in a PID namespace of its own, as in a container."""
    who = identity(bundle)
    return who is not None and who.init_pid_ns is False


class _Holders:
    """Collects the holders of one GPU: ``by_source`` has each by its number and source."""

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
        """Add a process as one source lists it; if the source lists it twice, the sizes add up."""
        process = self.processes.get(pid)
        if self.is_outside and source in NUMBERED_BY_HOST:
            # The process that has this number here is another one.
            process = None
            note = "; ".join(filter(None, [HOST_PID, note]))
        earlier = self.by_source.get((pid, source))
        if earlier and earlier.memory.ok and memory.ok:
            memory = sum_of([earlier.memory, memory])
        name = name.rsplit("/", 1)[-1]
        uid = None
        state = ""
        if process:
            uid = process.uid
            state = process.state
            if not name:
                name = process.name
        self.by_source[pid, source] = Holder(
            pci=self.address,
            pid=pid,
            name=name,
            uid=uid,
            state=state,
            memory=memory,
            source=source,
            note=note,
            gpu_instance=gpu_instance,
        )


def holders_of(
    bundle: Bundle, address: str, layers: Layers, integrated: bool | None
) -> tuple[Holder, ...]:
    """The holders of the GPU at a PCI address according to every source, the largest first. A
    process that several sources list is there several times.
    """
    holders = _Holders(bundle, address)
    _add_drm_clients(holders, integrated=bool(integrated))
    if layers.node and layers.node.gpu_id.ok:
        _add_kfd_processes(holders, layers.node.gpu_id.bytes)
    for holder in nvidia.holders(bundle):
        if holder.pci == address:
            note = ""
            if holder.gpu_instance:
                note = f"GPU instance {holder.gpu_instance}"
            holders.add(
                pid=holder.pid,
                memory=holder.memory,
                source="nvidia-smi",
                name=holder.name,
                note=note,
                gpu_instance=holder.gpu_instance,
            )
    # amd-smi lists processes once more: only those count that the kernel's own lists lack.
    listed = {pid for pid, _ in holders.by_source}
    for smi in rocm.processes(bundle):
        if smi.pci == address and smi.pid not in listed:
            holders.add(smi.pid, smi.vram, "amd-smi", name=smi.name)
    return tuple(sorted(holders.by_source.values(), key=_largest))


def _add_drm_clients(holders: _Holders, integrated: bool) -> None:
    """Add the processes of the kernel's DRM clients. On an APU their memory is in VRAM, the
    carve-out, and in GTT.
    """
    source = "DRM fdinfo"
    if integrated:
        source = "DRM fdinfo (VRAM and GTT)"
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
    """Add the processes that KFD lists for the GPU with that number. One that holds 0 bytes of it
    is added, too: it keeps the device open.
    """
    for process in kfd.processes(holders.bundle):
        vram = process.vram.get(gpu_id)
        if vram is None:
            continue
        note = ""
        if vram.ok and vram.value == 0:
            note = "only opened the device"
        holders.add(process.pid, vram, "KFD", note=note)


def unattributed(
    bundle: Bundle, layers: Layers, integrated: bool | None, holders: tuple[Holder, ...]
) -> Reading:
    """The memory in use that no process holds, in bytes; without a value where the use is not
    known, or where what some process holds was not measured. Each process counts once, by the
    source with the most memory for it.

    In a PID namespace of its own, the sources have different numbers for a process (KFD and
    nvidia-smi use the host's); then only the source with the most memory in all counts.
    """
    used = _used(layers, integrated)
    if not used.ok:
        return used
    measured = [holder for holder in holders if holder.memory.ok]
    measured_pids = {holder.pid for holder in measured}
    unmeasured_pids = {holder.pid for holder in holders} - measured_pids
    if unmeasured_pids:
        why = f"what {len(unmeasured_pids)} process(es) hold was not measured"
        return not_available(why, "bytes", used.source, used.item)
    if is_outside(bundle):
        held_by_source: Counter[str] = Counter()
        for holder in measured:
            held_by_source[holder.source] += holder.memory.bytes
        held_bytes = max(held_by_source.values(), default=0)
    else:
        held_bytes = sum(holder.memory.bytes for holder in one_each(measured))
    rest = max(0, used.bytes - held_bytes)
    return seen(rest, "bytes", f"{used.source} less the processes above", used.item)


def _used(layers: Layers, integrated: bool | None) -> Reading:
    """The bytes in use on a GPU; of an APU in both places where its memory can be."""
    card = layers.card
    if card and card.vram_used.ok:
        if integrated and card.gtt_used.ok:
            return sum_of([card.vram_used, card.gtt_used])
        return card.vram_used
    if layers.nvidia:
        return layers.nvidia.used
    return not_available("no layer says how much is in use", "bytes", "")


def holding(holders: Iterable[Holder]) -> list[Holder]:
    """The holders without those of 0 bytes, which only opened the device (ROCm#4411). One that was
    not measured may hold memory.
    """
    return [
        holder for holder in holders if not holder.memory.ok or holder.memory.bytes > 0
    ]


def numbered_by_host(holder: Holder) -> bool:
    """Whether its number is the host's, while the capture ran in a PID namespace of its own."""
    return holder.note.startswith(HOST_PID)


def in_sight(
    bundle: Bundle, vendor: str, listed: Iterable[Holder]
) -> tuple[list[Holder], list[Holder], list[Holder]]:
    """(matched, by_host, elsewhere): the holders of a GPU, each once, that can be matched with
    processes in /proc; those that only have a number of the host's; and those of either that are
    certainly not among the processes in /proc.

    In a PID namespace of its own, those that KFD and nvidia-smi list have the host's numbers. They
    are elsewhere if every open file could be read and no process here has the GPU open.
    """
    holders = holding(listed)
    if not is_outside(bundle):
        alive = {process.pid for process in processes.processes(bundle)}
        matched = one_each(holders)
        gone = []
        if alive:  # else the capture could not list processes
            gone = [h for h in matched if h.source == "KFD" and h.pid not in alive]
        return matched, [], gone
    matched = one_each(h for h in holders if h.source not in NUMBERED_BY_HOST)
    by_host = one_each(h for h in holders if h.source in NUMBERED_BY_HOST)
    device = "/dev/kfd"
    if vendor == "NVIDIA":
        device = "/dev/nvidia"
    opened = [row.text("target") for row in bundle.table("device_files")]
    all_seen = bundle.read("device_files").ok and not drm.refused_pids(bundle)
    if not all_seen or any(path.startswith(device) for path in opened):
        return matched, by_host, []
    return matched, by_host, by_host


def blind_spots(bundle: Bundle, vendor: str) -> tuple[str, ...]:
    """Which holders the capture could not see, and why, a clause for each reason."""
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
