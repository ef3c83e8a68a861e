"""What the command rehearse says while it works, and where it keeps a recording without a name."""

import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from command_line import verb
from test_rehearse import RUN, ran

from helpers.allocator.record import record as record_program
from helpers.commands import fix, record, recording, rehearse, rehearse_bench, signs
from helpers.commands.signs import says_it_runs
from helpers.rehearse import run as run_module

SECOND = "20260301-210000"
LEAVES_STACKS = """
import json, os, pathlib
folder = json.loads(os.environ["CASEBOOK_RECORD"])["folder"]
pathlib.Path(folder, "1.stacks").touch()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A program's folder with outputs of its own, in which the clock stands still."""
    (tmp_path / "train.py").write_text(LEAVES_STACKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recording, "OUTPUTS", tmp_path / "outputs")
    monkeypatch.setattr(recording.time, "strftime", lambda _form: SECOND)
    monkeypatch.setattr(rehearse, "_torch", lambda *_: None)
    return tmp_path


def kept(folder):
    return sorted(path.name for path in (folder / "outputs").glob("*.record"))


def test_rehearsals_that_begin_in_the_same_second_have_names_of_their_own(folder, monkeypatch):
    def stand_in(words, card, out, *, limits, log, **_):
        record_program(["env", *words], out)
        return replace(RUN, device=card, limits=limits)

    monkeypatch.setattr(run_module, "rehearse", stand_in)
    words = ["rehearse", "--gpu", "4090", "--", sys.executable, "train.py"]
    first, second, third = (verb(*words) for _ in range(3))
    for done, number in ((first, ""), (second, "-2"), (third, "-3")):
        name = f"rehearsal-{SECOND}{number}.record"
        assert f"The program's output: {folder}/outputs/{name}/output.txt" in done.out
        assert name in kept(folder)


def test_of_two_recordings_of_a_second_each_is_kept(folder, monkeypatch):
    monkeypatch.setattr(record, "check_torch", lambda *_, **__: None)
    for _ in range(2):
        verb("record", "--", sys.executable, "train.py")
    assert kept(folder) == [f"trace-{SECOND}-2.record", f"trace-{SECOND}.record"]


def test_a_name_that_was_given_is_not_changed_where_it_is_taken(folder, monkeypatch):
    monkeypatch.setattr(record, "check_torch", lambda *_, **__: None)
    (folder / "run.pickle").touch()
    done = verb("record", "--out", "run", "--", sys.executable, "train.py")
    assert done.code == 2 and "run.pickle: exists already" in done.err


@pytest.mark.parametrize("command", ["rehearse", "fix"])
@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ("--capacity 20GiB", True),
        ("--capacity 20GiB --gpu 4090", False),
        ("--gpu 4090", False),
        ("--box cuda-24gb-tuning", False),
    ],
)
def test_a_card_of_which_only_the_size_is_given_has_an_h100s_other_figures(
    command, options, is_said, folder, monkeypatch
):
    monkeypatch.setattr(
        run_module, "rehearse", lambda *_, **how: replace(RUN, limits=how["limits"])
    )
    stops = "no torch here"

    def no_torch(*_, **__):
        raise ValueError(stops)

    monkeypatch.setattr(fix, "rehearsals", no_torch)
    monkeypatch.setattr(rehearse, "_torch", no_torch)
    done = verb(command, *options.split(), "--", "python", "train.py")
    said = " ".join(done.err.split())
    assert stops in said
    assert ("other figures (chip, multiprocessors, the kernels' block sizes)" in said) == is_said
    assert ("are an H100's; --gpu NAME takes those of another card" in said) == is_said


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--find-batch n", ["n 3", "n 6", "n 4", "n 5"]),
        ("--find-capacity", ["a card of 2.00 TiB (2,199,023,255,552 bytes)"]),
    ],
)
def test_the_progress_line_of_a_search_names_what_is_tried(options, names, folder, monkeypatch):
    said = []

    def stand_in(words, card, out, **_):
        before = len(said)
        while len(said) == before:
            time.sleep(0.01)
        return ran(card.total_bytes, fits=words[-1] in ("3", "4") and "batch" in options)

    soon = partial(says_it_runs, first_s=0.02)
    monkeypatch.setattr(rehearse_bench, "says_it_runs", soon)
    monkeypatch.setattr(signs, "print_notes", lambda *notes: said.extend(notes))
    monkeypatch.setattr(run_module, "rehearse", stand_in)
    verb("rehearse", "--gpu", "4090", *options.split(), "--", "python", "train.py", "--n", "3")
    assert list(dict.fromkeys(line.partition(": still working: ")[0] for line in said)) == names
