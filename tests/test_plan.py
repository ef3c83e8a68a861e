"""A plan is checked whole before anything runs, and what is wrong with it fits on one line."""

import ast
import json
import shutil
from pathlib import Path

import nbformat
import pytest
from data_rows import read_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook
from run_stand_in import NOTEBOOKS

from helpers.batch.dry_run import dry_run, dry_run_text, total_estimate_s
from helpers.batch.earlier_times import seconds_by_notebook
from helpers.batch.notebook_file import (
    NotebookError,
    allowed_values,
    check_parameters,
    open_notebook,
)
from helpers.batch.plan import PlanError, in_order, load_plan
from helpers.batch.plan_steps import NOTEBOOKS as COMMITTED
from helpers.batch.record import node, write_run
from helpers.batch.shapes import DANGERS, Run
from helpers.batch.step import Step
from helpers.look.bundle import BundleWriter
from helpers.trials.training import PATHS, SHAPES
from helpers.vpoc.counting import STRATEGIES


@pytest.fixture
def plan(tmp_path):
    """Writes a plan beside two notebooks and loads it."""
    for name in ("takes_parameters", "needs_no_verdict"):
        shutil.copy(NOTEBOOKS / f"{name}.ipynb", tmp_path)

    def load(runs, head="name: try", box="", measured=None):
        (tmp_path / "plan.yaml").write_text(f"{head}\nruns:\n{runs}\n")
        return load_plan(tmp_path / "plan.yaml", box, measured)

    return load


SAYS = {danger: f"{danger}.ipynb" for danger in DANGERS}


@pytest.fixture
def books(tmp_path):
    """Notebooks that say what they do to a box, beside the plan."""

    def write(name, **casebook):
        source = 'n: int = 1\nwhere: str = ""\ngpu: str = ""\npreset: str = ""'
        cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source}
        cell.update(outputs=[], execution_count=None)
        book = {"nbformat": 4, "nbformat_minor": 4, "cells": [cell]}
        (tmp_path / name).write_text(json.dumps({**book, "metadata": {"casebook": casebook}}))

    for says, name in SAYS.items():
        write(name, safety=says)
    return write


