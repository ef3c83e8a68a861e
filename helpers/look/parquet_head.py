"""The end of a Parquet file, which describes its columns, looked at before a library reads it all."""

from __future__ import annotations

import os
from typing import BinaryIO

from helpers.ground.units import show_bytes

MOST_DESCRIPTION_BYTES = 8 << 20
"""Of columns and row groups: 100 bytes for each column of each group."""


def check_parquet(
    file: BinaryIO, size: int, most_bytes: int = MOST_DESCRIPTION_BYTES
) -> None:
    """Refuse a description of more than ``most_bytes``, which would take far more to read.

    Raises OSError, whose ``strerror`` says it. A file that is no Parquet is left to its reader.
    """
    if size < 12:
        return
    file.seek(-8, os.SEEK_END)
    tail = file.read(8)
    described = int.from_bytes(tail[:4], "little")
    if tail[4:] == b"PAR1" and described > most_bytes:
        words = f"its columns take {show_bytes(described)} to describe"
        raise OSError(0, f"{words}, more than {show_bytes(most_bytes)}")
