"""Every pip call of the set-up is spelt here, and run here with its progress shown.

No call can pick a torch build by itself: torch is only ever named with an exact local version ("2.13.0+cpu"), and what is
installed from a lock comes without its dependencies, so that no other package can pull torch in either.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXACT_TORCH = re.compile(r"torch==\d+(\.\d+)+\+(cpu|cu\d+|rocm\d+(\.\d+)*)")
PYTHON_VARIABLES = (
    "PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONINSPECT PYTHONOPTIMIZE PYTHONPLATLIBDIR "
    "PYTHONEXECUTABLE PYTHONSAFEPATH"
).split()
# What says where packages come from and how to get there. All else (user, target, prefix, constraint, require-virtualenv,
# no-binary, ...) would put packages elsewhere or choose other ones, and is left out.
KEPT_SETTINGS = (
    "index-url extra-index-url find-links no-index trusted-host proxy cert client-cert timeout "
    "default-timeout retries cache-dir no-cache-dir keyring-provider use-feature use-deprecated"
).split()
FIXED = {
    **{"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"},
    **{"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"},
    **{"PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"},
}
"""What every installing pip runs with."""
INDEX_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX")
NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|name resolution|Name or service not known|Connection refused"
    r"|Network is unreachable|timed out|ProxyError|SSLError|No route to host|from versions: none",
    re.IGNORECASE,
)
PACKAGE = re.compile(
    r"^(?:Collecting|Processing|Requirement already satisfied:) (\S+)", re.MULTILINE
)
QUIET: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
"""How a child is started whose words are read; what is no text is replaced."""
QUIET |= {"stderr": subprocess.STDOUT, "errors": "replace"}
NO_SPACE = re.compile(r"No space left on device|Errno 28|Disk quota exceeded|Errno 122")


@dataclass(frozen=True)
class Outcome:
    """How a pip call ended. `said` is its last word on an error, else its last line.

    `no_network` also where no source has any version: pip without retries does not say that a source was not reached.
    """

    code: int
    said: str
    no_network: bool
    no_space: bool


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would bend another Python than the user's own."""
    return {name: value for name, value in environ.items() if name not in PYTHON_VARIABLES}


