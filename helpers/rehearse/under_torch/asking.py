"""Stands for a program that forking.py runs: passes its signals on, and ends as the program does.

Called with the path of forking.py's socket and a command, which is run here where forking.py does not
answer. Standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals for the program that come here; SIGTERM and SIGKILL come to both (record.py)."""
MOST_BYTES = 64


def ask(place: str, command: list[str]) -> tuple[socket.socket, int]:
    """Have a command run; the socket on which its end is announced, and its PID. Raises OSError,
    ValueError.
    """
    umask = os.umask(0)
    os.umask(umask)
    run = {
        "command": command,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
    }
    forking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forking.connect(place)
    socket.send_fds(forking, [json.dumps(run).encode()], [0, 1, 2])
    return forking, int(forking.recv(MOST_BYTES))


def end_with(status: int) -> None:
    """End as a process with that status ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main() -> None:
    _, place, *command = sys.argv
    try:
        forking, pid = ask(place, command)
    except (OSError, ValueError):
        os.execvp(command[0], command)

    def pass_on(signal_number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for passed in PASSED_ON:
        signal.signal(passed, pass_on)
    end_with(int(forking.recv(MOST_BYTES) or signal.SIGKILL))


if __name__ == "__main__":
    main()
