"""The page of a batch: it needs no network, runs nothing, tells every run's true state, whatever lies in the folder."""

import base64
import json
import os
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from night_runs import night
from tell_boxes import (
    HOSTILE,
    VERDICT,
    batch,
    code,
    data,
    markdown,
    picture,
    printed,
    probe,
    run_record,
)

from helpers.look.reading import seen
from helpers.run.notebook import VERDICT as MIME
from helpers.run.record import boot_id
from helpers.run.shapes import STATES
from helpers.shapes import CAUSES, Evidence, NextStep, Verdict, as_dict
from helpers.tell import figures, report
from helpers.tell.notebook_html import Prose, Room, harmless, notebook_html, png_size
from helpers.tell.tables import plain
from helpers.tell.verdict import CAUSE_WORDS

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Audit(HTMLParser):
    """What a page holds: its tags with attributes, its text, its headings, and tags left open."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.styles, self.headings, self.open = [], [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append([int(tag[1]), ""])

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, text):
        (self.styles if "style" in self.open else self.texts).append(text)
        if self.headings and any(re.fullmatch("h[1-6]", tag) for tag in self.open):
            self.headings[-1][1] += text

    @property
    def text(self):
        return "".join(self.texts)


def check(page, beside=()):
    """The rules that every page keeps. ``beside`` names the pages of runs that it may lead to."""
    audit = Audit(page)
    assert not audit.open
    names = {tag for tag, _ in audit.tags}
    assert not names & {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "svg",
        "math",
        "template",
        "video",
    }
    assert [attrs for tag, attrs in audit.tags if tag == "html"] == [{"lang": "en"}]
    ids = [attrs["id"] for _, attrs in audit.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in audit.tags:
        assert not [
            name
            for name in attrs
            if name.startswith("on") or name in ("style", "srcset", "background", "action")
        ]
        if "href" in attrs:
            assert (
                attrs["href"][1:] in ids
                if attrs["href"].startswith("#")
                else attrs["href"] in beside
            )
        if "src" in attrs:
            assert tag == "img" and attrs["src"].startswith("data:image/png;base64,")
        if tag == "img":
            assert attrs["alt"].strip() and int(attrs["width"]) > 0 and int(attrs["height"]) > 0
    style = "".join(audit.styles)
    assert "@import" not in style and "url(" not in style and "http" not in style
    levels = [level for level, _ in audit.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert all(title.strip() for _, title in audit.headings)
    assert {
        name: attrs
        for name, attrs in audit.tags
        if name == "meta" and attrs.get("name") == "viewport"
    }
    assert all(char.isprintable() or char in "\n\t" for char in page)
    assert len(page.encode()) < 3_000_000
    return audit


def one_run(folder, notebook=None, **changes):
    """A batch of one run."""
    run = run_record(
        "01-run",
        changes.pop("notebook_name", "notebooks/01_hardware_probe.ipynb"),
        changes.pop("state", "answered"),
        **changes,
    )
    (folder / "01-run").mkdir(parents=True)
    (folder / "01-run" / "run.json").write_text(run.model_dump_json())
    if notebook is not None:
        (folder / "01-run" / "notebook.ipynb").write_text(json.dumps(notebook))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The page of a batch with runs in five states and a torn record."""
    folder = batch(tmp_path_factory.mktemp("outputs") / "20261121-quick")
    path = report.write_index(folder)
    return path.read_text(encoding="utf-8")


def test_the_page_keeps_every_rule(whole):
    check(whole)


