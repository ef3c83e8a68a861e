"""A plan is checked whole before anything runs, and what is wrong with it fits on one line."""

import ast
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.run.notebook import NotebookError, check_parameters, open_notebook, parameters
from helpers.run.plan import PlanError, load_plan

NOTEBOOKS = Path(__file__).parent / "notebooks"


@pytest.fixture
def plan(tmp_path):
    """Writes a plan beside the notebook that takes parameters and loads it."""
    shutil.copy(NOTEBOOKS / "takes_parameters.ipynb", tmp_path)
    shutil.copy(NOTEBOOKS / "needs_no_verdict.ipynb", tmp_path)

    def load(runs, head="name: try", box=""):
        (tmp_path / "plan.yaml").write_text(f"{head}\nruns:\n{runs}\n")
        return load_plan(tmp_path / "plan.yaml", box)

    return load


def refused(call, *args, **kwargs):
    with pytest.raises(PlanError) as caught:
        call(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    assert "plan.yaml" in line
    return line


def test_a_grid_and_repeats_become_runs_in_the_order_of_the_file(plan):
    steps = plan("- {notebook: needs_no_verdict.ipynb}\n"
                 "- {notebook: takes_parameters.ipynb, grid: {steps: [1, 2], deep: [true, false]}, repeats: 2}").steps
    assert [(s.parameters.get("steps"), s.parameters.get("deep")) for s in steps] == [
        (None, None), (1, True), (1, True), (1, False), (1, False), (2, True), (2, True), (2, False), (2, False)]
    assert [s.run_id for s in steps] == sorted(s.run_id for s in steps)
    assert all("takes_parameters" in s.run_id for s in steps[1:])
    hashes = [s.run_id.rpartition("-")[2] for s in steps]
    assert hashes[1] == hashes[2] and len(set(hashes)) == 5


def test_the_same_plan_gives_the_same_ids_and_digest(plan):
    text = "- {notebook: takes_parameters.ipynb, parameters: {rate: 2}, box: cpu-only}"
    first, second = plan(text), plan(text)
    assert first.steps == second.steps and first.sha256 == second.sha256 and len(first.sha256) == 64
    assert plan(text.replace("cpu-only", "cuda-healthy")).steps[0].run_id != first.steps[0].run_id


def test_limits_fall_back_from_run_to_plan_to_the_defaults(plan):
    steps = plan("- {notebook: needs_no_verdict.ipynb, limits: {cell_s: 1}}\n- {notebook: needs_no_verdict.ipynb}",
                 "name: try\nlimits: {run_s: 50}")
    assert [(s.cell_s, s.run_s) for s in steps.steps] == [(1, 50), (120, 50)]
    assert steps.total_s == 3600


def test_a_box_is_live_a_recorded_name_or_a_path(plan, tmp_path):
    (tmp_path / "mine.tar.gz").write_bytes(b"")
    steps = plan("- {notebook: takes_parameters.ipynb}\n- {notebook: takes_parameters.ipynb, box: cpu-only}\n"
                 "- {notebook: takes_parameters.ipynb, box: mine.tar.gz}\n- {notebook: needs_no_verdict.ipynb}").steps
    assert [(s.box, s.box_name) for s in steps] == [
        ("live", "live"), ("cpu-only", "cpu-only"), (str(tmp_path / "mine.tar.gz"), "mine"), ("live", "")]


def test_another_box_takes_the_place_of_live_and_of_nothing_else(plan):
    steps = plan("- {notebook: takes_parameters.ipynb}\n- {notebook: takes_parameters.ipynb, box: cpu-only}",
                 box="cuda-healthy").steps
    assert [s.box for s in steps] == ["cuda-healthy", "cpu-only"]


def test_a_grid_may_go_over_boxes(plan):
    steps = plan("- {notebook: takes_parameters.ipynb, grid: {box: [cpu-only, cuda-healthy]}}").steps
    assert [(s.box, s.parameters) for s in steps] == [("cpu-only", {}), ("cuda-healthy", {})]


@pytest.mark.parametrize(("runs", "said"), [
    ("- {notebook: takes_parameters.ipynb, parameters: {stpes: 3}}", ("runs.0", "no parameter 'stpes'", "box, steps, rate")),
    ("- {notebook: takes_parameters.ipynb, parameters: {steps: three}}", ("'steps'", "'three' (str)", "expected int")),
    ("- {notebook: takes_parameters.ipynb, parameters: {steps: true}}", ("'steps'", "True (bool)", "expected int")),
    ("- {notebook: takes_parameters.ipynb, parameters: {deep: 1}}", ("'deep'", "expected bool")),
    ("- {notebook: takes_parameters.ipynb, parameters: {sizes: [1, x]}}", ("'sizes'", "expected list[int]")),
    ("- {notebook: takes_parameters.ipynb, parameters: {out: 2024-01-01}}", ("'out'", "(date)", "expected str")),
    ("- {notebook: takes_parameters.ipynb, grid: {steps: []}}", ("grid.steps", "empty")),
    ("- {notebook: takes_parameters.ipynb, grid: {steps: [1]}, parameters: {steps: 1}}", ("'steps'", "one of them")),
    ("- {notebook: takes_parameters.ipynb, box: cpu-only, parameters: {box: cpu-only}}", ("'box'", "one of them")),
    ("- {notebook: takes_parameters.ipynb, box: nope}", ("box: seen 'nope'", "cpu-only")),
    ("- {notebook: takes_parameters.ipynb, preset: tight}", ("no parameter 'preset'", "tight")),
    ("- {notebook: needs_no_verdict.ipynb, box: cpu-only}", ("no parameter 'box'", "leave it out")),
    ("- {notebook: missing.ipynb}", ("'missing.ipynb'", "beside the plan")),
    ("- {notebook: takes_parameters.ipynb, notbook: x}", ("runs.0.notbook", "not permitted")),
    ("- {notebook: takes_parameters.ipynb, repeats: 0}", ("runs.0.repeats", "greater than or equal to 1")),
    ("- {notebook: takes_parameters.ipynb, repeats: 1, repeats: 2}", ("line 3", "'repeats' stands twice")),
    ("- {notebook: [}", ("line 3", "YAML")),
    ("  []", ("runs", "at least 1")),
])
def test_a_wrong_plan_is_refused_in_one_line_that_says_where(plan, runs, said):
    line = refused(plan, runs)
    assert [part for part in said if part not in line] == []


@pytest.mark.parametrize("head", ["name: ../x", "name: ''", "name: try\nlimits: {cell_s: -1}", "name: try\nlimit: {}",
                                  "nome: try"])
def test_a_wrong_head_is_refused(plan, head):
    refused(plan, "- {notebook: needs_no_verdict.ipynb}", head)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"- 1", b"just text", b"!!python/object/apply:os.system [ls]",
                                     b"a: &a [*a]"])
