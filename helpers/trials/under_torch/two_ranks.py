"""The training of transformer.py by two ranks that torchrun started; DistributedDataParallel
averages their gradients.

Each rank has the whole model and half of each batch. They use nccl (RCCL) if torch has it and there
are two GPUs, else gloo on the CPU, and only the loopback.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
from functools import partial

import torch
from torch import distributed, nn

from helpers.trials.under_torch.frame import NotRun, Row
from helpers.trials.under_torch.transformer import Answer, Run, in_words, trained

LOOPBACK = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
}
"""Variables that keep gloo and NCCL to the loopback."""
PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
PATIENCE_SHARE = 0.5
"""A rank waits for the other for this share of the time limit, and then can still say so."""


def own_rank() -> int:
    """Which of torchrun's ranks this process is; 0 if torchrun did not start it."""
    return int(os.environ.get("RANK", "0"))


def device_of_rank(spec: Row) -> str:
    """The device of this rank: its own GPU, or the CPU if there are not two GPUs or no nccl; for a
    process that torchrun did not start, the device of the spec.
    """
    if "RANK" not in os.environ or spec["device"] == "cpu":
        return str(spec["device"])
    has_nccl = distributed.is_available() and distributed.is_nccl_available()
    if has_nccl and torch.cuda.device_count() > 1:
        return f"cuda:{own_rank()}"
    return "cpu"


class Replicated(Run):
    """The training of one rank, on its half of each batch."""

    def __init__(self, spec: Row, rank: int):
        self.rank = rank
        super().__init__(spec)

    def prepared(self, model: nn.Module) -> nn.Module:
        """The model, wrapped so that gradients are averaged over the ranks."""
        device_ids = None
        if self.device != "cpu":
            device_ids = [torch.device(self.device).index]
        return nn.parallel.DistributedDataParallel(model, device_ids=device_ids)

    def forward_backward(self, tokens: torch.Tensor) -> float:
        """Gradients of this rank's half of the batch; returns the mean loss of both halves."""
        loss = self.loss(tokens.chunk(2)[self.rank])
        loss.backward()
        total = loss.detach() / 2
        distributed.all_reduce(total)
        return float(total)


def _has_backend(name: str) -> bool:
    """Whether this torch has a backend of torch.distributed: gloo or nccl."""
    if not distributed.is_available():
        return False
    if name == "gloo":
        return distributed.is_gloo_available()
    return distributed.is_nccl_available()


def ddp(spec: Row) -> Answer:
    """The part of this rank: connect to the other, train, and compare with the single device.

    Raises NotRun if this torch has no backend.
    """
    rank = own_rank()
    backend = "nccl"
    if spec["device"] == "cpu":
        backend = "gloo"
    if not _has_backend(backend):
        raise NotRun(
            "this torch was built without torch.distributed, or with neither gloo nor nccl"
        )
    # A rank ends with the torchrun that started it: it must not wait for a killed one.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    os.environ.update(LOOPBACK)
    patience = datetime.timedelta(seconds=PATIENCE_SHARE * spec["limit_s"])
    distributed.init_process_group(backend, timeout=patience)
    if spec["device"] != "cpu":
        torch.cuda.set_device(rank)
    _, answer = yield from trained(spec, partial(Replicated, rank=rank))
    peaks = [0, 0]  # of the two ranks; the larger is the answer
    distributed.all_gather_object(peaks, answer["peak_bytes"])
    distributed.destroy_process_group()
    return in_words({**answer, "peak_bytes": max(peaks)}, f"two ranks over {backend}")
