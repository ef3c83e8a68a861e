"""Which tool sets the parameters of a box's kernel, by its distribution (boot_systems.json)."""

from __future__ import annotations

import re
from typing import Any

from helpers.judge import table
from helpers.look.bundle import Bundle

WITH_CONFIGURATION = ("mkinitcpio", "dracut", "update-initramfs")
"""The tools of which a capture finds the configuration."""
KERNELS = {"-pve": "proxmox", "truenas": "truenas"}
"""Words in /proc/version, and the distribution that they show: its os-release says Debian."""


def boot_systems(bundle: Bundle) -> list[str]:
    """Names of what sets a kernel's parameters on this distribution, the one to prefer first;
    empty where the distribution is not known.

    A name such as "modprobe.d with dracut" has the tool that makes the initramfs. Where the box
    has only the configuration of another such tool, that one counts.
    """
    row, _name = _distribution(bundle)
    if row is None:
        return []
    tools = initramfs_tools(bundle)
    names = []
    for name in row["systems"]:
        _, _, usual = name.partition(" with ")
        if usual in WITH_CONFIGURATION and tools and usual not in tools:
            names.append(f"modprobe.d with {tools[0]}")
        else:
            names.append(name)
    return names


def steps_by_hand(name: str) -> dict[str, Any]:
    """Where a system keeps its kernel's parameters (``place``), what to ``add`` there, ``then``
    the commands that make it count, and ``notes``.

    Raises KeyError for a system that is not changed by hand.
    """
    steps: dict[str, Any] = table("boot_systems")["by_hand"][name]
    return steps


def initramfs_tools(bundle: Bundle) -> list[str]:
    """The tools that make an initramfs and whose configuration was captured."""
    tools = []
    for tool, row in table("boot_systems")["initramfs"].items():
        sources: list[str] = []
        for pattern in row["configuration"]:
            sources += bundle.sources(pattern)
        if any(bundle.read(source).ok for source in sources):
            tools.append(tool)
    return tools


def rebuild_command(tool: str) -> str:
    """The command by which a tool makes the boot image of the running kernel anew.

    Raises KeyError for a tool that boot_systems.json does not have.
    """
    return str(table("boot_systems")["initramfs"][tool]["rebuild"])


def _distribution(bundle: Bundle) -> tuple[dict[str, Any] | None, str]:
    """The row of a distribution, and the name by which it was found; None and "" for none."""
    for name in _names(bundle):
        for row in table("boot_systems")["distributions"]:
            if name in row["ids"]:
                return row, name
    return None, ""


def _names(bundle: Bundle) -> list[str]:
    """The names of a system, the most particular first: by how it is booted, by its kernel, by
    ID and ID_LIKE of os-release.
    """
    fields = _os_release(bundle)
    names = []
    is_booted_by_ostree = re.search(r"(^|\s)ostree=", bundle.read("/proc/cmdline").text)
    if "OSTREE_VERSION" in fields or is_booted_by_ostree:
        names.append("ostree")
    version = bundle.read("/proc/version").text
    names += [name for mark, name in KERNELS.items() if mark in version]
    return [*names, fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]


def _os_release(bundle: Bundle) -> dict[str, str]:
    """The fields of /etc/os-release (os-release(5)), without their quotation marks."""
    text = bundle.read("/etc/os-release").text
    return dict(re.findall(r"(?m)^(\w{1,40})=[\"']?([^\"'\n]{0,200})[\"']?$", text))


def remark_on_distribution(bundle: Bundle) -> str:
    """A comment for commands that are of another distribution, which this one says it is like;
    empty where the table has this one.
    """
    row, name = _distribution(bundle)
    fields = _os_release(bundle)
    if row is None or fields.get("ID", "") in row["ids"]:
        return ""
    # Found by how it is booted or by its kernel, not by a distribution that it is like.
    if name not in fields.get("ID_LIKE", "").split():
        return ""
    return f"# {shown_id(bundle)} is not in our table and is like {name}, for which these lines are"


def shown_id(bundle: Bundle) -> str:
    """The ID of a distribution, where it has only characters that os-release(5) allows."""
    name = _os_release(bundle).get("ID", "")
    if re.fullmatch(r"[a-z0-9._-]{1,40}", name):
        return name
    return "this system"
