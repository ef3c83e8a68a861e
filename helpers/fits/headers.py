"""Bytes and JSON at the head of a file, read in bounded size.

Nothing of a header is believed: each length is held against what was read, and against a limit.
A ``ValueError`` says in one line what was seen and what was expected.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from helpers.ground.units import MIB
from helpers.look.files import opened

MOST_READ = 32 * MIB
"""Bytes of a header that are read: a GGUF's largest part is its vocabulary, an index of 100,000
tensors takes 12 MiB.
"""
MOST_BYTES = 1 << 50
POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n){0,4}size (\d{1,15})\b"
)
"""git-lfs docs/spec.md."""


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


def pointer_bytes(path: Path) -> int:
    """The size of the file for which a git-lfs pointer stands, 0 where it is none."""
    match = POINTER.match(start_of(path, 400))
    if not match:
        return 0
    return min(int(match[1]), MOST_BYTES)


def cut_off(path: Path, whole_bytes: int) -> str:
    """How much of a file is here, of one whose header says that it is larger; else empty."""
    size = path.stat().st_size
    if size >= whole_bytes:
        return ""
    return f"{path.name}: {size:,} of {whole_bytes:,} bytes are here"


def safetensors_bytes(path: Path) -> tuple[int, str]:
    """The bytes of the tensors of a safetensors file, by its header (8 bytes of length, and JSON),
    and how much of the file is here, where its end is not. Raises ValueError.
    """
    length = int.from_bytes(start_of(path, 8), "little")
    size = path.stat().st_size
    if length > min(size - 8, MOST_READ):
        seen = f"a header of {length:,} bytes in a file of {size:,}"
        if size < 8 + length:
            seen += ", cut off"
        raise wrong(path, seen, "a whole header, of at most 32 MiB")
    tensors = json_file(path, 8, length)
    tensors.pop("__metadata__", None)
    try:
        ends = [int(tensor["data_offsets"][1]) for tensor in tensors.values()]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        ends = [-1]
    end = max(ends, default=0)
    if not 0 <= end <= MOST_BYTES:
        seen = f"tensors that end at {end}"
        raise wrong(path, seen, "offsets of a model's tensors")
    return end, cut_off(path, 8 + length + end)
