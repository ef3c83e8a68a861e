"""The page of a batch: it needs no network, runs nothing, tells every run's true state, whatever lies in the folder."""

import base64
import json
import os
import random
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import nbformat
import pytest
from night_runs import night
from page_audit import Audit, check, in_order
from tell_boxes import HOSTILE, VERDICT, code, data, markdown, printed, run_record

from helpers.batch import box_answer, report
from helpers.batch import record as record_of_run
from helpers.batch.batch_table import NO_BATCH, runs_table
from helpers.batch.record import boot_id, read_run
from helpers.batch.section import STATE_WORDS
from helpers.batch.shapes import STATES
from helpers.ground.contract import as_dict
from helpers.ground.shapes import CAUSES, Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.shapes import VERDICT_MIME as MIME
from helpers.look.boxes import open_box
from helpers.look.bundle import BundleWriter
from helpers.look.earlier_boot import last_lines
from helpers.tell import box as words_of_box
from helpers.tell.markdown_html import Prose
from helpers.tell.notebook_cells import machine_line
from helpers.tell.page import notebook_html
from helpers.tell.page_cells import CodeCell, cells
from helpers.tell.page_output import png_size
from helpers.tell.page_room import PageRoom
from helpers.tell.render import verdict_html
from helpers.tell.shown import Shown
from helpers.tell.tables import plain
from helpers.tell.verdict import CAUSE_WORDS

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
"""A picture of one pixel."""
ROOM = 10_000
new_notebook = nbformat.v4.new_notebook
output = nbformat.v4.new_output


def put(folder, run, notebook=None):
    """A run's record, and what lies beside it as its notebook, in a batch."""
    (folder / run.run_id).mkdir(parents=True)
    (folder / run.run_id / "run.json").write_text(run.model_dump_json())
    if notebook is not None:
        text = notebook if isinstance(notebook, str) else json.dumps(notebook)
        (folder / run.run_id / "notebook.ipynb").write_text(text)
    return folder


def one_run(folder, notebook=None, state="answered", **changes):
    """A batch of one run."""
    run = run_record("01-run", "notebooks/01_hardware_probe.ipynb", state, **changes)
    return put(folder, run, notebook)


def verdict(cause, confidence="weak", **more):
    return Verdict(cause=cause, confidence=confidence, next_step=NextStep(what="x"), **more)


@pytest.fixture(scope="module")
def whole(example_batch):
    """The page of a batch with runs in five states and a torn record."""
    return report.page(example_batch)


def test_verdict_machine_runs_notebooks_and_where_it_came_from_stand_in_this_order(whole):
    text = check(whole).text
    assert in_order(
        text,
        "The kernel's TTM or GTT limit is below",
        "sudo update-initramfs -u",
        "strix-halo: Ubuntu 24.04",
        "4 runs need attention",
        "5 runs",
        "06-torn/run.json",
        "What is this box?",
        "Does the allocator fragment?",
        "Which limit binds?",
        "How to read this",
        "Plan (SHA-256)",
    )
    for said in (
        "1 answered, 1 died, 1 timed out, 1 failed, 1 not started",
        "died: its kernel was lost",
        "stopped: over its time limit",
        "the kernel log says out of memory",
        "by SIGKILL",
        "KeyError: 'gtt'",
        "passed the limit of 120 s of cell 4",
        "06-torn/run.json: no whole JSON",
    ):
        assert said in text, said
    assert set(STATE_WORDS) == set(STATES)


def test_last_words_stand_beneath_the_failed_cell_and_where_there_is_no_notebook(whole):
    died = whole[whole.index('id="run-2"') : whole.index('id="run-3"')]
    assert died.count("GPU memory access fault") == 1 and "An Exception was" not in died
    assert in_order(died, "This cell failed", "GPU memory access fault", "Not run")
    stopped = whole[whole.index('id="run-4"') : whole.index('id="run-5"')]
    assert "No executed notebook was written." in stopped and "Thread 0x7f" in stopped


def test_the_only_script_of_a_page_is_its_own(whole):
    folder = Path(report.__file__).parents[1] / "tell" / "templates"
    own = [(folder / name).read_text() for name in ("table.js", "figure.js", "page.js")]
    assert check(whole).script == "".join(own)
    assert own[0] in Shown("", ["a"], [[1]])._repr_mimebundle_()[0]["text/html"]
    css = "".join(
        (folder / name).read_text() for name in ("casebook.css", "stacked.css", "figure.css")
    )
    assert Audit(whole).style == css


