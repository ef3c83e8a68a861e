"""What `rehearse --against-commit REF --github` writes for a pull request."""

import re

import mistune
import pytest

from helpers.allocator.peaks import PeakChange, Peaks
from helpers.rehearse import github

MIB = 1 << 20
MOVED = Peaks(
    live=(900 * MIB, 1200 * MIB),
    reserved=(1000 * MIB, 1500 * MIB),
    lines=(
        PeakChange("train.py:29 forward", 100 * MIB, 400 * MIB),
        PeakChange("data.py:7 batch", 50 * MIB, 40 * MIB),
        PeakChange("twice.py:3 f", None, 10 * MIB),
    ),
    kinds=(),
)


@pytest.fixture
def project(tmp_path):
    for name in ("src/train.py", "data.py", "a/twice.py", "b/twice.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    return tmp_path


def test_the_summary_is_a_table_with_the_peak_the_lines_and_the_card():
    text = github.summary(MOVED, "origin/main", 24 << 30, above=True)
    page = mistune.html(text)
    assert "<table>" in page
    assert text.startswith("### GPU memory: 300.00 MiB more at the peak\n")
    assert "The peak rose by more than this check allows (+33.3%)." in text
    assert "PyTorch reserves 1.46 GiB of the card's 24.00 GiB at most." in text
    assert "| `train.py:29 forward` | 100.00 MiB | 400.00 MiB | +300.00 MiB |" in text
    assert "| at the peak | `origin/main` | this branch | change |" in text
    assert "| `data.py:7 batch` | 50.00 MiB | 40.00 MiB | -10.00 MiB |" in text
    assert "| `twice.py:3 f` | none | 10.00 MiB | +10.00 MiB |" in text


def test_the_summary_names_the_changed_lines_and_every_line_that_moved():
    lines = tuple(PeakChange(f"train.py:{number} f", MIB, 2 * MIB) for number in range(60))
    moved = Peaks((60 * MIB, 120 * MIB), (MIB, MIB), lines, (), changed=("train.py:3", "data.py:9"))
    text = github.summary(moved, "main", 24 << 30, above=False)
    assert "The peak rose by no more than this check allows (+100.0%)." in text
    assert all(f"| `train.py:{number} f` |" in text for number in range(60))
    assert "Changed lines in this branch: `train.py:3`, `data.py:9`." in text


@pytest.mark.parametrize(
    ("after", "headline"), [(900, "as much as before"), (800, "100.00 MiB less at the peak")]
)
def test_a_peak_that_did_not_rise_is_said_so(after, headline):
    moved = Peaks((900 * MIB, after * MIB), (MIB, MIB), (), ())
    text = github.summary(moved, "main", 24 << 30, above=False)
    assert text.startswith(f"### GPU memory: {headline}\n\nThe peak did not rise.")


def test_each_line_that_needs_more_has_a_note_at_its_file_and_the_first_is_an_error(project):
    notes = github.notes(MOVED, project, above=True)
    assert notes == [
        "::error file=src/train.py,line=29::300.00 MiB more at the peak: 100.00 MiB before, 400.00 MiB now",
    ], "a name that two files have is no place, and a line that needs less is no note"
    assert github.notes(MOVED, project, above=False)[0].startswith(
        "::notice file=src/train.py,line=29::"
    )


def test_nothing_of_a_program_becomes_markup_or_a_command_of_its_own(tmp_path):
    (tmp_path / "a,b%.py").touch()
    hostile = Peaks(
        live=(MIB, 2 * MIB),
        reserved=(MIB, 2 * MIB),
        lines=(PeakChange("a,b%.py:1 <script>|`x`\n::error::y", 0, MIB),),
        kinds=(),
    )
    text = github.summary(hostile, "main|x", 24 << 30, above=True)
    assert "<script>" not in mistune.html(text)
    assert len(re.findall(r"^\|", text, flags=re.MULTILINE)) == 5
    (note,) = github.notes(hostile, tmp_path, above=True)
    assert note.startswith("::error file=a%2Cb%25.py,line=1::")
    assert "\n" not in note


def test_the_summary_goes_where_github_asks_for_it_and_the_notes_are_printed(
    project, monkeypatch, capsys
):
    monkeypatch.chdir(project)
    monkeypatch.setenv(github.SUMMARY, str(project / "summary.md"))
    github.report(MOVED, above=False, ref="main", card_bytes=24 << 30)
    assert (project / "summary.md").read_text().startswith("### GPU memory")
    assert capsys.readouterr().out.startswith("::notice file=src/train.py")
    monkeypatch.delenv(github.SUMMARY)
    github.report(MOVED, above=False, ref="main", card_bytes=24 << 30)
    assert "### GPU memory" in capsys.readouterr().out
