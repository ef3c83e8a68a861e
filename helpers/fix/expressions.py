"""Expressions of a program compared with patterns, however they are spelled.

A pattern is an expression whose capital letters stand for any expression: ``(A @
B.mT).softmax(-1)`` fits ``torch.softmax(q.matmul(k.transpose(-2, -1)), dim=-1)``, and it fits
``scores.softmax(-1)`` after ``scores = q @ k.mT`` where nothing else reads ``scores``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from helpers.fix.change import TextEdit
from helpers.fix.source import SourceFile

METHODS = {
    "abs",
    "argmax",
    "argmin",
    "argsort",
    "bmm",
    "exp",
    "flatten",
    "float",
    "log_softmax",
    "matmul",
    "max",
    "mean",
    "min",
    "mm",
    "norm",
    "pow",
    "reshape",
    "softmax",
    "sqrt",
    "square",
    "sum",
    "topk",
    "transpose",
    "unsqueeze",
}
"""Functions of torch that are methods of their first argument, too."""
OF_TORCH = re.compile(r"(?:torch|F|nn)(?:\.\w+)*\.\w+")
"""A function of torch as programs write it, such as F.softmax or torch.linalg.norm."""
LETTER = re.compile("[A-Z]")
"""A name of a pattern that stands for any expression."""
NOT_COMPARED = ("ctx", "kind", "type_comment")
"""Fields of a node (of Python's ast) that say nothing of what it computes."""
ROOTS = (ast.BinOp, ast.Call, ast.Subscript, ast.Attribute)
"""Expressions that are compared with the patterns; others only as parts of these."""
ORDER = ("p", "ord", "dim", "axis")
"""Keywords that may also be given by position, after the other arguments, in this order."""
TRANSPOSED = {"T", "t()", "permute(0, 1, 3, 2)", "permute(0, 2, 1)"} | {
    f"transpose({pair})"
    for pair in ("-2, -1", "-1, -2", "0, 1", "1, 2", "2, 1", "2, 3", "3, 2")
}
"""Attributes and methods that exchange the last two dimensions of a matrix, or of a batch of them:
all are spelled ``mT``.
"""
WITH_DIMENSION = {
    "0": "None",
    "1": ":, None",
    "2": ":, :, None",
    "-1": "..., None",
    "-2": "..., None, :",
    "-3": "..., None, :, :",
}
"""``unsqueeze(dim)`` as an index, by its dim."""


class _Plain(ast.NodeTransformer):
    """Rewrites expressions so that what torch lets people spell in several ways has one spelling.
    Both the program and the patterns are rewritten before they are compared.
    """

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """``torch.f(x, dim=1)`` as ``x.f(1)``, or as ``f(x, 1)`` where METHODS does not name it."""
        self.generic_visit(node)
        name = ast.unparse(node.func)
        # torch.linalg.vector_norm is norm of a vector.
        short = name.rpartition(".")[2].removeprefix("vector_")
        function = node.func
        if OF_TORCH.fullmatch(name):
            function = _at(function, ast.Name(short, ast.Load()))
            if short in METHODS and node.args:
                function = _at(node, ast.Attribute(node.args.pop(0), short, ast.Load()))
        named = {word.arg: word.value for word in node.keywords}
        arguments = [*node.args, *(named[name] for name in ORDER if name in named)]
        others = [word for word in node.keywords if word.arg not in ORDER]
        called = ast.Call(function, arguments, others)
        _at(node, called)
        if isinstance(function, ast.Attribute):
            return self._of_method(called, function.value, function.attr)
        return called

    def _of_method(self, node: ast.Call, owner: ast.expr, name: str) -> ast.expr:
        """The one spelling of a call of ``owner.name(...)``."""
        words = ", ".join(map(ast.unparse, node.args))
        method = f"{name}({words})"
        if name in ("matmul", "bmm", "mm") and len(node.args) == 1:
            return _at(node, ast.BinOp(owner, ast.MatMult(), node.args[0]))
        if method in TRANSPOSED:
            return _at(node, ast.Attribute(owner, "mT", ast.Load()))
        if method in ("pow(2)", "square()"):
            return _at(node, ast.BinOp(owner, ast.Pow(), ast.Constant(2)))
        if name == "unsqueeze" and words in WITH_DIMENSION:
            index = ast.parse(f"x[{WITH_DIMENSION[words]}]", mode="eval").body
            assert isinstance(index, ast.Subscript)
            return _at(node, ast.Subscript(owner, index.slice, ast.Load()))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """``x.T`` as ``x.mT``."""
        self.generic_visit(node)
        if node.attr in TRANSPOSED:
            node.attr = "mT"
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """``x[:, None, :]`` as ``x[:, None]``."""
        self.generic_visit(node)
        words = ast.unparse(node.slice)
        # With "..." ahead, a ``:`` at the end says which dimension is meant.
        if isinstance(node.slice, ast.Tuple) and "..." not in words:
            parts = list(node.slice.elts)
            while len(parts) > 1 and ast.unparse(parts[-1]) == ":":
                parts.pop()
            index: ast.expr = ast.Tuple(parts, ast.Load())
            if len(parts) == 1:
                index = parts[0]
            node.slice = _at(node.slice, index)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """``x * x`` and ``x ** 0.5`` as ``x ** 2`` and ``x.sqrt()``."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and _same(node.left, node.right):
            return _at(node, ast.BinOp(node.left, ast.Pow(), ast.Constant(2)))
        if isinstance(node.op, ast.Pow) and ast.unparse(node.right) == "0.5":
            root = ast.Attribute(node.left, "sqrt", ast.Load())
            return _at(node, ast.Call(root, [], []))
        return node


def _at(place: ast.expr, node: ast.expr) -> ast.expr:
    """A new node with the lines and columns of the one whose place it takes."""
    return ast.fix_missing_locations(ast.copy_location(node, place))


def _same(first: ast.AST, other: ast.AST) -> bool:
    """Whether two expressions are written alike; the places of their nodes do not count."""
    return ast.dump(first) == ast.dump(other)


@dataclass(frozen=True, eq=False)
class Assigned:
    """A statement that assigns to a name. ``value``: what it assigns, None where _assignment cannot
    tell; ``before``: the names as they were before it.
    """

    name: str
    statement: ast.stmt
    value: ast.expr | None
    before: Names


Names = Mapping[str, Assigned]
"""What the statements of a block have assigned so far."""


@dataclass(frozen=True)
class Match:
    """A place that a pattern fits. ``letters``: what its letters stand for, each with the names as
    they were there; ``through``: the assignments whose values were taken for their names.
    """

    letters: Mapping[str, tuple[ast.expr, Names]] = field(default_factory=dict)
    through: Sequence[Assigned] = ()

    def first_line(self, last: int) -> int:
        """The first line of all that the pattern fits, which ends in the line ``last``: an
        assignment that it reads through may stand further up.
        """
        return min([last, *(assigned.statement.lineno for assigned in self.through)])


@dataclass(frozen=True)
class Place:
    """An expression of a file, in its one spelling. ``names``: what was assigned before it in its
    ``block`` of statements; ``scope``: the function around it, or the file.
    """

    source: SourceFile
    node: ast.expr
    names: Names
    block: Sequence[ast.stmt]
    scope: ast.AST

    @property
    def line(self) -> int:
        return self.node.lineno

    def match(self, pattern: str) -> Match | None:
        """How a pattern fits. None where it does not; where a name that one of its letters reads
        was assigned again before this place; and where something else reads an intermediate result,
        whose assignment would be taken away.
        """
        match = _fit(_pattern(pattern), self.node, self.names, Match())
        if match is None:
            return None
        for part, names in match.letters.values():
            if _is_changed(part, names, self.names):
                return None
        for assigned in match.through:
            if not self._reads_alone(match, assigned):
                return None
        return match

    def _reads_alone(self, match: Match, assigned: Assigned) -> bool:
        """Whether nothing outside of what the pattern fits reads what a statement assigned."""
        inside = set(map(id, ast.walk(self.node)))
        for other in match.through:
            inside |= set(map(id, ast.walk(other.statement)))
        for node in self._after(assigned):
            if not isinstance(node, ast.Name) or node.id != assigned.name:
                continue
            if isinstance(node.ctx, ast.Load) and id(node) not in inside:
                return False
        return True

    def _after(self, assigned: Assigned) -> list[ast.AST]:
        """The nodes after an assignment, as far as they can read the value that it gives its name:
        to the statement that assigns the name again, else to the end of the function or file.
        """
        following: list[ast.AST] = []
        at = self.block.index(assigned.statement)
        for statement in self.block[at + 1 :]:
            following += ast.walk(statement)
            if assigned.name in _names_in(statement, ast.Store):
                return following
        last_line = self.block[-1].end_lineno
        assert last_line is not None
        for part in ast.walk(self.scope):
            if isinstance(part, ast.Name) and part.lineno > last_line:
                following.append(part)
        return following

    def text(self, match: Match, letter: str) -> str:
        """What a letter stands for, as it is written; in its one spelling where that has no place
        in the file.
        """
        node, _ = match.letters[letter]
        if isinstance(node, ast.Name):
            return node.id
        written = ast.get_source_segment(self.source.content, node)
        if not written:
            return ast.unparse(node)
        return written

    def rewritten(self, match: Match, template: str) -> tuple[TextEdit, ...]:
        """``template``, with what its letters stand for, in place of what the pattern fits; the
        assignments that it read through go.
        """

        def filled(letter: re.Match[str]) -> str:
            """What stands for a capital letter of the template; the letter if it is none."""
            if letter[0] not in match.letters:
                return letter[0]
            text = self.text(match, letter[0])
            if template[: letter.start()].endswith("["):  # a slice has no parentheses
                return text
            return f"({text})"

        written = re.sub(r"\b[A-Z]\b", filled, template)
        # Without the parentheses that it does not need.
        text = ast.unparse(ast.parse(written, mode="eval"))
        removed = [self.source.without_lines(row.statement) for row in match.through]
        return (*removed, self.source.in_place_of(self.node, text))


def _is_changed(node: ast.AST, before: Names, after: Names) -> bool:
    """Whether a name that an expression reads was assigned again between two places."""
    read = _names_in(node, ast.Load)
    return any(before.get(name) is not after.get(name) for name in read)


def _fit(pattern: ast.AST, node: ast.AST, names: Names, match: Match) -> Match | None:
    """How a part of a pattern fits a node: ``match`` and what the part adds to it; None where it
    does not fit. ``names``: what was assigned before the node.
    """
    if isinstance(pattern, ast.Name):
        if LETTER.fullmatch(pattern.id):
            return _fit_letter(pattern.id, node, names, match)
    elif isinstance(node, ast.Name) and node.id in names:
        # The pattern wants more than a name: what was assigned to the name may fit it.
        assigned = names[node.id]
        if assigned.value is None:
            return None
        through = tuple(dict.fromkeys((*match.through, assigned)))
        match = replace(match, through=through)
        return _fit(pattern, assigned.value, assigned.before, match)
    if type(pattern) is not type(node):
        return None
    further = _fit_parts(pattern, node, names, match)
    if further is not None or not isinstance(node, ast.BinOp):
        return further
    # A sum or a product fits with its two sides exchanged, too.
    if isinstance(node.op, (ast.Add, ast.Mult)):
        turned = ast.BinOp(node.right, node.op, node.left)
        return _fit_parts(pattern, turned, names, match)
    return None


def _fit_letter(letter: str, node: ast.AST, names: Names, match: Match) -> Match | None:
    """``match`` with a letter that stands for a node; None where it stands for another already."""
    if letter in match.letters:
        first, before = match.letters[letter]
        if _same(first, node) and not _is_changed(node, before, names):
            return match
        return None
    assert isinstance(node, ast.expr)
    return replace(match, letters={**match.letters, letter: (node, names)})


def _fit_parts(
    pattern: ast.AST, node: ast.AST, names: Names, match: Match
) -> Match | None:
    """How the fields of a pattern fit those of a node of the same type; None where one does not."""
    for field_name, wanted in ast.iter_fields(pattern):
        if field_name in NOT_COMPARED:
            continue
        seen = getattr(node, field_name, None)
        pairs = [(wanted, seen)]
        if isinstance(wanted, list) and isinstance(seen, list):
            if len(wanted) != len(seen):
                return None
            pairs = list(zip(wanted, seen, strict=True))
        for part, other in pairs:
            if isinstance(part, ast.AST) and isinstance(other, ast.AST):
                further = _fit(part, other, names, match)
                if further is None:
                    return None
                match = further
            elif part != other:
                return None
    return match


@cache
def _pattern(text: str) -> ast.expr:
    """A pattern in its one spelling."""
    spelled = _Plain().visit(ast.parse(text, mode="eval").body)
    assert isinstance(spelled, ast.expr)
    return spelled


def _names_in(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names that are read in a node (``context``: ast.Load), or assigned to (ast.Store)."""
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, context)}


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name and the value of ``x = y``, ``x += y``, ``x.add_(y)``, and of one of these below an
    ``if`` without ``else``. An empty name and None for any other statement.
    """
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AugAssign(target=ast.Name(id=name), op=how, value=value):
            return name, _at(value, ast.BinOp(ast.Name(name, ast.Load()), how, value))
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name() as owner)) as call
        ):
            assert isinstance(call.func, ast.Attribute)
            method = call.func.attr
            if method.endswith("_"):  # torch's methods that work in place
                function = ast.Attribute(owner, method.removesuffix("_"), ast.Load())
                result = ast.Call(function, call.args, call.keywords)
                return owner.id, _at(call, result)
        case ast.If(test=test, body=[inner], orelse=[]):
            name, set_to = _assignment(inner)
            if set_to is not None:
                unset = ast.Name(name, ast.Load())
                return name, _at(set_to, ast.IfExp(test, set_to, unset))
    return "", None


def places(source: SourceFile) -> Iterator[Place]:
    """The expressions of a file's simple statements, the outer ones first."""
    tree = _Plain().visit(ast.parse(source.content))
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.Module, ast.FunctionDef)):
            yield from _places_in(source, scope.body, scope)


def _places_in(
    source: SourceFile, block: Sequence[ast.stmt], scope: ast.AST
) -> Iterator[Place]:
    """The expressions of a block and of the blocks in it, with what their block assigned before
    each. Functions and classes in it have scopes of their own.
    """
    names: Names = {}
    for statement in block:
        for part in ("body", "orelse", "finalbody"):
            inner = getattr(statement, part, None)
            if inner and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                yield from _places_in(source, inner, scope)
        # A compound statement's own expressions, such as a condition, are not rewritten.
        if not hasattr(statement, "body"):
            for node in ast.walk(statement):
                if isinstance(node, ROOTS):
                    yield Place(source, node, names, block, scope)
        name, value = _assignment(statement)
        before = names
        names = dict(before)
        # Whatever else it assigns to, as in a block below it, has no value that is known.
        for other in _names_in(statement, ast.Store):
            names[other] = Assigned(other, statement, None, before)
        if name:
            names[name] = Assigned(name, statement, value, before)
