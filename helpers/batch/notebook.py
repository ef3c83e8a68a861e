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
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from helpers.ground.contract import from_json
from helpers.ground.shapes import VERDICT_MIME as VERDICT
from helpers.ground.shapes import Verdict
from helpers.look.files import whole
from helpers.tell.notebook_cells import INJECTED, PARAMETERS

from .shapes import Figure

NBFORMAT = 4
INJECTED_FIRST = (
    "# Parameters\n"  # how papermill begins that cell (papermill/translators.py, codify)
)
TYPES: dict[str, Any] = {"str": str, "int": int, "float": (int, float)}
TYPES |= {"list": list, "dict": dict, "tuple": list}
NO_ALT = "A figure without a description"


@contextmanager
def without(package: str) -> Iterator[None]:
    """Within, ``package`` reads as not installed to whoever imports it for the first time."""
    if package in sys.modules:
        yield
        return
    cast(Any, sys.modules)[package] = None  # import raises ImportError (the import system, 5.3.1)
    try:
        yield
    finally:
        del sys.modules[package]


@lru_cache(maxsize=1)
def _nbformat() -> Any:
    """The package, imported when it is needed: a kernel that checks its parameters does without."""
    # jsonschema's check of IRIs compiles a grammar for a second that nothing here needs.
    # Measured with jsonschema 4.26 and rfc3987-syntax 1.1: a runner starts in 0.45 s instead of
    # 1.45 s.
    with without("rfc3987_syntax"):
        return importlib.import_module("nbformat")


class NotebookError(ValueError):
    """A file that is no notebook we can run, or parameters it does not take.

    One line, in a notebook too.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class VerdictError(ValueError):
    """A notebook emitted something that is no verdict. One line."""


def open_notebook(path: Path) -> Any:
    """The notebook at ``path`` as nbformat 4, whole and for Python, as a run needs it.

    Raises NotebookError.
    """
    nb, faults = read_notebook(path)
    if faults:
        raise NotebookError(f"{path}: {faults[0]}")
    spec = nb.metadata.get("kernelspec", {}).get("language")
    language = spec or nb.metadata.get("language_info", {}).get("name") or "python"
    if language != "python":
        raise NotebookError(f"{path}: written for {language}; expected Python")
    for index, cell in enumerate(nb.cells):
        limit = cell.metadata.get("timeout", 1)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit <= 0:
            seen = f"metadata.timeout: seen {limit!r}; expected seconds above 0"
            raise NotebookError(f"{path}: cell {index}: {seen}")
    return nb


def read_notebook(path: Path) -> tuple[Any, list[str]]:
    """The notebook at ``path`` as nbformat 4, and what is wrong with it; a cell that cannot be
    read says so in its place.

    Raises NotebookError where nothing of it can be read.
    """
    try:
        raw = json.loads(whole(path).decode("utf-8", "replace"))
    except OSError as error:
        why = f"cannot be read: {error.strerror}; expected a notebook"
        raise NotebookError(f"{path}: {why}") from error
    except (ValueError, RecursionError) as error:
        why = f"no JSON ({type(error).__name__}); expected a notebook (.ipynb)"
        raise NotebookError(f"{path}: {why}") from error
    version = raw.get("nbformat") if isinstance(raw, dict) else None
    if not isinstance(version, int) or not isinstance(raw.get("metadata", {}), dict):
        wrong = "no nbformat number; expected a notebook (.ipynb)"
    elif version > NBFORMAT:
        known = f"this workbook reads up to {NBFORMAT}; save it as nbformat {NBFORMAT}"
        wrong = f"nbformat {version}; {known}"
    else:
        try:
            nbformat = _nbformat()
            nb = nbformat.reads(json.dumps(raw), as_version=NBFORMAT)
            nbformat.validate(nb)
            return nb, []
        # nbformat's readers raise whatever a broken file makes them stumble over.
        except Exception as error:  # noqa: BLE001
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            wrong = f"broken notebook: {first[:200]}"
    if not isinstance(raw, dict) or not isinstance(raw.get("cells"), list):
        raise NotebookError(f"{path}: {wrong}")
    metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    new = _nbformat().v4
    nb = new.new_notebook(metadata=metadata)
    lines = [wrong]
    for number, cell in enumerate(raw["cells"]):
        try:
            nb.cells.append(_whole(cell, number))
        except Exception as error:  # noqa: BLE001  as above
            lines.append(f"cell {number} cannot be read ({type(error).__name__})")
            words = f"*Cell {number} of this notebook cannot be read.*"
            nb.cells.append(new.new_markdown_cell(words))
    return nb, lines


def _whole(cell: Any, number: int) -> Any:
    """One cell of a broken notebook, valid by itself.

    Raises whatever it makes nbformat stumble over.
    """
    nbformat = _nbformat()
    whole = nbformat.from_dict({**cell, "id": f"cell-{number}"})
    whole.source = "".join(whole.get("source", ""))
    for output in whole.get("outputs", []):
        if "text" in output:
            output.text = "".join(output.text)
        for kind, content in output.get("data", {}).items():
            output.data[kind] = "".join(content) if isinstance(content, list) else content
    nbformat.validate(nbformat.v4.new_notebook(cells=[whole]))
    return whole


def parameters(nb: Any) -> dict[str, ast.expr | None]:
    """Names in the cell tagged ``parameters``, each with its annotation: ``box: str = "live"``."""
    tagged = (cell.source for cell in nb.cells if PARAMETERS in cell.metadata.get("tags", []))
    return _assigned(next(tagged, ""))


def _assigned(source: str) -> dict[str, ast.expr | None]:
    """The names that a cell assigns, with their annotations.

    Read with ast: papermill's own inspection drops a line whose value or comment holds another
    ``=``.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        where = f"line {error.lineno}: {error.msg}"
        raise NotebookError(f"its parameters cell cannot be read: {where}") from error
    kinds: dict[str, ast.expr | None] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kinds[node.target.id] = node.annotation
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            kinds.update(dict.fromkeys(names))
    return kinds


