"""How often does a log of any size say out of memory, device-side assert, restart? One pass, bounded memory, repeats counted.

What a line means is the judge's reading (helpers/look/messages.py). Lines alike but for their numbers are read once, so a log
of 100 MB of one message is counted as fast as one without any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from helpers import grammar
from helpers.look.messages import of_device, of_host, read_message

BLOCK_BYTES = 4 << 20
LINE_BYTES = 1 << 20
GROUP_BYTES = 8 << 10
_ROWS: tuple[grammar.Row | grammar.Line, ...] = (*grammar.rows(), *grammar.lines(True))
_READ = grammar.plain_anchors(
    tuple(
        sorted(
            {row.event for row in _ROWS if of_device(row) or of_host(row) or row.event == "assert"}
        )
    )
)
_OWN = (
    "restart",
    "respawn",
    "relaunch",
    "giving up",
    "gpu reset",
    "recycl",
    "traceback (most recent",
    "segmentation fault",
)
_ANCHORS = tuple(
    (anchor.encode(), bit) for bit, anchors in ((1, _READ), (2, _OWN)) for anchor in anchors
)
# A line with one of these begins a message; another that the judge's anchors hit goes on with the one before it.
_HEAD = re.compile(
    rb"out of memory|outofmemory|resource_?exhausted|assert|cannot allocate|unable to allocate|kill"
    rb"|malloc failed|failed to"
)
_RESTART = re.compile(
    rb"\b(?:restarting|restarted|respawn(?:ing|ed)|relaunch(?:ing|ed)|restart (?:attempt )?#?[0-9]+)\b"
)
_NO_RESTART = re.compile(
    rb"\b(?:not|no|never|without|before|after) (?:be )?(?:restart|respawn|relaunch)"
)
_EXHAUSTED = re.compile(
    rb"(?:restart|respawn).{0,60}(?:exhausted|exceeded|used up|limit reached)|(?:exhausted|exceeded).{0,40}"
    rb"restart|giving up after [0-9]+ (?:restart|attempt|failure)"
)
_RECYCLED = re.compile(
    rb"performing (?:a |the )?(?:periodic )?gpu reset|worker.{0,40}recycled|recycl(?:ed|ing).{0,40}worker"
)
_CRASH = re.compile(rb"traceback \(most recent call last\)|segmentation fault")
_EPOCH = re.compile(rb"epoch[^0-9\na-z]{0,4}([0-9]{1,7}) ?(?:/|of) ?([0-9]{1,7})")
KERNEL_ASSERT = "torch-kernel-assert"
"""The row of the line that each thread of a kernel prints; the error itself follows."""
_NUMBERS = re.compile(rb"[0-9]+")


@dataclass(frozen=True)
class LogCounts:
    """Messages in a log. ``oom`` is of a GPU, ``host_memory`` of the host; ``asserts`` are device-side assert errors; a burst
    of the kernel's own lines, one a thread, that no error follows counts once. ``crashes``: tracebacks and segmentation faults.

    ``epoch`` and ``epochs``: the highest "epoch 3/10" seen. ``exhausted``: a supervisor said that it gave up restarting.
    """

    bytes: int
    oom: int
    host_memory: int
    asserts: int
    restarts: int
    exhausted: int
    recycled: int
    crashes: int
    epoch: int | None = None
    epochs: int | None = None


def count_log(path: Path) -> LogCounts:
    """Count what a log says. Raises ValueError, one line, where the file cannot be read."""
    counts: Counter[str] = Counter()
    group = bytearray()
    after = size = 0
    loose_assert = False
    epoch = (0, 0)

    def close() -> None:
        nonlocal loose_assert
        if not group:
            return
        found = _judge(_NUMBERS.sub(b"0", bytes(group)))
        group.clear()
        counts["oom"] += found[0]
        counts["host"] += found[1]
        counts["asserts"] += found[2]
        loose_assert = (loose_assert or found[3] > 0) and not found[2]

    try:
        for base, data in _blocks(path):
            size = base + len(data)
            epoch = max([epoch, *{(int(one), int(of)) for one, of in _EPOCH.findall(data)}])
            for start, end, marks in _hits(data):
                at, line = base + start, data[start:end]
                if marks & 1:
                    if loose_assert and at - after > GROUP_BYTES:
                        counts["asserts"] += 1
                        loose_assert = False
                    if (
                        _HEAD.search(line)
                        or len(group) + len(line) > GROUP_BYTES
                        or at - after > 400
                    ):
                        close()
                    group += line[:GROUP_BYTES] + b"\n"
                    after = base + end
                if marks & 2:
                    counts["restarts"] += bool(
                        _RESTART.search(line) and not _NO_RESTART.search(line)
                    )
                    counts["exhausted"] += bool(_EXHAUSTED.search(line))
                    counts["recycled"] += bool(_RECYCLED.search(line))
                    counts["crashes"] += bool(_CRASH.search(line))
    except OSError as error:
        raise ValueError(
            f"{path}: this log cannot be read ({error.strerror}); give a file of text"
        ) from None
    close()
    counts["asserts"] += loose_assert
    return LogCounts(
        size,
        counts["oom"],
        counts["host"],
        counts["asserts"],
        counts["restarts"],
        counts["exhausted"],
        counts["recycled"],
        counts["crashes"],
        *(epoch if epoch[1] else (None, None)),
    )


@lru_cache(4096)
def _judge(text: bytes) -> tuple[int, int, int, int]:
    """Messages of the GPU's and the host's memory, assert errors, and lines of a kernel's own assertion."""
    found = read_message(text.decode("utf-8", "replace")).messages
    asserts = [one.row for one in found if one.event == "assert"]
    loose = asserts.count(KERNEL_ASSERT)
    return sum(map(of_device, found)), sum(map(of_host, found)), len(asserts) - loose, loose


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in blocks of whole lines, lower case, each with its place; a line of more than LINE_BYTES is read in pieces."""
    base, rest = 0, b""
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            data = rest + data.replace(b"\r", b"\n").lower()
            cut = data.rfind(b"\n") + 1 or (len(data) if len(data) > LINE_BYTES else 0)
            if cut:
                yield base, data[:cut]
            base, rest = base + cut, data[cut:]
    yield base, rest


def _hits(data: bytes) -> list[tuple[int, int, int]]:
    """Beginning and end of each line that has an anchor, and whose: 1 the judge's, 2 one of this module."""
    ends: dict[int, int] = {}
    marks: dict[int, int] = {}
    for anchor, bit in _ANCHORS:
        at = data.find(anchor)
        while at >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            end = ends.get(start) or data.find(b"\n", at)
            ends[start] = end = end if end >= 0 else len(data)
            marks[start] = marks.get(start, 0) | bit
            at = data.find(anchor, end)
    return [(start, ends[start], marks[start]) for start in sorted(ends)]
