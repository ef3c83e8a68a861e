"""Train a small transformer in one of several ways: a program, one JSON argument in, JSON lines out, on the CPU or a GPU.

helpers/load/training.py starts, limits and reads it. The spec: ``path`` (a name of PATHS), ``name`` (of its files), ``folder``
(scratch of all paths of one table), ``device`` (cpu or cuda), ``steps``, ``seed``, ``threads``, the model's shape (``vocab``,
``width``, ``layers``, ``heads``, ``length``, ``batch``, ``dropout``), and what one path alone reads.

Bitwise equal to the single device: the gradients of the first step, every loss, every parameter at the end. Where sums are
taken in another order that cannot be; then the largest error of a gradient, over that tensor's largest element, must be below
GRADIENT_TOLERANCE and each loss within LOSS_TOLERANCE of its value. fp32 rounds at 6e-8 and sums some 1,000 terms here; a
lost, doubled or wrongly weighted piece shows as 1e-2 or more.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers.torchside import checkpoint
from helpers.torchside.device import NotRun, one_line
from helpers.torchside.transformer import Run, warm

GRADIENT_TOLERANCE = 1e-4
LOSS_TOLERANCE = 1e-4
SAMPLE_S = 0.002
ROOM_BYTES = 1 << 20
REFERENCE = "single"
Say = Callable[..., None]


class Peak:
    """Memory until ``stop``: anonymous memory of this process, sampled every 2 ms, or what torch took of the GPU."""

    def __init__(self, device: str):
        self.gpu, self.over = device != "cpu", threading.Event()
        self.start_bytes = self.peak_bytes = (
            torch.cuda.memory_allocated() if self.gpu else anonymous_bytes()
        )
        self.thread = threading.Thread(target=self._sample, daemon=True)
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            self.thread.start()

    def _sample(self) -> None:
        while not self.over.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes())

    def stop(self) -> dict[str, int]:
        self.over.set()
        if self.gpu:
            self.peak_bytes = torch.cuda.max_memory_allocated()
        return {"start_bytes": self.start_bytes, "peak_bytes": self.peak_bytes}


def anonymous_bytes() -> int:
    with open("/proc/self/statm", "rb") as fields:
        _, resident, shared = fields.read().split()[:3]
    return (int(resident) - int(shared)) * resource.getpagesize()


def limit_memory(device: str, more_bytes: int) -> None:
    """From now on at most ``more_bytes`` more: of private writable memory (RLIMIT_DATA), or of the GPU by torch's own limit."""
    if device != "cpu":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, (torch.cuda.memory_reserved() + more_bytes) / total)
        )
        return
    with open("/proc/self/status", encoding="ascii") as fields:
        held = next(int(line.split()[1]) * 1024 for line in fields if line.startswith("VmData"))
    resource.setrlimit(
        resource.RLIMIT_DATA, (held + more_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1])
    )


def lift_limit(device: str) -> None:
    if device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
    else:
        torch.cuda.set_per_process_memory_fraction(1.0)


def is_oom(error: BaseException) -> bool:
    # The CPU allocator (c10/core/impl/alloc_cpu.cpp) raises a plain RuntimeError that begins with its name.
    return isinstance(
        error, (MemoryError, torch.cuda.OutOfMemoryError)
    ) or "DefaultCPUAllocator" in str(error)


