"""Watches a rehearsed program from inside: which values it reads back from the card and where, its
steps, and what ended it; and answers those reads.

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
"""After so many unknown values read at one line, a warning says that its loop may never end."""
AS_IN_MEMORY = -1
"""The answer to a read by which the device gives what is in its memory."""
CALLED_BY_MODE = os.path.join("torch", "_ops.py")
"""The file of torch that runs an operator for a dispatch mode, which only a rehearsal has."""
READ_BY_TORCH = "<eval_with_key>"
"""The name of code that torch makes of a function of the program (torch.fx)."""
PRINTING = "_tensor_str.py"
"""The file of torch that prints tensors. It selects values only to choose how wide numbers are,
among the elements that it shows, and keeps none of them: no size that matters depends on them.
"""
MOST_PRINTED = 1000
"""Elements that torch prints unless ``torch.set_printoptions`` says otherwise."""
COUNTS = (
    "launches blas blaslt cudnn to_device to_host within left_out memsets waits transforms collectives "
    "managed transform_bytes convolution_bytes"
).split()
"""The counters of device.c (COUNTS there), in its order."""
COMPILER = "torch._dynamo"
"""The module of torch's compiler."""
READ = ("op", "sizes", "inside", "where", "collective")
"""What is kept of each read: the operator, whether a size depends on it, the file of torch that
reads, the line of the program, and the collective that gave the value.
"""


class Witness:
    """What is seen of this process. It is written to the folder of the record whenever something
    new is seen, and at the end of the process.

    ``device``: the preloaded libraries; ``replacing``: opens a file that appears under its name
    when it is whole.
    """

    def __init__(self, device: ctypes.CDLL, folder: str, replacing: Function):
        self.device = device
        self.folder = folder
        self.replacing = replacing
        self.forks = 0
        self.steps: dict[int, int] = {}
        """How many steps each optimizer began, by its id."""
        self.step_peaks: list[tuple[int, int]] = []
        """The most bytes allocated until a step began, by its number, where that rose."""
        self.stopped = ""
        """The option that ended this process: --steps or --seconds."""
        self.beside = ""
        """The first error in what is computed beside the program (result_sizes.py)."""
        self.first_environment = dict(os.environ)
        self.imports_torch_as_started = False
        self.compiled = set[int]()
        """The ids of what torch.compile returned and the program called."""
        self.exchanges = 0
        """Collectives of a rank without the others, which the device does not count."""
        self.has_buckets = False
        """Gradients were exchanged in buckets."""
        self.bucket_bytes = 0
        """What the first buckets take, where all ranks run and new ones will follow."""
        self.most_steps = int(os.environ.get("CASEBOOK_STEPS", "0"))
        seconds = float(os.environ.get("CASEBOOK_SECONDS", "0"))
        if seconds:
            self.limit(seconds)
        self.coming: list[tuple[int, bool]] = []
        """The answers to the reads that come next (see heard), and whether each is known."""
        self.later: list[tuple[int, bool]] = []
        """The same for the sizes of masks, which a backward pass reads once more, the last first.
        """
        self.collective = ""
        """The collective that gave what is read next to a rank that is alone."""
        self.reads: dict[tuple[str, bool, str, str, str], int] = {}
        """How often a value that was not computed was read, by what READ names."""
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
        """Called when an error ends the program: print it as ever, without the rehearsal's frames."""
        cause: BaseException | None = error
        while cause is not None:
            cause.__traceback__ = without_own_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        self.print_error(kind, error, error.__traceback__)

    def heard(self, operators: bytes, size: int) -> int:
        """Called by the device when a value is read back; ``operators``: those that are running,
        the outermost first. Returns the answer, or AS_IN_MEMORY for what is in the memory.
        """
        names = operators.decode("ascii", "replace").split()
        sizes = [name for name in names if name in SIZES]
        answer = AS_IN_MEMORY
        is_known = False
        if self.coming:
            answer, is_known = self.coming.pop(0)
        elif sizes and self.later:
            answer, is_known = self.later.pop()
        if is_known:  # no assumption, so nothing is noted
            return answer
        # Solvers read their error code, where 0 is success; linalg_eig also reads whether its input
        # is finite, where 1 is yes.
        if any("linalg" in name for name in names):
            asks_if_finite = (
                "linalg_eig" in names and "_linalg_check_errors" not in names
            )
            return int(asks_if_finite)
        # Both are empty in a backward pass: it runs on a thread without Python.
        inside, where = reading_line(sys._getframe(0).f_back)
        name = "copy"
        if sizes:
            name = sizes[-1]
        elif names:
            name = names[0]
        is_size = bool(sizes) and inside != PRINTING
        key = (name, is_size, inside, where, self.collective)
        times = self.reads.get(key, 0) + 1
        self.reads[key] = times
        if times & (times - 1) == 0:  # a power of two: a loop must not write each time
            self.write()
        if sizes:  # no size can be AS_IN_MEMORY, which is below 0
            return max(answer, 0)
        if times == ENDLESS:
            warn_of_endless(where)
        return AS_IN_MEMORY

    def limit(self, seconds: float) -> None:
        """Call ``late`` after so many seconds."""
        timer = threading.Timer(seconds, self.late)
        timer.daemon = True
        timer.start()

    def late(self) -> None:
        """The seconds are over: end this process. A launcher, which uses no GPU and has processes
        that do the work, lives on until these have ended.
        """
        torch = sys.modules.get("torch")
        uses_gpu = torch is not None and torch.cuda.is_initialized()
        if not uses_gpu and has_children():
            self.limit(1.0)  # look again a second later
        else:
            self.stop("--seconds")

    def stepped(self, optimizer: object, *_: object) -> None:
        """Called when an optimizer begins a step. The program ends when it begins the one after the
        last that was asked for, so that this one is whole.
        """
        taken = self.steps.get(id(optimizer), 0) + 1
        self.steps[id(optimizer)] = taken
        self.see_peak(taken)
        if taken > self.most_steps > 0:
            self.stop("--steps")

    def see_peak(self, step: int) -> None:
        """Note the most that was allocated until this step began, if it rose since an earlier one."""
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
        os._exit(0)  # allocator/under_torch has replaced it, and keeps the trace

    def torch_begins(self) -> None:
        """Called when the program is about to import torch."""
        self.imports_torch_as_started = self.first_environment == dict(os.environ)

    def torch_imported(self, torch: Torch) -> None:
        """Called when torch is imported: watch optimizers, forks, torch.compile and ranks."""
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
        """torch's function that tells whether this process was forked after its parent used the
        GPU, so that it must not. A use of the GPU in such a process is counted.

        Libraries call it, too, to leave the GPU alone; only torch.cuda._lazy_init is about to use
        it.
        """

        def in_bad_fork() -> bool:
            is_bad = bool(poisoned())
            if is_bad and sys._getframe(1).f_code.co_name == "_lazy_init":
                self.device.fake_forked()
            return is_bad

        return in_bad_fork

    def running_eagerly(self, torch: Torch) -> Function:
        """torch.compile, which notes what of its results the program calls: a library may ask for
        compiled code and never call it. torch's backends for debugging, for which torch.cond and
        flex_attention ask, compile nothing on a GPU either, so their results are not noted.
        """
        compile_with_torch = torch.compile

        @functools.wraps(compile_with_torch)
        def eagerly(model: Value = None, **kwargs: Value) -> Value:
            """torch.compile as the program calls it."""
            if model is None:
                return functools.partial(eagerly, **kwargs)
            compiled = compile_with_torch(model, **kwargs)
            if compiles_nothing(kwargs.get("backend")):
                return compiled
            if isinstance(compiled, torch.nn.Module):
                self.compiled.add(id(compiled))  # a module is taken to be called
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
        """What was seen so far, as helpers/rehearse/reports.py reads it."""
        steps = max(self.steps.values(), default=0)
        if self.stopped == "--steps":
            steps -= 1  # the last one began and was not made
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
            "steps": steps,
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
    """Say on stderr that a line (empty: the backward pass) has read so much that it may never end."""
    if not where:
        where = "the backward pass"
    says = f"{where} has read {ENDLESS:,} values that a rehearsal does not compute; if they decide when"
    ends = (
        "it ends, it never will: --steps and --seconds end it with the verdict so far"
    )
    print(f"rehearsal: {says} {ends}", file=sys.stderr, flush=True)


