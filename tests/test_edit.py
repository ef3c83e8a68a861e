"""What if a line of the program were changed: what each edit makes of the requests, and what is said where it cannot."""

import json
from dataclasses import replace

import numpy as np
import pytest
from allocator_traces import MIB, alloc, free, trace_of
from command_line import verb as run

from helpers.allocator.capacity import live_bytes
from helpers.allocator.driver import Card
from helpers.allocator.edits.edit import parse
from helpers.allocator.edits.edited import edited
from helpers.allocator.edits.ranking import ranked
from helpers.allocator.engine import replay
from helpers.allocator.parquet_file import to_parquet
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
    return int(live_bytes(one).max()) / MIB


@pytest.mark.parametrize(
    ("words", "mib", "requests"),
    [
        # As it is: weights 10, activations 40 and 40, loss 8, the gradient of the second 40.
        pytest.param("train.py:30 drop", 138, None, id="as it is"),
        # The second activation and its gradient are a quarter. What the chunks give on as gradient of the first, 40, is put
        # together of their parts, 40 too; then the first itself, loss, weights.
        pytest.param("train.py:12 / 4", 10 + 40 + 8 + 40 + 40, 17, id="chunks"),
        pytest.param("train.py:12 drop", 10 + 40 + 8 + 40 + 40, 11, id="drop"),
        # The first is the whole of its line's run and the input of the next: its output stays.
        pytest.param("train.py:11 checkpoint", 138, 13, id="an output stays"),
        # Of the two of line 21 the first is made again before the gradients.
        pytest.param("train.py:21 checkpoint", 138, 15, id="checkpoint"),
    ],
)
def test_an_edit_changes_the_requests_of_its_line_and_no_others(words, mib, requests):
    if requests is None:
        assert peak(PLAIN) == mib
        return
    made = edited(PLAIN, parse(words))
    assert peak(made.trace) == mib
    assert int((made.trace.op == Op.ALLOC).sum()) == requests
    done = replay(made.trace, "", Card(1 << 30))
    assert done.ooms == 0 and done.figure("allocated_bytes") == 10 * MIB  # all else is freed
    assert made.trace.size[0] == 10 * MIB


@pytest.mark.parametrize("kind", ["offload", "free-earlier", "dtype bf16", "dtype fp16"])
def test_an_edit_that_is_no_longer_predicted_names_the_rehearsal_instead(kind):
    done = run("whatif", LOOP, "--edit", f"train.py:12 {kind}")
    assert done.code == 2 and done.err.count("\n") == 1
    assert f"{kind.split()[0]} is no longer predicted from a trace" in done.err
    assert "rehearse it: python3 -m helpers rehearse -- COMMAND" in done.err


def test_the_words_of_an_edit_are_read_back_from_it():
    for words in ("train.py:82 / 8", "train.py:82 checkpoint", "train.py:82 drop"):
        assert parse(f"src/{words} ").words == words
    for wrong in ("train.py:82 / 1", "train.py:82 / 5000", "train.py / 2", "train.py:82 halve"):
        with pytest.raises(ValueError, match="expected FILE.py:LINE and one of"):
            parse(wrong)


def test_a_line_that_asks_for_nothing_keeps_what_the_line_above_it_asked_for():
    """``kept.append(x)`` at line 13, in a loop: not kept, each is freed when there is the next."""
    kept = trace([(SECOND, alloc(at, 40)) for at in range(1, 5)], [(LOSS, alloc(5, 8))])
    made = edited(kept, parse("train.py:13 drop"))
    assert peak(kept) == 178 and peak(made.trace) == 10 + 40 + 40


def test_a_result_that_its_line_keeps_itself_is_made_again_and_one_that_the_next_keeps_is_not():
    """A relu keeps its result, and its backward step uses up that result's gradient; what only the next line keeps goes with
    that one's step."""

    def program(relu):
        frees = [(BACKWARD, free(1)), (BACKWARD, free(5))]
        after = [(BACKWARD, alloc(6, 30)), (BACKWARD, free(4)), *frees]
        before = [(BACKWARD, free(4)), *frees, (BACKWARD, alloc(6, 30))]
        return trace(
            [(FIRST, alloc(1, 20)), (FIRST, alloc(5, 30)), (SECOND, alloc(2, 8))],
            [(LOSS, alloc(3, 1)), (BACKWARD, alloc(7, 8)), (BACKWARD, free(2))],
            [(LOSS, alloc(8, 1)), (LOSS, free(8)), (BACKWARD, alloc(4, 30))],
            [(BACKWARD, free(7)), *(after if relu else before)],
        )

    again = [
        edited(program(relu), parse("train.py:11 checkpoint")).added_bytes for relu in (True, False)
    ]
    assert again[0] >= 50 * MIB > again[1]


CALL = "torch/nn/modules/module.py:1 _call_impl"
LIST = "torch/nn/modules/container.py:9 forward"
LINEAR = "torch/nn/modules/linear.py:1 forward"
GELU = "torch/nn/modules/activation.py:1 forward"