def refused(call, *args, **kwargs):
    with pytest.raises(PlanError) as caught:
        call(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line and "plan.yaml" in line
    return line


TAKES = "- {notebook: takes_parameters.ipynb"
NEEDS = "- {notebook: needs_no_verdict.ipynb"
LOOKS = "- {notebook: looks.ipynb"


def test_a_grid_and_repeats_become_runs_in_the_order_of_the_file(plan):
    grid = f"{TAKES}, grid: {{steps: [1, 2], deep: [true, false]}}, repeats: 2}}"
    steps = plan(f"{NEEDS}}}\n{grid}").steps
    pairs = [(step.parameters.get("steps"), step.parameters.get("deep")) for step in steps]
    twice = [pair for one in (1, 2) for pair in [(one, True)] * 2 + [(one, False)] * 2]
    assert pairs == [(None, None), *twice]
    assert [step.run_id for step in steps] == sorted(step.run_id for step in steps)
    assert all("takes_parameters" in step.run_id for step in steps[1:])
    hashes = [step.run_id.rpartition("-")[2] for step in steps]
    assert hashes[1] == hashes[2] and len(set(hashes)) == 5


def test_the_same_plan_gives_the_same_ids_and_digest(plan):
    text = f"{TAKES}, parameters: {{rate: 2}}, box: cpu-only}}"
    first = plan(text)
    second = plan(text)
    assert first.steps == second.steps and first.sha256 == second.sha256 and len(first.sha256) == 64
    assert plan(text.replace("cpu-only", "cuda-healthy")).steps[0].run_id != first.steps[0].run_id


def test_limits_fall_back_from_run_to_plan_to_the_defaults(plan):
    runs = f"{NEEDS}, limits: {{cell_s: 1}}}}\n{NEEDS}}}"
    steps = plan(runs, "name: try\nlimits: {run_s: 50}")
    assert [(step.cell_s, step.run_s) for step in steps.steps] == [(1, 50), (120, 50)]
    assert steps.total_s == 3600


def test_a_box_is_live_a_recorded_name_or_a_path_and_a_grid_may_go_over_boxes(plan, tmp_path):
    BundleWriter("mine", "recorded", "1", "2026-01-01T00:00:00Z").write(tmp_path / "mine.tar.gz")
    boxes = f"{TAKES}}}\n{TAKES}, box: cpu-only}}\n{TAKES}, box: mine.tar.gz}}\n{NEEDS}}}"
    steps = plan(boxes).steps
    mine = (str(tmp_path / "mine.tar.gz"), "mine")
    expected = [("live", "live"), ("cpu-only", "cpu-only"), mine, ("live", "")]
    assert [(step.box, step.box_name) for step in steps] == expected
    # Another box takes the place of live and of nothing else.
    others = [step.box for step in plan(boxes, box="cuda-healthy").steps[:2]]
    assert others == ["cuda-healthy", "cpu-only"]
    steps = plan(f"{TAKES}, grid: {{box: [cpu-only, cuda-healthy]}}}}").steps
    assert [(step.box, step.parameters) for step in steps] == [
        ("cpu-only", {}),
        ("cuda-healthy", {}),
    ]


def test_two_bundles_of_one_name_are_two_boxes_the_second_named_as_the_plan_names_it(
    plan, tmp_path
):
    places = ["a/one/oak", "b/one/oak.tar.gz", "elm.tar.gz", "b/cpu-only.tar.gz"]
    for place in places:
        writer = BundleWriter("mine", "recorded", "1", "2026-01-01T00:00:00Z")
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        writer.write(tmp_path / place)
    runs = "\n".join(f"{TAKES}, box: {place}}}" for place in [*places, "cpu-only"])
    names = [step.box_name for step in plan(runs).steps]
    assert names == ["oak", "b/one/oak", "elm", "b/cpu-only", "cpu-only"]


@pytest.mark.parametrize(("runs", "words"), read_rows("wrong plans"))
def test_a_wrong_plan_is_refused_in_one_line_that_says_where(plan, runs, words):
    line = refused(plan, runs)
    assert [part for part in words.split(" & ") if part not in line] == []


@pytest.mark.parametrize(
    "head", ["../x", "''", "try\nlimits: {cell_s: -1}", "try\nlimit: {}", "try\nnome: x"]
)
def test_a_wrong_head_is_refused(plan, head):
    refused(plan, f"{NEEDS}}}", f"name: {head}")


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TRICKS = [
    (b"", ""),
    (b"\xff\xfe", "plan in YAML"),
    (b"- 1", ""),
    (b"just text", ""),
    (b"a: &a [*a]", "alias *a & none inside an anchor"),
    (BOMB, "line 2 & alias *a"),
    ("name: x\nruns: [{[a, b]: 1, ? {c: d} : 2}]", "line 2 & unhashable"),
    (f"a: &a [1]\nb: [{'*a, ' * 200}]", "line 2 & at most 100"),
    ("name: x\nruns: !!python/object/apply:os.system [ls]", "line 2 & os.system"),
    ("name: !mine x", "line 1 & the tag '!mine'"),
    ("name: x\nruns: [&a {}, {<<: *a}]", "line 2 & '<<' merges"),
    ("name: 2024-13-45", "month"),
    (f"name: {'9' * 5000}", "digits"),
    ("x: " + "[" * 3000, "RecursionError"),
    ("# " + "x" * 200_000, "200,000 bytes"),
]


@pytest.mark.parametrize(("content", "words"), TRICKS)
def test_tricks_of_yaml_are_refused_before_anything_expands(tmp_path, content, words):
    refused(load_plan, tmp_path / "plan.yaml")  # there is none
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "plan.yaml").write_bytes(raw)
    line = refused(load_plan, tmp_path / "plan.yaml")
    assert [part for part in words.split(" & ") if part not in line] == []


BOOK = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": []}
LATE = {"cell_type": "markdown", "metadata": {"timeout": "5"}, "source": ""}
IN_R = {"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not JSON", "no JSON"),
        ({}, "no nbformat number"),
        ([1], "no nbformat number"),
        ({**BOOK, "nbformat": 5}, "nbformat 5; this workbook reads up to 4"),
        ({**BOOK, "cells": [{"cell_type": "cod"}]}, "broken notebook"),
        ({"nbformat": 4, "nbformat_minor": 5, "metadata": {}}, "broken notebook"),
        ({**BOOK, "cells": [LATE]}, "cell 0: metadata.timeout: seen '5'"),
        ({**BOOK, "metadata": IN_R}, "written for R"),
    ],
)
def test_a_file_that_is_no_notebook_of_ours_is_refused_before_anything_runs(
    plan, tmp_path, content, words
):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "odd.ipynb").write_text(text)
    assert words in refused(plan, f"{NEEDS}}}\n- {{notebook: odd.ipynb}}")


