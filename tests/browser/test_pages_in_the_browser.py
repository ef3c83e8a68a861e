"""Pages in a headless Chromium: they fit any screen, one script works and nothing else may, and axe-core finds nothing serious.

axe-core is the axe.min.js that AXE_CORE names, else the one which the pinned axe-core-python carries.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import driver
import nbformat
from night_runs import night
from tell_boxes import HOSTILE, VERDICT, batch, code, printed

from helpers.batch import report
from helpers.batch.record import read_run
from helpers.share import page_of, read_choices, review_of, subject_of

pytestmark = [
    pytest.mark.skipif(not driver.chromium(), reason="not run because no Chromium is here"),
]
CARRIED = importlib.util.find_spec("axe_core_python")
BESIDE = Path(CARRIED.origin).with_name("axe.min.js") if CARRIED and CARRIED.origin else ""
AXE = Path(os.environ.get("AXE_CORE") or BESIDE)
LONG = HOSTILE + "長い名前" * 40 + "/a/path/without/a/break" * 20 + "\n\x1b[2J"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of a few runs, a night's, and one in which every text is long and hostile."""
    place = tmp_path_factory.mktemp("outputs")
    (place / "empty").mkdir()
    odd = night(place / "odd", 14)
    for path in sorted(odd.glob("*/run.json")):
        run = read_run(path)
        texts = dict.fromkeys(("box", "cause", "last_words", "node"), LONG)
        path.write_text(run.model_copy(update=texts).model_dump_json())
    folders = {"few": batch(place / "few"), "night": night(place / "night", 67), "odd": odd}
    folders["empty"] = place / "empty"
    made = {name: report.write_index(folder) for name, folder in folders.items()}
    made["shared"] = place / "shared.html"
    made["shared"].write_text(page_of(subject_of(folders["few"])).html)
    made["review"] = place / "review.html"
    made["review"].write_text(review_of(subject_of(folders["odd"])).html())
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    page = driver.Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


def opened(browser, path, width=1280, scheme="light"):
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    browser.call("Page.navigate", url=path.as_uri())
    end = time.monotonic() + 30
    while not browser.js("document.readyState === 'complete' && !!document.querySelector('main')"):
        assert time.monotonic() < end, path
        time.sleep(0.05)


@pytest.mark.parametrize(("name", "head"), [("night", "Box"), ("shared", "what was read")])
def test_on_paper_a_table_keeps_its_headings_and_nothing_to_press_is_left(
    browser, pages, name, head
):
    opened(browser, pages[name])
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "[...document.querySelectorAll('%s')].filter(e => e.checkVisibility()).map(e => e.textContent)"
    assert head in browser.js(shown % "thead th")
    # Chromium repeats no heading that holds a box of its own on the next sheet.
    display = "getComputedStyle(document.querySelector('thead th > button')).display"
    assert browser.js(display) == "contents"
    assert browser.js(shown % "main :not(th) > button, input") == []


def unfold(browser):
    browser.js("document.querySelectorAll('details').forEach(e => e.open = true)")


