"""A plan is checked whole before anything runs, and what is wrong with it fits on one line."""

import ast
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.run.estimate import Estimates, dry_run, dry_run_text, total_estimate_s
from helpers.run.notebook import NotebookError, check_parameters, open_notebook, parameters
from helpers.run.plan import PlanError, Step, _in_order, load_plan
from helpers.run.shapes import DANGERS

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
    steps = plan(
        "- {notebook: needs_no_verdict.ipynb}\n"
        "- {notebook: takes_parameters.ipynb, grid: {steps: [1, 2], deep: [true, false]}, repeats: 2}"
    ).steps
    assert [(s.parameters.get("steps"), s.parameters.get("deep")) for s in steps] == [
        (None, None),
        (1, True),
        (1, True),
        (1, False),
        (1, False),
        (2, True),
        (2, True),
        (2, False),
        (2, False),
    ]
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
    steps = plan(
        "- {notebook: needs_no_verdict.ipynb, limits: {cell_s: 1}}\n- {notebook: needs_no_verdict.ipynb}",
        "name: try\nlimits: {run_s: 50}",
    )
    assert [(s.cell_s, s.run_s) for s in steps.steps] == [(1, 50), (120, 50)]
    assert steps.total_s == 3600


def test_a_box_is_live_a_recorded_name_or_a_path(plan, tmp_path):
    (tmp_path / "mine.tar.gz").write_bytes(b"")
    steps = plan(
        "- {notebook: takes_parameters.ipynb}\n- {notebook: takes_parameters.ipynb, box: cpu-only}\n"
        "- {notebook: takes_parameters.ipynb, box: mine.tar.gz}\n- {notebook: needs_no_verdict.ipynb}"
    ).steps
    assert [(s.box, s.box_name) for s in steps] == [
        ("live", "live"),
        ("cpu-only", "cpu-only"),
        (str(tmp_path / "mine.tar.gz"), "mine"),
        ("live", ""),
    ]


def test_another_box_takes_the_place_of_live_and_of_nothing_else(plan):
    steps = plan(
        "- {notebook: takes_parameters.ipynb}\n- {notebook: takes_parameters.ipynb, box: cpu-only}",
        box="cuda-healthy",
    ).steps
    assert [s.box for s in steps] == ["cuda-healthy", "cpu-only"]


def test_a_grid_may_go_over_boxes(plan):
    steps = plan(
        "- {notebook: takes_parameters.ipynb, grid: {box: [cpu-only, cuda-healthy]}}"
    ).steps
    assert [(s.box, s.parameters) for s in steps] == [("cpu-only", {}), ("cuda-healthy", {})]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (
            "- {notebook: takes_parameters.ipynb, parameters: {stpes: 3}}",
            ("runs.0", "no parameter 'stpes'", "box, steps, rate"),
        ),
        (
            "- {notebook: takes_parameters.ipynb, parameters: {steps: three}}",
            ("'steps'", "'three' (str)", "expected int"),
        ),
        (
            "- {notebook: takes_parameters.ipynb, parameters: {steps: true}}",
            ("'steps'", "True (bool)", "expected int"),
        ),
        (
            "- {notebook: takes_parameters.ipynb, parameters: {deep: 1}}",
            ("'deep'", "expected bool"),
        ),
        (
            "- {notebook: takes_parameters.ipynb, parameters: {sizes: [1, x]}}",
            ("'sizes'", "expected list[int]"),
        ),
        (
            "- {notebook: takes_parameters.ipynb, parameters: {out: 2024-01-01}}",
            ("'out'", "(date)", "expected str"),
        ),
        ("- {notebook: takes_parameters.ipynb, grid: {steps: []}}", ("grid.steps", "empty")),
        (
            "- {notebook: takes_parameters.ipynb, grid: {steps: [1]}, parameters: {steps: 1}}",
            ("'steps'", "one of them"),
        ),
        (
            "- {notebook: takes_parameters.ipynb, box: cpu-only, parameters: {box: cpu-only}}",
            ("'box'", "one of them"),
        ),
        ("- {notebook: takes_parameters.ipynb, box: nope}", ("box: seen 'nope'", "cpu-only")),
        ("- {notebook: takes_parameters.ipynb, preset: tight}", ("no parameter 'preset'", "tight")),
        (
            "- {notebook: needs_no_verdict.ipynb, box: cpu-only}",
            ("no parameter 'box'", "leave it out"),
        ),
        ("- {notebook: missing.ipynb}", ("'missing.ipynb'", "beside the plan")),
        ("- {notebook: takes_parameters.ipynb, notbook: x}", ("runs.0.notbook", "not permitted")),
        (
            "- {notebook: takes_parameters.ipynb, repeats: 0}",
            ("runs.0.repeats", "greater than or equal to 1"),
        ),
        (
            "- {notebook: takes_parameters.ipynb, repeats: 1, repeats: 2}",
            ("line 3", "'repeats' stands twice"),
        ),
        ("- {notebook: [}", ("line 3", "YAML")),
        ("  []", ("runs", "at least 1")),
    ],
)
def test_a_wrong_plan_is_refused_in_one_line_that_says_where(plan, runs, said):
    line = refused(plan, runs)
    assert [part for part in said if part not in line] == []