KINDS = {  # annotation: values that fit, and some that do not
    "str": (st.text(), [1]),
    "int": (st.integers(), [1.5, "1", True]),
    "float": (st.floats(allow_nan=False, allow_infinity=False), ["1", True]),
    "bool": (st.booleans(), ["yes", 0]),
    "list": (st.lists(st.integers()), [{}]),
    "list[int]": (st.lists(st.integers()), [[1, "2"]]),
    "str | None": (st.none() | st.text(), [1]),
    "dict": (st.dictionaries(st.text(), st.integers()), [[]]),
    "Path": (st.text(), [{1, 2}]),
}


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_a_value_of_the_annotated_type_is_always_taken(data, kind):
    check_parameters({"x": ast.parse(kind, mode="eval").body}, {"x": data.draw(KINDS[kind][0])})


WRONG_VALUES = [(kind, value) for kind, (_, wrong) in KINDS.items() for value in wrong]


@pytest.mark.parametrize(("kind", "value"), WRONG_VALUES)
def test_a_value_of_another_type_is_refused(kind, value):
    with pytest.raises(NotebookError, match="parameter 'x': seen .*; expected "):
        check_parameters({"x": ast.parse(kind, mode="eval").body}, {"x": value})


def test_looks_come_before_loads_before_provokes_and_what_waits_stays_behind(plan, books):
    text = (
        "- {notebook: provokes.ipynb}\n- {notebook: loads.ipynb, repeats: 2}\n- {notebook: looks.ipynb}\n"
        "- {notebook: looks.ipynb, parameters: {where: '{batch}'}}\n- {notebook: loads.ipynb, parameters: {n: 2}}"
    )
    steps = plan(text).steps
    dangers = ["looks", "loads", "loads", "loads", "provokes", "looks"]
    assert [step.danger for step in steps] == dangers
    assert [step.waits for step in steps] == [False] * 5 + [True]
    assert [step.run_id[:3] for step in steps] == [f"00{number}" for number in range(6)]
    written = [step.danger for step in plan(text, "name: try\norder: as written").steps]
    assert written == ["provokes", "loads", "loads", "looks", "looks", "loads"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DANGERS), st.booleans())))
def test_no_order_puts_a_run_that_waits_before_one_that_stood_before_it(kinds):
    about = ("", Path(), {}, frozenset(), "", "", "", 1, 1)
    written = [
        Step(str(number), *about, danger, waits=waits)
        for number, (danger, waits) in enumerate(kinds)
    ]
    ordered = [int(step.run_id) for step in in_order(written)]
    assert sorted(ordered) == list(range(len(kinds)))
    for at, number in enumerate(ordered):
        if kinds[number][1]:
            assert set(range(number)) <= set(ordered[:at])
    calm = [DANGERS.index(kinds[number][0]) for number in ordered if not kinds[number][1]]
    assert calm == sorted(calm)


def test_a_plan_raises_a_danger_and_never_lowers_it(plan, books):
    assert plan(f"{LOOKS}, danger: provokes}}").steps[0].danger == "provokes"
    assert "may only raise it" in refused(plan, "- {notebook: provokes.ipynb, danger: loads}")
    assert "danger" in refused(plan, f"{LOOKS}, danger: none}}")
    # A notebook that says nothing may load the box unless the plan says what it does.
    assert plan(f"{NEEDS}}}").steps[0].danger == "loads"
    assert plan(f"{NEEDS}, danger: looks}}").steps[0].danger == "looks"
    books("odd.ipynb", safety="harmless")
    assert "odd.ipynb: metadata.casebook: safety" in refused(plan, "- {notebook: odd.ipynb}")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "reserve: banana",
            "parameter 'reserve': seen 'banana' (str); expected a size such as 8GiB",
        ),
        ("reserve: 0GiB", "parameter 'reserve': seen '0GiB' (str); expected a size above 0"),
        ("reserve: 16", "parameter 'reserve': seen 16 (int); expected str (quote it"),
        ("repeats: 0", "parameter 'repeats': seen 0 (int); expected 1 to 9"),
        ("repeats: 12", "parameter 'repeats': seen 12 (int); expected 1 to 9"),
        ("repeats: .nan", "parameter 'repeats': seen nan; expected a finite number"),
        ("server: ngnix", "parameter 'server': seen 'ngnix' (str); expected one of red, blue"),
        (
            "ways: [red, rde]",
            "parameter 'ways': seen ['red', 'rde'] (list); expected one of red, blue",
        ),
    ],
)
def test_a_value_that_a_notebook_does_not_allow_is_refused_before_the_first_run(
    plan, tmp_path, given, says
):
    source = """reserve: str = ""
repeats: float = 1
server: str = "red"
ways: list[str] = ["red"]"""
    colours = '["red", "blue"]'
    guard = (
        f'refuse_wrong_parameters(reserve="size", repeats=(1, 9), server={colours}, ways={colours})'
    )
    book = new_notebook(metadata={"casebook": {"safety": "looks"}})
    book.cells = [new_code_cell(source), new_code_cell(guard)]
    book.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(book, tmp_path / "choosy.ipynb")
    fine = "reserve: 8GiB, repeats: 9, server: blue, ways: [blue, red]"
    assert plan(f"- {{notebook: choosy.ipynb, parameters: {{{fine}}}}}").steps
    assert says in refused(plan, f"- {{notebook: choosy.ipynb, parameters: {{{given}}}}}")


