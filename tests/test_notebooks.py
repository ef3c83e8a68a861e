"""The committed notebooks: their form, that they were executed, that nbval would notice, and that they run on every box."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from in_shell import carried_out
from nbclient import NotebookClient

from helpers.batch.report import machine_line
from helpers.batch.supervisor import run_plan
from helpers.face import checks as face_checks
from helpers.ground.shapes import VERDICT_MIME
from helpers.look.boxes import RECORDED, recorded_names
from helpers.look.bundle import BundleWriter, open_bundle

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CASES = sorted((ROOT / "notebooks" / "cases").glob("*.ipynb"))
CHECKED = "nbval-check-output"
DIFFERS = r"\d{4}-\d\d-\d\dT|(?<![\w/])/(home|tmp)/\w"  # from run to run
SECTIONS = ["Machine", "Verdict", "Next step", "Evidence", "What speaks against it", "Provenance"]
"""The verdict first, its evidence after it, what speaks against it last; a told case, too."""

MOST_LINES = 8
MOST_LINES_OF_A_CASE = 34
"""A case's cells hold its figures and its verdict as data."""
BANNED = {"AsyncFunctionDef", "ClassDef", "Lambda", "While", "Try"}
PARAMETER = r"\w+: (str|int|float|bool|list\[str\]) = \S.*  # \S.*"

ALL = pytest.mark.parametrize("path", [*NOTEBOOKS, *CASES], ids=lambda path: path.stem)


def cells(path, kind):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def outputs(path):
    return [output for cell in cells(path, "code") for output in cell.outputs]


def checked(path):
    """The cells whose outputs nbval compares: their metadata says so, not their source."""
    return [cell for cell in cells(path, "code") if CHECKED in cell.metadata.get("tags", [])]


def text_of(cell):
    """What a cell printed, and its views in words."""
    texts = (out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)
    return "\n".join(texts)


@ALL
def test_a_notebook_has_the_houses_sections_in_order(path):
    words = "\n".join(cell.source for cell in cells(path, "markdown")).splitlines()
    heads = [line.lstrip("# ") for line in words if line.startswith("#")]
    assert heads[0].endswith("?"), "the title is a question"
    assert [head for head in heads if head in SECTIONS] == SECTIONS
    assert re.search(r"\*\*Safety: (looks|loads|provokes)\.\*\*", cells(path, "markdown")[0].source)


@ALL
def test_its_parameters_are_annotated_commented_and_few(path):
    first, *rest = cells(path, "code")
    assert first.metadata["tags"] == ["parameters"]
    assert not any("parameters" in cell.metadata.get("tags", []) for cell in rest)
    lines = first.source.splitlines()
    assert 1 <= len(lines) <= 9
    for line in re.sub('(?m)= r"""\n"""', '= ""', first.source).splitlines():
        assert re.fullmatch(PARAMETER, line), line


@ALL
def test_its_cells_are_thin_and_show_objects_and_imports_stand_in_one(path):
    code = cells(path, "code")[1:]
    views = re.compile(r"print\((\w+\.)?\w+_(table|bars)\(")
    for cell in code:
        kinds = {type(node).__name__ for node in ast.walk(ast.parse(cell.source))}
        assert not kinds & BANNED and not views.search(cell.source), cell.source
        most = MOST_LINES_OF_A_CASE if path in CASES else MOST_LINES
        assert len(cell.source.splitlines()) <= most or "Import" in str(kinds), cell.source
        assert "NBVAL" not in cell.source and ("Import" in str(kinds)) == (cell is code[0])


@ALL
def test_a_module_keeps_its_name_and_one_cell_emits_the_verdict(path):
    tree = ast.parse("\n".join(cell.source for cell in cells(path, "code")))
    renamed = [
        f"{alias.name} as {alias.asname}"
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if alias.asname not in (None, "np") and alias.name not in alias.asname
    ]
    assert not renamed
    emitted = [out for out in outputs(path) if VERDICT_MIME in out.get("data", {})]
    assert len(emitted) == 1
    assert [cell for cell in cells(path, "code") if ".next_step(" in cell.source]


