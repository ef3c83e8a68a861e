"""Carries out a trace with torch on a GPU that nobody else uses, in a child process within a limit,
and compares what torch counted with the allocator model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
"""Time for the operations, for which a notebook waits."""
PROGRAM = "helpers.trials.under_torch.stress"
START_S = 90.0
"""For the start of Python, torch and the driver."""
END_S = 60.0
"""For statistics, a snapshot of every event, and giving the memory back."""


@dataclass(frozen=True)
class StressResult:
    """The result of a stress run. Sizes are bytes.

    ``status`` is ok, time (stopped after its seconds), not_available, failed (torch or the driver
    raised an error), crashed, timed_out, or stuck (left behind in the kernel); ``why`` says it in
    words. ``done`` operations were carried out, with ``ooms`` failed allocations. ``stats`` are
    those of torch.cuda.memory_stats at the end. ``rows`` are (index, outcome, allocated, reserved)
    after each operation; the outcome is ok, oom, skipped (the free of a failed allocation) or
    left_out (what a real GPU cannot do). ``limit_bytes`` is the share ``fraction`` of
    ``total_bytes``. ``build`` is cuda or rocm.
    """

    status: str
    why: str
    done: int = 0
    ooms: int = 0
    stats: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[tuple[int, str, int, int], ...] = ()
    torch: str = ""
    build: str = ""
    device: str = ""
    total_bytes: int = 0
    limit_bytes: int = 0
    fraction: float = 0.0

    def replayed(self, trace: Trace, conf: str) -> Outcome:
        """The model's replay of the operations that were carried out, for the same card and
        limit.
        """
        return replay(
            trace,
            conf,
            Card(self.total_bytes),
            torch=self.torch,
            build=self.build,
            fraction=self.fraction,
            timeline=True,
            stop=self.done,
        )


def live(
    bundle: Bundle, wanted: Study, limit: str
) -> tuple[StressResult, list[list[str]]]:
    """Carry out the trace of a study on this box's first free GPU within a limit, a size such as
    8GiB. Returns (the result, a table), whose rows are (what is counted, how much by the model, how
    much by torch), all as text.

    Without a limit, or on a box that is not this machine or has no free GPU, nothing is run. Then,
    and if the trace could not be carried out, the table is empty, and the result says why.
    """
    if not limit:
        why = "no limit was given, so nothing was loaded"
        return StressResult("not_available", why), []
    if not is_this_box(bundle):
        why = f"{bundle.box} is not this machine, or not since it booted"
        return StressResult("not_available", why), []
    free, why = free_targets(bundle)
    if not free:
        return StressResult("not_available", why), []
    result = stress(
        torch_interpreter(),
        wanted.trace,
        min(parse_size(limit), wanted.card.capacity_bytes),
        conf=wanted.conf,
        target=free[0],
    )
    if result.status not in ("ok", "time"):
        return result, []
    model = result.replayed(wanted.trace, wanted.conf)
    peak_bytes = result.stats.get("reserved_bytes.all.peak")
    retries = result.stats.get("num_alloc_retries")
    allocated = model.column("allocated").tolist()
    reserved = model.column("reserved").tolist()
    same = 0
    for index, outcome, real_allocated, real_reserved in result.rows:
        is_equal = (allocated[index], reserved[index]) == (
            real_allocated,
            real_reserved,
        )
        # The model carries out what a real GPU cannot, so these are not compared.
        if is_equal and outcome != "left_out":
            same += 1
    rows = [
        ["operations", str(model.events), str(result.done)],
        ["requests that failed", str(model.ooms), str(result.ooms)],
        ["bytes reserved at most", str(model.peak_reserved_bytes), str(peak_bytes)],
        ["retries", str(model.counter("num_alloc_retries")), str(retries)],
        ["operations with equal bytes", str(len(result.rows)), str(same)],
    ]
    return result, rows


def stress(
    python: str,
    trace: Trace,
    limit_bytes: int,
    seconds: float = LIVE_SECONDS,
    *,
    conf: str = "",
    snapshot: Path | None = None,
    target: Target = CPU,
) -> StressResult:
    """Carry out a trace on the target, by default the first GPU that ``python``'s torch sees, under
    the allocator settings ``conf`` and no others.

    torch holds at most ``limit_bytes``, and stops after ``seconds``. Its snapshot at the end goes
    to the path ``snapshot``. Raises ValueError for a limit or a time that is not above 0, and for a
    trace that begins in the middle of a program.
    """
    for name, value in (("limit_bytes", limit_bytes), ("seconds", seconds)):
        if not value > 0:
            raise ValueError(f"{name} is {value!r}: expected a number above 0")
    if not shutil.which(python):
        return StressResult("not_available", f"there is no Python at {python}")
    with tempfile.TemporaryDirectory(prefix="casebook-stress-") as scratch:
        operations = Path(scratch) / "operations.jsonl"
        with operations.open("w") as file:
            file.writelines(json.dumps(op) + "\n" for op in program_lines(trace))
        spec = {
            "operations": str(operations),
            "seconds": seconds,
            "limit_bytes": limit_bytes,
            "snapshot": "",
        }
        if snapshot:
            spec["snapshot"] = str(snapshot.resolve())
        confs = {}
        if conf:  # which of these names is read depends on build and release
            confs = dict.fromkeys(CONF_NAMES, conf)
        answer = transcript(
            program(python, PROGRAM, json.dumps(spec)),
            START_S,
            {"ready": seconds + END_S, "end": END_S},
            env=environment(target, more={**confs, "TMPDIR": scratch}),
            cwd=scratch,
        )
        return _result(answer)


def _result(answer: Transcript) -> StressResult:
    """The result of a child, by the rows that it told and by how it ended."""
    ready = answer.last("ready")
    end = answer.last("end")
    ended = answer.ended
    status = end.get("status", "")
    why = end.get("why", "")
    if not end:  # the other ways to end (timed_out, stuck) are states themselves
        status = {"exited": "failed", "signalled": "crashed"}.get(ended.how, ended.how)
        code = ended.signal or ended.exit_code
        why = f"the child did not tell its end ({code}): {ended.last_line}"
    elif ended.how != "exited":
        how = ended.signal or ended.how
        why = f"afterwards the child ended otherwise than by itself ({how})"
    rows: list[tuple[int, str, int, int]] = []
    for row in answer.rows:
        if row["event"] == "rows":
            rows += map(tuple, row["rows"])
    return StressResult(
        status=status,
        why=why,
        done=end.get("done", 0),
        ooms=end.get("ooms", 0),
        stats=end.get("stats", {}),
        rows=tuple(rows),
        torch=ready.get("torch", ""),
        build=ready.get("build", ""),
        device=ready.get("device", ""),
        total_bytes=ready.get("total_bytes", 0),
        limit_bytes=ready.get("limit_bytes", 0),
        fraction=ready.get("fraction", 0.0),
    )
