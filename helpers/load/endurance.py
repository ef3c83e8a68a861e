"""How many batches until it dies, and would a setting of the allocator have saved it?

Every attempt is a child of its own with the memory that is given: more private memory than at its start on the CPU
(RLIMIT_DATA), torch's own limit on a GPU. What died is done again under the recorder, and its trace replayed on a card of that
size. On the CPU the second time has no limit, so the trace holds the whole batch that died: "structure true, workspace blind".
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.load import read
from helpers.allocator.whatif import Answer, whatif
from helpers.load.box import torch_interpreter
from helpers.load.training import PLAIN, SHAPES, Told, child
from helpers.look.reading import parse_size

OUT = Path(__file__).resolve().parents[2] / "outputs" / "training"


class EnduranceError(RuntimeError):
    """A child did not answer: one line, seen, expected, what to do."""


@dataclass(frozen=True)
class Endurance:
    """``batches`` were trained on; the next one, of ``died_length`` tokens a sequence (None: all lived), ran out of memory.

    ``trace`` is the recording, ``answer`` what other settings would do on a card of ``limit_bytes``, ``predicted_batch``
    the one in which the default settings run out in the replay (counted from 1; None: in none).
    """

    limit_bytes: int
    batches: int
    died_length: int | None
    message: str
    trace: Path | None = None
    answer: Answer | None = None
    predicted_batch: int | None = None
    why_no_answer: str = ""


def until_oom(
    python: str,
    limit_bytes: int,
    out: Path,
    *,
    batches: int = 40,
    growth: int = 16,
    device: str = "cpu",
    shape: str = "small",
    seed: int = 7,
    limit_s: float = 120.0,
    confs: tuple[str, ...] | None = None,
    torch: str = "2.14.1",
    build: str = "cuda",
) -> Endurance:
    """Train on batches that are ``growth`` tokens longer each, until memory runs out; record that at ``out`` and ask what if.

    ``confs`` are the settings to try (default: the grid) under that ``torch`` and ``build``. Raises EnduranceError where the
    child does not answer.
    """
    spec = _spec(shape, device, seed, steps=batches, growth=growth, limit_bytes=limit_bytes)
    told = child(python, spec, limit_s)
    if not _died(told):
        return Endurance(
            limit_bytes, told.steps, None, "", why_no_answer="nothing ran out of memory"
        )
    last = [line for line in told.lines if line["event"] == "batch"][-1]
    facts = (limit_bytes, told.steps, int(last["length"]), str(told.end["says"]))
    spec |= {
        "steps": last["batch"],
        "record": str(out),
        "limit_bytes": None if device == "cpu" else limit_bytes,
    }
    again = child(python, spec, limit_s)
    _died(again)
    if not again.end.get("trace"):
        return Endurance(
            *facts, why_no_answer="; ".join(again.end.get("notes", [])) or "no trace was kept"
        )
    path = Path(again.end["trace"])
    answer = whatif(read(path), Card(limit_bytes), torch=torch, build=build, confs=confs)
    default = next((row for row in answer.rows if not row.settings), None)
    return Endurance(
        *facts, path, answer, None if default is None else batch_of(path, default.first_oom)
    )


def grow(
    limit: str, *, device: str = "cpu", shape: str = "small", seed: int = 7
) -> Endurance | None:
    """until_oom within a size such as 1GiB, under this machine's torch, kept below outputs; None where no size is given."""
    if not limit:
        return None
    OUT.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="grow-", dir=OUT))
    return until_oom(
        torch_interpreter(),
        parse_size(limit),
        folder / "trace",
        device=device,
        shape=shape,
        seed=seed,
    )


def batch_of(path: Path, index: int | None) -> int | None:
    """The batch, counted from 1, that an operation belongs to, by where the optimizer's steps ended; None: a snapshot, which
    does not say, or no operation."""
    if index is None or path.suffix != ".jsonl":
        return None
    with path.open(encoding="utf-8") as lines:
        ends = json.loads(lines.readline())["steps"]
    return 1 + sum(1 for end in ends if end <= index)


def _spec(shape: str, device: str, seed: int, **more: Any) -> dict[str, Any]:
    return {
        **SHAPES[shape],
        **PLAIN,
        "path": "until_oom",
        "name": "until_oom",
        "folder": "",
        "device": device,
        "seed": seed,
        **more,
    }


def _died(told: Told) -> bool:
    """Whether memory ran out; raises EnduranceError where that cannot be said."""
    end: Mapping[str, Any] = told.end
    if end.get("state") == "ran" or end.get("oom"):
        return bool(end.get("oom"))
    last = end.get("why") or told.ended.last_line
    raise EnduranceError(
        f"the training child {told.ended.how} after {told.steps} steps ({last}); expected it to finish or to "
        "run out of memory; try a longer limit, or more memory than torch alone needs"
    )
