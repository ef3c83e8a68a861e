"""Which way to train finishes here, at what memory, and is it the same training? Each way really run, in a child process.

The program is helpers/torchside/training.py under the user's torch. Every child has a time limit and ends with its group; its
second process talks over the loopback only. On the CPU memory is counted as anonymous memory of the process (the larger of
two), with glibc told to give every block of 64 KiB or more back when it is freed.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.child import Ended, json_row, program, watch
from helpers.load.targets import environment

PROGRAM = "helpers.torchside.training"
START_S = 120.0
END_S = 15.0
_DATA = json.loads(Path(__file__).with_name("training.json").read_text(encoding="utf-8"))
SHAPES: dict[str, dict[str, Any]] = _DATA["shapes"]
"""20 thousand, 0.8 and 4.9 million parameters."""
PATHS: tuple[str, ...] = tuple(way["name"] for way in _DATA["ways"])
PLAIN = {"dropout": 0.0, "threads": 1}
BACK_OFF_SHARE = 0.6
# One thread, memory given back when freed, the same bits every time; and frameworks that would take the whole GPU at once.
SET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}


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


def read_failure(text: str) -> Failure | None:
    """The cause of a failure of torch.distributed by its message; None where it is none that is known."""
    known = (row for row in _DATA["failures"] if re.search(row["text"], text, re.MULTILINE))
    return next((Failure(row["cause"], row["next_step"]) for row in known), None)


def paths(
    python: str,
    names: Sequence[str] = PATHS,
    *,
    device: str = "cpu",
    shape: str = "",
    seed: int = 7,
    limit_s: float = 60.0,
    on_result: Callable[[PathResult], None] | None = None,
) -> list[PathResult]:
    """Train in each of the named ways under ``python``'s torch, on ``cpu`` or ``cuda``; the single device always comes first.

    ``shape``: a name of SHAPES, by default small on the CPU and medium on a GPU, whose allocator takes 20 MiB at a time.
    ``limit_s``: each child's seconds after its start. Raises ValueError for an unknown name or shape.
    """
    shape = shape or ("small" if device == "cpu" else "medium")
    ways = {way["name"]: way for way in _DATA["ways"]}
    unknown = [name for name in names if name not in ways] + [shape] * (shape not in SHAPES)
    if unknown:
        raise ValueError(f"{unknown[0]!r}: expected one of {', '.join([*PATHS, *SHAPES])}")
    results: list[PathResult] = []
    room = 0
    with tempfile.TemporaryDirectory(prefix="casebook-training-") as folder:
        for name in dict.fromkeys([PATHS[0], *names]):
            path = ways[name]["path"]
            spec = {
                **SHAPES[shape],
                **PLAIN,
                "path": path,
                "name": path,
                "folder": folder,
                "device": device,
                "seed": seed,
            }
            spec |= {**ways[name].get("more", {}), "limit_bytes": room}
            if path == "resume":
                result = _resumed(python, name, spec, limit_s)
            elif path == "back_off" and not room:
                result = _result(
                    name, "not_run", "its limit is taken from the single device, which did not run"
                )
            else:
                result = told_result(name, child(python, spec, limit_s))
            if name == PATHS[0] and result.peak_bytes is not None:
                room = int(BACK_OFF_SHARE * (result.peak_bytes - (result.start_bytes or 0)))
            results.append(result)
            if on_result:
                on_result(result)
    return results


def child(python: str, spec: Mapping[str, Any], limit_s: float) -> Told:
    """One child from its start to its end. It has START_S to begin (importing torch), then ``limit_s``."""
    rows: list[dict[str, Any]] = []

    def take(text: str) -> float | None:
        row = json_row(text)
        rows.extend([row] if "event" in row else [])
        return {"ready": limit_s, "end": END_S}.get(row.get("event", ""))

    argv = program(python, PROGRAM, json.dumps({**spec, "limit_s": limit_s}))
    ended = watch(argv, START_S, env=environment(more=SET), on_line=take)
    step: dict[str, Any] = next(
        (row for row in reversed(rows) if row["event"] == "step"), {"step": 0, "loss": None}
    )
    torch = next((row["torch"] for row in rows if row["event"] == "ready"), "")
    end = next((row for row in rows if row["event"] == "end"), {})
    return Told(ended, step["step"], step["loss"], torch, tuple(rows), end)


def told_result(name: str, told: Told) -> PathResult:
    """What one child told, as a row."""
    end, ended = told.end, told.ended
    known = {
        "seconds": float(end.get("seconds", ended.seconds)),
        "steps": told.steps,
        "final_loss": told.loss,
        "peak_bytes": end.get("peak_bytes"),
        "start_bytes": end.get("start_bytes"),
    }
    if end.get("state") == "ran":
        equal = end["equal"]
        return _result(
            name,
            "failed" if equal == "no" else "ran",
            "it is not the same training" if equal == "no" else "",
            equal_to_single=equal,
            says=end["says"],
            **known,
        )
    if end.get("state") == "not_run":
        return _result(name, "not_run", end["why"])
    words = end.get("message") or ended.last_words
    why = {
        "timed_out": "it did not end in time, and was stopped",
        "stuck": "it is stuck in the kernel, and was left behind",
        "signalled": f"it was ended by {ended.signal}",
    }.get(ended.how, ended.last_line)
    if "No module named 'torch'" in ended.last_words:
        return _result(name, "not_run", "there is no torch in that Python")
    stacks = (
        "\n".join(filter(None, [ended.last_words, ended.stacks]))
        if ended.how in ("timed_out", "stuck")
        else ""
    )
    return _result(
        name, "failed", end.get("why") or why, cause=read_failure(words), stacks=stacks, **known
    )


def _result(name: str, state: str, why: str, **known: Any) -> PathResult:
    empty: dict[str, Any] = {
        "seconds": 0.0,
        "steps": 0,
        "peak_bytes": None,
        "start_bytes": None,
        "final_loss": None,
        "equal_to_single": "not applicable",
        "says": "",
    }
    return PathResult(name, state, why, **{**empty, **known})


def _resumed(python: str, name: str, spec: dict[str, Any], limit_s: float) -> PathResult:
    """A first child that dies in the middle as it was told, and a second that goes on and compares."""
    step = spec["steps"] // 2
    spec = {
        **spec,
        "name": f"{spec['path']}-{spec['die']['how']}",
        "die": {**spec["die"], "step": step},
    }
    first = child(python, spec, limit_s)
    killed = first.ended.signal == "SIGKILL" and not first.end
    if not (killed if spec["die"]["how"] == "kill" else first.end.get("oom")):
        row = told_result(name, first)
        return (
            row
            if row.state == "not_run"
            else _result(name, "failed", f"it was to die and did not: {row.why or row.says}")
        )
    second = child(python, {**spec, "die": None, "compare": True}, limit_s)
    row = told_result(name, second)
    again = next((line["step"] for line in second.lines if line["event"] == "resumed"), 0)
    how = "SIGKILL in the middle of writing a checkpoint" if killed else first.end["why"]
    same = (
        "bit-identical to the undisturbed training"
        if row.equal_to_single == "bitwise"
        else "not the same training"
    )
    says = f"died after step {first.steps} of {spec['steps']} ({how[:100]}), went on from step {again}: {same}"
    return PathResult(**{**vars(row), "says": says if row.state == "ran" else row.says})
