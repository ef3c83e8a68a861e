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
NOT_TENSORS = (
    cst.Integer,
    cst.Float,
    cst.SimpleString,
    cst.FormattedString,
    cst.Comparison,
)
MOST_STORES = 3
NUMBERS = ("item", "len", "int", "float", "str", "tolist", "numpy")


@dataclass(frozen=True, eq=False)
class StoreStatement:
    """A statement that puts ``value`` into a collection or an attribute, called ``into``."""

    source: SourceFile
    statement: cst.SimpleStatementLine
    into: cst.BaseExpression
    value: cst.BaseExpression

    @property
    def name(self) -> str:
        """The collection as the program writes it."""
        return self.source.code(self.into)

    @property
    def place(self) -> str:
        return self.source.place(self.statement)

    @property
    def item(self) -> cst.Subscript | None:
        """The item of a collection that it is assigned to, such as cache[key]; None for another."""
        first = self.statement.body[0]
        target = first.targets[-1].target if isinstance(first, cst.Assign) else None
        return target if isinstance(target, cst.Subscript) else None

    @property
    def method(self) -> str:
        """The method that takes it, such as append; empty for an assignment."""
        first = self.statement.body[0]
        call = first.value if isinstance(first, cst.Expr) else None
        return called(call) if isinstance(call, cst.Call) else ""


def stores_that_keep(
    program: Program, growers: Sequence[GrowerFacts]
) -> Iterator[StoreStatement]:
    """Statements that put something into what keeps the growers: on their lines, then wherever else
    the sources fill a collection of that name; where nothing does, the first few that fill any.
    """
    names = {last_name(grower.keeper) for grower in growers} - {""}
    everywhere: list[StoreStatement] = []
    for source, statement in program.find(cst.SimpleStatementLine):
        everywhere += stores_of(source, statement)
    made = set(program.places([grower.line for grower in growers]))
    asked = set(program.places([grower.asked_at for grower in growers]))
    on_line = [store for store in everywhere if _is_at(store, made)]
    on_line += [store for store in everywhere if store.method and _is_at(store, asked)]
    named = [store for store in everywhere if last_name(store.name) in names]
    filling = [store for store in everywhere if store.method]
    yield from dict.fromkeys([*on_line, *named] or filling[:MOST_STORES])


def _is_at(store: StoreStatement, places: set[tuple[SourceFile, int]]) -> bool:
    """Whether a store's statement has one of these lines."""
    first, last = (
        store.source.line(store.statement),
        store.source.end_line(store.statement),
    )
    return any(
        source is store.source and first <= line <= last for source, line in places
    )


def last_name(keeper: str) -> str:
    """Of "ex.maps['pool0']" or "self.memory" the name of the collection itself."""
    plain = re.sub(r"\[[^\]]*\]|\(\)", "", keeper)
    parts = [
        part
        for part in plain.split(".")
        if part and part not in ("state", "param_groups")
    ]
    return parts[-1] if parts else ""


def stores_of(
    source: SourceFile, statement: cst.SimpleStatementLine
) -> Iterator[StoreStatement]:
    """What a statement stores; a line of several statements is left as it is."""
    small, *others = statement.body
    value = getattr(small, "value", None)
    if others or value is None:
        return
    if isinstance(small, cst.Expr) and isinstance(value, cst.Call):
        function = value.func
        if isinstance(function, cst.Attribute) and called(value) in PUTS and value.args:
            yield StoreStatement(
                source, statement, function.value, value.args[-1].value
            )
    elif isinstance(small, cst.Assign):
        target = small.targets[-1].target
        is_combined = isinstance(
            value, (cst.BinaryOperation, cst.ListComp, cst.DictComp)
        )
        if isinstance(target, cst.Subscript):
            yield StoreStatement(source, statement, target.value, value)
        elif isinstance(target, (cst.Name, cst.Attribute)) and is_combined:
            yield StoreStatement(source, statement, target, value)
    elif isinstance(small, cst.AugAssign):
        yield StoreStatement(source, statement, small.target, value)


def is_number(source: SourceFile, value: cst.BaseExpression) -> bool:
    """Whether a value is surely no tensor: a literal, a counter of a loop, a number taken out, or a
    name that stands for such alone.
    """
    if isinstance(value, NOT_TENSORS) or source.code(value) in ("self", "None"):
        return True
    if isinstance(value, cst.UnaryOperation):
        return is_number(source, value.expression)
    if isinstance(value, cst.Call):
        return called(value) in NUMBERS
    if not isinstance(value, cst.Name):
        return False
    assigned = [
        assign.value
        for assign in source.find(cst.Assign)
        if source.code(assign.targets[0].target) == value.value
    ]
    are_numbers = all(
        not isinstance(other, cst.Name) and is_number(source, other)
        for other in assigned
    )
    return value.value in counters(source) or (bool(assigned) and are_numbers)


def counters(source: SourceFile) -> set[str]:
    """Names that loops count with."""
    names = set()
    loops: list[cst.For | cst.CompFor] = [
        *source.find(cst.For),
        *source.find(cst.CompFor),
    ]
    for loop in loops:
        over = loop.iter
        if not isinstance(over, cst.Call):
            continue
        target: cst.BaseExpression = loop.target
        if called(over) == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if called(over) in ("range", "enumerate", "trange") and isinstance(
            target, cst.Name
        ):
            names.add(target.value)
    return names
