"""Checks the size of the footer of a Parquet file, which describes its columns, before a library
reads it.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from helpers.ground.units import show_bytes

MOST_DESCRIPTION_BYTES = 8 << 20
"""Of a footer, which has about 100 bytes for each column of each row group."""
MAGIC = b"PAR1"
"""How a Parquet file begins and ends (parquet.apache.org, file format)."""
LENGTH_BYTES = 4
"""Of the length of the footer, which stands before the last MAGIC."""


def check_parquet(
    file: BinaryIO, size_bytes: int, most_bytes: int = MOST_DESCRIPTION_BYTES
) -> None:
    """Raises OSError for a file whose footer is larger than ``most_bytes``: to read it would take
    many times as much RAM. A file that is no Parquet passes; its reader will refuse it.
    """
    tail_bytes = LENGTH_BYTES + len(MAGIC)
    if size_bytes < len(MAGIC) + tail_bytes:
        return
    file.seek(-tail_bytes, os.SEEK_END)
    tail = file.read(tail_bytes)
    footer_bytes = int.from_bytes(tail[:LENGTH_BYTES], "little")
    if tail.endswith(MAGIC) and footer_bytes > most_bytes:
        words = f"its columns take {show_bytes(footer_bytes)} to describe"
        raise OSError(0, f"{words}, more than {show_bytes(most_bytes)}")
