"""Each GPU stands once under its PCI address, whatever the layers call it; its memory is attributed or the rest is shown."""

import json

from helpers.look.boxes import open_box
from helpers.look.bundle import BundleWriter
from helpers.look.gpus import gpus, host_pools

MIB, GIB = 1 << 20, 1 << 30
PCI = "0000:03:00.0"


def amd_box(*, used=4 * GIB, fdinfo=(), kfd=(), identity=None, refused=()):
    writer = BundleWriter("made", "constructed", "0", "")
    base = "/sys/class/drm/card1/device/"
    for name, text in {
        "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={PCI}\n",
        "vendor": "0x1002\n",
        "device": "0x744c\n",
        "mem_info_vram_total": f"{20 * GIB}\n",
        "mem_info_vram_used": f"{used}\n",
        "mem_info_gtt_total": f"{32 * GIB}\n",
        "mem_info_gtt_used": "0\n",
    }.items():
        writer.add("file", base + name, text)
    node = "/sys/class/kfd/kfd/topology/nodes/1/"
    writer.add("file", node + "gpu_id", "777\n")
    writer.add(
        "file",
        node + "properties",
        "simd_count 168\ngfx_target_version 110000\nlocation_id 768\ndomain 0\n",
    )
    writer.add("file", node + "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {20 * GIB}\n")
    for pid, size in kfd:
        writer.add("file", f"/sys/class/kfd/kfd/proc/{pid}/vram_777", f"{size}\n")
    rows = [
        {
            "pid": pid,
            "fd": 5,
            "target": "/dev/dri/renderD128",
            "status": "ok",
            "why": "",
            "fdinfo": f"drm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{PCI}\ndrm-resident-vram:\t{kib} KiB\n",
        }
        for pid, client, kib in fdinfo
    ]
    rows += [{"pid": pid, "status": "not_allowed", "why": "EACCES"} for pid in refused]
    writer.add("file", "device_files", "".join(json.dumps(row) + "\n" for row in rows))
    there = [
        {"pid": pid, "name": f"job{pid}", "state": "S", "uid": 1000, "status": "ok"}
        for pid in {row[0] for row in fdinfo} | {4242}
    ]
    writer.add("file", "processes", "".join(json.dumps(row) + "\n" for row in there))
    if identity:
        writer.add("file", "identity", json.dumps(identity) + "\n")
    return writer.bundle()


def test_one_card_seen_by_two_layers_is_one_gpu_with_every_number():
    (gpu,) = gpus(amd_box())
    assert gpu.pci == PCI and gpu.vendor == "AMD"
    assert gpu.indices == {
        "drm card": "card1",
        "kfd node": "1",
        "kfd gpu_id": "777",
        "gfx": "gfx1100",
    }
    assert [pool.layer for pool in gpu.pools] == ["sysfs VRAM", "sysfs GTT", "KFD bank", "HSA pool"]
    assert not gpu.pools[3].total.ok and gpu.pools[3].total.why == "not captured"


def test_memory_in_use_is_attributed_and_the_rest_is_shown():
    (gpu,) = gpus(amd_box(fdinfo=[(10, 1, 1024 * 1024), (11, 2, 2048 * 1024)]))
    assert [(h.pid, h.memory.value) for h in gpu.holders] == [(11, 2 * GIB), (10, 1 * GIB)]
    assert gpu.unattributed.value == 1 * GIB


def test_a_client_shared_by_a_forked_child_counts_once():
    (gpu,) = gpus(amd_box(fdinfo=[(10, 1, 1024 * 1024), (12, 1, 1024 * 1024)]))
    (holder,) = gpu.holders
    assert holder.memory.value == GIB and "12" in holder.note and gpu.unattributed.value == 3 * GIB


def test_a_process_seen_by_two_sources_is_not_added_twice():
    (gpu,) = gpus(amd_box(fdinfo=[(10, 1, 1024 * 1024)], kfd=[(10, 3 * GIB)]))
    assert {(h.source, h.memory.value) for h in gpu.holders} == {
        ("DRM fdinfo", GIB),
        ("KFD", 3 * GIB),
    }
    assert gpu.unattributed.value == 1 * GIB


def test_a_host_pid_in_a_container_is_not_taken_for_the_process_of_that_number():
    inside = {"uid": 0, "container": "docker", "init_pid_ns": False}
    (gpu,) = gpus(amd_box(kfd=[(4242, 4 * GIB)], identity=inside))
    (holder,) = gpu.holders
    assert holder.name == "" and holder.note == "a host PID"
    assert any("PID namespace" in spot for spot in gpu.blind_spots)
    (bare,) = gpus(amd_box(kfd=[(4242, 4 * GIB)]))
    assert bare.holders[0].name == "job4242"


def test_a_containers_own_process_under_its_host_number_is_not_added_twice():
    inside = {"uid": 0, "container": "docker", "init_pid_ns": False}
    (gpu,) = gpus(
        amd_box(used=3 * GIB, fdinfo=[(10, 1, 1024 * 1024)], kfd=[(901, 1 * GIB)], identity=inside)
    )
    assert gpu.unattributed.value == 2 * GIB


def test_a_monitor_that_only_opened_the_device_holds_nothing():
    (gpu,) = gpus(amd_box(kfd=[(4242, 0)]))
    assert gpu.holders[0].note == "only opened the device" and gpu.unattributed.value == 4 * GIB


def test_refused_processes_are_a_blind_spot_and_not_a_zero():
    (gpu,) = gpus(amd_box(refused=[77, 78]))
    assert any("2 process(es) of other users" in spot for spot in gpu.blind_spots)


def test_an_apus_pools_are_attributed_together_and_named_apart():
    (gpu,) = gpus(open_box("strix-halo-3-gttsize"))
    pools = {pool.layer: pool.total.value for pool in gpu.pools}
    assert pools["sysfs VRAM"] == 512 * MIB and pools["sysfs GTT"] == 120 * GIB
    assert pools["KFD bank"] == pools["HSA pool"] == 16393924 * 4096
    assert gpu.integrated is True and gpu.holders[0].memory.value == (120320 + 40960) * 1024


def test_the_hosts_pools_name_the_ttm_limit():
    pools = {pool.layer: pool.total.value for pool in host_pools(open_box("strix-halo-4-ttm"))}
    assert pools["ttm limit"] == 120 * GIB and pools["RAM"] == 131151392 * 1024


def test_a_box_without_a_gpu_has_none():
    assert gpus(open_box("cpu-only")) == ()


def test_a_servers_display_chip_is_no_gpu():
    writer = BundleWriter("made", "constructed", "0", "")
    writer.add(
        "file",
        "pci_devices",
        json.dumps(
            {
                "pci": "0000:07:00.0",
                "class": "0x030000",
                "vendor": "0x1a03",
                "device": "0x2000",
                "driver": "ast",
                "path": "",
            }
        )
        + "\n",
    )
    assert gpus(writer.bundle()) == ()
