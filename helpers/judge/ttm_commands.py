"""What a person would run to set the TTM limit on each boot system, how to undo it, how to verify it. Printed, never run.

Every block may be run again without harm. Setting pages_limit alone is enough; the blocks also take away what earlier attempts
left: amdgpu.gttsize (deprecated, moves only graphics' GTT), amdgpu.vm_size (GiB of address space) and page_pool_size (a cache).
Our modprobe.d file is named so that it is read last; the kernel command line still wins over it (modprobe.d(5)).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import List, Tuple

from helpers.look import ttm
from helpers.look.bundle import Bundle
from helpers.look.reading import GIB
from helpers.shapes import TtmCommand, TtmPlan

CONF = "/etc/modprobe.d/zz-ttm-limit.conf"
KEPT = ".before-ttm-limit"
DRACUT, INITRAMFS_TOOLS = "sudo dracut --force --regenerate-all", "sudo update-initramfs -u -k all"
KERNELSTUB, CLEAR = "sudo kernelstub", "amd-ttm --clear  # then rebuild the initramfs yourself"
GRUB_DROP_IN = "/etc/default/grub.d/zz-ttm-limit.cfg"
STALE = {
    "gttsize": "it moves only the GTT of graphics, and a value unlike TTM's makes the driver warn",
    "gtt_size": "no such parameter",
    "vm_size": "it is GiB of address space and sizes no pool",
    "page_pool_size": "it is a cache of freed pages; pages_limit alone is enough",
}


Block = Tuple[List[str], List[str]]  # what to run and what undoes it; made when imported, also on Python 3.8


@dataclass(frozen=True)
class Change:
    """What is to change: ``arguments`` of the kernel command line to set, names to drop, the lines of the modprobe.d file.

    ``before`` are the arguments that undo puts back. ``files`` are modprobe.d files with stale settings.
    """

    pages: int | None
    gib: int
    exact_gib: bool
    arguments: tuple[str, ...]
    drop: tuple[str, ...]
    before: tuple[str, ...]
    lines: tuple[str, ...]
    files: tuple[str, ...]
    module: str

    @property
    def resets(self) -> bool:
        """Whether a limit that is set is to go, and no other takes its place."""
        return self.pages is None and any(name.endswith(".pages_limit") for name in self.drop)


def stale_settings(bundle: Bundle) -> list[tuple[str, str, str, str]]:
    """(name, value, where, why) of each setting that earlier advice leaves behind and that does not raise the pool."""
    configured, cmdline = ttm.settings(bundle)
    return [(f"{s.module}.{s.name}", s.value, f"{s.source}:{s.line}", STALE[s.name]) for s in configured + cmdline
            if s.name in STALE and (s.name == "page_pool_size" or s.module == "amdgpu")]


def change(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> Change | None:
    """What the plan changes on this box, or None where nothing needs doing."""
    configured, cmdline = ttm.settings(bundle)
    stale = stale_settings(bundle)
    used = ttm.ttm_module(bundle)
    # Ubuntu's OEM kernels and DKMS have both modules: then both get the value, and only the one in use reads it.
    modules = [m for m in ("ttm", "amdttm", "amd_ttm") if m == used.value or bundle.sources(f"/sys/module/{m}/parameters/*")]
    modules = modules or ["ttm"]
    pages = plan.pages_limit if plan.action == "set" else None
    limits = [s for s in configured + cmdline if s.name == "pages_limit"]
    gone = {name for name, _, _, _ in stale}
    if plan.action != "leave":
        gone |= {f"{s.module}.{s.name}" for s in limits}
    if pages is None and not gone:
        return None
    arguments = tuple(f"{module}.pages_limit={pages}" for module in modules) if pages else ()
    touched = sorted({s.source for s in configured if f"{s.module}.{s.name}" in gone and s.source.startswith("/etc/")
                      and s.source != CONF})
    drop = tuple(sorted(gone | {argument.partition("=")[0] for argument in arguments}))
    held = {f"{s.module}.{s.name}={s.value}": None for s in cmdline if f"{s.module}.{s.name}" in drop}
    size = (pages or 0) * page_bytes
    return Change(pages, size // GIB, size % GIB == 0, arguments, drop, tuple(held), tuple(
        f"options {module} pages_limit={pages}" for module in modules if pages), tuple(touched), str(used.value or "ttm"))


def commands(bundle: Bundle, plan: TtmPlan, page_bytes: int, every: bool = False) -> list[TtmCommand]:
    """The blocks for this box's boot system first, then AMD's own tools; ``every`` gives all systems.

    Empty where nothing needs doing. An unknown distribution gets every block.
    """
    wanted = change(bundle, plan, page_bytes)
    if wanted is None:
        return []
    names = list(SYSTEMS) if every else systems(bundle)
    if not every and is_built_in(bundle, wanted.module):
        names = [name for name in names if not name.startswith(("modprobe.d", "amd-"))]
    made = [SYSTEMS[name](wanted) for name in names]
    return [TtmCommand(system=name, run="\n".join(run), undo="\n".join(undo), verify=_verify(wanted))
            for name, (run, undo) in zip(names, made) if run]


def is_built_in(bundle: Bundle, module: str) -> bool:
    """Whether the kernel was built with the module: then modprobe.d is not read, only the kernel command line."""
    loaded = ttm.parse_modules(bundle.read("/proc/modules").text)
    return bool(loaded) and module not in loaded and bool(bundle.sources(f"/sys/module/{module}/parameters/*"))


def systems(bundle: Bundle) -> list[str]:
    """Names of the blocks that fit the distribution, the one to prefer first, by os-release and the kernel command line."""
    text = bundle.read("/etc/os-release").text
    fields = dict(re.findall(r"(?m)^(\w{1,40})=\"?([^\"\n]{0,200})\"?$", text))
    ids = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    cmdline = bundle.read("/proc/cmdline").text
    tools = ["amd-smi", "amd-ttm"]
    if re.search(r"(^|\s)ostree=", cmdline) or "OSTREE_VERSION" in fields:
        return ["rpm-ostree"]
    if "nixos" in ids:
        return ["NixOS"]
    if fields.get("ID") == "pop":
        return ["kernelstub", "modprobe.d with update-initramfs", *tools]
    if ids & {"fedora", "rhel", "centos"}:
        return ["grubby", "modprobe.d with dracut", *tools]
    if ids & {"debian", "ubuntu"}:
        return ["update-grub", "modprobe.d with update-initramfs", *tools]
    if "arch" in ids:
        return ["modprobe.d with mkinitcpio", "systemd-boot", *tools]
    if ids & {"suse", "opensuse", "sles"}:
        return ["modprobe.d with dracut", *tools]
    return list(SYSTEMS)


def _verify(c: Change) -> str:
    lines = [f"cat /sys/module/{c.module}/parameters/pages_limit" + (f"  # expected: {c.pages}" if c.pages else ""),
             "cat /proc/cmdline", "python -m helpers ttm live --verify before.tar.gz"]
    return "# after the reboot\n" + "\n".join(lines)


def _keep(path: str) -> str:
    """A line that keeps a copy of a file, once, so that a second run does not overwrite it."""
    return f"[ -e {path}{KEPT} ] ||\n    sudo cp {path} {path}{KEPT}"


def _back(path: str) -> str:
    return f"[ ! -e {path}{KEPT} ] ||\n    sudo mv {path}{KEPT} {path}"


def _in_files(c: Change, rebuild: str = "") -> list[str]:
    """Lines that take stale settings out of modprobe.d files; the initramfs holds copies of these files."""
    names = "|".join(sorted({name.partition(".")[2] for name in c.drop}))
    lines = []
    for path in map(shlex.quote, c.files):
        lines += [_keep(path), f"sudo sed -i -E -e '/^options (amdgpu|(amd_?)?ttm) /s/ ({names})=[-0-9]+//g' \\\n"
                               f"    -e '/^options [a-z_]+ *$/d' {path}"]
    return [*lines, rebuild] if lines and rebuild else lines


def _files_back(c: Change, rebuild: str = "") -> list[str]:
    lines = [_back(path) for path in map(shlex.quote, c.files)]
    return [*lines, rebuild] if lines and rebuild else lines


def _sed(c: Change) -> str:
    """sed's commands that drop what is there under the names, so that a second run adds nothing twice."""
    names = "|".join(name.replace(".", r"\.") for name in c.drop)
    return f"s/ ?\\b({names})=[-0-9]+//g"