@pytest.mark.parametrize(
    "head",
    [
        "name: ../x",
        "name: ''",
        "name: try\nlimits: {cell_s: -1}",
        "name: try\nlimit: {}",
        "nome: try",
    ],
)
def test_a_wrong_head_is_refused(plan, head):
    refused(plan, "- {notebook: needs_no_verdict.ipynb}", head)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"- 1",
        b"just text",
        b"!!python/object/apply:os.system [ls]",
        b"a: &a [*a]",
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, content):
    (tmp_path / "plan.yaml").write_bytes(content)
    refused(load_plan, tmp_path / "plan.yaml")


def test_a_plan_that_is_not_there_is_refused(tmp_path):
    refused(load_plan, tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not JSON", "no JSON"),
        ("{}", "no nbformat number"),
        ("[1]", "no nbformat number"),
        (
            json.dumps({"nbformat": 5, "nbformat_minor": 0, "metadata": {}, "cells": []}),
            "nbformat 5; this workbook reads up to 4",
        ),
        (
            json.dumps(
                {
                    "nbformat": 4,
                    "nbformat_minor": 5,
                    "metadata": {},
                    "cells": [{"cell_type": "cod"}],
                }
            ),
            "broken notebook",
        ),
        (json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}}), "broken notebook"),
        (
            json.dumps(
                {
                    "nbformat": 4,
                    "nbformat_minor": 4,
                    "metadata": {},
                    "cells": [
                        {"cell_type": "markdown", "metadata": {"timeout": "5"}, "source": ""}
                    ],
                }
            ),
            "cell 0: metadata.timeout: seen '5'",
        ),
        (
            json.dumps(
                {
                    "nbformat": 4,
                    "nbformat_minor": 4,
                    "cells": [],
                    "metadata": {
                        "kernelspec": {"name": "ir", "display_name": "R", "language": "R"}
                    },
                }
            ),
            "written for R",
        ),
    ],
)
def test_a_file_that_is_no_notebook_of_ours_is_refused_before_anything_runs(
    plan, tmp_path, content, said
):
    (tmp_path / "odd.ipynb").write_text(content)
    assert said in refused(plan, "- {notebook: needs_no_verdict.ipynb}\n- {notebook: odd.ipynb}")


def test_a_newer_minor_format_is_read(tmp_path):
    (tmp_path / "n.ipynb").write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 9, "metadata": {}, "cells": []})
    )
    assert open_notebook(tmp_path / "n.ipynb").cells == []


def test_parameters_are_read_with_their_annotations():
    known = parameters(open_notebook(NOTEBOOKS / "takes_parameters.ipynb"))
    assert {name: ast.unparse(kind) for name, kind in known.items()} == {
        "box": "str",
        "steps": "int",
        "rate": "float",
        "deep": "bool",
        "sizes": "list[int]",
        "batch": "str",
        "out": "str",
    }


