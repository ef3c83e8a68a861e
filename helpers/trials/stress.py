"""A trace carried out for real, by torch on a GPU that nobody else uses, in a child within a limit.

Its figures stand beside the model's.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.oracle_lines import program_lines
from helpers.allocator.outcome import Outcome
from helpers.allocator.replay import replay
from helpers.allocator.study import Study
from helpers.allocator.trace import Trace
from helpers.ground.child import Transcript, program, transcript
from helpers.ground.units import parse_size
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle
from helpers.settings.table import CONF_NAMES
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.targets import CPU, Target, environment, free_targets

LIVE_SECONDS = 60.0
PROGRAM = "helpers.trials.under_torch.stress"
# Python, import torch, driver start; and the end: statistics, a snapshot of every event, giving
# the memory back.
START_S = 90.0
END_S = 60.0


def live(bundle: Bundle, wanted: Study, limit: str) -> tuple[StressResult, list[list[str]]]:
    """The pattern carried out on this box's first free GPU within a limit, and its figures
    beside the model's.

    A box that is not this machine, has no GPU or whose GPUs are in use is left alone: no
    figures, and the result says why.
    """
    why = ""
    target = CPU
    if not limit:
        why = "no limit was given, so nothing was loaded"
    elif not is_this_box(bundle):
        why = f"{bundle.box} is not this machine, or not since it booted"
    else:
        free, why = free_targets(bundle)
        target = next(iter(free), CPU)
    done = StressResult("not_available", why)
    if not why:
        most = min(parse_size(limit), wanted.card.capacity_bytes)
        how: dict[str, Any] = {"conf": wanted.conf, "rows": True, "target": target}
        done = stress(torch_interpreter(), wanted.trace, most, LIVE_SECONDS, **how)
    if done.status not in ("ok", "time"):
        return done, []
    model = done.replayed(wanted.trace, wanted.conf)
    figures = {
        "operations": (model.events, done.done),
        "requests that failed": (model.ooms, done.ooms),
        "bytes reserved at most": (
            model.peak_reserved_bytes,
            done.stats.get("reserved_bytes.all.peak"),
        ),
        "retries": (model.counter("num_alloc_retries"), done.stats.get("num_alloc_retries")),
    }
    rows = [[name, str(said), str(real)] for name, (said, real) in figures.items()]
    bytes_of = (model.column("allocated").tolist(), model.column("reserved").tolist())
    sizes = list(zip(*bytes_of, strict=True))
    same = sum(sizes[i] == tuple(real) for i, how, *real in done.rows if how != "left_out")
    return done, [*rows, ["operations with equal bytes", str(len(done.rows)), str(same)]]


@dataclass(frozen=True)
class StressResult:
    """What a stress run did. Sizes are bytes.

    ``status``: ok, time (stopped after its seconds), not_available, failed (torch or the driver
    raised an error), crashed, timed_out, or stuck (left behind in the kernel); ``why`` says it
    in words. ``done`` operations were carried out, with ``ooms`` failed allocations and
    ``skipped`` frees of those; ``left_out`` counts what a real GPU cannot do. ``stats`` are
    torch.cuda.memory_stats at the end. ``rows``: [index, ok|oom|skipped|left_out, allocated,
    reserved] where wanted. ``fraction`` is the limit as torch got it: a replay that is to be
    compared takes ``total_bytes`` and this. ``streams``: the handle of each stream's number.
    ``build``: cuda or rocm.
    """

    status: str
    why: str
    done: int = 0
    ooms: int = 0
    skipped: int = 0
    stats: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[tuple[int, str, int, int], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[int, int] = field(default_factory=dict)
    torch: str = ""
    build: str = ""
    device: str = ""
    total_bytes: int = 0
    limit_bytes: int = 0
    fraction: float = 0.0
    snapshot: Path | None = None

    def replayed(self, trace: Trace, conf: str) -> Outcome:
        """The model's answer to the operations that were carried out, on the same card within
        the same limit.
        """
        of = {"torch": self.torch, "build": self.build, "fraction": self.fraction}
        card = Card(self.total_bytes)
        return replay(trace, conf, card, **of, timeline=True, stop=self.done)  # type: ignore[arg-type]


def stress(
    python: str,
    trace: Trace,
    limit_bytes: int | None = None,
    seconds: float = 60.0,
    *,
    conf: str = "",
    snapshot: Path | None = None,
    rows: bool = False,
    target: Target = CPU,
) -> StressResult:
    """Carry out a trace on the target, or on the first GPU that ``python``'s torch sees, under
    ``conf`` and no other settings.

    ``limit_bytes``: hold at most this, by default 80 % of what is free. ``snapshot``: where
    torch's snapshot goes at the end. Raises ValueError for a limit or a time that is not above
    0 and for a trace that begins in the middle of a program.
    """
    for name, value in (("limit_bytes", limit_bytes), ("seconds", seconds)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value!r}: expected a number above 0")
    if not shutil.which(python):
        return StressResult("not_available", f"there is no Python at {python}")
    with tempfile.TemporaryDirectory(prefix="casebook-stress-") as scratch:
        operations = Path(scratch) / "operations.jsonl"
        with operations.open("w") as file:
            file.writelines(json.dumps(op) + "\n" for op in program_lines(trace))
        spec = {"operations": str(operations), "seconds": seconds, "limit_bytes": limit_bytes}
        spec |= {"snapshot": str(snapshot.resolve()) if snapshot else "", "rows": rows}
        argv = program(python, PROGRAM, json.dumps(spec))
        # Each build and version reads another of these names; all get the same.
        confs = dict.fromkeys(CONF_NAMES, conf) if conf else {}
        more = environment(target, more={**confs, "TMPDIR": scratch})
        then_s = {"ready": seconds + END_S, "end": END_S}
        return _result(transcript(argv, START_S, then_s, env=more, cwd=scratch))


def _result(told: Transcript) -> StressResult:
    ready = told.last("ready")
    end = told.last("end")
    ended = told.ended
    known = {one.name for one in fields(StressResult)} - {"snapshot", "streams", "rows"}
    values = {"why": "", **{key: value for key, value in {**ready, **end}.items() if key in known}}
    if not end:
        status = {"exited": "failed", "signalled": "crashed"}.get(ended.how, ended.how)
        how = f"the child did not tell its end ({ended.signal or ended.exit_code})"
        values |= {"status": status, "why": f"{how}: {ended.last_line}"}
    elif ended.how != "exited":
        how = ended.signal or ended.how
        values["why"] = f"afterwards the child ended otherwise than by itself ({how})"
    batches = (row["rows"] for row in told.rows if row["event"] == "rows")
    return StressResult(
        **values,
        rows=tuple(tuple(row) for batch in batches for row in batch),
        streams={int(number): handle for number, handle in end.get("streams", {}).items()},
        snapshot=Path(end["snapshot"]) if end.get("snapshot") else None,
    )
