"""The verdict on a memory snapshot: what its blocks prove, what they refute, and what grows in it."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from toy_allocator import MIB, Toy

from helpers.allocator.call_sites import requests_of
from helpers.allocator.growth import growth_of
from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import parse
from helpers.allocator.snapshot_facts import evidence_from_snapshot, refusal, snapshot_facts
from helpers.allocator.trace import TraceError
from helpers.ground.contract import from_json
from helpers.ground.shapes import Verdict
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import CaseEvidence
from helpers.judge.snapshot_evidence import snapshot_observations

ROOT = Path(__file__).resolve().parents[1]


def frames(name, line):
    return [{"name": name, "filename": "/home/someone/train.py", "line": line}]


def refuse(toy, size, free):
    toy.say("oom", free, size, frames=frames("forward", 9))


def stranded(free=MIB):
    """Eight 20 MiB segments, each with a hole of 10 MiB: 80 MiB are unused, and no hole holds 16 MiB."""
    toy = Toy()
    kept = [toy.alloc(10 * MIB - 512 * 2) for _ in range(16)]
    for address in kept[1::2]:
        toy.free(address)
    refuse(toy, 16 * MIB, free)
    return toy


def full():
    toy = Toy()
    for _ in range(10):
        toy.alloc(20 * MIB, frames("forward", 3))
    refuse(toy, 64 * MIB, MIB)
    return toy


def growing(keeps=True, steps=90):
    """A loop that keeps one tensor a step, made at one line, beside tensors that it frees."""
    toy = Toy()
    for _ in range(steps):
        work = toy.alloc(3 * MIB, frames("forward", 3))
        kept = toy.alloc(2 * MIB, frames("collect", 6))
        toy.free(work)
        if not keeps:
            toy.free(kept)
    return toy


def judged(toy, tmp_path, protocol=4):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(toy.snapshot(), protocol))
    return diagnose(evidence_from_snapshot(path))


def test_blocks_that_hold_the_request_together_and_none_alone_confirm_fragmentation(tmp_path):
    verdict = judged(stranded(), tmp_path)
    assert (verdict.cause, verdict.confidence) == ("allocator-fragmentation", "confirmed")
    assert "16.00 MiB" in " ".join(row.says for row in verdict.evidence)
    assert not verdict.missing and "whatif" in verdict.next_step.command + verdict.next_step.what


LARGEST = 10 * MIB + 512 * 2


@pytest.mark.parametrize(
    ("request_bytes", "free_bytes", "confirmed"),
    [
        (LARGEST, 0, False),  # the largest unused block would have held it
        (LARGEST + 1, 0, True),
        (LARGEST + 1, LARGEST, True),
        (LARGEST + 1, LARGEST + 1, False),  # the device still had it
        (8 * LARGEST, 0, True),  # all that is unused, and no more
        (8 * LARGEST + 1, 0, False),
    ],
)
def test_fragmentation_is_confirmed_by_blocks_to_the_byte(request_bytes, free_bytes, confirmed):
    toy = stranded()
    toy.events.pop()
    refuse(toy, request_bytes, free_bytes)
    snapshot = parse(toy.snapshot())
    verdict = diagnose(CaseEvidence(snapshot=snapshot_facts(snapshot)))
    answer = (verdict.cause, verdict.confidence)
    assert (answer == ("allocator-fragmentation", "confirmed")) is confirmed
    assert (verdict.confidence == "confirmed") is confirmed
    bare = diagnose(CaseEvidence(snapshot=snapshot_facts(replace(snapshot, segments=()))))
    assert bare.confidence != "confirmed"  # the event alone, without blocks


def test_the_same_blocks_are_no_proof_where_the_program_went_on_after_the_refusal(tmp_path):
    toy = stranded()
    toy.alloc(20 * MIB)
    verdict = judged(toy, tmp_path)
    assert verdict.cause == "allocator-fragmentation" and verdict.confidence == "likely"


def test_a_refusal_with_room_on_the_device_is_no_fragmentation(tmp_path):
    verdict = judged(stranded(free=64 * MIB), tmp_path)
    assert verdict.cause != "allocator-fragmentation" and verdict.confidence != "confirmed"


def test_live_blocks_that_leave_no_room_are_capacity_and_refute_fragmentation(tmp_path):
    verdict = judged(full(), tmp_path)
    assert verdict.cause == "true-capacity" and verdict.confidence in ("likely", "confirmed")
    assert "allocator-fragmentation" not in {other.cause for other in verdict.alternatives}


def test_a_call_site_that_only_allocates_is_the_leak_and_is_named(tmp_path):
    verdict = judged(growing(), tmp_path)
    assert verdict.cause == "user-leak" and verdict.confidence in ("likely", "weak")
    assert "train.py:6" in " ".join(f"{row.says} {row.reading.show()}" for row in verdict.evidence)


def test_a_loop_that_frees_what_it_makes_has_no_leak(tmp_path):
    verdict = judged(growing(keeps=False), tmp_path)
    assert verdict.cause == "cannot-tell" and "user-leak" not in {
        o.cause for o in verdict.alternatives
    }


def test_weights_that_are_made_once_at_the_start_are_no_leak(tmp_path):
    toy = Toy()
    for _ in range(60):
        toy.alloc(2 * MIB, frames("load", 2))
    for _ in range(300):
        toy.free(toy.alloc(3 * MIB, frames("forward", 3)))
    assert judged(toy, tmp_path).cause == "cannot-tell"


def test_a_recording_without_a_refusal_names_no_cause_of_one(tmp_path):
    toy = Toy()
    for _ in range(4):
        toy.free(toy.alloc(3 * MIB))
    verdict = judged(toy, tmp_path)
    assert verdict.cause == "cannot-tell" and verdict.evidence and verdict.missing


def test_the_moment_of_the_refusal_is_reckoned_back_over_what_came_after(tmp_path):
    before = refusal(parse(stranded().snapshot()))
    toy = stranded()
    for _ in range(3):
        toy.free(toy.alloc(20 * MIB))
    after = refusal(parse(toy.snapshot()))
    for field in ("request_bytes", "device_free_bytes", "allocated_bytes", "reserved_bytes"):
        assert getattr(after, field) == getattr(before, field)
    assert after.largest_bytes is None


def test_a_leak_of_a_few_steps_is_the_one_that_leaks_names(tmp_path):
    """Five steps are enough, and the site, the bytes and the steps are those of ``leaks``."""
    snapshot = parse(growing(steps=8).snapshot())
    (row,) = [
        o for o in snapshot_observations(snapshot_facts(snapshot)) if o.name == "snapshot-grows"
    ]
    found = growth_of(requests_of(rewind(snapshot)))
    (one,) = found.growers
    (first, last) = found.window
    assert one.site.name in row.says and "train.py:6" in row.says
    assert row.reading.bytes == one.bytes_per_step * (last - first) == 2 * MIB * (last - first)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        b"\x80\x04N.",
        b"\x80\x04\x95" + b"\xff" * 8,
        pickle.dumps([1, 2]),
        b"GGUF",
    ],
)
def test_a_file_that_is_no_snapshot_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "x.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        evidence_from_snapshot(path)
    assert "\n" not in str(caught.value)


def test_the_command_takes_a_snapshot_in_place_of_a_box(tmp_path):
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(stranded().snapshot(), 4))
    done = subprocess.run(
        [sys.executable, str(ROOT / "helpers/__main__.py"), "diagnose", str(path), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert from_json(Verdict, done.stdout).cause == "allocator-fragmentation"


def test_a_snapshot_handed_over_as_a_message_is_named_and_told_where_it_belongs(tmp_path):
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(stranded().snapshot(), 4))
    done = subprocess.run(
        [sys.executable, str(ROOT / "helpers/__main__.py"), "diagnose", "--message", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "a pickle" in done.stderr and "diagnose FILE" in done.stderr
