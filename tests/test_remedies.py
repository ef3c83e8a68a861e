"""The remedies of the case studies: each on the list, predicted where it can be, and never called measured where it was not."""

import math
from types import ModuleType

import pytest
from trial_records import record

from helpers import trials
from helpers.allocator.patterns import generate
from helpers.allocator.trace_file import read_trace
from helpers.tell.claims import claims
from helpers.trials.catalogue import NO_GPU, PATH, pairs, remedies
from helpers.trials.effect import LEAST
from helpers.trials.fixes import RECORDED, fix_table
from helpers.trials.fixplan import Arm, Pair, Ran, plan
from helpers.trials.prediction import RECORDED_RUNS, predict, recorded_path
from helpers.trials.view import adopt, measured_effects
from helpers.trials.workload import workload

CARD_BYTES = 20 << 30
ARGUED = ("helps", "no_effect", "harmful", "not_supported", "ineffective", "predicted")
KNOWN = {one.id: one for one in remedies()}
CUDA = ("2.14.1+cu130", "cuda")
ROCM = ("2.14.1+rocm7.2", "rocm", "gfx1100")
OLD_ROCM = ("2.9.1+rocm6.3", "rocm", "gfx1100")
CPU = ("2.13.0+cpu", "cpu")
BASE = Arm("base", workload("churn"))
OTHER = Arm("other", workload("churn", prime=64))


@pytest.fixture(scope="module")
def growing():
    return read_trace(PATH.parent / "traces" / "growing-loop.parquet")


@pytest.fixture(scope="module")
def guess(growing):
    def predicted(name, *box, capacity_bytes=CARD_BYTES, trace=growing):
        return predict(KNOWN[name], capacity_bytes, trace, *box)

    return predicted


def test_every_remedy_of_the_case_studies_has_a_row_and_its_claims_exist():
    assert len(KNOWN) > 50 and len(remedies()) == len(KNOWN)
    for wanted in (
        "expandable no-cache xnack no-sdma no-interrupt serialize no-hipblaslt priming empty-cache-each collect-cycle "
        "double-clearing reset-50 recycle chunking preallocation pool smaller-batch accumulate checkpointing bf16 "
        "8bit-optimizer fused-optimizer offload fewer-parallel holder-removal ttm-limit other-wheel rocm-gtt"
    ).split():
        assert wanted in KNOWN
    assert {ident for one in remedies() for ident in one.claims} <= {claim.id for claim in claims()}
    for one in remedies():
        assert one.how in ("measured", "predicted", "argued") and one.goal in LEAST
        assert one.needs in ("", "cpu", "gpu")
        if one.how == "argued":
            assert one.verdict in ARGUED and one.why
        else:
            assert one.pair().treated.workload.words and not one.verdict


def test_a_box_without_a_gpu_tries_what_the_cpu_can_show_and_says_why_not_the_rest():
    found, why = pairs(remedies(), gpu=False)
    names = {pair.name for pair in found}
    assert {"chunking", "accumulate", "checkpointing", "collect-list"} <= names
    assert why["expandable"] == why["8bit-optimizer"] == NO_GPU
    assert why["reboot"] == "no trial decides it"
    assert names | set(why) == set(KNOWN) and not names & set(why)
    with_gpu = {pair.name for pair in pairs(remedies(), gpu=True)[0]}
    assert {"expandable", "8bit-optimizer"} <= with_gpu and "one-arena" not in with_gpu
    on_cuda = {pair.name for pair in pairs(remedies(), gpu=True, build="cuda")[0]}
    assert {"expandable", "as-in-case-000"} <= on_cuda


def test_each_public_name_of_the_room_is_there_and_is_no_module():
    public = [getattr(trials, name) for name in trials.__all__]
    assert 5 <= len(public) <= 12
    assert [value for value in public if isinstance(value, ModuleType)] == []


def test_the_whole_list_fits_a_plan():
    found, _ = pairs(remedies(), gpu=True)
    made = plan(found, budget_s=math.inf)
    assert len(made.pairs) == len(found) and not made.left_out


@pytest.mark.parametrize(
    ("name", "box", "verdict"),
    [
        ("expandable", CUDA, "helps"),
        ("expandable", OLD_ROCM, "not_supported"),
        ("expandable-max-split", CUDA, "harmful"),
        ("threshold-alone", CUDA, "ineffective"),
        ("xnack", CPU, "ineffective"),
        ("xnack", OLD_ROCM, "not_supported"),
        ("no-sdma", OLD_ROCM, "no_effect"),
        ("serialize", OLD_ROCM, "harmful"),
        ("no-cache-cuda", CUDA, "harmful"),
        ("chunking", CUDA, "helps"),
        ("chunking", OLD_ROCM, "helps"),
        ("pool", CUDA, "harmful"),
        ("8bit-optimizer", CUDA, "not_enough_evidence"),
        ("one-arena", CUDA, "not_enough_evidence"),
        ("roundup", ("2.1.0+cu121", "cuda"), "helps"),
    ],
)
def test_settings_that_cure_the_growing_loop_are_predicted_to_help_and_others_not(
    guess, name, box, verdict
):
    assert guess(name, *box).verdict == verdict


