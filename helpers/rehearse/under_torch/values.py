"""Lets a rehearsed program compute its small tensors along, operator by operator.

A dispatch mode of torch sees each operator; where torch itself behaves otherwise under a mode,
it is left or entered around torch's own functions.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from . import attention
from .operators import Operator, Torch
from .result_sizes import BOUNDS, ShadowComputation, Value
from .witness import Witness

Mode = Any
Function = Callable[..., Value]
DECIDED_BY_FIRST = ("cond", "while_loop")
"""Operators of torch whose first argument is a condition, or a function that returns one."""
RETURNS_WHAT_IT_CALLS = (*DECIDED_BY_FIRST, "switch", "invoke_subgraph", "strict_mode", "wrap")
"""Operators whose result is that of a function which they call."""
TENSOR_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")  # the second since torch 2.1
MODULE_HOOKS = ("register_full_backward_hook", "register_full_backward_pre_hook")  # since 2.0


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
    higher_order = getattr(torch._ops, "HigherOrderOperator", ())  # since torch 2.0

    class Values(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        # Else torch's compiler is imported, and stands in every stack.
        _should_skip_dynamo = classmethod(lambda cls: False)
        # Else torch refuses flex_attention, torch.cond and their like under a mode
        # (HigherOrderOperator in torch/_ops.py).
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Operator, types: Value, args: Value = (), kwargs: Value = None
        ) -> Value:
            if isinstance(func, higher_order):
                return run_higher_order(func, args, kwargs or {})
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

    def run_higher_order(operator: Operator, args: Value, kwargs: Value) -> Value:
        """An operator that calls functions of the program, such as torch.cond."""
        name = operator.name()
        kernel = operator
        if witness.compiled and name in attention.FUSED:
            kernel = functools.partial(attention.FUSED[name], torch)
        out = kernel(*around.within_functions(name, args), **kwargs)
        if name in RETURNS_WHAT_IT_CALLS:
            return out
        return shadow.made_unknown(out, *args)

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
    # In a hook, too; nobody computed the gradients that it gets.
    for owner, names in ((torch.Tensor, TENSOR_HOOKS), (torch.nn.Module, MODULE_HOOKS)):
        for name in names:
            register = getattr(owner, name, None)
            if register is not None:
                setattr(owner, name, around.registering(shadow.gradients_unknown, register))


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

    def registering(self, before: Function, register: Function) -> Function:
        """A method that registers a hook of a backward pass: the hook runs inside of the mode, after
        ``before`` got all of its arguments, as nobody computed the gradients among them.
        """

        @functools.wraps(register)
        def register_within(owner: Value, hook: Function, *args: Value, **kwargs: Value) -> Value:
            hook_within = self.within(hook)

            @functools.wraps(hook)
            def prepared(*hook_args: Value) -> Value:
                before(hook_args)
                return hook_within(*hook_args)

            return register(owner, prepared, *args, **kwargs)

        return register_within

    def within_functions(self, name: str, args: Sequence[Value]) -> list[Value]:
        """The arguments of an operator that calls functions of the program: those run inside of the
        mode, torch's own kernel outside of it, as it asserts.
        """
        arguments = [self.within(value) if callable(value) else value for value in args]
        if name in DECIDED_BY_FIRST:
            arguments[0] = self.decided(arguments[0])
        return arguments

    def decided(self, value: Value) -> Value:
        """A condition as Python's bool, read inside of the mode; or a function that returns one."""
        if not callable(value):
            return self.within(bool)(value)
        return self.within(lambda *args: bool(value(*args)))

    def within(self, function: Function) -> Function:
        """``function`` inside of the mode."""

        @functools.wraps(function)
        def inside(*args: Value, **kwargs: Value) -> Value:
            if self.current() is self.mode:
                return function(*args, **kwargs)
            with self.mode:
                return function(*args, **kwargs)

        return inside
