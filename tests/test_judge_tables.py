"""The judge's tables are whole: each form compiles and reads its own example, each sentence is said, each name leads to a row."""

import json
import re
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import judge
from helpers.ground import grammar
from helpers.ground.shapes import seen
from helpers.judge.binding import COMPARISONS, Numbers
from helpers.judge.diagnosis import diagnose, verdict_of
from helpers.judge.evidence import Observation, case_evidence, not_text
from helpers.judge.observations import lexicon, marks, sentences, statement_observations, statements
from helpers.judge.posted import processes
from helpers.judge.ttm_plan import SYSTEMS
from helpers.look.figures import rows

CODE = "".join(path.read_text() for path in Path(judge.__file__).parent.glob("*.py"))
LISTS = judge.table("posted")["lists"]
COMPOSED = re.compile(r"(?:small|bounded) (?:reserve|target)|(?:requested|free|stranded), told")
GROUPS = "account says, diagnosis missing, diagnosis says, ledger says, ceilings notes, ttm plan, ttm refused, ttm warnings, ttm verify"
SENTENCES = [
    (name, group, key)
    for name, group in (pair.split() for pair in GROUPS.split(", "))
    for key in judge.table(name)[group]
]
COMPARED = re.compile("|".join(COMPARISONS))
LONG = ("", "a" * 50_000, "alloc 1 " * 8_000, "loss += \n" * 6_000, "ttm\n" * 10_000)
SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"
CASES = SHARED / "cases"
THREADS = SHARED / "messages" / "threads.json"


# -- forms and sentences --------------------------------------------------------------------------
@pytest.mark.parametrize("tool", LISTS)
def test_each_form_of_a_process_list_reads_its_own_example(tool):
    row = LISTS[tool]
    (one,) = processes(case_evidence({"tool_outputs": {tool: row["example"]}}))
    assert row["source"] and one.pid in (70411, None) and (one.pid or one.name)


@pytest.mark.parametrize("name", judge.table("forms"))
def test_each_form_has_a_source_a_use_and_a_bounded_cost(name):
    assert judge.table("forms")[name]["source"]
    assert f'"{name}"' in CODE or COMPOSED.fullmatch(name)
    for text in LONG:
        judge.form(name).search(text)


@pytest.mark.parametrize(("name", "group", "key"), SENTENCES)
def test_each_sentence_is_said_somewhere(name, group, key):
    assert judge.table(name)[group][key]
    totals = [row[0] for row in judge.table("ledger")["totals"]]
    assert f'"{key}"' in CODE or COMPOSED.fullmatch(key) or key in totals, key


@pytest.mark.parametrize("row", marks(), ids=lambda row: f"{row[0]}-{row[2][0]}")
def test_every_mark_has_a_sentence_a_place_and_a_bounded_cost(row):
    name, pattern, places, hard = row
    assert judge.table("observations")[name] and places and isinstance(hard, bool)
    for text in LONG:
        pattern.search(text)


@pytest.mark.parametrize("row", judge.table("magic"), ids=lambda row: row["kind"])
def test_a_file_is_named_by_its_first_bytes(row):
    assert not_text(row["start"].encode("latin-1") + b"out of memory") == row["kind"]
    assert row["source"] and not not_text(b"x" + row["start"].encode("latin-1") * 2 + b"x" * 500)


def test_every_row_of_marks_figures_and_messages_names_its_source():
    named = [*grammar.table(), *rows(), *judge.table("marks")["marks"]]
    assert [row for row in named if not row.get("source", "").strip()] == []


# -- rows that lead to rows -----------------------------------------------------------------------
def test_each_distribution_leads_to_systems_and_each_system_to_its_lines():
    data = judge.table("ttm")
    assert {name for row in data["distributions"] for name in row["systems"]} <= set(SYSTEMS)
    for name, system in SYSTEMS.items():
        assert "run" in system or system["like"] in data["kinds"], name


def test_each_layer_of_a_stack_has_its_number_and_each_pool_its_layers():
    data = judge.table("ceilings")
    numbers = {layer["number"] for layer in data["layers"].values()} - {""}
    assert numbers <= set(data["numbers"])
    assert all(pool["layers"] and pool["without"] for pool in data["pools"].values())
    rests = {name for row in data["decisions"].values() for name in row["rests"]}
    assert rests <= {*data["numbers"], *data["either"], "other_total"}


