"""What ``import helpers`` offers is enough for a notebook, documented, and cheap to import."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import helpers
from helpers.batch import notebook_file
from helpers.face import checks
from helpers.tell import next_notebook
from helpers.tell.shown import Shown

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_IMPORTS = 6


def imports_of(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    lines = [line.strip() for line in code.splitlines()]
    return [line for line in lines if line.startswith(("import ", "from "))]


def test_dir_shows_the_public_names_alone():
    assert dir(helpers) == sorted(helpers.__all__)
    assert 20 <= len(dir(helpers)) <= 26


@pytest.mark.parametrize("name", helpers.__all__)
def test_a_public_name_says_what_it_answers(name):
    assert len(getattr(helpers, name).__doc__.split()) > 5


def test_a_name_that_is_not_there_points_to_those_that_are():
    with pytest.raises(AttributeError, match=r"see dir\(helpers\)"):
        helpers.no_such_name  # noqa: B018


def test_importing_the_face_loads_neither_torch_nor_a_room():
    code = "import sys, helpers; print([m for m in sys.modules if m.startswith(('torch', 'helpers.'))])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_from_the_face_alone(notebook):
    lines = imports_of(notebook)
    assert len(lines) <= MOST_IMPORTS
    assert all(line.startswith("from helpers import ") for line in lines)


def test_views_of_a_box_are_tables_to_go_on_with():
    box = helpers.open_box("rx7900xt-container")
    assert "rx7900xt-container" in repr(box)
    for view in (helpers.gpus(box), helpers.processes(box), helpers.ledger(box)):
        assert isinstance(view, Shown)
        assert view.table().num_rows == len(view.rows)
    limits = helpers.ceilings(box)
    assert limits.table().num_rows == len(limits.view.rows)
    assert limits._repr_html_().startswith("<div class=casebook")


def test_a_verdict_shows_itself():
    answer = helpers.diagnose("rx7900xt-container")
    assert answer.verdict.headline in " ".join(repr(answer).split())
    assert answer.verdict.headline.split(" ")[0] in answer._repr_mimebundle_()["text/markdown"]


def test_the_bar_of_what_does_not_fit_marks_the_end_of_the_card_and_what_fits_needs_no_change():
    fit = helpers.what_fits("made-up-9b", gpu="4090", context=32768, kv="f16", server="llama.cpp")
    too_much = fit.at(n_ctx=131072, n_parallel=16)
    marked = "The line: the end of the card, 23.64 GiB."
    assert marked in words_of(too_much.bar) and marked not in words_of(fit.bar)
    assert str(fit.ways) == "It fits as asked, so nothing needs to change."
    assert re.search(r"\b\d\d,\d{3}\b", str(fit.cache_types(["f16"])))


def words_of(view):
    """The words of a view's drawing, as its SVG has them."""
    return " ".join(re.findall(r">([^<>]+)</text>", view.figure_data()["wide"]))


def test_what_fits_is_asked_again_with_other_inputs():
    fit = helpers.what_fits("made-up-9b", gpu="4090", context=32768, kv="f16", server="llama.cpp")
    assert fit.fits is True
    assert fit.at(kv_type="q8_0").longest_context > fit.longest_context
    assert fit.contexts(tokens=[4096], slots=[1, 64]).rows[1]["4,096"] == "no"
    assert fit.table().num_rows == len(fit.view.rows)
    assert fit.verdict().verdict.cause == "other"


def test_volume_profiles_have_a_plan_for_a_card():
    profiles = helpers.volume_profiles(sessions=2, per_session=500, free="1GiB")
    assert "a card of 1GiB" in profiles.words
    assert [row["strategy"] for row in profiles.plans.rows][0] == "fused"
    assert profiles.table().num_rows == 2
    assert "preallocated" in profiles.verdict(sessions=1014).verdict.title


def test_a_session_and_a_model_that_are_not_there_are_said_in_one_line():
    profiles = helpers.volume_profiles(sessions=2, per_session=500, free="1GiB")
    for ask in (profiles.chart, profiles.rules):
        with pytest.raises(ValueError, match="session 2: expected a number from 0 to 1"):
            ask(2)
    with pytest.raises(ValueError, match="model 'no-such': expected a file, a folder, or a name"):
        helpers.what_fits("no-such", gpu="4090")
    with pytest.raises(ValueError, match="^kv: .*nix"):
        helpers.what_fits("made-up-9b", gpu="4090", kv="nix")


def test_trades_that_are_not_there_are_said_in_one_line():
    with pytest.raises(ValueError, match="no-such.csv"):
        helpers.volume_profiles("no-such.csv", free="1GiB")


def test_a_folder_that_is_no_batch_is_said_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="nosuch: no batch; expected the folder of one below"):
        helpers.open_batch("nosuch")
    with pytest.raises(ValueError, match="no batch"):
        helpers.open_batch(str(tmp_path))


