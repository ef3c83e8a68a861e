"""Programs on the CPU in place of their GPU: what they print, their losses, and their weights after
each step.

Called with one word of JSON: ``programs``, each with its ``folder``, its ``words`` (SCRIPT ... or
-m MODULE ...) and the ``record`` that gets a line of JSON for each thing that was seen; and
``seconds`` of the processor for each. Loops end after a few turns, and whole numbers of the sources
are divided, so that it ends soon: as the first of ``divisors`` says, by what, from which number on
and whether lists are cut short, too; then as the next where one of them fails so.
"""

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
from collections.abc import ItemsView, KeysView, ValuesView

MOST_TURNS = 6
"""Turns of each loop: more than the entries that a bounded cache keeps."""
MEMORY_BYTES = 6 << 30
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
COUNTS = (
    "current_device",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
)
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
GPU = re.compile(r"cuda(:\d+)?")


class Smaller(ast.NodeTransformer):
    """Loops of a few turns, and whole numbers divided as ``divisor`` says. The loops of a module
    stay whole: by their turns its parts fit to each other.
    """

    def __init__(self, divisor):
        self.divisor = divisor
        self.is_in_module = False

    def visit_ClassDef(self, node):
        outside = self.is_in_module
        self.is_in_module = any("Module" in ast.unparse(base) for base in node.bases)
        self.generic_visit(node)
        self.is_in_module = outside
        return node

    def visit_For(self, node):
        self.generic_visit(node)
        if not self.is_in_module:
            node.iter = cut(node.iter)
        return node

    def visit_comprehension(self, node):
        self.generic_visit(node)
        _, _, cuts_lists = self.divisor
        if cuts_lists and not self.is_in_module:
            node.iter = cut(node.iter)
        return node

    def visit_Constant(self, node):
        if type(node.value) is int:
            return ast.copy_location(
                ast.Constant(divided(node.value, self.divisor)), node
            )
        return node


def cut(items):
    """An iterable of the program, of which a loop takes only the first few."""
    names = {node.attr for node in ast.walk(items) if isinstance(node, ast.Attribute)}
    names_itself = isinstance(items, (ast.Attribute, ast.Tuple, ast.List))
    if names & PARTS_OF_ONE or names_itself:
        return items
    return ast.copy_location(ast.Call(ast.Name(FEW, ast.Load()), [items], []), items)


def divided(number, divisor):
    times, least, _ = divisor
    if number < least or number % times:
        return number
    return number // times


def few(items):
    """The first few of what a loop goes over; all of a dictionary, such as a model's state."""
    if isinstance(items, (dict, KeysView, ValuesView, ItemsView)):
        return items
    return itertools.islice(items, MOST_TURNS)


class Record:
    """The file that takes what is seen, a line each, whole at any time."""

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115  it stays open

    def add(self, kind, *values):
        self.file.write(json.dumps([kind, *values]) + "\n")
        self.file.flush()


class Printed(io.TextIOBase):
    """The program's standard output."""

    encoding = "utf-8"

    def __init__(self, record):
        self.record = record
        self.line = ""

    def write(self, text):
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            self.record.add("print", line)
        return len(text)

    def isatty(self):
        return False


class Nothing:
    """Stands for streams, events and whatever else only a GPU has."""

    total_memory = major = minor = 0

    def elapsed_time(self, other):
        return 0.0

    def __getattr__(self, name):
        return Nothing()

    def __call__(self, *arguments, **keywords):
        return Nothing()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __int__(self):
        return 0

    __index__ = __int__


def content(tensor):
    """A digest of a tensor's bytes."""
    plain = tensor.detach().contiguous()
    size = plain.numel() * plain.element_size()
    return hashlib.blake2b(
        ctypes.string_at(plain.data_ptr(), size), digest_size=8
    ).hexdigest()


