"""In a rehearsed program: which device values it reads back and where, what ended it, and what
no library stood in for.

Standard library alone. It imports nothing of torch and changes nothing that the program sees.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import sys
import threading
import traceback
from typing import Any

# Operators whose result has a size that the device's values decide (torch's tag
# dynamic_output_shape, and those that call one).
SIZES = frozenset(
    "nonzero nonzero_out nonzero_numpy argwhere masked_select masked_select_out _unique _unique2 unique_dim unique_consecutive "
    "unique_dim_consecutive bincount one_hot repeat_interleave_Tensor repeat_interleave_self_Tensor _coalesce to_sparse "
    "_to_sparse to_sparse_sparse_dim tensor_split_tensor_indices_or_sections combinations".split()
)
HERE = os.path.dirname(os.path.abspath(__file__))
ENDLESS = 1000
# In the order of device.c.
COUNTS = (
    "launches blas blaslt cudnn to_device to_host within left_out memsets waits transforms collectives "
    "managed transform_bytes"
).split()


class Witness:
    """What is kept of this process; written whenever something new is seen, and at its end."""

    def __init__(self, device: Any, folder: str, replacing: Any):
        self.device = device
        self.folder = folder
        self.replacing = replacing
        self.forks = 0
        self.steps: dict[int, int] = {}
        self.stopped = ""
        self.beside = ""
        self.compiled = set[int]()
        self.most_steps = int(os.environ.get("CASEBOOK_STEPS") or 0)
        if seconds := float(os.environ.get("CASEBOOK_SECONDS") or 0):
            self.limit(seconds)
        # Of the reads that come next: what is answered (-1: what lies there) and whether that
        # is known. Later: of masks, in a backward pass, which reads them once more, the last
        # first.
        self.coming: list[tuple[int, bool]] = []
        self.later: list[tuple[int, bool]] = []
        self.reads: dict[tuple[str, bool, str, str], int] = {}
        self.hear = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_char_p, ctypes.c_ulonglong)(
            self.heard
        )
        device.fake_count.restype = ctypes.c_ulonglong
        device.fake_zero.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong]
        device.fake_on_read(self.hear)
        atexit.register(self.write)
        self.write()  # not every process reaches its end
        os.register_at_fork(after_in_parent=self.forked, after_in_child=self.reads.clear)

    def forked(self) -> None:
        self.forks += 1

    def heard(self, ops: bytes, size: int) -> int:
        """The device was read back: by which operators, from which line. 0: the size of
        something hangs on it; -1: none.
        """
        names = ops.decode("ascii", "replace").split()
        sizes = [name for name in names if name in SIZES]
        answer = -1
        known = False
        if self.coming:
            answer, known = self.coming.pop(0)
        elif sizes and self.later:
            answer, known = self.later.pop()
        if known:
            return answer
        if any("linalg" in name for name in names):  # a solver converges, and its input is finite
            return int("linalg_eig" in names and "_linalg_check_errors" not in names)
        inside = where = ""
        frame = sys._getframe(0).f_back  # the backward pass runs on a thread without Python
        while frame is not None and not where:
            file = frame.f_code.co_filename
            if "/torch/" in file.replace(os.sep, "/"):
                inside = inside or os.path.basename(file)
            elif os.path.dirname(file) != HERE:
                where = f"{os.path.basename(file)}:{frame.f_lineno} {frame.f_code.co_name}"
            frame = frame.f_back
        key = (sizes[-1] if sizes else names[0] if names else "copy", bool(sizes), inside, where)
        self.reads[key] = times = self.reads.get(key, 0) + 1
        if times & (times - 1) == 0:
            self.write()
        if times == ENDLESS and not sizes:
            says = f"{where or 'the backward pass'} has read {times:,} values that a rehearsal does not compute; if they decide when"
            ends = "it ends, it never will: --steps and --seconds end it with the verdict so far"
            print(f"rehearsal: {says} {ends}", file=sys.stderr, flush=True)
        return max(answer, 0) if sizes else -1

    def limit(self, seconds: float) -> None:
        """End this process after so long, where it has no others that do its work."""
        timer = threading.Timer(seconds, self.late)
        timer.daemon = True
        timer.start()

    def late(self) -> None:
        torch = sys.modules.get("torch")
        works = torch is not None and torch.cuda.is_initialized()
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                waits = not works and bool(file.read().split())
        except OSError:
            waits = False
        if waits:
            self.limit(1.0)
        else:
            self.stop("--seconds")

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """An optimizer begins a step: past the last one that was asked for, the program ends."""
        self.steps[id(optimizer)] = taken = self.steps.get(id(optimizer), 0) + 1
        if taken > self.most_steps > 0:
            self.stop("--steps")

    def stop(self, why: str) -> None:
        self.stopped = why
        self.write()
        sys.stdout.flush()
        os._exit(0)  # the recorder's own, which keeps the trace

    def torch_imported(self, torch: Any) -> None:
        """Limits of steps, and what a rehearsal does not do: compiling."""
        steps = sys.modules.get("torch.optim.optimizer")
        register = getattr(steps, "register_optimizer_step_pre_hook", None)
        if register is not None:  # since torch 2.1
            register(self.stepped)
        poisoned = torch.cuda._is_in_bad_fork

        def in_bad_fork() -> bool:
            bad = bool(
                poisoned()
            )  # a library may ask, to leave the device alone; who is about to start it gets an error
            if bad and sys._getframe(1).f_code.co_name == "_lazy_init":
                self.device.fake_forked()
            return bad

        torch.cuda._is_in_bad_fork = in_bad_fork
        compile_ = torch.compile

        @functools.wraps(compile_)
        def eagerly(model: Any = None, **kwargs: Any) -> Any:
            if model is None:
                return functools.partial(eagerly, **kwargs)
            made = compile_(model, **kwargs)

            def counted(*args: Any, **more: Any) -> Any:  # a library may ask for what nobody calls
                self.compiled.add(id(made))
                return made(*args, **more)

            if isinstance(made, torch.nn.Module):
                self.compiled.add(id(made))
                return made
            return functools.wraps(made)(counted)

        torch.compile = eagerly

    def write(self) -> None:
        error: Any = getattr(sys, "last_value", None)
        walked = traceback.walk_tb(getattr(error, "__traceback__", None))
        frames = [
            f"{os.path.basename(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
            for frame, line in walked
        ]
        read = ("op", "sizes", "inside", "where", "times")
        seen = {
            "pid": os.getpid(),
            "forks": self.forks,
            "frames": frames[::-1],
            "error": "" if error is None else type(error).__name__,
            "message": "" if error is None else str(error),
            "counts": {name: self.device.fake_count(at) for at, name in enumerate(COUNTS)},
            "stopped": self.stopped,
            "steps": max(self.steps.values(), default=0) - (self.stopped == "--steps"),
            "compiled": len(self.compiled),
            "beside": self.beside,
            "reads": [dict(zip(read, (*key, times))) for key, times in self.reads.items()],  # noqa: B905 -- Python 3.9
        }
        try:
            with self.replacing(os.path.join(self.folder, f"rehearsal_{os.getpid()}.told")) as file:
                json.dump(seen, file)
        except OSError:
            return  # the folder went away: there is nowhere to write to


def start(replacing: Any) -> Witness | None:
    """Watch this process, where it runs on the device that is not there."""
    device = ctypes.CDLL(None)
    if hasattr(device, "fake_on_read"):
        # Last: what the program has of its own comes first.
        sys.path += filter(None, [os.environ.get("CASEBOOK_NEEDS")])
        return Witness(device, os.environ["CASEBOOK_REHEARSE"], replacing)
    return None
