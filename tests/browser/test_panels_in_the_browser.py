"""Each panel in JupyterLab, in a headless Chromium that reaches nothing but this machine: opened, worked by keys, answering.

CASEBOOK_PICTURES=folder keeps a picture of each.
"""

import json
import os
import sys
import time
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import driver
import panel_examples as made

pytestmark = [
    pytest.mark.skipif(not driver.chromium(), reason="no Chromium on this machine"),
    pytest.mark.timeout(180),
]
NAMES = list(made.CELLS)
SLEEPER = (
    "import subprocess\nsleeper = subprocess.Popen(['sleep', '300'])\nprint('pid', sleeper.pid)"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def page(place):
    """The notebook of all panels, open, its first cell run: cell 0 is what goes before, cell n the n-th panel."""
    (place / "books").mkdir()
    cells = [
        made.PRELUDE + SLEEPER,
        *(cell for _, cell in made.CELLS.values()),
        "print(monitor.threading.active_count())",
    ]
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
    )
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
def panel(page, request):
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
        page.picture(
            Path(folder, f"{NAMES[opened[0] - 1].lower().replace(' ', '-')}.png"), opened[0]
        )


def test_a_message_is_pasted_and_its_arithmetic_appears(page, panel):
    cell = panel("Message reader")
    page.type(cell, "Error text", made.MESSAGE)
    page.sees(cell, "capacity 8.00 GiB - free 1.50 GiB")
    page.type(cell, "Box", "no-such-box")
    page.sees(cell, "not done: box 'no-such-box': expected live")
    page.type(cell, "Box", "")
    page.sees(cell, "ready")
    assert "Traceback" not in page.text(cell)


def test_tab_goes_through_a_panels_controls_in_their_order(page, panel):
    cell = panel("Ledger browser")
    page.focus(cell, "Account")
    met = []
    for _ in range(4):
        met.append(
            page.js(
                "const e = document.activeElement.closest('.jupyter-widgets');"
                "return e && e.querySelector('label').textContent"
            )
        )
        page.key("Tab")
    assert met == ["Account", "Kind", "With the word", "Order"]


def test_the_keys_of_a_control_are_its_own(page, panel):
    cell = panel("Ledger browser")
    count = page.js("return document.querySelectorAll('.jp-Notebook .jp-Cell').length")
    page.focus(cell, "Kind")
    page.key("a")
    page.key("ArrowDown")
    assert page.js(
        "return [document.querySelectorAll('.jp-Notebook .jp-Cell').length, document.activeElement.tagName]"
    ) == [count, "SELECT"]


def test_the_ledger_is_filtered_by_the_keyboard(page, panel):
    cell = panel("Ledger browser")
    page.type(cell, "With the word", "xorg")
    page.sees(cell, "the rows shown make 0.65 GiB of 23.96 GiB in use")
    page.type(cell, "With the word", "")
    page.focus(cell, "Account")
    page.key("ArrowDown")
    page.until(
        f"return document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}].querySelectorAll('tbody tr').length === 5"
    )
    page.sees(cell, "driver 0000:01:00.0: the rows shown make 23.96 GiB of 23.96 GiB in use")


def test_the_reserve_moves_by_the_arrow_keys_and_the_drawing_follows(page, panel):
    cell = panel("Ceilings and the reserve")
    before = page.js("return document.querySelector('img[alt^=Ceilings]').src.length")
    page.sees(cell, "A reserve of 8.00 GiB leaves a limit of 117.08 GiB")
    page.focus(cell, "Reserve, GiB")
    for _ in range(3):
        page.key("ArrowRight")
    page.sees(cell, "A reserve of 11.00 GiB leaves a limit of 114.08 GiB")
    assert page.js("return document.querySelector('img[alt^=Ceilings]').src.length") != before


