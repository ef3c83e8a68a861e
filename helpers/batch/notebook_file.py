"""A notebook file: is it one, which parameters it takes, and what an executed one answered."""

from __future__ import annotations

import ast
import json
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
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
INJECTED_FIRST = "# Parameters\n"  # how papermill begins that cell (papermill/translators.py, codify)
GUARD = "refuse_wrong_parameters"
Allowed = str | list[str] | tuple[float | None, float | None]
"""What a parameter may be: a "size", one of a list of values, or a number between two."""
TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "list": list,
    "dict": dict,
    "tuple": list,
}


class NotebookError(ValueError):
    """A file that is no notebook we can run, or parameters it does not take.

    One line, in a notebook too.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class VerdictError(ValueError):
    """A notebook emitted something that is no verdict. One line."""


def open_notebook(path: Path) -> NotebookNode:
    """The notebook at ``path`` as nbformat 4, for Python and with limits that are seconds.

    Raises NotebookError.
    """
    nb = read_notebook(path)
    metadata = nb.metadata
    language = metadata.get("kernelspec", {}).get("language")
    if not language:
        language = metadata.get("language_info", {}).get("name")
    if language not in (None, "", "python"):
        raise NotebookError(f"{path}: written for {language}; expected Python")
    for index, cell in enumerate(nb.cells):
        limit = cell.metadata.get("timeout", 1)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit <= 0:
            raise NotebookError(
                f"{path}: cell {index}: metadata.timeout: seen {limit!r}; "
                "expected seconds above 0"
            )
    return nb


def read_notebook(path: Path) -> NotebookNode:
    """The notebook at ``path`` as nbformat 4. Raises NotebookError where it is broken."""
    try:
        raw = json_of(path)
    except OSError as error:
        raise NotebookError(
            f"{path}: cannot be read: {error.strerror}; expected a notebook"
        ) from error
    except ValueError as error:
        raise NotebookError(
            f"{path}: no JSON ({str(error)[:80]}); expected a notebook (.ipynb)"
        ) from error
    version = raw.get("nbformat") if isinstance(raw, dict) else None
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
    # nbformat's readers raise whatever a broken file makes them stumble over.
    except Exception as error:
        why = str(error).strip() or type(error).__name__
        first_line, _, _ = why.partition("\n")
        raise NotebookError(f"{path}: broken notebook: {first_line[:200]}") from error
    return nb


def parameters(nb: NotebookNode) -> dict[str, ast.expr | None]:
    """Names in the cell tagged ``parameters``, each with its annotation: ``box: str = "live"``."""
    tagged = (
        cell.source for cell in nb.cells if PARAMETERS in cell.metadata.get("tags", [])
    )
    return _assigned(next(tagged, ""))


def _assigned(source: str) -> dict[str, ast.expr | None]:
    """The names that a cell assigns, with their annotations.

    Read with ast: papermill's own inspection drops a line whose value or comment holds another
    ``=``.
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
                    kinds.setdefault(target.id, None)
    return kinds


