"""Trains a small transformer in one of several ways, on the CPU or a GPU: a program, one JSON
argument in, JSON lines out.

helpers/trials/training.py starts, limits and reads it. The argument is the spec: ``path`` (a name
of WAYS), ``name`` (of its files), ``folder`` (for the files of all ways), ``device`` (cpu or cuda),
``steps``, ``seed``, ``limit_s``, the model's shape (``vocab``, ``width``, ``layers``, ``heads``,
``length``, ``batch``, ``dropout``), and options that only one way reads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from helpers.trials.under_torch import checkpoint, frame
from helpers.trials.under_torch.device import Peak
from helpers.trials.under_torch.frame import NotRun, Row, is_oom, one_line
from helpers.trials.under_torch.transformer import (
    REFERENCE,
    Answer,
    Run,
    in_words,
    trained,
    warm,
)
from helpers.trials.under_torch.two_ranks import ddp, device_of_rank, own_rank

DUMP_SHARE = 0.8
LEAST_DUMP_S = 0.1
"""A hung training leaves its Python stacks after this share of its time limit, before the parent
ends it, who sees only where it waits in the kernel.
"""


def plain(spec: Row) -> Answer:
    """Train on one device, with ``pieces`` pieces a step, and with activations that are kept,
    computed again (``recompute``), in bfloat16 (``bf16``) or in host memory (``offload``). Raises
    NotRun for ``offload`` on the CPU.
    """
    if spec.get("offload") and spec["device"] == "cpu":
        raise NotRun("on the CPU activations are in host memory anyway")
    run, answer = yield from trained(spec)
    says = []
    if spec["name"] == REFERENCE:
        parameters = sum(parameter.numel() for parameter in run.model.parameters())
        size = f"{spec['batch']} sequences of {spec['length']} a step"
        # The reference alone names the model, which is the same for all.
        says.append(f"{parameters:,} parameters, {size}")
    if spec.get("pieces", 1) > 1:
        says.append(f"{spec['pieces']} pieces a step")
    if spec.get("recompute"):
        says.append("activations made again in the backward pass")
    return in_words(answer, *says)


def resume(spec: Row) -> Answer:
    """Train with a checkpoint at every step, beginning at the newest one. With ``dies_at`` this
    process kills itself while it saves that step. With ``compare`` an undisturbed training follows,
    whose whole state must have the same bits.
    """
    folder = Path(spec["folder"]) / spec["name"]
    peak = Peak(torch, spec["device"])
    run = Run(spec)
    newest = checkpoint.load(folder)
    if newest:
        step, state = newest
        run.restore(state)
        yield {"event": "resumed", "step": step}
    while len(run.losses) < spec["steps"]:
        loss = run.step()
        if len(run.losses) == spec.get("dies_at"):
            # write_atomic renames last: the checkpoint is written, and has no name yet.
            os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.save(folder, len(run.losses), run.state())
        yield {"event": "step", "step": len(run.losses), "loss": loss}
    answer: Row = {
        **peak.figures(),
        "digest": run.digest(),
        "equal": "not applicable",
        "says": "",
    }
    if spec.get("compare"):
        undisturbed = Run(spec)
        for _ in range(spec["steps"]):
            undisturbed.step()
        answer["equal"] = "no"
        if undisturbed.digest() == answer["digest"]:
            answer["equal"] = "bitwise"
    return answer


WAYS: dict[str, Callable[[Row], Answer]] = {
    "plain": plain,
    "resume": resume,
    "ddp": ddp,
}


def training(spec: Row) -> Iterator[Row]:
    """Yields a row when torch is ready, one for each step, and the end, whose ``state`` is ran,
    not_run or failed. Of two ranks the second yields only its failure.
    """
    spec["device"] = device_of_rank(spec)
    rows = told_by_way(spec)
    if own_rank() > 0:
        rows = (row for row in rows if row.get("state") == "failed")
    yield from rows


def told_by_way(spec: Row) -> Iterator[Row]:
    """The rows of this process."""
    torch.set_num_threads(1)  # sums in one order, and two ranks beside each other
    if spec["device"] != "cpu":
        torch.use_deterministic_algorithms(True)
    warm(spec)
    yield {"event": "ready", "torch": str(torch.__version__)}
    faulthandler.dump_traceback_later(max(LEAST_DUMP_S, DUMP_SHARE * spec["limit_s"]))
    began = time.monotonic()
    try:
        answer = {"state": "ran", **(yield from WAYS[spec["path"]](spec))}
    except NotRun as error:
        answer = {"state": "not_run", "why": str(error)}
    except Exception as error:  # noqa: BLE001  whatever a path raises is its result
        why = f"{type(error).__name__}: {one_line(error)}"
        answer = {"state": "failed", "oom": is_oom(torch, error), "why": why}
    yield {"event": "end", "seconds": time.monotonic() - began, **answer}
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    frame.run(training)
