"""A report in a tracker's own form: every field filled with typed facts of the bundle, or why it is not; short."""

import re
from dataclasses import replace

import pytest
from command_line import verb
from tell_boxes import VERDICT

from helpers.ground.shapes import CAUSES
from helpers.judge.evidence import evidence_from_bundle, evidence_from_message
from helpers.look.boxes import open_box, recorded_names
from helpers.look.wordings import table
from helpers.share import TRACKERS, Subject, issue_text
from helpers.share.verdict_facts import TABLE
from helpers.tell import resources
from helpers.tell.message import printed_anew

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


def report(tracker, box="strix-halo-1-found", verdict=VERDICT):
    return issue_text(
        tracker,
        Subject(
            verdict=verdict,
            evidence=evidence_from_bundle(open_box(box)),
            steps=("03_ttm.ipynb",),
        ),
    )


@pytest.mark.parametrize("tracker", TRACKERS)
def test_the_fields_stand_in_the_order_of_the_trackers_form_and_none_is_empty(tracker):
    for text in (report(tracker), issue_text(tracker, Subject())):
        lines = text.split("\n")
        starts = [[line.startswith(field) for line in lines] for field in FIELDS[tracker]]
        places = [at.index(True) for at in starts]
        assert places == sorted(places)
        for place, field in zip(places, FIELDS[tracker], strict=True):
            inside = [lines[place][len(field) :], *lines[place + 1 : place + 3]]
            assert "".join(inside).strip(" -#"), field


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("box", recorded_names())
def test_every_report_is_short_and_has_versions_hardware_and_evidence(tracker, box):
    text = report(tracker, box)
    assert len(text.split("\n")) <= 130
    words = ("Seen:", "Expected:", "15.24 GiB", "/sys/module/ttm/parameters/pages_limit")
    for word in (*words, "[paste the error text here", "The evidence bundle stays"):
        assert word in text
    assert sum(line.startswith("```") for line in text.split("\n")) % 2 == 0


def test_what_the_bundle_tells_stands_in_the_fields():
    text = report("rocm")
    for words in (
        "`Fedora Linux 42`",
        "`AMD RYZEN AI MAX+ 395 w/ Radeon 8060S`",
        "`AMD Radeon 8060S Graphics`",
        "`7.0.2`",
        "PyTorch version: 2.10.0a0+rocm7.10.0",
        "ROCK-Kernel-Driver",
        "Kernel: 6.17.4-200.fc42.x86_64\n",
        "it names gfx1151",
        "process-1",
    ):
        assert words in text


def test_no_text_of_the_box_stands_in_a_report():
    """The error text, the log's lines, names of processes and the kernel's own command line."""
    for box in recorded_names():
        for tracker in TRACKERS:
            text = report(tracker, box)
            for words in ("gnome-shell", "python3", "BOOT_IMAGE", "quiet"):
                assert words not in text


def test_the_error_message_is_printed_anew_from_its_numbers():
    said = open_box("cuda-24gb-tuning").read("message").text.strip()
    text = report("pytorch", "cuda-24gb-tuning")
    assert "Tried to allocate 16.00 MiB" in text
    assert said not in text


@pytest.mark.parametrize(
    ("text", "anew"),
    [
        ("CUDA error: device-side assert triggered", None),
        ("CUDA error (kestrel.cu:7): device-side assert triggered", None),
        ("hipErrorAssert: device-side assertion triggered", None),
        ("RuntimeError: CUDA driver error: operation not supported", None),
        ("low memory! at or below SIGTERM limits", None),
        ("failed to allocate CUDA3 buffer of size 3221225472 bytes", None),
        ("Driver not loaded (amdgpu not found in modules)", "Driver not loaded (amdgpu"),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 36.5 MiB. kestrel",
            "torch.OutOfMemoryError: HIP out of memory … Tried to allocate 36.5 MiB",
        ),
    ],
)
def test_a_message_is_printed_anew_in_the_wording_that_it_has(text, anew):
    message = evidence_from_message(text).messages[0]
    assert printed_anew(message) == (anew or text).replace("kestrel.cu:7", " … ")


@pytest.mark.parametrize("row", table(), ids=lambda row: row["id"])
def test_the_message_of_each_row_of_the_table_is_printed_anew(row):
    for message in evidence_from_message(row["example"]).messages:
        assert printed_anew(message)


