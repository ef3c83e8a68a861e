"""Boxes by name: this one (``live``), a bundle by its path, or a recorded box from env/boxes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.ground.places import CHECKOUT
from helpers.ground.units import LONGEST_SEEN, cut
from helpers.look.bundle import Bundle, open_bundle

from . import files
from .archive import BundleError

RECORDED = CHECKOUT / "env" / "boxes"
NO_CHECKOUT = "the recorded boxes, which only a checkout has"


def recorded_names() -> list[str]:
    """Names of the recorded boxes."""
    return sorted(path.parent.name for path in RECORDED.glob("*/manifest.json"))


def open_box(box: str) -> Bundle:
    """The bundle of a box. ``box`` is ``live`` for this box, which is captured now; the name of a
    recorded box; or the path of a bundle.

    Raises BundleError; for a word without a slash that is neither a name nor a file here, the error
    lists the names that exist.
    """
    if box == "live":
        return _captured_now()
    if box in recorded_names():
        return open_bundle(RECORDED / box)
    # os.path.exists is False also for a name that is too long.
    if "/" not in box and not os.path.exists(box):
        names = ", ".join(recorded_names())
        if not names:
            names = NO_CHECKOUT
        seen = cut(box, LONGEST_SEEN)
        raise BundleError(
            f"box {seen!r}: expected live, a bundle's path, or one of {names}"
        )
    return open_bundle(box)


def is_this_box(bundle: Bundle) -> bool:
    """Whether the bundle was captured on this machine since it booted, so that a check that runs
    now is a check of that box.
    """
    boot_id = files.boot_id()
    boot_ids = [row.get("boot_id") for row in bundle.table("host")]
    return bundle.kind == "live" and boot_id != "" and boot_id in boot_ids


def _captured_now() -> Bundle:
    """A bundle of this box, captured by a child process: the caller may be a Jupyter kernel with
    threads, where the forks of a capture are not safe.
    """
    program = CHECKOUT / "helpers" / "__main__.py"
    if not CHECKOUT.is_dir():
        program = CHECKOUT  # capture.pyz, one file with the whole package
    with tempfile.TemporaryDirectory(prefix="casebook-") as folder:
        out = Path(folder, "box")
        done = subprocess.run(
            [sys.executable, "-I", str(program), "capture", "--out", str(out)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if not out.exists():
            lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
            words = "no words"
            if lines:
                words = lines[-1]
            raise BundleError(
                f"capture of this box ended with exit code {done.returncode}: {words}"
            )
        return open_bundle(out)