KINDS = {
    "str": st.text(),
    "int": st.integers(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "list[int]": st.lists(st.integers()),
    "str | None": st.none() | st.text(),
    "Optional[str]": st.text(),
    "dict[str, int]": st.dictionaries(st.text(), st.integers()),
    "'int'": st.integers(),
    "Path": st.text(),
}


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_a_value_of_the_annotated_type_is_always_taken(data, kind):
    check_parameters({"x": ast.parse(kind, mode="eval").body}, {"x": data.draw(KINDS[kind])})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("str", 1),
        ("int", 1.5),
        ("int", "1"),
        ("float", "1"),
        ("float", True),
        ("bool", "yes"),
        ("bool", 0),
        ("list", {}),
        ("list[int]", [1, "2"]),
        ("str | None", 1),
        ("dict[str, int]", []),
        ("'int'", "1"),
        ("Path", {1, 2}),
    ],
)
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


SAYS = {"looks": "looks.ipynb", "loads": "loads.ipynb", "provokes": "provokes.ipynb"}


@pytest.fixture
def books(tmp_path):
    """Notebooks that say what they do to a box, beside the plan."""

    def write(name, **casebook):
        source = 'n: int = 1\nwhere: str = ""\ngpu: str = ""\npreset: str = ""'
        cell = {
            "cell_type": "code",
            "metadata": {"tags": ["parameters"]},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        (tmp_path / name).write_text(
            json.dumps(
                {
                    "nbformat": 4,
                    "nbformat_minor": 4,
                    "cells": [cell],
                    "metadata": {"casebook": casebook},
                }
            )
        )

    for says, name in SAYS.items():
        write(name, safety=says)
    return write


def test_looks_come_before_loads_before_provokes_and_what_waits_stays_behind(plan, books):
    text = (
        "- {notebook: provokes.ipynb}\n- {notebook: loads.ipynb, repeats: 2}\n- {notebook: looks.ipynb}\n"
        "- {notebook: looks.ipynb, parameters: {where: '{batch}'}}\n- {notebook: loads.ipynb, parameters: {n: 2}}"
    )
    steps = plan(text).steps
    assert [(s.danger, s.waits) for s in steps] == [
        ("looks", False),
        ("loads", False),
        ("loads", False),
        ("loads", False),
        ("provokes", False),
        ("looks", True),
    ]
    assert [s.run_id[:3] for s in steps] == ["000", "001", "002", "003", "004", "005"]
    assert [s.danger for s in plan(text, "name: try\norder: as written").steps] == [
        "provokes",
        "loads",
        "loads",
        "looks",
        "looks",
        "loads",
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DANGERS), st.booleans())))
def test_no_order_puts_a_run_that_waits_before_one_that_stood_before_it(kinds):
    written = [
        Step(str(i), "", Path(), {}, frozenset(), "", "", "", 1, 1, danger, waits=waits)
        for i, (danger, waits) in enumerate(kinds)
    ]
    ordered = [int(step.run_id) for step in _in_order(written)]
    assert sorted(ordered) == list(range(len(kinds)))
    for at, number in enumerate(ordered):
        if kinds[number][1]:
            assert set(range(number)) <= set(ordered[:at])
    calm = [DANGERS.index(kinds[number][0]) for number in ordered if not kinds[number][1]]
    assert calm == sorted(calm)


def test_a_plan_raises_a_danger_and_never_lowers_it(plan, books):
    assert plan("- {notebook: looks.ipynb, danger: provokes}").steps[0].danger == "provokes"
    assert "may only raise it" in refused(plan, "- {notebook: provokes.ipynb, danger: loads}")
    assert "danger" in refused(plan, "- {notebook: looks.ipynb, danger: none}")


def test_a_notebook_that_says_nothing_may_load_the_box_unless_the_plan_says_what_it_does(
    plan, books
):
    assert plan("- {notebook: needs_no_verdict.ipynb}").steps[0].danger == "loads"
    assert plan("- {notebook: needs_no_verdict.ipynb, danger: looks}").steps[0].danger == "looks"
    books("odd.ipynb", safety="harmless")
    assert "odd.ipynb: metadata.casebook: safety" in refused(plan, "- {notebook: odd.ipynb}")


