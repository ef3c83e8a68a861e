"""Has forking.py run a program, and stands for it: passes signals on, and ends as it does.

Called with the path of forking.py's socket and a command. Where forking.py does not answer, the
command runs here. Standard library alone.
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
"""Signals that come to this process alone; the recorder (allocator/record.py) sends SIGTERM and
SIGKILL to the program as well.
"""
MOST_BYTES = 64
"""Room for an answer of forking.py: a number in decimal digits."""


def ask(place: str, command: list[str]) -> tuple[socket.socket, int]:
    """Have forking.py run a command. Returns the socket on which its exit status will come, and its
    PID. Raises OSError, and ValueError where forking.py ended before it answered.
    """
    umask = os.umask(0)  # to read it is to set it
    os.umask(umask)
    run = {
        "command": command,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
    }
    forking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forking.connect(place)
    # With its standard input, output and error.
    socket.send_fds(forking, [json.dumps(run).encode()], [0, 1, 2])
    return forking, int(forking.recv(MOST_BYTES))


def end_with(status: int) -> None:
    """End as a process ended that has this status (of waitpid): with its code, or by its signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main() -> None:
    """Ask forking.py for the program, pass on signals until it ends, and end as it did."""
    _, place, *command = sys.argv
    try:
        forking, pid = ask(place, command)
    except (OSError, ValueError):
        os.execvp(command[0], command)

    def pass_on(signal_number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)

    # The recorder sends it to the program itself, at whose end this process ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for passed in PASSED_ON:
        signal.signal(passed, pass_on)
    status = forking.recv(MOST_BYTES)
    if not status:  # the process that waits for the program was killed
        end_with(signal.SIGKILL)
    end_with(int(status))


if __name__ == "__main__":
    main()