def test_code_is_shown_where_a_cell_did_not_run_well_and_pictures_have_their_words(whole):
    audit = Audit(whole)
    folded = [attrs for tag, attrs in audit.tags if tag == "details"].count({"class": "code"})
    assert folded == 4 and "This cell failed" in audit.text and "Not run" in audit.text
    assert len(audit.all("img", "alt")) == 3 and "No description" not in audit.all("img", "alt")


def table_of(columns, rows, *notes):
    """What a view is as the output of a cell."""
    return data(text__html=Shown("", columns, rows, notes).html())


def test_a_page_shows_each_thing_once(whole):
    """The verdict, a figure or its table, what a panel repeats, and what an earlier notebook of the page has shown."""
    text = Audit(whole).text
    assert text.count(VERDICT.headline) == 2  # with the title
    assert "the answer above" not in text
    assert "print(machine_line" not in text and text.count("strix-halo: Ubuntu") == 1
    view = code("x", table_of(["a", "b"], [[1, 2]], "note"))
    panel = code("anything.show()", data(text__plain="One moment"))
    panel.outputs[0].metadata = {"casebook": {"again": True}}
    said = [markdown("## Verdict"), code("print(v)", printed("the verdict in words"))]
    notebook = new_notebook(
        cells=[markdown("Who. And why."), view, markdown("By hand."), panel, *said]
    )
    known = set()
    html = str(notebook_html(notebook, PageRoom(ROOM), shown_digests=known))
    summaries = ['<span class="lead">Who.</span> <span class="result">1 2</span>']
    assert re.findall("<summary>(.*?)</summary>", html) == summaries
    assert (
        '<td class="number">1</td><td class="number">2</td>' in html
        and "note" in html
        and "And why." in html
    )
    assert notebook_html(notebook, PageRoom(ROOM), shown_digests=known).strip() == ""


def test_a_figure_and_the_table_that_says_the_same_are_two_views_of_one_section():
    drawing = data(image__png=base64.b64encode(PIXEL).decode())
    drawing.data["text/plain"] = "Pools: VRAM 2.00 GiB; GTT 1.50 GiB."
    rows = table_of(["pool", "size"], [["VRAM", "2.00 GiB"], ["GTT", "1.50 GiB"]])
    cells_ = [
        markdown("Pools."),
        code("p", drawing),
        markdown("As a table."),
        code("t", rows),
    ]
    html = str(notebook_html(new_notebook(cells=cells_), PageRoom(ROOM), shown_digests=set()))
    assert html.count('class="fold"') == 1 and ">Pools: VRAM 2.00 GiB; GTT 1.50 GiB.<" in html
    assert html.count('name="view-0-1"') == 2 and html.count("open>") == 1


def test_the_same_batch_gives_the_same_page_wherever_it_lies(example_batch, whole, tmp_path):
    shutil.copytree(example_batch, tmp_path / "20261121-quick")
    again = report.write_index(tmp_path / "20261121-quick").read_text(encoding="utf-8")
    assert again == whole and str(example_batch) not in whole


def test_the_machine_is_told_by_its_cell_whatever_stands_above_it():
    line = code("", printed("\n\x1b[1mbox\x1b[0m: Linux\nmore\n"), tags=("machine",))
    other = [markdown("## Machine"), code("print(1)", printed("1\n"))]
    assert machine_line(new_notebook(cells=[*other, line])) == "box: Linux"
    assert machine_line(new_notebook(cells=other)) == ""


def test_words_that_stand_in_the_error_already_are_not_said_twice():
    trace = ["Died: killed", "a fault", "of the GPU"]
    died = output("error", ename="Died", evalue="", traceback=trace)
    notebook = new_notebook(cells=[code("x()", died, status="failed")])
    (shown,) = cells(notebook, PageRoom(ROOM), "a fault\nof the GPU")
    assert [out.text for out in shown.outputs] == ["\n".join(trace)]
    assert shown.last_words == ""
    assert shown.state == "This cell failed"
    (shown,) = cells(notebook, PageRoom(ROOM), "another fault")
    assert shown.last_words == "another fault"


def test_of_a_long_text_the_start_is_shown_and_of_an_error_the_end():
    long = "first\n" + "x\n" * 10_000 + "last"
    error = output("error", ename="E", evalue="", traceback=[long])
    (shown,) = cells(new_notebook(cells=[code("", printed(long), error)]), PageRoom(10**6))
    text, trace = (out.text for out in shown.outputs)
    assert text.startswith("first") and "last" not in text
    assert trace.endswith("last") and "first" not in trace


