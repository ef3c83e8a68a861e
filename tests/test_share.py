"""What leaves the box: one file that reaches nowhere, nothing on it that should have stayed home, and it says what it did."""

import base64
import hashlib
import importlib
import json
import random
import re
import shutil
import string
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from night_runs import night
from page_audit import Audit, check, in_order
from tell_boxes import VERDICT, code, markdown, printed

from helpers import cli
from helpers.batch.shapes import Run
from helpers.commands import share as command
from helpers.ground.shapes import Alternative
from helpers.look.bundle import RECORDED
from helpers.share import page as share
from helpers.share.issue_text import TABLE
from helpers.tell import page as pages
from helpers.tell import redact
from helpers.tell.redact_known import Known

FOLDER = Path(__file__).parent / "notebooks"
NOTEBOOKS = sorted((FOLDER.parents[1] / "notebooks").glob("*.ipynb"))
CSS = (Path(share.__file__).parents[1] / "tell" / "templates" / "casebook.css").read_text()
NO_SCAN = "second scan not run because detect-secrets is not installed"
PLANTED = {
    "host": "quokka-bench-17",
    "user": "ottoline",
    "email": "ottoline@quokkas.example",
    "token": "ghp_" + "a8Kd92hf7sL0" * 3,
    "ip": "10.44.3.19",
    "home": "/home/ottoline/secret-project",
}
WORDS = """\
{user}@{host}:~$ python {home}/train.py
mail {email} from {ip} with GITHUB_TOKEN={token}
peak 61.27 GiB at 0000:c5:00.0
""".format(**PLANTED)


@pytest.fixture(scope="session")
def known():
    """The values of this box, read once; pages add theirs to a copy of it."""
    return share.known_of(share.Subject("", "batch", {}))


@pytest.fixture(scope="session")
def planted(example_batch, tmp_path_factory):
    """A batch on a box with a name, a user and a token, in every place that a page is made from."""
    folder = tmp_path_factory.mktemp("outputs") / f"20261121-{PLANTED['host']}"
    shutil.copytree(example_batch, folder)
    notebook = nbformat.read(folder / "01-probe" / "notebook.ipynb", 4)
    outputs = printed(WORDS), printed(WORDS, "stderr")
    notebook.cells += [code(f"run('{PLANTED['home']}')", *outputs), markdown(WORDS)]
    nbformat.write(notebook, folder / "01-probe" / "notebook.ipynb")
    (folder / "02-stress" / "kernel.stderr").write_text(WORDS)
    path = folder / "02-stress" / "run.json"
    given = {"data": PLANTED["home"] + "/trades.csv"}
    more = {"last_words": WORDS, "cause": WORDS.split("\n")[0], "node": PLANTED["host"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), **more, "parameters": given}))
    return folder


@pytest.fixture(scope="module")
def shared(planted, known):
    return share.page(share.subject(planted), known)


def made(target):
    """A page of something about which no box tells anything."""
    return share.page(share.subject(Path(target)), Known())


def test_nothing_that_was_planted_leaves_and_the_story_still_reads(shared):
    text = check(shared.html).text
    kinds = shared.replaced.kinds()
    lines = shared.lines()
    for value in PLANTED.values():
        assert value not in "\n".join([shared.html, shared.name, *lines])
    assert re.search(r"user-\d+@host-\d+:~\$ python", text) and "61.27 GiB at 0000:c5:00.0" in text
    cover = (
        "Which computer",
        "In the words of",
        "How sure",
        "What is asked of you",
        "Words",
        "Next step",
    )
    marks = ("Evidence", "What was replaced", "Appendix", "What needs a person", "Plan (SHA-256)")
    assert in_order(text, *cover, *marks)
    assert {"host", "user"} <= set(kinds) and f"{kinds['host']} host" in lines[0]
    assert shared.scan in ([], NO_SCAN) and any("second scan" in line for line in lines)