def test_what_the_notebooks_allow_is_what_the_workbook_knows():
    allowed = {
        path.stem: allowed_values(open_notebook(path)) for path in COMMITTED.glob("0*.ipynb")
    }
    assert allowed["04_vpoc_chunking"]["strategies"] == [*STRATEGIES]
    assert allowed["06_training_paths"]["paths"] == [*PATHS]
    assert allowed["06_training_paths"]["shape"] == [*SHAPES]
    assert allowed["03_ttm_gtt_analysis"] == {"reserve": "size", "target": "size"}


@pytest.mark.parametrize("gpu", ["0000:03:00.0", "03:00.0", "'00000000:03:00.0'", "0000:03:00.0 "])
def test_a_gpu_is_a_pci_address_in_one_form_and_given_to_a_notebook_that_takes_it(plan, books, gpu):
    step, other = plan(f"{LOOKS}, gpu: {gpu}}}\n{LOOKS}, grid: {{gpu: [C1:00.0]}}}}").steps
    assert (step.gpu, step.parameters) == ("0000:03:00.0", {"gpu": "0000:03:00.0"})
    assert other.gpu == "0000:c1:00.0" and other.run_id[-8:] != step.run_id[-8:]


@pytest.mark.parametrize("gpu", ["0", "cuda:0", "GPU-1234", "0000:03:00.9", "[0000:03:00.0]"])
def test_what_is_no_pci_address_is_refused(plan, books, gpu):
    assert "gpu" in refused(plan, f"{LOOKS}, gpu: '{gpu}'}}")
    assert "gpu" in refused(plan, f"{LOOKS}, grid: {{gpu: ['{gpu}']}}}}")


def test_a_preset_has_to_exist(plan, books, tmp_path):
    (tmp_path / "mine.env").write_text("export OMP_NUM_THREADS=2\n")
    steps = plan(f"{LOOKS}, grid: {{preset: [cpu-one-thread, mine.env, none]}}}}").steps
    assert [s.preset for s in steps] == ["cpu-one-thread", str(tmp_path / "mine.env"), "none"]
    wrong = {"cpu-one-thred": "cpu-one-thread", "../../../../etc/x": "etc/x", "no.env": "no.env"}
    for preset, words in wrong.items():
        assert words in refused(plan, f"{LOOKS}, preset: {preset}}}")


def axes(count):
    return "{" + ", ".join(f"p{i}: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" for i in range(count)) + "}"


@pytest.mark.parametrize(
    ("runs", "count"),
    [
        ("- {notebook: x.ipynb, repeats: 5001}", "5,001"),
        (f"- {{notebook: x.ipynb, grid: {axes(6)}}}", "1,000,000"),
        (f"- {{notebook: x.ipynb, grid: {axes(400)}}}", "10^400"),
        ("- {notebook: x.ipynb, repeats: 3000}\n- {notebook: y.ipynb, repeats: 3000}", "6,000"),
    ],
)
def test_a_grid_that_explodes_is_refused_with_its_count(plan, runs, count):
    assert f"seen {count} runs" in refused(plan, runs).replace("about ", "")


def test_five_thousand_runs_are_taken_and_sort_by_their_ids(plan, books):
    ids = [step.run_id for step in plan(f"{LOOKS}, repeats: 5000}}").steps]
    assert len(ids) == 5000 and ids == sorted(ids)


def test_a_box_that_is_no_bundle_is_refused_before_anything_runs(plan, tmp_path):
    (tmp_path / "notes.md").write_text("no bundle")
    (tmp_path / "cut.tar.gz").write_bytes(b"\x1f\x8b")
    for name in ("notes.md", "cut.tar.gz"):
        assert name in refused(plan, f"{TAKES}, box: {name}}}")
    assert "notes.md" in refused(plan, f"{TAKES}}}", box=str(tmp_path / "notes.md"))