@pytest.mark.parametrize("name", ["few", "night", "odd", "empty", "shared", "review"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(browser, pages, name, width):
    opened(browser, pages[name], width)
    unfold(browser)
    assert browser.js("document.documentElement.scrollWidth") <= width


def test_the_table_of_boxes_fits_the_screen_of_a_laptop_and_breaks_no_name(browser, pages):
    opened(browser, pages["night"], 1280)
    scrolls = "document.querySelector('#notebooks .scroll')"
    assert browser.js(f"{scrolls}.scrollWidth <= {scrolls}.clientWidth")
    wide = "[...document.querySelectorAll('#notebooks th, #notebooks td')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert browser.js(f"{wide}.map(e => e.textContent)") == []


def test_on_a_phone_a_wide_table_becomes_pairs_of_heading_and_value_and_nothing_of_it_is_cut(
    browser, pages
):
    opened(browser, pages["night"], 390)
    cells = "[...document.querySelectorAll('#notebooks tbody tr')].map(e => [...e.cells])"
    label = "getComputedStyle(e, '::before').content.slice(1, -1)"
    assert browser.js(f"{cells}[0].slice(0, 2).map(e => {label})") == [
        "Box",
        "01_\u200bhardware_\u200bprobe",
    ]
    wide = "Math.max(...e.map(one => one.getBoundingClientRect().right))"
    assert browser.js(f"Math.max(...{cells}.map(e => {wide}))") <= 390
    opened(browser, pages["night"])
    assert browser.js("document.querySelector('.stacked')") is None


def test_the_answer_stands_on_the_first_screen_and_a_night_on_five(browser, pages):
    opened(browser, pages["few"])
    assert browser.js("document.querySelector('.next').getBoundingClientRect().bottom") < 900
    opened(browser, pages["night"])
    assert browser.js("document.documentElement.scrollHeight") <= 5000
    assert pages["night"].stat().st_size < 400_000


@pytest.mark.slow
def test_the_page_of_a_box_is_short_as_it_opens_also_on_a_phone(browser, tmp_path):
    words = ["run", "notebooks/plans/quick.yaml", "--box", "strix-halo-3-gttsize"]
    words += ["--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "helpers", *words], cwd=driver.ROOT, check=True)
    (page,) = tmp_path.glob("*/index.html")
    height = "document.documentElement.scrollHeight"
    opened(browser, page, 390)
    assert browser.js(height) <= 3000
    opened(browser, page)
    unfold(browser)
    assert browser.js(height) <= 8000


@pytest.mark.slow
def test_the_page_of_a_night_over_three_boxes_is_short_as_it_opens_also_on_a_phone(
    browser, tmp_path
):
    words = ["run", "notebooks/plans/three-boxes.yaml", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "helpers", *words], cwd=driver.ROOT, check=True)
    (page,) = tmp_path.glob("*/index.html")
    for width in (390, 1280):
        opened(browser, page, width)
        assert browser.js("document.documentElement.scrollHeight") <= 3000


def test_the_tables_of_a_shared_page_are_no_wider_than_the_page_and_its_cover_reads_in_short_lines(
    browser, pages
):
    wide = "e => Math.round(document.querySelector(e).getBoundingClientRect().width)"
    opened(browser, pages["few"])
    page = browser.js(f"({wide})('#runs')")
    opened(browser, pages["shared"])
    assert browser.js(f"({wide})('.facts')") == page
    assert browser.js(f"({wide})('.cover .next')") < page


@pytest.mark.parametrize("name", ["few", "night", "odd", "shared", "review"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.skipif(not AXE.is_file(), reason="not run because axe-core-python is not installed")
def test_axe_finds_nothing_serious(browser, pages, name, scheme):
    opened(browser, pages[name], scheme=scheme)
    unfold(browser)
    browser.js(AXE.read_text() + "; axe.run().then(done => { window.found = done.violations; }); 0")
    end = time.monotonic() + 120
    while browser.js("!window.found"):
        assert time.monotonic() < end
        time.sleep(0.2)
    about = "window.found.map(v => [v.impact, v.id, v.nodes[0].html.slice(0, 200)])"
    assert [row for row in browser.js(about) if row[0] in ("serious", "critical")] == []


def test_the_script_copies_sorts_filters_and_unfolds(browser, pages):
    opened(browser, pages["night"])
    browser.js("document.querySelector('#notebooks th:nth-child(1) button').click()")
    column = (
        "[...document.querySelectorAll('#notebooks tbody tr')].map(e => e.cells[0].textContent)"
    )
    assert browser.js(column) == sorted(browser.js(column))
    head = "document.querySelector('#notebooks th').ariaSort"
    assert browser.js(head) == "ascending"
    browser.js("{const e = document.querySelector('#runs input'); e.value = 'DIED'; e.oninput();}")
    shown = "[...document.querySelectorAll('#runs .run')].filter(e => !e.hidden).map(e => e.textContent)"
    assert browser.js(shown) and all("died" in words for words in browser.js(shown))
    browser.js("document.querySelector('header button').click()")
    assert browser.js("document.querySelectorAll('main details:not([open])').length") == 0
    opened(browser, pages["few"])
    commands = browser.js("[...document.querySelectorAll('.command pre')].map(e => e.textContent)")
    assert commands == VERDICT.next_step.command.splitlines()
    assert browser.js("document.querySelectorAll('.command button').length") == len(commands)


@pytest.mark.parametrize("name", ["odd", "review"])
def test_no_other_script_runs_and_nothing_is_asked_for(browser, pages, name):
    opened(browser, pages[name])
    browser.js(
        "{const e = document.createElement('script'); e.textContent = 'window.acted = 1'; document.body.append(e);}"
    )
    assert not browser.js("window.acted")
    assert [url for url in browser.asked if not url.startswith(("file:", "data:", "about:"))] == []


def pressed(browser, *keys):
    event = "new KeyboardEvent('keydown', {key: %s, bubbles: true, cancelable: true})"
    for key in keys:
        browser.js(f"document.activeElement.dispatchEvent({event % json.dumps(key)})")


def searched(browser, words):
    browser.js(
        f"{{const e = document.querySelector('#search'); e.value = {json.dumps(words)}; "
        "e.dispatchEvent(new Event('input'))}"
    )


def said(browser):
    return browser.js("document.querySelector('#count').textContent")


@pytest.fixture
def reviewed(browser, tmp_path):
    """The review of a notebook of three cells and a token, open; its texts begin as they are called."""
    cells = [code(f"cell_{number}", printed(f"output {number}\n" * 200)) for number in (1, 2)]
    cells.append(code("cell_3", printed("glpat-" + "Zq4x" * 5)))
    path = tmp_path / "own.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    review = review_of(subject_of(path))
    page = tmp_path / "review.html"
    page.write_text(review.html(command="share own.ipynb"))
    folder = str(tmp_path / "saved")
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
    opened(browser, page)
    return review


def test_a_review_is_made_by_keys_alone_and_saved(browser, reviewed, tmp_path):
    pressed(browser, "y", "j", "a", "a", "p")
    assert said(browser) == "6 of 6 texts, 4 ticked"
    preview = browser.js("document.querySelector('dialog').innerText")
    assert "cell_1" in preview
    assert "output 2" in preview
    assert "glpat" not in preview
    pressed(browser, "p", "s")
    end = time.monotonic() + 30
    while not (files := list((tmp_path / "saved").glob("*.choices.json"))):
        assert time.monotonic() < end
        time.sleep(0.05)
    ticked = {row.text.text.split("\n")[0] for row in reviewed.ticked(read_choices(files[0]))}
    assert ticked == {"cell_1", "cell_2", "output 2", "cell_3"}
    command = browser.js("document.querySelector('#command').innerText")
    assert command == f"share own.ipynb --include ~/Downloads/{files[0].name}"


def test_a_key_never_ticks_a_text_that_the_search_hides(browser, reviewed):
    searched(browser, "output 2")
    pressed(browser, "y")
    assert said(browser) == "1 of 1 found, 1 ticked"
    searched(browser, "nothing has this")
    pressed(browser, "y", "a")
    assert said(browser) == "0 found, 1 ticked"
    pressed(browser, "Escape")
    assert browser.js("document.querySelector('[data-place] :checked').value") == next(
        row.digest for row in reviewed.rows if row.text.text.startswith("output 2")
    )


def test_a_long_text_is_read_on_by_the_space_bar(browser, reviewed):
    pressed(browser, "j", " ")
    assert browser.js("document.querySelector('.here pre').scrollTop") > 100
    assert said(browser).startswith("2 of 6")