def visible(page):
    """What a person reads before anything is unfolded."""
    html = page.html
    folded = 1
    while folded:  # the innermost first
        html, folded = re.subn("<details(?:(?!<details).)*?</details>", "", html, flags=re.S)
    return Audit(html).text


def test_the_cover_says_to_a_stranger_what_this_is_which_box_why_how_sure_and_what_is_asked(shared):
    cover = visible(shared)
    row = TABLE["causes"]["ttm-gtt-cap"]
    assert row["plain"] in cover and row["ask"] in cover and row["instead"] in cover
    assert "21 November 2026" in cover and "In the words of the field: The kernel's TTM" in cover
    assert "need not install or run anything" in cover and "TTM the part" in cover
    assert "Cells done" not in cover and "What is this box?" not in cover


@pytest.mark.parametrize(
    ("box", "says"),
    [
        (
            "rx7900xt-container",
            "Of this example's 54 readings, 3 were printed by a real machine; the other 51 were",
        ),
        ("", ""),
    ],
)
def test_the_cover_names_how_many_readings_of_a_recorded_box_were_filled_in(tmp_path, box, says):
    cell = code(f'box: str = "{box}"', tags=("parameters",))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "case.ipynb")
    cover = visible(made(tmp_path / "case.ipynb"))
    assert says in cover and "not known yet" in cover
    assert TABLE["causes"]["none"]["ask"] in cover and "card below" not in cover
    assert "<h2>Words</h2>" not in made(tmp_path / "case.ipynb").html
    first = cover.partition("VRAM Casebook looked")[0]
    assert ("This is a recorded example. Nothing is asked of you." in first) is bool(box)
    assert ("Answer whoever sent you" in cover, "owns or uses" in cover) == (not box, not box)
    assert ("no answer is needed" in cover) is not bool(box)


def test_the_cover_sends_nobody_after_what_is_folded_or_a_cause_without_a_name():
    """Who reads it sees the next step, and not what is missing; "a cause outside the list" is a word of the judge."""
    asks = [TABLE["causes"]["cannot-tell"]["ask"], TABLE["sure"]["cannot-tell"]]
    assert all("next step" in words and "missing" not in words for words in asks)
    others = tuple(Alternative(cause=c, confidence="weak") for c in ("other", "user-leak"))
    cover = share._cover(
        share.Subject("n", "notebook", {}), replace(VERDICT, alternatives=others), None
    )
    assert [line.startswith("It may also be this: ") for line in cover["still_open"]] == [True]
    assert "outside the list" not in cover["still_open"][0]


def test_a_host_that_is_called_like_a_word_of_the_verdict_costs_the_cover_and_not_the_page(planted):
    known = Known()
    known.add("host", "ttm-gtt-cap")
    page = share.page(share.subject(planted / "01-probe"), known)
    assert "no run came to an answer" in visible(page) and "run.json: " in page.html


def test_a_print_leaves_the_appendix_out_and_cuts_no_card(shared):
    rules = "".join(re.findall(r"@media print \{(.*?)\n\}", Audit(shared.html).style, re.S))
    assert re.search(r"\.appendix[^{}]*\{ display: none; \}", rules)
    for kept in (".next", ".evidence li", "figure", "table"):
        assert re.search(re.escape(kept) + r"[^{}]*\{ break-inside: avoid; \}", rules), kept


def test_as_it_is_only_where_asked_and_then_it_says_so(planted):
    page = share.page(share.subject(planted), None)
    assert PLANTED["host"] in page.html and share.AS_IS in Audit(page.html).text
    assert page.lines()[0] == share.AS_IS


def test_one_run_has_a_page_of_its_own_and_is_the_same_by_its_notebook(planted):
    run = planted / "01-probe"
    page = made(run)
    text = check(page.html).text
    assert page.name == "01-probe" and "What is this box?" in text
    assert "Which limit binds?" not in text
    assert share.subject(run / "notebook.ipynb") == share.subject(run)


def test_a_night_is_one_file_whose_links_stay_on_it(tmp_path):
    assert "30 runs" in check(made(night(tmp_path / "n", 30)).html).text