def test_the_failing_cell_is_found_by_its_number_where_papermill_marked_none():
    notebook = new_notebook(
        cells=[
            markdown("banner", "papermill-error-cell-tag"),
            markdown("# t"),
            code("p = 1", tags=("parameters",)),
            code("p = 2", tags=("injected-parameters",)),
            code("a"),
            code("b"),
        ]
    )
    shown = [c for c in cells(notebook, PageRoom(ROOM), "last", 2) if isinstance(c, CodeCell)]
    assert [Audit(cell.code).text.strip() for cell in shown if cell.last_words] == ["a"]
    labels = [cell.label for cell in shown]
    assert labels == ["Parameters", "Parameters of this run", "Code", "Code"]
    *_, last = cells(notebook, PageRoom(ROOM), "last words of nobody")
    assert last.last_words == "last words of nobody"
    assert not last.code


def test_no_fold_for_code_is_empty():
    """An empty cell has nothing to fold away, and what the kernel wrote after the last cell is not of a cell. Since 2026-11-27."""
    died = [code("a = 1", status="failed"), code(" ", status="pending")]
    notebook = new_notebook(cells=[*died, code("", printed("said\n"))])
    shown = str(notebook_html(notebook, PageRoom(ROOM), "last words of nobody"))
    folded = re.findall('<details class="code">(.*?)</details>', shown, re.DOTALL)
    assert [re.sub("<[^>]*>", " ", one).split() for one in folded] == [["Code", "a", "=", "1"]]
    assert "said" in shown and "last words of nobody" in shown
    words = "last words of nobody"
    alone = str(notebook_html(new_notebook(), PageRoom(ROOM), words, shown_digests=set()))
    assert "After the last cell" in alone and "Code" not in alone


HOSTILE_NOTEBOOK = Path(__file__).parent / "notebooks" / "shows_hostile_outputs.ipynb"
DEEP = """\
#### deep

# shallow

```html
<script>alert(8)</script>
```

| a | <b> |
|---|---|
| `</td>` | 1 |
"""


def test_a_part_with_nothing_to_show_is_left_out_and_gives_its_title_to_no_other():
    drawn = Shown("9.00 GiB in all", ["layer", "bytes"], [["a", "9.00 GiB"]])
    parts = [("Advice for another chip.", []), ("What stands.", [drawn])]
    book = nbformat.v4.new_notebook()
    for title, shown in parts:
        outputs = [data(text__html=one.html()) for one in shown]
        book.cells += [markdown(title), code("x", *outputs)]
    html = str(notebook_html(book, PageRoom(10**6), shown_digests={"a page"}))
    assert html.count("<summary>") == 1 and "What stands.</span>" in html
    assert "Advice" not in html


def test_a_row_is_called_what_its_view_is_and_words_after_it_are_part_of_it():
    books = Shown("Device nodes", ["node"], [["/dev/kfd"]], label="Permissions")
    limits = Shown("Limits", ["layer"], [["TTM"]], label="Limits", applies=False)
    notebook = new_notebook()
    for title, view in (("What this process may open. And why.", books), ("Every limit.", limits)):
        html, about = view._repr_mimebundle_()
        output = data(text__html=html["text/html"])
        output.metadata = about
        notebook.cells += [markdown(title), code("x", output)]
    notebook.cells += [markdown("What binds?"), code("y", printed("No layer binds."))]

    def summaries(**how):
        html = str(notebook_html(notebook, PageRoom(ROOM), **how))
        return re.findall('<span class="label">(.*?)</span>', html), html

    labels, html = summaries()
    assert labels == ["Permissions", "Limits"]
    assert in_order(html, "Limits", "What binds?", "No layer binds.")
    assert "What this process may open. And why." in html
    labels, html = summaries(only_what_applies=True)
    assert labels == ["Permissions"]
    assert "What binds?" not in html


def hostile_notebook():
    """The hostile notebook, with a verdict of hostile words, one that is none, and cells that no page shows."""
    shown = data()
    lying = data(text__plain=HOSTILE)
    shown.data = {MIME: {**as_dict(VERDICT), "summary": HOSTILE}}
    lying.data[MIME] = {"cause": "<script>"}
    notebook = nbformat.read(HOSTILE_NOTEBOOK, 4)
    failed = code(HOSTILE, shown, lying, data(image__jpeg="AAAA"), status="failed")
    notebook.cells += [markdown(DEEP), failed, nbformat.v4.new_raw_cell("alert(90)")]
    return notebook


