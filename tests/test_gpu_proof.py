"""The one command for a machine with a GPU: what it says where there is none, and that a difference would be seen."""

import json
import subprocess
import sys
from pathlib import Path

from helpers.allocator.driver import Card
from helpers.allocator.replay import replay
from helpers.load.patterns import generate
from helpers.load.stress import StressResult

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import gpu_proof  # noqa: E402 -- a program beside the tests, not a package


def test_without_a_gpu_it_says_so_and_ends_3(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "tests" / "gpu_proof.py"), "--out", str(tmp_path)], capture_output=True,
                          text=True, check=False)
    record = json.loads((tmp_path / "record.json").read_text())
    assert done.returncode == 3 and record["parts"]["allocator"]["status"] == "not_available"
    assert "GPU" in record["parts"]["allocator"]["why"] and "record.json" in done.stdout


def result(trace, **changes):
    """What a card would report that did exactly what the model says, but for the changes."""
    model = replay(trace, "", Card(20 << 30), torch="2.14.1", timeline=True)
    words = ("ok", "oom", "skipped")
    rows = [(i, words[out], allocated, reserved) for i, (out, allocated, reserved) in enumerate(zip(
        model.column("out").tolist(), model.column("allocated").tolist(), model.column("reserved").tolist(), strict=True))]
    known = {"status": "ok", "why": "", "done": len(trace), "rows": tuple(rows), "torch": "2.14.1", "build": "cuda",
             "total_bytes": 20 << 30, "fraction": 1.0, "stats": {"reserved_bytes.all.peak": model.peak_reserved_bytes}}
    return StressResult(**{**known, **changes})


def test_a_card_that_does_as_the_model_says_is_exact_and_one_byte_more_is_seen():
    trace = generate("mixed_survivors", events=800)
    good = result(trace)
    assert gpu_proof._compared(trace, "", good)["same"]
    at, out, allocated, reserved = good.rows[400]
    bad = result(trace, rows=(*good.rows[:400], (at, out, allocated + 512, reserved), *good.rows[401:]))
    found = gpu_proof._compared(trace, "", bad)
    assert not found["same"] and found["first_differing"] == [400]
    assert not gpu_proof._compared(trace, "", result(trace, stats={"reserved_bytes.all.peak": 1}))["same"]
