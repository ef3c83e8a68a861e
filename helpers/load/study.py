"""What an allocator study replays: a recorded trace or a pattern; and on a live GPU nobody else uses, carried out for real.

A live run is torch's own, in a child process within a limit, and its figures stand beside the model's.
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
from helpers.allocator.load import read
from helpers.allocator.recorded import circumstances, with_record
from helpers.allocator.replay import replay
from helpers.allocator.trace import Trace
from helpers.child import Ended, json_row, program, watch
from helpers.load.box import is_this_box, torch_interpreter
from helpers.load.patterns import PATTERNS, generate, ops
from helpers.load.targets import environment, free_targets
from helpers.look.bundle import Bundle
from helpers.look.reading import parse_size, show_bytes
from helpers.settings.table import CONF_NAMES

BUNDLED = Path(__file__).resolve().parents[2] / "env" / "traces"
CPU_STEP = "cpu-training-step"
LIVE_SECONDS = 60.0
PROGRAM = "helpers.torchside.stress"
# Python, import torch, driver start; and the end: statistics, a snapshot of every event, giving the memory back.
START_S, END_S = 90.0, 60.0


@dataclass(frozen=True)
class Study:
    """One trace with the card, release, build and settings it is studied under. ``recorded``: by a GPU, not made up;
    ``own``: a file that was given, no pattern or example of the workbook's."""

    name: str
    trace: Trace
    card: Card
    torch: str
    build: str
    conf: str
    fraction: float | None
    recorded: bool
    notes: tuple[str, ...]
    own: bool = False

    @property
    def words(self) -> str:
        """The study in one line."""
        label = self.trace.header.get("label") or "label unknown"
        return (
            f"{self.name}: {len(self.trace)} operations ({label}) on a card of {show_bytes(self.card.capacity_bytes)}, "
            f"torch {self.torch}, {self.build}, {self.conf or 'default settings'}"
        )


def study(
    source: str,
    *,
    capacity: str = "",
    conf: str = "",
    torch: str = "",
    build: str = "",
    seed: int = 0,
) -> Study:
    """The study of a pattern, of a trace in env/traces by its name, or of a trace file.

    capacity is a size such as 20GiB; empty takes the trace's own. Raises ValueError (TraceError) in one line.
    """
    bundled = {path.stem: path for path in sorted(BUNDLED.glob("*.parquet"))}
    if source in PATTERNS:
        trace = generate(source, seed=seed)
    elif source in bundled:
        trace = read(bundled[source])
    elif Path(source).is_file():
        trace = with_record(read(source), Path(source))
    else:
        raise ValueError(
            f"trace {source!r}: expected a file, a pattern ({', '.join(PATTERNS)}) or a bundled trace "
            f"({', '.join(bundled) or 'none'})"
        )
    known = circumstances(trace)
    size = parse_size(capacity) if capacity else known.capacity_bytes
    if size <= 0:
        raise ValueError(
            f"trace {Path(source).name}: it does not say how large the card was; give capacity, such as 20GiB"
        )
    own = source not in PATTERNS and source not in bundled
    recorded = "GPU" in str(trace.header.get("label"))
    return Study(
        Path(source).stem,
        trace,
        Card(size, known.held_bytes),
        torch or known.torch,
        build or known.build,
        conf or known.conf,
        known.fraction,
        recorded,
        (*trace.notes, *known.notes),
        own,
    )


def live(bundle: Bundle, wanted: Study, limit: str) -> tuple[StressResult, list[list[str]]]:
    """The pattern carried out on this box's first free GPU within a limit, and its figures beside the model's.

    A box that is not this machine, has no GPU or whose GPUs are in use is left alone; the result says why.
    """
    if not limit:
        return _not_run("no limit was given, so nothing was loaded")
    if not is_this_box(bundle):
        return _not_run(f"{bundle.box} is not this machine, or not since it booted")
    free, why = free_targets(bundle)
    if not free:
        return _not_run(why)
    done = stress(
        torch_interpreter(),
        wanted.trace,
        min(parse_size(limit), wanted.card.capacity_bytes),
        LIVE_SECONDS,
        conf=wanted.conf,
        rows=True,
        env={free[0].visible_variable: free[0].visible_value},
    )
    if done.status not in ("ok", "time"):
        return done, [["the card", "not available because", done.why]]
    model = replay(
        wanted.trace,
        wanted.conf,
        Card(done.total_bytes),
        torch=done.torch,
        build=done.build,
        fraction=done.fraction,
        timeline=True,
        stop=done.done,
    )
    real = {
        "operations": done.done,
        "requests that failed": done.ooms,
        "peak reserved": done.stats.get("reserved_bytes.all.peak"),
        "retries": done.stats.get("num_alloc_retries"),
    }
    said = {
        "operations": model.events,
        "requests that failed": model.ooms,
        "peak reserved": model.peak_reserved_bytes,
        "retries": model.counter("num_alloc_retries"),
    }
    sizes = {name: model.column(name).tolist() for name in ("allocated", "reserved")}
    same = sum(
        (allocated, reserved) == (sizes["allocated"][index], sizes["reserved"][index])
        for index, how, allocated, reserved in done.rows
        if how != "left_out"
    )
    table = [[name, str(said[name]), str(real[name])] for name in real]
    return done, [*table, ["operations with equal bytes", str(len(done.rows)), str(same)]]


