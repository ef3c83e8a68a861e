"""The doors of `casebook fix`: notebooks, settings files, ranks, a run for real, and what is refused."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("libcst")
import libcst as cst
from hypothesis import given
from hypothesis import strategies as st
from test_fix import keeper, program, unseen

from helpers.cli import main
from helpers.face.change import ProgramFix, fix_program
from helpers.fix import answer, live
from helpers.fix.answer import FailedProgram, NoFix, SearchLimits, failure_of
from helpers.fix.candidates import candidates
from helpers.fix.change import Change, Results, TextEdit
from helpers.fix.files import misspelt_settings
from helpers.fix.imports import sources_of
from helpers.fix.league import league
from helpers.fix.notebook import Notebook
from helpers.fix.optimizers import smaller_states
from helpers.fix.program import changed_files
from helpers.fix.proof import Proof, _script
from helpers.fix.ranks import one_device_a_rank
from helpers.fix.search import Trials, TriedChange
from helpers.fix.settings_file import SettingsFile, settings_files
from helpers.fix.sizes import smaller_batches
from helpers.fix.source import SourceFile
from helpers.fix.view import diff, in_lines, none_in_lines, outcome
from helpers.ground.shapes import NextStep, Verdict
from helpers.ground.units import MIB
from helpers.look.cards import find_card
from helpers.rehearse.rehearsal import RehearsalLimits
from helpers.trials.targets import CPU

ROOT = Path(__file__).resolve().parents[1]


def notebook(*cells, indent=1):
    """A notebook file of code cells that were run, with a text before them."""
    rows = [{"cell_type": "markdown", "metadata": {}, "source": ["# Über"]}]
    for cell in cells:
        rows.append(
            {
                "cell_type": "code",
                "execution_count": 7,
                "metadata": {"tags": ["mine"]},
                "outputs": [{"name": "stdout", "output_type": "stream", "text": ["5\n"]}],
                "source": cell.splitlines(keepends=True),
            }
        )
    content = {"cells": rows, "metadata": {"a": 1}, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(content, indent=indent, ensure_ascii=False) + "\n").encode()


LOOP = "%matplotlib inline\nfor x in data:\n    loss = model(x)\n    kept.append(loss)"


def kept_as_numbers(file):
    source = Notebook("train.ipynb", file)
    own = replace(program("", [keeper("cell 2, line 4 <module>", "kept")]), sources=[source])
    return own, next(iter(candidates(own, "user-leak")))


@pytest.mark.parametrize("indent", [1, 2, 4, None])
def test_a_change_of_a_notebook_touches_nothing_but_its_line(indent):
    before = notebook("import torch\nkept = []", LOOP, indent=indent)
    own, change = kept_as_numbers(before)
    after = changed_files(own, change)["train.ipynb"]
    line = re.search(rb"kept\.append\([^\"]*\)", after)[0]
    assert line.startswith(b"kept.append(loss.")
    assert after == before.replace(b"kept.append(loss)", line)


def test_the_diff_of_a_notebook_is_by_cell_and_names_places_by_cell():
    own, change = kept_as_numbers(notebook("import torch\nkept = []", LOOP))
    text = diff(own, change)
    assert "cell 2: %matplotlib inline" in text.splitlines()[0]
    assert "\n-    kept.append(loss)\n" in text
    assert "cell 1" not in text
    assert "(cell 2, line 4)" in change.title


@given(st.lists(st.text(alphabet="ax%!? #\n=1", min_size=1), min_size=1, max_size=4))
def test_a_notebook_without_edits_is_as_it_was(cells):
    file = notebook(*cells)
    try:
        source = Notebook("own.ipynb", file)
    except cst.ParserSyntaxError:
        return
    assert json.loads(source.edited(())) == json.loads(file)


@pytest.mark.parametrize(
    ("text", "says"), [("{}", "expected a notebook"), ("no", "expected a notebook")]
)
def test_a_file_that_is_no_notebook_is_said_in_one_line(text, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.ipynb").write_text(text)
    assert main(["fix", "--capacity", "4GiB", "--notebook", "own.ipynb"]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said


def test_a_notebook_and_a_command_exclude_each_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["fix", "--capacity", "4GiB", "--notebook", "own.ipynb", "--", "python", "train.py"]
    (tmp_path / "train.py").write_text("")
    assert main(words) == 2
    assert "expected one of them" in capsys.readouterr().err


def test_live_without_a_gpu_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "free_targets", lambda bundle: ([], "this box has no GPU"))
    (tmp_path / "train.py").write_text("")
    assert main(["fix", "--capacity", "4GiB", "--live", "--", "python", "train.py"]) == 2
    assert "fix --live: this box has no GPU" in capsys.readouterr().err


def test_a_run_for_real_is_a_trial_in_a_copy_with_the_change(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    text = "import os\nprint('BEFORE', os.environ.get('WANDB_MODE'))\nopen('left', 'w')\n"
    (own / "train.py").write_text(text)
    monkeypatch.chdir(own)
    start = text.index("BEFORE")
    change = Change(
        "c", Results.SAME, "", "", (TextEdit("train.py", start, start + 6, "AFTER"),), {"A": "b"}
    )
    changed = program(text, command=(sys.executable, "train.py"))
    record = live.run_for_real(changed, change, CPU, tmp_path / "trials", 60)
    assert record.outcome == "ok", record.message
    assert record.settings["A"] == "b"
    assert "came to its end" in live.in_words(record, CPU)
    assert list(own.iterdir()) == [own / "train.py"]
    assert (own / "train.py").read_text() == text


@pytest.mark.parametrize(
    ("name", "text", "after"),
    [
        ("c.yaml", "train:\n  micro_batchsize: 4 # é\n", "train:\n  micro_batch_size: 4 # é\n"),
        ("c.json", '{"micro_batchsize": 4}', '{"micro_batch_size": 4}'),
        ("c.toml", "micro_batchsize = 4\n", "micro_batch_size = 4\n"),
    ],
)
def test_a_key_that_nothing_reads_gets_the_name_that_is_read(name, text, after):
    own = program('import torch\nmicro = settings.get("micro_batch_size", 64)\n')
    own = replace(own, files=[SettingsFile(name, text.encode())])
    (change,) = misspelt_settings(own)
    assert changed_files(own, change)[name].decode() == after
    assert change.results is Results.ROUNDED
    assert change.only_if_measured


def test_a_key_that_is_read_keeps_its_name():
    own = program('a = settings["micro_batch_size"]\nb = settings["micro_batchsize"]\n')
    own = replace(own, files=[SettingsFile("c.yaml", b"micro_batchsize: 4\n")])
    assert not list(misspelt_settings(own))


def test_the_batch_of_a_settings_file_is_made_smaller_there():
    own = program("import torch\n")
    own = replace(own, files=[SettingsFile("c.yaml", b"data:\n  batch_size: 32\nbatch: many\n")])
    changes = list(smaller_batches(own))
    texts = [changed_files(own, change)["c.yaml"].decode() for change in changes]
    assert texts == [
        "data:\n  batch_size: 16\nbatch: many\n",
        "data:\n  batch_size: 8\nbatch: many\n",
    ]
    assert {change.results for change in changes} == {Results.OTHER}
    assert "--- a/c.yaml" in diff(own, changes[0])


def test_settings_files_are_those_that_the_command_or_a_source_names(tmp_path):
    for name in ("a.yaml", "b.json", "unread.toml"):
        (tmp_path / name).write_text("x: 1\n")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "unread.toml")
    source = SourceFile("train.py", b"open('b.json')\nopen('link.yaml')\nopen('absent.yaml')\n")
    found = settings_files(["python", "train.py", "--config=a.yaml"], [source], tmp_path)
    assert {file.name for file in found} == {"a.yaml", "b.json"}


def test_each_rank_gets_its_own_card():
    own = program(
        'import torch\nimport torch.distributed as dist\ndist.init_process_group("nccl")\nm.cuda()\n'
    )
    (change,) = one_device_a_rank(own)
    after = changed_files(own, change)["train.py"].decode()
    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\nm.cuda()\n' in after
    assert "import os\n" in after
    assert not list(one_device_a_rank(program("import torch\nmodel.cuda(0)\n")))


def test_a_card_that_every_rank_names_becomes_that_of_the_rank():
    text = 'import os\nimport torch\nrank = os.environ["LOCAL_RANK"]\nm.to("cuda:0")\nx.cuda(0)\n'
    own = program(text)
    (change,) = one_device_a_rank(own)
    after = changed_files(own, change)["train.py"].decode()
    assert "m.to(f\"cuda:{os.environ['LOCAL_RANK']}\")" in after
    assert 'x.cuda(int(os.environ["LOCAL_RANK"]))' in after
    compile(after, "train.py", "exec")


def test_scripts_that_a_shell_script_starts_are_sources(tmp_path):
    (tmp_path / "run.sh").write_text(
        "# first\npython prepare.py\ntorchrun --nproc_per_node 2 a.py\n"
    )
    for name in ("prepare.py", "a.py"):
        (tmp_path / name).write_text("import torch\n")
    sources = sources_of(["sh", "run.sh"], tmp_path, [])
    assert [source.name for source in sources] == ["prepare.py", "a.py"]


def ended(exit_code, error=""):
    """Rehearsals that end so."""

    def run(*words, **options):
        rehearsal = unseen(*words, **options)
        return replace(rehearsal, exit_code=exit_code, error=error, peak_reserved_bytes=5)

    return run


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("LocalEntryNotFoundError: offline mode is enabled", "needs a download"),
        ("URLError: <urlopen error>", "needs a download"),
        ("KeyError: 'lr'", "not for lack of memory"),
    ],
)
def test_a_download_or_an_error_of_its_own_is_said(error, says, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    with pytest.raises(NoFix, match=says):
        failure_of(
            ["python", "a.py"], find_card("4090"), ended(1, error), tmp_path, RehearsalLimits()
        )


def test_a_program_of_another_folder_is_refused_before_it_runs(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path / "here")
    never = pytest.fail
    with pytest.raises(NoFix, match="train.py is not below this folder"):
        failure_of(["python", "../train.py"], find_card("4090"), never, tmp_path, RehearsalLimits())


@pytest.mark.parametrize("exit_code", [130, 143])
def test_an_interrupt_of_the_unchanged_program_is_no_error_of_its_own(
    exit_code, tmp_path, monkeypatch
):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    with pytest.raises(KeyboardInterrupt):
        failure_of(
            ["python", "a.py"], find_card("4090"), ended(exit_code), tmp_path, RehearsalLimits()
        )


def test_a_change_whose_time_was_up_is_not_said_to_fail(tmp_path):
    late = ended(143)("python", find_card("4090"), working_folder=tmp_path)
    failed = ended(1, "KeyError: 'x'")("python", find_card("4090"), working_folder=tmp_path)
    change = Change("Keep preds on the CPU", Results.SAME, "", "")
    lines = [*none_in_lines([TriedChange(change, late), TriedChange(change, failed)])]
    assert lines[0] == "No change was seen to let the program finish in the time that it had."
    assert lines[1].startswith("Still running after 1 s, with at most 5 B reserved until then")
    assert len(lines) == 3
    assert [*none_in_lines([TriedChange(change, failed)])] == [
        "None of the changes that were tried lets the program finish."
    ]


def test_an_interrupt_ends_the_search_and_keeps_what_was_tried(tmp_path):
    own = program("import torch\n")
    changes = [
        Change(name, Results.SAME, "", "", environment={"A": name}) for name in ("one", "two", "no")
    ]
    codes = iter([1, 130])
    starts = []
    first = ended(1)("python", find_card("4090"), working_folder=tmp_path)
    trials = Trials(
        program=own,
        folder=tmp_path,
        first=first,
        run=lambda *words, **options: ended(next(codes))(*words, **options),
        prove=lambda *words: None,
        seconds=SearchLimits(RehearsalLimits()).seconds,
        tries=9,
        on_start=lambda start: starts.append((start.change.title, start.following, start.tries)),
        on_trial=lambda trial: None,
    )
    with pytest.raises(KeyboardInterrupt):
        trials.best(changes)
    assert starts == [("one", "two", 9), ("two", "no", 8)]
    assert [trial.change.title for trial in trials.done] == ["one"]


def searched(tmp_path, changes, outcomes, **options):
    """The changes that a search rehearses, in order; each ends as ``outcomes`` says by its title."""
    first = replace(ended(1)("python", find_card("4090"), working_folder=tmp_path), ooms=1)
    tried = []

    def run(words, *others, **options):
        after = outcomes.get(tried[-1], {"exit_code": 1, "ooms": 1})
        return replace(first, **{"exit_code": 0, "ooms": 0, **after})

    options = {"prove": lambda *words: Proof(Results.SAME, "the same"), **options}
    trials = Trials(
        program=program("import torch\n"),
        folder=tmp_path,
        first=replace(first, allocations=100),
        run=run,
        seconds=60.0,
        tries=12,
        on_start=lambda start: tried.append(start.change.title),
        on_trial=lambda trial: None,
        **options,
    )
    return trials.best(changes), tried


def setting(name, results=Results.SAME):
    return Change(name, results, "", environment={name: name})


def test_changes_that_help_are_tried_together_before_those_that_change_the_results(tmp_path):
    changes = [setting("a"), setting("b"), setting("no"), setting("c")]
    changes.append(setting("other", Results.OTHER))
    further = {"exit_code": 1, "ooms": 1}
    outcomes = {
        "a": {**further, "allocations": 150},
        "b": {**further, "allocations": 300},
        "c": {**further, "allocations": 200},
        "b; c; a": {},
    }
    winner, tried = searched(tmp_path, changes, outcomes)
    assert winner.change.title == "b; c; a"
    assert tried == ["a", "b", "no", "c", "b; c", "b; c; a"]


def test_what_the_repeat_with_expandable_segments_showed_is_not_rehearsed_again(tmp_path):
    fits = ended(0)("python", find_card("4090"), working_folder=tmp_path)
    known = {"expandable": fits}
    winner, _ = searched(tmp_path, [setting("expandable")], {}, rehearsed=known)
    assert winner.rehearsal is fits


def test_a_change_that_fits_with_small_workspaces_is_taken_and_says_so(tmp_path):
    outcomes = {"a": {"more_bytes": 24 << 30}}
    winner, tried = searched(tmp_path, [setting("a"), setting("b")], outcomes)
    assert tried == ["a"]
    lines = [*in_lines(winner, winner.rehearsal)]
    assert any(line.startswith("Workspace: 24.00 GiB more is set aside") for line in lines)


def test_a_setting_is_never_said_to_be_measured_on_the_cpu(tmp_path):
    winner, _ = searched(tmp_path, [setting("expandable")], {"expandable": {}})
    assert winner.passes
    assert winner.proof is None


@pytest.mark.parametrize(
    "command",
    [
        "python -u train.py --steps 3",
        "uv run python train.py --steps 3",
        "uv run train.py --steps 3",
        "accelerate launch --mixed_precision bf16 train.py --steps 3",
    ],
)
def test_a_script_is_compared_on_the_cpu_whatever_starts_it(command):
    assert _script(command.split()) == "train.py --steps 3".split()


def test_adafactor_is_said_to_have_no_betas():
    text = "opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8)\n"
    change, *_ = smaller_states(program(text))
    assert change.costs.startswith("Adafactor has no betas and no eps; ")
    assert change.edits[0].text == "torch.optim.Adafactor(model.parameters(), lr=1e-4)"


def test_an_interrupt_keeps_a_change_that_fits(tmp_path, monkeypatch):
    changes = [
        Change("fits", Results.ROUNDED, "", "", environment={"A": "1"}, only_if_measured=True),
        Change("next", Results.SAME, "", "", environment={"A": "2"}),
    ]
    monkeypatch.setattr(answer, "candidates", lambda *words: changes)
    codes = iter([0, 130])
    first = ended(1)("python", find_card("4090"), working_folder=tmp_path)
    failure = answer.FailedProgram(program("import torch\n"), first, SimpleNamespace(label=""))
    winner, tried = answer.change_for(
        failure,
        run=lambda *words, **options: ended(next(codes))(*words, **options),
        prove=lambda *words: Proof(None, "nothing was seen"),
        search=SearchLimits(RehearsalLimits()),
    )
    assert winner is not None
    assert winner.change.title == "fits"
    assert [trial.change.title for trial in tried] == ["fits"]


def test_nothing_is_written_where_git_shows_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    words = ["fix", "--capacity", "4GiB", "--write", "--", "python", "train.py"]
    assert main(words) == 2
    assert "without --write the change is printed" in capsys.readouterr().err
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert main(words) == 2
    assert "1 files differ" in capsys.readouterr().err


def test_without_a_command_nothing_runs_and_the_notebook_says_so():
    answer = fix_program()
    assert "No program was given" in answer.words
    assert "No program was given" in str(answer.league)
    assert answer.diff == ""


def test_a_command_runs_in_the_folder_where_it_is_typed(tmp_path):
    (tmp_path / "a file").write_text("")
    for wrong in ("nowhere", str(tmp_path / "a file")):
        with pytest.raises(ValueError, match="is not there; expected the one of your program"):
            fix_program("python train.py", folder=wrong, gpu="4090")
    before = Path.cwd()
    with pytest.raises(ValueError, match=f"train.py does not exist in {tmp_path}"):
        fix_program("python train.py", folder=str(tmp_path), gpu="4090")
    assert Path.cwd() == before


def test_the_league_names_the_program_as_it_is_and_each_change(tmp_path):
    first = ended(1)("python", find_card("4090"), working_folder=tmp_path)
    good = TriedChange(Change("Set it", Results.SAME, "", ""), replace(first, exit_code=0))
    shown = league(good, [good], first)
    assert [row["change"] for row in shown.rows] == ["as it is", "Set it"]
    assert shown.title == "The program fits with: Set it"


def test_the_league_does_not_promise_room_for_a_gpu_context(tmp_path):
    first = ended(1)("python", find_card("4090"), working_folder=tmp_path)
    peak_bytes = first.usable_bytes - 100 * MIB
    tight = replace(first, exit_code=0, peak_reserved_bytes=peak_bytes)
    winner = TriedChange(Change("Set it", Results.SAME, "", ""), tight)
    condition = "if the GPU context takes less than 100.00 MiB"
    assert league(winner, [winner], first).title == f"The program fits {condition} with: Set it"


@pytest.mark.parametrize(
    ("peak", "says"),
    [(MIB, "fits"), (24 * 1024 * MIB - 400 * MIB, "fits if the GPU context takes less than ")],
)
def test_a_change_that_leaves_little_says_what_the_context_may_take(tmp_path, peak, says):
    first = ended(1)("python", find_card("4090"), working_folder=tmp_path)
    peak = min(peak, first.usable_bytes - 100 * MIB)
    after = replace(first, exit_code=0, peak_reserved_bytes=peak)
    trial = TriedChange(Change("Set it", Results.SAME, "", ""), after)
    left = "" if says == "fits" else "100.00 MiB"
    assert outcome(trial, first) == says + left


def answered(found, tmp_path):
    """The verdict of a search in a program that keeps tensors, with the change that was found, or without."""
    own = program("kept.append(loss)\n", [keeper("train.py:1 <module>", "kept")])
    first = ended(1)("python", find_card("4090"), working_folder=tmp_path)
    leak = Verdict("user-leak", "confirmed", NextStep("Keep less"), title="kept grows")
    change = next(iter(candidates(own, "user-leak")))
    trial = TriedChange(
        change, replace(first, exit_code=0 if found else 1, peak_reserved_bytes=MIB)
    )
    winner = trial if found else None
    return ProgramFix(FailedProgram(own, first, leak), winner, [trial]).verdict().verdict


def test_a_notebook_with_a_command_has_the_answer_of_its_search_as_its_verdict(tmp_path):
    good = answered(True, tmp_path)
    assert (
        good.headline.startswith("A change was found: ") and "kept grows. Results: " in good.summary
    )
    assert good.next_step.command == "git apply change.diff" and good.state == "aside"
    assert [row.reading.value for row in good.evidence] == [MIB]
    none = answered(False, tmp_path)
    assert none.headline == "No change was found with which the program finishes (1 was tried)"
    assert none.next_step.what == "Keep less" and not none.evidence
    fits = ProgramFix(why="the program fits as it is: on a 4090; nothing needs to change").verdict()
    assert fits.verdict.headline == "No change was looked for: the program fits as it is"
    assert "on a 4090" in fits.verdict.summary


def test_notebook_05_asks_for_the_answer_of_its_command_where_it_has_one():
    cells = json.loads((ROOT / "notebooks" / "05_fix_validation.ipynb").read_text())["cells"]
    (asks,) = [
        "".join(cell["source"]) for cell in cells if "answer.show()" in "".join(cell["source"])
    ]
    assert "answer = change.verdict() if command else fixes.verdict()" in asks
