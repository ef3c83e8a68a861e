"""What stands between this process and the GPUs of the box, and the exact line that removes it.

The words, the lines and their sources are data: obstacles.json. A GPU of another vendor than
the one that the failing program is about is no obstacle: sysfs shows the host's whole PCI bus
in a container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from helpers.ground.shell import is_account, word
from helpers.judge import table
from helpers.judge.visible_gpus import gpus_there, left_by_rocr, visible_count
from helpers.look import framework
from helpers.look.access import Identity, Node, access, identity
from helpers.look.bundle import Bundle
from helpers.look.environment import Variable, variables
from helpers.look.machine import machine
from helpers.look.nvidia import mig_uuids

VENDORS: dict[str, dict[str, Any]] = table("obstacles")["vendors"]
OVERFLOW_GID = 65534
AMD_NODES = ("/dev/kfd", "/dev/dri/")
KFD_RULE = 'KERNEL=="kfd", GROUP="render", MODE="0660"'
RENDER_RULE = 'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"'
"""What udev is told of AMD's nodes (70-amdgpu.rules of amdgpu-dkms; ROCm documentation, Grant GPU
access using udev rules).
"""
DISPLAY_CLASSES = ("0x03", "0x12")
"""PCI classes of displays and of processing accelerators."""


@dataclass(frozen=True)
class Obstacle:
    """One thing in the way.

    ``fix`` is a command for a person to run, never run here; empty where there is none.

    ``cause`` is one of no_gpu, no_driver, no_node, no_device, device_cgroup, group,
    group_not_in_session, group_of_root, unmapped_group, selinux, refused, variable.
    """

    path: str
    cause: str
    says: str
    fix: str
    item: str


def obstacles(bundle: Bundle, vendor: str = "") -> tuple[Obstacle, ...]:
    """Everything in the way, nodes first.

    Empty where nothing is, or where access was not captured.

    ``vendor`` (AMD, NVIDIA) is whose GPU the failing program is about; by default torch's build
    says it, and without one the vendor whose nodes are all there.
    """
    return tuple(_Obstacles(bundle, vendor).all())


class _Obstacles:
    """The obstacles of one box, by what was captured of its bus, nodes and variables."""

    def __init__(self, bundle: Bundle, vendor: str) -> None:
        self.bundle = bundle
        self.nodes = access(bundle)
        self.who = identity(bundle)
        self.drivers = _drivers_on_the_bus(bundle)
        self.vendors = self.vendors_that_count(vendor)

    def all(self) -> Iterator[Obstacle]:
        if self.bundle.read("access").ok:
            yield from self.of_nodes()
        pci = self.bundle.read("pci_devices")
        is_off_the_bus = (
            self.is_there("/dev/dxg") or "tegra" in machine(self.bundle).kernel.show()
        )
        if pci.ok and not self.drivers and not is_off_the_bus:
            yield self.obstacle("no_gpu", "", pci.item)
        yield from self.of_variables()

    def of_nodes(self) -> Iterator[Obstacle]:
        """Nodes that are missing, that may not be opened, or that do not open."""
        for name in sorted(set(self.drivers) & set(self.vendors)):
            yield from self.missing_nodes(name)
        for node in self.nodes:
            if not any(
                re.fullmatch(VENDORS[name]["node_form"], node.path)
                for name in self.vendors
            ):
                continue
            opened = node.opened
            if opened.status == "not_allowed" and not node.path.startswith(
                "/dev/dri/card"
            ):
                yield self.refused(node)
            elif opened.status == "not_available" and not node.missing:
                yield self.obstacle("no_device", node.path, opened.item, why=opened.why)

    def of_variables(self) -> Iterator[Obstacle]:
        """Variables that hide every GPU."""
        for variable in variables(self.bundle):
            # The container runtime reads NVIDIA's, and itself sets void after it has put the
            # nodes in.
            is_of_the_runtime = variable.name == "NVIDIA_VISIBLE_DEVICES"
            if is_of_the_runtime and self.is_there("/dev/nvidiactl"):
                continue
            reason = self.why_hidden(variable)
            if reason and is_of_the_runtime:
                reason = "container_variable"
            if reason:
                value = repr(variable.value)
                yield self.obstacle(reason, variable.name, variable.item, value=value)

    def why_hidden(self, variable: Variable) -> str:
        """The row of ``causes`` by which a variable hides every GPU; empty where it does not."""
        for name in self.vendors:
            hiding = VENDORS[name]["hiding_values"].get(variable.name)
            if hiding is None:
                continue
            if variable.value.strip() in hiding:
                return "variable"
            if not variable.value or variable.name == "NVIDIA_VISIBLE_DEVICES":
                continue
            uuids = gpus_there(self.bundle, name)
            if uuids and self.leaves_none(variable, name, uuids):
                return "variable_names_none"
            if name == "AMD" and variable.name != "ROCR_VISIBLE_DEVICES":
                left = left_by_rocr(self.bundle, uuids)
                if left and self.leaves_none(variable, name, left):
                    return "variable_names_none_left"
        return ""

    def leaves_none(
        self, variable: Variable, vendor: str, uuids: tuple[str, ...]
    ) -> bool:
        """Whether the variable names none of the GPUs of these UUIDs."""
        mig = mig_uuids(self.bundle)
        return visible_count(variable.value, uuids, vendor == "NVIDIA", mig) == 0

    def vendors_that_count(self, vendor: str) -> tuple[str, ...]:
        """The vendors whose obstacles count."""
        on_bus = sorted(self.drivers)
        if not vendor:
            build = framework.framework(self.bundle).build
            vendor = next(
                (
                    name
                    for name, data in VENDORS.items()
                    if data["torch_build"] == build
                ),
                "",
            )
        if vendor in VENDORS and (vendor in on_bus or not on_bus):
            return (vendor,)
        complete = tuple(name for name in on_bus if not self.lacking(name))
        return complete or tuple(VENDORS)

    def is_there(self, form: str) -> bool:
        """Whether a node of this form is there."""
        return any(
            re.fullmatch(form, node.path) and not node.missing for node in self.nodes
        )

    def lacking(self, vendor: str) -> list[str]:
        """The nodes that a vendor's GPU needs and that are not there."""
        needs = VENDORS[vendor]["needed_nodes"].items()
        return [name for name, form in needs if not self.is_there(form)]

    def missing_nodes(self, vendor: str) -> Iterator[Obstacle]:
        """The nodes that a vendor's GPU lacks, for its driver or for the container's start."""
        lacking = self.lacking(vendor)
        if not lacking:
            return
        item = self.nodes[0].opened.item if self.nodes else ""
        names = " and ".join(lacking)
        drivers = sorted(self.drivers[vendor] - {""})
        if VENDORS[vendor]["driver"] in drivers:
            yield self.obstacle("no_node", lacking[0], item, vendor, names=names)
            return
        bound = ", ".join(drivers) if drivers else "none"
        obstacle = self.obstacle(
            "no_driver", lacking[0], item, vendor, names=names, bound=bound
        )
        # A driver that somebody bound on purpose (vfio-pci, nouveau) is not ours to replace.
        if drivers:
            obstacle = replace(obstacle, fix="")
        yield obstacle

    def refused(self, node: Node) -> Obstacle:
        """A node that may not be opened."""
        booleans = table("obstacles")["selinux_booleans"].items()
        is_nvidias = node.path.startswith("/dev/nvidia")
        is_card = node.path.startswith("/dev/dri/")
        context = "" if self.who is None else self.who.selinux_context
        return self.obstacle(
            _reason(node, self.who),
            node.path,
            node.opened.item,
            vendor="NVIDIA" if is_nvidias else "AMD",
            why=node.opened.why,
            mode=node.mode,
            gid=str(node.gid),
            group=node.group or str(node.gid),
            rule=RENDER_RULE if is_card else KFD_RULE,
            context=context,
            boolean=next(name for path, name in booleans if node.path.startswith(path)),
        )

    def obstacle(
        self, reason: str, path: str, item: str, vendor: str = "AMD", **words: str
    ) -> Obstacle:
        """A row of ``causes``, its words filled in for this vendor, and its line for the host or
        for a container.
        """
        row = table("obstacles")["causes"][reason]
        data = VENDORS[vendor]
        container = ""
        where = "there is"
        fix = row["fix"]
        if self.who is not None and self.who.container != "none":
            container = self.who.container
            where = f"this {container} container has"
            fix = row.get("fix_in_container", fix)
        words = {
            **words,
            "path": path,
            "vendor": vendor,
            "driver": data["driver"],
            "log": data["log_command"],
            "start": data["container_start"].get(
                container, data["container_start"][""]
            ),
            "where": where,
            "engine": "podman" if container == "podman" else "docker",
        }
        return Obstacle(
            path=path,
            cause=row.get("cause", reason),
            says=row["says"].format_map(words),
            fix=fix.format_map({**words, "path": word(path)}),
            item=item,
        )