def reading_line(frame: FrameType | None) -> tuple[str, str]:
    """The innermost file of torch that reads a value, and the line of the program that called it.
    Each is empty where no frame has it.
    """
    inside = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" in file.replace(os.sep, "/"):
            name = os.path.basename(file)
            if name == PRINTING:
                if prints_few_elements(frame):
                    inside = name
            elif not inside:
                inside = name
        elif os.path.dirname(file) != HERE and not file.startswith(READ_BY_TORCH):
            return inside, line_of(frame)
        frame = frame.f_back
    return inside, ""


def prints_few_elements(frame: FrameType) -> bool:
    """Whether torch prints only few elements of a large tensor. ``frame``: of its code for
    printing, whose global PRINT_OPTS has the number; where that is missing, torch may print all.
    """
    options = frame.f_globals.get("PRINT_OPTS")
    return getattr(options, "threshold", MOST_PRINTED + 1) <= MOST_PRINTED


def line_of(frame: FrameType) -> str:
    """The line of a frame, as "train.py:36 evaluate"."""
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"


def frames_of(error: BaseException) -> list[dict[str, object]]:
    """The frames that an error went through, the innermost first."""
    return [
        {"filename": frame.filename, "line": frame.lineno, "name": frame.name}
        for frame in reversed(traceback.extract_tb(error.__traceback__))
    ]


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of the rehearsal, and without those by which torch runs an
    operator for its dispatch mode.
    """
    if trace is None:
        return None
    rest = without_own_frames(trace.tb_next)
    file = trace.tb_frame.f_code.co_filename
    is_own = os.path.dirname(file) == HERE
    # Where frames follow it, torch called the program.
    runs_for_mode = rest is None and file.endswith(CALLED_BY_MODE)
    if is_own or runs_for_mode:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def has_children() -> bool:
    """Whether processes that this one started are still running."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return bool(file.read().split())
    except OSError:
        return False


def start(replacing: Function) -> Witness | None:
    """Watch this process; None where the libraries of the simulated card are not preloaded."""
    device = ctypes.CDLL(None)
    if not hasattr(device, "fake_on_read"):
        return None
    # Last, so that the program's own packages come first.
    sys.path += filter(None, [os.environ.get("CASEBOOK_NEEDS")])
    return Witness(device, os.environ["CASEBOOK_REHEARSE"], replacing)
