"""A reading is a value or a reason, and sizes are read and shown with their unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.look.reading import Reading, not_allowed, not_available, parse_size, seen, show_bytes


def test_a_true_zero_is_a_value():
    assert seen(0, "bytes", "/sys/x").ok and seen(0, "bytes", "/sys/x").show() == "0 B"


@pytest.mark.parametrize(
    ("reading", "shown"),
    [
        (seen(67149512704, "bytes", "s"), "62.54 GiB"),
        (seen(16393924, "pages", "s"), "16393924 pages"),
        (seen("gfx1100", "text", "s"), "gfx1100"),
        (not_available("no such file", "bytes", "s"), "not available: no such file"),
        (
            not_allowed("needs the render group", "bytes", "s"),
            "not allowed: needs the render group",
        ),
    ],
)
def test_a_reading_says_what_it_knows(reading, shown):
    assert reading.show() == shown


@pytest.mark.parametrize(
    "bad",
    [
        dict(value=None, status="ok", why=""),
        dict(value=0, status="not_available", why="x"),
        dict(value=None, status="not_allowed", why=""),
        dict(value=1, status="fine", why=""),
    ],
)
def test_a_value_without_a_state_or_a_state_without_a_reason_cannot_be_made(bad):
    with pytest.raises(ValueError):
        Reading(unit="bytes", source="s", item="", **bad)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("8GiB", 8 << 30),
        ("20GB", 20 * 10**9),
        ("8 gib", 8 << 30),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("3kB", 3000),
        ("7b", 7),
    ],
)
def test_a_size_is_read_with_its_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 pages", "1e9", "8GiBs", "0x10", "nan"])
def test_what_is_no_size_is_refused_with_what_was_seen(text):
    with pytest.raises(ValueError, match="expected bytes or a number with a unit"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_shown_size_reads_back_to_its_printed_precision(size):
    back = parse_size(show_bytes(size).replace(" ", ""))
    assert abs(back - size) <= max(1, size // 100)
