"""What if a line of the program were changed: what each edit makes of the requests, and what is said where it cannot."""

import json
from dataclasses import replace

import numpy as np
import pytest
from allocator_traces import MIB, alloc, free, trace_of
from command_line import verb as run

from helpers.allocator.call_sites import requests_of
from helpers.allocator.driver import Card
from helpers.allocator.edits.edit import parse
from helpers.allocator.edits.edited import edited
from helpers.allocator.edits.ranking import ranked
from helpers.allocator.parquet_file import to_parquet
from helpers.allocator.replay import replay
from helpers.allocator.study import Study
from helpers.allocator.trace import DriverCall, Op
from helpers.ground.places import CHECKOUT

LOOP = CHECKOUT / "env" / "traces" / "growing-loop.parquet"
FRAMES = (
    ("torch/nn/modules/module.py:966 _apply", "train.py:3 <module>"),
    ("train.py:11 forward", "torch/nn/modules/module.py:1 _call_impl", "train.py:21 <module>"),
    ("train.py:12 forward", "torch/nn/modules/module.py:1 _call_impl", "train.py:21 <module>"),
    ("train.py:22 <module>",),
    ("torch/autograd/__init__.py:1 _engine_run_backward", "train.py:23 <module>"),
    ("torch/optim/sgd.py:9 step", "train.py:24 <module>"),
)
WEIGHTS, FIRST, SECOND, LOSS, BACKWARD, OPTIMIZER = range(6)


def step(at, first=40, second=40):
    """A training step: two activations, one from the other, a loss, and back; the gradients are as large."""
    ids = range(at, at + 6)
    return [
        (FIRST, alloc(ids[0], first)),
        (SECOND, alloc(ids[1], second)),
        (LOSS, alloc(ids[2], 8)),
        (BACKWARD, alloc(ids[3], second)),
        (BACKWARD, free(ids[1])),
        (BACKWARD, alloc(ids[4], first)),
        (BACKWARD, free(ids[3])),
        (BACKWARD, free(ids[0])),
        (BACKWARD, free(ids[4])),
        (LOSS, free(ids[2])),
        (LOSS, alloc(ids[5], 1)),
        (LOSS, free(ids[5])),
    ]


def trace(*steps):
    rows = [(WEIGHTS, alloc(0, 10)), *(row for one in steps for row in one)]
    frame = np.array([of for of, _ in rows], np.int32)
    return trace_of(*(row for _, row in rows), frame=frame, frames=FRAMES)


PLAIN = trace(step(1), step(11))


def peak(one):
    return int(requests_of(one).live.max()) / MIB


# As it is: weights 10, activations 40 and 40, loss 8, the gradient of the second 40.
AS_IT_IS = 138


@pytest.mark.parametrize(
    ("words", "mib", "requests"),
    [
        # The second activation and its gradient are a quarter; the gradient of the first, 40, is there as a whole.
        pytest.param("train.py:12 / 4", 10 + 40 + 8 + 10 + 40, 13, id="chunks"),
        pytest.param("train.py:12 drop", 10 + 40 + 8 + 40 + 40, 11, id="drop"),
        # The first is the whole of its line's run and the input of the next: its output stays.
        pytest.param("train.py:11 checkpoint", AS_IT_IS, 13, id="an output stays"),
        # Of the two of line 21 the first is made again before the gradients.
        pytest.param("train.py:21 checkpoint", AS_IT_IS, 15, id="checkpoint"),
    ],
)
def test_an_edit_changes_the_requests_of_its_line_and_no_others(words, mib, requests):
    made = edited(PLAIN, parse(words))
    assert (peak(PLAIN), peak(made.trace)) == (AS_IT_IS, mib)
    assert int((made.trace.op == Op.ALLOC).sum()) == requests
    done = replay(made.trace, "", Card(1 << 30))
    assert done.ooms == 0 and done.figure("allocated_bytes") == 10 * MIB  # all else is freed
    assert made.trace.size[0] == 10 * MIB


