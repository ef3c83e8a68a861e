"""Commands run within limits of time and output: without a shell, with stdin closed, found where
GPU tools lie.

A Python program can be run the same way under another interpreter, and answers in JSON lines.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from helpers.ground import child
from helpers.look.bundle import JsonRow
from helpers.look.files import fault

COMMAND_LIMIT_S = 10.0
COMMAND_LIMIT_BYTES = 4 << 20
TERM_S = 0.2
GRACE_S = 1.0
LAST_WORDS_LINES = 3
_LEFT_OUT = ("LANGUAGE", "PYTHONHOME", "SYSTEMD_COLORS", "SYSTEMD_LESS")
TOOL_FOLDERS = "/opt/rocm/bin /usr/local/cuda/bin /usr/lib/wsl/lib /usr/sbin /sbin /usr/bin /bin".split()


@dataclass(frozen=True)
class CommandOutcome:
    """What a command did.

    ``status`` is a bundle item's; ``exit`` is None where a signal ended it (``why`` names it),
    where it was stopped at a limit, or never ran. ``stderr`` is the end of what it printed
    there.
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
        printed = self.stdout
        if printed and not printed.endswith(b"\n"):
            printed += b"\n"
        return printed + f"--- stderr ---\n{self.stderr}\n".encode()


def search_path() -> str:
    """PATH with the folders that GPU tools live in, and without relative ones, which would run
    whatever lies in a folder.
    """
    folders = [
        f for f in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(f)
    ]
    return os.pathsep.join(folders + [f for f in TOOL_FOLDERS if f not in folders])


def run(
    argv: Sequence[str],
    limit_s: float = 0.0,
    limit_bytes: int = COMMAND_LIMIT_BYTES,
    feed: Callable[[bytes], None] | None = None,
) -> CommandOutcome:
    """Run a command, and say what became of it; never raises for what the command does.

    ``limit_s``: seconds (COMMAND_LIMIT_S by default), after which it and its children are ended;
    what it leaves behind at its end is ended too. One that cannot even be killed (state D) is left
    behind after a grace.
    ``limit_bytes``: the most of its stdout that is kept; more of it ends the command.
    ``feed``: gets stdout piece by piece, without a limit; nothing of it is kept then.
    """
    limit_s = limit_s or COMMAND_LIMIT_S
    path = search_path()
    program = shutil.which(argv[0], path=path)
    if program is None:
        return _not_executable(argv[0], path)
    kept = bytearray()

    def keep(data: bytes) -> float | None:
        if feed:
            feed(data)
        elif len(kept) <= limit_bytes:
            kept.extend(data)
        return 0.0 if len(kept) > limit_bytes else None

    try:
        ended = child.watch(
            [program, *argv[1:]],
            limit_s,
            on_data=keep,
            env=child.environment(
                _LEFT_OUT,
                {"PATH": path, "LC_ALL": "C", "TERM": "dumb"},
                with_own_folder=False,
            ),
            cwd="/",
            direct=True,
            term_s=TERM_S,
            grace_s=GRACE_S,
        )
    except OSError as error:
        why = f"{program} does not start: {error.strerror or error}"
        status, _ = fault(error)
        return CommandOutcome(b"", "", status, None, 0.0, why)
    code = ended.exit_code
    status = "ok"
    why = _remark(ended, argv[0], program)
    if len(kept) > limit_bytes:
        status = "truncated"
        why = f"stopped after {limit_bytes >> 10} KiB of output"
        code = None
    elif ended.how in ("timed_out", "stuck"):
        status = "timeout"
        why = f"stopped after {limit_s:g} s"
    if ended.how == "stuck":
        why += (
            "; it could not be killed and was left behind (it waits inside the kernel)"
        )
    return CommandOutcome(
        stdout=bytes(kept[:limit_bytes]),
        stderr=ended.last_words,
        status=status,
        exit=code,
        seconds=ended.seconds,
        why=why,
    )


def _remark(ended: child.Ended, name: str, program: str) -> str:
    """Which signal ended a command, or that it is not the one that a shell would have run."""
    if ended.signal:
        return f"killed by {ended.signal}"
    if program != shutil.which(name):
        return f"ran {program}"
    return ""


def _not_executable(name: str, path: str) -> CommandOutcome:
    if shutil.which(name, mode=os.F_OK, path=path):
        why = "the program is there, and this user may not execute it"
        return CommandOutcome(b"", "", "not_allowed", None, 0.0, why)
    return CommandOutcome(b"", "", "not_available", None, 0.0, "no such program")


def run_python(
    python: str, program: bytes, options: tuple[str, ...], limit_s: float
) -> list[JsonRow]:
    """The rows that a Python program prints as JSON lines under the interpreter ``python``.

    ``program`` is its source. Where it hangs, dies or does not start there is one row
    ``{status, why}``; a program that died after it answered is not believed: the row then holds
    its end, its signal and its last words.
    """
    ended = run([python, "-c", program.decode("utf-8"), *options], limit_s)
    printed = ended.stdout.decode("utf-8", "replace").split("\n")
    rows = list(filter(None, map(child.json_row, printed)))
    if rows and ended.status == "ok" and ended.exit == 0:
        return rows
    why = f"{python}: {ended.why}"
    if ended.status == "ok" and ended.exit is not None:
        why = f"{python}: ended with exit status {ended.exit} and no answer"
    lines = [
        " ".join(line.split()) for line in ended.stderr.splitlines() if line.strip()
    ]
    if lines:
        words = " / ".join(lines[-LAST_WORDS_LINES:])[-300:]
        why += f"; its last words: {words}"
    status = "not_available"
    if ended.status == "not_allowed":
        status = "not_allowed"
    return [{"status": status, "why": why}]
