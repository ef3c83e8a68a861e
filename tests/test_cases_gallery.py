"""The gallery: a told case for each case study and two more, each a page to share; test_notebooks holds their form."""

import base64
import re
from pathlib import Path

import nbformat
import papermill
import pytest
from page_audit import check
from test_notebooks import cells, text_of
from this_machine import known_values, replace_in_notebook

from helpers.batch.notebook_file import verdict_of
from helpers.share import page_of, subject_of
from helpers.share.verdict_facts import headline
from helpers.tell.claims import content

ROOT = Path(__file__).resolve().parents[1]
GALLERY = sorted((ROOT / "notebooks" / "cases").glob("*.ipynb"))
TOLD = {
    "000-full-cards": ("external-holder", "likely"),
    "001-volume-profiles": ("external-holder", "likely"),
    "002-half-the-ram": ("ttm-gtt-cap", "likely"),
    "003-forty-batches": ("cannot-tell", "weak"),
    "004-tuning-at-the-limit": ("true-capacity", "weak"),
    "growing-loop": ("allocator-fragmentation", "likely"),
    "real-trades": ("true-capacity", "likely"),
}

by_name = pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)


def test_every_case_study_is_told_and_two_cases_of_our_own():
    assert [path.stem for path in GALLERY] == sorted(TOLD)
    numbers = {path.stem[:3] for path in GALLERY if path.stem[0] == "0"}
    assert numbers == set(content()["cases"])


@by_name
def test_its_conclusion_stands_before_what_speaks_against_it_and_nothing_complained(path):
    lines = "\n".join(cell.source for cell in cells(path, "markdown")).splitlines()
    heads = [line.lstrip("# ") for line in lines if line.startswith("#")]
    assert heads.index("Conclusion") < heads.index("What speaks against it")
    outputs = [out for cell in cells(path, "code") for out in cell.outputs]
    assert [out for out in outputs if out.get("name") == "stderr"] == []


@by_name
def test_what_its_cells_show_is_said(path):
    whole = nbformat.read(path, 4).cells
    heads = [cell.source.split("\n")[0] for cell in whole]
    for at in range(heads.index("## Evidence"), heads.index("## What speaks against it")):
        if whole[at].cell_type == "code" and "wrong_statements(" not in whole[at].source:
            assert whole[at + 1].source.startswith("This shows "), whole[at].source


@by_name
def test_its_verdict_is_read_back_as_data(path):
    verdict = verdict_of(nbformat.read(path, 4))
    assert (verdict.cause, verdict.confidence) == TOLD[path.stem]
    assert verdict.evidence and verdict.next_step.what
    assert verdict.missing or verdict.confidence == "confirmed" or path.stem == "real-trades"


@by_name
def test_nothing_in_it_names_this_machine_and_its_page_says_its_cause(path):
    assert replace_in_notebook(nbformat.read(path, 4), known_values()) == 0
    about = subject_of(path)
    page = check(page_of(about).html)
    assert (about.verdict.title or headline(about.verdict)) in page.text


def test_the_pictures_of_the_gallery_are_the_notebooks_own():
    outputs = [out for path in GALLERY for cell in cells(path, "code") for out in cell.outputs]
    pictures = (out.data["image/png"] for out in outputs if "image/png" in out.get("data", {}))
    drawn = set(map(base64.b64decode, pictures))
    shown = sorted((ROOT / "notebooks" / "pictures" / "gallery").glob("*.png"))
    assert [path.name for path in shown if path.read_bytes() not in drawn] == [] and shown


@pytest.mark.slow
@by_name
def test_it_runs_again_without_a_network_on_other_trades(path, tmp_path):
    given = {"trades": "generated"} if path.stem == "real-trades" else {}
    papermill.execute_notebook(path, tmp_path / "again.ipynb", given, cwd=ROOT, progress_bar=False)
    verdict = verdict_of(nbformat.read(tmp_path / "again.ipynb", 4))
    assert (verdict.cause, verdict.confidence) == TOLD[path.stem]


def test_programs_alike_from_outside_end_for_different_reasons():
    (table,) = (
        cell for cell in cells(GALLERY[3], "code") if "Programs that from outside" in cell.source
    )
    text = " ".join(text_of(table).split())
    assert re.search("every output is kept in batch 4.* max_split_size_mb:128", text)
    assert re.search("grow faster, every output is kept in batch 3.* are missing", text)
    assert re.search("nothing is kept does not .*not needed", text)


@pytest.mark.parametrize("number", ["001", "003", "004"])
def test_the_criteria_of_a_case_are_a_table_with_how_each_is_checked(number):
    (path,) = (path for path in GALLERY if path.stem.startswith(number))
    (table,) = (
        cell.source for cell in cells(path, "markdown") if "criteria of success" in cell.source
    )
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[0] == ["criterion", "expected", "how it is checked"] and len(rows) >= 6
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