def _grubby(c: Change) -> Block:
    add = f" --args={shlex.quote(' '.join(c.arguments))}" if c.arguments else ""
    back = f" --args={shlex.quote(' '.join(c.before))}" if c.before else ""
    drop = shlex.quote(" ".join(c.drop))
    head = "sudo grubby --update-kernel=ALL"
    run, undo = ([f"{head} --remove-args={drop}", *([head + more] if more else [])] for more in (add, back))
    return [*_in_files(c, DRACUT), *run], [*_files_back(c, DRACUT), *undo]


def _update_grub(c: Change) -> Block:
    path = "/etc/default/grub"
    run = [*_in_files(c, INITRAMFS_TOOLS), _keep(path), f"sudo sed -i -E '/^GRUB_CMDLINE_LINUX/{_sed(c)}' {path}"]
    undo = [*_files_back(c, INITRAMFS_TOOLS), _back(path)]
    if c.arguments:
        run += ["sudo mkdir -p /etc/default/grub.d", f"sudo tee {GRUB_DROP_IN} >/dev/null <<'END'",
                f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(c.arguments)}"', "END"]
        undo.append(f"sudo rm -f {GRUB_DROP_IN}")
    elif c.resets:
        run.append(f"sudo rm -f {GRUB_DROP_IN}")
    return [*run, "sudo update-grub"], [*undo, "sudo update-grub"]


