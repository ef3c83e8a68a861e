"""A look at a box between two jobs: its GPUs, host memory, disk, and what the kernel logged.

A look takes a fraction of a second and creates no GPU context. It reads sysfs, procfs, KFD and NVML
in child processes, which it abandons when a driver hangs. What cannot be read is no trouble. Only
the standard library of Python 3.8 is used: a scheduler's prolog has nothing else.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from helpers import __version__
from helpers.ground.child import field as status_field
from helpers.ground.child import process_of
from helpers.ground.shapes import Reading
from helpers.ground.units import now, pci_address
from helpers.look import access, drm, files, hanging, kfd, nvidia, nvml, pci, processes
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.gpus import Gpu
from helpers.look.gpus import gpus as gpus_of
from helpers.look.holders import Holder, numbered_by_host, one_each

from .kernel_errors import new_errors
from .look_shapes import BoxState, GpuState, Held, Trouble

ANSWER_S = 2.0
"""A read of sysfs takes milliseconds; a driver that takes longer than this is hung."""
NVML_S = 20.0
"""NVML gets longer: without persistence mode it initialises the GPU first, which takes seconds."""
# Cards 0 to 99; "card*" would also match connectors such as card0-DP-1.
_HWMON = tuple(
    f"/sys/class/drm/{card}/device/hwmon/hwmon*/temp*_{name}"
    for card, name in itertools.product(
        ("card[0-9]", "card[0-9][0-9]"), ("input", "crit", "label")
    )
)
# A look does not compare the pool that the memory banks describe.
_KFD = tuple(path for path in kfd.FILES if "mem_banks" not in path)
_FILES = (*drm.FILES, *_KFD, *_HWMON, nvidia.INFORMATION)
# Layers whose used bytes are compared: each driver's own count of its VRAM and GTT.
_POOLS = ("sysfs VRAM", "sysfs GTT", "nvidia-smi")

NOW = "expected an answer at once"
MODULES = {"amdgpu": "AMD", "nvidia": "NVIDIA"}
"""Kernel modules of the drivers, with the vendor of the GPUs that each drives."""


def measure(
    gpus: Sequence[str] = (),
    root: str = "",
    *,
    folder: str | Path = ".",
    since: BoxState | None = None,
) -> BoxState:
    """Look at this box, or at a copy of a box's file tree under ``root``: at its host and at the
    GPUs with these PCI addresses (default: all).

    The disk of ``folder``, where results go, is looked at. Kernel errors count from the look
    ``since`` on; without it, or after a reboot, only the log's position is noted. Never raises for
    what cannot be read.
    """
    began = time.monotonic()
    bundle, hung = _bundle(root)
    addresses = [pci_address(gpu) or gpu for gpu in gpus]
    looked_at = [
        gpu_state(gpu, bundle, root)
        for gpu in gpus_of(bundle)
        if not addresses or gpu.pci in addresses
    ]
    boot = files.boot_id(root)
    if since is None or since.boot_id != boot:
        since = BoxState(boot)
    oom_kills = status_field(f"{root}/proc/vmstat", "oom_kill")
    log, errors = _logged_since(since, root, oom_kills)
    free_bytes, is_read_only = _disk(folder)
    return BoxState(
        boot_id=boot,
        gpus=tuple(looked_at),
        total_bytes=_memory_bytes(root, "MemTotal:"),
        available_bytes=_memory_bytes(root, "MemAvailable:"),
        disk_free_bytes=free_bytes,
        read_only=is_read_only,
        oom_kills=oom_kills,
        log=log,
        errors=(*hung, *errors),
        unanswered=tuple(unanswered(bundle, root)),
        folder=str(folder),
        seconds=round(time.monotonic() - began, 3),
        at=now(),
    )


def _memory_bytes(root: str, field: str) -> int | None:
    """A field of /proc/meminfo, which counts in KiB."""
    kib = status_field(f"{root}/proc/meminfo", field)
    if kib is None:
        return None
    return kib * 1024


def _disk(folder: str | Path) -> tuple[int | None, bool]:
    """(free bytes of the disk of a folder, None if it could not be read; whether it is mounted
    read-only).
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None, False
    return disk.f_bavail * disk.f_frsize, bool(disk.f_flag & os.ST_RDONLY)