def tensors_in(torch, value):
    """The tensors of what a program saves."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(torch, part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(torch, part)


def size_of(tensor):
    """The length of a gradient, and its sum with changing signs: alike for alike gradients."""
    flat = (
        tensor.detach().flatten().abs()
        if tensor.is_complex()
        else tensor.detach().flatten()
    )
    flat = flat.double()
    return [flat.norm().item(), (flat[::2].sum() - flat[1::2].sum()).item()]


def on_cpu_mode(torch):
    """Whatever the program puts on the GPU lies on the CPU, copied as it would be to the GPU."""

    def moved(value):
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        is_name = isinstance(value, str) and GPU.fullmatch(value)
        return "cpu" if is_name else value

    Mode: type = torch.overrides.TorchFunctionMode

    class OnCpu(Mode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            keywords = dict(keywords or {})
            if function in (
                torch.Tensor.cuda,
                torch.Tensor.cpu,
                torch.Tensor.pin_memory,
            ):
                return arguments[0].clone()
            if function is torch.Tensor.is_pinned:
                return False
            if isinstance(keywords.get("device"), int):
                keywords["device"] = "cpu"
            keywords.pop("pin_memory", None)
            wanted = [moved(value) for value in arguments]
            named = {name: moved(value) for name, value in keywords.items()}
            result = function(*wanted, **named)
            arguments = [*wanted[1:], *named.values()]
            names_device = any(
                isinstance(value, (str, torch.device)) for value in arguments
            )
            is_sent = (
                function is torch.Tensor.to and names_device and result is arguments[0]
            )
            return result.clone() if is_sent else result

    return OnCpu()


def watch(torch, record):
    """Note each loss that goes backward, what is saved, and gradients and weights around each step."""
    backward = torch.autograd.backward
    buffered: dict = {}  # the modules with buffers that were called, by their ids

    def noted_backward(tensors, *arguments, **keywords):
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            record.add("value", content(tensor), size_of(tensor))
        return backward(tensors, *arguments, **keywords)

    def weights(optimizer):
        return [
            weight for group in optimizer.param_groups for weight in group["params"]
        ]

    def before(optimizer, arguments, keywords):
        gradients = [weight.grad for weight in weights(optimizer)]
        sizes = [
            [0.0, 0.0] if gradient is None else size_of(gradient)
            for gradient in gradients
        ]
        record.add("gradients", sizes, [gradient is not None for gradient in gradients])

    def after(optimizer, arguments, keywords):
        modules = [
            module
            for module in (reference() for reference in buffered.values())
            if module
        ]
        buffers = [buffer for module in modules for buffer in module._buffers.values()]
        present = [buffer for buffer in buffers if buffer is not None]
        record.add(
            "weights",
            list(map(content, weights(optimizer))),
            list(map(content, present)),
        )
        record.add(
            "buffers",
            [size_of(buffer) for buffer in present if not buffer.is_complex()],
        )

    def called(module, arguments, result):
        if module._buffers:
            buffered.setdefault(id(module), weakref.ref(module))

    save = torch.save

    def noted_save(saved, *arguments, **keywords):
        for tensor in tensors_in(torch, saved):
            record.add("value", content(tensor), size_of(tensor))
        return save(saved, *arguments, **keywords)

    torch.save = noted_save
    torch.autograd.backward = noted_backward
    optimizers = importlib.import_module("torch.optim.optimizer")
    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)
    torch.nn.modules.module.register_module_forward_hook(called)


def constant(answer):
    """A function that answers the same whatever it is asked."""
    return lambda *arguments, **keywords: answer


def cpu_generator(torch):
    """torch.Generator, whose device is the CPU whatever the program names."""
    Generator: type = torch.Generator

    class CpuGenerator(Generator):
        def __new__(cls, device="cpu"):
            return super().__new__(cls, "cpu")

    return CpuGenerator


def without_gpu(torch):
    """What only works with a GPU does nothing, and checkpoints of one load to the CPU."""
    for name in ONLY_ON_A_GPU:
        setattr(torch.cuda, name, constant(Nothing()))
    for name in COUNTS:
        setattr(torch.cuda, name, constant(0))
    torch.cuda.mem_get_info = constant((0, 0))
    load = torch.load

    def loaded(file, map_location=None, *arguments, **keywords):
        return load(file, "cpu", *arguments, **keywords)

    torch.load = loaded
    torch.Generator = cpu_generator(torch)
    torch.compile = lambda model=None, **keywords: (
        model if model else (lambda inner: inner)
    )


def same_each_time(torch):
    """One thread, fixed seeds, and a clock that counts how often it was asked."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy").random.seed(0)
    ticks = itertools.count()
    time.time = time.perf_counter = lambda: next(ticks) / 1000


def run(words, divisor):
    """Run a script or a module with its sources made smaller."""
    folder = os.getcwd() + os.sep
    original = importlib.machinery.SourceFileLoader.source_to_code

    def source_to_code(loader, data, path, **keywords):
        if os.path.abspath(path).startswith(folder) and "site-packages" not in path:
            data = ast.fix_missing_locations(Smaller(divisor).visit(ast.parse(data)))
        return original(loader, data, path, **keywords)

    importlib.machinery.SourceFileLoader.source_to_code = source_to_code  # type: ignore
    arguments = [
        str(divided(int(word), divisor)) if word.isdigit() else word for word in words
    ]
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


def observed(program, divisor):
    """Run a program to its end, in this process. Returns the exit code of the process."""
    import torch

    os.chdir(program["folder"])
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    # Each divisor makes other code of the same sources: none is read from a cache, nor kept in one.
    sys.pycache_prefix = os.devnull
    record = Record(program["record"])
    watch(torch, record)
    sys.stdout = Printed(record)
    try:
        with on_cpu_mode(torch):
            run(program["words"], divisor)
    except SystemExit as ending:
        record.add("end", ending.code or 0)
    except BaseException as error:  # noqa: BLE001 - the program may raise anything
        record.add("failed", f"{type(error).__name__}: {error}"[:300])
        return 1
    record.add("end", 0)
    return 0


def forked(program, divisor, seconds):
    """Start a program in a process of its own, which SIGPROF ends. Returns its number."""
    number = os.fork()
    if number:
        return number
    signal.setitimer(signal.ITIMER_PROF, seconds)
    code = 1
    try:
        code = observed(program, divisor)
        sys.stdout.flush()
    finally:
        os._exit(code)


def main():
    import torch

    job = json.loads(sys.argv[1])
    setattr(builtins, FEW, few)
    without_gpu(torch)
    same_each_time(torch)
    with contextlib.suppress(ImportError):
        importlib.import_module(
            "torch._dynamo"
        )  # as each optimizer does; so it is done once
    for divisor in job["divisors"]:
        numbers = [
            forked(program, divisor, job["seconds"]) for program in job["programs"]
        ]
        codes = [
            os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers
        ]
        if all(code <= 0 for code in codes):
            return


if __name__ == "__main__":
    main()
