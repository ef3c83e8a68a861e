"""What a person ticks leaves, and nothing else: the review page, its choices, and what is replaced."""

import json
import os
import re
import socket
import stat
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from night_runs import night
from page_audit import check, in_order
from planted import readable
from tell_boxes import code, printed, run_record

from helpers import share
from helpers.allocator.views.growth import GROWERS
from helpers.face import review as panel
from helpers.ground.shapes import VERDICT_MIME, Evidence, Missing, NextStep, Verdict, seen
from helpers.judge.evidence import CaseEvidence, evidence_from_bundle
from helpers.look.boxes import RECORDED, open_box
from helpers.share import texts, verdict_facts
from helpers.share.public_copy import ASK, HIDDEN, PublicCopy
from helpers.share.redactor import Redactor
from helpers.share.review import save_choices
from helpers.share.secrets import is_secret
from helpers.share.wording import is_ours
from helpers.tell.figures import with_bars
from helpers.tell.panels.frame import Frame
from helpers.tell.shown import Shown
from helpers.tell.values import Column, columns

RECORDED_BOXES = sorted(path.parent.name for path in RECORDED.glob("*/manifest.json"))

ROOT = Path(__file__).resolve().parents[1]
COMMON_WORDS = ROOT.parent / "shared" / "fresh" / "share-common-words.ipynb"
NOTEBOOKS = ROOT / "notebooks"
SOURCE = "team = 'harbour lights'\nprint(team)"
OUTPUT = "harbour lights on kestrel: 12 layers\n"
TOKEN = "deploy with glpat-" + "Zq4x" * 5


@pytest.fixture
def notebook(tmp_path):
    """A notebook of its owner: a source, what it printed, and a token."""
    cells = [code(SOURCE, printed(OUTPUT)), code("show()", printed(TOKEN))]
    path = tmp_path / "own.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def review_of(path):
    about = share.subject_of(path)
    return about, share.review_of(about)


# What is left out by default


def test_a_column_without_a_rule_is_left_out():
    view = Shown("", ["plain", Column("size", "bytes", passes="number")], [["kestrel", 1 << 30]])
    passing = view.passing(PublicCopy(CaseEvidence()).rules)
    assert [column.name for column in passing.columns] == ["size"]
    assert "kestrel" not in passing.text()


def test_a_new_column_has_no_rule():
    assert Column("anything").passes == ""
    assert [column.passes for column in columns("a, b:number, c:number:bytes")] == [
        "",
        "number",
        "number",
    ]


def test_every_rule_that_a_column_names_is_there():
    rules = PublicCopy(CaseEvidence()).rules
    folder = Path(share.__file__).parents[1]
    named = set()
    for file in folder.rglob("*.py"):
        source = file.read_text()
        named |= set(re.findall(r'passes="(\w+)"', source))
        for heads in re.findall(r'columns\(\s*((?:"[^"]*"\s*)+)', source):
            named |= {head.split(":")[1] for head in heads.split(", ") if ":" in head}
    assert named
    assert {name.strip('" \n') for name in named} <= set(rules)


def test_names_have_numbers_and_lines_of_programs_keep_theirs():
    rules = PublicCopy(CaseEvidence()).rules
    assert [rules["process"](name) for name in ("kestrel", "osprey", "kestrel")] == [
        "process-1",
        "process-2",
        "process-1",
    ]
    assert rules["process"]("process-2") == "process-2"
    assert rules["line"]("/data/kestrel/train.py:82") == "your file 1, line 82"
    assert rules["line"]("/data/kestrel/train.py") == ""


@pytest.mark.parametrize(
    ("place", "leaves"),
    [
        ("train.py:82 step", "your file 1, line 82"),
        ("osprey (train.py:82 step, data.py:7 load)", "your file 1, line 82; your file 2, line 7"),
        ("cell 6, line 1 <module>", "cell 6, line 1"),
        ("transformers/trainer.py:2110 inner", "transformers/trainer.py, line 2110"),
        (
            "/v/lib/python3.12/site-packages/torch/nn/modules/linear.py:125 forward",
            "torch/nn/modules/linear.py, line 125",
        ),
        ("kestrel/models.py:3 forward", "your file 1, line 3"),
        ("no line of Python", ""),
    ],
)
def test_call_sites_leave_by_the_number_of_their_file_or_their_place_in_a_library(place, leaves):
    assert PublicCopy(CaseEvidence()).rules["line"](place) == leaves