@pytest.mark.parametrize("own", ["rate: .inf", "rate: .nan", 'out: "a\\0b"', 'out: "\\ud800"'])
def test_a_value_that_no_record_can_keep_is_refused(plan, own):
    assert "parameter" in refused(plan, f"{TAKES}, parameters: {{{own}}}}}")


PARTS = ["name: x\n", "runs:\n", "- ", "notebook: ", "00_start_here.ipynb", "box: ", "a" * 300]
PARTS += ["grid: ", "&a ", "*a", "repeats: 9999999", "!!x ", "limits: {cell_s: .inf}\n", '"\\0"']
PARTS += ["gpu: 0:0", "<<: ", "? ", *"{}[],'\n"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=30).map(lambda parts: "".join(parts).encode())


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200) | TEXTS)
def test_whatever_a_file_holds_it_is_a_plan_or_one_line(tmp_path, content):
    (tmp_path / "plan.yaml").write_bytes(content)
    try:
        assert load_plan(tmp_path / "plan.yaml").steps
    except PlanError as error:
        assert "\n" not in str(error)


def test_side_by_side_counts_for_what_only_looks_and_for_nothing_else(plan, books):
    books("slow.ipynb", safety="looks")
    books("heavy.ipynb", safety="loads")
    took = {"slow.ipynb": 10.0, "heavy.ipynb": 5.0}
    text = (
        "- {notebook: slow.ipynb, repeats: 4}\n- {notebook: heavy.ipynb, repeats: 2}\n"
        "- {notebook: slow.ipynb, parameters: {where: '{batch}'}}"
    )
    plans = [plan(text, f"name: try\njobs: {jobs}", measured=took) for jobs in (1, 2, 4)]
    assert list(map(total_estimate_s, plans)) == [60, 35, 22.5]


def test_a_dry_run_adds_up_the_times_that_are_known_and_names_what_has_not_run(plan, books):
    books("slow.ipynb", safety="looks")
    books("heavy.ipynb", safety="loads")
    text = "- {notebook: slow.ipynb}\n- {notebook: heavy.ipynb, parameters: {where: '{batch}'}}"
    said = dry_run_text(plan(text, "name: try", measured={"slow.ipynb": 40.0}))
    assert "Time: about 40 s without these notebooks, " in said
    assert "which have not run on this machine: heavy.ipynb." in said
    assert "{batch}" not in said


RUNS = f"- {{notebook: provokes.ipynb}}\n{LOOKS}, gpu: 03:00.0, parameters: {{n: 4}}}}"
LIMITS = "name: try\nlimits: {run_s: 50, total_s: 60}\njobs: 3"


def test_a_dry_run_says_what_will_run_and_that_its_time_is_not_known_yet(plan, books):
    checked = plan(RUNS, LIMITS)
    rows = dry_run(checked)
    columns = ("danger", "gpu", "estimate_s")
    expected = [("looks", "0000:03:00.0", None), ("provokes", "", None)]
    assert [tuple(row[name] for name in columns) for row in rows] == expected
    assert json.loads(json.dumps(rows)) == rows
    text = dry_run_text(checked)
    for words in (
        *("1 only look at the box, 1 provoke an out-of-memory", "One run at a time."),
        *("0000:03:00.0 n=4", "1.00 GiB of the disk is free", "Time: not known yet"),
        checked.sha256[:12],
    ):
        assert words in text
    assert text.splitlines()[0].count("not known yet") == 1


def test_a_dry_run_takes_the_time_from_what_the_notebooks_took_before(plan, books):
    looks = next(step.notebook for step in plan(RUNS, LIMITS).steps if step.danger == "looks")
    checked = plan(RUNS, LIMITS, measured={looks: 30.0, "provokes.ipynb": 70.0})
    text = dry_run_text(checked)
    assert "about 30 s" in text and "about 70 s" in text
    assert "Time: about 80 s, by what these notebooks took on this machine" in text
    assert "the last runs would be skipped" in text


