"""A worker of a tuning study: takes parameters, line by line, runs the objective, cleans up, and tells what is left of memory.

    python -c "from helpers.torchside.tuning_trial import main; main()" objective.py:function [THREADS]

Each line of stdin is one trial (``number``, ``params``), each line that it tells is one answer. Whether the context still lives
after a failure is measured by using it: after a device-side assert every later call fails, after out of memory none does. It
ends with its stdin. It never writes the study's storage. Without torch it measures the process's anonymous memory.

With THREADS, so many trials run at once in this process: one context and one allocator, whose peak is then the process's from
its start on, and what is left is told only by a trial that ends while no other runs.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO


def resident_bytes() -> int:
    """Anonymous memory of this process, from /proc/self/status (RssAnon, Linux 4.5 and later; else 0)."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


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
    return torch if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None


def run(objective: Callable[[dict[str, Any]], float], asked: dict[str, Any], shared: bool = False) -> dict[str, Any]:
    """One trial and its cleanup: the value or the failure's message, bytes at the peak and left, whether the context lives.

    ``shared``: other trials run in this process, so the peak is not begun anew.
    """
    torch = _gpu()
    if torch is not None and not shared:
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
            told.update(peak_bytes=torch.cuda.max_memory_reserved(), left_bytes=torch.cuda.memory_allocated(), context="alive")
    except RuntimeError as error:
        # An exhausted card can refuse even this one allocation: that context lives.
        told.update(context="alive" if "out of memory" in str(error).lower() else "dead", context_says=str(error)[:400])
    told["cleanup_s"] = round(time.monotonic() - began - told["seconds"], 4)
    return told


def serve(objective: Callable[[dict[str, Any]], float], asked: TextIO, out: TextIO, threads: int = 1) -> None:
    """Trials from ``asked`` to its end, answers to ``out``; ``threads`` of them at once."""
    lock, running, other_ended = threading.Lock(), 0, 0.0

    def one(line: str) -> None:
        nonlocal running, other_ended
        with lock:
            running += 1
        began = time.monotonic()
        told = run(objective, json.loads(line), threads > 1)
        with lock:
            running -= 1
            if running or other_ended > began + told["seconds"]:
                told.pop("left_bytes", None)  # it counts what the others had in hand
            other_ended = time.monotonic()
            out.write(json.dumps(told) + "\n")
            out.flush()

    if threads == 1:
        for line in asked:
            one(line)
        return
    with ThreadPoolExecutor(threads) as pool:
        for line in asked:
            pool.submit(one, line)


def main() -> None:
    # What the objective prints must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(loaded(sys.argv[1]), sys.stdin, out, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
