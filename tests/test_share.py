"""What leaves the box: one file that reaches nowhere, nothing on it that should have stayed home, and it says what it did."""

import base64
import importlib
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from night_runs import night
from tell_boxes import batch, code, markdown, printed, probe

from helpers.commands import share as command
from helpers.commands.use import WrongUse
from helpers.look.boxes import RECORDED
from helpers.run.shapes import Run
from helpers.tell import pdf, redact, share

FOLDER = Path(__file__).parent / "notebooks"
CSS = (Path(share.__file__).parent / "templates" / "casebook.css").read_text()
PLANTED = {
    "host": "quokka-bench-17",
    "user": "ottoline",
    "email": "ottoline@quokkas.example",
    "token": "ghp_" + "a8Kd92hf7sL0" * 3,
    "ip": "10.44.3.19",
    "home": "/home/ottoline/secret-project",
}
WORDS = (
    f"{PLANTED['user']}@{PLANTED['host']}:~$ python {PLANTED['home']}/train.py\nmail {PLANTED['email']} "
    f"from {PLANTED['ip']} with GITHUB_TOKEN={PLANTED['token']}\npeak 61.27 GiB at 0000:c5:00.0\n"
)


class Page(HTMLParser):
    """Tags with attributes and visible text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.style, self._in = [], "", "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, text):
        if self._in == "style":
            self.style += text
        else:
            self.text += text


def reaches_nowhere(html):
    page = Page(html)
    acting = {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "input",
        "svg",
        "video",
    }
    assert not {tag for tag, _ in page.tags} & acting
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in page.tags:
        assert not {name for name in attrs if name.startswith("on")} | set(attrs) & {
            "style",
            "srcset",
            "background",
            "data",
        }
        assert "http-equiv" not in attrs
        if "href" in attrs:
            assert attrs["href"].startswith("#") and attrs["href"][1:] in ids
        if tag == "img":
            kind, _, content = attrs["src"].partition(";base64,")
            assert (
                kind in ("data:image/png", "data:image/svg+xml")
                and attrs["alt"].strip()
                and int(attrs["width"]) > 0
            )
            drawn = (
                base64.b64decode(content)
                .decode("latin-1")
                .replace("http://www.w3.org/2000/svg", "")
            )
            assert kind == "data:image/png" or not re.search(
                r"https?:|//|script|\son\w+=|url\((?!#)", drawn
            )
    assert not re.search(r"@import|url\(|https?:|//[a-z]", page.style)
    assert len(html.encode()) < 3_000_000
    return page


def planted(folder):
    """A batch on a box with a name, a user and a token, in every place that a page is made from."""
    folder = batch(folder)
    notebook = probe()
    notebook.cells += [
        code(f"run('{PLANTED['home']}')", printed(WORDS), printed(WORDS, "stderr")),
        markdown(WORDS),
    ]
    nbformat.write(notebook, folder / "01-probe" / "notebook.ipynb")
    (folder / "02-stress" / "kernel.stderr").write_text(WORDS)
    path = folder / "02-stress" / "run.json"
    path.write_text(
        json.dumps(
            {
                **json.loads(path.read_text()),
                "last_words": WORDS,
                "cause": WORDS.split("\n")[0],
                "node": PLANTED["host"],
                "parameters": {"data": PLANTED["home"] + "/trades.csv"},
            }
        )
    )
    return folder


def made(target, **changes):
    about = share.subject(Path(target))
    return share.page(about, share.known_of(about), **changes)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return made(planted(tmp_path_factory.mktemp("outputs") / f"20261121-{PLANTED['host']}"))


def test_nothing_that_was_planted_leaves_and_the_story_still_reads(shared):
    for value in PLANTED.values():
        assert value not in shared.html and value not in shared.name
    text = reaches_nowhere(shared.html).text
    assert re.search(r"user-\d@host-\d:~\$ python", text)
    assert "peak 61.27 GiB at 0000:c5:00.0" in text and "TTM or GTT limit is below" in text


def test_the_verdict_stands_first_and_what_was_replaced_last(shared):
    text = Page(shared.html).text
    marks = (
        "TTM or GTT limit is below",
        "Evidence",
        "Cells done",
        "Plan (SHA-256)",
        "What was replaced",
    )
    places = [text.index(words) for words in marks]
    assert places == sorted(places)
    kinds = shared.replaced.kinds()
    assert {"host", "user"} <= set(kinds) and all(
        value not in "\n".join(shared.lines()) for value in PLANTED.values()
    )
    assert f"{kinds['host']} host" in shared.lines()[0]


def test_the_second_scan_finds_nothing_or_says_why_it_was_not_run(shared):
    assert shared.scan in ([], "second scan not run because detect-secrets is not installed")


def test_as_it_is_only_where_asked_and_then_it_says_so(tmp_path):
    about = share.subject(planted(tmp_path / "night"))
    page = share.page(about, None)
    assert (
        PLANTED["host"] in page.html
        and share.AS_IS in Page(page.html).text
        and page.lines()[0] == share.AS_IS
    )


def test_one_run_has_a_page_of_its_own(tmp_path):
    page = made(planted(tmp_path / "night") / "01-probe")
    text = reaches_nowhere(page.html).text
    assert (
        page.name == "01-probe" and "What is this box?" in text and "Which limit binds?" not in text
    )


def test_a_night_is_one_file_whose_links_stay_on_it(tmp_path):
    page = made(night(tmp_path / "n", 30))
    assert "30 runs" in reaches_nowhere(page.html).text


def test_a_hostile_notebook_becomes_a_page_that_cannot_act(tmp_path):
    page = made(FOLDER / "shows_hostile_outputs.ipynb")
    audit = reaches_nowhere(page.html)
    assert "a cell that stays" in audit.text and "This notebook holds no verdict" in audit.text
    assert (
        not re.search(r"alert\((?:4|5|10|31|32)\)", audit.text)
        and "tracker.example/s.js" not in page.html
    )
    assert "[application/javascript is not shown here: 8 bytes]" in audit.text
    assert [attrs["src"][:18] for tag, attrs in audit.tags if tag == "img"] == [
        "data:image/svg+xml"
    ]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "was_written_for_another_kernel.ipynb",
            "kernel 'ir' is not installed here; shown is what was saved",
        ),
        ("has_broken_cells.ipynb", "cell 1 cannot be read (NotebookValidationError)"),
    ],
)
def test_what_is_wrong_with_a_notebook_is_named_and_the_rest_is_rendered(name, says):
    page = made(FOLDER / name)
    text = reaches_nowhere(page.html).text
    assert says in text and says in page.wrong and ("[1] 3" in text or "whole" in text)


def test_a_torn_notebook_of_a_batch_costs_only_itself(tmp_path):
    folder = batch(tmp_path / "night")
    (folder / "02-stress" / "notebook.ipynb").write_text('{"cells": [')
    page = made(folder)
    assert (
        "02-stress: notebook.ipynb: no JSON" in Page(page.html).text
        and "What is this box?" in page.html
    )


def test_a_giant_output_is_cut_before_it_is_read(tmp_path):
    nbformat.write(
        nbformat.v4.new_notebook(cells=[code("x", printed("line of text\n" * 1_600_000))]),
        tmp_path / "giant.ipynb",
    )
    page = made(tmp_path / "giant.ipynb")
    assert "of 20800000 bytes are shown" in Page(page.html).text and len(page.html) < 60_000


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_nothing_to_share_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing").write_text("no notebook")
    with pytest.raises(share.ShareError, match="expected a"):
        share.subject(tmp_path / name)


def test_every_committed_notebook_has_a_page():
    for path in sorted((FOLDER.parents[1] / "notebooks").glob("*.ipynb")):
        page = share.page(share.subject(path), redact.Known())
        assert "broken" not in " ".join(page.wrong)
        reaches_nowhere(page.html)


@pytest.mark.parametrize("source", ["shared", "hostile", "broken"])
def test_pages_are_valid_html(source, shared):
    html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")
    name = {"hostile": "shows_hostile_outputs.ipynb", "broken": "has_broken_cells.ipynb"}.get(
        source
    )
    html5lib.HTMLParser(strict=True).parse(made(FOLDER / name).html if name else shared.html)


def luminance(color):
    """Relative luminance of WCAG 2.2."""
    color = color if len(color) == 7 else "#" + "".join(2 * one for one in color[1:])
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def schemes():
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.S)
    light, dark, printed_ = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", block)) for block in blocks
    )
    return {"light": light, "dark": {**light, **dark}, "print": {**light, **printed_}}


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize("ink", ["ink", "soft", "accent", "alarm"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme, ink):
    colors = schemes()[scheme]
    for ground in ("paper", "card", "wash", "wash-accent"):
        assert contrast(colors[ink], colors[ground]) >= 4.5, (scheme, ink, ground)


def test_the_contrast_formula_agrees_with_wcags_own_extremes():
    assert contrast("#000", "#ffffff") == pytest.approx(21) and contrast(
        "#777777", "#fff"
    ) == pytest.approx(4.48, abs=0.005)


# The command


def run(monkeypatch, capsys, *words):
    """The command's exit code, what it printed and what it said on stderr."""
    import argparse

    parser = argparse.ArgumentParser()

    def verb(name, runs, says):
        parser.set_defaults(runs=runs, json=False)
        return parser

    command.register(verb)
    arguments = parser.parse_args(words)
    code_ = arguments.runs(arguments)
    out, err = capsys.readouterr()
    return code_, out, err


