"""Would the tests notice? Changes one line of helpers at a time and runs the tests of its room against the change.

``python tests/mutations.py --count 150 --seed 1`` draws changes over judge, allocator, batch and share, makes each in a copy of
the checkout, and runs the room's test files there, those that name the module first, with -x and a limit of processor time.
A change that no test notices is a survivor; a change that runs into the limit counts as neither. The same seed draws the same
changes of the same tree.

``--coverage FILE`` names what ``pytest --cov --cov-context=test`` left (of pytest-cov): then only the tests that run the changed
line are run, and the files that name its module.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The test functions that run each line of each file.
Covered = dict[str, dict[int, list[str]]]
ROOMS = ("judge", "allocator", "batch", "share")
OTHER = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "//",
    ast.FloorDiv: "*", ast.Div: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    path: str
    line: int
    start: int
    end: int
    text: str


def between(left: ast.expr, right: ast.expr, operator: ast.AST, path: str) -> Iterator[Change]:
    """The operator that stands between two operands of one line, as its counterpart."""
    if type(operator) in OTHER and left.end_lineno == right.lineno:
        start = left.end_col_offset or 0
        end = right.col_offset
        yield Change(path, right.lineno, start, end, f" {OTHER[type(operator)]} ")


def changes(path: Path, name: str) -> Iterator[Change]:
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        found: list[Change] = []
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            found += between(node.left, node.comparators[0], node.ops[0], name)
        elif isinstance(node, ast.BoolOp):
            found += between(node.values[0], node.values[1], node.op, name)
        elif isinstance(node, ast.BinOp):
            found += between(node.left, node.right, node.op, name)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found.append(Change(name, node.lineno, node.col_offset, node.operand.col_offset, ""))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            end = node.end_col_offset or 0
            found.append(Change(name, node.lineno, node.col_offset, end, str(value)))
        for change in found:
            old = lines[change.line - 1].encode()[change.start : change.end].decode()
            # Between operands there may be brackets, which the change has to leave where they are.
            if not re.search(r"[()\[\]{}#]", old):
                yield change


def apply(root: Path, change: Change) -> None:
    path = root / change.path
    lines = path.read_bytes().split(b"\n")
    line = lines[change.line - 1]
    lines[change.line - 1] = line[: change.start] + change.text.encode() + line[change.end :]
    path.write_bytes(b"\n".join(lines))


def tests_of(root: Path, change: Change) -> list[str]:
    """The test files that import the change's room, those that name its module first."""
    module = change.path.removesuffix(".py").replace("/", ".")
    room = ".".join(module.split(".")[:2])
    ranked = []
    for path in sorted((root / "tests").glob("test_*.py")):
        text = path.read_text()
        named = module in text or re.search(
            rf"from {re.escape(module.rsplit('.', 1)[0])} import .*\b{module.rsplit('.', 1)[1]}\b",
            text,
        )
        if named or re.search(rf"{re.escape(room)}\b|from helpers import .*\b{room[8:]}\b", text):
            ranked.append((not named, path.stat().st_size, f"tests/{path.name}"))
    return [name for *_, name in sorted(ranked)]


def tests_through(tree: Path, change: Change, covered: Covered) -> list[str]:
    """The tests that run the changed line, and the test files that name its module.

    A statement of several lines is recorded by the lines that its bytecode names: the nearest
    one above the change is taken where the change's own is not among them.
    """
    contexts = covered.get(change.path, {})
    lines = [line for line in contexts if change.line - 5 <= line <= change.line]
    functions = set()
    for context in contexts[max(lines)] if lines else []:
        node, _, phase = context.rpartition("|")
        if phase == "run":
            functions.add(node.partition("[")[0])
    module_name = Path(change.path).stem
    named = [name for name in tests_of(tree, change) if module_name in (tree / name).read_text()]
    return sorted(functions) + named


def read_coverage(path: Path | None, tree: Path) -> Covered | None:
    """Which test functions run each line of each file, as coverage.py recorded it."""
    if path is None:
        return None
    import coverage

    data = coverage.CoverageData(basename=str(path))
    data.read()
    return {
        str(Path(file).relative_to(tree)): data.contexts_by_lineno(file)
        for file in data.measured_files()
        if Path(file).is_relative_to(tree)
    }


def outcome(tree: Path, change: Change, limit_s: int, covered: Covered | None) -> str:
    """killed, survived, limit, where the tests had not ended within their processor time, or error.

    An error is none of the tests': pytest found nothing to run, or did not come to run it.
    """

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))

    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder, "checkout")
        skip = shutil.ignore_patterns(
            ".git", ".venv", "outputs", ".oracle", "__pycache__", ".*_cache"
        )
        shutil.copytree(tree, copy, symlinks=True, ignore=skip)
        (copy / "outputs").mkdir(exist_ok=True)
        (copy / ".venv").symlink_to(Path(sys.prefix))
        apply(copy, change)
        chosen = tests_through(copy, change, covered) if covered else tests_of(copy, change)
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
        ]
        env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [*argv, *chosen],
                cwd=copy,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s * 6,
                preexec_fn=limited,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "limit"
    if done.returncode < 0:
        return "limit"
    # 2 is what pytest ends with where a test file cannot be imported.
    return {0: "survived", 1: "killed", 2: "killed"}.get(done.returncode, "error")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout to ask")
    parser.add_argument("--limit-s", type=int, default=60, help="processor time of each change")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--coverage", type=Path, help="what coverage.py recorded, with contexts")
    asked = parser.parse_args()
    tree = asked.tree.resolve()
    draw = random.Random(asked.seed)
    drawn: list[Change] = []
    for room in ROOMS:
        files = sorted((tree / "helpers" / room).rglob("*.py"))
        every = [one for path in files for one in changes(path, str(path.relative_to(tree)))]
        drawn += draw.sample(every, min(len(every), asked.count // len(ROOMS)))
    covered = read_coverage(asked.coverage, tree)
    counted: Counter[str] = Counter()
    with ThreadPoolExecutor(asked.processes) as pool:
        for change, how in zip(
            drawn,
            pool.map(lambda change: outcome(tree, change, asked.limit_s, covered), drawn),
            strict=True,
        ):
            counted[how] += 1
            row = {"file": change.path, "line": change.line, "to": change.text, "outcome": how}
            print(json.dumps(row), flush=True)
    print(json.dumps({"changes": len(drawn), **counted}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
