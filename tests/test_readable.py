"""The package stays small and plain: tokens of every room, and how often packed forms stand in it."""

import ast
from pathlib import Path

import pytest
import readable

HELPERS = Path(__file__).resolve().parents[1] / "helpers"

# Tokens of Python without comments and docstrings. A ceiling is raised only by what a feature adds,
# and lowered by whoever makes a room smaller.
MOST_TOKENS = {
    "allocator": 87_758,
    "agent": 1_472,
    "batch": 35_321,
    "commands": 18_856,
    "face": 8_487,
    "fix": 40_414,
    "fits": 29_588,
    "ground": 11_851,
    "judge": 58_991,
    "magics": 15_705,
    "look": 56_187,
    "rehearse": 27_575,
    "settings": 11_915,
    "share": 13_146,
    "tell": 37_176,
    "trials": 34_746,
    "vpoc": 16_890,
    "(top)": 1_904,
}

# Per 1,000 tokens of the whole package. These only fall.
MOST_FORMS = {
    "tuple": 0.0,
    "ternary": 1.49,
    "nested": 0.0,
    "truth": 0.02,
    "or_value": 0.45,
    "walrus": 0.02,
    "double_for": 0.08,
    "any": 0.65,
    "star_dict": 0.14,
    "rebound": 0.0,
    "header": 0.01,
    "vague": 0.04,
    "wide": 0.59,
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
