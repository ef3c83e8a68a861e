"""The model does, event by event, what the real allocator of five CUDA releases and of two ROCm builds did: results of tests/oracle."""

from pathlib import Path

import pytest

from tests.oracle import compare, golden, jobs

HERE = Path(__file__).resolve().parent
OURS = sorted((HERE / "golden").glob("*/*.jsonl.xz"))
SHARED_FOLDER = HERE.parent / ".." / "shared" / "oracle" / "golden"
SHARED = sorted(SHARED_FOLDER.glob("*.jsonl*"))


def held_against(path, engine):
    real = compare.read(path)
    job = real[0]["job"]
    torch = real[0]["torch"]
    model = compare.model(job, compare.operations(real), torch, engine)
    return compare.first_difference(real, model)


@pytest.mark.parametrize("engine", ["plain", "compiled"])
@pytest.mark.parametrize(
    "path", OURS, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}"
)
def test_the_model_does_what_the_real_allocator_did(path, engine):
    if engine == "compiled":
        pytest.importorskip("numba")
    assert held_against(path, engine) == ""


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason="no ../shared/oracle/golden beside this checkout")
@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.name.split(".")[0])
def test_the_model_does_what_the_shared_results_say(path):
    assert held_against(path, "auto") == ""


def test_the_golden_results_cover_every_configuration_and_character():
    made = [job for job, _ in jobs.golden("2.14.1")]
    configurations = {(job["conf"], job["fraction"], job["policy"]) for job in made}
    assert len(configurations) == len(jobs.CONFIGURATIONS) == 36
    kinds = {job["name"].split("_", 1)[1] for job in made}
    assert kinds == set(jobs.KINDS) and len(kinds) == 12


@pytest.mark.parametrize(
    "torch",
    ["2.6.0", "2.6.0+rocm6.4", "2.11.0", "2.12.1+rocm10.0", "2.13.0", "2.14.1", "2.15.0"],
)
def test_the_golden_results_are_those_of_the_generated_jobs(torch):
    made = {job["name"]: (job, ops) for job, ops in golden.made(torch)}
    kept = {
        path.name.split(".")[0]: compare.read(path) for path in OURS if path.parent.name == torch
    }
    assert kept.keys() == made.keys()
    for name, real in kept.items():
        job, ops = made[name]
        refused = "config_error" in real[-1]
        assert (real[0]["job"], compare.operations(real)) == (job, [] if refused else ops), name
        assert real[0]["torch"].startswith(torch) and (refused or "final" in real[-1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"off": 512}, "event 1: off 0 real, 512 model"),
        ({"drv": [["malloc", 0, 0, 2097152]]}, "event 1: drv None real"),
        ({"c": [0, 0, 1, 0, 7, None]}, "event 1: c "),
    ],
)
def test_a_difference_is_told_with_its_event(change, told):
    first = {"op": "reset_peak", "i": 0, "out": "ok", "n": [0] * 4, "c": [0] * 5 + [None]}
    first |= dict.fromkeys(("alloc", "res", "act", "req", "isplit"), 0)
    second = {**first, "op": "alloc", "i": 1, "seg": "m0", "off": 0, "bsize": 512}
    real = [{"job": {}}, first, second]
    assert compare.first_difference(real, real) == ""
    assert compare.first_difference(real, [{}, first, {**second, "c": [0, 0, 0, 0, 0, 3]}]) == ""
    assert compare.first_difference(real, [{}, first, {**second, **change}]).startswith(told)
    assert compare.first_difference(real, real[:2]) == "3 lines real, 2 model"