def allowed_values(nb: NotebookNode) -> dict[str, Allowed]:
    """What the notebook says its parameters may be, in its call of ``refuse_wrong_parameters``."""
    sources = (cell.source for cell in nb.cells if cell.cell_type == "code")
    for source in sources:
        if GUARD not in source:
            continue
        with suppress(SyntaxError, ValueError):  # a magic, or values that are computed
            for node in ast.walk(ast.parse(source)):
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
    """Refuse names that the notebook does not have, values of another type than annotated, and
    values that are not ``allowed``.

    ``annotations``: of each parameter that the notebook has. Raises NotebookError.
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
            if expected == "str":
                expected += " (quote it; with papermill: -r)"
        elif not _is_json(value):
            expected = "text, numbers, lists; quote it"
        elif name in allowed:
            expected = _expected_instead(value, allowed[name])
        if expected:
            shown = repr(value)
            if len(shown) >= 60:
                shown = shown[:57] + "..."
            raise NotebookError(
                f"parameter {name!r}: seen {shown} ({type(value).__name__}); "
                f"expected {expected}"
            )


def _expected_instead(value: object, allowed: Allowed) -> str:
    """What was expected in place of a value; empty where it is allowed."""
    if allowed == "size":
        if value == "":
            return ""
        try:
            return "" if parse_size(str(value)) else "a size above 0"
        except ValueError:
            return "a size such as 8GiB, or nothing"
    if isinstance(allowed, tuple):
        least, most = allowed
        if isinstance(value, (int, float)) and _is_between(value, least, most):
            return ""
        return f"{least} or more" if most is None else f"{least} to {most}"
    chosen = value if isinstance(value, list) else [value]
    if all(item in allowed for item in chosen):
        return ""
    return f"one of {', '.join(allowed)}"


def _is_between(value: float, least: float | None, most: float | None) -> bool:
    """Whether a number lies between two, of which each may be open."""
    return (least is None or value >= least) and (most is None or value <= most)


def refuse_wrong_parameters(**allowed: Allowed) -> None:
    """Check the parameters of the notebook whose kernel this is, with those that papermill injected
    (``check_parameters``); from then on a value that the workbook refuses is refused in one line.

    ``allowed`` says of a parameter that it is a "size", one of a list of values, or a number from
    the first to the second of two, such as ``seed=(0, None)``. A plan is checked in the same way
    before its first run. papermill only warns of a name that a notebook does not have. Outside a
    kernel nothing is checked. Raises NotebookError.
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return
    shell.set_custom_exc((ValueError, OSError), _refuse_in_one_line)
    cells = shell.user_ns.get("In", ())
    for source, next_source in zip(cells, [*cells[1:], ""], strict=False):
        with suppress(SyntaxError):  # a magic: no cell of parameters
            body = ast.parse(source).body
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
    """Show an error of a cell: without its traceback where the workbook refused a value, and where
    a file is missing. What another package raised keeps its traceback.
    """
    frames = traceback.extract_tb(trace)
    is_ours = bool(frames) and Path(frames[-1].filename).is_relative_to(
        CHECKOUT / "helpers"
    )
    line = " ".join(str(error).split())
    if isinstance(error, OSError):
        line = f"{kind.__name__}: {line}"
    if is_ours or isinstance(error, OSError):
        cast(Any, error)._render_traceback_ = lambda: [line]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _fits(value: object, kind: ast.expr) -> bool:
    """Whether a value fits an annotation; one that is not understood fits any value."""
    if isinstance(kind, ast.Constant):
        return value is kind.value
    if isinstance(kind, ast.BinOp):
        return _fits(value, kind.left) or _fits(value, kind.right)
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "list":
        return isinstance(value, list) and all(
            _fits(item, kind.slice) for item in value
        )
    name = ast.unparse(kind)
    if name == "bool" or isinstance(value, bool):
        return isinstance(value, bool) and name not in TYPES
    return isinstance(value, TYPES.get(name, object))


def needs_verdict(nb: NotebookNode) -> bool:
    """False for a notebook whose metadata says ``casebook: {"verdict": false}``: it answers by
    reaching its end.
    """
    return nb.metadata.get("casebook", {}).get("verdict", True) is not False


def cell_counts(nb: NotebookNode) -> dict[str, int]:
    """How many code cells ended in each status of papermill, the injected one not counted."""
    counts: Counter[str] = Counter()
    for cell in nb.cells:
        is_injected = INJECTED in cell.metadata.get("tags", [])
        if cell.cell_type == "code" and cell.source.strip() and not is_injected:
            counts[cell.metadata.get("papermill", {}).get("status", "pending")] += 1
    return dict(counts)


def verdict_of(nb: NotebookNode) -> Verdict | None:
    """The last verdict that the notebook emitted, or None.

    Raises VerdictError where that is no verdict.
    """
    outputs = chain(*(cell.get("outputs", []) for cell in nb.cells))
    for output in reversed(list(outputs)):
        emitted = output.get("data", {}).get(VERDICT_MIME)
        if emitted is not None:
            try:
                return from_json(Verdict, emitted, "not a verdict")
            except ValueError as error:
                raise VerdictError(str(error)) from error
    return None
