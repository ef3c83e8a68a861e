"""A Python program run in a child under some interpreter, answering in JSON lines; it may hang, die, or not start."""

from __future__ import annotations

import json
import signal
from typing import Any

from . import commands

LAST_WORDS_LINES = 3


def ask(python: str, program: bytes, options: tuple[str, ...], limit_s: float) -> list[dict[str, Any]]:
    """The rows that ``program`` printed under ``python``, or one row ``{status, why}`` that says how it ended.

    A program that died after it answered is not believed: the row then holds its end, its signal and its last words.
    """
    ended = commands.run([python, "-c", program.decode("utf-8"), *options], limit_s)
    rows = [row for row in map(_row, ended.stdout.decode("utf-8", "replace").splitlines()) if row]
    if rows and ended.status == "ok" and ended.exit == 0:
        return rows
    status = "not_allowed" if ended.status == "not_allowed" else "not_available"
    return [{"status": status, "why": _end(python, ended)}]


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line) if line.startswith("{") else {}
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _end(python: str, ended: commands.Outcome) -> str:
    if ended.status != "ok":
        how = ended.why
    elif ended.exit is not None and ended.exit < 0:
        how = f"killed by {_signal_name(-ended.exit)}"
    else:
        how = f"ended with exit status {ended.exit} and no answer"
    lines = [" ".join(line.split()) for line in ended.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    words = " / ".join(lines[-LAST_WORDS_LINES:])[-300:]
    return f"{python}: {how}; its last words: {words}" if words else f"{python}: {how}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
