"""What a worker of a fleet does: one run in its own scratch, in processes of its own, for as long as its batch wants it.

Word goes both ways over the scheduler's metadata: the worker says that it is about to start and then a beat every second;
the batch renews a lease. A run whose lease ends is ended here, so a batch that is gone leaves nothing running on a node.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from helpers.look.files import text

from . import gate, kernel
from .fleet_doors import unfit
from .journal import LOCK
from .record import boot_id, in_words, move, node, now, replaced
from .runner import Stop
from .shapes import Run

BEAT_S, ASK_S, CAPTURE_S = 1.0, 5.0, 120.0
# What a cut connection raises; asyncio's TimeoutError is another one on Python 3.10.
LOST = (OSError, RuntimeError, TimeoutError, asyncio.TimeoutError)
_OF_BATCH: dict[str, Any] = {}  # what this process knows of its node, for one batch at a time


class Board:
    """What the scheduler keeps for one fleet, as a worker or the batch sees it. Its calls raise one of LOST when cut off."""

    def __init__(self, sync: Callable[..., Any], scheduler: Callable[[], Any], fleet: str):
        self.sync, self.scheduler, self.path = sync, scheduler, ["casebook", fleet]

    def put(self, value: Any, *keys: str) -> None:
        call, path = self.scheduler().set_metadata, [*self.path, *keys]
        self.sync(call, callback_timeout=ASK_S, keys=path, value=value)

    def get(self, *keys: str) -> Any:
        call, path = self.scheduler().get_metadata, [*self.path, *keys]
        return self.sync(call, callback_timeout=ASK_S, keys=path, default=None)


def carry(order: dict[str, Any], run_one: Callable[..., Run]) -> dict[str, Any]:
    """Carry out one run and return its record and its files, or why it was refused: then nothing was started.

    Never starts the same order twice, whatever the scheduler repeats. The files stay here until ``forget``.
    """
    from distributed import get_worker
    from distributed.utils import sync

    worker, key = get_worker(), order["key"]
    board = Board(partial(sync, worker.loop), lambda: worker.scheduler, order["fleet"])
    if board.get("said", key) is not None:
        return {"refused": "it was started before and its result is lost"}
    if why := unfit(order["checkout"], order["insecure"], worker):
        return {"refused": why}
    there, shared = _scratch(order, Path(worker.local_directory))
    word: dict[str, Any] = {"beat": 0, "cell": 0, "cells": 0, "seconds": 0.0}
    word.update(node=node(), boot_id=boot_id(), there=str(there))
    board.put(word, "said", key)
    # The batch gives a run up, and then looks for our word.
    if key in (board.get("lease") or {"given_up": [key]})["given_up"]:
        forget(str(there))
        return {"refused": "the batch had given it up"}
    stop, done = Stop(), threading.Event()
    arguments = (board, key, word, stop, done, order["lease_s"])
    beats = threading.Thread(target=_beat, args=arguments, daemon=True)
    beats.start()

    def tick(cell: int, cells: int, seconds: float) -> None:
        word.update(cell=cell, cells=cells, seconds=seconds)

    try:
        run = _carried(order, there, run_one, stop, tick)
        files, left = ({}, {}) if shared else _files(there / run.run_id, order["limit_bytes"])
        answer = {"run": run.model_dump_json(), "files": files, "left": left, "shared": shared}
        return {**word, **answer}
    finally:
        done.set()
        beats.join(ASK_S)


def forget(there: str) -> None:
    """Remove the scratch of a run whose files came home."""
    shutil.rmtree(there, ignore_errors=True)


def _beat(
    board: Board, key: str, word: dict[str, Any], stop: Stop, done: threading.Event, lease_s: float
) -> None:
    """Say a word every second and look for the lease; ask the run to stop where the batch does, or is gone."""
    seen, since = -1, time.monotonic()
    while not done.wait(BEAT_S):
        word["beat"] += 1
        lease: dict[str, Any] = {"beat": seen, "given_up": []}
        try:
            board.put(dict(word), "said", key)
            lease = board.get("lease") or {"beat": seen, "given_up": [key]}
        except LOST:
            lease["lost"] = True
        if lease["beat"] != seen:
            seen, since = lease["beat"], time.monotonic()
        if key in lease["given_up"] or time.monotonic() - since > lease_s:
            stop.signal = stop.signal or "SIGTERM"
        elif lease.get("stop"):
            stop.signal, stop.times = lease["stop"], lease["times"]


def _scratch(order: dict[str, Any], local: Path) -> tuple[Path, bool]:
    """A new folder for one run, and whether the batch's own machine sees it: proved by a text that only the batch knows."""
    token = Path(order["token"])
    shared = text("", str(token)) == order["token_text"]
    root = token.parent if shared else local.parent / "casebook"
    root.mkdir(parents=True, exist_ok=True)
    there = Path(tempfile.mkdtemp(prefix=f"{'.node-' * shared}{order['batch']}.", dir=root))
    (there / LOCK).write_text(f"for a batch on {order['box']}\n")  # collect finds the batch by it
    return there, shared


