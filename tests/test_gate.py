"""What the gate sees between two runs, on invented trees of a box, and what it then lets through."""

import ctypes
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import GIB, link, make_tree, write

from helpers.look.bundle import BundleWriter
from helpers.look.gpus import gpus as gpus_of
from helpers.look.nvml import NvmlError
from helpers.run import box_state, gate, kernel_errors
from helpers.run.gate import BoxState, GpuState, Held, Quarantine, Trouble, measure, settle, unclean
from helpers.run.shapes import Gates

CARD = "0000:03:00.0"
OTHER = "0000:13:00.0"
GATES = Gates(disk_free_bytes=0)
MIB = 1 << 20


@pytest.fixture
def box(tmp_path):
    """A box with one AMD card and a kernel log of two lines, one of them an old fault."""
    tree = make_tree(tmp_path / "box", processes=20, device_files=4)
    kmsg(tree.root, 1, ("usb 1-1: new device", f"amdgpu {CARD}: amdgpu: GPU reset begin!"))
    write(tree.root, "/proc/vmstat", "pgfault 1\noom_kill 3\n")
    return str(tree.root)


def kmsg(root, first, lines, mode="w"):
    os.makedirs(f"{root}/dev", exist_ok=True)
    with open(f"{root}/dev/kmsg", mode) as log:
        log.writelines(
            f"6,{number},{5_000 + number},-;{line}\n SUBSYSTEM=pci\n"
            for number, line in enumerate(lines, first)
        )


def card_file(root, name, value, index=0):
    write(root, f"/sys/class/drm/card{index}/device/{name}", f"{value}\n")


def after(root, before, **more):
    return measure(root=root, since=before, **more)


def whys(troubles):
    return [f"{trouble.scope}: {trouble.why}" for trouble in troubles]


def test_a_box_that_did_not_change_is_clean_and_what_happened_earlier_is_not_told(box):
    before = measure(root=box)
    assert before.gpus[0].pci == CARD and before.gpus[0].holders and before.log == "kmsg 2"
    assert unclean(before, after(box, before), GATES) == ()


def test_a_new_holder_and_its_memory_are_named_with_sizes(box):
    before = measure(root=box)
    write(
        box, "/proc/900/stat", "900 (train er) D 1 900 900 0 -1 4194304" + " 0" * 12 + " 777 0 0\n"
    )
    link(box, "/proc/900/fd/5", "/dev/dri/renderD128")
    write(
        box,
        "/proc/900/fdinfo/5",
        f"drm-driver:\tamdgpu\ndrm-client-id:\t44\ndrm-pdev:\t{CARD}\n"
        f"drm-memory-vram:\t{3 * GIB >> 10} KiB\n",
    )
    used = before.gpus[0].pools[0][1]
    card_file(box, "mem_info_vram_used", used + 3 * GIB)
    found = unclean(before, after(box, before), GATES)
    assert {trouble.scope for trouble in found} == {f"gpu {CARD}"} and all(
        trouble.passes for trouble in found
    )
    assert found[0].why == (
        "train er (900) holds 3.00 GiB and waits inside the kernel (state D), expected no holder that was "
        "not there before"
    )
    assert "sysfs VRAM: " in found[1].why and "expected at most" in found[1].why and len(found) == 2


