"""Real outputs that other people posted, where they lie beside the checkout: every file of the kernel's own is read here, and
what a person reads off it is asserted. SOURCES.md beside them says where each comes from."""

from pathlib import Path

import pytest
from kernel_boxes import box

from helpers.look import drm, kfd, ttm
from helpers.look.kernel_log import parse

SAMPLES = Path(__file__).resolve().parents[1] / ".." / "shared" / "samples" / "smi"
pytestmark = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no shared samples beside this checkout"
)
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
SERVER = "0000:c5:00.0"

# file -> (line, kind, detail, when, pci, pid, process, count) of each event
LOGS = {
    "dmesg_boot_carveout96_gfx1151.txt": [
        (1, "vm_size", "", 3.539366, SERVER, None, "", 1),
        (4, "vram_ready", "", 3.539802, SERVER, None, "", 1),
        (5, "gttsize_deprecated", "", 3.539803, SERVER, None, "", 1),
        (6, "gtt_vs_ttm_mismatch", "", 3.539803, SERVER, None, "", 1),
        (7, "gtt_ready", "", 3.539804, SERVER, None, "", 1),
    ],
    "dmesg_boot_gttsize_vs_ttm_gfx1151.txt": [
        (1, "unknown_parameter", "amdgpu.gtt_size", 3.636913, "", None, "", 1),
        (3, "driver_version", "6.14.14", 3.637316, "", None, "", 1),
        (10, "vram_ready", "", 3.646006, "", None, "", 1),
        (11, "gttsize_deprecated", "", 3.646006, "0000:c6:00.0", None, "", 1),
        (12, "gtt_vs_ttm_mismatch", "", 3.646007, "0000:c6:00.0", None, "", 1),
        (13, "gtt_ready", "", 3.646008, "", None, "", 1),
    ],
    "dmesg_cs_enomem_new_form.txt": [
        (2, "cs_enomem", "", 85392.531368, "0000:04:00.0", None, "", 1)
    ],
    "dmesg_cs_enomem_old_form.txt": [
        (2, "cs_enomem", "", 253.498005, "", None, "", 2),
        (3, "pin_failed", "buffer", "nov 06 06:01:01", "0000:09:00.0", None, "", 1),
        (4, "pin_failed", "framebuffer", "nov 06 06:01:01", "", None, "", 1),
    ],
    "dmesg_kfd_bo_enomem_old.txt": [(1, "kfd_enomem", "VRAM", 84.025373, "", None, "", 2)],
    "dmesg_mes_hang_mode2_reset_gfx1151.txt": [
        (1, "queue_buffer_freed", "", "Aug 05 08:56:22.546876", "", None, "", 1),
        (2, "mes_hang", "REMOVE_QUEUE", "Aug 05 08:56:24.669800", SERVER, None, "", 1),
        (4, "mes_hang", "unrecoverable", "Aug 05 08:56:24.670111", SERVER, None, "", 1),
        (5, "mes_hang", "queue eviction", "Aug 05 08:56:24.670186", SERVER, None, "", 1),
        (6, "gpu_reset", "begin", "Aug 05 08:56:24.670225", SERVER, None, "", 1),
        (9, "vm_fault", "gfxhub", "Aug 05 08:56:25.714779", SERVER, None, "", 1),
        (13, "mes_hang", "SUSPEND", "Aug 05 08:56:27.428131", SERVER, None, "", 1),
        (15, "gpu_reset", "mode2", "Aug 05 08:56:27.715987", SERVER, None, "", 1),
        (16, "gpu_reset", "resuming", "Aug 05 08:56:27.747675", SERVER, None, "", 1),
        (19, "gpu_reset", "succeeded", "Aug 05 08:56:27.838664", SERVER, None, "", 1),
    ],
    "dmesg_mode1_reset_vram_lost_navi31.txt": [
        (1, "ring_timeout", "gfx_0.0.0", 469021.979894, "0000:0a:00.0", 10947, "sway", 1),
        (3, "gpu_reset", "begin", 469021.979913, "0000:0a:00.0", None, "", 1),
        (4, "mes_hang", "REMOVE_QUEUE", 469024.274963, "0000:0a:00.0", None, "", 1),
        (9, "gpu_reset", "mode1", 469024.560975, "0000:0a:00.0", None, "", 2),
    ],
    # The number behind the process's name is its thread's; the process's own stands behind the task (amdgpu_vm_fini).
    "dmesg_orphan_bo_va_signature.txt": [
        (1, "nonzero_when_fini", "", None, "0000:03:00.0", 28320, "Discord", 1),
        (2, "nonzero_when_fini", "", None, "0000:03:00.0", None, "", 1),
        (3, "cs_enomem", "", None, "0000:03:00.0", None, "", 1),
    ],
    "dmesg_vm_fault_torch_gfx1151.txt": [
        (1, "vm_fault", "gfxhub", 5071.443221, "0000:c2:00.0", 15426, "python", 1)
    ],
    "dmesg_vram_lost_lines.txt": [
        (1, "gpu_reset", "mode1", "Sep 30 15:31:44", "0000:03:00.0", None, "", 1),
        (2, "gpu_reset", "resuming", "Sep 30 15:32:16", "0000:03:00.0", None, "", 1),
        (4, "vram_lost", "", "Sep 30 15:32:16", "0000:03:00.0", None, "", 1),
    ],
}
FACTS = {
    ("dmesg_boot_carveout96_gfx1151.txt", 1): {"size_bytes": 262144 * GIB},
    ("dmesg_boot_carveout96_gfx1151.txt", 4): {"size_bytes": 96 * GIB},
    ("dmesg_boot_carveout96_gfx1151.txt", 6): {"gtt_bytes": 103079215104, "ttm_bytes": 16638816256},
    ("dmesg_boot_gttsize_vs_ttm_gfx1151.txt", 10): {"size_bytes": GIB},
    ("dmesg_boot_gttsize_vs_ttm_gfx1151.txt", 12): {
        "gtt_bytes": 128849018880,
        "ttm_bytes": 66818834432,
    },
    ("dmesg_boot_gttsize_vs_ttm_gfx1151.txt", 13): {"size_bytes": 120 * GIB},
    ("dmesg_cs_enomem_old_form.txt", 4): {"error": -12},
    ("dmesg_mes_hang_mode2_reset_gfx1151.txt", 9): {
        "vmid": 0,
        "pasid": 0,
        "address": "0x0000000000000000",
        "status": "0x00040B53",
        "client": "CPC (0x5)",
    },
    ("dmesg_orphan_bo_va_signature.txt", 1): {"thread": 28374},
    ("dmesg_vm_fault_torch_gfx1151.txt", 1): {
        "vmid": 8,
        "pasid": 32772,
        "address": "0x00007ad8780fe000",
        "status": "0x00800932",
        "client": "CPF (0x4)",
    },
}


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def test_every_sample_of_the_kernels_own_files_is_read_here():
    here = {
        *LOGS,
        "fdinfo_amdgpu_new_kernel.txt",
        "fdinfo_amdgpu_new_kernel_mib_units.txt",
        "fdinfo_amdgpu_apu_grep.txt",
        "kfd_mem_bank_properties.txt",
        "lsmod_ttm_and_amdttm.txt",
    }
    there = {
        path.name
        for pattern in ("dmesg_*", "fdinfo_*", "kfd_*", "lsmod_*")
        for path in SAMPLES.glob(pattern)
    }
    assert there == here