def _carried(
    order: dict[str, Any],
    there: Path,
    run_one: Callable[..., Run],
    stop: Stop,
    tick: Callable[..., None],
) -> Run:
    """The run with its notebook and its paths as they are here, between two looks at the node."""
    run, job = Run.model_validate_json(order["run"]), order["job"]
    folder, source = there / run.run_id, there / "source" / order["name"]
    folder.mkdir()
    source.parent.mkdir()
    source.write_bytes(order["notebook"])
    look = partial(gate.measure, order["gpus"], folder=there)
    if order["fleet"] not in _OF_BATCH:
        _OF_BATCH.clear()
        _OF_BATCH[order["fleet"]] = look()
    given = job["parameters"].items()
    parameters = {name: replaced(value, order["home"], str(folder)) for name, value in given}
    try:
        if run.box == "live":
            parameters["box"] = str(_captured(folder / "box.tar.gz"))
    except (OSError, subprocess.SubprocessError) as error:
        why = f"this node could not be captured: {in_words(error)}"
        run = move(run, "started", started_at=now(), boot_id=boot_id())
        return move(run, "failed", ended_at=now(), stopped_by="box", cause=why)
    job = {**job, "source": str(source), "parameters": parameters}
    run = run_one(folder, run, job, stop=stop, tick=tick)
    if not order["watched"]:
        return run
    troubles = gate.settle(_OF_BATCH[order["fleet"]], order["gates"], look)
    if order["watched"] == "gpus":
        troubles = tuple(one for one in troubles if one.scope != "box")
    return gate.marked(run, troubles)


def _captured(path: Path) -> Path:
    """An evidence bundle of this node, made by a child once a batch. Raises OSError, SubprocessError."""
    if "box" not in _OF_BATCH:
        argv = [sys.executable, "-m", "helpers", "capture", "--out", str(path)]
        options: dict[str, Any] = {"env": kernel.environment(), "cwd": kernel.CHECKOUT}
        options.update(stdin=subprocess.DEVNULL, capture_output=True)
        done = subprocess.run(argv, timeout=CAPTURE_S, check=False, **options)
        if done.returncode:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise OSError((words or f"exit status {done.returncode}").splitlines()[-1])
        _OF_BATCH["box"] = path.read_bytes()
    path.write_bytes(_OF_BATCH["box"])
    return path


def _files(folder: Path, limit_bytes: int) -> tuple[dict[str, bytes], dict[str, int]]:
    """(the files of a run, small ones first up to a limit; what stays here with its size in bytes)."""
    files: dict[str, bytes] = {}
    left: dict[str, int] = {}
    own = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = [(path.stat().st_size, path) for path in own if path.name != "run.json"]
    for size, path in sorted(sizes):
        name = str(path.relative_to(folder))
        limit_bytes -= size
        if limit_bytes < 0:
            left[name] = size
        else:
            files[name] = path.read_bytes()
    return files, left
