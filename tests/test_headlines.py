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

SENTENCES = judge.table("headlines")["titles"]
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
    "card",
    "filledcard",
    "short",
    "joinable",
    "mine",
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
        (
            "cuda-24gb-tuning",
            "The card is full: this process uses 22.88 GiB of 23.56 GiB and could not get 16.00 MiB more",
        ),
        (
            "rx7900xt-container",
            "Something outside this container (docker) uses 19.98 GiB and 19.75 GiB on GPUs with 19.98 GiB of memory each",
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
            "The cache for 65,536 tokens needs 8.00 GiB; only 3.25 GiB is left",
        ),
        (
            "out of resource: shared memory, Required: 163840, Hardware limit: 102400.",
            "One GPU kernel needs 160.00 KiB of on-chip memory, but only 100.00 KiB is allowed",
        ),
        (
            "RuntimeError: CUDA error: out of memory",
            "A CUDA or HIP call outside PyTorch's allocator got no memory; possible causes",
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
    assert verdict.headline == "tabby-server (pid 7261) uses 21.00 GiB of the GPU's memory"


def test_numbers_of_another_message_are_not_put_into_the_title():
    text = FULL + "\nRuntimeError: CUDA error: out of memory\n  x.pin_memory()"
    assert "of pinned memory" not in title(text)


def test_a_title_says_what_stays_open():
    assert title(FULL).endswith("of 15.70 GiB and could not get 512.00 MiB more")
    in_pieces = oom("3.50 GiB", "23.50 GiB", "3.10 GiB", "18.40 GiB", "1.20 GiB")
    assert title(in_pieces).startswith(
        "A request of 3.50 GiB failed with 3.10 GiB free of 23.50 GiB; possible causes: "
    )


# -- how much speaks for it -----------------------------------------------------------------------
def test_the_answer_counts_no_evidence_and_quotes_the_programs_own_error_under_the_headline():
    verdict = diagnose(evidence_from_message("step 3\n" + FULL + "\nmore"))
    lines = brief(verdict).splitlines()
    quoted = " ".join(line.strip("| ") for line in lines if line.startswith("  | "))
    assert quoted.endswith(" ...") and verdict.error.startswith(quoted.removesuffix(" ..."))
    assert "independent" not in brief(verdict)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2031-02-03 04:05:06 W {}", "2031-02-03 04:05:06 W {}"),
        ("a\n\nworker 3 | {} at x.py:4\nb", "worker 3 | {} at x.py:4"),
        ("RuntimeError: CUDA error: device-side assert triggered\n{}", "{}"),
        ("\x1b[31m{}: oh\x1b[0m", "{}: oh"),
        ("HIP out of memory. Tried to allocate 2.00 GiB\n{}", "{}"),
        ("all is well", ""),
    ],
)
def test_the_error_is_the_line_in_which_memory_was_refused_as_it_was_printed(text, error):
    refused = "std::bad_alloc"
    evidence = evidence_from_message(text.format(refused))
    assert diagnose(evidence).error == error.format(refused)


def test_an_error_that_a_log_wrapped_is_whole_up_to_the_end_of_its_sentence():
    wrapped = FULL.replace(". ", ".\n    ").replace("reserved by", "reserved\n    by")
    error = diagnose(evidence_from_message(wrapped)).error
    assert error.endswith("reserved by PyTorch but unallocated.")
    assert "\n" not in error


@pytest.mark.parametrize("size", ["1073741824 bytes", "512.00 MiB", "1,024 kB", "4GB"])
def test_a_size_in_words_that_no_form_knows_is_quoted_whole(size):
    assert f'"Failed to allocate {size}"' in title(f"Failed to allocate {size} on device 'x:0'")


def test_what_a_rehearsal_prints_of_another_failure_is_no_sign_that_memory_ran_out():
    printed = "Failed, but not because GPU memory ran out: it ended with exit code 134"
    verdict = diagnose(evidence_from_message(printed))
    assert not any("memory ran out" in row.says for row in verdict.evidence)
    assert "GPU memory" not in verdict.headline
