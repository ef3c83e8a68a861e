"""What the gate sees between two runs, on invented trees of a box, and what it then lets through."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from data_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from pythons import starts
from run_stand_in import ROOT
from trees import GIB, link, make_tree, write

from helpers.batch import box_state, kernel_errors
from helpers.batch.box_state import measure
from helpers.batch.clean import concerning, settle, unclean
from helpers.batch.look_shapes import BoxState, Gates, GpuState, Held, Trouble
from helpers.cli import main
from helpers.look.bundle import BundleWriter
from helpers.look.gpus import gpus as gpus_of

CARD = "0000:03:00.0"
OTHER = "0000:13:00.0"
GATES = Gates(disk_free_bytes=0, host_free_bytes=0)
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
    stat = "900 (train er) D 1 900 900 0 -1 4194304" + " 0" * 12 + " 777 0 0\n"
    write(box, "/proc/900/stat", stat)
    link(box, "/proc/900/fd/5", "/dev/dri/renderD128")
    write(
        box,
        "/proc/900/fdinfo/5",
        f"drm-driver:\tamdgpu\ndrm-client-id:\t44\ndrm-pdev:\t{CARD}\n"
        f"drm-memory-vram:\t{3 * GIB >> 10} KiB\n",
    )
    used = before.gpus[0].pools[0][1]
    card_file(box, "mem_info_vram_used", used + 3 * GIB)
    holder, memory = unclean(before, after(box, before), GATES)
    assert {holder.scope, memory.scope} == {f"gpu {CARD}"} and holder.passes and memory.passes
    waits = "holds 3.00 GiB and waits inside the kernel (state D)"
    assert holder.why == f"train er (900) {waits}, expected no holder that was not there before"
    assert memory.why.startswith("sysfs VRAM: ") and "expected at most" in memory.why


OLD = Held(10, "desktop", "S", 5, 2 * GIB)
SMALL = Held(11, "clock", "S", 9, 20 * MIB)


@pytest.mark.parametrize(
    ("holders", "words"),
    [
        ((replace(OLD, bytes=3 * GIB), SMALL), ""),
        ((replace(OLD, start_ticks=6),), "desktop (10) holds 2.00 GiB"),
        ((replace(SMALL, bytes=None),), "clock (11) holds memory that was not measured"),
        ((replace(SMALL, state="D"),), "clock (11) holds 20.00 MiB and waits inside the kernel"),
        ((replace(SMALL, bytes=64 * MIB),), ""),
        ((replace(SMALL, bytes=64 * MIB + 1),), "clock (11) holds 64.00 MiB"),
    ],
)
def test_a_small_new_client_and_one_that_was_there_before_are_no_trouble(holders, words):
    before = BoxState("b", (GpuState(CARD, holders=(OLD,)),))
    now = replace(before, gpus=(GpuState(CARD, holders=holders),))
    troubles = [one.why for one in unclean(before, now, GATES)]
    assert len(troubles) == bool(words) and all(why.startswith(words) for why in troubles)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 64 * GIB), st.integers(GIB, 64 * GIB), st.floats(0, 1))
def test_memory_is_back_exactly_within_the_plans_fraction_or_the_slack(more, total, fraction):
    gates = replace(GATES, memory_back_fraction=fraction)
    allowed = max(64 * MIB, int(total * fraction))
    before, now = (
        BoxState(
            "b",
            (GpuState(CARD, (("sysfs GTT", GIB + used, total),)),),
            total_bytes=total,
            available_bytes=64 * GIB - used,
        )
        for used in (0, more)
    )
    scopes = [f"gpu {CARD}", "host memory"] if more > allowed else []
    assert [trouble.scope for trouble in unclean(before, now, gates)] == scopes
    assert unclean(now, before, gates) == ()


def test_page_cache_is_no_lost_memory(box):
    before = measure(root=box)
    sizes = "MemTotal: 65536000 kB\nMemFree: 100000 kB\nMemAvailable: {} kB\nCached: 49000000 kB\n"
    write(box, "/proc/meminfo", sizes.format(50000000))
    assert unclean(before, after(box, before), GATES) == ()
    write(box, "/proc/meminfo", sizes.format(40000000))
    why = "host memory: 38.15 GiB available, expected at least 44.56 GiB as before"
    assert whys(unclean(before, after(box, before), GATES)) == [why]


@pytest.mark.parametrize("available_gib", [0.5, 2, 60])
def test_a_machine_without_a_gpu_needs_some_host_memory_and_not_as_much_as_before(available_gib):
    before = BoxState("b", total_bytes=64 * GIB, available_bytes=62 * GIB)
    now = replace(before, available_bytes=int(available_gib * GIB))
    expected = ["host memory: 512.00 MiB available, expected at least 1.00 GiB"]
    gates = Gates(disk_free_bytes=0)
    assert whys(unclean(before, now, gates)) == (expected if available_gib < 1 else [])


def test_heat_counts_against_the_plan_and_against_the_cards_own_limit(box):
    sensors = {"1_input": 88000, "1_label": "edge", "2_input": 105000, "2_crit": 105000}
    for name, value in sensors.items():
        card_file(box, f"hwmon/hwmon3/temp{name}", value)
    now = measure(root=box)
    edge = "edge: 88 degrees Celsius"
    other = "temp2_input: 105 degrees Celsius"
    for limit, expected in (
        (80, [f"{edge}, expected below 80", f"{other}, expected below 80"]),
        (None, [f"{other}, expected below 105"]),
        (105, [f"{other}, expected below 105"]),
    ):
        gates = Gates(disk_free_bytes=0, temperature_c=limit)
        assert [trouble.why for trouble in unclean(now, now, gates)] == expected


def test_the_disk_of_the_results_is_looked_at(tmp_path, box, monkeypatch):
    before = measure(root=box, folder=tmp_path)
    (trouble,) = unclean(before, before, Gates(disk_free_bytes=1 << 60))
    assert f"free on the disk of {tmp_path}, expected at least 1048576.00 TiB" in trouble.why
    assert trouble.scope == "box"
    read_only = SimpleNamespace(f_bavail=9 << 30, f_frsize=1, f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    assert "mounted read-only" in unclean(before, measure(root=box, folder=tmp_path), GATES)[0].why
    monkeypatch.undo()
    assert measure(root=box, folder=tmp_path / "gone").disk_free_bytes is None


@pytest.mark.parametrize(("pci", "passes", "line"), read_rows("kernel troubles"))
def test_a_new_error_of_the_kernel_is_told_once_with_its_card(box, pci, passes, line):
    before = measure(root=box)
    kmsg(box, 3, ["eth0: link up", line, "eth0: link down"], "a")
    now = after(box, before)
    (trouble,) = unclean(before, now, GATES)
    scope = f"gpu {pci}" if pci else "box"
    assert (trouble.scope, trouble.passes) == (scope, passes == "yes")
    assert line[:40] in trouble.why and "expected no error" in trouble.why
    assert unclean(before, after(box, now), GATES) == ()


def test_what_stayed_inside_a_limit_or_was_corrected_is_no_trouble():
    for line in (
        "Memory cgroup out of memory: Killed process 77 (python3) total-vm:9000kB, anon-rss:8000kB",
        "[Hardware Error]: Corrected error, no action required.",
        "[Hardware Error]: Deferred error, no action required.",
        "pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        f"amdgpu {CARD}: 16384M of VRAM memory ready",
    ):
        assert kernel_errors.judged(line) == ()


@pytest.mark.parametrize("log", ["refused", "overwritten"])
def test_without_the_whole_log_the_counter_of_the_oom_killer_speaks(box, log):
    write(box, "/proc/vmstat", "oom_kill 0\n")
    before = measure(root=box)
    kmsg(box, 50, ["eth0: link up"])
    if log == "refused":
        os.unlink(f"{box}/dev/kmsg")
    assert unclean(before, after(box, before), GATES) == ()
    write(box, "/proc/vmstat", "oom_kill 2\n")
    (why,) = whys(unclean(before, after(box, before), GATES))
    assert why.startswith(
        "box: /proc/vmstat counts 2 more process(es) that the kernel's OOM killer"
    )
    kmsg(box, 3, ["eth0: link up"])
    assert unclean(before, after(box, before), GATES) == (), "the log is whole, and says nothing"


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
    monkeypatch.setattr(kernel_errors.commands, "search_path", lambda: f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(kernel_errors, "kmsg", lambda path, since: ("", [], False))
    assert kernel_errors.new_errors("", "") == ("journal s=1", (), True)
    assert kernel_errors.new_errors("", "kmsg 5") == ("journal s=1", (), True)
    position, (trouble,), whole = kernel_errors.new_errors("", "journal s=1")
    assert (position, trouble.scope, whole) == ("journal s=2", f"gpu {CARD}", True)
    assert kernel_errors.new_errors("", "journal s=2") == ("journal s=2", (), True)
    program.write_text("#!/bin/sh\necho 'Hint: none seen' >&2\nexit 1\n")
    assert kernel_errors.new_errors("", "") == ("", (), False)
    program.unlink()
    monkeypatch.setattr(kernel_errors.commands, "search_path", lambda: str(tmp_path))
    assert kernel_errors.new_errors("", "") == ("", (), False)


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
    file = "/sys/class/drm/card1/device/mem_info_vram_used"
    why = f"gpu {OTHER}: {file} hung for 0.3 s, expected an answer at once"
    assert whys(unclean(before, now, GATES)) == [why]
    assert now.gpus[0].pools == before.gpus[0].pools
    assert settle(before, GATES, lambda: now, sleep=pytest.fail) == now.errors


def test_only_the_gpus_asked_for_are_looked_at_and_what_no_layer_shows_is_no_trouble(tmp_path):
    root = str(make_tree(tmp_path / "box", amd=2, device_files=0).root)
    assert [gpu.pci for gpu in measure([OTHER, "0000:81:00.0"], root).gpus] == [OTHER]
    nothing = measure(root=str(tmp_path / "nothing"))
    assert nothing.gpus == () and nothing.available_bytes is None and nothing.errors == ()


def test_nvml_gives_memory_and_holders(tmp_path):
    row = {"index": 0, "status": "ok", "unread": {}, "pci": "00000000:81:00.0", "uuid": "GPU-1"}
    row.update(name="Invented", total_bytes=24 * GIB, free_bytes=20 * GIB, used_bytes=4 * GIB)
    holder = {"pid": 41, "gpu_instance": None, "used_bytes": 3 * GIB}
    row.update(reserved_bytes=None, compute=[holder], graphics=[])
    writer = BundleWriter("", "live", "0", "")
    writer.add("file", "nvml", json.dumps(row) + "\n")
    state = box_state.gpu_state(gpus_of(writer.bundle())[0], writer.bundle(), str(tmp_path))
    pools = (("nvidia-smi", 4 * GIB, 24 * GIB),)
    assert state == GpuState("0000:81:00.0", pools, (Held(41, "", "", 0, 3 * GIB),))


def test_after_a_reboot_nothing_is_compared_and_a_gpu_that_went_is_a_trouble_that_stays():
    pools = (("sysfs VRAM", 0, GIB),)
    before = BoxState("b", (GpuState(CARD, pools),), GIB, available_bytes=GIB, log="kmsg 9")
    (gone,) = unclean(before, replace(before, gpus=()), GATES)
    assert gone.scope == f"gpu {CARD}" and "the GPU is gone" in gone.why and not gone.passes
    full = GpuState(CARD, (("sysfs VRAM", GIB, GIB),), (Held(1, "x", "S", 1, GIB),))
    assert unclean(before, BoxState("c", (full,), GIB, 0), GATES) == ()


def states(*available_gib):
    total = BoxState("b", (GpuState(CARD),), total_bytes=64 * GIB, seconds=0.5)
    looks = [replace(total, available_bytes=gib * GIB) for gib in available_gib]
    return lambda: looks.pop(0) if len(looks) > 1 else looks[0]


def test_settling_waits_for_what_may_pass_and_no_longer_than_the_plan_says():
    before = states(60)()
    slept = []
    assert settle(before, GATES, states(20, 40, 60), slept.append) == () and len(slept) == 2
    slept.clear()
    (trouble,) = settle(before, replace(GATES, settle_s=10), states(20), slept.append)
    assert "20.00 GiB" in trouble.why
    assert sum(slept) + 0.5 * len(slept) <= 13 and slept == sorted(slept)
    assert settle(before, replace(GATES, settle_s=0), states(20), pytest.fail)


def test_settling_does_not_wait_for_what_has_happened(box):
    before = measure(root=box)
    kmsg(box, 3, [f"amdgpu {CARD}: amdgpu: GPU reset begin!"], "a")
    (reset,) = settle(before, GATES, lambda: after(box, before), pytest.fail)
    assert reset.scope == f"gpu {CARD}" and not reset.passes


def test_what_one_look_told_is_not_forgotten_while_settling_waits_for_the_rest():
    reset = Trouble(f"gpu {CARD}", "GPU reset", False)
    told = ((20, (reset,)), (20, ()), (60, ()))
    looks = [replace(states(gib)(), errors=troubles) for gib, troubles in told]
    troubles = settle(states(60)(), GATES, lambda: looks.pop(0), lambda seconds: None)
    assert troubles == (reset,) and not looks


@pytest.mark.parametrize(
    ("scope", "gpu", "concerns"),
    [
        (f"gpu {CARD}", CARD, True),
        (f"gpu {CARD}", "03:00.0", True),
        (f"gpu {CARD}", "", True),
        (f"gpu {CARD}", OTHER, False),
        ("a GPU", OTHER, True),
        ("box", OTHER, True),
        ("host memory", OTHER, True),
    ],
)
def test_a_trouble_concerns_the_runs_that_could_meet_it(scope, gpu, concerns):
    state = "short" if scope == "host memory" else "not clean"
    words = f"{scope} is {state}: GPU reset" if concerns else ""
    trouble = Trouble(scope, "GPU reset", False)
    assert concerning([trouble], gpu) == words
    assert bool(concerning([trouble], "", elsewhere=True)) == (scope == "box")


def test_this_box_is_looked_at_without_torch_and_without_an_error():
    now = measure(folder="/")
    assert now.boot_id and now.disk_free_bytes is not None
    assert now.available_bytes is not None
    troubles = unclean(now, measure(folder="/", since=now), GATES)
    assert [trouble for trouble in troubles if not trouble.passes] == []


# -- the verb -------------------------------------------------------------------------------------
@pytest.fixture
def asked(box, monkeypatch, capsys):
    """The verb on the box of the tree: its exit code, and the lines that it prints."""
    monkeypatch.setattr(box_state, "measure", partial(measure, root=box))

    def run(*words):
        code = main(["gate", "--settle", "0", *map(str, words)])
        return code, capsys.readouterr().out.splitlines()

    return run


def free(box):
    card_file(box, "mem_info_vram_used", 256 * MIB)
    for pid in measure(root=box).gpus[0].holders:
        for place in ("proc", "sys/class/kfd/kfd/proc"):
            shutil.rmtree(f"{box}/{place}/{pid.pid}", ignore_errors=True)


def test_a_box_that_nobody_uses_is_clean_for_the_next_job(box, asked):
    free(box)
    assert asked("--gpus", 1) == (0, [f"clean: {CARD}"])


def test_every_holder_and_memory_that_nobody_holds_is_a_line_and_exit_1(box, asked):
    code, lines = asked()
    assert code == 1 and all(line.startswith(f"not clean: gpu {CARD}: ") for line in lines)
    assert sum("expected no holder" in line for line in lines) == len(
        measure(root=box).gpus[0].holders
    )
    free(box)
    card_file(box, "mem_info_vram_used", 9 * GIB)
    code, (line,) = asked()
    assert code == 1 and "sysfs VRAM: 9.00 GiB used, expected at most 1.00 GiB" in line


def test_what_is_missing_or_cannot_be_read_is_not_called_clean(box, asked):
    free(box)
    assert "GPUs seen: 1, expected 2" in asked("--gpus", 2)[1][0]
    assert f"gpu {OTHER}: no layer shows it" in asked("--gpu", OTHER)[1][0]
    for name in ("vram_used", "gtt_used"):
        os.unlink(f"{box}/sys/class/drm/card0/device/mem_info_{name}")
    code, (line,) = asked()
    assert code == 1 and "nothing here says how much of its memory is used" in line


def test_a_look_that_was_kept_allows_what_was_there_and_tells_what_happened_since(
    box, asked, tmp_path
):
    kept = tmp_path / "look.json"
    assert asked("--save", kept)[0] == 1
    assert asked("--since", kept) == (0, [f"clean: {CARD}"])
    kmsg(box, 3, (f"amdgpu {CARD}: amdgpu: GPU reset begin!",), mode="a")
    code, lines = asked("--since", kept)
    assert code == 1 and "GPU reset" in lines[0]


@pytest.fixture
def bare(tmp_path, monkeypatch, capsys):
    """A node without a GPU: its tree, and the verb on it."""
    root = str(tmp_path / "bare")
    write(root, "/proc/meminfo", "MemTotal: 65536000 kB\nMemAvailable: 60000000 kB\n")
    write(root, "/sys/bus/pci/devices/0000:00:02.0/class", "0x010601\n")
    monkeypatch.setattr(box_state, "measure", partial(measure, root=root))

    def run(*words):
        code = main(["gate", "--settle", "0", *words])
        return code, capsys.readouterr().out.splitlines()

    return root, run


def test_a_node_on_which_no_gpu_is_seen_is_not_called_clean_unless_none_was_expected(bare):
    _, run = bare
    code, (line,) = run()
    assert code == 3 and "no GPU is seen" in line and "--gpus 0" in line
    assert run("--gpus", "0") == (0, ["clean: no GPU, as expected"])
    code, (line,) = run("--gpus", "8")
    assert code == 1 and "GPUs seen: 0, expected 8" in line
    assert run("--gpu", CARD)[0] == 1


def test_json_says_that_nothing_was_seen(bare):
    _, run = bare
    for words, code in (((), 3), (("--gpus", "0"), 0), (("--gpus", "1"), 1)):
        exit_code, lines = run("--json", *words)
        answer = json.loads("\n".join(lines))
        assert (exit_code, answer["exit"], answer["clean"]) == (code, code, code == 0)
        assert bool(answer["reasons"]) == (code != 0)


@pytest.mark.parametrize("words", [(), ("--gpus", "0")])
@pytest.mark.parametrize(
    ("module", "vendor"), [("nvidia", "NVIDIA"), ("amdgpu", "AMD"), ("nouveau", "")]
)
def test_a_loaded_module_without_a_gpu_is_a_reason(bare, module, vendor, words):
    root, run = bare
    write(root, f"/sys/module/{module}/refcnt", "0\n")
    code, (line,) = run(*words)
    if vendor:
        assert (
            code == 1 and f"module {module} is loaded, and no layer shows a GPU of {vendor}" in line
        )
    else:
        assert code == (0 if words else 3)


@pytest.mark.parametrize("words", [(), ("--gpus", "0")])
def test_a_bus_that_cannot_be_looked_at_is_a_reason(bare, words):
    root, run = bare
    shutil.rmtree(f"{root}/sys/bus")
    code, (line,) = run(*words)
    assert code == 1 and "the PCI bus could not be looked at" in line


@pytest.mark.parametrize(
    "row",
    [
        {"status": "not_available", "why": "nvmlInit_v2: Driver/library version mismatch"},
        {"index": 3, "status": "not_available", "why": "GPU is lost"},
        {"status": "not_allowed", "why": "Insufficient Permissions"},
    ],
)
def test_an_nvml_that_does_not_answer_is_a_reason_whatever_else_is_seen(row, bare):
    root, _ = bare
    writer = BundleWriter("", "live", "0", "")
    writer.add("file", "nvml", json.dumps(row) + "\n")
    (trouble,) = box_state.unanswered(writer.bundle(), root)
    assert row["why"] in trouble.why and not trouble.passes


def test_a_card_that_left_the_bus_while_its_driver_is_loaded_is_a_reason(box, asked):
    write(box, "/sys/module/nvidia/refcnt", "4\n")
    free(box)
    code, (line,) = asked()
    assert code == 1 and "no layer shows a GPU of NVIDIA" in line


@pytest.mark.parametrize(
    "words", ["--since nosuch", "--since {}", "--since /dev/null", "--disk /nosuch", "--gpus x"]
)
def test_wrong_use_of_the_gate_is_exit_2_and_judges_nothing(words, tmp_path, capsys):
    (tmp_path / "empty").write_text("{}")
    assert main(["gate", *words.format(tmp_path / "empty").split()]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1


def test_the_gate_needs_no_set_up_and_the_page_names_real_options(tmp_path):
    place = starts("python3.8") or sys.executable
    argv = [place, "-I", "-S", str(ROOT / "helpers/__main__.py"), "gate", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode in (0, 1, 3) and not done.stderr and "reasons" in done.stdout
    assert json.loads(done.stdout)["exit"] == done.returncode
    words = re.findall(r"--[a-z]+", (ROOT / "env/GATE.md").read_text())
    known = subprocess.run([*argv[:-1], "--help"], capture_output=True, text=True, check=True)
    assert {word for word in words if word not in ("--query", "--format")} <= {
        *re.findall(r"--[a-z]+", known.stdout)
    }
