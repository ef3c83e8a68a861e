"""The same training by two processes or two devices: DataParallel, DDP, fully_shard, two
stages, averaged gradients.

Over nccl (RCCL) where this torch has it and there are two GPUs, else over gloo on the CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from helpers.trials.under_torch.device import meet, second_job, second_process
from helpers.trials.under_torch.frame import NotRun, Row
from helpers.trials.under_torch.transformer import Answer, Run, in_words, trained, warm

ORDER = ("bitwise", "not applicable", "within tolerance", "no")


class OverDevices(Run):
    def prepared(self, model: Any) -> Any:
        return nn.DataParallel(model, device_ids=[0, 1])


def data_parallel(spec: Row) -> Answer:
    """nn.DataParallel over two GPUs in one process; known to deadlock on some boxes, so the
    time limit is part of it.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        says = f"needs two GPUs, and torch sees {count or 'none'}"
        raise NotRun(says + "; on a CPU nn.DataParallel only calls the model")
    _, answer = yield from trained(spec, OverDevices)
    return in_words(answer, "two GPUs in one process")


def together(spec: Row, how: str) -> Answer:
    """Start the second process, do this one's part, put both answers together.

    ``how``: a key of KINDS.

    ddp: each has the whole model and half of the batch, and DistributedDataParallel averages
    the gradients; fsdp: the same, but each keeps half of every parameter, gradient and
    optimizer state (fully_shard); two_stage: the first half of the layers here, the second
    there, activations go over and their gradients come back; averaged: two processes that share
    no library.
    """
    if how == "fsdp" and not hasattr(_fsdp(), "fully_shard"):
        raise NotRun(f"fully_shard came with torch 2.6, and this is {torch.__version__}")
    meet = os.path.join(spec["folder"], f"{spec['name']}-meet")
    job = {**spec, "how": how, "meet": meet, "meet_s": spec["limit_s"] * 0.5, **_backend(spec, how)}
    with second_process(__name__, job) as other:
        answer = yield from _part(job, 0, other.stdout, other.stdin)
        theirs = json.loads(other.stdout.readline() or "{}")
        if not theirs:
            raise RuntimeError("the second process ended without an answer")
        other.wait(10)
    held, whole_bytes, twin = (answer.pop(name) for name in ("held_bytes", "whole_bytes", "twin"))
    answer["equal"] = max(answer["equal"], theirs["equal"], key=ORDER.index)
    for name in ("peak_bytes", "worst"):
        answer[name] = max(answer[name], theirs[name])
    mine, others, alone = (size / 2**20 for size in (held, theirs["held_bytes"], whole_bytes))
    over = "without torch.distributed" if how == "averaged" else f"over {job['backend']}"
    says = [
        f"two processes {over}" + (" on the CPU" if job["devices"][0] == "cpu" else ""),
        f"they hold {mine:.1f} and {others:.1f} MiB of parameters, gradients and optimizer state, "
        f"one process alone {alone:.1f}",
    ]
    says += ["bitwise equal to accumulation of two pieces in one process"] if twin else []
    return in_words(answer, *says)


def _fsdp() -> Any:
    return importlib.import_module("torch.distributed.fsdp")


def _backend(spec: Row, how: str) -> Row:
    alone = {"backend": "gloo", "devices": ["cpu", "cpu"]}
    if how == "averaged":
        return alone
    there = distributed.is_available()
    gpus = spec["device"] != "cpu"
    if there and gpus and torch.cuda.device_count() > 1 and distributed.is_nccl_available():
        return {"backend": "nccl", "devices": ["cuda:0", "cuda:1"]}
    if not (there and distributed.is_gloo_available()):
        what = "torch.distributed, or with neither gloo nor nccl"
        raise NotRun(f"this torch was built without {what}")
    return alone


def other_rank() -> None:
    """The second process: one JSON line at the end."""
    job, tell = second_job()
    torch.set_num_threads(job["threads"])
    warm({**job, "device": "cpu"})
    part = _part(job, 1, sys.stdin, tell)
    while True:
        try:
            next(part)
        except StopIteration as end:
            print(json.dumps(end.value), file=tell, flush=True)
            return


