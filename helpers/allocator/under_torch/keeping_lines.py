"""Finds the lines of a source with which a program begins to keep an object, such as those that put
something into a collection.

A *name* here is the last one of an expression: another function may know the same object as part of
something else, so "self.history" is found again as "history" of anything.
"""

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
"""Methods that return the same tensor in another place or form: to bind its name to that keeps
nothing more.
"""

JOINING = frozenset(
    "cat column_stack concat concatenate dstack hstack row_stack vstack".split()
)
"""Functions of torch whose result has all elements of the tensors that they are given."""

INNER = ("state", "param_groups", "queue")
"""Collections inside an optimizer or a queue.Queue: the program adds to the object, not to them."""


def keeping_lines(source: str, collection: str) -> tuple[int, ...]:
    """The lines of a source that put something into a collection, in order.

    ``collection``: as the program writes it, such as "self.history" or "model.cache['k']". Empty
    where no line does so, or where the source is no Python.
    """
    name = last_name(collection)
    # The program adds to "optimizer", not to "optimizer.state".
    if name in INNER and "." in collection:
        name = last_name(collection.rpartition(".")[0])
    words = HOOKS.get(name, (name,))
    return _lines_where(lambda node: _adds_to(node, name), source, *words)


def carrying_lines(source: str, attribute: str) -> tuple[int, ...]:
    """The lines of a source that bind an attribute, such as "self.state", in order. If the source
    also reads the attribute, one step leaves a value there and the next step continues with it; so
    the answer is empty where nothing reads it. Lines in __init__ are left out, because they run
    once, before the first step. Empty also where the source is no Python.
    """
    name = last_name(attribute)

    def is_attribute(node: ast.AST, context: type[ast.expr_context]) -> bool:
        """Whether a node is that attribute of any owner, read (ast.Load) or bound (ast.Store)."""
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
    """The lines of a source that make a new value of an entry, such as "stats['loss']", from its
    old one. In order; empty where none does, and where the source is no Python.
    """
    written = _without_owner(entry)

    def remakes(node: ast.AST) -> bool:
        return _is_made_of_itself(node, written, _is_written)

    return _lines_where(remakes, source, last_name(entry))


def joining_lines(source: str, tensor: str) -> tuple[int, ...]:
    """The lines of a source that join a tensor, such as "self.kept", with others and give its name
    to the result, so that it grows each time. In order; empty where none does so, and where the
    source is no Python.
    """
    written = _without_owner(tensor)
    return _lines_where(lambda node: _joins(node, written), source, last_name(tensor))


def _lines_where(
    matches: Callable[[ast.AST], bool], source: str, *words: str
) -> tuple[int, ...]:
    """The lines, in order, on which a statement or an expression begins for which ``matches`` is
    true. Empty where the source is no Python, and where it has none of ``words``: a source without
    them cannot match, and is not parsed.
    """
    has_word = [re.search(rf"\b{re.escape(word)}\b", source) for word in words if word]
    if not any(has_word):
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
    """Whether a statement joins a tensor with others and gives its name to the result."""
    if not isinstance(node, ast.Assign):
        return False
    if not any(_is_written(target, tensor) for target in node.targets):
        return False
    for call in ast.walk(node.value):
        if not isinstance(call, ast.Call):
            continue
        if last_name(ast.unparse(call.func)) not in JOINING:
            continue
        for argument in call.args:
            if any(_is_written(part, tensor) for part in _parts(argument)):
                return True
    return False


def _is_made_of_itself(
    node: ast.AST, name: str, has_name: Callable[[ast.expr, str], bool]
) -> bool:
    """Whether a statement makes a new value of a name from its old one: total += loss,
    total = total + loss, or output, state = cell(output, state). Not state = state.cuda(), which
    keeps nothing more (MOVING). ``has_name``: tells whether an expression is that name.
    """
    if isinstance(node, ast.AugAssign):
        return has_name(node.target, name)
    if not isinstance(node, ast.Assign) or _is_moved(node.value):
        return False
    targets: list[ast.expr] = []
    for target in node.targets:
        targets += _parts(target)
    if not any(has_name(target, name) for target in targets):
        return False
    parts = ast.walk(node.value)
    return any(isinstance(part, ast.expr) and has_name(part, name) for part in parts)


def _is_written(expression: ast.expr, name: str) -> bool:
    """Whether an expression has this name and these keys, such as "stats['loss']", of any owner."""
    is_name = isinstance(expression, (ast.Name, ast.Attribute, ast.Subscript))
    return is_name and _without_owner(ast.unparse(expression)) == name


def _without_owner(expression: str) -> str:
    """The last name with its keys: "stats['loss']" of "self.stats['loss']"."""
    name, bracket, keys = expression.partition("[")
    _owner, _, last = name.rpartition(".")
    return last + bracket + keys


def functions_by_line(source: str) -> dict[int, str]:
    """By the number of a line the name of the innermost function that has it. Lines outside of all
    functions are not in the dictionary.
    """
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
    """Whether a node puts something into the collection of this name: history.append(x), for hooks
    module.register_forward_hook(f), history[k] = x, history += [x] or history = history + [x].
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if name in HOOKS:  # any owner: the program never names the collection of hooks
            return node.func.attr in HOOKS[name]
        return node.func.attr in ADDING and _is_named(node.func.value, name)
    if isinstance(node, ast.Assign):
        entries = [part for part in node.targets if isinstance(part, ast.Subscript)]
        if any(_is_named(entry.value, name) for entry in entries):
            return True
    return _is_made_of_itself(node, name, _is_named)


def _is_moved(value: ast.expr) -> bool:
    """Whether a value is only a tensor in another place or form, such as state.cuda()."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    return value.func.attr in MOVING


def _parts(target: ast.expr) -> list[ast.expr]:
    """The parts of a tuple or list; any other expression is its own single part."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return target.elts
    return [target]


def _is_named(expression: ast.expr, name: str) -> bool:
    """Whether an expression is this name of any owner, with or without keys."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Attribute):
        return expression.attr == name
    return isinstance(expression, ast.Name) and expression.id == name
