"""The JSON shapes: unknown keys are refused, schemas are printed from them, and pydantic checks the dataclasses alike."""

import json
import re
from pathlib import Path

import pytest
from data_rows import read_rows
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from helpers.batch.shapes import STATES, Run
from helpers.commands.workbook import SHAPES, schema_text
from helpers.ground.contract import as_dict, from_json, one_line, to_json
from helpers.ground.replays import FirstOom, Replay, WhatIf
from helpers.ground.shapes import CAUSES, Evidence, NextStep, Reading, Verdict, not_available, seen
from helpers.look.bundle import Manifest, open_bundle

BOXES = Path(__file__).resolve().parents[1] / "env" / "boxes"
STEP = {"what": "paste the error message"}
READING = {"value": 1, "unit": "bytes", "status": "ok", "why": "", "source": "s", "item": "i"}
VERDICT = Verdict(
    cause="permission",
    confidence="confirmed",
    next_step=NextStep(**STEP),
    evidence=[
        Evidence("e1", seen(0, "bytes", "/sys/x", "x"), "a true zero"),
        Evidence("e2", not_available("no such tool", "bytes", "rocm-smi"), "unknown"),
    ],
)
RUN = {"run_id": "1", "batch_id": "b", "box": "x", "notebook": "n.ipynb"}
REPLAY = Replay(9, 1, FirstOom(4, 512), 10, 20, 0, "", "2.6.0", "cuda", "oracle", passes=False)


@pytest.mark.parametrize("name", SHAPES)
def test_a_printed_schema_is_one_and_refuses_unknown_keys(name):
    schema = json.loads(schema_text(name))
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False and schema["description"]


def test_what_files_hold_is_what_the_schema_says():
    whatif = WhatIf(1024, [REPLAY], "", 0)
    run = json.loads(Run(**RUN, verdict=VERDICT).model_dump_json())
    for name, value in (("verdict", as_dict(VERDICT)), ("whatif", as_dict(whatif)), ("run", run)):
        schema = Draft202012Validator(json.loads(schema_text(name)))
        assert schema.is_valid(value) and not schema.is_valid({**value, "odd": 1})


@pytest.mark.parametrize("box", sorted(path.parent.name for path in BOXES.glob("*/manifest.json")))
def test_the_manifest_of_a_recorded_box_has_the_shape(box):
    manifest = json.loads((BOXES / box / "manifest.json").read_text())
    assert from_json(Manifest, manifest).box == box == open_bundle(BOXES / box).box


def test_a_verdict_survives_the_way_through_json():
    assert from_json(Verdict, to_json(VERDICT)) == from_json(Verdict, as_dict(VERDICT)) == VERDICT
    assert json.loads(to_json(VERDICT, indent=1)) == as_dict(VERDICT)


@pytest.mark.parametrize("first", [None, FirstOom(4, 512)])
def test_a_replay_survives_the_way_through_json(first):
    whatif = WhatIf(1024, [Replay(**{**vars(REPLAY), "first_oom": first})], "", 0)
    assert from_json(WhatIf, to_json(whatif)) == whatif
    with pytest.raises(ValueError, match="whatif: rows.0.first_oom: seen 'x'; expected an object"):
        from_json(WhatIf, {**as_dict(whatif), "rows": [{**as_dict(REPLAY), "first_oom": "x"}]})


def test_a_run_holds_the_verdict_as_it_is_written_by_itself():
    run = Run(**RUN, verdict=VERDICT)
    written = json.loads(run.model_dump_json())["verdict"]
    assert json.dumps(written) == json.dumps(as_dict(VERDICT))
    assert Run.model_validate_json(run.model_dump_json()) == run


def test_a_verdict_written_before_it_had_a_title_still_loads():
    old = {key: value for key, value in as_dict(VERDICT).items() if key not in ("state", "title")}
    assert from_json(Verdict, old) == VERDICT
    assert Run.model_validate({**RUN, "verdict": old}).verdict == VERDICT


def test_keys_stand_in_the_order_of_the_contract():
    keys = "schema_version cause confidence state title error summary alternatives evidence against"
    assert list(as_dict(VERDICT)) == [*keys.split(), "missing", "next_step"]


GOOD = {"cause": "permission", "confidence": "confirmed", "next_step": STEP}
WRONG = read_rows("shapes wrong")


@pytest.mark.parametrize(("change", "line"), WRONG)
def test_what_is_wrong_with_a_verdict_is_said_in_one_line_also_inside_a_run(change, line):
    with pytest.raises(ValueError) as caught:
        from_json(Verdict, {**GOOD, **change})
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
    with pytest.raises(ValidationError) as refused:
        Run.model_validate({**RUN, "verdict": {**GOOD, **change}})
    said = one_line(refused.value, "run")
    assert said.startswith("run: verdict") and (": seen " in said or ": expected " in said)
    assert "\n" not in said and not re.search("Unexpected|Input should", said), (
        "pydantic's words are not ours"
    )


def test_true_is_no_version():
    with pytest.raises(ValueError, match="schema_version: seen True; expected a whole number"):
        from_json(Verdict, {**GOOD, "schema_version": True})


def test_a_verdict_with_a_word_outside_the_vocabulary_cannot_be_made():
    with pytest.raises(ValueError, match="gremlins"):
        Verdict(cause="gremlins", confidence="weak", next_step=NextStep(**STEP))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)
KEYED = st.dictionaries(st.sampled_from([*as_dict(VERDICT)]), JSON)


@given(st.text(max_size=40) | st.binary(max_size=40) | JSON | KEYED)
def test_any_input_is_a_verdict_or_refused_in_one_line(data):
    try:
        assert from_json(Verdict, from_json(Verdict, data)) == from_json(Verdict, data)
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 800


def test_an_unknown_key_of_any_characters_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"verdict: \\x0a\\x1b: unknown key"):
        from_json(Verdict, {"\n\x1b": None})


def test_json_nested_without_end_is_refused():
    with pytest.raises(ValueError, match="verdict: no JSON"):
        from_json(Verdict, "[" * 200_000)


def test_a_reading_with_an_unknown_key_is_refused():
    assert TypeAdapter(Reading).validate_python(READING) == Reading(**READING)
    with pytest.raises(ValidationError):
        TypeAdapter(Reading).validate_python({**READING, "units": "bytes"})


def test_the_words_of_the_contracts_are_the_projects_vocabulary():
    assert len(CAUSES) == 22 and {"cannot-tell", "other", "ttm-gtt-cap"} <= set(CAUSES)
    assert STATES[:3] == ("planned", "started", "answered")
