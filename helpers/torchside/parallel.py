"""The same training by two processes or two devices: DataParallel, DDP, fully_shard, two stages, averaged gradients.

Both processes are this program's; the second dies with the first. They meet in a file and talk over the loopback only: no port
is opened to others. Over nccl (RCCL) where this torch has it and there are two GPUs, else over gloo on the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed, nn

from helpers.torchside.device import NotRun
from helpers.torchside.training import Peak, Say, compared, error_words, save_result, trained
from helpers.torchside.transformer import Run, warm

OTHER_RANK = "from helpers.torchside.parallel import other_rank; other_rank()"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
ORDER = ("bitwise", "not applicable", "within tolerance", "no")


def data_parallel(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """nn.DataParallel over two GPUs in one process; known to deadlock on some boxes, so the time limit is part of it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        raise NotRun(
            f"needs two GPUs, and torch sees {count or 'none'}; on a CPU nn.DataParallel only calls the model"
        )
    peak = Peak(spec["device"])
    run = Run(spec, lambda model: nn.DataParallel(model, device_ids=[0, 1]))
    save_result(run, spec)
    answer = _finish(run, spec, say, peak)
    return {
        **answer,
        "says": "; ".join(
            ["two GPUs in one process", *error_words(answer["equal"], answer["worst"])]
        ),
    }


