"""DRM cards and clients. Samples: amdgpu discrete and APU, two cards beyond nine, a connector, vgem (no PCI), an NVIDIA card
without pools; fdinfo of amdgpu in three generations, of xe, i915, msm and a driver that prints no memory."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_boxes import MISSING, REFUSED, box, folder

from helpers.look import drm

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


def uevent(driver: str, pci: str) -> str:
    return f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SLOT_NAME={pci}\nMODALIAS=pci:v00001002\n"


DISCRETE = {
    **folder(
        "/sys/class/drm/card1/device",
        uevent=uevent("amdgpu", "0000:03:00.0"),
        vendor="0x1002\n",
        device="0x744c\n",
        subsystem_vendor="0x1eae\n",
        subsystem_device="0x7905\n",
        revision="0xcc\n",
        product_name="\n",
        mem_info_vram_vendor="samsung\n",
        mem_info_vram_total=f"{20 * GIB - MIB}\n",
        mem_info_vram_used="0\n",
        mem_info_vis_vram_total="268435456\n",
        mem_info_vis_vram_used=REFUSED,
        mem_info_gtt_total="half\n",
        mem_info_gtt_used=REFUSED,
        mem_info_preempt_used="half\n",
    ),
    "/sys/class/drm/renderD128/device/uevent": uevent("amdgpu", "0000:0A:00.0"),
    "/sys/class/drm/renderD129/device/uevent": uevent("amdgpu", "0000:03:00.0"),
    # A connector of the card, which must not count as a card of its own.
    "/sys/class/drm/card1-DP-1/device/uevent": "MAJOR=226\nMINOR=1\nDEVNAME=dri/card1\n",
}


def test_a_card_is_keyed_by_pci_with_its_render_node_and_its_pools_in_bytes():
    (card,) = drm.cards(box(DISCRETE))
    assert (card.pci, card.card, card.render, card.driver) == (
        "0000:03:00.0",
        "card1",
        "renderD129",
        "amdgpu",
    )
    assert (card.vendor_id, card.device_id) == ("0x1002", "0x744c")
    assert card.vram_total.value == 20 * GIB - MIB
    assert card.vram_total.source == "/sys/class/drm/card1/device/mem_info_vram_total"
    assert card.vram_total.item == "sys/class/drm/card1/device/mem_info_vram_total"


def test_zero_refused_and_missing_stay_three_things():
    (card,) = drm.cards(box(DISCRETE))
    assert card.vram_used.ok and card.vram_used.value == 0
    assert card.gtt_used.status == "not_allowed" and card.gtt_used.why == "permission denied"
    assert card.gtt_total.status == "not_available" and "'half'" in card.gtt_total.why
    assert card.product.status == "not_available" and "empty" in card.product.why


def test_a_card_without_amd_pools_and_one_outside_pci_are_listed_with_nothing_invented():
    cards = drm.cards(
        box(
            {
                "/sys/class/drm/card0/device/uevent": "DRIVER=vgem\nMODALIAS=platform:vgem\n",
                "/sys/class/drm/card2/device/uevent": uevent("nvidia", "0000:01:00.0"),
                "/sys/class/drm/card2/device/mem_info_vram_total": MISSING,
                "/sys/class/drm/card10/device/uevent": uevent("amdgpu", "10000:e1:00.0"),
            }
        )
    )
    assert [(c.card, c.pci, c.driver) for c in cards] == [
        ("card0", "", "vgem"),
        ("card2", "0000:01:00.0", "nvidia"),
        ("card10", "10000:e1:00.0", "amdgpu"),
    ]
    assert cards[1].vram_total.why == "no such file"
    assert cards[0].vram_total.why == "not captured"


def test_the_patterns_for_capture_cover_every_file_the_reader_asks_for_and_no_connector():
    from fnmatch import fnmatchcase

    assert all(
        any(fnmatchcase(path, pattern) for pattern in drm.FILES)
        for path in DISCRETE
        if "DP-1" not in path
    )
    assert not any(
        fnmatchcase("/sys/class/drm/card1-DP-1/device/uevent", pattern) for pattern in drm.FILES
    )


FIRST = (
    "pos:\t0\nflags:\t02100002\nmnt_id:\t25\npdev:\t0000:03:00.0\npasid:\t32770\nvram mem:\t7340032 kB\n"
    "gtt mem:\t2048 kB\ncpu mem:\t0 kB\ngfx0:\t1.25%\n"
)
SECOND = (
    "drm-driver:\tamdgpu\ndrm-client-id:\t17\ndrm-pdev:\t0000:03:00.0\npasid:\t32771\ndrm-memory-vram:\t512 KiB\n"
    "drm-memory-gtt: \t64 KiB\ndrm-memory-cpu: \t0 KiB\namd-evicted-vram:\t12 KiB\ndrm-engine-gfx:\t99 ns\n"
)
THIRD = (
    "drm-driver:\tamdgpu\ndrm-client-id:\t18\ndrm-pdev:\t0000:03:00.0\npasid:\t32772\ndrm-total-vram:\t3 GiB\n"
    "drm-shared-vram:\t16 MiB\ndrm-active-vram:\t0\ndrm-resident-vram:\t2 GiB\ndrm-purgeable-vram:\t0\n"
    "drm-memory-vram:\t2097152 KiB\ndrm-total-gtt:\t4096\namd-requested-vram:\t3145728 KiB\n"
)
XE = (
    "drm-driver:\txe\ndrm-client-id:\t4\ndrm-pdev:\t0000:04:00.0\ndrm-total-system:\t0\ndrm-resident-system:\t0\n"
    "drm-total-vram0:\t51200 KiB\ndrm-resident-vram0:\t40 MiB\ndrm-resident-vram1:\t8 MiB\n"
    "drm-total-cycles-rcs:\t7655183225\ndrm-cycles-rcs:\t28257900\n"
)
I915 = (
    "drm-driver:\ti915\ndrm-client-id:\t6\ndrm-pdev:\t0000:00:02.0\ndrm-total-system0:\t312 KiB\n"
    "drm-total-local0:\t10 MiB\ndrm-resident-stolen-local0:\t1 MiB\n"
)
MSM = "drm-driver:\tmsm\ndrm-client-id:\t2\ndrm-total-memory:\t9 MiB\ndrm-resident-memory:\t3 MiB\n"
SILENT = "drm-driver:\tnvidia-drm\ndrm-client-id:\t5\ndrm-pdev:\t0000:01:00.0\n"


@pytest.mark.parametrize(
    ("text", "driver", "pci", "region", "held"),
    [
        (FIRST, "amdgpu", "0000:03:00.0", "vram", 7 * GIB),
        (SECOND, "amdgpu", "0000:03:00.0", "gtt", 64 * KIB),
        (THIRD, "amdgpu", "0000:03:00.0", "vram", 2 * GIB),
        (THIRD, "amdgpu", "0000:03:00.0", "gtt", 4096),
        (XE, "xe", "0000:04:00.0", "vram0", 40 * MIB),
        (I915, "i915", "0000:00:02.0", "local0", 10 * MIB),
        (MSM, "msm", "", "memory", 3 * MIB),
        (SILENT, "nvidia-drm", "0000:01:00.0", "vram", None),
    ],
)
def test_fdinfo_of_each_driver_and_generation(text, driver, pci, region, held):
    info = drm.parse_fdinfo(text)
    assert (info.driver, info.pci, info.held(region)) == (driver, pci, held)


def test_fdinfo_keeps_kinds_apart_and_does_not_take_time_for_memory():
    info = drm.parse_fdinfo(THIRD)
    assert info.regions["vram"] == {
        "total": 3 * GIB,
        "shared": 16 * MIB,
        "active": 0,
        "resident": 2 * GIB,
        "purgeable": 0,
        "memory": 2 * GIB,
    }
    assert set(drm.parse_fdinfo(XE).regions) == {"system", "vram0", "vram1"}


def test_malformed_fdinfo_lines_are_not_read_as_zero():
    info = drm.parse_fdinfo(
        "drm-driver: x\ndrm-memory-vram: twelve KiB\ndrm-total-gtt: -4 KiB\namd-evicted-vram: 1 parsec\n"
        "no colon here\ndrm-resident-vram: 1 PiB\ndrm-engine-gfx: nonsense\n"
    )
    assert info.regions == {}


@settings(max_examples=60, deadline=None)
@given(
    st.text()
    | st.lists(
        st.sampled_from((FIRST + SECOND + THIRD + XE).splitlines()) | st.text(max_size=40)
    ).map("\n".join)
)
def test_any_text_is_read_as_fdinfo_without_an_error(text):
    info = drm.parse_fdinfo(text)
    assert all(size >= 0 for kinds in info.regions.values() for size in kinds.values())


def row(pid: int, fd: int, fdinfo: str) -> dict:
    return {
        "pid": pid,
        "fd": fd,
        "target": "/dev/dri/renderD128",
        "fdinfo": fdinfo,
        "status": "ok",
        "why": "",
    }


def test_a_client_shared_by_a_fork_and_by_two_descriptors_counts_once():
    clients = drm.clients(
        box(
            device_files=[
                row(40, 7, THIRD),
                row(41, 7, THIRD),
                row(40, 9, THIRD),
                row(40, 3, SECOND),
            ]
        )
    )
    assert [c.pids for c in clients] == [(40,), (40, 41)]
    assert clients[1].region("vram").value == 2 * GIB
    assert clients[1].region("vram").source == "/proc/40/fdinfo/7"


def test_without_a_client_id_the_pasid_tells_clients_apart():
    other = FIRST.replace("32770", "32775")
    clients = drm.clients(box(device_files=[row(1, 4, FIRST), row(2, 4, FIRST), row(3, 4, other)]))
    assert [(c.pids, c.region("vram").value) for c in clients] == [
        ((1, 2), 7 * GIB),
        ((3,), 7 * GIB),
    ]


def test_same_client_id_on_two_cards_is_two_clients():
    clients = drm.clients(
        box(device_files=[row(1, 4, SECOND), row(1, 5, SECOND.replace("03:00", "0a:00"))])
    )
    assert [c.pci for c in clients] == ["0000:03:00.0", "0000:0a:00.0"]


def test_device_memory_is_found_under_every_drivers_name_for_it():
    rows = [row(1, fd, text) for fd, text in enumerate((XE, I915, SILENT, MSM))]
    drivers = {
        "0000:04:00.0": "xe",
        "0000:00:02.0": "i915",
        "0000:01:00.0": "nvidia-drm",
        "": "msm",
    }
    by_driver = {drivers[client.pci]: client for client in drm.clients(box(device_files=rows))}
    assert by_driver["xe"].region("vram").value == 48 * MIB
    assert by_driver["i915"].region("vram").value == 10 * MIB
    assert (
        by_driver["nvidia-drm"].region("vram").why == "the driver prints no memory for this client"
    )
    assert by_driver["msm"].region("vram").why == "no region vram"


def test_refused_processes_are_named_and_hold_no_zero():
    made = box(
        device_files=[
            row(9, 4, SECOND),
            {"pid": 300, "status": "not_allowed", "why": "EACCES"},
            {"pid": 12, "fd": 3, "status": "not_allowed", "why": "EACCES"},
        ]
    )
    assert drm.refused_pids(made) == (12, 300)
    assert [c.pids for c in drm.clients(made)] == [(9,)]


def test_rows_that_are_no_drm_client_or_no_row_at_all_are_passed_over():
    made = box(
        device_files=[
            row(1, 2, "pos:\t0\nflags:\t02\n"),
            {"pid": "7", "fdinfo": SECOND},
            {"pid": True, "fdinfo": SECOND},
            {"fdinfo": 5, "pid": 3},
            {},
        ]
    )
    assert drm.clients(made) == ()


def naive_vram(rows):
    """The slow twin: try every pair of rows, keep one of each client, add up."""
    kept = []
    for one in rows:
        info = drm.parse_fdinfo(one["fdinfo"])
        held = info.held("vram") or 0
        twins = [k for k in kept if k[0] == info.pci and k[1] == info.client_id]
        if not twins:
            kept.append([info.pci, info.client_id, held, {one["pid"]}])
            continue
        twins[0][2] = max(twins[0][2], held)
        twins[0][3].add(one["pid"])
    return sorted((pci, held, tuple(sorted(pids))) for pci, _, held, pids in kept)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.integers(3, 5),
            st.integers(1, 4),
            st.integers(0, 2),
            st.integers(0, 10**6),
        ),
        max_size=12,
    ),
    st.randoms(),
)
def test_clients_agree_with_the_slow_twin_in_any_order_of_rows(sightings, shuffler: random.Random):
    form = (
        "drm-driver: amdgpu\ndrm-pdev: 0000:0{}:00.0\ndrm-client-id: {}\ndrm-memory-vram: {} KiB\n"
    )
    rows = [
        row(pid, fd, form.format(card, client, kib)) for pid, fd, client, card, kib in sightings
    ]
    found = [(c.pci, c.region("vram").value, c.pids) for c in drm.clients(box(device_files=rows))]
    assert sorted(found) == naive_vram(rows)
    shuffler.shuffle(rows)
    assert [
        (c.pci, c.region("vram").value, c.pids) for c in drm.clients(box(device_files=rows))
    ] == found


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["pid", "fd", "fdinfo", "status", "target"]),
            st.none() | st.integers() | st.text(max_size=20) | st.lists(st.integers(), max_size=2),
        )
    )
)
def test_hostile_rows_never_raise(rows):
    made = box(device_files=rows)
    assert all(isinstance(c.pids, tuple) for c in drm.clients(made))
    assert all(isinstance(pid, int) for pid in drm.refused_pids(made))
    json.dumps(drm.refused_pids(made))