def test_a_hostile_notebook_becomes_a_page_that_cannot_act():
    page = made(FOLDER / "shows_hostile_outputs.ipynb")
    audit = check(page.html)
    assert "a cell that stays" in audit.text and "This notebook holds no verdict" in audit.text
    assert not re.search(r"alert\((?:4|5|10|31|32)\)", audit.text)
    assert "tracker.example/s.js" not in page.html
    assert "[application/javascript is not shown here: 8 bytes]" in audit.text
    assert {source[:18] for source in audit.all("img", "src")} == {"data:image/svg+xml"}


@pytest.mark.parametrize(
    ("name", "says", "stays"),
    [
        ("was_written_for_another_kernel", "kernel 'ir' is not installed here; ", "[1] 3"),
        ("has_broken_cells", "cell 1 cannot be read (NotebookValidationError)", "whole"),
    ],
)
def test_what_is_wrong_with_a_notebook_is_named_and_the_rest_is_rendered(name, says, stays):
    page = made(FOLDER / f"{name}.ipynb")
    text = check(page.html).text
    assert says in text and stays in text and any(says in line for line in page.wrong)


def test_a_torn_notebook_of_a_batch_costs_only_itself(example_batch, tmp_path):
    shutil.copytree(example_batch, tmp_path / "night")
    (tmp_path / "night" / "02-stress" / "notebook.ipynb").write_text('{"cells": [')
    text = Audit(made(tmp_path / "night").html).text
    assert "02-stress: notebook.ipynb: no JSON" in text and "What is this box?" in text


def test_a_giant_output_is_cut_before_it_is_read(tmp_path):
    cells = [code("x", printed("line of text\n" * 400_000))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "giant.ipynb")
    page = made(tmp_path / "giant.ipynb")
    assert "of 5200000 bytes are shown" in Audit(page.html).text and len(page.html) < 60_000


@pytest.mark.parametrize("name", ["nothing", "empty", "torn.ipynb"])
def test_what_is_nothing_to_share_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    for file in ("nothing", "torn.ipynb"):
        (tmp_path / file).write_text("no notebook")
    with pytest.raises(share.ShareError, match="expected a") as refused:
        share.subject(tmp_path / name)
    assert "\n" not in str(refused.value) and str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_committed_notebook_has_a_page(path):
    page = made(path)
    assert "broken" not in " ".join(page.wrong)
    check(page.html)


@pytest.mark.parametrize("name", ["", "shows_hostile_outputs", "has_broken_cells"])
def test_pages_are_valid_html(name, shared):
    html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")
    html = made(FOLDER / f"{name}.ipynb").html if name else shared.html
    html5lib.HTMLParser(strict=True).parse(html)


def luminance(color):
    """Relative luminance of WCAG 2.2."""
    color = color if len(color) == 7 else "#" + "".join(2 * one for one in color[1:])
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme):
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.005)
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.S)
    light, other = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", blocks[i])) for i in (0, scheme))
    colors = {**light, **other}
    for ink in ("ink", "soft", "accent", "alarm"):
        for ground in ("paper", "card", "wash", "wash-accent"):
            assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)


# The command


@pytest.fixture
def run(monkeypatch, capsys, known):
    """The command: its exit code, what it printed and what it said on stderr. This box was read before."""
    monkeypatch.setattr(share, "known_of", lambda about: known)
    parser, verbs = cli.parsers("share")

    def call(*words):
        arguments = parser.parse_args(["share", *(str(word) for word in words)])
        return verbs["share"](arguments), *capsys.readouterr()

    return call