def test_the_command_writes_the_page_tells_what_it_replaced_and_never_overwrites(
    tmp_path, monkeypatch, capsys
):
    folder, out = planted(tmp_path / "night"), tmp_path / "page.html"
    code_, said, told = run(monkeypatch, capsys, str(folder), "--out", str(out))
    assert (
        code_ == 0 and said == f"Open: {out}\n" and "replaced: " in told and "second scan" in told
    )
    before = out.read_bytes()
    with pytest.raises(WrongUse, match="already there; choose another --out or add --force"):
        run(monkeypatch, capsys, str(folder), "--out", str(out))
    assert out.read_bytes() == before
    assert run(monkeypatch, capsys, str(folder), "--out", str(out), "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere: not there; expected a batch"),
        (["X", "--issue", "jira"], "--issue jira: expected one of rocm,"),
        (
            [str(FOLDER / "raises.ipynb"), "--out", "/nowhere/x.html"],
            "expected a file that ends in .html, in a folder",
        ),
    ],
)
def test_wrong_use_is_one_line(monkeypatch, capsys, words, says):
    with pytest.raises(WrongUse, match=re.escape(says)):
        run(monkeypatch, capsys, *words)


def test_a_find_of_the_second_scan_keeps_the_page_from_being_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(share, "second_scan", lambda texts: ["page line 3: Secret Keyword"])
    words = (str(FOLDER / "raises.ipynb"), "--out", str(tmp_path / "x.html"))
    with pytest.raises(
        WrongUse, match="the second scan found 1: page line 3: Secret Keyword; nothing was written"
    ):
        run(monkeypatch, capsys, *words)
    assert not list(tmp_path.iterdir())
    assert run(monkeypatch, capsys, *words, "--allow-found")[0] == 0