@pytest.mark.parametrize("word", ["falcon", "orchid", "horizon", "storm", "gate", "bridge", "Ada"])
def test_an_ordinary_word_is_no_word_of_ours_beside_words_of_ours(word):
    for text in (
        "{}",
        "{} decides at 3.00 GiB",
        "the card of {}",
        "{}: 20.10 GiB",
        "held by {} here",
    ):
        assert not is_ours(text.format(word)), text


@pytest.mark.parametrize("word", ["window", "engine", "grid", "session", "story", "fabric", "room"])
def test_a_word_of_our_own_sentences_is_no_name_in_their_gaps(word):
    for text in (
        "{} holds 3.00 GiB",
        "the card of {}",
        "held by {} here",
        "process-1 ({}) holds 3.00 GiB of it",
        "at {}, called from cell 6, line 1",
        "The file {} was not captured",
        "No module named '{}'",
    ):
        assert not is_ours(text.format(word)), text


@pytest.mark.parametrize(
    "text", ["+49 123 456789", "10.1.2.3", "a@b", "S4K1B2X3", "held\u00a0by É"]
)
def test_numbers_that_name_somebody_are_no_words_of_ours(text):
    assert not is_ours(text)


@pytest.mark.skipif(not COMMON_WORDS.is_file(), reason="that notebook lies on another machine")
def test_no_word_of_a_notebook_of_common_words_is_on_its_page_without_a_tick():
    about = share.subject_of(COMMON_WORDS)
    page = share.page_of(about).html
    written = " ".join(text.text for text in about.texts)
    own = share.page_of(share.subject_of(NOTEBOOKS / "01_hardware_probe.ipynb")).html
    words = set(re.findall(r"[A-Za-z]{4,}", written)) - set(re.findall(r"[A-Za-z]{4,}", own))
    assert "ruminant" in words
    assert [word for word in words if re.search(rf"\b{word}\b", page)] == []


# What is ticked


def test_a_ticked_text_is_on_the_page_and_the_others_are_counted(notebook):
    about, review = review_of(notebook)
    before = share.page_of(about)
    assert "harbour" not in before.html
    assert "2 outputs of a cell, 2 sources of a cell" in before.left_out
    ticked = next(row.digest for row in review.rows if row.text.text == OUTPUT)
    page = share.page_of(about, frozenset({ticked}))
    assert "harbour lights on kestrel: 12 layers" in page.html
    assert "team" not in page.html
    assert "1 output of a cell, 2 sources of a cell" in page.left_out


def test_what_looks_like_a_secret_cannot_be_ticked(notebook):
    about, review = review_of(notebook)
    page = share.page_of(about, frozenset(row.digest for row in review.rows))
    assert "harbour" in page.html
    assert "glpat" not in page.html
    html = review.html()
    assert re.findall(r"<input[^>]*disabled", html) != []
    assert "looks like a secret" in html


def test_a_choice_of_no_text_passes_nothing_and_a_changed_text_is_asked_again(notebook):
    about, review = review_of(notebook)
    choices = frozenset(row.digest for row in review.rows) | {"0" * 64, "harbour"}
    assert review.unknown(choices) == 2
    changed = nbformat.read(notebook, 4)
    changed.cells[0].source += "  # osprey"
    nbformat.write(changed, notebook)
    about, review = review_of(notebook)
    assert review.unknown(choices) == 3
    assert "osprey" not in share.page_of(about, choices).html


