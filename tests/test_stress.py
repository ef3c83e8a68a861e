"""A trace done for real: in order, on its streams, within the limit, and told; on a stand-in where there is no GPU."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.allocator.driver import Card
from helpers.allocator.oracle_lines import program_lines
from helpers.allocator.patterns import PATTERNS, generate
from helpers.allocator.replay import replay
from helpers.allocator.trace import Op, Trace
from helpers.ground import child
from helpers.trials.stress import stress
from helpers.trials.targets import Target
from helpers.trials.under_torch.stress import limit

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tests" / "programs" / "tiny_torch"
MIB = 1 << 20


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A torch with a GPU of 1 GiB in the child's Python; gives what was called."""
    log = tmp_path / "calls"
    monkeypatch.setenv("PYTHONPATH", str(TINY))
    monkeypatch.setenv("TINY_LOG", str(log))
    return lambda: [line.split() for line in log.read_text().splitlines()]


def trace_of(*rows):
    """(op, id, size, stream number) as a trace."""
    op, ids, sizes, streams = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Trace(op.astype(np.int8), ids, sizes, streams * 0x1000, np.zeros(len(rows), np.int32))


def alloc(i, size, stream=0):
    return Op.ALLOC, i, size, stream


def free(i):
    return Op.FREE, i, 0, 0


CALLS = (
    # Stream 2 is made first, so it is the stand-in's first.
    "empty 1000 0;empty 5000 1;empty 700 2;record_stream 1;free 1024;empty_cache;empty 512 1;synchronize;free 1024"
)


def test_operations_are_done_in_order_on_their_streams(tiny):
    trace = trace_of(
        alloc(0, 1000),
        alloc(1, 5000, 2),
        alloc(2, 700, 1),
        (Op.RECORD_STREAM, 0, 0, 2),
        free(0),
        (Op.EMPTY_CACHE, -1, 0, 0),
        alloc(3, 512, 2),
        (Op.FOREIGN, -1, 4096, 0),
        (Op.SYNCHRONIZE, -1, 0, 0),
        free(2),
    )
    result = stress(sys.executable, trace, 100 * MIB, 30)
    assert (result.status, result.why, result.done, result.ooms) == ("ok", "", 10, 0)
    calls = [" ".join(call) for call in tiny() if call[0] != "fraction"]
    assert ";".join(calls[:9]) == CALLS
    assert [row[1] for row in result.rows].count("left_out") == 1
    about = (result.torch, result.build, result.device, result.total_bytes)
    assert about == ("9.9.9+tiny", "cuda", "Tiny GPU", 1 << 30)


def test_no_more_than_the_limit_is_held_and_the_first_refusal_is_told(tiny, tmp_path):
    big = 6 * MIB
    rest = (alloc(3, 6 * MIB), free(0), alloc(4, MIB))
    trace = trace_of(alloc(0, big), alloc(1, big), free(1), alloc(2, 3 * MIB), *rest)
    path = tmp_path / "kept.pickle"
    result = stress(sys.executable, trace, 10 * MIB, 30, snapshot=path)
    assert (result.status, result.ooms, result.done) == ("ok", 2, 7)
    assert result.limit_bytes == 10 * MIB and result.fraction == 10 / 1024
    how, allocated, reserved = zip(*(row[1:] for row in result.rows), strict=True)
    assert " ".join(how) == "ok oom skipped ok oom ok ok" and max(reserved) <= 10 * MIB
    assert [size // MIB for size in allocated] == [6, 6, 6, 9, 9, 3, 4]
    now = "allocated_bytes.all.current"
    peak = "allocated_bytes.all.peak"
    assert result.stats == {now: 4 * MIB, peak: 9 * MIB}
    assert snapshot(path)["stats"][peak] == 9 * MIB
    assert ["history", "all", "None"] in tiny()


def snapshot(path):
    """A snapshot as MemoryViz reads it: of protocol 4, whatever this Python's own is."""
    content = path.read_bytes()
    assert content[:2] == b"\x80\x04"
    return pickle.loads(content)


@pytest.mark.parametrize(("asked", "most"), [(500, 500), (5000, 744), (100, 100)])
def test_a_limit_above_what_is_free_is_lowered(asked, most):
    assert limit(1000 * MIB, 2000 * MIB, asked * MIB) == most * MIB


def test_a_limit_is_never_the_whole_card_for_that_means_none_to_torch():
    assert limit(9000 * MIB, 2000 * MIB, 9000 * MIB) == 2000 * MIB - 1


def test_a_pattern_is_carried_out_whole(tiny):
    trace = generate("volume_profiles", 3, sessions=20, low_ticks=40, high_ticks=900)
    result = stress(sys.executable, trace, 900 * MIB, 30)
    assert (result.status, result.done, result.ooms) == ("ok", len(trace), 0)
    made = [int(call[1]) for call in tiny() if call[0] == "empty"]
    assert made == trace.size[trace.op == Op.ALLOC].tolist()


def test_the_time_ends_it_between_two_operations(tiny):
    trace = generate("volume_profiles", 3, low_ticks=40, high_ticks=900)
    result = stress(sys.executable, trace, 900 * MIB, 1e-3)
    assert (result.status, result.why) == ("time", "") and result.done < len(trace) and result.stats


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("cpu-build", "this torch is a CPU build and cannot use a GPU"),
        ("async", "the allocator is cudaMallocAsync, which keeps no segments"),
    ],
)
def test_where_nothing_can_be_stressed_it_says_why(tiny, monkeypatch, words, why):
    monkeypatch.setenv("TINY_TORCH", words)
    result = stress(sys.executable, trace_of(alloc(0, MIB)), MIB)
    assert (result.status, result.why, result.done) == ("not_available", why, 0)


