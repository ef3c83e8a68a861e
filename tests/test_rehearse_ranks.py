"""One rank of a job is rehearsed without the others."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import verb
from test_rehearse import CARD, GIB, MIB, QUIET, RUN

from helpers.allocator.program_facts import _options_again
from helpers.commands import rehearse_bench
from helpers.rehearse.buckets import between_buckets
from helpers.rehearse.environment import environment
from helpers.rehearse.rehearsal import RehearsalLimits
from helpers.rehearse.trust import trust
from helpers.rehearse.under_torch import ranks
from helpers.rehearse.view import headline, several

ROOT = Path(__file__).parents[1]
ALONE = """
import json, os, torch, torch.distributed as dist
from types import SimpleNamespace
from helpers.rehearse.trust import trust
from helpers.rehearse.under_torch import ranks
witness = SimpleNamespace(has_buckets=False)
ranks.start(torch, witness)
dist.init_process_group("nccl")
half = dist.new_group(range(256, 512), backend="gloo")
seen = {"rank": [dist.get_rank(), dist.get_world_size(), dist.get_rank(half)]}

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
seen["has_buckets"] = witness.has_buckets
seen["gradient"] = model.module.weight.grad.tolist()[0]
try:
    model.register_comm_hook(None, lambda state, bucket: None)
except NotImplementedError as error:
    seen["hook"] = str(error)

sent = torch.ones(2)
work = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 0)])[0]
work.wait()
seen["is_kept"] = work.tensor is sent

objects = [None] * 512
dist.all_gather_object(objects, "mine")
seen["objects"] = [objects[0], objects[511]]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
mesh = init_device_mesh("cpu", (2, 256), mesh_dim_names=("replicate", "shard"))
part = distribute_tensor(torch.ones(1024, 8), mesh, [Shard(0), Shard(0)])
seen["part"] = list(part.to_local().shape)
dist.barrier()
print(json.dumps(seen))
"""


def printed(program, variables):
    """The lines that a program prints under this torch, with these variables."""
    argv = [sys.executable, "-c", program]
    given = {**os.environ, **variables}
    done = subprocess.run(argv, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_rank_of_512_runs_alone_as_torchrun_would_start_it(tmp_path):
    pytest.importorskip("torch")
    limits = RehearsalLimits(gpus=8, rank=511, world=512)
    torchrun = environment(Torch(), [], CARD, tmp_path, None, None, limits)
    names = [name for name in torchrun if name.endswith(("RANK", "WORLD_SIZE", "ADDR", "PORT"))]
    variables = {name: torchrun[name] for name in names}
    assert variables["LOCAL_RANK"] == "7" and variables["GROUP_RANK"] == "63"
    seen = json.loads(printed(ALONE, variables)[-1])
    assert seen["rank"] == [511, 512, 255]
    assert seen["has_buckets"]
    assert seen["gradient"] == [2.0] * 4
    assert seen["is_kept"], "a pipeline keeps what it sent as long as the work"
    assert seen["objects"] == ["mine", "mine"]
    assert seen["part"] == [2, 8]
    assert "communication hook" in seen["hook"] and "torchrun" in seen["hook"]


class Torch:
    """A torch that lies beside the program's own."""

    is_users = False
    folder = Path("/torch")


EXCHANGES = """
import os, torch, torch.distributed as dist
from types import SimpleNamespace as Row
import ctypes
os.environ["CASEBOOK_WORLD"] = os.environ["WORLD_SIZE"]
from helpers.rehearse.under_torch import ranks, result_sizes
ranks.start(torch, Row())
dist.init_process_group("nccl")
device = Row(fake_zero=lambda at, n: ctypes.memset(at, 0, n))
witness = Row(coming=[], later=[], beside="", device=device, compiled=set(), exchanges=0)
shadow = result_sizes.ShadowComputation(torch, witness, "most")
shadow.on_device = lambda value: isinstance(value, torch.Tensor) and type(value).__torch_dispatch__ == shadow.plain
from torch.utils._python_dispatch import TorchDispatchMode
class Values(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return shadow.run(func, args, kwargs or {})
def unknown(tensor):
    return result_sizes.place_of(tensor) in shadow.unknown
counts, received = torch.tensor([3, 5]), torch.tensor([1 << 40, -7])
with Values():
    dist.all_to_all_single(received, counts)
print(received.tolist(), unknown(received), unknown(counts))
total = torch.tensor([4])
with Values():
    dist.all_reduce(total)
    dist.send(counts, 0)
print(total.tolist(), unknown(total), unknown(counts), witness.exchanges, witness.beside)
def collective(tensor):
    read = result_sizes.Call(torch.ops.aten._local_scalar_dense.default, "reads", (tensor,), {}, [tensor])
    shadow.before(read, True)
    return witness.collective
with Values():
    doubled = (total * 2).sum()
print(collective(doubled), collective(received), repr(collective(counts)))
"""


def test_what_other_ranks_would_send_is_unknown_and_taken_as_what_this_one_sends():
    pytest.importorskip("torch")
    lines = printed(EXCHANGES, {"RANK": "1", "WORLD_SIZE": "2"})
    assert lines == ["[3, 5] True False", "[4] True False 3 ", "allreduce alltoall_base ''"]


def test_a_value_that_a_collective_gives_is_said_with_the_name_of_the_collective():
    read = {"op": "_local_scalar_dense", "sizes": False, "inside": "", "times": 1}
    read |= {"where": "train.py:3 step", "collective": "allreduce"}
    (line, *_) = trust([{**QUIET, "reads": [read]}], CARD, 1)
    assert line.startswith("Not computed: what allreduce gives to the program at train.py:3 step")


