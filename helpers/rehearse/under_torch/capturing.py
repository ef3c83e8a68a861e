"""Lets torch.compile trace functions in a rehearsal, which otherwise leaves it out.

torch.cond, flex_attention and similar operators have it trace the functions that they are given, to
find the tensors in these, such as weights: only then do the weights get gradients. No code is
compiled for that.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from .operators import Torch

Value = Any  # whatever the program or torch has there
Function = Callable[..., Value]
EAGER = "torch._dynamo.backends.debugging"
"""The module of torch with the backends that compile nothing."""
SWITCH = "TORCHDYNAMO_DISABLE"
"""The variable of torch by which a rehearsal leaves torch.compile out."""


def compiles_nothing(backend: Value) -> bool:
    """Whether a backend of torch.compile is one of torch's own that compile nothing."""
    return backend == "eager" or getattr(backend, "__module__", "") == EAGER


def is_capture(function: Value, options: dict[str, Value]) -> bool:
    """Whether torch.compile is asked to trace a function and needs not compile it. torch's own
    operators ask for compiled code, but also run without it; all ask for one whole graph.
    """
    is_own = getattr(function, "__module__", "").startswith("torch._higher_order_ops")
    needs_no_code = is_own or compiles_nothing(options.get("backend"))
    return bool(options.get("fullgraph")) and needs_no_code


def capturing(torch: Torch, around: Value, leave_out: Function) -> Function:
    """The stand-in for torch.compile: it traces functions of which is_capture is true. All others,
    and those that it cannot trace, go to ``leave_out``, torch.compile without any effect.
    ``around``: AroundMode of values.py.
    """
    inside_of_mode = functools.cache(functools.partial(backend_within, torch, around))

    @functools.wraps(leave_out)
    def compile_or_capture(model: Value = None, **options: Value) -> Value:
        """torch.compile as the program calls it."""
        eager = leave_out(model, **options)
        if model is None or not is_capture(model, options):
            return eager

        def capture(*args: Value, **kwargs: Value) -> Value:
            """Trace the function and run the graph, both with torch's real compiler."""
            # torch's compiler reads the switch when it is imported, which the backend may do.
            switched_off = os.environ.pop(SWITCH, "")
            try:
                backend = inside_of_mode(options.get("backend", "eager"))
                within = leave_out(model, **{**options, "backend": backend})
                return within(*args, **kwargs)
            finally:
                os.environ[SWITCH] = switched_off

        capture_outside = around.without(capture)

        def capture_or_run(*args: Value, **kwargs: Value) -> Value:
            try:
                return capture_outside(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException:
                return eager(*args, **kwargs)

        return capture_or_run

    return compile_or_capture


def backend_within(torch: Torch, around: Value, backend: Value) -> Function:
    """A backend of torch.compile (or its name), whose graphs run inside of the mode. ``linear`` and
    ``scaled_dot_product_attention`` are replaced in a rehearsal (values.py): the tracer must take
    them as they are.
    """
    if isinstance(backend, str):
        registry = importlib.import_module("torch._dynamo.backends.registry")
        backend = registry.lookup_backend(backend)
    for name in ("linear", "scaled_dot_product_attention"):
        torch._dynamo.allow_in_graph(getattr(torch.nn.functional, name))

    @functools.wraps(backend)
    def make_within(*args: Value, **kwargs: Value) -> Value:
        return around.within(backend(*args, **kwargs))

    return make_within
