"""The lines of a source that put something into a collection: where a program begins to keep it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeGuard

ADDING = frozenset(
    "add add_param_group append appendleft extend extendleft insert put setdefault update".split()
)
"""Methods that put something into a collection of Python's, a queue, or an optimizer's groups."""

HOOKS = {
    "_forward_hooks": ("register_forward_hook",),
    "_forward_pre_hooks": ("register_forward_pre_hook",),
    "_backward_hooks": (
        "register_full_backward_hook",
        "register_backward_hook",
        "register_hook",
    ),
    "_backward_pre_hooks": ("register_full_backward_pre_hook",),
}
"""Collections of a module or a tensor, and the methods of torch that put a hook into them."""

MOVING = frozenset("contiguous cuda double float half to".split())
"""Methods of a tensor after which it is the same elsewhere: a name bound to that keeps nothing."""

JOINING = frozenset(
    "cat column_stack concat concatenate dstack hstack row_stack vstack".split()
)
"""Functions of torch whose result has all elements of the tensors that they are given."""

INNER = ("state", "param_groups", "queue")
"""Collections inside an optimizer or a queue: what is added to them is added to that."""


def keeping_lines(source: str, collection: str) -> tuple[int, ...]:
    """The lines of a source that put something into a collection, in order.

    ``collection`` is written as the program writes it, such as "self.history" or
    "model.cache['k']". It is found again by its last name, since another function may know the
    same object by another way. Empty where no line does so, or where the source is no Python.
    """
    name = last_name(collection)
    if not name:
        return ()
    if name in INNER and "." in collection:
        name = last_name(collection.rpartition(".")[0])
    words = HOOKS.get(name, (name,))
    if not any(re.search(rf"\b{re.escape(word)}\b", source) for word in words):
        return ()
    lines = {node.lineno for node in _nodes_of(source) if _adds_to(node, name)}
    return tuple(sorted(lines))


def carrying_lines(source: str, attribute: str) -> tuple[int, ...]:
    """The lines of a source that bind an attribute, such as "self.state", which the source reads
    as well: what one step puts there, the next one goes on with. In order; empty where nothing
    reads it, and where the source is no Python. Where an object is made, nothing is gone on with.
    """
    name = last_name(attribute)
    if f".{name}" not in source:
        return ()
    nodes = [
        node
        for node in _nodes_of(source)
        if isinstance(node, ast.Attribute) and node.attr == name
    ]
    if not any(isinstance(node.ctx, ast.Load) for node in nodes):
        return ()
    functions = functions_by_line(source)
    bound = {node.lineno for node in nodes if isinstance(node.ctx, ast.Store)}
    return tuple(line for line in sorted(bound) if functions.get(line) != "__init__")


def remaking_lines(source: str, entry: str) -> tuple[int, ...]:
    """The lines of a source that make an entry, such as "stats['loss']", of what it was. In order;
    empty where none does, and where the source is no Python.
    """
    written = _without_owner(entry)
    if last_name(entry) not in source:
        return ()
    return tuple(
        sorted(node.lineno for node in _nodes_of(source) if _remakes(node, written))
    )


def joining_lines(source: str, tensor: str) -> tuple[int, ...]:
    """The lines of a source that join a tensor, such as "self.kept", with others and bind it to the
    result: it grows each time that they run. In order; empty where none does so, and where the
    source is no Python.
    """
    if last_name(tensor) not in source:
        return ()
    written = _without_owner(tensor)
    return tuple(
        sorted(node.lineno for node in _nodes_of(source) if _joins(node, written))
    )


def _joins(node: ast.AST, tensor: str) -> TypeGuard[ast.stmt]:
    if not isinstance(node, ast.Assign):
        return False
    if not any(_is_written(target, tensor) for target in node.targets):
        return False
    calls = [part for part in ast.walk(node.value) if isinstance(part, ast.Call)]
    joins = [
        call for call in calls if ast.unparse(call.func).rpartition(".")[2] in JOINING
    ]
    joined = [
        part for call in joins for argument in call.args for part in _parts(argument)
    ]
    return any(_is_written(part, tensor) for part in joined)


def _nodes_of(source: str) -> list[ast.AST]:
    """All parts of a source; none where it is no Python."""
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return []


def _remakes(node: ast.AST, entry: str) -> TypeGuard[ast.stmt]:
    if isinstance(node, ast.AugAssign):
        return _is_written(node.target, entry)
    if not isinstance(node, ast.Assign) or _is_moved(node.value):
        return False
    is_bound = any(_is_written(target, entry) for target in node.targets)
    return is_bound and any(_is_written(part, entry) for part in ast.walk(node.value))


def _is_written(expression: ast.AST, name: str) -> bool:
    is_name = isinstance(expression, (ast.Name, ast.Attribute, ast.Subscript))
    return is_name and _without_owner(ast.unparse(expression)) == name


def _without_owner(expression: str) -> str:
    """The last name with its keys: "stats['loss']" of "self.stats['loss']"."""
    name, bracket, keys = expression.partition("[")
    return name.rpartition(".")[2] + bracket + keys


def functions_by_line(source: str) -> dict[int, str]:
    """The innermost function of each line of a source that lies in one, by its number."""
    functions: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):  # outer functions come before inner ones
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            functions.update(dict.fromkeys(lines, node.name))
    return functions


def last_name(collection: str) -> str:
    """The last name in an expression: "cache" of "model.cache['k'][...]"."""
    without_keys = re.sub(r"\[[^\]]*\]", "", collection)
    return without_keys.rpartition(".")[2]


def _adds_to(node: ast.AST, name: str) -> TypeGuard[ast.expr | ast.stmt]:
    """Whether a statement or call puts something into what has this name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if name in HOOKS:
            return node.func.attr in HOOKS[name]
        return node.func.attr in ADDING and _is_named(node.func.value, name)
    if isinstance(node, ast.Assign):
        joined = _is_made_of(node, name)
        return any(_is_entry(target, name) for target in node.targets) or joined
    if isinstance(node, ast.AugAssign):
        return _is_named(node.target, name) or _is_entry(node.target, name)
    return False


def _is_made_of(node: ast.Assign, name: str) -> bool:
    """Whether a name is bound to something made of what it was: total = total + loss, or
    output, state = cell(output, state).
    """
    targets = [part for target in node.targets for part in _parts(target)]
    bound = any(_is_named(target, name) for target in targets)
    if not bound or _is_moved(node.value):
        return False
    return any(
        isinstance(part, ast.expr) and _is_named(part, name)
        for part in ast.walk(node.value)
    )


def _is_moved(value: ast.expr) -> bool:
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    return value.func.attr in MOVING


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _is_entry(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Subscript) and _is_named(target.value, name)


def _is_named(expression: ast.expr, name: str) -> bool:
    """Whether an expression ends in this name, whatever keys follow it."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Attribute):
        return expression.attr == name
    return isinstance(expression, ast.Name) and expression.id == name
