"""The JSON shapes: unknown keys are refused, the exported schemas agree, dataclasses of look are the shapes' own."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from helpers.look.bundle import open_bundle
from helpers.look.reading import Reading, not_available, seen
from helpers.run import shapes

ROOT = Path(__file__).resolve().parents[1]
STEP = {"what": "paste the error message"}


@pytest.mark.parametrize("name", sorted(shapes.SHAPES))
def test_the_exported_schema_is_the_models(name):
    assert (shapes.SCHEMA_FOLDER / f"{name}.json").read_text() == shapes.schema(name), "run: python -m helpers schema --write"


def test_no_schema_is_left_over():
    assert {path.stem for path in shapes.SCHEMA_FOLDER.glob("*.json")} == set(shapes.SHAPES)


@pytest.mark.parametrize("box", sorted(p.parent.name for p in (ROOT / "env" / "boxes").glob("*/manifest.json")))
def test_the_manifest_of_a_recorded_box_has_the_shape(box):
    manifest = json.loads((ROOT / "env" / "boxes" / box / "manifest.json").read_text())
    assert shapes.Manifest.model_validate(manifest).box == box == open_bundle(ROOT / "env" / "boxes" / box).box


def test_a_verdict_survives_the_way_through_json():
    verdict = shapes.Verdict(cause="permission", confidence="confirmed", next_step=shapes.NextStep(**STEP), evidence=[
        shapes.Evidence(id="e1", reading=seen(0, "bytes", "/sys/x", "x"), says="a true zero"),
        shapes.Evidence(id="e2", reading=not_available("no such tool", "bytes", "rocm-smi"), says="unknown")])
    assert shapes.Verdict.model_validate_json(verdict.model_dump_json()) == verdict


@pytest.mark.parametrize("bad", [
    {"cause": "permission", "confidence": "confirmed", "next_step": STEP, "cuase": "x"},
    {"cause": "gremlins", "confidence": "confirmed", "next_step": STEP},
    {"cause": "permission", "confidence": "certain", "next_step": STEP},
    {"cause": "permission", "confidence": "confirmed"},
    {"cause": "permission", "confidence": "confirmed", "next_step": STEP, "schema_version": 2},
])
def test_a_verdict_outside_the_vocabulary_is_refused_in_one_line(bad):
    with pytest.raises(ValidationError) as caught:
        shapes.Verdict.model_validate(bad)
    line = shapes.one_line(caught.value, "verdict")
    assert line.startswith("verdict: ") and "\n" not in line


def test_a_reading_with_an_unknown_key_is_refused():
    good = {"value": 1, "unit": "bytes", "status": "ok", "why": "", "source": "s", "item": "i"}
    assert TypeAdapter(Reading).validate_python(good) == Reading(**good)
    with pytest.raises(ValidationError):
        TypeAdapter(Reading).validate_python({**good, "units": "bytes"})


def test_the_causes_are_the_projects_vocabulary():
    assert len(shapes.CAUSES) == 22 and {"cannot-tell", "other", "ttm-gtt-cap"} <= set(shapes.CAUSES)
    assert shapes.STATES[:3] == ("planned", "started", "answered")
