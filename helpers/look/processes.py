"""The processes of a box, and the GPU device files that they have open, from /proc.

Sources: proc(5) for /proc/PID/status and stat; Documentation/gpu/drm-usage-stats.rst for the fdinfo
of a DRM file. A process that ended meanwhile, one that this user may not examine, and one without
memory are told apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from helpers.ground.child import process_of
from helpers.ground.shapes import Reading
from helpers.ground.units import KIB
from helpers.look.bundle import Bundle, JsonRow

from . import files, hanging

DEVICE_PREFIXES = ("/dev/dri/", "/dev/kfd", "/dev/nvidia", "/dev/dxg")
"""The device files of GPUs; /dev/dxg is WSL's."""
SMALL_BYTES = 64 << 10
"""Of a file status or fdinfo, which has a few KiB."""
NO_MEMORY = "no RssAnon: a kernel thread, a zombie or an older kernel"
PF_KTHREAD = 0x00200000
"""The flag of a kernel thread (include/linux/sched.h) in /proc/PID/stat, which anybody may read."""


@dataclass(frozen=True)
class Process:
    """One process as /proc/PID/status describes it.

    ``state`` is the kernel's letter: Z for a zombie, D for one that waits inside the kernel.
    ``rss_anon_bytes`` of a kernel thread or a zombie, which have no memory, is not available.
    """

    pid: int
    name: str
    state: str
    uid: int | None
    rss_anon_bytes: Reading


def pids(root: str) -> list[int]:
    """The process numbers in the file tree ``root``, in order. Raises OSError if it has no /proc."""
    return _numbers_in(root.rstrip("/") + "/proc")


def _numbers_in(folder: str) -> list[int]:
    """The entries of a folder of /proc that are numbers, which are processes or open files."""
    names = os.listdir(folder)
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def walk_processes(root: str) -> Iterator[JsonRow]:
    """The table ``processes``, a row for each process of the file tree ``root``."""
    for pid, row, why in hanging.read_each(pids(root), partial(_process, root)):
        if row is None:
            row = {"pid": pid, "status": "not_available", "why": why}
        yield row


def walk_device_files(root: str) -> Iterator[JsonRow]:
    """The table ``device_files``: a row for each GPU device file that a process has open, and for
    each process whose open files could not be read.

    All open files are listed before the first fdinfo is read, which may hang in a driver.
    """
    listed: list[JsonRow] = []
    for pid, rows, why in hanging.read_each(pids(root), partial(_device_files, root)):
        if rows is None:
            rows = [{"pid": pid, "status": "not_available", "why": why}]
        listed += rows
    open_files = [row for row in listed if row["status"] == "ok"]
    with_fdinfo = hanging.read_each(
        open_files, partial(_fdinfo, root), group=lambda row: row["pid"]
    )
    for row in listed:
        if row["status"] == "ok":
            _, whole_row, why = next(with_fdinfo)
            if whole_row is None:
                whole_row = {**row, "fdinfo": "", "status": "not_available", "why": why}
            row = whole_row
        yield row


def _text(root: str, source: str) -> tuple[str, str, str]:
    """(text, status, why) of a small file; one that was cut off counts as read."""
    content, status, why = files.read(root, source, SMALL_BYTES)
    if status == "truncated":
        status = "ok"
    if content is None:
        return "", status, why
    return content.decode("utf-8", "replace"), status, why


def _process(root: str, pid: int) -> JsonRow:
    """The row of one process, from the lines of its file status, such as "RssAnon:  1024 kB"."""
    text, status, why = _text(root, f"/proc/{pid}/status")
    if status != "ok":
        if why.startswith("no such") or "ESRCH" in why:
            why = "ended while it was looked at"
        return {"pid": pid, "status": status, "why": why}
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    row: JsonRow = {
        "pid": pid,
        "status": status,
        "why": why,
        "name": fields.get("Name", ""),
        "state": fields.get("State", "")[:1],
    }
    uid = re.match(r"([0-9]+)(?:\s|$)", fields.get("Uid", ""))  # the real one of four
    if uid:
        row["uid"] = int(uid[1])
    anon_kib = re.match(r"([0-9]+)(?:\s|$)", fields.get("RssAnon", ""))
    if anon_kib:
        row["rss_anon_bytes"] = int(anon_kib[1]) * KIB
    return row


def _device_files(root: str, pid: int) -> list[JsonRow]:
    """The rows of one process without the texts of fdinfo; one row that says so if its open files
    may not be read.
    """
    root = root.rstrip("/")
    folder = f"{root}/proc/{pid}/fd"
    rows: list[JsonRow] = []
    try:
        numbers = _numbers_in(folder)
    except OSError as error:
        status, why = files.fault(error)
        # A process that has ended holds nothing any more, and a kernel thread never does.
        is_kernel_thread = process_of(pid, root).flags & PF_KTHREAD
        if status != "not_allowed" or is_kernel_thread:
            return []
        return [{"pid": pid, "status": status, "why": why}]
    for number in numbers:
        try:
            target = os.readlink(f"{folder}/{number}")
        except OSError as error:
            status, why = files.fault(error)
            if status == "not_allowed":
                return [{"pid": pid, "status": status, "why": why}]
            continue  # it was closed meanwhile
        if target.startswith(DEVICE_PREFIXES):
            target = os.fsencode(target).decode("utf-8", "replace")
            rows.append({"pid": pid, "fd": number, "target": target, "status": "ok"})
    return rows


def _fdinfo(root: str, row: JsonRow) -> JsonRow:
    """The row of an open file with the text of its fdinfo."""
    text, status, why = _text(root, f"/proc/{row['pid']}/fdinfo/{row['fd']}")
    return {**row, "fdinfo": text, "status": status, "why": why}


def processes(bundle: Bundle) -> tuple[Process, ...]:
    """Every process in the bundle, in the order of their numbers. Empty if the table was not
    captured; ``bundle.read("processes")`` then says why.
    """
    text = bundle.read("processes")
    by_pid = {}
    for row in bundle.table("processes"):
        pid = row.number("pid")
        anon = row.number("rss_anon_bytes")
        if pid is None:
            continue
        source = text.of(f"/proc/{pid}/status")
        if anon is not None:
            memory = source.seen(anon, "bytes")
        else:
            why = row.text("why")
            if not why:
                why = NO_MEMORY
            memory = source.refused(row.get("status"), why, "bytes")
        by_pid[pid] = Process(
            pid, row.text("name"), row.text("state"), row.number("uid"), memory
        )
    return tuple(by_pid[pid] for pid in sorted(by_pid))
