"""The remedies of the case studies: each on the list, predicted where it can be, and never called measured where it was not."""

import math

import pytest

from helpers.allocator.load import read
from helpers.load.claims import claims
from helpers.load.effect import VERDICTS
from helpers.load.fixplan import Arm, Pair, Ran, plan
from helpers.load.remedies import (
    NO_GPU,
    PATH,
    RECORDED,
    adopt,
    fix_table,
    forest,
    pairs,
    predict,
    remedies,
)
from helpers.load.trial import TrialRecord
from helpers.load.workloads import workload
from helpers.settings.presets import NONE

CARD_BYTES = 20 << 30
KNOWN = {one.id: one for one in remedies()}


@pytest.fixture(scope="module")
def growing():
    return read(PATH.parent / "traces" / "growing-loop.parquet")


def record(arm, repeat, **more):
    return TrialRecord(
        **{
            "workload": arm,
            "preset": "none",
            "build": "cpu",
            "outcome": "ok",
            "peak_allocated_bytes": None,
            "peak_reserved_bytes": None,
            "driver_used_bytes": None,
            "rss_anon_bytes": 1 << 20,
            "seconds": 1.0,
            "steps": 4,
            "key": f"{arm}-{repeat}",
            "seed": 0,
            "repeat": repeat,
            "step_s": [1.0, 0.1, 0.1, 0.1],
            "loss": [1.0],
            **more,
        }
    )


def test_every_remedy_of_the_case_studies_has_a_row_and_its_claims_exist():
    assert len(KNOWN) > 50 and len({one.id for one in remedies()}) == len(remedies())
    for wanted in (
        "expandable",
        "no-cache",
        "xnack",
        "no-sdma",
        "no-interrupt",
        "serialize",
        "no-hipblaslt",
        "priming",
        "empty-cache-each",
        "collect-cycle",
        "double-clearing",
        "reset-50",
        "recycle",
        "chunking",
        "preallocation",
        "pool",
        "smaller-batch",
        "accumulate",
        "checkpointing",
        "bf16",
        "8bit-optimizer",
        "fused-optimizer",
        "offload",
        "fewer-parallel",
        "holder-removal",
        "ttm-limit",
        "other-wheel",
        "rocm-gtt",
    ):
        assert wanted in KNOWN
    assert {ident for one in remedies() for ident in one.claims} <= {claim.id for claim in claims()}


def test_a_box_without_a_gpu_tries_what_the_cpu_can_show_and_says_why_not_the_rest():
    found, why = pairs(remedies(), gpu=False)
    names = {pair.name for pair in found}
    assert {"chunking", "accumulate", "checkpointing", "recycle", "fewer-parallel"} <= names
    assert (
        why["expandable"] == why["8bit-optimizer"] == NO_GPU
        and why["reboot"] == "no trial decides it"
    )
    assert names | set(why) == set(KNOWN) and not names & set(why)
    with_gpu = {pair.name for pair in pairs(remedies(), gpu=True)[0]}
    assert {"expandable", "8bit-optimizer"} <= with_gpu and "one-arena" not in with_gpu


def test_settings_that_cure_the_growing_loop_are_predicted_to_help_and_others_not(growing):
    def says(name, torch="2.14.1+cu130", build="cuda", gfx=""):
        return predict(KNOWN[name], CARD_BYTES, growing, torch, build, gfx).verdict

    assert says("expandable") == "helps"
    assert says("expandable", "2.9.1+rocm6.3", "rocm", "gfx1100") == "not_supported"
    assert says("expandable-max-split") == "harmful"
    assert says("threshold-alone") == says("xnack", "2.13.0+cpu", "cpu") == "ineffective"
    assert says("xnack", "2.9.1+rocm6.3", "rocm", "gfx1100") == "not_supported"
    assert says("no-sdma", "2.9.1+rocm6.3", "rocm", "gfx1100") == "no_effect"
    assert says("serialize", "2.9.1+rocm6.3", "rocm", "gfx1100") == "harmful"
    assert says("chunking") == says("one-arena") == "not_enough_evidence"


def test_a_preset_for_the_other_vendor_is_neither_predicted_nor_tried_and_has_a_twin_for_this_one(
    growing,
):
    rocm = ("2.14.1+rocm7.2", "rocm", "gfx1100")
    for name, box in (
        ("expandable-rocm", ("2.14.1+cu130", "cuda")),
        ("max-split-rocm", ("2.14.1+cu130", "cuda")),
        ("xnack", ("2.14.1+cu130", "cuda")),
        ("roundup", rocm),
        ("reclaim-early", rocm),
    ):
        found = predict(KNOWN[name], CARD_BYTES, growing, *box)
        assert (
            found.verdict == "not_supported"
            and found.audited
            and found.control is found.treated is None
        )
        assert found.why.startswith("not for this box because it is for")
        tried, why = pairs(remedies(), gpu=True, build=box[1])
        assert name not in {pair.name for pair in tried} and why[name] == found.why
        live = fix_table([KNOWN[name]], recorded=False, predictions={name: found}, not_tried=why)[0]
        kept = fix_table([KNOWN[name]], recorded=True, predictions={name: found})[0]
        assert (live.verdict, kept.verdict) == (
            "not_supported",
            "predicted",
        ) and found.why in kept.predicted
    assert predict(KNOWN["roundup-rocm"], CARD_BYTES, growing, *rocm).treated
    assert (
        predict(KNOWN["no-cache-cuda"], CARD_BYTES, growing, "2.14.1+cu130", "cuda").verdict
        == "harmful"
    )
    assert {"expandable", "as-in-case-000"} <= {
        pair.name for pair in pairs(remedies(), gpu=True, build="cuda")[0]
    }


