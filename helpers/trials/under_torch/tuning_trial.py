"""Runs one trial of a tuning study, the user's objective, in this process, and tells its result.

A program; its options are ``objective`` (``FILE.py:FUNCTION``) and ``params``. Whether the GPU's
context is usable after a failure is found out by using it: after a device-side assert every later
call fails, after an out-of-memory none does. torch is used only if the objective has imported it.
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

MOST_MESSAGE = 4000


def trial(options: Row) -> Iterator[Row]:
    """Yields one row: ``value``, or ``message`` of the failure; ``seconds``, ``peak_bytes``, and,
    on a GPU, ``context``.
    """
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
        row["message"] = f"{type(error).__name__}: {error}"[:MOST_MESSAGE]
    row["seconds"] = round(time.monotonic() - began, 4)
    row["peak_bytes"] = own_bytes("VmHWM")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        row |= _after_use(torch)
    yield row


def _after_use(torch: ModuleType) -> Row:
    """``context``, alive or dead, found out by an allocation and a kernel on the GPU; for a live
    one also ``peak_bytes``, the most that torch took of the GPU.
    """
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.zeros(1, device="cuda").sum().item()
    except RuntimeError as error:
        if is_oom(torch, error):
            # A full card may refuse even this allocation, and the context is alive.
            return {"context": "alive"}
        return {"context": "dead"}
    return {"context": "alive", "peak_bytes": torch.cuda.max_memory_reserved()}


def main() -> None:
    frame.run(trial)
