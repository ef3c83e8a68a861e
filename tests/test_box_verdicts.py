"""The verdict on whole boxes: the recorded ones, copies in which one reading was changed, and boxes that are made up."""

import json
from dataclasses import replace

import pytest
from changed_boxes import build, changed, gb10, oom
from data_rows import read_rows

from helpers.judge.ceilings import ceilings
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, evidence_from_bundle, evidence_from_message
from helpers.judge.next_step import recovery
from helpers.look.boxes import open_box, recorded_names
from helpers.settings import presets
from helpers.settings.audit import audit_box
from helpers.tell.box import facts
from helpers.tell.verdict import after_title, why

GIB = 1 << 30
HELD = {"external-holder", "stale-holder", "driver-leak"}


def judged(box, **replaced):
    """The verdict on a recorded box, with some of its sources replaced."""
    bundle = changed(box, **replaced) if replaced else open_box(box)
    return diagnose(evidence_from_bundle(bundle))


def named(verdict):
    return {verdict.cause} | {other.cause for other in verdict.alternatives}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("box, cause, confidence", read_rows("the verdict on each recorded box"))
def test_the_verdict_on_each_recorded_box(box, cause, confidence):
    verdict = judged(box)
    assert (verdict.cause, verdict.confidence) == (cause, confidence)


@pytest.mark.parametrize("box", recorded_names())
def test_every_verdict_has_evidence_with_ids_of_their_own_and_one_step(box):
    verdict = judged(box)
    assert verdict.evidence and verdict.next_step.what and verdict.summary
    ids = [row.id for row in verdict.evidence + verdict.against]
    assert len(set(ids)) == len(ids)
    assert verdict.confidence == "confirmed" or verdict.missing


def test_near_capacity_with_stranded_memory_shows_both_and_names_the_rehearsal_and_the_separate_bug():
    verdict = judged("cuda-24gb-tuning")
    assert "allocator-fragmentation" in named(verdict)
    assert "rehearse" in " ".join(row.how for row in verdict.missing)
    assert "beside-assert" in {row.id for row in verdict.evidence}
    assert "There is also a separate problem" in verdict.summary


def test_a_box_without_a_gpu_is_told_what_can_be_done_there_and_not_to_load_a_driver():
    verdict = judged("cpu-only")
    assert verdict.title == "No GPU on this machine"
    assert "driver" not in verdict.next_step.what
    for verb in ("rehearse", "fits", "diagnose --message", "lspci"):
        assert verb in verdict.next_step.command


KILL = "[ 700.0] Out of memory: Killed process 4242 (firefox) total-vm:9kB, anon-rss:8kB"


def test_without_a_gpu_an_old_kill_is_a_side_note_with_its_time_and_a_text_about_one_is_answered():
    host = json.dumps({"page_size": 4096, "boot_id": "b", "up_s": 1000}) + "\n"
    verdict = judged("cpu-only", dmesg=KILL, host=host)
    assert (verdict.title, verdict.confidence) == ("No GPU on this machine", "confirmed")
    assert "There is also a separate problem" in verdict.summary
    assert "5 min before this capture" in verdict.summary
    assert "# See which programs the kernel killed" in verdict.next_step.command
    assert "dmesg" not in judged("cpu-only").next_step.command
    bundle = changed("cpu-only", dmesg=KILL, host=host, message="Killed process 4242 (firefox)")
    assert diagnose(evidence_from_bundle(bundle)).cause == "host-oom"


@pytest.mark.parametrize(
    ("kernel", "vendor", "title"),
    [
        ("6.1.0", "0x8086", "No AMD or NVIDIA GPU on this machine; its display is PCI 8086:46a6"),
        ("5.15.148-tegra", "0x8086", "No problem found"),
    ],
)
def test_a_machine_with_another_display_or_a_gpu_that_is_on_no_bus_is_not_called_one_without(
    kernel, vendor, title
):
    display = {"pci": "0000:00:02.0", "vendor": vendor, "device": "0x46a6", "class": "0x030000"}
    changes = {"pci_devices": lines(display), "/proc/version": f"Linux version {kernel} #1"}
    assert judged("cpu-only", **changes).title == title