def test_a_prediction_by_replay_gives_both_peaks(growing):
    found = predict(KNOWN["expandable"], CARD_BYTES, growing, "2.14.1+cu130", "cuda")
    assert (
        found.treated.passes
        and not found.control.passes
        and "20.00 GiB" in found.why
        and not found.audited
    )


def test_a_card_on_which_nothing_fits_is_no_help(growing):
    assert (
        predict(KNOWN["expandable"], 1 << 30, growing, "2.14.1+cu130", "cuda").verdict
        == "no_effect"
    )


def test_a_torch_that_no_model_covers_predicts_nothing(growing):
    assert (
        predict(KNOWN["roundup"], CARD_BYTES, growing, "2.1.0+cu121", "cuda").verdict
        == "not_enough_evidence"
    )
    assert (
        predict(KNOWN["roundup"], CARD_BYTES, None, "2.14.1", "cuda").verdict
        == "not_enough_evidence"
    )


def test_on_a_recorded_box_nothing_is_measured_and_no_verdict_is_more_than_predicted(growing):
    guesses = {
        one.id: predict(one, CARD_BYTES, growing, "2.9.1+rocm6.3", "rocm", "gfx1100")
        for one in remedies()
        if one.preset
    }
    rows = fix_table(remedies(), recorded=True, predictions=guesses)
    assert len(rows) == len(remedies()) and {row.measured for row in rows} == {RECORDED}
    assert {row.verdict for row in rows} == {"predicted", "not_enough_evidence"}
    assert all(row.memory is None and row.time is None for row in rows) and forest(rows) == []


def tried(changes, repeats=5, control=()):
    base, other = Arm("base", workload("churn")), Arm("other", workload("churn", prime=64))
    records = {
        ("base", at): record("base", at, work_bytes=1000 + at, **dict(control))
        for at in range(repeats)
    }
    records |= {
        ("other", at): record("other", at, **{"work_bytes": 1000 - at, **changes})
        for at in range(repeats)
    }
    found = Ran({**records}, {}, ())
    pair = Pair("priming", base, other)
    return fix_table([KNOWN["priming"]], recorded=False, predictions={}, tried=[pair], ran=found)[0]


def test_measured_trials_decide_and_carry_their_intervals():
    row = tried({"work_bytes": 500})
    assert (
        row.verdict == "helps"
        and row.memory.pairs == 5
        and row.memory.high < 0.51
        and row.time.says == "same"
    )
    assert tried({}).verdict == "no_effect" and tried({"loss": [1.5]}).verdict == "harmful"
    assert tried({"step_s": [1.0, 0.2, 0.2, 0.2]}).verdict == "harmful"
    drawn = forest([row])
    assert [one["what"] for one in drawn] == ["memory", "time"] and drawn[0][
        "ratio"
    ] == pytest.approx(0.499, abs=0.01)


def test_out_of_memory_without_the_remedy_and_an_end_with_it_is_help():
    row = tried({}, control=[("outcome", "oom"), ("complete", False)])
    assert row.verdict == "helps" and row.measured == "it ended 5 ok, and without it 5 oom"


def test_a_remedy_that_this_box_refused_is_not_supported_with_the_reason():
    pair = Pair(
        "8bit-optimizer",
        Arm("base", workload("training")),
        Arm("other", workload("training", optimizer="adam8bit")),
    )
    ran = Ran({("base", 0): record("base", 0)}, {"other": "bitsandbytes is not installed"}, ())
    row = fix_table(
        [KNOWN["8bit-optimizer"]], recorded=False, predictions={}, tried=[pair], ran=ran
    )[0]
    assert (
        row.verdict == "not_supported"
        and row.measured == "not available because bitsandbytes is not installed"
    )


def test_on_a_live_box_the_audit_may_decide_what_no_trial_did(growing):
    guesses = {"xnack": predict(KNOWN["xnack"], CARD_BYTES, growing, "2.13.0+cpu", "cpu")}
    row = fix_table(
        [KNOWN["xnack"]], recorded=False, predictions=guesses, not_tried={"xnack": NO_GPU}
    )[0]
    assert (row.verdict, row.measured) == ("ineffective", NO_GPU)


def test_a_preset_to_adopt_is_one_that_was_shown_to_help():
    pair = Pair("one-arena", Arm("base", workload("churn")), Arm("other", workload("churn"), NONE))
    records = {
        (name, at): record(name, at, work_bytes=size)
        for name, size in (("base", 1000), ("other", 900))
        for at in range(5)
    }
    rows = fix_table(
        [KNOWN["one-arena"], KNOWN["reboot"]],
        recorded=False,
        predictions={},
        tried=[pair],
        ran=Ran(records, {}, ()),
    )
    assert [row.verdict for row in rows] == ["helps", "predicted"] and adopt(rows) == [
        "cpu-one-arena"
    ]


def test_the_whole_list_fits_a_plan_and_every_verdict_word_is_known():
    found, _ = pairs(remedies(), gpu=True)
    made = plan(found, budget_s=math.inf)
    assert len(made.pairs) == len(found) and not made.left_out
    assert {one.verdict for one in remedies() if one.verdict} <= set(VERDICTS)