def test_a_number_outside_the_range_that_a_notebook_gives_is_refused(plan, books):
    books("ranged.ipynb", safety="looks", ranges={"n": [1, None]})
    assert plan("- {notebook: ranged.ipynb, parameters: {n: 1}}").steps
    assert "'n': seen 0; expected 1 to inf" in refused(
        plan, "- {notebook: ranged.ipynb, grid: {n: [3, 0]}}"
    )


@pytest.mark.parametrize(
    "written", ["0000:03:00.0", "03:00.0", "'00000000:03:00.0'", "0000:03:00.0 "]
)
def test_a_gpu_is_a_pci_address_in_one_form_and_given_to_a_notebook_that_takes_it(
    plan, books, written
):
    step, other = plan(
        f"- {{notebook: looks.ipynb, gpu: {written}}}\n"
        "- {notebook: looks.ipynb, grid: {gpu: [C1:00.0]}}"
    ).steps
    assert (step.gpu, step.parameters) == ("0000:03:00.0", {"gpu": "0000:03:00.0"})
    assert (
        other.gpu == "0000:c1:00.0"
        and other.run_id.rpartition("-")[2] != step.run_id.rpartition("-")[2]
    )


@pytest.mark.parametrize("gpu", ["0", "cuda:0", "GPU-1234", "0000:03:00.9", "[0000:03:00.0]"])
def test_what_is_no_pci_address_is_refused(plan, books, gpu):
    assert "gpu" in refused(plan, f"- {{notebook: looks.ipynb, gpu: '{gpu}'}}")
    assert "gpu" in refused(plan, f"- {{notebook: looks.ipynb, grid: {{gpu: ['{gpu}']}}}}")


def test_a_preset_has_to_exist(plan, books, tmp_path):
    (tmp_path / "mine.env").write_text("export OMP_NUM_THREADS=2\n")
    steps = plan(
        "- {notebook: looks.ipynb, grid: {preset: [cpu-one-thread, mine.env, none]}}"
    ).steps
    assert [s.preset for s in steps] == ["cpu-one-thread", str(tmp_path / "mine.env"), "none"]
    for wrong, said in (
        ("cpu-one-thred", "cpu-one-thread"),
        ("../../../../etc/x", "outside:"),
        ("no.env", "no.env"),
    ):
        assert said in refused(plan, f"- {{notebook: looks.ipynb, preset: {wrong}}}")


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, ("line 5", "alias *d", "1,000")),
        ("name: x\nruns: [{[a, b]: 1, ? {c: d} : 2}]", ("line 2", "unhashable")),
        (f"a: &a [{'1, ' * 900}]\nb: [{'*a, ' * 200}]", ("line 2", "100,000")),
        ("name: x\nruns: &r\n  - *r", ("line 3", "alias *r", "itself")),
        ("name: !!str x", ("line 1", "a tag")),
        ("name: x\nruns: !!python/object/apply:os.system [ls]", ("line 2", "a tag", "os.system")),
        ("name: !mine x", ("line 1", "a tag (!mine)")),
        ("name: x\nruns: [&a {}, {<<: *a}]", ("line 2", "'<<' merges")),
        ("name: 2024-13-45", ("month",)),
        (f"name: {'9' * 5000}", ("digits",)),
        ("x: " + "[" * 3000, ("RecursionError",)),
        ("# " + "x" * 1_000_000, ("1,000,000 bytes",)),
    ],
)
def test_tricks_of_yaml_are_refused_before_anything_expands(tmp_path, text, said):
    (tmp_path / "plan.yaml").write_text(text)
    line = refused(load_plan, tmp_path / "plan.yaml")
    assert [part for part in said if part not in line] == []


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
    steps = plan("- {notebook: looks.ipynb, repeats: 5000}").steps
    assert len(steps) == 5000 and [s.run_id for s in steps] == sorted(s.run_id for s in steps)


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd",
        "~/x",
        "../../x",
        "{batch}/../../../etc",
        "..",
        "leads-out/x",
        "~nobody-here/x",
    ],
)
def test_a_path_that_leads_outside_is_refused_unless_named(
    plan, books, tmp_path, tmp_path_factory, value
):
    away = tmp_path_factory.mktemp("away")
    (away / "x").touch()
    (tmp_path / "leads-out").symlink_to(away)
    line = refused(plan, f"- {{notebook: looks.ipynb, parameters: {{where: '{value}'}}}}")
    assert "runs.0" in line and ("outside:" in line if "nobody" not in value else "home" in line)
    if value == "leads-out/x":
        assert plan(
            f"- {{notebook: looks.ipynb, parameters: {{where: '{value}'}}}}",
            f"name: try\noutside: [{away}]",
        ).steps


