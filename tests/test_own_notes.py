"""What this workbook prints beside a program's output is no evidence of why the program failed."""

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message
from helpers.look.messages import without_own_notes

PINNED = """Traceback (most recent call last):
  File "load.py", line 9, in <module>
    rows = rows.pin_memory()
torch.AcceleratorError: CUDA error: out of memory
"""
NOTES = """
casebook:
Nothing failed in this recording; at its peak 1.50 KiB was allocated

Why
  4.00 MiB: Reserved on the card at the peak

casebook: rehearsed on CUDA card, 9.00 GiB, torch 2.14.1+cu130: does not fit; peak
  allocated 1.50 KiB, reserved 4.00 MiB, 0 retries, out of memory once, 8.3 s
casebook: recording: /tmp/run.pickle
"""


def test_a_rehearsals_notes_change_nothing_in_the_answer_to_what_the_program_printed():
    alone = diagnose(evidence_from_message(PINNED))
    beside = diagnose(evidence_from_message(PINNED + NOTES))
    assert (beside.cause, beside.title) == (alone.cause, alone.title)
    assert alone.cause == "host-oom"


def test_what_the_program_prints_after_a_note_stays():
    text = NOTES + PINNED
    blank = without_own_notes(text)
    assert blank.endswith(PINNED)
    assert len(blank) == len(text)
    assert blank[: len(NOTES)].strip() == ""
