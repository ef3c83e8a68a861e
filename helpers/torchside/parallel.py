"""The same training by two processes or two devices: DataParallel, DDP, fully_shard, two stages, averaged gradients.

Both processes are this program's; the second dies with the first. They meet in a file and talk over the loopback only: no port
is opened to others. Over nccl (RCCL) where this torch has it and there are two GPUs, else over gloo on the CPU.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from helpers.torchside.frame import NotRun, Row, die_with_parent
from helpers.torchside.transformer import Answer, Peak, Run, error_words, trained, warm

OTHER_RANK = "from helpers.torchside.parallel import other_rank; other_rank()"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
ORDER = ("bitwise", "not applicable", "within tolerance", "no")


def data_parallel(spec: Row) -> Answer:
    """nn.DataParallel over two GPUs in one process; known to deadlock on some boxes, so the time limit is part of it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        says = f"needs two GPUs, and torch sees {count or 'none'}"
        raise NotRun(says + "; on a CPU nn.DataParallel only calls the model")
    peak = Peak(spec["device"])
    run = Run(spec, lambda model: nn.DataParallel(model, device_ids=[0, 1]))
    answer = yield from trained(run, spec, peak)
    return {**answer, "says": "; ".join(["two GPUs in one process", *error_words(answer)])}


def together(spec: Row, how: str) -> Answer:
    """Start the second process, do this one's part, put both answers together. ``how``: a key of KINDS.

    ddp: each has the whole model and half of the batch, and DistributedDataParallel averages the gradients; fsdp: the same,
    but each keeps half of every parameter, gradient and optimizer state (fully_shard); two_stage: the first half of the layers
    here, the second there, activations go over and their gradients come back; averaged: two processes that share no library.
    """
    if how == "fsdp" and not hasattr(_fsdp(), "fully_shard"):
        raise NotRun(f"fully_shard came with torch 2.6, and this is {torch.__version__}")
    meet = os.path.join(spec["folder"], f"{spec['name']}-meet")
    job = {**spec, "how": how, "meet": meet, **_backend(spec, how)}
    with _other_process(job) as other:
        answer = yield from _part(job, 0, other)
        theirs = json.loads(other.stdout.readline() or "{}")
        if not theirs:
            raise RuntimeError("the second process ended without an answer")
    held, whole_bytes, twin = (answer.pop(name) for name in ("held_bytes", "whole_bytes", "twin"))
    answer["equal"] = max(answer["equal"], theirs["equal"], key=ORDER.index)
    for name in ("peak_bytes", "worst"):
        answer[name] = max(answer[name], theirs[name])
    mine, others, alone = (size / 2**20 for size in (held, theirs["held_bytes"], whole_bytes))
    where = f"two processes over {job['backend']}"
    where = "two processes without torch.distributed" if how == "averaged" else where
    says = [
        where + (" on the CPU" if job["devices"][0] == "cpu" else ""),
        f"they hold {mine:.1f} and {others:.1f} MiB of parameters, gradients and optimizer state, "
        f"one process alone {alone:.1f}",
    ]
    says += ["bitwise equal to accumulation of two pieces in one process"] if twin else []
    return {**answer, "says": "; ".join(says + error_words(answer))}


def _fsdp() -> Any:
    return importlib.import_module("torch.distributed.fsdp")


def _backend(spec: Row, how: str) -> Row:
    alone = {"backend": "gloo", "devices": ["cpu", "cpu"]}
    if how == "averaged":
        return alone
    there, gpus = distributed.is_available(), spec["device"] != "cpu"
    if there and gpus and torch.cuda.device_count() > 1 and distributed.is_nccl_available():
        return {"backend": "nccl", "devices": ["cuda:0", "cuda:1"]}
    if not (there and distributed.is_gloo_available()):
        what = "torch.distributed, or with neither gloo nor nccl"
        raise NotRun(f"this torch was built without {what}")
    return alone


@contextlib.contextmanager
def _other_process(job: Row) -> Iterator[Any]:
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_RANK, json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **LOOPBACK},
    )
    try:
        yield other
        other.wait(10)
    finally:
        other.kill()
        other.communicate()


def other_rank() -> None:
    """The second process: one JSON line at the end."""
    die_with_parent()
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    warm({**job, "device": "cpu"})
    part = _part(job, 1, None)
    while True:
        try:
            next(part)
        except StopIteration as end:
            print(json.dumps(end.value), flush=True)
            return


def _part(job: Row, rank: int, other: Any) -> Answer:
    """One process's part: meet, train, compare what it holds with the single device's."""
    os.environ.update(LOOPBACK)
    device, how = job["devices"][rank], job["how"]
    if how != "averaged":
        distributed.init_process_group(
            job["backend"],
            init_method="file://" + job["meet"],
            rank=rank,
            world_size=2,
            timeout=datetime.timedelta(seconds=job["limit_s"] * 0.5),
        )
    if device != "cpu":
        torch.cuda.set_device(rank)
        torch.use_deterministic_algorithms(True)
    if how == "fsdp":
        _fsdp()  # before the measuring, as warm() does it
    peak = Peak(device)
    run = KINDS[how](job, rank, device, other)
    answer = yield from trained(run, job, peak, rank)
    if how != "averaged":
        distributed.destroy_process_group()
    alone = 4 * _bytes(Run(job, device="cpu").model.parameters())
    twin = rank == 0 and how != "two_stage" and _twin(run, job)
    return {**answer, "held_bytes": _held(run), "whole_bytes": alone, "twin": twin}