def test_nothing_that_a_box_or_a_notebook_says_can_act(tmp_path):
    evidence = Evidence(id=HOSTILE, reading=seen(HOSTILE, "text", HOSTILE), says=HOSTILE)
    step = NextStep(what=HOSTILE, command=HOSTILE)
    evil = verdict("other", summary=HOSTILE, evidence=[evidence])
    texts = "box cause signal last_words tool_version boot_id started_at".split()
    changes = {**dict.fromkeys(texts, HOSTILE), "verdict": replace(evil, next_step=step)}
    more = {"parameters": {HOSTILE: HOSTILE}, "files": [HOSTILE]}
    run = run_record("01-run", HOSTILE + "/n.ipynb", "failed")
    put(tmp_path / "night", run.model_copy(update={**changes, **more}), hostile_notebook())
    (tmp_path / "night" / "<script>alert(91)<").mkdir()
    (tmp_path / "night" / "<script>alert(91)<" / "run.json").write_text("{}")
    audit = check(report.page(tmp_path / "night"))
    assert plain(HOSTILE)[:30] in audit.text and "<script>alert(1)</script>" in audit.text
    assert "[image/jpeg is not shown here: 4 bytes]" in audit.text
    assert not re.search(r"alert\((4|5|31|90)\)", audit.text)
    assert [level for level, title in audit.headings if title == "shallow"] == [3]


def test_markdown_cannot_lead_away_or_point_at_files_beside_it():
    shown = str(Prose().html("See [the issue](https://example.org/issues/7)."))
    address = '<span class="address">(https://example.org/issues/7)</span>'
    assert shown == f"<p>See the issue {address}.</p>\n"
    shown = str(Prose().html("[x](javascript:alert(7)) <https://example.org> [r]\n\n[r]: //e 't'"))
    assert "<a" not in shown and "href" not in shown
    lure = "{% include '/etc/passwd' %} {{ 7 * 6 }} ![x](file:///etc/passwd) [a](../../x)"
    notebook = new_notebook(cells=[markdown(lure), code("", printed("x"))])
    html = notebook_html(notebook, PageRoom(ROOM))
    assert not [words for words in ("root:", "42", "<img", "href") if words in html]


@pytest.mark.parametrize(
    ("torn", "says"),
    [
        ("", "no JSON"),
        ('{"cells": [', "no JSON"),
        ("[]", "no nbformat number"),
        ('{"nbformat": 9, "metadata": {}}', "nbformat 9"),
        ('{"nbformat": 4, "metadata": {}, "cells": 3}', "broken notebook"),
    ],
)
def test_a_notebook_that_is_torn_is_named_and_the_page_is_written(tmp_path, torn, says):
    folder = one_run(tmp_path / "night", torn, state="died", last_words="the end")
    text = check(report.page(folder)).text
    assert says in text and "the end" in text and str(tmp_path) not in text


def test_a_notebook_that_cannot_be_shown_costs_only_itself(tmp_path, monkeypatch):
    def stumble(*_, **__):
        raise KeyError("odd")

    monkeypatch.setattr(report, "notebook_html", stumble)
    folder = one_run(tmp_path / "night", new_notebook(), verdict=VERDICT)
    text = check(report.page(folder)).text
    assert "notebook.ipynb cannot be shown: KeyError: 'odd'" in text and "TTM or GTT" in text


def test_an_empty_batch_and_one_where_nothing_answered_have_a_page(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "No run was recorded" in check(report.page(tmp_path / "empty")).text
    lost = one_run(tmp_path / "lost", state="died", cause="killed by SIGSEGV")
    (lost / "03-run").mkdir()
    (lost / "03-run" / "notebook.ipynb").write_text("{}")
    text = check(report.page(lost)).text
    assert "No run came to an answer" in text
    assert "01_hardware_probe: died: its kernel was lost. killed by SIGSEGV." in text
    assert "03-run: a run's folder without a run.json" in text
    with pytest.raises(FileNotFoundError, match="no such folder; expected a batch"):
        report.write_index(tmp_path / "nothing")


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path, monkeypatch):
    folder = one_run(tmp_path / "night", new_notebook(), verdict=VERDICT)
    before = report.write_index(folder).read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write_index(folder)
    assert (folder / "index.html").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["01-run", "index.html"]


def test_a_page_stays_below_3_mb_and_says_what_it_left_out(tmp_path):
    raw = PIXEL + random.Random(7).randbytes(180_000)
    heavy = data(image__png=base64.b64encode(raw).decode(), text__plain="a heavy picture")
    many = [code("show()", heavy) for _ in range(20)] + [
        code("print(x)", printed("line & line\n" * 9000)) for _ in range(100)
    ]
    text = check(report.page(one_run(tmp_path / "night", new_notebook(cells=many)))).text
    left_out = "left out to keep the page small; it is in notebook.ipynb"
    assert f"This picture is {left_out}. a heavy picture" in text and f"[{left_out}]" in text
    assert "characters left out; they are in notebook.ipynb" in text


