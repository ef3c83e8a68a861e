"""Which way to train finishes here, at what memory, and is it the same training?

Each way is really run, in a child process: helpers/trials/under_torch/training.py under the
user's torch. Every child has a time limit and ends with its group; two ranks are started by
torchrun and talk over the loopback only. On the CPU memory is counted as resident memory of the
process (the larger of two), with glibc told to give every block of 64 KiB or more back when it is
freed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.ground.child import Transcript, program, transcript
from helpers.trials.targets import environment

PROGRAM = "helpers.trials.under_torch.training"
START_S = 120.0
LIMIT_S = 60.0
"""Seconds of a child after its start."""
END_S = 15.0
TORCHRUN = "-m torch.distributed.run --standalone --local-addr=127.0.0.1".split()
_DATA = json.loads(
    Path(__file__).with_name("training.json").read_text(encoding="utf-8")
)
SHAPES: dict[str, dict[str, Any]] = _DATA["shapes"]
"""20 thousand, 0.8 and 4.9 million parameters."""
WAYS: dict[str, dict[str, Any]] = {way["name"]: way for way in _DATA["ways"]}
PATHS: tuple[str, ...] = tuple(WAYS)
ENVIRONMENT: dict[str, str] = _DATA["environment"]


@dataclass(frozen=True)
class PathResult:
    """One way to train.

    ``state``: ran, not_run or failed; ``why`` says why not. ``seconds``: all of it once torch
    is there, the start of a second process and the comparison included.

    ``peak_bytes`` is the process's resident memory at its highest, or what torch took of the
    GPU; ``start_bytes`` the same before the model was made (on the CPU mostly torch itself).
    ``equal_to_single``: bitwise, within tolerance, no, or not applicable; for the one that
    resumes it compares with the same training undisturbed.
    """

    name: str
    state: str
    why: str
    seconds: float = 0.0
    peak_bytes: int | None = None
    start_bytes: int | None = None
    equal_to_single: str = "not applicable"
    says: str = ""


def paths(
    python: str,
    names: Sequence[str] = PATHS,
    *,
    device: str = "cpu",
    shape: str = "",
    seed: int = 7,
) -> list[PathResult]:
    """Train in each of the named ways under ``python``'s torch, on ``cpu`` or ``cuda``; the
    single device always comes first.

    ``shape``: a name of SHAPES, by default small on the CPU and medium on a GPU, whose
    allocator takes 20 MiB at a time. Raises ValueError for an unknown name or shape.
    """
    if not shape:
        shape = "small" if device == "cpu" else "medium"
    for name in names:
        if name not in WAYS:
            raise ValueError(f"{name!r}: expected one of {', '.join(PATHS)}")
    if shape not in SHAPES:
        raise ValueError(f"shape {shape!r}: expected one of {', '.join(SHAPES)}")
    results: list[PathResult] = []
    with tempfile.TemporaryDirectory(prefix="casebook-training-") as folder:
        for name in dict.fromkeys([PATHS[0], *names]):
            way = WAYS[name]
            spec = specification(
                way["path"], shape, device, seed, folder=folder, **way["more"]
            )
            if way["path"] == "resume":
                results.append(_resumed(python, name, spec))
            else:
                results.append(result_of(name, child(python, spec)))
    return results


def specification(
    path: str, shape: str, device: str, seed: int, **more: object
) -> dict[str, Any]:
    """What a child of the program is to do: a path of it, with a model of SHAPES."""
    spec = {"path": path, "name": path, "folder": "", "device": device, "seed": seed}
    return {**SHAPES[shape], **spec, "dropout": 0.0, **more}


def child(python: str, spec: Mapping[str, Any]) -> Transcript:
    """One child from its start to its end; ``ranks`` of the spec asks for so many, by torchrun.

    It has START_S to begin (importing torch), then LIMIT_S.
    """
    argv = program(python, PROGRAM, json.dumps({**spec, "limit_s": LIMIT_S}))
    if spec.get("ranks"):
        each_rank = f"--nproc-per-node={spec['ranks']}"
        argv = [python, *TORCHRUN, each_rank, "--no-python", *argv]
    then_s = {"ready": LIMIT_S, "end": END_S}
    return transcript(argv, START_S, then_s, env=environment(more=ENVIRONMENT))


def result_of(name: str, answer: Transcript) -> PathResult:
    """What one child told, as a row."""
    end = answer.last("end")
    ended = answer.ended
    row = PathResult(
        name,
        "failed",
        "",
        seconds=float(end.get("seconds", ended.seconds)),
        peak_bytes=end.get("peak_bytes"),
        start_bytes=end.get("start_bytes"),
    )
    if end.get("state") == "ran":
        row = replace(row, equal_to_single=end["equal"], says=end["says"])
        if end["equal"] == "no":
            return replace(row, why="it is not the same training")
        return replace(row, state="ran")
    if end.get("state") == "not_run":
        return PathResult(name, "not_run", end["why"])
    if "No module named 'torch'" in ended.last_words:
        return PathResult(name, "not_run", "there is no torch in that Python")
    how = ended.last_line if ended.how == "exited" else f"it {ended.fate}"
    return replace(row, why=end.get("why") or how)


def _resumed(python: str, name: str, spec: dict[str, Any]) -> PathResult:
    """Run a child that is killed in the middle, and a second one that resumes its training and
    compares it with an undisturbed one.
    """
    steps = spec["steps"]
    first = child(python, {**spec, "dies_at": steps // 2 + 1})
    row = result_of(name, first)
    if first.last("end") or first.ended.signal != "SIGKILL":
        if row.state == "not_run":
            return row
        return PathResult(
            name, "failed", f"it was to die and did not: {row.why or row.says}"
        )
    second = child(python, {**spec, "compare": True})
    row = result_of(name, second)
    if row.state != "ran":
        return row
    same = "bit-identical to the undisturbed training"
    if row.equal_to_single != "bitwise":
        same = "not the same training"
    died = f"died after step {first.last('step').get('step', 0)} of {steps}"
    how = "SIGKILL in the middle of writing a checkpoint"
    again = second.last("resumed").get("step", 0)
    return replace(row, says=f"{died} ({how}), went on from step {again}: {same}")