@pytest.mark.parametrize(
    "text", ["Killed", "NVRM: Xid (PCI:0000:01:00): 79, pid=91, GPU has fallen off the bus."]
)
def test_a_row_that_is_a_pattern_is_printed_as_its_program_and_its_meaning(text):
    message = evidence_from_message(text).messages[0]
    assert printed_anew(message).startswith(f"{message.program}: ")


def test_kinds_of_the_kernel_log_are_counted_without_their_lines():
    text = report("linux-amdgpu", "strix-halo-3-gttsize")
    assert "GTT over TTM limit" in text
    assert "gttsize deprecated" in text


@pytest.mark.parametrize("tracker", TRACKERS)
def test_without_a_bundle_and_a_verdict_every_field_says_why_it_is_empty(tracker):
    text = issue_text(tracker, Subject())
    assert text.count("not available because") >= 3
    assert "no run came to a verdict" in text
    assert "None" not in text
    assert "\n\n\n" not in text


@pytest.mark.parametrize("cause", [*CAUSES, "healthy", "aside"])
def test_every_cause_has_words_for_those_who_were_not_there(cause):
    row = TABLE["causes"][cause]
    assert all(row[name] for name in ("plain", "ask", "expected", "instead"))
    assert set(row["to"]) <= set(TRACKERS)
    jargon = r"VRAM|GTT|TTM|KFD|HSA|\bpid\b|allocat|torch"
    assert not re.search(jargon, row["plain"], re.IGNORECASE), "a stranger reads it"


def test_the_table_of_causes_has_no_row_without_a_cause():
    assert set(TABLE["causes"]) == {*CAUSES, "said", "healthy", "aside", "none"}


@pytest.mark.parametrize("cause", TABLE["causes"])
def test_a_shared_page_is_never_said_to_show_what_is_not_on_it(cause):
    row = TABLE["causes"][cause]
    for name in ("plain", "ask", "expected", "instead"):
        assert "card below" not in row.get(name, "")
        assert "summary above" not in row.get(name, "")


@pytest.mark.parametrize(("term", "pattern", "means"), resources.words("rows")["glossary"])
def test_a_term_of_the_glossary_is_found_by_its_own_name_and_explained(term, pattern, means):
    assert re.search(pattern, term.split(",")[0])
    assert len(means) > 15


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
def test_a_report_says_whom_to_ask_where_the_tracker_is_not_at_fault(cause, tracker, fault):
    text = report(tracker, verdict=replace(VERDICT, cause=cause))
    row = TABLE["causes"][cause]
    says = f"Nothing here shows a fault of this tracker's project: ask {row['instead']}."
    head, _, body = text.partition("-->")
    assert (says in head) is (says in body) is not fault
    assert row["expected"] in text
    places = [text.index(words) for words in ("**Error:**", "**GPU:**", "**Seen:**")]
    assert places == sorted(places)


def test_a_report_marks_what_was_filled_in():
    text = report("rocm")
    assert "40 of its 44 readings were printed by no machine" in text
    assert re.search(r"`15.24 GiB` from `.*pages_limit` \(from the write-up", text)


def test_a_report_names_at_its_head_where_it_goes_and_that_it_is_to_be_read():
    head, _, _ = report("pytorch").partition("-->")
    assert head.startswith("<!-- For github.com/pytorch/pytorch/issues. Title: ")
    assert head.endswith("Read it before you send it. ")


def test_where_no_program_was_recorded_the_steps_are_one_sentence():
    steps = report("rocm").split("### Steps to Reproduce\n\n")[1].split("\n\n###")[0]
    assert steps.startswith("No program was recorded")
    assert steps.count("\n") == 0
    assert steps.endswith("in `03_ttm.ipynb`.")


def test_an_unknown_tracker_is_refused_with_the_known_ones():
    known = "rocm, rocm-systems, pytorch, linux-amdgpu"
    with pytest.raises(ValueError, match=f"tracker 'jira': expected one of {known}"):
        issue_text("jira", Subject())


def test_a_terminal_says_whom_to_ask_before_it_names_a_report_for_a_project_without_fault(tmp_path):
    out = verb(
        *("share", "rx7900xt-container", "--issue", "pytorch", "--out", tmp_path / "p.html")
    ).out
    says = "Nothing here shows a fault of this tracker's project: ask whoever runs the process"
    assert out.index(says) < out.index("\nissue: ")
    assert says in (tmp_path / "p.pytorch.md").read_text().partition("-->")[0]
