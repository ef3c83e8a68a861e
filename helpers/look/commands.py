"""What a command said within its limits of time and output: it runs without a shell, with stdin closed, in its own session.

And a Python program run so under some interpreter, answering in JSON lines; it may hang, die, or not start.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

COMMAND_LIMIT_S = 10.0
COMMAND_LIMIT_BYTES = 4 << 20
STDERR_LIMIT_BYTES = 64 << 10
GRACE_S = 1.0
LAST_WORDS_LINES = 3
_COLOURING = ("LANGUAGE", "SYSTEMD_COLORS", "SYSTEMD_LESS")
TOOL_FOLDERS = (
    "/opt/rocm/bin /usr/local/cuda/bin /usr/lib/wsl/lib /usr/sbin /sbin /usr/bin /bin".split()
)


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


def run(
    argv: Sequence[str],
    limit_s: float = 0.0,
    limit_bytes: int = COMMAND_LIMIT_BYTES,
    feed: Callable[[bytes], None] | None = None,
) -> Outcome:
    """Run a command. At a limit (COMMAND_LIMIT_S by default) it and its children are killed, and so is what it leaves behind.

    With ``feed`` its stdout goes there piece by piece, without a limit of its own, and is not kept. Never raises for what the
    command does. One that cannot even be killed (state D) is left behind after a grace.
    """
    started, limit_s = time.monotonic(), limit_s or COMMAND_LIMIT_S
    path = search_path()
    program = shutil.which(argv[0], path=path)
    if program is None:
        if shutil.which(argv[0], mode=os.F_OK, path=path):
            why = "the program is there, and this user may not execute it"
            return Outcome(b"", b"", "not_allowed", None, 0.0, why)
        return Outcome(b"", b"", "not_available", None, 0.0, "no such program")
    env = {key: value for key, value in os.environ.items() if key not in _COLOURING}
    env.update(PATH=path, LC_ALL="C", TERM="dumb")
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env=env,
        )
    except OSError as error:
        status = "not_allowed" if isinstance(error, PermissionError) else "not_available"
        why = f"{program} does not start: {error.strerror or error}"
        return Outcome(b"", b"", status, None, 0.0, why)
    out, err = bytearray(), bytearray()
    reaped = True
    try:
        keep = feed or out.extend
        status = _drain(process, keep, out, err, started + limit_s, limit_bytes)
    finally:
        reaped = _end(process)
    why = {
        "timeout": f"stopped after {limit_s:g} s",
        "truncated": f"stopped after {limit_bytes >> 10} KiB of output",
    }.get(status, "")
    if not reaped:
        why += "; it could not be killed and was left behind (it waits inside the kernel)"
    elif status == "ok" and program != shutil.which(argv[0]):
        why = f"ran {program}"
    code = process.returncode if status == "ok" else None
    took = time.monotonic() - started
    return Outcome(bytes(out[:limit_bytes]), bytes(err), status, code, took, why)


def _drain(
    process: subprocess.Popen[bytes],
    keep: Callable[[bytes], None],
    out: bytearray,
    err: bytearray,
    deadline: float,
    limit_bytes: int,
) -> str:
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, keep)  # type: ignore[arg-type]
        pipes.register(process.stderr, selectors.EVENT_READ, err.extend)  # type: ignore[arg-type]
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            # Looked at before the pipes are: what was written before the exit is then surely read.
            look = os.WEXITED | os.WNOHANG | os.WNOWAIT
            ended = os.waitid(os.P_PID, process.pid, look) is not None
            if not pipes.get_map() and not ended:
                time.sleep(min(left, 0.01))
            ready = pipes.select(0 if ended else min(left, 0.05)) if pipes.get_map() else []
            if ended and not ready:
                return "ok"
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data(data)
                else:
                    pipes.unregister(key.fileobj)
            del err[STDERR_LIMIT_BYTES:]
            if len(out) > limit_bytes:
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


def ask(
    python: str, program: bytes, options: tuple[str, ...], limit_s: float
) -> list[dict[str, Any]]:
    """The rows that a Python program prints as JSON lines under ``python``, or one row ``{status, why}`` about its end.

    A program that died after it answered is not believed: the row then holds its end, its signal and its last words.
    """
    ended = run([python, "-c", program.decode("utf-8"), *options], limit_s)
    rows = list(filter(None, map(_row, ended.stdout.decode("utf-8", "replace").splitlines())))
    if rows and ended.status == "ok" and ended.exit == 0:
        return rows
    how = ended.why
    if ended.status == "ok" and ended.exit is not None:
        how = f"ended with exit status {ended.exit} and no answer"
        if ended.exit < 0:
            known = {one.value: one.name for one in signal.Signals}
            how = f"killed by {known.get(-ended.exit, f'signal {-ended.exit}')}"
    stderr = ended.stderr.decode("utf-8", "replace").splitlines()
    lines = [line for line in (" ".join(line.split()) for line in stderr) if line]
    words = " / ".join(lines[-LAST_WORDS_LINES:])[-300:]
    why = f"{python}: {how}" + (f"; its last words: {words}" if words else "")
    status = "not_allowed" if ended.status == "not_allowed" else "not_available"
    return [{"status": status, "why": why}]


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line) if line.startswith("{") else {}
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
