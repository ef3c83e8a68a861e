"""The last layer of a language model and its cross-entropy, for a few positions at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Located, Program
from helpers.fix.recomputed import CHECKPOINT
from helpers.fix.regions import Region, forward_regions
from helpers.fix.source import called, keyword

POSITIONS = 256
"""Positions (tokens of a sequence) whose logits exist at the same time. Our choice: of a vocabulary
of 128,000 as float32 they take 125 MiB; fewer positions would make more and smaller GPU kernels.
"""
NAMES = {"hidden", "wanted", "loss_of", "part"}
"""Variables that the change adds to the program, which must not have these names already."""
LAST_IS_CLASS = re.compile(
    r"(\.(transpose\(1, 2\)|(view|reshape)\(-1, .+\)|flatten\(0, -?[12]\)))?"
)
"""How the call of the cross-entropy reshapes logits whose last dimension is the classes: not at
all, or in one of the ways by which cross_entropy gets them as it wants them.
"""
NOT_A_CLASS = "-100"
"""ignore_index where a program gives none (torch.nn.functional.cross_entropy)."""
MOST_READERS = 3
"""Names of the logits where only their loss reads them: the assignment, and in the call of the loss
one or two, as in ``logits.view(-1, logits.size(-1))``.
"""


@dataclass(frozen=True)
class _Loss:
    """``loss = F.cross_entropy(logits, wanted)`` and ``logits = model(inputs)`` before it."""

    region: Region
    logits: cst.Assign
    model: str
    loss: cst.Assign
    call: cst.Call


def cross_entropy_in_parts(program: Program) -> Changes:
    """Changes that compute the last layer of a model and its loss for a few positions at a time, so
    that the logits of all positions never exist at once. Only of a model that the program calls at
    one place: the model then returns what its last layer would get.
    """
    for region in forward_regions(program):
        loss = _loss_of(region)
        if loss is None or _is_used_elsewhere(program, loss.model):
            continue
        for source, last in last_layers(program):
            place = region.source.place(loss.loss)
            yield Change(
                title=f"Compute the loss of {POSITIONS} positions at a time ({place})",
                results=Results.ROUNDED,
                why="the same terms are added up in another order",
                costs="the last layer runs twice, and its GPU kernels are smaller",
                edits=(
                    source.replaced(last, source.code(last.args[0].value)),
                    *region.source.with_import(CHECKPOINT),
                    _in_parts(loss, source.code(last.func).removeprefix("self.")),
                ),
            )


def _loss_of(region: Region) -> _Loss | None:
    """The cross-entropy of a forward pass, in the statement after its logits, which nothing else
    reads; None where there is no such pair.
    """
    source = region.source
    assigns: list[cst.Assign] = []
    for node in region.forward:
        assigns += source.find(cst.Assign, node)
    for logits, loss in zip(assigns, assigns[1:], strict=False):
        model = logits.value
        call = loss.value
        if not isinstance(model, cst.Call) or not isinstance(model.func, cst.Name):
            continue
        if not isinstance(call, cst.Call) or called(call) != "cross_entropy":
            continue
        if len(call.args) < 2:  # no logits and targets by position
            continue
        name = source.target(logits)
        reshaped = source.code(call.args[0].value).removeprefix(name)
        readers = [node for node in source.find(cst.Name) if node.value == name]
        is_read_alone = len(readers) <= MOST_READERS
        # The change divides a sum by the number of targets, which is the mean without weights.
        is_mean = not keyword(call, "weight") and not keyword(call, "reduction")
        if LAST_IS_CLASS.fullmatch(reshaped) and is_read_alone and is_mean:
            return _Loss(region, logits, model.func.value, loss, call)
    return None


def _is_used_elsewhere(program: Program, model: str) -> bool:
    """Whether a model is called at a second place, or given to a call that may call it. Also true
    where the program has one of NAMES already, which the change would overwrite.
    """
    if len(list(program.calls(model))) > 1:
        return True
    if any(name.value in NAMES for _, name in program.find(cst.Name)):
        return True
    arguments = program.find(cst.Arg)
    return any(source.code(argument.value) == model for source, argument in arguments)


def last_layers(program: Program) -> Located[cst.Call]:
    """``return self.head(x)`` of a module's forward pass, whose head is a linear layer."""
    for source, returned in program.find(cst.Return):
        value = returned.value
        function = source.around(returned, cst.FunctionDef)
        if not isinstance(value, cst.Call) or function is None:
            continue
        layer = re.escape(source.code(value.func))
        is_linear = re.search(rf"{layer} = (nn\.|torch\.nn\.)?Linear\(", source.content)
        if function.name.value == "forward" and is_linear and len(value.args) == 1:
            yield source, value


def _in_parts(loss: _Loss, head: str) -> TextEdit:
    """The logits and their loss for a few positions at a time, each under a checkpoint, so that the
    backward pass computes those logits again. ``head``: the last layer's attribute of the model.
    """
    source = loss.region.source
    wanted = source.code(loss.call.args[1].value)
    more = [source.code(argument).rstrip(" ,") for argument in loss.call.args[2:]]
    no_class = source.argument(loss.call, "ignore_index")
    if not no_class:
        no_class = NOT_A_CLASS
    words = [f"{loss.model}.{head}(part)", "classes", *more, 'reduction="sum"']
    name = source.target(loss.loss)
    lines = (
        f"hidden = {source.code(loss.logits.value)}.flatten(0, -2)",
        f"wanted = {wanted}.flatten()",
        "def loss_of(part, classes):",
        f"    return {source.code(loss.call.func)}({', '.join(words)})",
        f"{name} = 0",
        f"for part in zip(hidden.split({POSITIONS}), wanted.split({POSITIONS})):",
        f"    {name} = {name} + checkpoint(loss_of, *part, use_reentrant=False)",
        f"{name} = {name} / (wanted != {no_class}).sum()",
    )
    first = source.statement(loss.logits)
    return source.instead(first, source.statement(loss.loss), lines)