def test_the_command_writes_a_review_for_its_owner_alone_and_includes_what_was_ticked(
    notebook, tmp_path, share_command
):
    out = tmp_path / "own.review.html"
    status, said, _ = share_command(notebook, "--review", "--out", out)
    assert status == 0
    assert f"Open: {out}" in said
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o600
    digest = re.search(r'value="([0-9a-f]{64})"', out.read_text())[1]
    choices = tmp_path / "choices.json"
    choices.write_text(json.dumps({"include": [digest, "0" * 64]}))
    page = tmp_path / "page.html"
    _, _, told = share_command(notebook, "--include", choices, "--out", page)
    assert "Choices that match no text here: 1." in told
    assert "harbour lights" in page.read_text()


@pytest.mark.parametrize("written", ["", "[1]", '{"include": 3}', "\0", "[" * 9000])
def test_a_file_that_is_no_choice_is_refused_in_one_line(tmp_path, written):
    file = tmp_path / "choices.json"
    file.write_text(written)
    with pytest.raises(share.ShareError, match="expected the file that the review page saved"):
        share.read_choices(file)


def test_a_review_asks_for_what_the_page_leaves_out_and_for_nothing_that_it_has():
    about = share.subject_of(RECORDED / "strix-halo-1-found")
    rows = share.review_of(about).rows
    page = share.page_of(about)
    assert f"{len(rows)} pieces" in page.left_out
    assert about.verdict.title in check(page.html).text
    assert about.verdict.title not in [row.shown for row in rows]


def test_a_text_that_stands_in_several_places_is_asked_for_once_at_its_first(tmp_path):
    cells = [code("one", printed("same\n")), code("two"), code("three", printed("same\n"))]
    path = tmp_path / "own.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    places = {
        where: [row.shown for row in rows] for where, rows in review_of(path)[1].groups().items()
    }
    assert places == {"cell 1": ["one", "same"], "cell 2": ["two"], "cell 3": ["three"]}


@pytest.mark.parametrize(("lines", "says"), [(10, ""), (11, ", 11 lines")])
def test_of_a_long_text_the_review_says_how_many_lines_it_has(tmp_path, lines, says):
    path = tmp_path / "own.ipynb"
    harbours = "\n".join(f"harbour {number}" for number in range(lines))
    nbformat.write(nbformat.v4.new_notebook(cells=[code("1", printed(harbours))]), path)
    row = next(row for row in review_of(path)[1].rows if "harbour 3" in row.shown)
    assert row.about == f"{row.text.kind}{says}"


def test_the_review_page_reaches_nowhere(notebook):
    html = review_of(notebook)[1].html()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not re.search(r"https?://|\bfetch\(|XMLHttpRequest|sendBeacon", html)
    assert not re.search(r"<[^>]+ on\w+=", html)


def test_a_hostile_text_cannot_act_on_the_review_page(tmp_path):
    evil = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"
    path = tmp_path / "evil.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[code("1", printed(evil))]), path)
    html = review_of(path)[1].html()
    assert evil not in html
    assert "&lt;script&gt;alert(1)" in html


# What is known of this box


def test_what_is_known_of_this_box_is_replaced(monkeypatch):
    monkeypatch.setenv("KESTREL_API_TOKEN", "osprey-osprey-1")
    monkeypatch.setenv("USER", "ottoline")
    monkeypatch.setattr(socket, "gethostname", lambda: "quokka17.example")
    text = Redactor().redacted(
        "ottoline@quokka17.example quokka17 QUOKKA17 /home/wren/x osprey-osprey-1 10.1.2.3 fe80::1ff "
        "aa:bb:cc:dd:ee:ff 123e4567-e89b-12d3-a456-426614174000 torch 2.9.1 0000:c5:00.0 12:30:05"
    )
    for value in (
        "ottoline",
        "quokka",
        "QUOKKA",
        "wren",
        "osprey",
        "10.1",
        "fe80",
        "aa:bb",
        "123e",
    ):
        assert value not in text, value
    assert "torch 2.9.1 0000:c5:00.0 12:30:05" in text


