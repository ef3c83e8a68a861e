"""What we rely on in the pinned papermill, and the flaw that our engine is for.

When the first test fails, upstream records dead kernels truly: read its release notes and drop helpers/run/engine.py.
"""

from pathlib import Path

import nbformat
import papermill
import pytest
from nbclient.exceptions import DeadKernelError

from helpers.run.notebook import open_notebook, parameters

NOTEBOOKS = Path(__file__).parent / "notebooks"


def test_stock_papermill_still_marks_a_dead_kernels_notebook_completed(tmp_path):
    out = tmp_path / "out.ipynb"
    with pytest.raises(DeadKernelError):
        papermill.execute_notebook(
            str(NOTEBOOKS / "kills_itself.ipynb"),
            str(out),
            progress_bar=False,
            kernel_name="python3",
        )
    nb = nbformat.read(out, as_version=4)
    assert [cell.metadata.papermill.status for cell in nb.cells] == ["completed"] * 4
    assert nb.metadata.papermill.exception is None


def test_our_parameters_are_those_that_papermill_sees():
    path = NOTEBOOKS / "takes_parameters.ipynb"
    ours = parameters(open_notebook(path))
    theirs = papermill.inspect_notebook(str(path))
    assert list(ours) == ["box", "steps", "rate", "deep", "sizes", "batch", "out"]
    # papermill drops a line with a second "=" in it: here the box, whose comment has one.
    assert list(theirs) == [name for name in ours if name != "box"]
    assert theirs["steps"]["inferred_type_name"] == "int"


def test_importing_the_engine_registers_it_by_name():
    from papermill.engines import papermill_engines

    from helpers.run.engine import CasebookEngine

    assert papermill_engines.get_engine("casebook") is CasebookEngine


def test_plain_papermill_runs_our_engine_by_name(tmp_path):
    import helpers.run.engine  # noqa: F401

    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(
            str(NOTEBOOKS / "kills_itself.ipynb"),
            str(tmp_path / "out.ipynb"),
            engine_name="casebook",
            progress_bar=False,
        )
    assert caught.value.ename == "Died"
    assert "killed by SIGKILL" in caught.value.evalue
