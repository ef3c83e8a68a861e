"""What a command said within its limits of time and output. It runs without a shell, with stdin closed, in its own session."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COMMAND_LIMIT_S = 10.0
COMMAND_LIMIT_BYTES = 4 << 20
STDERR_LIMIT_BYTES = 64 << 10
GRACE_S = 1.0
TOOL_FOLDERS = ("/opt/rocm/bin", "/usr/local/cuda/bin", "/usr/lib/wsl/lib", "/usr/sbin", "/sbin", "/usr/bin", "/bin")


@dataclass(frozen=True)
class Outcome:
    """What a command did. ``status`` is a bundle item's; ``exit`` is None where it was killed at a limit, or never ran.

    A signal that ended it otherwise shows as a negative exit, as in subprocess.
    """

    stdout: bytes
    stderr: bytes
    status: str
    exit: int | None
    seconds: float
    why: str

    @property
    def text(self) -> bytes:
        """stdout, and stderr under a line of its own where there is any."""
        if not self.stderr:
            return self.stdout
        gap = b"" if not self.stdout or self.stdout.endswith(b"\n") else b"\n"
        return self.stdout + gap + b"--- stderr ---\n" + self.stderr


def search_path() -> str:
    """PATH with the folders that GPU tools live in, and without relative ones, which would run whatever lies in a folder."""
    folders = [f for f in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(f)]
    return os.pathsep.join(folders + [f for f in TOOL_FOLDERS if f not in folders])


def run(argv: Sequence[str], limit_s: float = 0.0, limit_bytes: int = COMMAND_LIMIT_BYTES) -> Outcome:
    """Run a command; it and its children are killed at a limit (COMMAND_LIMIT_S by default), and what it leaves when it ends.

    Never raises for what the command does. One that cannot even be killed (state D) is left behind after a grace.
    """
    started, limit_s = time.monotonic(), limit_s or COMMAND_LIMIT_S
    path = search_path()
    program = shutil.which(argv[0], path=path)
    if program is None:
        if shutil.which(argv[0], mode=os.F_OK, path=path):
            return Outcome(b"", b"", "not_allowed", None, 0.0, "the program is there, and this user may not execute it")
        return Outcome(b"", b"", "not_available", None, 0.0, "no such program")
    env = {**os.environ, "PATH": path, "LC_ALL": "C", "TERM": "dumb"}
    env.pop("LANGUAGE", None)
    try:
        process = subprocess.Popen([program, *argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True, cwd="/", env=env)
    except OSError as error:
        status = "not_allowed" if isinstance(error, PermissionError) else "not_available"
        return Outcome(b"", b"", status, None, 0.0, f"{program} does not start: {error.strerror or error}")
    said = {process.stdout: bytearray(), process.stderr: bytearray()}
    reaped = True
    try:
        status = _listen(process, said, started + limit_s, limit_bytes)
    finally:
        reaped = _end(process)
    why = {"timeout": f"stopped after {limit_s:g} s",
           "truncated": f"stopped after {limit_bytes >> 10} KiB of output"}.get(status, "")
    if not reaped:
        why += "; it could not be killed and was left behind (it waits inside the kernel)"
    elif status == "ok" and program != shutil.which(argv[0]):
        why = f"ran {program}"
    return Outcome(bytes(said[process.stdout][:limit_bytes]), bytes(said[process.stderr]), status,
                   process.returncode if status == "ok" else None, time.monotonic() - started, why)


def _listen(process: subprocess.Popen[bytes], said: dict[Any, bytearray], deadline: float, limit_bytes: int) -> str:
    with selectors.DefaultSelector() as pipes:
        for pipe in said:
            pipes.register(pipe, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            # Looked at before the pipes are: what was written before the exit is then surely read.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            if not pipes.get_map() and not ended:
                time.sleep(min(left, 0.01))
            ready = pipes.select(0 if ended else min(left, 0.05)) if pipes.get_map() else []
            if ended and not ready:
                return "ok"
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    pipes.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    said[process.stdout] += data
                else:
                    said[process.stderr] += data[:max(0, STDERR_LIMIT_BYTES - len(said[process.stderr]))]
            if len(said[process.stdout]) > limit_bytes:
                return "truncated"


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Kill the whole group and reap the command; False where it does not die within the grace."""
    # The leader is not reaped yet, so its number cannot have gone to another group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return False
    return True
