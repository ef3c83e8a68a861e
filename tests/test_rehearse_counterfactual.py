"""A rehearsal that ran out of memory, run again without a limit and with expandable segments: when, where, and what is kept."""

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import verb
from test_rehearse import RUN

from helpers.commands import rehearse_bench
from helpers.judge.program_facts import GrowerFacts, GrowthFacts, ProgramFacts, Refusal
from helpers.judge.program_verdict import program_verdict
from helpers.rehearse import scratch, view
from helpers.rehearse.counterfactual import Repeats, why_no_repeats
from helpers.rehearse.rehearsal import STOPPED, RehearsalLimits
from helpers.trials.interpreter import torch_files

MIB = 1 << 20
GIB = 1 << 30
RAN_OUT = replace(
    RUN,
    exit_code=1,
    ooms=1,
    seconds=2.0,
    peak_allocated_bytes=7 * GIB,
    allocations=100,
    device=replace(RUN.device, total_bytes=8 * GIB),
)
FINISHED = replace(RAN_OUT, exit_code=0, ooms=0, peak_allocated_bytes=9 * GIB, allocations=300)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a program, in which the test stands."""
    place = tmp_path / "project" / "work"
    place.mkdir(parents=True)
    (place / "train.py").write_text("")
    monkeypatch.chdir(place)
    return place


class Bench:
    """Stands in for rehearse(): keeps what it was asked and answers with the next of ``ends``."""

    def __init__(self, *ends, during=lambda **asked: None):
        self.ends = list(ends)
        self.asked = []
        self.during = during

    def __call__(self, words, card, out, **asked):
        self.asked.append({"words": words, "card": card, "out": out, **asked})
        out.with_suffix(".record").mkdir(parents=True)
        out.write_text("")
        asked["log"].write_text("")
        self.during(words=words, **asked)
        end = self.ends.pop(0)
        conf = asked["conf"] or ""
        expandable = "expandable_segments:True" in conf
        return replace(end, device=card, conf=conf, expandable=expandable, trace=out)


def both(bench, folder, first=RAN_OUT, words=("python", "train.py"), **asked):
    record = folder.parent / "run.record"
    record.mkdir(exist_ok=True)
    return Repeats(bench, list(words), first, record, **asked).both()


def left_behind(folder):
    return sorted(path.name for path in (folder.parent / "run.record").iterdir())


# Whether.


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (RUN, "did not run out"),
        (replace(RUN, exit_code=1), "did not run out"),
        (replace(RAN_OUT, exit_code=0), "caught its out-of-memory error and ended well"),
        (replace(RAN_OUT, exit_code=STOPPED), "ended from outside"),
        (replace(RAN_OUT, exit_code=130), "ended from outside"),
        (replace(RAN_OUT, seconds=31.0), "more than 60 s"),
    ],
)
def test_what_is_not_run_again_says_why(folder, first, says):
    assert says in why_no_repeats(first, folder)


def test_a_program_that_ended_for_want_of_memory_is_run_again(folder):
    assert why_no_repeats(RAN_OUT, folder) == ""


def test_a_large_working_folder_is_not_copied_and_its_environment_and_recordings_do_not_count(
    folder,
):
    with (folder / "data.bin").open("wb") as file:
        file.truncate(scratch.MOST_BYTES + 1)
    assert "256.00 MiB" in why_no_repeats(RAN_OUT, folder)
    (folder / "run.record").mkdir()
    (folder / "data.bin").rename(folder / "run.pickle")
    assert why_no_repeats(RAN_OUT, folder) == ""
    (folder / ".venv").mkdir()
    (folder / ".venv" / "pyvenv.cfg").write_text("")
    (folder / "run.pickle").rename(folder / ".venv" / "libtorch.so")
    assert why_no_repeats(RAN_OUT, folder) == ""


# How.


def test_one_repeat_has_sixteen_times_the_card_and_one_expandable_segments_on_the_same(folder):
    bench = Bench(FINISHED, RAN_OUT)
    after = both(bench, folder, conf="max_split_size_mb:64", extra={"KEPT": "1"})
    ample, same = bench.asked
    assert (ample["card"].total_bytes, same["card"].total_bytes) == (128 * GIB, 8 * GIB)
    assert ample["conf"] == "max_split_size_mb:64"
    assert same["conf"] == "max_split_size_mb:64,expandable_segments:True"
    for asked in bench.asked:
        assert asked["extra"]["WANDB_MODE"] == "offline" and asked["extra"]["KEPT"] == "1"
        assert asked["limits"].seconds == 6.0 and asked["ends_after_s"] > 6.0
    shape = after.as_shape()
    assert shape["without_limit"]["fits"] and not shape["expandable"]["fits"]
    assert shape["without_limit"]["peak_allocated_bytes"] == 9 * GIB
    assert shape["expandable"]["ooms"] == 1 and not shape["why_not"]
    assert left_behind(folder) == [
        "expandable.pickle",
        "expandable.record",
        "without-limit.pickle",
        "without-limit.record",
    ]


def test_settings_of_the_environment_hold_in_both_repeats(folder, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8")
    bench = Bench(FINISHED, FINISHED)
    both(bench, folder)
    confs = [asked["conf"] for asked in bench.asked]
    assert confs == [None, "garbage_collection_threshold:0.8,expandable_segments:True"]


def test_a_shorter_limit_of_the_user_holds_and_steps_do_too(folder):
    bench = Bench(FINISHED, FINISHED)
    limits = RehearsalLimits(seconds=3.0, steps=7)
    both(bench, folder, first=replace(RAN_OUT, limits=limits))
    assert {(one["limits"].seconds, one["limits"].steps) for one in bench.asked} == {(3.0, 7)}


def test_a_program_with_expandable_segments_is_only_run_without_a_limit(folder):
    bench = Bench(FINISHED)
    after = both(bench, folder, replace(RAN_OUT, expandable=True))
    assert after.without_limit and not after.expandable and len(bench.asked) == 1
    assert "the first run had them" in after.why_not


def test_settings_of_the_program_that_replace_expandable_segments_are_no_answer(folder):
    def replacing(words, card, out, **asked):
        return replace(Bench(FINISHED)(words, card, out, **asked), expandable=False)

    after = both(replacing, folder)
    assert after.without_limit and not after.expandable
    assert "the program's own settings" in after.why_not
    assert "expandable.pickle" not in left_behind(folder)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (replace(FINISHED, exit_code=1, error="EOFError: no input"), "EOFError: no input"),
        (replace(FINISHED, peak_allocated_bytes=3 * GIB), "did not get as far"),
        (replace(FINISHED, peak_allocated_bytes=None), "did not get as far"),
        (replace(FINISHED, stopped="--seconds", allocations=40), "did not get as far"),
    ],
)
def test_a_repeat_that_did_something_else_is_no_answer_and_leaves_nothing(folder, end, says):
    bench = Bench(end)
    after = both(bench, folder)
    assert after.without_limit is None and says in after.why_not and len(bench.asked) == 1
    assert left_behind(folder) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no gcc")])
def test_a_repeat_that_cannot_run_is_one_sentence(folder, error):
    def during(**asked):
        raise error

    after = both(Bench(during=during), folder)
    assert after.without_limit is None and str(error) in after.why_not
    assert left_behind(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_repeats_and_leaves_nothing(folder, number):
    copies = []

    def during(working_folder, **asked):
        copies.append(working_folder)
        if len(copies) == 2:
            os.kill(os.getpid(), number)
            time.sleep(5)

    before = signal.getsignal(signal.SIGTERM)
    after = both(Bench(FINISHED, FINISHED, during=during), folder)
    assert after.why_not == "the repeats were ended from outside"
    assert left_behind(folder) == [] and not any(copy.exists() for copy in copies)
    assert signal.getsignal(signal.SIGTERM) == before


# Where: a copy of the working folder.


def test_the_program_writes_into_a_copy_and_a_fresh_one_each_time(folder):
    seen = []

    def during(working_folder, **asked):
        seen.append(sorted(path.name for path in working_folder.iterdir()))
        (working_folder / "last.pt").write_text("")

    both(Bench(FINISHED, FINISHED, during=during), folder)
    assert seen == [["train.py"], ["train.py"]] and not (folder / "last.pt").exists()


def test_relative_paths_lead_where_they_led_and_links_stay_links(folder):
    (folder / "near.txt").write_text("near")
    (folder.parent / "beside.txt").write_text("beside")
    (folder.parent.parent / "far.txt").write_text("far")
    (folder / "linked").symlink_to("../beside.txt")
    (folder / "gone").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    names = ("near.txt", "../beside.txt", "../../far.txt", "linked")
    with scratch.copied(folder) as copy:
        assert [(copy / name).read_text() for name in names] == ["near", "beside", "far", "beside"]
        assert (copy / "linked").is_symlink() and (copy / "gone").is_symlink()
        assert not (copy / "pipe").exists()
        (copy / "near.txt").write_text("changed")
    assert (folder / "near.txt").read_text() == "near"
    assert (folder.parent / "beside.txt").exists() and not copy.exists()


def test_a_folder_that_may_not_be_written_is_copied_as_it_is_and_goes_again(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "kept").write_text("")
    for place in (folder / "sub", folder):
        place.chmod(0o555)
    try:
        with scratch.copied(folder) as copy:
            assert copy.stat().st_mode & 0o777 == 0o555
            assert (copy / "sub" / "kept").exists()
        assert not copy.exists()
    finally:
        for place in (folder, folder / "sub"):
            place.chmod(0o755)


def test_absolute_paths_into_the_folder_lead_into_its_copy_and_others_stay():
    here, copy = Path("/srv/train"), Path("/copies/c/srv/train")
    words = ["/srv/train/.venv/bin/python", "/srv/train/train.py", "--out=/srv/train"]
    words += ["/srv/trainer/x.py", "/mnt/srv/train", "sh -c 'cd /srv/train; ls'"]
    moved = [word.replace("/srv/train", str(copy)) for word in words]
    assert scratch.in_copy(words, here, copy) == [*moved[:3], *words[3:5], moved[5]]


# The command.


@pytest.fixture
def rehearse(folder, monkeypatch):
    """The command over a stand-in for rehearsals, and what it printed."""
    from helpers.rehearse import run as run_module

    ends = []

    def stand_in(words, card, out, **asked):
        trace = out.with_suffix(".pickle")
        out.with_suffix(".record").mkdir(parents=True)
        (out.with_suffix(".record") / "record.json").write_text("{}")
        trace.write_text("")
        expandable = "exp" in (asked["conf"] or "")
        return replace(ends.pop(0), device=card, limits=asked["limits"], expandable=expandable)

    monkeypatch.setattr(run_module, "rehearse", stand_in)
    monkeypatch.setattr("helpers.commands.rehearse._torch", lambda *_: None)

    def start(*options, runs, record="run"):
        ends[:] = runs
        words = ["rehearse", "--capacity", "8GiB", "--out", "run.pickle", "--force", *options]
        done = verb(*words, "--", "python", "train.py")
        kept = json.loads((folder / f"{record}.record" / "record.json").read_text())
        return done.code, done, kept["counterfactual"], ends

    return start


def test_the_record_keeps_the_repeats_and_the_exit_code_is_the_first_runs(rehearse):
    code, printed, kept, ends = rehearse(runs=[RAN_OUT, FINISHED, RAN_OUT])
    assert code == 1 and ends == []
    assert kept["without_limit"]["fits"] and kept["expandable"]["ooms"] == 1
    notes = " ".join(printed.err.split())
    assert notes.count("once more without") == 1 and "--no-counterfactual skips this" in notes
    assert "what it writes elsewhere is written again" in notes
    assert printed.out.startswith("Does not fit in 8.00 GiB.")
    assert "The program's output: " in printed.out and "output.txt" in printed.out


def test_json_stays_one_object_and_has_the_repeats(rehearse):
    code, printed, kept, _ = rehearse("--json", runs=[RAN_OUT, FINISHED, RAN_OUT])
    shape = json.loads(printed.out)
    assert printed.err == "" and shape["says"].startswith("Does not fit in 8.00 GiB.")
    assert code == 1 and shape["counterfactual"] == kept and not shape["fits"]


@pytest.mark.parametrize("left_bytes", [4 * GIB, 64 << 20])
def test_json_says_where_a_program_fits_only_if_its_gpu_context_is_small(rehearse, left_bytes):
    peak_bytes = FINISHED.usable_bytes - left_bytes
    rehearsed = replace(FINISHED, peak_reserved_bytes=peak_bytes)
    _, printed, _, _ = rehearse("--json", runs=[rehearsed])
    shape = json.loads(printed.out)
    is_tight = left_bytes < GIB
    assert shape["fits"] and shape["may_not_fit"] == is_tight
    assert shape["says"].startswith("May not fit" if is_tight else "Fits")


def test_nothing_runs_again_where_that_was_asked_or_memory_sufficed(rehearse):
    code, printed, kept, ends = rehearse("--no-counterfactual", runs=[RAN_OUT, FINISHED])
    assert code == 1 and ends == [FINISHED] and "once more" not in printed.err
    assert kept["without_limit"] is None and "--no-counterfactual" in kept["why_not"]
    code, printed, kept, ends = rehearse(runs=[RUN, FINISHED])
    assert code == 0 and ends == [FINISHED] and "once more" not in printed.err


def test_between_answers_for_the_end_that_takes_more_and_force_replaces_both(rehearse):
    small = replace(RUN, exact=False, peak_reserved_bytes=2 << 20)
    large = replace(RUN, exact=False, peak_reserved_bytes=6 << 20)
    for runs, record in (([large, small], "run"), ([small, large], "run-least")):
        code, printed, _, _ = rehearse("--values", "between", runs=runs, record=record)
        says = " ".join(printed.out.split())
        assert code == 0 and "The peak is 6.00 MiB" in says
        assert "between 2.00 MiB (fits) and 6.00 MiB (fits)" in says


def test_each_rank_runs_at_whichever_end_of_the_values(rehearse):
    for values in ("least", "typical", "most"):
        code, _, _, ends = rehearse(
            "--world", "2", "--values", values, runs=[RUN, RUN], record="run-rank1"
        )
        assert code == 0 and ends == []


def test_a_rank_that_left_no_trace_is_answered_beside_its_own_record(rehearse, folder):
    """As a program that never uses the GPU, or ends before it does."""
    lost = replace(RUN, trace=None, why_no_trace="it never used the GPU", exit_code=1, ooms=0)
    code, printed, kept, _ = rehearse("--world", "2", runs=[lost, lost], record="run-rank1")
    assert code == 1 and "it never used the GPU" in printed.out
    assert kept["without_limit"] is None


def test_the_answer_says_why_and_what_to_do_before_the_evidence_and_how_it_ran():
    growth = GrowthFacts((GrowerFacts("train.py:9 step", "train.py:9 step", MIB, GIB, "kept"),), 9)
    refusal = Refusal(MIB, 0, GIB, GIB)
    facts = ProgramFacts("recording", exit_code=1, ooms=1, refusal=refusal, growth=growth)
    verdict = program_verdict(facts)
    text = "\n".join(
        view.answer(
            replace(RAN_OUT, device=RUN.device),
            verdict,
            ("To have changes tried:", "casebook fix -- python train.py"),
        )
    )
    says = [
        "Does not fit in 23.64 GiB. Your program keeps 1.00 MiB more each step in kept",
        "Next step",
        "Do not keep GPU tensors in kept (train.py:9 step)",
        "casebook fix -- python train.py",
        "Why",
        "1.00 GiB: Kept at train.py:9 step",
        "Rehearsed on NVIDIA",
    ]
    places = [text.index(line) for line in says]
    assert places == sorted(places)


# A program recorded on a real card is never repeated.

RUNS_OUT = "import torch\ntorch.cuda.allocate(512)\ntorch.cuda.allocate(2 << 20)\n"


def test_a_recorded_program_that_ran_out_names_the_rehearsal_that_decides(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "programs" / "history_torch"))
    torch_files.cache_clear()  # an earlier test of this process may have asked this Python
    (folder / "my program.py").write_text(RUNS_OUT)
    options = ["--force", "--out", "run.pickle", "--", sys.executable, "my program.py"]
    done = verb("record", *options, "--api-key", "s3cretword")
    last = done.err.splitlines()[-1]
    asks = f"    casebook rehearse --capacity 1MiB -- {sys.executable} 'my program.py'"
    assert done.code == 1 and last.startswith(asks)
    assert "s3cretword" not in last and "--api-key '***'" in last
    (folder / "my program.py").write_text("import torch\ntorch.cuda.allocate(512)\n")
    done = verb("record", *options)
    assert done.code == 0 and "rehearse" not in done.err


def test_both_repeats_say_that_they_run(folder, monkeypatch):
    said = []

    @contextmanager
    def noted(record, quiet, name):
        said.append(record.name)
        yield

    monkeypatch.setattr("helpers.commands.rehearse_bench.says_it_runs", noted)
    monkeypatch.setattr("helpers.rehearse.run.rehearse", Bench(FINISHED, RAN_OUT))
    arguments = SimpleNamespace(box="", conf="", steps=0, seconds=0, values="typical", gpus=1)
    arguments.cudnn_workspace, arguments.torch_python = "0", ""
    arguments.json = False
    bench = rehearse_bench.RehearsalBench(arguments, [], RAN_OUT.device, None, folder)
    both(bench.run, folder)
    assert said == ["without-limit.record", "expandable.record"]


def test_what_was_allocated_until_a_step_does_not_depend_on_the_steps_after_it():
    run = replace(FINISHED, steps=5, step_peaks=((1, 10), (3, 20), (5, 90)))
    assert [run.peak_until_step(step) for step in (2, 4)] == [10, 20]
    assert run.peak_until_step(6) == 0
