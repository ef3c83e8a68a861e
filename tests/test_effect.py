"""The verdict of two arms of trials: intervals that hold, effects that are found, and no alarm where there is nothing."""

import math
import random

import pytest
from effect_campaign import resampled
from hypothesis import given
from hypothesis import strategies as st

from helpers.trials.effect import ArmResults, did_it_help, effect, fisher, same_answer

SIZES = st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5)
DEARER = (1.5, 1.5, 1.51, 1.5, 1.5)
HALF = (50.0,) * 5
MORE = (110.0,) * 5
NONE = (None,) * 5


def arm(memory=(100.0,) * 5, time=(1.0,) * 5, outcomes=("ok",) * 5, losses=()):
    return ArmResults(tuple(outcomes), tuple(losses), tuple(memory), tuple(time))


def test_fishers_test_gives_the_known_probability():
    assert fisher(5, 5, 0, 5) == pytest.approx(2 / 252)
    assert fisher(3, 4, 1, 4) == pytest.approx(34 / 70)  # the lady tasting tea, two-sided


@pytest.mark.parametrize(
    ("what", "control", "treated", "says", "pairs"),
    [
        ("memory", [100, 101, 99, 100, 102], [50, 50, 51, 49, 50], "less", 5),
        ("memory", [100.0] * 4, [99.0] * 4, "same", 4),
        ("time", [1.0, 1.01, 0.99, 1.0], [1.05, 1.05, 1.04, 1.05], "same", 4),
        ("time", [1.0, 2.0, 0.6, 1.4], [1.5, 1.1, 1.7, 0.9], "unclear", 4),
        ("memory", [100, 100], [1, 1], "unclear", 2),
        ("memory", [100, None, 0, 100, 100], [50] * 5, "less", 3),
        ("memory", [], [], "unclear", 0),
    ],
    ids=["half", "below-least", "slower-a-little", "noise", "two-pairs", "lacking", "none"],
)
def test_an_effect_is_said_where_its_interval_shows_it(what, control, treated, says, pairs):
    found = effect(what, control, treated)
    assert (found.says, found.pairs) == (says, pairs)
    assert not found.low > found.ratio and not found.high < found.ratio


@given(SIZES, SIZES, st.floats(0.1, 10))
def test_a_ratio_does_not_depend_on_the_unit_and_turns_over_with_the_arms(control, treated, unit):
    one = effect("time", control, treated)
    other = effect("time", treated, control)
    scaled = effect("time", [x * unit for x in control], [x * unit for x in treated])
    assert scaled.ratio == pytest.approx(one.ratio) and scaled.low == pytest.approx(one.low)
    assert other.ratio == pytest.approx(1 / one.ratio) and other.high == pytest.approx(1 / one.low)
    turned = {"less": "more", "more": "less"}.get(one.says, one.says)
    assert turned == other.says or math.isclose(one.high, 1, rel_tol=1e-9)


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05, 0.15])
@pytest.mark.parametrize("what", ["memory", "time"])
def test_of_two_thousand_alike_comparisons_at_most_two_in_a_hundred_alarm(what, spread):
    rng = random.Random(7)
    values = [math.exp(rng.gauss(0, spread)) for _ in range(40)]
    assert resampled(values, what, pairs=5, draws=2000, seed=1) <= 0.02


BAD = ("oom",) * 5
CRASHED = {"outcomes": ("crashed",) * 5}
LEARNS = {"losses": [(1.0, 0.5)] * 5}
OUT = {"outcomes": BAD, "memory": NONE, "time": NONE}
FEW = {"outcomes": BAD[:3]}
GOOD = {"outcomes": ("ok",) * 3}
UNKNOWN = "not_enough_evidence"


def halved(loss):
    return {"memory": HALF, "losses": [(1.0, loss)] * 5}


@pytest.mark.parametrize(
    ("control", "treated", "asked", "verdict", "why"),
    [
        ({}, {"memory": HALF, "time": DEARER}, {}, "helps", "it costs time x 1.5"),
        ({}, {"time": DEARER}, {}, "harmful", "time x 1.5"),
        ({}, {"memory": MORE}, {}, "harmful", "memory x 1.1"),
        ({}, {"memory": MORE}, {"goal": "time"}, "harmful", "memory x 1.1"),
        ({}, {}, {}, "no_effect", "below 2%, the least that matters"),
        ({}, {}, {"goal": "time"}, "no_effect", "below 10%, the least that matters"),
        (LEARNS, halved(0.51), {"answer": "close"}, "harmful", "changes the answer"),
        (LEARNS, halved(0.50001), {"answer": "close"}, "helps", ""),
        (LEARNS, halved(0.50001), {"answer": "bitwise"}, "harmful", ""),
        (OUT, {}, {}, "helps", "it ended 5 ok, and without it 5 oom"),
        ({}, OUT, {}, "harmful", "it ended 5 oom, and without it 5 ok"),
        (FEW, GOOD, {}, UNKNOWN, "by chance (p = 0.1)"),
        ({"outcomes": BAD}, {"outcomes": BAD}, {}, "no_effect", "no trial finished"),
        (CRASHED, CRASHED, {}, UNKNOWN, "no trial finished"),
        ({}, {"outcomes": ()}, {}, UNKNOWN, "no trial of the remedy"),
        ({"outcomes": ()}, {}, {}, UNKNOWN, "no trial of the control"),
        ({"memory": NONE}, {}, {}, UNKNOWN, "memory: not measured"),
    ],
)
def test_the_verdict_of_two_arms(control, treated, asked, verdict, why):
    told = did_it_help(arm(**control), arm(**treated), **asked)
    assert told.verdict == verdict and why in told.why


def test_answers_compare_on_the_steps_that_both_made():
    assert same_answer([(1.0, 2.0)], [(1.0,)], "bitwise") is True
    assert same_answer([()], [()], "bitwise") is None
    assert same_answer([(math.nan,)], [(math.nan,)], "half") is False
    assert same_answer([(math.inf,)], [(math.inf,)], "bitwise") is True
    assert same_answer([(1.0,)], [(math.inf,)], "half") is False
