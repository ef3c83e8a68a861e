"""Which words and numbers stay on a page that leaves the box: those of sentences and machines; and which go: somebody's."""

import re

import nbformat
import pytest

from helpers.tell.redact_known import Known
from helpers.tell.redact_text import redact_notebook, redact_text


def test_a_word_of_everyday_english_stays_in_a_sentence_and_goes_where_it_may_be_a_name():
    kept = "The semester ended with an astonishing vegetable; see https://github.com/qwixfen/vexoba/pull/12."
    assert redact_text(kept, Known()) == kept
    for text in (
        "/data/astonishing-vegetable/x",
        "astonishing@x",
        "ASTONISHING=1",
        "vegetable01: up",
    ):
        assert not re.search("(?i)astonishing|vegetable", redact_text(text, Known())), text


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("loan_no,amount,rate\n7339489744,250000,2.5\n", "7339489744"),
        ("   氏名   個人番号   病名\n0  山田  920158737497  肺炎\n", "920158737497"),
        (
            "                 name matric_no  score\n0  Svetlana Qwixfenom  22917535   17.5\n",
            "22917535",
        ),
        ("customer_no \n48157761            3   211.2\n48157762            1   1.2\n", "48157762"),
        ("{'resourceType': 'Patient', 'id': '858117240'}", "858117240"),
        ("['19231545', '21540785', '21540786']", "21540785"),
    ],
)
def test_a_number_that_is_somebodys_goes_by_its_column_or_its_quotes(text, gone):
    assert gone not in redact_text(text, Known())


@pytest.mark.parametrize(
    "text",
    [
        '"VRAM Total Memory (B)": "17163091968"',
        "gpu_id  pid      job_id   mem\n0       1234567  4123456  81559\n",
        "sizes = ['8388608', '1677721', '3355443']",
        '"allocated_bytes.all.peak": "12345678901", "pid": "1234567"',
        '["31457280", "128849018880", "25261244416"]',
        "trial_id   value\n1234567    0.5\n1234568    0.7\n",
    ],
)
def test_what_a_machine_counts_stays_in_columns_and_in_quotes(text):
    assert redact_text(text, Known()) == text


def test_a_style_that_many_tables_bring_along_is_read_once_and_each_text_stays_whole():
    style = "<style>" + "\n".join(f".a{at} {{margin: {at}px}}" for at in range(120)) + "</style>"
    nb = nbformat.v4.new_notebook()
    rows = [f"<table><tr><td>/home/qwixfen{at}/x</td></tr></table>{style}" for at in range(3)]
    outputs = [nbformat.v4.new_output("display_data", {"text/html": row}) for row in rows]
    nb.cells = [nbformat.v4.new_code_cell("x", outputs=outputs)]
    clean, replaced = redact_notebook(nb, Known())
    shown = [output["data"]["text/html"] for output in clean["cells"][0]["outputs"]]
    assert [one.count(style) for one in shown] == [1, 1, 1] and "qwixfen" not in str(shown)
    assert replaced.kinds()["user"] == 3
