"""Runs commands within limits of time and output, without a shell and without input.

They are looked for on the path and in the folders of GPU tools. A Python program can be run in the
same way under another interpreter, and answers in JSON lines.
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
"""Chosen so that a tool on a busy box still answers, and a hung one costs little."""
COMMAND_LIMIT_BYTES = 4 << 20
TERM_S = 0.2
GRACE_S = 1.0
"""How long a tool that has only read has to end after SIGTERM, and after SIGKILL."""
LAST_WORDS_LINES = 3
LAST_WORDS_LETTERS = 300
"""What is quoted of the end of a program's stderr."""
_LEFT_OUT = ("LANGUAGE", "PYTHONHOME", "SYSTEMD_COLORS", "SYSTEMD_LESS")
"""Variables that would change the language or the form of a tool's output."""
TOOL_FOLDERS = "/opt/rocm/bin /usr/local/cuda/bin /usr/lib/wsl/lib /usr/sbin /sbin /usr/bin /bin".split()
"""Looked through after the path, which services and `sudo` shorten."""


@dataclass(frozen=True)
class CommandOutcome:
    """What a command did.

    ``status`` is one of helpers.look.bundle.Status, and ``why`` its reason. ``exit`` is the exit
    code; None if a signal ended the command (``why`` names it), if it was stopped at a limit, or
    if it never ran. ``stderr`` is the end of what it printed there.
    """

    stdout: bytes
    stderr: str
    status: str
    exit: int | None
    seconds: float
    why: str

    @property
    def text(self) -> bytes:
        """stdout, and below a line that says so stderr, if there is any."""
        if not self.stderr:
            return self.stdout
        printed = self.stdout
        if printed and not printed.endswith(b"\n"):
            printed += b"\n"
        return printed + f"--- stderr ---\n{self.stderr}\n".encode()


def search_path() -> str:
    """PATH, with TOOL_FOLDERS at its end. Relative folders are left out: with them a program of the
    current folder could run in place of a tool.
    """
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    folders = [folder for folder in on_path if os.path.isabs(folder)]
    folders += [folder for folder in TOOL_FOLDERS if folder not in folders]
    return os.pathsep.join(folders)


def run(
    argv: Sequence[str],
    limit_s: float = 0.0,
    limit_bytes: int = COMMAND_LIMIT_BYTES,
    feed: Callable[[bytes], None] | None = None,
) -> CommandOutcome:
    """Run a command, and say what it did; never raises, whatever the command does.

    ``limit_s``: seconds (0: COMMAND_LIMIT_S) after which it and its children are ended. Children
    that it leaves behind are ended, too. One that cannot be killed (state D) is left behind.
    ``limit_bytes``: how much of its stdout is kept; more of it ends the command.
    ``feed``: is called with stdout piece by piece, without a limit; then none of it is kept.
    """
    if not limit_s:
        limit_s = COMMAND_LIMIT_S
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
        # One piece more than the limit tells output that was cut off from output that just fits.
        if len(kept) > limit_bytes:
            return 0.0  # no seconds are left
        return None

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
        status, _ = fault(error)
        why = f"{program} does not start: {error.strerror}"
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
    return CommandOutcome(
        stdout=bytes(kept[:limit_bytes]),
        stderr=ended.last_words,
        status=status,
        exit=code,
        seconds=ended.seconds,
        why=why + _left_behind(ended),
    )


def _left_behind(ended: child.Ended) -> str:
    """A clause about a command that even SIGKILL did not end; else empty."""
    if ended.how != "stuck":
        return ""
    return "; it could not be killed and was left behind (it waits inside the kernel)"


def _remark(ended: child.Ended, name: str, program: str) -> str:
    """Which signal ended a command, or where ``program`` is if a shell would not run it for
    ``name``; else empty.
    """
    if ended.signal:
        return f"killed by {ended.signal}"
    if program != shutil.which(name):  # it was found in one of TOOL_FOLDERS
        return f"ran {program}"
    return ""


def _not_executable(name: str, path: str) -> CommandOutcome:
    """The outcome for a program that is not there, or that this user may not run."""
    if shutil.which(name, mode=os.F_OK, path=path):
        why = "the program is there, and this user may not execute it"
        return CommandOutcome(b"", "", "not_allowed", None, 0.0, why)
    return CommandOutcome(b"", "", "not_available", None, 0.0, "no such program")


def run_python(
    python: str, program: bytes, options: tuple[str, ...], limit_s: float
) -> list[JsonRow]:
    """The rows that a Python program prints as JSON lines under the interpreter ``python``.

    ``program`` is its source. If it hangs, dies or does not start, there is one row
    ``{status, why}``; also if it answered before it died, since a program that crashes may have
    answered wrongly.
    """
    ended = run([python, "-c", program.decode("utf-8"), *options], limit_s)
    printed = ended.stdout.decode("utf-8", "replace").split("\n")
    rows = list(filter(None, map(child.json_row, printed)))
    if rows and ended.status == "ok" and ended.exit == 0:
        return rows
    why = f"{python}: {ended.why}"
    if ended.status == "ok" and ended.exit is not None:
        why = f"{python}: ended with exit status {ended.exit} and no answer"
    lines = [" ".join(line.split()) for line in ended.stderr.splitlines()]
    last_lines = list(filter(None, lines))[-LAST_WORDS_LINES:]
    if last_lines:
        words = " / ".join(last_lines)[-LAST_WORDS_LETTERS:]
        why += f"; its last words: {words}"
    status = "not_available"
    if ended.status == "not_allowed":
        status = "not_allowed"
    return [{"status": status, "why": why}]
