"""Two bundles side by side: what moved, what did not, whether the verdict changed; nothing is lost on the way."""

import json

import pytest
from night_runs import night
from tell_boxes import HOSTILE

from helpers.cli import main
from helpers.look.boxes import RECORDED
from helpers.tell import compare
from helpers.tell.compare import (
    BoxChange,
    BoxComparison,
    ComparedBundle,
    CompareError,
    as_json,
    as_text,
)

HEALTHY = RECORDED / "cuda-healthy"
FULL = RECORDED / "cuda-24gb-tuning"


@pytest.fixture(scope="module")
def moved():
    return compare.compare(HEALTHY, FULL)


def test_what_could_explain_it_stands_first_then_the_verdict_then_the_readings(moved):
    text = as_text(moved)
    assert text.startswith(f"A: {HEALTHY}, box cuda-healthy\nB: {FULL}, box cuda-24gb-tuning\n")
    heads = [compare.TITLES[kind] for kind in ("build", "verdict", "reading", "evidence")]
    heads.append("What did not move")
    assert sorted(heads, key=text.index) == heads
    assert moved.summary == "1 of 1 bundles moved, 1 verdict changed"
    assert '{"' not in text


def test_a_verdict_moves_as_diagnose_says_of_each_box(moved):
    verdict = BoxChange("verdict", "verdict", "healthy (weak)", "true-capacity (weak)")
    assert moved.changes("verdict") == [verdict]


def test_what_only_one_verdict_stands_on_is_no_reading_that_moved(moved):
    sides = [(change.before, change.after) for change in moved.changes("reading")]
    assert not [side for side in sides if "none" in side]
    text = as_text(moved)
    first, _, rest = text.partition("Readings behind only one verdict")
    assert "-> none" not in text
    assert "only in A: Free on 0000:01:00.0" in rest
    assert "host RAM used: 6.00 GiB -> 24.00 GiB (+18.00 GiB)" in first


def test_a_bundle_beside_itself_has_not_moved():
    same = compare.compare(HEALTHY, HEALTHY)
    assert same.summary == "0 of 1 bundles moved, 0 verdicts changed"
    assert same.changes(*compare.TITLES) == []
    text = as_text(same)
    assert "Kernel, driver, torch and memory settings are the same on both sides." in text
    assert "verdict" in text.partition("What did not move")[2]


def test_what_cannot_be_compared_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("x.tar.gz", "t.pickle"):
        (tmp_path / name).write_bytes(b"no archive")
    batch = night(tmp_path / "night", 2)
    for path in (*map(tmp_path.joinpath, ("none", "empty", "t.pickle", "x.tar.gz")), batch):
        with pytest.raises(CompareError) as error:
            compare.compare(HEALTHY, path)
        words = str(error.value)
        assert path.name in words
        assert words.endswith(compare.COMPARED) and "\n" not in words


def test_json_and_text_say_the_same_and_nothing_hostile_acts(moved):
    again = json.loads(json.dumps(as_json(moved)))
    assert again["summary"] == moved.summary
    assert (again["kind"], again["schema_version"]) == ("bundle", 1)
    assert len(again["pairs"][0]["moved"]) == len(moved.pairs[0].moved)
    change = BoxChange("parameter", HOSTILE, HOSTILE, "other")
    pair = ComparedBundle(HOSTILE, (change,), (HOSTILE,))
    hostile = BoxComparison(HOSTILE, "b", (HOSTILE, ""), (pair,), (pair,))
    assert all(char.isprintable() or char == "\n" for char in as_text(hostile))


def test_recorded_boxes_are_compared_by_name_from_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "cuda-healthy", "rx7900xt-container"]) == 0
    assert "kernel: 6.14.0-37-generic -> 6.8.0-85-generic" in capsys.readouterr().out
