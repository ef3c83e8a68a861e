"""Warnings of programs about settings that nothing reads, and checkpointing that is on while training is off."""

import pytest
from changed_boxes import oom

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message

FULL = oom(
    "3.00 GiB",
    "15.70 GiB",
    "0.40 GiB",
    "14.00 GiB",
    "200.00 MiB",
    " Including non-PyTorch memory, this process has 15.00 GiB memory in use.",
)
UNREAD = (
    "Unused kwargs: ['load_in4bit']. These kwargs are not used in "
    "<class 'transformers.utils.quantization_config.BitsAndBytesConfig'>.\n"
)
STOPPED = (
    "hydra.errors.ConfigCompositionException: Could not override 'trainer.accumulate'.\n"
    "To append to your config use +trainer.accumulate=8\n"
    "Key 'accumulate' is not in struct\n    full_key: trainer.accumulate\n"
)
IN_FORCE = (
    "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`...\n"
)


def answer(text):
    return diagnose(evidence_from_message(text))


@pytest.mark.parametrize("text", [UNREAD, STOPPED])
def test_a_key_that_nothing_reads_is_the_finding_where_nothing_else_failed(text):
    verdict = answer(text)
    assert (verdict.cause, verdict.confidence) == ("config-ineffective", "likely")


def test_beside_a_failure_it_is_told_and_decides_nothing():
    verdict = answer(UNREAD + FULL)
    assert verdict.cause == answer(FULL).cause == "true-capacity"
    assert "Nothing reads these keys" in verdict.summary
    assert any(row.id == "setting-unread" for row in verdict.evidence)


def test_a_note_that_checkpointing_is_in_force_is_no_fault():
    assert answer(IN_FORCE).cause == "cannot-tell"
    assert answer(IN_FORCE + FULL).title == answer(FULL).title


ON = "net.gradient_checkpointing_enable()\n"
STEP = "for batch in loader:\n    net(**batch).loss.backward()\n"


@pytest.mark.parametrize("code", [ON + "net.eval()\n" + STEP, "net.eval()\n" + ON + STEP])
def test_checkpointing_in_evaluation_mode_is_found_in_the_programs_text(code):
    for text in (code, code + FULL):
        verdict = answer(text)
        assert (verdict.cause, verdict.confidence) == ("config-ineffective", "likely")
        assert "train()" in verdict.next_step.what


@pytest.mark.parametrize(
    "code",
    [
        ON + STEP,
        "net.eval()\n" + STEP,
        ON + "net.eval()\nscore(net)\nnet.train()\n" + STEP,
        ON + STEP + "net.eval()\nscore(net)\n",
    ],
)
def test_a_program_that_trains_in_training_mode_is_not_blamed(code):
    assert answer(code + FULL).cause == "true-capacity"
