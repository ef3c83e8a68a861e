"""Each panel in JupyterLab, in a headless Chromium that reaches nothing but this machine: opened, worked by keys, answering.

CASEBOOK_PICTURES=folder keeps a picture of each.
"""

import os
import re
import sys
import time
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import driver
import panel_examples as made

pytestmark = [
    pytest.mark.slow,  # `make test-browser` runs it
    pytest.mark.skipif(not driver.chromium(), reason="no Chromium on this machine"),
]
NAMES = list(made.CELLS)
STEPS = Path(__file__).with_name("steps.txt").read_text().split("\n[")[1:]
TABLE = """Shown("Rows", ["name", Column("size", "bytes")], [["kjihgfedcba"[n], (11 - n) << 28] for n in range(11)])"""
TABLE_STEPS = """
rows 11 k2.75 GiB
sort size
rows 11 a256.00 MiB
sort size
rows 11 k2.75 GiB
type search these rows = gib
rows 8 k2.75 GiB
sort name
rows 8 d1.00 GiB
type search these rows =
rows 11 a256.00 MiB
"""
REVIEW = 'from helpers.face import review\nreview.review("panels.ipynb")'
REVIEW_STEPS = """
see 0 ticked
type Search = active_count
see 1 of
press Preview
see Nothing is ticked
type Search =
see 4 of 4
press Tick all of cell 1
see 1 ticked
press Preview
see As others will read it
press Tick all of cell 1
see 0 ticked
"""
THREADS = "import threading\nprint(threading.active_count())"
SLEEPER = (
    "import subprocess\nsleeper = subprocess.Popen(['sleep', '300'])\nprint('pid', sleeper.pid)"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def page(place):
    """The notebook of all panels, open, its first cell run; cell n holds the n-th panel, then come the threads and a table."""
    (place / "books").mkdir()
    panels = [cell for _, cell in made.CELLS.values()]
    sources = [made.PRELUDE + SLEEPER, *panels, THREADS, TABLE, REVIEW]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = list(map(nbformat.v4.new_code_cell, sources))
    book = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(book, place / "books" / "panels.ipynb")
    os.environ["CASEBOOK_TESTS"] = str(Path(__file__).parents[1])
    lab = driver.Lab(place / "books", place)
    try:
        page = driver.Page(place)
        try:
            page.open(lab, "panels.ipynb")
            page.run_cell(0)
            yield page
        finally:
            page.close()
    finally:
        lab.close()


@pytest.fixture
def panel(page):
    """A function that runs the cell of a panel and gives its number; its picture is kept at the end where asked for."""
    opened = []

    def run(name):
        opened.append(NAMES.index(name) + 1)
        page.run_cell(opened[0])
        page.sees(opened[0], "ready")
        return opened[0]

    yield run
    folder = os.environ.get("CASEBOOK_PICTURES")
    if folder and opened:
        time.sleep(1)
        name = NAMES[opened[0] - 1].lower().replace(" ", "-")
        page.picture(Path(folder, f"{name}.png"), opened[0])


def drawn(page, cell):
    return page.js(
        f"[...lab.output({cell}).querySelectorAll('svg, figure img')].map(e => e.outerHTML).join()"
    )


def take(page, cell, step, before):
    """One step of steps.txt; also sort HEADING, and rows COUNT FIRST: so many are seen, the first beginning so."""
    verb, _, rest = step.partition(" ")
    if verb == "type":
        label, _, words = rest.partition(" =")
        page.type(cell, label, made.MESSAGE if words == " $message" else words.strip())
    elif verb == "key":
        name, _, count = rest.partition(" ")
        for _ in range(int(count or 1)):
            page.key(name)
    elif verb == "rows":
        count, _, first = rest.partition(" ")
        while (
            not (rows := page.lab("rows", cell))
            or len(rows) != int(count)
            or not rows[0].startswith(first)
        ):
            time.sleep(0.05)  # until the time limit of the test
    elif verb == "sort":
        page.lab("sort", cell, rest)
    elif verb == "redrawn":
        assert drawn(page, cell) != before
    else:
        {"see": page.sees, "focus": page.focus, "press": page.press}[verb](cell, rest)


@pytest.mark.parametrize("steps", STEPS, ids=lambda steps: steps.split("\n")[0].split("] ")[1])
def test_a_panel_answers_to_what_a_user_does(page, panel, steps):
    head, *lines = steps.strip().split("\n")
    cell = panel(head.split("]")[0])
    before = drawn(page, cell)
    for step in lines:
        take(page, cell, step, before)
    assert "Traceback" not in page.text(cell)


@pytest.mark.parametrize(
    "name", ["Allocator what-if", "Chunk planner", "Message reader", "What fits"]
)
def test_on_a_narrow_screen_no_figure_and_no_line_of_a_panel_is_cut(page, panel, name):
    cell = panel(name)
    narrow = {"width": 640, "height": 1500, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **narrow)
    try:
        time.sleep(1)
        over = (
            f"(() => {{const out = lab.output({cell}), edge = out.getBoundingClientRect().right + 1; return "
            "[...out.querySelectorAll('.widget-html, svg, pre, label, textarea, input, .noUi-base')]"
            ".filter(e => e.getBoundingClientRect().right > edge).length;})()"
        )
        assert page.js(f"lab.output({cell}).offsetWidth") < 400 and page.js(over) == 0
        widths = (
            "[...lab.output({}).querySelectorAll('textarea, .noUi-base')].map(e => e.offsetWidth)"
        )
        assert all(width > 100 for width in page.js(widths.format(cell)))
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")


def test_every_panel_has_steps_but_the_monitor():
    assert {re.match(r"(.*)\]", steps)[1] for steps in STEPS} == set(NAMES) - {"Live monitor"}


def test_a_notebooks_table_is_sorted_by_its_headings_and_searched(page):
    cell = len(NAMES) + 2
    page.run_cell(cell)
    before = page.js("lab.cells().length")
    for step in TABLE_STEPS.strip().split("\n"):
        take(page, cell, step, "")
    assert page.js("lab.cells().length") == before


def test_the_texts_that_a_page_leaves_out_are_searched_ticked_and_previewed(page):
    cell = len(NAMES) + 3
    page.run_cell(cell)
    for step in REVIEW_STEPS.strip().split("\n"):
        take(page, cell, step, "")
    assert "Traceback" not in page.text(cell)


def test_tab_goes_through_a_panels_controls_in_their_order_and_keys_stay_in_one(page, panel):
    cell = panel("Chunk planner")
    page.focus(cell, "Trades")
    met = []
    for _ in range(4):
        met.append(page.lab("label"))
        page.key("Tab")
    assert met[:3] == ["Trades", "Sessions", "Prices a session"]
    count = "[lab.cells().length, document.activeElement.tagName]"
    page.focus(cell, "Way of counting")
    before = page.js(count)
    page.key("a")
    page.key("ArrowDown")
    assert page.js(count) == before and before[1] == "SELECT"


def test_the_monitor_samples_and_watches(page, panel):
    cell = panel("Live monitor")
    page.sees(cell, "host RAM")
    pid = page.text(0).split("pid")[1].split()[0]
    for step in (
        f"type Process (PID) = {pid}",
        "see the process watched, from outside",
        "see sleep",
    ):
        take(page, cell, step, "")


def samplers():
    """Samplers that descend from this process."""
    import psutil

    below = psutil.Process().children(recursive=True)
    return [one.pid for one in below if "helpers.look.sampler" in " ".join(one.cmdline())]


def test_a_cell_run_again_leaves_one_feed_and_a_restart_none(page):
    cell = NAMES.index("Live monitor") + 1
    count = len(NAMES) + 1
    threads = []
    for _ in range(2):
        page.run_cell(cell)
        page.run_cell(count)
        threads.append(page.text(count))
    assert threads[0] == threads[1] and len(samplers()) == 1
    page.server.restart_kernels()
    end = time.monotonic() + 15
    while samplers():
        assert time.monotonic() < end, "the sampler outlived its kernel"
        time.sleep(0.1)


def test_nothing_outside_this_machine_was_asked_for(page):
    here = ("http://127.0.0.1:", "data:", "blob:", "about:")
    assert [url for url in page.asked if not url.startswith(here)] == [] and len(page.asked) > 20
