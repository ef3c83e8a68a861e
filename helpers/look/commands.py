"""What a command printed within its limits of time and output: without a shell, with stdin closed, found where GPU tools lie.

And a Python program run so under some interpreter, answering in JSON lines; it may hang, die, or not start.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from helpers import child

COMMAND_LIMIT_S = 10.0
COMMAND_LIMIT_BYTES = 4 << 20
TERM_S, GRACE_S = 0.2, 1.0
LAST_WORDS_LINES = 3
_COLOURING = ("LANGUAGE", "SYSTEMD_COLORS", "SYSTEMD_LESS")
TOOL_FOLDERS = (
    "/opt/rocm/bin /usr/local/cuda/bin /usr/lib/wsl/lib /usr/sbin /sbin /usr/bin /bin".split()
)


@dataclass(frozen=True)
class Outcome:
    """What a command did. ``status`` is a bundle item's; ``exit`` is None where a signal ended it (``why`` names it), where it
    was stopped at a limit, or never ran. ``stderr`` is the end of what it printed there.
    """

    stdout: bytes
    stderr: str
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
        return self.stdout + gap + f"--- stderr ---\n{self.stderr}\n".encode()


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
    """Run a command. At a limit (COMMAND_LIMIT_S by default) it and its children are ended, and so is what it leaves behind.

    With ``feed`` its stdout goes there piece by piece, without a limit of its own, and is not kept. Never raises for what the
    command does. One that cannot even be killed (state D) is left behind after a grace.
    """
    limit_s, path, out = limit_s or COMMAND_LIMIT_S, search_path(), bytearray()
    program = shutil.which(argv[0], path=path)
    if program is None:
        there = shutil.which(argv[0], mode=os.F_OK, path=path)
        why = (
            "the program is there, and this user may not execute it" if there else "no such program"
        )
        return Outcome(b"", "", "not_allowed" if there else "not_available", None, 0.0, why)

    def keep(data: bytes) -> float | None:
        if feed:
            feed(data)
        elif len(out) <= limit_bytes:
            out.extend(data)
        return 0.0 if len(out) > limit_bytes else None

    env = child.environment(_COLOURING, {"PATH": path, "LC_ALL": "C", "TERM": "dumb"}, own=False)
    how: Any = {"env": env, "cwd": "/", "direct": True, "term_s": TERM_S, "grace_s": GRACE_S}
    try:
        ended = child.watch([program, *argv[1:]], limit_s, on_data=keep, **how)
    except OSError as error:
        status = "not_allowed" if isinstance(error, PermissionError) else "not_available"
        why = f"{program} does not start: {error.strerror or error}"
        return Outcome(b"", "", status, None, 0.0, why)
    words, code = ended.last_words, ended.exit_code
    status, why = "ok", f"killed by {ended.signal}" if ended.signal else ""
    if len(out) > limit_bytes:
        status, why, code = "truncated", f"stopped after {limit_bytes >> 10} KiB of output", None
    elif ended.how in ("timed_out", "stuck"):
        status, why = "timeout", f"stopped after {limit_s:g} s"
    elif not why and program != shutil.which(argv[0]):
        why = f"ran {program}"
    if ended.how == "stuck":
        why += "; it could not be killed and was left behind (it waits inside the kernel)"
    return Outcome(bytes(out[:limit_bytes]), words, status, code, ended.seconds, why)


def ask(
    python: str, program: bytes, options: tuple[str, ...], limit_s: float
) -> list[dict[str, Any]]:
    """The rows that a Python program prints as JSON lines under ``python``, or one row ``{status, why}`` about its end.

    A program that died after it answered is not believed: the row then holds its end, its signal and its last words.
    """
    ended = run([python, "-c", program.decode("utf-8"), *options], limit_s)
    printed = ended.stdout.decode("utf-8", "replace").split("\n")
    rows = list(filter(None, map(child.json_row, printed)))
    if rows and ended.status == "ok" and ended.exit == 0:
        return rows
    how = ended.why
    if ended.status == "ok" and ended.exit is not None:
        how = f"ended with exit status {ended.exit} and no answer"
    lines = [" ".join(line.split()) for line in ended.stderr.splitlines() if line.strip()]
    words = " / ".join(lines[-LAST_WORDS_LINES:])[-300:]
    why = f"{python}: {how}" + (f"; its last words: {words}" if words else "")
    status = "not_allowed" if ended.status == "not_allowed" else "not_available"
    return [{"status": status, "why": why}]
