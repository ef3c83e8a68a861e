"""Do two GPUs work together? Peer access, copies, all-reduce between two processes, and DataParallel."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from helpers.torchside.device import Device, Failed
from helpers.torchside.frame import MIB, NotRun, die_with_parent

OTHER_RANK = "from helpers.torchside.pairs import other_rank; other_rank()"
WORDS = 1024


def peer_access(device: Device) -> dict[str, Any]:
    ask = device.torch.cuda.can_device_access_peer
    there, back = bool(ask(0, 1)), bool(ask(1, 0))
    says = {
        (True, True): "each can reach the other's memory",
        (False, False): "neither can reach the other's memory, so copies go through the host",
    }.get((there, back), f"only the {'first' if there else 'second'} can reach the other's memory")
    return {"says": says, "figures": {"first_to_second": there, "second_to_first": back}}


def pair_copy(device: Device) -> dict[str, Any]:
    torch, words = device.torch, 4 * MIB
    kind = {"generator": device.generator(), "dtype": torch.int32}
    sent = torch.randint(-(2**31), 2**31, (words,), **kind)
    for here, there, name in ((0, 1, "first"), (1, 0, "second")):
        arrived = sent.to(f"cuda:{here}").to(f"cuda:{there}")
        device.wait()
        wrong = int((arrived.to("cpu") != sent).sum())
        if wrong:
            message = f"{wrong} of {words} words of 4 bytes differ"
            says = f"what the {name} sent is not what the other has"
            raise Failed(says, message=message, figures={"wrong_words": wrong})
    return {"says": "16 MiB copied each way are bit equal"}


def all_reduce(device: Device, backend: str) -> dict[str, Any]:
    """The sum over two processes, which meet in a file: no port, no other host, the loopback only."""
    torch = device.torch
    distributed = torch.distributed
    if not distributed.is_available():
        raise NotRun("not run because this torch was built without torch.distributed")
    if not getattr(distributed, f"is_{backend}_available")():
        raise NotRun(f"not run because this torch was built without {backend}")
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "file": os.path.join(folder, "meet"),
            "backend": backend,
            "seconds": device.spec["opt_in_s"] * 0.6,
            "devices": ["cuda:0", "cuda:1"] if device.gpu else ["cpu", "cpu"],
        }
        argv = [sys.executable, "-c", OTHER_RANK, json.dumps(job)]
        other = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2)
        try:
            right = sums_right(torch, job, 0)
            code = other.wait(job["seconds"])
        finally:
            other.kill()
            other.wait()
    if not right or code:
        wrong = "the sum over two processes is wrong"
        says = wrong if not right or code == 1 else "the second process did not end well"
        raise Failed(says, message=f"exit code {code} of the second process")
    where = "" if device.gpu else ", on the CPU"
    return {"says": f"the sum over two processes is right in both{where}"}


def sums_right(torch: Any, job: dict[str, Any], rank: int) -> bool:
    distributed, until = torch.distributed, datetime.timedelta(seconds=job["seconds"])
    meet = {"init_method": "file://" + job["file"], "timeout": until}
    distributed.init_process_group(job["backend"], rank=rank, world_size=2, **meet)
    try:
        if job["devices"][rank] != "cpu":
            torch.cuda.set_device(rank)
        ramp = torch.arange(WORDS, dtype=torch.float32)
        values = (ramp * (rank + 1)).to(job["devices"][rank])
        distributed.all_reduce(values)
        return bool(torch.equal(values.to("cpu"), ramp * 3))
    finally:
        distributed.destroy_process_group()


def other_rank() -> None:
    """The second process: exit code 0 when its sum is right, 1 when it is wrong."""
    die_with_parent()
    import torch

    torch.set_num_threads(1)
    sys.exit(0 if sums_right(torch, json.loads(sys.argv[1]), 1) else 1)
