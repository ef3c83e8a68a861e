"""The forward pass in the source of a program: the statements that lead to a backward pass."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from helpers.fix.program import Located, Program
from helpers.fix.source import SourceFile

MOVES = {
    "arange",
    "clone",
    "cpu",
    "cuda",
    "device",
    "float",
    "get",
    "half",
    "items",
    "iter",
    "long",
    "next",
    "normal_",
    "ones",
    "pop",
    "rand",
    "randint",
    "randn",
    "random_",
    "randperm",
    "reshape",
    "sample",
    "tensor",
    "to",
    "train",
    "uniform_",
    "unsqueeze",
    "view",
    "zero_grad",
    "zeros",
}
"""Functions and methods that fetch, make or move a batch, and compute nothing on it."""

STEPS = ("training_step", "compute_loss")
"""Methods of trainers that compute a loss."""

GRADIENT_FREE = re.compile(
    r"no_grad|inference_mode|^(?:validation|test|predict)_step\b"
)
"""Blocks, decorators and methods of Lightning below which no gradient is computed."""

HARDLY_ANY = 0.1
"""The share of the usable memory below which a forward pass holds too little to be worth a change.
Our choice: even if nothing of it were left, 90% would be full.
"""

STATISTICS = re.compile(
    r"BatchNorm|batch_norm|torchvision|timm|SyncBatch|\.var\(|\.std\("
)
"""Layers and functions that compute over the whole batch, and libraries whose models have them."""


@dataclass(frozen=True)
class Region:
    """The forward pass before a backward pass, in one block of statements.

    ``before``: the statements of the block ahead of it; ``forward``: its own; ``zeroing``:
    statements among these that set gradients to zero, which are not in ``forward``; ``backward``:
    the backward pass; ``loss``: the name on which it is called; ``after``: the statements after it.
    """

    source: SourceFile
    before: Sequence[cst.CSTNode]
    forward: Sequence[cst.CSTNode]
    zeroing: Sequence[cst.CSTNode]
    backward: cst.CSTNode
    loss: str
    after: Sequence[cst.CSTNode]

    @property
    def first(self) -> cst.CSTNode:
        return self.forward[0]

    @property
    def last(self) -> cst.CSTNode:
        return self.forward[-1]

    @property
    def place(self) -> str:
        return self.source.place(self.first)

    @property
    def text(self) -> str:
        return "\n".join(self.source.code(statement) for statement in self.forward)

    @property
    def names(self) -> list[cst.Name]:
        """Names that its statements read or assign."""
        names: list[cst.Name] = []
        for statement in self.forward:
            names += self.source.find(cst.Name, statement)
        return names

    @property
    def assigned(self) -> set[str]:
        """Names that its statements assign to."""
        assigned = (names_assigned(self.source, node) for node in self.forward)
        return set().union(*assigned)

    @property
    def carried(self) -> set[str]:
        """Names that its statements read before they assign them: the last turn of the loop set
        them.
        """
        return reads_first(self.source, self.forward) & self.assigned

    @property
    def read_after(self) -> set[str]:
        """Names that the statements after the backward pass mention."""
        return set().union(*(self.source.names_in(node) for node in self.after))


def forward_regions(program: Program) -> Iterator[Region]:
    """The forward pass before each backward pass of the sources. A backward pass is left out where
    its block has no forward pass before it, or where the loss is none or several names.
    """
    for source, call in program.calls("backward"):
        statement = source.statement(call)
        siblings = source.siblings(statement)
        if not siblings:
            continue
        at = siblings.index(statement)
        losses, begins = _forward_before(program, source, call, siblings[:at])
        if begins == at or len(losses) != 1:
            continue
        (loss,) = losses
        inside = siblings[begins:at]
        zeroing = [node for node in inside if source.calls("zero_grad", below=node)]
        yield Region(
            source=source,
            before=siblings[:begins],
            forward=[node for node in inside if node not in zeroing],
            zeroing=zeroing,
            backward=statement,
            loss=loss,
            after=siblings[at + 1 :],
        )


def _forward_before(
    program: Program,
    source: SourceFile,
    backward: cst.Call,
    before: Sequence[cst.CSTNode],
) -> tuple[set[str], int]:
    """The names of the loss of a backward pass, and at which of the statements ``before`` it its
    forward pass begins; their number where it is not among them.

    Upwards from the backward pass, a statement that assigns a name which is wanted further down
    belongs to it, and the forward pass begins at the topmost of these that computes.
    """
    wanted = source.names_in(backward.func)
    losses: set[str] = set()
    begins = len(before)
    for position in reversed(range(len(before))):
        earlier = before[position]
        if source.calls("backward", below=earlier):  # of another forward pass
            break
        found = names_assigned(source, earlier) & wanted
        if not found:
            continue
        if not losses:
            losses = found
        wanted |= source.names_in(earlier)
        if _computes(program, source, earlier, before[:position]):
            begins = position
    return losses, begins


def reads_first(source: SourceFile, statements: Sequence[cst.CSTNode]) -> set[str]:
    """Names that statements read before they assign them."""
    first: set[str] = set()
    assigned: set[str] = set()
    for statement in statements:
        for assign in source.find(cst.Assign, statement):
            first |= source.names_in(assign.value) - assigned
        assigned |= names_assigned(source, statement)
    return first


def names_assigned(source: SourceFile, statement: cst.CSTNode) -> set[str]:
    """Names that a statement assigns to."""
    names: set[str] = set()
    for assign in source.find(cst.Assign, statement):
        for target in assign.targets:
            names |= source.names_in(target.target)
    return names


def _computes(
    program: Program,
    source: SourceFile,
    statement: cst.CSTNode,
    before: Sequence[cst.CSTNode],
) -> bool:
    """Whether a statement computes on a batch, and does not only fetch one.

    It calls something beside MOVES. Where it reads nothing that the statements ``before`` it in the
    step assigned, this must not be a function of the program that calls no module: that may fetch.
    """
    names = source.names_called(statement) - MOVES
    of_step = set().union(*(names_assigned(source, earlier) for earlier in before))
    if source.names_in(statement) & of_step:
        return bool(names)
    functions = program.functions
    return any(
        name not in functions or _calls_module(program, name, set()) for name in names
    )


def _calls_module(program: Program, name: str, seen: set[str]) -> bool:
    """Whether a function of the program calls a module, or a parameter of its own, which may be
    one; itself, or by another function. ``seen``: those that were looked at; this one is added.
    """
    seen.add(name)
    for source, function in program.find(cst.FunctionDef):
        if function.name.value != name:
            continue
        parameters = {parameter.name.value for parameter in function.params.params}
        words = {source.code(call.func) for call in source.find(cst.Call, function)}
        if any(word in parameters or program.is_module(word) for word in words):
            return True
        others = source.names_called(function) - seen
        if any(_calls_module(program, other, seen) for other in others):
            return True
    return False


def names_that_train(program: Program) -> set[str]:
    """Functions and methods through which gradients flow: ``forward`` of modules, the steps of
    trainers, what a forward pass before a backward pass calls, and what these call in turn.
    """
    waiting = {"forward", *STEPS}
    for region in forward_regions(program):
        for statement in region.forward:
            waiting |= region.source.names_called(statement)
    bodies: dict[str, set[str]] = defaultdict(set)
    for source, function in program.find(cst.FunctionDef):
        bodies[function.name.value] |= source.names_called(function)
    names: set[str] = set()
    while waiting:
        name = waiting.pop()
        names.add(name)
        waiting |= bodies[name] - names
    return names - {""}


def is_without_gradients(source: SourceFile, node: cst.CSTNode) -> bool:
    """Whether a node is in a ``with`` block or a function with no_grad or inference_mode, or in a
    step that Lightning runs without gradients.
    """
    for outer in source.above(node):
        if isinstance(outer, cst.With):
            heads = " ".join(source.code(item.item) for item in outer.items)
        elif isinstance(outer, cst.FunctionDef):
            decorators = [source.code(decorator) for decorator in outer.decorators]
            heads = " ".join([outer.name.value, *decorators])
        else:
            continue
        if GRADIENT_FREE.search(heads):
            return True
    return False


def calls_that_failed(program: Program) -> Located[cst.SimpleStatementLine]:
    """The statements that led to the refused request, the nearest first."""
    refusal = program.facts.refusal
    if refusal is None:
        return
    yield from program.statements_at([refusal.where, *refusal.callers])


def fails_in_evaluation(program: Program) -> bool:
    """Whether the refused request was made below no_grad and outside of the forward passes, so that
    nothing is kept for a backward pass.
    """
    frames = list(calls_that_failed(program))
    if not any(is_without_gradients(source, statement) for source, statement in frames):
        return False
    around: set[cst.CSTNode] = set()
    for source, statement in frames:
        around |= {statement, *source.above(statement)}
    # A trainer calls the backward pass after these, where the sources do not show it.
    for node in around:
        if isinstance(node, cst.FunctionDef) and node.name.value in STEPS:
            return False
    regions = forward_regions(program)
    return not any(around.intersection(region.forward) for region in regions)


def fails_in_step(program: Program) -> bool:
    """Whether a step of an optimizer made the refused request while weights, gradients and states
    held nearly all of the memory: hardly anything of a forward pass was left.
    """
    facts = program.facts
    # Where the recording says that an optimizer asked, it has the sizes; else the lines tell.
    if facts.refusal is not None and facts.refusal.of_optimizer:
        model_bytes = facts.asked_before_forward_bytes + facts.trained_bytes
        of_forward_bytes = facts.refusal.allocated_bytes - model_bytes
        return of_forward_bytes < HARDLY_ANY * facts.usable_bytes
    failed = next(calls_that_failed(program), None)
    if failed is None:
        return False
    source, statement = failed
    if not source.calls("step", below=statement):
        return False
    held_bytes = 0  # by the weights and the forward pass, not by gradients and states
    for row in facts.holding:
        if not _makes_states(program, row.line):
            held_bytes += row.bytes
    of_forward_bytes = held_bytes - facts.asked_before_forward_bytes
    return of_forward_bytes < HARDLY_ANY * facts.usable_bytes


def _makes_states(program: Program, frame: str) -> bool:
    """Whether the line of a frame makes gradients (backward) or an optimizer's states (step)."""
    return any(
        source.calls("backward", "step", below=statement)
        for source, statement in program.statements_at([frame])
    )
