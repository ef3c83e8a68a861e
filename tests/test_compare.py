"""Two runs, batches or bundles side by side: what moved, what did not, which verdicts changed; nothing is lost on the way."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night_runs import night
from tell_boxes import HOSTILE, VERDICT, run_record

from helpers.batch.shapes import Figure
from helpers.look.bundle import RECORDED
from helpers.tell import compare
from helpers.tell.compare import Change, CompareError, as_json, as_text

OTHER = replace(VERDICT, cause="true-capacity", confidence="weak")


def put(batch, run, files=()):
    """A run's record below a batch, beside the files that it wrote."""
    folder = batch / run.run_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(run.model_dump_json())
    for name, content in dict(files).items():
        (folder / name).write_text(content)
    return folder


def kinds(found):
    return {(change.kind, change.what) for _, change in found.changes(*compare.TITLES)}


@pytest.fixture
def two(tmp_path):
    """The same two runs before and after a change, and one more on each side."""
    for side, verdict, state in (("a", VERDICT, "answered"), ("b", OTHER, "died")):
        cause = "killed by SIGKILL" * (side == "b")
        seven = {"steps": 7}
        about = {"verdict": verdict, "parameters": seven}
        put(tmp_path / side, run_record("000-probe-1", "01_probe.ipynb", "answered", **about))
        put(tmp_path / side, run_record("001-stress-2", "02_stress.ipynb", state, cause=cause))
        alone = f"0{ord(side)}_only.ipynb"
        put(tmp_path / side, run_record(f"002-{side}-3", alone, "answered"))
    return tmp_path / "a", tmp_path / "b"


def test_a_verdict_that_changed_stands_first_and_what_has_no_partner_is_named(two):
    found = compare.compare(*two)
    assert found.summary == "2 of 2 runs moved, 1 verdict changed, 1 only in A, 1 only in B"
    moved = Change("verdict", "verdict", "ttm-gtt-cap (likely)", "true-capacity (weak)")
    assert found.changes("verdict") == [("01_probe.ipynb on strix-halo (steps=7)", moved)]
    assert {("state", "state"), ("state", "cause")} <= kinds(found)
    assert found.only_a == ("097_only.ipynb on strix-halo",)
    assert found.only_b == ("098_only.ipynb on strix-halo",)
    text = as_text(found)
    heads = ("Verdicts that changed", "States and causes", "What did not move", "Only in A")
    assert sorted(heads, key=text.index) == list(heads)


def test_a_batch_beside_itself_has_not_moved(tmp_path):
    folder = night(tmp_path / "a", 40)
    shutil.copytree(folder, tmp_path / "b")
    found = compare.compare(folder, tmp_path / "b")
    assert len(found.pairs) == 40 and found.changes(*compare.TITLES) == []
    assert found.summary == "0 of 40 runs moved, 0 verdicts changed"


def test_repeats_are_matched_in_order_and_a_box_under_another_name_is_still_the_same_run(tmp_path):
    for side, box in (("a", "before"), ("b", "after")):
        for n in range(3):
            about = {"cells": {"completed": n}, "box": box}
            run = run_record(f"00{n}-probe-{side}", "01_probe.ipynb", "answered", **about)
            put(tmp_path / side, run)
    found = compare.compare(tmp_path / "a", tmp_path / "b")
    assert len(found.pairs) == 3 and not found.only_a
    renamed = Change("parameter", "box", "before", "after")
    assert [change for _, change in found.changes("parameter")] == [renamed] * 3


@pytest.mark.parametrize(
    ("seconds", "moved"),
    [(7.0, False), (30.0, True), (11.0, False), (11.3, True), (1.2, True), (1.3, False)],
)
def test_readings_move_by_so_much_and_time_only_when_it_is_far(tmp_path, seconds, moved):
    first, *rest = VERDICT.evidence
    more = replace(first, reading=replace(first.reading, value=first.reading.value + (1 << 30)))
    after = replace(VERDICT, evidence=[more, *rest])
    run = run_record("0", "n.ipynb", "answered", verdict=VERDICT)
    a = put(tmp_path / "a", run)
    b = put(tmp_path / "b", run.model_copy(update={"verdict": after, "seconds": seconds}))
    found = compare.compare(a / "run.json", b)
    assert [(c.what, c.by) for _, c in found.changes("reading")] == [(first.says, "+1.00 GiB")]
    assert bool(found.changes("time")) == moved and ("time" in found.pairs[0].same) != moved
    assert "verdict" in found.pairs[0].same


def table(rows, kind, tmp_path):
    path = tmp_path / f"made.{kind}"
    if kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "parquet"])
