"""A notebook file: is it one, which parameters it takes, and what an executed one answered."""

from __future__ import annotations

import ast
import base64
import binascii
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from helpers.shapes import VERDICT_MIME as VERDICT
from helpers.shapes import Verdict, from_json

from .shapes import Figure

NBFORMAT = 4
INJECTED, PARAMETERS = "injected-parameters", "parameters"
TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "list": list,
    "dict": dict,
    "tuple": list,
}


@contextmanager
def without(package: str) -> Iterator[None]:
    """Within, ``package`` reads as not installed to whoever imports it for the first time."""
    if package in sys.modules:
        yield
        return
    cast(Any, sys.modules)[package] = (
        None  # import then raises ImportError (the import system, 5.3.1)
    )
    try:
        yield
    finally:
        del sys.modules[package]


# jsonschema's check of IRIs compiles a grammar for a second that nothing here needs. Measured with jsonschema 4.26 and
# rfc3987-syntax 1.1: a runner starts in 0.45 s instead of 1.45 s.
with without("rfc3987_syntax"):
    importlib.import_module("nbformat")


class NotebookError(ValueError):
    """A file that is no notebook we can run, or parameters it does not take. One line."""


class VerdictError(ValueError):
    """A notebook emitted something that is no verdict. One line."""


def open_notebook(path: Path) -> Any:
    """The notebook at ``path`` as nbformat 4. Raises NotebookError."""
    import nbformat

    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotebookError(
            f"{path}: cannot be read: {error.strerror}; expected a notebook"
        ) from error
    except (ValueError, RecursionError) as error:
        raise NotebookError(
            f"{path}: no JSON ({type(error).__name__}); expected a notebook (.ipynb)"
        ) from error
    version = raw.get("nbformat") if isinstance(raw, dict) else None
    if not isinstance(version, int) or not isinstance(raw.get("metadata", {}), dict):
        raise NotebookError(f"{path}: no nbformat number; expected a notebook (.ipynb)")
    if version > NBFORMAT:
        raise NotebookError(
            f"{path}: nbformat {version}; this workbook reads up to {NBFORMAT}; save it as nbformat {NBFORMAT}"
        )
    try:
        nb = nbformat.reads(json.dumps(raw), as_version=NBFORMAT)
        nbformat.validate(nb)
    except (
        Exception
    ) as error:  # nbformat's readers raise whatever a broken file makes them stumble over
        raise NotebookError(
            f"{path}: broken notebook: {str(error).strip().splitlines()[0][:200]}"
        ) from error
    language = (
        nb.metadata.get("kernelspec", {}).get("language")
        or nb.metadata.get("language_info", {}).get("name")
        or "python"
    )
    if language != "python":
        raise NotebookError(f"{path}: written for {language}; expected Python")
    for index, cell in enumerate(nb.cells):
        limit = cell.metadata.get("timeout", 1)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit <= 0:
            raise NotebookError(
                f"{path}: cell {index}: metadata.timeout: seen {limit!r}; expected seconds above 0"
            )
    return nb


def parameters(nb: Any) -> dict[str, ast.expr | None]:
    """Names in the cell tagged ``parameters``, each with its annotation: ``box: str = "live"``.

    Read with ast: papermill's own inspection drops a line whose value or comment holds another ``=``.
    """
    found: dict[str, ast.expr | None] = {}
    for cell in nb.cells:
        if PARAMETERS in cell.metadata.get("tags", []):
            try:
                body = ast.parse(cell.source).body
            except SyntaxError as error:
                raise NotebookError(
                    f"its parameters cell cannot be read: line {error.lineno}: {error.msg}"
                ) from error
            for node in body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found[node.target.id] = node.annotation
                elif isinstance(node, ast.Assign):
                    found.update(
                        (target.id, None) for target in node.targets if isinstance(target, ast.Name)
                    )
            break
    return found


def check_parameters(known: dict[str, ast.expr | None], given: dict[str, Any]) -> None:
    """Refuse names that the notebook does not have and values of another type than annotated. Raises NotebookError."""
    for name, value in given.items():
        if name not in known:
            raise NotebookError(
                f"no parameter {name!r}; expected one of {', '.join(known) or '(it has no parameters)'}"
            )
        kind = known[name]
        if kind is not None and not _fits(value, kind):
            raise NotebookError(
                f"parameter {name!r}: seen {_short(value)}; expected {ast.unparse(kind)}"
            )
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise NotebookError(
                f"parameter {name!r}: seen {_short(value)}; expected text, numbers, lists; quote it"
            ) from error


def _fits(value: Any, kind: ast.expr) -> bool:
    """Whether a value fits an annotation; an annotation that is not understood says nothing and fits."""
    if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
        return _fits(value, ast.parse(kind.value, mode="eval").body)
    if isinstance(kind, ast.Constant):
        return value is kind.value
    if isinstance(kind, ast.BinOp):
        return _fits(value, kind.left) or _fits(value, kind.right)
    if isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name):
        inner = kind.slice
        if kind.value.id == "list":
            return isinstance(value, list) and all(_fits(one, inner) for one in value)
        return _fits(value, kind.value)
    if isinstance(kind, ast.Name):
        if kind.id == "bool" or isinstance(value, bool):
            return isinstance(value, bool) and kind.id not in TYPES
        return kind.id not in TYPES or isinstance(value, TYPES[kind.id])
    return True


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"


def needs_verdict(nb: Any) -> bool:
    """False for a notebook whose metadata says ``casebook: {"verdict": false}``: it answers by reaching its end."""
    return nb.metadata.get("casebook", {}).get("verdict", True) is not False


def reached_end(nb: Any) -> bool:
    """Whether every code cell of an executed notebook completed."""
    return all(status == "completed" for status in _statuses(nb))


def cell_counts(nb: Any) -> dict[str, int]:
    """How many code cells ended in each status of papermill, the injected one not counted."""
    return dict(Counter(_statuses(nb)))


def _statuses(nb: Any) -> list[str]:
    return [
        cell.metadata.get("papermill", {}).get("status") or "pending"
        for cell in nb.cells
        if cell.cell_type == "code"
        and cell.source.strip()
        and INJECTED not in cell.metadata.get("tags", [])
    ]


def verdict_of(nb: Any) -> Verdict | None:
    """The last verdict that the notebook emitted, or None. Raises VerdictError where that is no verdict."""
    for _, output in reversed(list(_outputs(nb))):
        emitted = output.get("data", {}).get(VERDICT)
        if emitted is None:
            continue
        try:
            return from_json(Verdict, emitted, "not a verdict")
        except ValueError as error:
            raise VerdictError(str(error)) from error
    return None


def save_figures(nb: Any, folder: Path) -> list[Figure]:
    """Write every picture of an executed notebook to ``folder/figures``; their words come from the notebook's metadata.

    Words: ``{"image/png": {"alt": ...}}`` in the output's metadata, else ``alt`` in the cell's.
    """
    figures: list[Figure] = []
    for cell, output in _outputs(nb):
        encoded = output.get("data", {}).get("image/png")
        if not isinstance(encoded, str):
            continue
        try:
            picture = base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            continue
        own = output.get("metadata", {}).get("image/png", {})
        alt = (
            (own.get("alt") if isinstance(own, dict) else "")
            or cell.metadata.get("alt")
            or "A figure without a description"
        )
        path = folder / "figures" / f"{len(figures) + 1:02d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture)
        figures.append(Figure(path=str(path.relative_to(folder)), alt=str(alt)))
    return figures


def _outputs(nb: Any) -> Iterator[tuple[Any, Any]]:
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            yield cell, output
