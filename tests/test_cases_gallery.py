"""The gallery: a told case for each case study and two more, held by the rules of the other notebooks, each a page to share."""

import ast
import base64
import re
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
from test_notebooks import CHECKED, SECTIONS, cells, text_of
from test_share import reaches_nowhere

from helpers.load.claims import cases as studies
from helpers.load.claims import claims
from helpers.load.vpoc import sample
from helpers.look.boxes import open_box
from helpers.run.notebook import verdict_of
from helpers.settings.presets import load
from helpers.tell import cases, redact, share

ROOT = Path(__file__).resolve().parents[1]
GALLERY = sorted((ROOT / "notebooks" / "cases").glob("*.ipynb"))
TOLD = {
    "000-full-cards": ("external-holder", "likely"),
    "001-volume-profiles": ("external-holder", "likely"),
    "002-half-the-ram": ("ttm-gtt-cap", "likely"),
    "003-forty-batches": ("cannot-tell", "weak"),
    "004-tuning-at-the-limit": ("true-capacity", "likely"),
    "growing-loop": ("allocator-fragmentation", "likely"),
    "real-trades": ("true-capacity", "likely"),
}

by_name = pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)


def test_every_case_study_is_told_and_two_cases_of_our_own():
    assert [path.stem for path in GALLERY] == sorted(TOLD)
    assert {path.stem[:3] for path in GALLERY if path.stem[0] == "0"} == {
        case.number for case in studies()
    }


@by_name
def test_a_case_has_the_houses_form(path):
    heads = [
        line.lstrip("# ")
        for cell in cells(path, "markdown")
        for line in cell.source.splitlines()
        if line.startswith("#")
    ]
    assert heads[0].endswith("?") and [head for head in heads if head in SECTIONS] == SECTIONS
    assert "Conclusion" in heads and heads.index("Conclusion") < heads.index("Against")
    assert re.search(r"\*\*Safety: (looks|loads|provokes)\.\*\*", cells(path, "markdown")[0].source)
    parameters = cells(path, "code")[0]
    assert (
        parameters.metadata["tags"] == ["parameters"] and len(parameters.source.splitlines()) <= 8
    )
    for line in parameters.source.splitlines():
        assert re.fullmatch(r"\w+: (str|int|float|bool) = \S.*  # \S.*", line), line


@by_name
def test_its_cells_are_thin_and_what_they_show_is_said(path):
    banned = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While)
    for cell in cells(path, "code")[1:]:
        assert (
            len(
                [
                    line
                    for line in cell.source.splitlines()
                    if line.strip() and not line.startswith("#")
                ]
            )
            <= 5
        ), cell.source
        assert not [
            node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, banned)
        ], cell.source
    whole = nbformat.read(path, 4).cells
    heads = [cell.source.split("\n")[0] for cell in whole]
    for at in range(heads.index("## Evidence"), heads.index("## Against")):
        if whole[at].cell_type == "code" and "wrong_text" not in whole[at].source:
            assert whole[at + 1].source.startswith("This shows "), whole[at].source


