"""How is .venv made on this host? The ordinary way, or with the host's pip where Python came without one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from . import SetupError, pip
from .stamp import Made, write_whole

STEP_LIMIT_S = 600
MARK = "made-by-bootstrap"
BUSY = "set-up-is-busy"
CACHE = ".uv"
UV = "env/requirements-maintain.txt"
SOON = {"PIP_RETRIES": "1", "PIP_TIMEOUT": "15"}
"""For what set-up can do without; a slow line still gets its download, for these limit only the waiting."""
# What brings pip and venv, by the name that /etc/os-release has for the distribution or for the one it is like.
PACKAGES = (
    ("debian ubuntu", "apt-get install python3-venv"),
    ("fedora rhel centos", "dnf install python3-pip"),
    ("arch", "pacman -S python-pip"),
    ("suse opensuse", "zypper install python3-pip"),
    ("alpine", "apk add py3-pip"),
)
WORKS_NOW = "Works right now, with nothing installed: python3 -m helpers capture, or diagnose --message FILE"

COMMAND = """\
#!/bin/sh
# The workbook's command: it runs under the workbook's own Python (-I: whatever Python its caller has), and starts the
# caller's programs in the caller's environment.
if [ ! -x {python} ]; then
    echo "casebook:" {python} "cannot be run: gone, or not yours to run; run make setup in the checkout again" >&2
    exit 2
fi
exec {python} -I {program} "$@"
"""


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
    return str(done.stdout)


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search("No module named|ensurepip is not avail", line)]
    return (telling[:1] or lines[-1:] or ["no word of why"])[0]


def wheels_of_pip(host: str, root: Path, environ: Mapping[str, str]) -> list[Path]:
    """The wheel of pip that a Python brings for its venv module (Debian keeps it elsewhere), and that of wheelhouse/."""
    ask = "import ensurepip; print(ensurepip.__path__[0])"
    with contextlib.suppress(Lacks):
        bundled = Path(step([host, "-c", ask], environ).strip(), "_bundled")
        folders = [bundled, Path("/usr/share/python-wheels")]
        found = [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]
        if found:
            return found[:1]
    return sorted((root / "wheelhouse").glob("pip-*.whl"))[-1:]


def pip_of_host(host: str, python: str, environ: Mapping[str, str]) -> list[str]:
    """The host's own pip, which fills another Python's folder (pip 22.3 or newer)."""
    command = [host, "-m", "pip", *(["--python", python] if python else [])]
    step([*command, "--version"], environ)
    return command


def unpack_pip(wheel: Path, venv: Path) -> None:
    """Put pip into .venv from its wheel, which is Python alone; pip's own way takes 40 times as long."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(packages_folder(venv))
    script = venv / "bin/pip"
    script.write_text('#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n')
    script.chmod(0o755)


def version_of(python: str, environ: Mapping[str, str]) -> str:
    ask = "import platform; print(platform.python_version())"
    return step([python, "-c", ask], environ).strip()


def empty(venv: Path) -> None:
    """Take out what .venv holds, but for the mark and what was fetched. It may be a link to another disk, so it stays itself."""
    for entry in venv.iterdir():
        if entry.name in (MARK, CACHE):
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


def packages_folder(venv: Path) -> Path:
    return next(iter(sorted(venv.glob("lib/python3.*/site-packages"))), venv)


def link_checkout(root: Path) -> None:
    """Make `import helpers` and `%load_ext vram_casebook` work in every program of .venv, from any folder: lines of a
    .pth file, as pip's -e writes it."""
    lines = f"{root}\n{root / 'helpers/magics/extension'}\n"
    write_whole(packages_folder(root / ".venv") / "vram-casebook.pth", lines)


def command_of(root: Path) -> Path:
    return root / ".venv/bin/casebook"


def command_text(root: Path) -> str:
    """The script of the command, by the full path of this checkout: a link to it works, and a PATH without it, too."""
    python = shlex.quote(str(root / ".venv/bin/python"))
    return COMMAND.format(python=python, program=shlex.quote(str(root / "helpers/__main__.py")))


def has_command(root: Path) -> bool:
    try:
        return command_of(root).read_text(encoding="utf-8") == command_text(root)
    except OSError:
        return False


def write_command(root: Path) -> None:
    write_whole(command_of(root), command_text(root), mode=0o755)


