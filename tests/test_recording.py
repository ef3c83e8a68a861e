"""A program that knows us records a part of itself."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STANDIN = Path(__file__).parent / "programs" / "history_torch"


def ran(text, **environ):
    """A program of that text, run from the checkout under the stand-in torch."""
    path = f"{ROOT}{os.pathsep}{STANDIN}"
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environ},
    )


def test_asking_for_a_recording_imports_no_torch_and_a_gpu_gets_its_history(tmp_path):
    text = f"""
import sys
from helpers.allocator import recording
assert "torch" not in sys.modules
import torch
torch.cuda.allocate(512)
with recording({str(tmp_path / "part")!r}) as r:
    address = torch.cuda.allocate(256)
    try:
        torch.cuda.allocate(1 << 21)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.memory.free(address, 256)
assert torch.cuda.memory.history is None
torch.cuda.allocate(1)
print(r.trace, r.facts["ooms"], [one["action"] for one in torch.cuda.memory.entries])
"""
    done = ran(text)
    trace, ooms, actions = done.stdout.split(maxsplit=2)
    assert (trace, ooms) == (str(tmp_path / "part-oom.pickle"), "1"), done.stderr
    assert actions == "['alloc', 'oom', 'free_completed']\n"


def test_a_torch_without_a_gpu_leaves_no_trace_and_says_why(tmp_path):
    text = f"""
from helpers.allocator import recording
with recording({str(tmp_path / "part")!r}) as r:
    pass
print(r.trace, r.notes)
"""
    done = ran(text, CPU_TORCH="1")
    why = "GPU memory history: not available because this torch is a CPU build"
    assert done.stdout == f"None [{why!r}]\n", done.stderr
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