def test_each_box_has_its_own_verdict_and_the_firmest_leads_whichever_notebook_it_is_of(tmp_path):
    rows = (
        ("strix-halo", "01_hardware_probe", verdict("cannot-tell", "confirmed")),
        ("strix-halo", "02_allocator_stress", verdict("user-leak", "likely")),
        ("other", "03_ttm", verdict("ttm-gtt-cap", "confirmed")),
        ("other", "09_case_report", verdict("driver-leak", "weak")),
    )
    for box, name, said in rows:
        run = run_record(name[:2], f"{name}.ipynb", "answered", verdict=said)
        put(tmp_path, run.model_copy(update={"box": box}))
    audit = check(report.page(tmp_path))
    boxes = audit.text[: audit.text.index("By notebook")]
    assert in_order(boxes, "other", "confirmed", CAUSE_WORDS["ttm-gtt-cap"])
    assert in_order(boxes, "strix-halo", "likely", CAUSE_WORDS["user-leak"])
    assert "memory that no process owns" in audit.text[audit.text.index("By notebook") :]


def test_a_page_of_several_boxes_says_first_how_many_have_which_problem_and_what_to_do(tmp_path):
    step = NextStep(
        what="Move the list out of the loop. Then run it again.",
        command="leaks run.pickle",
        precondition="you are root on elm",
        blast_radius="slower",
        reboot=True,
        check="leaks again.pickle",
        undo="mv run.pickle old.pickle",
    )
    rows = (
        ("oak", replace(verdict("cannot-tell"), state="healthy", title="Nothing failed on oak")),
        ("elm", replace(verdict("user-leak", "likely"), next_step=step)),
        ("fir", verdict("cannot-tell")),
        ("yew", verdict("user-leak", "confirmed")),
        ("ash", verdict("ttm-gtt-cap", "confirmed")),
        ("box", None),
    )
    for number, (box, said) in enumerate(rows):
        state = "answered" if said else "failed"
        run = run_record(f"{number:02d}", "01_probe.ipynb", state, verdict=said)
        put(tmp_path, run.model_copy(update={"box": box}))
    text = check(report.page(tmp_path)).text
    assert in_order(
        text,
        "3 of 6 boxes have a problem. yew: a memory leak; ash: TTM or GTT limit; elm: a memory leak",
        "The other 3 boxes: 1 without an answer, 1 undecided, 1 healthy.",
        "yew recorded box a memory leak confirmed",
        "ash recorded box TTM or GTT limit confirmed",
        "elm recorded box a memory leak likely, not proved",
        "First make sure: you are root on elm.",
        "Move the list out of the loop. Then run it again.\n",
        "leaks run.pickle",
        "Reboot: the change takes effect at the next boot",
        "Check that it worked:",
        "leaks again.pickle",
        "1 more: Only if it did not help, undo it",
        "mv run.pickle old.pickle",
        "Side effects: slower.",
        "box recorded box without an answer",
        "fir recorded box undecided",
        "oak recorded box healthy\nNothing failed on oak",
        "1 run needs attention",
        "To repeat a run: casebook run PLAN --resume BATCH --again RUN",
        "By notebook",
    )


def repeated(folder, said):
    """A batch of runs of notebook 02 on one box, each (parameters, verdict or state)."""
    for number, (parameters, answer) in enumerate(said):
        state = answer if isinstance(answer, str) else "answered"
        run = run_record(f"{number:02d}", "02_stress.ipynb", state)
        about = {"parameters": parameters, "box": "oak", "cause": ""}
        about["verdict"] = answer if state == "answered" else None
        put(folder, run.model_copy(update=about))
    other = run_record("99", "01_probe.ipynb", "answered", verdict=verdict("ttm-gtt-cap", "likely"))
    put(folder, other.model_copy(update={"box": "oak"}))
    (box,) = box_answer.answers_of(report.read_report([folder]).sections)
    return box


def test_the_table_of_a_batch_tells_repeated_runs_apart_by_their_parameters(tmp_path):
    repeated(tmp_path, [({"size": size, "seed": 7}, UNDECIDED) for size in (1, 2)])
    rows = runs_table(str(tmp_path)).rows
    assert [list(row.values())[:3] for row in rows] == [
        ["02_stress.ipynb", "oak", "size=1"],
        ["02_stress.ipynb", "oak", "size=2"],
        ["01_probe.ipynb", "oak", ""],
    ]


def test_the_page_of_several_boxes_is_headed_by_how_many_and_how_often_each_was_run(tmp_path):
    for number, box in enumerate(["oak", "elm"]):
        run = run_record(f"{number:02d}", "01_probe.ipynb", "answered", verdict=UNDECIDED)
        put(tmp_path, run.model_copy(update={"box": box}))
    assert "2 boxes, one run on each, " in report.page(tmp_path)
    put(tmp_path, run_record("02", "02_my_own.ipynb", "answered").model_copy(update={"box": "elm"}))
    text = report.page(tmp_path)
    assert "2 boxes, 3 runs, " in text and '<th scope="col">02_my_own</th>' in text