def test_the_verdict_comes_first_then_the_machine_the_runs_the_notebooks_and_where_it_came_from(
    whole,
):
    text = Audit(whole).text
    marks = [
        "The kernel's TTM or GTT limit is below",
        "sudo update-initramfs -u",
        "strix-halo: Ubuntu 24.04, Linux 6.14",
        "Cells done",
        "What is this box?",
        "Does the allocator fragment?",
        "Which limit binds?",
        "Plan (SHA-256)",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_the_machine_is_told_by_its_cell_whatever_stands_above_it():
    notebook = probe()
    told = report.machine_line(notebook)
    assert told.startswith("strix-halo: Ubuntu 24.04")
    for cell in notebook.cells:
        cell.source = cell.source.replace("## Machine", "## Which box this is")
    assert report.machine_line(notebook) == told
    notebook.cells.insert(0, markdown("## Machine"))
    notebook.cells.insert(1, code("print(1)", printed("1\n")))
    assert report.machine_line(notebook) == told


def test_every_run_stands_there_with_its_true_state_in_words(whole):
    text = Audit(whole).text
    for said in (
        "1 answered, 1 died, 1 timed out, 1 failed, 1 not started",
        "died: its kernel was lost",
        "stopped: over its time limit",
        "the kernel log says out of memory",
        "by SIGKILL",
        "KeyError: 'gtt'",
        "passed the limit of 120 s of cell 4",
    ):
        assert said in text
    assert set(report.STATE_WORDS) == set(STATES)


def test_a_torn_record_is_named_and_the_others_are_shown(whole):
    assert "06-torn/run.json: no whole JSON" in Audit(whole).text


def test_what_the_kernel_wrote_last_stands_beneath_the_cell_that_failed_and_before_the_cells_never_run(
    whole,
):
    section = whole[whole.index('id="run-2"') : whole.index('id="run-3"')]
    assert section.count("GPU memory access fault") == 1
    assert (
        section.index("This cell failed")
        < section.index("GPU memory access fault")
        < section.index("Not run")
    )
    assert "An Exception was encountered" not in section


def test_words_that_stand_in_the_error_already_are_not_said_twice():
    died = nbformat.v4.new_output(
        "error", ename="Died", evalue="", traceback=["Died: killed", "a fault", "of the GPU"]
    )
    notebook = nbformat.v4.new_notebook(cells=[code("x()", died, status="failed")])
    shown = harmless(notebook, Room(10_000), "a fault\nof the GPU").cells[0]
    assert (
        shown.outputs[0].traceback == ["Died: killed\na fault\nof the GPU"]
        and not shown.metadata.casebook.last_words
    )


def test_the_failing_cell_is_found_by_its_number_where_papermill_marked_none():
    notebook = nbformat.v4.new_notebook(
        cells=[
            markdown("banner", "papermill-error-cell-tag"),
            markdown("# t"),
            code("p = 1", tags=("parameters",)),
            code("p = 2", tags=("injected-parameters",)),
            code("a"),
            code("b"),
        ]
    )
    shown = harmless(notebook, Room(10_000), "last", failing_cell=2).cells
    assert [
        cell.source
        for cell in shown
        if cell.cell_type == "code" and cell.metadata.casebook.last_words
    ] == ["a"]
    assert (
        shown[1].metadata.casebook.label == "Parameters"
        and shown[2].metadata.casebook.label == "Parameters of this run"
    )


def test_a_run_without_a_notebook_still_tells_its_last_words(whole):
    section = whole[whole.index('id="run-4"') : whole.index('id="run-5"')]
    assert "No executed notebook was written." in section and "Thread 0x7f" in section


def test_code_is_folded_away_and_pictures_have_their_words(whole):
    audit = Audit(whole)
    assert [tag for tag, attrs in audit.tags if tag == "details" and "open" in attrs] == []
    alts = [attrs["alt"] for tag, attrs in audit.tags if tag == "img"]
    assert (
        len(alts) == 3
        and alts[0].startswith("Memory pools of each layer")
        and alts[2].startswith("Kernel log events")
    )


def test_the_same_batch_gives_the_same_page_wherever_it_lies(tmp_path):
    first = batch(tmp_path / "a" / "20261121-quick")
    shutil.copytree(first, tmp_path / "b" / "20261121-quick")
    assert (
        report.page(first) == report.page(tmp_path / "b" / "20261121-quick") == report.page(first)
    )
    assert str(tmp_path) not in report.page(first)


def hostile_outputs():
    shown = data()
    shown.data = {MIME: {**as_dict(VERDICT), "summary": HOSTILE}}
    lying = data()
    lying.data = {MIME: {"cause": "<script>"}, "text/plain": HOSTILE}
    svg = data()
    svg.data = {
        "image/svg+xml": "<svg onload=alert(1)></svg>",
        "text/html": "<script>alert(2)</script>",
        "text/plain": "words",
    }
    return [
        printed(HOSTILE + "\n"),
        printed(HOSTILE, "stderr"),
        data(text__html=f"<b onmouseover=x>{HOSTILE}</b>"),
        data(application__javascript="alert(3)"),
        data(text__plain=HOSTILE),
        data(text__markdown=f"# {HOSTILE}\n\n{HOSTILE}"),
        data(image__png='"><script>alert(4)</script>', text__plain="x"),
        data(image__jpeg="AAAA"),
        shown,
        lying,
        svg,
        data(**{"application__vnd.jupyter.widget-view+json": {"model_id": "1"}}),
        nbformat.v4.new_output(
            "error", ename=HOSTILE, evalue=HOSTILE, traceback=[HOSTILE, "</pre><script>"]
        ),
    ]


def test_nothing_that_a_box_or_a_notebook_says_can_act(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[
            markdown(
                "<script>alert(5)</script>\n\n<img src=x onerror=alert(6)>\n\n[link](javascript:alert(7)) "
                "![picture](https://example.org/x.png) <https://example.org> [ref]\n\n[ref]: https://example.org/ref 't'\n"
            ),
            markdown(
                "#### deep\n\n# shallow\n\n```html\n<script>alert(8)</script>\n```\n\n"
                "| a | <b> |\n|---|---|\n| `</td>` | 1 |"
            ),
            code(f"print('{HOSTILE}')  # </pre><script>", *hostile_outputs(), status="failed"),
            nbformat.v4.new_raw_cell("<script>alert(9)</script>"),
        ]
    )
    changes = dict.fromkeys(
        ("box", "cause", "signal", "last_words", "tool_version", "boot_id", "started_at"), HOSTILE
    )
    evil = Verdict(
        cause="other",
        confidence="weak",
        summary=HOSTILE,
        next_step=NextStep(what=HOSTILE, command=HOSTILE),
        evidence=[Evidence(id=HOSTILE, reading=seen(HOSTILE, "text", HOSTILE), says=HOSTILE)],
    )
    run = run_record("01-run", HOSTILE + "/n.ipynb", "failed").model_copy(
        update={
            **changes,
            "last_words": "last " + HOSTILE,
            "verdict": evil,
            "parameters": {HOSTILE: HOSTILE},
            "files": [HOSTILE],
        }
    )
    folder = tmp_path / "night"
    (folder / "01-run").mkdir(parents=True)
    (folder / "01-run" / "run.json").write_text(run.model_dump_json())
    (folder / "01-run" / "notebook.ipynb").write_text(json.dumps(notebook))
    (folder / "<script>alert(10)<").mkdir()
    (folder / "<script>alert(10)<" / "run.json").write_text("{}")
    audit = check(report.page(folder))
    assert plain(HOSTILE)[:30] in audit.text and "https://example.org/x.png" not in audit.text
    assert (
        "alert(2)" not in audit.text
        and "alert(3)" not in audit.text
        and "alert(9)" not in audit.text
    )
    assert "<script>alert(5)</script>" in audit.text and "words" in audit.text
    assert [level for level, title in audit.headings if title in ("deep", "shallow")] == [3, 3]


def test_markdown_links_keep_their_address_as_text_only():
    assert str(Prose().html("See [the issue](https://example.org/issues/7).")) == (
        '<p>See the issue <span class="address">(https://example.org/issues/7)</span>.</p>\n'
    )


def test_a_notebook_cannot_point_at_files_beside_it(tmp_path):
    html = notebook_html(
        nbformat.v4.new_notebook(
            cells=[
                markdown(
                    "{% include '/etc/passwd' %} {{ 7 * 6 }} ![x](file:///etc/passwd) [a](../../x)"
                )
            ]
        ),
        Room(9999),
        str,
    )
    assert "root:" not in html and "42" not in html and "<img" not in html and "href" not in html


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
    folder = one_run(tmp_path / "night", state="died", last_words="the end")
    (folder / "01-run" / "notebook.ipynb").write_text(torn)
    text = check(report.page(folder)).text
    assert says in text and "the end" in text and str(tmp_path) not in text


def test_a_notebook_that_cannot_be_shown_costs_only_itself(tmp_path, monkeypatch):
    def stumble(*_):
        raise KeyError("odd")

    monkeypatch.setattr(report, "notebook_html", stumble)
    text = check(report.page(one_run(tmp_path / "night", probe(), verdict=VERDICT))).text
    assert (
        "notebook.ipynb cannot be shown: KeyError: 'odd'" in text
        and "TTM or GTT limit is below" in text
    )


def test_an_empty_batch_and_one_where_nothing_answered_have_a_page(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "No run was recorded" in check(report.page(tmp_path / "empty")).text
    text = check(
        report.page(one_run(tmp_path / "lost", state="died", cause="killed by SIGSEGV"))
    ).text
    assert (
        "No run came to an answer" in text
        and "01_hardware_probe: died: its kernel was lost. killed by SIGSEGV." in text
    )


def test_a_folder_of_a_run_without_its_record_is_named(tmp_path):
    (tmp_path / "night" / "03-run").mkdir(parents=True)
    (tmp_path / "night" / "03-run" / "notebook.ipynb").write_text("{}")
    assert (
        "03-run: a run's folder without a run.json" in check(report.page(tmp_path / "night")).text
    )


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder; expected a batch"):
        report.write_index(tmp_path / "nothing")


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path, monkeypatch):
    folder = one_run(tmp_path / "night", probe(), verdict=VERDICT)
    path = report.write_index(folder)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write_index(folder)
    assert path.read_bytes() == before and sorted(p.name for p in folder.iterdir()) == [
        "01-run",
        "index.html",
    ]


def test_a_page_stays_below_3_mb_and_says_what_it_left_out(tmp_path):
    heavy = picture(figures.timeline_figure([]), "a heavy picture")
    raw = base64.b64decode(heavy.data["image/png"]) + random.Random(7).randbytes(180_000)
    heavy.data["image/png"] = base64.b64encode(raw).decode()
    cells = [code("show()", heavy) for _ in range(40)] + [
        code("print(x)", printed("line & line\n" * 9000)) for _ in range(150)
    ]
    audit = check(report.page(one_run(tmp_path / "night", nbformat.v4.new_notebook(cells=cells))))
    assert (
        "This picture is left out to keep the page small; it is in notebook.ipynb. a heavy picture"
        in audit.text
    )
    assert "characters left out; they are in notebook.ipynb" in audit.text
    assert "[left out to keep the page small; it is in notebook.ipynb]" in audit.text


def test_each_box_has_its_own_verdict_and_the_firmest_leads_whichever_notebook_it_is_of(tmp_path):
    def verdict(cause, confidence):
        return Verdict(cause=cause, confidence=confidence, next_step=NextStep(what="Nothing."))

    for run in (
        run_record(
            "01", "01_hardware_probe.ipynb", "answered", verdict=verdict("cannot-tell", "confirmed")
        ),
        run_record(
            "02", "02_allocator_stress.ipynb", "answered", verdict=verdict("user-leak", "likely")
        ),
        run_record(
            "03", "03_ttm.ipynb", "answered", verdict=verdict("ttm-gtt-cap", "confirmed")
        ).model_copy(update={"box": "other"}),
        run_record(
            "04", "09_case_report.ipynb", "answered", verdict=verdict("driver-leak", "weak")
        ).model_copy(update={"box": "other"}),
    ):
        (tmp_path / run.run_id).mkdir()
        (tmp_path / run.run_id / "run.json").write_text(run.model_dump_json())
    audit = check(report.page(tmp_path))
    assert [title for level, title in audit.headings if level == 2][:2] == [
        "The program itself keeps more and more memory",
        "The kernel's TTM or GTT limit is below what the machine could give",
    ]
    assert "Box strix-halo" in audit.text and "Box other" in audit.text


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_makes_a_page_heading(cause):
    html = report.verdict_html(
        Verdict(cause=cause, confidence="weak", next_step=NextStep(what="x")), hero=True
    )
    assert Audit(html).headings[0][1] == CAUSE_WORDS[cause]


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "AAAA",
        "not base64",
        base64.b64encode(b"\x89PNG\r\n\x1a\n").decode(),
        base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + b"\0" * 8).decode(),
    ],
)
def test_what_is_no_png_is_not_shown_as_one(encoded):
    assert png_size(encoded) is None