def _not_run(why: str) -> tuple[StressResult, list[list[str]]]:
    return StressResult("not_available", why), [["the card", "not available because", why]]


# On a real GPU.


@dataclass(frozen=True)
class StressResult:
    """What a stress run did. Sizes are bytes.

    ``status``: ok, time (stopped after its seconds), not_available, failed (torch or the driver raised an error), crashed,
    timed_out, or stuck (left behind in the kernel); ``why`` says it in words. ``done`` operations were carried out, with
    ``ooms`` failed allocations and ``skipped`` frees of those; ``left_out`` counts what a real GPU cannot do. ``stats`` and
    ``oom_stats`` are torch.cuda.memory_stats at the end and at the first failed allocation (``first_oom``: index and size).
    ``rows``: [index, ok|oom|skipped|left_out, allocated, reserved] where wanted. ``fraction`` is the limit as torch got it:
    a replay that is to be compared takes ``total_bytes`` and this. ``streams``: the handle of each stream's number. ``build``:
    cuda or rocm. ``history``: why no memory history was kept, or empty.
    """

    status: str
    why: str
    done: int = 0
    ooms: int = 0
    skipped: int = 0
    seconds: float = 0.0
    first_oom: tuple[int, int] | None = None
    oom_message: str = ""
    stats: Mapping[str, int] = field(default_factory=dict)
    oom_stats: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[tuple[int, str, int, int], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[int, int] = field(default_factory=dict)
    torch: str = ""
    build: str = ""
    device: str = ""
    total_bytes: int = 0
    limit_bytes: int = 0
    fraction: float = 0.0
    history: str = ""
    snapshot: Path | None = None
    oom_snapshot: Path | None = None


def stress(
    python: str,
    trace: Trace,
    limit_bytes: int | None = None,
    seconds: float = 60.0,
    *,
    conf: str = "",
    snapshot: Path | None = None,
    rows: bool = False,
    env: Mapping[str, str] | None = None,
) -> StressResult:
    """Carry out a trace on the first GPU that ``python``'s torch sees, under the settings ``conf`` and no others.

    ``limit_bytes``: hold at most this, by default 80 % of what is free. ``snapshot``: where torch's snapshot goes at the end;
    one at the first failed allocation goes beside it as NAME.oom.pickle. ``env``: further variables, say the one that picks a
    GPU. Raises ValueError for a limit or a time that is not above 0 and for a trace that begins in the middle of a program.
    """
    for name, value in (("limit_bytes", limit_bytes), ("seconds", seconds)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value!r}: expected a number above 0")
    if not shutil.which(python):
        return StressResult("not_available", f"there is no Python at {python}")
    told: dict[str, Any] = {}
    seen: list[tuple[int, str, int, int]] = []

    def take(text: str) -> float | None:
        message = json_row(text)
        event = message.pop("event", "")
        if event == "rows":
            seen.extend(tuple(row) for row in message["rows"])
        elif event in ("ready", "oom", "end"):
            told[event] = message
        return seconds + END_S if event == "ready" else END_S if event == "end" else None

    with tempfile.TemporaryDirectory(prefix="casebook-stress-") as scratch:
        operations = Path(scratch) / "operations.jsonl"
        with operations.open("w") as file:
            file.writelines(json.dumps(op) + "\n" for op in ops(trace))
        argv = program(python, PROGRAM, str(operations), "--seconds", str(seconds))
        argv += ["--limit-bytes", str(limit_bytes)] if limit_bytes is not None else []
        argv += ["--snapshot", str(snapshot.resolve())] if snapshot else []
        argv += ["--rows"] if rows else []
        # Each build and version reads another of these names; all get the same.
        more = {**(env or {}), **dict.fromkeys(CONF_NAMES if conf else (), conf), "TMPDIR": scratch}
        ended = watch(argv, START_S, env=environment(more=more), cwd=scratch, on_line=take)
    return _result(told, tuple(seen), ended)


def _result(
    told: Mapping[str, Any], rows: tuple[tuple[int, str, int, int], ...], ended: Ended
) -> StressResult:
    ready, oom, end = (dict(told.get(event, {})) for event in ("ready", "oom", "end"))
    if not end:
        status = {"exited": "failed", "signalled": "crashed"}.get(ended.how, ended.how)
        why = (
            f"the child did not tell its end ({ended.signal or ended.exit_code}): {ended.last_line}"
        )
        end = {"status": status, "why": why, "seconds": ended.seconds}
    elif ended.how != "exited":
        end["why"] = (
            f"afterwards the child ended otherwise than by itself ({ended.signal or ended.how})"
        )
    known = {one.name for one in fields(StressResult)}
    values = {key: value for key, value in {**ready, **end}.items() if key in known}
    values |= {
        key: Path(where) if where else None
        for key, where in (("snapshot", end.get("snapshot")), ("oom_snapshot", oom.get("snapshot")))
    }
    values["streams"] = {int(number): handle for number, handle in end.get("streams", {}).items()}
    if oom:
        values |= {
            "first_oom": (oom["i"], oom["size_bytes"]),
            "oom_message": oom["message"],
            "oom_stats": oom["stats"],
        }
    return StressResult(**values, rows=rows)
