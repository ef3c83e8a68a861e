"""Processes of a box and the GPU device files they hold open, from /proc.

Sources: proc(5) for /proc/PID/status and stat; Documentation/gpu/drm-usage-stats.rst for what fdinfo of a DRM file says.
A process that ended while it was looked at, one that may not be looked at and one without memory stay three different things.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import files, watched
from .bundle import Bundle
from .reading import KIB, Reading, not_allowed, not_available, seen

DEVICE_PREFIXES = ("/dev/dri/", "/dev/kfd", "/dev/nvidia", "/dev/dxg")
MEMORY = {"rss_bytes": "VmRSS", "rss_anon_bytes": "RssAnon", "rss_file_bytes": "RssFile", "rss_shmem_bytes": "RssShmem",
          "swap_bytes": "VmSwap"}
SMALL_BYTES = 64 << 10
# include/linux/sched.h; in the flags of /proc/PID/stat, which anybody may read.
PF_KTHREAD = 0x00200000


@dataclass(frozen=True)
class Process:
    """One process as /proc/PID/status shows it. ``nspid`` is its number in each PID namespace, this one's first.

    ``status`` is not ok where it could not be read (``why``). ``state`` is the kernel's letter: Z has ended and was not reaped,
    D waits inside the kernel. A kernel thread and a zombie have no memory, which reads as not available, never as 0.
    """

    pid: int
    name: str
    state: str
    uid: int | None
    ppid: int | None
    threads: int | None
    start_ticks: int | None
    rss_bytes: Reading
    rss_anon_bytes: Reading
    rss_file_bytes: Reading
    rss_shmem_bytes: Reading
    swap_bytes: Reading
    nspid: tuple[int, ...]
    args: Reading
    status: str
    why: str

    @property
    def zombie(self) -> bool:
        return self.state == "Z"

    @property
    def uninterruptible(self) -> bool:
        return self.state == "D"


@dataclass(frozen=True)
class DeviceFile:
    """One open GPU device file and what fdinfo says of it. ``fd`` is None where the process's list of files is refused."""

    pid: int
    fd: int | None
    target: str
    fdinfo: Reading


def pids(root: str) -> list[int]:
    """Process numbers under root/proc, in order. Raises OSError where there is no such folder."""
    with os.scandir(root.rstrip("/") + "/proc") as entries:
        return sorted(int(e.name) for e in entries if e.name.isdigit() and e.name.isascii())


def walk_processes(root: str, with_args: bool = False) -> Iterator[dict[str, Any]]:
    """Rows of the table ``processes``, one by one."""
    for pid, row, why in watched.each(pids(root), partial(_process, root, with_args)):
        yield row or {"pid": pid, "status": "not_available", "why": why}


def collect_processes(root: Path, with_args: bool) -> list[dict[str, Any]]:
    """The table ``processes``; command lines only where asked for, since they may hold secrets."""
    return list(walk_processes(str(root), with_args))


def walk_device_files(root: str) -> Iterator[dict[str, Any]]:
    """Rows of the table ``device_files``, one by one: the open files first, then what each one's fdinfo says."""
    held: list[dict[str, Any]] = []
    for pid, rows, why in watched.each(pids(root), partial(_device_files, root)):
        held += [{"pid": pid, "status": "not_available", "why": why}] if rows is None else rows
    open_files = [row for row in held if row["status"] == "ok"]
    said = watched.each(open_files, partial(_fdinfo, root), group=lambda row: row["pid"])
    for row in held:
        if row["status"] == "ok":
            _, answer, why = next(said)
            row = answer or {**row, "fdinfo": "", "status": "not_available", "why": why}
        yield row


def collect_device_files(root: Path) -> list[dict[str, Any]]:
    """The table ``device_files``."""
    return list(walk_device_files(str(root)))


def _text(root: str, source: str) -> tuple[str, str, str]:
    content, status, why = files.read(root, source, SMALL_BYTES)
    return (content or b"").decode("utf-8", "replace"), status, why


def _process(root: str, with_args: bool, pid: int) -> dict[str, Any]:
    text, status, why = _text(root, f"/proc/{pid}/status")
    row: dict[str, Any] = {"pid": pid, "status": "ok" if status == "truncated" else status, "why": why}
    if row["status"] != "ok":
        if why.startswith("no such") or "ESRCH" in why:
            row["why"] = "ended while it was looked at"
        return row
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    numbers = {"uid": _first(fields.get("Uid")), "ppid": _first(fields.get("PPid")), "threads": _first(fields.get("Threads")),
               "start_ticks": _start_ticks(_text(root, f"/proc/{pid}/stat")[0])}
    row.update({key: value for key, value in numbers.items() if value is not None})
    row.update(name=fields.get("Name", "").strip(), state=fields.get("State", "").strip()[:1],
               nspid=[int(n) for n in fields.get("NSpid", "").split() if n.isdigit()])
    for key, field in MEMORY.items():
        kib = _first(fields.get(field))
        if kib is not None:
            row[key] = kib * KIB
    if with_args:
        words, args_status, args_why = _text(root, f"/proc/{pid}/cmdline")
        row["args"] = words.rstrip("\0").split("\0") if words else []
        if args_status not in ("ok", "truncated"):
            row["args_why"] = args_why
    return row