def test_what_a_notebook_took_is_the_median_of_its_runs_on_this_machine(tmp_path):
    seconds = [(10.0, {}), (30.0, {"node": node()}), (20.0, {}), (900.0, {"node": "elsewhere"})]
    seconds.append((1.0, {"state": "died"}))
    for number, (taken, more) in enumerate(seconds):
        folder = tmp_path / "night" / f"00{number}-a"
        folder.mkdir(parents=True)
        run = {"run_id": folder.name, "batch_id": "night", "box": "", "notebook": "a.ipynb"}
        record = Run(**{**run, "state": "answered", "seconds": taken, **more})
        write_run(folder, record)
    (tmp_path / "night" / "000-a" / "run.json").write_text("{torn")
    assert seconds_by_notebook(tmp_path) == {"a.ipynb": 25.0}
    assert seconds_by_notebook(tmp_path / "nothing") == {}


def test_every_committed_plan_names_only_keys_that_exist():
    plans = sorted((COMMITTED / "plans").glob("*.yaml"))
    assert plans and all(load_plan(path).steps for path in plans)


def test_the_overnight_plan_is_a_night_of_at_least_60_runs_and_needs_no_gpu():
    checked = load_plan(COMMITTED / "plans" / "overnight.yaml")
    steps = checked.steps
    assert len(steps) >= 60 and checked.plan.jobs == 2
    assert {step.notebook for step in steps} == {path.name for path in COMMITTED.glob("*.ipynb")}
    assert {step.danger for step in steps} == set(DANGERS)
    assert not any(step.gpu for step in steps)
    assert any(step.box == "live" for step in steps) and steps[-1].waits
    fleet = load_plan(COMMITTED / "plans" / "fleet.yaml")
    assert [step.waits for step in fleet.steps] == [False] * (len(fleet.steps) - 1) + [True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: a\nnotebook: [b.ipynb]", "notebook: seen ['b.ipynb']; there is no such key"),
        ("name: a", "plan.yaml: expected 'runs' beside the other keys; add it"),
        ("name: a\nruns: []", "runs: seen []; expected a list with at least 1 entry"),
        ("name: a\nruns: {notebook: b}", "runs: seen {'notebook': 'b'}; expected a list"),
        ("name: a\nruns: [b]", "runs.0: seen 'b'; expected keys with values (key: value)"),
        ("", "plan.yaml: seen None; expected keys with values (key: value)"),
        ("name: a/b\nruns: [{notebook: b}]", "name: seen 'a/b'; expected at most 100 letters"),
        (
            "name: a\njobs: many\nruns: [{notebook: b}]",
            "jobs: seen 'many'; expected a whole number",
        ),
        ("name: a\njobs: 0\nruns: [{notebook: b}]", "jobs: seen 0; expected 1 or more"),
        (
            "name: a\nruns: [{notebook: b, box: [c, d]}]",
            "runs.0.box: seen ['c', 'd']; expected text",
        ),
        ("name: a\nruns: [{notebook: b, danger: dire}]", "expected one of '', 'looks', 'loads'"),
        ("name: a\nlimits: {run_s: -1}\nruns: [{notebook: b}]", "seen -1; expected more than 0"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said_in_plain_words_with_its_key(tmp_path, text, says):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    line = refused(load_plan, path)
    assert says in line
    assert not any(word in line for word in ("Input", "Field", "String", "Extra", "permitted"))


def test_the_plan_that_the_page_of_notebooks_shows_is_one(tmp_path):
    page = (COMMITTED / "README.md").read_text()
    path = tmp_path / "night.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    steps = load_plan(path).steps
    assert len(steps) == 5 and steps[-1].waits
    boxes = {"rx7900xt-container", "cuda-24gb-tuning", "strix-halo-1-found"}
    assert {step.box_name for step in steps} == boxes


def test_all_that_is_wrong_with_a_plan_is_said_and_of_many_errors_the_first_three(plan):
    line = refused(plan, "- {notebook: looks.ipynb, repeats: 0, danger: mild}")
    assert "runs.0.danger: seen 'mild'; expected one of" in line
    assert line.endswith("; also runs.0.repeats: seen 0; expected 1 or more")
    line = refused(plan, "- {repeats: 0, danger: mild, gpu: 3, box: 4, notebook: a}")
    assert line.count("; also ") == 2 and line.endswith("; and 1 more")


def test_ranges_in_the_metadata_of_a_notebook_are_kept_to(plan, books):
    books("ranges.ipynb", safety="looks", ranges={"n": [2, None]})
    assert plan("- {notebook: ranges.ipynb, parameters: {n: 7}}").steps[0].parameters == {"n": 7}
    line = refused(plan, "- {notebook: ranges.ipynb, parameters: {n: 1}}")
    assert line.endswith("parameter 'n': seen 1 (int); expected 2.0 or more")
