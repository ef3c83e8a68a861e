"""Figures of memory blocks in a headless Chromium: what a pointer and the keyboard show is what the trace has, at any width, on
paper and without scripts."""

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import chart_pages
import driver
from chart_pages import SMALL
from test_pages_in_the_browser import AXE, opened, unfold

from helpers.allocator.study import open_study
from helpers.allocator.views import studies
from helpers.ground.units import show_bytes
from helpers.tell.chart import STATES, numbers
from helpers.tell.pdf import write_pdf

pytestmark = [
    pytest.mark.skipif(not driver.chromium(), reason="not run because no Chromium is here"),
]
TIMELINE, MAP = range(2)
ROWS = 20
HOSTILE = "<img src=x onerror=window.acted=1>\"'</figure><script>window.acted=2</script>"
CANVAS = "document.querySelectorAll('.stage > canvas')[{}]"
READOUT = "document.querySelectorAll('.readout')[{}].innerText"
SCALE = "document.querySelectorAll('.stage')[{}].querySelectorAll('.keys')[1].lastChild.textContent"


@pytest.fixture(scope="module")
def seen():
    return studies.view(open_study("growing-loop", capacity="20GiB"))


@pytest.fixture(scope="module")
def charts(seen):
    return studies.memory(seen).chart(), studies.segments(seen).chart()


@pytest.fixture(scope="module")
def page(seen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    path = folder / "page.html"
    path.write_text(chart_pages.page(folder, studies.memory(seen), studies.segments(seen)))
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    page = driver.Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


def looked_at(browser, page, width=1280, scheme="light"):
    opened(browser, page, width, scheme)
    unfold(browser)
    painted = "[...document.querySelectorAll('.stage > canvas')].every(e => e.width > 300)"
    end = time.monotonic() + 20
    while not browser.js(painted):
        assert time.monotonic() < end
        time.sleep(0.05)


def pointed(browser, figure, across, down):
    """The readout after the pointer went to a place of a figure, as shares of its width and height."""
    where = "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height];"
    canvas = CANVAS.format(figure)
    script = f"(e => {{ e.scrollIntoView({{block: 'center'}}); {where} }})({canvas})"
    x, y, width, height = browser.js(script)
    about = {"x": x + across * width, "y": y + down * height}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **about)
    return browser.js(READOUT.format(figure)), about


def pressed(browser, figure, *keys):
    browser.js(f"{CANVAS.format(figure)}.focus()")
    event = "new KeyboardEvent('keydown', {key: %s, bubbles: true, cancelable: true})"
    for key in keys:
        browser.js(f"document.activeElement.dispatchEvent({event % json.dumps(key)})")
    return browser.js("document.activeElement.getAttribute('aria-valuetext')")


def line_of(chart, block):
    stack = numbers(chart.stack)[block]
    frames = numbers(chart.stacks[stack])
    return chart.frames[frames[max(numbers(chart.own)[stack], 0)]]


def test_twenty_blocks_of_a_timeline_say_their_size_their_life_and_their_line(
    browser, page, charts, seen
):
    looked_at(browser, page)
    chart = charts[TIMELINE]
    starts = numbers(chart.start)
    blocks = set()
    for number in range(40):
        said, _ = pointed(browser, TIMELINE, (number + 0.5) / 40, 0.99 - 0.01 * number)
        operation = int(re.search(r"Operation ([\d,]+)", said)[1].replace(",", ""))
        in_use = show_bytes(int(seen.outcome.column("allocated")[operation]))
        reserved = show_bytes(int(seen.outcome.column("reserved")[operation]))
        assert f"{in_use} in use, {reserved} reserved" in said
        allocated = re.search(r"allocated at operation ([\d,]+)", said)
        if allocated is None:  # above all blocks
            continue
        block = starts.index(int(allocated[1].replace(",", "")))
        freed = numbers(chart.until)[block]
        assert starts[block] <= operation < freed
        assert said.startswith(show_bytes(numbers(chart.size)[block]))
        assert ("never freed" in said) == (freed == chart.length)
        assert f"by {line_of(chart, block)}" in said
        blocks.add(block)
    assert len(blocks) >= 20


