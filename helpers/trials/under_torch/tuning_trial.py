"""A worker of a tuning study: takes parameters, line by line, runs the objective, cleans up,
and tells what is left of memory.

    python -c "from helpers.trials.under_torch.tuning_trial import main; main()" objective.py:function

Each line of stdin is one trial (``number``, ``params``), each line that it tells is one answer.
Whether the context still lives after a failure is measured by using it: after a device-side
assert every later call fails, after out of memory none does. It ends with its stdin. It never
writes the study's storage. Without torch it measures the process's anonymous memory.
"""

from __future__ import annotations

import gc
import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.frame import Row, is_oom, own_bytes


def _gpu() -> Any | None:
    torch = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch if used else None


def answer(objective: Callable[[Row], float], asked: Row) -> Row:
    """One trial and its cleanup: the value or the failure's message, bytes at the peak and
    left, whether the context lives.
    """
    torch = _gpu()
    began = time.monotonic()
    if torch is not None:
        torch.cuda.reset_peak_memory_stats()
    row: Row = {"event": "result", "number": asked["number"]}
    try:
        row["value"] = float(objective(asked["params"]))
    except Exception as error:  # noqa: BLE001 - the objective is the user's: whatever it raises is this trial's result
        row["message"] = f"{type(error).__name__}: {error}"[:4000]
    # Only now: while the exception lives, its traceback holds the frames and their tensors.
    row["seconds"] = round(time.monotonic() - began, 4)
    peak_bytes = own_bytes("RssAnon")
    torch = _gpu()
    gc.collect()
    row |= {"peak_bytes": peak_bytes, "left_bytes": own_bytes("RssAnon"), "context": "none"}
    if torch is not None:
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.zeros(1, device="cuda").sum().item()
            row |= {"peak_bytes": torch.cuda.max_memory_reserved(), "context": "alive"}
            row["left_bytes"] = torch.cuda.memory_allocated()
        except RuntimeError as error:
            # An exhausted card can refuse even this one allocation: that context lives.
            row["context"] = "alive" if is_oom(torch, error) else "dead"
            del row["peak_bytes"], row["left_bytes"]
    row["cleanup_s"] = round(time.monotonic() - began - row["seconds"], 4)
    return row


def trials(name: str) -> Iterator[Row]:
    """An answer to each line of stdin, by the function of ``file.py:function``."""
    path, _, function = name.rpartition(":")
    objective = runpy.run_path(path, run_name="objective")[function]
    for line in sys.stdin:
        yield answer(objective, json.loads(line))


def main() -> None:
    frame.run(trials, sys.argv[1])
