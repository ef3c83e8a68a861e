"""The plan: safe for any box, the case's numbers, wishes refused in one line, and what on the box it would meet."""

import re

import pytest
from data_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from ttm_boxes import DKMS, GIB, MIB, apu

from helpers.ground.contract import from_json, to_json
from helpers.ground.shapes import Ttm
from helpers.judge.ceilings import ceilings
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle
from helpers.judge.ttm_limit import Room, check_wish, in_units, plan, wanted_bytes
from helpers.judge.ttm_plan import ttm_answer
from helpers.look.boxes import open_box, recorded_names

STRIX = ("strix-halo-1-found", "strix-halo-2-vm-size", "strix-halo-3-gttsize", "strix-halo-4-ttm")
KERNELS = st.none() | st.tuples(st.integers(5, 7), st.integers(0, 20))
PAGES = st.sampled_from([4096, 16384, 65536])
RAMS = st.integers(4 * GIB, 2048 * GIB)


def effective(space, made):
    """The limit in bytes that the box has after the plan."""
    return made.bytes if made.action == "set" else space.default_pages * space.page_bytes


@given(RAMS, st.integers(0, 512 * GIB), KERNELS, PAGES)
@settings(max_examples=300)
def test_any_plan_is_above_the_default_or_leaves_it_and_never_beyond_what_there_is(
    installed, carveout, kernel, page
):
    space = Room(max(installed - carveout, GIB), page, kernel, None, carveout)
    made = plan(space)
    assert made.why
    if made.action != "leave":
        assert made.pages_limit > space.default_pages
    if made.action == "set":
        assert made.bytes == made.pages_limit * page
        assert made.bytes <= min(space.ram_bytes - made.reserve_bytes, space.kfd_bytes)
        assert made.reserve_bytes >= max(8 * GIB, int(0.06 * space.ram_bytes))
        if kernel is None or kernel >= (6, 15):
            assert carveout < made.bytes


@given(RAMS, RAMS, st.integers(0, 512 * GIB), KERNELS, PAGES)
@settings(max_examples=300)
def test_more_ram_never_means_a_lower_limit(one, other, carveout, kernel, page):
    less, more = (Room(ram, page, kernel, None, carveout) for ram in sorted((one, other)))
    assert effective(less, plan(less)) <= effective(more, plan(more))


@given(RAMS, st.integers(64 * MIB, 3000 * GIB), KERNELS, PAGES)
@settings(max_examples=200)
def test_a_target_is_met_to_the_page_or_refused(ram, target, kernel, page):
    space = Room(ram, page, kernel)
    if target > min(space.kfd_bytes, ram):
        with pytest.raises(ValueError, match="expected at most"):
            plan(space, target_bytes=target)
        return
    made = plan(space, target_bytes=target)
    if made.action != "leave":
        assert target - page < made.bytes <= target
        assert made.pages_limit > space.default_pages


@given(RAMS, st.integers(0, 2048 * GIB), KERNELS, st.integers(0, 1 << 30))
@settings(max_examples=200)
def test_any_reserve_is_kept_or_refused_whatever_is_live(ram, reserve, kernel, live):
    space = Room(ram, 4096, kernel, live)
    try:
        made = plan(space, reserve_bytes=reserve)
    except ValueError as error:
        assert "\n" not in str(error) and (reserve >= ram or 0 < reserve < 64 * MIB)
        return
    if made.action == "set":
        assert ram - made.bytes >= reserve and made.bytes <= space.kfd_bytes


def test_the_cases_box_with_a_target_of_120_gib():
    answer = ttm_answer(open_box("strix-halo-3-gttsize"), target_bytes=120 * GIB)
    made = answer.plan
    assert (made.action, made.pages_limit, made.bytes) == ("set", 31457280, 120 * GIB)
    assert "uses up the reserve: 5.08 GiB of RAM are left" in "\n".join(answer.warnings)


@pytest.mark.parametrize("name", STRIX[:3])
def test_the_cases_box_by_default_keeps_eight_gib(name):
    made = ttm_answer(open_box(name)).plan
    assert (made.action, made.reserve_bytes) == ("set", 8 * GIB)
    assert made.pages_limit == (134299025408 - 8 * GIB) // 4096


def test_a_limit_that_was_raised_is_left_and_what_it_leaves_is_said():
    answer = ttm_answer(open_box("strix-halo-4-ttm"))
    assert (answer.plan.action, answer.plan.pages_limit) == ("leave", 31457280)
    assert "raised already" in answer.plan.why
    assert any("the limit uses up the reserve" in warning for warning in answer.warnings)
    assert ttm_answer(open_box("strix-halo-4-ttm"), target_bytes=120 * GIB).plan.action == "leave"


def test_six_percent_is_the_reserve_of_a_large_box_and_a_small_one_is_left():
    large = plan(Room(512 * GIB, 4096, (6, 17)))
    assert large.reserve_bytes == int(512 * GIB * 0.06) and large.action == "set"
    small = plan(Room(16 * GIB, 4096, (6, 17)))
    assert small.action == "leave" and "not above the kernel's default" in small.why


def test_kernels_and_carve_outs_for_which_a_limit_would_do_nothing():
    assert "before Linux 6.10" in plan(Room(96 * GIB, 4096, (6, 8))).why
    carved = Room(31 * GIB, 4096, (6, 17), None, 96 * GIB)
    why = plan(carved).why
    assert "carve-out (96.00 GiB) is larger than what TTM could give (" in why
    given = float(re.search(r"could give \(([\d.]+) GiB\)", why)[1])
    assert 31 / 2 < given < 31 and "make it smaller in the firmware" in why
    assert plan(Room(31 * GIB, 4096, (6, 14), None, 96 * GIB)).action == "set"


