"""What every program on torch's side shares: how it tells its rows, its own memory and limits,
and whether memory ran out.

A program is a function that takes its options and yields rows. ``run`` gives it its options and
hands each row to the parent. Standard library alone.
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
Row = dict[str, Any]


class NotRun(Exception):
    """Something cannot be done here: one sentence; of a check it begins with "not run because"."""


class NoTorch(Exception):
    """torch cannot be imported: the error's type and first line; ``missing`` where there is
    none at all.
    """

    def __init__(self, error: Exception):
        super().__init__(f"{type(error).__name__}: {one_line(error)}")
        self.missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"


def run(program: Callable[[Any], Iterable[Row]], options: Row | None = None) -> None:
    """A program's main: its options are one JSON argument unless they are given, its rows go to
    stdout as they come.

    Where each thread was when the program crashed or was asked to end (SIGTERM) goes to stderr,
    without the interpreter's lock.
    """
    if options is None:
        options = json.loads(sys.argv[1])
    answers = own_stdout()
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    for row in program(options):
        print(json.dumps(row), file=answers, flush=True)


def own_stdout() -> IO[str]:
    """Stdout for this program's rows alone: from now on what libraries print there goes to stderr."""
    rows = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return rows


def import_torch() -> ModuleType:
    """torch.

    Raises NoTorch, whatever a broken one raises: ImportError, OSError of a library, NameError.
    """
    try:
        import torch
    except Exception as error:
        raise NoTorch(error) from error
    return torch


def is_oom(torch: ModuleType, error: BaseException) -> bool:
    """Whether memory ran out: of torch's allocator, of the driver ("CUDA error: out of
    memory"), or of the host.

    The CPU allocator (c10/core/impl/alloc_cpu.cpp) raises a plain RuntimeError that begins with
    its name.
    """
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    words = str(error)
    says_so = "DefaultCPUAllocator" in words or "out of memory" in words.lower()
    return isinstance(error, RuntimeError) and says_so


def one_line(error: BaseException) -> str:
    """An error as one line of at most 300 characters."""
    lines = filter(None, map(str.strip, str(error).splitlines()))
    return next(lines, type(error).__name__)[:300]


def own_bytes(name: str) -> int:
    """Memory of this process: a field of /proc/self/status (proc(5)), such as VmRSS; 0 where
    this kernel has no such field.
    """
    with open("/proc/self/status", "rb") as lines:
        fields = (
            line.split() for line in lines if line.startswith(name.encode() + b":")
        )
        return next((int(words[1]) * 1024 for words in fields), 0)


def restart_peak() -> int:
    """Let the peak of resident memory (VmHWM) begin anew, where proc_pid_clear_refs(5) may be
    written; returns the bytes that are resident now.
    """
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return own_bytes("VmRSS")


def limit_host(more_bytes: int) -> None:
    """Allow at most ``more_bytes`` more of private writable memory from now on (RLIMIT_DATA;
    setrlimit(2), since Linux 4.7).
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (own_bytes("VmData") + more_bytes, hard))


def lift_host_limit() -> None:
    """Allow as much private memory again as when this process was started."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
