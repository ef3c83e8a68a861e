"""The JSON shapes: unknown keys are refused, the exported schemas agree, and pydantic checks the dataclasses alike."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from helpers.look.bundle import open_bundle
from helpers.look.reading import Reading, not_available, seen
from helpers.run import shapes
from helpers.shapes import (
    CAUSES,
    Evidence,
    NextStep,
    Ttm,
    Verdict,
    as_dict,
    from_json,
    json_schema,
    to_json,
)

ROOT = Path(__file__).resolve().parents[1]
STEP = {"what": "paste the error message"}


@pytest.mark.parametrize("name", sorted(shapes.SHAPES))
def test_the_exported_schema_is_the_models(name):
    assert (shapes.SCHEMA_FOLDER / f"{name}.json").read_text() == shapes.schema(name), (
        "run: python -m helpers schema --write"
    )


def test_no_schema_is_left_over():
    assert {path.stem for path in shapes.SCHEMA_FOLDER.glob("*.json")} == set(shapes.SHAPES)


@pytest.mark.parametrize(
    "box", sorted(p.parent.name for p in (ROOT / "env" / "boxes").glob("*/manifest.json"))
)
def test_the_manifest_of_a_recorded_box_has_the_shape(box):
    manifest = json.loads((ROOT / "env" / "boxes" / box / "manifest.json").read_text())
    assert (
        from_json(shapes.Manifest, manifest).box
        == box
        == open_bundle(ROOT / "env" / "boxes" / box).box
    )


VERDICT = Verdict(
    cause="permission",
    confidence="confirmed",
    next_step=NextStep(**STEP),
    evidence=[
        Evidence(id="e1", reading=seen(0, "bytes", "/sys/x", "x"), says="a true zero"),
        Evidence(
            id="e2", reading=not_available("no such tool", "bytes", "rocm-smi"), says="unknown"
        ),
    ],
)
RUN = {"run_id": "1", "batch_id": "b", "box": "x", "notebook": "n.ipynb"}


def test_a_verdict_survives_the_way_through_json():
    assert from_json(Verdict, to_json(VERDICT)) == from_json(Verdict, as_dict(VERDICT)) == VERDICT
    assert json.loads(to_json(VERDICT, indent=1)) == as_dict(VERDICT)


def test_a_run_holds_the_verdict_as_it_is_written_by_itself():
    run = shapes.Run(**RUN, verdict=VERDICT)
    written = json.loads(run.model_dump_json())["verdict"]
    assert json.dumps(written) == json.dumps(as_dict(VERDICT))
    assert shapes.Run.model_validate_json(run.model_dump_json()) == run


def test_a_verdict_written_before_it_had_a_title_still_loads():
    old = {key: value for key, value in as_dict(VERDICT).items() if key not in ("state", "title")}
    assert from_json(Verdict, old) == VERDICT
    assert shapes.Run.model_validate({**RUN, "verdict": old}).verdict == VERDICT


def test_keys_stand_in_the_order_of_the_contract():
    assert list(as_dict(VERDICT)) == [
        "schema_version",
        "cause",
        "confidence",
        "state",
        "title",
        "summary",
        "alternatives",
        "evidence",
        "against",
        "missing",
        "next_step",
    ]


@pytest.mark.parametrize("shape", [Verdict, Ttm, Reading])
def test_the_schema_of_a_dataclass_is_what_pydantic_makes_of_it(shape):
    assert json_schema(shape) == TypeAdapter(shape).json_schema()


@pytest.mark.parametrize(
    "bad",
    [
        {"cause": "permission", "confidence": "confirmed", "next_step": STEP, "cuase": "x"},
        {"cause": "gremlins", "confidence": "confirmed", "next_step": STEP},
        {"cause": "permission", "confidence": "certain", "next_step": STEP},
        {"cause": "permission", "confidence": "confirmed"},
        {"cause": "permission", "confidence": "confirmed", "next_step": STEP, "schema_version": 2},
    ],
)
def test_a_verdict_outside_the_vocabulary_is_refused_in_one_line(bad):
    with pytest.raises(ValueError, match="^verdict: .*(expected|update the workbook)") as caught:
        from_json(Verdict, bad)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError) as refused:
        shapes.Run.model_validate({**RUN, "verdict": bad})
    line = shapes.one_line(refused.value, "run")
    assert line.startswith("run: verdict") and "\n" not in line


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"next_step": {"what": 3}}, "verdict: next_step.what: seen 3; expected text"),
        (
            {"cause": "gremlins"},
            "verdict: cause: seen 'gremlins'; expected one of 'external-holder'",
        ),
        (
            {"missing": [{"reading": "x", "how": "y"}, {"how": "y"}]},
            "verdict: missing.1.reading: nothing seen; expected text",
        ),
        (
            {"next_step": {**STEP, "sudo": "x"}},
            "verdict: next_step.sudo: unknown key; expected what, command",
        ),
        (
            {
                "evidence": [
                    {
                        "id": "e",
                        "says": "x",
                        "reading": {
                            "value": None,
                            "unit": "bytes",
                            "status": "ok",
                            "why": "",
                            "source": "",
                            "item": "",
                        },
                    }
                ]
            },
            "verdict: evidence.0.reading: status 'ok' does not go with value None",
        ),
        ({"schema_version": True}, "verdict: schema_version: seen True; expected a whole number"),
    ],
)
def test_what_is_wrong_is_told_with_where_seen_and_expected(change, line):
    with pytest.raises(ValueError) as caught:
        from_json(Verdict, {**as_dict(VERDICT), **change})
    assert str(caught.value).startswith(line)


def test_a_verdict_with_a_word_outside_the_vocabulary_cannot_be_made():
    with pytest.raises(ValueError, match="gremlins"):
        Verdict(cause="gremlins", confidence="weak", next_step=NextStep(**STEP))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)


@given(
    st.text(max_size=40)
    | st.binary(max_size=40)
    | JSON
    | st.dictionaries(st.sampled_from([*as_dict(VERDICT)]), JSON)
)
def test_any_input_is_a_verdict_or_refused_in_one_line(data):
    try:
        assert from_json(Verdict, from_json(Verdict, data)) == from_json(Verdict, data)
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 800


def test_json_nested_without_end_is_refused():
    with pytest.raises(ValueError, match="verdict: no JSON"):
        from_json(Verdict, "[" * 200_000)


def test_a_reading_with_an_unknown_key_is_refused():
    good = {"value": 1, "unit": "bytes", "status": "ok", "why": "", "source": "s", "item": "i"}
    assert TypeAdapter(Reading).validate_python(good) == Reading(**good)
    with pytest.raises(ValidationError):
        TypeAdapter(Reading).validate_python({**good, "units": "bytes"})


def test_the_causes_are_the_projects_vocabulary():
    assert len(CAUSES) == 22 and {"cannot-tell", "other", "ttm-gtt-cap"} <= set(CAUSES)
    assert shapes.STATES[:3] == ("planned", "started", "answered")
