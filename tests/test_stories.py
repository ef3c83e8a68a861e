"""What programs printed of a failure, and what is made of it: every row of data/stories.json. All its texts are made up.

``of`` names the behaviour; ``error``, ``tools`` and ``box`` (facts; a name leads to ``boxes``) are handed over. Expected:
``cause`` (one of these), ``confidence`` (one of these), ``not`` (none of these causes), ``among`` (the cause, or left open),
``open`` and ``never`` (these causes are, are not, named), ``first`` (of those left open), ``unsure`` (this cause is not likely),
``says`` and ``silent`` (words of the answer as printed), ``step`` and ``no_step`` (words of the next step), ``observed`` and
``unobserved`` (observations), ``unseen`` (an id that no evidence has), ``shown`` (a message is read).
"""

import json
from pathlib import Path

import pytest

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence
from helpers.judge.observations import observe
from helpers.tell.verdict import as_text

DATA = json.loads((Path(__file__).parent / "data" / "stories.json").read_text())
KNOWN = {"of", "error", "tools", "box"}
EXPECTED = set(
    "cause confidence not among open never first unsure says silent step no_step".split()
)
EXPECTED |= {"observed", "unobserved", "unseen", "shown"}


def evidence_of(row):
    box = row.get("box", {})
    return case_evidence({
        "error_text": row.get("error", ""),
        "tool_outputs": row.get("tools", {}),
        "environment": DATA["boxes"].get(str(box), box),
    })  # fmt: skip


@pytest.mark.parametrize("row", DATA["stories"], ids=lambda row: row["of"])
def test_a_failure_gets_the_answer_that_a_person_would_give(row):
    evidence = evidence_of(row)
    verdict = diagnose(evidence)
    others = [other.cause for other in verdict.alternatives]
    named = {verdict.cause, *others}
    words = " ".join(as_text(verdict).split())
    step = verdict.next_step
    advice = f"{step.what} {step.command} {step.precondition}"
    observed = {observation.name for observation in observe(evidence)}
    excluded = row.get("not", "")
    if "cause" in row:
        assert verdict.cause in row["cause"].split()
    if "confidence" in row:
        assert verdict.confidence in row["confidence"].split()
    assert verdict.cause not in DATA["causes"].get(excluded, excluded).split()
    if "among" in row and verdict.cause != row["among"]:
        assert verdict.cause == "cannot-tell"
        assert row["among"] in others
    assert named >= set(row.get("open", ()))
    assert not named & set(row.get("never", ()))
    if "first" in row:
        assert others[0] == row["first"]
    assert (verdict.cause, verdict.confidence) != (row.get("unsure"), "likely")
    assert [text for text in row.get("says", ()) if text not in words] == []
    assert [text for text in row.get("silent", ()) if text in words] == []
    assert [text for text in row.get("step", ()) if text not in advice] == []
    assert [text for text in row.get("no_step", ()) if text in advice] == []
    assert observed >= set(row.get("observed", ()))
    assert not observed & set(row.get("unobserved", ()))
    assert verdict.evidence
    if "unseen" in row:
        assert [seen for seen in verdict.evidence if seen.id.startswith(row["unseen"])] == []
    if row.get("shown"):
        assert evidence.messages


def test_every_row_of_the_stories_expects_something_in_words_that_are_known():
    for row in DATA["stories"]:
        assert set(row) <= KNOWN | EXPECTED
        assert {"error", "tools", "box"} & set(row)
        assert EXPECTED & set(row), row["of"]


PROSE = (
    "My card gets full after an hour, somebody else uses it, and only a reboot frees the memory."
)


@pytest.mark.parametrize("place", ["error_text", "narrative"])
def test_prose_is_not_read_and_the_answer_asks_for_the_output_itself(place):
    verdict = diagnose(case_evidence({place: PROSE}))
    assert (verdict.cause, verdict.confidence) == ("cannot-tell", "weak")
    assert "Paste the program's output itself" in verdict.summary
    assert verdict.next_step.command == "python your_program.py 2>&1 | tee error.txt"


def test_a_story_beside_a_message_changes_nothing():
    error = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    alone = diagnose(case_evidence({"error_text": error}))
    assert diagnose(case_evidence({"error_text": error, "narrative": PROSE})) == alone
