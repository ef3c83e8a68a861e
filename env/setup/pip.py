"""Every call of pip, and of uv where a source serves it, is spelt here, and run here with its progress shown.

uv takes the same words and an eighth of the processor time; pip fetches it, and does what it cannot.

No call can pick a torch build by itself: torch is only ever named with an exact local version ("2.13.0+cpu"), and what is
installed from a lock comes without its dependencies, so that no other package can pull torch in either.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    **{"PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1", "PIP_COMPILE": "0"},
}
"""What every installing pip runs with. Most of what is installed is never imported; Python compiles what is."""
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


UV = {
    **{
        "INDEX_URL": "UV_DEFAULT_INDEX",
        "EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL",
        "PROXY": "ALL_PROXY",
    },
    **{
        "CERT": "SSL_CERT_FILE",
        "CLIENT_CERT": "SSL_CLIENT_CERT",
        "TRUSTED_HOST": "UV_INSECURE_HOST",
    },
    **{"DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT", "TIMEOUT": "UV_HTTP_TIMEOUT"},
    **{"RETRIES": "UV_HTTP_RETRIES", "KEYRING_PROVIDER": "UV_KEYRING_PROVIDER"},
}
"""pip's settings, and what uv calls them."""


def for_uv(environ: Mapping[str, str], kept: Mapping[str, str]) -> dict[str, str]:
    """The environment of a uv call: the user's own sources as pip has them, and no settings of uv's own."""
    env = {name: value for name, value in clean(environ).items() if not name.startswith("UV_")}
    env |= {UV[name[4:]]: value for name, value in kept.items() if name[4:] in UV}
    env |= {"UV_FIND_LINKS": ",".join(kept.get("PIP_FIND_LINKS", "").split())}
    env |= dict.fromkeys(("UV_NO_CONFIG", "UV_NO_PROGRESS"), "1")
    env |= {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
    return {name: value for name, value in env.items() if value}


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
    """How far it all is: one share that only rises, on standard error, in place on a terminal, else in plain lines.

    Shown while it is entered, by a thread. `site` is where packages arrive, `cache` where uv unpacks them, `expected` how
    many there will be; `held` is a file that the calls keep open.
    """

    def __init__(self, label: str, held: int | None = None) -> None:
        self.label = label
        self.held = () if held is None else (held,)
        self.site = Path("/nonexistent")
        self.cache = Path("/nonexistent")
        self.terminal = sys.stderr.isatty() and sys.stdout.isatty()
        self.began = self.shown = time.monotonic()
        self.doing = "starting"
        self.kind = ""
        self.expected = 0
        self.done = 0.0
        self.most = 0.0
        self.bytes = 0
        self.call_bytes = 0
        self.lock = threading.RLock()
        self.over = threading.Event()
        self.look: Callable[[], None] = lambda: None
        self.ticker = threading.Thread(target=self.tick, daemon=True)

    def __enter__(self) -> Progress:
        self.ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.ticker.join()
        self.clear()

    def run(self, argv: Sequence[str], env: Mapping[str, str], log: Path, expected: int) -> Outcome:
        """Run one call about so many packages and keep all it says in `log`; the child never outlives this."""
        with open(log, "a", encoding="utf-8") as kept:
            words = argv[argv.index("--only-binary=:all:") - 1 :]
            kept.write(f"$ {'uv ' * ('uv' in argv)}pip {' '.join(words)}\n")
            kept.flush()
            began = kept.tell()
            before = self.there(self.site)
            fetched = self.there(self.cache)
            how = {**QUIET, "stdout": kept, "pass_fds": self.held}
            child = subprocess.Popen(argv, env=env, **how)

        def look() -> None:
            """One package counts half when it is fetched and half when it is unpacked."""
            text = printed(log, began)
            named = PACKAGE.findall(text)
            total = expected - len(re.findall(r"^Ignoring ", text, re.MULTILINE))
            resolved = re.search(r"^Resolved (\d+) package", text, re.MULTILINE)
            total = max(1, int(resolved[1]) if resolved else total)
            come = len(self.there(self.site) - before)
            got = max(len(named), len(self.there(self.cache) - fetched), come)
            last = f" {re.split('[=<>!~]|-[0-9]', os.path.basename(named[-1]))[0]}" if named else ""
            unpacking = come or re.search("^(Installing|Prepared) ", text, re.MULTILINE)
            self.doing = "unpacking" if unpacking else f"fetching{last or ' packages'}"
            share = min(1.0, (got + come) / 2 / total)
            self.most = max(self.most, (self.done + share * expected) / max(self.expected, 1))
            with contextlib.suppress(OSError, AttributeError):
                io = Path(f"/proc/{child.pid}/io").read_text()
                self.call_bytes = int(re.search(r"wchar: (\d+)", io)[1])  # type: ignore[index]

        self.look = look
        try:
            child.wait()
        finally:
            stop(child)
            with self.lock:
                self.look = lambda: None
                self.done += expected if child.returncode == 0 else 0
                self.bytes = self.bytes + self.call_bytes
                self.call_bytes = 0
        text = printed(log, began)
        lines = [line for line in text.splitlines() if line.strip()] or ["pip printed nothing"]
        last = ([line for line in lines if line.startswith("ERROR:")] or lines)[-1]
        if "ProxyError" in text:
            last = f"the proxy that is set does not answer; {last.removeprefix('ERROR: ')}"
        no_network = bool(NO_NETWORK.search(text))
        no_space = bool(NO_SPACE.search(text))
        return Outcome(child.returncode, last.removeprefix("ERROR: ").strip(), no_network, no_space)

    def there(self, folder: Path) -> set[str]:
        """The packages that lie in a folder."""
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
            return {name for name in names if folder == self.cache or name.endswith(".dist-info")}
        return set()

    def say(self, line: str) -> None:
        """A line of its own, above the count."""
        with self.lock:
            self.clear()
            print(line, file=sys.stderr, flush=True)
            self.shown = time.monotonic()

    def clear(self) -> None:
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def tick(self) -> None:
        while not self.over.wait(0.5):
            with self.lock:
                self.show()

    def show(self) -> None:
        self.look()
        now = time.monotonic()
        kind = self.doing.split(" ")[0]
        figures = [f"{self.most:.0%}", f"{now - self.began:.0f} s"]
        elapsed = now - self.began
        if self.bytes + self.call_bytes > 1e6:
            figures.insert(1, f"{(self.bytes + self.call_bytes) / 1e6:.0f} MB written")
        if 0.1 < self.most < 1 and elapsed > 5:
            figures.append(f"about {elapsed / self.most - elapsed:.0f} s left")
        line = f"  {self.label}: {', '.join(figures)}: {self.doing}"
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{line[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self.shown >= (2 if kind != self.kind else 10):
            print(line, file=sys.stderr, flush=True)
            self.shown = now
            self.kind = kind


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
