"""Verdicts: the recorded boxes, sums of messages, order that decides nothing, and evidence of any shape."""

import json
import random
from pathlib import Path

import pytest
from changed_boxes import changed
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.judge.diagnosis import diagnose, recovery, verdict_of
from helpers.judge.evidence import (
    CaseEvidence,
    Observation,
    case_evidence,
    evidence_from_bundle,
    evidence_from_case,
    evidence_from_message,
)
from helpers.judge.observations import observe
from helpers.look.boxes import open_box, recorded_names
from helpers.look.reading import seen

HELD = {"external-holder", "stale-holder", "driver-leak"}


def judged(box):
    return diagnose(evidence_from_bundle(open_box(box)))


@pytest.mark.parametrize(
    ("box", "cause", "confidence"),
    [
        ("rx7900xt-container", "external-holder", "likely"),
        ("strix-halo-1-found", "ttm-gtt-cap", "likely"),
        ("strix-halo-2-vm-size", "ttm-gtt-cap", "likely"),
        ("strix-halo-3-gttsize", "ttm-gtt-cap", "likely"),
        ("strix-halo-4-ttm", "cannot-tell", "weak"),
        ("cuda-24gb-tuning", "true-capacity", "likely"),
        ("cuda-healthy", "cannot-tell", "weak"),
        ("cpu-only", "other", "likely"),  # its list of the bus was filled in
    ],
)
def test_the_verdict_on_each_recorded_box(box, cause, confidence):
    verdict = judged(box)
    assert (verdict.cause, verdict.confidence) == (cause, confidence)


@pytest.mark.parametrize("box", recorded_names())
def test_every_verdict_has_evidence_with_ids_of_their_own_and_one_step(box):
    verdict = judged(box)
    assert verdict.evidence and verdict.next_step.what and verdict.summary
    ids = [e.id for e in verdict.evidence + verdict.against]
    assert len(set(ids)) == len(ids)
    assert verdict.confidence == "confirmed" or verdict.missing


def test_a_full_card_in_a_container_leaves_the_other_holders_open():
    verdict = judged("rx7900xt-container")
    assert {"stale-holder", "driver-leak"} <= {other.cause for other in verdict.alternatives}
    assert "allocator-fragmentation" not in {other.cause for other in verdict.alternatives}


def test_the_message_of_the_capped_apu_is_shown_as_capacity_by_itself():
    box = open_box("strix-halo-1-found")
    assert diagnose(evidence_from_message(box.read("message").text)).cause == "true-capacity"
    verdict = judged("strix-halo-1-found")
    assert "true-capacity" in {other.cause for other in verdict.alternatives}
    shown = " ".join(f"{e.says} {e.reading.show()}" for e in verdict.evidence)
    assert "59.55" in shown and "3.99" in shown and "62.54" in shown


def test_near_capacity_with_stranded_memory_shows_both_and_names_the_snapshot_and_the_separate_bug():
    verdict = judged("cuda-24gb-tuning")
    assert "allocator-fragmentation" in {other.cause for other in verdict.alternatives}
    assert "record" in " ".join(m.how for m in verdict.missing)
    assert "assert" in {e.id for e in verdict.evidence} and "not caused by it" in verdict.summary


def message(request, allocated, rest, free="12.00 MiB", total="47.54 GiB"):
    return (
        f"torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate {request}. GPU 0 has a total capacity of "
        f"{total} of which "
        f"{free} is free. Of the allocated memory {allocated} is allocated by PyTorch, and {rest} is reserved by PyTorch "
        f"but unallocated."
    )


@pytest.mark.parametrize(
    ("text", "possible"),
    [
        (message("5.00 GiB", "20.00 GiB", "26.00 GiB"), True),
        (message("5.00 GiB", "44.00 GiB", "3.40 GiB"), False),
        (message("5.00 GiB", "40.00 GiB", "1.00 GiB"), False),
        (message("64.00 MiB", "3.00 GiB", "40.00 MiB"), False),
    ],
)
def test_fragmentation_from_a_message_is_at_most_likely_and_only_where_it_fits(text, possible):
    verdict = diagnose(evidence_from_message(text))
    named = {verdict.cause} | {other.cause for other in verdict.alternatives}
    assert ("allocator-fragmentation" in named) is possible
    assert verdict.confidence != "confirmed"


def test_the_order_of_observations_decides_nothing():
    for box in recorded_names():
        found = list(observe(evidence_from_bundle(open_box(box))))
        before = verdict_of(tuple(found))
        random.Random(7).shuffle(found)
        after = verdict_of(tuple(found))
        assert (before.cause, before.confidence, before.alternatives) == (
            after.cause,
            after.confidence,
            after.alternatives,
        )


def test_two_causes_that_weigh_alike_are_cannot_tell_with_both_named():
    found = tuple(
        Observation(name, seen("x", "text", "tool"), "seen", "tool")
        for name in ("mismatch", "no-access")
    )
    verdict = verdict_of(found)
    assert verdict.cause == "cannot-tell"
    assert {"version-mismatch", "permission"} <= {o.cause for o in verdict.alternatives}


def test_the_hint_that_pytorch_prints_is_no_evidence():
    hint = (
        " If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation."
    )
    text = message("2.00 GiB", "45.00 GiB", "90.00 MiB")
    assert (
        diagnose(evidence_from_message(text + hint)).cause
        == diagnose(evidence_from_message(text)).cause
        == "true-capacity"
    )


