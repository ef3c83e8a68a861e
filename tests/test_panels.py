"""The panels: their states answer without widgets, their controls change the answer, errors stay one line, all have a twin."""

import functools
import json
import re
from types import SimpleNamespace

import nbformat
import panel_examples as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tell_boxes import DATA
from test_notebooks import ROOT

from helpers.allocator import panel as allocator
from helpers.allocator import study
from helpers.allocator.replay import replay
from helpers.batch.kernel_process import MARK
from helpers.fits.panel import PANEL as fits_panel
from helpers.fits.panel import Wish
from helpers.fits.sheet import ServerFacts
from helpers.judge import ceilings as layers
from helpers.judge import ttm_limit
from helpers.look.boxes import open_box
from helpers.tell.panels import frame, monitor, questions
from helpers.tell.panels.questions import (
    Reader,
    ReserveQuestion,
    ceilings,
    reader,
)
from helpers.vpoc.free import Free
from helpers.vpoc.panel import PANEL as chunks
from helpers.vpoc.panel import Planner
from helpers.vpoc.planner import ProfileShape

PLANNER = Planner(ProfileShape(2_560_000, 128, 1000), Free(20 << 30, "free on a card", 0, True))
SMALL = {"n_layer": 16, "n_head_kv": 4, "head_dim_k": 128, "n_ctx": 8192, "n_ctx_train": 65536}
WISH = Wish(
    ServerFacts("llama.cpp", {**SMALL, "weights_bytes": 4 << 30, "card_total_bytes": 8 << 30})
)
PANELS = (reader, ceilings, chunks, fits_panel, allocator.PANEL, monitor.PANEL)


@pytest.fixture(autouse=True)
def readable_replay(monkeypatch):
    monkeypatch.setattr(study, "replay", functools.partial(replay, engine="plain"))


def reserve_of(name):
    bundle = open_box(name)
    stack = layers.ceilings(bundle)[0]
    return ReserveQuestion(stack, ttm_limit.room(bundle, stack))


@pytest.fixture(scope="module")
def reserve():
    return reserve_of("strix-halo-1-found")


def opened(panel, state):
    """The panel open, without a front end; its line, its controls by description, and what its answers say."""
    open_one = frame.open_panel(panel.name, lambda one: panel.build(one, state))
    controls = {}
    answers = []
    todo = list(open_one.box.children)
    while todo:
        one = todo.pop(0)
        todo += getattr(one, "children", ())
        if getattr(one, "description", ""):
            controls[one.description] = one
        elif hasattr(one, "value") and one is not open_one.line:
            answers.append(one)
    spans = re.compile("</?span[^>]*>")  # where a line may not be broken

    def says():
        return spans.sub("", " ".join(one.value for one in answers))

    return open_one.line, controls, says


def state_of(name):
    """What a panel of panels.json looks at."""
    made_up = {
        "empty": Reader,
        "message": lambda: Reader(made.MESSAGE),
        "small": lambda: allocator.Bench(made.small_study()),
        "planner": lambda: PLANNER,
        "wish": lambda: WISH,
    }
    return made_up[name]() if name in made_up else reserve_of(name)


TYPED = {"MESSAGE": made.MESSAGE, "DIGITS": "9" * 10_000}
PLAYS = json.loads((DATA / "panels.json").read_text())


@pytest.mark.parametrize("play", PLAYS, ids=[f"{one['panel']}: {one['state']}" for one in PLAYS])
def test_a_panel_answers_its_controls_and_says_in_its_line_what_is_wrong(play):
    panel = next(one for one in PANELS if one.name == play["panel"])
    line, controls, says = opened(panel, state_of(play["state"]))
    for label, value, there, absent in play["steps"]:
        if label and value is None:
            controls[label].click()
        elif label:
            controls[label].value = TYPED.get(value, value)
        said = line.value + says()
        assert [words for words in there if words not in said] == [], (label, value, said)
        assert [words for words in absent if words in said] == [], (label, value)


