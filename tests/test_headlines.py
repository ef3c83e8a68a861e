"""A title says what is wrong on this very box, with its numbers; no gap of a sentence stays open."""

from dataclasses import fields
from string import Formatter

import pytest
from changed_boxes import oom

from helpers import judge
from helpers.ground.shapes import LONGEST_TITLE
from helpers.judge.catalogue import failures
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, evidence_from_bundle, evidence_from_message
from helpers.judge.message_account import Account
from helpers.look.boxes import open_box
from helpers.look.message import Message
from helpers.tell.verdict import brief

SENTENCES = judge.table("headlines")
FAILURES = {failure.id: failure for failure in failures()}
NUMBERS = {field.name for shape in (Message, Account) for field in fields(shape)}
ELSEWHERE = {
    "each-unattributed",
    "says",
    "victim",
    "causes",
    "owner",
    "holds",
    "refused",
    "holdercard",
    "filledcard",
}
"""Gaps that are filled by what a reader says, or by case_names."""
OPEN = {"room-beside-refusal", "card-in-use", "nothing-failed", "memory-ran-out", "own-error"}


FULL = oom("512.00 MiB", "15.70 GiB", "90.00 MiB", "14.90 GiB", "210.00 MiB")


def title(text):
    return diagnose(evidence_from_message(text)).headline


# -- the rows -------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", SENTENCES)
def test_each_row_is_of_a_failure_and_its_gaps_are_numbers_or_what_speaks_for_it(row):
    speaking = OPEN
    if row != "cannot-tell":
        failure = FAILURES[row]
        speaking = {*sum(failure.needs, ()), *failure.strong, *failure.weak, *failure.proof}
    for sentence in SENTENCES[row]:
        gaps = {gap for _, gap, _, _ in Formatter().parse(sentence) if gap}
        assert gaps <= NUMBERS | ELSEWHERE | speaking, sentence
        assert len(sentence) < LONGEST_TITLE and not sentence.endswith(".")


# -- what a reader sees ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "box, words",
    [
        ("strix-halo-1-found", "Linux gives the GPU only half of the RAM: 62.54 GiB of 125.08 GiB"),
        ("strix-halo-3-gttsize", "raised the GTT to 120.00 GiB, and programs still get 62.54 GiB"),
        ("cuda-24gb-tuning", "This process holds 22.88 GiB of the card's 23.56 GiB"),
        (
            "rx7900xt-container",
            "cannot be seen from here use 19.98 GiB and 19.75 GiB on separate GPUs",
        ),
    ],
)
def test_a_recorded_box_is_named_by_its_own_numbers(box, words):
    assert words in diagnose(evidence_from_bundle(open_box(box))).headline


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 20480.00 MiB on device 1: cudaMalloc failed: out of memory\n"
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            "The cache of 20.00 GiB did not fit on GPU 1",
        ),
        (
            "CUDA out of memory. Tried to allocate 52.50 GiB. GPU 0 has a total capacity of 11.77 GiB "
            "of which 9.10 GiB is free.",
            "One request of 52.50 GiB is larger than the whole card, which has 11.77 GiB",
        ),
        (
            "[ 8123.4] Out of memory: Killed process 5150 (ray::Trainer) total-vm:90000000kB, "
            "anon-rss:41943040kB, file-rss:0kB",
            "The kernel killed ray::Trainer (pid 5150), which used 40.00 GiB of RAM",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (65536), "
            "(8.00 GiB KV cache is needed, which is larger than the available KV cache memory "
            "(3.25 GiB).",
            "The cache for 65,536 tokens needs 8.00 GiB; 3.25 GiB is left for it",
        ),
        (
            "out of resource: shared memory, Required: 163840, Hardware limit: 102400.",
            "One GPU kernel needs 160.00 KiB of on-chip memory, but only 100.00 KiB is allowed",
        ),
        (
            "RuntimeError: CUDA error: out of memory",
            "got no memory, not a framework's allocator; possible causes",
        ),
    ],
)
def test_a_text_is_named_by_its_own_numbers(text, words):
    assert words in title(text)


def test_a_listed_holder_is_named_with_its_number_and_its_size():
    table = (
        "| Processes: |\n|  GPU   GI   CI        PID   Type   Process name        GPU Memory |\n"
        "|    0   N/A  N/A      7261      C   /srv/bin/tabby-server     21504MiB |\n"
    )
    failed = {"error_text": "RuntimeError: CUDA error: out of memory"}
    verdict = diagnose(case_evidence({**failed, "tool_outputs": {"nvidia-smi": table}}))
    assert verdict.headline == "tabby-server (pid 7261) holds 21.00 GiB of the GPU's memory"


def test_numbers_of_another_message_are_not_put_into_the_title():
    text = FULL + "\nRuntimeError: CUDA error: out of memory\n  x.pin_memory()"
    assert "of pinned memory" not in title(text)


def test_a_title_says_what_stays_open():
    assert "one step needs too much, or each step keeps more" in title(FULL)
    in_pieces = oom("3.50 GiB", "23.50 GiB", "3.10 GiB", "18.40 GiB", "1.20 GiB")
    assert title(in_pieces).startswith(
        "A request of 3.50 GiB failed with 3.10 GiB free of 23.50 GiB; possible causes: "
    )


# -- how much speaks for it -----------------------------------------------------------------------
def test_evidence_is_counted_by_what_was_read_and_not_by_lines_of_arithmetic():
    verdict = diagnose(evidence_from_message(FULL))
    assert len(verdict.evidence) > 3 and ": 1 independent reading for it" in brief(verdict)
    layers = diagnose(evidence_from_bundle(open_box("strix-halo-1-found")))
    sums = [row for row in layers.evidence if row.id.startswith("sum-")]
    assert len(
        sums
    ) > 1 and f": {len(layers.evidence) - len(sums) + 1} independent readings for it" in brief(
        layers
    )
