"""A page printed through a Chromium of this machine: few sheets, no network, nothing left behind; or why there is none."""

import re

import pytest

from helpers.share import page_of, subject_of
from helpers.tell import pdf as pages


@pytest.fixture
def batch_page(example_batch):
    return page_of(subject_of(example_batch))


@pytest.mark.skipif(not pages.browser(), reason="no Chromium here")
def test_a_page_is_printed_on_few_sheets_without_a_network_and_leaves_nothing_behind(
    tmp_path, batch_page
):
    source = tmp_path / "page.html"
    out = tmp_path / "page.pdf"
    outside = "<img src='https://example.org/x.png'></main>"
    source.write_text(batch_page.html.replace("</main>", outside))
    assert pages.write_pdf(source, out) == ""
    told = dict(
        re.findall(rb"/(Creator|Producer|CreationDate|ModDate)\s*\(([^)]*)\)", out.read_bytes())
    )
    assert told and not b"".join(told.values()).strip()
    sheets = re.findall(rb"/Type\s*/Page\b", out.read_bytes())
    assert out.read_bytes().startswith(b"%PDF-") and 1 <= len(sheets) <= 8
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "chromium ended with code 3: no words"),
        ("echo no display >&2; exit 1", "ended with code 1: no display"),
        ("exec sleep 60", "did not end in time"),
        ("kill -9 $$", "was ended by SIGKILL"),
    ],
)
def test_a_browser_that_fails_is_a_reason_and_no_file(tmp_path, monkeypatch, script, says):
    (tmp_path / "chromium").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "chromium").chmod(0o755)
    (tmp_path / "page.pdf").write_text("an older one")
    monkeypatch.setattr(pages, "browser", lambda: str(tmp_path / "chromium"))
    assert says in pages.write_pdf(tmp_path / "page.html", tmp_path / "page.pdf", limit_s=0.5)
    assert not (tmp_path / "page.pdf").exists()


def test_without_a_browser_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    why = pages.write_pdf(tmp_path / "page.html", tmp_path / "page.pdf")
    assert why.startswith("no Chromium here; looked for chromium")
