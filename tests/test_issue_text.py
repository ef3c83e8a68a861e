"""A report in a tracker's own form: every field filled from the bundle, or why it is not; short, and calling nobody."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tell_boxes import HOSTILE, VERDICT

from helpers.ground.shapes import CAUSES, Evidence, Missing, NextStep, Verdict, seen
from helpers.look.bundle import open_box, recorded_names
from helpers.share.issue_text import MOST_LINES, TABLE, TRACKERS, Case, issue_text
from helpers.tell import shown

ROCM = """\
### Problem Description
### Operating System
### CPU
### GPU
### ROCm Version
### ROCm Component
### Steps to Reproduce
### (Optional for Linux users) Output of /opt/rocm/bin/rocminfo --support
### Additional Information"""
AMDGPU = """\
## Brief summary of the problem:
## Hardware description:
 - CPU:
 - GPU:
 - System Memory:
 - Display(s):
 - Type of Display Connection:
## System information:
 - Distro name and Version:
 - Kernel version:
 - Kernel parameters:
 - Custom kernel:
 - AMD official driver version:
## How to reproduce the issue:
## Attached files:"""
FIELDS = {
    "rocm": ROCM.split("\n"),
    "rocm-systems": ROCM.split("\n"),
    "pytorch": ["### \N{BUG} Describe the bug", "### Versions"],
    "linux-amdgpu": AMDGPU.split("\n"),
}
EVIDENCE = "Evidence bundle: `x.bundle.tar.gz`, redacted, SHA-256 `" + "ab" * 32 + "`"


def report(tracker, box="strix-halo-1-found", **changes):
    given_ = {
        "verdict": VERDICT,
        "bundle": open_box(box),
        "steps": ("03_ttm.ipynb",),
        "evidence": EVIDENCE,
        **changes,
    }
    return issue_text(tracker, Case(**given_))


@pytest.mark.parametrize("tracker", TRACKERS)
def test_the_fields_stand_in_the_order_of_the_trackers_form_and_none_is_empty(tracker):
    for text in (report(tracker), issue_text(tracker, Case(None, None, "nothing lies beside it"))):
        lines = text.split("\n")
        starts = [[line.startswith(field) for line in lines] for field in FIELDS[tracker]]
        places = [at.index(True) for at in starts]
        assert places == sorted(places)
        for place, field in zip(places, FIELDS[tracker], strict=True):
            inside = [lines[place][len(field) :], *lines[place + 1 : place + 3]]
            assert "".join(inside).strip(" -#"), field


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("box", recorded_names())
def test_every_report_is_short_and_has_versions_hardware_evidence_and_the_bundles_digest(
    tracker, box
):
    text = report(tracker, box)
    assert len(text.split("\n")) <= MOST_LINES and "ab" * 32 in text
    for words in ("Seen:", "Expected:", "15.24 GiB", "/sys/module/ttm/parameters/pages_limit"):
        assert words in text


def test_what_the_bundle_tells_stands_in_the_fields():
    text = report("rocm")
    for words in (
        "`Fedora Linux 42`",
        "`AMD RYZEN AI MAX+ 395 w/ Radeon 8060S`",
        "`AMD Radeon 8060S Graphics`",
        "7.0.2",
        "PyTorch version: 2.10.0a0+rocm7.10.0a20251015",
        "ROCK-Kernel-Driver",
        "6.17.4-200.fc42.x86_64",
    ):
        assert words in text


@pytest.mark.parametrize("tracker", TRACKERS)
def test_without_a_bundle_and_a_verdict_every_field_says_why_it_is_empty(tracker):
    text = issue_text(tracker, Case(None, None, "no bundle lies beside it"))
    assert text.count("not available because") >= 4 and "no run came to a verdict" in text
    assert "None" not in text and "\n\n\n" not in text


@pytest.mark.parametrize("cause", [*CAUSES, "healthy", "aside"])
def test_every_cause_has_words_for_those_who_were_not_there(cause):
    row = TABLE["causes"][cause]
    assert all(row[name] for name in ("plain", "ask", "expected", "instead"))
    assert set(row["to"]) <= set(TRACKERS) and set(TABLE["causes"]) == {
        *CAUSES,
        "healthy",
        "aside",
        "none",
    }
    jargon = r"VRAM|GTT|TTM|KFD|HSA|\bpid\b|allocat|torch"
    assert not re.search(jargon, row["plain"], re.IGNORECASE), "a stranger reads it"


@pytest.mark.parametrize(("term", "seen", "means"), shown.words("glossary"))
def test_a_term_of_the_glossary_is_found_by_its_own_name_and_explained(term, seen, means):
    assert re.search(seen, term.split(",")[0]) and len(means) > 15