def test_the_templates_themselves_hold_no_external_address():
    for path in (Path(report.__file__).parent / "templates").rglob("*.*"):
        assert not re.search(r"https?:|//[a-z]|@import|url\(", path.read_text()), path


# A night of many runs


@pytest.fixture(scope="module")
def long_night(tmp_path_factory):
    """60 runs with a torn record, written as a page with pages of runs beside it."""
    folder = night(tmp_path_factory.mktemp("outputs") / "20261121-night", 60)
    (folder / "9998-torn").mkdir()
    (folder / "9998-torn" / "run.json").write_text('{"schema_version": 1, "run_id')
    return folder, report.write_index(folder).read_text()


def pages_of(folder):
    return {f"{path.parent.name}/index.html" for path in folder.glob("*/index.html")}


def test_a_night_counts_first_then_says_what_needs_a_person_then_the_answers(long_night):
    folder, page = long_night
    text = check(page, pages_of(folder)).text
    marks = [
        "60 runs",
        "44 answered",
        "need a person",
        "What needs a person",
        "died by SIGKILL",
        "9998-torn/run.json: no",
        "What was found",
        "Median time",
        "Nodes",
        "attempt 1: died",
        "Plan (SHA-256)",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_each_trouble_has_its_evidence_and_stands_once_for_all_that_are_alike(long_night):
    text = Audit(long_night[1]).text
    assert "the kernel was killed by SIGKILL; the kernel log says out of memory" in text
    assert (
        "cell 7" in text
        and "1 strike; beside it: kernel.stderr, stacks.txt" in text
        and "GPU memory access fault" in text
    )
    runs = [json.loads(path.read_text()) for path in long_night[0].glob("0*/run.json")]
    lost = [
        (run["notebook"], run["state"])
        for run in runs
        if run["state"] not in ("answered", "planned", "skipped")
    ]
    assert long_night[1].count('<div class="ending">') == len(set(lost)) < len(lost)


def test_every_run_of_a_night_that_ran_has_a_page_and_it_leads_back(long_night):
    folder, page = long_night
    ran = [
        path.parent
        for path in folder.glob("0*/run.json")
        if json.loads(path.read_text())["started_at"]
    ]
    assert {f"{path.name}/index.html" for path in ran} == pages_of(folder) and all(
        f'href="{name}"' in page for name in pages_of(folder)
    )
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


def test_a_gate_a_quarantine_and_a_run_whose_process_is_gone_need_a_person(tmp_path):
    folder = night(tmp_path / "n", 20)
    started = {"state": "started", "node": "", "seconds": None, "verdict": None, "pid": 2**22 + 5}
    for number, changes in enumerate(
        (
            {"gate": "VRAM 3.10 GiB above before", "quarantined": "gpu 0000:03:00.0"},
            {**started, "boot_id": boot_id()},
            {**started, "boot_id": "another"},
        )
    ):
        path = sorted(folder.glob("*/run.json"))[number]
        run = {**json.loads(path.read_text()), "cause": "", "signal": "", **changes}
        path.write_text(json.dumps(run))
    text = check(
        report.page(folder), pages_of(folder) | {f"{p.name}/index.html" for p in folder.iterdir()}
    ).text
    assert (
        "Afterwards the box was not clean: VRAM 3.10 GiB above before; closed since then: gpu 0000:03:00.0."
        in text
    )
    assert (
        "started: started, and its process is gone" in text
        and "started: started under another boot" in text
    )
    assert "What kept a box or a GPU from being clean after a run." in text


def test_the_page_of_a_thousand_runs_stays_below_6_mb_with_the_longest_last_words(tmp_path):
    folder = night(tmp_path / "n", 1000)
    for number, path in enumerate(sorted(folder.glob("*/run.json"))):
        run = json.loads(path.read_text())
        if run["state"] == "died":  # no two alike
            run["cause"], run["last_words"] = (
                "".join(chr(97 + int(d)) for d in str(number)),
                "<&>" * 1000,
            )
            path.write_text(json.dumps(run))
    page = report.page(folder)
    assert len(page.encode()) < 6_000_000 and "1000 runs" in page and page.count("<tr ") == 1000
