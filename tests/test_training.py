"""Ways to train: the same training whichever way, nothing lost by a kill, failures read back, and no process left behind."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from helpers.child import Ended
from helpers.load import endurance
from helpers.load.training import (
    PATHS,
    SHAPES,
    Failure,
    Told,
    child,
    paths,
    read_failure,
    told_result,
)
from helpers.torchside.device import NotRun

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("helpers.torchside.checkpoint")
training = pytest.importorskip("helpers.torchside.training")
parallel = pytest.importorskip("helpers.torchside.parallel")
transformer = pytest.importorskip("helpers.torchside.transformer")

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGN = ROOT / "tests" / "kill_campaign.py"
TINY = {**SHAPES["tiny"], "dropout": 0.0, "device": "cpu", "seed": 3, "threads": 1}
STATE = {"weights": torch.arange(5000, dtype=torch.float32), "losses": [0.5, 0.25]}
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(tmp_path):
    """Train the tiny model in this process, the single device first; gives what the path said."""

    def path(name, **more):
        spec = {**TINY, "name": name, "folder": str(tmp_path), **more}
        return training.plain(spec, lambda **line: None)

    assert path("single")["equal"] == "not applicable"
    return path


def left_over(folder):
    """Processes of the training program that live and work in that folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if b"helpers.torchside" in text and str(folder).encode() in text and state != "Z":
            found.append(process.name)
    return found


# -- the same training


def test_pieces_give_the_same_gradients_within_the_tolerance(train):
    whole = train("pieces", pieces=4)
    assert whole["equal"] == "within tolerance" and 0 < whole["worst"] < 1e-5


def test_pieces_of_unequal_size_count_by_their_samples(train):
    assert train("pieces", pieces=3)["equal"] == "within tolerance"


def test_activations_made_again_change_no_bit(train):
    assert train("again", recompute=True)["equal"] == "bitwise"
    assert train("both", recompute=True, pieces=4)["worst"] < 1e-5


def test_a_piece_with_the_wrong_weight_is_another_training(train, monkeypatch):
    def forward_backward(run, tokens):
        losses = [run.loss(part) / 3 for part in tokens.chunk(4)]
        sum(losses).backward()
        return float(sum(losses).detach())

    monkeypatch.setattr(transformer.Run, "forward_backward", forward_backward)
    wrong = train("wrong")
    assert wrong["equal"] == "no" and wrong["worst"] > 1e-2


def test_a_lost_piece_is_another_training(train, monkeypatch):
    whole = transformer.Run.forward_backward
    monkeypatch.setattr(
        transformer.Run, "forward_backward", lambda run, tokens: whole(run, tokens[:-1])
    )
    assert train("lost")["equal"] == "no"


def test_data_parallel_is_held_against_the_single_device(train, tmp_path, monkeypatch):
    spec = {**TINY, "name": "data_parallel", "folder": str(tmp_path)}
    with pytest.raises(NotRun, match="needs two GPUs"):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        parallel.data_parallel(spec, lambda **line: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.nn, "DataParallel", lambda model, device_ids: model)
    assert parallel.data_parallel(spec, lambda **line: None)["equal"] == "bitwise"


# -- running out of memory


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
    assert at_once == [8, 4, *[2] * 12]
    assert run.digest() == right.digest()


@pytest.mark.parametrize(
    "error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RuntimeError(NO_MEMORY)]
)
def test_what_a_smaller_piece_does_not_help_is_passed_on(monkeypatch, error):
    def fails(run, tokens):
        raise error

    monkeypatch.setattr(transformer.Run, "loss", fails)
    run = training.BackingOff(TINY)
    with pytest.raises(RuntimeError, match=str(error)[:20].replace("[", r"\[")):
        run.step()
    assert run.pieces == (1 if "mat1" in str(error) else TINY["batch"])


def test_memory_really_runs_out_and_the_training_goes_on(tmp_path):
    spec = {
        **TINY,
        **SHAPES["small"],
        "steps": 1,
        "path": "back_off",
        "name": "back_off",
        "folder": str(tmp_path),
    }
    told = child(sys.executable, {**spec, "limit_bytes": 32 << 20}, 60)
    assert told.end["state"] == "ran" and told.end["pieces"] > 1 and told.steps == 1
    assert "MiB more than at first it ran out" in told.end["says"]


# -- checkpoints


def saved(folder, steps):
    return [checkpoint.save(folder, step, {**STATE, "step": step}) for step in steps]


