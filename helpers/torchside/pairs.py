"""Two processes that work together: this one starts the second, which dies with it; they meet in a file, over the loopback.

No port is opened to others, and no other host is asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any

from helpers.torchside import frame
from helpers.torchside.frame import Row

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


@contextlib.contextmanager
def second_process(module: str, job: Row) -> Iterator[Any]:
    """``other_rank`` of a module in a process of its own, its job as the argument; it is ended with this block."""
    text = f"from {module} import other_rank; other_rank()"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen(
        [sys.executable, "-c", text, json.dumps(job)], env={**os.environ, **LOOPBACK}, **pipes
    )
    try:
        yield other
    finally:
        other.kill()
        other.communicate()


def second_job() -> tuple[Row, IO[str]]:
    """In the second process: its job, and what it writes to the first on, who reads nothing else of it.

    It ends with the process that started it (PR_SET_PDEATHSIG, prctl(2)): it must not wait for one that was killed.
    """
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    return json.loads(sys.argv[1]), frame.own_stdout()


def meet(torch: Any, job: Row, rank: int) -> None:
    """Join the group of two: ``backend``, ``devices`` of both, ``meet`` (a file), and seconds that a call may take."""
    os.environ.update(LOOPBACK)
    torch.distributed.init_process_group(
        job["backend"],
        init_method="file://" + job["meet"],
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=job["meet_s"]),
    )
    if job["devices"][rank] != "cpu":
        torch.cuda.set_device(rank)