def test_a_table_that_a_run_wrote_is_compared_column_by_column(tmp_path, kind):
    rows = [{"step": n, "peak": 100 * n, "name": "x"} for n in range(4)]
    later = [{"step": n, "peak": 100 * n + 40 * (n == 2), "name": "x", "new": 1} for n in range(4)]
    before, after, short = (table(one, kind, tmp_path) for one in (rows, later, rows[:2]))
    moved = compare.differences(f"t.{kind}", before, after)
    assert [what for what, *_ in moved] == [f"t.{kind}: peak", f"t.{kind}: new"]
    assert moved[0][3] == ("1 of 4 rows" if kind == "csv" else "1 of 4 rows, at most +40")
    assert compare.differences(f"t.{kind}", before, short)[0][1:3] == ("4 rows", "2 rows")


def test_of_many_differences_the_first_are_listed_and_the_rest_counted():
    one, two = ({f"k{n}": n + step for n in range(20)} for step in (0, 1))
    moved = compare.differences("x.json", json.dumps(one).encode(), json.dumps(two).encode())
    assert len(moved) == compare.MOST_DIFFERENCES + 1 and moved[0] == ("x.json: k0", "0", "1", "+1")
    assert moved[-1] == ("x.json", "", "and 8 more differences", "")


def test_of_two_long_texts_the_part_where_they_differ_is_shown():
    start = "word " * 20
    assert compare.apart(start + "one", start + "two") == ("…word word one", "…word word two")
    assert compare.apart("a", None) == ("a", "none")