@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("expandable-rocm", CUDA),
        ("max-split-rocm", CUDA),
        ("xnack", CUDA),
        ("roundup", ROCM),
        ("reclaim-early", ROCM),
    ],
)
def test_a_preset_for_the_other_vendor_is_neither_predicted_nor_tried(guess, name, box):
    found = guess(name, *box)
    assert found.verdict == "not_supported" and found.audited
    assert found.why.startswith("not for this box because it is for")
    tried, why = pairs(remedies(), gpu=True, build=box[1])
    assert name not in {pair.name for pair in tried} and why[name] == found.why
    (live,) = fix_table([KNOWN[name]], recorded=False, predictions={name: found}, not_tried=why)
    (kept,) = fix_table([KNOWN[name]], recorded=True, predictions={name: found})
    assert (live.verdict, kept.verdict) == ("not_supported", "predicted")
    assert found.why in kept.predicted


def test_a_prediction_by_replay_gives_both_peaks(guess):
    found = guess("expandable", *CUDA)
    assert found.why.startswith("it passes, the default settings run out: on 20.00 GiB")
    assert not found.audited and "peak reserved" in guess("roundup-rocm", *ROCM).why


def test_where_nothing_fits_or_nothing_was_recorded_there_is_no_help(guess):
    short = generate("volume_profiles", sessions=20)
    small = guess("expandable", *CUDA, capacity_bytes=64 << 20, trace=short)
    assert small.verdict == "no_effect" and "both run out" in small.why
    assert guess("roundup", "2.14.1", "cuda", trace=None).verdict == "not_enough_evidence"


def test_on_a_recorded_box_nothing_is_measured_and_no_verdict_is_more_than_predicted(growing):
    guesses = {
        one.id: predict(one, CARD_BYTES, growing, *OLD_ROCM) for one in remedies() if one.preset
    }
    rows = fix_table(remedies(), recorded=True, predictions=guesses)
    assert len(rows) == len(remedies()) and {row.measured for row in rows} == {RECORDED}
    assert {row.verdict for row in rows} == {"predicted", "not_enough_evidence"}
    assert (
        all(row.memory is None and row.time is None for row in rows)
        and measured_effects(rows) == []
    )


def tried(name="priming", control=None, refused=None, predictions=None, **treated):
    """The row of a remedy whose trials differ from plain ones by these."""
    found = {}
    for at in range(5):
        found["base", at] = record("base", at, **{"work_bytes": 1000 + at, **(control or {})})
        found["other", at] = record("other", at, **{"work_bytes": 1000 - at, **treated})
    ran = Ran(found, refused or {}, ())
    pair = Pair(name, BASE, OTHER, KNOWN[name].goal, KNOWN[name].answer)
    given = {"recorded": False, "predictions": predictions or {}}
    return fix_table([KNOWN[name]], tried=[pair], ran=ran, **given)[0]


def test_measured_trials_decide_and_carry_their_intervals():
    row = tried(work_bytes=500)
    assert row.verdict == "helps" and row.time.says == "same"
    assert row.memory.pairs == 5 and row.memory.high < 0.51
    effects = [effect for _, effect in measured_effects([row])]
    assert [effect.what for effect in effects] == ["memory", "time"]
    assert effects[0].ratio == pytest.approx(0.499, abs=0.01)
    assert tried().verdict == "no_effect" and tried(loss=[1.5]).verdict == "harmful"
    assert tried(step_s=[1.0, 0.2, 0.2, 0.2]).verdict == "harmful"


def test_on_a_gpu_what_torch_reserved_is_compared():
    gpu = {"device": "a card", "driver_used_bytes": 7000}
    row = tried(control={**gpu, "peak_reserved_bytes": 1000}, **gpu, peak_reserved_bytes=500)
    assert row.verdict == "helps" and row.memory.ratio == pytest.approx(0.5)


def test_out_of_memory_without_the_remedy_and_an_end_with_it_is_help():
    row = tried(control={"outcome": "oom", "complete": False})
    assert row.verdict == "helps" and row.measured == "it ended 5 ok, and without it 5 oom"


def test_a_remedy_that_this_box_refused_is_not_supported_with_the_reason():
    row = tried("8bit-optimizer", refused={"other": "bitsandbytes is not installed"})
    assert row.verdict == "not_supported"
    assert row.measured == "not available because bitsandbytes is not installed"


def test_on_a_live_box_the_audit_may_decide_what_no_trial_did(guess):
    guesses = {"xnack": guess("xnack", *CPU)}
    given = {"recorded": False, "predictions": guesses, "not_tried": {"xnack": NO_GPU}}
    (row,) = fix_table([KNOWN["xnack"]], **given)
    assert (row.verdict, row.measured) == ("ineffective", NO_GPU)
    assert tried("xnack", predictions=guesses).verdict == "ineffective"
    assert tried("xnack", predictions=guesses, work_bytes=500).verdict == "helps"


def test_a_preset_to_adopt_is_one_that_was_shown_to_help():
    (argued,) = fix_table([KNOWN["reboot"]], recorded=False, predictions={})
    assert argued.verdict == "predicted"
    helps = tried("one-arena", work_bytes=900)
    assert adopt([argued, helps]) == ["cpu-one-arena"] and adopt([tried("one-arena")]) == []


def test_each_change_of_the_work_has_its_rehearsal_and_its_controls_or_a_reason():
    measured = [one for one in remedies() if one.how == "measured" and not one.preset]
    tried = [one.pair() for one in measured if not one.unrehearsed]
    wanted = {recorded_path(arm.workload) for pair in tried for arm in (pair.control, pair.treated)}
    assert wanted == set(RECORDED_RUNS.glob("*.parquet"))
