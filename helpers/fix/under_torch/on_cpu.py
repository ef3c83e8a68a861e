"""Runs programs on the CPU in place of their GPU, and records what they print, their losses, and
their weights after each step.

Called with one word of JSON: ``programs``, each with its ``folder``, its ``words`` (SCRIPT ... or
-m MODULE ...) and the ``record``, a file that gets a line of JSON for each thing that is seen;
``seconds`` of the processor for each; and ``divisors``. So that a program ends soon, its loops make a
few turns, and the whole numbers in its sources are divided as the first of the divisors says; where
one of the programs fails with that, all run again with the next.

It is one file, as it runs alone under the Python of the program.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import hashlib
import importlib
import importlib.machinery
import io
import itertools
import json
import os
import random
import re
import resource
import runpy
import signal
import sys
import time
import types
import weakref
from collections.abc import (
    Callable,
    ItemsView,
    Iterator,
    KeysView,
    Sequence,
    ValuesView,
)
from typing import Any

Torch = Any  # the module torch of the program's Python, imported in main
Value = Any  # whatever the program has there
Tensor = Any
Divisor = Sequence[int]
"""By what whole numbers are divided, from which number on, and whether lists are cut short, too."""

MOST_TURNS = 6
"""Turns of each loop: more than the entries that a bounded cache keeps (MOST_CACHED in
collected.py), so that it is seen whether the program needs those that leave it.
"""
MEMORY_BYTES = 6 << 30
"""How much data each program may have (RLIMIT_DATA). Our choice: two programs that run side by side
have room on a machine of 16 GB.
"""
PARTS_OF_ONE = {
    "buffers",
    "children",
    "chunk",
    "modules",
    "named_buffers",
    "named_modules",
    "named_parameters",
    "parameters",
    "split",
}
"""Calls whose results only make sense as a whole: loops over these are not cut."""
FEW = "_casebook_few"
"""The name by which a changed source calls ``few``: no program has it."""
COUNTS = (
    "current_device",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
)
"""Functions of torch.cuda that here return 0."""
ONLY_ON_A_GPU = (
    "Event",
    "Stream",
    "current_stream",
    "default_stream",
    "get_device_name",
    "get_device_properties",
    "ipc_collect",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_device",
    "set_per_process_memory_fraction",
    "stream",
    "synchronize",
)
"""Functions and classes of torch.cuda that here do nothing."""
GPU = re.compile(r"cuda(:\d+)?")
"""A GPU as torch's functions take it."""
MOST_OF_ERROR = 300
"""Characters of the program's error that are kept: it is shown in one line."""
DIGEST_BYTES = 8
"""Enough for tensors with different bytes to have different digests."""
TICKS_PER_S = 1000
"""How often a program asks its clock until that has gone on by a second."""


