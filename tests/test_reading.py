"""A reading is a value or a reason, and sizes are read and shown with their unit."""

import pytest

from helpers.ground.shapes import Reading, not_allowed, not_available, seen


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
