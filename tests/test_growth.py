"""What grows from step to step: told apart from warm-up, replaced variables, longer inputs and full queues; and when it ends."""

import json
import pickle

import pytest
from command_line import verb as run
from test_lines import frames
from toy_allocator import MIB, Toy

from helpers.allocator import exhaustion as exhaustion_of_memory
from helpers.allocator.call_sites import LinesError, requests_of
from helpers.allocator.driver import Card
from helpers.allocator.exhaustion import exhaustion
from helpers.allocator.growers import growth_words
from helpers.allocator.growth import LARGER, growth_of
from helpers.allocator.program_facts import evidence_from_trace
from helpers.allocator.replay import replay
from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import parse
from helpers.allocator.steps import FEWEST_STEPS
from helpers.allocator.study import Study
from helpers.judge.diagnosis import diagnose

SITES = {"batch": 10, "forward": 11, "backward": 12, "keep": 13, "state": 14, "other": 15}
BACKWARD = "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"


MODULE = "/x/site-packages/torch/nn/modules/module.py"


def loop(steps, keep, length=lambda step: 4):
    """Training: a batch and an output that the next step replaces, activations, a backward pass, a state made in the first."""
    toy = Toy()
    held = {}

    def alloc(name, size):
        inside = BACKWARD if name == "backward" else ""
        return toy.alloc(size, frames(SITES[name], "train", inside=inside))

    toy.alloc(8 * MIB, frames(2, "<module>", inside=MODULE))
    for step in range(steps):
        size = length(step) * MIB
        for name in ("batch", "forward"):
            new = alloc(name, size)
            if name in held:
                toy.free(held[name])
            held[name] = new
        activations = [alloc("forward", size) for _ in range(3)]
        gradient_of_loss = alloc("backward", 512)
        for one in reversed(activations):
            gradient = toy.alloc(size)
            toy.free(one)
            toy.free(gradient)
        toy.free(gradient_of_loss)
        if step == 0:
            alloc("state", 16 * MIB)
        keep(step, alloc, toy)
    return toy


def found(toy):
    return requests_of(rewind(parse(toy.snapshot())))


def of(toy):
    return growth_of(found(toy))


def leak(step, alloc, toy):
    alloc("keep", 3 * MIB)


def nothing(step, alloc, toy):
    pass


def queue(most, size=lambda step: 2 * MIB):
    """Holds the last ``most`` of what each step makes."""
    held = []

    def keep(step, alloc, toy):
        if step == 0:
            held.clear()
        held.append(alloc("keep", size(step)))
        if len(held) > most:
            toy.free(held.pop(0))

    return keep


def saw_tooth(period):
    """Keeps what each step makes until it is cleared, as cycles are collected."""
    held = []

    def keep(step, alloc, toy):
        if step % period == 0:
            while held:
                toy.free(held.pop())
        held.append(alloc("keep", 2 * MIB))

    return keep


def draining(fills):
    """Puts two in and takes one out, until its source ends; then only takes out."""
    held = []

    def keep(step, alloc, toy):
        if step < fills:
            held.extend(alloc("keep", MIB) for _ in range(2))
        if held:
            toy.free(held.pop(0))

    return keep


def some(step, alloc, toy):
    """An evaluation every third step that keeps what it makes, and one every fourth that does not."""
    if step % 3 == 2:
        alloc("keep", 3 * MIB)
    if step % 4 == 3:
        toy.free(alloc("other", 5 * MIB))


@pytest.mark.parametrize(
    ("keep", "a_step", "steps"), [(leak, 3.0, 6), (leak, 3.0, 30), (some, 1.0, 40)]
)
def test_a_line_that_keeps_something_is_named_with_its_bytes_a_step(keep, a_step, steps):
    grown = of(loop(steps, keep))
    assert len(grown.steps) == steps
    (one,) = grown.growers
    assert one.site.name == "train.py:13 train"
    assert one.bytes_per_step == a_step * MIB


@pytest.mark.parametrize(
    ("keep", "length"),
    [
        (nothing, lambda step: 4),
        (nothing, lambda step: 2 + step),  # longer inputs: what is left is replaced by more
        (nothing, lambda step: 2 + 7 * step % 5),
        (queue(9), lambda step: 4),
        (saw_tooth(4), lambda step: 4),
        (lambda step, alloc, toy: step < 9 and alloc("keep", MIB), lambda step: 4),
        (lambda step, alloc, toy: step in (3, 4, 9) and alloc("keep", MIB), lambda step: 4),
    ],
    ids=["steady", "longer", "uneven", "queue", "saw-tooth", "warm-up", "cache"],
)
def test_what_comes_to_rest_or_is_replaced_is_no_growth(keep, length):
    grown = of(loop(30, keep, length))
    assert (len(grown.steps), grown.growers) == (30, ())
    assert grown.seen_every == 6


@pytest.mark.parametrize(("last_third", "grows"), [(1, True), (4, False), (9, False)])
def test_growth_that_slows_down_counts_while_it_keeps_a_quarter_of_its_pace(last_third, grows):
    """The last third of the steps keeps something in each ``last_third``-th step only."""

    def keep(step, alloc, toy):
        if step < 24 or step % last_third == 0:
            alloc("keep", MIB)

    assert bool(of(loop(36, keep)).growers) == grows