@pytest.mark.parametrize(
    "value", ["10.44.3.19", "fd64:8232::e2e9", "c8:0b:50:10:11:79", "wren@osprey.example"]
)
@pytest.mark.parametrize(
    "place", ["{}", "... {}...", "log{}", "{}.", "{}, 20.10 GiB", "({})", "{}/24"]
)
def test_an_address_is_replaced_wherever_it_stands(value, place):
    assert value not in Redactor().redacted(place.format(value))


@pytest.mark.parametrize(
    "text", ["std::cout c10::Error", "12:30:05 0000:c5:00.0", "torch 2.9.1.", "7.0.2 and 61.27 GiB"]
)
def test_what_only_resembles_an_address_stays(text):
    assert Redactor().redacted(text) == text


def test_a_value_has_the_same_name_wherever_it_stands():
    replaced = Redactor().redacted("10.1.2.3 and 10.9.9.9 and 10.1.2.3")
    assert replaced == "address-1 and address-2 and address-1"


def test_the_names_of_a_foreign_box_are_replaced():
    bundle = replace(open_box("strix-halo-1-found"), box="kestrel-bench")
    text = Redactor(bundle).redacted("kestrel-bench of trainer")
    assert re.fullmatch(r"host-\d of user-\d", text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("password: hunter22", True),
        ("export WANDB_API_KEY=0123abc", True),
        (
            "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
            True,
        ),
        ("https://wren:feather9@host.example/x", True),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", True),
        ("hf_" + "aB3d" * 9, True),
        ("the run...xK3" + "uQ9zT4mB7w" * 3 + "...ended", True),
        ("--run=eyJ" + "Zq4xK9" * 4 + ".eyJ" + "b7Wm2R" * 5 + "." + "T4kP8s" * 6, True),
        ("StableDiffusionControlNetInpaintPipeline and Qwen2ForSequenceClassification", False),
        ("HIP out of memory. Tried to allocate 2.00 GiB", False),
        ("tokens = 4096, max_tokens: 12", False),
        ("/sys/class/drm/card1/device/mem_info_vram_used 16393924 pages", False),
        ("torch 2.10.0a0+rocm7.10.0a20251015", False),
    ],
)
def test_what_looks_like_a_secret(text, secret):
    assert is_secret(text) is secret


# The workbook's own notebooks


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_every_text_of_a_committed_notebook_is_known(path):
    unknown = [text.where for text in texts.of_notebook(nbformat.read(path, 4))]
    assert unknown == [], "write its digests: .venv/bin/python tests/execute_notebooks.py"


def test_a_told_case_begins_with_its_story_and_figures_and_ends_with_the_words():
    page = share.page_of(share.subject_of(NOTEBOOKS / "cases" / "002-half-the-ram.ipynb")).html
    audit = check(page)
    assert audit.headings[0][1] == "128 GB of RAM, and torch sees 62.54 GiB: which limit is it?"
    assert in_order(audit.text, "Verdict", "Second reading", "Conclusion", "Words", "What was left")
    assert 'id="judged"' not in page
    assert page.count('alt="') >= 3
    assert "You need not act on" not in audit.text


@pytest.mark.parametrize("name", ["001-volume-profiles", "003-forty-batches"])
def test_a_told_case_keeps_every_sentence_of_its_verdict_and_shows_no_result_twice(name):
    about = share.subject_of(NOTEBOOKS / "cases" / f"{name}.ipynb")
    audit = check(share.page_of(about).html)
    assert "Result of cell" not in audit.text
    assert [
        row for row in share.review_of(about).rows if row.text.kind == "text of a verdict"
    ] == []


def test_a_verdict_that_somebody_wrote_into_a_told_case_passes_sentence_by_sentence(tmp_path):
    case = nbformat.read(NOTEBOOKS / "cases" / "003-forty-batches.ipynb", 4)
    emitted = [
        row
        for cell in case.cells
        for row in cell.get("outputs", [])
        if VERDICT_MIME in row.get("data", {})
    ]
    emitted[-1].data[VERDICT_MIME]["title"] = "The card of kestrel is full"
    path = tmp_path / "003-forty-batches.ipynb"
    nbformat.write(case, path)
    about = share.subject_of(path)
    assert "kestrel" not in share.page_of(about).html
    assert "The card of kestrel is full" in [row.shown for row in share.review_of(about).rows]


