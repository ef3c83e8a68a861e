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
"""The group that the kernel shows for one without a number in the user namespace
(/proc/sys/kernel/overflowgid).
"""
WHOLE_GID_MAP = "4294967295"
"""How /proc/self/gid_map ends where it maps every number, outside of a user namespace."""
READ_AND_WRITE = 0o6
"""The bits of a mode that let somebody read and write: once for others, by 8 for the group, by 64
for the owner (chmod(2)).
"""
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
    """One thing that keeps the process from a GPU: ``path`` is a node or the name of a variable.

    ``fix`` is a command for a person to run, never run here; empty where there is none. ``item``
    is the item of the bundle that shows it. ``cause`` is one of no_gpu, no_driver, no_node,
    no_device, device_cgroup, group, group_not_in_session, group_of_root, unmapped_group, selinux,
    refused, variable.
    """

    path: str
    cause: str
    says: str
    fix: str
    item: str


def obstacles(bundle: Bundle, vendor: str = "") -> tuple[Obstacle, ...]:
    """Every obstacle of a box, those of nodes first; empty where access was not captured.

    ``vendor`` (AMD, NVIDIA) is that of the GPU that the failing program uses. By default it is
    the vendor of torch's build, without such a build those whose nodes are all there.
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
        """Every obstacle, those of nodes first."""
        if self.bundle.read("access").ok:
            yield from self.of_nodes()
        pci = self.bundle.read("pci_devices")
        # The GPU of a Tegra is no PCI device, nor is that of WSL.
        is_tegra = "tegra" in machine(self.bundle).kernel.show()
        is_off_the_bus = is_tegra or self.is_there("/dev/dxg")  # WSL's node
        if pci.ok and not self.drivers and not is_off_the_bus:
            yield self.obstacle("no_gpu", "", pci.item)
        yield from self.of_variables()

    def of_nodes(self) -> Iterator[Obstacle]:
        """Nodes that are missing, that may not be opened, or that do not open."""
        for name in sorted(set(self.drivers) & set(self.vendors)):
            yield from self.missing_nodes(name)
        forms = [VENDORS[name]["node_form"] for name in self.vendors]
        for node in self.nodes:
            if not any(re.fullmatch(form, node.path) for form in forms):
                continue
            opened = node.opened
            is_of_display = node.path.startswith("/dev/dri/card")  # compute needs none
            if opened.status == "not_allowed" and not is_of_display:
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
        """The row of ``causes`` in obstacles.json by which a variable hides every GPU; empty where
        it does not.
        """
        for name in self.vendors:
            hiding = VENDORS[name]["hiding_values"].get(variable.name)
            if hiding is None:
                continue
            if variable.value.strip() in hiding:
                return "variable"
            # The values of NVIDIA_VISIBLE_DEVICES are the container runtime's, and are not counted
            # as CUDA counts.
            if not variable.value or variable.name == "NVIDIA_VISIBLE_DEVICES":
                continue
            uuids = gpus_there(self.bundle, name)
            if uuids and self.leaves_none(variable, name, uuids):
                return "variable_names_none"
            # HIP's variables count what ROCR_VISIBLE_DEVICES has left, not what is there.
            if name == "AMD" and variable.name != "ROCR_VISIBLE_DEVICES":
                left = left_by_rocr(self.bundle, uuids)
                if left and self.leaves_none(variable, name, left):
                    return "variable_names_none_left"
        return ""

    def leaves_none(
        self, variable: Variable, vendor: str, uuids: tuple[str, ...]
    ) -> bool:
        """Whether the variable names none of the GPUs with these UUIDs."""
        mig = mig_uuids(self.bundle)
        repeats_hide_all = vendor == "NVIDIA"
        return visible_count(variable.value, uuids, repeats_hide_all, mig) == 0

    def vendors_that_count(self, vendor: str) -> tuple[str, ...]:
        """The vendors whose obstacles count: the given one or that of torch's build, else those on
        the bus whose nodes are all there, else all.
        """
        on_bus = sorted(self.drivers)
        if not vendor:  # the message tells none: torch's build does, if it is there
            by_build = {data["torch_build"]: name for name, data in VENDORS.items()}
            vendor = by_build.get(framework.framework(self.bundle).build, "")
        if vendor in VENDORS and (vendor in on_bus or not on_bus):
            return (vendor,)
        # A vendor whose nodes are all there was meant to be used; another may be only on the bus.
        complete = [name for name in on_bus if not self.lacking(name)]
        if not complete:
            return tuple(VENDORS)
        return tuple(complete)

    def is_there(self, form: str) -> bool:
        """Whether the box has a node whose path has this form."""
        present = [node.path for node in self.nodes if not node.missing]
        return any(re.fullmatch(form, path) for path in present)

    def lacking(self, vendor: str) -> list[str]:
        """The nodes that a vendor's GPU needs and the box does not have."""
        needs = VENDORS[vendor]["needed_nodes"].items()
        return [name for name, form in needs if not self.is_there(form)]

    def missing_nodes(self, vendor: str) -> Iterator[Obstacle]:
        """The nodes that a vendor's GPU lacks: its driver was not bound, or the container was
        started without them.
        """
        lacking = self.lacking(vendor)
        if not lacking:
            return
        item = ""
        if self.nodes:
            item = self.nodes[0].opened.item
        names = " and ".join(lacking)
        drivers = sorted(self.drivers[vendor] - {""})
        if VENDORS[vendor]["driver"] in drivers:
            yield self.obstacle("no_node", lacking[0], item, vendor, names=names)
            return
        bound = "none"
        if drivers:
            bound = ", ".join(drivers)
        obstacle = self.obstacle(
            "no_driver", lacking[0], item, vendor, names=names, bound=bound
        )
        # A driver that somebody bound on purpose (vfio-pci, nouveau) is not ours to replace.
        if drivers:
            obstacle = replace(obstacle, fix="")
        yield obstacle

    def refused(self, node: Node) -> Obstacle:
        """A node that may not be opened."""
        vendor = "AMD"
        if node.path.startswith("/dev/nvidia"):
            vendor = "NVIDIA"
        rule = KFD_RULE
        if node.path.startswith("/dev/dri/"):
            rule = RENDER_RULE
        context = ""
        if self.who is not None:
            context = self.who.selinux_context
        gid = str(node.gid)
        group = node.group
        if not group:
            group = gid
        booleans = table("obstacles")["selinux_booleans"].items()
        return self.obstacle(
            _reason(node, self.who),
            node.path,
            node.opened.item,
            vendor=vendor,
            why=node.opened.why,
            mode=node.mode,
            gid=gid,
            group=group,
            rule=rule,
            context=context,
            boolean=next(name for path, name in booleans if node.path.startswith(path)),
        )

    def obstacle(
        self, reason: str, path: str, item: str, vendor: str = "AMD", **words: str
    ) -> Obstacle:
        """The row ``reason`` of ``causes`` in obstacles.json, its gaps filled in for this vendor
        and with ``words``; its command is for the host, or for the container that the process is
        in.
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
        engine = "docker"
        if container == "podman":
            engine = "podman"
        starts = data["container_start"]
        words = {
            **words,
            "path": path,
            "vendor": vendor,
            "driver": data["driver"],
            "log": data["log_command"],
            "start": starts.get(container, starts[""]),
            "where": where,
            "engine": engine,
        }
        return Obstacle(
            path=path,
            cause=row.get("cause", reason),
            says=row["says"].format_map(words),
            fix=fix.format_map({**words, "path": word(path)}),
            item=item,
        )


def _drivers_on_the_bus(bundle: Bundle) -> dict[str, set[str]]:
    """The drivers of each vendor's displays and accelerators on the bus, "" for one that has
    none.
    """
    vendor_of = {data["pci_vendor"]: name for name, data in VENDORS.items()}
    drivers: dict[str, set[str]] = {}
    for row in bundle.table("pci_devices"):
        vendor = vendor_of.get(str(row.get("vendor")))
        if vendor and str(row.get("class")).startswith(DISPLAY_CLASSES):
            drivers.setdefault(vendor, set()).add(row.text("driver"))
    return drivers


def _reason(node: Node, who: Identity | None) -> str:
    """Why a node may not be opened: a row of ``causes`` in obstacles.json."""
    if node.errno == "EPERM":  # a mode or a group gives EACCES
        return "device_cgroup"
    if who is None or node.gid is None or node.mode == "":
        return "refused"
    bits = 0
    if re.fullmatch("[0-7]{1,6}", node.mode):
        bits = int(node.mode, 8)
    # The mode lets this user in, and yet the node did not open: a security module refused it.
    if _mode_allows(node, who, bits):
        if who.selinux_context and who.selinux_mode != "permissive":
            return "selinux"
        return "module"
    is_mapped_in_part = who.gid_map and not who.gid_map.endswith(WHOLE_GID_MAP)
    if node.gid == OVERFLOW_GID and is_mapped_in_part:
        return "unmapped_group"
    return _reason_by_group(node, who, bits)


def _reason_by_group(node: Node, who: Identity, bits: int) -> str:
    """Why the group of a node keeps this user out: a row of ``causes`` in obstacles.json.

    It is root's group (of which nobody should become a member), it has no name here, the user is
    a member since the last login (``not_in_session``), the user is no member (``group``), or the
    mode lets not even members read and write (``mode``).
    """
    if _is_roots(node) and node.path.startswith(AMD_NODES):
        return "group_of_root"
    if _is_roots(node):
        return "group_of_root_nvidia"
    if node.group and not is_account(node.group):
        return "group_without_name"
    if node.group and node.group in who.groups_in_database:
        return "group_not_in_session"
    for_group = READ_AND_WRITE << 3
    if bits & for_group == for_group:
        return "group"
    return "mode"


def _is_roots(node: Node) -> bool:
    """Whether the members of a node's group have root's rights, or may get them."""
    return node.gid == 0 or node.group in table("obstacles")["groups_of_root"]


def _mode_allows(node: Node, who: Identity, bits: int) -> bool:
    """Whether the mode of a node, as ``bits``, lets this user read and write.

    Root may always, except where the node's group has no number in its user namespace.
    """
    if who.uid == 0 and node.gid != OVERFLOW_GID:
        return True
    # The owner's bits count for the owner alone, the group's for members, the rest for others.
    needed = READ_AND_WRITE
    if node.uid == who.uid:
        needed = READ_AND_WRITE << 6
    elif node.gid in [gid for gid, _ in who.groups]:
        needed = READ_AND_WRITE << 3
    return bits & needed == needed
