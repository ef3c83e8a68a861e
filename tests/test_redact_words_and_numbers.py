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
        ('{"adminNo": "858117240"}', "858117240"),
        ("Číslo studenta    : 55811159", "55811159"),
        ("- **Matricola studente:** 35413851", "35413851"),
        ("my account number is 1855548923.", "1855548923"),
        ("**password:** 6m5rh#s84E%WS", "6m5rh"),
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
        '"vsz": "12345678", "flops": "1234567890", "nodeId": "12345678"',
        "x = ['1048576', '4194304', '8388608']",
        "allocation id 1234567, buffer id 12345678, iteration number 1000000",
        "mémoire libre: 12345678, Größe 17179869184, étape: 1234567",
        "Использовано: 123456789, процесс 1234567 убит",
        "进程号: 1234567, 参数量: 6738415616, 已分配 17179869184 字节",
        "Δ: 1234567",
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


def test_an_identifier_is_not_looked_for_within_longer_numbers():
    text = "asked by customer 10485760; allocated 104857600 bytes, peak 110485760 at 0x10485760"
    _, _, rest = text.partition(";")
    assert "10485760;" not in redact_text(text, Known()) and redact_text(text, Known()).endswith(
        rest
    )


@pytest.mark.parametrize(
    "text",
    [
        "hi qwixfen, the job died",
        "Dieter said the card died",
        "Yesterday Muller ran the job on it.",
        "best,\n--qwixfen",
        "run --user-qwixfen --showmemuse",
        "vendor: qwixfen97",
        "Process (qwixfen) ran",
        "libqwixfen_muller.so.1",
        "machine-id 4c4c4544-0051-3310-8052-000000000000",
    ],
)
def test_a_name_does_not_pass_as_a_word_or_as_evidence(text):
    clean = redact_text(text, Known())
    assert not re.search("(?i)qwixfen|dieter|muller|4c4c4544", clean), clean
