"""Searches by rehearsals: which card, which settings, and what is said where nothing can be tried."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_rehearse import ran

from helpers import cli
from helpers.allocator.record import RecordError, record
from helpers.commands import rehearse as command
from helpers.commands import trial as commands
from helpers.commands.rehearse_bench import RehearsalBench
from helpers.look.boxes import open_box
from helpers.rehearse import (
    build,
    torches,
)
from helpers.rehearse import run as run_module
from helpers.settings.presets import load
from helpers.trials import targets
from helpers.trials.box_study import fix_study


def answer_of(arguments, folder):
    """The exit code of the command for these arguments, without a torch."""
    program = arguments.command[1:]
    card = command._card(arguments)
    return command._answer(RehearsalBench(arguments, program, card, SimpleNamespace(), folder))


def test_a_search_holds_the_card_and_the_settings_of_the_box(monkeypatch, tmp_path):
    seen = []

    def rehearsed(words, card, out, *, conf, extra, **_):
        seen.append((card.held_bytes, conf))
        return ran(card.total_bytes)

    monkeypatch.setattr(run_module, "rehearse", rehearsed)
    parser, _ = cli.parsers("rehearse")
    words = "rehearse --box rx7900xt-container --find-batch batch -- python --batch=1"
    answer_of(parser.parse_args(words.split()), tmp_path)
    ((held_bytes, conf),) = set(seen)
    assert held_bytes > 0
    assert "expandable" in conf


@pytest.mark.parametrize("more", (["--find-batch", "n"], ["--find-capacity"]))
def test_what_sigterm_ended_is_told_as_far_as_it_came_and_ends_so(
    more, monkeypatch, tmp_path, capsys
):
    done = iter([ran(), ran(exit_code=143, ooms=1)])
    monkeypatch.setattr(run_module, "rehearse", lambda *_, **__: next(done))
    parser, _ = cli.parsers("rehearse")
    given = parser.parse_args(["rehearse", "--gpu", "4090", *more, "--", "python", "--n=1"])
    assert answer_of(given, tmp_path) == 143
    out = capsys.readouterr().out
    assert "ended by SIGTERM" in out and out.count("fits") == 1 and "runs out" in out


@pytest.fixture
def rehearsed(monkeypatch):
    """What was run, by card and settings; expandable segments save a tenth, and bfloat16 lets it pass."""
    seen = []

    def rehearse_stand_in(words, card, out, *, conf, **how):
        seen.append((card.words, conf, how["limits"].seconds))
        fits = "train.py" not in words or conf == ""
        own = {"peak_reserved_bytes": 100 << 20}
        if "expandable" in conf:
            own = {"peak_reserved_bytes": 90 << 20}
        if any('"precision": "bfloat16"' in word for word in words):
            own = {"exit_code": 1, "error": "RuntimeError: no", "ooms": 0}
        return ran(card.total_bytes, fits=fits, trust=("of it", "always"), **own)

    monkeypatch.setattr(run_module, "rehearse", rehearse_stand_in)
    torch = torches.Torch(Path("/t"), "2", True)
    monkeypatch.setattr(build, "ready_torch", lambda *_: torch)
    return seen


def trial(capsys, *words):
    code = cli.main(["trial", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.startswith("[") else out, err


def test_trial_rehearses_the_remedies_for_a_card_that_is_not_there_and_stays_a_prediction(
    rehearsed, capsys
):
    code, rows, err = trial(capsys, "--gpu", "4090", "--json", "expandable", "bf16", "shard")
    kept = {row["remedy"]: row for row in rows}
    assert code == 0 and {row["verdict"] for row in rows} == {"predicted"}
    assert kept["expandable"]["effect"] == "helps" and round(kept["expandable"]["saves"], 2) == 0.1
    assert "measured by the real allocator" in kept["expandable"]["measured"]
    assert kept["expandable"]["by"] == "rehearsal" and "RTX 4090" in kept["expandable"]["measured"]
    # What failed anew keeps what its recorded rehearsal says, and tells of the failure.
    assert "ended with 1: RuntimeError: no" in kept["bf16"]["measured"] and kept["shard"]["argued"]
    assert {one[0] for one in rehearsed} == {"NVIDIA GeForce RTX 4090, 23.64 GiB"}
    assert len(rehearsed) == 3 and err.count("\n") == 2  # they share their control


def test_trial_rehearses_every_remedy_of_a_box_on_its_own_card(rehearsed, capsys):
    code, rows, _ = trial(capsys, "--box", "cuda-24gb-tuning", "--json")
    wanted = fix_study(open_box("cuda-24gb-tuning")).rows
    assert code == 0 and [row["remedy"] for row in rows] == [row.remedy for row in wanted]
    by = [row["by"] for row in rows if "measured by the real allocator" in row["measured"]]
    assert len(by) > 25 and set(by) == {"rehearsal", "audit"}
    assert all("of which others use" in words for words, *_ in rehearsed)


def test_trial_rehearses_a_command_under_presets_and_leaves_out_what_only_a_real_card_shows(
    rehearsed, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    sets = ["cuda-expandable", "rocm-expandable", "cpu-one-arena"]
    more = [word for name in sets for word in ("--preset", name)]
    given = ["--gpu", "4090", *more, "--seconds", "9", "--", "python", "train.py"]
    code, out, _ = trial(capsys, *given)
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 1 and "harms" in lines["cuda-expandable"] and "rehearsal" in out
    assert "not for this box" in lines["rocm-expandable"] and "untested" in lines["cpu-one-arena"]
    assert "a prediction" not in out and "no trial" in out and "of it" in out
    assert [one[1:] for one in rehearsed] == [("", 9.0), ("expandable_segments:True", 9.0)]
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["training", "--preset", "cuda-expandable"], "acts on a GPU, and this box has no GPU"),
        ([], "no --preset"),
        (["--gpu", "5000"], "expected a name that --gpu list shows"),
        (["--gpu", "4090", "magic"], "remedy 'magic'"),
        (["--gpu", "4090", "--goal", "time"], "--goal time"),
        (["--box", "cpu-only"], "no GPU memory"),
    ],
)
def test_trial_without_a_gpu_or_a_card_that_is_known_is_one_line(words, says, capsys, monkeypatch):
    monkeypatch.setattr(targets, "free_targets", lambda _: ([], "this box has no GPU"))
    code, out, err = trial(capsys, *words)
    assert code == 2 and says in err and err.count("\n") == 1 and not out
    assert "--gpu" in err or "remedy" in err or "expected memory" in err


def test_trial_without_a_torch_to_rehearse_under_says_how_to_get_one(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torches, "torch_files", lambda python: ("", "cp311"))
    code, _, err = trial(capsys, "--gpu", "4090", "bf16")
    assert code == 2 and "rehearse --setup" in err and err.count("\n") == 1


def test_on_a_gpu_presets_are_tried_there(monkeypatch):
    card = targets.Target("0000:03:00.0", "CUDA_VISIBLE_DEVICES", "0", "cuda:0")
    monkeypatch.setattr(targets, "free_targets", lambda _: ([card], ""))
    assert commands._target([load("cuda-expandable")]) == card
    assert commands._target([load("cpu-one-arena")]) == targets.CPU


def test_a_rehearsal_that_kept_no_trace_may_be_tried_again_under_its_name(tmp_path):
    folder = tmp_path / "run.record"
    folder.mkdir()
    for name in ("record.json", "rehearsal_1.report", "1.missing"):
        (folder / name).write_text("{}")
    assert record([os.path.realpath("/bin/true")], tmp_path / "run.pickle").exit_code == 0
    (folder / "1-oom.pickle").write_text("")
    with pytest.raises(RecordError, match="exists already"):
        record(["/bin/true"], tmp_path / "run.pickle")