def test_a_file_that_is_no_plan_is_refused(tmp_path, content):
    (tmp_path / "plan.yaml").write_bytes(content)
    refused(load_plan, tmp_path / "plan.yaml")


def test_a_plan_that_is_not_there_is_refused(tmp_path):
    refused(load_plan, tmp_path / "plan.yaml")


@pytest.mark.parametrize(("content", "said"), [
    ("not JSON", "no JSON"),
    ("{}", "no nbformat number"),
    ("[1]", "no nbformat number"),
    (json.dumps({"nbformat": 5, "nbformat_minor": 0, "metadata": {}, "cells": []}), "nbformat 5; this workbook reads up to 4"),
    (json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "cod"}]}), "broken notebook"),
    (json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}}), "broken notebook"),
    (json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [
        {"cell_type": "markdown", "metadata": {"timeout": "5"}, "source": ""}]}), "cell 0: metadata.timeout: seen '5'"),
    (json.dumps({"nbformat": 4, "nbformat_minor": 4, "cells": [],
                 "metadata": {"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}}}), "written for R"),
])
def test_a_file_that_is_no_notebook_of_ours_is_refused_before_anything_runs(plan, tmp_path, content, said):
    (tmp_path / "odd.ipynb").write_text(content)
    assert said in refused(plan, "- {notebook: needs_no_verdict.ipynb}\n- {notebook: odd.ipynb}")


def test_a_newer_minor_format_is_read(tmp_path):
    (tmp_path / "n.ipynb").write_text(json.dumps({"nbformat": 4, "nbformat_minor": 9, "metadata": {}, "cells": []}))
    assert open_notebook(tmp_path / "n.ipynb").cells == []


def test_parameters_are_read_with_their_annotations():
    known = parameters(open_notebook(NOTEBOOKS / "takes_parameters.ipynb"))
    assert {name: ast.unparse(kind) for name, kind in known.items()} == {
        "box": "str", "steps": "int", "rate": "float", "deep": "bool", "sizes": "list[int]", "batch": "str", "out": "str"}


KINDS = {"str": st.text(), "int": st.integers(), "float": st.floats(allow_nan=False, allow_infinity=False),
         "bool": st.booleans(), "list[int]": st.lists(st.integers()), "str | None": st.none() | st.text(),
         "Optional[str]": st.text(), "dict[str, int]": st.dictionaries(st.text(), st.integers()), "'int'": st.integers(),
         "Path": st.text()}


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_a_value_of_the_annotated_type_is_always_taken(data, kind):
    check_parameters({"x": ast.parse(kind, mode="eval").body}, {"x": data.draw(KINDS[kind])})


@pytest.mark.parametrize(("kind", "value"), [
    ("str", 1), ("int", 1.5), ("int", "1"), ("float", "1"), ("float", True), ("bool", "yes"), ("bool", 0), ("list", {}),
    ("list[int]", [1, "2"]), ("str | None", 1), ("dict[str, int]", []), ("'int'", "1"), ("Path", {1, 2})])
def test_a_value_of_another_type_is_refused(kind, value):
    with pytest.raises(NotebookError):
        check_parameters({"x": ast.parse(kind, mode="eval").body}, {"x": value})


def test_every_committed_plan_names_only_keys_that_exist():
    from helpers.run.plan import NOTEBOOKS as COMMITTED

    plans = sorted((COMMITTED / "plans").glob("*.yaml"))
    assert plans
    for path in plans:
        if all((COMMITTED / run).exists() for run in _notebooks(path)):
            assert load_plan(path).steps


def _notebooks(path):
    import yaml

    return [run["notebook"] for run in yaml.safe_load(path.read_text())["runs"]]
