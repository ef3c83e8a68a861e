"""The verdict on a memory snapshot: what its blocks prove, what they refute, and what grows in it."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from toy_allocator import MIB, Toy

from helpers.allocator.program_facts import evidence_from_trace
from helpers.allocator.trace import TraceError
from helpers.ground.contract import from_json
from helpers.ground.shapes import Verdict
from helpers.judge.diagnosis import diagnose

ROOT = Path(__file__).resolve().parents[1]


def frames(name, line):
    return [{"name": name, "filename": "/home/someone/train.py", "line": line}]


def refuse(toy, size, free):
    toy.say("oom", free, size, frames=frames("forward", 9))


def stranded(free=MIB):
    """Eight 20 MiB segments, each with a hole of 10 MiB: 80 MiB are unused, and no hole holds 16 MiB.

    In expandable segments two holes each would lie side by side.
    """
    toy = Toy()
    blocks = [toy.alloc(10 * MIB - 512 * 2) for _ in range(16)]
    for number, address in enumerate(blocks):
        if number % 4 in (1, 2):
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
    return diagnose(evidence(toy, tmp_path, protocol))


def evidence(toy, tmp_path, protocol=4):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(toy.snapshot(), protocol))
    return evidence_from_trace(path)


def test_blocks_that_hold_the_request_together_and_none_alone_are_fragmentation(tmp_path):
    verdict = judged(stranded(), tmp_path)
    assert (verdict.cause, verdict.confidence) == ("allocator-fragmentation", "likely")
    assert "16.00 MiB" in verdict.headline and "rehearse" in verdict.missing[0].how
    assert verdict.next_step.command == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_fragmentation_is_confirmed_only_where_as_much_was_live_before(tmp_path):
    """With one more block than ever before, the program may be about to need still more."""
    toy = Toy()
    blocks = [toy.alloc(10 * MIB - 512 * 2) for _ in range(4)]
    for address in blocks[1:]:
        toy.free(address)
    refuse(toy, 45 * MIB, 21 * MIB)
    verdict = judged(toy, tmp_path)
    assert verdict.cause == "cannot-tell" and "rehearse" in verdict.next_step.command
    assert {row.cause for row in verdict.alternatives} == {
        "true-capacity",
        "allocator-fragmentation",
    }


def test_live_blocks_that_leave_no_room_are_capacity_and_refute_fragmentation(tmp_path):
    verdict = judged(full(), tmp_path)
    assert verdict.cause == "true-capacity" and verdict.confidence in ("likely", "confirmed")
    assert "allocator-fragmentation" not in {other.cause for other in verdict.alternatives}


def test_a_call_site_that_only_allocates_is_the_leak_and_is_named(tmp_path):
    toy = growing()
    refuse(toy, 3 * MIB, MIB)
    verdict = judged(toy, tmp_path)
    assert verdict.cause == "user-leak" and verdict.confidence == "likely"
    assert "2.00 MiB more each step (train.py:6 collect)" in verdict.headline


def test_a_recording_that_grows_and_did_not_fail_is_described_and_blames_nobody(tmp_path):
    verdict = judged(growing(), tmp_path)
    assert verdict.cause == "cannot-tell" and not verdict.alternatives
    assert "2.00 MiB more each step (train.py:6 collect)" in verdict.headline


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
    before = evidence(stranded(), tmp_path).program.refusal
    toy = stranded()
    for _ in range(3):
        toy.free(toy.alloc(20 * MIB))
    assert evidence(toy, tmp_path).program.refusal == before


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
        evidence_from_trace(path)
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


def test_what_was_there_before_the_first_forward_pass_is_counted_as_such(tmp_path):
    loads = {"filename": "/home/me/fit.py", "line": 4, "name": "<module>"}
    calls = {
        "filename": "/usr/lib/python3/site-packages/torch/nn/modules/module.py",
        "line": 1783,
        "name": "_call_impl",
    }
    toy = Toy()
    toy.alloc(30 * MIB, [loads])
    toy.alloc(5 * MIB, [calls, loads])
    refuse(toy, 45 * MIB, 21 * MIB)
    program = evidence(toy, tmp_path).program
    assert program.asked_before_forward_bytes == 30 * MIB
