"""The fix table of a box, the trial command, and how training paths are told."""

import json
import sys
from dataclasses import replace

import pytest

from helpers import cli
from helpers.look.boxes import open_box
from helpers.tell.values import cell
from helpers.trials import training_view as training
from helpers.trials import view as fixes
from helpers.trials.box_study import FixStudy, fix_study
from helpers.trials.catalogue import chosen
from helpers.trials.effect import Effect
from helpers.trials.fixes import FixRow
from helpers.trials.training import PathResult

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(scope="module")
def recorded():
    names = "expandable threshold-alone xnack chunking gpu-reset 8bit-optimizer"
    return fix_study(open_box("cuda-24gb-tuning"), names.split())


def test_a_recorded_box_measures_nothing_and_says_so(recorded):
    assert recorded.trials == 0 and "recorded" in recorded.why
    assert {row.measured for row in recorded.rows} == {"not available because recorded"}
    assert {row.verdict for row in recorded.rows} <= {"predicted", "not_enough_evidence"}
    by = {row.remedy: row.predicted.split(":")[0] for row in recorded.rows}
    assert by["expandable"] == "helps"
    assert by["threshold-alone"] == "ineffective", "inert, not harmful"


def test_a_remedy_that_hangs_on_the_chip_is_predicted_for_the_chip_of_the_box():
    (row,) = fix_study(open_box("rx7900xt-container"), ["xnack"]).rows
    assert "ROCr lists this chip without XNACK" in row.predicted, row.predicted


def test_its_table_verdict_and_figure_say_what_to_try_first(recorded):
    found = fixes.verdict_on_trials(recorded)
    assert found.title == "Of 6 remedies, 2 help, 1 harms, 2 have no effect, 1 is untested"
    assert (
        found.summary == "To begin with: expandable segments (helps, 35% less memory, by replay)."
    )
    assert found.next_step.what == "First to try: expandable segments" and found.missing
    assert found.next_step.command == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert "No effect was measured" in fixes.effects_table(recorded).alt
    bars = fixes.saved_bars(recorded)
    assert bars.title == "ticks in chunks of a tenth: 80% less memory, by rehearsal"
    assert bars.draw().picture()[0].startswith(b"\x89PNG")
    assert "adopt none" in fixes.preset_text(recorded)


def test_each_remedy_says_what_it_does_here_why_and_by_what(recorded):
    first, second, harms, *_, last = fixes.fixes_table(recorded).rows
    told = [
        (row["on this box"], row["by"], cell(row["memory saved"], "%").words)
        for row in (first, second)
    ]
    assert told == [("helps", "rehearsal", "80%"), ("helps", "replay", "35%")]
    assert first["why"].startswith("rehearsed: every request is met either way: on 23.99 GiB peak")
    assert (harms["on this box"], harms["by"]) == ("harms", "argument")
    assert (last["on this box"], last["by"]) == ("untested", "")
    assert last["why"] == "not rehearsed because its kernels are bitsandbytes' own, beside torch"


def test_all_that_is_known_of_a_remedy_stands_whole_in_its_row():
    guess = "no_effect: " + "both pass " * 9 + "with max_split_size_mb"
    claim = "claim 1, true: so"
    row = replace(measured("x", "a remedy", guess, "helps", 0.5), argued=claim, guess="no_effect")
    told = replace(row, why="memory x 0.5")
    silent = replace(row, why=claim, argued="", measured="")
    study = FixStudy((told, silent), 24 * GIB, "2.14.1", "cuda")
    said = guess.replace("no_effect", "predicted: no effect")
    text = fixes.fixes_table(study).text()
    assert f"memory x 0.5; {said}; argued: {claim}" in text and f"{claim}; {said}" in text


@pytest.mark.parametrize(
    ("box", "others"),
    [
        ("cuda-24gb-tuning", {"ROCm", "AMD", "APUs", "boxes without a GPU"}),
        ("rx7900xt-container", {"CUDA", "APUs", "boxes without a GPU"}),
        ("strix-halo-4-ttm", {"CUDA", "boxes without a GPU"}),
        ("cpu-only", {"ROCm", "AMD", "APUs", "boxes with a GPU"}),
    ],
)
def test_remedies_for_other_boxes_are_counted_and_not_listed(box, others):
    study = fix_study(open_box(box))
    assert set(study.elsewhere) == others
    assert len(study.rows) + sum(study.elsewhere.values()) == len(chosen([]))
    assert not [row for row in study.rows if "not for this box" in row.why]
    note, rehearsed = fixes.fixes_table(study).notes
    assert "on a card that is not there, replayed on this card under this release" in rehearsed
    assert all(f"for {other}" in note for other in others)