def test_a_small_new_client_and_one_that_was_there_before_are_no_trouble():
    old, small = Held(10, "desktop", "S", 5, 2 * GIB), Held(11, "clock", "S", 9, 20 * MIB)
    before = BoxState("b", (GpuState(CARD, holders=(old,)),))
    assert (
        unclean(
            before,
            replace(before, gpus=(GpuState(CARD, holders=(replace(old, bytes=3 * GIB), small)),)),
            GATES,
        )
        == ()
    )
    taken = replace(old, start_ticks=6)
    assert (
        "desktop (10)"
        in unclean(before, replace(before, gpus=(GpuState(CARD, holders=(taken,)),)), GATES)[0].why
    )
    unmeasured = replace(small, bytes=None)
    assert (
        "not measured"
        in unclean(before, replace(before, gpus=(GpuState(CARD, holders=(unmeasured,)),)), GATES)[
            0
        ].why
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 64 * GIB), st.integers(GIB, 64 * GIB), st.floats(0, 1))
def test_memory_is_back_exactly_within_the_plans_fraction_or_the_slack(more, total, fraction):
    gates = GATES.model_copy(update={"memory_back_fraction": fraction})
    allowed = max(64 * MIB, int(total * fraction))
    before = BoxState(
        "b",
        (GpuState(CARD, (("sysfs GTT", GIB, total),)),),
        total_bytes=total,
        available_bytes=64 * GIB,
    )
    now = replace(
        before,
        gpus=(GpuState(CARD, (("sysfs GTT", GIB + more, total),)),),
        available_bytes=64 * GIB - more,
    )
    assert [trouble.scope for trouble in unclean(before, now, gates)] == (
        [f"gpu {CARD}", "box"] if more > allowed else []
    )
    assert unclean(now, before, gates) == ()


def test_page_cache_is_no_lost_memory(box):
    before = measure(root=box)
    write(
        box,
        "/proc/meminfo",
        "MemTotal: 65536000 kB\nMemFree: 100000 kB\nMemAvailable: 50000000 kB\nCached: 49000000 kB\n",
    )
    assert unclean(before, after(box, before), GATES) == ()
    write(
        box,
        "/proc/meminfo",
        "MemTotal: 65536000 kB\nMemFree: 100000 kB\nMemAvailable: 40000000 kB\n",
    )
    assert whys(unclean(before, after(box, before), GATES)) == [
        "box: 38.15 GiB of host memory available, expected at least 44.56 GiB as before"
    ]


def test_heat_counts_against_the_plan_and_against_the_cards_own_limit(box):
    for name, value in (
        ("temp1_input", 88000),
        ("temp1_label", "edge"),
        ("temp2_input", 105000),
        ("temp2_crit", 105000),
    ):
        card_file(box, f"hwmon/hwmon3/{name}", value)
    now = measure(root=box)
    assert [
        trouble.why for trouble in unclean(now, now, Gates(disk_free_bytes=0, temperature_c=80))
    ] == [
        "edge: 88 degrees Celsius, expected below 80",
        "temp2_input: 105 degrees Celsius, expected below 80",
    ]
    assert [
        trouble.why for trouble in unclean(now, now, Gates(disk_free_bytes=0, temperature_c=None))
    ] == ["temp2_input: 105 degrees Celsius, expected below 105"]


def test_the_disk_of_the_results_is_looked_at(tmp_path, box, monkeypatch):
    before = measure(root=box, folder=tmp_path)
    (trouble,) = unclean(before, before, Gates(disk_free_bytes=1 << 60))
    assert (
        f"free on the disk of {tmp_path}, expected at least 1048576.00 TiB" in trouble.why
        and trouble.scope == "box"
    )
    monkeypatch.setattr(
        os,
        "statvfs",
        lambda path: SimpleNamespace(f_bavail=9 << 30, f_frsize=1, f_flag=os.ST_RDONLY),
    )
    assert "mounted read-only" in unclean(before, measure(root=box, folder=tmp_path), GATES)[0].why
    monkeypatch.undo()
    gone = measure(root=box, folder=tmp_path / "gone")
    assert gone.disk_free_bytes is None and any(
        "cannot be asked: No such file" in line for line in gone.not_watched
    )


KERNEL = [
    (
        f"amdgpu {CARD}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=2, emitted seq=4",
        f"gpu {CARD}",
        False,
    ),
    (f"amdgpu {CARD}: amdgpu: ring comp_1.0.0 timeout, but soft recovered", f"gpu {CARD}", True),
    (f"amdgpu {CARD}: amdgpu: GPU reset(2) succeeded!", f"gpu {CARD}", False),
    (
        "NVRM: Xid (PCI:0000:81:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
        "gpu 0000:81:00.0",
        False,
    ),
    (
        "NVRM: Xid (PCI:0000:81:00): 31, pid=7, name=python3, Ch 00000008, MMU Fault",
        "gpu 0000:81:00.0",
        True,
    ),
    (
        "Out of memory: Killed process 77 (python3) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB",
        "box",
        True,
    ),
    (
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
        "box",
        False,
    ),
    ("[Hardware Error]: Uncorrected, software containable error.", "box", False),
    ("INFO: task python3:812 blocked for more than 122 seconds.", "box", True),
]


