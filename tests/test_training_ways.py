"""Ways to train: the same training whichever way, nothing lost by a kill, and no process left behind."""

import contextlib
import errno
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import kill_campaign
import pytest

from helpers.ground.child import bounded, json_row, process_of
from helpers.trials.training import child, result_of, specification

torch: Any = None
checkpoint = training = transformer = torch
OURS = ("checkpoint", "training", "transformer")
TINY = specification("plain", "tiny", "cpu", 3)
STATE: dict[str, Any] = {"losses": [0.5, 0.25]}


@pytest.fixture(autouse=True, scope="module")
def real_torch():
    """Imported where its tests run, and not by every process that collects them."""
    found = {name: pytest.importorskip(f"helpers.trials.under_torch.{name}") for name in OURS}
    globals().update(found, torch=pytest.importorskip("torch"))
    STATE["weights"] = torch.arange(5000, dtype=torch.float32)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(tmp_path):
    """Train the tiny model in this process, the single device first; gives what the way answered."""

    def way(name, path="plain", **more):
        steps = training.WAYS[path](
            {**TINY, "path": path, "name": name, "folder": str(tmp_path), **more}
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    assert way("single")["equal"] == "not applicable"
    return way


# The same training.


@pytest.mark.parametrize(
    ("more", "equal"),
    [
        ({"pieces": 4}, "within tolerance"),
        ({"pieces": 3}, "within tolerance"),
        ({"recompute": True}, "bitwise"),
        ({"recompute": True, "pieces": 4}, "within tolerance"),
    ],
)
def test_pieces_and_activations_made_again_are_the_same_training(train, more, equal):
    found = train("other", **more)
    assert found["equal"] == equal and found["worst"] < 1e-5
    assert (found["worst"] > 0) == (equal != "bitwise")


def test_a_piece_with_the_wrong_weight_or_lost_is_another_training(train, monkeypatch):
    whole = transformer.Run.forward_backward

    def wrong_weight(run, tokens):
        losses = [run.loss(part) / 3 for part in tokens.chunk(4)]
        sum(losses).backward()
        return float(sum(losses).detach())

    for other in (wrong_weight, lambda run, tokens: whole(run, tokens[:-1])):
        monkeypatch.setattr(transformer.Run, "forward_backward", other)
        found = train("other")
        assert found["equal"] == "no" and found["worst"] > 1e-3


# Checkpoints.


def test_the_newest_checkpoint_is_found_and_older_ones_go(tmp_path):
    assert checkpoint.load(tmp_path) is None
    for step in (1, 2, 10):
        checkpoint.save(tmp_path, step, {**STATE, "step": step})
    (kept,) = tmp_path.iterdir()
    step, state = checkpoint.load(tmp_path)
    assert (kept.name, step, state["step"]) == ("step-00000010.pt", 10, 10)
    assert torch.equal(state["weights"], STATE["weights"])


def test_a_full_disk_leaves_the_checkpoint_before_it_whole(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 2, STATE)

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    says = r"step 3 cannot be written \(No space left on device\); expected"
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(checkpoint.CheckpointError, match=says):
            checkpoint.save(tmp_path, 3, STATE)
    assert checkpoint.load(tmp_path)[0] == 2 and len(list(tmp_path.iterdir())) == 1


def copied(state):
    """A copy that shares nothing with the run."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def test_going_on_from_a_state_has_the_same_bits_at_every_step():
    spec = {**TINY, "dropout": 0.1, "batch": 100}
    whole = transformer.Run(spec)
    digests = []
    states = []
    for _ in range(6):
        states.append(copied(whole.state()))
        whole.step()
        digests.append(whole.digest())
    for step in range(1, 6):
        run = transformer.Run(spec)
        run.step()
        run.restore(states[step])
        for later in range(step, 6):
            run.step()
            assert run.digest() == digests[later]


@pytest.mark.parametrize("forgotten", ["random", "data", "optimizer"])
def test_the_digest_notices_what_a_state_forgets(forgotten):
    spec = {**TINY, "dropout": 0.1}
    whole = transformer.Run(spec)
    for _ in range(3):
        whole.step()
    state = copied(whole.state())
    run = transformer.Run(spec)
    state[forgotten] = run.state()[forgotten]
    run.restore(state)
    run.step()
    whole.step()
    assert run.digest() != whole.digest()


def test_a_kill_at_a_write_boundary_loses_and_repeats_nothing():
    found = kill_campaign.failpoint_kills(8)
    assert found["boundaries_killed_at"] == 8 <= found["kills"] and found["boundaries"] > 14
    assert (found["identical"], found["lost"]) == (found["runs"], 0)
    assert found["redone_steps"] <= found["kills"]


def second_processes(folder):
    """The second rank of a training in that folder, where it runs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (process / "cmdline").read_bytes()
            ranks = b"RANK=1\0" in (process / "environ").read_bytes()
            if ranks and str(folder).encode() in text:
                found.append(int(process.name))
    return [pid for pid in found if process_of(pid).running]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_second_rank_that_dies_or_stops_is_an_outcome_and_leaves_nothing_behind(
    tmp_path, monkeypatch, number
):
    more = {"folder": str(tmp_path), "steps": 1_000_000, "ranks": 2}
    spec = specification("ddp", "tiny", "cpu", 3, **more)
    struck = []

    def strike_in_the_first_step(line):
        row = json_row(line)
        if row.get("event") == "step" and not struck:
            struck.extend(second_processes(tmp_path))
            for pid in struck:
                os.kill(pid, number)
        return row

    monkeypatch.setattr(bounded, "json_row", strike_in_the_first_step)
    monkeypatch.setattr("helpers.trials.training.LIMIT_S", 40.0)
    row = result_of("DDP", child(sys.executable, spec))
    assert struck and row.state == "failed" and row.why and not second_processes(tmp_path)
