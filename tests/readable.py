#!/usr/bin/env python3
"""How readable the code of a folder is, in counts that packing lines cannot improve.

    readable.py FOLDER [FOLDER...] [--top 15] [--json]

For every room (first folder below FOLDER): tokens of Python without comments and docstrings, other code and data beside it, and
how often, per 1,000 tokens, the packed forms stand that the codebases held up as models hardly use. The same on every Python from
3.9 on (an f-string is one token). Standard library only. Ours; may be brought into the project as a test.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

FORMS = {
    "tuple": "unrelated values bound in one statement: a, b = x, y; a, b = [x, y]; a = x; b = y",
    "ternary": "conditional expressions",
    "nested": "a conditional expression inside another",
    "truth": "arithmetic with or index by a truth value: x * bool(y), n * (a < b), (p, q)[c], {True: p}[c]",
    "or_value": "`and`/`or` used for a value that is no truth value",
    "walrus": "assignment expressions",
    "double_for": "comprehensions with two `for`, or one inside another",
    "any": "uses of Any",
    "star_dict": "keyword arguments carried in a variable: f(**options)",
    "rebound": "a name of the module bound twice",
    "header": "a comment at column 0 that heads a second part of the file",
    "vague": "functions, parameters, loop variables and locals with names that say nothing (VAGUE)",
    "wide": "lines above 100 columns",
    "dynamic": "eval or exec",
}
VAGUE = frozenset(
    "one ones found made given told there here own known whole asked held each then what thing things it that these".split()
)
OTHER_CODE = {".c", ".h", ".def", ".js", ".j2", ".sql", ".sh", ".css"}
DATA = {".json", ".yaml", ".yml", ".tsv", ".csv", ".txt"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Room:
    tokens: int = 0
    lines: int = 0
    code_lines: int = 0
    files: int = 0
    functions: int = 0
    other_code_bytes: int = 0
    data_bytes: int = 0
    forms: Counter = field(default_factory=Counter)
    worst: list = field(default_factory=list)

    def add(self, other: Room) -> None:
        for name in (
            "tokens",
            "lines",
            "code_lines",
            "files",
            "functions",
            "other_code_bytes",
            "data_bytes",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.forms += other.forms
        self.worst += other.worst

    def rate(self, form: str) -> float:
        return 1000 * self.forms[form] / max(1, self.tokens)


def count_tokens(text: str) -> tuple[int, int]:
    """Tokens without comments, and lines that hold code. An f-string is one token, whatever Python tokenises it."""
    start = getattr(tokenize, "FSTRING_START", None)
    end = getattr(tokenize, "FSTRING_END", None)
    counted = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    tokens = 0
    depth = 0
    code_lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == start:
            depth += 1
            if depth == 1:
                tokens += 1
        elif token.type == end:
            depth -= 1
        elif token.type in counted and depth == 0:
            tokens += 1
        if token.type in counted or token.type in (start, end):
            code_lines.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(code_lines)


def docstrings(tree: ast.AST) -> tuple[int, int]:
    """Strings that stand alone as statements (docstrings and notes below a name), and their lines."""
    count = 0
    lines = 0
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            count += 1
            lines += node.end_lineno - node.lineno + 1
    return count, lines


def is_truth(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.BoolOp):
        return any(is_truth(part) for part in node.values)
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return named and node.func.id in (
        "bool",
        "any",
        "all",
        "isinstance",
        "issubclass",
        "hasattr",
        "callable",
    )


def is_plain_value(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, int, float, bytes)) and not isinstance(node.value, bool)
    return isinstance(
        node, (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.BinOp, *COMPREHENSIONS)
    )


def names_in(node: ast.AST) -> set[str]:
    return {leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}


def is_packed(node: ast.Assign) -> bool:
    several = (ast.Tuple, ast.List)
    if not isinstance(node.targets[0], several) or not isinstance(node.value, several):
        return False
    swap = names_in(node.targets[0]) <= names_in(node.value)
    return not swap


def is_truth_index(node: ast.Subscript) -> bool:
    if is_truth(node.slice):
        return True
    return isinstance(node.value, ast.Dict) and any(
        isinstance(key, ast.Constant) and isinstance(key.value, bool) for key in node.value.keys
    )


def count_forms(tree: ast.Module, text: str) -> Counter:
    forms: Counter = Counter()
    in_condition = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            in_condition.update(id(leaf) for leaf in ast.walk(node.test))
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                in_condition.update(id(leaf) for leaf in ast.walk(test))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            forms["tuple"] += is_packed(node)
        elif isinstance(node, ast.IfExp):
            forms["ternary"] += 1
            parts = (node.body, node.orelse, node.test)
            forms["nested"] += any(
                isinstance(leaf, ast.IfExp) for part in parts for leaf in ast.walk(part)
            )
        elif isinstance(node, ast.BinOp) and isinstance(
            node.op, (ast.Mult, ast.Add, ast.Sub, ast.Mod)
        ):
            forms["truth"] += is_truth(node.left) or is_truth(node.right)
        elif isinstance(node, ast.Subscript):
            forms["truth"] += is_truth_index(node)
        elif isinstance(node, ast.NamedExpr):
            forms["walrus"] += 1
        elif isinstance(node, COMPREHENSIONS):
            inner = any(
                isinstance(leaf, COMPREHENSIONS) for leaf in ast.walk(node) if leaf is not node
            )
            forms["double_for"] += len(node.generators) > 1 or inner
        elif isinstance(node, ast.Name):
            forms["any"] += node.id == "Any"
        elif isinstance(node, ast.Attribute):
            forms["any"] += node.attr == "Any"
        elif isinstance(node, ast.BoolOp) and id(node) not in in_condition:
            mixed = isinstance(node.op, ast.Or) and any(
                isinstance(part, ast.BoolOp) and isinstance(part.op, ast.And)
                for part in node.values
            )
            forms["or_value"] += any(is_plain_value(part) for part in node.values) or (
                mixed and not is_truth(node)
            )
        elif isinstance(node, ast.Call):
            forms["star_dict"] += sum(
                word.arg is None and isinstance(word.value, (ast.Name, ast.Attribute))
                for word in node.keywords
            )
            forms["dynamic"] += isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
        elif isinstance(node, FUNCTIONS):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            forms["vague"] += (node.name.lstrip("_") in VAGUE) + sum(
                argument.arg in VAGUE for argument in arguments
            )
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            forms["vague"] += node.id in VAGUE
    forms["tuple"] += statements_on_one_line(tree)
    forms["rebound"] += rebound(tree)
    forms["header"] += headers(text)
    forms["wide"] += sum(len(line) > 100 for line in text.splitlines())
    return forms


def statements_on_one_line(tree: ast.Module) -> int:
    starts: Counter = Counter()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)):
            starts[node.lineno] += 1
    return sum(count - 1 for count in starts.values() if count > 1)


def rebound(tree: ast.Module) -> int:
    bound: Counter = Counter()
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            bound.update(
                leaf.id
                for target in statement.targets
                for leaf in ast.walk(target)
                if isinstance(leaf, ast.Name)
            )
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            bound[statement.target.id] += 1
        elif isinstance(statement, (*FUNCTIONS, ast.ClassDef)) and not statement.decorator_list:
            bound[statement.name] += 1
    return sum(count > 1 for count in bound.values())


def headers(text: str) -> int:
    count = 0
    previous = ""
    seen_code = False
    for line in text.splitlines():
        starts_comment = line.startswith("# ") and not previous.startswith("#")
        count += starts_comment and not previous.strip() and seen_code
        seen_code = seen_code or line.startswith(("def ", "class ", "async def "))
        previous = line
    return count


def measure(root: Path) -> dict[str, Room]:
    rooms: dict[str, Room] = {}
    for path in sorted(root.rglob("*")):
        if not path.is_file() or any(
            part in ("__pycache__", ".venv", "node_modules") for part in path.parts
        ):
            continue
        inside = path.relative_to(root)
        name = inside.parts[0] if len(inside.parts) > 1 else "(top)"
        room = rooms.setdefault(name, Room())
        if path.suffix == ".py":
            room.add(measure_file(path, str(inside)))
        elif path.suffix in OTHER_CODE:
            room.other_code_bytes += path.stat().st_size
        elif path.suffix in DATA:
            room.data_bytes += path.stat().st_size
    return rooms


def measure_file(path: Path, name: str) -> Room:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    tokens, code_lines = count_tokens(text)
    strings, string_lines = docstrings(tree)
    room = Room(
        tokens=tokens - strings,
        lines=text.count("\n"),
        code_lines=code_lines - string_lines,
        files=1,
    )
    room.functions = sum(isinstance(node, FUNCTIONS) for node in ast.walk(tree))
    room.forms = count_forms(tree, text)
    packed = sum(
        count for form, count in room.forms.items() if form not in ("any", "wide", "vague")
    )
    room.worst = [(round(1000 * packed / max(300, room.tokens), 1), name)]
    return room


def as_json(room: Room) -> dict:
    values = {
        name: getattr(room, name)
        for name in room.__dataclass_fields__
        if name not in ("forms", "worst")
    }
    values["per_1000_tokens"] = {form: round(room.rate(form), 2) for form in FORMS}
    return values


def print_table(root: Path, rooms: dict[str, Room], total: Room, top: int) -> None:
    per_line = total.tokens / max(1, total.code_lines)
    print(
        f"{root}: {total.tokens:,} tokens, {total.lines:,} lines ({per_line:.1f} tokens a line of code), {total.files} files, "
        f"{total.functions:,} functions; other code {total.other_code_bytes // 1024:,} KiB, data {total.data_bytes // 1024:,} KiB"
    )
    print(
        f"  {'room':<12} {'tokens':>8} {'files':>5} "
        + " ".join(f"{form:>10}" for form in FORMS)
        + "   per 1,000 tokens"
    )
    for name, room in [*rooms.items(), ("TOTAL", total)]:
        rates = " ".join(f"{room.rate(form):>10.2f}" for form in FORMS)
        print(f"  {name:<12} {room.tokens:>8,} {room.files:>5} {rates}")
    worst = sorted(total.worst, reverse=True)[:top]
    print("  most packed files: " + ", ".join(f"{name} {score}" for score, name in worst))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("helpers")])
    parser.add_argument("--top", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {}
    for root in arguments.folders:
        rooms = measure(root)
        total = Room()
        for room in rooms.values():
            total.add(room)
        if arguments.json:
            report[str(root)] = {
                "total": as_json(total),
                "rooms": {name: as_json(room) for name, room in rooms.items()},
            }
        else:
            print_table(root, rooms, total, arguments.top)
    if arguments.json:
        print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
