"""The one command for a machine with a GPU: what it says where there is none, and that a difference would be seen."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.allocator.driver import Card
from helpers.allocator.replay import replay
from helpers.load.patterns import generate
from helpers.load.study import StressResult
from helpers.load.targets import Target
from helpers.load.workloads import workload

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import gpu_proof  # noqa: E402 -- a program beside the tests, not a package
import proof_fixes  # noqa: E402


def test_without_a_gpu_it_says_so_and_ends_3(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "gpu_proof.py"), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    record = json.loads((tmp_path / "record.json").read_text())
    assert done.returncode == 3 and record["parts"]["allocator"]["status"] == "not_available"
    assert "GPU" in record["parts"]["allocator"]["why"] and "record.json" in done.stdout
    assert set(record["parts"]) == {"allocator", "vpoc", "fixes"}
    assert (
        record["parts"]["fixes"]["status"] == "not_available"
        and "GPU" in record["parts"]["fixes"]["why"]
    )


def result(trace, **changes):
    """What a card would report that did exactly what the model says, but for the changes."""
    model = replay(trace, "", Card(20 << 30), torch="2.14.1", timeline=True)
    words = ("ok", "oom", "skipped")
    rows = [
        (i, words[out], allocated, reserved)
        for i, (out, allocated, reserved) in enumerate(
            zip(
                model.column("out").tolist(),
                model.column("allocated").tolist(),
                model.column("reserved").tolist(),
                strict=True,
            )
        )
    ]
    known = {
        "status": "ok",
        "why": "",
        "done": len(trace),
        "rows": tuple(rows),
        "torch": "2.14.1",
        "build": "cuda",
        "total_bytes": 20 << 30,
        "fraction": 1.0,
        "stats": {"reserved_bytes.all.peak": model.peak_reserved_bytes},
    }
    return StressResult(**{**known, **changes})


def test_a_card_that_does_as_the_model_says_is_exact_and_one_byte_more_is_seen():
    trace = generate("mixed_survivors", events=800)
    good = result(trace)
    assert gpu_proof._compared(trace, "", good)["same"]
    at, out, allocated, reserved = good.rows[400]
    bad = result(
        trace, rows=(*good.rows[:400], (at, out, allocated + 512, reserved), *good.rows[401:])
    )
    found = gpu_proof._compared(trace, "", bad)
    assert not found["same"] and found["first_differing"] == [400]
    assert not gpu_proof._compared(trace, "", result(trace, stats={"reserved_bytes.all.peak": 1}))[
        "same"
    ]


def test_a_python_without_torch_has_no_gpu_to_prove_on(tmp_path):
    found = proof_fixes.fixes_part(str(tmp_path / "python"), tmp_path, None, time.monotonic() + 60)
    assert found["status"] == "not_available" and "does not say" in found["why"]


def test_a_context_that_lives_on_after_an_assert_is_seen_as_not_what_a_card_does():
    words = {
        "oom": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
        "assert": "CUDA error: device-side assert triggered",
    }
    objective = (
        f"words = {words!r}\ndef run(p):\n    if p['do'] in words:\n        raise RuntimeError(words[p['do']])\n"
        "    return 1\n"
    )
    found = proof_fixes.told_apart(sys.executable, time.monotonic() + 60, objective)
    assert [one["outcome"] for one in found["said"]] == [
        "ok",
        "oom",
        "ok",
        "device_assert",
        "ok",
    ] and not found["same"]
    assert proof_fixes.EXPECTED == ("ok", "oom", "ok", "device_assert", "device_assert")
    died = proof_fixes.told_apart(
        sys.executable, time.monotonic() + 60, "import os\ndef run(p):\n    os._exit(3)\n"
    )
    assert [one["outcome"] for one in died["said"]] == ["died"] and not died["same"]


def test_the_error_of_a_prediction_is_a_share_of_what_was_measured():
    told = {
        "event": "end",
        "peak_reserved_bytes": 200,
        "peak_allocated_bytes": 150,
        "how": "exited",
        "last": "",
    }
    assert proof_fixes.row(workload("churn"), "", 150, 100, told)["error"] == -0.25
    none = proof_fixes.row(
        workload("churn"),
        "",
        150,
        100,
        {"event": "oom", "message": "out of memory", "how": "exited"},
    )
    assert none["error"] is None and none["why"] == "out of memory"


@pytest.mark.slow
def test_a_workload_is_recorded_on_the_cpu_replayed_for_the_card_and_run(tmp_path):
    pytest.importorskip("torch")
    card = {"torch": "2.13.0", "build": "cuda"}
    rows = proof_fixes.predicted_and_measured(
        sys.executable, tmp_path, workload("churn", steps=2, requests=20), Target(), card, 8 << 30
    )
    assert [one["conf"] for one in rows] == list(proof_fixes.CONFS) and all(
        one["predicted_bytes"] > 1 << 20 for one in rows
    )
    # On the CPU there is nothing that torch reserved: no error is made up.
    assert all(one["error"] is None and one["status"] == "end" for one in rows)


@pytest.mark.parametrize(
    ("same", "left_s", "status"),
    [(True, 600, "measured"), (False, 600, "failed"), (True, 10, "failed")],
)
def test_the_part_measures_what_fits_its_time_and_fails_by_the_assert_alone(
    tmp_path, monkeypatch, same, left_s, status
):
    card = {
        "why": "",
        "torch": "2.14.1",
        "device": "a card",
        "pci": "",
        "count": 1,
        "total_bytes": 8 << 30,
        "build": "rocm",
    }
    seen = []

    def one(python, folder, wanted, target, card, total_bytes):
        seen.append((target.pci, target.visible_variable, total_bytes))
        return [{"workload": wanted.words, "error": -0.25}]

    monkeypatch.setattr(
        proof_fixes.subprocess,
        "run",
        lambda *args, **more: subprocess.CompletedProcess(
            args, 0, stdout=f"a library's word\n{json.dumps(card)}\n"
        ),
    )
    monkeypatch.setattr(proof_fixes, "told_apart", lambda python, ends: {"same": same, "said": []})
    monkeypatch.setattr(proof_fixes, "data_parallel", lambda python, ends: {"state": "not_run"})
    monkeypatch.setattr(proof_fixes, "trials", lambda *args: {"rows": []})
    monkeypatch.setattr(proof_fixes, "predicted_and_measured", one)
    found = proof_fixes.fixes_part("python", tmp_path, 4 << 30, time.monotonic() + left_s)
    assert found["status"] == status and found["data_parallel"] == {"state": "not_run"}
    if left_s > 30:
        assert found["largest_error"] == 0.25 and found["compared"] == len(proof_fixes.WORKLOADS)
        assert set(seen) == {("unknown", "HIP_VISIBLE_DEVICES", 4 << 30)}
    else:
        assert {row["status"] for row in found["rows"]} == {"skipped"} and found[
            "largest_error"
        ] is None
