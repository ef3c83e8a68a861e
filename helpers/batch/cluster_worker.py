"""One run on a worker of a Dask cluster: in a folder of its own, for as long as its batch wants it."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from helpers import __version__
from helpers.look.capture import Options, measure

from .record import boot_id, in_words, move, node, now, replaced
from .shapes import Run
from .stop import Stop
from .watched import Job

BEAT_S = 1.0
MOST_BYTES = 64 << 20
"""Of the files of one run that come back to the batch, small ones first."""


@dataclass(frozen=True)
class Order:
    """What a worker gets of one run: its record, its job, its notebook.

    ``key`` names the run once for all workers, ``stop`` the event that asks all of them to stop.
    ``home`` is the run's folder as the batch has it.
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
    """What a worker sends back: the record, and files by their names below the run's folder.

    ``left`` has the size in bytes of each file that stayed in ``folder`` on the worker's box.
    """

    run: Run
    files: dict[str, bytes] = field(repr=False)
    left: dict[str, int]
    folder: str


def about_worker() -> tuple[str, str, str]:
    """(version of the workbook that a worker runs from, its node, its boot)."""
    return __version__, node(), boot_id()


def carry_out(order: Order, run_one: Callable[..., Run]) -> RunOutcome:
    """On a worker: one run in a folder of its own. Raises RuntimeError where it was begun before."""
    from distributed import Event, get_client, get_worker

    worker = get_worker()
    client = get_client()
    begun = Event(order.key, client=client)
    if begun.is_set():
        raise RuntimeError("it was begun before, and its result is lost")
    begun.set()
    stop = Stop()
    done = threading.Event()
    stopping = Event(order.stop, client=client)

    def watch() -> None:
        """Stop the run where the batch does, or is gone."""
        while not done.wait(BEAT_S):
            task = worker.state.tasks.get(order.key)
            is_wanted = task is not None and task.state in ("executing", "long-running")
            try:
                is_wanted = is_wanted and not stopping.is_set()
            except (OSError, RuntimeError):  # the scheduler is gone
                is_wanted = False
            if not is_wanted:
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
            parameters["box"] = str(
                measure(Options()).writer.write(place / "box.tar.gz")
            )
        except (OSError, ValueError) as error:
            started = move(
                order.run, "started", node=node(), started_at=now(), boot_id=boot_id()
            )
            why = f"this node could not be captured: {in_words(error)}"
            run = move(started, "failed", ended_at=now(), stopped_by="box", cause=why)
            return RunOutcome(run, {}, {}, str(place))
    job = {**order.job, "source": str(source), "parameters": parameters, "earlier": ""}
    run = run_one(place, order.run, job, stop=stop)
    return RunOutcome(run, *_files(place), str(place))


def _files(folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """(the files of a run, small ones first up to MOST_BYTES; the sizes of those that stay)."""
    sizes = {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path != folder / "run.json"
    }
    files: dict[str, bytes] = {}
    left: dict[str, int] = {}
    room_bytes = MOST_BYTES
    for path in sorted(sizes, key=sizes.__getitem__):
        name = str(path.relative_to(folder))
        room_bytes -= sizes[path]
        if room_bytes < 0:
            left[name] = sizes[path]
        else:
            files[name] = path.read_bytes()
    return files, left
