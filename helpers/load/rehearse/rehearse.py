"""Would this program fit that card? It is run unchanged under torch's real allocator, on a device that computes nothing.

The allocator sees the requests that it sees on a GPU with those properties, and raises its own OutOfMemoryError at the card's
size. The program's output, arguments, exit code and environment stay its own; the recorder of `record` writes the trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from helpers.allocator import snapshot
from helpers.allocator.trace import TraceError
from helpers.load.record import DEFAULT_EVENTS, INJECT, RecordError, record, under
from helpers.load.rehearse import values
from helpers.load.rehearse.build import NEEDS, Torch, build
from helpers.load.rehearse.devices import Device

WITNESS = INJECT.parent / "rehearsal"


@dataclass(frozen=True)
class Oom:
    """The first out-of-memory: bytes asked for and free, the program's frames, and torch's words where it ended the program."""

    requested_bytes: int
    free_bytes: int
    frames: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal found. ``exit_code`` is the program's; the peaks, retries and ooms are those of torch's statistics.

    ``ooms`` counts those too that the program caught. ``trace`` is ready for replay and what-if; None: ``why_no_trace``.
    ``exact``: nothing allocated is known to hang on values that were not computed. ``trust`` says what it rests on.
    """

    device: Device
    torch: str
    conf: str
    exit_code: int
    seconds: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    ooms: int
    oom: Oom | None
    trace: Path | None
    why_no_trace: str
    error: str
    exact: bool
    trust: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def label(self) -> str:
        """What every figure and trace of it is to be called."""
        return f"rehearsed on {self.device.words}, torch {self.torch}"

    @property
    def fits(self) -> bool:
        """It ended well and never ran out of memory, not even in a place that catches it."""
        return self.exit_code == 0 and self.ooms == 0


def environment(
    torch: Torch,
    preload: Sequence[Path],
    device: Device,
    folder: Path,
    conf: str | None,
    extra: Mapping[str, str] | None = None,
    cudnn_workspace_bytes: int = 0,
) -> dict[str, str]:
    """What the program's environment gets beside its own; nothing outside of the rehearsed process changes."""
    held = os.environ.get("LD_PRELOAD", "")
    paths = [
        str(INJECT),
        str(WITNESS),
        *([] if torch.own else [str(torch.folder)]),
        os.environ.get("PYTHONPATH", ""),
    ]
    found = {
        "LD_PRELOAD": " ".join(filter(None, [*map(str, preload), held])),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": "0",
        "CASEBOOK_REHEARSE": str(folder),
        "FAKE_LOG": "0",
        "CASEBOOK_NEEDS": str(torch.folder / NEEDS),
        # Without these the order of dicts and of autocast's cache, by host address, changes from run to run (see also _still).
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        # Of three rules, topdown gave the most addresses of four public traces; where ranges lie decides nothing.
        "FAKE_ADDR_POLICY": "topdown",
        "FAKE_RANGE_POLICY": "firstfit",
        "FAKE_VRAM_BYTES": str(device.total_bytes),
        "FAKE_FOREIGN_BYTES": str(device.held_bytes),
        "FAKE_NAME": device.name,
        "FAKE_CC": str(device.capability),
        "FAKE_SMS": str(device.multiprocessors),
        "FAKE_SM_THREADS": str(device.threads),
        "FAKE_SM_SMEM": str(device.shared_kib << 10),
        "FAKE_L2": str(device.l2_mib << 20),
        "FAKE_CUDNN_WS": str(cudnn_workspace_bytes),
        **(extra or {}),
    }
    return {**found, "PYTORCH_CUDA_ALLOC_CONF": conf} if conf is not None else found


