"""What ``ttm`` shows: its text, its tables, its figures with their words, the slider and its static twin."""

import nbformat
import pytest
from test_notebooks import ROOT, cells, text_of
from ttm_boxes import GIB, apu

from helpers.judge.ceilings import ceilings
from helpers.judge.ttm_plan import room, ttm
from helpers.judge.ttm_verify import verify
from helpers.look.boxes import open_box, recorded_names
from helpers.tell import ttm as tell
from helpers.tell.sheet import png

NOTEBOOK = ROOT / "notebooks" / "03_ttm_gtt_analysis.ipynb"


def state(name):
    bundle = open_box(name)
    stack = ceilings(bundle)[0]
    return tell.what_if(stack, room(bundle, stack))


@pytest.mark.parametrize("name", recorded_names())
def test_every_recorded_box_has_its_text_table_and_figure(name):
    bundle = open_box(name)
    stack = ceilings(bundle)[0]
    text = tell.as_text(ttm(bundle))
    assert (
        "Plan:" in text and "The one that binds:" in text and "pages_limit alone is enough" in text
    )
    assert max(map(len, tell.ceilings_table(stack, sources=False).splitlines())) <= 120
    picture, width, height = png(tell.ceilings_figure(stack))
    assert picture.startswith(b"\x89PNG") and width > 300 and height > 40
    assert "bars" in tell.ceilings_alt(stack)


def test_the_text_marks_the_layer_that_binds_and_holds_run_undo_and_verify():
    text = tell.as_text(ttm(open_box("strix-halo-3-gttsize"), target_bytes=120 * GIB))
    assert "TTM pages_limit  <- binds  62.54 GiB" in text and "31457280 pages of 4 KiB" in text
    assert text.index("To run, as grubby") < text.index("To undo") < text.index("To verify")
    assert "never run" in text and "131072 is 128 TiB" in text


def test_the_figure_says_in_words_which_layer_binds():
    alt = tell.ceilings_alt(ceilings(open_box("strix-halo-3-gttsize"))[0])
    assert "ttm.pages_limit 62.54 GiB, which binds" in alt and "GTT 120.00 GiB" in alt
    assert "binds" not in tell.ceilings_alt(ceilings(open_box("cuda-healthy"))[0])


def test_the_four_states_stand_side_by_side():
    text = tell.states_table(tell.four_states()).splitlines()
    assert len(text) == 6 and [line.split()[0] for line in text[2:]] == [
        n for n in recorded_names() if n.startswith("strix")
    ]
    assert text[4].count("62.54 GiB") == 3 and text[4].count("120.00 GiB") == 1
    assert text[5].count("120.00 GiB") == 4 and max(map(len, text)) <= 88


def test_a_pending_limit_is_drawn_and_tabled():
    stack = ceilings(apu(files={"/etc/modprobe.d/a.conf": "options ttm pages_limit=20971520\n"}))[0]
    assert "80.00 GiB" in tell.ceilings_table(stack) and png(tell.ceilings_figure(stack))[0]


def test_a_smaller_reserve_holds_a_larger_model_and_the_slider_asks_the_same_state():
    found = state("strix-halo-1-found")
    eight = found.at(8)
    assert (
        eight.limit_bytes == (134299025408 - 8 * GIB) // 4096 * 4096
        and f"{eight.parameters_billion:.1f}" == "62.9"
    )
    sizes = [choice.parameters_billion for choice in found.choices()]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == len(tell.RESERVES_GIB)
    assert "62.9 billion parameters" in eight.words() and "62.9" in tell.what_if_table(found)
    assert found.at(0) is None and found.at(500) is None


@pytest.mark.parametrize("name", ["rx7900xt-container", "cpu-only", "cuda-healthy"])
def test_a_box_without_a_limit_to_set_has_no_choice_and_says_why(name):
    assert (
        "No reserve to choose here."
        in tell.what_if_table(state(name))
        == tell.what_if_alt(state(name))
    )
    assert png(tell.what_if_figure(state(name)))[0]


def test_verification_in_words():
    text = tell.verify_text(
        verify(open_box("strix-halo-1-found"), open_box("strix-halo-3-gttsize"))
    )
    assert text.count("  did not take") == 4 and "Intended: the plan for the earlier bundle" in text
    assert "no earlier bundle was given" in tell.verify_with(open_box("cpu-only"), "")
    assert "It took: 120.00 GiB" in tell.verify_with(
        open_box("strix-halo-4-ttm"), "strix-halo-1-found"
    )


def test_names_from_the_box_cannot_move_the_terminal():
    bundle = apu(
        files={
            "/sys/module/amdgpu/parameters/gttsize": "-1\n",
            "/etc/modprobe.d/a.conf": "options amdgpu gtt\x1b[2Jsize=1\n",
        }
    )
    assert "\x1b" not in tell.as_text(ttm(bundle))


def test_the_committed_notebook_shows_the_case():
    shown = " ".join(" ".join(text_of(cell) for cell in cells(NOTEBOOK, "code")).split())
    for words in (
        "strix-halo-4-ttm",
        "this one binds",
        "ttm-gtt-cap; likely",
        "grubby",
        "It took: 120.00 GiB",
    ):
        assert words in shown, words
    tags = [cell.metadata.get("tags", []) for cell in nbformat.read(NOTEBOOK, 4).cells]
    assert ["parameters"] in tags and ["machine"] in tags
