"""The panels: their states answer without widgets, their controls change the answer, errors stay one line, all have a twin."""

import functools
import json
from types import SimpleNamespace

import nbformat
import panel_examples as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tell_boxes import DATA
from test_notebooks import ROOT

from helpers.allocator.replay import replay
from helpers.judge import ceilings as layers
from helpers.judge import ttm_plan
from helpers.load.vpoc.planner import Free, Shape
from helpers.look.boxes import open_box
from helpers.run.kernel import MARK
from helpers.tell import message, ttm
from helpers.tell.panels import allocator, frame, monitor
from helpers.tell.panels.questions import Planner, Reader, Reserve, ceilings, chunks, reader
from helpers.tell.panels.tables import Browser, Runs, Sorter, ledger, remedies, runs
from helpers.tell.shown import size

PLANNER = Planner(Shape(2_560_000, 128, 30_000, 1000), Free(20 << 30, "free on a card", 0, True))
QUICK = "20260102T030405Z-quick"
PANELS = (reader, ledger, ceilings, chunks, allocator.PANEL, remedies, runs, monitor.PANEL)


@pytest.fixture(autouse=True)
def readable_replay(monkeypatch):
    monkeypatch.setattr(allocator, "replay", functools.partial(replay, engine="plain"))


@pytest.fixture(scope="module")
def books():
    return message.gathered("", "cuda-24gb-tuning")[1]


def reserve_of(name):
    bundle = open_box(name)
    stack = layers.ceilings(bundle)[0]
    return Reserve(stack, ttm.what_if(stack, ttm_plan.room(bundle, stack)))


@pytest.fixture(scope="module")
def reserve():
    return reserve_of("strix-halo-1-found")


def opened(panel, state):
    """The panel open, without a front end; its line, its controls by description, and what its answers say."""
    open_one = frame.open_panel(panel.name, lambda one: panel.build(one, state))
    controls, answers, todo = {}, [], list(open_one.box.children)
    while todo:
        one = todo.pop(0)
        todo += getattr(one, "children", ())
        if getattr(one, "description", ""):
            controls[one.description] = one
        elif hasattr(one, "value") and one is not open_one.line:
            answers.append(one)
    return open_one.line, controls, lambda: " ".join(one.value for one in answers)


def state_of(name, tmp_path):
    """What a panel of panels.json looks at."""
    made_up = {
        "empty": Reader,
        "message": lambda: Reader(made.MESSAGE),
        "small": lambda: allocator.Bench(made.small_study()),
        "planner": lambda: PLANNER,
        "fixes": lambda: Sorter(made.fix_study()),
        "batches": lambda: Runs(made.batches(tmp_path), QUICK),
        "nothing": lambda: Runs(tmp_path / "nothing"),
        "cuda-24gb-tuning": lambda: Browser(message.gathered("", "cuda-24gb-tuning")[1]),
    }
    return made_up[name]() if name in made_up else reserve_of(name)


PLAYS = json.loads((DATA / "panels.json").read_text())


@pytest.mark.parametrize("play", PLAYS, ids=[f"{one['panel']}: {one['state']}" for one in PLAYS])
def test_a_panel_answers_its_controls_and_says_in_its_line_what_is_wrong(play, tmp_path):
    panel = next(one for one in PANELS if one.name == play["panel"])
    line, controls, says = opened(panel, state_of(play["state"], tmp_path))
    for label, value, there, absent in play["steps"]:
        if label and value is None:
            controls[label].click()
        elif label:
            controls[label].value = made.MESSAGE if value == "MESSAGE" else value
        said = line.value + says()
        assert [words for words in there if words not in said] == [], (label, value, said)
        assert [words for words in absent if words in said] == [], (label, value)


def test_ledger_rows_are_filtered_and_accounts_are_not_added_up(books):
    every = Browser(books)
    assert len(every.rows()) == sum(len(book.rows) for book in books)
    assert every.says().count("rows shown make") == len(books) == 2
    sizes = [size(row.bytes) for _, row in Browser(books, order="largest first").rows()]
    known = [one for one in sizes if one is not None]
    assert known == sorted(known, reverse=True) and set(sizes[len(known) :]) <= {None}
    names = [row.words for _, row in Browser(books, order="name").rows()]
    assert names == sorted(names, key=str.casefold)
    rest = Browser(books, kind="unattributed").view().rows
    assert {row["kind"] for row in rest} == {"unattributed"}
    only = Browser(books, account=rest[0]["account"]).view().rows
    assert {row["account"] for row in only} == {rest[0]["account"]}


def test_a_larger_reserve_leaves_a_smaller_limit_and_is_drawn(reserve):
    line, controls, says = opened(ceilings, reserve)
    before = says()
    controls["Reserve, GiB"].value = 32
    assert "A reserve of 32.00 GiB leaves a limit of 93.08 GiB" in says() and says() != before
    limits = [
        Reserve(reserve.stack, reserve.what_if, gib).planned().row("ttm").pending_bytes
        for gib in (4, 8, 32)
    ]
    assert limits == sorted(limits, reverse=True) and len(set(limits)) == 3


