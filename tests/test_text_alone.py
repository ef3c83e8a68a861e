"""What one out-of-memory message can say alone, and whose the bytes outside the process are."""

import json

import box_builder as build
import pytest
from changed_boxes import oom
from hypothesis import given
from hypothesis import strategies as st

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, evidence_from_bundle, evidence_from_message
from helpers.look.boxes import open_box

CARD = "15.70 GiB"
FILLED = oom("256.00 MiB", CARD, "66.00 MiB", "15.10 GiB", "120.00 MiB")
SLEEPS = (
    "INFO 03-04 05:06:07 gpu_worker.py:104] Sleep mode freed {} GiB memory, {} GiB memory is "
    "still in use.\n"
)


def own(size):
    return f" Including non-PyTorch memory, this process has {size} memory in use."


def another(pid, size):
    return f" Process {pid} has {size} memory in use."


def judged(text):
    return diagnose(evidence_from_message(text))


def causes(verdict):
    return {verdict.cause} | {other.cause for other in verdict.alternatives}


@pytest.mark.parametrize(
    "text",
    [
        FILLED,
        oom("256.00 MiB", CARD, "66.00 MiB", "15.40 GiB", "20.00 MiB"),
        oom("300.00 MiB", CARD, "40.00 MiB", "9.10 GiB", "6.20 GiB"),
        "2026-01-02 03:04:05,678 ERROR trainer: " + FILLED.replace(" of which", "\n   of which"),
        "[rank3]: " + FILLED,
    ],
)
def test_a_full_card_is_a_need_or_a_leak_and_one_command_tells_them_apart(text):
    verdict = judged(text)
    assert verdict.confidence == "weak"
    assert {"true-capacity", "user-leak"} <= causes(verdict)
    typed = verdict.next_step.command
    assert "rehearse --capacity 15.70GiB" in typed and "leaks run.pickle" in typed


@given(
    requested=st.integers(2, 4000),
    free=st.integers(0, 4000),
    allocated=st.integers(1, 16_000),
    stranded=st.integers(0, 8000),
)
def test_numbers_alone_make_a_need_likely_only_where_the_request_is_above_the_card(
    requested, free, allocated, stranded
):
    sizes = (f"{size}.00 MiB" for size in (requested, free, allocated, stranded))
    asked, left, used, cached = sizes
    verdict = judged(oom(asked, CARD, left, used, cached))
    if verdict.cause in ("true-capacity", "allocator-fragmentation", "user-leak"):
        assert verdict.confidence == "weak"


def test_a_request_above_the_card_is_a_need_whatever_else_is_there():
    verdict = judged(oom("96.00 GiB", CARD, "12.00 GiB", "1.90 GiB", "60.00 MiB"))
    assert (verdict.cause, verdict.confidence) == ("true-capacity", "likely")


def test_free_and_cached_that_hold_the_request_together_are_told_to_be_joined_first():
    text = oom("5.00 GiB", CARD, "4.60 GiB", "9.80 GiB", "700.00 MiB")
    verdict = judged(text)
    assert verdict.cause == "cannot-tell"
    assert verdict.next_step.command.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    says = " ".join(row.says for row in verdict.evidence)
    assert "it comes to 5.28 GiB: enough for the 5.00 GiB requested, though neither is" in says
    oldest = (
        "RuntimeError: CUDA out of memory. Tried to allocate 5.00 GiB (GPU 0; 15.70 GiB total "
        "capacity; 9.80 GiB already allocated; 4.60 GiB free; 10.50 GiB reserved in total by PyTorch)"
    )
    assert "expandable" not in judged(oldest).next_step.command
    on_rocm = judged(text.replace("CUDA", "HIP")).next_step.command
    assert on_rocm.startswith("# With PyTorch 2.12 or later for ROCm 7.0 to 7.13")


def test_a_rest_is_not_read_as_this_process_where_the_message_does_not_count_it():
    verdict = judged(oom("24.00 MiB", "6.00 GiB", "0 bytes", "4.90 GiB", "300.00 MiB"))
    (row,) = (row for row in verdict.evidence if row.id == "ours-fills")
    assert row.reading.show() == "5.19 GiB" and "a desktop or others" in row.says


