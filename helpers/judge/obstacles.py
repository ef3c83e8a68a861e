"""What stands between this process and the GPUs of the box, and the exact line that removes it.

The words, the lines and their sources are data: obstacles.json. A GPU of another vendor than the one
that the failing program is about is no obstacle: sysfs shows the host's whole PCI bus in a container.
"""

from __future__ import annotations

import json
import pkgutil
import re
from dataclasses import dataclass
from typing import Any

from helpers.look.access import Identity, Node, access, identity
from helpers.look.bundle import Bundle
from helpers.look.environment import variables
from helpers.look.framework import framework
from helpers.look.gpus import gpus
from helpers.look.kfd import nodes as kfd_nodes
from helpers.look.parts import APU, CARD, Listed, device_list

_DATA: dict[str, Any] = json.loads(pkgutil.get_data("helpers", "obstacles.json") or b"{}")
VENDORS: dict[str, dict[str, Any]] = _DATA["vendors"]
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


@dataclass(frozen=True)
class DeviceAdvice:
    """The line that leaves a program the card and not the processor's small GPU; ``precondition`` is what to check first."""

    command: str
    says: str
    precondition: str


def _obstacle(reason: str, path: str, item: str, inside: bool = False, **words: str) -> Obstacle:
    data = _DATA["causes"][reason]
    fix = data.get("fix_inside", data["fix"]) if inside else data["fix"]
    cause = "refused" if reason in ("module", "mode") else reason
    return Obstacle(
        path, cause, data["says"].format(path=path, **words), fix.format(path=path, **words), item
    )


def obstacles(bundle: Bundle, vendor: str = "") -> tuple[Obstacle, ...]:
    """Everything in the way, nodes first. Empty where nothing is, or where access was not captured.

    ``vendor`` (AMD, NVIDIA) is whose GPU the failing program is about; by default torch's build says
    it, and without one the vendor whose nodes are all there.
    """
    nodes, who = access(bundle), identity(bundle)
    known = {data["pci"]: name for name, data in VENDORS.items()}
    on_bus: dict[str, list[dict[str, Any]]] = {}
    for row in bundle.table("pci_devices"):
        if str(row.get("vendor")) in known and str(row.get("class"))[:4] in ("0x03", "0x12"):
            on_bus.setdefault(known[str(row["vendor"])], []).append(row)
    meant = _meant(bundle, vendor, sorted(on_bus), nodes)
    found: list[Obstacle] = []
    if bundle.read("access").ok:
        for name in (name for name in sorted(on_bus) if name in meant):
            found += _missing(name, on_bus[name], nodes, who)
        for node in nodes:
            if not any(re.fullmatch(VENDORS[name]["nodes"], node.path) for name in meant):
                continue
            if node.opened.status == "not_allowed" and not node.path.startswith("/dev/dri/card"):
                found.append(_refused(node, who))
            elif node.opened.status == "not_available" and not node.missing:
                why = node.opened.why
                found.append(_obstacle("no_device", node.path, node.opened.item, why=why))
    pci = bundle.read("pci_devices")
    dxg = any(node.path == "/dev/dxg" and not node.missing for node in nodes)
    if pci.ok and not on_bus and not dxg:
        found.append(_obstacle("no_gpu", "", pci.item))
    return tuple(found + _hidden(bundle, nodes, meant))


def _meant(
    bundle: Bundle, vendor: str, on_bus: list[str], nodes: tuple[Node, ...]
) -> tuple[str, ...]:
    """The vendors whose obstacles count."""
    build = framework(bundle).build
    said = vendor or next((n for n, data in VENDORS.items() if data["build"] == build), "")
    if said in VENDORS and (said in on_bus or not on_bus):
        return (said,)
    works = tuple(name for name in on_bus if not _lacks(name, nodes))
    return works or tuple(VENDORS)


def _lacks(vendor: str, nodes: tuple[Node, ...]) -> list[str]:
    present = [node.path for node in nodes if not node.missing]
    needs = VENDORS[vendor]["needs"].items()
    return [n for n, form in needs if not any(re.fullmatch(form, path) for path in present)]


