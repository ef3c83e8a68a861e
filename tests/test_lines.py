"""The requests of a trace by the program's own lines: which line asked, what is live, and what a trace without lines says."""

from pathlib import Path

import pytest
from toy_allocator import MIB, Toy

from helpers.allocator.call_sites import (
    BEFORE,
    NO_LINE,
    LinesError,
    requests_of,
    requests_with_lines,
)
from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import parse
from helpers.allocator.trace_file import read_trace

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "/home/someone/.venv/lib/python3.11/site-packages/torch/nn/functional.py"


def frames(line, name="step", *, inside=PACKAGE, file="/home/someone/train.py"):
    inner = [{"name": "f", "filename": inside, "line": 7}] if inside else []
    return [*inner, {"name": name, "filename": file, "line": line}]


def trace_of(toy):
    return rewind(parse(toy.snapshot()))


def test_a_request_belongs_to_the_innermost_line_of_the_programs_own_files():
    toy = Toy()
    kept = toy.alloc(3 * MIB, frames(4))
    toy.alloc(2 * MIB)  # as in the backward pass
    toy.free(kept)
    toy.alloc(1000, frames(9, "log", inside=""))
    toy.alloc(MIB, frames(3, file=PACKAGE.replace("torch/nn", "lib/nn")))
    found = requests_with_lines(trace_of(toy))
    sites = [found.sites[at] for at in found.site]
    names = ["train.py:4 step", NO_LINE, "train.py:9 log", "lib/nn/functional.py:3 step"]
    assert [site.name for site in sites] == names
    assert [site.in_program for site in sites] == [True, False, True, False]
    assert sites[0][2:] == ("train.py", 4, "step")
    assert found.size.tolist() == [3 * MIB, 2 * MIB, 1024, MIB]
    assert found.peak == 1 and found.live[found.peak] == 5 * MIB
    held = dict(zip(found.sites, found.by_site(found.alive(found.peak)).tolist(), strict=True))
    assert {site.name: size for site, size in held.items() if size} == {
        "train.py:4 step": 3 * MIB,
        NO_LINE: 2 * MIB,
    }


def test_what_was_live_before_the_recording_has_a_place_of_its_own():
    toy = Toy()
    first = toy.alloc(8 * MIB, frames(1))
    toy.events.clear()
    toy.alloc(2 * MIB, frames(2))
    toy.free(first)
    trace = trace_of(toy)
    found = requests_of(trace)
    assert [found.sites[at].name for at in found.site] == [BEFORE, "train.py:2 step"]
    assert found.live.tolist() == [10 * MIB, 2 * MIB]


def test_a_trace_without_lines_says_in_one_line_what_is_missing():
    toy = Toy()
    toy.alloc(MIB)
    with pytest.raises(LinesError, match=r"no request of the trace has a call site.*record again"):
        requests_with_lines(trace_of(toy))
    with pytest.raises(LinesError, match="none of the 39 call sites of the trace is a line"):
        requests_with_lines(read_trace(ROOT / "env" / "traces" / "cpu-training-step.parquet"))
    toy.alloc(MIB, frames(3, file=PACKAGE))
    with pytest.raises(LinesError, match="every call site of the trace lies in a package"):
        requests_with_lines(trace_of(toy))


def test_what_the_backward_pass_asks_for_belongs_to_the_line_that_called_it():
    def calls(line):
        home = PACKAGE.rpartition("/nn/")[0]
        first = {"filename": f"{home}/autograd/__init__.py", "line": 1, "name": "_make_grads"}
        return [first, *frames(line, inside=f"{home}/_tensor.py")]

    toy = Toy()
    toy.alloc(MIB)  # before any backward pass: of no line
    toy.alloc(512, calls(8))
    toy.alloc(2 * MIB)
    toy.alloc(3 * MIB, frames(4, inside=PACKAGE.replace("nn/functional", "utils/checkpoint")))
    toy.alloc(2 * MIB)
    toy.alloc(512, frames(5))
    toy.alloc(2 * MIB)  # a thread of somebody else's
    found = requests_of(trace_of(toy))
    lines = [found.sites[at].line for at in found.site]
    assert lines == [0, 8, 8, 4, 8, 5, 0]
    assert found.backward.tolist() == [False, True, True, False, True, False, False]
