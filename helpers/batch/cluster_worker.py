"""One run on a worker of a Dask cluster, in a folder of its own; it stops when its batch does."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from helpers import __version__
from helpers.look.capture import Options, measure

from .record import boot_id, in_words, move, node, now, replaced
from .shapes import Run
from .stop import Stop
from .watched import Job

BEAT_S = 1.0
"""Seconds between two looks whether the batch still wants the run."""
MOST_BYTES = 64 << 20
"""Bytes of a run's files that are sent back to the batch, small files first.

They travel in one message, which the worker and the batch hold in memory.
"""
RUNNING = ("executing", "long-running")
"""States of a task on a worker while its function runs (distributed/worker_state_machine.py)."""


@dataclass(frozen=True)
class Order:
    """What a worker is sent for one run.

    ``key`` is unique to this run, also among batches. ``stop`` is the name of the event that asks
    all workers to stop. ``home`` is the run's folder on the batch's box. ``name`` and ``notebook``
    are the notebook's file name and content.
    """

    key: str
    stop: str
    run: Run
    job: Job
    home: str
    name: str
    notebook: bytes = field(repr=False)


@dataclass(frozen=True)
class RunOutcome:
    """What a worker sends back: the record, and the content of each file by its path relative to
    the run's folder.

    ``left`` has the size in bytes of each file that stayed in ``folder`` on the worker's box.
    """

    run: Run
    files: dict[str, bytes] = field(repr=False)
    left: dict[str, int]
    folder: str


def about_worker() -> tuple[str, str, str]:
    """Asked on a worker: (version of this project there, name of its machine, id of its boot)."""
    return __version__, node(), boot_id()


def carry_out(order: Order, run_one: Callable[..., Run]) -> RunOutcome:
    """Carry out one run on this worker. Raises RuntimeError if a worker has begun it before: Dask
    runs a task again when its result is lost.
    """
    from distributed import Event, get_client, get_worker

    worker = get_worker()
    client = get_client()
    # An event is kept by the scheduler, so that the next worker finds it set.
    begun = Event(order.key, client=client)
    if begun.is_set():
        raise RuntimeError("it was begun before, and its result is lost")
    begun.set()
    stop = Stop()
    done = threading.Event()
    stopping = Event(order.stop, client=client)

    def watch() -> None:
        """Stop the run when the batch stops or is gone, which ends its task on this worker."""
        while not done.wait(BEAT_S):
            task = worker.state.tasks.get(order.key)
            is_task_there = task is not None and task.state in RUNNING
            try:
                is_stopped = stopping.is_set()
            except (OSError, RuntimeError):  # the scheduler is gone
                is_stopped = True
            # As if this process had been told to end: ``run_one`` then interrupts the notebook.
            if is_stopped or not is_task_there:
                stop.signal = "SIGTERM"

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    folder = Path(tempfile.mkdtemp(prefix="casebook-", dir=worker.local_directory))
    try:
        outcome = _outcome(order, folder, run_one, stop)
    finally:
        done.set()
        watcher.join()
    if not outcome.left:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _outcome(
    order: Order, folder: Path, run_one: Callable[..., Run], stop: Stop
) -> RunOutcome:
    """Carry out the run below ``folder``: its parameters get the paths of this machine, and the box
    ``live`` becomes a bundle that is captured here. If that fails, the run has failed.
    """
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
            bundle = measure(Options()).writer.write(place / "box.tar.gz")
        except (OSError, ValueError) as error:
            started = move(
                order.run, "started", node=node(), started_at=now(), boot_id=boot_id()
            )
            why = f"this node could not be captured: {in_words(error)}"
            run = move(started, "failed", ended_at=now(), stopped_by="box", cause=why)
            return RunOutcome(run, {}, {}, str(place))
        parameters["box"] = str(bundle)
    # A run on a worker begins anew: its earlier attempts are on the batch's box.
    job = {**order.job, "source": str(source), "parameters": parameters, "earlier": ""}
    run = run_one(place, order.run, job, stop=stop)
    files, left = _files(place)
    return RunOutcome(run, files, left, str(place))


def _files(folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """(content of the files that are sent back, up to MOST_BYTES; sizes of those that stay), both
    by path relative to the run's folder. The record is not among them: RunOutcome has it.
    """
    sizes: dict[Path, int] = {}
    for path in folder.rglob("*"):
        is_record = path == folder / "run.json"
        if path.is_file() and not (path.is_symlink() or is_record):
            sizes[path] = path.stat().st_size
    files: dict[str, bytes] = {}
    left: dict[str, int] = {}
    room_bytes = MOST_BYTES
    # The smallest first: after the first file that does not fit, no other fits either.
    for path, size in sorted(sizes.items(), key=itemgetter(1)):
        name = str(path.relative_to(folder))
        room_bytes -= size
        if room_bytes < 0:
            left[name] = size
        else:
            files[name] = path.read_bytes()
    return files, left
