"""Processes of a box and the GPU device files they hold open, from /proc.

Sources: proc(5) for /proc/PID/status and stat; Documentation/gpu/drm-usage-stats.rst for what
fdinfo of a DRM file says. A process that ended while it was looked at, one that may not be
looked at and one without memory stay three different things.
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
SMALL_BYTES = 64 << 10
NO_MEMORY = "no RssAnon: a kernel thread, a zombie or an older kernel"
# include/linux/sched.h; in the flags of /proc/PID/stat, which anybody may read.
PF_KTHREAD = 0x00200000


@dataclass(frozen=True)
class Process:
    """One process as /proc/PID/status shows it.

    ``state`` is the kernel's letter: Z has ended and was not reaped, D waits inside the kernel.
    A kernel thread and a zombie have no memory, which reads as not available, never as 0.
    """

    pid: int
    name: str
    state: str
    uid: int | None
    rss_anon_bytes: Reading


def pids(root: str) -> list[int]:
    """Process numbers under root/proc, in order. Raises OSError where there is no such folder."""
    return _numbers_in(root.rstrip("/") + "/proc")


def _numbers_in(folder: str) -> list[int]:
    """The entries of a folder of /proc that are numbers: processes, or open files."""
    names = filter(str.isdecimal, os.listdir(folder))
    return sorted(int(name) for name in names if name.isascii())


def walk_processes(root: str) -> Iterator[JsonRow]:
    """Rows of the table ``processes``, one by one."""
    for pid, row, why in hanging.read_each(pids(root), partial(_process, root)):
        if row is None:
            row = {"pid": pid, "status": "not_available", "why": why}
        yield row


def walk_device_files(root: str) -> Iterator[JsonRow]:
    """Rows of the table ``device_files``, one by one: the open files first, then what each
    one's fdinfo says.
    """
    listed: list[JsonRow] = []
    for pid, rows, why in hanging.read_each(pids(root), partial(_device_files, root)):
        if rows is None:
            rows = [{"pid": pid, "status": "not_available", "why": why}]
        listed += rows
    open_files = [row for row in listed if row["status"] == "ok"]
    texts = hanging.read_each(
        open_files, partial(_fdinfo, root), group=lambda row: row["pid"]
    )
    for row in listed:
        if row["status"] == "ok":
            _, answer, why = next(texts)
            if answer is None:
                answer = {**row, "fdinfo": "", "status": "not_available", "why": why}
            row = answer
        yield row


def _text(root: str, source: str) -> tuple[str, str, str]:
    """The text of a small file, its status and why; one that was cut counts as read."""
    content, status, why = files.read(root, source, SMALL_BYTES)
    if status == "truncated":
        status = "ok"
    if content is None:
        return "", status, why
    return content.decode("utf-8", "replace"), status, why


def _process(root: str, pid: int) -> JsonRow:
    text, status, why = _text(root, f"/proc/{pid}/status")
    if status != "ok":
        if why.startswith("no such") or "ESRCH" in why:
            why = "ended while it was looked at"
        return {"pid": pid, "status": status, "why": why}
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    row: JsonRow = {
        "pid": pid,
        "status": status,
        "why": why,
        "name": fields.get("Name", "").strip(),
        "state": fields.get("State", "").strip()[:1],
    }
    uid = _first(fields.get("Uid"))
    if uid is not None:
        row["uid"] = uid
    anon = _first(fields.get("RssAnon"))
    if anon is not None:
        row["rss_anon_bytes"] = anon * KIB
    return row


def _first(value: str | None) -> int | None:
    match = re.match(r"\s*([0-9]+)(?:\s|$)", value or "")
    return int(match.group(1)) if match else None


def _device_files(root: str, pid: int) -> list[JsonRow]:
    folder = f"{root.rstrip('/')}/proc/{pid}/fd"
    rows: list[JsonRow] = []
    try:
        numbers = _numbers_in(folder)
    except OSError as error:
        status, why = files.fault(error)
        # One that ended meanwhile holds nothing any more, and a kernel thread never does: no row.
        if (
            status != "not_allowed"
            or process_of(pid, root.rstrip("/")).flags & PF_KTHREAD
        ):
            return []
        return [{"pid": pid, "status": status, "why": why}]
    for number in numbers:
        try:
            target = os.readlink(f"{folder}/{number}")
        except OSError as error:
            status, why = files.fault(error)
            if status == "not_allowed":
                return [{"pid": pid, "status": status, "why": why}]
            continue
        if target.startswith(DEVICE_PREFIXES):
            target = target.encode("utf-8", "surrogateescape").decode(
                "utf-8", "replace"
            )
            rows.append({"pid": pid, "fd": number, "target": target, "status": "ok"})
    return rows


def _fdinfo(root: str, row: JsonRow) -> JsonRow:
    text, status, why = _text(root, f"/proc/{row['pid']}/fdinfo/{row['fd']}")
    return {**row, "fdinfo": text, "status": status, "why": why}


def processes(bundle: Bundle) -> tuple[Process, ...]:
    """Every process in the bundle, by number.

    Empty where the table was not captured; ``bundle.read`` then says why.
    """
    text = bundle.read("processes")
    by_pid = {}
    for row in bundle.table("processes"):
        pid = row.number("pid")
        anon = row.number("rss_anon_bytes")
        if pid is None:
            continue
        source = text.of(f"/proc/{pid}/status")
        if anon is None:
            memory = source.refused(
                row.get("status"), row.text("why") or NO_MEMORY, "bytes"
            )
        else:
            memory = source.seen(anon, "bytes")
        by_pid[pid] = Process(
            pid, row.text("name"), row.text("state"), row.number("uid"), memory
        )
    return tuple(by_pid[pid] for pid in sorted(by_pid))