@pytest.mark.parametrize("kind", ["offload", "free-earlier", "dtype bf16", "dtype fp16"])
def test_an_edit_that_is_no_longer_predicted_names_the_rehearsal_instead(kind):
    done = run("whatif", LOOP, "--edit", f"train.py:12 {kind}")
    assert done.code == 2 and done.err.count("\n") == 1
    assert f"{kind.split()[0]} is no longer predicted from a trace" in done.err
    assert "rehearse it: casebook rehearse -- COMMAND" in done.err


def test_the_words_of_an_edit_are_read_back_from_it():
    for words in ("train.py:82 / 8", "train.py:82 checkpoint", "train.py:82 drop"):
        assert parse(f"src/{words} ").words == words
    for wrong in ("train.py:82 / 1", "train.py:82 / 5000", "train.py / 2", "train.py:82 halve"):
        with pytest.raises(ValueError, match="expected FILE.py:LINE and one of"):
            parse(wrong)


CALL = "torch/nn/modules/module.py:1 _call_impl"
LIST = "torch/nn/modules/container.py:9 forward"
LINEAR = "torch/nn/modules/linear.py:1 forward"
GELU = "torch/nn/modules/activation.py:1 forward"


def blocks(through):
    """Four blocks of linear, GELU and linear, called from line 21 ``through`` those frames, and their way back."""
    inner = [(LINEAR, 40), (GELU, 40), (LINEAR, 10)]
    frames = [
        (layer, CALL, f"train.py:{40 + at} forward", CALL, *through)
        for at, (layer, _) in enumerate(inner)
    ]
    steps = []
    back = []
    for block in range(4):
        ids = range(10 * block + 1, 10 * block + 4)
        steps += [(len(FRAMES) + at, alloc(ids[at], size)) for at, (_, size) in enumerate(inner)]
        grads = [
            (ids[2] + 1, 40, ids[1]),
            (ids[2] + 2, 40, ids[0]),
            (ids[2] + 3, 10, ids[0] - 8),
        ]
        own_back = []
        before = ids[2] + 13 if block < 3 else 90
        for made, size, frees in grads:
            own_back += [(BACKWARD, alloc(made, size)), (BACKWARD, free(before))]
            own_back += [(BACKWARD, free(frees))] * (frees > 0)
            before = made
        back = own_back + back
    rows = [(WEIGHTS, alloc(0, 10)), *steps, (LOSS, alloc(99, 1)), (BACKWARD, alloc(90, 10))]
    rows += [(BACKWARD, free(33)), *back, (BACKWARD, free(6)), (LOSS, free(99))]
    frame = np.array([of for of, _ in rows], np.int32)
    return trace_of(*(row for _, row in rows), frame=frame, frames=(*FRAMES, *frames))


@pytest.mark.parametrize(
    ("through", "mib"),
    [
        # ``for b in blocks: x = b(x)``, blocks of several lines. Weights, three outputs, loss, then the last block made again
        # with the gradients of its output and of what the GELU gave.
        pytest.param(
            ("train.py:21 <module>",),
            10 + 3 * 10 + 1 + 80 + 10 + 40, id="a loop of blocks",
        ),
        # ``x = self.blocks(x)``: the whole is one call, and made again at once.
        pytest.param(
            (LIST, CALL, "train.py:21 <module>"),
            10 + 3 * 90 + 80 + 1 + 10 + 40, id="a container of blocks",
        ),
        # Deep stacks lack the container's frame; its call of the block is there.
        pytest.param(
            (CALL, "train.py:21 <module>"),
            10 + 3 * 90 + 80 + 1 + 10 + 40, id="a container that the stack leaves out",
        ),
    ],
)  # fmt: skip
def test_blocks_called_in_a_loop_are_made_again_one_by_one(through, mib):
    program = blocks(through)
    made = edited(program, parse("train.py:21 checkpoint"))
    done = replay(made.trace, "", Card(1 << 30))
    assert done.ooms == 0 and done.figure("allocated_bytes") == 10 * MIB
    assert (peak(program), peak(made.trace)) == (411, mib)


