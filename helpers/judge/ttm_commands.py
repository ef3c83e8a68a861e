"""What a person would run to set the TTM limit on each boot system, how to undo it and how to
verify it.

Printed, never run. Every block may be run again without harm. Setting pages_limit alone is
enough; the blocks also take away what earlier attempts left: amdgpu.gttsize (deprecated, moves
only graphics' GTT), amdgpu.vm_size (GiB of address space) and page_pool_size (a cache). Our
modprobe.d file is named so that it is read last; the kernel command line still wins over it
(modprobe.d(5)).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, List, Tuple

from helpers.ground import shell
from helpers.ground.shapes import TtmCommand, TtmPlan
from helpers.ground.units import GIB
from helpers.judge import table
from helpers.look import ttm as parameters
from helpers.look.bundle import Bundle

CONF = "/etc/modprobe.d/zz-ttm-limit.conf"
GRUB = "/etc/default/grub"
GRUB_CONF = "/etc/default/grub.d/zz-ttm-limit.cfg"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
TTM_MODULES = ("ttm", "amdttm", "amd_ttm")
ROOM = "  # Make the running kernel's boot image anew; it needs room (df -h /boot)"
DRACUT = f"sudo dracut --force{ROOM}"
UPDATE_INITRAMFS = f'sudo update-initramfs -u -k "$(uname -r)"{ROOM}'
MKINITCPIO = f'sudo mkinitcpio -p "$(cat "/usr/lib/modules/$(uname -r)/pkgbase")"{ROOM}'
DRACUT_REBUILD = (
    "sudo dracut-rebuild  # Or reinstall-kernels; all need room (df -h /boot)"
)
KERNEL_INSTALL = f'sudo kernel-install add "$(uname -r)" "/usr/lib/modules/$(uname -r)/vmlinuz"{ROOM}'
"""Only the running kernel's initramfs is made anew where the tool can do that: the others keep one
to fall back to, and a small /boot is not filled half way.
"""
TRANSACTIONAL = "sudo transactional-update initrd  # A new snapshot, for the next boot"
PROXMOX = f"{UPDATE_INITRAMFS}\nsudo proxmox-boot-tool refresh"
AMD_TTM_NOTES = (
    "# it says GB and means GiB; it overwrites /etc/modprobe.d/ttm.conf",
    "# it knows the module ttm only, not amdttm, and not the kernel command line (ROCm#5562)",
    "# off Debian and Ubuntu it does not rebuild the initramfs: do that yourself, as for modprobe.d",
)
NOT_KNOWN = "your system's own tool"
TOOLS = {
    "mkinitcpio": ("/etc/mkinitcpio.conf", "/etc/mkinitcpio.conf.d/*.conf"),
    "dracut": ("/etc/dracut.conf", "/etc/dracut.conf.d/*.conf"),
    "update-initramfs": ("/etc/initramfs-tools/modules",),
}
"""Tools that make an initramfs, and the configuration that a capture finds of each."""
TOOL_NAMES = (
    *TOOLS,
    "transactional-update",
    "proxmox-boot-tool",
    "grubby",
    "update-grub",
)
KERNELS = {"-pve": "proxmox", "truenas": "truenas"}
"""What stands in /proc/version of a system that os-release calls by another's name."""
Lines = Tuple[List[str], List[str]]  # made when imported, also on Python 3.8
"""The lines of a block, and those of its undo."""


@dataclass(frozen=True)
class LimitChange:
    """What is to be changed on a box.

    ``arguments`` of the kernel command line are to be there and ``before`` are there; ``drop``
    are the names that go, ``files`` the modprobe.d files with stale settings, quoted for a
    shell. ``resets``: a limit that was set goes, and none takes its place.
    """

    box: str
    is_live: bool
    pages: int | None
    page_bytes: int
    module: str
    modules: list[str]
    arguments: list[str]
    before: list[str]
    drop: list[str]
    files: list[str]
    resets: bool

    @property
    def old(self) -> list[str]:
        """The arguments that are only there before."""
        return [argument for argument in self.before if argument not in self.arguments]

    @property
    def new(self) -> list[str]:
        """The arguments that are only there after."""
        return [argument for argument in self.arguments if argument not in self.before]

    @property
    def gib(self) -> int:
        """The limit in whole GiB, as AMD's tools take it."""
        return (self.pages or 0) * self.page_bytes // GIB

    @property
    def patterns(self) -> str:
        """The names that go, as a pattern of sed."""
        return "|".join(name.replace(".", r"\.") for name in self.drop)


