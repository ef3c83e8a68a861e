"""What is carried to a box without a network: the folder of wheels, and capture as one file."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import zipapp
from collections.abc import Sequence
from pathlib import Path

from . import SetupError, pip, stamp, torch_build, venv
from .call import Call

CAPTURE_MAIN = """\
import sys

if sys.version_info < (3, 8):
    sys.exit("capture: Python %s seen, 3.8 or newer expected" % sys.version.split()[0])

from helpers.look.capture import main

sys.exit(main())
"""


GROUND = ("__init__.py", "child.py", "shapes.py", "units.py", "grammar.py", "messages.json")
"""What helpers/look stands on; the messages are the data by which it reads a kernel's log."""


def wheelhouse(call: Call) -> int:
    """Download the wheels of the base and test sets for this Python and processor, and torch where something serves it."""
    root, host = call.root, sys.executable
    try:
        own = venv.pip_of_host(host, root, "", call.environ)
    except venv.Lacks as lack:
        do = "use a Python that has one, PYTHON=.."
        raise SetupError(f"wheelhouse: {host} has no pip ({lack}): {do}") from lack
    folder, part = root / "wheelhouse", root / "wheelhouse.part"
    part.mkdir(exist_ok=True)
    log = part / "download.log"
    kept = pip.settings(own, call.environ)
    env = pip.environment(call.environ, kept, root / "no wheelhouse")
    locks = [root / "env" / stamp.SETS[name][0] for name in ("base", "test")]
    progress = pip.Progress("wheels", sum(len(pip.pins(lock)) for lock in locks))

    def download(
        locks: Sequence[Path], torch: str | None = None, options: Sequence[str] = ()
    ) -> pip.Outcome:
        argv = pip.command(own, "download", locks, torch, ("--dest", str(part), *options))
        return pip.run(argv, env, progress, log)

    for lock in locks:  # one call each: pip refuses a pin that two locks name
        outcome = download([lock])
        if outcome.code:
            raise SetupError(f"wheelhouse: pip stopped ({outcome.said}); see {log}")
    name, progress = f"{torch_build.version(root)}+cpu", pip.Progress("torch", 1)
    env["PIP_RETRIES"] = "1"
    for options in ((), ("--extra-index-url", f"{torch_build.TORCH_INDEX}/cpu")):
        outcome = download((), name, options)
        if outcome.code == 0:
            env["PIP_FIND_LINKS"] = f"{kept.get('PIP_FIND_LINKS', '')} {part}"
            outcome = download([root / "env/torch.txt"])
            break
    if outcome.code:
        print(f"without torch {name}: {outcome.said}", file=sys.stderr)
    for wheel in pip_wheels():
        shutil.copy2(wheel, part)
    log.unlink()
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(part, folder)
    sizes = [wheel.stat().st_size for wheel in folder.glob("*.whl")]
    size = f"{len(sizes)} wheels, {sum(sizes) / 2**20:.0f} MiB"
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {os.uname().machine}"
    print(f"{folder}: {size}, for {python}; copy it beside env/ on the other box")
    return 0


def pip_wheels() -> list[Path]:
    """The wheel of pip that Python brings for its venv module (Debian keeps it elsewhere); a box without pip runs that."""
    spec = importlib.util.find_spec("ensurepip")
    bundled = Path(str(spec.origin)).parent / "_bundled" if spec else Path("/nonexistent")
    return [*bundled.glob("pip-*.whl"), *Path("/usr/share/python-wheels").glob("pip-*.whl")][:1]


def capture_pyz(call: Call) -> int:
    """Pack helpers/look, what it stands on, and the program of helpers/torchside for torch's own Python, into a file."""
    target = call.root / "capture.pyz"
    with tempfile.TemporaryDirectory() as work:
        package = Path(work, "helpers")
        package.mkdir()
        for name in GROUND:
            if (call.root / "helpers" / name).is_file():
                shutil.copy2(call.root / "helpers" / name, package)
        left_out = shutil.ignore_patterns("__pycache__")
        for name in ("look", "torchside"):
            if (call.root / "helpers" / name).is_dir():
                shutil.copytree(call.root / "helpers" / name, package / name, ignore=left_out)
        Path(work, "__main__.py").write_text(CAPTURE_MAIN, encoding="utf-8")
        whole = target.with_suffix(".part")
        zipapp.create_archive(work, whole, interpreter="/usr/bin/env python3", compressed=True)
        os.replace(whole, target)
    print(f"{target}: {target.stat().st_size} bytes; run it with python3 capture.pyz")
    return 0
