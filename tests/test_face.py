"""What ``import helpers`` offers is enough for a notebook, documented, and cheap to import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import helpers
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
    assert 20 <= len(dir(helpers)) <= 25


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
    assert answer.verdict.headline in repr(answer)
    assert answer.verdict.headline.split(" ")[0] in answer._repr_mimebundle_()["text/markdown"]


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
