"""The planted values keep their promises: enough of each kind and each way, the same for a seed, all there to be found."""

import json
from collections import Counter

import nbformat
import planted
import pytest


@pytest.fixture(scope="module")
def sample():
    return planted.grown(1)


def page_of(notebook, texts):
    return "\n".join([planted.rendered(notebook), *texts.values()])


def test_each_kind_and_each_way_is_planted_often_enough(sample):
    plants = sample[2]
    kinds = Counter(plant["kind"] for plant in plants)
    ways = Counter(plant["way"] for plant in plants)
    assert len(plants) >= 600
    assert kinds.keys() == {row["kind"] for row in planted.table("kinds")} and len(kinds) >= 60
    assert ways.keys() == {row["way"] for row in planted.table("ways")} and len(ways) >= 80
    assert min(kinds.values()) >= 6 and min(ways.values()) >= 5
    assert {"cell source", "stdout", "stderr", "html", "svg", "metadata", "text file"} <= {
        plant["place"] for plant in plants
    }


def test_a_seed_gives_the_same_files_and_another_seed_gives_other_values(sample):
    assert sample == planted.grown(1)
    values = {plant["value"] for plant in sample[2]}
    assert not values & {plant["value"] for plant in planted.grown(3)[2]}


def test_every_value_is_found_in_the_unredacted_page_and_in_the_notebook_as_it_is_written(sample):
    notebook, texts, plants = sample
    nbformat.validate(nbformat.from_dict(notebook))
    for page in (page_of(notebook, texts), "\n".join([json.dumps(notebook), *texts.values()])):
        there = {plant["id"] for plant, _ in planted.survivors(page, plants)}
        assert [plant for plant in plants if plant["id"] not in there] == []


def test_no_value_is_found_where_it_was_never_written(sample):
    notebook, texts, _ = planted.grown(4)
    page = page_of(notebook, texts) + "\n".join(planted.clean_lines())
    assert planted.survivors(page, sample[2]) == []


@pytest.mark.parametrize(
    ("page", "how"),
    [
        ("key = 'ghp_0123456789abcdefghijklmnopqrstuvwxyz'", "plain"),
        ("<b>ghp_0123456789abcd</b>\n<i>efghijklmnop&#113;rstuvwxyz</i>", "plain"),
        ("ghp_0123456789\x1b[0m\x1b[31mabcdefghijklmnopqrstuvwxyz", "plain"),
        ("│ ghp_0123456789abcdefghij │\n│ klmnopqrstuvwxyz         │", "plain"),
        ("ghp_01234567\u200b89abcdefghijklmnopqrstuvwxyz", "plain"),
        ("\\x67hp_0123456789abcdefghijklmnopqrstuvwxyz", "plain"),
        ("ghp%5F0123456789abcdefghijklmnopqrstuvwxyz", "plain"),
        ("[gone]456789abcdefghijklmnopqrstuv", "plain"),
        ("Z2hwXzAxMjM0NTY3ODlhYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5eg==", "b64"),
        ("ghp_0123[gone]wxyz", ""),
    ],
)
def test_a_value_survives_in_whatever_dress_and_by_half(page, how):
    value = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
    encoded = {"how": "b64", "text": planted.base64_of(value.encode())}
    plant = {"secret": True, "forms": [{"how": "plain", "text": value}, encoded]}
    assert [found for _, found in planted.survivors(page, [plant])] == ([how] if how else [])


def test_the_lines_to_leave_alone_are_many_and_all_different():
    lines = planted.clean_lines()
    assert len(lines) == len(set(lines)) == 150


def test_the_command_writes_every_file_and_finds_the_values_in_them_again(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", ["planted", "--seed", "5", "--out", str(tmp_path)])
    assert planted.main() == 0
    texts = [str(path) for path in tmp_path.rglob("*") if path.suffix in (".txt", ".md", ".ipynb")]
    plants = json.loads((tmp_path / "plants.json").read_text())
    monkeypatch.setattr("sys.argv", ["planted", "--plants", str(tmp_path / "plants.json"), *texts])
    assert planted.main() == 0
    assert f"{len(plants)} of {len(plants)} planted values survive" in capsys.readouterr().out
