"""Functional checks of torch on the GPUs of this machine."""

from __future__ import annotations

from collections import Counter

from helpers.face.box import Box, as_box
from helpers.tell.shown import Shown
from helpers.trials.checks import check_rows

STATES = ("failed", "crashed", "timed out", "passed", "not run")
"""How a check can end, what is worth a look first."""


def check_torch(
    box: Box | str = "live",
    wanted: bool = True,
    *,
    gpu: str = "",
    ladder: bool = False,
    torch_python: str = "",
) -> Shown:
    """What torch can do on each GPU that nobody else uses; each check is a child with limits.

    ``gpu`` is the PCI address of the only GPU to check, even if somebody holds it; ``ladder`` looks
    for the largest single allocation, which loads the card; ``torch_python`` is the interpreter
    that owns torch, the one of the set-up where it is empty. Nothing runs where ``wanted`` is false
    or the box is not this machine, and the view says why.
    """
    bundle = as_box(box).facts
    head, *rows = check_rows(bundle, wanted, gpu=gpu, ladder=ladder, torch_python=torch_python)
    counts = Counter(row[2] for row in rows)
    result = ", ".join(f"{counts[state]} {state}" for state in STATES if state in counts)
    return Shown(
        "Functional checks",
        head,
        rows,
        widest=None,
        result=result if len(rows) > 1 else "",
        label="Torch check",
        applies=len(rows) > 1,
    )
