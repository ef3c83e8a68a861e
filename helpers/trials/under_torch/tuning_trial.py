"""One trial of a tuning study: runs the user's objective in this process, and tells what came of it.

Its options: ``objective`` (``FILE.py:FUNCTION``) and ``params``. Whether the GPU's context lives
after a failure is measured by using it: after a device-side assert every later call fails, after
out of memory none does. It never writes the study's storage, and needs no torch of its own.
"""

from __future__ import annotations

import math
import runpy
import sys
import time
from collections.abc import Iterator
from types import ModuleType

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.frame import Row, is_oom, own_bytes


def trial(options: Row) -> Iterator[Row]:
    """The value, or the message of the failure; bytes at the peak, seconds, and the context."""
    began = time.monotonic()
    row: Row = {"event": "result"}
    path, _, function = options["objective"].rpartition(":")
    try:
        objective = runpy.run_path(path, run_name="objective")[function]
        value = float(objective(options["params"]))
        if math.isnan(value):  # Optuna counts it as failed
            raise ValueError("the objective gave nan; expected a number")
        row["value"] = value
    except Exception as error:  # noqa: BLE001 -- whatever the user's objective raises is its result
        row["message"] = f"{type(error).__name__}: {error}"[:4000]
    row["seconds"] = round(time.monotonic() - began, 4)
    row["peak_bytes"] = own_bytes("VmHWM")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        row |= _after_use(torch)
    yield row


def _after_use(torch: ModuleType) -> Row:
    """Whether the context still lives, and then what torch took of the GPU at most."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.zeros(1, device="cuda").sum().item()
    except RuntimeError as error:
        # An exhausted card can refuse even this one allocation: that context lives.
        return {"context": "alive" if is_oom(torch, error) else "dead"}
    return {"context": "alive", "peak_bytes": torch.cuda.max_memory_reserved()}


def main() -> None:
    frame.run(trial)