def how_to_call(root: Path, environ: Mapping[str, str]) -> str:
    """How the command is called from any folder, in one line: by its name where PATH has it, else how to bring it there.

    Not .venv/bin on PATH: that would put the workbook's Python before the caller's own.
    """
    command = command_of(root)
    folders = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    there = shutil.which("casebook", path=environ.get("PATH", ""))
    if there and os.path.realpath(there) == os.path.realpath(command):
        return "in any folder: casebook --help"
    quoted = shlex.quote(str(command))
    homes = [Path(environ["HOME"]) / name for name in (".local/bin", "bin") if environ.get("HOME")]
    for folder in (*homes, Path("/usr/local/bin")):
        if folder in folders and os.access(folder, os.W_OK):
            link = f"ln -sf {quoted} {shlex.quote(str(folder))}/"
            return f"to call casebook in any folder: {link}"
    return f"to call casebook in any folder: alias casebook={shlex.quote(quoted)}"


def make(host: str, root: Path, environ: Mapping[str, str], os_release: str) -> Made:
    """Make an empty .venv with a pip to fill it; SetupError names the package that is lacking."""
    venv = root / ".venv"
    python = str(root / ".venv/bin/python")
    empty(venv)
    try:
        step([host, "-m", "venv", "--without-pip", str(venv)], environ)
        wheels = wheels_of_pip(host, root, environ)
        if wheels:
            unpack_pip(wheels[0], venv)
        way = f"venv, {wheels[0].name}" if wheels else "venv, the host's pip"
        own = [python, "-m", "pip"] if wheels else pip_of_host(host, python, environ)
        made = Made(way, python, version_of(python, environ), tuple(own))
    except Lacks as lacks:
        empty(venv)
        do = f"Do: {package_to_install(os_release)}"
        raise SetupError(f"set-up: cannot make .venv ({lacks}). {do}\n{WORKS_NOW}") from lacks
    write_whole(venv / MARK, json.dumps(asdict(made)))
    return made


@dataclass(frozen=True)
class Filler:
    """Installs into .venv with the pip it was made with. ``kept``: the user's own sources, as ``pip.settings`` reads them."""

    root: Path
    made: Made
    environ: Mapping[str, str]
    kept: Mapping[str, str]
    progress: pip.Progress

    @property
    def wheelhouse(self) -> Path:
        return self.root / "wheelhouse"

    @property
    def log(self) -> Path:
        return self.root / ".venv/setup.log"

    def install(
        self,
        locks: Sequence[Path] = (),
        torch: str | None = None,
        options: Sequence[str] = (),
        house: Path | None = None,
        limits: Mapping[str, str] = MappingProxyType({}),
    ) -> pip.Outcome:
        """Install locks or a build of torch, by uv where it is there; a wheelhouse folder is the only source where there is one."""
        house = house or self.wheelhouse
        own = ["--find-links", str(house)] if house.is_dir() else []
        env = pip.environment(self.environ, self.kept, house) | dict(limits)
        if limits:
            env.pop("PIP_DEFAULT_TIMEOUT", None)
        expected = sum(len(pip.pins(lock)) for lock in locks) or 1
        if (packages_folder(self.root / ".venv") / "uv").is_dir() and locks != [self.root / UV]:
            offline = ["--no-index"] if env.get("PIP_NO_INDEX", "0") not in ("", "0") else []
            uv = [self.made.python, "-m", "uv", "pip"]
            argv = pip.command(uv, "install", locks, torch, (*own, *offline, *options))
            kept = {name: value for name, value in env.items() if name.startswith("PIP_")}
            here = {"VIRTUAL_ENV": str(self.root / ".venv"), "UV_CACHE_DIR": str(self.cache)}
            uv_env = pip.for_uv(self.environ, kept) | here
            outcome = self.progress.run(argv, uv_env, self.log, expected)
            if outcome.code == 0:
                return outcome
        argv = pip.command(self.made.pip, "install", locks, torch, (*own, *options))
        return self.progress.run(argv, env, self.log, expected)

    def fetch_uv(self) -> None:
        """Where nothing serves uv, pip does all; a box without a network must learn it soon."""
        if (self.root / UV).exists():
            self.install([self.root / UV], limits=SOON)

    @property
    def cache(self) -> Path:
        return self.root / ".venv" / CACHE