def settings(pip: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own index, proxy, certificate and find-links settings, from pip.conf and PIP_*, as environment variables.

    pip cannot unset a constraint or `user = true` of a pip.conf; so pip.conf is read by `pip config list`, what may stay is
    carried over, and the installing pip reads no file at all.
    """
    own = {name: value for name, value in environ.items() if name.startswith("PIP_")}
    # What bends the pip that reads the file (PIP_PYTHON, PIP_REQUIRE_VIRTUALENV) would lose its sources.
    env = {name: value for name, value in clean(environ).items() if name not in own}
    env |= {name: value for name, value in own.items() if name == "PIP_CONFIG_FILE"}
    apart = {**QUIET, "stderr": subprocess.DEVNULL, "timeout": 60, "env": env}
    try:
        listed = subprocess.run([*pip, "config", "list"], check=True, **apart).stdout
    except (OSError, subprocess.SubprocessError):
        listed = ""
    for name, value in own.items():
        listed += f":env:.{name[4:].lower().replace('_', '-')}={value!r}\n"
    found: dict[tuple[int, str], str] = {}
    for line in listed.splitlines():
        shape = re.fullmatch(r"(global|install|:env:)\.([a-z-]+)=(.*)", line)
        if shape and shape[2] in KEPT_SETTINGS:
            place = ("global", "install", ":env:").index(shape[1])
            name = f"PIP_{shape[2].upper().replace('-', '_')}"
            found[place, name] = str(ast.literal_eval(shape[3]))
    return {name: value for (_, name), value in sorted(found.items()) if value}


def environment(
    environ: Mapping[str, str], kept: Mapping[str, str], wheelhouse: Path
) -> dict[str, str]:
    """What an installing pip runs with; where there is a wheelhouse folder, it is the only source."""
    kept = {"PIP_RETRIES": "2", **kept}
    if wheelhouse.is_dir():
        own = {name: value for name, value in kept.items() if name not in INDEX_SETTINGS}
        kept = {**own, "PIP_NO_INDEX": "1"}
    return unbent(environ) | kept | FIXED


def unbent(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would bend another Python or another pip than the user's own."""
    return {name: value for name, value in clean(environ).items() if not name.startswith("PIP_")}


def checked(line: str) -> str:
    """A pin as it stands, or ValueError where it is none, or could bring a torch that nobody named exactly."""
    line = line.split(" #")[0].strip()
    pin = line.split(";")[0].strip()
    if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+", pin):
        raise ValueError(f"a lock holds exact pins only, seen: {line}")
    name = re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower()
    if name == "torch" and not EXACT_TORCH.fullmatch(pin):
        raise ValueError(f"torch must be named with its exact local version, seen: {line}")
    return line


def pins(lock: Path) -> list[str]:
    """The requirement lines of a lock, each checked."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [checked(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]


def command(
    pip: Sequence[str],
    action: str,
    locks: Iterable[Path] = (),
    torch: str | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """The argv of `pip install` or `pip download`: wheels only, locks without dependencies, torch by its exact build.

    A GPU build of torch needs the runtime packages it names, so that one call, which the user has to ask for, is the only
    one that resolves dependencies.
    """
    argv = [*pip, action, "--only-binary=:all:", *options]
    for lock in locks:
        for pin in pins(lock):
            if pin.startswith("torch==") and "+cpu" not in pin:
                raise ValueError(f"a lock names the CPU build of torch or none, seen: {pin}")
        argv += ["-r", str(lock)]
    if torch is None or torch.endswith("+cpu"):
        argv.append("--no-deps")
    elif locks:
        raise ValueError("a GPU build of torch is installed by itself")
    return argv if torch is None else [*argv, checked(f"torch=={torch}")]


class Progress:
    """N of M packages, on standard error: in place on a terminal, else a line every ten seconds."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.terminal = sys.stderr.isatty()
        self.began = self.shown = time.monotonic()

    def show(self, text: str = "", unpacked: int = 0, final: bool = False) -> None:
        """Show how far pip is by what it has printed; while it unpacks it prints nothing, and what has arrived counts."""
        now = time.monotonic()
        if not final and now - self.shown < (0.5 if self.terminal else 10):
            return
        self.shown = now
        named = PACKAGE.findall(text)
        count, total = len(named), self.total - len(re.findall(r"^Ignoring ", text, re.MULTILINE))
        last = f", {re.split(r'==|-[0-9]', os.path.basename(named[-1]))[0]}" if named else ""
        unpacking = re.search(r"^Installing collected packages: (.*)", text, re.MULTILINE)
        if unpacking:
            count, total, last = unpacked, len(unpacking[1].split(",")), ", unpacking"
        how_far = "done" if final else f"{min(count, total)} of {total} packages"
        line = f"  {self.label}: {how_far}, {now - self.began:.0f} s{'' if final else last}"
        end = "\n" if final or not self.terminal else ""
        print(f"\r\033[K{line}" if self.terminal else line, end=end, file=sys.stderr, flush=True)


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    progress: Progress,
    log: Path,
    site: Path | None = None,
) -> Outcome:
    """Run one pip call, show how far it is, keep all it says in `log`; the child never outlives this call."""
    with open(log, "a", encoding="utf-8") as kept:
        kept.write(f"$ pip {' '.join(argv[argv.index('--only-binary=:all:') - 1 :])}\n")
        kept.flush()
        began, before = kept.tell(), arrived(site)
        child = subprocess.Popen(argv, env=env, **{**QUIET, "stdout": kept})
    try:
        while child.poll() is None:
            progress.show(printed(log, began), arrived(site) - before)
            time.sleep(0.05)
    finally:
        stop(child)
        if progress.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    text = printed(log, began)
    lines = [line for line in text.splitlines() if line.strip()] or ["pip printed nothing"]
    last = ([line for line in lines if line.startswith("ERROR:")] or lines)[-1]
    no_network, no_space = bool(NO_NETWORK.search(text)), bool(NO_SPACE.search(text))
    return Outcome(child.returncode, last.removeprefix("ERROR: ").strip(), no_network, no_space)


def printed(log: Path, began: int) -> str:
    return log.read_bytes()[began:].decode(errors="replace")


def stop(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def arrived(site: Path | None) -> int:
    return sum(1 for _ in site.glob("*.dist-info")) if site else 0
