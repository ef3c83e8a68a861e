"""What is carried to a box without a network: the folder of wheels, and capture with diagnose as one file."""

from __future__ import annotations

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
    sys.exit("capture.pyz: Python %s seen, 3.8 or newer expected" % sys.version.split()[0])

from helpers.cli import main

sys.exit(main(sys.argv[1:] if sys.argv[1:2] in (["capture"], ["diagnose"]) else ["capture"] + sys.argv[1:]))
"""
ROOMS = "ground ground/child look look/under_torch judge settings allocator tell".split()
PACKED = (
    *(f"{room}/*" for room in ROOMS),
    *(
        f"commands/{name}.py"
        for name in ("__init__", "diagnose", "gone", "options", "signs", "use")
    ),
    "commands/gone.json",
    "*.py",
)
"""What capture, and diagnose of a text, a snapshot or a bundle, stand on: the standard library, and these of helpers/."""


def wheelhouse(call: Call) -> int:
    """Download the wheels of every set for this Python and processor, and torch where something serves it."""
    root = call.root
    host = sys.executable
    try:
        own = venv.pip_of_host(host, "", call.environ)
    except venv.Lacks as lack:
        do = "use a Python that has one, PYTHON=.."
        raise SetupError(f"wheelhouse: {host} has no pip ({lack}): {do}") from lack
    folder = root / "wheelhouse"
    part = root / "wheelhouse.part"
    part.mkdir(exist_ok=True)
    log = part / "download.log"
    kept = pip.settings(own, call.environ)
    env = pip.environment(call.environ, kept, root / "no wheelhouse")
    every = [root / "env" / files[0] for files in stamp.SETS.values()]
    sizes = {lock: len(pip.pins(lock)) for lock in every if lock.exists()}
    name = f"{torch_build.version(root)}+cpu"
    with pip.Progress("wheels") as progress:
        progress.expected = sum(sizes.values()) + len(pip.pins(root / "env/torch.txt"))

        def download(
            locks: Sequence[Path], torch: str | None = None, options: Sequence[str] = ()
        ) -> pip.Outcome:
            argv = pip.command(own, "download", locks, torch, ("--dest", str(part), *options))
            return progress.run(argv, env, log, sum(sizes.get(lock, 1) for lock in locks))

        for lock in sizes:  # one call each: pip refuses a pin that two locks name
            outcome = download([lock])
            if outcome.code:
                raise SetupError(f"wheelhouse: pip stopped ({outcome.said}); see {log}")
        env |= venv.SOON
        for options in ((), ("--extra-index-url", f"{torch_build.TORCH_INDEX}/cpu")):
            outcome = download((), name, options)
            if outcome.code == 0:
                env["PIP_FIND_LINKS"] = f"{kept.get('PIP_FIND_LINKS', '')} {part}"
                outcome = download([root / "env/torch.txt"])
                break
    if outcome.code:
        print(f"without torch {name}: {outcome.said}", file=sys.stderr)
    for wheel in venv.wheels_of_pip(host, root, call.environ):
        shutil.copy2(wheel, part)
    log.unlink()
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(part, folder)
    wheels = [wheel.stat().st_size for wheel in folder.glob("*.whl")]
    size = f"{len(wheels)} wheels, {sum(wheels) / 2**20:.0f} MiB"
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {os.uname().machine}"
    print(f"{folder}: {size}, for {python}; copy it beside env/ on the other box")
    return 0


def pack(helpers: Path, target: Path) -> None:
    """Packs capture, and diagnose of a text or a bundle, with the programs for torch's own Python,
    into one file.
    """
    with tempfile.TemporaryDirectory() as work:
        for path in (path for these in PACKED for path in helpers.glob(these) if path.is_file()):
            packed = Path(work, "helpers", path.relative_to(helpers))
            packed.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, packed)
        Path(work, "__main__.py").write_text(CAPTURE_MAIN, encoding="utf-8")
        whole = target.with_suffix(".part")
        zipapp.create_archive(work, whole, interpreter="/usr/bin/env python3", compressed=True)
        os.replace(whole, target)


def capture_pyz(call: Call) -> int:
    target = call.root / "capture.pyz"
    pack(call.root / "helpers", target)
    use = "python3 capture.pyz takes a bundle, python3 capture.pyz diagnose BUNDLE reads one"
    print(f"{target}: {target.stat().st_size} bytes; {use}")
    return 0