def test_what_a_captured_box_says_of_its_host_is_not_asked_for_again():
    verdict = judged("cuda-healthy", dmesg=KILL)
    assert verdict.cause == "host-oom"
    assert "58.00 GiB of 64.00 GiB of RAM available" in verdict.next_step.what
    assert "meminfo" not in verdict.next_step.command
    assert not any("free -m" in row.how for row in verdict.missing)


# -- the build of torch ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "chip, archs, served",
    [
        ("1151", "gfx1030 gfx942 gfx90a", False),
        ("1151", "gfx1030 gfx1151", True),
        ("1151", "gfx1151:xnack-", True),
        ("1151", "gfx11-generic", True),
        ("1151", "gfx10-3-generic gfx12-generic", False),
        ("1030", "gfx10-3-generic", True),
        ("1030", "gfx10-1-generic gfx11-generic", False),
        ("942", "gfx9-4-generic", True),
        ("950", "gfx9-4-generic", True),
        ("90a", "gfx908 gfx9-4-generic", False),
        ("1151", "", True),
    ],
)
def test_a_rocm_build_that_was_not_made_for_this_chip_is_named_and_any_that_serves_it_is_not(
    chip, archs, served
):
    torch = open_box("strix-halo-4-ttm").table("torch")[0]
    torch.update(archs=archs.split())
    version = f"{chip[:-2]}{int(chip[-2], 16):02}{int(chip[-1], 16):02}"
    at = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    box = open_box("strix-halo-4-ttm")
    node = box.read(at).text.replace("target_version 110501", f"target_version {version}")
    verdict = judged("strix-halo-4-ttm", torch=lines(torch), **{at: node})
    assert (verdict.cause == "unsupported-gfx") is not served
    assert served or verdict.confidence == "likely"


# -- holders --------------------------------------------------------------------------------------
def test_a_full_card_in_a_container_leaves_the_other_holders_open():
    others = {other.cause for other in judged("rx7900xt-container").alternatives}
    assert others >= {"stale-holder", "driver-leak"} and "allocator-fragmentation" not in others


def test_a_full_card_outside_a_container_with_all_processes_seen_blames_no_other_container():
    host = open_box("rx7900xt-container").table("identity")[0]
    host.update(container="none", init_pid_ns=True)
    nothing = {"/sys/class/kfd/kfd/proc/9/vram_42001": "0\n"}
    verdict = judged("rx7900xt-container", identity=lines(host), **nothing)
    assert verdict.cause in ("stale-holder", "driver-leak") and verdict.confidence != "confirmed"


def test_a_card_whose_use_is_explained_is_not_called_held():
    place = "/sys/class/drm/card{}/device/mem_info_vram_used"
    verdict = judged("rx7900xt-container", **{place.format(n): "20971520\n" for n in (0, 1)})
    assert verdict.cause not in HELD


def test_the_recovery_ladder_is_for_held_memory_and_ends_in_a_reboot():
    held = evidence_from_bundle(open_box("rx7900xt-container"))
    steps = recovery(diagnose(held), held)
    assert "SIGTERM" in steps[0].what and steps[-1].command == "sudo reboot"
    assert all(step.command and step.precondition and step.blast_radius for step in steps)
    assert any("not supported" in step.precondition for step in steps)
    other = evidence_from_message("RuntimeError: CUDA error: device-side assert triggered")
    assert recovery(diagnose(other), other) == ()


def test_another_process_that_was_measured_is_the_holder():
    text = open_box("cuda-24gb-tuning").read("nvidia-smi -q -x").text
    posted = oom("256.00 MiB", "23.56 GiB", "30.00 MiB", "400.00 MiB", "10.00 MiB")
    verdict = judged("cuda-24gb-tuning", message=posted, **{"nvidia-smi -q -x": text})
    assert (verdict.cause, verdict.confidence) == ("external-holder", "confirmed")


