"""In a rehearsed program: which device values it reads back and where, what ended it, and what no library stood in for.

Loaded by Python at its start, after the recorder's own sitecustomize (docs of the site module), standard library alone. It
imports nothing of torch, changes nothing that the program sees, and steps aside for the program's own sitecustomize.
"""

import atexit
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import sys
from types import FrameType

FOLDER = os.path.dirname(os.path.abspath(__file__))
# Operators whose result has a size that the device's values decide (torch's tag dynamic_output_shape, and those that call one).
SIZES = frozenset(
    (
        "nonzero",
        "nonzero_out",
        "nonzero_numpy",
        "argwhere",
        "masked_select",
        "masked_select_out",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "bincount",
        "one_hot",
        "repeat_interleave_Tensor",
        "repeat_interleave_self_Tensor",
        "_coalesce",
        "to_sparse",
        "_to_sparse",
        "to_sparse_sparse_dim",
        "tensor_split_tensor_indices_or_sections",
        "combinations",
    )
)
COUNTS = (
    "launches",
    "blas",
    "blaslt",
    "cudnn",
    "to_device",
    "to_host",
    "within",
    "left_out",
    "memsets",
    "waits",
)


class Witness:
    """What is kept of this process; written whenever something new is seen, and at its end."""

    def __init__(self, device):
        self.device = device
        self.reads: dict[tuple, int] = {}
        self.forks = 0
        self.path = os.environ["CASEBOOK_REHEARSE"]
        self.hear = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_ulonglong)(self.heard)
        device.fake_count.restype = ctypes.c_ulonglong
        device.fake_missing_name.restype = ctypes.c_char_p
        device.fake_on_read(self.hear)
        atexit.register(self.write)
        os.register_at_fork(after_in_parent=self.forked, after_in_child=self.reads.clear)

    def forked(self):
        self.forks += 1

    def heard(self, ops, size):
        """The device was read back: by which operators, from which line. 1: the size of something hangs on it."""
        names = ops.decode("ascii", "replace").split()
        inside = where = ""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not where:
            file = frame.f_code.co_filename
            line = f"{os.path.basename(file)}:{frame.f_lineno} {frame.f_code.co_name}"
            if "/torch/" in file.replace(os.sep, "/"):
                inside = inside or os.path.basename(file)
            else:
                where = line
            frame = frame.f_back
        sizes = [name for name in names if name in SIZES]
        key = (sizes[-1] if sizes else names[0] if names else "copy", bool(sizes), inside, where)
        self.reads[key] = seen = self.reads.get(key, 0) + 1
        if seen & (seen - 1) == 0:
            self.write()
        return 1 if sizes else 0

    def write(self):
        error = getattr(sys, "last_value", None)
        frames: list[str] = []
        missing: list[bytes] = []
        at = getattr(error, "__traceback__", None)
        while at is not None:
            code = at.tb_frame.f_code
            frames.insert(0, f"{os.path.basename(code.co_filename)}:{at.tb_lineno} {code.co_name}")
            at = at.tb_next
        while self.device.fake_missing_name(len(missing)):
            missing.append(self.device.fake_missing_name(len(missing)))
        told = {
            "pid": os.getpid(),
            "forks": self.forks,
            "frames": frames,
            "missing": [name.decode() for name in missing],
            "error": type(error).__name__ if error is not None else "",
            "message": str(error) if error is not None else "",
            "counts": {name: self.device.fake_count(at) for at, name in enumerate(COUNTS)},
            "reads": [
                {"op": op, "sizes": sizes, "inside": inside, "where": where, "times": times}
                for (op, sizes, inside, where), times in self.reads.items()
            ],
        }
        path = os.path.join(self.path, f"rehearsal_{os.getpid()}")
        try:
            with open(path + ".part", "w", encoding="utf-8") as file:
                json.dump(told, file)
            os.replace(path + ".part", path + ".told")
        except OSError:
            return  # the folder went away: there is nowhere to write to


def run_the_programs_own():
    """The sitecustomize that this one stands before, where there is one; what it raises, site reports as ever."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != FOLDER]
if "CASEBOOK_REHEARSE" in os.environ and hasattr(ctypes.CDLL(None), "fake_on_read"):
    sys.path += filter(
        None, [os.environ.get("CASEBOOK_NEEDS")]
    )  # last: what the program has of its own comes first
    witness = Witness(ctypes.CDLL(None))
run_the_programs_own()
