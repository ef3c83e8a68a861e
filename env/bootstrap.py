#!/usr/bin/env python3
"""`python3 env/bootstrap.py VERB [ARGS]` runs every verb of the workbook; `make VERB` is one line over it.

Standard library only. This file picks the Python and gets out of the way: it parses on Python 3.8, because the box
that fails often has an old one, and `capture` must run there. Everything else needs 3.10 to 3.13 (env/setup).
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 10)
NEWEST = (3, 13)
OLDEST_FOR_CAPTURE = (3, 8)
ANSWER_LIMIT_S = 20


def open_standard_streams() -> None:
    """Give fd 0, 1 and 2 a file where the caller closed them, so that no pipe or log lands on one of them."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def supported(version: tuple[int, ...]) -> bool:
    return OLDEST <= tuple(version[:2]) <= NEWEST


def other_pythons() -> list[str]:
    """A supported Python by path: the .venv's own first, then python3.13 down to python3.10 along PATH."""
    paths = [os.path.join(ROOT, ".venv", "bin", "python")]
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        paths += [os.path.join(folder, f"python3.{minor}") for folder in folders]
    return [path for path in paths if os.access(path, os.X_OK)]


def answers(python: str) -> bool:
    """Whether it starts and is a supported one. A version manager's shim on PATH may stand for a Python it does not have."""
    try:
        argv = [python, "-c", "import sys; print(*sys.version_info[:2])"]
        none = subprocess.DEVNULL
        said = subprocess.check_output(argv, stdin=none, stderr=none, timeout=ANSWER_LIMIT_S)
        return supported(tuple(int(part) for part in said.split()))
    except (OSError, subprocess.SubprocessError, ValueError):
        return False


def capture(arguments: list[str]) -> int:
    """Capture with the Python that is running and nothing installed; the user's environment is left as it is."""
    if sys.version_info < OLDEST_FOR_CAPTURE:
        return refuse(f"capture: Python {sys.version.split()[0]} seen, 3.8 or newer expected")
    sys.path[:1] = [ROOT]
    sys.argv = ["casebook", "capture"] + arguments
    runpy.run_module("helpers", run_name="__main__", alter_sys=True)
    return 0


def hand_over(arguments: list[str]) -> int:
    for python in other_pythons():
        if answers(python):
            os.execv(python, [python, os.path.abspath(__file__)] + arguments)
    seen = f"Python {sys.version.split()[0]} seen, 3.10 to 3.13 expected"
    now = "; works right now: python3 -m helpers capture"
    now = now if sys.version_info >= OLDEST_FOR_CAPTURE else ""
    do = "none of those is on PATH: install one, for example python3.11"
    return refuse(f"{seen}, and {do}{now}")


def refuse(line: str) -> int:
    print(line, file=sys.stderr)
    return 2


def main(arguments: list[str]) -> int:
    open_standard_streams()
    if arguments[:1] == ["capture"]:
        return capture(arguments[1:])
    if not supported(sys.version_info[:2]):
        return hand_over(arguments)
    sys.path[:1] = [os.path.join(ROOT, "env")]
    from setup import verbs

    return verbs.main(ROOT, arguments)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
