"""Statements of a program that put something into a collection or an attribute."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.program import Program
from helpers.fix.source import Source, called
from helpers.judge.program_facts import GrowerFacts

JOINS = ("cat", "concat", "concatenate", "vstack", "hstack")
PUTS_INTO_FIRST = ("heappush", "heappushpop", "insort", "setattr")
PUTS = ("append", "appendleft", "add", "put", "insert", "extend", "push", "update", "setdefault")

NOT_TENSORS = (cst.Integer, cst.Float, cst.SimpleString, cst.FormattedString, cst.Comparison)
MOST_STORES = 3
NUMBERS = ("item", "len", "int", "float", "str", "tolist", "numpy", "time", "perf_counter")


class Store:
    """A statement that puts ``value`` into a collection or an attribute, called ``into``."""

    def __init__(
        self,
        source: Source,
        statement: cst.SimpleStatementLine,
        into: cst.BaseExpression,
        value: cst.BaseExpression,
    ) -> None:
        self.source = source
        self.statement = statement
        self.into = into
        self.value = value

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
    def is_sum(self) -> bool:
        """Whether it adds to one number or tensor, such as total += loss, and to no collection."""
        if not isinstance(self.statement.body[0], cst.AugAssign):
            return False
        return not isinstance(self.value, (cst.List, cst.Tuple, cst.ListComp, cst.Dict))

    @property
    def method(self) -> str:
        """The method that takes it, such as append; empty for an assignment."""
        first = self.statement.body[0]
        call = first.value if isinstance(first, cst.Expr) else None
        return called(call) if isinstance(call, cst.Call) else ""


def stores_that_keep(program: Program, growers: Sequence[GrowerFacts]) -> Iterator[Store]:
    """Statements that put something into what keeps the growers: on their lines, then wherever
    else the sources fill a collection of that name; where nothing does, the first few that fill any.
    """
    seen: set[tuple[str, int]] = set()
    names = {last_name(grower.keeper) for grower in growers} - {""}
    stores: list[Store] = []
    for source, line in program.places([grower.line for grower in growers]):
        for statement in source.statements_at(line):
            stores += stores_of(source, statement)
    for source, line in program.places([grower.asked_at for grower in growers]):
        for statement in source.statements_at(line):
            stores += [store for store in stores_of(source, statement) if store.method]
    stores += [store for store in _all_stores(program) if last_name(store.name) in names]
    if not stores:
        stores = [store for store in _all_stores(program) if store.method][:MOST_STORES]
    for store in stores:
        key = (store.source.name, store.source.line(store.statement))
        if key not in seen:
            seen.add(key)
            yield store


def _all_stores(program: Program) -> Iterator[Store]:
    for source, statement in program.find(cst.SimpleStatementLine):
        yield from stores_of(source, statement)


def last_name(keeper: str) -> str:
    """Of "ex.maps['pool0']" or "self.memory" the name of the collection itself."""
    plain = re.sub(r"\[[^\]]*\]|\(\)", "", keeper)
    parts = [part for part in plain.split(".") if part and part not in ("state", "param_groups")]
    return parts[-1] if parts else ""


def stores_of(source: Source, statement: cst.SimpleStatementLine) -> Iterator[Store]:
    """What a statement stores; a line of several statements is left as it is."""
    small, *others = statement.body
    if others:
        return
    expression = getattr(small, "value", None)
    if isinstance(small, cst.Expr) and isinstance(expression, cst.Call):
        function = expression.func
        if isinstance(function, cst.Attribute) and function.attr.value in PUTS and expression.args:
            yield Store(source, statement, function.value, expression.args[-1].value)
        if called(expression) in PUTS_INTO_FIRST and len(expression.args) > 1:
            yield Store(source, statement, expression.args[0].value, expression.args[-1].value)
    elif isinstance(small, cst.Assign) and expression is not None:
        target = small.targets[-1].target
        if isinstance(target, cst.Subscript):
            yield Store(source, statement, target.value, expression)
        elif isinstance(target, (cst.Name, cst.Attribute)) and (
            isinstance(expression, (cst.BinaryOperation, cst.ListComp, cst.DictComp))
            or joins(source, small)
        ):
            yield Store(source, statement, target, expression)
    elif isinstance(small, cst.AugAssign):
        yield Store(source, statement, small.target, small.value)


def joins(source: Source, assign: cst.Assign) -> bool:
    """Whether an assignment puts something behind the tensor that it assigns to."""
    value = assign.value
    if not isinstance(value, cst.Call) or called(value) not in JOINS:
        return False
    name = source.code(assign.targets[-1].target)
    parts = source.find(cst.Element, value.args[0]) if value.args else []
    return any(source.code(part.value) == name for part in parts)


def is_number(source: Source, value: cst.BaseExpression) -> bool:
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
        not isinstance(other, cst.Name) and is_number(source, other) for other in assigned
    )
    return value.value in counters(source) or (bool(assigned) and are_numbers)


def counters(source: Source) -> set[str]:
    """Names that loops count with."""
    names = set()
    loops: list[cst.For | cst.CompFor] = [*source.find(cst.For), *source.find(cst.CompFor)]
    for loop in loops:
        over = loop.iter
        if not isinstance(over, cst.Call):
            continue
        target: cst.BaseExpression = loop.target
        if called(over) == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if called(over) in ("range", "enumerate", "trange") and isinstance(target, cst.Name):
            names.add(target.value)
    return names