@pytest.mark.parametrize(
    "posted", read_rows("the failing process itself is no other holder whatever form its")
)
def test_the_failing_process_itself_is_no_other_holder_whatever_form_its_message_has(posted):
    assert judged("cuda-24gb-tuning", message=posted).cause != "external-holder"


# -- the kernel's log -----------------------------------------------------------------------------
def test_many_kills_in_the_log_of_a_box_are_one_row_of_evidence_that_counts_them():
    kills = [
        f"[{n}.0] Memory cgroup out of memory: Killed process {n} (python) total-vm:9000kB, "
        f"anon-rss:8000kB, file-rss:1kB, shmem-rss:0kB, UID:0 pgtables:10kB oom_score_adj:0"
        for n in (301, 422, 587)
    ]
    verdict = judged("cuda-healthy", dmesg="\n".join(kills))
    rows = [row for row in verdict.evidence if "Killed process" in row.reading.show()]
    assert len(rows) == 1 and "has 3 such lines" in rows[0].says and "587" in rows[0].reading.show()
    assert not any("dmesg" in wanted.how for wanted in verdict.missing)
    alone = judged("cuda-healthy", dmesg=kills[0])
    said = [row.says for row in alone.evidence if "Killed process" in row.reading.show()]
    assert len(said) == 1 and said[0].endswith("The kernel log has one such line")


def test_counters_at_zero_beside_a_healthy_box_are_no_finding():
    said = case_evidence({"error_text": "oom 0\noom_kill 0\noom_group_kill 0"})
    assert diagnose(replace(said, bundle=open_box("cuda-healthy"))).cause == "cannot-tell"


# -- access, builds and settings ------------------------------------------------------------------
def test_a_refused_node_is_a_permission_with_the_line_that_fixes_it():
    rows, who = (open_box("rx7900xt-container").table(name) for name in ("access", "identity"))
    refused = {"status": "not_allowed", "errno": "EACCES", "why": "permission denied"}
    rows[0].update(**refused, group="render", gid=992)
    who[0].update(uid=1000, groups=[{"gid": 1000, "name": "trainer"}], groups_in_database=[])
    who[0].update(container="none", init_pid_ns=True)
    verdict = judged("rx7900xt-container", access=lines(*rows), identity=lines(*who))
    assert verdict.cause == "permission" and verdict.confidence in ("likely", "confirmed")
    assert "usermod -aG render" in verdict.next_step.command


@pytest.mark.parametrize(
    "what, box, changes, cause, confidence, command",
    read_rows("the verdict on a box with one thing changed"),
)
def test_one_thing_that_is_changed_on_a_box_decides(what, box, changes, cause, confidence, command):
    tables = {k: v if isinstance(v, str) else lines(*v) for k, v in changes.items()}
    verdict = judged(box, **tables)
    assert (verdict.cause, verdict.confidence) == (cause, confidence)
    assert command in verdict.next_step.command, what


# -- ceilings -------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [1, 2, 3])
def test_diagnose_and_ttm_give_one_answer_for_one_box(number):
    (bundle,) = [open_box(n) for n in recorded_names() if n.startswith(f"strix-halo-{number}")]
    decision = ceilings(bundle)[0].decision
    verdict = diagnose(evidence_from_bundle(bundle))
    assert verdict.cause == decision.cause == "ttm-gtt-cap"
    proved = decision.confidence == "confirmed" and not any(i.constructed for i in bundle.items)
    allowed = ("confirmed",) if proved else ("likely", decision.confidence)
    assert verdict.confidence in allowed


def test_the_message_of_the_capped_apu_is_shown_as_capacity_by_itself():
    text = open_box("strix-halo-1-found").read("message").text
    assert diagnose(evidence_from_message(text)).cause == "true-capacity"
    verdict = judged("strix-halo-1-found")
    shown = " ".join(f"{row.says} {row.reading.show()}" for row in verdict.evidence)
    assert "true-capacity" in named(verdict)
    assert all(number in shown for number in ("59.55", "3.99", "62.54"))


