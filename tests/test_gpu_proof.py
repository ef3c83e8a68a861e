"""The one command for a machine with a GPU: what it says where there is none, and that a difference would be seen."""

import json
import sys
import time

import gpu_proof
import proof_fixes
import pytest

from helpers.allocator.driver import Card
from helpers.allocator.patterns import generate
from helpers.allocator.replay import replay
from helpers.trials.stress import StressResult
from helpers.trials.targets import Target
from helpers.trials.workload import workload

GIB = 1 << 30


def test_without_a_gpu_it_says_so_and_ends_3(tmp_path, monkeypatch, capsys):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    argv = ["gpu_proof.py", "--out", str(tmp_path), "--python", str(python), "--part", "fixes"]
    monkeypatch.setattr(sys, "argv", argv)
    assert gpu_proof.main() == 3
    fixes = json.loads((tmp_path / "record.json").read_text())["parts"]["fixes"]
    assert fixes["status"] == "not_available" and "does not say what torch sees" in fixes["why"]
    assert "record.json" in capsys.readouterr().out
    assert set(gpu_proof.PARTS) == {"allocator", "vpoc", "fixes"}


def test_a_torch_without_a_gpu_gives_its_reason(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch has a GPU")
    found = proof_fixes.fixes_part(sys.executable, tmp_path, None, time.monotonic() + 60)
    assert found["status"] == "not_available" and "GPU" in found["why"]


def result(trace, **changes):
    """What a card would report that did exactly what the model says, but for the changes."""
    model = replay(trace, "", Card(20 * GIB), torch="2.14.1", timeline=True)
    words = ("ok", "oom", "skipped")
    columns = (model.column(name).tolist() for name in ("out", "allocated", "reserved"))
    rows = [(i, words[out], *sizes) for i, (out, *sizes) in enumerate(zip(*columns, strict=True))]
    stats = {"reserved_bytes.all.peak": model.peak_reserved_bytes}
    of = {"torch": "2.14.1", "build": "cuda", "total_bytes": 20 * GIB, "fraction": 1.0}
    known = {"status": "ok", "why": "", "done": len(trace), "rows": tuple(rows), "stats": stats}
    return StressResult(**{**known, **of, **changes})


def test_a_card_that_does_as_the_model_says_is_exact_and_one_byte_more_is_seen():
    trace = generate("growing_batches", batches=4)
    good = result(trace)
    assert gpu_proof.compared(trace, "", good)["same"]
    at, out, allocated, reserved = good.rows[400]
    odd = (*good.rows[:400], (at, out, allocated + 512, reserved), *good.rows[401:])
    found = gpu_proof.compared(trace, "", result(trace, rows=odd))
    assert not found["same"] and found["first_differing"] == [400]
    other = result(trace, stats={"reserved_bytes.all.peak": 1})
    assert not gpu_proof.compared(trace, "", other)["same"]


WORDS = {
    "oom": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
    "assert": "CUDA error: device-side assert triggered",
}
RAISES = f"""words = {WORDS!r}
def run(p):
    if p['do'] in words:
        raise RuntimeError(words[p['do']])
    return 1
"""


@pytest.mark.parametrize(
    ("objective", "outcomes", "same"),
    [
        (RAISES, ["ok", "oom", "device_assert"], True),
        ("import os\ndef run(p):\n    os._exit(3)\n", ["died"] * 3, False),
    ],
)
def test_memory_and_an_assert_are_told_apart(objective, outcomes, same):
    found = proof_fixes.told_apart(sys.executable, time.monotonic() + 60, objective)
    assert [row["outcome"] for row in found["said"]] == outcomes and found["same"] == same


def test_the_error_of_a_prediction_is_a_share_of_what_was_measured():
    ended = {"event": "end", "peak_reserved_bytes": 200, "how": "exited", "last": ""}
    assert proof_fixes.row(workload("churn"), "", 150, 100, ended)["error"] == -0.25
    oom = {"event": "oom", "message": "out of memory", "how": "exited"}
    none = proof_fixes.row(workload("churn"), "", 150, 100, oom)
    assert none["error"] is None and none["why"] == "out of memory"


def test_a_workload_that_leaves_no_trace_says_why(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch has a GPU")
    small = workload("churn", steps=2, requests=20)
    card = {"torch": "2.13.0", "build": "cuda"}
    given = (sys.executable, tmp_path, small, Target(), card, 8 * GIB)
    rows = proof_fixes.predicted_and_measured(*given)
    assert [row["status"] for row in rows] == ["failed"]
    assert "GPU memory history: not available" in rows[0]["why"]


@pytest.mark.parametrize(
    ("same", "left_s", "status"),
    [(True, 600, "measured"), (False, 600, "failed"), (True, 10, "failed")],
)
def test_the_part_measures_what_fits_its_time_and_fails_by_the_assert_alone(
    tmp_path, monkeypatch, same, left_s, status
):
    seen = []

    def one(python, folder, wanted, target, card, total_bytes):
        seen.append((target.pci, target.visible_variable, total_bytes))
        return [{"workload": wanted.words, "error": -0.25}]

    of = {"torch": "2.14.1", "device": "a card", "count": 1, "build": "rocm"}
    card = {"why": "", "pci": "", "total_bytes": 8 * GIB, **of}
    answers = {
        "seen_by": lambda python: card,
        "told_apart": lambda python, ends: {"same": same, "said": []},
        "trials": lambda *args: {"rows": []},
        "predicted_and_measured": one,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(proof_fixes, name, answer)
    found = proof_fixes.fixes_part("python", tmp_path, 4 * GIB, time.monotonic() + left_s)
    assert found["status"] == status
    if left_s > 30:
        assert found["largest_error"] == 0.25 and found["compared"] == len(proof_fixes.WORKLOADS)
        assert set(seen) == {("unknown", "HIP_VISIBLE_DEVICES", 4 * GIB)}
    else:
        assert {row["status"] for row in found["rows"]} == {"skipped"}
        assert found["largest_error"] is None
