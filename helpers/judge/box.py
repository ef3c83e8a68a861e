"""What a captured box shows: access, the build, holders and the kernel's log; not ceilings, not
settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.ground.shapes import Reading, seen
from helpers.ground.units import MIB, show_bytes
from helpers.judge import owner, table
from helpers.judge.ceilings import ceilings
from helpers.judge.evidence import CaseEvidence, Observation, note, observation_name, vendor_of
from helpers.judge.owner import account
from helpers.look import framework, kernel_log
from helpers.look.access import Identity, Node, access, identity, variables
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus, numbered_by_host
from helpers.look.kfd import nodes as kfd_nodes
from helpers.look.machine import machine
from helpers.look.message import Message
from helpers.look.parts import APU, CARD, Listed, device_list
from helpers.look.processes import processes

OBSTACLES = dict(
    no_gpu="no-gpu", no_driver="no-driver", no_device="no-driver", variable="gpus-hidden"
)
TOTALS = ("sysfs VRAM", "nvidia-smi")


def box_observations(bundle: Bundle, messages: tuple[Message, ...] = ()) -> list[Observation]:
    """Every observation of a box. ``messages`` tell which holder is the failing program itself."""
    found = gpus(bundle)
    rows = [*_access(bundle, found, messages), *_build(bundle, found)]
    rows += [*_holders(bundle, found, messages), *_kernel(bundle)]
    made_up = {word for item in bundle.items if item.constructed for word in (item.id, item.source)}
    return [replace(o, filled=bool({o.reading.item, o.reading.source} & made_up)) for o in rows]


def layer_observations(bundle: Bundle, name: str) -> Iterator[Observation]:
    """The layers that the decision about a box's ceilings was made from, each with its reading,
    under the decision's name.
    """
    filled = {item.id for item in bundle.items if item.constructed}
    stack = ceilings(bundle)[0]
    layers = table("ceilings")["layers"]
    for row in stack.rows:
        if row.layer and layers[row.layer]["says"] and row.value.ok:
            says = f"{row.name}, {layers[row.layer]['says']}"
            if row.layer == stack.decision.binding:
                says += ": this one binds"
            elif row.layer == "gtt" and stack.decision.pattern == "gttsize_only":
                says += "; compute programs do not follow it"
            yield Observation(name, row.value, says, "bundle", filled=row.value.item in filled)


def _row(name: str, reading: Reading, says: str, proof: bool = False) -> Observation:
    return Observation(name, reading, says, "bundle", True, proof)


def _access(
    bundle: Bundle, found: tuple[Gpu, ...], messages: tuple[Message, ...]
) -> Iterator[Observation]:
    for way in obstacles(bundle, vendor_of(messages)):
        if way.cause == "no_gpu" and found:
            continue  # the bus list is incomplete: another layer sees a GPU
        short = way.path or "none"
        reading = seen(short, "text", way.path or "pci_devices", way.item)
        name = OBSTACLES.get(way.cause, "access-refused")
        says = way.says[:1].upper() + way.says[1:]
        yield _row(name, reading, says, name in ("no-gpu", "no-driver"))
    who = identity(bundle)
    if who is not None and who.container not in ("", "none"):
        inside = seen(who.container, "text", "identity", who.item)
        yield _row("in-container", inside, "The look was taken inside a container")


def _build(bundle: Bundle, found: tuple[Gpu, ...]) -> Iterator[Observation]:
    build = framework.framework(bundle)
    vendors = {gpu.vendor for gpu in found} - {"Intel"}
    wanted = {"rocm": "AMD", "cuda": "NVIDIA"}.get(build.build)
    if build.build and vendors and wanted not in vendors:
        here = " and ".join(sorted(vendors))
        says = f"torch is built for {wanted or 'the CPU alone'}; {here} is here"
        yield _row("build-without-this-gpu", build.version, says, True)
    for gpu in found:
        gfx = gpu.indices.get("gfx", "")
        bare = {arch.split(":")[0] for arch in build.archs}
        # LLVM's generic targets: gfx11-generic, gfx10-3-generic; gfx950 is of gfx9-4-generic
        # (its AMDGPUUsage page).
        family = gfx[:-2]
        minor = "4" if gfx == "gfx950" else gfx[-2:-1]
        runs = {gfx, f"{family}-generic", f"{family}-{minor}-generic"}
        if build.build == "rocm" and gfx and bare and not bare & runs:
            says = f"torch is built for {', '.join(sorted(bare))}"[:179]
            yield _row("gfx-not-in-targets", seen(gfx, "text", "torch", build.version.item), says)


def _holders(
    bundle: Bundle, found: tuple[Gpu, ...], messages: tuple[Message, ...]
) -> Iterator[Observation]:
    books = [a for a in map(account, messages) if a.own or a.message.allocated]
    ours = [range_ for a in books if (range_ := owner.own_range(a.own, a.held))]
    for gpu in found:
        pools = [pool for pool in gpu.pools if pool.layer in TOTALS]
        total = next((pool.total for pool in pools if pool.total.ok), None)
        rooms = [one for one in (gpu.pools if gpu.integrated else pools) if one.free.ok]
        for pool in sorted(rooms, key=lambda one: -one.total.bytes)[:1]:
            says = f"Free on {gpu.pci}, of {pool.total.show()}, says {pool.layer}"
            yield _row("free:" + gpu.pci, pool.free, says)
        for used in [pool.used for pool in pools if pool.used.ok][:1]:
            if gpu.unattributed.ok and not gpu.integrated:
                yield from _unattributed(gpu, used.bytes)
        for holder in gpu.holders:
            size = holder.memory.bytes
            named = not numbered_by_host(holder)
            if holder.state == "Z" and size > owner.UNEXPLAINED_BYTES:
                says = f"pid {holder.pid} is a zombie and holds this much"
                yield _row("zombie-holder", holder.memory, says, True)
            elif total and named and owner.is_another(size, total.bytes, ours):
                says = f"pid {holder.pid} ({holder.name}) holds this much of {total.show()}"
                yield _row("other-holder-measured", holder.memory, says, True)
    for process in processes(bundle):
        if process.state == "Z" and any(process.pid == h.pid for gpu in found for h in gpu.holders):
            says = f"{process.name} is a zombie with the device open"
            yield _row("zombie-listed", seen(process.pid, "count", "processes"), says)


def _unattributed(gpu: Gpu, in_use: int) -> Iterator[Observation]:
    rest = gpu.unattributed
    place = "identity, device_files"
    says = f"In use on {gpu.pci}, and held by no process that is seen here"
    if not owner.is_unexplained(rest.bytes, in_use):
        yield _row("explained", rest, f"{says}: too little to matter")
        return
    yield _row("unattributed", rest, says)
    for spot in gpu.blind_spots:
        yield _row("blind-spot", seen(spot, "text", place), "The holder may be hidden from here")
    if not gpu.blind_spots:
        yield _row("all-processes-seen", seen("all", "text", place), "Every process was looked at")


def _kernel(bundle: Bundle) -> Iterator[Observation]:
    """One row for each kind of line since the last boot, with how often it stands there; the
    last line is shown.
    """
    kinds: dict[str, list[kernel_log.Event]] = {}
    for event in kernel_log.events(bundle):
        if event.boot == 0:
            kinds.setdefault(event.row, []).append(event)
    for kind, events in kinds.items():
        rule = kernel_log.rule(kind)
        last = events[-1]
        name = observation_name(rule.side, rule.event)
        times = sum(e.count for e in events)
        if name:
            words = seen(last.text[:400] or last.kind, "text", last.source)
            often = f"{times} lines of this kind; this is the last" if times > 1 else "this line"
            says = f"The kernel log holds {often}"
            proof = name in ("killed", "kernel-leak")
            yield _row(name, words, says, proof)
    kills = machine(bundle).cgroup_oom_kills
    if kills.bytes > 0:
        yield _row("killed", kills, "The control group's limit killed this many processes", True)


# What a memory snapshot of torch shows of a failure: its blocks, its out-of-memory event, and
# what grows.
#
# The segments of a snapshot are the state after its last event. What they were at the
# out-of-memory event is reckoned back over the events in between
# (torch/csrc/cuda/memory_snapshot.cpp: alloc, free_completed, segment_alloc, segment_free, map,
# unmap).

if TYPE_CHECKING:  # its packages are not the standard library's
    from helpers.allocator.growth import Growth
    from helpers.allocator.snapshot import Snapshot

GROWN = {"alloc": 1, "free_completed": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True)
class Moment:
    """The allocator at the out-of-memory event: bytes allocated, reserved and free on the
    device, and what was asked for.

    ``largest_bytes`` is the largest unused block, known where nothing happened between the
    event and the end.
    """

    request_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    largest_bytes: int | None
    where: str


def evidence_from_snapshot(path: str | Path) -> CaseEvidence:
    """Evidence of a snapshot file.

    Raises allocator.trace.TraceError, one line, where it is none; runs no code of it.
    """
    from helpers.allocator.snapshot import load

    return CaseEvidence(snapshot=load(path))


def moment(snapshot: Snapshot) -> Moment | None:
    """The allocator at the last out-of-memory event; None where the recording has none."""
    failed = [at for at, event in enumerate(snapshot.events) if event.action == "oom"]
    if not failed:
        return None
    event = snapshot.events[failed[-1]]
    later = snapshot.events[failed[-1] + 1 :]
    blocks = [block for segment in snapshot.segments for block in segment.blocks]
    allocated = sum(block.size for block in blocks if block.state != "I")
    reserved = sum(segment.size for segment in snapshot.segments)
    for one in later:
        allocated -= GROWN.get(one.action, 0) * one.size
        reserved -= RESERVED.get(one.action, 0) * one.size
    changed = any(one.action in GROWN or one.action in RESERVED for one in later)
    idle = [block.size for block in blocks if block.state == "I"]
    largest = None if changed else max(idle, default=0)
    where = snapshot.frames[event.frame][0] if event.frame >= 0 else ""
    return Moment(event.size, event.address, allocated, reserved, largest, where)


def snapshot_observations(snapshot: Snapshot) -> list[Observation]:
    """What the blocks decide, and what grows."""
    found: list[Observation] = []

    def say(name: str, size: int, proof: bool = False, **words: str | int) -> None:
        found.append(note(name, size, "memory snapshot", "snapshot", "", True, proof, **words))

    say("snapshot-reserved", sum(segment.size for segment in snapshot.segments))
    m = moment(snapshot)
    if m is not None:
        stranded = m.reserved_bytes - m.allocated_bytes
        request = show_bytes(m.request_bytes)
        free = show_bytes(m.device_free_bytes)
        say("snapshot-oom", m.request_bytes, where=m.where or "an unknown call site", free=free)
        lacks = m.allocated_bytes + m.request_bytes - m.reserved_bytes - m.device_free_bytes
        if lacks > 0:
            say("blocks-full", m.allocated_bytes, request=request, lacks=show_bytes(lacks))
        elif stranded >= m.request_bytes > m.device_free_bytes:
            most = m.largest_bytes
            if most is None or most < m.request_bytes:
                largest = show_bytes(most)
                say("blocks-stranded", stranded, most is not None, largest=largest, request=request)
    grown = _grown(snapshot)
    if grown is not None:
        first, last = grown.window
        for one in grown.growers[:3]:
            size = round(one.bytes_per_step * (last - first))
            if size >= MIB:
                say("snapshot-grows", size, where=one.site.name, steps=last - first)
    return found


def _grown(snapshot: Snapshot) -> Growth | None:
    from helpers.allocator.growth import grown
    from helpers.allocator.rewind import rewind
    from helpers.allocator.trace import TraceError

    try:
        return grown(rewind(snapshot))
    except TraceError:  # segments alone, or events that contradict each other: nothing to count
        return None


# What stands between this process and the GPUs of the box, and the exact line that removes it.
#
# The words, the lines and their sources are data: obstacles.json. A GPU of another vendor than
# the one that the failing program is about is no obstacle: sysfs shows the host's whole PCI bus
# in a container.

VENDORS: dict[str, dict[str, Any]] = table("obstacles")["vendors"]
OVERFLOW_GID = 65534


@dataclass(frozen=True)
class Obstacle:
    """One thing in the way.

    ``fix`` is a command for a person to run, never run here; empty where there is none.

    ``cause`` is one of no_gpu, no_driver, no_node, no_device, device_cgroup, group,
    group_not_in_session, unmapped_group, selinux, refused, variable.
    """

    path: str
    cause: str
    says: str
    fix: str
    item: str


def _obstacle(
    reason: str, path: str, item: str, who: Identity | None, vendor: str = "AMD", **words: str
) -> Obstacle:
    """A row of ``causes``, its words filled in for this vendor, and its line for the host or
    for a container.
    """
    data = table("obstacles")["causes"][reason]
    of = VENDORS[vendor]
    inside = who.container if who is not None and who.container != "none" else ""
    words.update(path=path, vendor=vendor, driver=of["driver"], log=of["log"])
    words.update(start=of["start"].get(inside, of["start"][""]))
    words["where"] = f"this {inside} container has" if inside else "there is"
    words["engine"] = "podman" if inside == "podman" else "docker"
    fix = data.get("fix_inside", data["fix"]) if inside else data["fix"]
    cause = data.get("cause", reason)
    return Obstacle(path, cause, data["says"].format(**words), fix.format(**words), item)


def obstacles(bundle: Bundle, vendor: str = "") -> tuple[Obstacle, ...]:
    """Everything in the way, nodes first.

    Empty where nothing is, or where access was not captured.

    ``vendor`` (AMD, NVIDIA) is whose GPU the failing program is about; by default torch's build
    says it, and without one the vendor whose nodes are all there.
    """
    nodes = access(bundle)
    who = identity(bundle)
    pci = bundle.read("pci_devices")
    # The drivers of each vendor's displays and accelerators on the bus.
    drivers: dict[str, set[str]] = {}
    for row in bundle.table("pci_devices"):
        made_by = [name for name, data in VENDORS.items() if data["pci"] == str(row.get("vendor"))]
        if made_by and str(row.get("class"))[:4] in ("0x03", "0x12"):
            drivers.setdefault(made_by[0], set()).add(str(row.get("driver") or ""))
    meant = _meant(bundle, vendor, sorted(drivers), nodes)
    found: list[Obstacle] = []
    if bundle.read("access").ok:
        for name in sorted(set(drivers) & set(meant)):
            found += _missing(name, sorted(drivers[name] - {""}), nodes, who)
        for node in nodes:
            if not any(re.fullmatch(VENDORS[name]["nodes"], node.path) for name in meant):
                continue
            why = node.opened.why
            item = node.opened.item
            if node.opened.status == "not_allowed" and not node.path.startswith("/dev/dri/card"):
                found.append(_refused(node, who))
            elif node.opened.status == "not_available" and not node.missing:
                found.append(_obstacle("no_device", node.path, item, who, why=why))
    if pci.ok and not drivers and not _is_there(nodes, "/dev/dxg"):
        found.append(_obstacle("no_gpu", "", pci.item, who))
    for v in variables(bundle):
        hides = any(v.value.strip() in VENDORS[name]["hiding"].get(v.name, ()) for name in meant)
        # The container runtime reads NVIDIA's, and itself sets void after it has put the nodes in.
        runtimes = v.name == "NVIDIA_VISIBLE_DEVICES"
        if hides and not (runtimes and _is_there(nodes, "/dev/nvidiactl")):
            reason = "container_variable" if runtimes else "variable"
            found.append(_obstacle(reason, v.name, v.item, who, value=repr(v.value)))
    return tuple(found)


def _is_there(nodes: tuple[Node, ...], form: str) -> bool:
    return any(re.fullmatch(form, node.path) and not node.missing for node in nodes)


def _meant(
    bundle: Bundle, vendor: str, on_bus: list[str], nodes: tuple[Node, ...]
) -> tuple[str, ...]:
    """The vendors whose obstacles count."""
    build = framework.framework(bundle).build
    said = vendor or next((n for n, data in VENDORS.items() if data["build"] == build), "")
    if said in VENDORS and (said in on_bus or not on_bus):
        return (said,)
    return tuple(name for name in on_bus if not _lacks(name, nodes)) or tuple(VENDORS)


def _lacks(vendor: str, nodes: tuple[Node, ...]) -> list[str]:
    needs = VENDORS[vendor]["needs"].items()
    return [name for name, form in needs if not _is_there(nodes, form)]


def _missing(
    vendor: str, drivers: list[str], nodes: tuple[Node, ...], who: Identity | None
) -> list[Obstacle]:
    lacks = _lacks(vendor, nodes)
    if not lacks:
        return []
    item = nodes[0].opened.item if nodes else ""
    names = " and ".join(lacks)
    if VENDORS[vendor]["driver"] in drivers:
        return [_obstacle("no_node", lacks[0], item, who, vendor, names=names)]
    bound = ", ".join(drivers) or "none"
    made = _obstacle("no_driver", lacks[0], item, who, vendor, names=names, bound=bound)
    # A driver that somebody bound on purpose (vfio-pci, nouveau) is not ours to replace.
    return [replace(made, fix="") if drivers else made]


def _refused(node: Node, who: Identity | None) -> Obstacle:
    vendor = "NVIDIA" if node.path.startswith("/dev/nvidia") else "AMD"
    words = {"why": node.opened.why, "mode": node.mode, "gid": str(node.gid)}
    words.update(group=node.group or str(node.gid), context=who.selinux_context if who else "")
    booleans = table("obstacles")["booleans"].items()
    words["boolean"] = next(name for path, name in booleans if node.path.startswith(path))
    return _obstacle(_reason(node, who), node.path, node.opened.item, who, vendor, **words)


def _reason(node: Node, who: Identity | None) -> str:
    """Why a node may not be opened: a row of ``causes``."""
    if node.errno == "EPERM":
        return "device_cgroup"
    if who is None or node.gid is None or node.mode == "":
        return "refused"
    bits = int(node.mode, 8) if re.fullmatch("[0-7]{1,6}", node.mode) else 0
    # Root may always, except where the node's group has no number in its user namespace.
    always = who.uid == 0 and node.gid != OVERFLOW_GID
    mine = 0o060 if node.gid in [gid for gid, _ in who.groups] else 0o006
    needed = 0o600 if node.uid == who.uid else mine
    if always or bits & needed == needed:
        enforcing = who.selinux_context and who.selinux_mode != "permissive"
        return "selinux" if enforcing else "module"
    if node.gid == OVERFLOW_GID and who.gid_map and not who.gid_map.endswith("4294967295"):
        return "unmapped_group"
    if node.group and node.group in who.groups_in_database:
        return "group_not_in_session"
    return "group" if bits & 0o060 == 0o060 else "mode"


def visible_devices(bundle: Bundle | None = None, listing: str = "") -> str:
    """The line that leaves a program the AMD card and not the APU beside it, by a captured or a
    posted list of devices.

    Empty where no list names both a card and a processor's GPU under an index: no index is guessed.
    """
    listed = list(device_list(listing)) if listing else []
    if bundle is not None and not listed:
        ranks = [node.pci for node in kfd_nodes(bundle) if node.pci]
        for gpu in gpus(bundle):
            index = gpu.indices.get("torch") or gpu.indices.get("HIP") or ""
            if not index and gpu.pci in ranks:
                index = str(ranks.index(gpu.pci))  # HIP counts in the order of KFD's GPU nodes
            if index.isdigit() and gpu.vendor == "AMD" and gpu.integrated is not None:
                kind = APU if gpu.integrated else CARD
                listed.append(Listed(int(index), gpu.name.show(), kind, gpu.vendor))
    cards = [str(row.index) for row in listed if row.kind == CARD and row.vendor == "AMD"]
    small = any(row.kind == APU and row.vendor == "AMD" for row in listed)
    return f"HIP_VISIBLE_DEVICES={','.join(cards)} COMMAND..." if cards and small else ""