@pytest.mark.parametrize("group", judge.table("ceilings")["rules"], ids=lambda group: group["of"])
def test_each_rule_about_ceilings_names_a_decision_facts_and_figures_that_are_made(group):
    decisions = judge.table("ceilings")["decisions"]
    kinds = {"apu", "card", "nvidia-unified"}
    figures = {field.name for field in fields(Numbers)} | kinds
    conditions = list(group["when"])
    for rule in group["rules"]:
        conditions += rule["when"]
        assert rule["row"] in decisions or (rule["row"] == "" and rule["when"])
        assert rule.get("sure", "weak") in ("read", "confirmed", "likely", "weak")
        conditions += [*filter(None, [rule.get("size")]), *rule.get("words", {}).values()]
    for condition in conditions:
        for name in COMPARED.split(condition[3 * condition.startswith("no ") :]):
            assert name in figures or f'"{name}"' in CODE or f"{name}=" in CODE, condition


def test_each_step_of_the_ladder_says_what_it_needs_and_what_it_may_harm():
    for row in judge.table("ladder"):
        assert row["vendor"] in ("", "AMD", "NVIDIA")
        assert all(row[key] for key in ("what", "command", "precondition", "blast_radius"))


# -- statements: never more than hearsay, each met in more than one place --------------------------
@pytest.mark.parametrize("row", statements(), ids=lambda row: row.name)
def test_a_statement_is_made_of_known_words_is_weak_alone_and_no_cause_by_a_single_word(row):
    classes = {*row.all_of, *row.any_of, *row.none_of, *row.near}
    assert classes <= set(lexicon()) and row.says
    reading = seen("x", "text", "narrative")
    alone = verdict_of((Observation(row.name, reading, row.says, "narrative", hard=False),))
    assert alone.confidence == "weak"
    if len({*row.all_of, *row.near}) + bool(row.any_of) < 2:
        assert alone.cause == "cannot-tell"


@pytest.mark.parametrize("name", sorted(lexicon()))
def test_the_forms_of_a_class_of_words_are_used_differ_and_match_no_empty_text(name):
    forms = judge.table("statements")["words"][name]
    assert forms and len(set(forms)) == len(forms)
    assert not [form for form in forms if re.fullmatch(form, "", re.IGNORECASE)]
    assert [r for r in statements() if name in {*r.all_of, *r.any_of, *r.none_of, *r.near}]


@pytest.mark.parametrize("place", ["narrative", "error_text", "tool_outputs"])
def test_prose_is_hearsay_whatever_it_stands_in(place):
    text = "The memory use grows with every step. Only a reboot frees the memory. Somebody else uses the card."
    given = {place: {"nvidia-smi": text} if place == "tool_outputs" else text}
    found = statement_observations(case_evidence(given))
    tool = "nvidia-smi: " if place == "tool_outputs" else ""
    assert found[0].reading.value == f"{tool}The memory use grows with every step."
    assert not [one for one in found if one.hard]


@given(st.text(max_size=300))
def test_no_text_is_more_than_hearsay(text):
    found = statement_observations(case_evidence({"narrative": text}))
    assert not [one for one in found if one.hard or one.proof]


@pytest.mark.parametrize("text", [
    "a" * 200_000, "memory " * 40_000, "grows. " * 40_000, "the memory is not " * 10_000, ".\n" * 60_000, "A_" * 90_000,
    "no running gpu " * 20_000, "9.9.9." * 50_000,
])  # fmt: skip
def test_a_text_of_any_length_costs_a_bounded_number_of_sentences(text):
    assert len(sentences(text)) <= 400 and all(len(part) <= 600 for part in sentences(text))
    assert diagnose(case_evidence({"narrative": text})).next_step.what


@pytest.mark.skipif(not CASES.is_dir(), reason="the posted cases are not beside this checkout")
def test_every_statement_is_met_in_two_independent_places_or_names_a_source():
    posted = {p.stem: json.loads(p.read_text())["evidence"] for p in sorted(CASES.glob("*.json"))}
    for at, row in enumerate(json.loads(THREADS.read_text()) if THREADS.is_file() else ()):
        posted[f"thread {at}"] = {"error_text": row.get("text", "")}
    met = defaultdict(set)
    for place, evidence in posted.items():
        for one in statement_observations(case_evidence(evidence)):
            met[one.name].add(place)
    rows = judge.table("statements")["statements"]
    sourced = {row["name"] for row in rows if row.get("source")}
    for row in rows:
        met[row["name"]].update(row.get("met", ()))  # public threads beyond the posted cases
    assert [name for name, places in met.items() if len(places) < 2 and name not in sourced] == []