def test_the_command_writes_the_page_tells_what_it_replaced_and_never_overwrites(
    planted, tmp_path, run
):
    out = tmp_path / "page.html"
    status, said, told = run(planted / "01-probe", "--out", out)
    assert status == 0 and said == f"Open: {out}\n"
    assert "replaced: " in told and "second scan" in told
    before = out.read_bytes()
    with pytest.raises(ValueError, match="already there; choose another --out or add --force"):
        run(FOLDER / "raises.ipynb", "--out", out)
    assert out.read_bytes() == before
    assert run(FOLDER / "raises.ipynb", "--out", out, "--force")[0] == 0
    assert out.read_bytes() != before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere: no batch, run or notebook; expected"),
        (["X", "--issue", "jira"], "--issue jira: expected one of rocm,"),
        ([FOLDER / "raises.ipynb", "--out", "/nowhere/x.html"], "expected a file that ends in"),
    ],
)
def test_wrong_use_is_one_line(run, words, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        run(*words)


def test_a_find_of_the_second_scan_names_its_cell_and_is_marked_in_a_page_beside(
    tmp_path, run, monkeypatch
):
    pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")
    # The first look misses it, as it may miss what nobody has thought of.
    monkeypatch.setattr("helpers.tell.redact_known.random_in", lambda run: ())
    monkeypatch.setattr("helpers.tell.redact_known.is_unheard", lambda run: False)
    odd = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=40))
    shown = nbformat.v4.new_output("stream", text=f"all well\nof {odd} here\n")
    html = f"<p>{odd[:12]}<b>{odd[12:]}</b></p>"
    broken = nbformat.v4.new_output("display_data", data={"text/html": html})
    cells = [code("print(1)"), code("print(2)", shown, broken)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "case.ipynb")
    words = (tmp_path / "case.ipynb", "--out", tmp_path / "x.html")
    says = r"case\.ipynb cell 1 output 0 line \d+: Base64 High Entropy String; marked in .*x\.unsafe\.html"
    with pytest.raises(ValueError, match=says) as error:
        run(*words)
    assert odd not in str(error.value) and not (tmp_path / "x.html").exists()
    unsafe = (tmp_path / "x.unsafe.html").read_text()
    assert f"<mark>{odd}</mark>" in unsafe and "Not for others" in unsafe
    assert f"<mark>{odd[:12]}</mark><b><mark>{odd[12:]}</mark></b>" in unsafe
    assert "case.ipynb cell 1 output 1 line 1: Base64 High Entropy String" in unsafe
    assert run(*words, "--allow-found")[0] == 0
    assert not (tmp_path / "x.unsafe.html").exists()
    assert "Not looked for: words drawn in pictures" in (tmp_path / "x.html").read_text()


def test_a_notebook_with_the_most_common_leaks_is_shared_without_them(tmp_path, run):
    rng = random.Random(11)
    some = string.ascii_letters + string.digits
    key = "".join(rng.choices("0123456789abcdef", k=40))
    github = f"github_pat_11{''.join(rng.choices(some, k=20))}_{''.join(rng.choices(some, k=59))}"
    says = f'import os\nos.environ["WANDB_API_KEY"] = "{key}"\nos.environ["PGPASSWORD"] = "Tr0ub4dor3x"\n'
    shown = (
        f"with {github}\nSLURM_JOB_USER=jdoe42\nSLURM_JOB_ACCOUNT=proj-darkmatter\n"
        "/scratch/pkowalski/run1/train.py\nzeppelin-gpu03:12345:12399 [0] NCCL INFO Bootstrap\n"
    )
    cell = code(says, nbformat.v4.new_output("stream", text=shown))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "mini.ipynb")
    assert run(tmp_path / "mini.ipynb", "--out", tmp_path / "mini.html")[0] == 0
    page = (tmp_path / "mini.html").read_text()
    secrets = (key, github, "Tr0ub4dor3x", "jdoe42", "darkmatter", "pkowalski", "zeppelin")
    assert not [one for one in secrets if one in page]
    for stays in ("WANDB_API_KEY", "PGPASSWORD", "/run1/train.py", ":12345:12399 [0] NCCL INFO"):
        assert stays in page