def test_the_newest_checkpoint_is_found_and_the_one_before_kept(tmp_path):
    assert checkpoint.load(tmp_path) is None
    saved(tmp_path, (1, 2, 10))
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.iterdir()) == [2, 10]
    step, state, notes = checkpoint.load(tmp_path)
    assert (step, state["step"], notes) == (10, 10, ()) and torch.equal(
        state["weights"], STATE["weights"]
    )


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
    left, write = [room], os.write

    def full(descriptor, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(descriptor, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(checkpoint.os, "write", full)
    with pytest.raises(
        checkpoint.CheckpointError,
        match=r"step 3 cannot be written \(No space left on device\); expected",
    ):
        saved(tmp_path, (3,))
    monkeypatch.undo()
    assert checkpoint.load(tmp_path)[0] == 2 and len(list(tmp_path.iterdir())) == 2


def test_going_on_from_a_state_has_the_same_bits_at_every_step():
    spec = {**TINY, "dropout": 0.1, "batch": 100}
    whole = transformer.Run(spec)
    digests, states = [], []
    for _ in range(6):
        states.append(whole.state() if not states else json_like(whole.state()))
        whole.step()
        digests.append(whole.digest())
    for step in range(1, 6):
        run = transformer.Run(spec)
        run.step()
        run.restore(states[step])
        for later in range(step, 6):
            run.step()
            assert run.digest() == digests[later]


def json_like(state):
    """A copy that shares nothing with the run."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def test_the_state_of_another_training_is_refused():
    with pytest.raises(checkpoint.CheckpointError, match="another training"):
        transformer.Run({**TINY, "seed": 99}).restore(json_like(transformer.Run(TINY).state()))


@pytest.mark.parametrize("forgotten", ["random", "data", "optimizer"])
def test_the_digest_notices_what_a_state_forgets(forgotten):
    spec = {**TINY, "dropout": 0.1}
    whole = transformer.Run(spec)
    for _ in range(3):
        whole.step()
    state = json_like(whole.state())
    run = transformer.Run(spec)
    state[forgotten] = run.state()[forgotten]
    if forgotten == "optimizer":
        assert whole.optimizer.state_dict()["state"]
    run.restore(state)
    run.step()
    whole.step()
    assert run.digest() != whole.digest()


def campaign(*arguments):
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_kill_at_a_write_boundary_loses_and_repeats_nothing():
    found = campaign("--kills", "30", "--processes", "0")["failpoints"]
    assert (
        found["kills"] >= 30 and found["boundaries_killed_at"] == 30 and found["boundaries"] > 200
    )
    assert (found["identical"], found["lost"]) == (found["runs"], 0)
    assert found["redone_steps"] <= found["kills"]


@pytest.mark.slow
def test_kills_of_whole_processes_lose_and_repeat_nothing():
    found = campaign("--kills", "1", "--processes", "5")["processes"]
    assert (found["kills"], found["identical"], found["lost"], found["told_twice"]) == (
        5,
        True,
        0,
        0,
    )


# -- failures read back


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Distributed package doesn't have NCCL built in", "without the backend"),
        ("Unknown backend type rccl", "no backend of that name"),
        (
            "The server socket has failed to listen on any local network address. port: 44135, useIpv6: false, code: -98, name: "
            "EADDRINUSE, message: address already in use",
            "port is taken",
        ),
        (
            "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
            "launcher",
        ),
        ("Wait timeout", "not all processes"),
        ("Timed out after 4 seconds waiting for clients. 1/2 clients joined.", "not all processes"),
        (
            "The client socket has timed out after 3000ms while trying to connect to (127.0.0.1, 51823).",
            "not all processes",
        ),
        (
            "Read error [127.0.0.1]:1214: Connection reset by peer. This is typically caused by a remote worker hanging",
            "died",
        ),
        ("Timed out waiting 6000ms for send operation to complete", "does not answer"),
        ("module 'torch._C' has no attribute '_cuda_setDevice'", "device index"),
        ("CUDA error: invalid device ordinal", "device index"),
    ],
)
def test_a_failure_of_two_processes_is_read_back_into_its_cause(text, cause):
    found = read_failure(text)
    assert found is not None and cause in found.cause and found.next_step


def test_other_errors_have_no_such_cause():
    assert (
        read_failure(NO_MEMORY) is None
        and read_failure("mat1 and mat2 shapes cannot be multiplied") is None
    )


FAULTS = {
    "wrong backend": "without the backend",
    "unknown backend": "no backend",
    "port in use": "port is taken",
    "no variables": "launcher",
    "missing peer": "not all processes",
    "peer dies": "died",
    "peer stops": "does not answer",
    "device index": "device index",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_made_for_real_is_read_back(tmp_path, fault):
    if fault == "device index" and torch.cuda.is_available():
        pytest.skip("this torch has GPUs, whose message is another")
    spec = {**TINY, "path": "ddp", "name": "ddp", "folder": str(tmp_path), "fault": fault}
    row = told_result("DDP", child(sys.executable, spec, 12))
    assert row.state == "failed" and row.cause is not None and FAULTS[fault] in row.cause.cause
    assert row.cause and not left_over(tmp_path)


# -- rows


def ended(how, last_words="", signal="", stacks=""):
    return Ended(how, 1 if how == "exited" else None, signal, 3.0, last_words, stacks, ())


def test_a_child_that_does_not_end_in_time_is_a_row_with_stacks():
    stopped = ended("timed_out", "Thread 1: forward", stacks="pid 7 thread 8 python: state S")
    row = told_result("DataParallel", Told(stopped, 2, 1.5))
    assert (row.state, row.steps, row.final_loss, row.why) == (
        "failed",
        2,
        1.5,
        "it did not end in time, and was stopped",
    )
    assert row.stacks == "Thread 1: forward\npid 7 thread 8 python: state S"


def test_a_child_that_crashes_is_named_by_its_signal():
    assert (
        told_result("DDP", Told(ended("signalled", signal="SIGSEGV"))).why
        == "it was ended by SIGSEGV"
    )


def test_a_python_without_torch_is_no_failure_of_training():
    row = told_result("DDP", Told(ended("exited", "ModuleNotFoundError: No module named 'torch'")))
    assert (row.state, row.why) == ("not_run", "there is no torch in that Python")


def test_another_training_is_a_failed_path():
    end = {"state": "ran", "equal": "no", "says": "", "seconds": 1.0}
    assert told_result("FSDP", Told(ended("exited"), 4, 1.0, end=end)).state == "failed"


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="'DPP': expected one of single device"):
        paths(sys.executable, ["DPP"])


def test_an_operation_is_found_in_its_batch(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"steps": [10, 20]}) + "\n")
    assert [endurance.batch_of(path, at) for at in (0, 9, 10, 25)] == [1, 1, 2, 3]
    assert (
        endurance.batch_of(path, None) is None and endurance.batch_of(Path("a.pickle"), 3) is None
    )


# -- everything for real


@pytest.mark.slow
def test_every_path_finishes_or_says_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = {row.name: row for row in paths(sys.executable)}
    assert tuple(rows) == PATHS and not left_over(tmp_path) and not list(tmp_path.iterdir())
    assert {row.state for row in rows.values()} <= {"ran", "not_run"}, rows
    for name in (
        "gradient checkpointing",
        "resume after a kill",
        "resume after out of memory",
        "two-stage model parallel",
    ):
        assert rows[name].equal_to_single == "bitwise", rows[name]
    for name in (
        "gradient accumulation",
        "batch back-off",
        "DDP",
        "FSDP",
        "independent processes, gradients averaged",
    ):
        assert rows[name].equal_to_single in ("bitwise", "within tolerance"), rows[name]
    above = {name: row.peak_bytes - row.start_bytes for name, row in rows.items() if row.peak_bytes}
    assert above["gradient accumulation"] < 0.8 * above["single device"]
    assert above["gradient checkpointing"] < 0.8 * above["single device"]
    for name in ("DDP", "FSDP", "independent processes, gradients averaged"):
        assert "bitwise equal to accumulation of two pieces" in rows[name].says


@pytest.mark.slow
def test_a_deadlock_is_an_outcome_with_stacks_and_leaves_nothing_behind(tmp_path):
    spec = {
        **TINY,
        "path": "ddp",
        "name": "ddp",
        "folder": str(tmp_path),
        "fault": "peer stops",
        "patience_s": 600,
    }
    row = told_result("DDP", child(sys.executable, spec, 10))
    assert row.why == "it did not end in time, and was stopped" and row.steps == 1
    assert (
        "in forward_backward" in row.stacks and ": state " in row.stacks and not left_over(tmp_path)
    )


@pytest.mark.slow
def test_how_many_batches_until_it_dies_and_what_other_settings_would_do(tmp_path):
    found = endurance.until_oom(
        sys.executable,
        64 << 20,
        tmp_path / "trace.jsonl",
        growth=32,
        batches=12,
        confs=("", "expandable_segments:True"),
    )
    assert 0 < found.batches < 12 and found.died_length == 64 + 32 * found.batches
    assert (
        found.trace is not None
        and found.answer is not None
        and {row.settings for row in found.answer.rows} == {"", "expandable_segments:True"}
    )
    assert found.predicted_batch is None or abs(found.predicted_batch - found.batches - 1) <= 2


@pytest.mark.slow
def test_too_little_memory_to_begin_with_is_said():
    with pytest.raises(endurance.EnduranceError, match="expected it to finish"):
        endurance.until_oom(str(ROOT / "tests" / "conftest.py"), 1, Path("never"))


def test_a_failure_is_a_cause_and_a_step():
    assert read_failure("Broken pipe") == Failure(
        "the other process died, and this one only noticed",
        "look at the other process: its error, or the kernel log for the OOM killer",
    )
