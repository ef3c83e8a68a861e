"""One use of a verb, and the environment that the workbook's own children get."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import pip
from .stamp import Stamp


@dataclass(frozen=True)
class Call:
    """One use of a verb: where, with what arguments, in what environment, on what .venv (None where it needs none).

    ``umask`` is what it becomes with; None: the user's own.
    """

    root: Path
    arguments: list[str]
    environ: Mapping[str, str]
    stamp: Stamp | None = None
    umask: int | None = None

    @property
    def python(self) -> str:
        assert self.stamp is not None
        return self.stamp.made.python

    def become(self, *argv: str) -> int:
        """Turn this process into the command, so that signals and the exit code are the command's own."""
        sys.stdout.flush()
        sys.stderr.flush()
        env = child_environment(self.root, self.environ)
        if self.umask is not None:
            os.umask(self.umask)
        os.execve(self.python, [self.python, *argv], env)

    def call(self, *argv: str) -> int:
        """Run one command of several and return its exit code; an interrupt is left to the child to answer."""
        env = child_environment(self.root, self.environ)
        child = subprocess.Popen([self.python, *argv], env=env)
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def child_environment(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the workbook's own children: the checkout first on sys.path, nobody else's packages or kernels."""
    env = pip.clean(environ)
    env.pop("JUPYTER_PATH", None)
    env |= {"PYTHONPATH": str(root), "PYTHONNOUSERSITE": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    if not os.access(env.get("HOME") or "/nonexistent", os.W_OK):
        # A container started with a bare uid: HOME is / or missing, and Jupyter, IPython and matplotlib must write.
        own = os.path.join(tempfile.gettempdir(), f"casebook-{os.getuid()}")
        names = [f"JUPYTER_{what}_DIR" for what in ("RUNTIME", "DATA", "CONFIG")]
        names += ["IPYTHONDIR", "MPLCONFIGDIR"]
        env = {name: f"{own}/{name.lower()}" for name in names} | env
    return env
