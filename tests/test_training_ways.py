"""Ways to train: the same training whichever way, nothing lost by a kill, and no process left behind."""

import contextlib
import datetime
import errno
import io
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import kill_campaign
import pytest

from helpers.ground.child import process_of
from helpers.trials.training import child, read_failure, result_of, specification

torch: Any = None
checkpoint = training = transformer = torch
OURS = ("checkpoint", "training", "transformer")
TINY = specification("plain", "tiny", "cpu", 3)
STATE: dict[str, Any] = {"losses": [0.5, 0.25]}
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


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
        assert found["equal"] == "no" and found["worst"] > 1e-2


# Running out of memory.


def test_a_smaller_piece_is_taken_and_the_same_step_done_again_with_the_same_random_numbers(
    monkeypatch,
):
    spec = {**TINY, "dropout": 0.2}
    right = transformer.Run({**spec, "pieces": 4})
    losses = [right.step() for _ in range(3)]
    at_once = []
    loss = transformer.Run.loss

    def limited(run, tokens):
        at_once.append(len(tokens))
        found = loss(run, tokens)
        if len(tokens) > 2:
            raise RuntimeError(NO_MEMORY)
        return found

    monkeypatch.setattr(transformer.Run, "loss", limited)
    run = training.BackingOff(spec)
    assert [run.step() for _ in range(3)] == losses
    assert at_once == [8, 4, *[2] * 12] and run.digest() == right.digest()


@pytest.mark.parametrize(
    ("words", "pieces"), [("mat1 and mat2 shapes differ", 1), (NO_MEMORY, TINY["batch"])]
)
def test_what_a_smaller_piece_does_not_help_is_passed_on(monkeypatch, words, pieces):
    def fails(run, tokens):
        raise RuntimeError(words)

    monkeypatch.setattr(transformer.Run, "loss", fails)
    run = training.BackingOff(TINY)
    with pytest.raises(RuntimeError) as error:
        run.step()
    assert str(error.value) == words and run.pieces == pieces


def test_memory_really_runs_out_and_the_training_goes_on(tmp_path):
    more = {"folder": str(tmp_path), "limit_bytes": 32 << 20, "steps": 1}
    told = child(sys.executable, specification("back_off", "small", "cpu", 3, **more), 60)
    end = told.last("end")
    assert end["state"] == "ran" and end["pieces"] > 1 and told.last("step")["step"] == 1
    assert "MiB more than at first it ran out" in end["says"]


# Checkpoints.


def saved(folder, steps):
    return [checkpoint.save(folder, step, {**STATE, "step": step}) for step in steps]


def test_the_newest_checkpoint_is_found_and_the_one_before_kept(tmp_path):
    assert checkpoint.load(tmp_path) is None
    saved(tmp_path, (1, 2, 10))
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.iterdir()) == [2, 10]
    step, state, notes = checkpoint.load(tmp_path)
    assert (step, state["step"], notes) == (10, 10, ())
    assert torch.equal(state["weights"], STATE["weights"])


def test_a_file_cut_or_changed_anywhere_is_set_aside_and_the_one_before_used(tmp_path):
    saved(tmp_path, (1, 2))
    last = next(tmp_path.glob("step-00000002*"))
    whole = last.read_bytes()
    for at in [*range(0, len(whole), len(whole) // 12), len(whole) - 1]:
        for torn in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            last.write_bytes(torn)
            step, state, notes = checkpoint.load(tmp_path)
            assert (step, state["step"]) == (1, 1) and "step 2 is torn" in notes[0]
            assert not last.exists()


def test_where_no_checkpoint_is_whole_nobody_begins_anew_in_silence(tmp_path):
    for path in saved(tmp_path, (1, 2)):
        path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(checkpoint.CheckpointError, match="none of its checkpoints is whole"):
            checkpoint.load(tmp_path)


@pytest.mark.parametrize("room", [0, 100, 9000])
def test_a_full_disk_leaves_the_checkpoints_before_it_whole(tmp_path, monkeypatch, room):
    saved(tmp_path, (1, 2))
    left = [room]
    write = os.write

    def full(descriptor, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(descriptor, data[: left[0]])
        left[0] -= done
        return done

    says = r"step 3 cannot be written \(No space left on device\); expected"
    with monkeypatch.context() as disk:
        disk.setattr(checkpoint.os, "write", full)
        with pytest.raises(checkpoint.CheckpointError, match=says):
            saved(tmp_path, (3,))
    assert checkpoint.load(tmp_path)[0] == 2 and len(list(tmp_path.iterdir())) == 2


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


def test_the_state_of_another_training_is_refused():
    with pytest.raises(checkpoint.CheckpointError, match="another training"):
        transformer.Run({**TINY, "seed": 99}).restore(copied(transformer.Run(TINY).state()))


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
    found = kill_campaign.failpoint_kills(12)
    assert found["boundaries_killed_at"] == 12 <= found["kills"] and found["boundaries"] > 200
    assert (found["identical"], found["lost"]) == (found["runs"], 0)
    assert found["redone_steps"] <= found["kills"]


@pytest.mark.slow
def test_kills_of_whole_processes_lose_and_repeat_nothing():
    found = kill_campaign.process_kills(5)
    assert found["kills"] == 5 and found["identical"]
    assert (found["lost"], found["told_twice"]) == (0, 0)


# What goes wrong between two processes, made for real and read back.


def meet(backend="gloo", method="", rank=0, size=2):
    """Join two processes of which there is one."""
    patience = datetime.timedelta(seconds=1)
    options = {"init_method": method, "rank": rank, "world_size": size, "timeout": patience}
    torch.distributed.init_process_group(backend, **options)


@pytest.mark.parametrize(
    ("backend", "method", "cause"),
    [
        ("mpi", "file://{folder}/meet", "without the backend"),
        ("rccl", "file://{folder}/meet", "no backend"),
        ("gloo", "tcp://127.0.0.1:{port}", "port is taken"),
        ("gloo", "env://", "launcher"),
        ("gloo", "file://{folder}/meet", "not all processes"),
    ],
)
def test_two_processes_that_cannot_meet_are_read_back(
    tmp_path, monkeypatch, backend, method, cause
):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    unknown = {"rank": -1, "size": -1} if method == "env://" else {}
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Exception) as error:
        method = method.format(folder=tmp_path, port=taken.getsockname()[1])
        meet(backend, method, **unknown)
    assert cause in read_failure(str(error.value)).cause


def test_a_device_that_is_not_there_is_read_back():
    if torch.cuda.is_available():
        pytest.skip("this torch has GPUs, whose message is another")
    with pytest.raises(Exception) as error:
        torch.cuda.set_device(7)
    assert "device index" in read_failure(str(error.value)).cause


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
@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGKILL, "the other process died"), (signal.SIGSTOP, "does not answer")],
)
def test_a_second_rank_that_dies_or_stops_is_an_outcome_and_leaves_nothing_behind(
    tmp_path, number, says
):
    more = {"folder": str(tmp_path), "steps": 1_000_000, "ranks": 2}
    spec = specification("ddp", "tiny", "cpu", 3, **more)

    def person():
        until = time.monotonic() + 60
        while time.monotonic() < until and not (tmp_path / "ddp-1-gradients.pt").exists():
            time.sleep(0.05)
        for pid in second_processes(tmp_path):
            os.kill(pid, number)

    threading.Thread(target=person).start()
    row = result_of("DDP", child(sys.executable, spec, 40))
    assert row.state == "failed" and row.steps > 0
    assert says in f"{row.why} {row.cause}" and not second_processes(tmp_path)
