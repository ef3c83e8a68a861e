"""A source file of the program: its syntax tree with places, and edits of it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import libcst as cst
from libcst.metadata import (
    ByteSpanPositionProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
)

from helpers.fix.change import TextEdit, edited

Node = TypeVar("Node", bound=cst.CSTNode)
_FRAME = re.compile(r"(?:.*, in )?([^/\s]+\.py):(\d+)")
ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Tuple,
    cst.List,
    cst.Dict,
)


class SourceFile:
    """A Python file of the program. ``name``: its path below the program's folder; ``text``: what
    it says, in UTF-8 whatever its own encoding is.

    Raises libcst.ParserSyntaxError where it is no Python, UnicodeDecodeError, and RecursionError
    where its expressions are too deep.
    """

    def __init__(self, name: str, text: bytes) -> None:
        self.name = name
        encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
        self.encoding = encoding
        self.text = text.decode(encoding).encode()
        self.wrapper = MetadataWrapper(
            cst.parse_module(self.text.decode()), unsafe_skip_copy=True
        )
        self.module = self.wrapper.module
        self._spans = self.wrapper.resolve(ByteSpanPositionProvider)
        self._places = self.wrapper.resolve(PositionProvider)
        self._parents = self.wrapper.resolve(ParentNodeProvider)
        self._codes: dict[cst.CSTNode, str] = {}

    def edited(self, edits: Iterable[TextEdit]) -> bytes:
        """The file with edits made, in its own encoding."""
        return edited(self.text, edits).decode().encode(self.encoding)

    def line_of(self, frame: str) -> int:
        """The line that a frame such as "train.py:36 evaluate" names, 0 where it is in no such
        file.
        """
        match = _FRAME.match(frame)
        if match is None or match[1] != self.name.rsplit("/", 1)[-1]:
            return 0
        return int(match[2])

    def code(self, node: cst.CSTNode) -> str:
        """A node as it is written."""
        if node not in self._codes:
            self._codes[node] = self.module.code_for_node(node).strip()
        return self._codes[node]

    def operand(self, node: cst.BaseExpression) -> str:
        """An expression as it is written, in parentheses where a method can only be called so."""
        text = self.code(node)
        return text if isinstance(node, ATOMS) or node.lpar else f"({text})"

    def line(self, node: cst.CSTNode) -> int:
        return self._places[node].start.line

    def place(self, node: cst.CSTNode) -> str:
        """Where a node begins, such as train.py:36."""
        return self.place_of(self.line(node))

    def place_of(self, line: int) -> str:
        """Where a line is, such as train.py:36."""
        return f"{self.name}:{line}"

    @cached_property
    def _nodes(self) -> list[cst.CSTNode]:
        """Every node of the file, in its order."""
        return self._below(self.module)

    def _below(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        nodes = []
        waiting = [node]
        while waiting:
            node = waiting.pop()
            nodes.append(node)
            waiting += node.children
        return sorted(nodes, key=lambda node: self._spans[node].start)

    def find(self, kind: type[Node], below: cst.CSTNode | None = None) -> list[Node]:
        """The nodes of a kind, in the order of the file."""
        nodes = self._nodes if below is None else self._below(below)
        return [node for node in nodes if isinstance(node, kind)]

    def names_in(self, node: cst.CSTNode) -> set[str]:
        """The names that are written in a node."""
        return {name.value for name in self.find(cst.Name, node)}

    def siblings(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """The statements of the block that a statement is one of; none for what follows a condition
        on its own line.
        """
        block = self.around(statement, cst.IndentedBlock) or self.module
        return list(block.body) if statement in block.body else []

    def calls(self, *names: str, below: cst.CSTNode | None = None) -> list[cst.Call]:
        """Calls of functions or methods with these names, whatever stands before the dot."""
        return [call for call in self.find(cst.Call, below) if called(call) in names]

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, the innermost first."""
        while not isinstance(node, cst.Module):
            node = self._parents[node]
            yield node

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        return self._parents[node]

    def around(self, node: cst.CSTNode, kind: type[Node]) -> Node | None:
        """The innermost node of a kind around a node."""
        for outer in self.above(node):
            if isinstance(outer, kind):
                return outer
        return None

    def statement(
        self, node: cst.CSTNode
    ) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        """The statement that a node belongs to."""
        for outer in (node, *self.above(node)):
            if isinstance(outer, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                return outer
        raise ValueError(f"{self.place(node)} is in no statement")

    def statements_at(self, line: int) -> list[cst.SimpleStatementLine]:
        """The simple statements that a line belongs to."""
        return self._at(line, cst.SimpleStatementLine)

    def functions_at(self, line: int) -> list[cst.FunctionDef]:
        """The functions that a line belongs to, the innermost first."""
        return self._at(line, cst.FunctionDef)[::-1]

    def _at(self, line: int, kind: type[Node]) -> list[Node]:
        nodes = []
        for node in self.find(kind):
            place = self._places[node]
            if place.start.line <= line <= place.end.line:
                nodes.append(node)
        return nodes

    def replaced(self, node: cst.CSTNode, text: str) -> TextEdit:
        """``text`` in place of a node."""
        span = self._spans[node]
        return TextEdit(self.name, span.start, span.start + span.length, text)

    def in_place_of(self, node: ast.expr, text: str) -> TextEdit:
        """``text`` in place of a node that ast parsed."""
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        start = self._line_start(node.lineno) + node.col_offset
        return TextEdit(self.name, start, self._line_start(end_line) + end_column, text)

    def without_lines(self, statement: ast.stmt) -> TextEdit:
        """A statement that ast parsed taken away, with its lines."""
        end = self._line_start((statement.end_lineno or 0) + 1)
        return TextEdit(self.name, self._line_start(statement.lineno), end, "")

    def with_argument(self, call: cst.Call, name: str, value: str) -> TextEdit:
        """A keyword argument of a call, set or added."""
        present = keyword(call, name)
        if present is not None:
            return self.replaced(present.value, value)
        if not call.args:
            return self.replaced(call, f"{self.code(call.func)}({name}={value})")
        return self.after(call.args[-1], f", {name}={value}")

    def after(self, node: cst.CSTNode, text: str) -> TextEdit:
        """``text`` right behind a node, on its line."""
        span = self._spans[node]
        return TextEdit(
            self.name, span.start + span.length, span.start + span.length, text
        )

    def lines_before(self, statement: cst.CSTNode, *lines: str) -> TextEdit:
        """New lines before a statement, as far indented as it."""
        return self._inserted(self._line_start(self.line(statement)), statement, lines)

    def lines_after(self, statement: cst.CSTNode, *lines: str) -> TextEdit:
        """New lines after a statement, as far indented as it."""
        return self._inserted(
            self._line_start(self.end_line(statement) + 1), statement, lines
        )

    def _inserted(
        self, start: int, like: cst.CSTNode, lines: Sequence[str]
    ) -> TextEdit:
        return TextEdit(self.name, start, start, self._indented(like, lines))

    def without(self, statement: cst.CSTNode) -> TextEdit:
        """A statement taken away, with its line."""
        return self.instead(statement, statement, [])

    def instead(
        self, first: cst.CSTNode, last: cst.CSTNode, lines: Sequence[str]
    ) -> TextEdit:
        """Lines in place of the statements from ``first`` to ``last``, as far indented as these."""
        start = self._line_start(self.line(first))
        end = self._line_start(self.end_line(last) + 1)
        return TextEdit(self.name, start, end, self._indented(first, lines))

    def _indented(self, like: cst.CSTNode, lines: Sequence[str]) -> str:
        indent = self.indent(like)
        return "".join(f"{indent}{line}{self.module.default_newline}" for line in lines)

    def end_line(self, node: cst.CSTNode) -> int:
        """The last line of a node."""
        end = self._places[node].end
        return end.line - 1 if end.column == 0 else end.line

    def indent(self, statement: cst.CSTNode) -> str:
        """What stands before a statement on its line."""
        line = self.text.split(b"\n")[self.line(statement) - 1].decode()
        return line[: len(line) - len(line.lstrip())]

    def _line_start(self, line: int) -> int:
        lines = self.text.splitlines(keepends=True)
        return sum(map(len, lines[: line - 1]))

    def within(self, first: cst.CSTNode, last: cst.CSTNode, header: str) -> TextEdit:
        """The statements from ``first`` to ``last``, indented below a line ``header``; the lines
        inside a string stay as they are.
        """
        edit = self.instead(first, last, [])
        inside = set[int]()
        for string in [*self.find(cst.SimpleString), *self.find(cst.FormattedString)]:
            inside |= set(range(self.line(string) + 1, self.end_line(string) + 1))
        lines = self.text[edit.start : edit.end].decode().splitlines(keepends=True)
        body = ""
        for number, line in enumerate(lines, self.line(first)):
            is_kept = number in inside or not line.strip()
            body += line if is_kept else f"    {line}"
        return replace(edit, text=f"{self._indented(first, [header])}{body}")

    @property
    def imports(self) -> list[cst.SimpleStatementLine]:
        """The imports at the top level of the file."""
        return [
            statement
            for statement in self.module.body
            if isinstance(statement, cst.SimpleStatementLine)
            and isinstance(statement.body[0], (cst.Import, cst.ImportFrom))
        ]

    def with_import(self, line: str) -> Iterator[TextEdit]:
        """An import below the first ones of the file, where the line is missing."""
        if line in self.text.decode().splitlines():
            return
        torch = [
            node for node in self.imports if "torch" in self.code(node)
        ] or self.imports
        if torch:
            yield self.lines_after(torch[-1], line)
        elif self.module.get_docstring() is not None:
            yield self.lines_after(self.module.body[0], "", line)
        else:
            first = self.module.body[0]
            decorators = getattr(first, "decorators", ())
            yield self.lines_before(decorators[0] if decorators else first, line, "")

    @property
    def imports_torch(self) -> bool:
        """Whether the name ``torch`` stands for the library in the whole file."""
        for statement in self.imports:
            if not isinstance(statement.body[0], cst.Import):
                continue
            for alias in statement.body[0].names:
                package = alias.evaluated_name.split(".")[0]
                if package == "torch" and alias.asname is None:
                    return True
        return False


def called(call: cst.Call) -> str:
    """The name of the function or method that is called; empty where it has none."""
    function = call.func
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The keyword argument of a call with that name."""
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return argument
    return None
