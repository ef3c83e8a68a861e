"""What moved at the peak between two traces: by line, found again where lines were inserted, by kind, and with which exit code."""

import json
import pickle
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import verb as run
from test_growth import loop, nothing
from test_lines import frames, trace_of
from toy_allocator import MIB, Toy

from helpers.allocator.call_sites import requests_of
from helpers.allocator.kinds import bytes_by_kind
from helpers.allocator.peaks import compare_peaks
from helpers.rehearse import build, commits, torches


def program(shift=0, *, forward=4, extra=0, function="step"):
    """Three lines that each hold something at the peak, so many lines further down; ``extra``: what a new line holds."""
    toy = Toy()
    held = []
    for line, size in ((3, 2), (5, forward), (8, 1)):
        held += [toy.alloc(size * MIB, frames(line + shift, function)) for _ in range(line)]
    if extra:
        held.append(toy.alloc(extra * MIB, frames(9 + shift, function)))
    for one in held:
        toy.free(one)
    return trace_of(toy)


def moved(one, two, *sources):
    found = compare_peaks(one, two, *sources)
    return found, [(line.name, line.by // MIB) for line in found.lines]


def test_inserted_lines_renamed_functions_and_nothing_at_all_move_nothing():
    for other in (program(), program(shift=40), program(function="train_step")):
        found, lines = moved(program(), other)
        assert (lines, found.share) == ([], 0.0)


def test_the_line_that_asks_for_more_is_named_wherever_it_is_now():
    found, lines = moved(program(), program(shift=7, forward=6))
    assert lines == [("train.py:12 step", 10)] and found.lines[0].was == "train.py:5 step"
    assert found.live == (34 * MIB, 44 * MIB) and found.share == pytest.approx(10 / 34)
    assert moved(program(), program(shift=7, extra=9))[1] == [("train.py:16 step", 9)]


def test_the_sources_say_which_line_became_which():
    before = ["", "", "a = f()", "", "b = g(a)", "", "", "c = h(b)"]
    after = ["b = g(a)", *before[:4], "b = g(a, more)", *before[5:]]
    sources = ({"train.py": before}, {"train.py": after})
    found, lines = moved(program(), program(shift=1, forward=5), sources)
    assert lines == [("train.py:6 step", 5)] and found.lines[0].was == "train.py:5 step"
    assert found.changed == ("train.py:6",)  # and not its first line, from which nothing was called


def test_kinds_are_told_by_who_asked_and_how_long_it_stays():
    toy = loop(6, nothing)
    kinds = {kind: size / MIB for kind, size in bytes_by_kind(requests_of(trace_of(toy))).items()}
    assert (kinds["parameters"], kinds["kept"]) == (8, 16)  # the model; what the first step kept
    assert kinds["activations"] == 5 * 4  # three layers, and what the step before left of two
    toy.alloc(1 * MIB, frames(4))  # the product for which cuBLAS needs its workspace
    toy.alloc(8519680, frames(4))
    state = "/x/site-packages/torch/optim/adam.py"
    toy.alloc(40 * MIB, frames(5, inside=state))
    kinds = bytes_by_kind(requests_of(trace_of(toy)))
    assert (kinds["workspaces"], kinds["optimizer state"]) == (8519680, 40 * MIB)


def test_tensors_of_the_size_of_a_workspace_are_none_of_cublas():
    toy = Toy()
    toy.alloc(32 * MIB, frames(1))
    for _ in range(3):
        toy.alloc(32 * MIB, frames(2))
    assert bytes_by_kind(requests_of(trace_of(toy)))["workspaces"] == 0


def test_data_that_is_on_the_card_before_the_first_step_is_kept_and_no_parameter():
    toy = Toy()
    toy.alloc(4 * MIB, frames(2, inside="/x/site-packages/torch/nn/modules/module.py"))
    toy.alloc(16 * MIB, frames(3, inside=""))
    kinds = bytes_by_kind(requests_of(trace_of(toy)))
    assert (kinds["parameters"], kinds["kept"]) == (4 * MIB, 16 * MIB)


def test_compare_of_two_traces_ends_with_1_above_what_is_allowed(tmp_path):
    paths = [tmp_path / "a.pickle", tmp_path / "b.pickle"]
    for path, keep in zip(paths, (2, 3), strict=True):
        toy = Toy()
        toy.alloc(100 * MIB, frames(3))
        toy.alloc(keep * MIB, frames(4))
        path.write_bytes(pickle.dumps(toy.snapshot()))
    code, out, _ = run("compare", *paths, "--allow", "2%")
    assert code == 0 and "102.00 MiB -> 103.00 MiB (+1.0%), most at train.py:4 step" in out
    code, out, _ = run("compare", *paths, "--allow", "0.5%", "--json")
    told = json.loads(out)
    assert code == 1 and told["above"] and told["live"] == [102 * MIB, 103 * MIB]
    assert run("compare", *reversed(paths), "--allow", "0%")[0] == 0
    for wrong in ("much", "nan", "1e9"):
        code, _, err = run("compare", *paths, "--allow", wrong)
        assert code == 2 and "expected a share from 0 up" in err
    code, _, err = run("compare", paths[0], "env/traces/cpu-training-step.parquet")
    assert code == 2 and "record again" in err and err.count("\n") == 1


def commit_of(folder, text):
    """A repository of one commit, of a train.py of that text."""
    (folder / "train.py").write_text(text)
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "train.py"), ("commit", "-qm", "one")):
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_of_several_files_of_a_name_the_one_nearest_to_the_program_is_its_source(tmp_path):
    near = tmp_path / "vae"
    far = tmp_path / "vae" / "old"
    far.mkdir(parents=True)
    commit_of(tmp_path, "top\n")
    for folder, text in ((near, "near"), (far, "far")):
        (folder / "train.py").write_text(text)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True, capture_output=True)
    assert commits.sources(near) == {"train.py": ["near"]}


