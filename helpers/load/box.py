"""The functional checks of one box in one call: where they may run, under which interpreter, and why not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from helpers.load.checks import (
    DEFAULT,
    FORCED,
    LADDER,
    PAIRS,
    CheckResult,
    Limits,
    as_rows,
    run_checks,
)
from helpers.load.targets import gpu_targets
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus
from helpers.look.kernel_log import Event, events

STAMP = Path(__file__).resolve().parents[2] / ".venv" / "casebook.json"


def torch_interpreter() -> str:
    """The interpreter that owns torch, as set-up recorded it; without a record the one that runs now."""
    try:
        recorded = json.loads(STAMP.read_text()).get("torch_python")
    except (OSError, ValueError, AttributeError):
        recorded = None
    return recorded if isinstance(recorded, str) and recorded else sys.executable


@lru_cache(maxsize=8)
def torch_files(python: str) -> tuple[str, str]:
    """Where ``python`` would import torch from, and its version of Python, such as cp311; torch itself is not imported.

    Empty where there is none, and both where there is no such interpreter.
    """
    code = (
        "import importlib.util as u, sys; s = u.find_spec('torch'); print('torch:', s.origin if s and s.origin else '');"
        "print('cp%d%d' % sys.version_info[:2])"
    )
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return "", ""
    origin, _, tag = done.stdout.rpartition("torch:")[2].strip().rpartition("\n")
    return origin.strip(), tag


def is_this_box(bundle: Bundle) -> bool:
    """Whether the bundle was taken on this machine since it booted, so that checks here are checks of that box."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return False
    return bundle.kind == "live" and any(
        row.get("boot_id") == booted for row in bundle.table("host")
    )


def check_box(
    bundle: Bundle,
    *,
    gpu: str = "",
    ladder: bool = False,
    pairs: bool = False,
    to_the_limit: bool = False,
    torch_python: str = "",
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks on every GPU of this box that nobody else uses, or on ``gpu`` alone and in any case.

    Empty for a box that is not this machine. Raises ValueError when ``gpu`` is no GPU of this box.
    """
    if not is_this_box(bundle):
        return []
    found: tuple[Gpu, ...] = gpus(bundle)
    log: Sequence[Event] = [event for event in events(bundle) if event.boot == 0]
    names = DEFAULT + (LADDER if ladder else ()) + (PAIRS if pairs else ())
    targets = gpu_targets(found, log, force=bool(gpu), only=gpu)
    limits = replace(FORCED if gpu else Limits(), to_the_limit=to_the_limit)
    return run_checks(torch_python or torch_interpreter(), targets, names, limits, on_result)


def check_rows(bundle: Bundle, wanted: bool = True, **options: object) -> list[list[str]]:
    """The checks as a table with its header first, or one row that says why none was run."""
    why = "" if wanted else "not asked for"
    if wanted and not is_this_box(bundle):
        why = f"not run because {bundle.box} is not this machine, or not since it booted"
    if why:
        return [["GPU", "check", "state", "says"], ["-", "all", "not_run", why]]
    return as_rows(check_box(bundle, **options), people=True)  # type: ignore[arg-type]
