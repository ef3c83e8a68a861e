"""The PCIe link of a GPU: what the kernel or NVML says of it, and that a sleeping card is left asleep."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_boxes import box
from trees import link, write

from helpers.face.box import Box
from helpers.judge.evidence import evidence_from_bundle
from helpers.look import pci
from helpers.look.bundle import BundleWriter
from helpers.look.files import text
from helpers.look.pci import collect_pci
from helpers.look.pcie import pcie_links
from helpers.share.public_copy import PublicCopy
from helpers.tell import tables

PORT, SWITCH, INNER, CARD = ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
NVIDIA = "0000:61:00.0"
FULL = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe"}
FULL |= {"current_link_width": "16", "max_link_width": "16"}
IDLE = {**FULL, "current_link_speed": "2.5 GT/s PCIe", "current_link_width": "8"}
OLD = {**FULL, "current_link_speed": "8 GT/s", "max_link_speed": "8 GT/s"}


def device(root, way, ids, numbers, status="active"):
    """One device at the end of a way of PCI addresses, with what its folder says."""
    vendor, code = ids
    folder = "/sys/devices/pci0000:00/" + "/".join(way)
    files = {"vendor": vendor, "device": "0x744c", "class": code, **numbers}
    for name, content in {**files, "power/runtime_status": status}.items():
        write(root, f"{folder}/{name}", f"{content}\n")
    link(root, f"/sys/bus/pci/devices/{way[-1]}", f"../../../..{folder}")


def amd_card(root, slot, status="active"):
    """A card with the switch that AMD's cards bring; ``slot`` is the link of that switch."""
    way = (PORT, SWITCH, INNER, CARD)
    device(root, way[:1], ("0x1022", "0x060400"), OLD)
    device(root, way[:2], ("0x1002", "0x060400"), slot, status)
    device(root, way[:3], ("0x1002", "0x060400"), FULL, status)
    device(root, way, ("0x1002", "0x030000"), FULL, status)


def captured(root, **tables):
    return box(pci_devices=collect_pci(root), **tables)


def numbers_of(bundle):
    return [
        [row.pci, *(r.value for r in (row.speed, row.max_speed, row.width, row.max_width))]
        for row in pcie_links(bundle)
    ]


def view(bundle):
    return Box(evidence_from_bundle(bundle)).pcie


def test_the_link_of_an_amd_card_is_that_of_the_switch_that_it_brings(tmp_path):
    amd_card(tmp_path, IDLE)
    bundle = captured(tmp_path)
    assert numbers_of(bundle) == [[CARD, 2.5, 16.0, 8, 16]]
    says = view(bundle).text()
    assert "Below its maximum: 0000:03:00.0" in says and "while idle" in says
    assert f"devices/{SWITCH}/" in says and view(bundle).label == "PCIe"


def test_a_link_at_its_maximum_has_no_note_and_older_kernels_write_speeds_shorter(tmp_path):
    device(tmp_path, (NVIDIA,), ("0x10de", "0x030200"), OLD)
    bundle = captured(tmp_path)
    assert numbers_of(bundle) == [[NVIDIA, 8.0, 8.0, 16, 16]]
    assert (
        "Below" not in view(bundle).text()
        and view(bundle).result == "16 of 16 lanes at 8.0 of 8.0 GT/s"
    )


def test_of_a_suspended_card_no_file_is_read_that_wakes_it_and_the_table_says_so(
    tmp_path, monkeypatch
):
    amd_card(tmp_path, FULL, status="suspended")
    read = []
    monkeypatch.setattr(pci, "text", lambda root, path: read.append(path) or text(root, path))
    rows = collect_pci(tmp_path)
    assert [row.get("runtime_status") for row in rows] == [None, *["suspended"] * 3]
    assert len(read) > 10 and not [path for path in read if "_link_" in path]
    assert "Reading its link would wake it" in view(captured(tmp_path)).text()


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {**FULL, "current_link_speed": "Unknown speed", "current_link_width": "0"},
        {**FULL, "max_link_speed": "Unknown", "max_link_width": "255"},
        {**FULL, "current_link_width": "63"},
    ],
)
def test_what_the_kernel_does_not_know_leaves_the_row_out(tmp_path, numbers):
    device(tmp_path, (NVIDIA,), ("0x10de", "0x030000"), numbers)
    bundle = captured(tmp_path)
    assert pcie_links(bundle) == () and not view(bundle).applies


def test_a_gpu_inside_the_processor_has_no_link(tmp_path):
    device(tmp_path, (CARD,), ("0x1002", "0x030000"), FULL)
    device(tmp_path, ("0000:03:00.2",), ("0x1022", "0x108000"), FULL)
    assert pcie_links(captured(tmp_path)) == ()


def test_what_no_machine_printed_is_left_out(tmp_path):
    amd_card(tmp_path, IDLE)
    rows = "".join(f"{json.dumps(row)}\n" for row in collect_pci(tmp_path))
    writer = BundleWriter("made-up", "recorded", "0", "2026-01-02T03:04:05Z")
    writer.add("file", "pci_devices", rows, constructed=True)
    assert pcie_links(writer.bundle()) == () and not view(writer.bundle()).applies


def test_nvml_says_it_where_sysfs_does_not(tmp_path):
    row = {"index": 0, "status": "ok", "pci": "00000000:61:00.0", "unread": {}, "name": "A100"}
    row |= {"pcie_speed": 1, "pcie_max_speed": 4, "pcie_width": 16, "pcie_max_width": 16}
    device(tmp_path, (NVIDIA,), ("0x10de", "0x030200"), {})
    assert numbers_of(captured(tmp_path, nvml=[row])) == [[NVIDIA, 2.5, 16.0, 16, 16]]
    assert numbers_of(box(nvml=[row])) == [[NVIDIA, 2.5, 16.0, 16, 16]]
    assert numbers_of(box(nvml=[{**row, "pcie_width": None}])) == []


def test_on_a_shared_page_its_numbers_pass(tmp_path):
    amd_card(tmp_path, IDLE)
    bundle = captured(tmp_path)
    copies = PublicCopy(evidence_from_bundle(bundle))
    shared = tables.pcie_table(copies.of(pcie_links(bundle))).passing(copies.rules).text()
    assert all(word in shared for word in (CARD, "2.5", "16.0", "maximal lanes"))


@given(st.dictionaries(st.sampled_from(sorted(FULL)), st.one_of(st.text(), st.integers())))
def test_whatever_a_bundle_says_of_a_link_no_reader_breaks(numbers):
    row = {"pci": NVIDIA, "class": "0x030200", "vendor": "0x10de", **numbers}
    for read in pcie_links(box(pci_devices=[row])):
        assert 1 <= read.width.value <= 32 and read.speed.value > 0