def _part(job: Row, rank: int, hear: Any, tell: Any) -> Answer:
    """One process's part: meet, train, compare what it holds with the single device's."""
    device = job["devices"][rank]
    how = job["how"]
    if how != "averaged":
        meet(torch, job, rank)
    if device != "cpu":
        torch.use_deterministic_algorithms(True)
    if how == "fsdp":
        _fsdp()  # before the measuring, as warm() does it
    kind = partial(KINDS[how], rank=rank, hear=hear, tell=tell)
    run, answer = yield from trained({**job, "device": device}, kind, rank)
    if how != "averaged":
        distributed.destroy_process_group()
    alone = 4 * _bytes(Run({**job, "device": "cpu"}).model.parameters())
    twin = rank == 0 and how != "two_stage" and _twin(run, job)
    return {**answer, "held_bytes": _held(run), "whole_bytes": alone, "twin": twin}


def _held(run: Run) -> int:
    """Bytes of parameters, gradients (as large) and optimizer state in this process; of a
    sharded tensor its own part.
    """
    states = [one for state in run.optimizer.state.values() for one in state.values()]
    states = [one for one in states if isinstance(one, torch.Tensor)]
    return 2 * _bytes(run.model.parameters()) + _bytes(states)


def _bytes(tensors: Iterable[Any]) -> int:
    own = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in own if one.dim())


def _twin(run: Run, job: Row) -> bool:
    """Whether one process with two pieces a step gets the same losses to the last bit (dividing
    by two rounds nothing).
    """
    alone = Run({**job, "pieces": 2, "device": run.device})
    return [alone.step() for _ in run.losses] == run.losses


class Halves(Run):
    """This process's half of each batch; the gradients are averaged by what ``call`` is (DDP or
    fully_shard).
    """

    def __init__(self, job: Row, rank: int, hear: Any, tell: Any):
        self.rank = rank
        self.hear = hear
        self.tell = tell
        super().__init__(job)

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
        left = tokens[:, :-1]
        right = tokens[:, 1:]
        if self.rank == 0:
            out = self.call(left)
            distributed.send(out.detach(), 1)
            back = torch.empty_like(out)
            total = torch.empty((), device=self.device)
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
    """No torch.distributed: each process's gradients and loss are a row of a file that both
    map, and pipes say when.
    """

    def __init__(self, job: Row, rank: int, hear: Any, tell: Any):
        super().__init__(job, rank, hear, tell)
        self.sizes = [one.numel() for one in self.model.parameters()]
        size = 2 * (1 + sum(self.sizes))
        mapped = torch.from_file(job["meet"], shared=True, size=size, dtype=torch.float32)
        self.rows = mapped.view(2, -1)

    def forward_backward(self, tokens: torch.Tensor) -> float:
        loss = self.loss(tokens.chunk(2)[self.rank]) / 2
        loss.backward()
        gradients: list[Any] = [one.grad for one in self.model.parameters()]
        flat = [loss.detach().view(1), *(one.flatten() for one in gradients)]
        self.rows[self.rank].copy_(torch.cat(flat))
        # The first takes the mean of both rows once the second's is there, and goes on once the
        # second has read it.
        if self.rank == 0:
            self._wait()
            self.rows[0] += self.rows[1]
            self._say("mean is there")
            self._wait()
        else:
            self._say("mine are there")
            self._wait()
        for mean, gradient in zip(self.rows[0, 1:].split(self.sizes), gradients):  # noqa: B905 -- Python 3.9 has no strict
            gradient.copy_(mean.view_as(gradient))
        total = float(self.rows[0, 0])
        if self.rank == 1:
            self._say("read")
        return total

    def _say(self, words: str) -> None:
        print(words, file=self.tell, flush=True)

    def _wait(self) -> None:
        if not self.hear.readline():
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