FRAGMENTED = verdict("allocator-fragmentation", "likely", state="aside")
UNDECIDED = verdict("cannot-tell", state="aside")


@pytest.mark.parametrize(
    ("answers", "words", "note"),
    [
        (
            [FRAGMENTED] * 4,
            "fragmentation",
            "4 runs: size=1, seed=0, seed=7, size=2",
        ),
        (
            [FRAGMENTED, FRAGMENTED, UNDECIDED, UNDECIDED],
            "fragmentation",
            "size=1, 2 of 4 runs",
        ),
        (
            [FRAGMENTED, UNDECIDED, FRAGMENTED, UNDECIDED],
            "fragmentation",
            "seed=0, 2 of 4 runs",
        ),
        ([UNDECIDED, UNDECIDED, UNDECIDED, "timed_out"], "undecided", "1 of 4 timed out"),
        (["failed"] * 4, "", "4 runs: size=1, seed=0, seed=7, size=2"),
        (
            [verdict("ttm-gtt-cap", "weak")] * 4,
            "agrees",
            "4 runs: size=1, seed=0, seed=7, size=2",
        ),
    ],
)
def test_a_cell_of_a_box_has_one_verdict_and_says_of_which_runs(tmp_path, answers, words, note):
    grid = [{"size": size, "seed": seed, "batch": 9} for size in (1, 2) for seed in (0, 7)]
    box = repeated(tmp_path, zip(grid, answers, strict=True))
    cell = box.cells["02_stress"]
    assert (cell.words, cell.note) == (words, note) and box.cells["01_probe"].words == "agrees"
    assert (
        check(report.page(tmp_path)).text.count(
            "runs need attention" if "failed" in answers else ""
        )
        > 0
    )


def test_repeated_runs_are_told_apart_by_their_parameters_and_the_same_ones_by_number(tmp_path):
    parameters = [
        {"size": 1, "seed": 7},
        {"size": 2, "seed": 7},
        {"size": 2, "seed": 7},
        {"size": ""},
    ]
    repeated(tmp_path, [(given, FRAGMENTED) for given in parameters])
    sections = report.read_report([tmp_path]).sections
    assert [section.apart for section in sections] == [
        ("size=1", "seed=7"),
        ("size=2", "seed=7", "run 1 of 2"),
        ("size=2", "seed=7", "run 2 of 2"),
        ("no size",),
        (),
    ]
    assert ", size=2, seed=7, run 2 of 2" in check(report.page(tmp_path)).text


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_makes_a_page_heading(cause):
    html = verdict_html(verdict(cause), hero=True)
    assert Audit(html).headings[0][1] == CAUSE_WORDS[cause]


@pytest.mark.parametrize(("confidence", "lit"), [("confirmed", 3), ("likely", 2), ("weak", 1)])
def test_the_meter_shows_how_sure_a_verdict_is(confidence, lit):
    assert verdict_html(verdict("user-leak", confidence)).count('class="on"') == lit
    assert verdict_html(verdict("cannot-tell", confidence)).count('class="on"') == 0


def test_the_sums_of_a_message_and_what_is_missing_stand_in_the_verdict_once():
    reading = seen(1 << 30, "bytes", "error text")
    sums = [Evidence(id=f"sum-{n}", reading=reading, says=f"line {n}") for n in (1, 2)]
    other = Evidence(id="e", reading=reading, says="a reading")
    missing = [Missing(reading="the log", how="look")]
    html = verdict_html(verdict("user-leak", evidence=[other, *sums], missing=missing))
    text = Audit(html).text
    assert in_order(
        text,
        "Why",
        "a reading",
        "Next step",
        "Evidence",
        "The numbers of the message, added up",
        "line 1",
        "Evidence against it",
    )
    assert text.count("line 2") == 1 and "the log: look" in text and "still possible" not in text


@pytest.mark.parametrize("mark", ["(from the write-up)", "(stated, not measured)"])
def test_of_long_words_the_card_may_cut_the_end_and_never_that_no_machine_printed_them(mark):
    long = Evidence(id="e", reading=seen(1, "bytes", "x"), says=f"{'word ' * 60}{mark}")
    html = verdict_html(verdict("user-leak", evidence=[long]))
    cut, _, rest = html.partition('<span class="says">')[2].partition("</span>")
    assert mark not in cut and rest.lstrip().startswith(mark)


