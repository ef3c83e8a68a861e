"""The stock commands that people type at a notebook, each in a clean environment, in and outside the checkout: `make doors`.

Nothing sets PYTHONPATH: the kernel that such a command starts, in whatever folder, finds helpers through its own environment.
"""

import sys
from importlib.metadata import entry_points

import nbformat
import pytest
from bare_checkout import ROOT, ran

from helpers.batch.notebook_file import verdict_of
from helpers.batch.report import machine_line

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHEAP = "00_start_here"
LIMIT_S = 1200
NBVAL = "pytest -q -p no:cacheprovider --nbval-cell-timeout=900"
# How each is typed, and where. {book} is the notebook, {out} a folder of its own, {p} its parameters below.
COMMANDS = {
    "papermill in the checkout": ("papermill {book} {out}/book.ipynb {p}", ROOT),
    "papermill in notebooks": ("papermill {name} {out}/book.ipynb {p}", ROOT / "notebooks"),
    "papermill elsewhere": ("papermill {book} {out}/book.ipynb {p}", None),
    "nbval-lax": (NBVAL + " --nbval-lax notebooks/{name}", ROOT),
    "nbval": (NBVAL + " --nbval notebooks/{name}", ROOT),
    "jupyter execute": ("jupyter-execute {book} --output={out}/book.ipynb", None),
    "nbconvert": ("jupyter-nbconvert --to notebook --execute --output-dir {out} {book}", None),
}
QUICK = ("papermill elsewhere", "nbval")  # the rest, and the other notebooks, in `make doors`
# Other values than the notebook's own, and little work.
PARAMETERS = {
    "02_allocator_stress": {"box": "rx7900xt-container", "capacity": "24GiB"},
    "04_vpoc_chunking": {"box": "cpu-only", "sessions": "2", "per_session": "500"},
    "05_fix_validation": {"box": "rx7900xt-container"},
    "06_training_paths": {"box": "cpu-only", "seed": "3"},
}


def stock(words, **values):
    """The command as its script in the environment's bin runs it, whatever Python that script was written for."""
    name, *arguments = [word.format(**values) for word in words.split()]
    (script,) = entry_points(group="console_scripts", name=name)
    start = f"import sys; sys.path.remove(''); sys.argv[0] = {name!r}; "
    start += f"from {script.module} import {script.attr}; sys.exit({script.attr}())"
    return [sys.executable, "-c", start, *arguments]


def each():
    for command in COMMANDS:
        for book in NOTEBOOKS:
            quick = book.stem == CHEAP and command in QUICK
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(command, book, marks=marks, id=f"{command}-{book.stem}")


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(("command", "book"), list(each()))
def test_a_stock_command_runs_a_notebook_as_it_stands(command, book, tmp_path):
    own = PARAMETERS.get(book.stem, {"box": "cpu-only"})
    (words, place) = COMMANDS[command]
    given = [word for name, value in own.items() for word in ("-p", name, value)]
    words, typed = words.replace(" {p}", ""), given if "{p}" in words else []
    (tmp_path / "home").mkdir()
    out = tmp_path / "out put"
    out.mkdir()
    argv = [*stock(words, book=book, name=book.name, out=out), *typed]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"}
    done = ran(argv, cwd=place or tmp_path / "home", env=env, timeout=LIMIT_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    if command.startswith("nbval"):
        return
    (made,) = out.glob("*.ipynb")
    notebook = nbformat.read(made, 4)
    assert verdict_of(notebook) is not None
    if typed:
        assert machine_line(notebook).startswith(own["box"] + " (")


def test_strict_nbval_leaves_out_only_cells_that_cannot_repeat_and_never_all_of_the_verdict():
    for book in NOTEBOOKS:
        code = [cell for cell in nbformat.read(book, 4).cells if cell.cell_type == "code"]
        ignored = [c for c in code if "nbval-ignore-output" in c.metadata.get("tags", [])]
        assert len(ignored) * 2 < len(code), book.name
        assert any(".next_step(" in cell.source for cell in code if cell not in ignored), book.name
        assert not any("nbval-check-output" in cell.metadata.tags for cell in ignored), book.name