def test_the_headings_of_ones_own_notebook_can_be_ticked_alone(tmp_path):
    words = nbformat.v4.new_markdown_cell("# Profiles by month\n\nFor kestrel alone.")
    path = tmp_path / "own.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[words, code("show()")]), path)
    about, review = review_of(path)
    (heading,) = [row for row in review.rows if row.text.kind == "heading"]
    page = share.page_of(about, frozenset([heading.digest])).html
    assert "Profiles by month" in page
    assert "kestrel" not in page


def test_what_somebody_wrote_into_a_told_case_is_left_out(tmp_path):
    case = nbformat.read(NOTEBOOKS / "cases" / "002-half-the-ram.ipynb", 4)
    case.cells[5].source += " kestrel"
    case.cells[6].outputs[0].data["text/html"] = "<b>osprey</b>"
    drawn = next(
        cell
        for cell in case.cells
        for row in cell.get("outputs", [])
        if "image/png" in row.get("data", {})
    )
    drawn.outputs[0].data["image/svg+xml"] = "<svg><text>gannet</text></svg>"
    path = tmp_path / "002-half-the-ram.ipynb"
    nbformat.write(case, path)
    page = share.page_of(share.subject_of(path))
    assert "1 source of a cell" in page.left_out
    assert "2 outputs of a cell" in page.left_out
    for word in ("kestrel", "osprey", "gannet"):
        assert word not in page.html


def typed_output(view):
    data, about = view._repr_mimebundle_()
    return nbformat.v4.new_output("display_data", data, metadata=json.loads(json.dumps(about)))


