"""What does a trace do to a real GPU? Its operations carried out by torch in a child process, within a limit."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from helpers.allocator.trace import Trace
from helpers.load.child import Ended, watch
from helpers.load.patterns import ops
from helpers.settings.table import CONF_NAMES, NO_CACHE

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from helpers.torchside.stress import main; main()"
# Python, import torch, driver start; and the end: statistics, a snapshot of every event, giving the memory back.
START_S, END_S = 90.0, 60.0


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


def stress(python: str, trace: Trace, limit_bytes: int | None = None, seconds: float = 60.0, *, conf: str = "",
           snapshot: Path | None = None, rows: bool = False, env: Mapping[str, str] | None = None) -> StressResult:
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
        try:
            message = json.loads(text)
        except ValueError:
            return None
        event = message.pop("event", "") if isinstance(message, dict) else ""
        if event == "rows":
            seen.extend(tuple(row) for row in message["rows"])
        elif event in ("ready", "oom", "end"):
            told[event] = message
        return seconds + END_S if event == "ready" else END_S if event == "end" else None

    with tempfile.TemporaryDirectory(prefix="casebook-stress-") as scratch:
        operations = Path(scratch) / "operations.jsonl"
        with operations.open("w") as file:
            file.writelines(json.dumps(op) + "\n" for op in ops(trace))
        argv = [python, "-c", PROGRAM, str(operations), "--seconds", str(seconds)]
        argv += ["--limit-bytes", str(limit_bytes)] if limit_bytes is not None else []
        argv += ["--snapshot", str(snapshot.resolve())] if snapshot else []
        argv += ["--rows"] if rows else []
        ended = watch(argv, START_S, env=_environment(conf, scratch, env or {}), cwd=scratch, on_line=take)
    return _result(told, tuple(seen), ended)


def _environment(conf: str, scratch: str, more: Mapping[str, str]) -> dict[str, str]:
    env = {name: value for name, value in {**os.environ, **more}.items() if name not in (*CONF_NAMES, *NO_CACHE)}
    # Each build and version reads another of these names; all get the same.
    env |= dict.fromkeys(CONF_NAMES, conf) if conf else {}
    path = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    return {**env, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": scratch}


def _result(told: Mapping[str, Any], rows: tuple[tuple[int, str, int, int], ...], ended: Ended) -> StressResult:
    ready, oom, end = (dict(told.get(event, {})) for event in ("ready", "oom", "end"))
    if not end:
        last = (ended.last_words.splitlines() or ["it said nothing"])[-1][:300]
        status = {"exited": "failed", "signalled": "crashed"}.get(ended.how, ended.how)
        end = {"status": status, "why": f"the child did not tell its end ({ended.signal or ended.exit_code}): {last}",
               "seconds": ended.seconds}
    elif ended.how != "exited":
        end["why"] = f"afterwards the child ended otherwise than by itself ({ended.signal or ended.how})"
    known = {one.name for one in fields(StressResult)}
    values = {key: value for key, value in {**ready, **end}.items() if key in known}
    values |= {key: Path(where) if where else None for key, where in (("snapshot", end.get("snapshot")),
                                                                      ("oom_snapshot", oom.get("snapshot")))}
    values["streams"] = {int(number): handle for number, handle in end.get("streams", {}).items()}
    if oom:
        values |= {"first_oom": (oom["i"], oom["size_bytes"]), "oom_message": oom["message"], "oom_stats": oom["stats"]}
    return StressResult(**values, rows=rows)
