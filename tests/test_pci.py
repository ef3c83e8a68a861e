"""PCI devices. Samples: a card behind its own switch in a shortened slot, an APU, an Intel GPU, an NVIDIA card at rest, and a
tree without links."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import box

from helpers.look import pci
from helpers.units import pci_address

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:03:00.0", "0000:03:00.0"),
        ("03:00.0", "0000:03:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("PCI:0000:0a:00", "0000:0a:00.0"),
        (" 10000:E1:00.1 ", "10000:e1:00.1"),
        ("card0", ""),
        ("0000:03:00.9", ""),
        ("", ""),
    ],
)
def test_every_spelling_of_an_address_becomes_one(text, expected):
    assert pci_address(text) == expected


def device(root, path, links=("driver",), **words):
    """A PCI device as sysfs lays it out: a folder under /sys/devices, linked from /sys/bus/pci/devices."""
    real = root / path.lstrip("/")
    real.mkdir(parents=True, exist_ok=True)
    for name, text in words.items():
        (real / ("class" if name == "class_" else name)).write_text(text + "\n")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / real.name).symlink_to(real)
    return real


SLOT = "/sys/devices/pci0000:00/0000:00:01.1"
BARS = "\n".join(
    [
        "0x000000e000000000 0x000000e4ffffffff 0x000000000014220c",
        "0x0 0x0 0x0",
        "0x000000e500000000 0x000000e50fffffff 0x14220c",
        "0x0 0x0 0x0",
        "0x000000000000f000 0x000000000000f0ff 0x40101",
        "0x00000000fca00000 0x00000000fcafffff 0x40200",
        "0x00000000fcb00000 0x00000000fcb1ffff 0x46200",
    ]
)


@pytest.fixture
def rows(tmp_path):
    link = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe"}
    short = {"current_link_width": "4", "max_link_width": "4"}
    device(tmp_path, SLOT, class_="0x060400", vendor="0x1022", device="0x1483", **link, **short)
    device(
        tmp_path,
        SLOT + "/0000:01:00.0",
        class_="0x060400",
        vendor="0x1002",
        device="0x1478",
        **link,
        current_link_width="4",
        max_link_width="16",
    )
    device(
        tmp_path,
        SLOT + "/0000:01:00.0/0000:02:00.0",
        class_="0x060400",
        vendor="0x1002",
        device="0x1479",
    )
    gpu = device(
        tmp_path,
        SLOT + "/0000:01:00.0/0000:02:00.0/0000:03:00.0",
        class_="0x030000",
        vendor="0x1002",
        device="0x744c",
        subsystem_vendor="0x1eae",
        subsystem_device="0x7905",
        boot_vga="1",
        numa_node="-1",
        resource=BARS,
        **link,
        current_link_width="16",
        max_link_width="16",
    )
    (tmp_path / "sys/kernel/iommu_groups/17").mkdir(parents=True)
    (tmp_path / "sys/kernel/iommu_groups/17/type").write_text("DMA-FQ\n")
    (gpu / "iommu_group").symlink_to(tmp_path / "sys/kernel/iommu_groups/17")
    (tmp_path / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    (gpu / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers/amdgpu")
    apu = "/sys/devices/pci0000:00/0000:00:08.1/0000:c5:00."
    device(
        tmp_path,
        apu + "0",
        class_="0x038000",
        vendor="0x1002",
        device="0x1586",
        numa_node="0",
        current_link_speed="16.0 GT/s PCIe",
        max_link_speed="16.0 GT/s PCIe",
        current_link_width="255",
        max_link_width="255",
    )
    device(tmp_path, apu + "2", class_="0x108000", vendor="0x1022", device="0x17e0")
    device(
        tmp_path,
        "/sys/devices/pci0000:00/0000:00:02.0",
        class_="0x030000",
        vendor="0x8086",
        device="0xa780",
    )
    device(
        tmp_path,
        "/sys/devices/pci0000:00/0000:00:06.0/0000:0b:00.0",
        class_="0x030200",
        vendor="0x10de",
        device="0x2204",
        current_link_speed="2.5 GT/s PCIe",
        max_link_speed="16.0 GT/s PCIe",
        current_link_width="16",
        max_link_width="16",
    )
    device(
        tmp_path,
        "/sys/devices/pci0000:00/0000:00:14.0",
        class_="0x0c0330",
        vendor="0x1022",
        device="0x1",
    )
    return pci.collect_pci(tmp_path)


def test_only_gpus_and_bridges_are_collected_and_no_serial_numbers(rows):
    assert [row["pci"] for row in rows] == [
        "0000:00:01.1",
        "0000:00:02.0",
        "0000:01:00.0",
        "0000:02:00.0",
        "0000:03:00.0",
        "0000:0b:00.0",
        "0000:c5:00.0",
    ]
    gpu = rows[4]
    assert (
        gpu["driver"] == "amdgpu"
        and gpu["subsystem"] == "0x1eae:0x7905"
        and gpu["iommu_group"] == "17"
    )
    assert gpu["path"] == SLOT + "/0000:01:00.0/0000:02:00.0/0000:03:00.0"
    assert gpu["resource"] == [20 * GIB, 0, 256 * MIB, 0, 256, MIB]


def test_a_card_in_a_shortened_slot_is_told_by_the_link_outside_its_own_switch(rows):
    gpu = next(d for d in pci.pci_devices(box(pci_devices=rows)) if d.pci == "0000:03:00.0")
    assert gpu.is_gpu and gpu.integrated is False
    assert gpu.link == pci.Link(16.0, 4, 16.0, 16)
    assert gpu.largest_bar_bytes == 20 * GIB
    assert [gpu.large_bar(size) for size in (20 * GIB, 24 * GIB, 0)] == [True, False, False]
    assert gpu.iommu.value == "DMA-FQ" and gpu.numa_node.why == "the firmware names no node"


def test_gpus_inside_the_package_cards_and_those_pci_cannot_tell(rows):
    by_pci = {d.pci: d for d in pci.pci_devices(box(pci_devices=rows))}
    assert [
        by_pci[p].integrated
        for p in ("0000:c5:00.0", "0000:00:02.0", "0000:0b:00.0", "0000:00:01.1")
    ] == [True, True, None, None]
    assert by_pci["0000:c5:00.0"].link is None and by_pci["0000:c5:00.0"].numa_node.value == 0
    assert by_pci["0000:c5:00.0"].iommu.value == "off"
    assert by_pci["0000:0b:00.0"].link == pci.Link(2.5, 16, 16.0, 16)


def test_a_tree_of_plain_folders_or_with_links_out_of_it_is_read_as_far_as_it_goes(tmp_path):
    plain = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    plain.mkdir(parents=True)
    (plain / "class").write_text("0x030000\n")
    (plain / "driver").symlink_to("/sys/bus/pci/drivers/amdgpu")
    (tmp_path / "sys/bus/pci/devices/0000:04:00.0").symlink_to("/sys/devices/pci0000:00")
    (row,) = pci.collect_pci(tmp_path)
    assert (row["pci"], row["path"], row["driver"]) == (
        "0000:03:00.0",
        "/sys/bus/pci/devices/0000:03:00.0",
        "",
    )
    (gpu,) = pci.pci_devices(box(pci_devices=[row]))
    assert gpu.link is None and gpu.integrated is None


def test_without_pci_in_sight_there_are_no_rows(tmp_path):
    assert pci.collect_pci(tmp_path) == []
    assert pci.pci_devices(box()) == ()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [
                    "pci",
                    "class",
                    "vendor",
                    "path",
                    "current_link_speed",
                    "max_link_speed",
                    "current_link_width",
                    "max_link_width",
                    "resource",
                    "numa_node",
                    "iommu_group",
                    "iommu_type",
                    "boot_vga",
                ]
            ),
            st.none()
            | st.integers()
            | st.sampled_from(["0000:03:00.0", "0x030000", "16.0 GT/s PCIe", "16", "0x1002"])
            | st.text(max_size=20)
            | st.lists(st.integers() | st.none(), max_size=3),
        ),
        max_size=4,
    )
)
def test_hostile_rows_never_raise(rows):
    for found in pci.pci_devices(box(pci_devices=rows)):
        assert pci_address(found.pci) == found.pci
        assert found.largest_bar_bytes >= 0 and found.iommu.show() and found.numa_node.show()
