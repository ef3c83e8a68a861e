"""Collections that all calls of a function share, or all objects of a class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Edit, Results
from helpers.fix.source import Source, called
from helpers.fix.stores import Store, last_name

COLLECTIONS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter")


def changes_of_shared(stores: Sequence[Store]) -> Iterator[Change]:
    """A collection of its own for each call, or for each object."""
    for store in stores:
        yield from _new_for_each_call(store)
        yield from _new_for_each_object(store)


def _new_for_each_call(store: Store) -> Iterator[Change]:
    """The default of a parameter, which Python makes once for all calls."""
    source = store.source
    function = source.around(store.statement, cst.FunctionDef)
    if function is None:
        return
    parameters = [*function.params.params, *function.params.kwonly_params]
    for parameter in parameters:
        name = parameter.name.value
        if name != store.name or parameter.default is None or not _is_new(parameter.default):
            continue
        made = f"    {name} = {source.code(parameter.default)}"
        has_docstring = function.get_docstring() is not None
        statements = function.body.body
        first = statements[1 if has_docstring and len(statements) > 1 else 0]
        edits = (
            source.replaced(parameter.default, "None"),
            source.lines_before(first, f"if {name} is None:", made),
        )
        yield collected_anew(f"Make a new {name} in each call ({source.place(function)})", edits)


def _new_for_each_object(store: Store) -> Iterator[Change]:
    """An attribute of a class, which its objects share until they get one of their own."""
    source = store.source
    owner = source.around(store.statement, cst.ClassDef)
    if owner is None or not store.name.startswith("self."):
        return
    methods = [node for node in owner.body.body if isinstance(node, cst.FunctionDef)]
    starts = [method for method in methods if method.name.value == "__init__"]
    for statement in owner.body.body:
        value = _value_of(source, statement, last_name(store.name))
        if value is None or not starts:
            continue
        line = f"{store.name} = {source.code(value)}"
        edits = (source.lines_before(starts[0].body.body[0], line),)
        title = f"Give each object its own {store.name} ({source.place(statement)})"
        yield collected_anew(title, edits)


def _value_of(source: Source, statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """The collection that a statement of a class assigns to a name."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    for small in statement.body:
        if not isinstance(small, (cst.Assign, cst.AnnAssign)) or small.value is None:
            continue
        target = small.targets[0].target if isinstance(small, cst.Assign) else small.target
        if source.code(target) == name and _is_new(small.value):
            return small.value
    return None


def _is_new(value: cst.BaseExpression) -> bool:
    """Whether an expression makes a new collection."""
    if isinstance(value, cst.Call):
        return called(value) in COLLECTIONS
    return isinstance(value, (cst.List, cst.Dict, cst.Set))


def collected_anew(title: str, edits: tuple[Edit, ...]) -> Change:
    """A change by which something is collected from the beginning again."""
    return Change(
        title=title,
        results=Results.SAME,
        why="what was collected before no longer counts, as was probably meant",
        edits=edits,
        only_if_measured=True,
        shows_late=True,
    )
