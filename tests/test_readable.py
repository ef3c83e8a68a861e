"""The package stays small and plain: tokens of every room, and how often packed forms stand in it."""

import ast
from pathlib import Path

import pytest
import readable

HELPERS = Path(__file__).resolve().parents[1] / "helpers"

# Tokens of Python without comments and docstrings. A ceiling is raised only by what a feature adds,
# and lowered by whoever makes a room smaller.
MOST_TOKENS = {
    "allocator": 87_828,
    "agent": 1_472,
    "batch": 35_331,
    "commands": 18_864,
    "face": 8_486,
    "fix": 40_442,
    "fits": 29_589,
    "ground": 11_859,
    "judge": 58_996,
    "magics": 15_707,
    "look": 56_397,
    "rehearse": 27_576,
    "settings": 11_916,
    "share": 13_146,
    "tell": 37_179,
    "trials": 34_751,
    "vpoc": 16_890,
    "(top)": 1_925,
}

# Per 1,000 tokens of the whole package. These only fall.
MOST_FORMS = {
    "tuple": 0.05,
    "ternary": 2.76,
    "nested": 0.01,
    "truth": 0.04,
    "or_value": 0.8,
    "walrus": 0.06,
    "double_for": 0.2,
    "any": 1.53,
    "star_dict": 0.2,
    "rebound": 0.0,
    "header": 0.02,
    "vague": 0.13,
    "wide": 0.6,
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