@by_name
def test_it_was_executed_and_nbval_compares_its_verdict_and_a_table(path):
    counts = [cell.execution_count for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [out for cell in cells(path, "code") for out in cell.outputs]
    assert not [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    checked = [cell for cell in cells(path, "code") if CHECKED in cell.source]
    assert len(checked) >= 2 and any("verdict" in cell.source for cell in checked)
    for cell in checked:
        assert text_of(cell).strip()
        assert not re.search(
            r"\d{4}-\d\d-\d\dT|(?<![\w/])/(sys|proc|opt|usr|home|tmp)/\w",
            text_of(cell).split("Missing")[0],
        )
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    assert pictures and all(len(out.metadata["image/png"]["alt"]) > 20 for out in pictures)


@by_name
def test_its_verdict_is_read_back_as_data(path):
    verdict = verdict_of(nbformat.read(path, 4))
    assert (verdict.cause, verdict.confidence) == TOLD[path.stem]
    assert (
        verdict.evidence
        and verdict.next_step.what
        and (verdict.missing or verdict.confidence == "confirmed" or path.stem == "real-trades")
    )


@by_name
def test_nothing_in_it_is_left_to_redact(path):
    text = path.read_text()
    for word in (str(ROOT), str(Path.home()) + "/", "/tmp/"):
        assert word not in text
    book = nbformat.read(path, 4)
    known = redact.known_values(
        "live", open_box("rx7900xt-container"), open_box("strix-halo-1-found")
    )
    clean, replaced = redact.redact_notebook(book, known)
    assert replaced.total == 0 and clean == book


@by_name
def test_its_page_reaches_nowhere_and_begins_with_the_verdict(path):
    about = share.subject(path)
    made = share.page(about, share.known_of(about))
    page = reaches_nowhere(made.html)
    assert made.replaced.total == 0 and not made.scan or isinstance(made.scan, str)
    assert page.text.index(TOLD[path.stem][0]) < page.text.index("Conclusion")


def test_the_pictures_of_the_gallery_are_the_notebooks_own():
    drawn = {
        base64.b64decode(out.data["image/png"])
        for path in GALLERY
        for cell in cells(path, "code")
        for out in cell.outputs
        if "image/png" in out.get("data", {})
    }
    shown = sorted((ROOT / "notebooks" / "pictures" / "gallery").glob("*.png"))
    assert [path.name for path in shown if path.read_bytes() not in drawn] == [] and shown


@pytest.mark.slow
@by_name
def test_it_runs_again_without_a_network_on_other_trades(path, tmp_path):
    given = {"trades": "generated"} if path.stem == "real-trades" else {}
    papermill.execute_notebook(path, tmp_path / "again.ipynb", given, cwd=ROOT, progress_bar=False)
    verdict = verdict_of(nbformat.read(tmp_path / "again.ipynb", 4))
    assert (verdict.cause, verdict.confidence) == TOLD[path.stem]


def test_every_claim_of_a_case_is_told_once_unless_it_is_a_plain_truth():
    for case in studies():
        mine = [claim for claim in claims() if claim.case == case.number]
        both = cases.advice_text(case.number), cases.wrong_text(case.number)
        for claim in mine:
            advised = claim.id[4:] in cases.ADVICE[case.number].split()
            named = [f"\n{claim.id} " in text for text in both]
            assert named == [advised, not advised and claim.verdict != "true"]
        assert len(both[0].split("\n\n")) - 1 == len(cases.ADVICE[case.number].split())


def test_a_remedy_is_worth_what_the_ledger_says_and_harm_stands_first():
    told = cases.advice_text("004-04 001-03 000-06 001-20 001-08")
    assert re.findall(r"^(\d{3}-\d\d) (\w+):", told, re.MULTILINE) == [
        ("001-03", "harmful"),
        ("000-06", "folk"),
        ("001-20", "folk"),
        ("001-08", "depends"),
        ("004-04", "right"),
    ]
    assert told.startswith("5 remedies: 1 harmful, 2 folk, 1 depends, 1 right\n")


def test_the_settings_of_a_case_are_told_with_the_build_they_are_judged_for():
    told = cases.preset_text("case-003")
    assert told.startswith("On torch " + ", ".join(load("case-003").checked))
    assert (
        "contradictory: PYTORCH_HIP_ALLOC_CONF=" in told
        and "debug only: AMD_SERIALIZE_KERNEL=3" in told
    )


@pytest.mark.parametrize("kib", [1, 203, 1023])
def test_few_tensors_pin_at_most_a_segment_for_each_smallest_block(kib):
    rows = {name: size for name, size, _ in cases.outside_sums(0.99, kib << 10)}
    used, tensors, cache, context, outside = rows.values()
    assert (
        tensors == kib << 10 and cache == 2 * kib * (2 << 20) and used == outside + cache + context
    )
    assert used == int(0.99 * (20464 << 20))


def test_programs_alike_from_outside_end_for_different_reasons():
    rows = cases.forty_rows()
    ends = [row[1] for row in rows]
    assert (
        ends[0].startswith("in batch 4")
        and ends[1].startswith("in batch 3")
        and ends[2] == "does not"
    )
    assert (
        rows[0][4].startswith("max_split_size_mb")
        and rows[1][4].endswith("are missing")
        and rows[2][4] == "not needed"
    )
    verdict = cases.forty_verdict(rows)
    assert verdict.cause == "cannot-tell" and len(verdict.alternatives) == 3 and verdict.missing


def test_trades_stand_in_where_the_real_ones_are_not_at_hand_and_nothing_is_fetched(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sample, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(sample.subprocess, "run", lambda *a, **k: pytest.fail("it tried to fetch"))
    made = cases.trades("")
    assert len(made) == 500_000 and made.sessions == 2 and "stand in" in made.notes[-1]
    assert (
        np.array_equal(made.price, cases.trades("generated").price)
        and not cases.trades("generated").notes
    )
    assert not (tmp_path / "none").exists()