# -- whose bytes -------------------------------------------------------------------------------
def test_bytes_outside_are_another_process_only_where_the_named_ones_hold_four_fifths():
    text = oom("3.00 GiB", "79.15 GiB", "1.01 GiB", "4.80 GiB", "60.00 MiB", own("5.20 GiB"))
    for others, confidence, kills in (
        (another(991, "72.80 GiB"), "likely", True),
        (another(991, "1.20 GiB"), "weak", False),
        ("", "weak", False),
    ):
        verdict = judged(text.replace(" Including", f"{others} Including"))
        assert (verdict.cause, verdict.confidence) == ("external-holder", confidence)
        assert ("kill" in verdict.next_step.command) is kills


def test_two_ranks_that_hold_one_card_together_are_one_job_and_neither_is_killed():
    first = oom("2.50 GiB", "31.73 GiB", "1.10 GiB", "14.70 GiB", "90.00 MiB", own("15.21 GiB"))
    second = oom("2.50 GiB", "31.73 GiB", "1.10 GiB", "14.72 GiB", "91.00 MiB", own("15.30 GiB"))
    first = first.replace(" Including", another(7001, "15.30 GiB") + " Including")
    second = second.replace(" Including", another(7000, "15.21 GiB") + " Including")
    verdict = judged(f"[rank0]: {first}\n[rank1]: {second}")
    assert (verdict.cause, verdict.confidence) == ("multi-gpu-imbalance", "likely")
    assert "kill" not in verdict.next_step.command


def test_ranks_that_each_see_one_card_as_number_0_are_no_imbalance():
    texts = [
        f"[rank{rank}]: "
        + oom(
            "2.50 GiB", "31.73 GiB", "1.10 GiB", "29.7 GiB", f"{90 + rank}.00 MiB", own("30.2 GiB")
        )
        for rank in (0, 1)
    ]
    assert judged("\n".join(texts)).cause != "multi-gpu-imbalance"


def test_what_a_sleeping_engine_keeps_is_the_engines_and_nobody_is_killed():
    text = oom("3.00 GiB", "79.15 GiB", "1.01 GiB", "48.00 GiB", "200.00 MiB", own("50.20 GiB"))
    text = text.replace(" Including", another(991, "27.80 GiB") + " Including")
    verdict = judged(SLEEPS.format("60.10", "5.02") + SLEEPS.format("40.10", "27.50") + text)
    assert verdict.cause == "allocator-cache-not-returned"
    assert "kill" not in verdict.next_step.command
    stranger = judged(SLEEPS.format("60.10", "5.02") + text)
    assert stranger.cause == "external-holder"


def nvidia_box(posted, *holders, used=None, state="S", all_seen=True, unlisted=(), inside=()):
    """The verdict on a card of 24 GiB with (pid, type, name, MiB) a holder, each in a state;
    ``unlisted`` have it open, as (pid, name); ``inside`` is what a container changes.
    """
    used = used or sum(mib for *_, mib in holders)
    sizes = {"name": "X", "total": 24_564, "reserved": 440, "used": used, "free": 24_124 - used}
    (who,) = open_box("cuda-24gb-tuning").table("identity")
    who.update(container="none", init_pid_ns=True, uid=0)
    who.update(inside)
    opened = [{"pid": 9, "status": "not_allowed"}]
    if all_seen:
        pids = [pid for pid, *_ in (*holders, *unlisted)]
        opened = [{"pid": pid, "status": "ok", "target": "/dev/nvidia0"} for pid in pids]
    tables = {
        "identity": [who],
        "device_files": opened,
        "processes": [
            {**build.process(pid, name, 1 << 30), "state": state}
            for pid, name in ((holder[0], holder[2]) for holder in holders)
        ]
        + [build.process(pid, name, 1 << 30) for pid, name in unlisted],
    }
    replaced = {
        "nvidia-smi -q -x": build.nvidia_xml("580.1", "13.0", sizes, holders),
        "message": posted,
    }
    for name, table in tables.items():
        replaced[name] = "".join(json.dumps(row) + "\n" for row in table)
    box = build.copied("cuda-24gb-tuning", replaced, constructed=False)
    return diagnose(evidence_from_bundle(box.writer.bundle()))


POSTED = oom("512.00 MiB", "23.56 GiB", "120.00 MiB", "98.00 MiB", "24.00 MiB", own("520.00 MiB"))
OURS = (9911, "C", "python3", 520)
XORG = (1900, "G", "/usr/lib/xorg/Xorg", 310)


