"""A look at a box between two jobs: its GPUs, host memory, disk, and what the kernel logged.

A look costs a fraction of a second and takes no GPU context: sysfs, procfs, KFD, and NVML in a
child that can be left behind. What cannot be read is no trouble. Standard library of Python 3.8
alone: a scheduler's prolog has nothing else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from helpers import __version__
from helpers.ground.child import field as status_field
from helpers.ground.child import process_of
from helpers.ground.units import now, pci_address
from helpers.look import access, drm, files, hanging, kfd, nvidia, nvml, pci, processes
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.gpus import Gpu
from helpers.look.gpus import gpus as gpus_of
from helpers.look.holders import numbered_by_host, one_each

from .kernel_errors import new_errors
from .look_shapes import BoxState, GpuState, Held, Trouble

# A driver that does not answer a read so long is sick; NVML alone may have to start its driver.
ANSWER_S = 2.0
NVML_S = 20.0
_HWMON = tuple(
    f"/sys/class/drm/{card}/device/hwmon/hwmon*/temp*_{name}"
    for card in ("card[0-9]", "card[0-9][0-9]")
    for name in ("input", "crit", "label")
)
_NOT_KFD = ("mem_banks", "queues", "sdma")
_KFD = tuple(name for name in kfd.FILES if not any(part in name for part in _NOT_KFD))
_FILES = (*drm.FILES, *_KFD, *_HWMON, nvidia.INFORMATION)
_POOLS = ("sysfs VRAM", "sysfs GTT", "nvidia-smi")

NOW = "expected an answer at once"
MODULES = {"amdgpu": "AMD", "nvidia": "NVIDIA"}


def measure(
    gpus: Sequence[str] = (),
    root: str = "",
    *,
    folder: str | Path = ".",
    since: BoxState | None = None,
) -> BoxState:
    """Look at this box, or at the tree of one under ``root``: the GPUs of these PCI addresses
    (default: all), and its host.

    ``folder`` is where results go: its disk is looked at. ``since`` is the look from which on
    the kernel log counts; without it only the log's position is taken. Never raises for what
    cannot be read.
    """
    began = time.monotonic()
    bundle, sick = _bundle(root)
    addresses = [pci_address(gpu) or gpu for gpu in gpus]
    wanted = [gpu for gpu in gpus_of(bundle) if not addresses or gpu.pci in addresses]
    meminfo = f"{root}/proc/meminfo"
    total, available = (
        status_field(meminfo, name) for name in ("MemTotal:", "MemAvailable:")
    )
    free = None
    read_only = False
    with suppress(OSError):
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        read_only = bool(disk.f_flag & os.ST_RDONLY)
    boot = files.boot_id(root)
    last = since if since and since.boot_id == boot else BoxState(boot)
    log, errors, is_whole = new_errors(root, last.log)
    kills = status_field(f"{root}/proc/vmstat", "oom_kill")
    before = last.oom_kills
    if not is_whole and kills is not None and before is not None and kills > before:
        ended = "more process(es) that the kernel's OOM killer ended, expected none"
        errors += (Trouble("box", f"/proc/vmstat counts {kills - before} {ended}"),)
    return BoxState(
        boot_id=boot,
        gpus=tuple(gpu_state(gpu, bundle, root) for gpu in wanted),
        total_bytes=None if total is None else total << 10,
        available_bytes=None if available is None else available << 10,
        disk_free_bytes=free,
        read_only=read_only,
        oom_kills=kills,
        log=log,
        errors=(*sick, *errors),
        unanswered=tuple(unanswered(bundle, root)),
        folder=str(folder),
        seconds=round(time.monotonic() - began, 3),
        at=now(),
    )


def _bundle(root: str) -> tuple[Bundle, tuple[Trouble, ...]]:
    """The evidence that the readers of helpers.look need, and the drivers that did not answer."""
    writer = BundleWriter("", "live", __version__, "")
    sick: dict[str, str] = {}
    paths = [path for pattern in _FILES for path in files.find(root, pattern)]
    for path in paths:
        if path.status != "ok":
            writer.add("file", path.source, None, status=path.status, why=path.why)
    read = partial(files.read, root)
    readable = [path.source for path in paths if path.status == "ok"]
    for source, answer, why in hanging.read_each(readable, read, ANSWER_S, _card):
        content, status, words = answer or (None, "not_available", why)
        writer.add("file", source, content, status=status, why=words)
        if why.startswith("hung"):
            sick.setdefault(_scope(root, source), f"{source} {why}, {NOW}")
    for name, collect in _tables(root):
        try:
            rows = list(collect())
        except OSError as error:
            status, why = files.fault(error)
            writer.add("file", name, None, status=status, why=why)
            continue
        for row in rows:
            if str(row.get("why", "")).startswith("hung"):
                card = str(row.get("target", "")).rpartition("/")[2]
                scope = _scope(root, f"/sys/class/drm/{card}" if card else "")
                sick.setdefault(scope, f"{row.get('target', name)} {row['why']}, {NOW}")
        writer.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))
    return writer.bundle(), tuple(Trouble(scope, why) for scope, why in sick.items())


def _tables(root: str) -> Iterator[tuple[str, Callable[[], Iterable[dict[str, Any]]]]]:
    """The tables of the evidence, each with what collects its rows; some only of this box."""
    collect_pci = partial(pci.collect_pci, Path(root or "/"))
    yield "pci_devices", partial(_in_child, collect_pci, ANSWER_S)
    yield "device_files", partial(processes.walk_device_files, root)
    if not root:
        yield "identity", access.collect_identity
        if Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists():
            yield "nvml", partial(_in_child, nvml.report, NVML_S)


def unanswered(bundle: Bundle, root: str) -> Iterator[Trouble]:
    """What says that there should be a GPU which does not answer, and what hides whether there
    is one.
    """
    for row in bundle.table("nvml"):
        if row.get("status") != "ok":
            why = f"NVML does not answer: {row.text('why')}, expected its figures"
            yield Trouble("a GPU", why, False)
    try:
        os.listdir(f"{root}{pci.DEVICES}")
    except OSError as error:
        why = f"the PCI bus could not be looked at: {pci.DEVICES}: {error.strerror}"
        yield Trouble("box", why, False)
    seen = {gpu.vendor for gpu in gpus_of(bundle)}
    for module, vendor in MODULES.items():
        if vendor not in seen and os.path.isdir(f"{root}/sys/module/{module}"):
            why = f"the kernel module {module} is loaded, and no layer shows a GPU of {vendor}"
            yield Trouble("box", why, False)


def _in_child(
    produce: Callable[[], list[dict[str, Any]]], limit_s: float
) -> list[dict[str, Any]]:
    _, rows, why = next(iter(hanging.read_each((0,), lambda _: produce(), limit_s)))
    return [{"status": "not_available", "why": why}] if rows is None else rows


def _card(source: str) -> str:
    return "/".join(source.split("/")[:5])


def _scope(root: str, source: str) -> str:
    """The GPU that a file below /sys/class/drm belongs to, else the box.

    The link is read without asking the driver.
    """
    name = pci_address(
        os.path.basename(os.path.realpath(f"{root}{_card(source)}/device"))
    )
    return f"gpu {name}" if name else "box"


def gpu_state(gpu: Gpu, bundle: Bundle, root: str) -> GpuState:
    """The state of one GPU of a bundle."""
    pools = tuple(
        (pool.layer, int(pool.used.value or 0), int(pool.total.value or 0))
        for pool in gpu.pools
        if pool.layer in _POOLS and pool.used.ok and pool.total.ok
    )
    holders = []
    for holder in one_each(gpu.holders):
        # A host's number is one of another namespace.
        process = process_of(-1 if numbered_by_host(holder) else holder.pid, root)
        size = holder.memory.bytes if holder.memory.ok else None
        holders.append(
            Held(holder.pid, process.name, process.state, process.start_ticks, size)
        )
    return GpuState(gpu.pci, pools, tuple(holders), tuple(_celsius(gpu, bundle)))


def _celsius(gpu: Gpu, bundle: Bundle) -> Iterator[tuple[str, float, float | None]]:
    card = gpu.indices.get("drm card", "")
    pattern = f"/sys/class/drm/{card}/device/hwmon/hwmon*/temp*_input"
    for source in bundle.sources(pattern) if card else ():
        stem = source[: -len("input")]
        now, crit = (bundle.number(name, "count") for name in (source, stem + "crit"))
        label = bundle.word(stem + "label")
        if now.ok:
            name = str(label.value) if label.ok else source.rsplit("/", 1)[-1]
            critical = int(crit.value or 0) / 1000 if crit.ok and crit.value else None
            yield name, int(now.value or 0) / 1000, critical
