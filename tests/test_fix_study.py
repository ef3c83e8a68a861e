"""The fix table of a box, the trial command, and how training paths are told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.load.effect import Effect
from helpers.load.endurance import Endurance, grow
from helpers.load.remedies import FixRow, FixStudy, box_of, chosen, fix_study
from helpers.load.training import PathResult
from helpers.look.boxes import open_box
from helpers.tell import fixes, training
from helpers.tell.sheet import png

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def recorded():
    return fix_study(
        open_box("cuda-24gb-tuning"), "expandable threshold-alone xnack chunking gpu-reset"
    )


def run(*argv):
    done = subprocess.run(
        [sys.executable, "-m", "helpers", "trial", *map(str, argv)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_recorded_box_measures_nothing_and_says_so(recorded):
    assert recorded.recorded and recorded.plan is None
    assert {row.measured for row in recorded.rows} == {"not available because recorded"}
    assert {row.verdict for row in recorded.rows} <= {"predicted", "not_enough_evidence"}
    by = {row.remedy: row.predicted.split(":")[0] for row in recorded.rows}
    assert by["expandable"] == "helps" and by["threshold-alone"] == "ineffective", (
        "inert, not harmful"
    )


def test_its_table_verdict_and_figure_say_what_to_try_first(recorded):
    assert "not available because recorded" in fixes.fixes_table(recorded)
    found = fixes.verdict(recorded)
    assert "expandable segments" in found.next_step.what and found.missing
    assert "No effect was measured" in fixes.forest_alt(recorded)
    assert png(fixes.forest_figure(recorded))[0].startswith(b"\x89PNG")
    assert "adopt none" in fixes.preset_text(recorded)


def test_a_measured_help_comes_first_and_a_harm_is_shown():
    helps = FixRow(
        "expandable",
        "expandable segments",
        (),
        "helps: both pass",
        "memory x 0.5",
        "",
        "helps",
        Effect("memory", 0.5, 0.4, 0.6, 5, "less"),
        None,
    )
    harms = FixRow(
        "pool",
        "a pool",
        (),
        "not predicted",
        "memory x 1.2",
        "",
        "harmful",
        Effect("memory", 1.2, 1.1, 1.3, 5, "more"),
        None,
    )
    study = FixStudy((harms, helps), 24 << 30, "2.14.1", "cuda", False, None, None, "")
    found = fixes.verdict(study)
    assert found.next_step.what == "First: expandable segments" and found.confidence == "likely"
    assert fixes.fixes_table(study).index("expandable") < fixes.fixes_table(study).index("a pool")
    assert "expandable memory x 0.50" in fixes.forest_alt(study)
    assert "export PYTORCH_CUDA_ALLOC_CONF" in fixes.preset_text(study)


def test_an_unknown_remedy_and_a_box_without_a_card_are_said():
    with pytest.raises(ValueError, match="remedy 'magic'"):
        chosen("magic")
    assert (
        box_of(open_box("rx7900xt-container"))[2] == "rocm"
        and box_of(open_box("cuda-healthy"), "12GiB")[0] == 12 << 30
    )


def test_trial_compares_a_preset_with_a_control(tmp_path):
    code, out, err = run(
        "churn:steps=2,requests=20",
        "--preset",
        "cpu-one-arena",
        "--repeats",
        "3",
        "--out",
        tmp_path,
        "--json",
    )
    (told,) = json.loads(out)
    assert code in (0, 1) and (code == 1) == (told["verdict"] == "harmful")
    assert (
        told["preset"] == "cpu-one-arena"
        and len(list(tmp_path.glob("*.json"))) == 6
        and "repeat 2" in err
    )


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["churn"], "no --preset"),
        (["magic", "--preset", "cpu-one-arena"], "magic"),
        (["--preset", "cpu-one-arena"], "no workload"),
        (["churn:steps", "--preset", "cpu-one-arena"], "expected name=value"),
        (["churn", "--preset", "nowhere"], "nowhere"),
        (["churn:steps=x", "--preset", "cpu-one-arena"], "steps=x"),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(argv, told):
    code, out, err = run(*argv)
    assert code == 2 and told in err and err.count("\n") == 1 and not out


def path(name, peak, equal="bitwise", state="ran", why=""):
    return PathResult(name, state, why, 1.0, 6, peak, 10 << 20, 0.5, equal, "" if why else "says")


def test_the_path_that_saves_most_and_is_the_same_training_is_the_one_to_take():
    results = [
        path("single device", 60 << 20, "not applicable"),
        path("gradient checkpointing", 30 << 20),
        path("gradient accumulation", 20 << 20, "no"),
        path("DataParallel", None, "not applicable", "not_run", "two GPUs"),
    ]
    found = training.verdict(results)
    assert "gradient checkpointing" in found.next_step.what and "40%" in found.summary
    assert any("DataParallel" in one.reading for one in found.missing)
    assert "gradient accumulation" in training.same_table(
        results
    ) and "two GPUs" in training.cost_table(results)
    assert png(training.paths_figure(results))[0].startswith(
        b"\x89PNG"
    ) and "3 training paths" in training.paths_alt(results)


def test_endurance_is_told_in_words():
    assert training.endurance_text(grow("")) == "not run because no limit was given"
    assert "nothing ran out" in training.endurance_text(Endurance(1 << 30, 40, None, ""))
    died = Endurance(1 << 30, 5, 144, "can't allocate memory", why_no_answer="no trace was kept")
    assert "5 batches" in training.endurance_text(
        died
    ) and "no trace was kept" in training.endurance_text(died)