@pytest.mark.parametrize(("line", "scope", "passes"), KERNEL, ids=[line[0][:45] for line in KERNEL])
def test_a_new_error_of_the_kernel_is_told_once_with_its_card(box, line, scope, passes):
    before = measure(root=box)
    kmsg(box, 3, ["eth0: link up", line, "eth0: link down"], "a")
    now = after(box, before)
    (trouble,) = unclean(before, now, GATES)
    assert (trouble.scope, trouble.passes) == (scope, passes)
    assert line[:40] in trouble.why and "expected no error" in trouble.why
    assert unclean(before, after(box, now), GATES) == ()


def test_what_stayed_inside_a_limit_or_was_corrected_is_no_trouble():
    assert (
        kernel_errors.judged(
            "Memory cgroup out of memory: Killed process 77 (python3) total-vm:9000kB, anon-rss:8000kB\n"
            "[Hardware Error]: Corrected error, no action required.\n[Hardware Error]: Deferred error, no action required.\n"
            f"pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Physical Layer\namdgpu {CARD}: 16384M of VRAM memory "
            "ready\n"
        )
        == ()
    )


def test_a_log_that_was_overwritten_meanwhile_is_said(box):
    before = measure(root=box)
    kmsg(box, 50, ["eth0: link up"])
    assert (
        "the kernel log is not watched because 47 of its lines were overwritten before they were read"
        in after(box, before).not_watched
    )


def test_without_a_log_the_counter_of_the_oom_killer_speaks(box):
    os.unlink(f"{box}/dev/kmsg")
    before = measure(root=box)
    assert "the kernel log is not watched because no such file" in before.not_watched
    assert unclean(before, after(box, before), GATES) == ()
    write(box, "/proc/vmstat", "oom_kill 5\n")
    assert whys(unclean(before, after(box, before), GATES)) == [
        "box: /proc/vmstat counts 2 more process(es) that the kernel's OOM killer ended, expected none"
    ]