def test_what_a_card_has_is_not_the_hosts_memory_and_an_apu_not_more_than_compute_gets():
    sizes = {
        name: fix_study(open_box(name), ["xnack"]).capacity_bytes / GIB
        for name in ("rx7900xt-container", "strix-halo-3-gttsize")
    }
    assert {name: round(size, 1) for name, size in sizes.items()} == {
        "rx7900xt-container": 20.0,
        "strix-halo-3-gttsize": 62.5,
    }


@pytest.mark.parametrize(
    ("box", "torch"),
    [
        ("rx7900xt-container", "2.4.0a0+rocm6.3"),  # prints itself as +git; HIP says 6.3
        ("strix-halo-4-ttm", "2.10.0a0+rocm7.10.0a20251015"),
        ("cuda-24gb-tuning", "2.9.0"),
    ],
)
def test_a_study_keeps_the_rocm_release_of_its_box(box, torch):
    assert fix_study(open_box(box), ["xnack"]).torch == torch


def measured(remedy, says, predicted, verdict, ratio):
    says_of = "less" if ratio < 1 else "more"
    memory = Effect("memory", ratio, ratio - 0.1, ratio + 0.1, 5, says_of)
    return FixRow(remedy, says, (), predicted, f"memory x {ratio}", "", verdict, memory, None)


def test_a_measured_help_comes_first_and_a_harm_is_shown():
    helps = measured("expandable", "expandable segments", "helps: both pass", "helps", 0.5)
    harms = measured("pool", "a pool", "not predicted", "harmful", 1.2)
    study = FixStudy((harms, helps), 24 * GIB, "2.14.1", "cuda")
    found = fixes.verdict_on_trials(study)
    assert found.next_step.what == "First: expandable segments" and found.confidence == "likely"
    assert [row["remedy"] for row in fixes.fixes_table(study).rows] == [helps.says, harms.says]
    assert "expandable memory x 0.50" in fixes.effects_table(study).alt
    assert "export PYTORCH_CUDA_ALLOC_CONF" in fixes.preset_text(study)


def test_an_unknown_remedy_and_a_box_without_a_card_are_said():
    with pytest.raises(ValueError, match="remedy 'magic'"):
        chosen(["magic"])
    assert fix_study(open_box("rx7900xt-container"), ["xnack"]).build == "rocm"
    sized = fix_study(open_box("cuda-healthy"), ["xnack"], capacity="12GiB")
    assert sized.capacity_bytes == 12 * GIB


def test_trial_compares_a_preset_with_a_control(tmp_path, capsys):
    program = "import os; d = bytearray(60 << 20 if 'MALLOC_ARENA_MAX' in os.environ else 20 << 20); import time; time.sleep(.2)"
    argv = ["trial", "--preset", "cpu-one-arena", "--repeats", "3", "--out", str(tmp_path)]
    assert cli.main([*argv, "--json", "--", sys.executable, "-c", program]) == 1
    out, err = capsys.readouterr()
    (told,) = json.loads(out)
    assert told["preset"] == "cpu-one-arena" and told["verdict"] == "harmful"
    assert told["memory"]["says"] == "more"
    assert len(list(tmp_path.glob("*.json"))) == 6 and "repeat 2: ok" in err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["churn"], "no --preset"),
        (["magic", "--preset", "cpu-one-arena"], "magic"),
        (["--preset", "cpu-one-arena"], "no workload"),
        (["churn:steps", "--preset", "cpu-one-arena"], "expected name=value"),
        (["churn", "--preset", "nowhere"], "nowhere"),
        (["churn:steps=x", "--preset", "cpu-one-arena"], "steps=x"),
        (["churn", "--preset", "cpu-one-arena", "--repeats", "2"], "expected 3 or more"),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(capsys, argv, told):
    assert cli.main(["trial", *argv]) == 2
    out, err = capsys.readouterr()
    assert told in err and err.count("\n") == 1 and not out


def path(name, peak_mib, equal="bitwise", state="ran", why=""):
    peak = peak_mib and peak_mib * MIB
    says = "" if why else "says"
    return PathResult(name, state, why, 1.0, peak, 10 * MIB, equal, says)


def test_the_path_that_saves_most_and_is_the_same_training_is_the_one_to_take():
    results = [
        path("single device", 60, "not applicable"),
        path("gradient checkpointing", 30),
        path("gradient accumulation", 20, "no"),
        path("DDP", None, "not applicable", "not_run", "two GPUs"),
    ]
    found = training.verdict_on_training(results)
    assert (
        "gradient checkpointing" in found.next_step.what
        and "20.00 MiB instead of 50.00 MiB" in found.summary
    )
    assert any("DDP" in one.reading for one in found.missing)
    assert "gradient accumulation" in str(training.same_table(results))
    costs = training.cost_table(results)
    assert "two GPUs" in str(costs) and costs.draw().picture()[0].startswith(b"\x89PNG")
    assert costs.title == "Least memory: gradient accumulation, 10.00 MiB above its start"
