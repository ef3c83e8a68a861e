"""Reads a notebook file: its parameters and the values they may have; of an executed one, the
status of its cells and its verdict.
"""

from __future__ import annotations

import ast
import json
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, cast

from helpers.ground.child import CHECKOUT
from helpers.ground.contract import from_json
from helpers.ground.shapes import VERDICT_MIME, Verdict
from helpers.ground.units import parse_size
from helpers.look.files import json_of
from helpers.tell.notebook_cells import INJECTED, PARAMETERS

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from nbformat import NotebookNode

NBFORMAT = 4
INJECTED_FIRST = "# Parameters\n"
"""The first line of the cell that papermill injects (papermill/translators.py, codify)."""
GUARD = "refuse_wrong_parameters"
Allowed = str | list[str] | tuple[float | None, float | None]
"""What a parameter may be: "size" (any size), one of a list of values, or a number from the first
to the second of two, None for an open end.
"""
TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "list": list,
    "dict": dict,
    "tuple": list,
}
"""The type of a value, as YAML and JSON give it, for each name in an annotation."""
MOST_SHOWN = 60
MOST_ERROR = 200
"""Letters of a refused value, and of another package's error, in a message of one line."""


class NotebookError(ValueError):
    """A file is no notebook that can be run here, or does not take the parameters. One line."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of this error in a notebook: one line, too."""
        return [str(self)]


class VerdictError(ValueError):
    """What a notebook emitted as its verdict is not one. One line."""


def open_notebook(path: Path) -> NotebookNode:
    """The notebook at ``path`` as nbformat 4.

    Raises NotebookError if it is broken, not for Python, or has a limit that is not in seconds.
    """
    nb = read_notebook(path)
    metadata = nb.metadata
    language = metadata.get("kernelspec", {}).get("language")
    if not language:
        language = metadata.get("language_info", {}).get("name")
    if language not in (None, "", "python"):
        raise NotebookError(f"{path}: written for {language}; expected Python")
    for index, cell in enumerate(nb.cells):
        limit = cell.metadata.get("timeout", 1)  # without one any number will do here
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not is_number or limit <= 0:
            raise NotebookError(
                f"{path}: cell {index}: metadata.timeout: seen {limit!r}; "
                "expected seconds above 0"
            )
    return nb


def read_notebook(path: Path) -> NotebookNode:
    """The notebook at ``path`` as nbformat 4. Raises NotebookError if it is broken."""
    try:
        raw = json_of(path)
    except OSError as error:
        raise NotebookError(
            f"{path}: cannot be read: {error.strerror}; expected a notebook"
        ) from error
    except ValueError as error:
        raise NotebookError(
            f"{path}: no JSON ({str(error)[:MOST_ERROR]}); expected a notebook (.ipynb)"
        ) from error
    version = None
    if isinstance(raw, dict):
        version = raw.get("nbformat")
    if not isinstance(version, int):
        raise NotebookError(f"{path}: no nbformat number; expected a notebook (.ipynb)")
    if version > NBFORMAT:
        raise NotebookError(
            f"{path}: nbformat {version}; this workbook reads up to "
            f"{NBFORMAT}; save it as nbformat {NBFORMAT}"
        )
    import nbformat  # here: a kernel that checks its parameters does without it

    try:
        nb: NotebookNode = nbformat.reads(json.dumps(raw), as_version=NBFORMAT)
        nbformat.validate(nb)
    # On a broken file nbformat raises KeyError, TypeError and others, not only its own errors.
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        first_line, _, _ = text.partition("\n")
        why = first_line[:MOST_ERROR]
        raise NotebookError(f"{path}: broken notebook: {why}") from error
    return nb


def parameters(nb: NotebookNode) -> dict[str, ast.expr | None]:
    """The parameters of a notebook with their annotations, None for one without: what the cell
    tagged ``parameters`` assigns, such as ``box: str = "live"``.
    """
    tagged = (
        cell.source for cell in nb.cells if PARAMETERS in cell.metadata.get("tags", [])
    )
    return _assigned(next(tagged, ""))


