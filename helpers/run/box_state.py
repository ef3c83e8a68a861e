"""What a box is like between two runs: memory, holders and heat of its GPUs, host memory, disk, and what the kernel logged.

A look costs a fraction of a second and takes no GPU context: sysfs, procfs, KFD, and NVML in a child that can be left behind.
What cannot be read is no trouble, but ``not_watched`` says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from helpers import __version__
from helpers.child import field, process_of
from helpers.look import access, drm, files, kfd, nvidia, nvml, pci, processes, watched
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.gpus import Gpu
from helpers.look.gpus import gpus as gpus_of
from helpers.units import pci_address

from .kernel_errors import new_errors
from .quarantine import Trouble

ANSWER_S, NVML_S = (
    2.0,
    20.0,
)  # a driver that does not answer a read so long is sick; NVML alone may have to start its driver
_HWMON = tuple(
    f"/sys/class/drm/{card}/device/hwmon/hwmon*/temp*_{name}"
    for card in ("card[0-9]", "card[0-9][0-9]")
    for name in ("input", "crit", "label")
)
_KFD = tuple(
    name
    for name in kfd.FILES
    if "mem_banks" not in name and "queues" not in name and "sdma" not in name
)
_FILES = (*drm.FILES, *_KFD, *_HWMON, nvidia.INFORMATION)
_POOLS = ("sysfs VRAM", "sysfs GTT", "nvidia-smi")


@dataclass(frozen=True)
class Held:
    """A process with a GPU open. ``bytes`` is None where no source measured it; ``state`` is the kernel's letter, or empty."""

    pid: int
    name: str
    state: str
    start_ticks: int
    bytes: int | None


@dataclass(frozen=True)
class GpuState:
    """One GPU. ``pools`` are (layer, used bytes, total bytes); ``celsius`` are (sensor, degrees, critical degrees or None)."""

    pci: str
    pools: tuple[tuple[str, int, int], ...] = ()
    holders: tuple[Held, ...] = ()
    celsius: tuple[tuple[str, float, float | None], ...] = ()


@dataclass(frozen=True)
class BoxState:
    """One look at a box. None stands for what could not be read; ``not_watched`` says why, a sentence each, to be said once.

    ``log`` is the position in the kernel log, ``told`` what happened since the look that was given as ``since``, ``seconds``
    how long this look took. ``asked``, ``root`` and ``folder`` are what it was asked to look at.
    """

    boot_id: str = ""
    gpus: tuple[GpuState, ...] = ()
    total_bytes: int | None = None
    available_bytes: int | None = None
    disk_free_bytes: int | None = None
    read_only: bool = False
    oom_kills: int | None = None
    log: str = ""
    told: tuple[Trouble, ...] = ()
    not_watched: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    root: str = ""
    folder: str = "."
    seconds: float = 0.0