def ddp(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """Each process has the whole model and half of the batch; DistributedDataParallel averages the gradients."""
    return _together(spec, say, "ddp")


def fsdp(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """As DDP, but each process keeps half of every parameter, gradient and optimizer state (fully_shard, torch 2.6)."""
    if not hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard"):
        raise NotRun(f"fully_shard came with torch 2.6, and this is {torch.__version__}")
    return _together(spec, say, "fsdp")


def two_stage(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """The first half of the layers in one process, the second in the other; activations go there, their gradients come back."""
    return _together(spec, say, "two_stage")


def averaged(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """Two processes that share no library: gradients meet in a file that both map, and pipes say when; no torch.distributed."""
    return _together({**spec, "device": "cpu"}, say, "averaged")


def _together(spec: dict[str, Any], say: Say, how: str) -> dict[str, Any]:
    """Start the second process, do this one's part, put both answers together."""
    fault = spec.get("fault", "")
    job = {
        **spec,
        "how": how,
        "meet": os.path.join(spec["folder"], f"{spec['name']}-meet"),
        **_backend(spec, how),
    }
    with _other_process(job, fault != "missing peer") as other:
        answer = _part(job, 0, say, other)
        theirs = json.loads(other.stdout.readline() or "{}") if other else {}
        if not theirs:
            raise RuntimeError("the second process ended without an answer")
    equal = max(answer["equal"], theirs["equal"], key=ORDER.index)
    worst = max(answer["worst"], theirs["worst"])
    twin = (
        "bitwise equal to accumulation of two pieces in one process" if answer.pop("twin") else ""
    )
    where = {"averaged": "two processes without torch.distributed"}.get(
        how, f"two processes over {job['backend']}"
    )
    mine, other_s, alone = (
        size / 2**20 for size in (answer["held_bytes"], theirs["held_bytes"], answer["whole_bytes"])
    )
    says = [
        where + (" on the CPU" if job["devices"][0] == "cpu" else ""),
        f"they hold {mine:.1f} and {other_s:.1f} MiB of "
        f"parameters, gradients and optimizer state, one process alone {alone:.1f}",
        *filter(None, [twin]),
        *error_words(equal, worst),
    ]
    return {
        **answer,
        "peak_bytes": max(answer["peak_bytes"], theirs["peak_bytes"]),
        "equal": equal,
        "worst": worst,
        "says": "; ".join(says),
    }


def _backend(spec: dict[str, Any], how: str) -> dict[str, Any]:
    there = distributed.is_available()
    gpus = (
        there
        and spec["device"] != "cpu"
        and torch.cuda.device_count() > 1
        and distributed.is_nccl_available()
    )
    if how != "averaged" and not (there and (gpus or distributed.is_gloo_available())):
        raise NotRun(
            "this torch was built without torch.distributed, or with neither gloo nor nccl"
        )
    gpus = gpus and how != "averaged"
    return {
        "backend": "nccl" if gpus else "gloo",
        "devices": ["cuda:0", "cuda:1"] if gpus else ["cpu", "cpu"],
    }


@contextlib.contextmanager
def _other_process(job: dict[str, Any], wanted: bool) -> Iterator[Any]:
    if not wanted:
        yield None
        return
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
    # PR_SET_PDEATHSIG (prctl(2)): it must not wait for a first process that was killed.
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    warm({**job, "device": "cpu"})
    answer = _part(job, 1, lambda **message: None, None)
    print(json.dumps(answer), flush=True)


def _part(job: dict[str, Any], rank: int, say: Say, other: Any) -> dict[str, Any]:
    """One process's part: meet, train, compare what it holds with the single device's."""
    os.environ.update(LOOPBACK)
    device = job["devices"][rank]
    if job["how"] != "averaged":
        _meet(job, rank)
    if device != "cpu":
        torch.cuda.set_device(rank)
        torch.use_deterministic_algorithms(True)
    if job["how"] == "fsdp":
        importlib.import_module("torch.distributed.fsdp")  # before the measuring, as warm() does it
    peak = Peak(device)
    kind: Any = {"two_stage": TwoStage, "averaged": Averaged}.get(job["how"], Halves)
    run = kind(job, rank, device, other)
    if rank == 1 and job.get("fault") in ("peer dies", "peer stops"):
        run.after_first = lambda: os.kill(
            os.getpid(), signal.SIGKILL if job["fault"] == "peer dies" else signal.SIGSTOP
        )
    else:
        save_result(run, job, rank)
    answer = _finish(run, job, say, peak, rank)
    if job["how"] != "averaged":
        distributed.destroy_process_group()
    answer.update(
        held_bytes=_held(run), whole_bytes=4 * _bytes(Run(job, device="cpu").model.parameters())
    )
    return {**answer, "twin": rank == 0 and job["how"] != "two_stage" and _twin(run, job)}


def _finish(run: Run, job: dict[str, Any], say: Say, peak: Peak, rank: int = 0) -> dict[str, Any]:
    trained(run, job, say)
    peaks = peak.stop()
    equal, worst = compared(run, job, rank)
    return {**peaks, "equal": equal, "worst": worst}


def _held(run: Run) -> int:
    """Bytes of parameters, gradients (as large) and optimizer state in this process; of a sharded tensor its own part."""
    states = [
        one
        for state in run.optimizer.state.values()
        for one in state.values()
        if isinstance(one, torch.Tensor)
    ]
    return 2 * _bytes(run.model.parameters()) + _bytes(states)


def _bytes(tensors: Iterable[Any]) -> int:
    own = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in own if one.dim())


def _twin(run: Run, job: dict[str, Any]) -> bool:
    """Whether one process with two pieces a step gets the same losses to the last bit (dividing by two rounds nothing)."""
    alone = Run({**job, "pieces": 2}, device=run.device)
    return [alone.step() for _ in run.losses] == run.losses


def _meet(job: dict[str, Any], rank: int) -> None:
    """Join the other process. The faults are those that people meet; each is made for real."""
    fault, backend, method = job.get("fault", ""), job["backend"], "file://" + job["meet"]
    taken = socket.socket()
    if fault == "wrong backend":
        backend = "nccl" if backend == "gloo" else "mpi"
    elif fault == "unknown backend":
        backend = "rccl"
    elif fault == "device index":
        torch.cuda.set_device(torch.cuda.device_count() + 7)
    elif fault == "port in use":
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        method = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    elif fault == "no variables":
        method = "env://"
    with taken:
        distributed.init_process_group(
            backend,
            init_method=method,
            rank=-1 if fault == "no variables" else rank,
            world_size=-1 if fault == "no variables" else 2,
            timeout=datetime.timedelta(seconds=job.get("patience_s", job["limit_s"] * 0.5)),
        )


class Halves(Run):
    """This process's half of each batch; the gradients are averaged by what ``call`` is (DDP or fully_shard)."""

    def __init__(self, job: dict[str, Any], rank: int, device: str, other: Any):
        def prepare(model: Any) -> Any:
            if job["how"] == "ddp":
                return nn.parallel.DistributedDataParallel(
                    model, device_ids=None if device == "cpu" else [rank]
                )
            if job["how"] == "averaged":
                return model
            shard: Callable[..., Any] = importlib.import_module(
                "torch.distributed.fsdp"
            ).fully_shard
            mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh(
                device.partition(":")[0], (2,)
            )
            for layer in model.layers:
                shard(layer, mesh=mesh)
            return shard(model, mesh=mesh)

        super().__init__(job, prepare, device)
        self.rank, self.other = rank, other

    def forward_backward(self, tokens: torch.Tensor) -> float:
        loss = self.loss(tokens.chunk(2)[self.rank])
        loss.backward()
        total = loss.detach() / 2
        distributed.all_reduce(total)
        return float(total)


class TwoStage(Run):
    """The first or the second half of the layers; the others are nothing here, and hold nothing."""

    def __init__(self, job: dict[str, Any], rank: int, device: str, other: Any):
        def prepare(model: Any) -> Any:
            middle = len(model.layers) // 2
            for index in range(len(model.layers)):
                if (index < middle) == bool(rank):
                    model.layers[index] = nn.Identity()
            return model

        super().__init__(job, prepare, device)
        self.rank = rank

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
        loss = nn.functional.cross_entropy(
            self.call(state.requires_grad_()).flatten(0, 1), right.flatten()
        )
        loss.backward()
        slope = state.grad
        assert slope is not None
        distributed.send(slope, 0)
        distributed.send(loss.detach(), 0)
        return float(loss.detach())


class Averaged(Halves):
    """Rows of one mapped file: each process's gradients and loss, then their mean, by the first process."""

    def __init__(self, job: dict[str, Any], rank: int, device: str, other: Any):
        super().__init__(job, rank, device, other)
        self.numel = 1 + sum(one.numel() for one in self.model.parameters())
        self.rows = torch.from_file(
            job["meet"], shared=True, size=2 * self.numel, dtype=torch.float32
        ).view(2, -1)

    def forward_backward(self, tokens: torch.Tensor) -> float:
        loss = self.loss(tokens.chunk(2)[self.rank]) / 2
        loss.backward()
        gradients: list[Any] = [one.grad for one in self.model.parameters()]
        self.rows[self.rank].copy_(
            torch.cat([loss.detach().view(1), *(one.flatten() for one in gradients)])
        )
        if self.rank == 0:
            self._wait(self.other.stdout)
            self.rows[0] += self.rows[1]
            print("mean is there", file=self.other.stdin, flush=True)
            self._wait(self.other.stdout)
        else:
            print("mine are there", flush=True)
            self._wait(sys.stdin)
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
