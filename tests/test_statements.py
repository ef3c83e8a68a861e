"""Statements in prose: a subject and an event in one sentence, never more than hearsay, and each met in more than one place."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import grammar
from helpers.judge.diagnosis import diagnose, verdict_of
from helpers.judge.evidence import Observation, case_evidence
from helpers.judge.statements import DATA, lexicon, read_statements, sentences, statements
from helpers.look.figures import rows
from helpers.look.reading import seen

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"
CASES, THREADS = SHARED / "cases", SHARED / "messages" / "threads.json"


def said(narrative: str) -> set[str]:
    return {one.name for one in read_statements(case_evidence({"narrative": narrative}))}


# -- what a sentence says -------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "name"), [
    ("The memory use of the server grows with every request.", "grows-said"),
    ("The process was killed and its memory stays in use.", "memory-outlives"),
    ("Only a reboot frees the memory.", "freed-by-reset-only"),
    ("Somebody else uses this card for a job of theirs.", "others-hold"),
    ("It has failed since the upgrade to torch 2.9.", "changed-with-version"),
])  # fmt: skip
def test_a_sentence_with_its_subject_is_read(text, name):
    assert name in said(text)


@pytest.mark.parametrize("text", [
    "The unit test fails with out of memory.", "I killed the old tab and restarted.",
    "The new workspace is on another node.", "The price of memory increases every month.",
    "The GPU is not supported by the warranty.", "My BIOS is up to date and I read about unified memory.",
    "Sending a CUDA tensor to another process is documented.", "The VAE is a nice model, and 7B is its size.",
    "We moved to a bigger office because the team grows.",
    "I have read about OOMKilled pods in the docs; my run is fine.",
])  # fmt: skip
@pytest.mark.parametrize("error", ["", "RuntimeError: CUDA error: out of memory"])
def test_one_word_of_an_innocent_sentence_decides_nothing(text, error):
    machine = {"gpu": "Radeon 890M", "gfx": "gfx1150", "ram_gib": 96}
    with_it = diagnose(
        case_evidence({"error_text": error, "environment": machine, "narrative": text})
    )
    without = diagnose(case_evidence({"error_text": error, "environment": machine}))
    assert with_it.cause == without.cause == "cannot-tell"


@pytest.mark.parametrize("row", statements(), ids=lambda row: row.name)
def test_a_statement_alone_is_weak_and_one_of_a_single_word_is_no_cause(row):
    alone = verdict_of(
        (Observation(row.name, seen("x", "text", "narrative"), row.says, "narrative", hard=False),)
    )
    assert alone.confidence == "weak"
    if len({*row.all_of, *row.near}) + bool(row.any_of) < 2:
        assert alone.cause == "cannot-tell"


def test_prose_is_hearsay_whatever_it_stands_in():
    text = "The memory use grows with every step. Only a reboot frees the memory. Somebody else uses the card."
    for place in ("narrative", "error_text"):
        assert not [one for one in read_statements(case_evidence({place: text})) if one.hard]
    assert not [
        one
        for one in read_statements(case_evidence({"tool_outputs": {"nvidia-smi": text}}))
        if one.hard
    ]


@pytest.mark.parametrize("text", [
    "a" * 200_000, "memory " * 40_000, "grows. " * 40_000, "the memory is not " * 10_000, ".\n" * 60_000, "A_" * 90_000,
    "no running gpu " * 20_000, "9.9.9." * 50_000,
])  # fmt: skip
def test_a_text_of_any_length_costs_a_bounded_number_of_sentences(text):
    assert len(sentences(text)) <= 400 and all(len(part) <= 600 for part in sentences(text))
    assert diagnose(case_evidence({"narrative": text})).next_step.what


@given(st.text(max_size=300))
def test_no_text_is_more_than_hearsay(text):
    assert all(
        not one.hard and not one.proof
        for one in read_statements(case_evidence({"narrative": text}))
    )


@pytest.mark.parametrize("name", sorted(lexicon()))
def test_the_forms_of_a_class_of_words_differ_and_match_no_empty_text(name):
    forms = json.loads(DATA.read_text())["words"][name]
    assert forms and len(set(forms)) == len(forms)
    assert not [form for form in forms if re.fullmatch(form, "", re.IGNORECASE)]


# -- every pattern has a source, or is met in two places ------------------------------------------
def places() -> dict[str, dict]:
    """Each posted text by the place it stands in: a case's file, or a thread."""
    found = {
        path.stem: json.loads(path.read_text())["evidence"] for path in sorted(CASES.glob("*.json"))
    }
    for at, row in enumerate(json.loads(THREADS.read_text()) if THREADS.is_file() else ()):
        found[f"thread {at} {row.get('thread', '')}"] = {"error_text": row.get("text", "")}
    return found


@pytest.mark.skipif(not CASES.is_dir(), reason="the posted cases are not beside this checkout")
def test_every_statement_is_met_in_two_independent_places_or_names_a_source():
    met: dict[str, set[str]] = defaultdict(set)
    for place, evidence in places().items():
        for one in read_statements(case_evidence(evidence)):
            met[one.name].add(place)
    data = json.loads(DATA.read_text())["statements"]
    named = {row["name"] for row in data if row.get("source")}
    for row in data:
        met[row["name"]].update(row.get("met", ()))  # public threads beyond the posted cases
    rare = {
        row.name: sorted(met[row.name])
        for row in statements()
        if len(met[row.name]) < 2 and row.name not in named
    }
    assert rare == {}


def test_every_row_of_figures_and_messages_names_its_source():
    messages = grammar.table()
    assert [row["id"] for row in messages if not row.get("source", "").strip()] == []
    assert [row["id"] for row in rows() if not row.get("source", "").strip()] == []
