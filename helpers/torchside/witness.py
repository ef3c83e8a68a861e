"""In a rehearsed program: which device values it reads back and where, what ended it, and what no library stood in for.

Standard library alone. It imports nothing of torch and changes nothing that the program sees.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
from types import FrameType
from typing import Any

from .frame import replacing

# Operators whose result has a size that the device's values decide (torch's tag dynamic_output_shape, and those that call one).
SIZES = frozenset(
    "nonzero nonzero_out nonzero_numpy argwhere masked_select masked_select_out _unique _unique2 unique_dim unique_consecutive "
    "unique_dim_consecutive bincount one_hot repeat_interleave_Tensor repeat_interleave_self_Tensor _coalesce to_sparse "
    "_to_sparse to_sparse_sparse_dim tensor_split_tensor_indices_or_sections combinations".split()
)
# In the order of device.c.
COUNTS = (
    "launches blas blaslt cudnn to_device to_host within left_out memsets waits transforms".split()
)


class Witness:
    """What is kept of this process; written whenever something new is seen, and at its end."""

    def __init__(self, device: Any, folder: str):
        self.device, self.folder, self.forks = device, folder, 0
        self.reads: dict[tuple[str, bool, str, str], int] = {}
        self.hear = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_char_p, ctypes.c_ulonglong)(
            self.heard
        )
        device.fake_count.restype = ctypes.c_ulonglong
        device.fake_missing_name.restype = ctypes.c_char_p
        device.fake_on_read(self.hear)
        atexit.register(self.write)
        os.register_at_fork(after_in_parent=self.forked, after_in_child=self.reads.clear)

    def forked(self) -> None:
        self.forks += 1

    def heard(self, ops: bytes, size: int) -> int:
        """The device was read back: by which operators, from which line. 0: the size of something hangs on it; -1: none."""
        names = ops.decode("ascii", "replace").split()
        inside = where = ""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not where:
            file = frame.f_code.co_filename
            if "/torch/" in file.replace(os.sep, "/"):
                inside = inside or os.path.basename(file)
            else:
                where = f"{os.path.basename(file)}:{frame.f_lineno} {frame.f_code.co_name}"
            frame = frame.f_back
        sizes = [name for name in names if name in SIZES]
        key = (sizes[-1] if sizes else names[0] if names else "copy", bool(sizes), inside, where)
        self.reads[key] = times = self.reads.get(key, 0) + 1
        if times & (times - 1) == 0:
            self.write()
        return 0 if sizes else -1

    def write(self) -> None:
        error: Any = getattr(sys, "last_value", None)
        frames: list[str] = []
        missing: list[str] = []
        at = getattr(error, "__traceback__", None)
        while at is not None:
            code = at.tb_frame.f_code
            frames.insert(0, f"{os.path.basename(code.co_filename)}:{at.tb_lineno} {code.co_name}")
            at = at.tb_next
        while name := self.device.fake_missing_name(len(missing)):
            missing.append(name.decode())
        read = ("op", "sizes", "inside", "where", "times")
        seen = {
            "pid": os.getpid(),
            "forks": self.forks,
            "frames": frames,
            "missing": missing,
            "error": "" if error is None else type(error).__name__,
            "message": "" if error is None else str(error),
            "counts": {name: self.device.fake_count(at) for at, name in enumerate(COUNTS)},
            "reads": [dict(zip(read, (*key, times))) for key, times in self.reads.items()],  # noqa: B905 -- Python 3.9
        }
        try:
            with replacing(os.path.join(self.folder, f"rehearsal_{os.getpid()}.told")) as file:
                json.dump(seen, file)
        except OSError:
            return  # the folder went away: there is nowhere to write to


def start() -> None:
    """Watch this process, where it runs on the device that is not there."""
    device = ctypes.CDLL(None)
    if hasattr(device, "fake_on_read"):
        # Last: what the program has of its own comes first.
        sys.path += filter(None, [os.environ.get("CASEBOOK_NEEDS")])
        Witness(device, os.environ["CASEBOOK_REHEARSE"])
