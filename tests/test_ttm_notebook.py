"""What ``ttm`` shows: its text, its tables, its figures with their words, the slider and its static twin."""

import nbformat
import pytest
from test_figures import bars, laid_out, words
from test_notebooks import ROOT, cells, text_of
from ttm_boxes import GIB, apu

from helpers.judge.ceilings import ceilings
from helpers.judge.ttm_limit import room
from helpers.judge.ttm_plan import ttm_answer
from helpers.judge.ttm_verify import verify
from helpers.look.boxes import open_box, recorded_names
from helpers.tell import sheet
from helpers.tell import ttm as tell
from helpers.tell.panels.questions import ReserveQuestion

NOTEBOOK = ROOT / "notebooks" / "03_ttm_gtt_analysis.ipynb"
STATES = [name for name in recorded_names() if name.startswith("strix")]


def stack_of(name):
    return ceilings(open_box(name))[0]


def room_of(name):
    return room(open_box(name), stack_of(name))


@pytest.mark.parametrize("name", recorded_names())
def test_every_recorded_box_has_its_text_table_and_figure(name):
    text = tell.as_text(ttm_answer(open_box(name)))
    view = tell.ceilings_bars(stack_of(name))
    for said in ("plan: ", "The limit that decides:", "pages_limit alone is enough"):
        assert said in text
    listed = str(tell.ceilings_table(stack_of(name)).without("source"))
    assert max(map(len, listed.splitlines())) <= 120 and view.alt.startswith(view.title)
    laid_out(view.draw())


def test_the_text_marks_the_layer_that_binds_and_holds_run_undo_and_verify():
    text = tell.as_text(ttm_answer(open_box("strix-halo-3-gttsize"), target_bytes=120 * GIB))
    assert "TTM pages_limit  <- decides  62.54 GiB" in text and "31457280 pages of 4 KiB" in text
    assert text.index("To run, by grubby") < text.index("To undo") < text.index("To verify")
    assert "never run" in text and "131072 is 128 TiB" in text


def test_the_figure_says_in_words_and_by_a_line_which_layer_binds():
    view = tell.ceilings_bars(stack_of("strix-halo-3-gttsize"))
    assert "ttm.pages_limit 62.54 GiB which decides" in view.alt and "GTT 120.00 GiB" in view.alt
    figure = view.draw()
    assert "ttm.pages_limit: this one decides" in words(figure)
    is_line = lambda b: b.get_width() * sheet.WIDTH == pytest.approx(0.012)  # noqa: E731
    line, *more = filter(is_line, bars(figure))
    drawn = [text.get_window_extent() for text in figure.texts]
    assert more and not any(
        piece.get_window_extent().overlaps(words) for piece in (line, *more) for words in drawn
    ), "since 2026-11-27 the line stands at each bar and crosses no words"
    top = max(row["value"].value for row in view.rows if row["value"].ok)
    limit = stack_of("strix-halo-3-gttsize").decision.binding_bytes
    at = sheet.MARGIN + limit / top * (sheet.WIDTH - 2 * sheet.MARGIN)
    assert (line.get_x() * sheet.WIDTH + 0.006) == pytest.approx(at)
    assert "decides" not in tell.ceilings_bars(stack_of("cuda-healthy")).alt


def test_the_four_states_stand_side_by_side():
    view = tell.states_table(tell.four_states())
    assert [row["state"] for row in view.rows] == STATES and len(STATES) == 4
    shown = [[getattr(value, "value", None) for value in row.values()] for row in view.rows]
    assert [row.count(120 * GIB) for row in shown[2:]] == [1, 4]
    assert max(map(len, str(view).splitlines())) <= 88


def test_a_pending_limit_is_drawn_and_tabled():
    stack = ceilings(apu(files={"/etc/modprobe.d/a.conf": "options ttm pages_limit=20971520\n"}))[0]
    rows = {row["layer"]: row["pending"] for row in tell.ceilings_table(stack).rows}
    assert rows["ttm.pages_limit"] == 80 * GIB
    view = tell.ceilings_bars(stack)
    assert view.title == "ttm.pages_limit would be 80.00 of 96.00 GiB, now 48.00 GiB"
    assert "48.00 GiB → 80.00 GiB" in words(view.draw())


def test_the_layers_that_pass_the_limit_on_follow_it_and_one_that_was_set_does_not():
    would = tell.ceilings_bars(tell.following(stack_of("strix-halo-3-gttsize"), 100 * GIB))
    moved = [row["layer"] for row in would.rows if row["would be"]]
    assert moved == ["ttm.pages_limit", "KFD memory bank", "HSA pool", "torch total"]
    assert would.title == "torch total would be 100.00 of 125.08 GiB, now 62.54 GiB"
    assert words(would.draw()).count("62.54 GiB → 100.00 GiB") == 4
    found = tell.ceilings_bars(stack_of("strix-halo-3-gttsize"))
    assert found.title == "62.54 of 125.08 GiB: ttm.pages_limit decides"


def test_a_smaller_reserve_holds_a_larger_model_and_the_slider_asks_the_same_state():
    space = room_of("strix-halo-1-found")
    eight = tell.choice(space, 8)
    reserves = (4, 8, 12, 16, 24, 32, 48)
    table = tell.reserves_table(space, reserves)
    assert eight.limit_bytes == (134299025408 - 8 * GIB) // 4096 * 4096
    assert eight.parameters_billion == eight.limit_bytes / 2 / 1e9
    sizes = table.table()["parameters, 10^9, at 2 bytes"].to_pylist()
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == len(reserves)
    assert "62.9 billion parameters" in eight.words() and "62.9" in str(table)
    assert tell.choice(space, 0) is None and tell.choice(space, 500) is None


@pytest.mark.parametrize("name", ["rx7900xt-container", "cpu-only", "cuda-healthy"])
def test_a_box_without_a_limit_to_set_has_no_choice_and_says_why(name):
    (words,) = ReserveQuestion(stack_of(name), room_of(name)).parts()
    assert words.startswith("No reserve to choose here. ")


def test_verification_in_words():
    text = str(tell.verify_table(verify(open_box(STATES[0]), open_box(STATES[2]))))
    assert text.count("  no effect") == 4 and "Intended: the plan for the earlier bundle" in text
    took = verify(open_box(STATES[0]), open_box(STATES[3]))
    assert "It took effect: 120.00 GiB" in str(tell.verify_table(took))


def test_names_from_the_box_cannot_move_the_terminal():
    files = {
        "/sys/module/amdgpu/parameters/gttsize": "-1\n",
        "/etc/modprobe.d/a.conf": "options amdgpu gtt\x1b[2Jsize=1\n",
    }
    assert "\x1b" not in tell.as_text(ttm_answer(apu(files=files)))


def test_the_committed_notebook_shows_the_case():
    shown = " ".join(" ".join(text_of(cell) for cell in cells(NOTEBOOK, "code")).split())
    case = (
        "this one decides",
        "(likely, not proved)",
        "grubby",
    )
    assert [said for said in case if said not in shown] == []
    tags = [cell.metadata.get("tags", []) for cell in nbformat.read(NOTEBOOK, 4).cells]
    assert ["parameters"] in tags and ["machine"] in tags
