"""What we rely on in the pinned papermill, and the flaw that our client is for.

When the first test fails, upstream records dead kernels truly: read its release notes and drop helpers/batch/notebook_client.py.
"""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import nbformat
import papermill
import pytest
from in_shell import carried_out
from nbclient.exceptions import DeadKernelError
from papermill.iorw import LocalHandler, load_notebook_node, papermill_io
from papermill.parameterize import parameterize_notebook
from run_stand_in import NOTEBOOKS

from helpers.batch.execute import WHOLE, AtomicFiles
from helpers.batch.notebook_file import (
    NotebookError,
    open_notebook,
    parameters,
    refuse_wrong_parameters,
)

OWN_NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
KILLS_ITSELF = str(NOTEBOOKS / "kills_itself.ipynb")


def test_stock_papermill_still_marks_a_dead_kernels_notebook_completed(tmp_path):
    out = tmp_path / "out.ipynb"
    options = {"progress_bar": False, "kernel_name": "python3"}
    with pytest.raises(DeadKernelError):
        papermill.execute_notebook(KILLS_ITSELF, str(out), **options)
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


OWN = """box: str = "live"  # a name = a path
steps: int = 8
names: list[str] = ["a"]"""
CHECK = (
    "from helpers.batch.notebook_file import refuse_wrong_parameters\n\nrefuse_wrong_parameters()"
)


WRONG = [
    ({"bx": "x"}, "no parameter 'bx'; expected one of box, steps, names"),
    ({"steps": "lots"}, "parameter 'steps': seen 'lots' (str); expected int"),
    ({"box": 5}, "parameter 'box': seen 5 (int); expected str (quote it; with papermill: -r)"),
    ({"names": "a"}, "parameter 'names': seen 'a' (str); expected list[str]"),
]
RIGHT = ({"box": "x", "steps": 3, "names": []}, "")


def checked():
    """A notebook that checks its parameters; a second use, after other cells, says the same of the same."""
    new = nbformat.v4.new_code_cell
    own = new(OWN, metadata={"tags": ["parameters"]})
    nb = nbformat.v4.new_notebook(cells=[own, new(CHECK), new("%pwd\nsize: int = 1"), new(CHECK)])
    nb.metadata.language_info = {"name": "python"}
    nb.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "x"}
    return nb


@pytest.mark.parametrize(("given", "line"), [WRONG[0], RIGHT])
def test_under_stock_papermill_a_wrong_name_ends_in_one_line(tmp_path, given, line):
    path = tmp_path / "in.ipynb"
    out = tmp_path / "out.ipynb"
    nbformat.write(checked(), path)
    try:
        papermill.execute_notebook(
            str(path), str(out), given, kernel_name="python3", progress_bar=False
        )
        said = []
    except papermill.PapermillExecutionError as error:
        said = error.traceback
    assert said == ([line] if line else [])


@pytest.mark.parametrize(("given", "line"), [*WRONG, RIGHT])
def test_a_wrong_name_or_type_that_papermill_puts_in_is_refused_in_one_line(tmp_path, given, line):
    nbformat.write(checked(), tmp_path / "in.ipynb")
    nb = parameterize_notebook(load_notebook_node(str(tmp_path / "in.ipynb")), given)
    sources = [cell.source for cell in nb.cells]
    assert len(sources) == 5
    with pytest.raises(NotebookError, match=f"^{re.escape(line)}$") if line else nullcontext():
        carried_out(sources)


def test_a_line_that_a_person_adds_below_the_parameters_is_checked_as_well():
    with pytest.raises(NotebookError, match=r"^parameter 'steps': seen 'lots' \(str\)"):
        carried_out([f"{OWN}\nsteps = 'lots'", CHECK])


def test_outside_a_kernel_there_is_nothing_to_check():
    assert refuse_wrong_parameters() is None


def test_papermills_own_files_stay_with_its_own_handlers():
    assert isinstance(papermill_io.get_handler(f"{WHOLE}/tmp/a.ipynb"), AtomicFiles)
    kinds = [type(papermill_io.get_handler(path)) for path in ("/tmp/a.ipynb", "a.ipynb")]
    assert "AtomicFiles" not in {kind.__name__ for kind in kinds} and kinds[0] is LocalHandler


REFUSED = [
    (
        {"reserve": "banana"},
        "parameter 'reserve': seen 'banana' (str); expected a size such as 8GiB, or nothing",
    ),
    ({"box": "/no/such/box"}, "/no/such/box: no such file or folder"),
]


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_a_value_that_the_workbook_refuses_ends_a_notebook_in_one_line(tmp_path, given, line):
    """``-p reserve banana`` ended in a traceback of the kernel, 20 cells on. Since 2026-11-28."""
    path = str(OWN_NOTEBOOKS / "03_ttm_gtt_analysis.ipynb")
    options = {"kernel_name": "python3", "progress_bar": False, "cwd": str(OWN_NOTEBOOKS)}
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(path, str(tmp_path / "out.ipynb"), given, **options)
    assert len(caught.value.traceback) == 1 and caught.value.traceback[0].startswith(line)
    assert caught.value.exec_count <= 4, "before anything is shown"


def test_what_another_package_raises_keeps_its_traceback():
    sources = [OWN, CHECK, "import json\njson.loads('{')"]
    with pytest.raises(json.JSONDecodeError):
        carried_out(sources)


SEVERAL_LINES = """Traceback (most recent call last):
  File "C:\\Users\\new\\train.py", line 7, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 11.75 GiB
of which 1.25 GiB is free. Of the allocated memory 9.75 GiB is allocated by PyTorch, and 0.25 GiB is reserved by
PyTorch but unallocated."""


def test_a_message_of_several_lines_is_pasted_or_given_to_papermill_as_it_is():
    nb = load_notebook_node(str(OWN_NOTEBOOKS / "00_start_here.ipynb"))
    code = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    pasted = code[0].replace('r"""', f'r"""{SEVERAL_LINES}').replace("strix-halo-1-found", "")
    given = {"message": SEVERAL_LINES, "box": ""}
    injected = [
        cell.source for cell in parameterize_notebook(nb, given).cells if cell.cell_type == "code"
    ]
    for sources in ([pasted, *code[1:6]], injected[:7]):
        told = "\n".join(carried_out(sources))
        assert "3.50 GiB" in told and "a message alone, no box" in told
