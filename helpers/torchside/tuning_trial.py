"""A worker of a tuning study: takes parameters, line by line, runs the objective, cleans up, and tells what is left of memory.

    python -c "from helpers.torchside.tuning_trial import main; main()" objective.py:function

Each line of stdin is one trial (``number``, ``params``), each line that it tells is one answer. Whether the context still lives
after a failure is measured by using it: after a device-side assert every later call fails, after out of memory none does. It
ends with its stdin. It never writes the study's storage. Without torch it measures the process's anonymous memory.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def resident_bytes() -> int:
    """Anonymous memory of this process, from /proc/self/status (RssAnon, Linux 4.5 and later; else 0)."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(
            (int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0
        )


def loaded(name: str) -> Callable[[dict[str, Any]], float]:
    """The function of ``file.py:function``."""
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location("objective", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{name}: expected FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def _gpu() -> Any | None:
    torch = sys.modules.get("torch")
    return (
        torch
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        else None
    )


def run(objective: Callable[[dict[str, Any]], float], asked: dict[str, Any]) -> dict[str, Any]:
    """One trial and its cleanup: the value or the failure's message, bytes at the peak and left, whether the context lives."""
    torch = _gpu()
    if torch is not None:
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    told: dict[str, Any] = {"event": "result", "number": asked["number"]}
    try:
        told["value"] = float(objective(asked["params"]))
    except Exception as error:  # noqa: BLE001 - the objective is the user's: whatever it raises is this trial's result
        told["message"] = f"{type(error).__name__}: {error}"[:4000]
    # Only now: while the exception lives, its traceback holds the frames and their tensors.
    told["seconds"] = round(time.monotonic() - began, 4)
    high = resident_bytes()
    gc.collect()
    try:
        torch = _gpu()
        if torch is None:
            told.update(peak_bytes=high, left_bytes=resident_bytes(), context="none")
        else:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.zeros(1, device="cuda").sum().item()
            told.update(
                peak_bytes=torch.cuda.max_memory_reserved(),
                left_bytes=torch.cuda.memory_allocated(),
                context="alive",
            )
    except RuntimeError as error:
        # An exhausted card can refuse even this one allocation: that context lives.
        told.update(
            context="alive" if "out of memory" in str(error).lower() else "dead",
            context_says=str(error)[:400],
        )
    told["cleanup_s"] = round(time.monotonic() - began - told["seconds"], 4)
    return told


def main() -> None:
    # What the objective prints must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    objective = loaded(sys.argv[1])
    for line in sys.stdin:
        out.write(json.dumps(run(objective, json.loads(line))) + "\n")
        out.flush()
