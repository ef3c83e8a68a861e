"""After the reboot: what took, what did not, and why, each reason on a box of its own."""

import pytest
from ttm_boxes import DKMS, GIB, apu

from helpers.judge.ttm_verify import LAYERS, verify
from helpers.look.boxes import open_box

HALF = 48 * GIB
WANTED = 80 * GIB
PAGES = WANTED // 4096
CONF = {"/etc/modprobe.d/ttm.conf": f"options ttm pages_limit={PAGES}\n"}
ONE = "11111111-2222-4333-8444-555555555555"
TWO = "99999999-2222-4333-8444-555555555555"
BEFORE = apu(boot=ONE)


def after(**changes):
    return apu(**{"boot": TWO, "at": "2026-03-02T00:00:00Z", **changes})


def states(result):
    return {row.layer: row.took for row in result.rows}


def intended(result):
    return result.rows[0].intended.value


def test_a_change_that_took_is_that_in_every_layer():
    result = verify(BEFORE, after(pages_limit=WANTED, cmdline=f"ro ttm.pages_limit={PAGES}"))
    assert result.took and states(result) == dict.fromkeys(LAYERS, True)
    assert intended(result) == WANTED and result.warnings == ()
    assert (result.rows[0].before.value, result.rows[0].now.value) == (HALF, WANTED)


def test_the_recorded_boxs_last_state_took_and_the_one_before_did_not():
    states_of = ("1-found", "3-gttsize", "4-ttm")
    first, gttsize, last = (open_box(f"strix-halo-{name}") for name in states_of)
    assert verify(first, last).took and intended(verify(first, last)) == 120 * GIB
    missed = verify(first, gttsize, target_bytes=120 * GIB)
    assert not missed.took and "only amdgpu.gttsize was set" in missed.says


IMAGE = "/boot/initramfs-6.18.2-generic.img"
TIMES = [(IMAGE, 100), ("/etc/modprobe.d/ttm.conf", 200)]
WRITTEN = [{"path": path, "mtime": time, "size": 9, "status": "ok"} for path, time in TIMES]
SIXTY = 60 * GIB // 4096
LINE = {"cmdline": f"ro ttm.pages_limit={PAGES}"}
LATER = {**CONF, "/etc/modprobe.d/zz.conf": f"options ttm pages_limit={SIXTY}\n"}
OVERRIDDEN = {"cmdline": f"ro ttm.pages_limit={SIXTY}", "pages_limit": 60 * GIB}
UNITS = {"/etc/modprobe.d/ttm.conf": "options ttm pages_limit=80GiB\n"}
WHY = [
    ({"boot": ONE, "files": CONF}, "not rebooted"),
    (
        {"files": CONF, "modules": DKMS, "module": "amdttm"},
        "it is set for ttm, and amdgpu uses amdttm",
    ),
    (
        {"files": CONF, "tables": {"initramfs": WRITTEN}},
        "the initramfs is older than /etc/modprobe.d/ttm.conf",
    ),
    ({"files": CONF}, "most likely the initramfs was not rebuilt"),
    ({"files": CONF, **OVERRIDDEN}, "the kernel command line says"),
    (
        {"files": LATER, "pages_limit": 60 * GIB},
        "/etc/modprobe.d/zz.conf:1 says 15728640 and is read last",
    ),
    ({"files": CONF, "modules": "amdgpu 20480000 12 - Live 0x0\n"}, "built into this kernel"),
    (
        {"kernel": "6.17.1-generic"},
        "an older boot entry, or it was not written, and Linux 6.17.1",
    ),
    (
        {"cmdline": f"ro ttm.page_limit={PAGES}"},
        "ttm.page_limit in /proc/cmdline is no parameter",
    ),
    ({"files": UNITS}, "is no number of pages"),
    (LINE, "the driver refused or capped it"),
]


@pytest.mark.parametrize(("changes", "words"), WHY, ids=[words for _, words in WHY])
def test_why_it_did_not_take(changes, words):
    result = verify(BEFORE, after(**changes), target_bytes=WANTED)
    assert not result.took and words in result.says
    assert states(result)["ttm"] is False
    assert all("follows TTM's limit" in row.why for row in result.rows[2:])


@pytest.mark.parametrize(("changes", "words"), [WHY[1], WHY[2], WHY[4]])
def test_what_was_intended_is_read_off_the_configuration_without_a_target(changes, words):
    result = verify(BEFORE, after(**changes))
    assert (intended(result), result.intended_source) == (WANTED, "configured now")
    assert words in result.says


def test_a_hip_build_is_named_where_the_kernel_did_its_part():
    result = verify(BEFORE, after(pages_limit=WANTED, torch=HALF), target_bytes=WANTED)
    assert not result.took and states(result)["kfd_bank"] and not states(result)["hip_total"]
    assert "torch total" in result.says and "change the torch or ROCm build" in result.says


def test_a_carve_out_that_stays_the_pool_is_named():
    box = {"ram": 60 * GIB, "vram": 64 * GIB, "kfd": 64 * GIB}
    now = after(**box, pages_limit=50 * GIB)
    result = verify(apu(**box), now, target_bytes=50 * GIB)
    assert not result.took and "carve-out is the pool" in result.says


def test_a_gtt_that_gttsize_sets_by_itself_is_no_failure():
    result = verify(BEFORE, after(pages_limit=WANTED, gtt=90 * GIB), target_bytes=WANTED)
    assert result.took and states(result)["gtt"] is None and "GTT" in result.says


def test_layers_that_were_not_read_prove_nothing_and_break_nothing():
    result = verify(BEFORE, after(pages_limit=WANTED, leave_out=("torch",)), target_bytes=WANTED)
    assert result.took and states(result)["hip_total"] is None and "torch total" in result.says
    unread = after(leave_out=("/sys/module/ttm/parameters/pages_limit",), kfd=WANTED)
    blind = verify(BEFORE, unread, target_bytes=WANTED)
    assert not blind.took and "was not read" in blind.says


def test_without_any_wish_the_earlier_boxs_plan_is_what_was_intended():
    result = verify(BEFORE, after())
    assert (result.took, intended(result)) == (False, 88 * GIB)
    assert result.intended_source == "the plan for the earlier bundle"


def test_where_the_plan_is_to_leave_it_nothing_was_intended():
    result = verify(apu(ram=16 * GIB), after(ram=16 * GIB))
    assert result.took and intended(result) is None and "Nothing was intended" in result.says


@pytest.mark.parametrize("name", ["rx7900xt-container", "cuda-healthy", "cpu-only"])
def test_a_box_that_ttm_does_not_limit_has_nothing_to_verify(name):
    result = verify(open_box(name), open_box(name))
    assert result.took and result.rows == () and "Nothing to verify" in result.says


@pytest.mark.parametrize(
    ("earlier", "now", "words"),
    [
        (open_box("strix-halo-1-found"), after(), "different GPUs"),
        (after(), BEFORE, "captured later"),
        (BEFORE, after(ram=64 * GIB), "RAM left to Linux changed"),
    ],
)
def test_bundles_of_two_boxes_or_in_the_wrong_order_are_warned_of(earlier, now, words):
    assert words in "\n".join(verify(earlier, now).warnings)


def test_a_target_the_box_cannot_give_is_refused():
    with pytest.raises(ValueError, match="expected at most"):
        verify(BEFORE, after(), target_bytes=200 * GIB)
