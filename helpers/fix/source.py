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
"""A frame as allocator/stack_frames.py writes it, "train.py:36 evaluate", also after the line that
calls it (place_in_words there).
"""
ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Tuple,
    cst.List,
    cst.Dict,
)
"""Expressions on which a method can be called without parentheses."""


class SourceFile:
    """A Python file of the program. ``name``: its path below the program's folder; ``content``: its
    characters; ``text``: its bytes in UTF-8, in which places are counted, whatever its encoding is.

    Raises libcst.ParserSyntaxError where it is no Python, UnicodeDecodeError, and RecursionError
    where its expressions are too deep.
    """

    def __init__(self, name: str, text: bytes) -> None:
        self.name = name
        encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
        self.encoding = encoding
        self.content = text.decode(encoding)
        self.text = self.content.encode()
        self.module = cst.parse_module(self.content)
        # Places are asked for the nodes of this module, which a copy would not know.
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._places = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._codes: dict[cst.CSTNode, str] = {}

    def edited(self, edits: Iterable[TextEdit]) -> bytes:
        """The file with edits made, in its own encoding."""
        return edited(self.text, edits).decode().encode(self.encoding)

    def line_of(self, frame: str) -> int:
        """The line that a frame such as "train.py:36 evaluate" names; 0 where the frame is in a
        file of another name.
        """
        match = _FRAME.match(frame)
        # A frame has the file's name without its folder.
        if match is None or match[1] != self.name.rsplit("/", 1)[-1]:
            return 0
        return int(match[2])

    def code(self, node: cst.CSTNode) -> str:
        """A node as it is written."""
        if node not in self._codes:
            self._codes[node] = self.module.code_for_node(node).strip()
        return self._codes[node]

    def operand(self, node: cst.BaseExpression) -> str:
        """An expression as it is written, in parentheses where a method call on it needs them."""
        text = self.code(node)
        if isinstance(node, ATOMS) or node.lpar:
            return text
        return f"({text})"

    def target(self, assign: cst.Assign) -> str:
        """What an assignment assigns to, as it is written; of ``a = b = value`` the first."""
        return self.code(assign.targets[0].target)

    def argument(self, call: cst.Call, name: str) -> str:
        """The keyword argument of a call as it is written; empty where it has none."""
        argument = keyword(call, name)
        if argument is None:
            return ""
        return self.code(argument.value)

    def line(self, node: cst.CSTNode) -> int:
        """The first line of a node."""
        return self._places[node].start.line

    def place(self, node: cst.CSTNode) -> str:
        """Where a node begins, such as train.py:36."""
        return self.place_of(self.line(node))

    def place_of(self, line: int) -> str:
        """Where a line is, such as train.py:36."""
        return f"{self.name}:{line}"

    @cached_property
    def _nodes(self) -> list[cst.CSTNode]:
        """Every node of the file, in the order of the file."""
        return self._below(self.module)

    def _below(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """A node and all nodes below it, in the order of the file."""
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

    def names_called(self, node: cst.CSTNode) -> set[str]:
        """The functions and methods that a node calls, by their names; "" for a call without one,
        such as ``layers[0](x)``.
        """
        return {called(call) for call in self.find(cst.Call, node)}

    def loops(self, below: cst.CSTNode) -> list[cst.For | cst.CompFor]:
        """The for loops below a node, and those of its comprehensions."""
        return [*self.find(cst.For, below), *self.find(cst.CompFor, below)]

    def siblings(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """The statements of a statement's block, itself included; empty for a statement on the line
        of its condition, such as ``if done: return``.
        """
        block = self.around(statement, cst.IndentedBlock) or self.module
        if statement not in block.body:
            return []
        return list(block.body)

    def calls(self, *names: str, below: cst.CSTNode | None = None) -> list[cst.Call]:
        """Calls of functions or methods with these names, whatever stands before the dot."""
        return [call for call in self.find(cst.Call, below) if called(call) in names]

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, the innermost first."""
        while not isinstance(node, cst.Module):
            node = self._parents[node]
            yield node

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        """The node that a node is directly a part of."""
        return self._parents[node]

    def around(self, node: cst.CSTNode, kind: type[Node]) -> Node | None:
        """The innermost node of a kind around a node; None where there is none."""
        for outer in self.above(node):
            if isinstance(outer, kind):
                return outer
        return None

    def scope(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """The function around a node, or the file."""
        return self.around(node, cst.FunctionDef) or self.module

    def statement(
        self, node: cst.CSTNode
    ) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        """The statement that a node belongs to."""
        for outer in (node, *self.above(node)):
            if isinstance(outer, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                return outer
        raise ValueError(f"{self.place(node)} is in no statement")

    def statements_at(self, line: int) -> list[cst.SimpleStatementLine]:
        """The simple statements of which a line is a part."""
        return self._at(line, cst.SimpleStatementLine)

    def functions_at(self, line: int) -> list[cst.FunctionDef]:
        """The functions of which a line is a part, the innermost first."""
        return self._at(line, cst.FunctionDef)[::-1]

    def _at(self, line: int, kind: type[Node]) -> list[Node]:
        """The nodes of a kind of which a line is a part, the outermost first."""
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
        """As ``replaced``, for a node that ast parsed and not libcst."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._line_start(node.lineno) + node.col_offset
        end = self._line_start(node.end_lineno) + node.end_col_offset
        return TextEdit(self.name, start, end, text)

    def without_lines(self, statement: ast.stmt) -> TextEdit:
        """As ``without``, for a statement that ast parsed and not libcst."""
        assert statement.end_lineno is not None
        start = self._line_start(statement.lineno)
        end = self._line_start(statement.end_lineno + 1)
        return TextEdit(self.name, start, end, "")

    def with_argument(self, call: cst.Call, name: str, value: str) -> TextEdit:
        """A keyword argument of a call, set or added."""
        present = keyword(call, name)
        if present is not None:
            return self.replaced(present.value, value)
        if not call.args:
            return self.replaced(call, f"{self.code(call.func)}({name}={value})")
        return self.after(call.args[-1], f", {name}={value}")

    def after(self, node: cst.CSTNode, text: str) -> TextEdit:
        """``text`` right after a node, on its line."""
        span = self._spans[node]
        end = span.start + span.length
        return TextEdit(self.name, end, end, text)

    def lines_before(self, statement: cst.CSTNode, *lines: str) -> TextEdit:
        """New lines before a statement, as far indented as it."""
        start = self._line_start(self.line(statement))
        return TextEdit(self.name, start, start, self._indented(statement, lines))

    def lines_after(self, statement: cst.CSTNode, *lines: str) -> TextEdit:
        """New lines after a statement, as far indented as it."""
        end = self._line_start(self.end_line(statement) + 1)
        return TextEdit(self.name, end, end, self._indented(statement, lines))

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

    def _indented(self, statement: cst.CSTNode, lines: Sequence[str]) -> str:
        """Whole lines, as far indented as a statement."""
        indent = self.indent(statement)
        return "".join(f"{indent}{line}{self.module.default_newline}" for line in lines)

    def end_line(self, node: cst.CSTNode) -> int:
        """The last line of a node."""
        return self._places[node].end.line

    def indent(self, statement: cst.CSTNode) -> str:
        """The blanks before a statement on its line."""
        line = self.text.split(b"\n")[self.line(statement) - 1].decode()
        return line[: len(line) - len(line.lstrip())]

    def _line_start(self, line: int) -> int:
        """How many bytes of ``text`` are before a line (counted from 1)."""
        lines = self.text.splitlines(keepends=True)
        return sum(map(len, lines[: line - 1]))

    def within(self, first: cst.CSTNode, last: cst.CSTNode, header: str) -> TextEdit:
        """The statements from ``first`` to ``last``, indented below a line ``header``; the lines
        inside a string stay as they are.
        """
        edit = self.instead(first, last, [])
        in_strings = set[int]()
        for string in [*self.find(cst.SimpleString), *self.find(cst.FormattedString)]:
            in_strings.update(range(self.line(string) + 1, self.end_line(string) + 1))
        lines = self.text[edit.start : edit.end].decode().splitlines(keepends=True)
        text = self._indented(first, [header])
        for number, line in enumerate(lines, self.line(first)):
            if line.strip() and number not in in_strings:
                text += "    "
            text += line
        return replace(edit, text=text)

    @property
    def imports(self) -> list[cst.SimpleStatementLine]:
        """The imports at the top level of the file."""
        imports = []
        for statement in self.module.body:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            if isinstance(statement.body[0], (cst.Import, cst.ImportFrom)):
                imports.append(statement)
        return imports

    def with_import(self, line: str) -> Iterator[TextEdit]:
        """An import, unless the file has that line: below its last import of torch, else below its
        last import, else at its top, after a docstring.
        """
        if line in self.content.splitlines():
            return
        imports = [node for node in self.imports if "torch" in self.code(node)]
        if not imports:
            imports = self.imports
        first: cst.CSTNode = self.module.body[0]
        if imports:
            yield self.lines_after(imports[-1], line)
        elif self.module.get_docstring() is not None:
            yield self.lines_after(first, "", line)
        else:
            decorators = getattr(first, "decorators", ())
            if decorators:
                first = decorators[0]
            yield self.lines_before(first, line, "")

    @property
    def imports_torch(self) -> bool:
        """Whether ``import torch`` at the top level makes the name ``torch`` known to the file."""
        for statement in self.imports:
            for alias in self.find(cst.ImportAlias, statement):
                package, _, _ = alias.evaluated_name.partition(".")
                is_module = isinstance(statement.body[0], cst.Import)
                if is_module and package == "torch" and alias.asname is None:
                    return True
        return False


def called(call: cst.Call) -> str:
    """The name of the function or method that is called; empty where it has none."""
    function = call.func
    if isinstance(function, cst.Attribute):
        return function.attr.value
    if isinstance(function, cst.Name):
        return function.value
    return ""


def is_return(statement: cst.CSTNode) -> bool:
    """Whether a statement of a block returns from its function."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    return isinstance(statement.body[-1], cst.Return)


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The keyword argument of a call with that name; None where it has none."""
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return argument
    return None