class Smaller(ast.NodeTransformer):
    """Changes a source: loops make a few turns, and whole numbers are divided as ``divisor`` says.

    The loops in a class of modules (torch.nn.Module) stay whole: with fewer turns its layers would
    no longer fit each other.
    """

    def __init__(self, divisor: Divisor) -> None:
        self.divisor = divisor
        self.is_in_module = False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Note whether the class is one of modules, by the names of its bases."""
        outside = self.is_in_module
        self.is_in_module = any("Module" in ast.unparse(base) for base in node.bases)
        self.generic_visit(node)
        self.is_in_module = outside
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        """``for x in few(items)`` in place of ``for x in items``."""
        self.generic_visit(node)
        if not self.is_in_module:
            node.iter = cut(node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """The same in a list or a generator, if lists are cut short."""
        self.generic_visit(node)
        _, _, cuts_lists = self.divisor
        if cuts_lists and not self.is_in_module:
            node.iter = cut(node.iter)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """A whole number, divided."""
        if type(node.value) is not int:  # True and False are instances of int, too
            return node
        number = divided(node.value, self.divisor)
        return ast.copy_location(ast.Constant(number), node)


def cut(items: ast.expr) -> ast.expr:
    """The expression over which a loop goes, cut short by ``few``. As it is stay the PARTS_OF_ONE,
    attributes (a model's own lists), and tuples and lists that are written out.
    """
    names = {node.attr for node in ast.walk(items) if isinstance(node, ast.Attribute)}
    is_whole = isinstance(items, (ast.Attribute, ast.Tuple, ast.List))
    if names & PARTS_OF_ONE or is_whole:
        return items
    return ast.copy_location(ast.Call(ast.Name(FEW, ast.Load()), [items], []), items)


def divided(number: int, divisor: Divisor) -> int:
    """A whole number made smaller, if it is large enough and can be divided without remainder."""
    times, least, _ = divisor
    if number < least or number % times:
        return number
    return number // times


def few(items: Value) -> Value:
    """The first few (MOST_TURNS) of what a loop goes over. All of a dictionary or of its keys,
    values or items: a part of a model's state could not be loaded.
    """
    if isinstance(items, (dict, KeysView, ValuesView, ItemsView)):
        return items
    return itertools.islice(items, MOST_TURNS)


class Record:
    """The file to which each thing that is seen is written at once, so that it lasts whenever the
    program ends.
    """

    def __init__(self, path: str) -> None:
        self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115  it stays open

    def add(self, kind: str, *values: Value) -> None:
        """Write a line: what kind of thing was seen (CpuRun in proof.py), and its values."""
        self.file.write(json.dumps([kind, *values]) + "\n")
        self.file.flush()


class Printed(io.TextIOBase):
    """The program's standard output, each line of which is recorded."""

    encoding = "utf-8"

    def __init__(self, record: Record) -> None:
        self.record = record
        self.line = ""  # the last one, as far as it was written

    def write(self, text: str) -> int:
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            self.record.add("print", line)
        return len(text)

    def isatty(self) -> bool:
        return False


class Nothing:
    """Stands in for streams, events and whatever else only a GPU has: any attribute of it, and what
    it returns, is another such object.
    """

    total_memory = major = minor = 0

    def elapsed_time(self, other: object) -> float:
        return 0.0

    def __getattr__(self, name: str) -> Nothing:
        return Nothing()

    def __call__(self, *arguments: object, **keywords: object) -> Nothing:
        return Nothing()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __int__(self) -> int:
        return 0

    __index__ = __int__


def content(tensor: Tensor) -> str:
    """A digest of a tensor's bytes."""
    plain = tensor.detach().contiguous()
    size = plain.numel() * plain.element_size()
    data = ctypes.string_at(plain.data_ptr(), size)
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def tensors_in(torch: Torch, value: Value) -> Iterator[Tensor]:
    """The tensors in a value that a program saves, or calls backward on."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(torch, part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(torch, part)


def size_of(tensor: Tensor) -> list[float]:
    """The length (2-norm) of a tensor, of a complex one that of its absolute values, and the sum of
    its elements with alternating signs: together they show whether two tensors are alike up to
    rounding.
    """
    flat = tensor.detach().flatten()
    if tensor.is_complex():
        flat = flat.abs()
    flat = flat.double()
    return [flat.norm().item(), (flat[::2].sum() - flat[1::2].sum()).item()]


def size_of_gradient(gradient: Tensor) -> list[float]:
    """The size of a gradient; zeros for that of a weight that has none."""
    if gradient is None:
        return [0.0, 0.0]
    return size_of(gradient)


def on_cpu_mode(torch: Torch) -> Value:
    """A mode of torch under which whatever the program puts on the GPU is on the CPU: a copy where
    it would be one on the GPU.
    """
    copies = (torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory)

    class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self,
            function: Value,
            types: Value,
            arguments: Sequence[Value] = (),
            keywords: dict[str, Value] | None = None,
        ) -> Value:
            """Call a function of torch with arguments for the CPU, or copy where it moves a tensor."""
            if function in copies:
                return arguments[0].clone()
            if function is torch.Tensor.is_pinned:
                return False
            if keywords is None:
                keywords = {}
            wanted = [moved(torch, value) for value in arguments]
            named = moved_keywords(torch, keywords)
            result = function(*wanted, **named)
            # On a GPU ``to(device)`` would have made a copy; on the CPU it returns the tensor
            # itself.
            if function is torch.Tensor.to and result is wanted[0]:
                others = [*wanted[1:], *named.values()]
                names_device = any(
                    isinstance(value, (str, torch.device)) for value in others
                )
                if names_device:
                    return result.clone()
            return result

    return OnCpu()


def moved(torch: Torch, value: Value) -> Value:
    """The CPU in place of a GPU; any other value as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and GPU.fullmatch(value):
        return "cpu"
    return value


def moved_keywords(torch: Torch, keywords: dict[str, Value]) -> dict[str, Value]:
    """Keyword arguments with the CPU in place of a GPU, and without pin_memory, which needs one."""
    named = {name: moved(torch, value) for name, value in keywords.items()}
    named.pop("pin_memory", None)
    if isinstance(named.get("device"), int):  # the number of a GPU
        named["device"] = "cpu"
    return named


def watch(torch: Torch, record: Record) -> None:
    """Record each loss on which the program calls backward, what it saves, and gradients, weights
    and buffers of each step of an optimizer.
    """
    backward = torch.autograd.backward
    save = torch.save
    buffered: dict[int, weakref.ref[Value]] = {}
    """The modules with buffers that were called, by their ids."""

    def recorded_backward(tensors: Value, *args: Value, **kwargs: Value) -> None:
        add_values(tensors)
        backward(tensors, *args, **kwargs)

    def recorded_save(saved: Value, *args: Value, **kwargs: Value) -> None:
        add_values(saved)
        save(saved, *args, **kwargs)

    def add_values(value: Value) -> None:
        for tensor in tensors_in(torch, value):
            record.add("value", content(tensor), size_of(tensor))

    def before_step(optimizer: Value, *_: Value) -> None:
        """Record the sizes of all gradients, and which weights have one."""
        gradients = [weight.grad for weight in weights_of(optimizer)]
        sizes = [size_of_gradient(gradient) for gradient in gradients]
        record.add("gradients", sizes, [row is not None for row in gradients])

    def after_step(optimizer: Value, *_: Value) -> None:
        """Record digests of weights and buffers, and the sizes of buffers."""
        buffers = buffers_of([module() for module in buffered.values()])
        weights = [content(weight) for weight in weights_of(optimizer)]
        record.add("weights", weights, [content(buffer) for buffer in buffers])
        real = [buffer for buffer in buffers if not buffer.is_complex()]
        record.add("buffers", [size_of(buffer) for buffer in real])

    def module_called(module: Value, *_: Value) -> None:
        """Remember a module with buffers, without keeping it alive."""
        if module._buffers:
            buffered.setdefault(id(module), weakref.ref(module))

    torch.save = recorded_save
    torch.autograd.backward = recorded_backward
    optimizers = importlib.import_module("torch.optim.optimizer")
    optimizers.register_optimizer_step_pre_hook(before_step)
    optimizers.register_optimizer_step_post_hook(after_step)
    torch.nn.modules.module.register_module_forward_hook(module_called)


def buffers_of(modules: Sequence[Value]) -> list[Tensor]:
    """The buffers of modules; None stands for a module that is gone."""
    buffers: list[Tensor] = []
    for module in modules:
        if module is not None:
            buffers += module._buffers.values()
    return [buffer for buffer in buffers if buffer is not None]


def weights_of(optimizer: Value) -> list[Tensor]:
    """The weights that an optimizer updates."""
    weights: list[Tensor] = []
    for group in optimizer.param_groups:
        weights += group["params"]
    return weights


def constant(answer: Value) -> Callable[..., Value]:
    """A function that returns the same whatever its arguments are."""
    return lambda *arguments, **keywords: answer


def cpu_generator(torch: Torch) -> type:
    """A torch.Generator whose device is the CPU, whichever the program names."""

    class CpuGenerator(torch.Generator):  # type: ignore[misc, unused-ignore]
        def __new__(cls, device: object = "cpu") -> Value:
            return super().__new__(cls, "cpu")

    return CpuGenerator


def without_gpu(torch: Torch) -> None:
    """Let functions that need a GPU do nothing, and checkpoints load to the CPU."""
    for name in ONLY_ON_A_GPU:
        setattr(torch.cuda, name, constant(Nothing()))
    for name in COUNTS:
        setattr(torch.cuda, name, constant(0))
    torch.cuda.mem_get_info = constant((0, 0))
    load = torch.load

    def load_to_cpu(
        file: Value, map_location: Value = None, *args: Value, **kwargs: Value
    ) -> Value:
        return load(file, "cpu", *args, **kwargs)

    def leave_as_it_is(model: Value = None, **kwargs: Value) -> Value:
        """In place of torch.compile, which without a model returns a decorator."""
        if model is None:
            return leave_as_it_is
        return model

    torch.load = load_to_cpu
    torch.Generator = cpu_generator(torch)
    torch.compile = leave_as_it_is


def same_each_time(torch: Torch) -> None:
    """Let a program do the same each time: one thread, fixed seeds, and a clock that only counts
    how often it was asked.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy").random.seed(0)
    ticks = itertools.count()

    def clock() -> float:
        return next(ticks) / TICKS_PER_S

    time.time = clock
    time.perf_counter = clock


def run(words: Sequence[str], divisor: Divisor) -> None:
    """Run a script or a module, with the numbers in its sources and on its command line divided."""
    folder = os.getcwd() + os.sep
    loaders: Value = importlib.machinery.SourceFileLoader
    compile_source = loaders.source_to_code

    def compile_smaller(
        loader: Value, data: Value, path: str, **kwargs: Value
    ) -> Value:
        """Compile a source of the program after Smaller changed it. Libraries stay as they are."""
        if os.path.abspath(path).startswith(folder) and "site-packages" not in path:
            data = ast.fix_missing_locations(Smaller(divisor).visit(ast.parse(data)))
        return compile_source(loader, data, path, **kwargs)

    loaders.source_to_code = compile_smaller
    arguments = []
    for word in words:
        if word.isdigit():
            word = str(divided(int(word), divisor))
        arguments.append(word)
    if words[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    main = types.ModuleType("__main__")
    main.__file__ = words[0]
    sys.modules["__main__"] = main
    loader = importlib.machinery.SourceFileLoader("__main__", os.path.abspath(words[0]))
    loader.exec_module(main)


def observed(program: dict[str, Value], divisor: Divisor) -> int:
    """Run a program (an entry of ``programs``) to its end, in this process. Returns the exit code
    for this process: 1 where the program failed.
    """
    import torch

    os.chdir(program["folder"])
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    # Each divisor makes other code of the same sources, so no code may be kept in a cache.
    sys.pycache_prefix = os.devnull
    record = Record(program["record"])
    watch(torch, record)
    sys.stdout = Printed(record)
    try:
        with on_cpu_mode(torch):
            run(program["words"], divisor)
    except SystemExit:
        record.add("end")  # with any code: what was seen until then counts
    except BaseException as error:  # noqa: BLE001 - the program may raise anything
        says = f"{type(error).__name__}: {error}"
        record.add("failed", says[:MOST_OF_ERROR])
        return 1
    record.add("end")
    return 0


def forked(program: dict[str, Value], divisor: Divisor, seconds: float) -> int:
    """Start a program in a process of its own. Returns its PID. SIGPROF ends it after so many
    seconds of the processor.
    """
    pid = os.fork()
    if pid:
        return pid
    signal.setitimer(signal.ITIMER_PROF, seconds)
    code = 1  # also where the code below cannot start the program
    try:
        code = observed(program, divisor)
        sys.stdout.flush()
    finally:
        os._exit(code)


def main() -> None:
    """Run the programs side by side as forks of this process, which has imported torch."""
    import torch

    job = json.loads(sys.argv[1])
    setattr(builtins, FEW, few)
    without_gpu(torch)
    same_each_time(torch)
    # Each optimizer imports it, which takes seconds: so the processes have it already.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")
    for divisor in job["divisors"]:
        pids = [forked(row, divisor, job["seconds"]) for row in job["programs"]]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        # A negative code is a signal, such as SIGPROF at the end of the time: no failure.
        if all(os.waitstatus_to_exitcode(status) <= 0 for status in statuses):
            return


if __name__ == "__main__":
    main()