def commands(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> list[TtmCommand]:
    """The blocks for this box's boot system first, then AMD's own tools.

    Empty where nothing needs doing. A distribution that is not known gets the mechanism with a
    question, and every block behind it.
    """
    change = change_of(bundle, plan, page_bytes)
    if change is None:
        return []
    names = systems(bundle)
    if is_built_in(bundle, change.module):
        names = [name for name in names if not name.startswith(("modprobe.d", "amd-"))]
    names = names or [NOT_KNOWN, *SYSTEMS]
    check = "\n".join(_check(change))
    remark = _remark(bundle)
    blocks = []
    for name in names:
        run, undo = _lines(name, change, bundle)
        if run and remark and name == names[0]:
            run = [remark, *run]
        if run:
            blocks.append(TtmCommand(name, "\n".join(run), "\n".join(undo), check))
    return blocks


def _lines(name: str, change: LimitChange, bundle: Bundle) -> Lines:
    """The lines of a block and of its undo."""
    if name == NOT_KNOWN:
        return _mechanism(change, bundle)
    if name in SYSTEMS:
        return SYSTEMS[name](change)
    return _by_hand(change, table("ttm")["by_hand"][name])


def change_of(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> LimitChange | None:
    """What the plan changes on a box; None where nothing needs doing."""
    configured, cmdline = parameters.settings(bundle)
    used = parameters.ttm_module(bundle)
    # Ubuntu's OEM kernels and DKMS have both modules: then both get the value, and only the one
    # in use reads it.
    modules = [m for m in TTM_MODULES if m == used.value or _has_folder(bundle, m)] or [
        "ttm"
    ]
    pages = plan.pages_limit if plan.action == "set" else None
    gone = {stale.name for stale in stale_settings(bundle)}
    if plan.action != "leave":
        limits = [s for s in configured + cmdline if s.name == "pages_limit"]
        gone |= {f"{setting.module}.{setting.name}" for setting in limits}
    if pages is None and not gone:
        return None
    touched = {s.source for s in configured if f"{s.module}.{s.name}" in gone} - {CONF}
    arguments = [f"{module}.pages_limit={pages}" for module in modules if pages]
    drop = sorted(gone | {argument.partition("=")[0] for argument in arguments})
    before: dict[str, None] = {}
    for setting in cmdline:
        if f"{setting.module}.{setting.name}" in drop:
            before[f"{setting.module}.{setting.name}={setting.value}"] = None
    return LimitChange(
        box=bundle.box,
        is_live=bundle.kind == "live",
        pages=pages,
        page_bytes=page_bytes,
        module=str(used.value or "ttm"),
        modules=modules,
        arguments=arguments,
        before=list(before),
        drop=drop,
        files=[
            shell.word(path) for path in sorted(touched) if path.startswith("/etc/")
        ],
        resets=pages is None and any(name.endswith(".pages_limit") for name in drop),
    )


@dataclass(frozen=True)
class StaleSetting:
    """A setting that earlier advice leaves behind and that does not raise the pool: its name,
    value and place, and why it should go.
    """

    name: str
    value: str
    place: str
    why: str


def stale_settings(bundle: Bundle) -> list[StaleSetting]:
    """The settings of a box that earlier advice left behind."""
    reasons = table("ttm")["stale"]
    stale = []
    for setting in parameters.all_settings(bundle):
        if setting.name not in reasons:
            continue
        if setting.name == "page_pool_size" or setting.module == "amdgpu":
            name = f"{setting.module}.{setting.name}"
            place = f"{setting.source}:{setting.line}"
            stale.append(
                StaleSetting(name, setting.value, place, reasons[setting.name])
            )
    return stale


def systems(bundle: Bundle) -> list[str]:
    """Names of the blocks that fit the distribution, the one to prefer first, by os-release, the
    kernel and its command line.

    Where the configuration of one other tool lies there that makes an initramfs, that tool's.
    """
    row = _distribution(bundle)[0]
    if row is None:
        return [NOT_KNOWN, *SYSTEMS]
    tools = initramfs_tools(bundle)
    names = []
    for name in row["systems"]:
        tool = name.partition(" with ")[2]
        is_another = tool in TOOLS and tools and tool not in tools
        names.append(f"modprobe.d with {tools[0]}" if is_another else name)
    return names


def initramfs_tools(bundle: Bundle) -> list[str]:
    """The tools that make an initramfs and whose configuration was captured."""
    tools = []
    for tool, patterns in TOOLS.items():
        sources = sum(map(bundle.sources, patterns), [])
        if any(bundle.read(source).ok for source in sources):
            tools.append(tool)
    return tools


def _distribution(bundle: Bundle) -> tuple[dict[str, Any] | None, str]:
    """The row of a distribution, and by which of its names it was found."""
    for name in _names(bundle):
        for row in table("ttm")["distributions"]:
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


def _remark(bundle: Bundle) -> str:
    """What a reader must know of lines that are another distribution's; empty where they are not."""
    row, name = _distribution(bundle)
    fields = _os_release(bundle)
    system = fields.get("ID", "")
    if (
        row is None
        or system in row["ids"]
        or name not in fields.get("ID_LIKE", "").split()
    ):
        return ""
    return f"# {_shown(system)} is not in our table and is like {name}, for which these lines are"


def _shown(name: str) -> str:
    """The ID of a distribution as os-release(5) allows it."""
    return name if re.fullmatch(r"[a-z0-9._-]{1,40}", name) else "this system"


def is_built_in(bundle: Bundle, module: str) -> bool:
    """Whether the kernel was built with the module: then modprobe.d is not read, only the
    kernel command line.
    """
    loaded = parameters.parse_modules(bundle.read("/proc/modules").text)
    return bool(loaded) and module not in loaded and _has_folder(bundle, module)


def _has_folder(bundle: Bundle, module: str) -> bool:
    return bool(bundle.sources(f"/sys/module/{module}/parameters/*"))


def _keep_copy(path: str) -> str:
    return f"# Keep a copy of {path}\n[ -e {path}.pre-ttm ] ||\n    sudo cp {path} {path}.pre-ttm"


def _put_back(paths: Iterable[str]) -> list[str]:
    return [
        f"[ ! -e {path}.pre-ttm ] ||\n    sudo mv {path}.pre-ttm {path}"
        for path in paths
    ]


def _clean_files(change: LimitChange) -> list[str]:
    """Stale settings go from the modprobe.d files, of which a copy is kept."""
    names = "|".join(sorted({name.partition(".")[2] for name in change.drop}))
    lines = []
    for path in change.files:
        lines.append(_keep_copy(path))
        lines.append(
            "# Remove the old settings from that file\n"
            "sudo sed -i -E -e '/^options (amdgpu|(amd_?)?ttm) /{' \\\n"
            f"    -e 's/ ({names})=[-0-9]+//g' -e '}}' \\\n"
            f"    -e '/^options [a-z_]+ *$/d' {path}"
        )
    return lines


def _written(path: str, *content: str) -> list[str]:
    """A file written by root, from lines that a shell leaves as they are; it may be indented."""
    lines = shell.line(content)
    command = "echo" if len(content) == 1 else r"printf '%s\n'"
    return [f"{command} {lines} |\n    sudo tee {path} >/dev/null"]


def _quoted(words: list[str]) -> str:
    return shell.word(" ".join(words))


def _options(option: str, words: list[str]) -> str:
    return "".join(f" {option}={shell.word(word)}" for word in words)


def _around(
    change: LimitChange, run: list[str], undo: list[str], rebuild: str = ""
) -> Lines:
    """The lines of a block behind those that clean the modprobe.d files, and the lines of its
    undo behind those that put them back; ``rebuild`` makes the initramfs anew for the files.
    """
    rebuilding = [rebuild] if rebuild and change.files else []
    before = [*_clean_files(change), *rebuilding]
    return [*before, *run], [*_put_back(change.files), *rebuilding, *undo]


def _grubby(change: LimitChange) -> Lines:
    command = "sudo grubby --update-kernel=ALL"
    names = "of these settings"
    if len(change.drop) == 1:
        names = change.drop[0]
    remove = f"# Remove any {names} from the kernel command line"
    run = [f"{remove}\n{command} --remove-args={_quoted(change.drop)}"]
    undo = list(run)
    if change.arguments:
        run.append(
            f"# Add the new setting\n{command} --args={_quoted(change.arguments)}"
        )
    if change.before:
        undo.append(f"{command} --args={_quoted(change.before)}")
    return _around(change, run, undo, DRACUT)


def _update_grub(change: LimitChange) -> Lines:
    line = rf"s/ ?\b({change.patterns})=[-0-9]+//g"
    run = [_keep_copy(GRUB), f"sudo sed -i -E '/^GRUB_CMDLINE_LINUX/{line}' {GRUB}"]
    undo = _put_back([GRUB])
    remove = f"sudo rm -f {GRUB_CONF}"
    if change.arguments:
        arguments = " ".join(change.arguments)
        run.append("sudo mkdir -p /etc/default/grub.d")
        run += _written(
            GRUB_CONF, f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {arguments}"'
        )
        undo.append(remove)
    if change.resets:
        run.append(remove)
    update = "sudo update-grub"
    return _around(change, [*run, update], [*undo, update], UPDATE_INITRAMFS)


def _systemd_boot(change: LimitChange) -> Lines:
    edits = rf"s/ ?\b({change.patterns})=[-0-9]+//g"
    if change.arguments:
        edits += f"; s/$/ {' '.join(change.arguments)}/"
    by_hand = (
        "# where the entries in loader/entries on the boot partition were written by hand, "
        "change their options line instead"
    )
    edit = f"sudo sed -i -E '1{{{edits}}}' {KERNEL_CMDLINE}"
    run = [by_hand, _keep_copy(KERNEL_CMDLINE), edit, KERNEL_INSTALL]
    return _around(change, run, [*_put_back([KERNEL_CMDLINE]), KERNEL_INSTALL])


def _kernelstub(change: LimitChange) -> Lines:
    run = _kernelstub_lines(change.old, change.new)
    return _around(
        change, run, _kernelstub_lines(change.new, change.old), UPDATE_INITRAMFS
    )


def _kernelstub_lines(drop: list[str], add: list[str]) -> list[str]:
    lines = [f"sudo kernelstub --delete-options {shell.word(word)}" for word in drop]
    return lines + [f"sudo kernelstub --add-options {shell.word(word)}" for word in add]


def _rpm_ostree(change: LimitChange) -> Lines:
    if not (change.before or change.arguments):
        return _around(change, [], [])
    run = _rpm_ostree_line(change.old, change.arguments)
    return _around(change, [run], [_rpm_ostree_line(change.new, change.before)])


def _rpm_ostree_line(drop: list[str], add: list[str]) -> str:
    deleted = _options("--delete-if-present", drop)
    return f"sudo rpm-ostree kargs{deleted}{_options('--append-if-missing', add)}"


def _by_hand(change: LimitChange, row: dict[str, Any]) -> Lines:
    """What is to be changed where a system keeps it, and what makes it count."""
    run = [f"# {note}" for note in row.get("notes", ())]
    if change.old or change.files:
        run.append(f"# {row['place']}: remove, if present: {' '.join(change.drop)}")
    if change.arguments:
        added = row["add"].replace("ARGUMENTS", " ".join(change.arguments))
        run.append(f"# {row['place']}: {added}")
    undo = [f"# {row['place']}: put back what you changed"]
    return [*run, *row["then"]], [*undo, *row["then"]]


def _mechanism(change: LimitChange, bundle: Bundle) -> Lines:
    """What has to be done on a system that is not known, and the question that tells how."""
    tools = initramfs_tools(bundle)
    run = [
        f"# not known here: {_shown(_os_release(bundle).get('ID', ''))}. Which of these is there?"
    ]
    if tools:
        run.append(f"# the configuration of {' and '.join(tools)} lies there")
    run.append(f"for tool in {' '.join(TOOL_NAMES)}; do command -v $tool; done")
    if change.arguments:
        run.append(
            f"# its boot loader passes to the kernel: {' '.join(change.arguments)}"
        )
        option = f"options {change.modules[0]} pages_limit={change.pages}"
        run.append(
            f"# or {CONF} has: {option}; then that tool makes the initramfs anew"
        )
    if change.old or change.files:
        run.append(f"# and nothing says any more: {' '.join(change.drop)}")
    return run, [
        "# put back what you changed, and have that tool make the initramfs anew"
    ]


def _modprobe(change: LimitChange, rebuild: str) -> Lines:
    run = []
    if change.before:
        before = " ".join(change.before)
        run.append(
            f"# the kernel command line wins over this file: {before} must go from there first"
        )
    run += _clean_files(change)
    undo = _put_back(change.files)
    if change.arguments:
        lines = [
            f"options {module} pages_limit={change.pages}" for module in change.modules
        ]
        run += _written(CONF, *lines)
        undo.append(f"sudo rm -f {CONF}")
    if change.resets:
        run.append(f"sudo rm -f {CONF}")
    return [*run, rebuild], [*undo, rebuild]


def _amd_smi(change: LimitChange) -> Lines:
    if change.arguments:
        is_whole = (change.pages or 0) * change.page_bytes % GIB == 0
        rounded = "" if is_whole else ", so this is a little less"
        remark = (
            f"# amd-smi 26.5 or later; it says GB and means GiB, whole ones{rounded}"
        )
        return [remark, f"sudo amd-smi set --gtt {change.gib}"], [
            "sudo amd-smi reset --gtt"
        ]
    if change.resets:
        return ["sudo amd-smi reset --gtt"], ["# nothing to undo"]
    return [], []


def _amd_ttm(change: LimitChange) -> Lines:
    clear = "amd-ttm --clear  # then rebuild the initramfs yourself"
    if change.arguments:
        return [*AMD_TTM_NOTES, f"amd-ttm --set {change.gib}"], [clear]
    if change.resets:
        return [clear], ["# nothing to undo"]
    return [], []


SYSTEMS: dict[str, Callable[[LimitChange], Lines]] = {
    "grubby": _grubby,
    "update-grub": _update_grub,
    "systemd-boot": _systemd_boot,
    "kernelstub": _kernelstub,
    "rpm-ostree": _rpm_ostree,
    "modprobe.d with dracut": partial(_modprobe, rebuild=DRACUT),
    "modprobe.d with dracut-rebuild": partial(_modprobe, rebuild=DRACUT_REBUILD),
    "modprobe.d with update-initramfs": partial(_modprobe, rebuild=UPDATE_INITRAMFS),
    "modprobe.d with mkinitcpio": partial(_modprobe, rebuild=MKINITCPIO),
    "modprobe.d with transactional-update": partial(_modprobe, rebuild=TRANSACTIONAL),
    "modprobe.d with proxmox-boot-tool": partial(_modprobe, rebuild=PROXMOX),
    "amd-smi": _amd_smi,
    "amd-ttm": _amd_ttm,
}
"""The lines of each boot system, and of its undo."""


def _check(change: LimitChange) -> list[str]:
    """How to see after the reboot that the limit is live."""
    box = shell.word(change.box)
    first = (
        "# after the reboot"
        if change.is_live
        else f"# after the reboot, on {box} itself"
    )
    read = f"cat /sys/module/{change.module}/parameters/pages_limit"
    if change.arguments:
        read += f"  # expected: {change.pages}"
    if change.is_live:
        verify = ["casebook ttm live --verify before.tar.gz"]
    else:
        verify = [
            "casebook capture --out after.tar.gz",
            "# then where you have its earlier bundle:",
            f"casebook ttm after.tar.gz --verify {box}",
        ]
    return [first, read, "cat /proc/cmdline", *verify]
