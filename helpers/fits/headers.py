"""Bytes and JSON at the head of a file, read in bounded size.

Nothing of a header is believed: each length is held against what was read, and against a limit.
A ``ValueError`` says in one line what was seen and what was expected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.ground.units import MIB
from helpers.look.files import opened

MOST_READ = 32 * MIB
"""Bytes of a header that are read: a GGUF's largest part is its vocabulary, an index of 100,000
tensors takes 12 MiB.
"""
MOST_BYTES = 1 << 50


def wrong(path: Path, seen: object, expected: str) -> ValueError:
    """What is wrong with a file, in one line."""
    return ValueError(f"{path.name}: seen {seen}; expected {expected}")


def start_of(path: Path, size: int, at: int = 0) -> bytes:
    """Bytes of a regular file, from its start or from ``at``. Raises OSError."""
    with opened(path) as file:
        file.seek(at)
        return file.read(size)


def json_file(path: Path, at: int = 0, size: int = MOST_READ + 1) -> dict[str, Any]:
    """The JSON object in a file of bounded size, or in a part of it."""
    data = start_of(path, size, at)
    if len(data) > MOST_READ:
        raise wrong(path, f"more than {MOST_READ} bytes", "JSON of at most 32 MiB")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise wrong(path, f"no JSON ({error!s:.80})", "a whole file") from None
    if not isinstance(content, dict):
        raise wrong(path, f"a {type(content).__name__}", "a JSON object")
    return content


def safetensors_bytes(path: Path) -> int:
    """Bytes of the tensors of one safetensors file, by its header: 8 bytes of length, then JSON."""
    size = path.stat().st_size
    length = int.from_bytes(start_of(path, 8), "little")
    tensors = json_file(path, 8, min(length, MOST_READ + 1))
    tensors.pop("__metadata__", None)
    try:
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        end = -1
    rest = size - 8 - length or MOST_BYTES  # a header alone is enough
    if not 0 <= end <= rest:
        raise wrong(path, f"tensors that end at {end} of {rest} bytes", "all of them in the file")
    return end
