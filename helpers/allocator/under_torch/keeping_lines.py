"""The lines of a source that put something into a collection: where a program begins to keep it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

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
    if name in INNER and "." in collection:
        name = last_name(collection.rpartition(".")[0])
    words = HOOKS.get(name, (name,))
    return _lines_where(lambda node: _adds_to(node, name), source, *words)


def carrying_lines(source: str, attribute: str) -> tuple[int, ...]:
    """The lines of a source that bind an attribute, such as "self.state", which the source reads
    as well: what one step puts there, the next one goes on with. In order; empty where nothing
    reads it, and where the source is no Python. Where an object is made, nothing is gone on with.
    """
    name = last_name(attribute)

    def is_attribute(node: ast.AST, context: type[ast.expr_context]) -> bool:
        if not isinstance(node, ast.Attribute) or node.attr != name:
            return False
        return isinstance(node.ctx, context)

    reading = _lines_where(lambda node: is_attribute(node, ast.Load), source, name)
    if not reading:
        return ()
    binding = _lines_where(lambda node: is_attribute(node, ast.Store), source, name)
    functions = functions_by_line(source)
    return tuple(line for line in binding if functions.get(line) != "__init__")


def remaking_lines(source: str, entry: str) -> tuple[int, ...]:
    """The lines of a source that make an entry, such as "stats['loss']", of what it was. In order;
    empty where none does, and where the source is no Python.
    """
    written = _without_owner(entry)
    return _lines_where(
        lambda node: _is_made_of_itself(node, written, _is_written),
        source,
        last_name(entry),
    )


def joining_lines(source: str, tensor: str) -> tuple[int, ...]:
    """The lines of a source that join a tensor, such as "self.kept", with others and bind it to the
    result: it grows each time that they run. In order; empty where none does so, and where the
    source is no Python.
    """
    written = _without_owner(tensor)
    return _lines_where(lambda node: _joins(node, written), source, last_name(tensor))


def _lines_where(
    matches: Callable[[ast.AST], bool], source: str, *words: str
) -> tuple[int, ...]:
    """The lines of a source on which a statement or an expression that matches begins, in order.
    Only a source with one of the words can have some. Empty where it is no Python.
    """
    if not any(word and re.search(rf"\b{re.escape(word)}\b", source) for word in words):
        return ()
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    lines = {
        node.lineno
        for node in nodes
        if isinstance(node, (ast.stmt, ast.expr)) and matches(node)
    }
    return tuple(sorted(lines))


def _joins(node: ast.AST, tensor: str) -> bool:
    """Whether a statement binds a tensor to the result of joining it with others."""
    if not isinstance(node, ast.Assign):
        return False
    if not any(_is_written(target, tensor) for target in node.targets):
        return False
    for call in ast.walk(node.value):
        if isinstance(call, ast.Call) and last_name(ast.unparse(call.func)) in JOINING:
            for argument in call.args:
                if any(_is_written(part, tensor) for part in _parts(argument)):
                    return True
    return False


def _is_made_of_itself(
    node: ast.AST, name: str, has_name: Callable[[ast.expr, str], bool]
) -> bool:
    """Whether a statement binds a name to something made of what it was: total += loss,
    total = total + loss, or output, state = cell(output, state).
    """
    if isinstance(node, ast.AugAssign):
        return has_name(node.target, name)
    if not isinstance(node, ast.Assign) or _is_moved(node.value):
        return False
    targets = [part for target in node.targets for part in _parts(target)]
    if not any(has_name(target, name) for target in targets):
        return False
    parts = ast.walk(node.value)
    return any(isinstance(part, ast.expr) and has_name(part, name) for part in parts)


def _is_written(expression: ast.expr, name: str) -> bool:
    """Whether an expression is written with this name and these keys, whosever it is."""
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
            functions.update(dict.fromkeys(lines_of(node), node.name))
    return functions


def lines_of(node: ast.stmt | ast.expr) -> range:
    """The lines of a statement or an expression."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def last_name(collection: str) -> str:
    """The last name in an expression: "cache" of "model.cache['k'][...]"."""
    without_keys = re.sub(r"\[[^\]]*\]", "", collection)
    return without_keys.rpartition(".")[2]


def _adds_to(node: ast.AST, name: str) -> bool:
    """Whether a statement or call puts something into what has this name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if name in HOOKS:
            return node.func.attr in HOOKS[name]
        return node.func.attr in ADDING and _is_named(node.func.value, name)
    if isinstance(node, ast.Assign):
        entries = [part for part in node.targets if isinstance(part, ast.Subscript)]
        if any(_is_named(entry.value, name) for entry in entries):
            return True
    return _is_made_of_itself(node, name, _is_named)


def _is_moved(value: ast.expr) -> bool:
    """Whether a value is a tensor in another place or form, such as state.cuda()."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    return value.func.attr in MOVING


def _parts(target: ast.expr) -> list[ast.expr]:
    """The parts of a tuple or list, and anything else as its one part."""
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _is_named(expression: ast.expr, name: str) -> bool:
    """Whether an expression ends in this name, whatever keys follow it."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Attribute):
        return expression.attr == name
    return isinstance(expression, ast.Name) and expression.id == name