def test_a_larger_reserve_leaves_a_smaller_limit_and_is_drawn(reserve):
    line, controls, says = opened(ceilings, reserve)
    before = says()
    controls["Reserve, GiB"].value = 32
    assert "A reserve of 32.00 GiB leaves 93.08 GiB" in says() and says() != before
    for layer in ("ttm", "hip_total"):
        planned = [
            ReserveQuestion(reserve.stack, reserve.room, gib).planned() for gib in (4, 8, 32)
        ]
        limits = [stack.row(layer).pending_bytes for stack in planned]
        assert limits == sorted(limits, reverse=True) and len(set(limits)) == 3
    assert "torch total would be 93.08 of 125.08 GiB, now 62.54 GiB" in says()


def test_the_allocator_panel_starts_at_the_failure_and_steps_over_events():
    bench = allocator.Bench(made.small_study())
    assert bench.moment == bench.outcome.first_oom == 5 and "OUT OF MEMORY" in bench.words(5)
    walked = [0]
    at = bench.event_after(0)
    while at != walked[-1]:
        walked.append(at)
        at = bench.event_after(at)
    assert walked == [0, 1, 2, 4, 5]
    assert [bench.event_before(n) for n in (5, 4, 2, 1, 0)] == [4, 2, 1, 0, 0]


@given(
    counts=st.tuples(st.integers(1, 10**9), st.integers(1, 5000), st.integers(1, 5000)),
    free=st.integers(1, 1 << 40),
    gpu=st.booleans(),
)
@settings(max_examples=50)
def test_every_chunk_plan_is_a_sentence(counts, free, gpu):
    planner = PLANNER.resized(*counts, str(free), gpu)
    assert planner.shape.trades == counts[0]
    assert planner.free.bytes == free
    assert planner.says().startswith(("preallocated: ", "Does not fit: "))


def test_memory_that_is_not_changed_stays_as_it_was_measured():
    assert PLANNER.resized(2_560_000, 128, 1000, "20GiB", True).free is PLANNER.free


def test_a_reserve_says_how_much_more_torch_would_get_than_now(reserve):
    at = reserve.choice
    now = reserve.stack.decision.binding_bytes
    more = (at.limit_bytes - now) / (1 << 30)
    assert more > 0 and f"this would be {more:.2f} GiB more." in reserve.says()


def test_trades_that_lie_there_take_nothing_of_what_a_plan_may_take():
    small = PLANNER.resized(2_560_000, 128, 1000, "64MiB", True).says()
    assert "51.20 MiB may be taken" in small


def test_the_segments_of_the_map_have_sizes_and_say_what_keeps_them():
    bench = allocator.Bench(made.small_study())
    view = bench.map(bench.moment)
    assert [row["segment"] >> 20 for row in view.rows] == [2, 30, 30]
    assert [row["kept by"] for row in view.rows] == ["operation 4", "", ""]


def test_on_another_box_the_monitor_is_one_sentence():
    line, controls, says = opened(monitor.PANEL, monitor.Watch(open_box("strix-halo-1-found")))
    assert not controls and "ready" not in line.value
    assert says().count("strix-halo-1-found was recorded and is not this machine") == 1


@pytest.mark.parametrize("typed", ["-5", "1e99", "python", "9" * 10_000])
def test_the_monitor_refuses_what_is_no_process_number_at_its_field(typed):
    line, controls, says = opened(monitor.PANEL, monitor.Watch())
    controls["Process (PID)"].value = typed
    assert "expected a whole number of 0 or more" in line.value + says()
    controls["Process (PID)"].value = ""
    assert "ready" in line.value
    frame.open_panel(monitor.PANEL.name, lambda one: [])  # it ends the sampler


def test_who_leaves_a_field_by_a_press_on_read_looks_at_the_machine_once(monkeypatch):
    looks = []
    now = [0.0]
    gathered = questions.message.gathered
    monkeypatch.setattr(questions, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        questions.message, "gathered", lambda *asked: looks.append(asked) or gathered(*asked)
    )
    _, controls, _ = opened(reader, Reader())
    controls["Box"].value = "cuda-healthy"
    controls["Read"].click()
    assert looks == [("", "cuda-healthy")]
    now[0] = 60.0
    controls["Read"].click()
    assert looks == [("", "cuda-healthy")] * 2


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


