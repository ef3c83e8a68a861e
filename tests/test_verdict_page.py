"""A verdict in words: complete, the same each time, and in a notebook one output that a program reads back."""

import re
from dataclasses import replace
from typing import get_args

import pytest
from tell_boxes import HOSTILE, VERDICT

from helpers.ground.contract import from_json, to_json
from helpers.ground.shapes import VERDICT_MIME as MIME
from helpers.ground.shapes import Confidence, Evidence, NextStep, Verdict, not_allowed, seen
from helpers.tell import next_steps
from helpers.tell import verdict as words
from helpers.tell.markdown_html import Prose
from helpers.tell.prose import WIDE
from helpers.tell.render import verdict_html

LONG = "this path takes 18.26 MiB, 35% of the 51.68 MiB that the single device takes, and is the same training (bitwise)"
BARE = Verdict("cannot-tell", "weak", NextStep("Run make diagnose as root."))
EVIL = Verdict(
    "other",
    "weak",
    NextStep(HOSTILE, "```\n" + HOSTILE, HOSTILE, HOSTILE),
    summary=HOSTILE,
    evidence=[Evidence(HOSTILE, not_allowed(HOSTILE, "bytes", HOSTILE), HOSTILE)],
)
MARKUP = {"p", "strong", "code", "ol", "ul", "li", "div", "pre"}


def test_every_confidence_has_its_own_words():
    assert set(words.CONFIDENCE_WORDS) == set(get_args(Confidence))


@pytest.mark.parametrize(
    ("verdict", "headline"),
    [
        (replace(BARE, cause="other"), "A cause outside the list"),
        (replace(BARE, cause="other", summary="No GPU here: the bus shows none."), "No GPU here"),
        (replace(BARE, title="Nothing wrong was seen."), "Nothing wrong was seen"),
        (replace(BARE, title="w" * 200), "w" * 139 + "…"),
        (BARE, "Not enough evidence to name a cause"),
    ],
)
def test_a_headline_is_the_title_the_cause_or_the_first_clause_of_what_was_said(verdict, headline):
    assert verdict.headline == words.as_text(verdict).splitlines()[0] == headline


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (BARE, f"({words.UNDECIDED})"),
        (
            replace(BARE, state="healthy"),
            "(nothing failed, and every reading looks right)",
        ),
        (replace(BARE, cause="other"), "(weak: only a hint)"),
    ],
)
def test_below_it_stand_the_label_and_how_sure_it_is(verdict, line):
    assert words.as_text(verdict).splitlines()[1] == line


def test_the_summary_does_not_repeat_the_title_and_the_sums_stand_apart():
    said = replace(BARE, title="All is well", summary="All is well. Really.")
    assert words.summary(said) == "Really." and words.as_text(said).count("All is well") == 1
    sums = [Evidence("sum-1", EVIL.evidence[0].reading, "a + b = c"), *VERDICT.evidence]
    text = words.as_text(replace(VERDICT, evidence=sums))
    assert f"{words.SUMS}\n  a + b = c\n" in text and "sum-1" not in text
    assert "sum-1" not in words.as_markdown(replace(VERDICT, evidence=sums))


def test_the_text_holds_all_of_the_verdict():
    text = words.as_text(VERDICT)
    lines = [line.strip() for line in text.splitlines()]
    for said in (
        "The kernel's TTM or GTT limit is below what the machine could give",
        "2. sudo update-initramfs -u",
        "TTM allows the GPU this much of the RAM in all.",
        "124.90 GiB   from /proc/meminfo",
        "422.00 MiB   from /sys/class/drm/card1/device/mem_info_gtt_used",
        "First make sure: No other job runs here; a reboot follows.",
    ):
        assert said in lines
    assert "\n(likely, " in text and "carve-out is in use (weak)" in text
    assert "ttm-gtt-cap" not in text
    assert "Side effects: A limit above" in text
    assert max(map(len, lines)) <= WIDE


def test_the_same_verdict_gives_the_same_words():
    again = from_json(Verdict, to_json(VERDICT))
    assert words.as_text(VERDICT) == words.as_text(again)
    assert words.as_markdown(VERDICT) == words.as_markdown(again)


def test_a_verdict_with_nothing_in_it_says_so_in_every_section():
    text = words.as_text(BARE)
    assert f"Evidence\n  None.\n\nEvidence against it\n  {words.NOTHING_AGAINST}\n" in text
    assert f"Missing\n  {words.NOTHING_MISSING}\n" in text
    assert f"**Missing**\n\n{words.NOTHING_MISSING}\n" in words.as_markdown(BARE)
    assert str(words.against(BARE)) == words.NOTHING_AGAINST


def test_what_speaks_against_it_can_be_shown_alone():
    (row,) = words.against(VERDICT).rows
    assert row["against"] == "Memory that no process accounts for is small: not a leak."
    assert row["value"].show() == "422.00 MiB" and row["source"].endswith("mem_info_gtt_used")
    open_cause = "Still possible: Only the firmware's VRAM carve-out is in use (weak)"
    assert words.against(VERDICT).notes == [open_cause]


