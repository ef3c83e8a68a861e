"""Blocks of memory as data for a figure that answers: they are the blocks of the replay, and nothing in them acts."""

import base64
import json
from dataclasses import replace

import chart_pages
import numpy as np
import pytest
from chart_pages import SMALL
from hypothesis import given
from hypothesis import strategies as st
from page_audit import Audit, check
from tell_boxes import HOSTILE

from helpers.allocator.study import open_study
from helpers.allocator.views import charts, studies
from helpers.ground.contract import as_dict, from_json
from helpers.ground.units import plain
from helpers.tell.chart import CURVES, FIGURE_MIME, STATES, Chart, column, numbers
from helpers.tell.figure_style import PALETTE
from helpers.tell.markdown_html import Prose
from helpers.tell.page_output import page_output
from helpers.tell.page_room import PageRoom
from helpers.tell.resources import template

TRACES = {"growing-loop": "20GiB", "cpu-training-step": "1GiB"}


@pytest.fixture(scope="module", params=TRACES)
def seen(request):
    return studies.view(open_study(request.param, capacity=TRACES[request.param]))


def test_the_blocks_of_a_timeline_add_up_to_what_is_allocated_after_each_operation(seen):
    chart = studies.memory(seen).chart()
    changes = np.zeros(chart.length + 1, np.int64)
    np.add.at(changes, numbers(chart.start), numbers(chart.size))
    np.subtract.at(changes, numbers(chart.until), numbers(chart.size))
    in_use = np.cumsum(changes)[:-1]
    assert in_use.tolist() == seen.outcome.column("allocated").tolist()
    assert chart.note == ""


def test_a_timeline_has_what_is_reserved_from_each_operation_on(seen):
    chart = studies.memory(seen).chart()
    lengths = np.diff([*numbers(chart.reserved_at), chart.length])
    reserved = np.repeat(numbers(chart.reserved), lengths)
    assert reserved.tolist() == seen.outcome.column("reserved").tolist()


def test_the_blocks_of_a_map_lie_side_by_side_and_add_up_to_what_the_words_below_it_say(seen):
    view = studies.segments(seen)
    chart = view.chart()
    sizes = np.array(numbers(chart.size))
    assert (np.cumsum(sizes) - sizes).tolist() == numbers(chart.start)
    assert sizes.sum() == chart.length == sum(row["segment"] for row in view.rows)
    is_stranded = np.array(numbers(chart.state)) == list(STATES).index("stranded")
    assert sizes[is_stranded].sum() == sum(row["stranded"] for row in view.rows)
    assert len(set(numbers(chart.segment))) == len(view.rows)


def test_a_block_in_use_names_the_line_that_allocated_it():
    trace = open_study("growing-loop", capacity="20GiB")
    chart = studies.memory(studies.view(trace)).chart()
    for block in (0, 100, 2000):
        event = numbers(chart.start)[block]
        frames = numbers(chart.stacks[numbers(chart.stack)[block]])
        recorded = trace.trace.frames[int(trace.trace.frame[event])]
        assert tuple(chart.frames[frame] for frame in frames) == recorded


def test_what_finds_no_room_is_the_smallest_and_the_figure_says_so(seen, monkeypatch):
    whole = numbers(studies.memory(seen).chart().size)
    monkeypatch.setattr(charts, "MOST_BLOCKS", 100)
    chart = studies.memory(seen).chart()
    kept = numbers(chart.size)
    assert sorted(kept) == sorted(whole)[-100:]
    assert chart.left_out == len(whole) - 100 and f"the {chart.left_out:,} smallest" in chart.note
    assert chart.left_out_bytes == sum(whole) - sum(kept)


def test_of_very_many_stacks_the_first_are_kept_and_the_figure_says_of_how_many_blocks(monkeypatch):
    seen = studies.view(open_study("growing-loop", capacity="20GiB"))
    monkeypatch.setattr(charts, "MOST_STACKS", 2)
    chart = studies.memory(seen).chart()
    assert len(chart.stacks) == 2 and chart.without_stack == numbers(chart.stack).count(-1) > 0
    assert f"the stacks of {chart.without_stack:,} blocks" in chart.note


@given(st.lists(st.integers(-1, 10**15), max_size=20))
def test_a_column_gives_its_numbers_back(values):
    assert numbers(column(values)) == values


