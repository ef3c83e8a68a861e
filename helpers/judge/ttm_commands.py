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
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import List, Tuple

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
DRACUT = "sudo dracut --force --regenerate-all"
UPDATE_INITRAMFS = "sudo update-initramfs -u -k all"
MKINITCPIO = "sudo mkinitcpio -P"
KERNEL_INSTALL = "sudo kernel-install add-all"
Lines = Tuple[List[str], List[str]]  # made when imported, also on Python 3.8
"""The lines of a block, and those of its undo."""


@dataclass(frozen=True)
class Change:
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

    Empty where nothing needs doing. An unknown distribution gets every block.
    """
    change = change_of(bundle, plan, page_bytes)
    if change is None:
        return []
    names = systems(bundle)
    if is_built_in(bundle, change.module):
        names = [name for name in names if not name.startswith(("modprobe.d", "amd-"))]
    check = "\n".join(_check(change))
    blocks = []
    for name in names:
        run, undo = SYSTEMS[name](change)
        if run:
            blocks.append(TtmCommand(name, "\n".join(run), "\n".join(undo), check))
    return blocks


def change_of(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> Change | None:
    """What the plan changes on a box; None where nothing needs doing."""
    configured, cmdline = parameters.settings(bundle)
    used = parameters.ttm_module(bundle)
    # Ubuntu's OEM kernels and DKMS have both modules: then both get the value, and only the one
    # in use reads it.
    modules = [m for m in TTM_MODULES if m == used.value or _has_folder(bundle, m)] or ["ttm"]
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
    return Change(
        box=bundle.box,
        is_live=bundle.kind == "live",
        pages=pages,
        page_bytes=page_bytes,
        module=str(used.value or "ttm"),
        modules=modules,
        arguments=arguments,
        before=list(before),
        drop=drop,
        files=[shlex.quote(path) for path in sorted(touched) if path.startswith("/etc/")],
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
    for setting in sum(parameters.settings(bundle), ()):
        if setting.name not in reasons:
            continue
        if setting.name == "page_pool_size" or setting.module == "amdgpu":
            name = f"{setting.module}.{setting.name}"
            place = f"{setting.source}:{setting.line}"
            stale.append(StaleSetting(name, setting.value, place, reasons[setting.name]))
    return stale


def systems(bundle: Bundle) -> list[str]:
    """Names of the blocks that fit the distribution, the one to prefer first, by os-release and
    the kernel command line.
    """
    text = bundle.read("/etc/os-release").text
    fields = dict(re.findall(r"(?m)^(\w{1,40})=\"?([^\"\n]{0,200})\"?$", text))
    ids = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    if "OSTREE_VERSION" in fields or re.search(r"(^|\s)ostree=", bundle.read("/proc/cmdline").text):
        ids.add("ostree")
    for row in table("ttm")["distributions"]:
        if ids & set(row["ids"]):
            return list(row["systems"])
    return list(SYSTEMS)


def is_built_in(bundle: Bundle, module: str) -> bool:
    """Whether the kernel was built with the module: then modprobe.d is not read, only the
    kernel command line.
    """
    loaded = parameters.parse_modules(bundle.read("/proc/modules").text)
    return bool(loaded) and module not in loaded and _has_folder(bundle, module)


def _has_folder(bundle: Bundle, module: str) -> bool:
    return bool(bundle.sources(f"/sys/module/{module}/parameters/*"))


def _keep_copy(path: str) -> str:
    return f"[ -e {path}.pre-ttm ] ||\n    sudo cp {path} {path}.pre-ttm"


def _put_back(paths: Iterable[str]) -> list[str]:
    return [f"[ ! -e {path}.pre-ttm ] ||\n    sudo mv {path}.pre-ttm {path}" for path in paths]


def _clean_files(change: Change) -> list[str]:
    """Stale settings go from the modprobe.d files, of which a copy is kept."""
    names = "|".join(sorted({name.partition(".")[2] for name in change.drop}))
    lines = []
    for path in change.files:
        lines.append(_keep_copy(path))
        lines.append(
            "sudo sed -i -E -e '/^options (amdgpu|(amd_?)?ttm) /{' \\\n"
            f"    -e 's/ ({names})=[-0-9]+//g' -e '}}' \\\n"
            f"    -e '/^options [a-z_]+ *$/d' {path}"
        )
    return lines


def _written(path: str, *content: str) -> list[str]:
    """A file written by root, from lines that a shell leaves as they are."""
    return [f"sudo tee {path} >/dev/null <<'END'", *content, "END"]


def _quoted(words: list[str]) -> str:
    return shlex.quote(" ".join(words))


def _options(option: str, words: list[str]) -> str:
    return "".join(f" {option}={shlex.quote(word)}" for word in words)


def _around(change: Change, run: list[str], undo: list[str], rebuild: str = "") -> Lines:
    """The lines of a block behind those that clean the modprobe.d files, and the lines of its
    undo behind those that put them back; ``rebuild`` makes the initramfs anew for the files.
    """
    rebuilding = [rebuild] if rebuild and change.files else []
    before = [*_clean_files(change), *rebuilding]
    return [*before, *run], [*_put_back(change.files), *rebuilding, *undo]


def _grubby(change: Change) -> Lines:
    command = "sudo grubby --update-kernel=ALL"
    run = [f"{command} --remove-args={_quoted(change.drop)}"]
    undo = list(run)
    if change.arguments:
        run.append(f"{command} --args={_quoted(change.arguments)}")
    if change.before:
        undo.append(f"{command} --args={_quoted(change.before)}")
    return _around(change, run, undo, DRACUT)


def _update_grub(change: Change) -> Lines:
    line = rf"s/ ?\b({change.patterns})=[-0-9]+//g"
    run = [_keep_copy(GRUB), f"sudo sed -i -E '/^GRUB_CMDLINE_LINUX/{line}' {GRUB}"]
    undo = _put_back([GRUB])
    remove = f"sudo rm -f {GRUB_CONF}"
    if change.arguments:
        arguments = " ".join(change.arguments)
        run.append("sudo mkdir -p /etc/default/grub.d")
        run += _written(GRUB_CONF, f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {arguments}"')
        undo.append(remove)
    if change.resets:
        run.append(remove)
    update = "sudo update-grub"
    return _around(change, [*run, update], [*undo, update], UPDATE_INITRAMFS)


def _systemd_boot(change: Change) -> Lines:
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


def _kernelstub(change: Change) -> Lines:
    run = _kernelstub_lines(change.old, change.new)
    return _around(change, run, _kernelstub_lines(change.new, change.old), UPDATE_INITRAMFS)


def _kernelstub_lines(drop: list[str], add: list[str]) -> list[str]:
    lines = [f"sudo kernelstub --delete-options {shlex.quote(word)}" for word in drop]
    return lines + [f"sudo kernelstub --add-options {shlex.quote(word)}" for word in add]


def _rpm_ostree(change: Change) -> Lines:
    if not (change.before or change.arguments):
        return _around(change, [], [])
    run = _rpm_ostree_line(change.old, change.arguments)
    return _around(change, [run], [_rpm_ostree_line(change.new, change.before)])


def _rpm_ostree_line(drop: list[str], add: list[str]) -> str:
    deleted = _options("--delete-if-present", drop)
    return f"sudo rpm-ostree kargs{deleted}{_options('--append-if-missing', add)}"


def _nixos(change: Change) -> Lines:
    run = ["# in /etc/nixos/configuration.nix:"]
    if change.old or change.files:
        run.append(f"#   take out of it, if there: {' '.join(change.drop)}")
    if change.arguments:
        strings = " ".join(f'"{argument}"' for argument in change.arguments)
        run.append(f"#   boot.kernelParams = [ {strings} ];")
    undo = "# in /etc/nixos/configuration.nix put back what you changed"
    return [*run, "sudo nixos-rebuild boot"], [undo, "sudo nixos-rebuild boot"]


def _modprobe(change: Change, rebuild: str) -> Lines:
    run = []
    if change.before:
        before = " ".join(change.before)
        run.append(
            f"# the kernel command line wins over this file: {before} must go from there first"
        )
    run += _clean_files(change)
    undo = _put_back(change.files)
    if change.arguments:
        lines = [f"options {module} pages_limit={change.pages}" for module in change.modules]
        run += _written(CONF, *lines)
        undo.append(f"sudo rm -f {CONF}")
    if change.resets:
        run.append(f"sudo rm -f {CONF}")
    return [*run, rebuild], [*undo, rebuild]


def _amd_smi(change: Change) -> Lines:
    if change.arguments:
        is_whole = (change.pages or 0) * change.page_bytes % GIB == 0
        rounded = "" if is_whole else ", so this is a little less"
        remark = f"# amd-smi 26.5 or later; it says GB and means GiB, whole ones{rounded}"
        return [remark, f"sudo amd-smi set --gtt {change.gib}"], ["sudo amd-smi reset --gtt"]
    if change.resets:
        return ["sudo amd-smi reset --gtt"], ["# nothing to undo"]
    return [], []


def _amd_ttm(change: Change) -> Lines:
    clear = "amd-ttm --clear  # then rebuild the initramfs yourself"
    if change.arguments:
        run = [
            "# it says GB and means GiB; it overwrites /etc/modprobe.d/ttm.conf",
            (
                "# it knows the module ttm only, not amdttm, and not the kernel command line "
                "(ROCm#5562)"
            ),
            (
                "# off Debian and Ubuntu it does not rebuild the initramfs: do that yourself, "
                "as for modprobe.d"
            ),
            f"amd-ttm --set {change.gib}",
        ]
        return run, [clear]
    if change.resets:
        return [clear], ["# nothing to undo"]
    return [], []


SYSTEMS: dict[str, Callable[[Change], Lines]] = {
    "grubby": _grubby,
    "update-grub": _update_grub,
    "systemd-boot": _systemd_boot,
    "kernelstub": _kernelstub,
    "rpm-ostree": _rpm_ostree,
    "NixOS": _nixos,
    "modprobe.d with dracut": partial(_modprobe, rebuild=DRACUT),
    "modprobe.d with update-initramfs": partial(_modprobe, rebuild=UPDATE_INITRAMFS),
    "modprobe.d with mkinitcpio": partial(_modprobe, rebuild=MKINITCPIO),
    "amd-smi": _amd_smi,
    "amd-ttm": _amd_ttm,
}
"""The lines of each boot system, and of its undo."""


def _check(change: Change) -> list[str]:
    """How to see after the reboot that the limit is live."""
    box = shlex.quote(change.box)
    first = "# after the reboot" if change.is_live else f"# after the reboot, on {box} itself"
    read = f"cat /sys/module/{change.module}/parameters/pages_limit"
    if change.arguments:
        read += f"  # expected: {change.pages}"
    if change.is_live:
        verify = ["python3 -m helpers ttm live --verify before.tar.gz"]
    else:
        verify = [
            "python3 -m helpers capture --out after.tar.gz",
            "# where its record lies",
            f"python3 -m helpers ttm after.tar.gz --verify {box}",
        ]
    return [first, read, "cat /proc/cmdline", *verify]
