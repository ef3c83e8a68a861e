"""What a box is like between two jobs: its GPUs, host memory, disk, and what the kernel logged.

A look costs a fraction of a second and takes no GPU context: sysfs, procfs, KFD, and NVML in a
child that can be left behind. What cannot be read is no trouble. Standard library of Python 3.8
alone: a scheduler's prolog has nothing else.

Positions in the kernel log are record numbers of /dev/kmsg
(Documentation/ABI/testing/dev-kmsg), else a cursor of the journal: times would not do, since
the log's clock drifts from every clock that a program can read.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Optional, Tuple

from helpers import __version__
from helpers.ground.child import field as status_field
from helpers.ground.child import process_of
from helpers.ground.contract import from_json
from helpers.ground.units import now, pci_address, show_bytes
from helpers.judge.holders import SLACK_BYTES, newcomers
from helpers.look import access, commands, drm, files, hanging, kfd, nvidia, nvml, pci, processes
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.gpus import Gpu, numbered_by_host, one_each
from helpers.look.gpus import gpus as gpus_of
from helpers.look.kernel_log import LOG_LIMIT, Event, parse
from helpers.look.kernel_log_capture import JOURNAL, kmsg_line, kmsg_records
from helpers.trials.targets import FAULTS

# A driver that does not answer a read so long is sick; NVML alone may have to start its driver.
ANSWER_S = 2.0
NVML_S = 20.0
LOG_S = 2.0
TEXT_LIMIT = 200
_HWMON = tuple(
    f"/sys/class/drm/{card}/device/hwmon/hwmon*/temp*_{name}"
    for card in ("card[0-9]", "card[0-9][0-9]")
    for name in ("input", "crit", "label")
)
_NOT_KFD = ("mem_banks", "queues", "sdma")
_KFD = tuple(name for name in kfd.FILES if not any(part in name for part in _NOT_KFD))
_FILES = (*drm.FILES, *_KFD, *_HWMON, nvidia.INFORMATION)
_POOLS = ("sysfs VRAM", "sysfs GTT", "nvidia-smi")
# Faults of the program, not of the box (docs.nvidia.com/deploy/xid-errors): a later clean look
# lifts them.
OWN_XIDS = ("13", "31", "43", "45")
# drivers/edac/mce_amd.c decode_error_status, arch/x86/kernel/cpu/mce/core.c print_mce,
# drivers/firmware/efi/cper.c. Corrected and deferred ones are left out.
_HARDWARE = re.compile(
    r"\[Hardware Error\]: (?:System Fatal error|Uncorrected,|CPU \d{1,4}: Machine Check Exception|"
    r"event severity: (?:fatal|recoverable))"
)
CURSOR = "-- cursor: "
NOW = "expected an answer at once"


@dataclass(frozen=True)
class Trouble:
    """Why a box is not clean. ``scope`` is "box", "gpu PCI", or "a GPU" where nobody knows which.

    ``why`` is one line: seen, expected, with units. ``passes`` is true for what a clean look of
    the gate may lift: memory, holders, heat, a full disk, a program's own fault. It is false
    for what no such look can disprove, such as a GPU reset: that stays until a person has seen
    to it.
    """

    scope: str
    why: str
    passes: bool = True


@dataclass(frozen=True)
class Held:
    """A process with a GPU open.

    ``bytes`` is None where no source measured it; ``state`` is the kernel's letter, or empty.
    """

    pid: int
    name: str
    state: str
    start_ticks: int
    bytes: Optional[int]


@dataclass(frozen=True)
class GpuState:
    """One GPU.

    ``pools`` are (layer, used bytes, total bytes); ``celsius`` are (sensor, degrees, critical
    degrees or None).
    """

    pci: str
    pools: Tuple[Tuple[str, int, int], ...] = ()
    holders: Tuple[Held, ...] = ()
    celsius: Tuple[Tuple[str, float, Optional[float]], ...] = ()


@dataclass(frozen=True)
class BoxState:
    """One look at a box. None stands for what could not be read.

    ``log`` is the position in the kernel log, ``errors`` what happened since the look that was
    given as ``since``, ``seconds`` how long this look took, ``at`` when it was (UTC).
    ``folder`` is the one whose disk was looked at.
    """

    boot_id: str
    gpus: Tuple[GpuState, ...] = ()
    total_bytes: Optional[int] = None
    available_bytes: Optional[int] = None
    disk_free_bytes: Optional[int] = None
    read_only: bool = False
    oom_kills: Optional[int] = None
    log: str = ""
    errors: Tuple[Trouble, ...] = ()
    folder: str = "."
    seconds: float = 0.0
    at: str = ""


def read_state(text: str | bytes) -> BoxState:
    """A look that was kept as JSON (``to_json``). Raises ValueError, one line."""
    return from_json(BoxState, text, "look of the gate")


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
    asked = [pci_address(gpu) or gpu for gpu in gpus]
    wanted = [gpu for gpu in gpus_of(bundle) if not asked or gpu.pci in asked]
    meminfo = f"{root}/proc/meminfo"
    total, available = (status_field(meminfo, name) for name in ("MemTotal:", "MemAvailable:"))
    free = None
    read_only = False
    with suppress(OSError):
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        read_only = bool(disk.f_flag & os.ST_RDONLY)
    boot = files.boot_id(root)
    last = since if since and since.boot_id == boot else BoxState(boot)
    log, errors, whole = new_errors(root, last.log)
    kills = status_field(f"{root}/proc/vmstat", "oom_kill")
    before = last.oom_kills
    if not whole and kills is not None and before is not None and kills > before:
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
    collect_pci = partial(pci.collect_pci, Path(root or "/"))
    tables: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "pci_devices": partial(_in_child, collect_pci, ANSWER_S),
        "device_files": partial(processes.walk_device_files, root),
    }
    if not root:
        tables["identity"] = partial(access.collect_identity, Path("/"))
        if Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists():
            tables["nvml"] = partial(_in_child, nvml_rows, NVML_S)
    for name, collect in tables.items():
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


def _in_child(produce: Callable[[], list[dict[str, Any]]], limit_s: float) -> list[dict[str, Any]]:
    _, rows, why = next(iter(hanging.read_each((0,), lambda _: produce(), limit_s)))
    return [{"status": "not_available", "why": why}] if rows is None else rows


def nvml_rows() -> list[dict[str, Any]]:
    """The table ``nvml`` with temperatures; in a child, since NVML may hang in a sick driver."""
    rows: list[dict[str, Any]] = nvml.report()
    for row in rows:
        handle = ctypes.c_void_p()
        celsius = ctypes.c_uint()
        index = row.get("index", 0)
        try:
            call = nvml.Nvml().call
            call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            call("nvmlDeviceGetTemperature", handle, ctypes.c_uint(0), ctypes.byref(celsius))
            row["celsius"] = celsius.value
        except (OSError, nvml.NvmlError) as error:
            row["celsius_why"] = str(error)
    return rows


def _card(source: str) -> str:
    return "/".join(source.split("/")[:5])


def _scope(root: str, source: str) -> str:
    """The GPU that a file below /sys/class/drm belongs to, else the box.

    The link is read without asking the driver.
    """
    name = pci_address(os.path.basename(os.path.realpath(f"{root}{_card(source)}/device")))
    return f"gpu {name}" if name else "box"


def gpu_state(gpu: Gpu, bundle: Bundle, root: str) -> GpuState:
    """The state of one GPU of a bundle."""
    pools = tuple(
        (pool.layer, int(pool.used.value or 0), int(pool.total.value or 0))
        for pool in gpu.pools
        if pool.layer in _POOLS and pool.used.ok and pool.total.ok
    )
    holders = []
    for one in one_each(gpu.holders):
        # A host's number is one of another namespace.
        process = process_of(-1 if numbered_by_host(one) else one.pid, root)
        size = one.memory.bytes if one.memory.ok else None
        holders.append(Held(one.pid, process.name, process.state, process.start_ticks, size))
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
    for row in bundle.table("nvml"):
        if pci_address(str(row.get("pci", ""))) == gpu.pci and isinstance(row.get("celsius"), int):
            yield "NVML", float(row["celsius"]), None


# What the kernel logged since a position in its log that says a box is not well: faults of a
# GPU, of memory, of the hardware.


def new_errors(root: str, since: str) -> tuple[str, tuple[Trouble, ...], bool]:
    """(position of the log's end, errors after the position ``since``, whether all of the log
    since then was read).

    With an empty ``since`` nothing is judged. The journal is asked only where /dev/kmsg is
    refused and ``root`` is this box.
    """
    position, lines, whole = kmsg(root + "/dev/kmsg", since)
    if not position and not root:
        position, lines, whole = _journal(since)
    # A position of one source says nothing of the other.
    errors = judged("\n".join(lines)) if since[:4] == position[:4] else ()
    return position, errors, whole


def judged(text: str) -> tuple[Trouble, ...]:
    """The troubles in a piece of kernel log.

    What the killer of a memory cgroup did is none: it stayed inside its limit.
    """
    troubles = [_trouble(event) for event in parse(text) if _is_error(event)]
    hardware = [line for line in text.splitlines() if _HARDWARE.search(line)]
    troubles += [Trouble("box", _why("hardware error", 1, line), False) for line in hardware[:3]]
    return tuple(troubles)


def _is_error(event: Event) -> bool:
    if event.kind == "oom_killer":
        return event.detail == "global"
    if event.kind == "pcie_aer":
        return not event.detail.startswith("corrected")
    return event.kind in (*FAULTS, "hung_task")


def _trouble(event: Event) -> Trouble:
    passes = event.kind in ("vm_fault", "oom_killer", "hung_task")
    passes = passes or event.detail.endswith("soft recovered")
    passes = passes or (event.kind == "xid" and event.detail in OWN_XIDS)
    why = _why(event.kind.replace("_", " "), event.count, event.text)
    return Trouble(f"gpu {event.pci}" if event.pci else "box", why, passes)


def _why(kind: str, count: int, text: str) -> str:
    often = f" {count} times" if count > 1 else ""
    return f"the kernel logged {kind}{often}, expected no error: {text.strip()[:TEXT_LIMIT]}"


def kmsg(path: str, since: str) -> tuple[str, list[str], bool]:
    """(position, the lines after ``since``, whether none is missing) of /dev/kmsg or of a copy
    of it; no position: refused.
    """
    after = int(since.split()[1]) if since.startswith("kmsg ") else -1
    last = -1
    first = -1
    lines: list[str] = []
    try:
        for record in kmsg_records(path, LOG_S):
            words = record.split(b",", 2)
            if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
                last = int(words[1])
                first = last if first < 0 else first
                if last > after:
                    lines.append(kmsg_line(record).decode("utf-8", "replace").rstrip())
    except OSError:
        return "", [], False
    # Of those between, the ring buffer was overwritten before they were read.
    return f"kmsg {max(last, after)}", lines, not since or first <= after + 1


def _journal(since: str) -> tuple[str, list[str], bool]:
    """As ``kmsg``, from the journal; a position is a cursor of it."""
    cursor = since[len("journal ") :] if since.startswith("journal ") else ""
    part = ["--after-cursor", cursor] if cursor else ["-n", "1"]
    done = commands.run([*JOURNAL, "0", "--show-cursor", *part], LOG_S, LOG_LIMIT)
    lines = done.stdout.decode("utf-8", "replace").splitlines() if done.status == "ok" else []
    ends = [line[len(CURSOR) :] for line in lines if line.startswith(CURSOR)] or [cursor]
    position = f"journal {ends[-1]}" if done.status == "ok" and ends[-1] else ""
    return position, [one for one in lines if one[:3] != "-- "] if position else [], bool(position)


# Whether a box is clean for the next job: what a look at it may not show, and how long that may
# take.

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
NEW = " that was not there before"


@dataclass(frozen=True)
class Gates:
    """What a box must be like for the next job, as a plan's ``gates`` say it.

    A temperature of None is not looked at.

    ``memory_back_fraction``: of host memory, and of a GPU's, that may stay used. ``settle_s``:
    how long it may take.
    """

    # Read by pydantic where a plan holds gates, as the bounds beside the fields are: unknown
    # keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    disk_free_bytes: int = field(default=1 << 30, metadata={"ge": 0})
    memory_back_fraction: float = field(default=0.05, metadata={"ge": 0, "le": 1})
    temperature_c: float | None = field(default=90, metadata={"gt": 0})
    settle_s: float = field(default=30, metadata={"ge": 0, "le": 3600})


def idle(state: BoxState) -> BoxState:
    """What this box is like when nobody uses its GPUs."""
    unused = [
        replace(g, holders=(), pools=tuple((p, 0, of) for p, _, of in g.pools)) for g in state.gpus
    ]
    return replace(state, gpus=tuple(unused))


def unclean(before: BoxState, after: BoxState, gates: Gates) -> tuple[Trouble, ...]:
    """Why a box is not clean: what happened by ``after``, and how its memory, holders, heat and
    disk differ from ``before``.

    Pure. After a reboot only what needs no comparison is judged. Of what either look could not
    read nothing is said. ``idle(after)`` as ``before`` asks whether anybody uses the box at
    all.
    """
    troubles = list(after.errors)
    same_boot = before.boot_id == after.boot_id
    earlier = {gpu.pci: gpu for gpu in before.gpus} if same_boot else {}
    for gone in earlier.keys() - {gpu.pci for gpu in after.gpus}:
        why = "the GPU is gone: it was there before and no layer shows it now"
        troubles.append(Trouble(f"gpu {gone}", why, False))
    for gpu in after.gpus:
        whys = [*_too_hot(gpu, gates.temperature_c)]
        whys += _still_used(earlier[gpu.pci], gpu, gates) if gpu.pci in earlier else ()
        troubles += [Trouble(f"gpu {gpu.pci}", why) for why in whys]
    return tuple(troubles + [Trouble("box", why) for why in _host(before, after, gates)])


def _host(before: BoxState, after: BoxState, gates: Gates) -> Iterator[str]:
    had = before.available_bytes
    has = after.available_bytes
    if had is not None and has is not None and before.boot_id == after.boot_id:
        least = had - _allowed(after.total_bytes or 0, gates)
        if has < least:
            expected = f"expected at least {show_bytes(least)} as before"
            yield f"{show_bytes(has)} of host memory available, {expected}"
    disk = f"the disk of {after.folder}"
    free = after.disk_free_bytes
    if after.read_only:
        yield f"{disk} is mounted read-only, expected one that can be written"
    elif free is not None and free < gates.disk_free_bytes:
        expected = f"expected at least {show_bytes(gates.disk_free_bytes)}"
        yield f"{show_bytes(free)} free on {disk}, {expected}"


def _allowed(total_bytes: int, gates: Gates) -> int:
    return max(SLACK_BYTES, int(gates.memory_back_fraction * total_bytes))


def _still_used(before: GpuState, after: GpuState, gates: Gates) -> Iterator[str]:
    for held in newcomers(before.holders, after.holders):
        size = "memory that was not measured" if held.bytes is None else show_bytes(held.bytes)
        state = " and waits inside the kernel (state D)" if held.state == "D" else ""
        who = f"{held.name or 'a process'} ({held.pid})"
        yield f"{who} holds {size}{state}, expected no holder{NEW if before.holders else ''}"
    earlier = {layer: used for layer, used, _ in before.pools}
    for layer, used, total in after.pools:
        most = earlier.get(layer, used) + _allowed(total, gates)
        if used > most:
            was = f" ({show_bytes(earlier[layer])} before)" if earlier.get(layer) else ""
            yield f"{layer}: {show_bytes(used)} used, expected at most {show_bytes(most)}{was}"


def _too_hot(gpu: GpuState, limit: float | None) -> Iterator[str]:
    for sensor, degrees, critical in gpu.celsius:
        most = min((one for one in (limit, critical) if one is not None), default=None)
        if most is not None and degrees >= most:
            yield f"{sensor}: {degrees:g} degrees Celsius, expected below {most:g}"


def settle(
    before: BoxState,
    gates: Gates,
    look: Callable[[], BoxState],
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Trouble, ...]:
    """Look until the box is clean, for ``gates.settle_s`` seconds at most; what is still wrong,
    or nothing.

    What happened is not waited for, only what may pass: memory, holders, heat. Give the batch's
    first look as ``before``, so that many small leaks add up, and a ``look`` since the latest
    one, so that one fault counts once.
    """
    happened: tuple[Trouble, ...] = ()
    waited = 0.0
    pause = FIRST_PAUSE_S
    while True:
        state = look()
        # A later look does not name again what an earlier one did.
        happened = tuple(dict.fromkeys((*happened, *state.errors)))
        troubles = unclean(before, replace(state, errors=happened), gates)
        passing = [one for one in troubles if one.passes and one not in happened]
        if waited >= gates.settle_s or not passing:
            return troubles
        sleep(pause)
        waited = waited + pause + state.seconds
        pause = min(2 * pause, LONGEST_PAUSE_S)
