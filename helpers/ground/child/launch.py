"""Start a child that dies with its parent, and the command lines and environments of children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from helpers.ground.places import CHECKOUT

# Runs between fork and the program, and becomes the program under the same process id. Popen's
# preexec_fn may deadlock in a threaded parent such as a notebook kernel, so this is a program of
# its own. PR_SET_PDEATHSIG is 1 (prctl(2)); it holds across execve, and is lost if the parent has
# died before: then it exits with 125, which nobody is left to read. 800 of 1000 is how willingly
# the OOM killer takes the child (proc_pid_oom_score_adj(5)): before other programs of the box, and
# after what asks to be the first. RLIMIT_DATA counts private writable memory (setrlimit(2), since
# Linux 4.7), so an allocation fails where a cgroup would kill; it and the cgroup hold for all
# processes that the program starts. 127 is a shell's code for a program that cannot be run.
START = """
import os, resource, signal, sys
parent, data, umask = map(int, sys.argv[1:4])
group, argv = sys.argv[4], sys.argv[5:]
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
except (ImportError, OSError, AttributeError):
    pass  # no ctypes in this Python: the child then ends by its time limit alone
if os.getppid() != parent:
    os._exit(125)
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
try:
    with open('/proc/self/oom_score_adj', 'w') as adjust:
        adjust.write('800')
except OSError:
    pass  # no such file in this sandbox
if group:
    with open(os.path.join(group, 'cgroup.procs'), 'w') as procs:
        procs.write(str(os.getpid()))
if data:
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))
if umask >= 0:
    os.umask(umask)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    os.write(2, f'{argv[0]}: cannot be run: {error.strerror}'.encode())
    os._exit(127)
"""


def program(python: str, module: str, *arguments: str) -> list[str]:
    """The command line that runs ``main`` of a module of this checkout under the interpreter
    ``python``.

    If that is this process's own interpreter and it is isolated (-I), so is the program.
    """
    command = [python]
    if python == sys.executable and sys.flags.isolated:
        command.append("-I")
    # Under -c sys.path has '', the current folder: no file there may shadow helpers or a library.
    path = f"sys.path[:] = [{str(CHECKOUT)!r}, *(p for p in sys.path if p)]"
    code = f"import sys; {path}; from {module} import main; main()"
    return [*command, "-c", code, *arguments]


def environment(
    without: Collection[str] = (),
    more: Mapping[str, str] | None = None,
    with_own_folder: bool = True,
) -> dict[str, str]:
    """A child's environment: this process's without the names in ``without``, and with ``more``.

    ``with_own_folder``: puts the checkout first on PYTHONPATH, for a program of this checkout,
    which must find it before any other package called helpers. Programs of the user's do not get
    it. No child writes bytecode beside anybody's sources.
    """
    variables = {
        name: value for name, value in os.environ.items() if name not in without
    }
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    if with_own_folder:
        variables.pop("PYTHONHOME", None)  # where this Python is, not the child's
        path = [str(CHECKOUT)]
        if variables.get("PYTHONPATH"):
            path.append(variables["PYTHONPATH"])
        variables["PYTHONPATH"] = os.pathsep.join(path)
    if more:
        variables.update(more)
    return variables


def start(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    data_bytes: int = 0,
    group: str = "",
    direct: bool = False,
    umask: int = -1,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own that ends with this thread.

    ``data_bytes`` limits the private memory of each of its processes; 0 is no limit. ``group`` is
    the folder of a cgroup to put it in, or empty; ``umask`` is the child's, or negative for this
    process's own. ``stdin``, ``stdout`` and ``stderr`` are those of Popen.

    ``direct``: start ``argv`` itself, without START, which takes as long as Python takes to start.
    Then there are no limits, the child may outlive this thread, and OSError is raised if it cannot
    be run.
    """
    command = list(argv)
    if not direct:
        numbers = [str(os.getpid()), str(data_bytes), str(umask)]
        command = [sys.executable, "-I", "-S", "-c", START, *numbers, group, *argv]
    return subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        start_new_session=True,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
