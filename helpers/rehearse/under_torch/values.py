"""Lets a rehearsed program compute its small tensors along, operator by operator.

A dispatch mode of torch sees each operator; where torch itself behaves otherwise under a mode,
it is left or entered around torch's own functions.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .operators import Operator, Torch
from .result_sizes import BOUNDS, ShadowComputation, Value
from .witness import Witness

Mode = Any
Function = Callable[..., Value]


def start(torch: Torch, witness: Witness) -> None:
    """Compute along in this thread from now on.

    Raises nothing: a torch without dispatch modes is left as it is.
    """
    try:
        from torch.utils import checkpoint
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return
    bound_name = os.environ.get("CASEBOOK_VALUES", "typical")
    if bound_name not in BOUNDS:
        return
    shadow = ShadowComputation(torch, witness, bound_name)

    class Values(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        # Else torch's compiler is imported, and stands in every stack.
        _should_skip_dynamo = classmethod(lambda cls: False)

        def __torch_dispatch__(
            self, func: Operator, types: Value, args: Value = (), kwargs: Value = None
        ) -> Value:
            # What stands for other tensors (DTensor, quantised weights): its operators on those
            # come next.
            if any(hasattr(kind, "__tensor_flatten__") for kind in types):
                return NotImplemented
            if torch.is_inference_mode_enabled():  # where compounds arrive whole
                with mode:
                    out = func.decompose(*args, **kwargs or {})
                if out is not NotImplemented:
                    return out
            return shadow.run(func, args, kwargs or {})

    os.register_at_fork(after_in_child=lambda: setattr(shadow, "live", False))
    mode = Values()
    mode.__enter__()
    around = AroundMode(torch, mode)
    # A backward pass that finds a mode gives up what it does in place (isTensorSubclassLike in
    # ATen): it gets none.
    autograd = torch.autograd
    autograd.backward = around.without(autograd.backward)
    autograd.grad = around.without(autograd.grad, shadow.made_unknown)
    # So do these, with a mode, and what they give is unknown in any case.
    for name in ("linear", "scaled_dot_product_attention"):
        builtin = getattr(torch.nn.functional, name)
        function = around.without(builtin, shadow.made_unknown)
        setattr(torch.nn.functional, name, function)
        torch.jit._builtins._register_builtin(function, f"aten::{name}")
    # What a checkpoint computes anew, it computes as before; and what is Python's own of a
    # backward pass is like any other code of the program.
    recompute_later = checkpoint.checkpoint

    @functools.wraps(recompute_later)
    def checkpoint_within(function: Function, *args: Value, **kwargs: Value) -> Value:
        return recompute_later(around.within(function), *args, **kwargs)

    checkpoint.checkpoint = checkpoint_within
    python = autograd.function.BackwardCFunction
    python.apply = around.within(python.apply)


class AroundMode:
    """Functions that leave a dispatch mode, or enter it, while they run."""

    def __init__(self, torch: Torch, mode: Mode):
        self.mode = mode
        self.current = torch.utils._python_dispatch._get_current_dispatch_mode

    def without(self, call: Function, then: Function | None = None) -> Function:
        """``call`` outside of the mode; ``then`` gets its result and its arguments."""

        @functools.wraps(call)
        def outside(*args: Value, **kwargs: Value) -> Value:
            if self.current() is not self.mode:
                return call(*args, **kwargs)
            self.mode.__exit__(None, None, None)
            try:
                out = call(*args, **kwargs)
            finally:
                self.mode.__enter__()
            return then(out, *args, *kwargs.values()) if then else out

        return outside

    def within(self, function: Function) -> Function:
        """``function`` inside of the mode."""

        @functools.wraps(function)
        def inside(*args: Value, **kwargs: Value) -> Value:
            if self.current() is self.mode:
                return function(*args, **kwargs)
            with self.mode:
                return function(*args, **kwargs)

        return inside
