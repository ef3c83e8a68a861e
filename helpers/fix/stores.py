"""Statements of a program that put something into a collection or an attribute."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called
from helpers.judge.program_facts import GrowerFacts

PUTS = (
    "append",
    "appendleft",
    "add",
    "put",
    "insert",
    "extend",
    "update",
    "setdefault",
)
"""Methods of collections that put their last argument into them."""
NOT_TENSORS = (
    cst.Integer,
    cst.Float,
    cst.SimpleString,
    cst.FormattedString,
    cst.Comparison,
)
"""Expressions whose value is surely no tensor."""
MOST_STORES = 3
"""Statements that are tried where none is known to keep what grows: each costs a rehearsal."""
COUNTS = ("range", "enumerate", "trange")
"""What a loop goes over that counts; trange is tqdm's."""
NUMBERS = ("item", "len", "int", "float", "str", "tolist", "numpy")
"""Functions and methods whose results are no tensors of the GPU."""


@dataclass(frozen=True, eq=False)
class StoreStatement:
    """A statement that puts ``value`` ``into`` a collection, an attribute or a variable.

    ``method``: by which it does, such as append, else empty; ``item``: the item to which it assigns
    the value, such as cache[key], else None.
    """

    source: SourceFile
    statement: cst.SimpleStatementLine
    into: cst.BaseExpression
    value: cst.BaseExpression
    method: str = ""
    item: cst.Subscript | None = None

    @property
    def name(self) -> str:
        """The collection as the program writes it."""
        return self.source.code(self.into)

    @property
    def place(self) -> str:
        return self.source.place(self.statement)


def stores_that_keep(
    program: Program, growers: Sequence[GrowerFacts]
) -> Iterator[StoreStatement]:
    """Statements that put something into what keeps the growers: those on their lines, then those
    elsewhere that fill a collection of that name; where there are none, the first MOST_STORES that
    fill any collection.
    """
    names = {last_name(grower.keeper) for grower in growers} - {""}
    everywhere: list[StoreStatement] = []
    for source, statement in program.find(cst.SimpleStatementLine):
        everywhere += stores_of(source, statement)
    making = _statements_of(program, [grower.line for grower in growers])
    asking = _statements_of(program, [grower.asked_at for grower in growers])
    filling = [store for store in everywhere if store.method]
    stores = [store for store in everywhere if store.statement in making]
    stores += [store for store in filling if store.statement in asking]
    stores += [store for store in everywhere if last_name(store.name) in names]
    if not stores:
        stores = filling[:MOST_STORES]
    yield from dict.fromkeys(stores)


def _statements_of(
    program: Program, frames: Sequence[str]
) -> set[cst.SimpleStatementLine]:
    """The statements on the lines of frames."""
    return {statement for _, statement in program.statements_at(frames)}


def last_name(keeper: str) -> str:
    """The name of the collection itself: maps of "ex.maps['pool0']", memory of "self.memory". Of an
    optimizer's state or param_groups, which programs do not fill by name, that of the optimizer.
    """
    plain = re.sub(r"\[[^\]]*\]|\(\)", "", keeper)  # without indices and calls
    for part in reversed(plain.split(".")):
        if part and part not in ("state", "param_groups"):
            return part
    return ""


def stores_of(
    source: SourceFile, statement: cst.SimpleStatementLine
) -> Iterator[StoreStatement]:
    """What a statement stores, as one StoreStatement or none. A line of several statements, divided
    by semicolons, is left as it is.
    """
    small, *others = statement.body
    value = getattr(small, "value", None)
    if others or value is None:
        return
    if isinstance(small, cst.Expr) and isinstance(value, cst.Call):
        function = value.func
        if isinstance(function, cst.Attribute) and called(value) in PUTS and value.args:
            stored = value.args[-1].value
            yield StoreStatement(
                source, statement, function.value, stored, method=called(value)
            )
    elif isinstance(small, cst.Assign):
        target = small.targets[-1].target
        # A variable keeps more with each step only if its value is put together of several.
        combined = (cst.BinaryOperation, cst.ListComp, cst.DictComp)
        is_combined = isinstance(value, combined)
        if isinstance(target, cst.Subscript):
            yield StoreStatement(source, statement, target.value, value, item=target)
        elif isinstance(target, (cst.Name, cst.Attribute)) and is_combined:
            yield StoreStatement(source, statement, target, value)
    elif isinstance(small, cst.AugAssign):
        yield StoreStatement(source, statement, small.target, value)


def is_number(source: SourceFile, value: cst.BaseExpression) -> bool:
    """Whether a value is surely no tensor: a literal, the counter of a loop, the result of one of
    NUMBERS, or a variable to which the file assigns only such values.
    """
    if isinstance(value, NOT_TENSORS) or source.code(value) in ("self", "None"):
        return True
    if isinstance(value, cst.UnaryOperation):
        return is_number(source, value.expression)
    if isinstance(value, cst.Call):
        return called(value) in NUMBERS
    if not isinstance(value, cst.Name):
        return False
    if value.value in counters(source):
        return True
    assigns = source.find(cst.Assign)
    values = [row.value for row in assigns if source.target(row) == value.value]
    # Two names may be assigned to each other, which would never end.
    if any(isinstance(other, cst.Name) for other in values):
        return False
    return bool(values) and all(is_number(source, other) for other in values)


def counters(source: SourceFile) -> set[str]:
    """The variables in which loops count: the target of a loop over range or trange, and the first
    one of a loop over enumerate.
    """
    names = set()
    for loop in source.loops(source.module):
        if not isinstance(loop.iter, cst.Call):
            continue
        counts = called(loop.iter)
        target: cst.BaseExpression = loop.target
        if counts == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if counts in COUNTS and isinstance(target, cst.Name):
            names.add(target.value)
    return names
