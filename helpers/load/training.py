"""Which way to train finishes here, at what memory, and is it the same training? Each way really run, in a child process.

The program is helpers/torchside/training.py under the user's torch. Every child has a time limit and ends with its group; its
second process talks over the loopback only. On the CPU memory is counted as anonymous memory of the process (the larger of
two), with glibc told to give every block of 64 KiB or more back when it is freed.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.load.child import Ended, watch
from helpers.look.reading import MIB

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from helpers.torchside.training import main; main()"
START_S = 120.0
END_S = 15.0
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 64, "width": 32, "layers": 2, "heads": 2, "length": 16, "batch": 8, "steps": 4},
    "small": {"vocab": 128, "width": 128, "layers": 4, "heads": 4, "length": 64, "batch": 16, "steps": 6},
    "medium": {"vocab": 256, "width": 256, "layers": 6, "heads": 8, "length": 256, "batch": 16, "steps": 6},
}
"""20 thousand, 0.8 and 4.9 million parameters."""
WHAT: dict[str, tuple[str, dict[str, Any]]] = {
    "single device": ("plain", {"name": "single"}),
    "gradient accumulation": ("plain", {"pieces": 4}),
    "gradient checkpointing": ("plain", {"recompute": True}),
    "accumulation and checkpointing": ("plain", {"pieces": 4, "recompute": True}),
    "resume after a kill": ("resume", {"dropout": 0.1, "die": {"how": "kill", "at": "write 20"}}),
    "resume after out of memory": ("resume", {"dropout": 0.1, "die": {"how": "oom"}}),
    "batch back-off": ("back_off", {}),
    "DataParallel": ("data_parallel", {}),
    "DDP": ("ddp", {}),
    "FSDP": ("fsdp", {}),
    "two-stage model parallel": ("two_stage", {}),
    "independent processes, gradients averaged": ("averaged", {}),
    "JAX": ("jax", {}),
    "TensorFlow": ("tensorflow", {}),
}
PATHS = tuple(WHAT)
BACK_OFF_SHARE = 0.6


@dataclass(frozen=True)
class PathResult:
    """One way to train. ``state``: ran, not_run or failed; ``why`` says why not. ``seconds``: all of it once torch is there,
    the start of a second process and the comparison included.

    ``peak_bytes`` is the process's anonymous memory at its highest, or what torch took of the GPU; ``start_bytes`` the same
    before the model was made (on the CPU mostly torch itself). ``equal_to_single``: bitwise, within tolerance, no, or not
    applicable; for the two that resume it compares with the same training undisturbed. ``stacks`` is where it stood when it was
    stopped. ``cause`` reads a failure back.
    """

    name: str
    state: str
    why: str
    seconds: float
    steps: int
    peak_bytes: int | None
    start_bytes: int | None
    final_loss: float | None
    equal_to_single: str
    says: str
    cause: Failure | None = None
    stacks: str = ""


@dataclass(frozen=True)
class Failure:
    """A failure of training by several processes: what it comes from, and the one thing to do next."""

    cause: str
    next_step: str


@dataclass(frozen=True)
class Told:
    """What one child told, line by line, and how it ended."""

    ended: Ended
    steps: int = 0
    loss: float | None = None
    torch: str = ""
    lines: tuple[dict[str, Any], ...] = ()
    end: Mapping[str, Any] = field(default_factory=dict)


# Every text was seen, each failure made on purpose (torch 2.13 on a CPU), but for two that are named below.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (r"doesn't have (NCCL|MPI|XCCL|UCC) built in", "this torch was built without the backend that was asked for",
     "ask for gloo, or install a torch built for this GPU (RCCL answers to the name nccl)"),
    (r"Unknown backend type", "there is no backend of that name", "use gloo or nccl; RCCL's name in torch is nccl"),
    (r"EADDRINUSE|[Aa]ddress already in use", "the rendezvous port is taken, often by an earlier run that still lives",
     "end that run (ss -ltnp names it), or take another MASTER_PORT; torchrun --standalone finds a free one"),
    (r"rendezvous: environment variable \w+ expected", "the program was started by itself, without the launcher's variables",
     "start it by torchrun --standalone --nproc_per_node=2, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"),
    (r"waiting for clients|clients joined|^(\w+: )?Wait timeout|client socket has timed out",
     "not all processes came to the rendezvous in time",
     "look at the log of the missing one; check that WORLD_SIZE is the number started and that MASTER_ADDR can be reached"),
    (r"Connection (reset|closed) by peer|ended in the middle of a step|ended without an answer|Broken pipe",
     "the other process died, and this one only noticed", "look at the other process: its error, or the kernel log for the OOM "
     "killer"),
    (r"Timed out waiting \d+ms|Watchdog caught collective operation timeout", "the other process lives and does not answer: it "
     "waits elsewhere, or the two do not make the same calls", "take the stacks of both (py-spy dump) and compare them"),
    # "invalid device ordinal" is the CUDA and HIP runtimes' text for it, the watchdog above nccl's: not made here.
    (r"invalid device ordinal|_cuda_setDevice|not compiled with CUDA", "a device index that this process does not have",
     "compare LOCAL_RANK with torch.cuda.device_count() and with HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES"),
)


def read_failure(text: str) -> Failure | None:
    """The cause of a failure of torch.distributed by its message; None where it is none that is known."""
    return next((Failure(cause, step) for pattern, cause, step in _FAILURES if re.search(pattern, text, re.MULTILINE)), None)


def paths(python: str, names: Sequence[str] = PATHS, *, device: str = "cpu", shape: str = "", seed: int = 7,
          limit_s: float = 60.0, on_result: Callable[[PathResult], None] | None = None) -> list[PathResult]:
    """Train in each of the named ways under ``python``'s torch, on ``cpu`` or ``cuda``; the single device always comes first.

    ``shape``: a name of SHAPES, by default small on the CPU and medium on a GPU, whose allocator takes 20 MiB at a time.
    ``limit_s``: each child's seconds after its start. Raises ValueError for an unknown name or shape.
    """
    shape = shape or ("small" if device == "cpu" else "medium")
    unknown = [name for name in names if name not in WHAT] + [shape] * (shape not in SHAPES)
    if unknown:
        raise ValueError(f"{unknown[0]!r}: expected one of {', '.join([*PATHS, *SHAPES])}")
    results: list[PathResult] = []
    room = 0
    with tempfile.TemporaryDirectory(prefix="casebook-training-") as folder:
        for name in dict.fromkeys([PATHS[0], *names]):
            path, more = WHAT[name]
            spec = {"dropout": 0.0, **SHAPES[shape], "path": path, "name": path, "folder": folder, "device": device,
                    "seed": seed, "threads": 1, **more, "limit_bytes": room}
            if path == "resume":
                result = _resumed(python, name, spec, limit_s)
            elif path == "back_off" and not room:
                result = _result(name, "not_run", "its limit is taken from the single device, which did not run")
            else:
                result = told_result(name, child(python, spec, limit_s))
            if name == PATHS[0] and result.peak_bytes is not None:
                room = int(BACK_OFF_SHARE * (result.peak_bytes - (result.start_bytes or 0)))
            results.append(result)
            if on_result:
                on_result(result)
    return results


def child(python: str, spec: Mapping[str, Any], limit_s: float, env: Mapping[str, str] | None = None) -> Told:
    """One child from its start to its end. It has START_S to begin (importing torch), then ``limit_s``."""
    lines: list[dict[str, Any]] = []

    def take(text: str) -> float | None:
        try:
            line = json.loads(text)
        except ValueError:
            return None
        if isinstance(line, dict) and "event" in line:
            lines.append(line)
        return {"ready": limit_s, "end": END_S}.get(line.get("event", "")) if isinstance(line, dict) else None

    argv = [python, "-c", PROGRAM, json.dumps({**spec, "limit_s": limit_s})]
    ended = watch(argv, START_S, env=environment(env or {}), on_line=take)
    steps = [line for line in lines if line["event"] == "step"]
    return Told(ended, steps[-1]["step"] if steps else 0, steps[-1]["loss"] if steps else None,
                next((line["torch"] for line in lines if line["event"] == "ready"), ""), tuple(lines),
                next((line for line in lines if line["event"] == "end"), {}))


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The children's environment: this checkout first, one thread, memory given back when freed, the same bits every time."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": str(64 << 10), "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true", **more}


def told_result(name: str, told: Told) -> PathResult:
    """What one child told, as a row."""
    end, ended = told.end, told.ended
    known = {"seconds": float(end.get("seconds", ended.seconds)), "steps": told.steps, "final_loss": told.loss,
             "peak_bytes": end.get("peak_bytes"), "start_bytes": end.get("start_bytes")}
    if end.get("state") == "ran":
        equal = end["equal"]
        return _result(name, "failed" if equal == "no" else "ran", "it is not the same training" if equal == "no" else "",
                       equal_to_single=equal, says=end["says"], **known)
    if end.get("state") == "not_run":
        return _result(name, "not_run", end["why"])
    words = end.get("message") or ended.last_words
    last = (ended.last_words.splitlines() or ["it said nothing"])[-1][:300]
    why = {"timed_out": "it did not end in time, and was stopped", "stuck": "it is stuck in the kernel, and was left behind",
           "signalled": f"it was ended by {ended.signal}"}.get(ended.how, last)
    if "No module named 'torch'" in ended.last_words:
        return _result(name, "not_run", "there is no torch in that Python")
    stacks = "\n".join(filter(None, [ended.last_words, ended.stacks])) if ended.how in ("timed_out", "stuck") else ""
    return _result(name, "failed", end.get("why") or why, cause=read_failure(words), stacks=stacks, **known)


def _result(name: str, state: str, why: str, **known: Any) -> PathResult:
    empty: dict[str, Any] = {"seconds": 0.0, "steps": 0, "peak_bytes": None, "start_bytes": None, "final_loss": None,
                             "equal_to_single": "not applicable", "says": ""}
    return PathResult(name, state, why, **{**empty, **known})


def _resumed(python: str, name: str, spec: dict[str, Any], limit_s: float) -> PathResult:
    """A first child that dies in the middle as it was told, and a second that goes on and compares."""
    step = spec["steps"] // 2
    spec = {**spec, "name": f"{spec['path']}-{spec['die']['how']}", "die": {**spec["die"], "step": step}}
    first = child(python, spec, limit_s)
    killed = first.ended.signal == "SIGKILL" and not first.end
    if not (killed if spec["die"]["how"] == "kill" else first.end.get("oom")):
        row = told_result(name, first)
        return row if row.state == "not_run" else _result(name, "failed", f"it was to die and did not: {row.why or row.says}")
    second = child(python, {**spec, "die": None, "compare": True}, limit_s)
    row = told_result(name, second)
    again = next((line["step"] for line in second.lines if line["event"] == "resumed"), 0)
    how = "SIGKILL in the middle of writing a checkpoint" if killed else first.end["why"]
    same = "bit-identical to the undisturbed training" if row.equal_to_single == "bitwise" else "not the same training"
    says = f"died after step {first.steps} of {spec['steps']} ({how[:100]}), went on from step {again}: {same}"
    return PathResult(**{**vars(row), "says": says if row.state == "ran" else row.says})


def table(results: Sequence[PathResult]) -> str:
    """The results as text, for people: above start is the memory that training took."""
    head = ("path", "state", "seconds", "peak", "above start", "final loss", "equal to single", "says")
    rows: list[tuple[str, ...]] = [head]
    for one in results:
        above = one.peak_bytes - one.start_bytes if one.peak_bytes is not None and one.start_bytes is not None else None
        says = one.says or one.why + (f" (cause: {one.cause.cause}; next: {one.cause.next_step})" if one.cause else "")
        sizes = ["" if size is None else f"{size / MIB:.1f} MiB" for size in (one.peak_bytes, above)]
        loss = "" if one.final_loss is None else f"{one.final_loss:.6f}"
        rows.append((one.name, one.state, f"{one.seconds:.1f}", *sizes, loss, one.equal_to_single, says))
    widths = [max(len(row[at]) for row in rows) for at in range(len(head) - 1)]
    return "\n".join("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
                     for row in rows)
