"""Train a small transformer in one of several ways: a program, one JSON argument in, JSON lines
out, on the CPU or a GPU.

helpers/trials/training.py starts, limits and reads it. The spec: ``path`` (a name of WAYS),
``name`` (of its files), ``folder`` (scratch of all paths of one table), ``device`` (cpu or
cuda), ``steps``, ``seed``, ``threads``, the model's shape (``vocab``, ``width``, ``layers``,
``heads``, ``length``, ``batch``, ``dropout``), and what one path alone reads.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from helpers.allocator.under_torch.recording import recording
from helpers.trials.under_torch import checkpoint, frame
from helpers.trials.under_torch.device import Peak, lift_limit, limit_memory
from helpers.trials.under_torch.frame import NotRun, Row, is_oom, one_line
from helpers.trials.under_torch.transformer import REFERENCE, Answer, Run, in_words, trained, warm
from helpers.trials.under_torch.two_ranks import ddp, device_of_rank, own_rank

ROOM_BYTES = 1 << 20


def plain(spec: Row) -> Answer:
    """One device, ``pieces`` pieces a step, activations kept or (``recompute``) made again."""
    run, answer = yield from trained(spec)
    says = []
    if spec["name"] == REFERENCE:
        size = f"{spec['batch']} sequences of {spec['length']} a step"
        says.append(f"{sum(one.numel() for one in run.model.parameters()):,} parameters, {size}")
    says += [f"{spec['pieces']} pieces a step"] if spec.get("pieces", 1) > 1 else []
    says += ["activations made again in the backward pass"] if spec.get("recompute") else []
    return in_words(answer, *says)


class BackingOff(Run):
    """Halves what is done at once whenever memory runs out, and does the same step again: no
    sample is lost or seen twice.

    Only the forward and backward pass are done again: nothing was updated by then. An optimizer
    that runs out has updated some parameters and not others, and a smaller piece would not help
    it; that error is passed on.
    """

    def forward_backward(self, tokens: torch.Tensor) -> float:
        while True:
            before = checkpoint.rng_states()
            try:
                return super().forward_backward(tokens)
            except (RuntimeError, MemoryError) as error:
                if not is_oom(torch, error) or self.pieces >= len(tokens):
                    raise
            # Only out here is the error gone, and with it the frames that hold the activations.
            self.pieces = min(2 * self.pieces, len(tokens))
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            if self.device != "cpu":
                torch.cuda.empty_cache()
            checkpoint.set_rng_states(before)


def back_off(spec: Row) -> Answer:
    """``limit_bytes`` more than at the start, and no more: the batch is cut until it fits."""
    limit_memory(torch, spec["device"], spec["limit_bytes"])
    run, answer = yield from trained(spec, BackingOff)
    how = f"ran out, and went on with {run.pieces} pieces a step"
    how = how if run.pieces > 1 else "never ran out"
    says = f"under a limit of {spec['limit_bytes'] / 2**20:.0f} MiB more than at first it {how}"
    return in_words({**answer, "pieces": run.pieces}, says)


def resume(spec: Row) -> Answer:
    """A checkpoint every step; goes on from the newest whole one, and may be told to ``die`` at
    a step, by a kill or by memory.

    With ``compare`` an undisturbed training from the start follows, whose whole state must have
    the same bits.
    """
    folder = Path(spec["folder"]) / spec["name"]
    die = spec.get("die") or {}
    peak = Peak(torch, spec["device"])
    run = Run(spec)
    newest = checkpoint.load(folder)
    if newest:
        run.restore(newest[1])
        yield {"event": "resumed", "step": newest[0], "notes": newest[2]}
    while len(run.losses) < spec["steps"]:
        dies = die.get("step") == len(run.losses)
        if dies and die["how"] == "oom":
            limit_memory(torch, spec["device"], ROOM_BYTES)
        elif dies:
            checkpoint.failpoint = lambda at: (
                os.kill(os.getpid(), signal.SIGKILL) if at == die["at"] else None
            )
        loss = run.step()
        checkpoint.save(folder, len(run.losses), run.state())
        yield {"event": "step", "step": len(run.losses), "loss": loss}
    answer: Row = {**peak.figures(), "digest": run.digest(), "equal": "not applicable", "says": ""}
    if spec.get("compare"):
        undisturbed = Run(spec)
        for _ in range(spec["steps"]):
            undisturbed.step()
        answer["equal"] = "bitwise" if undisturbed.digest() == answer["digest"] else "no"
    return answer


def until_oom(spec: Row) -> Answer:
    """Steps of ``batch`` sequences, each batch ``growth`` tokens longer, until memory runs out
    or ``steps`` are done.

    ``limit_bytes`` (None: no limit) counts from before the model; ``record`` keeps the trace there.
    """
    if spec.get("limit_bytes") is not None:
        limit_memory(torch, spec["device"], spec["limit_bytes"])
    recorder = recording(spec["record"]) if spec.get("record") else None
    says = ""
    with recorder or contextlib.nullcontext():
        run = Run(spec)
        try:
            for step in range(spec["steps"]):
                length = spec["length"] + step * spec["growth"]
                if spec["growth"]:
                    count = max(spec["batch"], len(run.data.order))
                    run.data.rows = run.data.sequences(spec["vocab"], length, count)
                yield {"event": "batch", "batch": step + 1, "length": length}
                yield {"event": "step", "step": step + 1, "loss": run.step()}
        except (RuntimeError, MemoryError) as error:
            if not is_oom(torch, error):
                raise
            says = one_line(error)
        lift_limit(torch, spec["device"])
    trace = {"trace": recorder.trace, "notes": recorder.notes} if recorder else {}
    return {"says": says, "oom": bool(says), **trace}


WAYS: dict[str, Callable[[Row], Answer]] = {
    "plain": plain,
    "back_off": back_off,
    "resume": resume,
    "until_oom": until_oom,
    "ddp": ddp,
}


def training(spec: Row) -> Iterator[Row]:
    """ready, a row a step, and the end: ran, not_run or failed.

    Of two ranks the first tells all; the second tells only of its own failure.
    """
    spec["device"] = device_of_rank(spec)
    rows = told_by_way(spec)
    if own_rank() > 0:
        rows = (row for row in rows if row.get("state") == "failed")
    yield from rows


def told_by_way(spec: Row) -> Iterator[Row]:
    """The rows of one process."""
    torch.set_num_threads(spec["threads"])
    if spec["device"] != "cpu":
        torch.use_deterministic_algorithms(True)
    warm(spec)
    yield {"event": "ready", "torch": str(torch.__version__)}
    # Before the time limit stops it from outside, which sees the kernel's side alone: where
    # Python is.
    faulthandler.dump_traceback_later(max(0.1, 0.8 * spec["limit_s"]))
    began = time.monotonic()
    try:
        answer = {"state": "ran", **(yield from WAYS[spec["path"]](spec))}
    except NotRun as error:
        answer = {"state": "not_run", "why": str(error)}
    except Exception as error:  # noqa: BLE001  whatever a path raises is its result
        why = f"{type(error).__name__}: {one_line(error)}"
        answer = {"state": "failed", "oom": is_oom(torch, error), "why": why}
        answer["message"] = str(error)[:4000]
    lift_limit(torch, spec["device"])
    yield {"event": "end", "seconds": time.monotonic() - began, **answer}
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    frame.run(training)