def test_a_world_that_a_program_cannot_split_is_named_with_its_error():
    error = "RuntimeError: shape '[4, -1]' is invalid for input of size 6"
    failed = replace(RUN, limits=RehearsalLimits(rank=0, world=4), exit_code=1, error=error)
    assert headline(failed) == f"Failed as rank 0 of 4, but not because GPU memory ran out: {error}"


@pytest.mark.parametrize(
    ("options", "command", "says"),
    [
        ("--ranks 1", "python train.py", "--ranks 1 without --world"),
        ("--world 0 --ranks 1", "python train.py", "--ranks 1 without --world"),
        ("--world -3", "python train.py", "--world -3; expected 1 to"),
        ("--world 4 --ranks 4", "python train.py", "--ranks 4; expected numbers from 0 to 3"),
        ("--world 4 --ranks a,b", "python train.py", "--ranks a,b; expected numbers from 0 to 3"),
        ("--world 4", "torchrun --nproc_per_node 4 train.py", "seen torchrun in the command"),
        ("--world 4", "python -m torch.distributed.run train.py", "expected the program itself"),
        ("--world 4 --find-capacity", "python train.py", "--world and --find-capacity"),
        ("--world 4 --values between", "python train.py", "--values least or most"),
    ],
)
def test_a_rank_that_cannot_be_is_refused_in_one_line(
    options, command, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    words = ["rehearse", "--gpu", "4090", *options.split(), "--", *command.split()]
    done = verb(*words)
    assert done.code == 2 and says in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(("holds", "held"), [("1", [1, 2, 2, 0]), ("0", [0, 0, 0, 0])])
def test_the_buckets_of_the_first_step_are_held_for_another_one_where_that_is_rehearsed(
    holds, held, monkeypatch
):
    monkeypatch.setenv("CASEBOOK_HOLDS_BUCKETS", holds)
    first = ranks.FirstBuckets()
    counts = []
    for is_last in (False, True, False, True):
        first.see(SimpleNamespace(buffer=object, is_last=lambda last=is_last: last))
        counts.append(len(first.buffers))
    assert counts == held


def test_a_peak_that_chance_decides_is_said_with_both_values():
    alone = replace(
        RUN, limits=RehearsalLimits(world=8), peak_reserved_bytes=20 * GIB, more_bytes=0
    )
    held = replace(alone, peak_reserved_bytes=25 * GIB)
    both = between_buckets(alone, held)
    assert both.between and both.more_bytes == 5 * GIB
    assert "20.00 GiB or up to 25.00 GiB, depending on timing; both were rehearsed" in both.trust[0]
    assert between_buckets(alone, alone) == alone
    ran_out = replace(held, exit_code=1, ooms=1)
    assert between_buckets(alone, ran_out) == alone


def test_where_all_ranks_run_what_chance_decides_is_said_with_its_size():
    """Each weight of 4 bytes has one such gradient in a bucket."""
    weights = [SimpleNamespace(nbytes=16 * MIB, requires_grad=kind) for kind in (True, False)]

    def init(model, find_unused_parameters):
        model.find_unused_parameters = find_unused_parameters

    witness = SimpleNamespace(bucket_bytes=0)
    construct = ranks.seeing_buckets(witness, init)
    model = SimpleNamespace(parameters=lambda: weights)
    construct(model, find_unused_parameters=True)
    assert witness.bucket_bytes == 0, "then it keeps its buckets"
    construct(model, find_unused_parameters=False)
    (line, *_) = trust([{**QUIET, **vars(witness)}], CARD, 1)
    assert "two peaks, about 16.00 MiB apart" in line and "--world N" in line


def test_each_of_two_runs_says_of_its_own_processes_that_they_run(tmp_path, monkeypatch):
    watched = []

    @contextmanager
    def says_it_runs(record, quiet, name):
        watched.append(record.name)
        yield

    def rehearse(command, card, out, **options):
        return replace(RUN, limits=RehearsalLimits(world=2), has_buckets=True)

    monkeypatch.setattr(rehearse_bench, "says_it_runs", says_it_runs)
    bench = object.__new__(rehearse_bench.RehearsalBench)
    bench.arguments, bench._rehearse = SimpleNamespace(json=False), rehearse
    (tmp_path / "run.record").mkdir()
    (tmp_path / "run.record" / "record.json").write_text("{}")
    bench.run(["python"], CARD, tmp_path / "run.pickle")
    assert watched == ["run.record", "held-buckets.record"]


def test_the_answer_is_that_of_the_rank_that_takes_the_most():
    first = replace(RUN, limits=RehearsalLimits(rank=0, world=8), peak_reserved_bytes=8 * MIB)
    last = replace(RUN, limits=RehearsalLimits(rank=7, world=8), peak_reserved_bytes=4 * MIB)
    (line,) = several([last, first])
    assert "rank 0: 8.00 MiB (fits); rank 7: 4.00 MiB (fits)" in line
    assert line.endswith("the answer is that of rank 0 of 8")
    assert "rank 0 of 8 alone" in first.label and several([RUN]) == []


@pytest.mark.parametrize(
    ("limits", "options"),
    [
        ({"world": 512, "rank": 511}, "--capacity 1GiB --world 512 --ranks 511"),
        ({"world": 0, "rank": 0}, "--capacity 1GiB"),
        (None, "--capacity 1GiB"),
        ("of an older release", "--capacity 1GiB"),
    ],
)
def test_a_command_that_rehearses_again_names_the_rank(limits, options):
    assert _options_again({"limits": limits}, [], GIB) == options