def test_a_request_that_the_cache_would_have_met_speaks_against_a_card_too_small():
    verdict = judged("cuda-24gb-tuning")
    against = verdict.against[0]
    step = verdict.next_step
    assert (verdict.cause, len(verdict.against)) == ("true-capacity", 1)
    assert "16.00 MiB" in against.says and against.reading.show() == "1.41 GiB"
    assert "16.00 MiB failed with 33.56 MiB free and 1.41 GiB cached" in step.what
    preset = presets.load("cuda-expandable")
    (line,) = (f"export {name}={value}" for name, value in preset.environ.items())
    assert step.command.startswith("# Let PyTorch merge its cached blocks") and line in step.command
    text = open_box("cuda-24gb-tuning").read("message").text
    tried = {"error_text": text, "environment": {"env_vars": preset.environ}}
    assert line not in diagnose(case_evidence(tried)).next_step.command


def test_a_raised_ttm_limit_is_not_called_the_default():
    raised = {"/sys/module/ttm/parameters/pages_limit": f"{100 * GIB // 4096}\n"}
    assert judged("strix-halo-1-found", **raised).cause != "ttm-gtt-cap"


def test_a_limit_that_somebody_lowered_is_the_cause_and_not_the_size_of_the_work():
    bank = "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"
    lowered = {
        "/sys/module/ttm/parameters/pages_limit": f"{16 * GIB // 4096}\n",
        bank: f"heap_type 1\nsize_in_bytes {16 * GIB}\n",
    }
    bundle = changed("strix-halo-1-found", **lowered)
    verdict = diagnose(evidence_from_bundle(bundle))
    assert ceilings(bundle)[0].decision.cause == verdict.cause == "ttm-gtt-cap"
    assert "batch" not in verdict.next_step.command


def test_the_fraction_that_binds_is_the_one_of_the_variable_that_wins():
    given = [("PYTORCH_CUDA_ALLOC_CONF", 0.9), ("PYTORCH_ALLOC_CONF", 0.25)]
    rows = [{"name": n, "value": f"per_process_memory_fraction:{v}"} for n, v in given]
    box = build.copied("strix-halo-1-found")
    box.rows("environment", rows)
    bundle = box.writer.bundle()
    shares = [row for stack in ceilings(bundle) for row in stack.rows if row.layer == "fraction"]
    assert all(row.value.bytes > 30 * GIB for row in shares if row.value.ok)
    lost = {row.name for row in audit_box(bundle) if row.verdict == "shadowed"}
    assert "PYTORCH_ALLOC_CONF" in lost


def test_the_box_of_a_unified_memory_machine_names_the_page_cache_too():
    own = " Including non-PyTorch memory, this process has 60.31 GiB memory in use."
    error = oom("4.00 GiB", "119.64 GiB", "1.02 GiB", "59.00 GiB", "200.00 MiB", own)
    verdict = diagnose(evidence_from_bundle(gb10(60 << 20, 1_070_000, error)))
    assert verdict.cause == "metric-misreport"


# -- GPUs of another vendor beside the one that is meant ------------------------------------------
NODES, SECOND = (["/dev/nvidiactl", f"/dev/nvidia{n}", "/dev/nvidia-uvm"] for n in (0, 1))


