"""The header of a file of weights: bytes and JSON at its start, of bounded size.

No length in a header is trusted: each is compared with the file and with a limit. A ``ValueError``
says in one line what was seen and what was expected.
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
"""Bytes of a file, 1 PiB: a larger number is no model's."""
POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n){0,4}size (\d{1,15})\b"
)
"""A git-lfs pointer (git-lfs docs/spec.md): text in place of a large file, with its size."""
POINTER_BYTES = 400
"""The largest part of a file that is searched for a pointer; one has about 130 bytes."""
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its JSON (safetensors README, "Format")."""


def wrong(path: Path, seen: object, expected: str) -> ValueError:
    """The error about a file: what was seen in it and what was expected, in one line."""
    return ValueError(f"{path.name}: seen {seen}; expected {expected}")


def start_of(path: Path, size: int, at: int = 0) -> bytes:
    """Up to ``size`` bytes of a regular file from the place ``at`` on, fewer where it ends before.
    Raises OSError.
    """
    with opened(path) as file:
        file.seek(at)
        return file.read(size)


def json_file(path: Path, at: int = 0, size: int = MOST_READ + 1) -> dict[str, Any]:
    """The JSON object in a file, or in the part of it of ``size`` bytes from the place ``at`` on.

    Raises ValueError where there is no object, or where there are more than MOST_READ bytes: that
    is why one byte more than those is asked for.
    """
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
    """The size of the file that a git-lfs pointer replaces; 0 where the file is no pointer."""
    match = POINTER.match(start_of(path, POINTER_BYTES))
    if not match:
        return 0
    # A pointer is text, in which any number may stand.
    return min(int(match[1]), MOST_BYTES)


def cut_off(path: Path, whole_bytes: int) -> str:
    """How much of a file is here, in words; empty where it has all the bytes that its header names."""
    size = path.stat().st_size
    if size >= whole_bytes:
        return ""
    return f"{path.name}: {size:,} of {whole_bytes:,} bytes are here"


def safetensors_bytes(path: Path) -> tuple[int, str]:
    """The bytes of all tensors of a safetensors file, by its header; and how much of the file is
    here, as ``cut_off`` says it (empty where all is).

    The tensors lie one after the other behind the header, so the largest end of one is the bytes of
    all. Raises ValueError for a header that is not whole, or whose offsets are no model's.
    """
    length = int.from_bytes(start_of(path, LENGTH_BYTES), "little")
    size = path.stat().st_size
    if length > min(size - LENGTH_BYTES, MOST_READ):
        seen = f"a header of {length:,} bytes in a file of {size:,}"
        if size < LENGTH_BYTES + length:
            seen += ", cut off"
        raise wrong(path, seen, "a whole header, of at most 32 MiB")
    tensors = json_file(path, LENGTH_BYTES, length)
    tensors.pop("__metadata__", None)  # the one key that is no tensor
    try:
        ends = [int(tensor["data_offsets"][1]) for tensor in tensors.values()]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        ends = [-1]  # refused below
    end = max(ends, default=0)
    if not 0 <= end <= MOST_BYTES:
        seen = f"tensors that end at {end}"
        raise wrong(path, seen, "offsets of a model's tensors")
    return end, cut_off(path, LENGTH_BYTES + length + end)