def measure(
    gpus: Sequence[str] = (),
    root: str = "",
    *,
    folder: str | Path = ".",
    since: BoxState | None = None,
) -> BoxState:
    """Look at this box, or at the tree of one under ``root``: the GPUs of these PCI addresses (default: all), and its host.

    ``folder`` is where results go: its disk is looked at. ``since`` is the look from which on the kernel log counts; without it
    only the log's position is taken. Never raises for what cannot be read.
    """
    began = time.monotonic()
    bundle, sick = _look(root)
    unread: list[str] = []
    asked = tuple(pci_address(gpu) or gpu for gpu in gpus)
    states = tuple(
        _gpu(gpu, bundle, root, unread) for gpu in gpus_of(bundle) if not asked or gpu.pci in asked
    )
    missing = sorted(set(asked) - {gpu.pci for gpu in states}) or ([] if states else ["any GPU"])
    unread += [
        f"memory of {gpu} is not watched because no layer of this box shows it" for gpu in missing
    ]
    total, available = (
        field(f"{root}/proc/meminfo", name) for name in ("MemTotal:", "MemAvailable:")
    )
    if total is None or available is None:
        unread.append("host memory is not watched because /proc/meminfo has no MemAvailable")
    free, read_only = None, False
    try:
        disk = os.statvfs(folder)
        free, read_only = disk.f_bavail * disk.f_frsize, bool(disk.f_flag & os.ST_RDONLY)
    except OSError as error:
        unread.append(
            f"the disk of {folder} is not watched because it cannot be asked: {error.strerror}"
        )
    boot = _word(root, "/proc/sys/kernel/random/boot_id")
    last = since if since and since.boot_id == boot else BoxState()
    log, errors, why = new_errors(root, last.log)
    kills = field(f"{root}/proc/vmstat", "oom_kill")
    if why:
        unread.append(f"the kernel log is not watched because {why}")
        more = kills - last.oom_kills if kills is not None and last.oom_kills is not None else 0
        ended = f"/proc/vmstat counts {more} more process(es) that the kernel's OOM killer ended, expected none"
        errors += (Trouble("box", ended),) * (more > 0)
    return BoxState(
        boot,
        states,
        None if total is None else total << 10,
        None if available is None else available << 10,
        free,
        read_only,
        kills,
        log,
        (*sick, *errors),
        tuple(dict.fromkeys(unread)),
        asked,
        root,
        str(folder),
        round(time.monotonic() - began, 3),
    )


def _look(root: str) -> tuple[Bundle, tuple[Trouble, ...]]:
    """The evidence that the readers of helpers.look need, and the drivers that did not answer."""
    writer = BundleWriter("", "live", __version__, "")
    sick: dict[str, str] = {}
    found = [one for pattern in _FILES for one in files.find(root, pattern)]
    for one in found:
        if one.status != "ok":
            writer.add("file", one.source, None, status=one.status, why=one.why)
    read = partial(files.read, root)
    for source, answer, why in watched.each(
        [one.source for one in found if one.status == "ok"], read, ANSWER_S, _card
    ):
        content, status, words = answer or (None, "not_available", why)
        writer.add("file", source, content, status=status, why=words)
        if why.startswith("hung"):
            sick.setdefault(_scope(root, source), f"{source} {why}, expected an answer at once")
    tables: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "pci_devices": lambda: _in_child(partial(pci.collect_pci, Path(root or "/")), ANSWER_S),
        "device_files": lambda: processes.walk_device_files(root),
    }
    if not root:
        tables["identity"] = lambda: access.collect_identity(Path("/"))
        if Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists():
            tables["nvml"] = lambda: _in_child(_nvml, NVML_S)
    for name, rows in tables.items():
        try:
            told = list(rows())
        except OSError as error:
            status, why = files.fault(error)
            writer.add("file", name, None, status=status, why=why)
            continue
        for row in told:
            if str(row.get("why", "")).startswith("hung"):
                where = (
                    "/sys/class/drm/" + row["target"].rsplit("/", 1)[-1] if "target" in row else ""
                )
                sick.setdefault(
                    _scope(root, where),
                    f"{row.get('target', name)} {row['why']}, expected an answer at once",
                )
        writer.add("file", name, "".join(json.dumps(row) + "\n" for row in told))
    return writer.bundle(), tuple(Trouble(scope, why) for scope, why in sick.items())


def _in_child(produce: Callable[[], list[dict[str, Any]]], limit_s: float) -> list[dict[str, Any]]:
    _, rows, why = next(iter(watched.each((0,), lambda _: produce(), limit_s)))
    return [{"status": "not_available", "why": why}] if rows is None else rows


