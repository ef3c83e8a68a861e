"""What is collected from a tree: PCI devices, control groups, boot images, the kernel's names."""

import os

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import box
from trees import link, write

from helpers.look import machine, pci, ttm

SLOT = "/sys/devices/pci0000:00/0000:00:01.1"
CARD = SLOT + "/0000:01:00.0/0000:02:00.0/0000:03:00.0"
PACKAGE = "/sys/devices/pci0000:00/0000:00:08.1/0000:c5:00."
# Folder, class, vendor, device.
DEVICES = (
    (SLOT, "0x060400", "0x1022", "0x1483"),
    (SLOT + "/0000:01:00.0", "0x060400", "0x1002", "0x1478"),
    (SLOT + "/0000:01:00.0/0000:02:00.0", "0x060400", "0x1002", "0x1479"),
    (CARD, "0x030000", "0x1002", "0x744c"),
    (PACKAGE + "0", "0x038000", "0x1002", "0x1586"),
    (PACKAGE + "2", "0x108000", "0x1022", "0x17e0"),
    ("/sys/devices/pci0000:00/0000:0b:00.0", "0x030200", "0x10de", "0x2204"),
    ("/sys/devices/pci0000:00/0000:00:14.0", "0x0c0330", "0x1022", "0x1"),
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A card behind its own switch, an APU and an NVIDIA card."""
    root = tmp_path_factory.mktemp("pci")
    for folder, *words in DEVICES:
        for name, text in zip(("class", "vendor", "device"), words, strict=True):
            write(root, f"{folder}/{name}", f"{text}\n")
        link(root, f"/sys/bus/pci/devices/{folder.rsplit('/', 1)[-1]}", f"{root}{folder}")
    (root / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    link(root, CARD + "/driver", f"{root}/sys/bus/pci/drivers/amdgpu")
    return pci.collect_pci(root)


def test_only_gpus_and_bridges_are_collected(rows):
    expected = "00:01.1 01:00.0 02:00.0 03:00.0 0b:00.0 c5:00.0"
    assert [row["pci"] for row in rows] == [f"0000:{place}" for place in expected.split()]
    assert (rows[3]["driver"], rows[3]["path"]) == ("amdgpu", CARD)


def test_a_gpu_inside_the_processor_is_told_from_a_card_by_the_bus(rows):
    gpus = {device.pci[5:]: device for device in pci.pci_devices(box(pci_devices=rows))}
    assert gpus["03:00.0"].is_gpu and not gpus["02:00.0"].is_gpu
    inside = [gpus[at].integrated for at in "03:00.0 c5:00.0 0b:00.0".split()]
    assert inside == [False, True, None]


def test_a_tree_of_plain_folders_or_with_links_out_of_it_is_read_as_far_as_it_goes(tmp_path):
    assert pci.collect_pci(tmp_path) == [] and pci.pci_devices(box()) == ()
    folder = "/sys/bus/pci/devices/0000:03:00.0"
    write(tmp_path, folder + "/class", "0x030000\n")
    link(tmp_path, folder + "/driver", "/sys/bus/pci/drivers/amdgpu")
    link(tmp_path, "/sys/bus/pci/devices/0000:04:00.0", "/sys/devices/pci0000:00")
    (row,) = pci.collect_pci(tmp_path)
    assert (row["pci"], row["path"], row["driver"]) == ("0000:03:00.0", folder, "")
    (gpu,) = pci.pci_devices(box(pci_devices=[row]))
    assert gpu.integrated is None


def test_the_groups_files_are_found_from_the_process_up_and_nothing_outside(tmp_path):
    write(tmp_path, "/proc/self/cgroup", "4:memory:/job/../../etc\n0::/job/step\n")
    there = "memory/job/memory.stat", "job/step/memory.max", "job/memory.max"
    for name in (*there, "job/cgroup.procs"):
        write(tmp_path, f"/sys/fs/cgroup/{name}", "1\n")
    assert machine.cgroup_files(tmp_path) == [f"/sys/fs/cgroup/{name}" for name in there]
    assert machine.cgroup_files(tmp_path / "nothing") == []


def test_the_host_row_says_when_the_kernel_of_the_tree_started(tmp_path):
    write(tmp_path, "/proc/sys/kernel/random/boot_id", "0b0b-17\n")
    (row,) = machine.collect_host(tmp_path)
    assert row["boot_id"] == "0b0b-17" and row["page_size"] >= 4096


def test_boot_images_and_configuration_are_listed_with_their_times(tmp_path):
    for path, mtime in (
        ("/boot/initrd.img-6.14.0-37", 1700000000),
        ("/boot/vmlinuz-6.14.0-37", 5),
        ("/etc/modprobe.d/ttm.conf", 1700000500),
    ):
        write(tmp_path, path, "options ttm pages_limit=5\n")
        os.utime(f"{tmp_path}{path}", (mtime, mtime))
    link(tmp_path, "/boot/initrd.img", "initrd.img-6.14.0-37")
    times = ttm.file_times(box(initramfs=ttm.collect_initramfs(tmp_path)))
    assert [(t.path, t.mtime_s, t.is_image) for t in times] == [
        ("/boot/initrd.img-6.14.0-37", 1700000000, True),
        ("/etc/modprobe.d/ttm.conf", 1700000500, False),
    ]


SETTINGS = st.tuples(
    st.sampled_from(["ttm", "amdgpu"]),
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.integers(-1, 10**9).map(str),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(SETTINGS, max_size=6), st.booleans())
def test_a_setting_is_read_back_from_a_file_and_from_a_command_line(written, continued):
    gap = " \\\n  " if continued else " "
    conf = (f"options{gap}{module}{gap}{name}={value}" for module, name, value in written)
    assert [found[1:] for found in ttm.parse_modprobe("\n".join(conf))] == written
    words = (f"{module}.{name}={value}" for module, name, value in written)
    assert ttm.parse_cmdline(" ".join(words)) == written


def test_lsmod_and_proc_modules_read_alike():
    known = "amdttm 131072 2 amdgpu,amddrm_ttm_helper|video 77824 0|ttm 118784 1 drm_ttm_helper"
    known = known.split("|")
    printed = "\n".join(["Module                  Size  Used by", *known])
    listed = "\n".join(f"{line}{'' if line[-1] > '9' else ' -'}, Live 0x0" for line in known)
    assert ttm.parse_modules(printed) == ttm.parse_modules(listed)
    assert ttm.parse_modules(printed)["amdttm"] == ("amdgpu", "amddrm_ttm_helper")