def test_twenty_blocks_of_a_map_say_their_size_their_state_and_their_line(browser, page, charts):
    looked_at(browser, page)
    chart = charts[MAP]
    starts = np.array(numbers(chart.start))
    blocks = set()
    for number in range(40):
        row = number % ROWS
        across = 0.02 + 0.024 * number
        said, _ = pointed(browser, MAP, across, (row + 0.5) / ROWS)
        byte = (row + across) / ROWS * chart.length
        block = int(np.searchsorted(starts, byte, side="right")) - 1
        near = [block - 1, block, block + 1]  # a pixel has more than one small block
        state = numbers(chart.state)
        words = [
            f"{show_bytes(numbers(chart.size)[one])}, {list(STATES.values())[state[one]]}"
            for one in near
            if 0 <= one < len(starts)
        ]
        assert said.startswith(tuple(words)), (said, words)
        place = int(re.search(r"Block ([\d,]+) of", said)[1].replace(",", "")) - 1
        if numbers(chart.stack)[place] >= 0:
            assert f"by {line_of(chart, place)}" in said
        blocks.add(place)
    assert len(blocks) >= 20


@pytest.mark.parametrize("figure", [TIMELINE, MAP])
def test_keys_buttons_and_the_wheel_zoom_and_0_shows_all_again(browser, page, figure):
    looked_at(browser, page)
    scale = lambda: browser.js(SCALE.format(figure))  # noqa: E731

    def changed(before):
        end = time.monotonic() + 10
        while scale() == before:
            assert time.monotonic() < end, before
            time.sleep(0.05)
        return scale()

    whole = scale()
    pressed(browser, figure, "+")
    nearer = changed(whole)
    pressed(browser, figure, "+")
    near = changed(nearer)
    pressed(browser, figure, "0")
    assert changed(near) == whole
    button = (
        f"document.querySelectorAll('.stage')[{figure}].querySelector('[title=\"%s\"]').click()"
    )
    browser.js(button % "Zoom in")
    closer = changed(whole)
    browser.js(button % "Show all")
    assert changed(closer) == whole
    _, place = pointed(browser, figure, 0.5, 0.5)
    wheel = {"type": "mouseWheel", "deltaX": 0, "deltaY": -100, "modifiers": driver.CTRL}
    browser.call("Input.dispatchMouseEvent", **wheel, **place)
    assert changed(whole) != whole


def test_the_keyboard_goes_from_block_to_block_and_says_each(browser, page, charts):
    looked_at(browser, page)
    sizes = numbers(charts[MAP].size)
    said = pressed(browser, MAP, "Home", "ArrowRight", "ArrowRight")
    assert said.startswith(show_bytes(sizes[2])) and "Block 3 of" in said
    assert pressed(browser, MAP, "End").startswith(show_bytes(sizes[-1]))
    first = pressed(browser, TIMELINE, "End")
    assert f"Operation {charts[TIMELINE].length - 1:,}" in first
    assert pressed(browser, TIMELINE, "ArrowDown") != first
    assert f"by {line_of(charts[MAP], len(sizes) - 1)}" in browser.js(READOUT.format(MAP))


def test_a_click_keeps_a_block_until_the_next(browser, page):
    looked_at(browser, page)
    said, place = pointed(browser, MAP, 0.3, 0.5)
    for kind in ("mousePressed", "mouseReleased"):
        click = {"type": kind, "button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", **click, **place)
    assert pointed(browser, MAP, 0.8, 0.1)[0] == said
    pressed(browser, MAP, "Escape")
    assert pointed(browser, MAP, 0.8, 0.1)[0] != said