def test_the_typed_results_of_ones_own_notebook_are_on_its_page_and_its_words_are_not(tmp_path):
    head = columns("settings:value, verdict:word, memory:number:bytes, kestrel:number, note")
    rows = [
        ["expandable_segments:True", "effective", 3 << 30, 77123, "osprey"],
        ["gannet:1", "gannet bay", 1 << 30, 77124, "osprey"],
    ]
    path = tmp_path / "own.ipynb"
    cells = [code("measure()", typed_output(Shown("heron", head, rows)))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    page = check(share.page_of(share.subject_of(path)).html).text.replace("\u200b", "")
    for words in ("Result of cell 1", "3.00 GiB", "expandable_segments:True", "effective"):
        assert words in page
    for words in ("kestrel", "osprey", "gannet", "heron", "77123"):
        assert words not in page


def page_of_views(tmp_path, *views):
    path = tmp_path / "own.ipynb"
    cells = [code("measure()", *map(typed_output, views))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return share.page_of(share.subject_of(path)).html


def test_the_growth_table_of_a_recording_is_on_the_page_with_its_lines_by_number(tmp_path):
    rows = [
        ["osprey (train.py:12 step)", "train.py:12 step", 4 << 20, 1, "1 tensor each step"],
        ["", "torch/nn/modules/linear.py:125 forward", 1 << 20, 1, ""],
    ]
    html = page_of_views(tmp_path, Shown("kestrel", columns(GROWERS), rows))
    page = check(html).text.replace("\u200b", "")
    for words in ("your file 1, line 12", "4.00 MiB", "torch/nn/modules/linear.py, line 125"):
        assert words in page
    for words in ("train.py", "osprey", "kestrel", "step)"):
        assert words not in page


def test_a_figure_of_ones_own_notebook_is_drawn_anew_of_its_sizes(tmp_path):
    head = columns("layer:word, total:number:bytes, used:number:bytes, osprey")
    view = with_bars(Shown("kestrel", head, [["RAM", 8 << 30, 3 << 30, "gannet"]]))
    html = page_of_views(tmp_path, view)
    drawn = readable(html)
    assert html.count("<img") == 1
    assert "8.00 GiB, 3.00 GiB" in drawn
    for words in ("kestrel", "osprey", "gannet"):
        assert words not in drawn


def test_a_drawing_that_is_no_record_of_ours_is_counted_as_left_out(tmp_path):
    drawing = (
        "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><text>osprey</text></svg>"
    )
    output = nbformat.v4.new_output("display_data", {"image/svg+xml": drawing})
    path = tmp_path / "own.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[code("draw()", output)]), path)
    page = share.page_of(share.subject_of(path))
    assert "1 output of a cell" in page.left_out
    assert "<img" not in page.html


def test_a_recorded_box_is_shared_by_its_name_with_what_a_maintainer_asks_for():
    page = check(share.page_of(share.subject_of(Path("rx7900xt-container"))).html).text
    for words in (
        "Readings, as they were read",
        "/sys/class/drm/card1/device/mem_info_vram_used",
        "0x744c",
        "AMD Ryzen 9 5950X 16-Core Processor",
        "docker",
        "/dev/kfd",
        "6.3.42134",
    ):
        assert words in page.replace("\u200b", ""), words


def test_the_limits_of_two_gpus_have_headings_of_their_own():
    page = share.page_of(share.subject_of(Path("rx7900xt-container"))).html
    headings = [words for _, words in check(page).headings]
    assert len(set(headings)) == len(headings)
    for heading in ("Limits of GPU 1", "Limits of GPU 2"):
        assert heading in headings


def test_a_limit_stands_once_on_the_page_under_its_figure_with_its_source():
    page = share.page_of(share.subject_of(Path("strix-halo-3-gttsize"))).html
    assert page.count(">KFD system limit<") == 1
    assert '<th scope="col"></th>' not in page
    assert 'alt="62.54 of 125.08 GiB: ttm.pages_limit decides' in page


def test_a_gpu_whose_name_is_not_known_is_called_by_its_vendor():
    page = share.page_of(share.subject_of(Path("cuda-24gb-tuning"))).html
    assert "<td>NVIDIA GPU</td>" in page


def test_a_text_that_is_left_out_alone_is_one_piece(tmp_path):
    path = tmp_path / "own.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[code("osprey()")]), path)
    assert ": 1 piece (1 source of a cell)." in share.page_of(share.subject_of(path)).left_out


def test_page_and_report_agree_where_a_pasted_message_alone_gives_the_cause(tmp_path):
    printed_message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has a total "
        "capacity of 11.75 GiB of which 11.20 GiB is free."
    )
    path = tmp_path / "own.ipynb"
    cells = [code("train()", printed(printed_message))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    about = share.subject_of(path)
    answer = verdict_facts.headline(about.verdict)
    assert answer != verdict_facts.NO_ANSWER
    assert answer in check(share.page_of(about).html).text
    assert f"**Seen:** {answer} (" in share.issue_text("pytorch", about)


def test_the_review_of_a_batch_has_the_texts_of_each_of_its_notebooks(tmp_path):
    batch = tmp_path / "20260301T210000Z-two"
    night(batch, 2, notebooks=True)
    for number, path in enumerate(sorted(batch.glob("*/run.json"))):
        cells = [code(f"osprey_{number}()", printed("kestrel"))]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path.with_name("notebook.ipynb"))
    about = share.subject_of(batch, with_notebooks=True)
    review = share.review_of(about)
    shown = [(row.text.where, row.shown) for row in review.rows]
    assert ("run 1, cell 1", "osprey_0()") in shown
    assert ("run 2, cell 1", "osprey_1()") in shown
    digest = next(row.digest for row in review.rows if "osprey_1" in row.shown)
    page = share.page_of(about, frozenset([digest])).html
    assert "osprey_1" in page
    assert "osprey_0" not in page


@pytest.mark.parametrize(
    "data",
    [
        3,
        [],
        {},
        {"columns": 1, "cells": 2},
        {"columns": [["a"]], "cells": [[1]]},
        {"columns": [], "cells": [[1]]},
    ],
)
def test_what_is_no_view_is_passed_over(tmp_path, data):
    output = printed("x")
    shown = nbformat.v4.new_output(
        "display_data", {"text/plain": "x"}, metadata={"casebook": {"view": data}}
    )
    path = tmp_path / "own.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[code("1", output, shown)]), path)
    assert "Result of cell" not in share.page_of(share.subject_of(path)).html


def test_the_view_that_a_notebook_holds_is_the_one_that_was_shown():
    head = columns("layer:word, total:number, at:number:s")
    view = Shown("", head, [["RAM", seen(5 << 30, "bytes", "/proc/meminfo"), 2.5]])
    again = Shown.of_data(json.loads(json.dumps(view.data())), "")
    assert again.text() == view.text()


def test_the_judges_sentences_are_on_the_page_and_names_in_them_are_numbers():
    page = share.page_of(share.subject_of(RECORDED / "rx7900xt-container"))
    assert "<h1>Something outside this container (docker) uses 19.98 GiB" in page.html
    copies = PublicCopy(evidence_from_bundle(open_box("cuda-24gb-tuning")))
    assert copies.text("kestrel holds 3.00 GiB") == ""
    for words in ("the card is full: 3.00 GiB", "ttm.pages_limit decides at 62.54 GiB"):
        assert copies.text(words) == words
    for value in ("10.1.2.3", "a3f9c2d1", "S4K1B2X3", "aa:bb:cc:dd:ee:ff", "wren@host.example"):
        assert copies.text(f"the card of {value}") == "", value


@pytest.mark.parametrize("box", RECORDED_BOXES)
def test_no_sentence_of_the_workbook_is_hidden_on_the_page_of_a_recorded_box(box):
    """They hold values of fixed lists alone, so each reading is shown with its words."""
    assert HIDDEN not in share.page_of(share.subject_of(RECORDED / box)).html


def test_the_page_never_says_that_there_was_no_reading_where_one_is_left_out():
    copies = PublicCopy(evidence_from_bundle(open_box("cuda-24gb-tuning")))
    told = Evidence(id="x", says="kestrel holds 3.00 GiB", reading=seen(3 << 30, "bytes", "x"))
    verdict = Verdict(
        "external-holder",
        "likely",
        NextStep("look"),
        evidence=[told],
        against=[told],
        missing=[Missing("kestrel's log", "ask Anna")],
    )
    copy = copies.verdict(verdict)
    assert [row.says for row in (*copy.evidence, *copy.against)] == [HIDDEN, HIDDEN]
    assert [(row.reading, row.how) for row in copy.missing] == [(HIDDEN, ASK)]


@pytest.fixture
def opened_panel(notebook, tmp_path, monkeypatch):
    """The panel's frame, what gives its widgets by their words now, and its preview."""
    monkeypatch.setattr(panel, "OUTPUTS", tmp_path)
    frame = Frame("Review")
    parts = panel.build(frame, panel.Shared(str(notebook)))
    return frame, lambda: widgets_of(parts), parts[1]


def widgets_of(parts):
    widgets = [*parts]
    for view in widgets:
        widgets += getattr(view, "children", ())
    return {view.description: view for view in widgets if hasattr(view, "description")}


def boxes_of(widgets):
    return [view for view in widgets.values() if hasattr(view, "indent")]


def test_of_a_run_what_others_named_is_reviewed_and_what_the_workbook_names_is_not():
    notes = ["the disk of Ada's laptop was full", "01_hardware_probe.ipynb", "strix-halo-1-found"]
    run = run_record("01", "01_hardware_probe.ipynb", "failed", notes=notes)
    reviewed = {(row.kind, row.text) for row in texts.of_run(run, "run 01")}
    assert ("text of a record", notes[0]) in reviewed
    assert not {notes[1], notes[2]} & {text for _, text in reviewed}


def test_choices_that_are_saved_again_replace_those_before(tmp_path):
    folder = tmp_path / "outputs" / "reviews"
    for choices in (frozenset({"0123456789abcdef"}), frozenset()):
        saved = save_choices(folder, "night", choices)
        assert json.loads(saved.read_text()) == {"include": sorted(choices)}
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_the_panel_ticks_searches_and_saves(opened_panel, tmp_path):
    frame, widgets, _ = opened_panel
    by_words = widgets()
    by_words["Tick all of cell 1"].click()
    by_words["Tick all of cell 2"].click()
    assert "4 of 4 texts found, 1 to 4 shown, 3 ticked" in frame.line.value
    by_words["Save choices"].click()
    (file,) = (tmp_path / "shared").glob("*.choices.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(share.read_choices(file)) == 3
    assert f"--include {file}" in frame.line.value


def test_the_panel_never_ticks_a_text_that_the_search_hides(opened_panel):
    frame, widgets, _ = opened_panel
    widgets()["Search"].value = "Kestrel"
    assert "1 of 4 texts found, 1 to 1 shown" in frame.line.value
    for words, button in widgets().items():
        if words.startswith("Tick all"):
            button.click()
    widgets()["Search"].value = ""
    assert "4 of 4 texts found, 1 to 4 shown, 1 ticked" in frame.line.value


def test_the_panel_shows_many_texts_in_pages_and_keeps_their_ticks(
    opened_panel, notebook, monkeypatch
):
    monkeypatch.setattr(panel, "TEXTS_OF_A_PAGE", 1)
    frame = Frame("Review")
    parts = panel.build(frame, panel.Shared(str(notebook)))
    (box,) = boxes_of(widgets_of(parts))
    box.value = True
    widgets_of(parts)["Page"].value = 4
    (secret,) = boxes_of(widgets_of(parts))
    assert secret.disabled
    widgets_of(parts)["Page"].value = 1
    (box,) = boxes_of(widgets_of(parts))
    assert box.value
    assert "1 ticked" in frame.line.value


def test_a_search_in_the_panel_begins_at_its_first_text(notebook, monkeypatch):
    monkeypatch.setattr(panel, "TEXTS_OF_A_PAGE", 1)
    frame = Frame("Review")
    parts = panel.build(frame, panel.Shared(str(notebook)))
    widgets_of(parts)["Page"].value = 4
    assert "4 to 4 shown" in frame.line.value
    widgets_of(parts)["Search"].value = "e"
    assert "1 to 1 shown" in frame.line.value


def test_the_panel_previews_what_is_ticked_until_a_tick_changes(opened_panel):
    frame, widgets, preview = opened_panel
    by_words = widgets()
    by_words["Preview"].click()
    assert "Nothing is ticked" in preview.value
    assert "0 ticked" in frame.line.value
    by_words["output of a cell"].value = True
    assert preview.value == ""
    by_words["Preview"].click()
    assert "cell 1, output of a cell" in preview.value
    assert "harbour lights on kestrel" in preview.value
    assert "team" not in preview.value


def test_the_panel_has_a_sentence_where_nobody_is_there(notebook, capsys):
    panel.review(str(notebook))
    assert "tick box" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["UID:{} pgtables", "error in: {}:12", "/job:{}/replica", "[{}]"])
def test_an_address_that_a_colon_joins_to_its_neighbours_is_replaced(text):
    replaced = Redactor().redacted(text.format("2001:db8:77:a1:b2:c3::9"))
    assert replaced == text.format("address-1")


def test_a_sentence_with_a_part_that_it_can_go_without_passes_with_and_without_it():
    step = "Find out whether one step needs too much or each step keeps more"
    assert is_ours(step)
    assert is_ours(f"{step} (24.00 MiB failed with 11.20 MiB free and 2.00 GiB cached)")
    assert not is_ours(f"{step} (falcon)")


def test_a_person_has_one_number_wherever_their_home_lies():
    words = Redactor().redacted("/home/quillon/a /Users/quillon/b /home/tamsin/c")
    first, second, other = re.findall(r"/(?:home|Users)/(user-\d+)/[abc]", words)
    assert first == second != other