def test_on_a_box_without_torch_it_is_not_available(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = stress(sys.executable, trace_of(alloc(0, MIB)), MIB)
    assert result.status == "not_available"
    assert "torch cannot be imported: ModuleNotFoundError" in result.why
    assert (
        stress(str(tmp_path / "no-python"), trace_of(alloc(0, MIB)), MIB).status == "not_available"
    )


@pytest.mark.parametrize(
    ("word", "status", "why"),
    [
        ("driver-error", "failed", "an illegal memory access"),
        ("dies-at-once", "crashed", "SIGABRT"),
    ],
)
def test_an_error_of_the_driver_is_told_and_a_death_outlived(tiny, monkeypatch, word, status, why):
    monkeypatch.setenv("TINY_TORCH", word)
    result = stress(sys.executable, trace_of(alloc(0, MIB)), MIB, 20)
    assert result.status == status and why in result.why and result.device == "Tiny GPU"


def test_the_settings_are_those_asked_for_and_caching_stays_on(tiny, monkeypatch, tmp_path):
    probe = tmp_path / "python"
    probe.write_text("#!/bin/sh\nenv | grep ^PYTORCH_ | sort >&2\n")
    probe.chmod(0o755)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:77")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    trace = trace_of(alloc(0, MIB))
    assert stress(str(probe), trace, MIB).why.endswith("nothing was printed")
    asked = stress(str(probe), trace, MIB, conf="expandable_segments:True")
    assert asked.why.endswith("PYTORCH_HIP_ALLOC_CONF=expandable_segments:True")


def test_the_card_is_counted_in_the_order_of_the_bus_as_for_every_other_check(
    tmp_path, monkeypatch
):
    probe = tmp_path / "python"
    probe.write_text('#!/bin/sh\necho "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES" >&2\n')
    probe.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    card = Target("0000:81:00.0", "CUDA_VISIBLE_DEVICES", "1", "cuda:0")
    assert stress(str(probe), trace_of(alloc(0, MIB)), MIB, target=card).why.endswith(
        "PCI_BUS_ID 1"
    )


@pytest.mark.parametrize("wrong", [(0,), (MIB, -1.0)])
def test_a_limit_or_time_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="expected a number above 0"):
        stress(sys.executable, trace_of(alloc(0, MIB)), *wrong)


def test_what_a_library_prints_is_no_answer_of_the_program(tiny, tmp_path):
    rows = program_lines(trace_of(alloc(0, 2 * MIB), alloc(1, 2 * MIB), free(0)))
    operations = tmp_path / "operations.jsonl"
    operations.write_text("".join(json.dumps(op) + "\n" for op in rows))
    spec = {"operations": str(operations), "limit_bytes": 3 * MIB, "seconds": 9, "snapshot": ""}
    ran = subprocess.run(
        child.program(sys.executable, "helpers.trials.under_torch.stress", json.dumps(spec)),
        text=True,
        capture_output=True,
        cwd=tmp_path,
        check=True,
    )
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [message["event"] for message in told] == ["ready", "rows", "end"]
    assert told[-1]["status"] == "ok" and told[-1]["ooms"] == 1
    assert "a library prints on stdout" in ran.stderr


@pytest.fixture(scope="module")
def fake_device(tmp_path_factory):
    """The newest CUDA wheel that `make oracle` left, on a fake device of 24 GiB: its version and environment."""
    wheels = sorted(
        (ROOT / ".oracle" / "run").glob("torch-*/torch/version.py"),
        key=lambda path: [int(number) for number in re.findall(r"\d+", path.parents[1].name)],
    )
    if not wheels:
        pytest.skip("no CUDA wheel under .oracle: make oracle puts one there")
    from tests.oracle import build

    target = wheels[-1].parents[1]
    env = build.environment(target, build.preload(target, tmp_path_factory.mktemp("device")))
    return target.name.partition("-")[2], {**env, "FAKE_VRAM_BYTES": str(24 << 30)}


@pytest.mark.slow
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_the_model_says_what_the_real_allocator_did_to_a_pattern(
    fake_device, name, conf, monkeypatch
):
    torch, env = fake_device
    trace = generate(name, 5)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    real = stress(sys.executable, trace, trace.header["vram"], 100, conf=conf)
    assert (real.status, real.done, real.torch.partition("+")[0]) == ("ok", len(trace), torch)
    model = replay(
        trace, conf, Card(real.total_bytes), torch=torch, fraction=real.fraction, timeline=True
    )
    names = ("out", "allocated", "reserved")
    columns = zip(*(model.column(one).tolist() for one in names), strict=True)
    said = [(("ok", "oom", "skipped")[out], *sizes) for out, *sizes in columns]
    assert said == [tuple(row[1:]) for row in real.rows]
    assert [row[1] for row in real.rows].count("oom") == model.ooms
    assert model.counter("num_alloc_retries") == real.stats["num_alloc_retries"]