@pytest.mark.parametrize(
    ("cause", "tracker", "fault"),
    [
        ("external-holder", "pytorch", False),
        ("ttm-gtt-cap", "pytorch", False),
        ("ttm-gtt-cap", "linux-amdgpu", True),
        ("allocator-fragmentation", "pytorch", True),
        ("allocator-fragmentation", "rocm", False),
    ],
)
def test_a_report_says_whom_to_ask_after_the_error_and_the_gpu_where_the_tracker_is_not_at_fault(
    cause, tracker, fault
):
    text = report(tracker, verdict=replace(VERDICT, cause=cause))
    says = f"Not a fault of this tracker's project:** ask {TABLE['causes'][cause]['instead']}."
    assert (says in text) is not fault and TABLE["causes"][cause]["expected"] in text
    places = [text.find(words) for words in ("**Error:**", "**GPU:**", says, "**Seen:**")]
    assert fault or places == sorted(places)


def test_a_report_begins_with_the_error_text_and_the_gpus_and_marks_what_was_filled_in():
    text = report("rocm")
    head = text.index("### Problem Description")
    error = text.index("HIP out of memory. Tried to allocate")
    gpu = text.index("**GPU:** `AMD ")
    assert head < error < gpu < text.index("**Seen:**")
    assert "40 of its 44 readings were printed by no machine" in text
    assert "OS: Fedora Linux 42\n" in text and "each layer reports it (filled in)" in text
    assert re.search(r"`15.24 GiB` from `.*pages_limit` \(filled in\)", text)
    given = issue_text("rocm", Case(VERDICT, None, "none", error="no memory today"))
    assert "**Error:**\n```text\nno memory today\n```" in given


def verdict(words):
    return Verdict(
        cause="other",
        confidence="weak",
        summary=words,
        next_step=NextStep(what=words),
        evidence=[Evidence(id="e", reading=seen(words, "text", words), says=words)],
        missing=[Missing(reading=words, how=words)],
    )


def outside_code(text):
    """What of a report a renderer of Markdown would act on."""
    text = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.S | re.M)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


@given(st.text(st.sampled_from("`@#<>[]()*_!~ab \n/:{}"), max_size=60))
@settings(max_examples=50, deadline=None)
def test_no_words_of_a_box_can_call_link_or_format(words):
    for tracker in TRACKERS:
        signs = []
        for said in (f"{words} Q7", "harmless Q7"):
            case = Case(verdict(said), None, said, steps=(said,), evidence=EVIDENCE)
            head, _, body = issue_text(tracker, case).partition("-->")
            assert head.startswith("<!--") and head.endswith("Read it before you send it. ")
            signs.append(re.sub(r"[^`@#<>\[\]*_!~{}]|\B_\B", "", outside_code(body)))
        assert signs[0] == signs[1]


@pytest.mark.parametrize(
    "word",
    "@name you@x.org #12 a/b#12 GH-12 !12 www.x.org http://x.org deadbeef1 :smile: _a_ x_y a@b, (#3) &amp; 1. - + $1 ~a ^b".split(),
)
def test_a_word_that_a_tracker_would_act_on_stands_in_code_and_the_words_around_it_do_not(word):
    text = issue_text("rocm", Case(verdict(f"{word} then {word} again"), None, "none"))
    line = text.split("- not read: ")[1].split("\n")[0]
    assert re.findall("`([^`]+)`", line)[0] == word.rstrip(",.;:")
    assert " then " in outside_code(line) and " again" in outside_code(line)


def test_sentences_stand_as_words_and_values_and_names_in_code():
    says = "What ttm.pages_limit allows, which is less than the machine has."
    text = report("rocm", verdict=replace(verdict("w"), summary=says))
    assert "What `ttm.pages_limit` allows, which is less than the machine has" in text
    assert not re.search(r"`[^`\n]*\b(which|that|not|because)\b[^`\n]*`", text)


def test_where_no_program_was_recorded_the_steps_are_one_sentence_without_a_number():
    steps = report("rocm").split("### Steps to Reproduce\n\n")[1].split("\n\n###")[0]
    assert steps.startswith("No program was recorded") and steps.count("\n") == 0
    assert steps.endswith("in `03_ttm.ipynb`.") and "1." not in steps


def test_hostile_words_stay_on_one_line_and_in_code():
    text = report("pytorch", verdict=verdict(HOSTILE))
    head, _, body = text.partition("-->")
    assert "\x1b" not in text and "\u202e" not in text
    assert "<script>" not in outside_code(body) + head
    assert head.startswith("<!-- For github.com/pytorch/pytorch/issues.")


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_long_case_is_cut_with_its_fences_closed_and_its_digest_kept(tracker):
    reading = seen(1, "count", "x")
    many = [Evidence(id=f"e{i}", reading=reading, says=f"line {i}") for i in range(200)]
    long = replace(verdict("w"), evidence=many, against=many)
    for steps in (0, 70, 150):
        text = report(tracker, verdict=long, steps=tuple(f"step {i}" for i in range(steps)))
        assert len(text.split("\n")) <= MOST_LINES + 1 and "ab" * 32 in text
        assert sum(line.startswith("```") for line in text.split("\n")) % 2 == 0


def test_an_unknown_tracker_is_refused_with_the_known_ones():
    known = "rocm, rocm-systems, pytorch, linux-amdgpu"
    with pytest.raises(ValueError, match=f"tracker 'jira': expected one of {known}"):
        issue_text("jira", Case(None, None))