def _missing(
    vendor: str, found: list[dict[str, Any]], nodes: tuple[Node, ...], who: Identity | None
) -> list[Obstacle]:
    lacks = _lacks(vendor, nodes)
    if not lacks:
        return []
    item = nodes[0].opened.item if nodes else ""
    drivers = sorted({str(row.get("driver") or "") for row in found} - {""})
    driver, names = VENDORS[vendor]["driver"], " and ".join(lacks)
    if driver not in drivers:
        bound = ", ".join(drivers) or "none"
        words = {"vendor": vendor, "driver": driver, "bound": bound, "names": names}
        made = _obstacle("no_driver", lacks[0], item, **words)
        # A driver that somebody bound on purpose (vfio-pci, nouveau) is not ours to replace.
        return [Obstacle(made.path, made.cause, made.says, made.fix if not drivers else "", item)]
    container = "none" if who is None else who.container
    inside = container != "none"
    where = f"this {container} container has" if inside else "there is"
    words = {"where": where, "log": VENDORS[vendor]["log"], "start": _start(vendor, container)}
    return [_obstacle("no_node", lacks[0], item, inside, vendor=vendor, names=names, **words)]


def _start(vendor: str, container: str) -> str:
    lines: dict[str, str] = VENDORS[vendor]["start"]
    return lines.get(container, lines[""])


def _refused(node: Node, who: Identity | None) -> Obstacle:
    inside = who is not None and who.container != "none"
    container = who.container if who is not None and inside else ""
    group = str(node.group or node.gid)
    reason = "refused"
    bits = int(node.mode, 8) if re.fullmatch("[0-7]{1,6}", node.mode) else 0
    if node.errno == "EPERM":
        reason = "device_cgroup"
    elif who is None or node.gid is None or node.mode == "":
        pass
    elif _mode_allows(node, who, bits):
        enforcing = who.selinux_context and who.selinux_mode != "permissive"
        reason = "selinux" if enforcing else "module"
    elif node.gid == OVERFLOW_GID and who.gid_map and not who.gid_map.endswith("4294967295"):
        reason = "unmapped_group"
    elif node.group and node.group in who.groups_in_database:
        reason = "group_not_in_session"
    else:
        reason = "group" if bits & 0o060 == 0o060 else "mode"
    vendor = "NVIDIA" if node.path.startswith("/dev/nvidia") else "AMD"
    return _obstacle(
        reason,
        node.path,
        node.opened.item,
        inside,
        why=node.opened.why,
        mode=node.mode,
        group=group,
        gid=str(node.gid),
        context=who.selinux_context if who else "",
        engine="podman" if container == "podman" else "docker",
        start=_start(vendor, container),
        boolean=_boolean(node.path),
    )


def _mode_allows(node: Node, who: Identity, bits: int) -> bool:
    # Root may always, except where the node's group has no number in its user namespace.
    if who.uid == 0 and node.gid != OVERFLOW_GID:
        return True
    if node.uid == who.uid:
        return bits & 0o600 == 0o600
    if node.gid in [gid for gid, _ in who.groups]:
        return bits & 0o060 == 0o060
    return bits & 0o006 == 0o006


def _boolean(path: str) -> str:
    if path.startswith("/dev/nvidia"):
        return "container_use_xserver_devices"
    return "container_use_dri_devices" if path.startswith("/dev/dri/") else "container_use_devices"


def _hidden(bundle: Bundle, nodes: tuple[Node, ...], meant: tuple[str, ...]) -> list[Obstacle]:
    found = []
    for v in variables(bundle):
        if not any(v.value.strip() in VENDORS[n]["hiding"].get(v.name, ()) for n in meant):
            continue
        made = _obstacle("variable", v.name, v.item, value=repr(v.value))
        if v.name == "NVIDIA_VISIBLE_DEVICES":
            # The container runtime reads this one, and itself sets void after it has put the nodes in.
            if any(node.path == "/dev/nvidiactl" and not node.missing for node in nodes):
                continue
            fix = "docker run -e NVIDIA_VISIBLE_DEVICES=all ..."
            made = Obstacle(made.path, made.cause, made.says, fix, made.item)
        found.append(made)
    return found


def device_advice(bundle: Bundle | None = None, listing: str = "") -> DeviceAdvice | None:
    """Which visible-device line leaves the AMD card alone, by a captured or a posted list of devices.

    None where no list names both a card and a processor's GPU under an index: no index is guessed.
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
    cards = [row for row in listed if row.kind == CARD and row.vendor == "AMD"]
    small = [row for row in listed if row.kind == APU and row.vendor == "AMD"]
    if not cards or not small:
        return None
    indices = ",".join(str(row.index) for row in cards)
    names = " and ".join(f"device {row.index} is {row.name}" for row in (*small, *cards))
    return DeviceAdvice(
        f"HIP_VISIBLE_DEVICES={indices} COMMAND...",
        f"{names}: leave the program the card.",
        "the list was made without HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES",
    )