def _held(run: Run) -> int:
    """Bytes of parameters, gradients (as large) and optimizer state in this process; of a sharded tensor its own part."""
    states = [one for state in run.optimizer.state.values() for one in state.values()]
    states = [one for one in states if isinstance(one, torch.Tensor)]
    return 2 * _bytes(run.model.parameters()) + _bytes(states)


def _bytes(tensors: Iterable[Any]) -> int:
    own = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in own if one.dim())


def _twin(run: Run, job: Row) -> bool:
    """Whether one process with two pieces a step gets the same losses to the last bit (dividing by two rounds nothing)."""
    alone = Run({**job, "pieces": 2}, device=run.device)
    return [alone.step() for _ in run.losses] == run.losses


class Halves(Run):
    """This process's half of each batch; the gradients are averaged by what ``call`` is (DDP or fully_shard)."""

    def __init__(self, job: Row, rank: int, device: str, other: Any):
        self.rank, self.other = rank, other
        super().__init__(job, self.prepared, device)

    def prepared(self, model: Any) -> Any:
        raise NotImplementedError

    def forward_backward(self, tokens: torch.Tensor) -> float:
        loss = self.loss(tokens.chunk(2)[self.rank])
        loss.backward()
        total = loss.detach() / 2
        distributed.all_reduce(total)
        return float(total)


class Replicated(Halves):
    def prepared(self, model: Any) -> Any:
        own = None if self.device == "cpu" else [torch.device(self.device).index]
        return nn.parallel.DistributedDataParallel(model, device_ids=own)


class Sharded(Halves):
    def prepared(self, model: Any) -> Any:
        shard: Callable[..., Any] = _fsdp().fully_shard
        meshes = importlib.import_module("torch.distributed.device_mesh")
        mesh = meshes.init_device_mesh(self.device.partition(":")[0], (2,))
        for layer in model.layers:
            shard(layer, mesh=mesh)
        return shard(model, mesh=mesh)


class TwoStage(Halves):
    """The first or the second half of the layers; the others are nothing here, and hold nothing."""

    def prepared(self, model: Any) -> Any:
        middle = len(model.layers) // 2
        for index in range(len(model.layers)):
            if (index < middle) == bool(self.rank):
                model.layers[index] = nn.Identity()
        return model

    def forward_backward(self, tokens: torch.Tensor) -> float:
        left, right = tokens[:, :-1], tokens[:, 1:]
        if self.rank == 0:
            out = self.call(left)
            distributed.send(out.detach(), 1)
            back, total = torch.empty_like(out), torch.empty((), device=self.device)
            distributed.recv(back, 1)
            distributed.recv(total, 1)
            out.backward(back)
            return float(total)
        state = torch.empty((*left.shape, self.spec["width"]), device=self.device)
        distributed.recv(state, 0)
        scores = self.call(state.requires_grad_())
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), right.flatten())
        loss.backward()
        slope = state.grad
        assert slope is not None
        distributed.send(slope, 0)
        distributed.send(loss.detach(), 0)
        return float(loss.detach())


class Averaged(Halves):
    """No torch.distributed: each process's gradients and loss are a row of a file that both map, and pipes say when."""

    def __init__(self, job: Row, rank: int, device: str, other: Any):
        super().__init__(job, rank, device, other)
        numel = 1 + sum(one.numel() for one in self.model.parameters())
        mapped = torch.from_file(job["meet"], shared=True, size=2 * numel, dtype=torch.float32)
        self.rows = mapped.view(2, -1)

    def prepared(self, model: Any) -> Any:
        return model

    def forward_backward(self, tokens: torch.Tensor) -> float:
        loss = self.loss(tokens.chunk(2)[self.rank]) / 2
        loss.backward()
        gradients: list[Any] = [one.grad for one in self.model.parameters()]
        flat = [loss.detach().view(1), *(one.flatten() for one in gradients)]
        self.rows[self.rank].copy_(torch.cat(flat))
        # The first takes the mean of both rows; the second says when its row is there and when it has read the mean.
        heard, tell = (self.other.stdout, self.other.stdin) if self.other else (sys.stdin, None)
        if self.rank == 0:
            self._wait(heard)
            self.rows[0] += self.rows[1]
            print("mean is there", file=tell, flush=True)
            self._wait(heard)
        else:
            print("mine are there", flush=True)
            self._wait(heard)
        means = self.rows[0, 1:].split([one.numel() for one in gradients])
        for at, gradient in enumerate(gradients):
            gradient.copy_(means[at].view_as(gradient))
        total = float(self.rows[0, 0])
        if self.rank == 1:
            print("taken", flush=True)
        return total

    @staticmethod
    def _wait(pipe: Any) -> None:
        if not pipe.readline():
            raise RuntimeError("the other process ended in the middle of a step")


KINDS: dict[str, Any] = {
    "ddp": Replicated,
    "fsdp": Sharded,
    "two_stage": TwoStage,
    "averaged": Averaged,
}
WAYS: dict[str, Callable[[Row], Answer]] = {
    "data_parallel": data_parallel,
    **{how: partial(together, how=how) for how in KINDS},
}
