"""The promise of a shared page: no word that is not known reaches it, in whatever column of whatever record it stands."""

import re
from dataclasses import fields, is_dataclass, replace

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import WAYS
from tell_boxes import VERDICT, run_record

from helpers import share
from helpers.ground.shapes import Reading
from helpers.judge.ceilings import ceilings
from helpers.judge.evidence import CaseEvidence, evidence_from_bundle
from helpers.judge.ledger import ledgers_of
from helpers.look import kernel_log
from helpers.look.boxes import open_box
from helpers.look.gpus import gpus, host_pools
from helpers.look.wordings import table
from helpers.share.public_copy import CODES, STEP_NOT_SHOWN, PublicCopy
from helpers.tell.shown import Shown
from helpers.tell.values import Column

WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=9).map("zq{}".format)
"""Words that stand nowhere in the workbook."""
SENTENCES = st.sampled_from([row["says"] for row in table()])
FORMS = st.sampled_from(sorted(WAYS.values()))
BOXES = ("strix-halo-1-found", "rx7900xt-container", "cuda-24gb-tuning")
LEFT_AS_THEY_ARE = CODES | {"pci", "driver", "cause", "row"}
"""Fields whose texts are of a fixed list or a pattern of the workbook's own readers."""


@st.composite
def spoilt_texts(draw):
    """An unknown word, and a text of the workbook with it in it."""
    word = draw(WORDS)
    sentence = draw(SENTENCES)
    words = sentence.split()
    place = draw(st.integers(0, len(words)))
    instead = draw(st.integers(0, 1))
    inside = " ".join([*words[:place], word, *words[place + instead :]])
    form = draw(FORMS).format(v=word, t=sentence, u=word.upper())
    return word, draw(st.sampled_from([word, inside, form]))


def spoilt(fact, text):
    """A fact with the text in each of its fields that holds a text."""
    if isinstance(fact, str):
        return text
    if isinstance(fact, (tuple, list)):
        return type(fact)(spoilt(part, text) for part in fact)
    if isinstance(fact, Reading):
        value = text if isinstance(fact.value, str) else fact.value
        return replace(fact, value=value, source=text, why=text, item=text)
    if not is_dataclass(fact):
        return fact
    names = [field.name for field in fields(fact) if field.name not in LEFT_AS_THEY_ARE]
    return replace(fact, **{name: spoilt(getattr(fact, name), text) for name in names})


def facts_of(box):
    bundle = open_box(box)
    evidence = evidence_from_bundle(bundle)
    cards = [*gpus(bundle), *host_pools(bundle)]
    return [*cards, *ledgers_of(evidence), *ceilings(bundle), *kernel_log.events(bundle), VERDICT]


FACTS = [fact for box in BOXES for fact in facts_of(box)]


@given(spoilt_texts())
@settings(max_examples=examples(60))
def test_no_unknown_word_passes_a_rule_of_any_column(spoilt_text):
    word, text = spoilt_text
    rules = PublicCopy(CaseEvidence()).rules
    head = [Column("layer", passes=rule) for rule in rules] + [Column(text, passes="number")]
    passing = Shown(text, head, [[text] * len(head)]).passing(rules)
    assert word not in passing.text().lower()


@given(spoilt_texts(), st.sampled_from(FACTS))
@settings(max_examples=examples(150))
def test_no_unknown_word_is_in_the_copy_of_any_fact(spoilt_text, fact):
    word, text = spoilt_text
    copies = PublicCopy(CaseEvidence())
    left = re.findall(
        rf"[\w.]*=[^=]*{word}[^=]{{0,20}}", repr(copies.of(spoilt(fact, text))).lower()
    )
    assert left == []


@given(spoilt_texts())
@settings(max_examples=examples(15))
def test_no_unknown_word_of_a_run_reaches_its_page_or_its_report(spoilt_text):
    word, text = spoilt_text
    columns = ("cause", "last_words", "node", "box", "gate", "quarantined", "preset", "signal")
    run = run_record("01", text, "failed", **dict.fromkeys(columns, text), notes=[text])
    run = run.model_copy(update={"parameters": {text: text}, "verdict": spoilt(VERDICT, text)})
    about = share.Subject(runs=(run,), verdict=run.verdict, steps=(), when=text)
    page = share.page_of(about)
    report = share.issue_text("rocm", about)
    for leaves in (page.html, page.left_out, report):
        assert word not in leaves.lower()


@pytest.mark.parametrize("field", ["says", "title", "summary"])
def test_the_texts_that_are_spoilt_do_pass_as_they_are(field):
    """So the tests above do not pass because nothing does."""
    copies = PublicCopy(CaseEvidence())
    passing = [row["says"] for row in table() if copies.text(row["says"])]
    assert len(passing) > 0.9 * len(table()), field


def test_a_next_step_in_foreign_words_says_that_it_is_not_shown():
    copy = PublicCopy(CaseEvidence()).verdict(spoilt(VERDICT, "zqosprey"))
    assert copy.next_step.what == STEP_NOT_SHOWN
