"""A value that cannot be meant is refused in one short line that says what is expected."""

import pytest
from command_line import verb
from hypothesis import given
from hypothesis import strategies as st

from helpers.allocator.study import open_study
from helpers.face.change import fix_program
from helpers.face.fit import what_fits
from helpers.ground.units import GIB, parse_size, typed_size
from helpers.settings.presets import PresetError, load
from helpers.settings.releases import named_release

LONG = "x" * 10_000


@pytest.mark.parametrize(
    "words",
    [
        [LONG],
        ["diagnose", LONG],
        ["status", LONG],
        ["run", LONG],
        ["replay", LONG],
        ["compare", LONG, "b"],
        ["share", LONG],
        ["fits", LONG, "--gpu", "4090"],
        ["fits", f"--gpu={LONG}", "env/models/made-up-9b"],
        ["whatif", "a.pickle", f"--{LONG}"],
    ],
    ids=lambda words: words[0][:10] + str(len(words)),
)
def test_a_very_long_input_is_shown_in_some_eighty_letters(words):
    done = verb(*words)
    assert done.code == 2
    assert done.err.count("\n") == 1 and len(done.err) < 700
    assert "x" * 81 not in done.err and "…" in done.err


@pytest.mark.parametrize("verb_of_a_trace", ["replay", "leaks", "whatif"])
def test_a_card_of_no_bytes_is_refused(verb_of_a_trace):
    done = verb(verb_of_a_trace, "env/traces/growing-loop.parquet", "--capacity", "0")
    assert done.code == 2
    assert "size '0': expected a size above 0, such as 20GiB" in done.err


@pytest.mark.parametrize("verb_of_a_trace", ["replay", "leaks", "whatif"])
def test_the_size_of_a_card_without_its_unit_is_refused(verb_of_a_trace):
    done = verb(verb_of_a_trace, "env/traces/growing-loop.parquet", "--capacity", "24")
    assert done.code == 2
    assert "24 is a card of 24 bytes; expected a size with its unit, such as 20GiB" in done.err


@pytest.mark.parametrize("words", [["fits", "env/models/made-up-9b"], ["rehearse"]])
def test_a_card_of_no_bytes_is_refused_before_anything_runs(words):
    done = verb(*words, "--capacity", "0GiB", *(["--", "true"] * (words == ["rehearse"])))
    assert done.code == 2 and "expected a size above 0" in done.err


@pytest.mark.parametrize("text", ["99.9.9", "banana", "1.13", "0.1", "2.", "3.0"])
def test_a_release_of_torch_that_is_not_modelled_is_refused(text):
    with pytest.raises(
        ValueError, match=r"expected a release from 2\.0 to 2\.15, such as 2\.14\.1"
    ):
        named_release(text)
    with pytest.raises(ValueError, match="not modelled here"):
        open_study("volume_profiles", capacity="20GiB", torch=text)


def test_a_release_that_is_modelled_or_none_is_taken():
    assert [named_release(text) for text in ("", "2.4.1", "2.15.0", "2.9.1+rocm7.0")] == [
        *("", "2.4.1", "2.15.0", "2.9.1+rocm7.0")
    ]


@pytest.mark.parametrize(
    ("option", "count"),
    [("slots", 10**12), ("context", 10**15), ("tokens", 10**12), ("tp", 10**6), ("slots", 0)],
)
def test_counts_that_cannot_be_meant_are_refused(option, count):
    done = verb("fits", "env/models", "--gpu", "4090", f"--{option}", count)
    assert done.code == 2 and f"fits: --{option} {count}; expected 1 to" in done.err


def test_a_notebook_refuses_the_same_counts():
    with pytest.raises(ValueError, match="slots 1000000000000; expected 1 to"):
        what_fits("made-up-9b", gpu="4090", slots=10**12)


@pytest.mark.parametrize("command", ["python 'train.py", 'python "a', "python a\\"])
def test_a_command_with_an_open_quotation_is_shown_and_says_what_to_do(command, tmp_path):
    with pytest.raises(ValueError, match="each quotation mark closed") as caught:
        fix_program(command, folder=str(tmp_path), gpu="4090")
    assert command[:10] in str(caught.value) and "No closing" not in str(caught.value)


def test_a_preset_with_an_open_quotation_says_in_which_line(tmp_path):
    path = tmp_path / "mine.env"
    path.write_text("export A='b\n")
    with pytest.raises(PresetError, match="quotation mark that is not closed") as caught:
        load(path)
    assert "export A='b" in str(caught.value)


@given(st.integers(1, 1 << 12))
def test_a_size_on_a_command_line_is_typed_in_one_way_and_read_back(gib):
    assert typed_size(gib * GIB) == f"{gib}GiB"
    assert parse_size(typed_size(gib * GIB + (1 << 20))) == gib * GIB + (1 << 20)