def test_other_files_are_compared_by_digest_and_what_lies_outside_a_run_is_never_read(tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    files = ["raw.bin", "same.txt", "torn.json", "gone.txt", "../../secret.json", "notebook.ipynb"]
    run = run_record("0", "n.ipynb", "answered", files=files)
    one = {"raw.bin": "1", "same.txt": "s", "torn.json": "{", "notebook.ipynb": "1", "gone.txt": ""}
    two = {"raw.bin": "22", "same.txt": "s", "torn.json": "{1", "notebook.ipynb": "2"}
    found = compare.compare(put(tmp_path / "a", run, one), put(tmp_path / "b", run, two))
    assert kinds(found) == {("data", "raw.bin"), ("data", "torn.json"), ("data", "gone.txt")}
    text = as_text(found)
    assert "1 bytes, sha256 6b86b273ff34" in text and "-> no file" in text
    assert "same.txt" in found.pairs[0].same
    assert compare.content(tmp_path / "a" / "0", "../../secret.json") is None


def test_a_figure_moves_with_its_words_and_a_picture_drawn_otherwise_says_so(tmp_path):
    def drawn(words):
        return [Figure(path="1.png", alt=words), Figure(path="2.png", alt="x")]

    run = run_record("0", "n.ipynb", "answered", figures=drawn("3 GiB"))
    later = run.model_copy(update={"figures": drawn("4 GiB")})
    sides = put(tmp_path / "a", run, {"2.png": "1"}), put(tmp_path / "b", later, {"2.png": "2"})
    said = [(c.what, c.before, c.after) for _, c in compare.compare(*sides).changes("figure")]
    assert said == [
        ("1.png", "3 GiB", "4 GiB"),
        ("2.png", "as it was drawn", "drawn differently, with the same words"),
    ]


def test_two_bundles_are_compared_by_verdict_pools_and_texts():
    names = sorted(path.parent.name for path in RECORDED.glob("*/manifest.json"))[:2]
    found = compare.compare(*(RECORDED / name for name in names))
    assert found.kind == "bundle" and found.changes("text") and found.changes("parameter")
    text = as_text(found)
    assert f"A: {RECORDED / names[0]}, box {names[0]}" in text and "1 line gone, 1 new" in text
    assert "1 lines" not in text and "\\x0a" not in text and '{"' not in text
    assert text.index("What could explain a new failure") < text.index("Readings that moved")
    assert found.changes("build") and ("reading", "host RAM total") in kinds(found)
    alone = compare.compare(RECORDED / names[0], RECORDED / names[0])
    assert alone.summary == "0 of 1 bundles moved, 0 verdicts changed"
    assert alone.changes(*compare.TITLES) == []
    assert "Kernel, driver, torch and memory settings are the same" in as_text(alone)


def test_what_only_one_verdict_stands_on_is_no_reading_that_moved():
    found = compare.compare(RECORDED / "cuda-healthy", RECORDED / "cuda-24gb-tuning")
    moved = Change("verdict", "verdict", "healthy (weak)", "true-capacity (likely)")
    assert [one for _, one in found.changes("verdict")] == [moved], "as diagnose says of each box"
    assert not [one for _, one in found.changes("reading") if "none" in (one.before, one.after)]
    text = as_text(found)
    first, _, rest = text.partition("What only one verdict stands on")
    assert "-> none" not in text and "only in A: Free on 0000:01:00.0" in rest
    assert "host RAM used: 6.00 GiB -> 24.00 GiB" in first


def test_what_is_the_same_of_several_runs_is_said_once(tmp_path):
    for side, verdict in (("a", VERDICT), ("b", OTHER)):
        for n in range(3):
            run = run_record(f"{n}", f"0{n}_x.ipynb", "answered", verdict=verdict)
            put(tmp_path / side, run.model_copy(update={"parameters": {"batch": "{batch}"}}))
    text = as_text(compare.compare(tmp_path / "a", tmp_path / "b"))
    assert text.count("TTM or GTT limit (likely) -> too little memory (weak)") == 1
    assert text.count("  02_x.ipynb on strix-halo\n") == 2 and "{batch}" not in text


@pytest.mark.parametrize("what", ["run", "batch"])
def test_two_runs_and_two_batches_say_first_what_could_explain_a_new_failure(tmp_path, what):
    names = sorted(path.parent.name for path in RECORDED.glob("*/manifest.json"))[:2]
    sides = []
    for name, state in zip(names, ("answered", "died"), strict=True):
        put(tmp_path / name, run_record("000-probe-1", "01_probe.ipynb", state, box=name))
        sides.append(tmp_path / name / ("000-probe-1" if what == "run" else ""))
    found = compare.compare(*sides)
    bundles = compare.compare(*(RECORDED / n for n in names))
    assert found.kind == what and [one for _, one in found.changes("build")] == [
        one for _, one in bundles.changes("build")
    ]
    assert as_text(found).index("What could explain a new") < as_text(found).index("States and")
    run_of = run_record("000-probe-1", "01_probe.ipynb", "died", box="live")
    put(tmp_path / "blind", run_of)
    (blind,) = compare.compare(tmp_path / "blind", tmp_path / "blind").blind
    assert blind == "live: not available because no evidence bundle of this box lies beside it"


def test_a_torn_record_is_named_and_the_others_are_compared(two):
    (two[0] / "009-torn").mkdir()
    (two[0] / "009-torn" / "run.json").write_text('{"run')
    found = compare.compare(*two)
    assert len(found.pairs) == 2 and "009-torn" in found.unreadable[0]
    assert "Not readable" in as_text(found)


def test_what_cannot_be_compared_is_refused_in_one_line(two, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    for name in ("x.tar.gz", "t.pickle", "README.md"):
        (tmp_path / name).write_bytes(b"no archive")
    for a, b, says in (
        (two[0], tmp_path / "none", "no such file or folder"),
        (tmp_path / "empty", two[0], "empty: of no kind .*; expected a batch$"),
        (tmp_path / "t.pickle", tmp_path / "README.md", "README.md: .*; expected a trace of"),
        (two[0], two[0] / "000-probe-1", "expected two of a kind"),
        (tmp_path / "torn", tmp_path / "torn", "no whole"),
        (tmp_path / "x.tar.gz", tmp_path / "x.tar.gz", "expected"),
    ):
        with pytest.raises(CompareError, match=says) as error:
            compare.compare(a, b)
        assert "\n" not in str(error.value)


def test_json_and_text_say_the_same_and_nothing_hostile_acts(tmp_path):
    about = {"cause": HOSTILE, "parameters": {HOSTILE: HOSTILE}, "files": ["x.json"]}
    run = run_record("0", "n.ipynb", "died", **about)
    later = run.model_copy(update={"cause": "other", "parameters": {}})
    a = put(tmp_path / "a", run, {"x.json": json.dumps({HOSTILE: 1})})
    b = put(tmp_path / "b", later, {"x.json": json.dumps({HOSTILE: 2})})
    found = compare.compare(a, b)
    again = json.loads(json.dumps(as_json(found)))
    assert again["summary"] == found.summary and again["schema_version"] == 1
    assert len(again["pairs"][0]["moved"]) == 3
    assert all(char.isprintable() or char == "\n" for char in as_text(found))


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values, values)
@settings(max_examples=30)
def test_any_two_json_values_are_compared_and_equal_ones_have_not_moved(one, two):
    a = json.dumps(one).encode()
    b = json.dumps(two).encode()
    moved = compare.differences("x.json", a, b)
    assert moved and {len(row) for row in moved} == {4}
    assert all(isinstance(part, str) for row in moved for part in row)
    otherwise = compare.differences("x.json", a, b" " + a)
    assert otherwise[0][3] == "the same values, written otherwise"
    assert len(moved) <= compare.MOST_DIFFERENCES + 1