def test_the_allocator_panel_starts_at_the_failure_and_steps_over_events():
    bench = allocator.Bench(made.small_study())
    assert bench.moment == bench.outcome.first_oom == 5 and "OUT OF MEMORY" in bench.words(5)
    walked, at = [0], bench.event(0, True)
    while at != walked[-1]:
        walked.append(at)
        at = bench.event(at, True)
    assert walked == [0, 1, 2, 4, 5]
    assert [bench.event(n, False) for n in (5, 4, 2, 1, 0)] == [4, 2, 1, 0, 0]


@given(
    counts=st.tuples(st.integers(1, 10**9), st.integers(1, 5000), st.integers(1, 5000)),
    free=st.integers(1, 1 << 40),
    gpu=st.booleans(),
)
@settings(max_examples=50)
def test_every_chunk_plan_is_a_sentence(counts, free, gpu):
    asked = PLANNER.asked(*counts, str(free), gpu)
    assert 1 <= asked.shape.longest <= counts[0] and asked.free.bytes == free
    assert asked.says().startswith(("preallocated: ", "Does not fit: "))


def test_the_longest_session_grows_with_the_mean_one():
    shape = PLANNER.asked(2 * 2_560_000, 128, 1000, "20GiB", True).shape
    assert shape.longest == 2 * PLANNER.shape.longest
    assert PLANNER.asked(2_560_000, 128, 1000, "20GiB", True).free is PLANNER.free


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("memory, best first", ["big-help", "small-help", "argued-one", "harm"]),
        ("time, best first", ["argued-one", "small-help", "big-help", "harm"]),
        ("remedy", ["harm", "small-help", "big-help", "argued-one"]),
        ("verdict", ["small-help", "big-help", "harm", "argued-one"]),
    ],
)
def test_fixes_are_ordered_by_effect_with_the_unmeasured_last(order, first):
    assert [row.remedy for row in Sorter(made.fix_study(), order=order).rows()] == first


def test_opening_a_panel_again_closes_the_one_before():
    ended = []
    first = frame.open_panel(
        "one name",
        lambda one: one.ends.append(lambda: ended.append(1)) or [one.field("Text", "a", "")],
    )
    other = frame.open_panel("another name", lambda made: [])
    second = frame.open_panel("one name", lambda made: [])
    assert first.closed and ended == [1] and not second.closed and not other.closed
    first.close()
    assert ended == [1]


def states(tmp_path):
    """Each panel with a state that it can show."""
    names = (
        "message",
        "cuda-24gb-tuning",
        "strix-halo-1-found",
        "planner",
        "small",
        "fixes",
        "batches",
    )
    several = [state_of(name, tmp_path) for name in names]
    several.append(monitor.Watch(open_box("strix-halo-1-found")))
    return zip(PANELS, several, strict=True)


def test_every_control_has_a_label_and_waits_until_it_is_left(tmp_path):
    for panel, state in states(tmp_path):
        line, controls, says = opened(panel, state)
        assert controls and "role='status'" in line.value
        for one in controls.values():
            assert not getattr(one, "continuous_update", False), (panel.name, one.description)
            assert one.tabbable in (None, True), (panel.name, one.description)
    frame.open_panel(monitor.PANEL.name, lambda one: [])  # it ends the sampler


def test_under_a_runner_every_panel_is_its_twin_in_words(tmp_path, capsys):
    for panel, state in states(tmp_path):
        frame.Panel(panel.name, lambda state=state: state, panel.build).show()
        said = capsys.readouterr().out
        assert len(said) > 60 and "widget" not in said.lower(), panel.name
    assert {panel.name for panel in PANELS} == set(made.CELLS)


def test_with_somebody_there_the_panel_stands_beside_its_words(monkeypatch, reserve):
    shown = []
    monkeypatch.setattr(frame, "is_interactive", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    ceilings.show(reserve.stack, reserve.what_if)
    words, view = shown
    assert "A reserve of 8.00 GiB" in words["text/plain"]
    assert words["application/javascript"] == frame.OWN_KEYS
    assert "application/vnd.jupyter.widget-view+json" in view


@pytest.mark.parametrize(
    ("run", "header", "there"),
    [
        ("", {"content": {"allow_stdin": True}}, True),
        ("", {"content": {"allow_stdin": False}}, False),
        ("", {}, False),
        ("1", {"content": {"allow_stdin": True}}, False),
    ],
)
def test_a_panel_is_live_where_a_cell_may_ask(monkeypatch, run, header, there):
    shell = SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda channel: header))
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setenv(MARK, run)
    assert frame.is_interactive() is there


def test_the_runs_of_a_batch_are_found_by_its_path(tmp_path):
    made.batches(tmp_path)
    state = runs.state(str(tmp_path / QUICK))
    assert (state.folder, state.batch) == (tmp_path, QUICK)
    assert runs.state().folder.name == "outputs" and "no batch" in str(runs.state().parts()[0])


@pytest.mark.parametrize("name", made.CELLS)
def test_each_panel_stands_in_its_notebook(name):
    notebook, cell = made.CELLS[name]
    book = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4)
    assert cell in [one.source for one in book.cells]