def rehearse(
    command: Sequence[str],
    device: Device,
    out: Path,
    *,
    torch: Torch,
    cache: Path,
    conf: str | None = None,
    extra: Mapping[str, str] | None = None,
    python: str = "",
    max_events: int = DEFAULT_EVENTS,
    cudnn_workspace_bytes: int = 0,
    log: Path | None = None,
) -> Rehearsal:
    """Run ``command`` on ``device`` and keep its trace at ``out`` (a .pickle; its records in a folder beside it).

    ``conf`` is PYTORCH_CUDA_ALLOC_CONF (None: the program's own), ``extra`` more environment, ``python`` the interpreter in
    place of the ``python`` that the command names; ``log`` takes the program's output. Raises RecordError and NotReady.
    """
    argv = under(python, command)
    if not shutil.which(argv[0]):
        raise RecordError(f"{argv[0]}: not found; expected a program; give the command after --")
    out = out.absolute()
    folder = out.with_suffix(".record")
    given = environment(
        torch, build(torch, cache), device, folder, conf, extra, cudnn_workspace_bytes
    )
    before = ["sh", "-c", 'exec "$@" > "$0" 2>&1', str(log)] if log else []
    before += [*_still(), "env", *(f"{name}={value}" for name, value in given.items())]
    done = record([*before, *argv], out, max_events=max_events)
    told = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("rehearsal_*.told"))
    ]
    cards = [row["devices"][0]["stats"] for row in done.processes if row.get("devices")]
    stats: Mapping[str, Any] = max(
        cards, key=lambda one: one["reserved_bytes.all.peak"], default={}
    )
    versions = [row["torch"]["version"] for row in done.processes if row.get("torch")]
    oom, streams = _first_oom(done.trace, done.processes, told)
    found = Rehearsal(
        device,
        versions[0] if versions else torch.version,
        given.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        done.exit_code,
        done.seconds,
        stats.get("allocated_bytes.all.peak", 0),
        stats.get("reserved_bytes.all.peak", 0),
        stats.get("num_alloc_retries", 0),
        sum(row["ooms"] for row in done.processes),
        oom,
        done.trace,
        done.why_no_trace,
        next(
            (
                " ".join(f"{row['error']}: {row['message']}".split())[:400]
                for row in told
                if row["error"]
            ),
            "",
        ),
        values.exact(told),
        tuple(values.trust(told, device, streams, cudnn_workspace_bytes)),
        done.notes,
    )
    path = folder / "record.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    # The command as it was given: the environment before it is this machine's business.
    kept.update(
        command=kept["command"][len(before) :],
        rehearsed=found.label,
        trust=found.trust,
        device=asdict(device),
    )
    path.write_text(json.dumps(kept, indent=1, default=str), encoding="utf-8")
    return found


@once
def _still() -> tuple[str, ...]:
    """What starts a program with the same host addresses each time, where this machine allows it (containers may not)."""
    try:
        subprocess.run(["setarch", "-R", "true"], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return "setarch", "-R"


def _first_oom(
    trace: Path | None, processes: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]]
) -> tuple[Oom | None, int]:
    """The first out-of-memory, and how many streams the trace has."""
    frames: tuple[str, ...] = ()
    streams = 1
    if trace is not None:
        with contextlib.suppress(
            TraceError
        ):  # a program may switch the history off; the observer's figures remain
            seen = snapshot.load(trace)
            streams = len({event.stream for event in seen.events if event.action == "alloc"})
            last = next((event for event in reversed(seen.events) if event.action == "oom"), None)
            frames = seen.frames[last.frame] if last is not None and last.frame >= 0 else ()
    kept = sorted(
        (one for row in processes for one in row["snapshots"] if one["reason"] == "oom"),
        key=lambda one: one["at"],
    )
    if not kept:
        return None, streams
    # Backward runs on a thread without Python frames; where the program ended by it, the traceback has the line that called.
    message, lines = next(
        ((row["message"], row["frames"]) for row in told if row["error"] == "OutOfMemoryError"),
        ("", []),
    )
    return Oom(
        kept[0]["size_bytes"], kept[0]["device_free_bytes"], frames or tuple(lines), message
    ), streams
