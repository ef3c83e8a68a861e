"""Rows about ways to train: failures read back, what a child told, and how many batches until it dies."""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.ground.child import Ended, Transcript
from helpers.trials.endurance import EnduranceError, until_oom
from helpers.trials.training import PATHS, paths, read_failure, result_of, specification

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch in this Python")

ROOT = Path(__file__).resolve().parents[1]
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


# -- failures read back


DIED = "Connection reset by peer. This is typically caused by a remote worker hanging"
NOT_SET = "environment variable RANK expected, but not set"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Distributed package doesn't have NCCL built in", "without the backend"),
        ("Unknown backend type rccl", "no backend of that name"),
        ("The server socket has failed to listen. code: -98, name: EADDRINUSE", "port is taken"),
        (f"Error initializing torch.distributed using env:// rendezvous: {NOT_SET}", "launcher"),
        ("Wait timeout", "not all processes"),
        ("Timed out after 4 seconds waiting for clients. 1/2 clients joined.", "not all processes"),
        ("The client socket has timed out after 3000ms", "not all processes"),
        (f"Read error [127.0.0.1]:1214: {DIED}", "died"),
        ("Timed out waiting 6000ms for send operation to complete", "does not answer"),
        ("module 'torch._C' has no attribute '_cuda_setDevice'", "device index"),
        ("CUDA error: invalid device ordinal", "device index"),
    ],
)
def test_a_failure_of_two_processes_is_read_back_into_its_cause(text, cause):
    found = read_failure(text)
    assert found is not None and cause in found.cause and found.next_step


def test_other_errors_have_no_such_cause():
    for text in (NO_MEMORY, "mat1 and mat2 shapes cannot be multiplied"):
        assert read_failure(text) is None


# -- rows


NO_TORCH = "ModuleNotFoundError: No module named"


def ended(how, last_words="", signal="", stacks=""):
    return Ended(how, 1 if how == "exited" else None, signal, 3.0, last_words, stacks, ())


@pytest.mark.parametrize(
    ("how", "words", "signal", "state", "why"),
    [
        ("timed_out", "Thread 1: forward", "", "failed", "it did not end in time"),
        ("stuck", "", "", "failed", "it is stuck in the kernel"),
        ("signalled", "", "SIGSEGV", "failed", "it was ended by SIGSEGV"),
        ("exited", "x\nOSError: no", "", "failed", "OSError: no"),
        ("exited", f"{NO_TORCH} 'torch'", "", "not_run", "there is no torch in that Python"),
    ],
)
def test_a_child_that_ends_before_its_training_is_a_row_that_says_how(
    how, words, signal, state, why
):
    step = {"event": "step", "step": 2, "loss": 1.5}
    row = result_of("DDP", Transcript(ended(how, words, signal, "pid 7: state S"), (step,)))
    assert (row.state, row.why) == (state, why)
    if state == "failed":
        assert (row.steps, row.final_loss) == (2, 1.5)
    stopped = how in ("timed_out", "stuck")
    assert row.stacks == ("\n".join(filter(None, [words, "pid 7: state S"])) if stopped else "")


def test_another_training_is_a_failed_path():
    end = {"event": "end", "state": "ran", "equal": "no", "says": "", "seconds": 1.0}
    assert result_of("DDP", Transcript(ended("exited"), (end,))).state == "failed"


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="'DPP': expected one of single device"):
        paths(sys.executable, ["DPP"])


# -- everything for real


@pytest.mark.slow
def test_every_path_finishes_or_says_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = {row.name: row for row in paths(sys.executable)}
    assert tuple(rows) == PATHS and not list(tmp_path.iterdir())
    assert {row.state for row in rows.values()} <= {"ran", "not_run"}, rows
    same = "gradient checkpointing, resume after a kill, resume after out of memory"
    for name in same.split(", "):
        assert rows[name].equal_to_single == "bitwise", rows[name]
    for name in ("gradient accumulation", "batch back-off", "DDP"):
        assert rows[name].equal_to_single in ("bitwise", "within tolerance"), rows[name]
    above = {name: row.peak_bytes - row.start_bytes for name, row in rows.items() if row.peak_bytes}
    assert above["gradient accumulation"] < 0.8 * above["single device"]
    assert above["gradient checkpointing"] < 0.8 * above["single device"]
    assert "bitwise equal to accumulation of two pieces" in rows["DDP"].says


@pytest.mark.slow
def test_how_many_batches_until_it_dies_and_what_other_settings_would_do(tmp_path):
    spec = specification("until_oom", "small", "cpu", 7, steps=12, growth=32)
    confs = ("", "expandable_segments:True")
    found = until_oom(sys.executable, spec, 64 << 20, tmp_path / "trace", confs=confs)
    assert 0 < found.batches < 12 and found.died_length == 64 + 32 * found.batches
    # Only a GPU leaves a trace to replay.
    assert (found.trace, found.answer) == (None, None)
    assert "this torch is a CPU build" in found.why_no_answer


@pytest.mark.slow
def test_too_little_memory_to_begin_with_is_said():
    with pytest.raises(EnduranceError, match="expected it to finish"):
        until_oom(str(ROOT / "tests" / "conftest.py"), {"device": "cpu"}, 1, Path("never"))
