"""Maintainers' tool over uv: `lock` pins what fits, `check` proves that the pins install from wheels wherever they must.

Runs under .venv's Python, where the set "maintain" has put uv; needs the network, and is no part of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ENV = Path(__file__).resolve().parent
sys.path[:1] = [str(ENV)]

from setup import pip, torch_build  # noqa: E402

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
LOCKS = ("requirements.txt", "requirements-test.txt", "requirements-maintain.txt")
# torch last: its lock is constrained by the first one.
COMPILED = ("requirements", "requirements-test", "torch")
ENVIRONMENT = ENV.parent / "environment.yml"
ELSEWHERE = re.compile(
    r" ; (?:python_full_version [<>=]+ '[0-9.]+' and )?sys_platform == '(?:darwin|win32)'$"
)
INDEX = (
    f"--extra-index-url {torch_build.TORCH_INDEX}/cpu --index-strategy unsafe-best-match".split()
)


def uv(arguments: Sequence[str], links: bool = False) -> subprocess.CompletedProcess[str]:
    """One uv call, with the user's index and certificates as pip has them; `links` lets pip's find-links serve too."""
    kept = pip.settings([sys.executable, "-m", "pip"], os.environ)
    named = {
        "UV_DEFAULT_INDEX": kept.get("PIP_INDEX_URL", ""),
        "SSL_CERT_FILE": kept.get("PIP_CERT", ""),
        "UV_FIND_LINKS": ",".join(kept.get("PIP_FIND_LINKS", "").split()) if links else "",
    }
    env = {name: value for name, value in named.items() if value} | pip.clean(os.environ)
    env["UV_PYTHON_DOWNLOADS"] = "never"
    argv = [sys.executable, "-m", "uv", *arguments]
    return subprocess.run(argv, cwd=ENV, env=env, check=False, **pip.QUIET)


def lock(arguments: list[str]) -> int:
    """Write the locks anew from the .in files; a pin that still fits stays, but for --upgrade."""
    for name in COMPILED:
        torch = name == "torch"
        source = f"{name}.in"
        target = f"{name}.txt"
        words = f"pip compile {source} -o {target} --universal --only-binary :all:".split()
        words += ["--python-version", PYTHONS[0], "--custom-compile-command", "make lock"]
        words += arguments
        done = uv(words, links=torch)
        if done.returncode and torch:
            done = uv([*words, *INDEX])
        if done.returncode:
            print(f"lock: {source}: {last(done.stdout)}", file=sys.stderr)
            return 1
        print(f"{target}: {len(pip.pins(ENV / target))} pins")
    ENVIRONMENT.write_text(environment_yml(), encoding="utf-8")
    return 0


def environment_yml() -> str:
    """environment.yml with every pin of the locks, so that nothing beneath the direct requirements is left to the day.

    A line of a lock is one of the file, markers and all: `-r` and `-c` would be paths, which micromamba looks for elsewhere
    (mamba-org/mamba#1894).
    """
    head = ENVIRONMENT.read_text(encoding="utf-8").partition("  - pip:\n")[0]
    locked = [line for name in reversed(COMPILED) for line in pip.pins(ENV / f"{name}.txt")]
    named = {line.partition(" ;")[0]: line for line in locked}.values()  # the base lock's last
    lines = [f"--extra-index-url {torch_build.TORCH_INDEX}/cpu"]
    lines += sorted(line for line in named if not ELSEWHERE.search(line))
    return f"{head}  - pip:\n" + "".join(f"      - {line}\n" for line in lines)


def resolves(
    lock_file: Path, python: str, platform: str, options: Sequence[str] = (), links: bool = False
) -> tuple[int, str]:
    """(packages, "") where every pin of a lock has a wheel there, else (0, why)."""
    with tempfile.TemporaryDirectory() as target:
        words = "pip install --dry-run --no-deps --only-binary :all:".split()
        words += ["--python", sys.executable, "--python-version", python, "--target", target]
        words += ["--python-platform", platform, "-r", str(lock_file), *options]
        done = uv(words, links)
    counted = re.search(r"^Would install (\d+) packages?", done.stdout, re.MULTILINE)
    return (int(counted[1]), "") if done.returncode == 0 and counted else (0, last(done.stdout))


def last(text: str) -> str:
    """The reason in uv's words, on one line."""
    lines = [line.strip(" ╰─▶×│") for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(("cause: ", "Because "))]
    causes = [line.removeprefix("cause: ") for line in causes]
    return "; ".join(causes[-2:] or lines[-1:])


def check(_arguments: list[str]) -> int:
    """Every lock on every Python and processor; the CPU build of torch where something here serves it."""
    failed = unchecked = 0
    with tempfile.TemporaryDirectory() as folder:
        needs = Path(folder, "what torch needs")
        kept = [pin for pin in pip.pins(ENV / "torch.txt") if not pin.startswith("torch==")]
        needs.write_text("\n".join(kept))
        for platform in PLATFORMS:
            for python in PYTHONS:
                began = time.monotonic()
                lines = []
                for lock_file in [*(ENV / name for name in LOCKS), needs]:
                    count, why = resolves(lock_file, python, platform)
                    failed += bool(why)
                    result = f"FAILED: {why}" if why else f"{count} packages"
                    lines.append(f"{lock_file.name} {result}")
                why = resolves(ENV / "torch.txt", python, platform, links=True)[1]
                why = why and resolves(ENV / "torch.txt", python, platform, INDEX)[1]
                unchecked += bool(why)
                lines.append(f"torch not checked because {why}" if why else "torch 1 package")
                head = f"{platform} Python {python} ({time.monotonic() - began:.1f} s)"
                print("\n  ".join([head, *lines]), flush=True)
    combinations = len(PLATFORMS) * len(PYTHONS)
    print(f"check-pins: {combinations} combinations, {failed} failed, {unchecked} without torch")
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    verbs = {"lock": lock, "check": check}
    if not arguments or arguments[0] not in verbs:
        seen = " ".join(arguments) or "nothing"
        print(f"check_pins: {seen} seen, expected one of {', '.join(verbs)}", file=sys.stderr)
        return 2
    return verbs[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
