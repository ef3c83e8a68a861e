"""The smallest proof of a failure: what is kept, that it is small, and that the program asks the allocator for the same."""

import json
import sys
import types
from pathlib import Path

import pytest
from allocator_traces import MIB, alloc, free, study_of
from command_line import verb as run

from helpers.allocator.driver import Card
from helpers.allocator.replay import replay
from helpers.allocator.shrinking.shrink import shrink
from helpers.allocator.trace import Op
from helpers.allocator.trace_file import read_trace
from helpers.allocator.views.reproducer import MOST_LINES, NoProgramError, program

LOOP = Path(__file__).resolve().parents[1] / "env" / "traces" / "growing-loop.parquet"
GIB = 1 << 30
EXPANDABLE = "expandable_segments:True"


class _Torch(types.ModuleType):
    """What a program asks of torch, noted; the last of so many requests is refused."""

    OutOfMemoryError = MemoryError
    uint8 = "uint8"

    def __init__(self, total, requests):
        super().__init__("torch")
        self.asked = []
        self.requests = requests
        self.cuda = self
        self.total_memory = total

    def get_device_properties(self, _):
        return self

    def set_per_process_memory_fraction(self, fraction):
        self.fraction = fraction

    def memory_reserved(self):
        return 0

    memory_allocated = memory_reserved

    def empty(self, size, dtype, device):
        number = len([row for row in self.asked if row[0] == "alloc"])
        asked = self.asked
        asked.append(("alloc", size))
        if number + 1 == self.requests:
            raise MemoryError("refused")

        class Tensor:
            def __del__(self):
                asked.append(("free", number))

        return Tensor()


def operations(trace):
    """The trace as _Torch notes what is asked of it."""
    number = {ident: at for at, ident in enumerate(trace.id[trace.op == Op.ALLOC].tolist())}
    rows = zip(trace.op.tolist(), trace.id.tolist(), trace.size.tolist(), strict=True)
    return [
        ("alloc", size) if op == Op.ALLOC else ("free", number[ident]) for op, ident, size in rows
    ]


def test_a_trace_without_operations_is_told_so_not_to_take_a_smaller_card(tmp_path):
    path = tmp_path / "head.jsonl"
    path.write_text('{"job": {}}\n')
    done = run("shrink", path, "--capacity", "1GiB", "--out", tmp_path / "small")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "the trace has no operation: expected at least one allocation" in done.err


def test_the_bundled_failure_is_proved_by_few_requests_and_a_short_program(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "proof"
    code, text, _ = run("shrink", LOOP, "--out", out)
    assert code == 0 and "no request is larger than the largest before it" in text
    small = read_trace(out.with_suffix(".parquet"))
    whole = read_trace(LOOP)
    requests = int((small.op == Op.ALLOC).sum())
    assert requests < 20 and int((whole.op == Op.ALLOC).sum()) > 5000
    assert small.size.max() <= whole.size[whole.op == Op.ALLOC].max()
    card = Card(20 * GIB)
    done = replay(small, "", card)
    assert done.ooms == 1 and done.first_oom == len(small) - 1 and small.size[-1] == 440 * MIB
    assert done.figure("reserved_bytes") - done.figure("allocated_bytes") >= 440 * MIB
    assert replay(small, EXPANDABLE, card).ooms == 0
    made = out.with_suffix(".py").read_text()
    assert len(made.splitlines()) <= MOST_LINES
    torch = _Torch(40 * GIB, requests)
    monkeypatch.setitem(sys.modules, "torch", torch)
    exec(compile(made, "proof.py", "exec"), {})
    assert "reproduced: refused" in capsys.readouterr().out
    assert torch.asked[: len(small)] == operations(small)
    assert 20 * GIB <= torch.fraction * 40 * GIB < 20 * GIB + 2 * MIB
    again = run("shrink", LOOP, "--out", out)
    assert again.code == 2 and "exists already" in again.err


def test_a_smaller_card_takes_away_what_only_fills_it(tmp_path):
    code, text, _ = run("shrink", LOOP, "--out", tmp_path / "s", "--smaller-card", "--json")
    found = json.loads(text)
    small = read_trace(found["files"]["parquet"])
    room = found["failure"]["room_bytes"]
    assert code == 0 and found["requests"] <= 8 and room < 4 * GIB
    assert replay(small, "", Card(room)).first_oom == len(small) - 1
    assert any(f"{20 * GIB:,} bytes before" in note for note in found["notes"])


# 100 requests that leave nothing behind; then a segment of 800 MiB that keeps every other block of 20.
NOISE = [step for i in range(300, 400) for step in (alloc(i, 1 + i % 7), free(i))]
COMB = [alloc(99, 800), free(99), *(alloc(i, 20) for i in range(40))]
COMB += [free(i) for i in range(0, 40, 2)]
# What is free on stream 7 does not serve the stream 0.
STREAMS = [alloc(0, 400, stream=7), free(0), alloc(1, 30, stream=7), alloc(2, 300)]


@pytest.mark.parametrize(
    ("rows", "mib", "conf", "kind", "most"),
    [
        pytest.param([*COMB, alloc(200, 300)], 1024, "", "fragmentation", 45, id="holes"),
        pytest.param([*COMB, alloc(200, 700)], 1024, "", "capacity", 3, id="more than the card"),
        pytest.param(
            [*COMB, alloc(200, 300)],
            840,
            f"{EXPANDABLE},large_segment_size_mb:80",
            "fragmentation",
            45,
            id="pages in use",
        ),
        pytest.param(STREAMS, 500, "", "fragmentation", 3, id="streams"),
    ],
)
def test_the_way_to_fail_is_kept(rows, mib, conf, kind, most):
    study = study_of(*NOISE, *rows, mib=mib, conf=conf)
    trace = study.trace
    made = shrink(study)
    small = made.trace
    failure = made.failure
    assert failure.kind == kind and made.requests <= most < made.before
    done = replay(small, conf, Card(mib * MIB))
    assert done.first_oom == len(small) - 1 and done.ooms == 1
    assert small.size[-1] == trace.size[-1] and small.size.max() <= trace.size.max()
    fits = failure.live_bytes + failure.rounded_bytes <= mib * MIB
    assert fits == (kind == "fragmentation")
    if small.stream.any():
        with pytest.raises(NoProgramError, match="streams"):
            program(made)
    else:
        assert len(program(made).splitlines()) <= MOST_LINES


def test_what_does_not_fail_cannot_be_shrunk(tmp_path):
    done = run("shrink", LOOP, "--capacity", "40GiB", "--out", tmp_path / "x")
    assert done.code == 2 and done.err.count("\n") == 1 and not list(tmp_path.iterdir())
    assert "nothing runs out of memory" in done.err and "--capacity below" in done.err
