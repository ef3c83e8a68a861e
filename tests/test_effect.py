"""The verdict of two arms of trials: intervals that hold, effects that are found, and no alarm where there is nothing."""

import math
import random

import pytest
from effect_campaign import resampled
from hypothesis import given
from hypothesis import strategies as st

from helpers.load.effect import Arm, compare, effect, fisher, same_answer, student

SIZES = st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5)


def arm(memory=(100.0,) * 5, time=(1.0,) * 5, outcomes=("ok",) * 5, losses=()):
    return Arm(tuple(outcomes), tuple(losses), {"memory": tuple(memory), "time": tuple(time)})


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 63.657), (2, 9.925), (3, 5.841), (4, 4.604), (9, 3.250), (30, 2.750)],
)
def test_quantiles_are_those_of_the_printed_tables(freedom, quantile):
    assert student(0.99, freedom) == pytest.approx(quantile, abs=5e-4)


def test_fishers_test_gives_the_known_probability():
    assert fisher(5, 5, 0, 5) == pytest.approx(2 / 252)
    assert fisher(3, 4, 1, 4) == pytest.approx(34 / 70)  # the lady tasting tea, two-sided


def test_half_the_memory_is_found():
    found = effect("memory", [100, 101, 99, 100, 102], [50, 50, 51, 49, 50])
    assert found.says == "less" and found.low < 0.5 < found.high and found.pairs == 5


def test_an_effect_below_the_least_that_matters_is_the_same():
    assert effect("memory", [100.0] * 4, [99.0] * 4).says == "same"
    assert effect("time", [1.0, 1.01, 0.99, 1.0], [1.05, 1.05, 1.04, 1.05]).says == "same"


def test_noise_as_large_as_the_effect_leaves_it_unclear():
    assert effect("time", [1.0, 2.0, 0.6, 1.4], [1.5, 1.1, 1.7, 0.9]).says == "unclear"


def test_two_pairs_say_nothing():
    assert effect("memory", [100, 100], [1, 1]).says == "unclear"


def test_a_pair_without_a_measurement_is_left_out():
    assert effect("memory", [100, None, 0, 100, 100], [50, 50, 50, 50, 50]).pairs == 3
    assert effect("memory", [], []).pairs == 0


@given(SIZES, SIZES, st.floats(0.1, 10))
def test_a_ratio_does_not_depend_on_the_unit_and_turns_over_with_the_arms(control, treated, unit):
    one, scaled = (
        effect("time", control, treated),
        effect("time", [x * unit for x in control], [x * unit for x in treated]),
    )
    other = effect("time", treated, control)
    assert scaled.ratio == pytest.approx(one.ratio) and scaled.low == pytest.approx(one.low)
    assert other.ratio == pytest.approx(1 / one.ratio) and other.high == pytest.approx(1 / one.low)
    assert {"less": "more", "more": "less"}.get(one.says, one.says) == other.says or math.isclose(
        one.high, 1, rel_tol=1e-9
    )


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05, 0.15])
@pytest.mark.parametrize("what", ["memory", "time"])
def test_of_two_thousand_alike_comparisons_at_most_two_in_a_hundred_alarm(what, spread):
    rng = random.Random(7)
    assert (
        resampled(
            [math.exp(rng.gauss(0, spread)) for _ in range(40)], what, pairs=5, draws=2000, seed=1
        )
        <= 0.02
    )


def test_a_remedy_that_saves_memory_helps_and_its_cost_is_told():
    told = compare(arm(), arm(memory=(50.0,) * 5, time=(1.5, 1.5, 1.51, 1.5, 1.5)))
    assert told.verdict == "helps" and "it costs time x 1.5" in told.why


def test_a_cost_without_a_gain_is_harm():
    assert compare(arm(), arm(time=(1.5, 1.5, 1.51, 1.5, 1.5))).verdict == "harmful"
    assert compare(arm(), arm(memory=(110.0,) * 5)).verdict == "harmful"
    assert compare(arm(), arm(memory=(110.0,) * 5), goal="time").verdict == "harmful"


def test_no_change_is_no_effect():
    assert compare(arm(), arm()).verdict == "no_effect"


def test_a_remedy_that_changes_the_answer_is_none():
    losses = [(1.0, 0.5)] * 5
    told = compare(
        arm(losses=losses), arm(memory=(50.0,) * 5, losses=[(1.0, 0.51)] * 5), answer="close"
    )
    assert told.verdict == "harmful" and told.same_answer is False
    nearly = arm(memory=(50.0,) * 5, losses=[(1.0, 0.50001)] * 5)
    assert compare(arm(losses=losses), nearly, answer="close").verdict == "helps"
    assert compare(arm(losses=losses), nearly, answer="bitwise").verdict == "harmful"


def test_a_control_that_runs_out_where_the_remedy_finishes_is_help_with_enough_trials():
    bad, good = arm(outcomes=("oom",) * 5, memory=(None,) * 5, time=(None,) * 5), arm()
    assert compare(bad, good).verdict == "helps"
    assert compare(good, bad).verdict == "harmful"
    few = compare(arm(outcomes=("oom",) * 3), arm(outcomes=("ok",) * 3))
    assert few.verdict == "not_enough_evidence" and "by chance (p = 0.1)" in few.why


def test_a_remedy_under_which_all_run_out_alike_has_no_effect():
    out = arm(outcomes=("oom",) * 5)
    assert compare(out, out).verdict == "no_effect"
    broken = arm(outcomes=("crashed",) * 5)
    assert compare(broken, broken).verdict == "not_enough_evidence"


def test_an_arm_without_a_trial_is_no_evidence():
    assert compare(arm(), arm(outcomes=())).verdict == "not_enough_evidence"


def test_answers_compare_on_the_steps_that_both_made():
    assert same_answer([(1.0, 2.0)], [(1.0,)], "bitwise") is True
    assert same_answer([()], [()], "bitwise") is None
    assert same_answer([(math.nan,)], [(math.nan,)], "half") is False