HEAD = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "raw", [b"", b"AAA", HEAD, HEAD + b"\0\0\0\rIHDR" + b"\0" * 8, HEAD + b"\0\0\0\rIHDR\0\0\0\1"]
)
def test_what_is_no_png_is_not_shown_as_one(raw):
    assert png_size(base64.b64encode(raw).decode()) is None and png_size("not base64") is None


def test_the_templates_themselves_hold_no_external_address():
    for path in (Path(report.__file__).parents[1] / "tell" / "templates").rglob("*.*"):
        assert not re.search(r"https?:|//[a-z]|@import|url\(", path.read_text()), path


# A night of many runs


def records(folder):
    """The records of a night, by path."""
    return {path: json.loads(path.read_text()) for path in sorted(folder.glob("0*/run.json"))}


@pytest.fixture(scope="module")
def long_night(tmp_path_factory):
    """60 runs with a torn record, written as a page with pages of runs beside it."""
    folder = night(tmp_path_factory.mktemp("outputs") / "20261121-night", 60)
    (folder / "9998-torn").mkdir()
    (folder / "9998-torn" / "run.json").write_text('{"schema_version": 1, "run_id')
    return folder, report.write_index(folder).read_text()


def pages_of(folder):
    return {f"{path.parent.name}/index.html" for path in folder.glob("*/index.html")}


def test_a_night_says_what_was_found_then_what_needs_attention_then_each_notebooks_answer(
    long_night,
):
    folder, text = long_night
    assert in_order(
        check(text, pages_of(folder)).text,
        "6 boxes",
        "60 runs",
        "runs need attention",
        "44 answered",
        "Carried out on node-",
        "the files of each run are in its folder beside this page",
        "by SIGKILL",
        "9998-torn/run.json: no",
        "By notebook",
        "44 runs answered",
        "Plan (SHA-256)",
    )


def test_each_trouble_has_its_evidence_and_stands_once_for_all_that_are_alike(long_night):
    folder, html = long_night
    text = Audit(html).text
    assert "the kernel was killed by SIGKILL; the kernel log says out of memory" in text
    assert "stopped in cell 7" in text and "1 strike, beside it: kernel.stderr, stacks.txt" in text
    assert "GPU memory access fault" in text
    fine = ("answered", "planned", "skipped")
    runs = [run for run in records(folder).values() if run["state"] not in fine]
    kinds = {(run["notebook"], run["state"]) for run in runs}
    assert len(re.findall('<details class="run"[^>]* open>', html)) == len(kinds) < len(runs)


def test_every_run_of_a_night_that_ran_has_a_page_and_it_leads_back(long_night):
    folder, html = long_night
    ran = [path.parent for path, run in records(folder).items() if run["started_at"]]
    assert {f"{path.name}/index.html" for path in ran} == pages_of(folder)
    assert all(f'href="{name}"' in html for name in pages_of(folder))
    own = check((ran[0] / "index.html").read_text(), {"../index.html"})
    assert "All runs of this batch" in own.text and ran[0].name in own.text


def test_the_page_of_a_run_is_written_anew_only_where_its_record_is_newer(tmp_path):
    folder = night(tmp_path / "n", 14)
    report.write_index(folder)
    own = sorted(folder.glob("*/index.html"))
    for path in own:
        path.write_text("old")
    record = own[0].parent / "run.json"
    os.utime(record, ns=(record.stat().st_atime_ns, own[0].stat().st_mtime_ns + 10**9))
    report.write_index(folder)
    assert [path.read_text() == "old" for path in own] == [False] + [True] * (len(own) - 1)


def test_a_gate_a_quarantine_and_a_run_whose_process_is_gone_need_attention_and_say_why(tmp_path):
    folder = night(tmp_path / "n", 20)
    started = {"state": "started", "node": "", "seconds": None, "verdict": None, "pid": 2**22 + 5}
    changes = (
        {"gate": "VRAM 3.10 GiB above before", "quarantined": "gpu 0000:03:00.0"},
        {**started, "boot_id": boot_id()},
        {**started, "boot_id": "another"},
    )
    for (path, run), change in zip(records(folder).items(), changes, strict=False):
        path.write_text(json.dumps({**run, "cause": "", "signal": "", **change}))
    text = check(report.page(folder), {f"{p.name}/index.html" for p in folder.iterdir()}).text
    for words in (
        "Afterwards the box was not clean: VRAM 3.10 GiB above before; closed since then: gpu 0000:03:00.0.",
        "started, and its process is gone",
        "started under another boot",
        "the box was not clean afterwards, gpu 0000:03:00.0: VRAM 3.10 GiB above before",
    ):
        assert words in text


