"""Trains a small model in several ways: which finish here, with how much memory, and which are the
same training.

A way to train, or training path, is a row of ``ways`` in training.json, such as "gradient
checkpointing". Its key ``path`` names the function of under_torch/training.py that carries it out
(WAYS there), and ``more`` has the options of that function.

Each way runs in a child process, helpers/trials/under_torch/training.py under the user's torch,
with a time limit; two ranks are started by torchrun and talk over the loopback only. On the CPU
memory is the resident memory of the process (of two ranks the larger), where glibc gives every
block of 64 KiB or more back when it is freed (``environment`` of training.json).
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
"""For the start of Python and torch, in two processes at once on a slow box."""
LIMIT_S = 60.0
"""For the training: the largest shape takes a few seconds on a GPU, the small one on a CPU."""
END_S = 15.0
"""For the end of the process, or of torchrun and its ranks."""
TORCHRUN = "-m torch.distributed.run --standalone --local-addr=127.0.0.1".split()
_DATA = json.loads(
    Path(__file__).with_name("training.json").read_text(encoding="utf-8")
)
SHAPES: dict[str, dict[str, Any]] = _DATA["shapes"]
"""Sizes of the model: 20 thousand, 0.8 and 4.9 million parameters."""
WAYS: dict[str, dict[str, Any]] = {way["name"]: way for way in _DATA["ways"]}
"""The ways to train, by name; the first is the single device, with which the others are
compared.
"""
PATHS: tuple[str, ...] = tuple(WAYS)
ENVIRONMENT: dict[str, str] = _DATA["environment"]


@dataclass(frozen=True)
class PathResult:
    """The result of one way to train.

    ``state`` is ran, not_run or failed; ``why`` says why it did not run or failed. ``seconds`` is
    the time after torch was imported, with the start of a second process and the comparison.
    ``peak_bytes`` is the largest resident memory of the process, or what torch took of the GPU;
    ``start_bytes`` is the same before the model was made (on the CPU mostly torch itself).
    ``equal_to_single`` is bitwise, within tolerance, no, or not applicable; the way that resumes is
    compared with the same training undisturbed. ``says`` is what it tells of itself.
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
    seed: int = 7,  # any number will do
) -> list[PathResult]:
    """Train in the single device's way and in each of the named ways under ``python``'s torch, on
    ``cpu`` or ``cuda``.

    ``shape`` is a name of SHAPES. By default it is small on the CPU, and medium on a GPU: there
    torch takes memory in segments of 20 MiB, next to which a small model is nothing. Raises
    ValueError for an unknown name or shape.
    """
    if not shape:
        shape = "medium"
        if device == "cpu":
            shape = "small"
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
    """The spec of a child (under_torch/training.py explains it): a path of its WAYS, with a model
    of SHAPES, and ``more``.
    """
    spec = {"path": path, "name": path, "folder": "", "device": device, "seed": seed}
    return {**SHAPES[shape], **spec, "dropout": 0.0, **more}


def child(python: str, spec: Mapping[str, Any]) -> Transcript:
    """Run one child to its end; if the spec has ``ranks``, that number, started by torchrun."""
    argv = program(python, PROGRAM, json.dumps({**spec, "limit_s": LIMIT_S}))
    if spec.get("ranks"):
        each_rank = f"--nproc-per-node={spec['ranks']}"
        argv = [python, *TORCHRUN, each_rank, "--no-python", *argv]
    then_s = {
        "ready": LIMIT_S,
        "end": END_S,
    }  # until the next row or the end, after each
    return transcript(argv, START_S, then_s, env=environment(more=ENVIRONMENT))


def result_of(name: str, answer: Transcript) -> PathResult:
    """The result of a way, by what its child told and how it ended. A way that ran to its end and
    is not the same training has failed.
    """
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
    why = end.get("why")
    if not why and ended.how == "exited":
        why = ended.last_line
    elif not why:
        why = f"it {ended.fate}"
    return replace(row, why=why)


def _resumed(python: str, name: str, spec: dict[str, Any]) -> PathResult:
    """Run a child that kills itself in the middle, then one that resumes its training and compares
    it with an undisturbed one.
    """
    steps = spec["steps"]
    just_after_the_middle = steps // 2 + 1
    first = child(python, {**spec, "dies_at": just_after_the_middle})
    row = result_of(name, first)
    # It came to its end, or ended in another way than by its own SIGKILL.
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
