"""What a capture has taken so far and what is still to come, so that one that is interrupted can name what it lacks."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from . import files, watched
from .archive import BUNDLE_LIMIT_BYTES, MEMBER_LIMIT_BYTES
from .bundle import BundleWriter, Item
from .reading import show_bytes

TABLE_LIMIT_BYTES = MEMBER_LIMIT_BYTES - (4 << 20)
TAKING_LIMIT_BYTES = BUNDLE_LIMIT_BYTES - (16 << 20)
PRODUCER_LIMIT_S = 15.0
WORDS = {"ok": "read", "truncated": "cut", "not_available": "not there", "not_allowed": "not allowed", "timeout": "hung"}
FEW = 5


@dataclass(frozen=True)
class Table:
    """A table to fill. It is recorded as not available where ``unless`` says why, or the folder it ``needs`` is not there.

    ``answer``: a table of one row without a value, which then speaks for the whole table (NVML, torch).
    """

    name: str
    rows: Callable[[], Iterable[dict[str, Any]]]
    needs: str = ""
    unless: str = ""
    answer: bool = False


class Lost(Exception):
    """There are no rows: the child that makes them hung, died or failed, and how."""


def in_child(produce: Callable[[], list[dict[str, Any]]], limit_s: float = PRODUCER_LIMIT_S) -> Iterator[dict[str, Any]]:
    """The rows of a producer that runs in a child. Raises Lost."""
    for _, rows, why in watched.each((0,), lambda _: produce(), limit_s):
        if rows is None:
            raise Lost(why)
        yield from rows


def lost_status(why: str) -> str:
    """The item status of a reading that watched.each gave up."""
    return "timeout" if why.startswith("hung") else "not_available"


class Taking:
    """Adds to a BundleWriter within the limits that a bundle's reader accepts."""

    def __init__(self, writer: BundleWriter):
        self.writer = writer
        self.items: list[Item] = []
        self.interrupted = False
        self.faults: list[str] = []
        self._planned: dict[str, str] = {}
        self._bytes = 0

    def plan(self, kind: str, sources: Iterable[str]) -> None:
        """Name sources that will be looked at."""
        for source in sources:
            self._planned.setdefault(source, kind)

    def add(self, source: str, content: bytes | None, status: str, why: str = "", seconds: float = 0.0,
            exited: int | None = None, kind: str = "file") -> None:
        """Add one source, or say that the bundle is full."""
        self._planned[source] = ""
        if content is not None and self._bytes + len(content) > TAKING_LIMIT_BYTES:
            content, status, why = None, "not_available", f"left out: the bundle has reached {TAKING_LIMIT_BYTES >> 20} MiB"
        self._bytes += len(content or b"")
        self.items.append(self.writer.add(kind, source, content, status=status, why=why, seconds=seconds, exit=exited))

    def rest(self, why: str) -> None:
        """Mark everything that was planned and not reached."""
        for source, kind in self._planned.items():
            if kind:
                self.add(source, None, "not_available", why, kind=kind)

    def table(self, table: Table, root: str) -> None:
        """Fill a table row by row; what it has is kept when it is interrupted."""
        began, lines, size, status, why = time.monotonic(), [], 0, "ok", ""
        try:
            if table.unless:
                raise Lost(table.unless)
            if table.needs:
                os.listdir(root.rstrip("/") + table.needs)
            row: dict[str, Any] = {}
            for row in table.rows():
                lines.append(json.dumps(row, sort_keys=True).encode() + b"\n")
                size += len(lines[-1])
                if size > TABLE_LIMIT_BYTES:
                    size -= len(lines.pop())
                    status, why = "truncated", f"cut after {len(lines)} rows ({TABLE_LIMIT_BYTES >> 20} MiB)"
                    break
            if table.answer and len(lines) == 1 and row.get("status") in ("not_available", "not_allowed"):
                status, why = row["status"], str(row.get("why") or "no reason given")
        except OSError as error:
            status, why = files.fault(error)
        except Lost as error:
            status, why = lost_status(str(error)), str(error)
        except KeyboardInterrupt:
            if lines:
                why = f"interrupted after {len(lines)} rows"
                self.add(table.name, b"".join(lines), "truncated", why, time.monotonic() - began)
            raise
        self.add(table.name, b"".join(lines) if lines or status == "ok" else None, status, why, time.monotonic() - began)

    def counts(self) -> dict[str, int]:
        """How many sources of each status, commonest first."""
        return dict(Counter(item.status for item in self.items).most_common())

    def told(self) -> list[str]:
        """What a person is told of it: the counts, then what hung, was refused, cut or unseen, a few lines of each."""
        counts = ", ".join(f"{count} {WORDS[status]}" for status, count in self.counts().items())
        lines = [f"{len(self.items)} sources, {show_bytes(self._bytes)}: {counts}"]
        for status, head in (("timeout", "Hung"), ("not_allowed", "Not allowed"), ("truncated", "Cut")):
            some = [item for item in self.items if item.status == status]
            lines += [f"{head}: {item.source}: {item.why}" for item in some[:FEW]]
            lines += [f"{head}: {len(some) - FEW} more"] if len(some) > FEW else []
        bundle = self.writer.bundle()
        refused = sum(row.get("status") == "not_allowed" for row in bundle.table("device_files"))
        if refused:
            lines.append(f"Not allowed: the open files of {refused} process{'es' if refused > 1 else ''}, which may hold a GPU")
        if any(row.get("init_pid_ns") is False for row in bundle.table("identity")):
            lines.append("Not visible from this container: processes outside it, which may hold a GPU too")
        lines += [f"Fault in this program, please report it: {fault}" for fault in self.faults]
        return lines + (["Interrupted: what was not reached is marked so in the bundle"] if self.interrupted else [])