def test_the_page_of_a_thousand_runs_stays_below_6_mb_with_the_longest_last_words(tmp_path):
    folder = night(tmp_path / "n", 1000)
    for number, (path, run) in enumerate(records(folder).items()):
        if run["state"] == "died":  # no two alike
            run["cause"] = "".join(chr(97 + int(digit)) for digit in str(number))
            path.write_text(json.dumps({**run, "last_words": "<&>" * 1000}))
    html = report.page(folder)
    assert (
        len(html.encode()) < 6_000_000 and "1000 runs" in html and html.count('class="run"') == 1000
    )


def test_a_run_that_a_restart_ended_shows_what_the_kernel_said_before_it(tmp_path, monkeypatch):
    (tmp_path / "box/sys/fs/pstore").mkdir(parents=True)
    fault = "<3>[ 4021.7] amdgpu 0000:c5:00.0: GPU reset begin!\n"
    (tmp_path / "box/sys/fs/pstore/dmesg-efi-1").write_text(f"Panic#1 Part1\n{fault}")
    there = partial(last_lines, root=str(tmp_path / "box"))
    monkeypatch.setattr(record_of_run, "last_lines", there)
    folder = one_run(tmp_path / "night", state="rebooted", last_words="step 41")
    run = read_run(next(folder.glob("*/run.json"))).model_copy(update={"boot_id": "b"})
    notes = record_of_run.last_words_before(run)
    path = folder / run.run_id / "run.json"
    path.write_text(run.model_copy(update={"notes": notes}).model_dump_json())
    text = check(report.page(folder)).text
    assert in_order(text, "the machine restarted", "Last words", "step 41", "last words before")
    assert "from /sys/fs/pstore/dmesg-efi-1:" in text and "GPU reset begin!" in text


def test_a_restart_that_nobody_has_recorded_yet_shows_the_same(tmp_path):
    gone = one_run(tmp_path / "gone", state="started", boot_id="5" * 32)
    text = check(report.page(gone)).text
    assert "The kernel's last words before it, not available because pstore" in text


@pytest.mark.parametrize(
    ("box", "fine", "not_said"),
    [
        ("cuda-healthy", "device nodes; kernel log; every process", "control group"),
        ("rx7900xt-container", "device nodes; 7 memory settings", "kernel log; every process"),
        ("cpu-only", "kernel log", "device nodes; every process; settings"),
    ],
)
def test_what_was_checked_and_is_fine_is_said_and_what_was_not_seen_is_not(box, fine, not_said):
    said = "\n".join(words_of_box.fine(open_box(box)))
    assert all(words in said for words in fine.split("; "))
    assert not any(words in said for words in not_said.split("; "))
    assert "reconstructed)" in words_of_box.machine_line(open_box(box))


def of_boot(boot_id):
    writer = BundleWriter("a-box", "live", "0", "2026-01-01T00:00:00Z")
    writer.add("file", "host", json.dumps({"boot_id": boot_id}))
    return writer.bundle()


HERE = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize(
    ("bundle", "loud"),
    [
        (open_box("cuda-healthy"), "NOT THIS MACHINE, but cuda-healthy."),
        (of_boot("another"), "NOT THIS MACHINE AS IT RUNS NOW, but a-box."),
        (of_boot(HERE), ""),
        (of_boot(None), ""),
    ],
)
def test_a_notebook_says_loudly_that_a_box_is_not_this_machine_and_what_to_change(bundle, loud):
    *first, line = words_of_box.machine_line(bundle).splitlines()
    assert first == ([f'{loud} To look at this one: box = "live"'] if loud else [])
    assert line == words_of_box.box_line(bundle)
    told = code("", printed("\n".join([*first, line, "more"])), tags=("machine",))
    assert machine_line(new_notebook(cells=[told])) == line
    html = notebook_html(new_notebook(cells=[told]), PageRoom(10**6))
    assert "NOT THIS MACHINE" not in html and "more" in html, "a page is for other machines anyway"


def test_the_table_of_runs_has_the_cause_or_the_answer_of_each_and_names_torn_records(tmp_path):
    one_run(tmp_path, verdict=verdict("true-capacity"))
    lost = run_record("02-died", "notebooks/x.ipynb", "died", cause="killed by SIGSEGV")
    put(tmp_path, lost)
    (tmp_path / "03-torn").mkdir()
    (tmp_path / "03-torn" / "run.json").write_text('{"schema_version": 2, "run')
    table = runs_table(str(tmp_path))
    ends = [row["answer, or why there is none"] for row in table.rows]
    assert ends == ["killed by SIGSEGV", "too little memory (weak)"]
    assert re.search("Not readable: .*03-torn", str(table))
    assert NO_BATCH in str(runs_table(""))
