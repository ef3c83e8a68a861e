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

FAILED = ("failed", "crashed", "timed out")
STATES = (*FAILED, "passed", "not run")
"""How a check can end, in the order in which they are counted: failures first."""
ABOUT_OWN_PROGRAMS = ("cannot-tell", "other", "context-corruption")
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
    has_run = len(rows) > 1  # a single row says why no check ran
    result = ""
    if has_run:
        counts = Counter(state for _, _, state, *_ in rows)
        seen = [state for state in STATES if state in counts]
        result = ", ".join(f"{counts[state]} {state}" for state in seen)
    return Shown(
        "Functional checks",
        head,
        rows,
        notes=next_steps(rows),
        widest=None,
        result=result,
        label="Torch check",
        applies=has_run,
    )


def next_steps(rows: Iterable[Sequence[str]]) -> list[str]:
    """What to do about failed checks: a line for all that failed on one GPU with the
    same message.
    """
    checks: dict[tuple[str, str], list[str]] = {}
    for gpu, check, state, *_, message in rows:
        if state in FAILED:
            checks.setdefault((gpu, message), []).append(check)
    lines = []
    for (gpu, message), names in checks.items():
        step = _next_step(gpu, message)
        lines.append(f"Next step for {', '.join(names)} on {gpu}: {step}")
    return lines


def _next_step(gpu: str, message: str) -> str:
    """The next step for the cause that a check's message shows.

    Where the cause is one of ABOUT_OWN_PROGRAMS, its step does not help here: on a GPU the checks
    are run again, which tells a broken card from a bad moment, and on the CPU torch is installed
    again.
    """
    verdict = diagnose(evidence_from_message(message))
    if verdict.cause in ABOUT_OWN_PROGRAMS:
        if gpu == "cpu":
            return ON_CPU
        return ON_GPU.format(gpu)
    sentences = [lead(verdict)]
    for step in steps(verdict):
        says = step.says.rstrip(":")
        if step.command:
            says = f"{says}: {step.command}"
        sentences.append(says)
    return ". ".join(filter(None, sentences))
