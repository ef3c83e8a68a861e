"""Words of vendor tools: units, three kinds of nothing, JSON among warnings, and text that means harm."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look.bundle import Text
from helpers.look.reading import NOT_ALLOWED, NOT_AVAILABLE
from helpers.look.vendor_text import (
    count,
    failures,
    find_json,
    plain,
    size,
    stdout_of,
    why_nothing,
    word,
)


def said(text: str, status: str = "ok", why: str = "") -> Text:
    return Text(text, status, why, "tool", "command/tool")


TOOL = said("")


@pytest.mark.parametrize(
    ("raw", "unit", "bytes_"),
    [
        ({"value": 8176, "unit": "MB"}, "", 8176 << 20),
        ({"value": 6180000, "unit": "B"}, "", 6180000),
        ("24564 MiB", "", 24564 << 20),
        ("131151392 KiB", "", 131151392 << 10),
        ("46.75 GB", "", 46 * (1 << 30) + round(0.75 * (1 << 30))),
        ("18760", "MiB", 18760 << 20),
        ("8,589,934,592", "", 8589934592),
        (0, "MiB", 0),
        ("0", "", 0),
    ],
)
def test_a_size_is_read_in_binary_units_whatever_the_tool_calls_them(
    raw: object, unit: str, bytes_: int
) -> None:
    reading = size(raw, TOOL, unit)
    assert (reading.value, reading.unit, reading.source, reading.item) == (
        bytes_,
        "bytes",
        "tool",
        "command/tool",
    )


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "N/A",
        "[N/A]",
        "UNKNOWN",
        "None",
        "[Not Supported]",
        "",
        {"value": "N/A", "unit": "MB"},
        {},
    ],
)
def test_what_was_not_measured_is_not_zero(raw: object) -> None:
    assert size(raw, TOOL).status == count(raw, TOOL).status == NOT_AVAILABLE
    assert size(raw, TOOL).value is count(raw, TOOL).value is None


@pytest.mark.parametrize(
    "raw", ["[Insufficient Permissions]", "Insufficient Permissions", "permission denied"]
)
def test_a_refusal_reads_as_not_allowed(raw: str) -> None:
    assert (
        size(raw, TOOL).status == count(raw, TOOL).status == word(raw, TOOL).status == NOT_ALLOWED
    )


@pytest.mark.parametrize(
    "raw",
    [
        "-5 MiB",
        "12 parsecs",
        "1e9",
        True,
        "12 MiB 13",
        float("nan"),
        [1],
        {"value": [1]},
        "9" * 5000,
    ],
)
def test_a_size_that_makes_no_sense_says_what_it_saw(raw: object) -> None:
    assert size(raw, TOOL).status == NOT_AVAILABLE and size(raw, TOOL).why


def test_json_is_found_behind_warnings_and_before_stderr() -> None:
    text = 'WARNING: User is missing groups: render.\n[drm] not json\n[\n {"gpu": 0}\n]\n--- stderr ---\n[WARN] more'
    assert find_json(text) == [{"gpu": 0}]


@pytest.mark.parametrize(
    "text", ["", "no json", "{", "[drm] hello", '{"a": ', "[" * 100_000, "[\n" * 2_000]
)
def test_broken_or_deep_json_reads_as_none(text: str) -> None:
    assert find_json(text) is None


def test_a_number_of_a_million_digits_costs_no_minutes() -> None:
    assert find_json('{"gpu": ' + "9" * 1_000_000 + "}") == {"gpu": float("inf")}


def test_a_failure_quotes_the_tool_and_keeps_a_refusal_apart() -> None:
    refused = "Unable to open /dev/kfd read-write: Permission denied"
    failure = why_nothing(
        said(f"\x1b[31m{refused}\x1b[0m\nmira is not member of render\n"), "rocminfo", "agent"
    )
    assert failure.status == NOT_ALLOWED
    assert failure.why == f"{refused}; mira is not member of render"


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi", "rocminfo", "nvidia-smi"])
def test_each_known_failure_of_a_tool_is_quoted(tool: str) -> None:
    assert failures()[tool]["source"]
    for status in (NOT_ALLOWED, NOT_AVAILABLE):
        for phrase in failures()[tool][status]:
            failure = why_nothing(said(f"something else\nerror: {phrase} here\n"), tool, "answer")
            assert f"error: {phrase} here" in failure.why
            assert (
                failure.status == status
                or "Permission denied" in phrase
                or "is member of" in phrase
            )


def test_without_a_sign_the_capture_speaks_then_the_first_line() -> None:
    assert (
        why_nothing(said("", "not_available", "no such program"), "", "agent").why
        == "no such program"
    )
    assert (
        why_nothing(said("", "not_allowed", "may not execute it"), "", "agent").status
        == NOT_ALLOWED
    )
    assert why_nothing(said("\n \n"), "", "agent").why == "it printed nothing"
    assert (
        why_nothing(said("usage: foo\nmore"), "", "agent").why
        == "it printed no agent; it begins: usage: foo"
    )


def test_stdout_ends_where_stderr_begins() -> None:
    assert stdout_of(said("out\n--- stderr ---\nerr")) == "out"
    assert stdout_of(said("--- stderr ---\nerr")) == ""
    assert plain("\x1b[37mROCk\x1b[0m") == "ROCk"


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.dictionaries(st.sampled_from(["value", "unit", "x"]), inner)
            | st.lists(inner, max_size=3)
        ),
        max_leaves=6,
    ),
    st.sampled_from(["", "MiB", "B", "furlong"]),
)
def test_no_value_of_json_breaks_a_reading(raw: object, unit: str) -> None:
    for reading in (size(raw, TOOL, unit), count(raw, TOOL), word(raw, TOOL)):
        assert (reading.value is not None) == reading.ok
        assert reading.ok or reading.why


@settings(max_examples=60, deadline=None)
@given(
    st.text(max_size=60),
    st.recursive(
        st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ),
)
def test_json_after_any_text_is_found_or_none(noise: str, value: object) -> None:
    found = find_json(noise + "\n" + json.dumps({"value": value}))
    if "{" not in noise and "[" not in noise:
        assert found == {"value": value}
