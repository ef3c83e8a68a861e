"""Start a child that dies with its parent, and the command lines and environments of children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.ground.places import CHECKOUT

# Runs between fork and the program, and becomes it under the same number. preexec_fn may
# deadlock in a threaded parent such as a notebook kernel, so this is a program of its own.
# PR_SET_PDEATHSIG is 1 (prctl(2)); it holds across execve, and is lost if the parent has died
# before. RLIMIT_DATA counts private writable memory (setrlimit(2), since Linux 4.7), so that an
# allocation fails where a cgroup would kill; both hold for all that is started from there.
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
    """The command line of a program of this checkout, ``main`` of ``module``, under any
    interpreter.

    Under this Python it finds as little of the caller's packages as this process (-I). Its folder,
    whatever lies there, shadows neither helpers nor a library: sys.path[0] is '' under -c.
    """
    flags = ["-I"] if python == sys.executable and sys.flags.isolated else []
    path = f"sys.path[:] = [{str(CHECKOUT)!r}, *(p for p in sys.path if p)]"
    return [
        python,
        *flags,
        "-c",
        f"import sys; {path}; from {module} import main; main()",
        *arguments,
    ]


def environment(
    without: Collection[str] = (),
    more: Mapping[str, str] | None = None,
    with_own_folder: bool = True,
) -> dict[str, str]:
    """A child's environment: this one's, but for the names in ``without``, and ``more``.

    ``with_own_folder``: for a program of this checkout, which must find the checkout before any
    other package called helpers; a program of the user's never gets it on its path. No bytecode is
    written beside anybody's sources.
    """
    variables = {
        name: value for name, value in os.environ.items() if name not in without
    }
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    if with_own_folder:
        variables.pop("PYTHONHOME", None)  # it is of the caller's Python
        path = [str(CHECKOUT), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
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
    **pipes: int,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own that ends with this thread.

    ``pipes``: stdin, stdout and stderr as of Popen.

    ``data_bytes`` limits the private memory of each of its processes, ``group`` is the folder
    of a cgroup to put it in, ``umask`` is the child's where it is not negative. ``direct``:
    without the program before it, which costs a Python's start; then it may outlive this
    thread, and raises OSError where it cannot be run; ``watch`` then kills its group alone and
    does not look for what left it.
    """
    command = list(argv)
    if not direct:
        numbers = [str(os.getpid()), str(data_bytes), str(umask)]
        command = [sys.executable, "-I", "-S", "-c", START, *numbers, group, *argv]
    options: dict[str, Any] = dict(pipes)
    return subprocess.Popen(
        command, env=env, cwd=cwd, start_new_session=True, **options
    )