def _nvml() -> list[dict[str, Any]]:
    """The table ``nvml`` with temperatures; in a child, since NVML may hang in a sick driver."""
    rows: list[dict[str, Any]] = nvml.report()
    for row in rows:
        handle, celsius = ctypes.c_void_p(), ctypes.c_uint()
        try:
            library = nvml.Nvml()
            library.call(
                "nvmlDeviceGetHandleByIndex_v2",
                ctypes.c_uint(row.get("index", 0)),
                ctypes.byref(handle),
            )
            library.call(
                "nvmlDeviceGetTemperature", handle, ctypes.c_uint(0), ctypes.byref(celsius)
            )
            row["celsius"] = celsius.value
        except (OSError, nvml.NvmlError) as error:
            row["celsius_why"] = str(error)
    return rows


def _card(source: str) -> str:
    return "/".join(source.split("/")[:5])


def _scope(root: str, source: str) -> str:
    """The GPU that a file below /sys/class/drm belongs to, else the box. The link is read without asking the driver."""
    name = pci_address(os.path.basename(os.path.realpath(f"{root}{_card(source)}/device")))
    return f"gpu {name}" if name else "box"


def _word(root: str, source: str) -> str:
    return (files.read(root, source)[0] or b"").decode("utf-8", "replace").strip()


def _gpu(gpu: Gpu, bundle: Bundle, root: str, unread: list[str]) -> GpuState:
    pools = tuple(
        (pool.layer, int(pool.used.value or 0), int(pool.total.value or 0))
        for pool in gpu.pools
        if pool.layer in _POOLS and pool.used.ok and pool.total.ok
    )
    if not pools:
        why = [pool.used.why for pool in gpu.pools if pool.layer in _POOLS and not pool.used.ok]
        unread.append(
            f"memory of GPU {gpu.pci} is not watched because {(why or ['its driver gives no such count'])[0]}"
        )
    # An idle GPU has no process in KFD's list, which is then empty and yet was read.
    idle = os.access(root + "/sys/class/kfd/kfd/proc", os.R_OK | os.X_OK)
    unread += [
        f"some holders of GPU {gpu.pci} are not watched because {spot}"
        for spot in gpu.blind_spots
        if not (idle and spot.startswith("KFD"))
    ]
    sizes: dict[int, int | None] = {}
    outside = {holder.pid for holder in gpu.holders if "a host PID" in holder.note}
    for holder in gpu.holders:
        size = int(holder.memory.value or 0) if holder.memory.ok else None
        sizes[holder.pid] = max(
            (one for one in (size, sizes.get(holder.pid)) if one is not None), default=None
        )
    celsius = tuple(_celsius(gpu, bundle))
    if not celsius:
        unread.append(
            f"the temperature of GPU {gpu.pci} is not watched because neither hwmon nor NVML tells it"
        )
    return GpuState(
        gpu.pci,
        pools,
        tuple(_held(pid, size, None if pid in outside else root) for pid, size in sizes.items()),
        celsius,
    )


def _held(pid: int, size: int | None, root: str | None) -> Held:
    """``root`` is None for a number of another PID namespace."""
    there = process_of(pid, root) if root is not None else process_of(-1)
    return Held(pid, there.name, there.state, there.start_ticks, size)


def _celsius(gpu: Gpu, bundle: Bundle) -> Iterator[tuple[str, float, float | None]]:
    card = gpu.indices.get("drm card", "")
    for source in (
        bundle.sources(f"/sys/class/drm/{card}/device/hwmon/hwmon*/temp*_input") if card else ()
    ):
        stem = source.removesuffix("input")
        now, crit, label = (
            bundle.number(source, "count"),
            bundle.number(stem + "crit", "count"),
            bundle.word(stem + "label"),
        )
        if now.ok:
            name = str(label.value) if label.ok else source.rsplit("/", 1)[-1]
            yield (
                name,
                int(now.value or 0) / 1000,
                int(crit.value or 0) / 1000 if crit.ok and crit.value else None,
            )
    for row in bundle.table("nvml"):
        if pci_address(str(row.get("pci", ""))) == gpu.pci and isinstance(row.get("celsius"), int):
            yield "NVML", float(row["celsius"]), None
