"""A Python that has imported torch already, and forks a process for each run of a script.

Called with the file descriptor of a socket on which asking.py asks, the script, and the modules to
import. It ends when its standard input ends. A fork takes over the folder, the environment, the
command line, the input and the output of asking.py, and begins as every rehearsed process does
(sitecustomize.py), so that the script finds what it would find in a Python of its own.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import types
from typing import Any

MOST_BYTES = 1 << 20
"""Room for the message of asking.py: a command and an environment. Linux gives a process at most 2
MiB for both where its stack is limited to 8 MiB, and they are mostly a few KiB.
"""
RECORD = "CASEBOOK_RECORD"
"""The variable, a path, by which the recorder recognizes the processes of a run."""


def next_run(server: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for asking.py, and fork for each run. Returns only in the new process: the run as
    asking.py described it, and its three standard files.
    """
    while True:
        ready, _, _ = select.select([server, sys.stdin], [], [])
        if sys.stdin in ready:  # closed: the process that started this one has ended
            os._exit(0)
        asking, _ = server.accept()
        if os.fork() == 0:
            server.close()
            message, files, _, _ = socket.recv_fds(asking, MOST_BYTES, 3)
            if run_of_own(asking):
                return json.loads(message), files
        asking.close()


def run_of_own(asking: socket.socket) -> bool:
    """Fork once more. Returns True in the process of the run; the other process never returns: it
    sends asking.py the PID, then the status with which the run ended, and kills the run where
    asking.py has ended.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        asking.close()
        return True
    os.setpgid(pid, pid)  # a group of its own, which is killed as a whole
    asking.send(str(pid).encode())
    ready, _, _ = select.select([os.pidfd_open(pid), asking.fileno()], [], [])
    if asking.fileno() in ready:
        os.killpg(pid, signal.SIGKILL)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    asking.send(str(status).encode())
    os._exit(0)


def become(run: dict[str, Any], files: list[int]) -> None:
    """Take over what asking.py had: its files, environment, umask, folder and command line."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    show_environment(run["environment"])
    os.environ.clear()
    os.environ.update(run["environment"])
    os.umask(run["umask"])
    os.chdir(run["folder"])
    sys.orig_argv = run["command"]
    sys.argv = run["command"][1:]
    sys.path[0] = folder_of(sys.argv[0])


def show_environment(environment: dict[str, str]) -> None:
    """Write the value of RECORD over the blanks with which this Python began (forks.py): /proc
    shows the environment of a process as it was in memory when the process began, unless that
    memory was written.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(RECORD.encode())
    value = environment.get(RECORD, "").encode()
    if len(value) <= len(os.environ[RECORD]):
        ctypes.memmove(place, value + b"\0", len(value) + 1)


def folder_of(script: str) -> str:
    """The folder in which Python looks first for what a script imports."""
    return os.path.dirname(os.path.realpath(script))


def begin_rehearsal() -> None:
    """Begin as a rehearsed process does when its Python starts and when it imports torch: by
    sitecustomize.py, which Python did not find when this one started.
    """
    if "CASEBOOK_REHEARSE" not in os.environ:
        return
    torch = sys.modules["torch"]
    place = os.path.join(
        os.environ["PYTHONPATH"].split(os.pathsep)[0], "sitecustomize.py"
    )
    spec = importlib.util.spec_from_file_location("_casebook_inject", place)
    assert spec is not None and spec.loader is not None
    inject = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(inject)
    inject.begin()
    inject.torch_imported(inject.start_recorder(), torch)


def main() -> None:
    """Import torch and wait; in each fork, run the script as Python runs one."""
    _, number, script, *modules = sys.argv
    server = socket.socket(fileno=int(number))
    sys.path[0] = folder_of(script)
    before = dict(os.environ)
    needs = os.environ["CASEBOOK_NEEDS"]
    sys.path.append(needs)
    for module in modules:
        importlib.import_module(module)
    sys.path.remove(needs)  # until the rehearsal begins
    set_by_imports = dict(os.environ.items() - before.items())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    become(*next_run(server))
    os.environ.update(set_by_imports)
    begin_rehearsal()
    path = os.path.abspath(sys.argv[0])
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    program = types.ModuleType("__main__")
    program.__file__ = path
    program.__loader__ = loader
    sys.modules["__main__"] = program
    loader.exec_module(program)


if __name__ == "__main__":
    main()