def _logged_since(
    since: BoxState, root: str, oom_kills: int | None
) -> tuple[str, tuple[Trouble, ...]]:
    """(position of the kernel log's end, errors logged after the position of the look ``since``).

    A whole log names each OOM kill itself. If a part of it is lost, OOM kills that the kernel
    counted since that look are an error, too.
    """
    position, errors, is_whole = new_errors(root, since.log)
    if is_whole or oom_kills is None or since.oom_kills is None:
        return position, errors
    new_kills = oom_kills - since.oom_kills
    if new_kills > 0:
        ended = "more process(es) that the kernel's OOM killer ended, expected none"
        errors += (Trouble("box", f"/proc/vmstat counts {new_kills} {ended}"),)
    return position, errors


def _bundle(root: str) -> tuple[Bundle, list[Trouble]]:
    """(the evidence that the readers of helpers.look need, one trouble for each scope whose driver
    did not answer).
    """
    writer = BundleWriter("", "live", __version__, "")
    hung = [*_add_files(writer, root), *_add_tables(writer, root)]
    first_of_scope: dict[str, Trouble] = {}
    for trouble in hung:
        first_of_scope.setdefault(trouble.scope, trouble)
    return writer.bundle(), list(first_of_scope.values())


def _add_files(writer: BundleWriter, root: str) -> Iterator[Trouble]:
    """Add the files to the evidence; yields a trouble for each whose driver did not answer."""
    readable = []
    for path in itertools.chain(*(files.find(root, pattern) for pattern in _FILES)):
        if path.status == "ok":
            readable.append(path.source)
        else:
            writer.add("file", path.source, None, status=path.status, why=path.why)
    read = partial(files.read, root)
    for source, answer, why in hanging.read_each(readable, read, ANSWER_S, _card):
        if answer is None:
            answer = (None, "not_available", why)
        content, status, words = answer
        writer.add("file", source, content, status=status, why=words)
        if why.startswith("hung"):
            yield Trouble(_scope(root, source), f"{source} {why}, {NOW}")


def _add_tables(writer: BundleWriter, root: str) -> Iterator[Trouble]:
    """Add the tables to the evidence; yields a trouble for each row whose driver did not answer."""
    for name, collect in _tables(root):
        try:
            rows = list(collect())
        except OSError as error:
            status, why = files.fault(error)
            writer.add("file", name, None, status=status, why=why)
            continue
        for row in rows:
            why = str(row.get("why", ""))
            if why.startswith("hung"):
                # A device file such as /dev/dri/renderD128, whose name is also that of a folder in
                # /sys/class/drm; rows about something else have none, and the scope is the box.
                target = str(row.get("target", ""))
                scope = _scope(root, f"/sys/class/drm/{os.path.basename(target)}")
                yield Trouble(scope, f"{target or name} {why}, {NOW}")
        writer.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))


def _tables(root: str) -> Iterator[tuple[str, Callable[[], Iterable[dict[str, Any]]]]]:
    """(name of a table, function that collects its rows); some exist for this box only, not for a
    tree under ``root``.
    """
    collect_pci = partial(pci.collect_pci, Path(root or "/"))
    yield "pci_devices", partial(_in_child, collect_pci, ANSWER_S)
    yield "device_files", partial(processes.walk_device_files, root)
    if not root:
        yield "identity", access.collect_identity
        # /dev/dxg is the GPU of a Windows host under WSL, where there is no such /proc folder.
        if Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists():
            yield "nvml", partial(_in_child, nvml.report, NVML_S)


