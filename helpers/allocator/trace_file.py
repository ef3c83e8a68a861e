"""Reads the trace in a file: a torch memory snapshot, the JSON lines of the oracle (tests/oracle;
operations or results, plain or .xz), or the project's own Parquet file.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from helpers.allocator.garbage import without_collection
from helpers.allocator.oracle_lines import from_oracle
from helpers.allocator.parquet_file import from_parquet
from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import load
from helpers.allocator.trace import MAX_FILE_BYTES, Trace, TraceError
from helpers.look.files import opened

_MOST_LINE_BYTES = 64 << 20
"""A line of the oracle takes at most some MB, where it has every block of a large card."""
_HEAD_BYTES = 64
"""Enough to tell the kinds apart; a file of JSON lines may begin with blanks."""


def read_trace(
    path: str | Path, device: int | None = None, max_bytes: int = MAX_FILE_BYTES
) -> Trace:
    """The trace in a file of any kind.

    ``device``: the device of a snapshot to read; None takes the one with most events. Raises
    TraceError in one line, OSError where the file cannot be read.
    """
    path = Path(path)
    with opened(path) as file:
        head = file.read(_HEAD_BYTES)
    kind = _kind(path.name, head)
    if (size := path.stat().st_size) > max_bytes:
        raise TraceError(
            f"{path.name} has {size:,} bytes and the limit is {max_bytes:,}; allow "
            f"more with max_bytes={size}"
        )
    if kind == "pickle":
        with without_collection():
            return rewind(load(path, device, max_bytes))
    if kind == "parquet":
        return from_parquet(path)
    if kind == "lines":
        with opened(path) as file:
            return from_oracle(_lines(file, max_bytes))
    try:
        with lzma.open(path) as file:
            return from_oracle(_lines(file, max_bytes))
    except (lzma.LZMAError, EOFError) as error:
        damaged = f"{path.name} is a damaged .xz file ({error}); copy it again"
        raise TraceError(damaged) from None


def _kind(name: str, head: bytes) -> str:
    """The kind of a file, "pickle", "parquet", "xz" or "lines", by its first bytes; pickles of
    protocol 0 and 1, which begin with any letter, by name. Raises TraceError for another.
    """
    if head[:1] == b"\x80" or name.endswith((".pickle", ".pkl")):
        return "pickle"
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    if head.lstrip()[:1] == b"{":
        return "lines"
    raise TraceError(
        f"{name} begins with {head[:8]!r}: expected a torch memory snapshot (.pickle), the oracle's JSON lines "
        "(.jsonl, .jsonl.xz) or a Parquet trace; record one: casebook record -- COMMAND"
    )


def _lines(file: IO[bytes], max_bytes: int) -> Iterator[bytes]:
    """The lines of a file. Raises TraceError for a text of more than ``max_bytes``, since a small
    .xz may unpack to any length, and for a single line that would fill the memory.
    """
    read_bytes = 0
    longest_bytes = min(_MOST_LINE_BYTES, max_bytes)
    while line := file.readline(longest_bytes + 1):  # one more shows that it is longer
        read_bytes += len(line)
        if read_bytes > max_bytes:
            raise TraceError(
                f"the text is longer than the limit of {max_bytes:,} bytes; allow more "
                "with max_bytes=N"
            )
        if len(line) > _MOST_LINE_BYTES:
            raise TraceError(
                f"a line is longer than {_MOST_LINE_BYTES:,} bytes: these are not the "
                "oracle's JSON lines"
            )
        yield line
