"""Boxes by name: this one (``live``), a bundle by its path, or a recorded box from env/boxes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from helpers.child import CHECKOUT

from . import files
from .archive import BundleError
from .bundle import Bundle, open_bundle

RECORDED = CHECKOUT / "env" / "boxes"


def recorded_names() -> list[str]:
    """Names of the recorded boxes."""
    return sorted(path.parent.name for path in RECORDED.glob("*/manifest.json"))


def open_box(box: str) -> Bundle:
    """The evidence of ``live`` (captured now, in memory), of a recorded box, or of a bundle at a path.

    Raises BundleError: an unknown name is answered with the names that exist.
    """
    if box == "live":
        return _captured_now()
    if (RECORDED / box / "manifest.json").is_file():
        return open_bundle(RECORDED / box)
    if "/" not in box and not Path(box).exists():
        names = ", ".join(recorded_names()) or "the recorded boxes, which only a checkout has"
        raise BundleError(f"box {box!r}: expected live, a bundle's path, or one of {names}")
    return open_bundle(box)


def is_this_box(bundle: Bundle) -> bool:
    """Whether the bundle was taken on this machine since it booted, so that a check run here is a check of that box."""
    booted = files.boot_id()
    boots = [row.get("boot_id") for row in bundle.table("host")]
    return bundle.kind == "live" and bool(booted) and booted in boots


def _captured_now() -> Bundle:
    # In a child: the caller may be a kernel with threads, where the forks of a capture are not safe.
    with tempfile.TemporaryDirectory(prefix="casebook-") as folder:
        out = Path(folder, "box")
        in_folder = CHECKOUT.is_dir()  # else it is the one file that holds the package
        program = ["-m", "helpers"] if in_folder else [str(CHECKOUT)]
        argv = [sys.executable, *program, "capture", "--out", str(out)]
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        pipes["stderr"] = subprocess.STDOUT
        place = CHECKOUT if in_folder else CHECKOUT.parent
        done = subprocess.run(argv, cwd=place, check=False, **pipes)
        if not out.exists():
            words = done.stdout.decode("utf-8", "replace").strip().splitlines() or ["no words"]
            how = f"ended with exit code {done.returncode}: {words[-1]}"
            raise BundleError(f"capture of this box {how}")
        return open_bundle(out)