@ALL
def test_one_cell_is_tagged_as_the_one_that_tells_the_machine(path):
    (told,) = [cell for cell in cells(path, "code") if "machine" in cell.metadata.get("tags", [])]
    loud, machine, *_ = text_of(told).splitlines()
    assert machine_line(nbformat.read(path, 4)) == machine
    assert loud.startswith("NOT THIS MACHINE, but ") and 'box = "live"' in loud
    assert "machine" in told.source


@ALL
def test_its_parameters_are_checked_before_they_are_used(path):
    *_, last = ast.parse(cells(path, "code")[1].source).body
    assert ast.unparse(last).startswith("refuse_wrong_parameters(")


def bound(source):
    """The names that a cell binds at its top level: by assignment, by import, in a loop or a with."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@ALL
def test_no_cell_binds_a_name_that_another_has_bound(path):
    """Else a cell that is run again, after a parameter was changed, meets another thing under the name."""
    first = {}
    for number, cell in enumerate(cells(path, "code")):
        for name in set(bound(cell.source)):
            before = first.setdefault(name, number)
            assert before == number, f"code cell {number} binds {name}, as cell {before} did"


LOOKS = [path for path in NOTEBOOKS if "**Safety: looks.**" in path.read_text()]


@pytest.mark.parametrize("path", LOOKS, ids=lambda path: path.stem)
def test_a_notebook_that_only_looks_prints_the_same_when_it_is_run_twice(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    sources = [cell.source for cell in cells(path, "code")]
    told = carried_out(sources * 2)
    assert told[: len(sources)] == told[len(sources) :] and any(told)


LITTLE = {
    "04_vpoc_chunking": "sessions, per_session, strategies = 4, 500, ['preallocated']",
    "06_training_paths": "paths, shape = ['accumulation and checkpointing'], 'tiny'",
}


@pytest.mark.parametrize("name", LITTLE)
def test_a_notebook_that_measures_comes_to_its_committed_next_step_on_little_work(
    name, monkeypatch
):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    monkeypatch.chdir(path.parent)
    given, *rest = [c for c in cells(path, "code") if "slow" not in c.metadata.get("tags", [])]
    told = carried_out([given.source, LITTLE[name], *(cell.source for cell in rest)])[2:]
    (step,) = [number for number, cell in enumerate(rest) if ".next_step(" in cell.source]
    assert told[step].strip().split(": ")[0] == text_of(rest[step]).strip().split(": ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_can_be_run_twice_in_one_kernel(path):
    notebook = nbformat.read(path, 4)
    own = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = own + [nbformat.v4.new_code_cell(cell.source) for cell in own]
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where)
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})


@ALL
def test_every_cell_was_executed_in_order_without_an_error(path):
    counts = [cell.execution_count for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))
    assert [out for out in outputs(path) if out.output_type == "error"] == []


@ALL
def test_nbval_compares_its_verdict_and_a_table(path):
    compared = checked(path)
    if (
        path.stem != "real-trades"
    ):  # its trades are not committed: it cannot come to its verdict here
        assert len(compared) >= 2
        assert any(re.search(r"\.(show|next_step)\(", cell.source) for cell in compared)
    assert compared
    for cell in compared:
        assert text_of(cell).strip(), "nothing was stored, so nothing would be compared"
        assert not re.search(DIFFERS, text_of(cell).split("Missing")[0])


@ALL
def test_what_it_shows_names_no_place_on_the_machine_that_ran_it(path):
    text = path.read_text()
    for word in (str(ROOT), os.path.expanduser("~") + "/", "/tmp/"):
        assert word not in text


@ALL
def test_its_figures_have_words(path):
    pictures = [out for out in outputs(path) if "image/png" in out.get("data", {})]
    assert pictures
    assert all(len(out.metadata["image/png"]["alt"]) > 20 for out in pictures)


def mutated_box(folder):
    """A copy of the recorded box in which one card has one page more in use than the case says."""
    bundle = open_bundle(RECORDED / "rx7900xt-container")
    writer = BundleWriter(bundle.box, bundle.kind, bundle.tool_version, bundle.captured_at)
    for item in bundle.items:
        text = bundle.contents[item.path].decode() if item.path else None
        if item.source == "/sys/class/drm/card1/device/mem_info_vram_used":
            text = f"{int(text) - (64 << 20)}\n"
        about = {"status": item.status, "why": item.why, "constructed": item.constructed}
        writer.add(item.kind, item.source, text, **about)
    return writer.write(folder / "mutated")


def nbval(folder, box):
    """Run nbval over a copy of notebook 01 that looks at ``box``; returns its exit code and what it printed."""
    book = nbformat.read(ROOT / "notebooks" / "01_hardware_probe.ipynb", 4)
    book.cells[1].source = book.cells[1].source.replace('"rx7900xt-container"', repr(str(box)))
    nbformat.write(book, folder / "copy.ipynb")
    argv = "-m pytest -q -p no:cacheprovider --nbval-lax --nbval-current-env".split()
    argv = [sys.executable, *argv, "--nbval-cell-timeout=60", str(folder / "copy.ipynb")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    how = {"cwd": folder, "capture_output": True, "text": True, "env": env}
    done = subprocess.run(argv, check=False, **how)
    return done.returncode, done.stdout


def test_a_figure_changed_in_a_copy_of_the_box_turns_nbval_red(tmp_path):
    code, said = nbval(tmp_path, mutated_box(tmp_path))
    assert code == 1 and "19.69 GiB" in said and "19.75 GiB" in said


@pytest.mark.slow
def test_every_notebook_answers_on_every_recorded_box(tmp_path):
    result = run_plan(ROOT / "notebooks" / "plans" / "boxes.yaml", tmp_path)
    not_about_the_box = {
        "02_allocator_stress.ipynb": ["cpu-only", "rx7900xt-container"],
        "04_vpoc_chunking.ipynb": ["cpu-only", "cuda-healthy"],
        "05_fix_validation.ipynb": ["cuda-24gb-tuning", "rx7900xt-container"],
        "06_training_paths.ipynb": ["cpu-only"],
    }
    expected = {
        (path.name, box)
        for path in NOTEBOOKS
        for box in not_about_the_box.get(path.name, recorded_names())
    }
    assert {(run.notebook, run.box) for run in result.runs} == expected
    assert [(run.run_id, run.cause) for run in result.runs if run.state != "answered"] == []
    assert all(run.verdict for run in result.runs)


@pytest.mark.parametrize(
    "results, says",
    [
        ([["cpu", "network", "passed", "equal"]] * 2, "2 passed, 1 not run"),
        ([], "cpu alone not run no GPU"),
    ],
)
def test_the_line_of_several_checks_counts_them_and_that_of_one_says_it(monkeypatch, results, says):
    """Folded, 01 said "cpu enumeration passed torch works on the CPU 0.00" of nine checks. Since 2026-11-27."""
    head = ["GPU", "check", "state", "says"]
    rows = [head, ["cpu", "alone", "not run", "no GPU"], *results]
    monkeypatch.setattr(face_checks, "check_rows", lambda *_, **__: rows)
    assert face_checks.check_torch("cpu-only").says == says


@ALL
def test_its_commands_are_spelt_as_everywhere_also_where_a_browser_shows_them(path):
    """04's next step said ``casebook`` in words and ``python -m helpers`` in a browser. Since 2026-11-27."""
    shown = "".join(
        "".join(text)
        for out in outputs(path)
        for text in out.get("data", {}).values()
        if not isinstance(text, dict)
    )
    assert "python -m helpers" not in re.sub("<[^>]*>", "", shown)
