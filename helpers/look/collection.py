"""What a capture has collected so far, kept within the limits of a bundle
(helpers/look/archive.py).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
"""Tables that another program answers: a single row without a value is its reason for no answer."""
COLLECTION_LIMIT_BYTES = BUNDLE_LIMIT_BYTES - (16 << 20)
"""Leaves room for the manifest, which is written last."""
WORDS: dict[str, str] = data("look/capture")["words"]
"""What the report calls each status."""
FEW = 5
"""Lines of the report for each status."""


class NoRows(Exception):
    """The child process that makes a table's rows hung, died or failed; the text says how."""


def lost_status(why: str) -> str:
    """The status of an item for which hanging.read_each has no value, by the reason it gives."""
    if why.startswith("hung"):
        return "timeout"
    return "not_available"


class Collection:
    """Adds items to a BundleWriter. ``faults`` are errors in this program's readers;
    ``interrupted``: a person ended the capture early.
    """

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
        """Add one source; without its content if that is too large, or the bundle is full.
        ``content`` None: there is none. ``exited`` is a command's exit code.
        """
        if content is not None:
            size = len(content)
            if size > MEMBER_LIMIT_BYTES or self.bytes + size > COLLECTION_LIMIT_BYTES:
                content = None
                status = "not_available"
                why = (
                    f"left out: {show_bytes(size)} more would be too much for a bundle"
                )
            else:
                self.bytes += size
        item = self.writer.add(
            kind, source, content, status=status, why=why, seconds=seconds, exit=exited
        )
        self.items.append(item)

    def table(self, name: str, rows: Callable[[], Rows], unless: str = "") -> None:
        """Add a table as JSON lines, or the reason why there is none. ``unless`` is a reason not to
        call ``rows``, or empty.
        """
        began = time.monotonic()
        content = None
        status = "not_available"
        why = unless
        try:
            if not unless:
                listed = list(rows())
                lines = [json.dumps(row, sort_keys=True) + "\n" for row in listed]
                content = "".join(lines).encode()
                status, why = _status(name, listed)
        except OSError as error:
            status, why = files.fault(error)
        except NoRows as error:
            status = lost_status(str(error))
            why = str(error)
        self.add(name, content, status, why, time.monotonic() - began)

    def counts(self) -> dict[str, int]:
        """How many sources have each status, the most frequent status first."""
        return dict(Counter(item.status for item in self.items).most_common())

    def report(self) -> list[str]:
        """The lines that a person reads: the counts; what hung, was refused or was cut off; what
        this process cannot see; faults of this program.
        """
        counts = ", ".join(
            f"{count} {WORDS[status]}" for status, count in self.counts().items()
        )
        lines = [f"{len(self.items)} sources, {show_bytes(self.bytes)}: {counts}"]
        for status in ("timeout", "not_allowed", "truncated"):
            head = WORDS[status].capitalize()
            items = [item for item in self.items if item.status == status]
            lines += [f"{head}: {item.source}: {item.why}" for item in items[:FEW]]
            if len(items) > FEW:
                lines.append(f"{head}: {len(items) - FEW} more")
        lines += self._unseen()
        lines += [
            f"Fault in this program, please report it: {fault}" for fault in self.faults
        ]
        if self.interrupted:
            lines.append("Interrupted: what was not reached is not in the bundle")
        return lines

    def _unseen(self) -> Iterator[str]:
        """A line for each kind of processes that may hold a GPU and cannot be seen."""
        bundle = self.writer.bundle()
        statuses = [row.get("status") for row in bundle.table("device_files")]
        refused = statuses.count("not_allowed")
        if refused:
            whose = f"the open files of {refused} process(es), which may hold a GPU"
            yield f"Not allowed: {whose}"
        if any(row.get("init_pid_ns") is False for row in bundle.table("identity")):
            unseen = "processes outside it, which may hold a GPU too"
            yield f"Not visible from this container: {unseen}"


def _status(name: str, rows: list[JsonRow]) -> tuple[str, str]:
    """The status of the item of a table with these rows, and why it has no value: "ok" and an empty
    text, unless the only row of one of ANSWERS is the reason of the program that was asked.
    """
    if name in ANSWERS and len(rows) == 1:
        status = rows[0].get("status")
        if status in ("not_available", "not_allowed"):
            why = rows[0].get("why")
            if not why:
                why = NO_REASON
            return status, str(why)
    return "ok", ""