def test_a_narrative_changes_no_more_than_to_weak():
    told = diagnose(
        case_evidence(
            {
                "error_text": "CUDA out of memory",
                "narrative": "Usage grows with every training step.",
            }
        )
    )
    assert (told.cause, told.confidence) == ("user-leak", "weak")
    assert diagnose(case_evidence({"error_text": "CUDA out of memory"})).cause == "cannot-tell"


def test_a_long_stream_is_read_line_by_line_and_a_failure_in_its_middle_counts():
    lines = (
        ["step 1 done, all well\n"] * 6000
        + [message("9.00 GiB", "44.00 GiB", "200.00 MiB") + "\n"]
        + ["waiting\n"] * 6000
    )
    evidence = evidence_from_message(iter(lines))
    assert diagnose(evidence).cause == "true-capacity" and len(evidence.error_text) < 70_000


def test_nothing_at_all_is_cannot_tell_and_asks_for_the_message():
    verdict = diagnose(CaseEvidence())
    assert verdict.cause == "cannot-tell" and "error message" in verdict.missing[0].reading


def test_a_build_for_another_vendor_is_a_confirmed_mismatch():
    torch = (
        json.dumps(
            {"status": "ok", "torch": "2.10.0+cpu", "cuda": None, "hip": None, "device_count": 0}
        )
        + "\n"
    )
    verdict = diagnose(evidence_from_bundle(changed("cuda-healthy", torch=torch)))
    assert (verdict.cause, verdict.confidence) == ("version-mismatch", "confirmed")


def test_a_refused_node_is_a_permission():
    row = {
        "path": "/dev/kfd",
        "status": "not_allowed",
        "errno": "EACCES",
        "mode": "0660",
        "uid": 0,
        "gid": 992,
        "group": "render",
        "selinux": "",
    }
    assert (
        diagnose(
            evidence_from_bundle(changed("strix-halo-4-ttm", access=json.dumps(row) + "\n"))
        ).cause
        == "permission"
    )


def test_another_process_that_was_measured_is_the_holder():
    text = open_box("cuda-24gb-tuning").read("nvidia-smi -q -x").text
    posted = message("256.00 MiB", "400.00 MiB", "10.00 MiB", free="30.00 MiB", total="23.56 GiB")
    verdict = diagnose(
        evidence_from_bundle(
            changed("cuda-24gb-tuning", message=posted, **{"nvidia-smi -q -x": text})
        )
    )
    assert (verdict.cause, verdict.confidence) == ("external-holder", "confirmed")


def test_the_failing_process_itself_is_no_other_holder_whatever_form_its_message_has():
    posted = (
        "CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 23.56 GiB total capacity; 21.90 GiB already allocated; "
        "33.00 MiB free; 22.40 GiB reserved in total by PyTorch)"
    )
    for text in (posted, "RuntimeError: CUDA error: out of memory"):
        verdict = diagnose(evidence_from_bundle(changed("cuda-24gb-tuning", message=text)))
        assert verdict.cause != "external-holder"


def test_the_kernel_log_outweighs_a_plain_message():
    log = "[  900.1] amdgpu 0000:c5:00.0: VM memory stats for proc viewer(77) task viewer(77) is non-zero when fini\n"
    verdict = diagnose(evidence_from_bundle(changed("strix-halo-4-ttm", dmesg=log)))
    assert (verdict.cause, verdict.confidence) == ("driver-leak", "confirmed")


def test_the_recovery_ladder_is_for_held_memory_and_ends_in_a_reboot():
    held = evidence_from_bundle(open_box("rx7900xt-container"))
    steps = recovery(diagnose(held), held)
    assert "SIGTERM" in steps[0].what and steps[-1].command == "sudo reboot"
    assert all(step.precondition and step.blast_radius for step in steps)
    assert any("not supported" in step.precondition for step in steps)
    tuning = evidence_from_message("RuntimeError: CUDA error: device-side assert triggered")
    assert recovery(diagnose(tuning), tuning) == ()


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"evidence": 3}', "{" * 4000, '{"evidence"'])
def test_a_file_that_is_no_case_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "case.json"
    path.write_text(content)
    with pytest.raises(ValueError) as caught:
        evidence_from_case(path)
    assert "\n" not in str(caught.value) and "expected" in str(caught.value)


def test_truth_in_a_case_is_not_looked_at(tmp_path):
    path = tmp_path / "case.json"
    posted = {
        "truth": {"root_cause": "host-oom"},
        "title": "OOMKilled",
        "evidence": {"error_text": "it broke"},
    }
    path.write_text(json.dumps(posted))
    assert diagnose(evidence_from_case(path)).cause == "cannot-tell"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["error_text", "tool_outputs", "environment", "narrative"]), ANY, max_size=4
    )
)
def test_evidence_of_any_shape_gets_a_verdict(raw):
    assert diagnose(case_evidence(raw)).next_step.what


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400))
def test_binary_garbage_gets_a_verdict(raw):
    assert diagnose(evidence_from_message(raw)).next_step.what
    wordless = bytes(byte | 0x80 for byte in raw)
    assert diagnose(evidence_from_message(wordless)).cause == "cannot-tell"


SHARED = Path(__file__).resolve().parents[1] / ".." / "shared" / "cases"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the posted cases are not beside this checkout")
def test_posted_cases_are_mostly_right_and_never_wrong_and_confirmed():
    import cases  # beside this file

    rows = cases.score(cases.load(SHARED), narrative=True)
    got = [row[4] for row in rows]
    assert got.count("right") >= 0.8 * len(rows) and got.count("wrong") <= 0.03 * len(rows)
    assert not [row for row in rows if row[4] == "wrong" and row[3] == "confirmed"]