def test_the_journal_is_read_from_a_cursor_where_kmsg_is_refused(tmp_path, monkeypatch):
    program = tmp_path / "journalctl"
    program.write_text("""#!/bin/sh
case "$*" in
*--after-cursor*s=1*) echo "[   10.000000] kernel: amdgpu 0000:03:00.0: amdgpu: GPU reset begin!"; echo "-- cursor: s=2";;
*--after-cursor*) echo "-- No entries --";;
*) echo "[    9.000000] kernel: GPU reset begin!"; echo "-- cursor: s=1";;
esac
""")
    program.chmod(0o755)
    monkeypatch.setattr(kernel_errors, "search_path", lambda: f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(
        kernel_errors, "_kmsg", lambda path, since: ("", [], "operation not permitted")
    )
    assert kernel_errors.new_errors("", "") == ("journal s=1", (), "")
    assert kernel_errors.new_errors("", "kmsg 5") == ("journal s=1", (), "")
    position, (trouble,), why = kernel_errors.new_errors("", "journal s=1")
    assert (position, trouble.scope, why) == ("journal s=2", f"gpu {CARD}", "")
    assert kernel_errors.new_errors("", "journal s=2") == ("journal s=2", (), "")
    program.write_text(
        '#!/bin/sh\necho "Hint: none seen" >&2\necho "No journal files, denied" >&2\nexit 1\n'
    )
    position, told, why = kernel_errors.new_errors("", "")
    assert (position, told) == (
        "",
        (),
    ) and why == "/dev/kmsg: operation not permitted; journalctl: No journal files, denied"
    program.unlink()
    monkeypatch.setattr(kernel_errors, "search_path", lambda: str(tmp_path))
    assert kernel_errors.new_errors("", "")[2].endswith("journalctl: no such file")


def test_a_driver_that_does_not_answer_is_the_trouble_of_its_card_alone(tmp_path, monkeypatch):
    root = str(make_tree(tmp_path / "box", amd=2, device_files=0).root)
    before = measure(root=root)
    read = box_state.files.read

    def hangs(top, source, *limit):
        if "card1" in source and source.endswith("mem_info_vram_used"):
            time.sleep(60)
        return read(top, source, *limit)

    monkeypatch.setattr(box_state.files, "read", hangs)
    monkeypatch.setattr(box_state, "ANSWER_S", 0.3)
    now = after(root, before)
    assert whys(unclean(before, now, GATES)) == [
        f"gpu {OTHER}: /sys/class/drm/card1/device/mem_info_vram_used hung for 0.3 s, expected an answer at once"
    ]
    assert now.gpus[0].pools == before.gpus[0].pools
    assert settle(before, GATES, lambda: now, sleep=pytest.fail) == now.told


def test_what_is_not_watched_is_said_with_its_reason(tmp_path):
    root = str(make_tree(tmp_path / "box", amd=0, nvidia=1).root)
    said = measure([CARD, "0000:81:00.0"], root)
    assert said.not_watched == tuple(dict.fromkeys(said.not_watched))
    assert (
        f"memory of {CARD} is not watched because no layer of this box shows it" in said.not_watched
    )
    assert any(
        line.startswith("memory of GPU 0000:81:00.0 is not watched because")
        for line in said.not_watched
    )
    assert (
        measure(root=str(tmp_path / "nothing")).not_watched[0]
        == "memory of any GPU is not watched because no layer of this box shows it"
    )


def test_nvml_gives_memory_holders_and_temperature(monkeypatch, tmp_path):
    class Library:
        def call(self, name, *arguments):
            if name == "nvmlDeviceGetTemperature" and self.sick:
                raise NvmlError(999, "nvmlDeviceGetTemperature: Unknown Error")
            if name == "nvmlDeviceGetTemperature":
                ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_uint))[0] = 71

    row = {
        "index": 0,
        "status": "ok",
        "unread": {},
        "pci": "00000000:81:00.0",
        "uuid": "GPU-1",
        "name": "Invented",
        "total_bytes": 24 * GIB,
        "free_bytes": 20 * GIB,
        "used_bytes": 4 * GIB,
        "reserved_bytes": None,
        "compute": [{"pid": 41, "gpu_instance": None, "used_bytes": 3 * GIB}],
        "graphics": [],
    }
    monkeypatch.setattr(box_state.nvml, "report", lambda: [dict(row)])
    monkeypatch.setattr(box_state.nvml, "Nvml", Library)
    Library.sick = True
    assert box_state._nvml()[0]["celsius_why"].endswith("Unknown Error")
    Library.sick = False
    writer = BundleWriter("", "live", "0", "")
    writer.add(
        "file", "nvml", "".join(f"{box_state.json.dumps(one)}\n" for one in box_state._nvml())
    )
    unread = []
    state = box_state._gpu(gpus_of(writer.bundle())[0], writer.bundle(), str(tmp_path), unread)
    assert state == GpuState(
        "0000:81:00.0",
        (("nvidia-smi", 4 * GIB, 24 * GIB),),
        (Held(41, "", "", 0, 3 * GIB),),
        (("NVML", 71.0, None),),
    )


def test_after_a_reboot_nothing_is_compared_and_a_gpu_that_went_is_a_trouble_that_stays():
    before = BoxState(
        "b",
        (GpuState(CARD, (("sysfs VRAM", 0, GIB),)),),
        total_bytes=GIB,
        available_bytes=GIB,
        log="kmsg 9",
    )
    (gone,) = unclean(before, replace(before, gpus=()), GATES)
    assert gone.scope == f"gpu {CARD}" and "the GPU is gone" in gone.why and not gone.passes
    rebooted = BoxState(
        "c", (GpuState(CARD, (("sysfs VRAM", GIB, GIB),), (Held(1, "x", "S", 1, GIB),)),), GIB, 0
    )
    assert unclean(before, rebooted, GATES) == ()


