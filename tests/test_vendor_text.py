"""Words of vendor tools: units, three kinds of nothing, JSON among warnings, and text that means harm."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.ground.shapes import NOT_ALLOWED, NOT_AVAILABLE
from helpers.look.bundle import Text
from helpers.look.files import sources
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


def text(words, status="ok", why=""):
    return Text(words, status, why, "tool", "command/tool")


TOOL = text("")


@pytest.mark.parametrize(
    ("raw", "unit", "bytes_"),
    [
        ({"value": 8176, "unit": "MB"}, "", 8176 << 20),
        ({"value": 6180000, "unit": "B"}, "", 6180000),
        ("131151392 KiB", "", 131151392 << 10),
        ("46.75 GB", "", 187 << 28),
        ("18760", "MiB", 18760 << 20),
        ("8,589,934,592", "", 8589934592),
        (0, "MiB", 0),
        ("0", "", 0),
    ],
)
def test_a_size_is_read_in_binary_units_whatever_the_tool_calls_them(raw, unit, bytes_):
    reading = size(raw, TOOL, unit)
    assert (reading.value, reading.unit) == (bytes_, "bytes")
    assert (reading.source, reading.item) == ("tool", "command/tool")


ABSENT = (None, "N/A", "[N/A]", "UNKNOWN", "None", "[Not Supported]", "", {"value": "N/A"}, {})
SENSELESS = ("-5 MiB", "12 parsecs", "1e9", True, "12 MiB 13", float("nan"), [1], {"value": [1]})


@pytest.mark.parametrize("raw", [*ABSENT, *SENSELESS, "9" * 5000])
def test_what_was_not_measured_or_makes_no_sense_is_not_zero(raw):
    for reading in (size(raw, TOOL), count(raw, TOOL)):
        assert (reading.status, reading.value) == (NOT_AVAILABLE, None) and reading.why


REFUSED = ("[Insufficient Permissions]", "Insufficient Permissions", "permission denied")


@pytest.mark.parametrize("raw", REFUSED)
def test_a_refusal_reads_as_not_allowed(raw):
    assert {read(raw, TOOL).status for read in (size, count, word)} == {NOT_ALLOWED}


def test_json_is_found_behind_warnings_and_before_stderr():
    words = 'WARNING: User is missing groups: render.\n[drm] not json\n[\n {"gpu": 0}\n]\n--- stderr ---\n[WARN] more'
    assert find_json(words) == [{"gpu": 0}]


@pytest.mark.parametrize(
    "words", ["", "no json", "{", "[drm] hello", '{"a": ', "[" * 100_000, "[\n" * 2_000]
)
def test_broken_or_deep_json_reads_as_none(words):
    assert find_json(words) is None


def test_a_number_of_a_million_digits_costs_no_minutes():
    assert find_json('{"gpu": ' + "9" * 1_000_000 + "}") == {"gpu": float("inf")}


def test_a_failure_quotes_the_tool_and_keeps_a_refusal_apart():
    refused = "Unable to open /dev/kfd read-write: Permission denied"
    member = "mira is not member of render"
    failure = why_nothing(text(f"\x1b[31m{refused}\x1b[0m\n{member}\n"), "rocminfo", "agent")
    assert (failure.status, failure.why) == (NOT_ALLOWED, f"{refused}; {member}")


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi", "rocminfo", "nvidia-smi"])
def test_each_known_failure_of_a_tool_is_quoted(tool):
    assert failures()[tool]["source"]
    for status in (NOT_ALLOWED, NOT_AVAILABLE):
        for phrase in failures()[tool][status]:
            words = f"something else\nerror: {phrase} here\n"
            failure = why_nothing(text(words), tool, "answer")
            refused = "Permission denied" in phrase or "is member of" in phrase
            assert f"error: {phrase} here" in failure.why and (failure.status == status or refused)


@pytest.mark.parametrize(
    ("printed", "status", "why"),
    [
        (text("", "not_available", "no such program"), NOT_AVAILABLE, "no such program"),
        (text("", "not_allowed", "may not execute it"), NOT_ALLOWED, "may not execute it"),
        (text("\n \n"), NOT_AVAILABLE, "it printed nothing"),
        (text("usage: x\nmore"), NOT_AVAILABLE, "it printed no agent; it begins: usage: x"),
    ],
)
def test_without_a_sign_the_capture_speaks_then_the_first_line(printed, status, why):
    nothing = why_nothing(printed, "", "agent").missing()
    assert (nothing.status, nothing.why) == (status, why)


def test_stdout_ends_where_stderr_begins():
    assert stdout_of(text("out\n--- stderr ---\nerr")) == "out"
    assert stdout_of(text("--- stderr ---\nerr")) == ""
    assert plain("\x1b[37mROCk\x1b[0m") == "ROCk"


def test_no_command_of_ours_can_write():
    words = {tool: set() for tool in ("rocm-smi", "amd-smi", "amd-ttm", "rocminfo")}
    for tool, *rest in map(str.split, sources("command", "rocm")):
        words[tool].update(rest)
    reads = "list static metric process"
    assert all(word in ("all", "--json") or word[:6] == "--show" for word in words["rocm-smi"])
    assert {word for word in words["amd-smi"] if word[0] != "-"} == set(reads.split())
    assert words["amd-ttm"] == words["rocminfo"] == set(), "without arguments they only print"


def nested(inner):
    return st.dictionaries(st.sampled_from(["value", "unit", "x"]), inner) | st.lists(
        inner, max_size=3
    )


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(PLAIN, nested, max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(JSON, st.sampled_from(["", "MiB", "B", "furlong"]), st.text(max_size=60))
def test_no_value_of_json_breaks_a_reading_and_it_is_found_after_any_text(raw, unit, noise):
    for reading in (size(raw, TOOL, unit), count(raw, TOOL), word(raw, TOOL)):
        assert reading.ok or reading.why
    found = find_json(noise + "\n" + json.dumps({"value": 5}))
    assert found == {"value": 5} or "{" in noise or "[" in noise
