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
from collections.abc import Callable
from types import FrameType, TracebackType

from . import ranks
from .capturing import Function, Value, compiles_nothing
from .operators import SIZES, Torch

HERE = os.path.dirname(os.path.abspath(__file__))
ENDLESS = 1000
CALLED_BY_MODE = os.path.join("torch", "_ops.py")
"""Where torch runs an operator for a dispatch mode, which a rehearsal has and a GPU has not."""
READ_BY_TORCH = "<eval_with_key>"
"""Code that torch makes of a function of the program (torch.fx)."""
PRINTING = "_tensor_str.py"
"""Where torch prints a tensor. It selects values only to choose how wide a number is, of the
elements that it shows, and keeps none of them.
"""
MOST_PRINTED = 1000
"""Elements that torch prints unless ``torch.set_printoptions`` says otherwise."""
# In the order of device.c.
COUNTS = (
    "launches blas blaslt cudnn to_device to_host within left_out memsets waits transforms collectives "
    "managed transform_bytes convolution_bytes"
).split()

COMPILER = "torch._dynamo"
READ = ("op", "sizes", "inside", "where", "collective")
"""What is kept of each read: the operator, whether a size hangs on it, the file of torch that
reads, the line of the program, and the collective that gave the value.
"""


class Witness:
    """What is kept of this process; written whenever something new is seen, and at its end.

    ``replacing`` opens a file that stands under its name once it is whole.
    """

    def __init__(self, device: ctypes.CDLL, folder: str, replacing: Function):
        self.device = device
        self.folder = folder
        self.replacing = replacing
        self.forks = 0
        self.steps: dict[int, int] = {}
        self.step_peaks: list[tuple[int, int]] = []
        self.stopped = ""
        self.beside = ""
        self.first_environment = dict(os.environ)
        self.imports_torch_as_started = False
        self.compiled = set[int]()
        self.exchanges = 0
        self.has_buckets = False
        self.bucket_bytes = 0
        self.most_steps = int(os.environ.get("CASEBOOK_STEPS", "0"))
        seconds = float(os.environ.get("CASEBOOK_SECONDS", "0"))
        if seconds:
            self.limit(seconds)
        # Of the reads that come next: what is answered (-1: what lies there) and whether that
        # is known. Later: of masks, in a backward pass, which reads them once more, the last
        # first.
        self.coming: list[tuple[int, bool]] = []
        self.later: list[tuple[int, bool]] = []
        self.collective = ""
        """The collective that gave what is read next to a rank that is alone."""
        self.reads: dict[tuple[str, bool, str, str, str], int] = {}
        answer_type = ctypes.CFUNCTYPE(
            ctypes.c_longlong, ctypes.c_char_p, ctypes.c_ulonglong
        )
        self.hear = answer_type(self.heard)
        device.fake_count.restype = ctypes.c_ulonglong
        device.fake_zero.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong]
        device.fake_on_read(self.hear)
        self.print_error = sys.excepthook
        sys.excepthook = self.program_failed
        atexit.register(self.write)
        self.write()  # not every process reaches its end
        os.register_at_fork(
            after_in_parent=self.forked, after_in_child=self.reads.clear
        )

    def forked(self) -> None:
        """This process has forked another."""
        self.forks += 1

    def program_failed(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """The program ends by an error: it is printed as ever, without the rehearsal's frames."""
        cause: BaseException | None = error
        while cause is not None:
            cause.__traceback__ = without_own_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        self.print_error(kind, error, error.__traceback__)

    def heard(self, operators: bytes, size: int) -> int:
        """The device was read back: by which operators, from which line.

        Returns what is answered; 0: the size of something hangs on it; -1: what lies there.
        """
        names = operators.decode("ascii", "replace").split()
        sizes = [name for name in names if name in SIZES]
        answer = -1
        is_known = False
        if self.coming:
            answer, is_known = self.coming.pop(0)
        elif sizes and self.later:
            answer, is_known = self.later.pop()
        if is_known:
            return answer
        # A solver converges, and its input is finite.
        if any("linalg" in name for name in names):
            is_complex = "linalg_eig" in names and "_linalg_check_errors" not in names
            return int(is_complex)
        # The backward pass runs on a thread without Python.
        inside, where = reading_line(sys._getframe(0).f_back)
        if sizes:
            name = sizes[-1]
        elif names:
            name = names[0]
        else:
            name = "copy"
        is_size = bool(sizes) and inside != PRINTING
        key = (name, is_size, inside, where, self.collective)
        times = self.reads.get(key, 0) + 1
        self.reads[key] = times
        if times & (times - 1) == 0:
            self.write()
        if sizes:
            return max(answer, 0)
        if times == ENDLESS:
            warn_of_endless(where or "the backward pass")
        return -1

    def limit(self, seconds: float) -> None:
        """End this process after so long, where it has no others that do its work."""
        timer = threading.Timer(seconds, self.late)
        timer.daemon = True
        timer.start()

    def late(self) -> None:
        """The seconds are over: end, or wait on where this process waits for others."""
        torch = sys.modules.get("torch")
        works = torch is not None and torch.cuda.is_initialized()
        if not works and has_children():
            self.limit(1.0)
        else:
            self.stop("--seconds")

    def stepped(self, optimizer: object, *_: object) -> None:
        """An optimizer begins a step: past the last one that was asked for, the program ends."""
        taken = self.steps.get(id(optimizer), 0) + 1
        self.steps[id(optimizer)] = taken
        self.see_peak(taken)
        if taken > self.most_steps > 0:
            self.stop("--steps")

    def see_peak(self, step: int) -> None:
        """The most that was allocated until this step began, where it rose since an earlier one."""
        torch = sys.modules.get("torch")
        assert torch is not None, "an optimizer steps"
        peak = torch.cuda.max_memory_allocated()
        if not self.step_peaks or peak > self.step_peaks[-1][1]:
            self.step_peaks.append((step, peak))

    def stop(self, why: str) -> None:
        """End this process well, with the trace so far."""
        self.stopped = why
        self.write()
        sys.stdout.flush()
        os._exit(0)  # the recorder's own, which keeps the trace

    def torch_begins(self) -> None:
        """The program is about to import torch."""
        self.imports_torch_as_started = self.first_environment == dict(os.environ)

    def torch_imported(self, torch: Torch) -> None:
        """Limits of steps, and what a rehearsal does not do: compiling."""
        optimizers = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizers, "register_optimizer_step_pre_hook", None)
        if register is not None:  # since torch 2.1
            register(self.stepped)
        torch.cuda._is_in_bad_fork = self.counting_forked(torch.cuda._is_in_bad_fork)
        torch.compile = self.running_eagerly(torch)
        if "CASEBOOK_WORLD" in os.environ:
            ranks.start(torch, self)
        elif torch.distributed.is_available():
            parallel = torch.nn.parallel.DistributedDataParallel
            parallel.__init__ = ranks.seeing_buckets(self, parallel.__init__)

    def counting_forked(self, poisoned: Callable[[], bool]) -> Callable[[], bool]:
        """torch's question whether a forked process must not use the GPU, counted.

        A library may ask, to leave the device alone; who is about to start it gets an error.
        """

        def in_bad_fork() -> bool:
            bad = bool(poisoned())
            if bad and sys._getframe(1).f_code.co_name == "_lazy_init":
                self.device.fake_forked()
            return bad

        return in_bad_fork

    def running_eagerly(self, torch: Torch) -> Function:
        """torch.compile, whose results are counted when they are called.

        A library may ask for compiled code that nobody calls; and with torch's own backends for
        debugging, which torch.cond and flex_attention ask for, nothing is compiled on a GPU, either.
        """
        compile_with_torch = torch.compile

        @functools.wraps(compile_with_torch)
        def eagerly(model: Value = None, **kwargs: Value) -> Value:
            if model is None:
                return functools.partial(eagerly, **kwargs)
            compiled = compile_with_torch(model, **kwargs)
            if compiles_nothing(kwargs.get("backend")):
                return compiled
            if isinstance(compiled, torch.nn.Module):
                self.compiled.add(id(compiled))
                return compiled

            @functools.wraps(compiled)
            def counted(*args: Value, **kwargs: Value) -> Value:
                self.compiled.add(id(compiled))
                return compiled(*args, **kwargs)

            return counted

        return eagerly

    def write(self) -> None:
        """Keep what was seen so far in this process's file."""
        path = os.path.join(self.folder, f"rehearsal_{os.getpid()}.report")
        try:
            with self.replacing(path) as file:
                json.dump(self.report(), file)
        except OSError:
            return  # the folder went away: there is nowhere to write to

    def report(self) -> dict[str, object]:
        """What was seen so far (see helpers/rehearse/reports.py)."""
        steps = max(self.steps.values(), default=0)
        counts = {
            name: self.device.fake_count(number) for number, name in enumerate(COUNTS)
        }
        counts["collectives"] += self.exchanges
        reads = [
            {**dict(zip(READ, read)), "times": times}  # noqa: B905 -- Python 3.9
            for read, times in self.reads.items()
        ]
        report: dict[str, object] = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "imports_torch_as_started": self.imports_torch_as_started,
            "has_compiler": COMPILER in sys.modules,
            "forks": self.forks,
            "frames": [],
            "error": "",
            "message": "",
            "counts": counts,
            "stopped": self.stopped,
            "steps": steps - 1 if self.stopped == "--steps" else steps,
            "step_peaks": self.step_peaks,
            "compiled": len(self.compiled),
            "has_buckets": self.has_buckets,
            "bucket_bytes": self.bucket_bytes,
            "beside": self.beside,
            "reads": reads,
        }
        error: BaseException | None = getattr(sys, "last_value", None)
        if error is not None:
            name = type(error).__name__
            report.update(frames=frames_of(error), error=name, message=str(error))
        return report


