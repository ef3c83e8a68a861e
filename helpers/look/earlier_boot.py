"""What the kernel of an earlier boot logged last, and where that is left."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from helpers.look import commands, files
from helpers.look.kernel_line import LINE_LIMIT, split_time
from helpers.look.kernel_log_capture import JOURNAL, LIMIT_S

PSTORE = (
    "/var/lib/systemd/pstore/*/dmesg*",
    "/var/lib/systemd/pstore/dmesg*",
    "/sys/fs/pstore/dmesg*",
)
"""Where a kernel that died leaves its log (Documentation/ABI/testing/pstore,
systemd-pstore.service(8)).
"""
LAST_LINES = 20


class _Place(NamedTuple):
    """A place that may hold an earlier boot's log, the lines, and why there are none."""

    name: str
    lines: list[str]
    why: str


def last_lines(boot_id: str, since_s: float, root: str = "") -> list[str]:
    """What the kernel of an earlier boot logged last, and before it where that was read; or why
    from nowhere.

    pstore counts where it was written after ``since_s`` (seconds since 1970); the journal is
    asked for that very boot.
    """
    refusals = []
    for place in _places(boot_id.replace("-", ""), since_s, root):
        if place.lines:
            return [f"from {place.name}:", *map(_timed, place.lines[-LAST_LINES:])]
        refusals.append(f"{place.name}: {place.why}")
    return [f"not available because {'; '.join(refusals)}"]


def _timed(line: str) -> str:
    when, text = split_time(line[:LINE_LIMIT])
    return f"[{when}] {text}" if when else text


def _places(boot: str, since_s: float, root: str) -> Iterator[_Place]:
    yield from _pstore(since_s, root)
    if not root and re.fullmatch("[0-9a-f]{32}", boot):
        yield _journal(boot)


def _pstore(since_s: float, root: str) -> Iterator[_Place]:
    dumps = []
    refusals = []
    for pattern in PSTORE:
        for match in files.find(root, pattern):
            if match.status == "not_allowed":
                refusals.append(f"{match.source}: {match.why}")
            elif match.status == "ok" and _written_s(root + match.source) > since_s:
                dumps.append(match.source)
    # The part that was written last is the first.
    dumps.sort(key=lambda source: ("Part1\n" not in files.text(root, source), source))
    for source in dumps:
        yield _Place(source, files.text(root, source).splitlines(), "cannot be read")
    nothing = "the kernel left no log there since the run began"
    yield _Place("pstore", [], "; ".join(refusals) or nothing)


def _journal(boot: str) -> _Place:
    ended = commands.run([*JOURNAL, boot, "-n", str(LAST_LINES)], LIMIT_S)
    lines = ended.stdout.decode("utf-8", "replace").splitlines()
    last_words = "".join(ended.stderr.strip().splitlines()[-1:])[:200]
    return _Place(
        name="the journal",
        lines=[line for line in lines if not line.startswith("-- ")],
        why=ended.why or last_words or "it keeps nothing of that boot",
    )


def _written_s(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
