"""How many batches until a training dies, and would another setting have gone further?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.trace_file import read_trace
from helpers.allocator.whatif import whatif
from helpers.ground.child import OUTPUTS, Transcript
from helpers.ground.replays import WhatIf
from helpers.ground.units import parse_size
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.training import child, specification

UNTIL_OOM_S = 120.0
OUT = OUTPUTS / "training"


class EnduranceError(RuntimeError):
    """A child did not answer: one line, seen, expected, what to do."""


@dataclass(frozen=True)
class Endurance:
    """``batches`` were trained on; the next one, of ``died_length`` tokens a sequence (None:
    all lived), ran out of memory.

    ``trace`` is the recording, ``answer`` what other settings would do on a card of
    ``limit_bytes``.
    """

    limit_bytes: int
    batches: int
    died_length: int | None
    message: str
    trace: Path | None = None
    answer: WhatIf | None = None
    why_no_answer: str = ""


def grow(
    limit: str, *, device: str = "cpu", shape: str = "small", seed: int = 7
) -> Endurance | None:
    """until_oom within a size such as 1GiB, under this machine's torch, kept below outputs;
    None where no size is given.
    """
    if not limit:
        return None
    OUT.mkdir(parents=True, exist_ok=True)
    spec = specification("until_oom", shape, device, seed, steps=40, growth=16)
    trace = Path(tempfile.mkdtemp(prefix="grow-", dir=OUT)) / "trace"
    return until_oom(torch_interpreter(), spec, parse_size(limit), trace)


def until_oom(
    python: str,
    spec: Mapping[str, Any],
    limit_bytes: int,
    out: Path,
    *,
    confs: tuple[str, ...] | None = None,
) -> Endurance:
    """Train on batches that are ``growth`` tokens longer each, until memory runs out; record
    that at ``out`` and ask what if.

    Every attempt is a child with the memory that is given: more private memory than at its
    start on the CPU (RLIMIT_DATA), torch's own limit on a GPU. What died is done again under
    the recorder, on the CPU without a limit, so that the trace holds the whole batch that died:
    its requests and lifetimes are a GPU's, the workspaces of GPU libraries are not in it.
    ``confs`` are the settings to try (default: the grid). Raises EnduranceError where the child
    does not answer.
    """
    told = child(python, {**spec, "limit_bytes": limit_bytes}, UNTIL_OOM_S)
    steps = told.last("step").get("step", 0)
    if not _ran_out(told):
        why = "nothing ran out of memory"
        return Endurance(limit_bytes, steps, None, "", why_no_answer=why)
    last = told.last("batch")
    found = Endurance(limit_bytes, steps, int(last["length"]), str(told.last("end")["says"]))
    room = None if spec["device"] == "cpu" else limit_bytes
    again = {**spec, "steps": last["batch"], "record": str(out), "limit_bytes": room}
    told = child(python, again, UNTIL_OOM_S)
    _ran_out(told)
    end = told.last("end")
    if not end.get("trace"):
        why = "; ".join(end.get("notes", [])) or "no trace was kept"
        return replace(found, why_no_answer=why)
    path = Path(end["trace"])
    answer = whatif(read_trace(path), Card(limit_bytes), confs=confs)
    return replace(found, trace=path, answer=answer)


def _ran_out(told: Transcript) -> bool:
    """Whether memory ran out; raises EnduranceError where that cannot be said."""
    end = told.last("end")
    if end.get("state") == "ran" or end.get("oom"):
        return bool(end.get("oom"))
    steps = told.last("step").get("step", 0)
    last = end.get("why") or told.ended.last_line
    expected = "expected it to finish or to run out of memory"
    again = "try a longer limit, or more memory than torch alone needs"
    seen = f"the training child {told.ended.how} after {steps} steps ({last})"
    raise EnduranceError(f"{seen}; {expected}; {again}")