def _assigned(source: str) -> dict[str, ast.expr | None]:
    """The names that the source of a cell assigns, with their annotations. Raises NotebookError.

    papermill's own inspection (inspect_notebook) is not used: it drops a line with a second ``=``
    in its value or comment.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise NotebookError(
            f"its parameters cell cannot be read: line {error.lineno}: {error.msg}"
        ) from error
    kinds: dict[str, ast.expr | None] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kinds[node.target.id] = node.annotation
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    # an annotation of an earlier line stays
                    kinds.setdefault(target.id, None)
    return kinds


def allowed_values(nb: NotebookNode) -> dict[str, Allowed]:
    """The values that parameters may have, by name: the arguments of the notebook's call of
    ``refuse_wrong_parameters``; none if there is no call, or if they are not literals.
    """
    for cell in nb.cells:
        if cell.cell_type != "code" or GUARD not in cell.source:
            continue
        with suppress(SyntaxError, ValueError):  # an IPython magic; a computed value
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == GUARD:
                    return {
                        str(keyword.arg): ast.literal_eval(keyword.value)
                        for keyword in node.keywords
                    }
    return {}


def check_parameters(
    annotations: dict[str, ast.expr | None],
    values: Mapping[str, object],
    allowed: Mapping[str, Allowed] = MappingProxyType({}),
) -> None:
    """Raise NotebookError for a name that is no parameter of the notebook, a value of another type
    than its annotation, or a value that is not ``allowed``.

    ``annotations`` has all parameters of the notebook, None for one without an annotation.
    """
    for name, value in values.items():
        if name not in annotations:
            names = "(it has no parameters)"
            if annotations:
                names = ", ".join(annotations)
            raise NotebookError(f"no parameter {name!r}; expected one of {names}")
        kind = annotations[name]
        expected = ""
        if kind is not None and not _fits(value, kind):
            expected = ast.unparse(kind)
            # YAML and papermill's -p take a text such as 010 for a number.
            if expected == "str":
                expected += " (quote it; with papermill: -r)"
        elif not _is_json(value):
            expected = "text, numbers, lists; quote it"
        elif name in allowed:
            expected = _expected_instead(value, allowed[name])
        if expected:
            shown = repr(value)
            if len(shown) >= MOST_SHOWN:
                shown = shown[: MOST_SHOWN - 3] + "..."
            raise NotebookError(
                f"parameter {name!r}: seen {shown} ({type(value).__name__}); "
                f"expected {expected}"
            )


def _expected_instead(value: object, allowed: Allowed) -> str:
    """What was expected instead of a value, as the end of a sentence; empty if it is allowed. Of a
    list each item must be allowed.
    """
    if allowed == "size":
        return _expected_instead_of_size(str(value))
    if isinstance(allowed, tuple):
        least, most = allowed
        if isinstance(value, (int, float)) and _is_between(value, least, most):
            return ""
        if most is None:
            return f"{least} or more"
        return f"{least} to {most}"
    values = [value]
    if isinstance(value, list):
        values = value
    if all(item in allowed for item in values):
        return ""
    return f"one of {', '.join(allowed)}"


def _expected_instead_of_size(text: str) -> str:
    """What was expected instead of the text of a size; empty if it is one, or empty for no size."""
    if not text:
        return ""
    try:
        if parse_size(text):
            return ""
    except ValueError:
        return "a size such as 8GiB, or nothing"
    return "a size above 0"


def _is_between(value: float, least: float | None, most: float | None) -> bool:
    """Whether a number is from ``least`` to ``most``; None is an open end."""
    if least is not None and value < least:
        return False
    return most is None or value <= most


def refuse_wrong_parameters(**allowed: Allowed) -> None:
    """Check the parameters of the notebook in whose kernel this is called, and those that papermill
    injected; later errors of wrong values are shown there in one line. Raises NotebookError.

    ``allowed`` has for a parameter "size", a list of values, or a number from the first to the
    second of two, such as ``seed=(0, None)``. A plan checks its parameters in the same way before
    its first run. papermill itself only warns of a name that the notebook does not have. Outside a
    kernel nothing is checked.
    """
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return
    shell = ipython.get_ipython()
    if shell is None:
        return
    shell.set_custom_exc((ValueError, OSError), _refuse_in_one_line)
    cells = shell.user_ns.get("In", ())  # sources of the cells that have run, in order
    for source, next_source in zip(cells, [*cells[1:], ""], strict=False):
        with suppress(SyntaxError):  # an IPython magic: not the cell of parameters
            body = ast.parse(source).body
            # The first cell that begins with an annotated name is that of the parameters.
            if body and isinstance(body[0], ast.AnnAssign):
                annotations = _assigned(source)
                names = dict(annotations)
                if next_source.startswith(INJECTED_FIRST):
                    names.update(_assigned(next_source))
                values = {name: shell.user_ns.get(name) for name in names}
                check_parameters(annotations, values, allowed)
                return


def _refuse_in_one_line(
    shell: InteractiveShell,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Show an error of a cell: in one line if this project refused a value or a file is missing,
    with its traceback if another package raised it. IPython calls this (set_custom_exc).
    """
    innermost = traceback.extract_tb(trace)[-1:]
    is_ours = any(
        Path(frame.filename).is_relative_to(CHECKOUT / "helpers") for frame in innermost
    )
    line = " ".join(str(error).split())
    if isinstance(error, OSError):
        line = f"{kind.__name__}: {line}"
    if is_ours or isinstance(error, OSError):
        # IPython shows what this method of an exception returns in place of a traceback.
        cast(Any, error)._render_traceback_ = lambda: [line]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _is_json(value: object) -> bool:
    """Whether a value can be written as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _fits(value: object, kind: ast.expr) -> bool:
    """Whether a value fits an annotation; any value fits an annotation of an unknown form."""
    if isinstance(kind, ast.Constant):  # None
        return value is kind.value
    if isinstance(kind, ast.BinOp):  # int | None
        return _fits(value, kind.left) or _fits(value, kind.right)
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "list":
        # list[int]
        return isinstance(value, list) and all(
            _fits(item, kind.slice) for item in value
        )
    name = ast.unparse(kind)
    if name == "bool" or isinstance(value, bool):
        # For isinstance a bool is an int, too. It fits only ``bool`` and names of unknown types.
        return isinstance(value, bool) and name not in TYPES
    return isinstance(value, TYPES.get(name, object))


def needs_verdict(nb: NotebookNode) -> bool:
    """Whether the notebook must emit a verdict. If its metadata says ``casebook: {"verdict":
    false}``, it answers by reaching its end.
    """
    return nb.metadata.get("casebook", {}).get("verdict", True) is not False


def cell_counts(nb: NotebookNode) -> dict[str, int]:
    """How many code cells have each status of papermill, such as "completed"; the injected cell and
    empty ones do not count.
    """
    counts: Counter[str] = Counter()
    for cell in nb.cells:
        is_injected = INJECTED in cell.metadata.get("tags", [])
        if cell.cell_type == "code" and cell.source.strip() and not is_injected:
            of_papermill = cell.metadata.get("papermill", {})
            counts[of_papermill.get("status", "pending")] += 1  # pending: not begun
    return dict(counts)


def verdict_of(nb: NotebookNode) -> Verdict | None:
    """The last verdict that the notebook emitted, or None. Raises VerdictError if it is none."""
    emitted = None
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {}).get(VERDICT_MIME)
            if data is not None:
                emitted = data
    if emitted is None:
        return None
    try:
        return from_json(Verdict, emitted, "not a verdict")
    except ValueError as error:
        raise VerdictError(str(error)) from error