def check_parameters(known: dict[str, ast.expr | None], given: dict[str, Any]) -> None:
    """Refuse names that the notebook does not have and values of another type than annotated.

    Raises NotebookError.
    """
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known) or "(it has no parameters)"
            raise NotebookError(f"no parameter {name!r}; expected one of {names}")
        kind = known[name]
        expected = ""
        if kind is not None and not _fits(value, kind):
            expected = ast.unparse(kind)
            expected += " (quote it; with papermill: -r)" if expected == "str" else ""
        elif not _is_json(value):
            expected = "text, numbers, lists; quote it"
        if expected:
            shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
            seen = f"{shown} ({type(value).__name__})"
            raise NotebookError(f"parameter {name!r}: seen {seen}; expected {expected}")


def refuse_wrong_parameters() -> None:
    """In a notebook's kernel: ``check_parameters`` of the cell of parameters, and of what
    papermill injected behind it.

    papermill only warns of a name that a notebook does not have. Outside a kernel nothing is
    checked. Raises NotebookError.
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = shell.user_ns.get("In", ()) if shell else ()
    for source, behind in zip(cells, [*cells[1:], ""], strict=False):
        with suppress(SyntaxError):  # a magic: no cell of parameters
            body = ast.parse(source).body
            if body and all(isinstance(node, ast.AnnAssign) for node in body):
                known = _assigned(source)
                names = [*known, *(_assigned(behind) if behind.startswith(INJECTED_FIRST) else ())]
                return check_parameters(known, {name: shell.user_ns.get(name) for name in names})


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _fits(value: Any, kind: ast.expr) -> bool:
    """Whether a value fits an annotation; an annotation that is not understood says nothing and
    fits.
    """
    if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
        return _fits(value, ast.parse(kind.value, mode="eval").body)
    if isinstance(kind, ast.Constant):
        return value is kind.value
    if isinstance(kind, ast.BinOp):
        return _fits(value, kind.left) or _fits(value, kind.right)
    if isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name):
        if kind.value.id == "list":
            return isinstance(value, list) and all(_fits(one, kind.slice) for one in value)
        return _fits(value, kind.value)
    if isinstance(kind, ast.Name):
        if kind.id == "bool" or isinstance(value, bool):
            return isinstance(value, bool) and kind.id not in TYPES
        return kind.id not in TYPES or isinstance(value, TYPES[kind.id])
    return True


def needs_verdict(nb: Any) -> bool:
    """False for a notebook whose metadata says ``casebook: {"verdict": false}``: it answers by
    reaching its end.
    """
    return nb.metadata.get("casebook", {}).get("verdict", True) is not False


def cell_counts(nb: Any) -> dict[str, int]:
    """How many code cells ended in each status of papermill, the injected one not counted."""
    cells = (cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip())
    own = [cell.metadata for cell in cells if INJECTED not in cell.metadata.get("tags", [])]
    return dict(Counter(one.get("papermill", {}).get("status") or "pending" for one in own))


def verdict_of(nb: Any) -> Verdict | None:
    """The last verdict that the notebook emitted, or None.

    Raises VerdictError where that is no verdict.
    """
    for _, output in reversed(list(_outputs(nb))):
        if (emitted := output.get("data", {}).get(VERDICT)) is not None:
            try:
                return from_json(Verdict, emitted, "not a verdict")
            except ValueError as error:
                raise VerdictError(str(error)) from error
    return None


def save_figures(nb: Any, folder: Path) -> list[Figure]:
    """Write every picture of an executed notebook to ``folder/figures``; their words come from
    the notebook's metadata.

    Words: ``{"image/png": {"alt": ...}}`` in the output's metadata, else ``alt`` in the cell's.
    Raises OSError.
    """
    figures: list[Figure] = []
    for cell, output in _outputs(nb):
        try:
            picture = base64.b64decode(output.get("data", {}).get("image/png"))
        except (TypeError, binascii.Error, ValueError):
            continue  # no picture
        own = output.get("metadata", {}).get("image/png", {})
        alt = own.get("alt") if isinstance(own, dict) else ""
        path = folder / "figures" / f"{len(figures) + 1:02d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture)
        words = str(alt or cell.metadata.get("alt") or NO_ALT)
        figures.append(Figure(path=str(path.relative_to(folder)), alt=words))
    return figures


def _outputs(nb: Any) -> Iterator[tuple[Any, Any]]:
    return ((cell, output) for cell in nb.cells for output in cell.get("outputs", []))