@pytest.mark.parametrize("view", [words.as_text, words.as_markdown])
def test_no_text_from_a_box_steers_the_terminal(view):
    assert all(char.isprintable() or char == "\n" for char in view(EVIL))


def test_no_text_from_a_box_becomes_markup():
    html = str(Prose().html(words.as_markdown(EVIL)))
    assert set(re.findall(r"</?([a-z0-9]+)", html)) <= MARKUP
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 5
    assert "not allowed: \\x1b[31m&lt;script&gt;" in html


def test_in_a_notebook_one_output_holds_the_data_the_markdown_and_the_text(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw, metadata: shown.append((data, raw))
    )
    words.show(VERDICT)
    [(data, raw)] = shown
    assert raw and from_json(Verdict, data.pop(MIME)) == VERDICT
    said = {"text/plain": words.as_text(VERDICT), "text/markdown": words.as_markdown(VERDICT)}
    assert data == said


def test_the_next_step_is_shown_alone_as_a_list_with_what_is_typed_to_copy(capsys):
    step = NextStep("Raise *it*.", "sudo a\nb", "No job runs.", "a reboot", True, "cat c", "sudo d")
    html = next_steps.steps_html(replace(BARE, next_step=step))
    assert html.count("<li>") == 5 and ">sudo a</pre>" in html and "*it*" in html
    assert html.index(">First make sure: No job runs.<") < html.index("sudo a")
    words.next_step(replace(BARE, next_step=step))
    said = "  Raise *it*.\n  First make sure: No job runs.\n  1. sudo a\n  2. b\n  3. Reboot"
    assert said in capsys.readouterr().out
    said = next_steps.steps_html(EVIL)
    assert set(re.findall(r"</?([a-z0-9]+)", said)) <= {"div", "ol", "li", "b", "pre", "span", "p"}
    assert "&lt;script&gt;" in said


def test_outside_a_notebook_the_text_is_printed(capsys):
    words.show(BARE)
    assert capsys.readouterr().out == words.as_text(BARE) + "\n"


def test_a_step_that_takes_effect_at_the_next_boot_is_done_rebooted_checked_and_undone():
    step = NextStep("Raise it.", "sudo a", reboot=True, check="cat b", undo="sudo c")
    listed = next_steps.steps(replace(BARE, next_step=step))
    assert [says for says, _ in listed] == [
        "Raise it.",
        "Reboot: the change takes effect at the next boot",
        next_steps.CHECK,
        "Only if it did not help, undo it:",
    ]
    assert [typed for _, typed in listed] == ["sudo a", "", "cat b", "sudo c"]
    assert next_steps.steps(BARE) == [("Run make diagnose as root.", "")]


@pytest.mark.parametrize(
    ("reboot", "folded"),
    [
        (True, "2 more: Check that it worked; Only if it did not help, undo it"),
        (False, "1 more: Only if it did not help, undo it"),
    ],
)
def test_a_page_folds_what_is_not_done_now_and_names_it(reboot, folded):
    step = NextStep("Raise it.", "sudo a", reboot=reboot, check="cat b", undo="sudo c")
    html = str(verdict_html(replace(BARE, next_step=step)))
    shown, later = html.split(f"<summary>{folded}")
    assert ("cat</span> <span>b" in shown) is not reboot and "sudo</span> <span>c" in later


def test_each_command_is_a_step_of_its_own_with_its_comment_as_the_words():
    command = """# Look first
a --b 'c # d'
e  # Then this program's
f \\
    --g
# other systems: h"""
    step = NextStep("Do both.", command)
    assert next_steps.lead(replace(BARE, next_step=step)) == "Do both."
    assert next_steps.steps(replace(BARE, next_step=step)) == [
        ("Look first", "a --b 'c # d'"),
        ("Then this program's", "e"),
        ("", "f \\\n    --g\n# other systems: h"),
    ]


def test_how_to_undo_it_is_on_the_screen_however_long_the_commands_are():
    run = "\n".join(f"sudo step {n}" for n in range(40))
    step = NextStep("Raise it.", run, "you are root", reboot=True, check="cat b", undo="sudo c")
    screen = words.brief(replace(VERDICT, next_step=step))
    assert "sudo step 39" in screen and "undo it" in screen and "cat b" not in screen
    assert screen.index("First make sure: you are root") < screen.index("sudo step 0")


def test_why_is_at_most_three_pieces_of_evidence_and_no_size_stands_there_twice():
    sizes = [seen(size, "bytes", "s") for size in (5, 5, 7)]
    told = [
        Evidence(f"e{n}", r, f"says {n}") for n, r in enumerate([seen("w", "text", "s"), *sizes])
    ]
    assert [row.says for row in words.why(replace(BARE, evidence=told))] == [
        "says 1",
        "says 3",
        "says 0",
    ]
    assert words.why(BARE) == []
