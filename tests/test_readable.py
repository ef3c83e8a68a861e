"""The package stays small and plain: tokens of every room, and how often packed forms stand in it."""

import ast
from pathlib import Path

import pytest
import readable

HELPERS = Path(__file__).resolve().parents[1] / "helpers"

# Tokens of Python without comments and docstrings. A ceiling is raised only by what a feature adds, or
# by code that a reader takes in more easily, and lowered by whoever makes a room smaller.
MOST_TOKENS = {
    "allocator": 90_218,
    "agent": 1_488,
    "batch": 36_139,
    "commands": 19_306,
    "face": 8_722,
    "fix": 41_102,
    "fits": 30_151,
    "ground": 12_054,
    "judge": 60_521,
    "magics": 15_986,
    "look": 57_586,
    "rehearse": 27_996,
    "settings": 12_361,
    "share": 13_577,
    "tell": 38_157,
    "trials": 35_416,
    "vpoc": 17_379,
    "(top)": 1_985,
}

# Per 1,000 tokens of the whole package. These only fall.
MOST_FORMS = {
    "tuple": 0.0,
    "ternary": 0.08,
    "nested": 0.0,
    "truth": 0.01,
    "or_value": 0.09,
    "walrus": 0.02,
    "double_for": 0.02,
    "any": 0.53,
    "star_dict": 0.14,
    "rebound": 0.0,
    "header": 0.01,
    "vague": 0.04,
    "wide": 0.39,
    "dynamic": 0.0,
}


@pytest.fixture(scope="module")
def rooms():
    measured = readable.measure(HELPERS)
    total = readable.Room()
    for room in measured.values():
        total.add(room)
    return {**measured, "TOTAL": total}


@pytest.mark.parametrize("room", MOST_TOKENS)
def test_a_room_has_no_more_tokens_than_its_ceiling(rooms, room):
    assert rooms[room].tokens <= MOST_TOKENS[room]


def test_every_room_has_a_ceiling(rooms):
    assert {*rooms} == {*MOST_TOKENS, "TOTAL"}


@pytest.mark.parametrize("form", readable.FORMS)
def test_packed_forms_only_fall(rooms, form):
    rate = rooms["TOTAL"].rate(form)
    worst = sorted(rooms, key=lambda name: rooms[name].rate(form), reverse=True)[:4]
    assert rate <= MOST_FORMS[form], f"{form}: {rate:.2f}, most in {worst}"


def test_no_module_binds_a_name_twice():
    twice = [
        path.relative_to(HELPERS)
        for path in sorted(HELPERS.rglob("*.py"))
        if readable.rebound(ast.parse(path.read_text()))
    ]
    assert twice == []