@pytest.mark.parametrize("keep", [draining(20), saw_tooth(15)], ids=["drains", "cleared"])
def test_what_is_given_up_after_the_peak_grew_until_then(keep):
    requests = found(loop(45, keep))
    assert growth_of(requests).growers == ()
    (grower,) = growth_of(requests, until_given_up=True).growers
    assert grower.site.name == "train.py:13 train"
    assert grower.bytes_per_step in (MIB, 2 * MIB)


@pytest.mark.parametrize("keep", [queue(9), queue(3), nothing], ids=["full", "small", "steady"])
def test_what_stays_at_its_bound_did_not_grow_until_it_is_given_up(keep):
    requests = found(loop(30, keep))
    assert growth_of(requests, until_given_up=True).growers == ()


def test_a_buffer_that_each_step_replaces_by_a_larger_one_grows():
    grown = of(loop(12, queue(1, lambda step: 2 * MIB + step * MIB // 2)))
    (one,) = grown.growers
    assert (one.site.line, one.how, one.bytes_per_step) == (13, LARGER, MIB / 2)
    assert not grown.inputs_grow and of(loop(12, nothing, lambda step: 2 + step)).inputs_grow


def hooks():
    """A hook more each step; each of them keeps what it made last."""
    held = []

    def keep(step, alloc, toy):
        for number, block in enumerate(held):
            held[number] = alloc("keep", 2 * MIB)
            toy.free(block)
        held.append(alloc("keep", 2 * MIB))

    return keep


def test_blocks_that_each_step_replaces_by_more_of_them_grow():
    (one,) = of(loop(12, hooks())).growers
    assert (one.site.line, one.how, one.bytes_per_step) == (13, LARGER, 2 * MIB)


@pytest.mark.parametrize(
    ("keep", "size"), [(leak, 180), (some, 120), (queue(1, lambda step: (5 + step) * MIB), 120)]
)
def test_the_step_in_which_it_runs_out_is_that_of_the_whole_program(keep, size):
    whole = found(loop(80, keep))
    card = Card(size * MIB)
    died = int((growth_of(whole).steps.begins <= replay(whole.trace, "", card).first_oom).sum())
    recorded = found(loop(24, keep))
    ends = exhaustion(recorded, growth_of(recorded), Study(recorded.trace, card))
    assert 24 < died < 80 and ends.step == died and ends.replayed


def test_a_death_too_far_to_replay_is_extrapolated(monkeypatch):
    recorded = found(loop(9, leak))
    card = Card(3 << 30)
    exact = exhaustion(recorded, growth_of(recorded), Study(recorded.trace, card))
    monkeypatch.setattr(exhaustion_of_memory, "MOST_OPERATIONS", 8000)
    further = exhaustion(recorded, growth_of(recorded), Study(recorded.trace, card))
    assert (exact.replayed, further.replayed) == (True, False)
    assert further.step == pytest.approx(exact.step, rel=0.02)


def test_too_few_steps_or_none_are_said_in_one_line():
    with pytest.raises(LinesError, match=f"the trace shows 4 steps .* at least {FEWEST_STEPS}"):
        of(loop(4, leak))
    with pytest.raises(LinesError, match="no loop of the program"):
        of(loop(1, leak))
    assert growth_words(found(loop(1, leak)).trace) == ""


def test_a_trace_without_call_sites_says_that_they_are_missing_not_that_there_is_no_loop(tmp_path):
    path = tmp_path / "bare.jsonl"
    rows = [{"op": op, "id": at, "size": 1000} for at in range(40) for op in ("alloc", "free")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = run("leaks", path)
    assert code == 2 and err.count("\n") == 1 and "no loop" not in err
    assert "no request of the trace has a call site; expected stacks: record again" in err


def test_layers_of_a_model_are_no_steps():
    toy = Toy()
    for layer in range(20):
        home = "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
        calls = {"filename": home, "line": 1, "name": "_call_impl"}
        toy.alloc(2 * MIB, [*frames(30 + layer % 2, "block", inside=""), calls, *frames(9)])
    with pytest.raises(LinesError, match="no loop"):
        of(toy)


def test_leaks_says_what_grows_and_whatif_gives_no_all_clear(tmp_path):
    code, out, _ = run("leaks", "env/traces/growing-loop.parquet", "--json")
    told = json.loads(out)
    assert code == 0 and told["grows"] and told["runs_out"]["recorded"]
    assert told["growers"][0]["where"] == "growing_loop.py:23 evaluation"
    path = tmp_path / "grows.pickle"
    path.write_bytes(pickle.dumps(loop(8, leak).snapshot()))
    code, out, _ = run("leaks", path, "--gpu", "4090")
    assert code == 0 and "keeps 3.00 MiB more each step" in out
    assert "grows by 3.00 MiB each step, most at train.py:13 train" in out
    assert "on a card of 23.64 GiB it runs out in step 6,040 (replayed step by step)" in out
    code, out, _ = run("whatif", path, "--only", "--capacity", "1GiB")
    out = " ".join(out.split())
    assert "grows by 3.00 MiB each step" in out and "later steps run out" in out
    judged = diagnose(evidence_from_trace(path))  # as record says
    assert "keeps 3.00 MiB more each step" in judged.headline
    code, _, err = run("leaks", "env/traces/cpu-training-step.parquet")
    assert code == 2 and "none of the 39 call sites of the trace is a line of Python" in err


def test_a_card_too_small_for_the_first_step_is_answered():
    code, out, _ = run("leaks", "env/traces/growing-loop.parquet", "--capacity", "1MiB")
    assert code == 0
    assert "more each step" in out