def unanswered(bundle: Bundle, root: str) -> Iterator[Trouble]:
    """A trouble for each sign of a GPU that does not answer, and for what could not be looked at:
    NVML gives no figures, the PCI bus cannot be listed, or a driver is loaded without a GPU of its
    vendor that can be seen.
    """
    for row in bundle.table("nvml"):
        if row.get("status") != "ok":
            why = f"NVML does not answer: {row.text('why')}, expected its figures"
            yield Trouble("a GPU", why, passes=False)
    try:
        os.listdir(f"{root}{pci.DEVICES}")
    except OSError as error:
        why = f"the PCI bus could not be looked at: {pci.DEVICES}: {error.strerror}"
        yield Trouble("box", why, passes=False)
    seen = {gpu.vendor for gpu in gpus_of(bundle)}
    for module, vendor in MODULES.items():
        if vendor not in seen and os.path.isdir(f"{root}/sys/module/{module}"):
            why = f"the kernel module {module} is loaded, and no layer shows a GPU of {vendor}"
            yield Trouble("box", why, passes=False)


def _in_child(
    produce: Callable[[], list[dict[str, Any]]], limit_s: float
) -> list[dict[str, Any]]:
    """The rows that a child produces, or one row that says why it produced none."""
    # One read; its key is of no use.
    answers = hanging.read_each((0,), lambda _: produce(), limit_s)
    _, rows, why = next(answers)
    if rows is None:
        return [{"status": "not_available", "why": why}]
    return rows


def _card(source: str) -> str:
    """The card's folder to which a file belongs: /sys/class/drm/CARD."""
    return "/".join(source.split("/")[:5])  # the leading "/" makes an empty first part


def _scope(root: str, source: str) -> str:
    """The scope of a trouble: the GPU that a file below /sys/class/drm belongs to, else the box.

    Resolving the link does not wait for the driver.
    """
    device = os.path.realpath(f"{root}{_card(source)}/device")
    address = pci_address(os.path.basename(device))
    return f"gpu {address}" if address else "box"


def gpu_state(gpu: Gpu, bundle: Bundle, root: str) -> GpuState:
    """The state of one GPU of a bundle."""
    pools = tuple(
        (pool.layer, pool.used.bytes, pool.total.bytes)
        for pool in gpu.pools
        if pool.layer in _POOLS and pool.used.ok and pool.total.ok
    )
    holders = tuple(_held(holder, root) for holder in one_each(gpu.holders))
    return GpuState(gpu.pci, pools, holders, tuple(_celsius(gpu, bundle)))


def _held(holder: Holder, root: str) -> Held:
    """A process with a GPU open, and what /proc says of it."""
    pid = holder.pid
    if numbered_by_host(holder):
        pid = -1  # no process: in this PID namespace the host's number may be another's
    process = process_of(pid, root)
    size = holder.memory.bytes if holder.memory.ok else None
    return Held(holder.pid, process.name, process.state, process.start_ticks, size)


def _celsius(gpu: Gpu, bundle: Bundle) -> Iterator[tuple[str, float, float | None]]:
    """(sensor, degrees, critical degrees or None) of each sensor of a GPU."""
    card = gpu.indices.get("drm card")
    if not card:  # its driver makes no card, and so no sensors below one
        return
    pattern = f"/sys/class/drm/{card}/device/hwmon/hwmon*/temp*_input"
    for source in bundle.sources(pattern):
        stem = source[: -len("input")]
        degrees = _degrees(bundle.number(source, "count"))
        if degrees is None:
            continue
        critical = _degrees(bundle.number(f"{stem}crit", "count"))
        if critical == 0:  # the driver does not know it
            critical = None
        label = bundle.word(f"{stem}label")
        sensor = str(label.value) if label.ok else os.path.basename(source)
        yield sensor, degrees, critical


def _degrees(reading: Reading) -> float | None:
    """Degrees Celsius of a reading in thousandths, as hwmon gives it; None if it was not read."""
    return reading.value / 1000 if isinstance(reading.value, int) else None