def test_a_limit_set_too_low_or_too_high_is_taken_away_or_lowered():
    assert plan(Room(16 * GIB, 4096, (6, 17), 1 * GIB // 4096)).action == "remove"
    assert plan(Room(16 * GIB, 4096, (6, 17), 16 * GIB // 4096)).action == "remove"
    lowered = plan(Room(96 * GIB, 4096, (6, 17), 96 * GIB // 4096))
    assert lowered.action == "set" and lowered.bytes == 88 * GIB


def test_the_page_size_is_that_of_the_box():
    assert plan(Room(96 * GIB, 65536, (6, 17))).pages_limit == 88 * GIB // 65536
    answer = ttm_answer(apu(page=16384))
    assert answer.plan.pages_limit == 88 * GIB // 16384 and answer.plan.bytes == 88 * GIB
    unread = ttm_answer(apu(leave_out=("host",))).plan.why
    assert unread == "RAM or page size were not captured; capture again"


SPACE = Room(134299025408, 4096, (6, 17))


@pytest.mark.parametrize(
    "reserve, target, words", read_rows("a wish that cannot be meant is refused in one line")
)
def test_a_wish_that_cannot_be_meant_is_refused_in_one_line(reserve, target, words):
    with pytest.raises(ValueError) as refused:
        check_wish(SPACE, reserve, target)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_sizes_as_people_type_them():
    sizes = [wanted_bytes(text) for text in ("8GiB", "20GB", "", "  ")]
    assert sizes == [8 * GIB, 20 * 10**9, None, None]
    for odd in ("-8GiB", "eight", "8 gigs", "0x10"):
        with pytest.raises(ValueError, match="expected"):
            wanted_bytes(odd)


def test_one_size_in_every_unit():
    assert in_units(31457280, 4096) == (
        "31457280 pages of 4 KiB = 128849018880 bytes = 122880 MiB = 120.00 GiB "
        "(128.85 GB of 10^9 bytes)"
    )


@pytest.mark.parametrize("name", recorded_names())
def test_every_recorded_box_gives_the_shape_and_the_same_json_twice(name):
    first, second = (to_json(ttm_answer(open_box(name))) for _ in range(2))
    assert first == second and from_json(Ttm, first).box == name


@pytest.mark.parametrize("name", ["rx7900xt-container", "cuda-healthy", "cpu-only"])
def test_a_box_that_ttm_does_not_limit_gets_no_command(name):
    answer = ttm_answer(open_box(name))
    assert (answer.plan.action, answer.plan.pages_limit) == ("leave", None)
    assert (answer.commands, answer.binding) == ([], None)


def test_a_hip_fault_is_not_answered_with_a_kernel_setting_unless_one_is_asked_for():
    faulty = apu(pages_limit=80 * GIB, torch=48 * GIB)
    assert ttm_answer(faulty).plan.action == "leave" and not ttm_answer(faulty).commands
    assert ttm_answer(faulty, target_bytes=85 * GIB).plan.action == "set"


def test_what_shares_the_ram_is_read_off_the_box():
    sizes = (("database", 77, 20 * GIB), ("gnome-shell", 78, MIB))
    known = [{"name": n, "pid": p, "rss_anon_bytes": b, "rss_bytes": b} for n, p, b in sizes]
    running = [{**row, "status": "ok", "state": "S"} for row in known]
    files = {
        "/proc/spl/kstat/zfs/arcstats": f"name type data\nsize 4 {6 * GIB}\n",
        "/proc/meminfo": f"MemTotal: {96 << 20} kB\nSwapTotal: 0 kB\nHugetlb: {4 << 20} kB\n",
        "/proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 8388604 2097152 100\n",
        "/sys/module/amdgpu/parameters/no_system_mem_limit": "Y\n",
    }
    said = "\n".join(ttm_answer(apu(files=files, tables={"processes": running})).warnings)
    for word in ("ZFS cache", "huge pages", "zram", "no swap", "gnome-shell", "livelock"):
        assert word in said
    assert "database (pid 77) holds 20.00 GiB" in said


def test_two_modules_a_misspelt_parameter_and_a_stale_one_are_warned_of():
    files = {
        "/sys/module/ttm/parameters/pages_limit": "99\n",
        "/sys/module/amdgpu/parameters/gttsize": "-1\n",
        "/etc/modprobe.d/a.conf": "options amdgpu gtt_size=98304\noptions amdgpu vm_size=512\n",
    }
    said = "\n".join(ttm_answer(apu(modules=DKMS, module="amdttm", files=files)).warnings)
    for word in ("two TTM modules", "gttsize was meant", "amdgpu.vm_size=512"):
        assert word in said


def test_the_verdict_says_what_binds_and_holds_the_reading_that_seems_to_contradict():
    made = diagnose(evidence_from_bundle(open_box("strix-halo-3-gttsize")))
    assert (made.cause, made.confidence) == ("ttm-gtt-cap", "likely"), "its readings were filled in"
    says = "\n".join(f"{line.reading.value}: {line.says}" for line in made.evidence)
    assert re.search(rf"(?m)^{120 * GIB}: .*do not follow it", says)
    assert "from the write-up" in says and "this one decides" in says
    assert "ttm.pages_limit" in made.next_step.command


def test_an_undecided_verdict_says_what_is_missing():
    bank = "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"
    unread = apu(leave_out=(bank, "/sys/module/ttm/parameters/pages_limit"))
    made = ceilings(unread)[0].decision
    assert made.cause == "cannot-tell" and set(made.missing) >= {"pages_limit", "KFD memory bank"}