def test_a_stopped_process_is_continued_and_a_zombies_parent_looked_up_for_neither_hears_sigterm():
    holder = (8123, "C", "python3", 22_690)
    stopped = nvidia_box(POSTED, holder, OURS, state="T")
    assert stopped.cause == "stale-holder"
    assert "kill -CONT 8123" in stopped.next_step.command
    zombie = nvidia_box(POSTED, holder, OURS, state="Z")
    assert zombie.cause == "stale-holder"
    assert "ppid= -p 8123" in zombie.next_step.command
    assert "kill" not in zombie.next_step.command
    running = nvidia_box(POSTED, holder, OURS)
    assert running.cause == "external-holder"
    assert "kill -TERM 8123" in running.next_step.command


def test_inside_a_container_a_number_of_the_host_is_looked_up_there_and_never_ended_here():
    container = {"container": "docker", "init_pid_ns": False}
    verdict = nvidia_box(POSTED, (8123, "C", "[Not Found]", 22_690), OURS, inside=container)
    assert verdict.cause == "external-holder"
    assert "pid 8123 of the host" in verdict.headline
    assert "-p 8123  # See whose process it is, on the host" in verdict.next_step.command
    assert "kill" not in verdict.next_step.command


@pytest.mark.parametrize("holder", [XORG, (77, "C", "blender", 9000)])
@pytest.mark.parametrize("all_seen, cause", [(True, "driver-leak"), (False, "external-holder")])
def test_what_no_listed_process_covers_is_leaked_or_hidden_as_far_as_could_be_seen(
    holder, all_seen, cause
):
    verdict = nvidia_box(POSTED, holder, OURS, used=23_900, all_seen=all_seen)
    assert (verdict.cause, verdict.confidence) == (cause, "likely")
    if holder is XORG:
        assert "kill" not in verdict.next_step.command


def test_another_rank_is_no_stranger_and_a_stranger_beside_a_rank_is_one():
    posted = oom("2.00 GiB", "23.56 GiB", "0.30 GiB", "9.50 GiB", "90.00 MiB", own("10.00 GiB"))
    ours = (9911, "C", "python3", 10_240)
    rank = nvidia_box(f"[rank1]: {posted}", (77, "C", "python3", 13_300), ours)
    assert rank.cause == "multi-gpu-imbalance" and "kill" not in rank.next_step.command
    stranger = nvidia_box(f"[rank1]: {posted}", (77, "C", "blender", 13_300), ours)
    assert stranger.cause == "external-holder"


def test_workers_that_have_the_device_open_and_are_in_no_list_come_before_a_leak_of_the_driver():
    workers = [(4001, "pt_main_thread"), (4002, "python3")]
    verdict = nvidia_box(POSTED, XORG, OURS, used=23_900, unlisted=workers)
    assert verdict.cause == "stale-holder"
    assert "4001 pt_main_thread, 4002 python3" in verdict.next_step.what
    daemon = nvidia_box(POSTED, XORG, OURS, used=23_900, unlisted=[(5, "nvidia-persiste")])
    assert daemon.cause == "driver-leak"


def test_an_answer_of_a_rehearsal_is_no_error_and_one_beside_an_error_changes_nothing():
    own_answer = "Fits in 24.00 GiB.\nRehearsed on CUDA card, 24.00 GiB, torch 2.14.1, in 9.6 s\n"
    alone = judged(own_answer)
    assert alone.headline == "This is an answer of casebook rehearse, not a program's error"
    assert "All evidence:" in alone.next_step.what
    assert judged(FILLED + "\n" + own_answer).headline == judged(FILLED).headline


def test_what_lies_within_the_rounding_of_the_numbers_is_not_said_to_be_anothers():
    rounded = oom("512.00 MiB", "6.00 GiB", "118.00 MiB", "5.86 GiB", "23.33 MiB")
    assert "others use" not in json.dumps([row.says for row in judged(rounded).evidence])
    desktop = oom("512.00 MiB", "6.00 GiB", "118.00 MiB", "5.66 GiB", "23.33 MiB")
    assert "others use" in json.dumps([row.says for row in judged(desktop).evidence])


@pytest.mark.parametrize(
    ("readings", "cause"),
    [
        ("10.0 12.0 15.0 21.0", "allocator-cache-not-returned"),
        ("10.0 15.0 12.0 21.0", "cannot-tell"),
        ("10.0 10.5 11.0 11.5", "cannot-tell"),
    ],
)
def test_readings_of_reserved_memory_grow_only_where_each_is_above_the_last_and_the_rise_is_clear(
    readings, cause
):
    tools = {"torch.cuda.memory_reserved GiB": readings}
    refused = "torch.OutOfMemoryError: CUDA out of memory."
    verdict = diagnose(case_evidence({"error_text": refused, "tool_outputs": tools}))
    assert verdict.cause == cause