def states():
    """Each panel with a state that it can show."""
    several = map(state_of, ("message", "strix-halo-1-found", "planner", "wish", "small"))
    return zip(PANELS, [*several, monitor.Watch()], strict=True)


def marked_old(answers):
    return [one for one in answers if "casebook-old" in one._dom_classes]


def test_an_error_stands_at_its_field_and_the_answers_are_said_to_be_of_another_input():
    """The words stood above all fields, and the figure of the last input below, unmarked. Since 2026-11-28."""
    bench = allocator.Bench(made.small_study())
    open_one = frame.open_panel("errors", lambda one: allocator.build(one, bench))
    children = list(open_one.box.children)
    fields = {one.description: one for one in children if getattr(one, "description", "")}
    below = {name: children[children.index(field) + 1] for name, field in fields.items()}
    before = [answer.value for answer in open_one.answers]
    fields["Settings"].value = "nonsense:1"
    assert "refuses the settings" in below["Settings"].value and not below["Card"].value
    assert frame.OLD in open_one.old.value and "see the field" in open_one.line.value
    assert children.index(open_one.old) < children.index(open_one.answers[0])
    assert [answer.value for answer in open_one.answers] == before
    assert marked_old(open_one.answers) == open_one.answers
    assert fields["Operation"].max == len(made.small_study().trace) - 1
    fields["Operation"].value = 2  # a step through the old run leaves the error where it is
    assert "refuses the settings" in below["Settings"].value and open_one.old.value
    fields["Card"].value = "200MiB"  # the settings are still wrong, and the card is not
    assert "refuses the settings" in below["Settings"].value and not below["Card"].value
    fields["Settings"].value = ""
    assert not below["Settings"].value and not open_one.old.value and "ready" in open_one.line.value
    assert not marked_old(open_one.answers)


def test_sliders_for_context_and_slots_answer_what_fits():
    line, controls, says = opened(fits_panel, WISH)
    assert (
        "The model fits with the " in says() and "tokens asked for; the longest context " in says()
    )
    assert " tokens fit, likely 65,536" in says()
    controls["Context"].value = 65536
    controls["Slots"].value = 4
    assert "role='status'" in line.value and "ready" in line.value
    assert "The model likely fits" in says() and "the 65,536 tokens asked for" in says()


def test_every_control_has_a_label_and_waits_until_it_is_left():
    for panel, state in states():
        line, controls, says = opened(panel, state)
        assert controls and "role='status'" in line.value
        for one in controls.values():
            assert not getattr(one, "continuous_update", False), (panel.name, one.description)
            assert one.tabbable in (None, True), (panel.name, one.description)
    frame.open_panel(monitor.PANEL.name, lambda one: [])  # it ends the sampler


def test_under_a_runner_every_panel_is_its_twin_in_words(capsys):
    for panel, state in states():
        frame.Panel(panel.name, lambda state=state: state, panel.build).show()
        said = capsys.readouterr().out
        assert len(said) > 60 and "widget" not in said.lower(), panel.name
    assert {panel.name for panel in PANELS} == set(made.CELLS)


def test_with_somebody_there_the_panel_stands_beside_its_words(monkeypatch, reserve):
    shown = []
    monkeypatch.setattr(frame, "is_interactive", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw, metadata: shown.append(data))
    ceilings.show(reserve.stack, reserve.room)
    words, view = shown
    assert "A reserve of 8.00 GiB" in words["text/plain"]
    assert words["application/javascript"].startswith(f"{frame.OWN_KEYS};")
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


@pytest.mark.parametrize("name", made.CELLS)
def test_each_panel_stands_in_its_notebook(name):
    notebook, cell = made.CELLS[name]
    book = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4)
    assert [one for one in book.cells if cell in one.source.splitlines()]