@pytest.mark.parametrize("name", LOGS)
def test_a_posted_kernel_log(name):
    events = parse(sample(name), name)
    assert [
        (e.line, e.kind, e.detail, e.when.value, e.pci, e.pid, e.process, e.count) for e in events
    ] == LOGS[name]
    for event in events:
        expected = FACTS.get((name, event.line))
        if expected:
            assert event.facts == expected


def test_posted_fdinfo_with_every_kind_and_trailing_blanks_in_keys():
    info = drm.parse_fdinfo(sample("fdinfo_amdgpu_new_kernel.txt"))
    assert (info.driver, info.client_id, info.pci, info.pasid) == (
        "amdgpu",
        "4",
        "0000:04:00.0",
        "32771",
    )
    assert info.held("vram") == 44564 * KIB and info.held("gtt") == 2392 * KIB
    assert info.held("cpu") == 0
    assert (
        info.regions["vram"]["shared"] == 31952 * KIB
        and info.regions["gtt"]["memory"] == 2392 * KIB
    )


def test_posted_fdinfo_with_mib_kib_and_plain_bytes_in_one_text():
    info = drm.parse_fdinfo(sample("fdinfo_amdgpu_new_kernel_mib_units.txt"))
    assert (info.client_id, info.pasid) == ("30", "32785")
    assert info.regions["gtt"] == {
        "total": 22 * MIB,
        "shared": 0,
        "active": 10 * MIB,
        "resident": 22 * MIB,
        "memory": 22 * MIB,
    }
    assert info.held("vram") == 544428 * KIB


def test_posted_fdinfo_of_an_apu_whose_model_lies_in_gtt():
    info = drm.parse_fdinfo(sample("fdinfo_amdgpu_apu_grep.txt"))
    assert (info.held("gtt"), info.held("vram"), info.held("cpu")) == (
        25258000 * KIB,
        5348 * KIB,
        0,
    )


def test_a_posted_memory_bank():
    folder = "/sys/class/kfd/kfd/topology/nodes/1"
    bank = sample("kfd_mem_bank_properties.txt")
    (node,) = kfd.nodes(box({folder + "/gpu_id": "1\n", folder + "/mem_banks/0/properties": bank}))
    assert node.framebuffer.value == 25767706624


def test_a_posted_module_list_with_two_ttm_modules():
    text = sample("lsmod_ttm_and_amdttm.txt")
    loaded = ttm.parse_modules(text)
    assert loaded["amdttm"] == ("amdgpu", "amddrm_ttm_helper") and loaded["ttm"] == (
        "drm_ttm_helper",
    )
    assert ttm.ttm_module(box({"/proc/modules": text})).value == "amdttm"
