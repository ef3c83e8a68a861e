"""A real training step on the CPU as a trace: every free has its allocation, and every byte is accounted for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.allocator.growth import growth
from helpers.allocator.lines import requests
from helpers.allocator.load import read as load
from helpers.trials.record import record
from helpers.trials.under_torch.cpu_profile import LABEL, STEPS, trace_rows

ROOT = Path(__file__).resolve().parents[1]
STANDIN = Path(__file__).parent / "programs" / "history_torch"
TRAINS = """
import sys, threading, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters())
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
        loss.backward()
        optimizer.step()
        del loss
"""


def ran(text, **environ):
    """A program of that text, run from the checkout."""
    asked = {"capture_output": True, "text": True, "env": {**os.environ, **environ}}
    return subprocess.run([sys.executable, "-c", text], cwd=ROOT, check=False, **asked)


def read(path):
    header, *rows = map(json.loads, Path(path).read_text().splitlines())
    return header, rows


def closed(rows):
    """The bytes that are live at the end; every free names one live allocation."""
    live = {}
    for row in rows:
        if row["op"] == "alloc":
            assert row["id"] not in live and row["size"] > 0 and row["stream"] == 0
            live[row["id"]] = row["size"]
        else:
            assert row["op"] == "free"
            del live[row["id"]]
    return sum(live.values())


def shape(rows):
    return [(row["op"], row.get("size"), row.get("frames")) for row in rows]


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    """One program that knows us: tensors live before, three steps, a second recording, an exception; each trace, its notes."""
    folder = tmp_path_factory.mktemp("inside")
    text = f"""{TRAINS}
import helpers.trials.under_torch, json
old = torch.ones(1000)
with helpers.trials.under_torch.recording({str(folder / "steps")!r}) as r:
    train(3)
    del old
with helpers.trials.under_torch.recording({str(folder / "again.pickle")!r}, max_events=40) as second:
    train(1)
try:
    with helpers.trials.under_torch.recording({str(folder / "fails")!r}) as third:
        torch.ones(5)
        raise KeyError("mine")
except KeyError:
    pass
print(json.dumps([[r.trace, r.notes], [second.trace, second.notes], [third.trace, third.notes]]))
"""
    return json.loads(ran(text, OMP_NUM_THREADS="1").stdout.splitlines()[-1])


def test_a_training_step_is_a_closed_trace_whose_bytes_are_the_profilers_own(inside):
    header, rows = read(inside[0][0])
    assert (header["label"], header["job"]["device"]) == (LABEL, "cpu")
    assert header["torch"].startswith("2.")
    assert header["orphans"] == header["inferred_frees"] == 0
    before = sum(row["size"] for row in rows[: header["live_before"]])
    assert closed(rows) - before == header["net_bytes"] == header["profiler_net_bytes"]
    # AdamW keeps two figures per parameter, and each parameter has a gradient after a step.
    parameters = 4 * (64 * 128 + 128 + 128 * 10 + 10)
    assert 3 * parameters <= header["net_bytes"] < 3 * parameters + 4096


def test_every_step_after_the_first_has_the_same_shape(inside):
    header, rows = read(inside[0][0])
    first, second, third = header["steps"]
    assert shape(rows[first:second]) == shape(rows[second:third])
    assert second - first > 50
    # The first step asks for what the second does, and for the optimizer's own state beside that.
    begin, again = (
        {(row["size"], *row["frames"]) for row in part if row["op"] == "alloc"}
        for part in (rows[header["live_before"] : first], rows[first:second])
    )
    assert again <= begin


def test_tensors_of_before_stand_at_the_start_and_are_said(inside):
    header, rows = read(inside[0][0])
    sizes = sorted(row["size"] for row in rows[: header["live_before"]])
    assert sizes == sorted([4000, 4 * 64 * 128, 4 * 128, 4 * 128 * 10, 4 * 10])
    assert any("5 tensors of " in note for note in inside[0][1])


def test_a_second_recording_of_one_process_accounts_for_the_first_and_a_cut_is_said(inside):
    trace, notes = inside[1]
    header, rows = read(trace)
    assert trace.endswith("again.jsonl") and len(rows) - header["live_before"] <= 41
    closed(rows)
    assert any("cut after 40 events" in note for note in notes)


def test_an_exception_leaves_the_trace_and_goes_on(inside):
    header, rows = read(inside[2][0])
    assert [row["size"] for row in rows[header["live_before"] :] if row["op"] == "alloc"][0] == 20


def test_a_program_that_knows_nothing_is_traced_for_its_first_steps(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TRAINS + "train(8)\nprint('trained')\nsys.exit(3)\n")
    done = ran(f"""
