"""What a person hands over, and what is made of it: every row of data/stories.json. All its texts are made up.

``of`` names the behaviour; ``error``, ``story`` (prose), ``tools`` and ``box`` (facts; a name leads to ``boxes``) are handed
over. Expected: ``cause`` (one of these), ``confidence`` (one of these), ``not`` (none of these causes), ``among`` (the cause, or
left open), ``open`` and ``never`` (these causes are, are not, named), ``first`` (of those left open), ``unsure`` (this cause is
not likely), ``says`` and ``silent`` (words of the answer as printed), ``step`` and ``no_step`` (words of the next step), ``read``
and ``unread`` (statements), ``observed`` and ``unobserved`` (observations), ``unseen`` (an id that no evidence has),
``shown`` (a message is read).
"""

import json
from pathlib import Path

import pytest

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence
from helpers.judge.observations import observe, statement_observations
from helpers.tell.verdict import as_text

DATA = json.loads((Path(__file__).parent / "data" / "stories.json").read_text())


@pytest.mark.parametrize("row", DATA["stories"], ids=lambda row: row["of"])
def test_a_story_gets_the_answer_that_a_person_would_give(row):
    box = row.get("box", {})
    given = {"error_text": row.get("error", ""), "narrative": row.get("story", "")}
    given.update(tool_outputs=row.get("tools", {}), environment=DATA["boxes"].get(str(box), box))
    evidence = case_evidence(given)
    verdict = diagnose(evidence)
    others = [other.cause for other in verdict.alternatives]
    named = {verdict.cause, *others}
    step = verdict.next_step
    words = " ".join(as_text(verdict).split())
    advice = f"{step.what} {step.command} {step.precondition}"
    read = {one.name for one in statement_observations(evidence)}
    observed = {one.name for one in observe(evidence)}
    assert verdict.cause in row.get("cause", verdict.cause).split()
    assert verdict.confidence in row.get("confidence", verdict.confidence).split()
    excluded = row.get("not", "")
    assert verdict.cause not in DATA["causes"].get(excluded, excluded).split()
    label = row.get("among", verdict.cause)
    assert label == verdict.cause or (verdict.cause == "cannot-tell" and label in others)
    assert named >= set(row.get("open", ())) and not named & set(row.get("never", ()))
    assert "first" not in row or others[0] == row["first"]
    assert (verdict.cause, verdict.confidence) != (row.get("unsure"), "likely")
    assert not [text for text in row.get("says", ()) if text not in words]
    assert not [text for text in row.get("silent", ()) if text in words]
    assert not [text for text in row.get("step", ()) if text not in advice]
    assert not [text for text in row.get("no_step", ()) if text in advice]
    assert read >= set(row.get("read", ())) and not read & set(row.get("unread", ()))
    assert observed >= set(row.get("observed", ()))
    assert not observed & set(row.get("unobserved", ()))
    seen = [one for one in verdict.evidence if one.id.startswith(row.get("unseen", "\0"))]
    assert verdict.evidence and not seen
    assert evidence.messages or not row.get("shown")


def test_every_row_of_the_stories_expects_something_in_words_that_are_known():
    known = set("of error story tools box cause confidence not among open never first".split())
    known |= set(
        "unsure says silent step no_step read unread observed unobserved unseen shown".split()
    )
    for row in DATA["stories"]:
        assert set(row) <= known and {"error", "story", "tools", "box"} & set(row)
