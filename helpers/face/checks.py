"""Functional checks of torch on the GPUs of this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from helpers.face.box import Box, as_box
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message
from helpers.tell.next_steps import lead, steps
from helpers.tell.shown import Shown
from helpers.trials.checks import check_rows

STATES = ("failed", "crashed", "timed out", "passed", "not run")
"""How a check can end, what is worth a look first."""
FAILED = ("failed", "crashed", "timed out")
NOT_OF_A_CHECK = ("cannot-tell", "other", "context-corruption")
"""Causes whose next step is about a program of one's own, and not about a check."""
ON_GPU = (
    "Run the checks again with nothing else on the card: make check-gpu GPU={}. If they fail "
    "again, look for faults of the card: sudo dmesg -T | grep -iE 'amdgpu|nvrm|xid|ecc|aer'"
)
ON_CPU = "This torch fails on the CPU, too: install torch again in its environment"


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
    head, *rows = check_rows(
        bundle, wanted, gpu=gpu, ladder=ladder, torch_python=torch_python
    )
    # One row alone says why no check ran.
    counts = Counter(row[2] for row in rows)
    result = ", ".join(
        f"{counts[state]} {state}" for state in STATES if state in counts
    )
    return Shown(
        "Functional checks",
        head,
        rows,
        notes=next_steps(rows),
        widest=None,
        result=result if len(rows) > 1 else "",
        label="Torch check",
        applies=len(rows) > 1,
    )


def next_steps(rows: Iterable[Sequence[str]]) -> list[str]:
    """What to do about the checks that failed, once for all that failed alike on one GPU."""
    alike: dict[tuple[str, str], list[str]] = {}
    for gpu, check, state, *_, message in rows:
        if state in FAILED:
            alike.setdefault((gpu, message), []).append(check)
    return [
        f"Next step for {', '.join(names)} on {gpu}: {_next_step(gpu, message)}"
        for (gpu, message), names in alike.items()
    ]


def _next_step(gpu: str, message: str) -> str:
    """That of the message's cause, else how to tell a broken card from a bad moment."""
    verdict = diagnose(evidence_from_message(message))
    if verdict.cause in NOT_OF_A_CHECK:
        return ON_CPU if gpu == "cpu" else ON_GPU.format(gpu)
    says = [lead(verdict)] if lead(verdict) else []
    says += [
        f"{step.says.rstrip(':')}: {step.command}".rstrip(": ")
        for step in steps(verdict)
    ]
    return ". ".join(says)