def test_an_issue_comes_with_the_redacted_bundle_whose_digest_it_names(
    tmp_path, monkeypatch, capsys
):
    import hashlib

    nb = nbformat.v4.new_notebook(
        cells=[code('box: str = "strix-halo-1-found"', tags=("parameters",))]
    )
    nbformat.write(nb, tmp_path / "case.ipynb")
    _, said, _ = run(
        monkeypatch,
        capsys,
        str(tmp_path / "case.ipynb"),
        "--out",
        str(tmp_path / "x.html"),
        "--issue",
        "rocm",
    )
    text = (tmp_path / "x.rocm.md").read_text()
    digest = hashlib.sha256((tmp_path / "x.bundle.tar.gz").read_bytes()).hexdigest()
    assert digest in text and "x.bundle.tar.gz" in text and f"issue: {tmp_path}/x.rocm.md" in said


def test_the_bundle_that_a_batch_captured_is_the_one_it_is_about(tmp_path):
    folder = batch(tmp_path / "night")
    shutil.copytree(RECORDED / "cpu-only", folder / "box")
    assert share.subject(folder).bundle == folder / "box"
    assert share.subject(folder / "01-probe").bundle == folder / "box"
    assert share.subject(folder / "01-probe" / "notebook.ipynb").name == "01-probe"


def test_a_bundle_that_is_broken_is_a_reason_and_the_page_is_made(tmp_path):
    folder = batch(tmp_path / "night")
    shutil.copytree(RECORDED / "cpu-only", folder / "box")
    (folder / "box" / "manifest.json").write_text("{")
    about = share.subject(folder)
    assert about.bundle is None and about.no_bundle.startswith("the bundle cannot be read: ")
    assert "TTM or GTT limit" in share.page(about, share.known_of(about)).html


# PDF


@pytest.mark.skipif(not pdf.browser(), reason="no Chromium here")
def test_a_page_is_printed_to_pdf_without_a_network_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "page.html").write_text(
        "<!DOCTYPE html><title>t</title><p>words<img src='https://example.org/x.png'>"
    )
    assert pdf.write_pdf(tmp_path / "page.html", tmp_path / "page.pdf") == ""
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF-")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "ended with exit code 3: no words"),
        ("echo no display >&2; exit 1", "exit code 1: no display"),
        ("sleep 60", "took longer than 0.5 s"),
    ],
)
def test_a_browser_that_fails_is_a_reason_and_no_file(tmp_path, monkeypatch, script, says):
    (tmp_path / "chromium").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "chromium").chmod(0o755)
    monkeypatch.setattr(pdf, "browser", lambda: str(tmp_path / "chromium"))
    assert says in pdf.write_pdf(tmp_path / "page.html", tmp_path / "page.pdf", limit_s=0.5)
    assert not (tmp_path / "page.pdf").exists()


def test_without_a_browser_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pdf.write_pdf(tmp_path / "page.html", tmp_path / "page.pdf").startswith(
        "no Chromium here; looked for chromium"
    )


def test_the_command_is_imported_without_what_it_draws_with():
    before = set(sys.modules)
    importlib.reload(command)
    assert not {"nbconvert", "bleach", "matplotlib"} & (set(sys.modules) - before)


def test_a_record_that_is_redacted_is_still_a_record(tmp_path):
    about = share.subject(planted(tmp_path / "night"))
    files, _ = redact.redact_files(about.files, share.known_of(about))
    assert all(
        Run.model_validate_json(raw)
        for name, raw in files.items()
        if name.endswith("run.json") and "torn" not in name
    )
