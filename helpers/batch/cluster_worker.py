"""One run on a worker of a Dask cluster: in a folder of its own, for as long as its batch wants it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from helpers import __version__
from helpers.ground.child import CHECKOUT
from helpers.ground.workbook_process import environment

from . import gate
from .box_state import Gates
from .record import boot_id, in_words, move, node, now, replaced
from .runner import Job, Stop, Tick
from .shapes import Run

BEAT_S = 1.0
CAPTURE_S = 120.0
MOST_BYTES = 64 << 20
"""Of the files of one run that come back to the batch, small ones first."""


@dataclass(frozen=True)
class Order:
    """What a worker gets of one run: its record, its job, its notebook.

    ``key`` names the run once for all workers, ``topic`` what the batch hears. ``home`` is the
    run's folder as the batch has it. ``gates`` says what the worker's box must be like
    afterwards; None where other workers use that box too.
    """

    key: str
    topic: str
    run: Run
    job: Job
    home: str
    name: str
    notebook: bytes = field(repr=False)
    gates: Gates | None


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: the record, and files by their names below the run's folder.

    ``left`` has the size in bytes of each file that stayed in ``folder`` on the worker's box.
    """

    run: Run
    files: dict[str, bytes] = field(repr=False)
    left: dict[str, int]
    folder: str


def tool_version() -> str:
    """The version of the workbook that a worker runs from."""
    return __version__


def carry_out(order: Order, run_one: Callable[..., Run]) -> Outcome:
    """On a worker: one run in a folder of its own. Raises RuntimeError where it was begun before."""
    from distributed import Event, get_client, get_worker

    worker = get_worker()
    client = get_client()
    begun = Event(order.key, client=client)
    if begun.is_set():
        raise RuntimeError("it was begun before, and its result is lost")
    begun.set()
    folder = Path(tempfile.mkdtemp(prefix="casebook-", dir=worker.local_directory))
    stop = Stop()
    done = threading.Event()
    word: dict[str, object] = {
        "key": order.key,
        "node": node(),
        "boot_id": boot_id(),
        "folder": str(folder),
        "cell": 0,
        "cells": 0,
        "seconds": 0.0,
    }
    stopping = Event(f"{order.topic}-stop", client=client)

    def tick(cell: int, cells: int, seconds: float) -> None:
        word.update(cell=cell, cells=cells, seconds=seconds)

    def beat() -> None:
        """Say where the run stands; stop it where the batch does, or is gone."""
        while not done.is_set():
            worker.log_event(order.topic, dict(word))
            task = worker.state.tasks.get(order.key)
            wanted = task is not None and task.state in ("executing", "long-running")
            try:
                wanted = wanted and not stopping.is_set()
            except (OSError, RuntimeError):  # the scheduler is gone
                wanted = False
            if not wanted:
                stop.signal = stop.signal or "SIGTERM"
            done.wait(BEAT_S)

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        return _outcome(order, folder, run_one, stop, tick)
    finally:
        done.set()
        beats.join()


def _outcome(
    order: Order, folder: Path, run_one: Callable[..., Run], stop: Stop, tick: Tick
) -> Outcome:
    """The run with its notebook and its paths as they are on this box."""
    place = folder / order.run.run_id
    place.mkdir()
    source = folder / order.name
    source.write_bytes(order.notebook)
    parameters = {
        name: replaced(value, order.home, str(place))
        for name, value in order.job["parameters"].items()
    }
    if order.run.box == "live":
        try:
            parameters["box"] = str(captured(place / "box.tar.gz"))
        except (OSError, subprocess.SubprocessError) as error:
            started = move(order.run, "started", node=node(), started_at=now(), boot_id=boot_id())
            why = f"this node could not be captured: {in_words(error)}"
            run = move(started, "failed", ended_at=now(), stopped_by="box", cause=why)
            return Outcome(run, {}, {}, str(place))
    look = partial(gate.measure, folder=folder)
    before = look()
    job = {**order.job, "source": str(source), "parameters": parameters}
    run = run_one(place, order.run, job, stop=stop, tick=tick)
    if order.gates is not None:
        run = gate.marked(run, gate.settle(before, order.gates, look))
    files, left = _files(place)
    if not left:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(run, files, left, str(place))


def captured(path: Path) -> Path:
    """An evidence bundle of this box at ``path``. Raises OSError, SubprocessError."""
    done = subprocess.run(
        [sys.executable, "-m", "helpers", "capture", "--out", str(path)],
        timeout=CAPTURE_S,
        check=False,
        env=environment(),
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OSError(lines[-1] if lines else f"exit status {done.returncode}")
    return path


def _files(folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """(the files of a run, small ones first up to MOST_BYTES; the sizes of those that stay)."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    paths = [path for path in paths if path != folder / "run.json"]
    files: dict[str, bytes] = {}
    left: dict[str, int] = {}
    room_bytes = MOST_BYTES
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        name = str(path.relative_to(folder))
        size_bytes = path.stat().st_size
        room_bytes -= size_bytes
        if room_bytes < 0:
            left[name] = size_bytes
        else:
            files[name] = path.read_bytes()
    return files, left
