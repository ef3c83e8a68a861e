"""A checkout with nothing installed, a host that lacks what a test says, and wheels of a few bytes: all without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def ran(argv: Sequence[Any], check: bool = False, **how: Any) -> subprocess.CompletedProcess[str]:
    """A program that has run: what it printed as text, and its exit status."""
    how = {"stdin": subprocess.DEVNULL, "timeout": 120, "capture_output": True, **how}
    return subprocess.run([*map(str, argv)], check=check, text=True, **how)


needs_pip = pytest.mark.skipif(
    ran([sys.executable, "-m", "pip", "--version"]).returncode != 0,
    reason="the Python of these tests has no pip to play the host's",
)

# What stands in for python3 -m helpers: it tells how it was started.
TELLS = """\
import json, os, sys
print("TOLD " + json.dumps({"argv": sys.argv[1:], "path": sys.path, "env": dict(os.environ), "python": sys.executable,
                            "cwd": os.getcwd()}))
sys.exit(int(os.environ.get("TELL_EXIT", "0")))
"""

# sys.executable is what set-up takes for the host's Python; a test puts its own in that place.
START = "import runpy, sys; sys.executable = sys.argv.pop(1); sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"

NO_ENSUREPIP = """\
case "$*" in *"import ensurepip"*) echo "ModuleNotFoundError: No module named 'ensurepip'" >&2; exit 1;; esac
"""
NO_VENV = 'case "$*" in "-m venv"*) echo "$0: No module named venv" >&2; exit 1;; esac\n'
NO_PIP = 'case "$*" in "-m pip"*) echo "$0: No module named pip" >&2; exit 1;; esac\n'
TINY_PIP = f"""\
case "$*" in "-m pip "*) shift 2; exec "{sys.executable}" -I -S "{ROOT}/tests/tiny_pip.py" "$@";; esac
"""
OLD_PIP = 'case "$*" in *"--python "*) echo "no such option: --python" >&2; exit 2;; esac\n'


def wheel(
    folder: Path, name: str, version: str = "1.0", files: dict[str, str] | None = None
) -> Path:
    """A wheel that pip installs, of one module unless files say otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = dict(files or {f"{name}.py": f"version = {version!r}\n"})
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content[f"{info}/WHEEL"] = tags
    content[f"{info}/RECORD"] = "".join(f"{one},,\n" for one in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in content.items():
            archive.writestr(inside, text)
    return path


def torch_wheel(folder: Path, version: str = "9.9.9+cpu") -> Path:
    says = f"__version__ = {version!r}\ncuda = None\nhip = None\n"
    init = "raise SystemExit('set-up must not import torch')\n"
    return wheel(folder, "torch", version, {"torch/__init__.py": init, "torch/version.py": says})


@dataclass
class Checkout:
    """A copy of the set-up with tiny locks. `start` runs a verb as a person would, under the host that `lacks` describe."""

    root: Path
    wheels: Path
    home: Path
    host: str = sys.executable
    environ: dict[str, str] = field(default_factory=dict)
    real_pip: bool = False

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def record(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((self.venv / "casebook.json").read_text())
        return said

    @property
    def log(self) -> str:
        return (self.venv / "setup.log").read_text()

    def lacking(self, *lacks: str) -> Checkout:
        """The same checkout on a host whose python3 is a script with these gaps; its calls are kept beside it."""
        host = self.home / "host" / "python3"
        host.parent.mkdir(exist_ok=True)
        host.write_text(
            '#!/bin/sh\necho "$*" >> "$0.calls"\n'
            + "".join([*lacks, *([] if self.real_pip else [TINY_PIP])])
            + f'exec "{sys.executable}" "$@"\n'
        )
        host.chmod(0o755)
        self.host = str(host)
        return self

    def calls(self) -> list[str]:
        kept = Path(self.host + ".calls")
        return kept.read_text().splitlines() if kept.exists() else []

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", START, self.host, str(self.root / "env/bootstrap.py"), *words]

    def env(self, **more: str) -> dict[str, str]:
        bends = ("PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_", "JUPYTER")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(bends)}
        here = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
        here |= {"HOME": str(self.home), "PIP_FIND_LINKS": str(self.wheels)}
        return kept | here | self.environ | more

    def start(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.start_from(self.root, *words, **more)

    def start_from(
        self, folder: Path, *words: str, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return ran(self.command(*words), env=self.env(**more), cwd=folder)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a verb and go on; it has a process group of its own."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        pipes |= {"stdin": subprocess.DEVNULL, "text": True, "start_new_session": True}
        return subprocess.Popen(self.command(*words), env=self.env(), **pipes)

    def imports(self, name: str) -> str:
        """The version of a module that .venv's Python imports."""
        argv = [str(self.venv / "bin/python"), "-c", f"import {name}; print({name}.version)"]
        return ran(argv, cwd="/", env={"PATH": os.environ["PATH"]}).stdout.strip()


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(lines[-1][5:])
    return said


def lay(
    folder: Path, files: Sequence[str] = ("bootstrap.py", "setup"), real_pip: bool = False
) -> Checkout:
    """A checkout whose host has no ensurepip, and a pip that is tiny and quick unless the real one is asked for."""
    root = folder / "an 'é\" check $out"
    wheels = folder / "wheels"
    home = folder / "home"
    (root / "env").mkdir(parents=True)
    home.mkdir()
    for name in files:
        source = ROOT / "env" / name
        if source.is_dir():
            left_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, root / "env" / name, ignore=left_out)
        else:
            shutil.copy2(source, root / "env")
    base = "# base\ntiny==1.0\nelsewhere==1.0 ; sys_platform == 'win32'\n"
    (root / "env/requirements.txt").write_text(base)
    (root / "env/requirements-test.txt").write_text("tiny_test==1.0\n")
    (root / "env/torch.txt").write_text("torch==9.9.9+cpu\ntiny_needed==1.0\n")
    (root / "helpers").mkdir()
    (root / "helpers/__init__.py").touch()
    (root / "helpers/__main__.py").write_text(TELLS)
    for name in ("tiny", "tiny_test", "tiny_needed"):
        wheel(wheels, name)
    torch_wheel(wheels)
    return Checkout(root, wheels, home, real_pip=real_pip).lacking(NO_ENSUREPIP)
