"""torch.cond, flex_attention and their like have torch.compile read the functions that they get, so
that these give what they close over as well, such as weights, which then have gradients. Nothing is
compiled for that, so a rehearsal does it, too.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from .operators import Torch

Value = Any
Function = Callable[..., Value]
EAGER = "torch._dynamo.backends.debugging"
"""Where those backends of torch are that compile nothing."""
SWITCH = "TORCHDYNAMO_DISABLE"


def compiles_nothing(backend: Value) -> bool:
    """Whether a backend of torch.compile is one of torch's own that compile nothing."""
    return backend == "eager" or getattr(backend, "__module__", "") == EAGER


def is_capture(function: Value, options: dict[str, Value]) -> bool:
    """Whether torch.compile is asked for the operators of a function, and for no code; torch's own
    functions ask for code, too, and run without it.
    """
    is_own = getattr(function, "__module__", "").startswith("torch._higher_order_ops")
    is_asked = is_own or compiles_nothing(options.get("backend"))
    return bool(options.get("fullgraph")) and is_asked


def capturing(torch: Torch, around: Value, leave_out: Function) -> Function:
    """torch.compile for those; anything else, and what it cannot read, goes to ``leave_out``."""

    @functools.cache
    def backend_within(backend: Value) -> Function:
        """A backend whose graphs run inside of the mode."""
        find = importlib.import_module("torch._dynamo.backends.registry").lookup_backend
        make = find(backend) if isinstance(backend, str) else backend
        for name in ("linear", "scaled_dot_product_attention"):
            torch._dynamo.allow_in_graph(getattr(torch.nn.functional, name))

        @functools.wraps(make)
        def make_within(*args: Value, **kwargs: Value) -> Function:
            return around.within(make(*args, **kwargs))

        return make_within

    @functools.wraps(leave_out)
    def compile_or_capture(model: Value = None, **options: Value) -> Value:
        eager = leave_out(model, **options)
        if model is None or not is_capture(model, options):
            return eager

        @around.without
        def capture(*args: Value, **kwargs: Value) -> Value:
            switched_off = os.environ.pop(SWITCH, "")
            try:
                within = {
                    **options,
                    "backend": backend_within(options.get("backend", "eager")),
                }
                return leave_out(model, **within)(*args, **kwargs)
            finally:
                os.environ[SWITCH] = switched_off

        def capture_or_run(*args: Value, **kwargs: Value) -> Value:
            try:
                return capture(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException:
                return eager(*args, **kwargs)

        return capture_or_run

    return compile_or_capture