def blocks(through, own):
    """Four blocks of linear, GELU and linear, called from line 21 ``through`` those frames, and their way back."""
    inner = [(LINEAR, 40), (GELU, 40), (LINEAR, 10)]
    frames = [
        (layer, CALL, *([f"train.py:{40 + at} forward", CALL] if own else []), *through)
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
    ("through", "own", "mib"),
    [
        # ``for b in blocks: x = b(x)``; no stack tells one block from the next. Weights, three outputs, loss, then the last block
        # made again with the gradients of its output and of what the GELU gave.
        pytest.param(
            (LIST, CALL, "train.py:31 forward", CALL, "train.py:21 <module>"), False,
            10 + 3 * 10 + 1 + 80 + 10 + 40, id="the forward of a block is one line",
        ),
        pytest.param(
            ("train.py:31 forward", CALL, "train.py:21 <module>"), False,
            10 + 3 * 10 + 1 + 80 + 10 + 40, id="one expression",
        ),
        # ``x = self.blocks(x)``: the whole is one call, and made again at once.
        pytest.param(
            (LIST, CALL, "train.py:21 <module>"), True,
            10 + 3 * 90 + 80 + 1 + 10 + 40, id="a container of blocks",
        ),
        # Deep stacks lack the container's frame; its call of the block is there.
        pytest.param(
            (CALL, "train.py:21 <module>"), True,
            10 + 3 * 90 + 80 + 1 + 10 + 40, id="a container that the stack leaves out",
        ),
    ],
)  # fmt: skip
def test_blocks_called_in_a_loop_are_made_again_one_by_one(through, own, mib):
    program = blocks(through, own)
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


