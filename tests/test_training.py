"""Rows about ways to train: what a child told, and all of them for real."""

import sys
import tempfile
from importlib.util import find_spec

import pytest

from helpers.ground.child import Ended, Transcript
from helpers.trials.training import PATHS, paths, result_of

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch in this Python")

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
    row = result_of("DDP", Transcript(ended(how, words, signal, "pid 7: state S"), ()))
    assert (row.state, row.why) == (state, why)


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
    for name in ("gradient checkpointing", "resume after a kill"):
        assert rows[name].equal_to_single == "bitwise", rows[name]
    for name in ("gradient accumulation", "activations in bfloat16", "DDP"):
        assert rows[name].equal_to_single == "within tolerance", rows[name]
    assert (
        rows["activations in host memory"].why == "on the CPU activations are in host memory anyway"
    )
    above = {name: row.peak_bytes - row.start_bytes for name, row in rows.items() if row.peak_bytes}
    assert above["gradient accumulation"] < 0.8 * above["single device"]
    assert above["gradient checkpointing"] < 0.8 * above["single device"]
    assert "went on from step 3: bit-identical" in rows["resume after a kill"].says
