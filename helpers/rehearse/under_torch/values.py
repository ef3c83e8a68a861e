"""Computes the small tensors of a rehearsed program along, operator by operator.

A dispatch mode of torch sees each operator (ShadowComputation in result_sizes.py computes). Some
functions of torch behave differently under a mode: they run outside of it, and code of the program
that they call runs inside of it again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from . import attention, capturing
from .operators import Operator, Torch
from .result_sizes import BOUNDS, ShadowComputation, Value
from .witness import Witness

Mode = Any  # a dispatch mode of torch
Function = Callable[..., Value]
DECIDED_BY_FIRST = {"cond": bool, "while_loop": bool, "switch": int}
"""Operators of torch whose first argument decides which function they call: a value of this type,
or a function that returns one.
"""
RETURNS_WHAT_IT_CALLS = (*DECIDED_BY_FIRST, "invoke_subgraph", "strict_mode", "wrap")
"""Operators whose result is that of a function which they call."""
TENSOR_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
"""Methods that register a hook of a backward pass; the second since torch 2.1."""
MODULE_HOOKS = ("register_full_backward_hook", "register_full_backward_pre_hook")
"""The same of modules; the second since torch 2.0."""


def start(torch: Torch, witness: Witness) -> None:
    """Compute along in this thread from now on. Nothing is done in a torch without dispatch modes,
    or where CASEBOOK_VALUES (--values) is no bound.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return
    bound_name = os.environ.get("CASEBOOK_VALUES", "typical")
    if bound_name not in BOUNDS:
        return
    shadow = ShadowComputation(torch, witness, bound_name)

    class Values(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
        # Else torch imports its compiler, whose frames are then in every stack.
        _should_skip_dynamo = classmethod(lambda _cls: False)

        def __torch_dispatch__(
            self, func: Operator, types: Value, args: Value = (), kwargs: Value = None
        ) -> Value:
            """Called by torch in place of each operator."""
            if kwargs is None:
                kwargs = {}
            # A tensor that stands for others (DTensor, quantised weights): the operators on these
            # come here next.
            if any(hasattr(kind, "__tensor_flatten__") for kind in types):
                return NotImplemented
            # Questions of torch about such a tensor, such as its device.
            if func.namespace == "prim":
                return func(*args, **kwargs)
            # In inference mode operators that are made of others arrive whole.
            if torch.is_inference_mode_enabled():
                with mode:
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            return shadow.run(func, args, kwargs)

    os.register_at_fork(after_in_child=lambda: setattr(shadow, "live", False))
    mode: Mode = Values()  # type: ignore[no-untyped-call, unused-ignore]
    mode.__enter__()
    around = AroundMode(torch, mode)
    torch.compile = capturing.capturing(torch, around, torch.compile)
    give_rules(torch, Values, shadow, around)
    leave_the_mode(torch, shadow, around)
    enter_the_mode(torch, shadow, around)


def give_rules(
    torch: Torch, kind: Mode, shadow: ShadowComputation, around: AroundMode
) -> None:
    """Give operators that call functions of the program, such as torch.cond, a rule for the mode of
    class ``kind``: torch refuses them under a mode for which they have none.
    """
    higher_order = getattr(torch._ops, "HigherOrderOperator", None)  # since torch 2.1
    if higher_order is None:
        return

    def run_higher_order(operator: Operator, args: Value, kwargs: Value) -> Value:
        """The rule: run the operator; its result is unknown unless a function of its own made it."""
        if not shadow.are_plain(args):  # torch.export or a compiler traces it
            return operator(*args, **kwargs)
        name = operator.name()
        kernel = operator
        if shadow.witness.compiled and name in attention.FUSED:
            kernel = functools.partial(attention.FUSED[name], torch)
        out = kernel(*around.within_functions(name, args), **kwargs)
        if name in RETURNS_WHAT_IT_CALLS:
            return out
        return shadow.made_unknown(out, *args)

    higher_order.dispatch = with_rule(higher_order.dispatch, kind, run_higher_order)


def leave_the_mode(torch: Torch, shadow: ShadowComputation, around: AroundMode) -> None:
    """Run functions of torch outside of the mode that do other work where they find one."""
    # A backward pass that finds a mode does nothing in place (isTensorSubclassLike in ATen).
    autograd = torch.autograd
    autograd.backward = around.without(autograd.backward)
    autograd.grad = around.without(autograd.grad, shadow.made_unknown)
    # Under a mode these split up into other operators; their results are unknown in any case.
    for name in ("linear", "scaled_dot_product_attention"):
        builtin = getattr(torch.nn.functional, name)
        function = around.without(builtin, shadow.made_unknown)
        setattr(torch.nn.functional, name, function)
        torch.jit._builtins._register_builtin(function, f"aten::{name}")


def enter_the_mode(torch: Torch, shadow: ShadowComputation, around: AroundMode) -> None:
    """Run code of the program inside of the mode that a backward pass calls: what a checkpoint
    computes again, functions with a backward of their own, and hooks.
    """
    from torch.utils import checkpoint

    # A checkpoint computes its function a second time.
    recompute_later = checkpoint.checkpoint

    @functools.wraps(recompute_later)
    def checkpoint_within(function: Function, *args: Value, **kwargs: Value) -> Value:
        return recompute_later(around.within(function), *args, **kwargs)

    checkpoint.checkpoint = checkpoint_within
    # The program's own subclasses of torch.autograd.Function.
    autograd = torch.autograd
    own_functions = autograd.function.BackwardCFunction
    own_functions.apply = around.within(own_functions.apply)
    # Hooks of nodes, saved tensors, tensors and modules.
    node = autograd.function._HookMixin
    register = around.registering(shadow.gradients_unknown, node._register_hook)
    node._register_hook = staticmethod(register)
    saved_tensors = autograd.graph.saved_tensors_hooks
    saved_tensors.__init__ = around.unpacking(saved_tensors.__init__)
    for owner, names in ((torch.Tensor, TENSOR_HOOKS), (torch.nn.Module, MODULE_HOOKS)):
        for name in names:
            if hasattr(owner, name):
                register = getattr(owner, name)
                within = around.registering(shadow.gradients_unknown, register)
                setattr(owner, name, within)


def with_rule(dispatch: Function, kind: Mode, rule: Function) -> Function:
    """``dispatch`` of operators that call functions of the program, which first gives each operator
    the ``rule`` for modes of the class ``kind``.
    """
    have_rule = set()

    @functools.wraps(dispatch)
    def dispatch_with_rule(
        operator: Operator, key: Value, *args: Value, **kwargs: Value
    ) -> Value:
        """Dispatch an operator, after it got the rule."""
        if operator not in have_rule:
            have_rule.add(operator)
            operator.py_impl(kind)(
                lambda _, *args, **kwargs: rule(operator, args, kwargs)
            )
        return dispatch(operator, key, *args, **kwargs)

    return dispatch_with_rule


class AroundMode:
    """Functions that leave a dispatch mode, or enter it, while they run."""

    def __init__(self, torch: Torch, mode: Mode):
        self.mode = mode
        self.current = torch.utils._python_dispatch._get_current_dispatch_mode
        self.operators = getattr(torch._ops, "OperatorBase", ())
        self.tensor = torch.tensor

    def without(self, call: Function, note: Function | None = None) -> Function:
        """``call``, run outside of the mode. ``note`` gets its result and its arguments, and
        returns the result; it is called only where the mode was left.
        """

        @functools.wraps(call)
        def outside(*args: Value, **kwargs: Value) -> Value:
            if self.current() is not self.mode:
                return call(*args, **kwargs)
            self.mode.__exit__(None, None, None)
            try:
                out = call(*args, **kwargs)
            finally:
                self.mode.__enter__()
            if note is not None:
                out = note(out, *args, *kwargs.values())
            return out

        return outside

    def registering(self, before: Function, register: Function) -> Function:
        """``register``, a function that registers a hook of a backward pass, whose hook then runs
        inside of the mode. ``before`` gets the arguments of the hook first.
        """

        @functools.wraps(register)
        def register_within(
            owner: Value, hook: Function, *args: Value, **kwargs: Value
        ) -> Value:
            hook_within = self.within(hook)

            @functools.wraps(hook)
            def prepared(*hook_args: Value) -> Value:
                before(hook_args)
                return hook_within(*hook_args)

            return register(owner, prepared, *args, **kwargs)

        return register_within

    def unpacking(self, init: Function) -> Function:
        """``init``, the constructor of hooks of saved tensors, whose second hook then runs inside
        of the mode: a backward pass calls it.
        """

        @functools.wraps(init)
        def init_within(owner: Value, pack: Function, unpack: Function) -> None:
            init(owner, pack, self.within(unpack))

        return init_within

    def within_functions(self, name: str, args: Sequence[Value]) -> list[Value]:
        """The arguments of an operator that calls functions of the program: these then run inside
        of the mode. torch's own kernel asserts that it runs outside of any.
        """
        arguments = [self.functions_within(value) for value in args]
        if name in DECIDED_BY_FIRST:
            arguments[0] = self.decided(DECIDED_BY_FIRST[name], arguments[0])
        return arguments

    def functions_within(self, value: Value) -> Value:
        """A function of the program, or each in a list, to run inside of the mode; all else as it
        is.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.functions_within, value))
        if not callable(value) or isinstance(value, self.operators):
            return value
        return self.within(value)

    def decided(self, kind: Function, value: Value) -> Value:
        """The first argument of an operator that it decides: its value on the host, read inside of
        the mode; of a function, one that returns that value as a tensor of the host.
        """
        if not callable(value):
            return self.within(kind)(value)
        return self.within(lambda *args: self.tensor(kind(value(*args)), device="cpu"))

    def within(self, function: Function) -> Function:
        """``function``, run inside of the mode."""

        @functools.wraps(function)
        def inside(*args: Value, **kwargs: Value) -> Value:
            if self.current() is self.mode:
                return function(*args, **kwargs)
            with self.mode:
                return function(*args, **kwargs)

        return inside