def test_a_notebook_and_a_box_outside_are_refused_unless_named(plan, tmp_path, tmp_path_factory):
    away = tmp_path_factory.mktemp("away")
    (away / "n.ipynb").write_bytes((tmp_path / "takes_parameters.ipynb").read_bytes())
    (tmp_path / "linked.ipynb").symlink_to(away / "n.ipynb")
    for text in (
        f"- {{notebook: {away}/n.ipynb}}",
        "- {notebook: linked.ipynb}",
        f"- {{notebook: takes_parameters.ipynb, box: {away}}}",
        f"- {{notebook: takes_parameters.ipynb, grid: {{box: [cpu-only, ../{away.name}]}}}}",
    ):
        assert "outside:" in refused(plan, text)
        assert plan(text, f"name: try\noutside: [../{away.name}]").steps
    assert plan("- {notebook: takes_parameters.ipynb}", box=str(away)).steps[0].box == str(
        away
    )  # the caller named it
    assert "outside: seen" in refused(
        plan, "- {notebook: takes_parameters.ipynb}", "name: try\noutside: [/no/such]"
    )


@pytest.mark.parametrize(
    "value",
    [
        "a/b or c",
        "https://example.org/x",
        "0 / 4 GiB",
        "{batch}",
        "{batch}/x",
        "growing-loop",
        "1/2",
        "",
    ],
)
def test_text_that_is_no_path_or_stays_inside_is_taken(plan, books, value):
    assert plan(f"- {{notebook: looks.ipynb, parameters: {{where: '{value}'}}}}").steps


@pytest.mark.parametrize(
    "parameters", ["{rate: .inf}", "{rate: .nan}", '{out: "a\\0b"}', '{out: "\\ud800"}']
)
def test_a_value_that_no_record_can_keep_is_refused(plan, parameters):
    assert "parameter" in refused(
        plan, f"- {{notebook: takes_parameters.ipynb, parameters: {parameters}}}"
    )


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.sampled_from(
                [
                    "name: x\n",
                    "runs:\n",
                    "- ",
                    "{",
                    "}",
                    "[",
                    "]",
                    "notebook: ",
                    "00_start_here.ipynb",
                    "box: ",
                    "a" * 300,
                    "grid: ",
                    "&a ",
                    "*a",
                    ", ",
                    "repeats: 9999999",
                    "!!x ",
                    "\n",
                    "limits: {cell_s: .inf}\n",
                    "'",
                    '"\\0"',
                    "gpu: 0:0",
                    "<<: ",
                    "? ",
                ]
            ),
            max_size=30,
        ).map(lambda parts: "".join(parts).encode()),
    )
)
def test_whatever_a_file_holds_it_is_a_plan_or_one_line(tmp_path, content):
    (tmp_path / "plan.yaml").write_bytes(content)
    try:
        assert load_plan(tmp_path / "plan.yaml").steps
    except PlanError as error:
        assert "\n" not in str(error)


def record(outputs, batch, number, name, seconds, state="answered", **more):
    folder = outputs / batch / f"{number:03d}-{name}"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps(
            {
                "run_id": folder.name,
                "notebook": f"{name.rpartition('-')[0]}.ipynb",
                "state": state,
                "seconds": seconds,
                **more,
            }
        )
    )


