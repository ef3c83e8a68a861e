"""Writes files that only their owner may read, whole or not at all.

The recorder writes them from inside the user's own process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any


def owners_alone(path: str, flags: int) -> int:
    """For the parameter ``opener`` of ``open``: only the owner may read a new file, whatever the
    umask.
    """
    return os.open(path, flags, 0o600)


def open_text(path: str) -> IO[str]:
    """A text file to write, for its owner alone. Raises OSError."""
    return open(path, "w", encoding="utf-8", opener=owners_alone)


@contextlib.contextmanager
def replacing(path: str, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write: its content is in ``path``.part, and moves to ``path`` when the block ends
    without an error. ``mode``: "w" or "wb". Raises OSError.
    """
    encoding = None
    if mode == "w":
        encoding = "utf-8"
    with open(path + ".part", mode, encoding=encoding, opener=owners_alone) as file:
        yield file
    os.replace(path + ".part", path)
