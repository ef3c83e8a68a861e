"""The judge's tables are whole: each form compiles and reads its own example, each sentence is said, each name leads to a row."""

from pathlib import Path

import pytest

from helpers import judge
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, not_text
from helpers.judge.marks import marks
from helpers.judge.posted_processes import processes
from helpers.judge.ttm_commands import SYSTEMS
from helpers.look import wordings
from helpers.look.figure_forms import rows

CODE = "".join(path.read_text() for path in Path(judge.__file__).parent.glob("*.py"))
LISTS = judge.table("posted")["lists"]
LONG = ("", "a" * 50_000, "alloc 1 " * 8_000, "loss += \n" * 6_000, "ttm\n" * 10_000)


# -- forms and sentences --------------------------------------------------------------------------
@pytest.mark.parametrize("tool", LISTS)
def test_each_form_of_a_process_list_reads_its_own_example(tool):
    row = LISTS[tool]
    (one,) = processes(case_evidence({"tool_outputs": {tool: row["example"]}}))
    assert row["source"] and one.pid in (70411, None) and (one.pid or one.name)


@pytest.mark.parametrize("name", judge.table("forms"))
def test_each_form_has_a_source_a_use_and_a_bounded_cost(name):
    assert judge.table("forms")[name]["source"]
    assert f'"{name}"' in CODE
    for text in LONG:
        judge.form(name).search(text)


@pytest.mark.parametrize("row", marks(), ids=lambda row: f"{row[0]}-{row[2][0]}")
def test_every_mark_has_a_sentence_a_place_and_a_bounded_cost(row):
    name, pattern, places, hard = row
    assert judge.table("observations")["sentences"][name] and places and isinstance(hard, bool)
    for text in LONG:
        pattern.search(text)


@pytest.mark.parametrize("row", judge.table("magic"), ids=lambda row: row["kind"])
def test_a_file_is_named_by_its_first_bytes(row):
    assert not_text(row["start"].encode("latin-1") + b"out of memory") == row["kind"]
    assert row["source"] and not not_text(b"x" + row["start"].encode("latin-1") * 2 + b"x" * 500)


def test_every_row_of_marks_figures_and_messages_names_its_source():
    named = [*wordings.table(), *rows(), *judge.table("marks")["marks"]]
    assert [row for row in named if not row.get("source", "").strip()] == []


# -- rows that lead to rows -----------------------------------------------------------------------
def test_each_distribution_leads_to_systems():
    rows = judge.table("boot_systems")["distributions"]
    by_hand = judge.table("boot_systems")["by_hand"]
    assert {name for row in rows for name in row["systems"]} <= {*SYSTEMS, *by_hand}


def test_each_layer_of_a_stack_has_its_number_and_each_pool_its_layers():
    data = judge.table("ceilings")
    answers = judge.table("ceiling_answers")
    known = judge.table("ceiling_numbers")["numbers"]
    numbers = {layer["number"] for layer in data["layers"].values()} - {""}
    assert numbers <= set(known)
    assert all(pool["layers"] and pool["without"] for pool in data["pools"].values())
    rests = {name for row in answers["answers"].values() for name in row["rests"]}
    assert rests <= {*known, *answers["either"]}


def test_each_decision_about_ceilings_is_made_by_the_code():
    assert [
        name for name in judge.table("ceiling_answers")["answers"] if f'"{name}"' not in CODE
    ] == []


def test_each_step_of_the_ladder_says_what_it_needs_and_what_it_may_harm():
    for row in judge.table("ladder")["steps"]:
        assert row["vendor"] in ("", "AMD", "NVIDIA")
        step = judge.table("failures")["remedies"][row["remedy"]]
        assert all(step[key] for key in ("advice", "command", "precondition", "harm"))


@pytest.mark.parametrize("place", ["error_text", "narrative"])
@pytest.mark.parametrize("text", [
    "a" * 200_000, "memory " * 40_000, "grows. " * 40_000, ".\n" * 60_000, "A_" * 90_000, "9.9.9." * 50_000,
])  # fmt: skip
def test_a_text_of_any_length_gets_an_answer(place, text):
    assert diagnose(case_evidence({place: text})).next_step.what
