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
    assert any(row.id == "beside-setting-unread" for row in verdict.evidence)


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


IN_PIECES = oom(
    "1.75 GiB",
    "15.70 GiB",
    "0.60 GiB",
    "9.00 GiB",
    "5.20 GiB",
    " Including non-PyTorch memory, this process has 14.90 GiB memory in use.",
)


@pytest.mark.parametrize(
    "text",
    [
        "$ export PYTORCH_CUDA_ALLOC_CONFIG=expandable_segments:True\n",
        "me@host:~$ PYTORCH_CUDA_ALOC_CONF=expandable_segments:True python fit.py\n",
        "import os\nos.environ['PYTORCH_CUDA_ALLOC_CFG'] = 'expandable_segments:True'\nimport torch\n",
    ],
)
def test_a_misspelt_setting_that_would_join_the_pieces_is_the_cause(text):
    verdict = answer(text + IN_PIECES)
    assert (verdict.cause, verdict.confidence) == ("config-ineffective", "likely")
    assert "expandable_segments:True has no effect here" in verdict.title
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in verdict.next_step.what


@pytest.mark.parametrize(
    "text",
    [
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n",
        "export PYTHONPATH=/srv/code\nexport OMP_NUM_THREADS=8 MASTER_PORT=29501\n",
        "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\nimport torch\n",
    ],
)
def test_names_that_are_right_or_no_concern_of_memory_change_nothing(text):
    assert answer(text + IN_PIECES).cause == answer(IN_PIECES).cause


def test_a_misspelt_setting_does_not_explain_a_program_that_needs_more_than_the_card():
    text = "$ export PYTORCH_CUDA_ALLOC_CONFIG=expandable_segments:True\n"
    assert answer(text + FULL).cause == "true-capacity"
