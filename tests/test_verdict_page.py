"""A verdict in words: complete, the same each time, and in a notebook one output that a program reads back."""

import re
from dataclasses import replace
from typing import get_args

import pytest
from tell_boxes import HOSTILE, VERDICT

from helpers.look.reading import not_allowed
from helpers.run.notebook import VERDICT as MIME
from helpers.shapes import CAUSES, Confidence, Evidence, NextStep, Verdict, from_json, to_json
from helpers.tell import verdict as words
from helpers.tell.notebook_html import Prose

BARE = Verdict(
    cause="cannot-tell", confidence="weak", next_step=NextStep(what="Run make diagnose as root.")
)
EVIL = Verdict(
    cause="other",
    confidence="weak",
    summary=HOSTILE,
    evidence=[Evidence(id=HOSTILE, reading=not_allowed(HOSTILE, "bytes", HOSTILE), says=HOSTILE)],
    next_step=NextStep(
        what=HOSTILE, command="```\n" + HOSTILE, precondition=HOSTILE, blast_radius=HOSTILE
    ),
)


def test_every_cause_and_confidence_has_its_own_words():
    assert set(words.CAUSE_WORDS) == set(CAUSES) and len(set(words.CAUSE_WORDS.values())) == len(
        CAUSES
    )
    assert set(words.CONFIDENCE_WORDS) == set(get_args(Confidence))


def test_a_cause_outside_the_list_is_headed_by_what_was_said_of_it():
    said = replace(BARE, cause="other", summary="No GPU can be used from here: the bus shows none.")
    assert words.as_text(said).startswith("No GPU can be used from here\n(other; weak")
    assert words.headline(replace(BARE, cause="other")) == "A cause outside the list"
    long = "this path takes 18.26 MiB, 35% of the 51.68 MiB that the single device takes, and is the same training (bitwise)"
    assert words.headline(replace(BARE, cause="other", summary=long)) == long.rpartition(",")[0]


def test_the_text_holds_all_of_the_verdict():
    text = words.as_text(VERDICT)
    lines = [line.strip() for line in text.splitlines()]
    for said in (
        "The kernel's TTM or GTT limit is below what the machine could give",
        "sudo update-initramfs -u",
        "e1: TTM allows the GPU this much of the RAM in all.",
        "124.90 GiB   from /proc/meminfo",
        "422.00 MiB   from /sys/class/drm/card1/device/mem_info_gtt_used",
        "Before it: No other job runs here; a reboot follows.",
    ):
        assert said in lines
    assert (
        "(ttm-gtt-cap; likely: " in text
        and "(carveout-only, weak)" in text
        and "What it may harm: A limit above" in text
    )
    assert max(map(len, lines)) <= words.WIDE


def test_without_sources_the_text_names_no_path_of_a_reading():
    assert "/sys" not in words.as_text(VERDICT, sources=False)
    assert "15.24 GiB" in words.as_text(VERDICT, sources=False)


def test_the_same_verdict_gives_the_same_words():
    again = from_json(Verdict, to_json(VERDICT))
    assert words.as_text(VERDICT) == words.as_text(again) and words.as_markdown(
        VERDICT
    ) == words.as_markdown(again)


def test_a_verdict_with_nothing_in_it_says_so_in_every_section():
    text = words.as_text(BARE)
    assert (
        words.NOTHING_AGAINST in text
        and words.NOTHING_MISSING in text
        and "Evidence\n  None." in text
    )
    assert words.NOTHING_AGAINST in words.as_markdown(BARE)
    assert words.against(BARE).strip() == words.NOTHING_AGAINST


def test_what_speaks_against_it_can_be_shown_alone():
    assert words.against(VERDICT).splitlines() == [
        "  a1: Memory that no process accounts for is small: not a leak.",
        "      422.00 MiB   from /sys/class/drm/card1/device/mem_info_gtt_used",
        "  Still open: Only the firmware's VRAM carve-out is in use (carveout-only, weak)",
    ]


@pytest.mark.parametrize("view", [words.as_text, words.as_markdown])
def test_no_text_from_a_box_steers_the_terminal(view):
    assert all(char.isprintable() or char == "\n" for char in view(EVIL))


def test_no_text_from_a_box_becomes_markup():
    html = str(Prose().html(words.as_markdown(EVIL)))
    assert set(re.findall(r"<(/?[a-z0-9]+)", html)) <= {
        "p",
        "/p",
        "strong",
        "/strong",
        "code",
        "/code",
        "ul",
        "/ul",
        "li",
        "/li",
        "div",
        "/div",
        "pre",
        "/pre",
    }
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 10
    assert "not allowed: \\x1b[31m&lt;script&gt;" in html


def test_in_a_notebook_one_output_holds_the_data_the_markdown_and_the_text(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append((data, raw)))
    words.show(VERDICT)
    [(data, raw)] = shown
    assert raw and set(data) == {MIME, "text/markdown", "text/plain"}
    assert from_json(Verdict, data[MIME]) == VERDICT
    assert data["text/plain"] == words.as_text(VERDICT) and data[
        "text/markdown"
    ] == words.as_markdown(VERDICT)


def test_outside_a_notebook_the_text_is_printed(capsys):
    words.show(BARE)
    assert capsys.readouterr().out == words.as_text(BARE) + "\n"