def test_an_estimate_is_the_median_of_earlier_runs_else_the_notebooks_word_else_the_limit(tmp_path):
    for number, (name, seconds) in enumerate([("n-aa", 1), ("n-aa", 3), ("n-aa", 8), ("n-bb", 20)]):
        record(tmp_path, "20260101T000000Z-x", number, name, seconds)
    record(tmp_path, "20260101T000000Z-x", 9, "n-aa", 500, state="died")
    (tmp_path / "20260101T000000Z-x" / "torn").mkdir()
    (tmp_path / "20260101T000000Z-x" / "torn" / "run.json").write_text('{"state": "answ')
    known = Estimates(tmp_path)
    assert known.of("n.ipynb", "n-aa", 7, 100) == (3, "3 earlier runs like it")
    assert known.of("n.ipynb", "n-cc", 7, 100) == (5.5, "4 earlier runs of this notebook")
    assert known.of("n.ipynb", "n-bb", 7, 10) == (10, "1 earlier run like it")
    assert known.of("o.ipynb", "o-aa", 7, 100) == (7, "the notebook's metadata")
    assert known.of("o.ipynb", "o-aa", None, 100) == (100, "its limit")
    assert Estimates(tmp_path / "nothing").of("n.ipynb", "n-aa", None, 5) == (5, "its limit")


def test_only_the_newest_records_count(tmp_path):
    for number in range(200):
        record(tmp_path, "20260202T000000Z-new", number, "n-aa", 2)
    record(tmp_path, "20260101T000000Z-old", 0, "o-aa", 9)
    assert Estimates(tmp_path).of("o.ipynb", "o-aa", None, 60) == (60, "its limit")


def test_side_by_side_counts_for_what_only_looks_and_for_nothing_else(plan, books):
    books("slow.ipynb", safety="looks", seconds=10)
    books("heavy.ipynb", safety="loads", seconds=5)
    text = (
        "- {notebook: slow.ipynb, repeats: 4}\n- {notebook: heavy.ipynb, repeats: 2}\n"
        "- {notebook: slow.ipynb, parameters: {where: '{batch}'}}"
    )
    assert [total_estimate_s(plan(text, f"name: try\njobs: {jobs}")) for jobs in (1, 2, 4)] == [
        60,
        40,
        30,
    ]


def test_a_dry_run_says_what_will_run_how_long_and_when_it_stops(plan, books):
    checked = plan(
        "- {notebook: provokes.ipynb}\n- {notebook: looks.ipynb, gpu: 03:00.0, parameters: {n: 4}}",
        "name: try\nlimits: {run_s: 50, total_s: 60}\njobs: 3\nstop: {after_failures: 2, on_states: [stuck]}",
    )
    rows = dry_run(checked)
    assert [(r["danger"], r["gpu"], r["estimate_s"], r["estimate_from"]) for r in rows] == [
        ("looks", "0000:03:00.0", 50, "its limit"),
        ("provokes", "", 50, "its limit"),
    ]
    assert json.loads(json.dumps(rows)) == rows
    text = dry_run_text(checked)
    for words in (
        "1 looks, 0 loads, 1 provokes",
        "3 at once",
        "0:01:40",
        "its last runs are skipped",
        "after 2 runs that failed",
        "ends as stuck",
        checked.sha256[:12],
        "0000:03:00.0 n=4",
        "1.00 GiB free",
    ):
        assert words in text


def test_the_overnight_plan_is_a_night_of_at_least_60_runs_and_needs_no_gpu():
    from helpers.run.plan import NOTEBOOKS as COMMITTED

    checked = load_plan(COMMITTED / "plans" / "overnight.yaml")
    assert len(checked.steps) >= 60 and checked.plan.jobs == 2
    assert {step.notebook for step in checked.steps} == {
        path.name for path in COMMITTED.glob("*.ipynb")
    }
    assert {step.danger for step in checked.steps} == set(DANGERS) and not any(
        step.gpu for step in checked.steps
    )
    assert any(step.box == "live" for step in checked.steps) and checked.steps[-1].waits
    fleet = load_plan(COMMITTED / "plans" / "fleet.yaml")
    assert fleet.plan.stop.node_strikes and [step.waits for step in fleet.steps] == [False] * (
        len(fleet.steps) - 1
    ) + [True]