def _systemd_boot(c: Change) -> Block:
    path = "/etc/kernel/cmdline"
    add = f"; s/$/ {' '.join(c.arguments)}/" if c.arguments else ""
    note = "# where the entries in loader/entries on the boot partition were written by hand, change their options line instead"
    renew = "sudo kernel-install add-all"
    run = [note, _keep(path), f"sudo sed -i -E '1{{{_sed(c)}{add}}}' {path}", renew]
    return [*_in_files(c), *run], [*_files_back(c), _back(path), renew]


def _each(option: str, names: Iterable[str], but: Iterable[str] = ()) -> list[str]:
    return [option + shlex.quote(name) for name in names if name not in but]


def _kernelstub(c: Change) -> Block:
    drop, add = f"{KERNELSTUB} --delete-options ", f"{KERNELSTUB} --add-options "
    run = [*_each(drop, c.before, c.arguments), *_each(add, c.arguments, c.before)]
    undo = [*_each(drop, c.arguments, c.before), *_each(add, c.before, c.arguments)]
    return [*_in_files(c, INITRAMFS_TOOLS), *run], [*_files_back(c, INITRAMFS_TOOLS), *undo]


def _rpm_ostree(c: Change) -> Block:
    drop, add = " --delete-if-present=", " --append-if-missing="
    run = [*_each(drop, c.before, c.arguments), *_each(add, c.arguments)]
    undo = [*_each(drop, c.arguments, c.before), *_each(add, c.before)]
    lines = [["sudo rpm-ostree kargs" + "".join(words)] if words else [] for words in (run, undo)]
    return [*_in_files(c), *lines[0]], [*_files_back(c), *lines[1]]


def _nixos(c: Change) -> Block:
    listed = " ".join(f'"{argument}"' for argument in c.arguments)
    lines = [f"#   take out of it, if there: {' '.join(c.drop)}"] if set(c.before) - set(c.arguments) or c.files else []
    lines = ["# in /etc/nixos/configuration.nix:", *lines]
    lines += [f"#   boot.kernelParams = [ {listed} ];"] if listed else []
    back = "# in /etc/nixos/configuration.nix put back what you changed"
    return [*lines, "sudo nixos-rebuild boot"], [back, "sudo nixos-rebuild boot"]


def _modprobe(rebuild: str) -> Callable[[Change], Block]:
    def block(c: Change) -> Block:
        first = f"# the kernel command line wins over this file: {' '.join(c.before)} must go from there first"
        run = [*([first] if c.before else []), *_in_files(c)]
        undo = [*_files_back(c)]
        if c.lines:
            run += [f"sudo tee {CONF} >/dev/null <<'END'", *c.lines, "END"]
            undo.append(f"sudo rm -f {CONF}")
        elif c.resets:
            run.append(f"sudo rm -f {CONF}")
        return [*run, rebuild], [*undo, rebuild]

    return block


def _amd_smi(c: Change) -> Block:
    if not c.pages:
        return ["sudo amd-smi reset --gtt"] if c.resets else [], ["# nothing to undo"]
    note = "# amd-smi 26.5 or later; it says GB and means GiB, whole ones"
    note += "" if c.exact_gib else ", so this is a little less"
    return [note, f"sudo amd-smi set --gtt {c.gib}"], ["sudo amd-smi reset --gtt"]


def _amd_ttm(c: Change) -> Block:
    if not c.pages:
        return [CLEAR] if c.resets else [], ["# nothing to undo"]
    gaps = ["# it says GB and means GiB; it overwrites /etc/modprobe.d/ttm.conf",
            "# it knows the module ttm only, not amdttm, and not the kernel command line (ROCm#5562)",
            "# off Debian and Ubuntu it does not rebuild the initramfs: do that yourself, as for modprobe.d"]
    return [*gaps, f"amd-ttm --set {c.gib}"], [CLEAR]


SYSTEMS: dict[str, Callable[[Change], Block]] = {
    "grubby": _grubby,
    "update-grub": _update_grub,
    "systemd-boot": _systemd_boot,
    "kernelstub": _kernelstub,
    "rpm-ostree": _rpm_ostree,
    "NixOS": _nixos,
    "modprobe.d with dracut": _modprobe(DRACUT),
    "modprobe.d with update-initramfs": _modprobe(INITRAMFS_TOOLS),
    "modprobe.d with mkinitcpio": _modprobe("sudo mkinitcpio -P"),
    "amd-smi": _amd_smi,
    "amd-ttm": _amd_ttm,
}
"""Each boot system and tool, with what writes its block and the block that undoes it."""