def test_what_a_backward_step_needs_beside_the_gradient_of_a_chunk_is_as_small():
    """Summing up the gradient of a bias takes scratch memory; small requests of the line are told from no others."""
    steps = [
        (FIRST, alloc(1, 8)),
        (SECOND, alloc(2, 80)),
        (SECOND, alloc(20, 0)),
        (LOSS, alloc(3, 1)),
    ]
    steps += [(BACKWARD, alloc(21, 0)), (BACKWARD, free(20)), (BACKWARD, alloc(4, 80))]
    steps += [(BACKWARD, free(2)), (BACKWARD, alloc(5, 56)), (BACKWARD, free(5))]
    steps += [(BACKWARD, alloc(6, 8)), (BACKWARD, free(4)), (BACKWARD, free(1))]
    steps += [
        (BACKWARD, alloc(7, 8)),
        (BACKWARD, free(6)),
        (BACKWARD, free(7)),
        (BACKWARD, free(21)),
    ]
    program = trace(steps)
    made = edited(program, parse("train.py:12 / 8"))
    assert (peak(program), peak(made.trace)) == (179, 10 + 8 + 1 + 80 // 8 + 80 // 8 + 8)


def test_a_request_that_was_refused_is_edited_too():
    refused = replace(trace(step(1)[:2]), driver=(DriverCall(2, "oom", 0, 40 * MIB, 0),))
    made = edited(refused, parse("train.py:12 / 4"))
    assert made.trace.size.tolist() == [10 * MIB, 40 * MIB, 10 * MIB, 40 * MIB]
    assert made.trace.op.tolist() == [Op.ALLOC, Op.ALLOC, Op.ALLOC, Op.FREE]


def test_a_trace_too_long_to_rank_says_so(tmp_path, monkeypatch):
    path = tmp_path / "big.parquet"
    to_parquet(trace(step(1, first=4, second=60), step(11, first=4, second=60)), path)
    monkeypatch.setattr("helpers.allocator.views.edits.MOST_EVENTS", 3)
    text = run("whatif", path, "--capacity", "120MiB").out
    assert "its lines are not ranked" in text and "saves the run" not in text
    assert "not ranked" not in run("whatif", path, "--capacity", "1GiB").out


def test_the_line_that_saves_the_run_is_named_with_how_much_of_it(tmp_path):
    card = Card(120 * MIB)
    big = trace(step(1, first=4, second=60), step(11, first=4, second=60))
    found = ranked(big, card, [""])
    assert (found[0].line, found[0].edit) == ("train.py:12 forward", "train.py:12 / 2")
    assert not found[-1].edit
    path = tmp_path / "big.parquet"
    to_parquet(big, path)
    code, text, _ = run("whatif", path, "--capacity", "120MiB")
    assert code == 0 and "train.py:12 / 2 saves the run" in text
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


def test_what_a_list_keeps_of_layers_stays_until_the_backward_pass_through_its_line():
    """``feats.append(x)`` not made: the next layer still needs x."""
    frames = (
        *FRAMES,
        ("torch/nn/functional.py:1 relu", "train.py:12 forward", "train.py:21 <module>"),
    )
    rows = [(WEIGHTS, alloc(0, 10))]
    for at in (1, 11):
        rows += [(SECOND, alloc(at, 20)), (6, alloc(at + 1, 20))]
    rows += [
        (LOSS, alloc(30, 40)),
        (BACKWARD, alloc(31, 1)),
        (BACKWARD, free(11)),
        (BACKWARD, free(1)),
    ]
    rows += [(BACKWARD, free(31)), (LOSS, free(30)), (LOSS, alloc(40, 1)), (LOSS, free(40))]
    frame = np.array([of for of, _ in rows], np.int32)
    program = trace_of(*(row for _, row in rows), frame=frame, frames=frames)
    made = edited(program, parse("train.py:13 drop"))
    assert peak(made.trace) == 10 + 4 * 20 + 40 + 1


def rows_of(*rows, frames=FRAMES):
    frame = np.array([of for of, _ in rows], np.int32)
    return trace_of(*(row for _, row in rows), frame=frame, frames=frames)


def block(at, later=True):
    """``return x, skip``: h is kept by what makes the skip, x by the line after the block, which asks for 50."""
    made = [(FIRST, alloc(at, 20)), (SECOND, alloc(at + 1, 20)), (SECOND, alloc(at + 2, 20))]
    made += [(LOSS, alloc(at + 3, 50)), (LOSS, free(at + 2)), (BACKWARD, alloc(at + 4, 50))]
    made += [(BACKWARD, free(at + 3)), (BACKWARD, alloc(at + 5, 20)), (BACKWARD, free(at + 4))]
    made += [(BACKWARD, free(at + 1))] * later
    made += [(BACKWARD, alloc(at + 6, 20)), (BACKWARD, free(at + 5))]
    return [*made, *[(BACKWARD, free(at))] * later, (BACKWARD, free(at + 6))]


def test_of_a_block_with_two_results_a_checkpoint_keeps_the_one_that_the_next_line_needs():
    made = edited(rows_of((WEIGHTS, alloc(0, 10)), *block(1)), parse("train.py:21 checkpoint"))
    assert made.changed == 1 and peak(made.trace) == 10 + 20 + 50 + 50


def test_what_no_backward_pass_comes_to_is_not_kept_by_a_checkpoint_either():
    """A last block's result that nothing uses: autograd has what it is made of until the name is taken over."""
    first, *more = block(21)
    after = [first, (FIRST, free(11)), (FIRST, free(12)), *more]
    program = rows_of((WEIGHTS, alloc(0, 10)), *block(1), *block(11, later=False), *after)
    made = edited(program, parse("train.py:21 checkpoint"))
    assert made.changed == 3 and peak(made.trace) == 10 + 20 + 50 + 50


def test_what_a_checkpoint_makes_again_goes_before_the_gradient_of_a_linear_bias_is_summed_up():
    """``torch.utils.checkpoint`` lets go of it when the step's function is done; autograd does so after the sum."""
    linear = ("torch/nn/modules/linear.py:134 forward", *FRAMES[SECOND])
    rows = [(WEIGHTS, alloc(0, 10)), (FIRST, alloc(1, 40)), (6, alloc(2, 8)), (LOSS, alloc(3, 8))]
    rows += [(BACKWARD, alloc(4, 8)), (BACKWARD, free(3)), (BACKWARD, alloc(5, 40))]
    rows += [(BACKWARD, alloc(6, 2)), (BACKWARD, alloc(7, 1)), (BACKWARD, alloc(8, 30))]
    rows += [(BACKWARD, free(8)), (BACKWARD, free(4)), (BACKWARD, free(1)), (BACKWARD, free(5))]
    program = rows_of(*rows, frames=(*FRAMES, linear))
    assert peak(program) == 10 + 40 + 8 + 8 + 40 + 2 + 1 + 30
    assert peak(edited(program, parse("train.py:21 checkpoint")).trace) == peak(program) - 30


def test_both_sides_of_a_product_are_there_until_a_checkpointed_block_has_made_it():
    """``down(silu(gate(x)) * up(x))``: the first side waits for the second."""
    names = ("silu.py:1 forward", "up.py:1 forward", "mul.py:1 __call__")
    frames = [(f"torch/nn/modules/{one}", *FRAMES[SECOND]) for one in names]
    rows = [(WEIGHTS, alloc(0, 10)), (6, alloc(1, 40)), (7, alloc(2, 40)), (8, alloc(3, 40))]
    rows += [(LOSS, alloc(4, 1)), (BACKWARD, alloc(5, 20)), (BACKWARD, free(4))]
    rows += [(BACKWARD, free(3)), (BACKWARD, alloc(6, 1)), (BACKWARD, free(5))]
    rows += [(BACKWARD, free(1)), (BACKWARD, free(2)), (BACKWARD, free(6))]
    made = edited(rows_of(*rows, frames=(*FRAMES, *frames)), parse("train.py:21 checkpoint"))
    live = live_bytes(made.trace)
    assert live[3] / MIB == 10 + 40 + 40 + 40
