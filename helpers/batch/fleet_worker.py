"""What a worker of a fleet does: one run in its own scratch, in processes of its own, for as
long as its batch wants it.

Word goes both ways over the scheduler's metadata: the worker says that it is about to start and
then a beat every second; the batch renews a lease. A run whose lease ends is ended here, so a
batch that is gone leaves nothing running on a node.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from helpers.ground.child import CHECKOUT, OUTPUTS
from helpers.look.files import text

from . import gate, kernel
from .journal import LOCK
from .plan import PlanError
from .record import boot_id, in_words, move, node, now, replaced
from .runner import Stop
from .shapes import Run

BEAT_S = 1.0
ASK_S = 5.0
CAPTURE_S = 120.0
# What a cut connection raises; asyncio's TimeoutError is another one on Python 3.10.
LOST = (OSError, RuntimeError, TimeoutError, asyncio.TimeoutError)
_OF_BATCH: dict[str, Any] = {}  # what this process knows of its node, for one batch at a time


class Board:
    """What the scheduler keeps for one fleet, as a worker or the batch sees it.

    Its calls raise one of LOST when cut off.
    """

    def __init__(self, sync: Callable[..., Any], scheduler: Callable[[], Any], fleet: str):
        self.sync = sync
        self.scheduler = scheduler
        self.path = ["casebook", fleet]

    def put(self, value: Any, *keys: str) -> None:
        call = self.scheduler().set_metadata
        path = [*self.path, *keys]
        self.sync(call, callback_timeout=ASK_S, keys=path, value=value)

    def get(self, *keys: str) -> Any:
        call = self.scheduler().get_metadata
        path = [*self.path, *keys]
        return self.sync(call, callback_timeout=ASK_S, keys=path, default=None)


def carry(order: dict[str, Any], run_one: Callable[..., Run]) -> dict[str, Any]:
    """Carry out one run and return its record and its files, or why it was refused: then
    nothing was started.

    Never starts the same order twice, whatever the scheduler repeats. The files stay here until
    ``forget``.
    """
    from distributed import get_worker
    from distributed.utils import sync

    worker = get_worker()
    key = order["key"]
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
    stop = Stop()
    done = threading.Event()
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
    """Say a word every second and look for the lease; ask the run to stop where the batch does,
    or is gone.
    """
    seen = -1
    since = time.monotonic()
    while not done.wait(BEAT_S):
        word["beat"] += 1
        lease: dict[str, Any] = {"beat": seen, "given_up": []}
        try:
            board.put(dict(word), "said", key)
            lease = board.get("lease") or {"beat": seen, "given_up": [key]}
        except LOST:
            lease["lost"] = True
        if lease["beat"] != seen:
            seen = lease["beat"]
            since = time.monotonic()
        if key in lease["given_up"] or time.monotonic() - since > lease_s:
            stop.signal = stop.signal or "SIGTERM"
        elif lease.get("stop"):
            stop.signal = lease["stop"]
            stop.times = lease["times"]


def _scratch(order: dict[str, Any], local: Path) -> tuple[Path, bool]:
    """A new folder for one run, and whether the batch's own machine sees it: proved by a text
    that only the batch knows.
    """
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
    run = Run.model_validate_json(order["run"])
    job = order["job"]
    folder = there / run.run_id
    source = there / "source" / order["name"]
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
    """An evidence bundle of this node, made by a child once a batch.

    Raises OSError, SubprocessError.
    """
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
    """(the files of a run, small ones first up to a limit; what stays here with its size in
    bytes).
    """
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


# The doors of a fleet: who gets in, what listens where, and whether a process may take part.
#
# Whoever reaches a port of distributed without TLS can run any program there, on the worker's
# port as on the scheduler's. So nothing listens beyond loopback without keys, no HTTP server is
# started at all (its port would have no keys), and a process started some other way is measured
# by the sockets that it really listens at.

GUIDE = "as env/FLEET.md says"
KEYS = OUTPUTS / "fleet-keys"
CERTIFICATE = "cert.pem"
KEY = "key.pem"
DAYS = 365
DEATH_S = 120  # a worker that finds no scheduler for so long ends
SHOWN = 3
_OPENSSL = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=casebook-fleet"


class FleetError(PlanError):
    """A fleet that cannot carry out the batch. One line: seen, expected, what to do."""


def make_keys(folder: Path) -> Path:
    """Write a new certificate and its key for a fleet; whoever has both is let in.

    Raises FleetError, OSError.

    The certificate is signed by its own key, so nothing else can sign a second one.
    """
    if folder.exists() and any(folder.iterdir()):
        why = "seen files; expected an empty or a new folder"
        raise FleetError(f"{folder}: {why}; name another with --keys, or move it away")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    places = ["-out", CERTIFICATE, "-keyout", KEY, "-days", str(DAYS)]
    call: dict[str, Any] = {"cwd": folder, "umask": 0o077, "stdin": subprocess.DEVNULL}
    try:
        argv = [*_OPENSSL.split(), *places]
        done = subprocess.run(argv, capture_output=True, timeout=60, check=False, **call)
    except FileNotFoundError as error:
        do = "install it, or make the keys on another box and copy the folder here"
        raise FleetError(f"keys: seen no program openssl; expected the system's; {do}") from error
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no word"]
        raise FleetError(f"keys: openssl ended with {done.returncode}: {words[-1][:200]}")
    return folder


def security(folder: Path) -> Any:
    """What distributed takes to ask for these keys and to show them.

    Raises FleetError where they are not the owner's alone.
    """
    from distributed import Security

    certificate = folder / CERTIFICATE
    key = folder / KEY
    if not (certificate.is_file() and key.is_file()):
        do = "make them: python3 -m helpers fleet keys; then copy the folder to every box"
        raise FleetError(f"{folder}: seen no {CERTIFICATE} with its {KEY}; expected both; {do}")
    if key.stat().st_mode & 0o077:
        raise FleetError(
            f"{key}: others may read it; expected its owner alone; run: chmod 600 {key}"
        )
    own = {"tls_ca_file": str(certificate)}
    for role in ("client", "scheduler", "worker"):
        own |= {f"tls_{role}_cert": str(certificate), f"tls_{role}_key": str(key)}
    return Security(require_encryption=True, **own)


def serve(
    part: str,
    host: str,
    port: int,
    scratch: Path,
    *,
    keys: Path | None = None,
    insecure: bool = False,
    **options: Any,
) -> None:
    """Be the scheduler or a worker of a fleet until it ends, listening at one address.

    Raises FleetError before it listens.
    """
    import dask
    import distributed

    try:
        places = {str(one[4][0]) for one in socket.getaddrinfo(host or "127.0.0.1", None)}
    except OSError as error:
        why = f"{error.strerror}; expected an address of this box; see: ip address"
        raise FleetError(f"--host {host}: {why}") from error
    if keys is None and not insecure and not all(map(_is_loopback, places)):
        do = "run: python3 -m helpers fleet keys, or give --plan, of a plan that has insecure: true"
        raise FleetError(f"--host {host}: reached from other boxes; expected TLS there; {do}")
    kind = distributed.Scheduler if part == "scheduler" else distributed.Worker
    if part == "scheduler":
        options.update(allowed_failures=0, dashboard=False)
    else:
        # A worker that its own memory watch pauses or kills would not show the box's own
        # out-of-memory.
        options.update(nthreads=1, memory_limit=0, death_timeout=DEATH_S)
    closed = type(kind.__name__, (kind,), {"start_http_server": lambda *arguments, **more: None})
    options.update(host=host or "127.0.0.1", port=port, security=keys and security(keys))
    dask.config.set({"temporary-directory": str(scratch)})
    scratch.mkdir(parents=True, exist_ok=True)
    loaded()  # as it is now, whatever happens to the files

    async def until_the_end() -> None:
        async with closed(protocol="tls" if keys else "tcp", **options) as server:
            print(f"{part} at {server.address}", flush=True)
            await server.finished()

    try:
        asyncio.run(until_the_end())
    except KeyboardInterrupt:
        return
    except (OSError, RuntimeError, TimeoutError, asyncio.TimeoutError) as error:
        expected = "expected a free port and, for a worker, its scheduler with the same keys"
        why = in_words(error.__cause__ or error)
        raise FleetError(f"{part}: seen {why}; {expected}; start it {GUIDE}") from error


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def open_doors(server: Any) -> list[str]:
    """Where this process listens beyond loopback without TLS, as "address:port"; ``server`` is
    distributed's own of it.
    """
    import psutil

    sockets = psutil.Process().net_connections("inet")
    listening = [one.laddr for one in sockets if one.status == psutil.CONN_LISTEN]
    safe = {one.get_host_port()[1] for one in server.listeners if one.prefix == "tls://"}
    beyond = [one for one in listening if one.port not in safe and not _is_loopback(one.ip)]
    return sorted(f"{one.ip}:{one.port}" for one in beyond)


def checkout() -> dict[str, str]:
    """What this checkout is: its commit where git says it, and each file that a run may use, by
    hash.
    """
    git = ["git", "-C", str(CHECKOUT), "rev-parse", "HEAD"]
    commit = ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
        commit = done.stdout.strip() if not done.returncode else ""
    found = {"commit": commit}
    for path in sorted(one for top in ("helpers", "env") for one in (CHECKOUT / top).rglob("*")):
        made = "__pycache__" in path.parts or path.suffix in (".pyc", ".md")
        if path.is_file() and not made and not path.is_symlink():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(CHECKOUT))] = digest[:16]
    return found


@cache
def loaded() -> dict[str, str]:
    """The checkout as this process first saw it."""
    return checkout()


def unfit(
    wanted: dict[str, str], insecure: bool, dask_worker: Any = None, dask_scheduler: Any = None
) -> str:
    """Why this process must not take part in a batch of the checkout ``wanted``, or nothing.
    distributed gives the rest.
    """
    server = dask_worker or dask_scheduler
    if allowed := getattr(server, "allowed_failures", 0):
        why = f"seen allowed-failures {allowed}; expected 0, or what kills a node goes to more"
        return f"{why}; start it with: fleet scheduler"
    if "torch" in sys.modules:
        expected = "expected a worker that only carries runs; start a new one"
        return f"seen torch imported, which may hold a GPU; {expected}"
    if getattr(server, "nanny", None):
        return (
            "seen a nanny, which starts what died anew; expected none; start it with: fleet worker"
        )
    if not insecure and (doors := open_doors(server)):
        expected = "expected TLS, or a plan that says insecure: true"
        return f"seen {', '.join(doors[:SHOWN])} open to other boxes; {expected}"
    for own, do in ((loaded(), "start it anew"), (checkout(), "update its checkout")):
        one = own["commit"]
        other = wanted["commit"]
        names = {*own, *wanted} - {"commit"}
        differ = sorted(name for name in names if own.get(name) != wanted.get(name))
        if differ:
            more = f" and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
            files = ", ".join(differ[:SHOWN]) + more
            return f"seen other files than the batch has: {files}; expected the same; {do}"
        if one and other and one != other:
            return f"seen commit {one[:12]}; expected {other[:12]}, as the batch has; {do}"
    return ""