@pytest.mark.parametrize("width", [1280, 390])
def test_figures_are_as_wide_as_their_column_and_the_page_is_not_wider(browser, page, width):
    looked_at(browser, page, width)
    room = browser.js("document.querySelector('figure').clientWidth")
    assert browser.js(f"{CANVAS.format(0)}.clientWidth") == room > 0.75 * width
    assert browser.js("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 390])
def test_without_scripts_the_picture_for_that_width_is_there(browser, page, width):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened(browser, page, width)
        unfold(browser)
        assert browser.js("document.querySelector('.stage')") is None
        picture = "document.querySelector('figure img')"
        assert browser.js(f"{picture}.checkVisibility()")
        assert (browser.js(f"{picture}.naturalWidth") > 500) == (width == 1280)
        assert browser.js(f"{picture}.clientWidth === {picture}.closest('figure').clientWidth")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_on_paper_the_picture_stands_and_nothing_to_point_at(browser, page, tmp_path):
    looked_at(browser, page)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.js("document.querySelector('figure img').checkVisibility()")
    assert not browser.js("document.querySelector('.stage').checkVisibility()")
    assert write_pdf(page, tmp_path / "page.pdf") == ""


def test_names_of_a_trace_are_text_and_never_act(browser, tmp_path):
    hostile = replace(SMALL, title=HOSTILE, frames=[HOSTILE, HOSTILE])
    path = tmp_path / "page.html"
    path.write_text(chart_pages.page(tmp_path, chart_pages.shown(hostile)))
    looked_at(browser, path)
    said, _ = pointed(browser, 0, 0.1, 0.1)
    assert said.count(HOSTILE) == 3  # the line, and two frames
    assert browser.js("document.querySelectorAll('.stage :is(img, script)').length") == 0
    assert browser.js("window.acted") is None
    assert [url for url in browser.asked if not url.startswith(("file:", "data:", "about:"))] == []


def test_where_blocks_are_left_out_the_sum_is_of_those_drawn_and_the_figure_says_so(
    browser, tmp_path
):
    run = replace(SMALL, kind="timeline", title="Two blocks", length=9, start="0 4", until="9 6")
    run = replace(run, state="0 1", reserved_at="0", reserved=str(40 << 20), left_out=3)
    path = tmp_path / "page.html"
    path.write_text(chart_pages.page(tmp_path, chart_pages.shown(run)))
    looked_at(browser, path)
    assert "30.00 MiB in use in the blocks drawn, 40.00 MiB reserved" in pressed(browser, 0, "+")
    said = browser.js("document.querySelector('figcaption').innerText")
    assert "the 3 smallest blocks" in said


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.skipif(not AXE.is_file(), reason="not run because axe-core-python is not installed")
def test_axe_finds_nothing_on_a_figure(browser, page, scheme):
    looked_at(browser, page, scheme=scheme)
    pressed(browser, TIMELINE, "ArrowRight")
    run = "axe.run('figure').then(done => { window.found = done.violations; }); 0"
    browser.js(f"{AXE.read_text()}; {run}")
    end = time.monotonic() + 120
    while browser.js("!window.found"):
        assert time.monotonic() < end
        time.sleep(0.2)
    about = "window.found.map(v => [v.impact, v.id, v.nodes[0].html.slice(0, 200)])"
    assert browser.js(about) == []


def test_a_map_names_no_block_where_those_that_are_left_out_lie(browser, tmp_path):
    gap = replace(
        SMALL, length=60 << 20, start=f"0 {40 << 20}", left_out=3, left_out_bytes=30 << 20
    )
    path = tmp_path / "page.html"
    path.write_text(chart_pages.page(tmp_path, chart_pages.shown(gap)))
    looked_at(browser, path)
    said, _ = pointed(browser, 0, 0.5, 0.4)
    assert "one of the 3 small blocks that are left out" in said and "train.py" not in said
    said, _ = pointed(browser, 0, 0.5, 0.02)
    assert said.startswith("10.00 MiB")
    assert pressed(browser, 0, "ArrowUp", "ArrowRight").startswith("20.00 MiB")
