"""The panels: their states answer without widgets, their controls change the answer, errors stay one line, all have a twin."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import panel_examples as made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.allocator.replay import replay
from helpers.judge import ceilings as layers
from helpers.judge import ttm_plan
from helpers.load.vpoc.memory import Shape
from helpers.load.vpoc.planner import Free
from helpers.look.boxes import open_box
from helpers.tell import message, ttm
from helpers.tell.panels import allocator, ceilings, chunks, frame, ledger, reader, remedies, runs

ROOT = Path(__file__).resolve().parents[1]
PLANNER = chunks.Planner(
    Shape(2_560_000, 128, 30_000, 1000), Free(20 << 30, "free on a card", 0, True)
)


@pytest.fixture(autouse=True)
def readable_replay(monkeypatch):
    monkeypatch.setattr(allocator, "replay", functools.partial(replay, engine="plain"))


@pytest.fixture(scope="module")
def books():
    return message.gathered("", "cuda-24gb-tuning")[1]


@pytest.fixture(scope="module")
def reserve():
    bundle = open_box("strix-halo-1-found")
    stack = layers.ceilings(bundle)[0]
    return ceilings.Reserve(stack, ttm.what_if(stack, ttm_plan.room(bundle, stack)))


def opened(module, *state):
    """The panel open, without a front end; its controls and answers by description, and what it says."""
    panel = frame.open_panel(module.NAME, lambda one: module.build(one, *state))
    controls, answers, todo = {}, [], list(panel.box.children)
    while todo:
        one = todo.pop(0)
        todo += getattr(one, "children", ())
        if getattr(one, "description", ""):
            controls[one.description] = one
        elif hasattr(one, "value") and one is not panel.line:
            answers.append(one)
    return panel, controls, lambda: " ".join(one.value for one in answers)


def test_a_pasted_message_is_read_and_another_replaces_it():
    panel, controls, says = opened(reader, reader.Reader())
    assert reader.EMPTY in says()
    controls["Error text"].value = made.MESSAGE
    assert "capacity 8.00 GiB - free 1.50 GiB" in says() and "img alt=" in says()
    controls["Error text"].value = "Segmentation fault"
    assert "No out-of-memory message" in says() and "8.00 GiB" not in says()


def test_an_unknown_box_is_one_line_in_the_panel_and_the_last_answer_stays():
    panel, controls, says = opened(reader, reader.Reader(made.MESSAGE))
    controls["Box"].value = "no-such-box"
    assert "not done: box &#x27;no-such-box&#x27;: expected live" in panel.line.value
    assert "Traceback" not in panel.line.value and "capacity 8.00 GiB" in says()
    controls["Box"].value = ""
    assert "ready" in panel.line.value


def test_text_from_outside_is_never_markup():
    panel, controls, says = opened(reader, reader.Reader())
    controls["Box"].value = "<img src=x onerror=alert(1)>"
    assert "<img" not in panel.line.value
    evil = frame.table_html([["<script>alert(1)</script>"]], ["<b>"], "<i>'")
    assert "<script" not in evil and "<b>" not in evil and "<i>" not in evil
    assert "<script" not in frame.text_html("<script>")


def test_ledger_rows_are_filtered_and_accounts_are_not_added_up(books):
    every = ledger.Browser(books)
    assert len(every.rows()) == sum(len(book.rows) for book in books)
    assert every.says().count("rows shown make") == len(books) == 2
    sizes = [
        ledger.size(row.bytes) for _, row in ledger.Browser(books, order="largest first").rows()
    ]
    known = [one for one in sizes if one is not None]
    assert known == sorted(known, reverse=True) and sizes[len(known) :] == [None] * (
        len(sizes) - len(known)
    )
    assert {row.kind for _, row in ledger.Browser(books, kind="unattributed").rows()} == {
        "unattributed"
    }


def test_the_ledger_panel_follows_its_controls(books):
    panel, controls, says = opened(ledger, ledger.Browser(books))
    controls["With the word"].value = "xorg"
    assert "Xorg (1900)" in says() and "kept by the driver" not in says().split("<img")[0]
    controls["With the word"].value = "nobody has this name"
    assert "nothing to show" in says()


def test_a_larger_reserve_leaves_a_smaller_limit_and_is_drawn(reserve):
    panel, controls, says = opened(ceilings, reserve)
    before = says()
    controls["Reserve, GiB"].value = 32
    assert "A reserve of 32.00 GiB leaves a limit of 93.08 GiB" in says() and says() != before
    limits = [
        ceilings.Reserve(reserve.stack, reserve.what_if, gib).planned().row("ttm").pending_bytes
        for gib in (4, 8, 32)
    ]
    assert limits == sorted(limits, reverse=True) and len(set(limits)) == 3


def test_a_card_that_ttm_does_not_limit_has_no_slider_and_says_why():
    bundle = open_box("cuda-healthy")
    stack = layers.ceilings(bundle)[0]
    state = ceilings.Reserve(stack, ttm.what_if(stack, ttm_plan.room(bundle, stack)))
    panel, controls, says = opened(ceilings, state)
    assert "Reserve, GiB" not in controls and "No reserve" in says() and len(state.says()) > 40


def test_the_allocator_panel_starts_at_the_failure_and_steps_over_events():
    bench = allocator.Bench(made.small_study())
    assert bench.moment == bench.outcome.first_oom == 5 and "OUT OF MEMORY" in bench.words(5)
    walked, at = [0], bench.event(0, True)
    while at != walked[-1]:
        walked.append(at)
        at = bench.event(at, True)
    assert walked == [0, 1, 2, 4, 5] and [bench.event(n, False) for n in (5, 4, 2, 1)] == [
        4,
        2,
        1,
        0,
    ]
    assert bench.event(0, False) == 0


def test_another_card_or_setting_is_replayed_and_a_wrong_one_is_said():
    panel, controls, says = opened(allocator, allocator.Bench(made.small_study()))
    assert "requests that fail: 1" in says() and controls["Operation"].value == 5
    controls["Event before"].click()
    assert (
        controls["Operation"].value == 4
        and "operation 4" in says()
        and "img alt=&#x27;" not in says()
    )
    controls["Settings"].value = "nonsense:1"
    assert "not done: " in panel.line.value and "nonsense" in panel.line.value
    controls["Settings"].value = ""
    controls["Card"].value = "200 MiB"
    assert "every request is met" in says()
    controls["Card"].value = "much"
    assert "expected bytes or a number with a unit" in panel.line.value


@given(
    st.integers(1, 10**9),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 1 << 40),
    st.booleans(),
)
def test_every_chunk_plan_is_a_sentence(trades, sessions, bins, free, gpu):
    asked = PLANNER.asked(trades, sessions, bins, str(free), gpu)
    assert 1 <= asked.shape.longest <= trades and asked.free.bytes == free
    assert asked.says().startswith(("preallocated: ", "Does not fit: "))


def test_the_planner_names_what_it_cannot_use():
    panel, controls, says = opened(chunks, PLANNER)
    assert "that is all" in says()
    controls["Free memory"].value = "120MiB"
    assert "more would not fit" in says()
    controls["Free memory"].value = "85MiB"
    assert "Does not fit: preallocated with one trade at a time" in says()
    controls["Sessions"].value = 0
    assert "expected each above 0" in panel.line.value


def test_fixes_are_ordered_by_effect_with_the_unmeasured_last_and_found_by_a_word():
    sorter = remedies.Sorter(made.fix_study(), order="memory, best first")
    assert [row.remedy for row in sorter.rows()][:2] == ["big-help", "small-help"]
    panel, controls, says = opened(remedies, sorter)
    controls["With the word"].value = "EXPANDABLE"
    assert (
        "1 of 4 remedies" in says()
        and "harmful: it fails there" in says()
        and controls["In full"].value == "harm"
    )
    controls["Verdict"].value = "helps"
    assert "0 of 4 remedies" in says() and "No remedy is shown" in says()


def test_the_run_browser_names_what_it_could_not_read(tmp_path):
    state = runs.Runs(made.batches(tmp_path))
    assert state.batches() == ["20260103T030405Z-night", "20260102T030405Z-quick"]
    panel, controls, says = opened(runs, state, "20260102T030405Z-quick")
    assert "1 answered" in says() and "cell 3 raised &lt;ValueError&gt;" in says()
    controls["Run"].value = "001-stress"
    assert "No verdict" in says() and "001-stress/notebook.ipynb" in says()
    controls["Batch"].value = "20260103T030405Z-night"
    assert "not readable" in says() and "true-capacity (likely)" in says()
    controls["State"].value = "failed"
    assert "nothing to show" in says()


def test_an_empty_folder_of_runs_says_how_one_is_made(tmp_path):
    panel, controls, says = opened(runs, runs.Runs(tmp_path / "nothing"), "")
    assert "make diagnose writes one" in says()


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


def test_every_control_has_a_label_and_waits_until_it_is_left(books, reserve, tmp_path):
    states = {
        reader: (reader.Reader(),),
        ledger: (ledger.Browser(books),),
        ceilings: (reserve,),
        chunks: (PLANNER,),
        allocator: (allocator.Bench(made.small_study()),),
        remedies: (remedies.Sorter(made.fix_study()),),
        runs: (runs.Runs(made.batches(tmp_path)), ""),
    }
    for module, state in states.items():
        panel, controls, says = opened(module, *state)
        assert controls and "role='status'" in panel.line.value
        for one in controls.values():
            assert not getattr(one, "continuous_update", False) and one.tabbable in (None, True), (
                module,
                one.description,
            )


def test_under_a_runner_every_panel_is_its_twin_in_words(tmp_path):
    cells = [made.PRELUDE, *(cell for _, cell in made.CELLS.values())]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, tmp_path / "panels.ipynb")
    code = (
        "import sys, nbformat; from nbclient import NotebookClient; path = sys.argv[1]; book = nbformat.read(path, 4); "
        "NotebookClient(book, timeout=100, resources={'metadata': {'path': sys.argv[2]}}).execute(); "
        "nbformat.write(book, path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "panels.ipynb"), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CASEBOOK_TESTS": str(ROOT / "tests")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name, cell in zip(
        made.CELLS, nbformat.read(tmp_path / "panels.ipynb", 4).cells[1:], strict=True
    ):
        text = "".join(out.get("text", "") for out in cell.outputs)
        assert text.strip() and "widget" not in json.dumps(cell.outputs), name


@pytest.mark.parametrize("name", made.CELLS)
def test_each_panel_stands_in_its_notebook(name):
    notebook, cell = made.CELLS[name]
    book = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4)
    assert cell in [one.source for one in book.cells]
