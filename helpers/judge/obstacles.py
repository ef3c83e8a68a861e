"""What stands between this process and the GPUs of the box, and the exact line that removes it.

The words, the lines and their sources are data: obstacles.json. A GPU of another vendor than the one
that the failing program is about is no obstacle: sysfs shows the host's whole PCI bus in a container.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from helpers.judge import table
from helpers.look.access import Identity, Node, access, identity
from helpers.look.bundle import Bundle
from helpers.look.environment import variables
from helpers.look.framework import framework
from helpers.look.gpus import gpus
from helpers.look.kfd import nodes as kfd_nodes
from helpers.look.parts import APU, CARD, Listed, device_list

VENDORS: dict[str, dict[str, Any]] = table("obstacles")["vendors"]
OVERFLOW_GID = 65534


@dataclass(frozen=True)
class Obstacle:
    """One thing in the way. ``fix`` is a command for a person to run, never run here; empty where there is none.

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
    """A row of ``causes``, its words filled in for this vendor, and its line for the host or for a container."""
    data, of = table("obstacles")["causes"][reason], VENDORS[vendor]
    inside = who.container if who is not None and who.container != "none" else ""
    words.update(path=path, vendor=vendor, driver=of["driver"], log=of["log"])
    words.update(start=of["start"].get(inside, of["start"][""]))
    words["where"] = f"this {inside} container has" if inside else "there is"
    words["engine"] = "podman" if inside == "podman" else "docker"
    fix = data.get("fix_inside", data["fix"]) if inside else data["fix"]
    cause = data.get("cause", reason)
    return Obstacle(path, cause, data["says"].format(**words), fix.format(**words), item)


def obstacles(bundle: Bundle, vendor: str = "") -> tuple[Obstacle, ...]:
    """Everything in the way, nodes first. Empty where nothing is, or where access was not captured.

    ``vendor`` (AMD, NVIDIA) is whose GPU the failing program is about; by default torch's build says
    it, and without one the vendor whose nodes are all there.
    """
    nodes, who, pci = access(bundle), identity(bundle), bundle.read("pci_devices")
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
            why, item = node.opened.why, node.opened.item
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
    build = framework(bundle).build
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
    item, names = nodes[0].opened.item if nodes else "", " and ".join(lacks)
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
    """The line that leaves a program the AMD card and not the APU beside it, by a captured or a posted list of devices.

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