def _drivers_on_the_bus(bundle: Bundle) -> dict[str, set[str]]:
    """The drivers of each vendor's displays and accelerators on the bus."""
    vendor_of = {data["pci_vendor"]: name for name, data in VENDORS.items()}
    drivers: dict[str, set[str]] = {}
    for row in bundle.table("pci_devices"):
        vendor = vendor_of.get(str(row.get("vendor")))
        if vendor and str(row.get("class"))[:4] in DISPLAY_CLASSES:
            drivers.setdefault(vendor, set()).add(str(row.get("driver") or ""))
    return drivers


def _reason(node: Node, who: Identity | None) -> str:
    """Why a node may not be opened: a row of ``causes``."""
    if node.errno == "EPERM":
        return "device_cgroup"
    if who is None or node.gid is None or node.mode == "":
        return "refused"
    bits = 0
    if re.fullmatch("[0-7]{1,6}", node.mode):
        bits = int(node.mode, 8)
    if _mode_allows(node, who, bits):
        enforcing = who.selinux_context and who.selinux_mode != "permissive"
        return "selinux" if enforcing else "module"
    if (
        node.gid == OVERFLOW_GID
        and who.gid_map
        and not who.gid_map.endswith("4294967295")
    ):
        return "unmapped_group"
    if _is_roots(node) and node.path.startswith(AMD_NODES):
        return "group_of_root"
    if _is_roots(node):
        return "group_of_root_nvidia"
    if node.group and not is_account(node.group):
        return "group_without_name"
    if node.group and node.group in who.groups_in_database:
        return "group_not_in_session"
    return "group" if bits & 0o060 == 0o060 else "mode"


def _is_roots(node: Node) -> bool:
    """Whether whoever is in the node's group has root's rights, or may reach them."""
    return node.gid == 0 or node.group in table("obstacles")["groups_of_root"]


def _mode_allows(node: Node, who: Identity, bits: int) -> bool:
    """Whether the mode of a node lets this user read and write.

    Root may always, except where the node's group has no number in its user namespace.
    """
    if who.uid == 0 and node.gid != OVERFLOW_GID:
        return True
    needed = 0o006
    if node.uid == who.uid:
        needed = 0o600
    elif node.gid in [gid for gid, _ in who.groups]:
        needed = 0o060
    return bits & needed == needed