def states(*available_gib):
    looks = [
        BoxState("b", total_bytes=64 * GIB, available_bytes=gib * GIB, seconds=0.5)
        for gib in available_gib
    ]
    return lambda: looks.pop(0) if len(looks) > 1 else looks[0]


def test_settling_waits_for_what_may_pass_and_no_longer_than_the_plan_says():
    before, slept = states(60)(), []
    assert settle(before, GATES, states(20, 40, 60), slept.append) == () and len(slept) == 2
    slept.clear()
    (trouble,) = settle(before, Gates(settle_s=10, disk_free_bytes=0), states(20), slept.append)
    assert (
        "20.00 GiB" in trouble.why
        and sum(slept) + 0.5 * len(slept) <= 13
        and slept == sorted(slept)
    )
    assert settle(before, Gates(settle_s=0, disk_free_bytes=0), states(20), pytest.fail)


def test_settling_looks_again_by_itself_and_does_not_wait_for_what_has_happened(box):
    before = measure(root=box)
    assert settle(before, GATES, sleep=pytest.fail) == ()
    kmsg(box, 3, [f"amdgpu {CARD}: amdgpu: GPU reset begin!"], "a")
    assert [trouble.scope for trouble in settle(before, GATES, sleep=pytest.fail)] == [
        f"gpu {CARD}"
    ]


def test_what_one_look_told_is_not_forgotten_while_settling_waits_for_the_rest():
    reset = Trouble(f"gpu {CARD}", "GPU reset", False)
    looks = [
        replace(states(gib)(), told=told) for gib, told in ((20, (reset,)), (20, ()), (60, ()))
    ]
    assert (
        settle(states(60)(), GATES, lambda: looks.pop(0), lambda seconds: None) == (reset,)
        and not looks
    )


def run(gpu="", danger="loads"):
    return SimpleNamespace(gpu=gpu, danger=danger)


def test_a_clean_look_lifts_only_what_may_pass():
    memory, reset = Trouble(f"gpu {CARD}", "3 GiB used"), Trouble(f"gpu {CARD}", "GPU reset", False)
    stuck, disk = (
        Trouble(f"gpu {OTHER}", "process 9 does not end", False),
        Trouble("box", "disk full"),
    )
    kept = Quarantine()
    kept.add(memory, reset, stuck, disk, disk)
    assert kept.troubles == (memory, reset, stuck, disk)
    assert kept.lifted([Trouble(f"gpu {CARD}", "2 GiB used")]) == (disk,)
    assert kept.lifted([]) == (memory,) and kept.troubles == (reset, stuck)


def test_a_quarantine_refuses_the_runs_that_could_meet_its_trouble():
    kept = Quarantine()
    assert kept.refuses(run()) == ""
    kept.add(Trouble(f"gpu {CARD}", "GPU reset", False))
    assert kept.refuses(run(CARD, "looks")) == f"gpu {CARD} is in quarantine: GPU reset"
    assert kept.refuses(run("03:00.0")) == kept.refuses(run(CARD))
    assert "this run may use it: GPU reset" in kept.refuses(run()) and "GPU reset" in kept.refuses(
        run(danger="provokes")
    )
    assert kept.refuses(run(OTHER)) == kept.refuses(run(danger="looks")) == ""
    kept.add(Trouble("a GPU", "process 9 does not end", False))
    assert (
        "process 9 does not end" in kept.refuses(run(OTHER))
        and kept.refuses(run(danger="looks")) == ""
    )
    kept = Quarantine()
    kept.add(Trouble("box", "disk full"))
    assert (
        kept.refuses(run(OTHER))
        == kept.refuses(run(danger="looks"))
        == "box is in quarantine: disk full"
    )


def test_this_box_is_looked_at_without_torch_and_without_an_error():
    now = measure(folder="/")
    assert (
        now.boot_id
        and now.disk_free_bytes is not None
        and (now.available_bytes is not None or now.not_watched)
    )
    assert [
        trouble
        for trouble in unclean(now, measure(folder="/", since=now), GATES)
        if not trouble.passes
    ] == []
    assert gate.measure is box_state.measure