def _first(value: str | None) -> int | None:
    words = (value or "").split()
    return int(words[0]) if words and words[0].isdigit() and words[0].isascii() else None


def _start_ticks(stat: str) -> int | None:
    # The name may hold blanks and brackets, so fields are counted from the last bracket: starttime is the 22nd of proc(5).
    words = stat.rpartition(")")[2].split()
    return _first(words[19]) if len(words) > 19 else None


def _is_kernel_thread(stat: str) -> bool:
    words = stat.rpartition(")")[2].split()
    return bool((_first(words[6]) or 0) & PF_KTHREAD) if len(words) > 6 else False


def _device_files(root: str, pid: int) -> list[dict[str, Any]]:
    folder = f"{root.rstrip('/')}/proc/{pid}/fd"
    rows: list[dict[str, Any]] = []
    try:
        with os.scandir(folder) as entries:
            numbers = sorted(int(e.name) for e in entries if e.name.isdigit() and e.name.isascii())
    except OSError as error:
        status, why = files.fault(error)
        # One that ended meanwhile holds nothing any more, and a kernel thread never does: no row.
        refused = status == "not_allowed" and not _is_kernel_thread(_text(root, f"/proc/{pid}/stat")[0])
        return [{"pid": pid, "status": status, "why": why}] if refused else []
    for number in numbers:
        try:
            target = os.readlink(f"{folder}/{number}")
        except OSError as error:
            status, why = files.fault(error)
            if status == "not_allowed":
                return [{"pid": pid, "status": status, "why": why}]
            continue
        if target.startswith(DEVICE_PREFIXES):
            target = target.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            rows.append({"pid": pid, "fd": number, "target": target, "status": "ok"})
    return rows


def _fdinfo(root: str, row: dict[str, Any]) -> dict[str, Any]:
    text, status, why = _text(root, f"/proc/{row['pid']}/fdinfo/{row['fd']}")
    return {**row, "fdinfo": text, "status": "ok" if status == "truncated" else status, "why": why}


def processes(bundle: Bundle) -> tuple[Process, ...]:
    """Every process in the bundle, by number. Empty where the table was not captured; ``bundle.read`` then says why."""
    item = bundle.read("processes").item
    rows = [row for row in bundle.table("processes") if _is_int(row.get("pid"))]
    return tuple(_as_process(row, item) for row in sorted(rows, key=lambda row: row["pid"]))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_process(row: dict[str, Any], item: str) -> Process:
    source = f"/proc/{row['pid']}/status"
    status, why = str(row.get("status", "ok")), str(row.get("why", ""))

    def number(key: str) -> int | None:
        return row[key] if _is_int(row.get(key)) else None

    def memory(key: str) -> Reading:
        value = number(key)
        if value is not None:
            return seen(value, "bytes", source, item)
        if status == "not_allowed":
            return not_allowed(why or "refused", "bytes", source, item)
        return not_available(why or f"no {MEMORY[key]}: a kernel thread, a zombie or an older kernel", "bytes", source, item)

    args = row.get("args")
    said = f"/proc/{row['pid']}/cmdline"
    return Process(row["pid"], str(row.get("name", "")), str(row.get("state", "")), number("uid"), number("ppid"),
                   number("threads"), number("start_ticks"), memory("rss_bytes"), memory("rss_anon_bytes"),
                   memory("rss_file_bytes"), memory("rss_shmem_bytes"), memory("swap_bytes"),
                   tuple(n for n in row.get("nspid") or () if _is_int(n)) if isinstance(row.get("nspid"), list) else (),
                   seen(" ".join(str(word) for word in args), "text", said, item) if isinstance(args, list)
                   else not_available("captured without --with-args", "text", said, item), status, why)


def device_files(bundle: Bundle) -> tuple[DeviceFile, ...]:
    """Every open GPU device file, and for a process whose files may not be listed one entry that says so."""
    item = bundle.read("device_files").item
    return tuple(_as_device_file(row, item) for row in bundle.table("device_files") if _is_int(row.get("pid")))


def _as_device_file(row: dict[str, Any], item: str) -> DeviceFile:
    fd = row["fd"] if _is_int(row.get("fd")) else None
    source = f"/proc/{row['pid']}/fd" if fd is None else f"/proc/{row['pid']}/fdinfo/{fd}"
    status, why = row.get("status", "ok"), str(row.get("why") or "no reason given")
    if status == "ok":
        said = seen(str(row.get("fdinfo", "")), "text", source, item)
    elif status == "not_allowed":
        said = not_allowed(why, "text", source, item)
    else:
        said = not_available(why, "text", source, item)
    return DeviceFile(row["pid"], fd, str(row.get("target", "")), said)
