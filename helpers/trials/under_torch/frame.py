"""What all programs of this folder share: how they send rows to their parent, how they measure and
limit their own memory, and how they recognise an out-of-memory.

A program is a function that takes its options and yields rows. ``run`` gives it the options and
sends each row to the parent. Only the standard library is imported at the top.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import IO, Any

MIB = 1 << 20
GIB = 1 << 30
LONGEST_LINE = 300
Row = dict[str, Any]
"""What a program sends to its parent as a line of JSON; most have the key ``event``."""


class NotRun(Exception):
    """Something cannot be done here: one sentence; of a check it begins with "not run because"."""


class NoTorch(Exception):
    """torch cannot be imported: the type and first line of the error; ``missing``: it is not
    installed.
    """

    def __init__(self, error: Exception):
        super().__init__(f"{type(error).__name__}: {one_line(error)}")
        self.missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"


def run(program: Callable[[Any], Iterable[Row]], options: Row | None = None) -> None:
    """Run a program: its options are the JSON of the first argument, unless they are given; its
    rows go to stdout one by one.

    On a crash, and when it is asked to end (SIGTERM), the stacks of all threads go to stderr, for
    which faulthandler does not need the GIL.
    """
    if options is None:
        options = json.loads(sys.argv[1])
    answers = own_stdout()
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    for row in program(options):
        print(json.dumps(row), file=answers, flush=True)


def own_stdout() -> IO[str]:
    """A stream to stdout for the rows alone: what libraries print to stdout goes to stderr from now
    on.
    """
    rows = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return rows


def import_torch() -> ModuleType:
    """Import torch. Raises NoTorch for whatever a broken one raises: ImportError, OSError of a
    library, NameError.
    """
    try:
        import torch
    except Exception as error:
        raise NoTorch(error) from error
    return torch


def is_oom(torch: ModuleType, error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch's allocator, the driver ("CUDA error: out of
    memory") or the host had none left.

    torch's CPU allocator (c10/core/impl/alloc_cpu.cpp) raises a plain RuntimeError with its name,
    DefaultCPUAllocator.
    """
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    words = str(error)
    says_so = "DefaultCPUAllocator" in words or "out of memory" in words.lower()
    return isinstance(error, RuntimeError) and says_so


def one_line(error: BaseException) -> str:
    """The first line of an error that is not blank, else its type; at most LONGEST_LINE
    characters.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    first_line = next(filter(None, lines), type(error).__name__)
    return first_line[:LONGEST_LINE]


def own_bytes(name: str) -> int:
    """Memory of this process: a field of /proc/self/status (proc_pid_status(5)), such as VmRSS; 0
    if this kernel has no such field.
    """
    with open("/proc/self/status", "rb") as lines:
        for line in lines:
            if line.startswith(name.encode() + b":"):
                return int(line.split()[1]) * 1024  # "VmRSS:  1234 kB"
    return 0


def restart_peak() -> int:
    """Set the peak of resident memory (VmHWM) to the present, by the value 5 of
    proc_pid_clear_refs(5), if that may be written; returns the bytes that are resident now.
    """
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return own_bytes("VmRSS")


def limit_host(more_bytes: int) -> None:
    """Allow this process at most ``more_bytes`` more of private writable memory (RLIMIT_DATA of
    setrlimit(2), since Linux 4.7).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (own_bytes("VmData") + more_bytes, hard))


def lift_host_limit() -> None:
    """Undo ``limit_host``."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
