"""Files that nobody else may read, written whole or not at all.

The recorder writes them from inside the user's own process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any


def owners_alone(path: str, flags: int) -> int:
    """An opener of a file that nobody else may read, under any umask."""
    return os.open(path, flags, 0o600)


def open_text(path: str) -> IO[str]:
    """A text file to write, for its owner alone. Raises OSError."""
    return open(path, "w", encoding="utf-8", opener=owners_alone)


@contextlib.contextmanager
def replacing(path: str, mode: str = "w") -> Iterator[IO[Any]]:
    """A file that stands at ``path`` once it is whole, and not before. Raises OSError."""
    encoding = None if "b" in mode else "utf-8"
    with open(path + ".part", mode, encoding=encoding, opener=owners_alone) as file:
        yield file
    os.replace(path + ".part", path)
