"""Lets a rehearsed program compute its small tensors along, operator by operator.

A dispatch mode of torch sees each operator; where torch itself behaves otherwise under a mode,
it is left or entered around torch's own functions.
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

Mode = Any
Function = Callable[..., Value]
DECIDED_BY_FIRST = {"cond": bool, "while_loop": bool, "switch": int}
"""Operators of torch whose first argument decides what they call, or a function that returns it."""
RETURNS_WHAT_IT_CALLS = (*DECIDED_BY_FIRST, "invoke_subgraph", "strict_mode", "wrap")
"""Operators whose result is that of a function which they call."""
# The second since torch 2.1.
TENSOR_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
# The second since torch 2.0.
MODULE_HOOKS = ("register_full_backward_hook", "register_full_backward_pre_hook")


def start(torch: Torch, witness: Witness) -> None:
    """Compute along in this thread from now on.

    Raises nothing: a torch without dispatch modes is left as it is.
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
        # Else torch's compiler is imported, and stands in every stack.
        _should_skip_dynamo = classmethod(lambda _cls: False)

        def __torch_dispatch__(
            self, func: Operator, types: Value, args: Value = (), kwargs: Value = None
        ) -> Value:
            if kwargs is None:
                kwargs = {}
            # What stands for other tensors (DTensor, quantised weights): its operators on those
            # come next.
            if any(hasattr(kind, "__tensor_flatten__") for kind in types):
                return NotImplemented
            # What torch asks about a tensor that stands for another.
            if func.namespace == "prim":
                return func(*args, **kwargs)
            # Where compounds arrive whole.
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
    """Operators that call functions of the program, such as torch.cond: torch refuses one under a
    mode that it has no rule for.
    """
    higher_order = getattr(torch._ops, "HigherOrderOperator", None)  # since torch 2.0
    if higher_order is None:
        return

    def run_higher_order(operator: Operator, args: Value, kwargs: Value) -> Value:
        if not shadow.are_plain(args):  # it is being read, as by torch.export
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
    """Functions of torch that do other work where they find a mode."""
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


def enter_the_mode(torch: Torch, shadow: ShadowComputation, around: AroundMode) -> None:
    """Code of the program that a backward pass calls: recomputation, functions, hooks."""
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
    """The dispatch of operators that call functions of the program, with ``rule`` for modes of one
    kind.
    """
    have_rule = set()

    @functools.wraps(dispatch)
    def dispatch_with_rule(
        operator: Operator, key: Value, *args: Value, **kwargs: Value
    ) -> Value:
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
        """``call`` outside of the mode; ``note`` gets its result and its arguments, and returns the
        result.
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
            return note(out, *args, *kwargs.values()) if note else out

        return outside

    def registering(self, before: Function, register: Function) -> Function:
        """``register``, which registers a hook of a backward pass, for a hook that runs inside of
        the mode. ``before`` gets the arguments of the hook first.
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
        """The constructor of hooks of saved tensors: the second is called in a backward pass."""

        @functools.wraps(init)
        def init_within(owner: Value, pack: Function, unpack: Function) -> None:
            init(owner, pack, self.within(unpack))

        return init_within

    def within_functions(self, name: str, args: Sequence[Value]) -> list[Value]:
        """The arguments of an operator that calls functions of the program: those run inside of the
        mode, torch's own kernel outside of it, as it asserts.
        """
        arguments = [self.functions_within(value) for value in args]
        if name in DECIDED_BY_FIRST:
            arguments[0] = self.decided(DECIDED_BY_FIRST[name], arguments[0])
        return arguments

    def functions_within(self, value: Value) -> Value:
        """A function of the program inside of the mode, also in a list; all else as it is."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.functions_within, value))
        if not callable(value) or isinstance(value, self.operators):
            return value
        return self.within(value)

    def decided(self, kind: Function, value: Value) -> Value:
        """A value of the host that decides, read inside of the mode; or a function that returns
        one as a tensor.
        """
        if not callable(value):
            return self.within(kind)(value)
        return self.within(lambda *args: self.tensor(kind(value(*args)), device="cpu"))

    def within(self, function: Function) -> Function:
        """``function`` inside of the mode."""

        @functools.wraps(function)
        def inside(*args: Value, **kwargs: Value) -> Value:
            if self.current() is self.mode:
                return function(*args, **kwargs)
            with self.mode:
                return function(*args, **kwargs)

        return inside
