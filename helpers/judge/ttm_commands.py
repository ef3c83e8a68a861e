"""The commands that set the TTM limit on each boot system, undo that and verify it.

They are printed, never run. A *block* is the commands of one boot system; it may be run again
without harm. Setting pages_limit alone is enough; the blocks also remove what earlier attempts
left: amdgpu.gttsize (deprecated, moves only graphics' GTT), amdgpu.vm_size (GiB of address space)
and page_pool_size (a cache). Our modprobe.d file is named so that it is read last; the kernel
command line still wins over it (modprobe.d(5)).

A change (ttm_change.LimitChange) has ``arguments`` where a limit is set. Where ``resets`` is true,
a limit is removed and none is set; where neither holds, only old settings are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, List, Tuple

from helpers.ground import shell
from helpers.ground.shapes import TtmCommand, TtmPlan
from helpers.ground.units import GIB
from helpers.judge.boot_systems import (
    boot_systems,
    initramfs_tools,
    rebuild_command,
    remark_on_distribution,
    shown_id,
    steps_by_hand,
)
from helpers.judge.ttm_change import CONF, LimitChange, change_of, is_built_in
from helpers.look.bundle import Bundle

GRUB = "/etc/default/grub"
GRUB_CONF = "/etc/default/grub.d/zz-ttm-limit.cfg"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
# What a person must know of AMD's script amd-ttm, as comments of its block.
AMD_TTM_NOTES = (
    "# it says GB and means GiB; it overwrites /etc/modprobe.d/ttm.conf",
    "# it knows the module ttm only, not amdttm, and not the kernel command line (ROCm#5562)",
    "# off Debian and Ubuntu it does not rebuild the initramfs: do that yourself, as for modprobe.d",
)
BOOT_IMAGES = (
    "dracut",
    "dracut-rebuild",
    "update-initramfs",
    "mkinitcpio",
    "transactional-update",
    "proxmox-boot-tool",
)
"""The tools that make a boot image anew from the files of modprobe.d."""
NOT_KNOWN = "your system's own tool"
"""The name of the block for a distribution that is not known, which asks for its tools."""
TOOL_NAMES = "mkinitcpio dracut update-initramfs transactional-update proxmox-boot-tool grubby update-grub"
Lines = Tuple[List[str], List[str]]  # evaluated at import, also on Python 3.8
"""The lines of a block, and those of its undo."""


def commands(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> list[TtmCommand]:
    """The blocks for the boot system of this box, then those of AMD's own tools.

    Empty where nothing needs doing. For a distribution that is not known, a block that asks which
    tools it has, then all blocks.
    """
    change = change_of(bundle, plan, page_bytes)
    if change is None:
        return []
    names = systems(bundle)
    # A module that is a part of the kernel reads no modprobe.d (ttm_change.is_built_in); AMD's
    # tools set the limit by such a file as well.
    if is_built_in(bundle, change.module):
        names = [name for name in names if not name.startswith(("modprobe.d", "amd-"))]
    if not names:
        names = [NOT_KNOWN, *SYSTEMS]
    check = "\n".join(_check(change))
    remark = remark_on_distribution(bundle)
    blocks = []
    for name in names:
        run, undo = _lines(name, change, bundle)
        # No lines: this system has nothing to do for this change.
        if run and remark and name == names[0]:
            run = [remark, *run]
        if run:
            blocks.append(TtmCommand(name, "\n".join(run), "\n".join(undo), check))
    return blocks


def systems(bundle: Bundle) -> list[str]:
    """Names of the blocks that fit the distribution, the one to prefer first; where it is not
    known, NOT_KNOWN and all of them.
    """
    names = boot_systems(bundle)
    if not names:
        return [NOT_KNOWN, *SYSTEMS]
    return names


def _lines(name: str, change: LimitChange, bundle: Bundle) -> Lines:
    """The lines of a block and of its undo."""
    if name == NOT_KNOWN:
        return _unknown_system(change, bundle)
    if name in SYSTEMS:
        return SYSTEMS[name](change)
    return _by_hand(change, steps_by_hand(name))


def _keep_copy(path: str) -> str:
    """The lines that copy a file to FILE.pre-ttm, and keep that copy when they are run again."""
    return f"# Keep a copy of {path}\n[ -e {path}.pre-ttm ] ||\n    sudo cp {path} {path}.pre-ttm"


def _put_back(paths: Iterable[str]) -> list[str]:
    """Lines that put the copy FILE.pre-ttm of each file back in its place."""
    return [
        f"[ ! -e {path}.pre-ttm ] ||\n    sudo mv {path}.pre-ttm {path}"
        for path in paths
    ]


def _clean_files(change: LimitChange) -> list[str]:
    """Lines that remove the old settings from the modprobe.d files and keep a copy of each: first
    the settings from ``options`` lines of amdgpu and TTM, then lines without any option left.
    """
    # modprobe.d names a module once a line: of MODULE.NAME only NAME stands there.
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
    """The command that writes a file as root; the shell changes nothing in its lines. printf, as
    echo would join several lines into one.
    """
    lines = shell.line(content)
    command = "echo"
    if len(content) > 1:
        command = r"printf '%s\n'"
    return [f"{command} {lines} |\n    sudo tee {path} >/dev/null"]


def _quoted(words: list[str]) -> str:
    """The words as one argument of a shell."""
    return shell.word(" ".join(words))


def _options(option: str, words: list[str]) -> str:
    """An option once for each word, for a shell, each behind a blank."""
    return "".join(f" {option}={shell.word(word)}" for word in words)


def _around(
    change: LimitChange, run: list[str], undo: list[str], tool: str = ""
) -> Lines:
    """A block and its undo, with the lines before them that clean the modprobe.d files and put
    them back. ``tool`` makes the initramfs anew where such files were changed.
    """
    rebuilding = []
    if tool and change.files:
        rebuilding = [rebuild_command(tool)]
    before = [*_clean_files(change), *rebuilding]
    return [*before, *run], [*_put_back(change.files), *rebuilding, *undo]


def _grubby(change: LimitChange) -> Lines:
    """Fedora and its relatives: grubby changes the entries of every kernel."""
    command = "sudo grubby --update-kernel=ALL"
    names = "of these settings"
    if len(change.drop) == 1:
        names = change.drop[0]
    remove = f"# Remove any {names} from the kernel command line"
    run = [f"{remove}\n{command} --remove-args={_quoted(change.drop)}"]
    undo = list(run)  # removes the new setting, before the old ones are put back
    if change.arguments:
        run.append(
            f"# Add the new setting\n{command} --args={_quoted(change.arguments)}"
        )
    if change.before:
        undo.append(f"{command} --args={_quoted(change.before)}")
    return _around(change, run, undo, "dracut")


def _update_grub(change: LimitChange) -> Lines:
    """Debian and its relatives: the new argument in a file of our own in default/grub.d, which
    update-grub reads after /etc/default/grub; old arguments out of that one.
    """
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
    if change.resets:  # the limit may be the one of our own file
        run.append(remove)
    update = "sudo update-grub"
    return _around(change, [*run, update], [*undo, update], "update-initramfs")


def _systemd_boot(change: LimitChange) -> Lines:
    """systemd-boot with kernel-install, which reads /etc/kernel/cmdline."""
    edits = rf"s/ ?\b({change.patterns})=[-0-9]+//g"
    if change.arguments:
        edits += f"; s/$/ {' '.join(change.arguments)}/"
    by_hand = (
        "# where the entries in loader/entries on the boot partition were written by hand, "
        "change their options line instead"
    )
    edit = f"sudo sed -i -E '1{{{edits}}}' {KERNEL_CMDLINE}"
    install = rebuild_command("kernel-install")
    run = [by_hand, _keep_copy(KERNEL_CMDLINE), edit, install]
    return _around(change, run, [*_put_back([KERNEL_CMDLINE]), install])


def _kernelstub(change: LimitChange) -> Lines:
    """Pop!_OS: one call for each argument that differs before and after the change."""
    run = _kernelstub_lines(drop=change.old, add=change.new)
    undo = _kernelstub_lines(drop=change.new, add=change.old)
    return _around(change, run, undo, "update-initramfs")


def _kernelstub_lines(drop: list[str], add: list[str]) -> list[str]:
    """A call for each argument that is removed, then one for each that is added."""
    lines = [f"sudo kernelstub --delete-options {shell.word(word)}" for word in drop]
    return lines + [f"sudo kernelstub --add-options {shell.word(word)}" for word in add]


def _rpm_ostree(change: LimitChange) -> Lines:
    """Silverblue and its relatives: one transaction for all arguments."""
    if not (change.before or change.arguments):  # only modprobe.d has old settings
        return _around(change, [], [])
    run = _rpm_ostree_line(change.old, change.arguments)
    return _around(change, [run], [_rpm_ostree_line(change.new, change.before)])


def _rpm_ostree_line(drop: list[str], add: list[str]) -> str:
    """The command of one transaction; both lists are arguments as the command line has them."""
    deleted = _options("--delete-if-present", drop)
    return f"sudo rpm-ostree kargs{deleted}{_options('--append-if-missing', add)}"


def _by_hand(change: LimitChange, row: Mapping[str, Any]) -> Lines:
    """Comments that say what to change in which place, and the commands that make it count
    (``row``: steps_by_hand).
    """
    run = [f"# {note}" for note in row.get("notes", ())]
    # ``drop`` has the new limit's name too, so it alone does not tell that something is old.
    if change.old or change.files:
        run.append(f"# {row['place']}: remove, if present: {' '.join(change.drop)}")
    if change.arguments:
        added = row["add"].replace("ARGUMENTS", " ".join(change.arguments))
        run.append(f"# {row['place']}: {added}")
    undo = [f"# {row['place']}: put back what you changed"]
    return [*run, *row["then"]], [*undo, *row["then"]]


def _unknown_system(change: LimitChange, bundle: Bundle) -> Lines:
    """The block for a system that is not known: a command that shows which tools it has, and, as
    comments, what to set by them and which settings to remove.
    """
    tools = initramfs_tools(bundle)
    run = [f"# not known here: {shown_id(bundle)}. Which of these is there?"]
    if tools:
        run.append(f"# the configuration of {' and '.join(tools)} lies there")
    run.append(f"for tool in {TOOL_NAMES}; do command -v $tool; done")
    if change.arguments:
        run.append(
            f"# its boot loader passes to the kernel: {' '.join(change.arguments)}"
        )
        # Of several TTM modules the first: the kernel's own, where it is there.
        option = f"options {change.modules[0]} pages_limit={change.pages}"
        run.append(
            f"# or {CONF} has: {option}; then that tool makes the initramfs anew"
        )
    # Only where the command line or a file has an old setting: ``drop`` also has the name of the
    # limit that is about to be set.
    if change.old or change.files:
        run.append(f"# and nothing says any more: {' '.join(change.drop)}")
    return run, [
        "# put back what you changed, and have that tool make the initramfs anew"
    ]


def _modprobe(change: LimitChange, tool: str) -> Lines:
    """A file of modprobe.d, which ``tool`` puts into the boot image. It gets a line for each TTM
    module of the box, as only the one in use reads its own.
    """
    rebuild = rebuild_command(tool)
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
    """AMD's amd-smi, which takes whole GiB. Without lines where only old settings are removed:
    it knows none of them.
    """
    reset = "sudo amd-smi reset --gtt"
    if change.arguments:
        remark = "# amd-smi 26.5 or later; it says GB and means GiB, whole ones"
        if change.limit_bytes % GIB:
            remark += ", so this is a little less"
        limit = change.limit_bytes // GIB
        return [remark, f"sudo amd-smi set --gtt {limit}"], [reset]
    if change.resets:
        return [reset], ["# nothing to undo"]
    return [], []


def _amd_ttm(change: LimitChange) -> Lines:
    """AMD's older script amd-ttm. It takes parts of a GiB, too, but gets whole ones here, as
    amd-smi does. Without lines where only old settings are removed, as for amd-smi.
    """
    clear = "amd-ttm --clear  # then rebuild the initramfs yourself"
    if change.arguments:
        limit = change.limit_bytes // GIB
        return [*AMD_TTM_NOTES, f"amd-ttm --set {limit}"], [clear]
    if change.resets:
        return [clear], ["# nothing to undo"]
    return [], []


SYSTEMS: dict[str, Callable[[LimitChange], Lines]] = {
    "grubby": _grubby,
    "update-grub": _update_grub,
    "systemd-boot": _systemd_boot,
    "kernelstub": _kernelstub,
    "rpm-ostree": _rpm_ostree,
    **{
        f"modprobe.d with {tool}": partial(_modprobe, tool=tool) for tool in BOOT_IMAGES
    },
    "amd-smi": _amd_smi,
    "amd-ttm": _amd_ttm,
}
"""The lines of each boot system, and of its undo."""


def _check(change: LimitChange) -> list[str]:
    """The lines that show after the reboot whether the limit is live: on this box itself, or, for
    a box that was captured elsewhere, there and then on the machine that has its bundle.
    """
    read = f"cat /sys/module/{change.module}/parameters/pages_limit"
    if change.arguments:
        read += f"  # expected: {change.pages}"
    live = [read, "cat /proc/cmdline"]
    if change.is_live:
        verify = "casebook ttm live --verify before.tar.gz"
        return ["# after the reboot", *live, verify]
    box = shell.word(change.box)
    return [
        f"# after the reboot, on {box} itself",
        *live,
        "casebook capture --out after.tar.gz",
        "# then where you have its earlier bundle:",
        f"casebook ttm after.tar.gz --verify {box}",
    ]
