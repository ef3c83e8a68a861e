"""Room on the disk that a batch reserves at its beginning and releases when the disk is full: for
records, for runs that only look, and for its page.
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
FULL = (errno.ENOSPC, errno.EDQUOT)
RELEASED = (
    f"the batch released the {show_bytes(RESERVE_BYTES)} that it had reserved for records, for runs "
    "that only look and for its page"
)


class Reserve:
    """A file without a name on the disk of ``folder``: closing it frees its room, and so does the
    end of the process.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file: IO[bytes] | None = None

    def fill(self) -> None:
        """Take the room, where the disk has twice as much."""
        with suppress(OSError):  # the disk refuses it: nothing is reserved
            if shutil.disk_usage(self.folder).free < 2 * RESERVE_BYTES:
                return
            self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115  it stays open
            self._file.write(
                os.urandom(RESERVE_BYTES)
            )  # zeros would not fill a compressing disk

    def release(self, why: str) -> str:
        """Free the room; a note about it, or nothing where no room was reserved."""
        if self._file is None:
            return ""
        with suppress(OSError):
            self._file.close()
        self._file = None
        return f"{now()}, {why}: {RELEASED}"

    def shortage(self) -> str:
        """How little is free on the disk, where that is less than is reserved; else nothing."""
        with suppress(OSError):
            free = shutil.disk_usage(self.folder).free
            if free < RESERVE_BYTES:
                return f"{show_bytes(free)} free on the disk"
        return ""