def whole(tensor: Any) -> Any:
    """The tensor, or all of a sharded one, which every rank must ask for."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def save_result(run: Run, spec: dict[str, Any], rank: int = 0) -> None:
    """Have the gradients of the first step written to a file of this path and rank; ``compared`` adds the rest and reads it."""
    path = Path(spec["folder"]) / f"{spec['name']}-{rank}-gradients.pt"

    def write() -> None:
        torch.save({name: whole(one.grad) for name, one in run.model.named_parameters()}, path)

    run.after_first = write


def compared(run: Run, spec: dict[str, Any], rank: int = 0) -> tuple[str, float]:
    """Against the result that the reference keeps here: ``bitwise``, ``within tolerance``, ``no`` or ``not applicable``; and
    the largest error of a gradient."""
    folder = Path(spec["folder"])
    gradients = torch.load(
        folder / f"{spec['name']}-{rank}-gradients.pt", map_location="cpu", weights_only=True
    )
    ends = {name: whole(one).detach().cpu() for name, one in run.model.named_parameters()}
    if spec["name"] == REFERENCE:
        torch.save(
            {"gradients": gradients, "losses": run.losses, "ends": ends}, folder / f"{REFERENCE}.pt"
        )
    if spec["name"] == REFERENCE or not (folder / f"{REFERENCE}.pt").exists():
        return "not applicable", 0.0
    other = torch.load(folder / f"{REFERENCE}.pt", map_location="cpu", weights_only=True)
    pairs = [(one, other["gradients"][name]) for name, one in gradients.items()]
    pairs += [(one, other["ends"][name]) for name, one in ends.items()]
    if run.losses == other["losses"] and all(torch.equal(one, two) for one, two in pairs):
        return "bitwise", 0.0
    errors = [
        float((one - two).abs().max() / two.abs().max().clamp_min(1e-30))
        for one, two in pairs[: len(gradients)]
    ]
    near = len(run.losses) == len(other["losses"]) and all(
        abs(loss - other["losses"][at]) <= LOSS_TOLERANCE * abs(loss)
        for at, loss in enumerate(run.losses)
    )
    return (
        "within tolerance"
        if near and all(error <= GRADIENT_TOLERANCE for error in errors)
        else "no"
    ), max(errors)


def trained(run: Run, spec: dict[str, Any], say: Say) -> None:
    for step in range(len(run.losses), spec["steps"]):
        say(event="step", step=step + 1, loss=run.step())


def plain(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """One device, ``pieces`` pieces a step, activations kept or (``recompute``) made again."""
    peak = Peak(spec["device"])
    run = Run(spec)
    save_result(run, spec)
    trained(run, spec, say)
    peaks = peak.stop()
    equal, worst = compared(run, spec)
    says = []
    if spec["name"] == REFERENCE:
        parameters = sum(one.numel() for one in run.model.parameters())
        says.append(
            f"{parameters:,} parameters, {spec['batch']} sequences of {spec['length']} a step"
        )
    says += [f"{spec['pieces']} pieces a step"] if spec.get("pieces", 1) > 1 else []
    says += ["activations made again in the backward pass"] if spec.get("recompute") else []
    return {
        **peaks,
        "equal": equal,
        "says": "; ".join(says + error_words(equal, worst)),
        "worst": worst,
    }


def error_words(equal: str, worst: float) -> list[str]:
    return (
        [f"largest gradient error {worst:.0e} of {GRADIENT_TOLERANCE:.0e}"]
        if equal in ("within tolerance", "no")
        else []
    )


class BackingOff(Run):
    """Halves what is done at once whenever memory runs out, and does the same step again: no sample is lost or seen twice.

    Only the forward and backward pass are done again: nothing was updated by then. An optimizer that runs out has updated some
    parameters and not others, and a smaller piece would not help it; that error is passed on.
    """

    def forward_backward(self, tokens: torch.Tensor) -> float:
        while True:
            before = checkpoint.rng_states()
            try:
                return super().forward_backward(tokens)
            except (RuntimeError, MemoryError) as error:
                if not is_oom(error) or self.pieces >= len(tokens):
                    raise
            # Only out here is the error gone, and with it the frames that hold the activations.
            self.pieces = min(2 * self.pieces, len(tokens))
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            if self.device != "cpu":
                torch.cuda.empty_cache()
            checkpoint.set_rng_states(before)


def back_off(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """``limit_bytes`` more than at the start, and no more: the batch is cut until it fits."""
    peak = Peak(spec["device"])
    limit_memory(spec["device"], spec["limit_bytes"])
    run = BackingOff(spec)
    save_result(run, spec)
    trained(run, spec, say)
    lift_limit(spec["device"])
    peaks = peak.stop()
    equal, worst = compared(run, spec)
    how = (
        f"ran out, and went on with {run.pieces} pieces a step"
        if run.pieces > 1
        else "never ran out"
    )
    says = [
        f"under a limit of {spec['limit_bytes'] / 2**20:.0f} MiB more than at first it {how}",
        *error_words(equal, worst),
    ]
    return {**peaks, "equal": equal, "pieces": run.pieces, "says": "; ".join(says)}


def resume(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """A checkpoint every step; goes on from the newest whole one, and may be told to ``die`` at a step, by a kill or by memory.

    With ``compare`` an undisturbed training from the start follows, whose whole state must have the same bits.
    """
    folder, die = Path(spec["folder"]) / spec["name"], spec.get("die") or {}
    peak = Peak(spec["device"])
    run = Run(spec)
    found = checkpoint.load(folder)
    if found:
        run.restore(found[1])
        say(event="resumed", step=found[0], notes=found[2])
    while len(run.losses) < spec["steps"]:
        if die.get("step") == len(run.losses) and die["how"] == "oom":
            limit_memory(spec["device"], ROOM_BYTES)
        elif die.get("step") == len(run.losses):
            checkpoint.failpoint = lambda at: (
                os.kill(os.getpid(), signal.SIGKILL) if at == die["at"] else None
            )
        loss = run.step()
        checkpoint.save(folder, len(run.losses), run.state())
        say(event="step", step=len(run.losses), loss=loss)
    answer: dict[str, Any] = {
        **peak.stop(),
        "digest": run.digest(),
        "equal": "not applicable",
        "says": "",
    }
    if spec.get("compare"):
        undisturbed = Run(spec)
        for _ in range(spec["steps"]):
            undisturbed.step()
        answer["equal"] = "bitwise" if undisturbed.digest() == answer["digest"] else "no"
    return answer


def until_oom(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """Steps of ``batch`` sequences, each batch ``growth`` tokens longer, until memory runs out or ``steps`` are done.

    ``limit_bytes`` (None: no limit) counts from before the model; ``record`` keeps the trace there.
    """
    from helpers.torchside import recording

    if spec.get("limit_bytes") is not None:
        limit_memory(spec["device"], spec["limit_bytes"])
    recorder = recording(spec["record"]) if spec.get("record") else None
    if recorder:
        recorder.__enter__()
    run, says = Run(spec), ""
    try:
        for step in range(spec["steps"]):
            length = spec["length"] + step * spec["growth"]
            if spec["growth"]:
                run.data.rows = run.data.sequences(
                    spec["vocab"], length, max(spec["batch"], len(run.data.order))
                )
            say(event="batch", batch=step + 1, length=length)
            run.step()
            say(event="step", step=step + 1, loss=run.losses[-1])
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
        says = one_line(error)
    lift_limit(spec["device"])
    if recorder:
        recorder.__exit__(None, None, None)
        return {"says": says, "oom": bool(says), "trace": recorder.trace, "notes": recorder.notes}
    return {"says": says, "oom": bool(says)}


def framework(spec: dict[str, Any], say: Say) -> dict[str, Any]:
    """Another framework, where it is installed, on the same data: one table of which token follows which, learnt by descent."""
    module = spec["path"]
    if importlib.util.find_spec(module) is None:
        line = {
            "jax": "pip install jax (for NVIDIA 'jax[cuda12]', for AMD the jax plugin of the ROCm release)",
            "tensorflow": "pip install tensorflow (for AMD tensorflow-rocm of the ROCm release)",
        }[module]
        raise NotRun(f"not installed in this Python; the line that would: {line}")
    other, np, jax, vocab = (
        importlib.import_module(module),
        importlib.import_module("numpy"),
        module == "jax",
        spec["vocab"],
    )
    peak, run = Peak("cpu"), Run({**spec, "device": "cpu"})
    table: Any = (
        other.numpy.zeros((vocab, vocab)) if jax else other.Variable(other.zeros((vocab, vocab)))
    )
    device = other.devices()[0] if jax else other.config.list_logical_devices()[-1].name
    losses = []
    for step in range(spec["steps"]):
        tokens = np.array(run.data.rows[run.data.next()].tolist())
        left, right = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
        if jax:

            def loss_of(weights: Any, left: Any = left, right: Any = right) -> Any:
                return -other.nn.log_softmax(weights[left])[
                    other.numpy.arange(len(left)), right
                ].mean()

            loss, slope = other.value_and_grad(loss_of)(table)
            table = table - 50.0 * slope
        else:
            with other.GradientTape() as tape:
                loss = other.reduce_mean(
                    other.nn.sparse_softmax_cross_entropy_with_logits(
                        right, other.gather(table, left)
                    )
                )
            table.assign_sub(50.0 * other.convert_to_tensor(tape.gradient(loss, table)))
        losses.append(float(loss))
        say(event="step", step=step + 1, loss=losses[-1])
    if not losses[-1] < losses[0]:
        raise RuntimeError(f"the loss did not fall: {losses[0]:.3f} to {losses[-1]:.3f}")
    says = f"{module} {other.__version__} on {device}; another model, and the host's memory alone is counted"
    return {**peak.stop(), "equal": "not applicable", "says": says}


def main() -> None:
    """Read the spec from argv, take its path, tell each step and the end."""
    spec = json.loads(sys.argv[1])
    # Only the lines of this program reach the parent's pipe; what libraries print on stdout goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    torch.set_num_threads(spec["threads"])
    if spec["device"] != "cpu":
        torch.use_deterministic_algorithms(True)
    warm(spec)
    say(event="ready", torch=str(torch.__version__))
    # Before the time limit stops it from outside, which sees the kernel's side alone: where Python is.
    faulthandler.dump_traceback_later(max(0.1, 0.8 * spec["limit_s"]))
    began = time.monotonic()
    path = {
        "jax": framework,
        "tensorflow": framework,
        "resume": resume,
        "back_off": back_off,
        "until_oom": until_oom,
        "plain": plain,
    }.get(spec["path"])
    try:
        if path is None:
            path = getattr(importlib.import_module("helpers.torchside.parallel"), spec["path"])
        answer = {"state": "ran", **path(spec, say)}
    except NotRun as error:
        answer = {"state": "not_run", "why": str(error)}
    except Exception as error:  # noqa: BLE001  whatever a path raises is its result
        lift_limit(spec["device"])
        answer = {
            "state": "failed",
            "oom": is_oom(error),
            "why": f"{type(error).__name__}: {one_line(error)}",
            "message": str(error)[:4000],
        }
    say(event="end", seconds=time.monotonic() - began, **answer)
    faulthandler.cancel_dump_traceback_later()
