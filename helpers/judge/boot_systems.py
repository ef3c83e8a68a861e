"""Which tool sets the parameters of a box's kernel, by its distribution (boot_systems.json)."""

from __future__ import annotations

import re
from typing import Any

from helpers.judge import table
from helpers.look.bundle import Bundle

WITH_CONFIGURATION = ("mkinitcpio", "dracut", "update-initramfs")
"""The tools of which a capture finds the configuration."""
KERNELS = {"-pve": "proxmox", "truenas": "truenas"}
"""What stands in /proc/version of a system that os-release calls by another's name."""


def boot_systems(bundle: Bundle) -> list[str]:
    """Names of what sets a kernel's parameters on this distribution, the one to prefer first, by
    os-release, the kernel and its command line; empty where the distribution is not known.

    Where the configuration of another tool that makes an initramfs lies there, that tool counts.
    """
    row = _distribution(bundle)[0]
    if row is None:
        return []
    tools = initramfs_tools(bundle)
    names = []
    for name in row["systems"]:
        usual = name.partition(" with ")[2]
        if usual in WITH_CONFIGURATION and tools and usual not in tools:
            names.append(f"modprobe.d with {tools[0]}")
        else:
            names.append(name)
    return names


def steps_by_hand(name: str) -> dict[str, Any]:
    """Where a system keeps its kernel's parameters, what to add there, and what makes it count.

    Raises KeyError for a system that is not changed by hand.
    """
    steps: dict[str, Any] = table("boot_systems")["by_hand"][name]
    return steps


def initramfs_tools(bundle: Bundle) -> list[str]:
    """The tools that make an initramfs and whose configuration was captured."""
    tools = []
    for tool, row in table("boot_systems")["initramfs"].items():
        sources = sum(map(bundle.sources, row["configuration"]), [])
        if any(bundle.read(source).ok for source in sources):
            tools.append(tool)
    return tools


def rebuild_command(tool: str) -> str:
    """How a tool makes the running kernel's boot image anew. Raises KeyError for another name."""
    return str(table("boot_systems")["initramfs"][tool]["rebuild"])


def _distribution(bundle: Bundle) -> tuple[dict[str, Any] | None, str]:
    """The row of a distribution, and by which of its names it was found."""
    for name in _names(bundle):
        for row in table("boot_systems")["distributions"]:
            if name in row["ids"]:
                return row, name
    return None, ""


def _names(bundle: Bundle) -> list[str]:
    """What a system is called, the most particular name first: by how it is booted, by its
    kernel, by ID and ID_LIKE of os-release.
    """
    fields = _os_release(bundle)
    names = []
    if "OSTREE_VERSION" in fields or re.search(
        r"(^|\s)ostree=", bundle.read("/proc/cmdline").text
    ):
        names.append("ostree")
    # Both call themselves Debian in os-release.
    version = bundle.read("/proc/version").text
    names += [name for mark, name in KERNELS.items() if mark in version]
    return [*names, fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]


def _os_release(bundle: Bundle) -> dict[str, str]:
    text = bundle.read("/etc/os-release").text
    return dict(re.findall(r"(?m)^(\w{1,40})=[\"']?([^\"'\n]{0,200})[\"']?$", text))


def remark_on_distribution(bundle: Bundle) -> str:
    """What a reader must know of lines that are another distribution's; empty where they are not."""
    row, name = _distribution(bundle)
    fields = _os_release(bundle)
    if row is None or fields.get("ID", "") in row["ids"]:
        return ""
    if name not in fields.get("ID_LIKE", "").split():
        return ""
    return f"# {shown_id(bundle)} is not in our table and is like {name}, for which these lines are"


def shown_id(bundle: Bundle) -> str:
    """The ID of a distribution, where it is one that os-release(5) allows."""
    name = _os_release(bundle).get("ID", "")
    if re.fullmatch(r"[a-z0-9._-]{1,40}", name):
        return name
    return "this system"
