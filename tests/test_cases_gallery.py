"""The gallery: a told case for each case study and two more, held by the rules of the other notebooks, each a page to share."""

import base64
import re
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
from page_audit import check
from test_notebooks import DIFFERS, PARAMETER, SECTIONS, cells, checked, text_of
from this_machine import known_values, replace_in_notebook

from helpers.batch.notebook import verdict_of
from helpers.settings.presets import load
from helpers.share import page_of, subject_of
from helpers.share.verdict_facts import headline
from helpers.trials import case_tables as cases
from helpers.trials.claims import cases as studies
from helpers.trials.claims import claims
from helpers.vpoc import reading as sample

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
    words = cells(path, "markdown")
    code = cells(path, "code")
    lines = [line for cell in words for line in cell.source.splitlines()]
    heads = [line.lstrip("# ") for line in lines if line.startswith("#")]
    assert heads[0].endswith("?") and [head for head in heads if head in SECTIONS] == SECTIONS
    assert "Conclusion" in heads and heads.index("Conclusion") < heads.index("Against")
    assert re.search(r"\*\*Safety: (looks|loads|provokes)\.\*\*", words[0].source)
    parameters = code[0].source.splitlines()
    assert code[0].metadata["tags"] == ["parameters"] and len(parameters) <= 8
    for line in parameters:
        assert re.fullmatch(PARAMETER, line), line


@by_name
def test_what_its_cells_show_is_said(path):
    whole = nbformat.read(path, 4).cells
    heads = [cell.source.split("\n")[0] for cell in whole]
    for at in range(heads.index("## Evidence"), heads.index("## Against")):
        if whole[at].cell_type == "code" and "cases.wrong(" not in whole[at].source:
            assert whole[at + 1].source.startswith("This shows "), whole[at].source


@by_name
def test_it_was_executed_and_nbval_compares_its_verdict_and_a_table(path):
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [out for cell in code for out in cell.outputs]
    assert not [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    compared = checked(path)
    assert len(compared) >= 2 and any("verdict" in cell.source for cell in compared)
    for cell in compared:
        assert text_of(cell).strip() and not re.search(DIFFERS, text_of(cell).split("Missing")[0])
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    assert pictures and all(len(out.metadata["image/png"]["alt"]) > 20 for out in pictures)


@by_name
def test_its_verdict_is_read_back_as_data(path):
    verdict = verdict_of(nbformat.read(path, 4))
    assert (verdict.cause, verdict.confidence) == TOLD[path.stem]
    assert verdict.evidence and verdict.next_step.what
    assert verdict.missing or verdict.confidence == "confirmed" or path.stem == "real-trades"


@by_name
def test_nothing_in_it_names_this_machine_and_its_page_says_its_cause(path):
    text = path.read_text()
    assert not [word for word in (str(ROOT), f"{Path.home()}/", "/tmp/") if word in text]
    assert replace_in_notebook(nbformat.read(path, 4), known_values()) == 0
    about = subject_of(path)
    page = check(page_of(about).html)
    assert headline(about.verdict) in page.text


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


@pytest.mark.parametrize("case", [case.number for case in studies()])
def test_every_claim_of_a_case_is_told_once_unless_it_is_a_plain_truth(case):
    advised = [f"{case}-{at}" for at in cases.TABLE["advice"][case].split()]
    assert sorted(row["claim"] for row in cases.advice(case).rows) == sorted(advised)
    rest = [one for one in claims() if one.case == case and one.id not in advised]
    untrue = [one.id for one in rest if one.verdict != "true"]
    assert [row["claim"] for row in cases.wrong(case).rows] == untrue


def test_a_remedy_is_worth_what_the_ledger_says_and_harm_stands_first():
    named = cases.advice("", *"004-04 001-03 000-06 001-20 001-08".split())
    assert [f"{row['claim']} {row['worth']}" for row in named.rows] == [
        "001-03 harmful",
        "000-06 folk",
        "001-20 folk",
        "001-08 depends",
        "004-04 right",
    ]
    assert named.title == "5 remedies: 1 harmful, 2 folk, 1 depends, 1 right"


def test_the_settings_of_a_case_are_told_with_the_build_they_are_judged_for():
    view = cases.preset_table("case-003")
    assert view.title.endswith("on torch " + ", ".join(load("case-003").checked))
    verdicts = {(row["setting"], row["value"]): row["verdict"] for row in view.rows}
    assert verdicts["AMD_SERIALIZE_KERNEL", "3"] == "debug only"
    assert ("PYTORCH_HIP_ALLOC_CONF", "contradictory") in {
        (name, verdict) for (name, _), verdict in verdicts.items()
    }


@pytest.mark.parametrize("kib", [1, 203, 1023])
def test_few_tensors_pin_at_most_a_segment_for_each_smallest_block(kib):
    rows = cases.outside_sums(0.99, kib << 10)
    used, tensors, cache, context, outside = (size for _, size, _ in rows)
    assert tensors == kib << 10 and cache == 2 * kib * (2 << 20)
    assert used == outside + cache + context == int(0.99 * (20464 << 20))
    verdict = cases.outside_verdict(rows, 7)
    assert [row.reading.bytes for row in verdict.evidence] == [size for _, size, _ in rows] + [7]
    assert f"{outside / (1 << 30):.2f} GiB or more" in verdict.summary and verdict.against


def test_programs_alike_from_outside_end_for_different_reasons():
    rows = cases.forty_rows()
    ends = [row[1] for row in rows]
    saves = [row[4] for row in rows]
    assert ends[0].startswith("in batch 4") and ends[1].startswith("in batch 3")
    assert ends[2] == "does not" and saves[2] == "not needed"
    assert saves[0].startswith("max_split_size_mb") and saves[1].endswith("are missing")
    verdict = cases.forty_verdict(rows)
    assert verdict.cause == "cannot-tell" and len(verdict.alternatives) == 3 and verdict.missing
    assert all(saves in row.says for row, saves in zip(verdict.evidence, saves, strict=True))


def test_trades_stand_in_where_the_real_ones_are_not_at_hand_and_nothing_is_fetched(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sample, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(sample, "watch", lambda *a, **k: pytest.fail("it tried to fetch"))
    made = cases.trades("")
    named = cases.trades("generated")
    assert len(made) == 500_000 and made.sessions == 2 and "stand in" in made.notes[-1]
    assert np.array_equal(made.price, named.price) and not named.notes
    assert not (tmp_path / "none").exists()
