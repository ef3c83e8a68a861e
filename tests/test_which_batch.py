"""A verb about a batch that nobody named says which one it takes, and a run ends with its page."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import verb

from helpers.batch import record
from helpers.batch.shapes import Run
from helpers.commands import batch as batch_command
from helpers.face.review import Shared
from helpers.ground import places


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Two batches, the second newer."""
    for number, name in enumerate(("first", "second")):
        folder = tmp_path / name / "000-a"
        folder.mkdir(parents=True)
        (tmp_path / name / "plan.yaml").write_text("name: a\n")
        ids = {"run_id": "000-a", "batch_id": name, "box": "live", "notebook": "a.ipynb"}
        record.write_run(folder, Run(**ids, state="answered", seconds=number + 1.0))
    for module in (batch_command, places):
        monkeypatch.setattr(module, "OUTPUTS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["report"]])
def test_a_verb_without_a_name_says_first_which_batch_it_takes(outputs, words):
    done = verb(*words)
    assert done.code == 0
    assert done.err.splitlines()[0] == f"The newest batch: {outputs / 'second'}"
    assert "newest" not in done.out


def test_a_verb_with_a_name_does_not_say_it_again(outputs):
    assert verb("status", outputs / "first").err == ""


@pytest.mark.parametrize("words", [["status"], ["report"], ["share", "--out", "shared.html"]])
def test_a_batch_is_known_by_the_name_that_pages_print_in_any_folder(
    outputs, tmp_path_factory, monkeypatch, words
):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    done = verb(*words[:1], "first", *words[1:])
    assert done.code == 0, done.err


@pytest.mark.parametrize(("name", "run"), [("000-a", "second/000-a"), ("0*", ""), ("../000-a", "")])
def test_a_run_is_known_by_the_name_that_pages_print_and_the_newest_batch_wins(outputs, name, run):
    expected = outputs / run if run else Path(name)
    assert places.kept(Path(name)) == expected


def test_a_run_is_shared_by_its_name_below_its_batch(outputs, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert verb("share", "first/000-a", "--out", "shared.html").out == "Open: shared.html\n"


def test_the_panel_of_a_review_knows_a_batch_by_its_name(outputs):
    assert Shared("first").review.name == "batch"


def test_the_last_line_of_a_run_is_its_page_also_at_the_first_use(outputs, monkeypatch):
    result = SimpleNamespace(folder=outputs / "second", runs=(), unrecorded=(), exit_code=0)
    monkeypatch.setattr(batch_command, "run_plan", lambda *_, **__: result)
    monkeypatch.setattr(batch_command, "write_index", lambda folder: folder / "index.html")
    monkeypatch.setattr(batch_command, "status_json", lambda view: {})
    monkeypatch.setattr(batch_command, "status_text", lambda view: "3 answered")
    monkeypatch.setenv(batch_command.SAY_LAST, "to call casebook in any folder: ln -sf a b")
    done = verb("run", "plan.yaml", "--out", outputs)
    assert done.out.splitlines()[-2].startswith("to call casebook in any folder: ")
    assert done.out.splitlines()[-1] == f"Open: {outputs / 'second' / 'index.html'}"
