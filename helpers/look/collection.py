"""What a capture has gathered so far, within the limits that a bundle's reader accepts."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from helpers.ground.tables import data
from helpers.ground.units import show_bytes
from helpers.look import files
from helpers.look.access import NO_REASON
from helpers.look.archive import BUNDLE_LIMIT_BYTES, MEMBER_LIMIT_BYTES
from helpers.look.bundle import BundleWriter, Item, JsonRow

if TYPE_CHECKING:
    Rows = Iterable[JsonRow]

ANSWERS = ("nvml", "torch")
"""Tables of which one row without a value speaks for the whole."""
COLLECTION_LIMIT_BYTES = BUNDLE_LIMIT_BYTES - (16 << 20)
WORDS: dict[str, str] = data("look/capture")["words"]
FEW = 5


class NoRows(Exception):
    """There are no rows: the child that makes them hung, died or failed, and how."""


def lost_status(why: str) -> str:
    """The item status of a reading that hanging.read_each gave up."""
    return "timeout" if why.startswith("hung") else "not_available"


class Collection:
    """Adds to a BundleWriter; ``faults`` are those of readers, ``interrupted`` by a person."""

    def __init__(self, writer: BundleWriter):
        self.writer = writer
        self.items: list[Item] = []
        self.interrupted = False
        self.faults: list[str] = []
        self.bytes = 0

    def add(
        self,
        source: str,
        content: bytes | None,
        status: str,
        why: str = "",
        seconds: float = 0.0,
        exited: int | None = None,
        kind: str = "file",
    ) -> None:
        """Add one source, or say that it is too large or the bundle full."""
        size = len(content or b"")
        if size > MEMBER_LIMIT_BYTES or self.bytes + size > COLLECTION_LIMIT_BYTES:
            content = None
            status = "not_available"
            why = f"left out: {show_bytes(size)} more would be too much for a bundle"
        if content is not None:
            self.bytes += size
        item = self.writer.add(
            kind, source, content, status=status, why=why, seconds=seconds, exit=exited
        )
        self.items.append(item)

    def table(self, name: str, rows: Callable[[], Rows], unless: str = "") -> None:
        """Add a table, or say why not; ``unless`` is a reason not to ask for its rows."""
        began = time.monotonic()
        content = None
        status = "not_available"
        why = unless
        try:
            if not unless:
                listed = list(rows())
                content = b"".join(
                    json.dumps(row, sort_keys=True).encode() + b"\n" for row in listed
                )
                status, why = _status(name, listed)
        except OSError as error:
            status, why = files.fault(error)
        except NoRows as error:
            status = lost_status(str(error))
            why = str(error)
        self.add(name, content, status, why, time.monotonic() - began)

    def counts(self) -> dict[str, int]:
        """How many sources of each status, commonest first."""
        return dict(Counter(item.status for item in self.items).most_common())

    def report(self) -> list[str]:
        """What a person reads of it: the counts, then what hung, was refused, cut or unseen, a
        few lines of each.
        """
        counts = ", ".join(
            f"{count} {WORDS[status]}" for status, count in self.counts().items()
        )
        lines = [f"{len(self.items)} sources, {show_bytes(self.bytes)}: {counts}"]
        for status in ("timeout", "not_allowed", "truncated"):
            head = WORDS[status].capitalize()
            some = [item for item in self.items if item.status == status]
            lines += [f"{head}: {item.source}: {item.why}" for item in some[:FEW]]
            if len(some) > FEW:
                lines.append(f"{head}: {len(some) - FEW} more")
        bundle = self.writer.bundle()
        refused = sum(
            row.get("status") == "not_allowed" for row in bundle.table("device_files")
        )
        if refused:
            whose = f"the open files of {refused} process(es), which may hold a GPU"
            lines.append(f"Not allowed: {whose}")
        if any(row.get("init_pid_ns") is False for row in bundle.table("identity")):
            unseen = "processes outside it, which may hold a GPU too"
            lines.append("Not visible from this container: " + unseen)
        lines += [
            f"Fault in this program, please report it: {fault}" for fault in self.faults
        ]
        if self.interrupted:
            lines.append("Interrupted: what was not reached is not in the bundle")
        return lines


def _status(name: str, rows: list[JsonRow]) -> tuple[str, str]:
    """The status of a table that was listed, and why it has no value."""
    if name in ANSWERS and len(rows) == 1:
        status = rows[0].get("status")
        if status in ("not_available", "not_allowed"):
            return status, str(rows[0].get("why") or NO_REASON)
    return "ok", ""
