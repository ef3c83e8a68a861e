"""Reserves room on the disk as a batch begins, and releases it when the disk is full: for records,
for runs that only look, and for the page.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from helpers.ground.units import now, show_bytes

RESERVE_BYTES = 16 << 20
"""Room for hundreds of records of some ten KiB, and for a page of at most 3 MB."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that freeing room may mend: the disk is full, or the user's quota is used up (open(2))."""
RELEASED = (
    f"the batch released the {show_bytes(RESERVE_BYTES)} that it had reserved for records, for runs "
    "that only look and for its page"
)


class Reserve:
    """A file without a name on the disk of ``folder``: its room is free again when it is closed, or
    when the process ends.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file: IO[bytes] | None = None

    def fill(self) -> None:
        """Reserve the room, unless the disk has less than twice as much free."""
        with suppress(OSError):  # the disk refuses it: nothing is reserved
            if shutil.disk_usage(self.folder).free < 2 * RESERVE_BYTES:
                return
            self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115  it stays open
            # Zeros would take no room on a disk that compresses.
            self._file.write(os.urandom(RESERVE_BYTES))

    def release(self, why: str) -> str:
        """Free the room; returns a note with the time and ``why``, empty if none was reserved."""
        if self._file is None:
            return ""
        with suppress(OSError):
            self._file.close()
        self._file = None
        return f"{now()}, {why}: {RELEASED}"

    def shortage(self) -> str:
        """How much is free on the disk, in words, if that is less than a reserve; else empty."""
        with suppress(OSError):
            free = shutil.disk_usage(self.folder).free
            if free < RESERVE_BYTES:
                return f"{show_bytes(free)} free on the disk"
        return ""