@given(st.text(max_size=12))
def test_a_column_is_numbers_or_refused_in_one_line(text):
    try:
        values = numbers(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert values == [int(word) for word in text.split()]


def test_a_timeline_that_no_page_could_add_up_is_refused():
    data = as_dict(SMALL) | {"kind": "timeline", "until": "1 2", "start": "0 1", "length": 4}
    assert from_json(Chart, data).length == 4
    with pytest.raises(ValueError, match="length"):
        from_json(Chart, data | {"length": 4_000_000_000})
    with pytest.raises(ValueError, match="until"):
        from_json(Chart, data | {"until": "1 5"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "pie"),
        ("size", "10"),
        ("state", "0 9"),
        ("state", "0 -1"),
        ("length", 10**18),
        ("length", -1),
        ("start", f"0 {31 << 20}"),
        ("size", "-1 1"),
        ("stack", "1 -1"),
        ("stacks", ["4"]),
        ("own", ""),
        ("start", "0 <b>"),
        ("reserved", "1"),
        ("acts", "alert(1)"),
    ],
)
def test_a_chart_that_does_not_fit_together_is_refused(field, value):
    assert from_json(Chart, as_dict(SMALL)) == SMALL
    with pytest.raises(ValueError):
        from_json(Chart, {**as_dict(SMALL), field: value})


def test_every_state_and_every_curve_has_a_look_of_its_own():
    looks = [PALETTE[name] for name in (*STATES, *CURVES) if name != "stranded"]
    assert len(set(looks)) == len(looks)


@pytest.fixture(scope="module")
def long_page(tmp_path_factory):
    """The page of a run with a timeline and a map of 10,115 operations."""
    seen = studies.view(open_study("growing-loop", capacity="20GiB"))
    views = (studies.memory(seen), studies.segments(seen))
    return chart_pages.page(tmp_path_factory.mktemp("outputs"), *views)


def test_a_page_of_10_000_operations_is_small_and_keeps_the_rules_of_pages(long_page):
    audit = check(long_page)
    assert len(long_page.encode()) < 2_000_000
    assert [json.loads(data)["kind"] for data in audit.all("figure", "data-chart")] == [
        "timeline",
        "map",
    ]
    phones = audit.all("source", "media")
    assert phones == ["screen and (max-width: 40rem)"] * 2


@pytest.mark.parametrize("name", [HOSTILE, "</figure><script>alert(1)</script>", "\"' onclick=a '"])
def test_names_of_a_trace_are_text_on_a_page_and_in_a_notebook(tmp_path, name):
    hostile = replace(SMALL, title=name, frames=[name, name])
    view = chart_pages.shown(hostile)
    audit = check(chart_pages.page(tmp_path, view))
    (data,) = audit.all("figure", "data-chart")
    assert json.loads(data)["frames"] == [plain(name)] * 2
    in_lab = Audit(view.figure_html())
    assert [tag for tag, _ in in_lab.tags] == ["div", "figure", "picture", "source", "img", "style"]
    assert json.loads(in_lab.all("figure", "data-chart")[0])["title"] == plain(name)


def test_a_page_without_room_keeps_the_picture_and_says_that_the_blocks_are_missing():
    output = chart_pages.output(chart_pages.shown(SMALL))
    shown = page_output(output, None, PageRoom(100_000), Prose())
    assert shown.chart and shown.phone and not shown.note
    fits_the_pictures = len(shown.picture) + len(shown.phone.picture) + 10
    less = page_output(output, None, PageRoom(fits_the_pictures), Prose())
    assert less.picture == shown.picture and not less.chart
    assert "left out to keep the page small" in less.note


def test_a_chart_that_somebody_changed_leaves_the_picture_alone():
    output = chart_pages.output(chart_pages.shown(SMALL))
    output.data[FIGURE_MIME]["chart"]["size"] = "1 <script>"
    shown = page_output(output, None, PageRoom(100_000), Prose())
    assert shown.kind == "picture" and not shown.chart


def test_a_figure_in_a_notebook_has_its_drawing_for_a_phone_and_without_a_chart_no_script(
    monkeypatch,
):
    view = replace(chart_pages.shown(SMALL), chart=None)
    assert "text/html" not in view._repr_mimebundle_()[0]
    monkeypatch.setattr("helpers.tell.shown.is_interactive", lambda: True)
    output = view._repr_mimebundle_()[0]
    narrow = base64.b64encode(output[FIGURE_MIME]["narrow"].encode()).decode()
    (phone,) = Audit(output["text/html"]).all("source", "srcset")
    assert phone == f"data:image/svg+xml;base64,{narrow}"
    assert "<script" not in output["text/html"]


def test_only_where_somebody_sits_at_a_notebook_its_output_has_the_script(monkeypatch):
    view = chart_pages.shown(SMALL)
    assert "text/html" not in view._repr_mimebundle_()[0]
    monkeypatch.setattr("helpers.tell.shown.is_interactive", lambda: True)
    html = view._repr_mimebundle_()[0]["text/html"]
    assert template("figure.js") in html and "data-chart=" in html