def test_a_commit_is_checked_out_beside_the_work_tree_and_goes(tmp_path, monkeypatch):
    commit_of(tmp_path, "\n\nfirst\n")
    (tmp_path / "train.py").write_text("second\n")
    monkeypatch.chdir(tmp_path)
    with commits.checked_out("HEAD", tmp_path / "outputs") as (name, folder):
        assert commits.sources(folder) == {"train.py": ["", "", "first"]}
        assert len(name) >= 7 and folder.is_dir()
    assert not folder.exists()
    assert commits.git("worktree", "list", cwd=tmp_path)[1:] == []
    with pytest.raises(commits.CommitError, match=f"no-such is no commit of {tmp_path}"):
        with commits.checked_out("no-such", tmp_path / "outputs"):
            pass


def test_a_commit_that_costs_memory_ends_with_1_and_both_traces_stand_beside_the_given_name(
    tmp_path, monkeypatch
):
    def rehearsed(command, card, out, **how):
        toy = Toy()
        place = Path(command[2], "train.py")
        toy.alloc(int(place.read_text().split()[-1]) * MIB, frames(1))
        assert not out.exists() and not how["log"].exists()
        how["log"].write_text(str(out.write_bytes(pickle.dumps(toy.snapshot()))))
        return SimpleNamespace(
            trace=out, failed_otherwise=False, exit_code=0, fits=True, has_buckets=False
        )

    given = torches.Torch(Path("/t"), "2", True)
    monkeypatch.setattr(torches, "find_torch", lambda *_: (given, Path("/t")))
    for name in ("tools", "build"):
        monkeypatch.setattr(build, name, lambda *_: None)
    monkeypatch.setattr("helpers.rehearse.run.rehearse", rehearsed)
    monkeypatch.setattr("helpers.commands.rehearse_commit.OUTPUTS", tmp_path / "outputs")
    monkeypatch.chdir(tmp_path)
    commit_of(tmp_path, "size = 100")
    (tmp_path / "train.py").write_text("size = 110")
    words = ("rehearse", "--gpu", "4090", "--against-commit", "HEAD", "--out", "kept/run.pickle")
    code, out, err = run(*words, "--", "python", "train.py")
    assert (code, err) == (1, "") and "100.00 MiB -> 110.00 MiB (+10.0%)" in out
    assert "changed lines behind it: train.py:1" in out
    first, second = sorted(path.name for path in (tmp_path / "kept").glob("*.pickle"))
    assert first.startswith("run-") and second == "run.pickle"
    # What changed without moving the peak is behind nothing.
    (tmp_path / "train.py").write_text("# the same\nsize = 100")
    code, out, err = run(*words[:-1], "kept/same.pickle", "--", "python", "train.py")
    assert (code, err) == (0, "") and "(+0.0%)" in out and "changed lines" not in out


def test_a_wrong_commit_is_said_before_torch_is_looked_for_or_fetched(tmp_path, monkeypatch):
    commit_of(tmp_path, "")
    monkeypatch.chdir(tmp_path)
    words = ("rehearse", "--cache", "none", "--gpu", "4090", "--against-commit", "no-such")
    code, _, err = run(*words, "--torch-python", "/no/python", "--", "python", "train.py")
    assert code == 2 and "no-such is no commit of" in err and "download" not in err