def warn_of_endless(where: str) -> None:
    """Say that a line, or the backward pass, has read so much that it may never end."""
    says = f"{where} has read {ENDLESS:,} values that a rehearsal does not compute; if they decide when"
    ends = (
        "it ends, it never will: --steps and --seconds end it with the verdict so far"
    )
    print(f"rehearsal: {says} {ends}", file=sys.stderr, flush=True)


def reading_line(frame: FrameType | None) -> tuple[str, str]:
    """The file of torch that reads a value, and the line of the program that made it do so.

    Both are empty where no frame of Python is in sight.
    """
    inside = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" in file.replace(os.sep, "/"):
            name = os.path.basename(file)
            if name != PRINTING:
                inside = inside or name
            elif prints_few_elements(frame):
                inside = name
        elif os.path.dirname(file) != HERE and not file.startswith(READ_BY_TORCH):
            return inside, line_of(frame)
        frame = frame.f_back
    return inside, ""


def prints_few_elements(frame: FrameType) -> bool:
    """Whether torch's code for printing, which this frame is in, leaves out most of a large
    tensor.
    """
    options = frame.f_globals.get("PRINT_OPTS")
    return getattr(options, "threshold", MOST_PRINTED + 1) <= MOST_PRINTED


def line_of(frame: FrameType) -> str:
    """The line that a frame is at, in words: its file, number and function."""
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"


def frames_of(error: BaseException) -> list[dict[str, object]]:
    """The frames that an error went through, the innermost first."""
    return [
        {"filename": frame.filename, "line": frame.lineno, "name": frame.name}
        for frame in reversed(traceback.extract_tb(error.__traceback__))
    ]


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of the rehearsal and those that it calls, which are none of
    the program's.
    """
    if trace is None:
        return None
    rest = without_own_frames(trace.tb_next)
    file = trace.tb_frame.f_code.co_filename
    # Without a rest nothing of the program's was called from here.
    if os.path.dirname(file) == HERE or (
        rest is None and file.endswith(CALLED_BY_MODE)
    ):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def has_children() -> bool:
    """Whether this process has others that it started."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return bool(file.read().split())
    except OSError:
        return False


def start(replacing: Function) -> Witness | None:
    """Watch this process, where it runs on the device that is not there."""
    device = ctypes.CDLL(None)
    if not hasattr(device, "fake_on_read"):
        return None
    # Last: what the program has of its own comes first.
    sys.path += filter(None, [os.environ.get("CASEBOOK_NEEDS")])
    return Witness(device, os.environ["CASEBOOK_REHEARSE"], replacing)
