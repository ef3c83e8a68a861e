"""A program that knows us records a part of itself."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.allocator.circumstances import record_of
from helpers.allocator.under_torch.peaks_before_reset import PeaksBeforeReset

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


FAILING = """
import sys
sys.path[:0] = [{root!r}, {standin!r}]
from helpers.allocator import recording
import torch
with recording({out!r}):
    torch.cuda.allocate(256)
    try:
        torch.cuda.allocate(1 << 21)
    except torch.cuda.OutOfMemoryError:
        pass
"""


def failing_program(folder):
    """A file whose run leaves a snapshot of its out-of-memory, and that snapshot."""
    program = folder / "study.py"
    program.write_text(
        FAILING.format(root=str(ROOT), standin=str(STANDIN), out=str(folder / "part"))
    )
    return program, folder / "part-oom.pickle"


def test_the_snapshot_of_a_program_that_recorded_itself_has_its_command(tmp_path):
    program, snapshot = failing_program(tmp_path)
    subprocess.run([sys.executable, program, "--token", "s3cret", "--steps", "3"], check=True)
    command = record_of(snapshot)["command"]
    assert command[1:] == [str(program), "--token", "***", "--steps", "3"]


LAUNCHER = (
    "import subprocess, sys\n"
    "subprocess.run([sys.executable, *sys.argv[1:]], env={'LOCAL_RANK': '0'}, check=True)\n"
)


@pytest.mark.parametrize("name", ["torchrun", "accelerate-launch"])
def test_a_program_that_a_launcher_started_has_the_launchers_command(tmp_path, name):
    program, snapshot = failing_program(tmp_path)
    launcher = tmp_path / name
    launcher.write_text(f"#!{sys.executable}\n{LAUNCHER}")
    launcher.chmod(0o755)
    subprocess.run([launcher, program, "--steps", "3"], check=True)
    assert record_of(snapshot)["command"] == [name, str(program), "--steps", "3"]


def test_a_program_that_a_module_started_has_the_command_of_that_module(tmp_path):
    program, snapshot = failing_program(tmp_path)
    folder = tmp_path / "accelerate/commands"
    folder.mkdir(parents=True)
    (folder / "launch.py").write_text(LAUNCHER)
    start = ["-m", "accelerate.commands.launch", str(program), "--steps", "3"]
    subprocess.run([sys.executable, *start], check=True, cwd=tmp_path)
    assert record_of(snapshot)["command"] == ["python", *start]


def test_a_file_beside_a_snapshot_that_does_not_name_it_is_not_its_record(tmp_path):
    program, snapshot = failing_program(tmp_path)
    subprocess.run([sys.executable, program], check=True)
    other = snapshot.rename(tmp_path / "part-other.pickle")
    assert record_of(other) == {}


def test_a_peak_that_the_program_resets_is_still_its_peak():
    """reset_peak_memory_stats sets torch's counters back to what is held at that moment."""
    counters = {"reserved_bytes.all.peak": 40, "reserved_bytes.all.current": 10}
    bindings = SimpleNamespace(
        _cuda_resetPeakMemoryStats=lambda device: counters.update({"reserved_bytes.all.peak": 10})
    )
    torch = SimpleNamespace(_C=bindings, cuda=SimpleNamespace(memory_stats=lambda _: counters))
    peaks = PeaksBeforeReset()
    peaks.watch(torch)
    assert peaks.highest(0, counters) == {"reserved_bytes.all.peak": 40}
    bindings._cuda_resetPeakMemoryStats(0)
    assert counters["reserved_bytes.all.peak"] == 10
    assert peaks.highest(0, counters) == {"reserved_bytes.all.peak": 40}
    counters["reserved_bytes.all.peak"] = 50
    assert peaks.highest(0, counters) == {"reserved_bytes.all.peak": 50}
    assert peaks.highest(1, {"reserved_bytes.all.peak": 5}) == {"reserved_bytes.all.peak": 5}