def test_the_allocator_is_stepped_through_and_given_another_card(page, panel):
    cell = panel("Allocator what-if")
    page.sees(cell, "OUT OF MEMORY")
    page.press(cell, "Event before")
    page.sees(cell, "operation 4, the last is 5: alloc 1000 B, ok")
    page.focus(cell, "Operation")
    page.key("ArrowLeft")
    page.sees(cell, "operation 3, the last is 5: free")
    page.type(cell, "Settings", "nonsense:1")
    page.sees(cell, "not done: torch 2.14.1 refuses the settings")
    page.type(cell, "Settings", "")
    page.type(cell, "Card", "200MiB")
    page.sees(cell, "every request is met")


def test_the_planner_answers_for_less_memory(page, panel):
    cell = panel("Chunk planner")
    page.sees(cell, "that is all")
    page.type(cell, "Free memory", "120MiB")
    page.sees(cell, "more would not fit")
    page.type(cell, "Free memory", "lots")
    page.sees(cell, "not done: size 'lots': expected bytes or a number with a unit")


def test_the_fix_table_is_sorted_and_filtered(page, panel):
    cell = panel("Fix table")
    page.sees(cell, "4 of 4 remedies")
    page.focus(cell, "Order")
    page.key("ArrowDown")
    page.key("ArrowDown")
    page.until(
        f"const rows = [...document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}].querySelectorAll('tbody tr')];"
        "return rows.length === 4 && rows[0].textContent.startsWith('Halve the batch')"
    )
    page.type(cell, "With the word", "driver")
    page.sees(cell, "1 of 4 remedies")


def test_a_run_is_chosen_and_told_in_full(page, panel):
    cell = panel("Run browser")
    page.sees(cell, "20260102T030405Z-quick: 1 answered, 1 failed")
    page.focus(cell, "Run")
    page.key("ArrowDown")
    page.sees(cell, "001-stress on made-up: failed, cell 3 raised <ValueError>")


def test_the_monitor_samples_watches_pauses_and_saves(page, panel, place):
    cell = panel("Live monitor")
    page.sees(cell, "host RAM")
    pid = page.text(0).split("pid")[1].split()[0]
    page.type(cell, "Process (PID)", pid)
    page.sees(cell, "the process watched, from outside")
    page.sees(cell, "sleep")
    page.press(cell, "Ask torch")
    page.sees(cell, f"not done: process {pid} was not started under record")
    page.type(cell, "Event", "batch 2 starts")
    page.press(cell, "Mark the event")
    page.sees(cell, "marked: batch 2 starts")
    page.press(cell, "Pause")
    page.sees(cell, "what you see stands still")
    page.press(cell, "Save as evidence")
    page.sees(cell, "saved ")
    saved = driver.ROOT / Path(page.text(cell).split("saved ")[1].split()[0])
    kept = json.loads(saved.read_text())
    saved.unlink()
    assert (
        kept["events"][0]["says"] == "batch 2 starts"
        and kept["samples"][-1]["process"]["name"] == "sleep"
    )


def test_a_cell_run_again_leaves_one_feed_and_a_restart_none(page):
    cell, count = NAMES.index("Live monitor") + 1, len(NAMES) + 1
    page.run_cell(cell)
    page.run_cell(count)
    once = page.text(count)
    page.run_cell(cell)
    page.run_cell(count)
    assert page.text(count) == once
    assert len(samplers()) == 1
    page.lab.restart_kernels()
    end = time.monotonic() + 15
    while samplers():
        assert time.monotonic() < end, "the sampler outlived its kernel"
        time.sleep(0.1)


def samplers():
    """Samplers that descend from this process."""
    import psutil

    return [
        one.pid
        for one in psutil.Process().children(recursive=True)
        if "helpers.tell.panels.sampler" in " ".join(one.cmdline())
    ]


def test_nothing_outside_this_machine_was_asked_for(page):
    outside = {
        url
        for url in page.asked
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:"))
    }
    assert outside == set() and len(page.asked) > 20