def test_a_training_path_that_is_not_known_is_said_in_one_line():
    with pytest.raises(ValueError, match="'tiny': expected one of single device"):
        helpers.training_paths(("tiny",))


def test_the_fields_of_an_object_are_a_table_and_those_without_a_value_are_named():
    box = helpers.open_box("rx7900xt-container")
    view = helpers.fields_of(box.gpus)
    assert str(view).startswith("Gpu, the first of 2")
    values = {row["field"]: row["value"] for row in view.rows}
    assert values[".pci"] == box.gpus[0].pci and values[".vendor"] == "AMD"
    assert ".parts" in values and "Without a value here: holders" in str(view)
    assert "None here." in str(helpers.fields_of(()))
    assert {row["field"] for row in helpers.fields_of(box).rows} >= {".gpus", ".monitor()"}


@pytest.mark.parametrize(
    ("here", "expected"), [("", "03_ttm_gtt_analysis"), ("03_ttm_gtt_analysis", "09_case_report")]
)
def test_the_next_notebook_is_a_command_with_its_parameters_and_never_the_one_that_asks(
    here, expected
):
    box = "strix-halo-1-found"
    link = helpers.diagnose(box).next_notebook(box=box, here=here)
    assert f"papermill notebooks/{expected}.ipynb out.ipynb -p box {box}" in str(link)


def test_links_between_notebooks_name_parameters_that_the_next_one_has():
    """From what the committed notebooks show."""
    shown = "".join(path.read_text() for path in NOTEBOOKS)
    commands = set(
        re.findall(r"papermill (notebooks/\d\w+\.ipynb) out\.ipynb( -p [^\"<\\]+)", shown)
    )
    assert len(commands) >= 4
    for path, options in commands:
        known = notebook_file.parameters(notebook_file.open_notebook(ROOT / path))
        assert set(re.findall(r"-p (\w+)", options)) <= set(known), (path, options)


def test_a_link_in_the_labs_folder_leads_to_a_copy_with_the_parameters_filled_in(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(next_notebook, "LAB", tmp_path)
    monkeypatch.setattr(next_notebook, "is_interactive", lambda: True)
    link = next_notebook.NextNotebook("03_ttm_gtt_analysis", {"box": "live", "earlier": "b's.gz"})
    assert link.link() == "03_ttm_gtt_analysis.ipynb"  # elsewhere it is the notebook itself
    monkeypatch.chdir(tmp_path)
    path = tmp_path / link.link()
    cells = json.loads(path.read_text())["cells"]
    (given,) = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    values = {}
    exec("".join(given["source"]), values)
    assert (values["box"], values["earlier"], values["reserve"]) == ("live", "b's.gz", "")
    assert f"href='{path.name}'" in link._repr_html_()
    assert not any(cell.get("outputs") for cell in cells)
    path.write_text("mine")
    assert link.link() == path.name and path.read_text() == "mine"
    alike = [{"box": f"/{night}/box.tar.gz"} for night in ("monday", "tuesday")]
    names = {next_notebook.NextNotebook("01_hardware_probe", given).link() for given in alike}
    assert len(names) == 2, "two bundles of one name in two folders"


NO_KERNEL = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (NO_KERNEL, "Use a build that has code for this chip. List the chips that this build has"),
        ("", "Run the checks again with nothing else on the card: make check-gpu GPU=0000:03:00.0"),
    ],
)
def test_a_check_that_failed_has_the_next_step_of_its_own_message(monkeypatch, message, step):
    head = ["GPU", "check", "state", "says", "message"]
    gpu = "0000:03:00.0"
    rows = [[gpu, name, "failed", "ended with an error", message] for name in ("matmul", "network")]
    rows.append([gpu, "enumeration", "passed", "torch sees it", ""])
    monkeypatch.setattr(checks, "check_rows", lambda *_, **__: [head, *rows])
    shown = helpers.check_torch("cuda-healthy")
    (note,) = shown.notes
    assert note.startswith(f"Next step for matmul, network on {gpu}: {step}")
    assert note in " ".join(str(shown).split())


def test_the_next_step_of_a_plan_keeps_the_reserve_that_was_asked_for():
    usual = helpers.diagnose("strix-halo-1-found").verdict
    assert helpers.ttm_plan("strix-halo-1-found").verdict().verdict == usual
    plan = helpers.ttm_plan("strix-halo-1-found", reserve="16GiB")
    asked = plan.verdict().verdict
    assert "which leaves 16.00 GiB to the system" in asked.next_step.what
    assert asked.next_step.command != usual.next_step.command
    assert plan.recommends(asked.next_step.command)
    assert replace(asked, next_step=usual.next_step) == usual
    healthy = helpers.ttm_plan("cuda-healthy", reserve="16GiB").verdict().verdict
    assert healthy == helpers.diagnose("cuda-healthy").verdict