def test_what_chunks_give_together_is_there_as_a_whole_from_the_first_of_them():
    """A result that is smaller than what it is computed from: written part by part into one buffer, or put together."""
    program = trace(
        [(FIRST, alloc(1, 80)), (FIRST, alloc(2, 16)), (FIRST, free(1)), (LOSS, alloc(3, 1))]
    )
    made = edited(program, parse("train.py:11 / 8"))
    assert (peak(program), peak(made.trace)) == (10 + 80 + 16, 10 + 16 + 80 // 8)


def test_a_request_that_was_refused_is_edited_too():
    refused = replace(trace(step(1)[:2]), driver=(DriverCall(2, "oom", 0, 40 * MIB, 0),))
    made = edited(refused, parse("train.py:12 / 4"))
    assert made.trace.size.tolist() == [10 * MIB, 40 * MIB, 10 * MIB, 40 * MIB]
    assert made.trace.op.tolist() == [Op.ALLOC, Op.ALLOC, Op.ALLOC, Op.FREE]


def test_a_trace_too_long_to_rank_says_so(tmp_path, monkeypatch):
    path = tmp_path / "big.parquet"
    to_parquet(trace(step(1, first=4, second=60), step(11, first=4, second=60)), path)
    monkeypatch.setattr("helpers.allocator.edits.comparison.MOST_EVENTS", 3)
    text = run("whatif", path, "--capacity", "120MiB").out
    assert "its lines are not ranked" in text and "is enough" not in text
    assert "not ranked" not in run("whatif", path, "--capacity", "1GiB").out


def test_the_line_that_saves_the_run_is_named_with_how_much_of_it(tmp_path):
    big = trace(step(1, first=4, second=60), step(11, first=4, second=60))
    found = ranked(Study(big, Card(120 * MIB)), [""])
    assert (found[0].line, found[0].edit) == ("train.py:12 forward", "train.py:12 / 2")
    assert not found[-1].edit
    path = tmp_path / "big.parquet"
    to_parquet(big, path)
    code, text, _ = run("whatif", path, "--capacity", "120MiB")
    assert (
        code == 0 and "is enough for the run to pass" in text and '--edit "train.py:12 / 2"' in text
    )
    code, text, _ = run("whatif", path, "--capacity", "120MiB", "--edit", found[0].edit, "--json")
    answer = json.loads(text)
    assert code == 0 and answer["before"]["needs_bytes"] > 0 == answer["after"]["needs_bytes"]
    for words, says in (
        ("train.py:99 / 2", "that line asks for nothing; expected one such as train.py:22"),
        ("train.py:12 / 1", "expected FILE.py:LINE and one of"),
    ):
        done = run("whatif", path, "--capacity", "120MiB", "--edit", words)
        assert done.code == 2 and says in done.err and done.err.count("\n") == 1
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"op": "alloc", "id": 1, "size": 1000}\n')
    done = run("whatif", bare, "--capacity", "1GiB", "--edit", "train.py:12 / 2")
    assert done.code == 2 and "no request of the trace has a call site" in done.err


def test_what_a_step_that_failed_kept_is_not_kept_by_a_checkpoint_either():
    """The recording ends before the backward pass of its last step: what the step before it kept is known."""
    program = trace(
        step(1), [(FIRST, alloc(11, 40)), (SECOND, alloc(12, 40)), (LOSS, alloc(13, 8))]
    )
    made = edited(program, parse("train.py:21 checkpoint"))
    assert requests_of(program).live[-1] == (10 + 40 + 40 + 8) * MIB
    assert requests_of(made.trace).live[-1] == (10 + 40 + 8) * MIB