def test_of_a_picture_only_what_draws_it_is_shared(tmp_path, run):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        )

    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    png += chunk(b"tEXt", b"Author\0Petra Plantwood") + chunk(b"eXIf", b"MM\0*Petra Plantwood")
    png += chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    jpeg = b"\xff\xd8\xff\xe1\0\x20Exif\0\0Petra Plantwood\xff\xd9"
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><metadata>Petra Plantwood</metadata>'
    svg += (
        "<title>Petra Plantwood</title><!-- Petra Plantwood --><rect width='5' height='5'/></svg>"
    )
    kinds = {"image/png": png, "image/jpeg": jpeg, "image/svg+xml": svg}
    shown = [
        nbformat.v4.new_output(
            "display_data",
            data={kind: one if isinstance(one, str) else base64.b64encode(one).decode()},
        )
        for kind, one in kinds.items()
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=[code("1", *shown)]), tmp_path / "case.ipynb")
    assert run(tmp_path / "case.ipynb", "--out", tmp_path / "x.html")[0] == 0
    page = (tmp_path / "x.html").read_text()
    whole = page + "".join(
        base64.b64decode(one).decode("latin-1")
        for one in re.findall(r"data:image/[^;]*;base64,([\w+/=]*)", page)
    )
    assert "IHDR" in whole and "rect" in whole and "Plantwood" not in whole


def test_an_issue_comes_with_the_redacted_bundle_that_was_scanned_and_whose_digest_it_names(
    tmp_path, monkeypatch, run
):
    cell = code('box: str = "strix-halo-1-found"', tags=("parameters",))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "case.ipynb")
    words = (tmp_path / "case.ipynb", "--out", tmp_path / "x.html", "--issue", "rocm")
    issue = tmp_path / "x.rocm.md"
    bundle = tmp_path / "x.bundle.tar.gz"
    said = run(*words)[1]
    text = issue.read_text()
    assert hashlib.sha256(bundle.read_bytes()).hexdigest() in text
    assert bundle.name in text and f"issue: {issue}" in said
    bundle.unlink()

    def finds(texts):
        return [f"{name} line 1: Secret" for name in texts if name == "raw/proc/meminfo"]

    monkeypatch.setattr(redact, "second_scan", finds)
    assert "the second scan found 1 in it: raw/proc/meminfo line 1" in run(*words, "--force")[1]
    assert not bundle.exists() and "cannot be redacted" in issue.read_text()
    run(*words, "--force", "--allow-found")
    assert bundle.exists()


def test_the_bundle_that_a_batch_captured_is_the_one_it_is_about_and_a_broken_one_is_a_reason(
    example_batch, tmp_path
):
    folder = tmp_path / "night"
    shutil.copytree(example_batch, folder)
    shutil.copytree(RECORDED / "cpu-only", folder / "box")
    assert (
        share.subject(folder).bundle == folder / "box" == share.subject(folder / "01-probe").bundle
    )
    (folder / "box" / "manifest.json").write_text("{")
    about = share.subject(folder)
    assert about.bundle is None and about.no_bundle.startswith("the bundle cannot be read: ")
    assert about.verdict.cause == "ttm-gtt-cap"
    assert about.steps == ("notebooks/01_hardware_probe.ipynb, box='strix-halo'",)


# PDF


@pytest.mark.skipif(not pages.browser(), reason="no Chromium here")
def test_a_page_is_printed_on_few_sheets_without_a_network_and_leaves_nothing_behind(
    tmp_path, shared
):
    source = tmp_path / "page.html"
    out = tmp_path / "page.pdf"
    outside = "<img src='https://example.org/x.png'></main>"
    source.write_text(shared.html.replace("</main>", outside))
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


def test_the_command_is_imported_without_what_it_draws_with():
    before = set(sys.modules)
    importlib.reload(command)
    assert not {"mistune", "nh3", "matplotlib"} & (set(sys.modules) - before)


def test_a_record_that_is_redacted_is_still_a_record(planted, known):
    files, _ = redact.redact_files(share.subject(planted).files, known)
    whole = [raw for name, raw in files.items() if "run.json" in name and "torn" not in name]
    assert len(whole) == 5 and all(map(Run.model_validate_json, whole))