def workstation(nodes, container, *more):
    """The verdict on an NVIDIA card beside a Ryzen, in or out of a container, with other GPUs on the bus."""
    box = build.Box("x", "recorded", "2026-01-01T00:00:00Z")
    system = {"release": "6.8.0", "distribution": "Ubuntu|24.04|ubuntu", "swap_kib": 0}
    build.host(box, ram_kib=64 << 20, available_kib=40 << 20, cpu="AMD Ryzen 9 7950X", **system)
    gpu = {"name": "RTX 4090", "total": 24564, "reserved": 439, "used": 23800, "free": 325}
    box.filled("nvidia-smi -q -x", build.nvidia_xml("570.1", "12.8", gpu, []), kind="command")
    running = [build.process(1, "bash", 1 << 20), build.process(50, "python3", 9 << 30)]
    box.rows("processes", running)
    opened = {"pid": 50, "fd": 20, "target": nodes[-1], "status": "ok", "why": ""}
    box.rows("device_files", [{**opened, "fdinfo": "pos:\t0\n"}])
    card = ("0000:01:00.0", "0x10de", "0x2684", "nvidia")
    box.rows("pci_devices", build.pci_rows(card, *more))
    build.identity(box, container=container, groups=[(0, "root")], uid=0)
    build.access(box, nodes)
    torch = {"status": "ok", "torch": "2.9.0+cu128", "cuda": "12.8", "hip": None}
    box.rows("torch", [{**torch, "python_version": "3.11.9", "device_count": 1}])
    box.rows("environment", [])
    other = " Process 31415 has 23.00 GiB memory in use."
    message = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.00 GiB", "300.00 MiB", other)
    box.stated("message", message)
    return diagnose(evidence_from_bundle(box.writer.bundle()))


@pytest.mark.parametrize(
    ("nodes", "container", "driver"),
    [
        pytest.param(NODES, "none", "", id="an integrated GPU without a driver"),
        pytest.param(NODES, "none", "vfio-pci", id="one given to a virtual machine"),
        pytest.param(NODES, "docker", "amdgpu", id="one in a container without its nodes"),
        pytest.param(SECOND, "docker", None, id="a container with the second card alone"),
    ],
)
def test_another_vendors_gpu_or_node_is_no_obstacle_to_a_program_that_runs(
    nodes, container, driver
):
    more = [] if driver is None else [("0000:13:00.0", "0x1002", "0x164e", driver)]
    plain = workstation(NODES, container)
    verdict = workstation(nodes, container, *more)
    assert (verdict.cause, verdict.confidence) == (plain.cause, plain.confidence)
    assert not {"permission", "other"} & named(verdict)
    command = verdict.next_step.command
    assert "modprobe" not in command and "--device" not in command


# -- what a page says of a box in one row ---------------------------------------------------------
@pytest.mark.parametrize(
    ("box", "row"),
    [
        ("cpu-only", {"GPU": "none", "Limit": "16.00 GiB (RAM)"}),
        (
            "rx7900xt-container",
            {"GPU": "2 x AMD Radeon RX 7900 XT", "Limit": "2 x 19.98 GiB (VRAM)"},
        ),
        ("strix-halo-1-found", {"Limit": "62.54 GiB (TTM pages_limit)", "Looked at": "2025-12-30"}),
        ("cuda-healthy", {"Driver": "NVIDIA 580.95.05", "torch": "2.9.1+cu130"}),
    ],
)
def test_the_facts_of_a_box_are_its_gpu_driver_torch_and_limit(box, row):
    facts_of_box = dict(facts(open_box(box)))
    assert {name: facts_of_box.get(name) for name in row} == row


@pytest.mark.parametrize(
    ("log", "when"),
    [
        ("[2031-02-03 04:05:06,789] ERROR {}", "2031-02-03 04:05:06"),
        ("2031-02-03T04:05:06Z start\n2031-02-03T05:00:00Z step 1\n{}", None),
        ("{}", None),
    ],
)
def test_the_time_of_a_failure_is_the_one_on_its_own_line(log, when):
    error = oom("2.00 GiB", "23.99 GiB", "1.00 GiB", "20.00 GiB", "1.00 GiB")
    bundle = changed("cuda-healthy", message=log.format(error))
    assert dict(facts(bundle)).get("Failed") == when


@pytest.mark.parametrize("name", recorded_names())
def test_the_reasons_of_a_recorded_box_begin_with_what_they_speak_of(name):
    verdict = judged(name)
    for row in why(verdict):
        assert not after_title(verdict, row.says).startswith(("That ", "It "))
