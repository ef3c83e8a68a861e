"""The same training by two ranks that torchrun started, their gradients averaged by
DistributedDataParallel.

Each rank has the whole model and half of each batch. They talk over nccl (RCCL) where this torch
has it and there are two GPUs, else over gloo on the CPU, and over the loopback only.
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


def own_rank() -> int:
    """Which of torchrun's ranks this process is; 0 where torchrun did not start it."""
    return int(os.environ.get("RANK", "0"))


def device_of_rank(spec: Row) -> str:
    """The device that this rank is to use: its own GPU, or the CPU where there are not two."""
    if "RANK" not in os.environ or spec["device"] == "cpu":
        return str(spec["device"])
    has_nccl = distributed.is_available() and distributed.is_nccl_available()
    if has_nccl and torch.cuda.device_count() > 1:
        return f"cuda:{own_rank()}"
    return "cpu"


class Replicated(Run):
    """One rank's half of each batch."""

    def __init__(self, spec: Row, rank: int):
        self.rank = rank
        super().__init__(spec)

    def prepared(self, model: nn.Module) -> nn.Module:
        device_ids = None
        if self.device != "cpu":
            device_ids = [torch.device(self.device).index]
        return nn.parallel.DistributedDataParallel(model, device_ids=device_ids)

    def forward_backward(self, tokens: torch.Tensor) -> float:
        loss = self.loss(tokens.chunk(2)[self.rank])
        loss.backward()
        total = loss.detach() / 2
        distributed.all_reduce(total)
        return float(total)


def ddp(spec: Row) -> Answer:
    """This rank's part: meet the other, train, and compare with the single device.

    Raises NotRun where this torch has no backend.
    """
    rank = own_rank()
    backend = "gloo" if spec["device"] == "cpu" else "nccl"
    if not (
        distributed.is_available() and getattr(distributed, f"is_{backend}_available")()
    ):
        raise NotRun(
            "this torch was built without torch.distributed, or with neither gloo nor nccl"
        )
    # A rank ends with the torchrun that started it (PR_SET_PDEATHSIG, prctl(2)): it must not wait
    # for one that was killed.
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    os.environ.update(LOOPBACK)
    patience = datetime.timedelta(seconds=spec["limit_s"] * 0.5)
    distributed.init_process_group(backend, timeout=patience)
    if spec["device"] != "cpu":
        torch.cuda.set_device(rank)
    _, answer = yield from trained(spec, partial(Replicated, rank=rank))
    peaks = [0, 0]
    distributed.all_gather_object(peaks, answer["peak_bytes"])
    distributed.destroy_process_group()
    return in_words({**answer, "peak_bytes": max(peaks)}, f"two ranks over {backend}")