import sys
from helpers.trials.record import record
recording = record([sys.executable, {str(program)!r}], {str(tmp_path / "t.jsonl")!r}, cpu_profile=True)
sys.exit(recording.exit_code)
""")
    assert (done.returncode, done.stdout, done.stderr) == (3, "trained\n", "")
    header, rows = read(tmp_path / "t.jsonl")
    assert len(header["steps"]) == STEPS and header["orphans"] == 0
    before = sum(row["size"] for row in rows[: header["live_before"]])
    assert closed(rows) == header["net_bytes"] + before
    assert header["net_bytes"] == header["profiler_net_bytes"]
    assert any("`rehearse` takes the GPU's" in note for note in header["notes"])
    assert any(f"ends after {STEPS} optimizer steps" in note for note in header["notes"])
    # Each allocation lies in the lines of the program that asked for it, the backward pass in the line that called it.
    frames = [row["frames"] for row in rows if row["op"] == "alloc" and "frames" in row]
    lines = {tuple(name for name in one if name.startswith("train.py:")) for one in frames}
    steps = {(f"train.py:{line} train", "train.py:13 <module>") for line in (9, 10, 11)}
    assert lines == steps | {("train.py:4 <module>",)}
    grown = growth(requests(load(tmp_path / "t.jsonl")))
    assert (len(grown.steps), grown.growers) == (STEPS, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [("os._exit(5)", 5), ("os.kill(os.getpid(), 15)", 143), ("raise KeyError(1)", 1)],
)
def test_a_profiled_program_keeps_its_trace_however_it_ends(tmp_path, end, code, capfd):
    text = TRAINS + f"import os\ntrain(1)\n{end}"
    recording = record([sys.executable, "-c", text], tmp_path / "t.jsonl", cpu_profile=True)
    capfd.readouterr()
    assert (recording.exit_code, recording.kind) == (code, "cpu profile")
    assert len(read(recording.trace)[0]["steps"]) == 1


def test_a_trace_is_what_the_allocator_reads(inside):
    load = pytest.importorskip("helpers.allocator.load")
    found = load.read(inside[0][0])
    header, rows = read(inside[0][0])
    assert len(found) == len(rows) and found.header["label"] == LABEL
    # One that was made when the label had other words.
    older = load.read(ROOT / "env" / "traces" / "cpu-training-step.parquet")
    assert older.header["label"] != LABEL and len(older) > 1000
    assert older.header["device"] == found.header["device"] == "cpu"


def test_asking_for_a_recording_imports_no_torch_and_a_gpu_gets_its_history(tmp_path):
    text = f"""
import sys, helpers.trials.under_torch
assert "torch" not in sys.modules
import torch
torch.cuda.allocate(512)
with helpers.trials.under_torch.recording({str(tmp_path / "part.jsonl")!r}) as r:
    address = torch.cuda.allocate(256)
    try:
        torch.cuda.allocate(1 << 21)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.memory.free(address, 256)
assert torch.cuda.memory.history is None
torch.cuda.allocate(1)
print(r.trace, r.facts["ooms"], [one["action"] for one in torch.cuda.memory.entries])
"""
    done = ran(text, PYTHONPATH=f"{ROOT}{os.pathsep}{STANDIN}")
    trace, ooms, actions = done.stdout.split(maxsplit=2)
    assert (trace, ooms) == (str(tmp_path / "part-oom.pickle"), "1"), done.stderr
    assert actions == "['alloc', 'oom', 'free_completed']\n"


# The trace's own rules.


def seen(*events):
    total = 0
    found = []
    for at, (address, size) in enumerate(events):
        total += size
        found.append((address, size, total, at, ["aten::empty"]))
    return found


@pytest.mark.parametrize(
    ("events", "before", "expected", "counts", "note"),
    [
        (((1, 10), (9, -4), (1, -10)), {}, "alloc 1 free 1", (1, 0), "1 frees of 4 bytes are left"),
        (((1, 10), (1, 20)), {}, "alloc 1 free 1 alloc 2", (0, 1), "another thread"),
        (((7, -300), (7, 50)), {7: 300}, "alloc 1 free 1 alloc 2", (0, 0), "1 tensors of 300"),
    ],
)
def test_what_the_profiler_did_not_see_is_put_in_or_left_out_and_told(
    events, before, expected, counts, note
):
    header, rows = trace_rows(seen(*events), before, [], 99)
    assert " ".join(f"{row['op']} {row['id']}" for row in rows) == expected
    assert (header["orphans"], header["inferred_frees"]) == counts
    assert any(note in one for one in header["notes"])


def test_what_only_the_profiler_knew_of_is_one_lump():
    header, rows = trace_rows([(1, 10, 1010, 0, [])], {7: 300}, [], 99)
    assert [row["size"] for row in rows] == [300, 700, 10] and header["live_before"] == 2
    lump = "700 bytes were live before the trace that no Python tensor holds"
    assert any(lump in note for note in header["notes"])


def test_nothing_at_all_is_an_empty_trace():
    assert trace_rows([], {}, [], 99)[1] == []


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 100), st.booleans()), max_size=60),
    st.dictionaries(st.integers(1, 9), st.integers(1, 100)),
    st.integers(1, 80),
)
def test_any_sequence_of_events_gives_a_closed_trace(events, before, max_events):
    found = seen(*((address, -size if free else size) for address, size, free in events))
    header, rows = trace_rows(found, before, [3, 5], max_events)
    closed(rows)
    assert len(rows) - header["live_before"] <= max_events + 1 and len(header["steps"]) == 2
    assert all(0 <= at <= len(rows) for at in header["steps"])
