"""What stands between this process and the GPUs of the box, and the exact line that removes it.

Sources for the lines: ROCm and NVIDIA container documentation, podman-run(1) (keep-groups), container-selinux booleans (#278,
#306), clr rocdevice.cpp and ROCr flag.h for what an empty or negative visibility variable means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helpers.look.access import Identity, Node, access, identity
from helpers.look.bundle import Bundle
from helpers.look.environment import variables

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA"}
DRIVERS = {"AMD": "amdgpu", "NVIDIA": "nvidia"}
# What a program opens; the card nodes of /dev/dri are for screens.
NEEDED = {"AMD": ("/dev/kfd", "/dev/dri/renderD"), "NVIDIA": ("/dev/nvidiactl", "/dev/nvidia0")}
OVERFLOW_GID = 65534
HIDING = {"CUDA_VISIBLE_DEVICES": ("", "-1"), "HIP_VISIBLE_DEVICES": ("-1",), "ROCR_VISIBLE_DEVICES": ("", "-1"),
          "GPU_DEVICE_ORDINAL": ("-1",), "NVIDIA_VISIBLE_DEVICES": ("", "void", "none")}


@dataclass(frozen=True)
class Obstacle:
    """One thing in the way. ``fix`` is a command for a person to run, never run here; it is empty where there is none.

    ``cause`` is one of no_gpu, no_driver, no_node, no_device, device_cgroup, group, group_not_in_session, unmapped_group,
    selinux, refused, variable.
    """

    path: str
    cause: str
    says: str
    fix: str
    item: str


def obstacles(bundle: Bundle) -> tuple[Obstacle, ...]:
    """Everything in the way, nodes first. Empty where nothing is, or where access was not captured."""
    nodes, who = access(bundle), identity(bundle)
    gpus = [row for row in bundle.table("pci_devices")
            if str(row.get("vendor")) in VENDORS and str(row.get("class"))[:4] in ("0x03", "0x12")]
    found: list[Obstacle] = []
    if bundle.read("access").ok:
        for vendor in sorted({VENDORS[row["vendor"]] for row in gpus}):
            found += _missing(vendor, [row for row in gpus if VENDORS[row["vendor"]] == vendor], nodes, who)
        found += [_refused(node, who) for node in nodes
                  if node.opened.status == "not_allowed" and not node.path.startswith("/dev/dri/card")]
        found += [Obstacle(node.path, "no_device", f"{node.path} is there and does not open: {node.opened.why}",
                           "sudo dmesg | grep -iE 'amdgpu|kfd|nvidia|nvrm'", node.opened.item)
                  for node in nodes if node.opened.status == "not_available" and not node.missing]
    pci = bundle.read("pci_devices")
    if pci.ok and not gpus and not any(node.path == "/dev/dxg" and not node.missing for node in nodes):
        found.append(Obstacle("", "no_gpu", "the PCI bus shows no AMD or NVIDIA display or accelerator", "", pci.item))
    return tuple(found + _hidden(bundle, nodes))


def _missing(vendor: str, gpus: list[dict[str, Any]], nodes: tuple[Node, ...], who: Identity | None) -> list[Obstacle]:
    item = nodes[0].opened.item if nodes else ""
    lacks = [path for path in NEEDED[vendor] if not any(n.path.startswith(path) and not n.missing for n in nodes)]
    if not lacks:
        return []
    drivers = sorted({str(row.get("driver") or "") for row in gpus})
    names, path = " and ".join(lacks), lacks[0]
    module = DRIVERS[vendor]
    if module not in drivers:
        bound = ", ".join(d for d in drivers if d) or "none"
        says = f"the {vendor} GPU has not the driver {module} (it has {bound}), so there is no {names}"
        fix = f"sudo modprobe {module}; sudo dmesg | grep -i {module}" if bound == "none" else ""
        return [Obstacle(path, "no_driver", says, fix, item)]
    if who is None or who.container == "none":
        fix = "sudo modprobe nvidia-uvm; nvidia-smi" if vendor == "NVIDIA" else "sudo dmesg | grep -iE 'kfd|amdgpu'"
        return [Obstacle(path, "no_node", f"the {vendor} driver is bound and there is no {names}", fix, item)]
    return [Obstacle(path, "no_node", f"the {vendor} driver is bound and this {who.container} container has no {names}",
                     _start_with(vendor, who.container), item)]


def _start_with(vendor: str, container: str) -> str:
    amd = vendor == "AMD"
    if container == "kubernetes":
        return f"resources: {{limits: {{{'amd.com/gpu' if amd else 'nvidia.com/gpu'}: 1}}}}"
    if container == "lxc":
        return "lxc config device add CONTAINER gpu gpu"
    if container == "apptainer":
        return "apptainer exec --rocm ..." if amd else "apptainer exec --nv ..."
    engine = "podman" if container == "podman" else "docker"
    if amd:
        return f"{engine} run --device=/dev/kfd --device=/dev/dri ..."
    return f"{engine} run --device nvidia.com/gpu=all ..." if engine == "podman" else "docker run --gpus all ..."


def _refused(node: Node, who: Identity | None) -> Obstacle:
    def because(cause: str, says: str, fix: str) -> Obstacle:
        return Obstacle(node.path, cause, f"{node.path} may not be opened: {says}", fix, node.opened.item)

    inside = who is not None and who.container != "none"
    engine = "podman" if inside and who is not None and who.container == "podman" else "docker"
    if node.errno == "EPERM":
        vendor = "NVIDIA" if node.path.startswith("/dev/nvidia") else "AMD"
        return because("device_cgroup", "the container's list of devices leaves it out (EPERM)",
                       _start_with(vendor, who.container if who and inside else "docker"))
    if who is None or node.gid is None or node.mode == "":
        return because("refused", node.opened.why, "")
    if _mode_allows(node, who):
        if who.selinux_context and who.selinux_mode != "permissive":
            return because("selinux", f"the mode would allow it, SELinux does not ({who.selinux_context})",
                           f"sudo setsebool -P {_boolean(node.path)}=true" if inside else "sudo ausearch -m AVC -ts recent")
        return because("refused", f"mode {node.mode} would allow it; a security module or a nodev mount does not", "")
    named = f"group {node.group or node.gid}"
    if node.gid == OVERFLOW_GID and who.gid_map and not who.gid_map.endswith("4294967295"):
        return because("unmapped_group", "its group has no number in this user namespace",
                       "podman run --group-add keep-groups ..." if inside else "")
    if node.group and node.group in who.groups_in_database:
        return because("group_not_in_session", f"the user is in {named} by /etc/group and this session began before",
                       f"newgrp {node.group}   (or log out and in again; a service or a container: restart it)")
    if _bits(node) & 0o060 != 0o060:
        return because("refused", f"mode {node.mode} gives its group no access", "ls -l " + node.path)
    fix = f"sudo usermod -aG {node.group or node.gid} $USER   (then log out and in)"
    return because("group", f"mode {node.mode}, and this process is not in {named}",
                   f"{engine} run --group-add {node.gid} ..." if inside else fix)


def _bits(node: Node) -> int:
    try:
        return int(node.mode, 8)
    except ValueError:
        return 0


def _mode_allows(node: Node, who: Identity) -> bool:
    bits = _bits(node)
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


def _hidden(bundle: Bundle, nodes: tuple[Node, ...]) -> list[Obstacle]:
    found = []
    for v in variables(bundle):
        if v.value.strip() not in HIDING.get(v.name, ()):
            continue
        fix = f"unset {v.name}"
        if v.name == "NVIDIA_VISIBLE_DEVICES":
            # The container runtime reads this one, and itself sets void after it has put the nodes in.
            if any(node.path == "/dev/nvidiactl" and not node.missing for node in nodes):
                continue
            fix = "docker run -e NVIDIA_VISIBLE_DEVICES=all ..."
        found.append(Obstacle(v.name, "variable", f"{v.name}={v.value!r} hides every GPU from what reads it", fix, v.item))
    return found
