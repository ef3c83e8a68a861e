"""How is .venv made on this host? The ordinary way, or with the host's pip where Python came without one."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from . import SetupError, pip
from .stamp import Made, made_from, write_whole

STEP_LIMIT_S = 600
MARK = "made-by-bootstrap"
# What brings pip and venv, by the name that /etc/os-release has for the distribution or for the one it is like.
PACKAGES = (
    ("debian ubuntu", "apt-get install python3-venv"),
    ("fedora rhel centos", "dnf install python3-pip"),
    ("arch", "pacman -S python-pip"),
    ("suse opensuse", "zypper install python3-pip"),
    ("alpine", "apk add py3-pip"),
)
WORKS_NOW = "Works right now, with nothing installed: python3 -m helpers capture, or diagnose --message FILE"


class Lacks(Exception):
    """A part of the host that one way of making .venv needs; the next way is tried."""


def package_to_install(os_release: str) -> str:
    """The command that brings what set-up needs on this distribution, from the text of /etc/os-release."""
    named = dict(line.partition("=")[::2] for line in os_release.splitlines())
    words = f"{named.get('ID', '')} {named.get('ID_LIKE', '')}".replace('"', "").split()
    for word in words:
        for names, command in PACKAGES:
            if word.split("-")[0] in names.split():
                return command
    return "install pip and venv for this Python with the package manager"


def step(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Run one step of making .venv and return what it printed; raise Lacks with its last line where it fails."""
    env = pip.unbent(environ)
    try:
        done = subprocess.run(argv, env=env, timeout=STEP_LIMIT_S, check=False, **pip.QUIET)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Lacks(str(error)) from error
    if pip.NO_SPACE.search(done.stdout):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if done.returncode:
        raise Lacks(last_words(done.stdout))
    return done.stdout


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search("No module named|ensurepip is not avail", line)]
    return (telling[:1] or lines[-1:] or ["no word of why"])[0]


def pip_of_host(host: str, root: Path, python: str, environ: Mapping[str, str]) -> list[str]:
    """A pip that fills another Python's folder (pip 22.3 or newer): the host's own, or the wheel of pip in wheelhouse/."""
    wheels = sorted((root / "wheelhouse").glob("pip-*.whl"))
    words = []
    for own in [[host, "-m", "pip"], *([host, str(wheel / "pip")] for wheel in wheels)]:
        command = [*own, *(["--python", python] if python else [])]
        try:
            step([*command, "--version"], environ)
            return command
        except Lacks as lacks:
            words.append(str(lacks))
    raise Lacks("; ".join(words))


def version_of(python: str, environ: Mapping[str, str]) -> str:
    ask = "import platform; print(platform.python_version())"
    return step([python, "-c", ask], environ).strip()


WAYS = ("venv", "venv --without-pip, the host's pip")
"""How .venv can be made; the second is for a host without ensurepip (Debian without python3-venv)."""


def empty(venv: Path) -> None:
    """Take out what .venv holds, but for the mark. It may be a link to another disk, so the folder itself stays."""
    for entry in venv.iterdir():
        if entry.name == MARK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def own(venv: Path) -> None:
    """Make the folder .venv, or refuse one that somebody else filled, or that is a link to another checkout's."""
    if venv.is_dir() and not (venv / MARK).exists() and any(venv.iterdir()):
        seen = "was not made by env/bootstrap.py and is left as it is"
        raise SetupError(f"set-up: {venv} {seen}: move it away, run this again")
    try:
        home = Path(json.loads((venv / MARK).read_text(encoding="utf-8"))["python"]).parents[1]
        shared = home != venv and home.samefile(venv)
    except (OSError, ValueError, LookupError, TypeError):
        shared = False
    if shared:
        raise SetupError(
            f"set-up: {venv} is a link to {home}, which it serves: remove the link, run this again"
        )
    venv.mkdir(exist_ok=True)
    if not (venv / MARK).exists():
        (venv / MARK).touch()


def resume(venv: Path, environ: Mapping[str, str]) -> Made | None:
    """What an interrupted set-up left, where it can be gone on with; packages that arrived by half are taken out."""
    try:
        made = made_from(json.loads((venv / MARK).read_text(encoding="utf-8")))
        step([*made.pip, "--version"], environ)
        inside = made.python.startswith(f"{venv}{os.sep}")
        if not inside or version_of(made.python, environ) != made.version:
            return None
    except (OSError, ValueError, KeyError, TypeError, Lacks):
        return None
    for info in packages_folder(venv).glob("*.dist-info"):
        # pip writes RECORD last; without it the package counts as installed and is not.
        if not (info / "RECORD").exists():
            shutil.rmtree(info)
    return made


def packages_folder(venv: Path) -> Path:
    return next(iter(sorted(venv.glob("lib/python3.*/site-packages"))), venv)


def link_checkout(root: Path) -> None:
    """Make `import helpers` work in every program of .venv, from any folder: a line of a .pth file, as pip's -e writes it."""
    write_whole(packages_folder(root / ".venv") / "vram-casebook.pth", f"{root}\n")


def make(host: str, root: Path, environ: Mapping[str, str], os_release: str) -> Made:
    """Make an empty .venv in the first way that this host allows; SetupError names the package that is lacking."""
    venv, lacks = root / ".venv", []
    python = str(venv / "bin/python")
    for way in WAYS:
        empty(venv)
        try:
            step([host, "-m", *way.partition(",")[0].split(), str(venv)], environ)
            own = [python, "-m", "pip"]
            if way == WAYS[0]:
                step([*own, "--version"], environ)
            else:
                own = pip_of_host(host, root, python, environ)
            made = Made(way, python, version_of(python, environ), tuple(own))
        except Lacks as lack:
            lacks.append(f"{way}: {lack}")
            continue
        write_whole(venv / MARK, json.dumps(asdict(made)))
        return made
    empty(venv)
    why, do = "; ".join(lacks), package_to_install(os_release)
    raise SetupError(f"set-up: cannot make .venv ({why}). Do: {do}\n{WORKS_NOW}")


@dataclass(frozen=True)
class Filler:
    """Installs into .venv with the pip it was made with. ``kept``: the user's own sources, as ``pip.settings`` reads them."""

    root: Path
    made: Made
    environ: Mapping[str, str]
    kept: Mapping[str, str]

    @property
    def wheelhouse(self) -> Path:
        return self.root / "wheelhouse"

    @property
    def log(self) -> Path:
        return self.root / ".venv/setup.log"

    def install(
        self,
        label: str,
        locks: Sequence[Path] = (),
        torch: str | None = None,
        options: Sequence[str] = (),
        wheelhouse: Path | None = None,
        limits: Mapping[str, str] = MappingProxyType({}),
    ) -> pip.Outcome:
        """Install locks or a build of torch, shown under ``label``; a wheelhouse folder is the only source where there is one."""
        house = wheelhouse or self.wheelhouse
        own = ["--find-links", str(house)] if house.is_dir() else []
        argv = pip.command(self.made.pip, "install", locks, torch, (*own, *options))
        env = pip.environment(self.environ, self.kept, house) | dict(limits)
        if limits:
            env.pop("PIP_DEFAULT_TIMEOUT", None)
        progress = pip.Progress(label, sum(len(pip.pins(lock)) for lock in locks) or 1)
        outcome = pip.run(argv, env, progress, self.log, packages_folder(self.root / ".venv"))
        if outcome.code == 0:
            progress.show(final=True)
        return outcome
