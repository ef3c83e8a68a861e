"""Changes of a program: what is proposed for what was found, and that the results stay what a change says."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("libcst")
import libcst as cst

from helpers.cli import main
from helpers.fix.answer import NoFix, failure_of
from helpers.fix.candidates import candidates
from helpers.fix.change import Change, Results, TextEdit, edited, together
from helpers.fix.imports import sources_of
from helpers.fix.program import Program, changed_files
from helpers.fix.proof import CpuRun, Proof, Prover, compared
from helpers.fix.search import TriedChange
from helpers.fix.source import SourceFile
from helpers.fix.view import diff, results_in_words
from helpers.judge.program_facts import (
    GrowerFacts,
    GrowthFacts,
    ProgramFacts,
    Refusal,
    Repeat,
    Replays,
)
from helpers.look.cards import find_card
from helpers.rehearse.rehearsal import Rehearsal, RehearsalLimits
from helpers.rehearse.torches import Torch
from helpers.settings.trouble import SettingsTrouble

PROGRAMS = Path(__file__).with_name("fix_programs")
GIB = 1 << 30


def keeper(line, name, through_graph=False):
    return GrowerFacts(
        line=line,
        asked_at=line,
        bytes_per_step=1 << 20,
        kept_bytes=1 << 30,
        keeper=name,
        through_graph=through_graph,
    )


def program(text, growers=(), name="train.py", command=("python", "train.py"), **facts):
    growth = GrowthFacts(growers=tuple(growers), steps=10) if growers else None
    sources = [SourceFile(name, text.encode())]
    return Program(sources, list(command), ProgramFacts(source="a test", growth=growth, **facts))


def proposed(text, cause, growers=(), **facts):
    """The changes of a program of one file, each with the file as it is then."""
    own = program(text, growers, **facts)
    return [
        (change, changed_files(own, change).get("train.py", b"").decode())
        for change in candidates(own, cause)
    ]


def texts(text, cause, growers=(), **facts):
    return [after for _, after in proposed(text, cause, growers, **facts)]


LOOP = """import torch

history = []
for step in range(10):
    loss = model(batch).mean()
    loss.backward()
    history.append({entry})
"""


def test_a_loss_that_is_kept_becomes_a_number_first():
    first, after = proposed(
        LOOP.format(entry="loss"), "user-leak", [keeper("train.py:7 <module>", "history")]
    )[0]
    assert "history.append(loss.item())" in after
    assert first.results is Results.SAME


SUM = """import torch

total = 0
for step in range(10):
    loss = model(batch).mean()
    loss.backward()
    total += model(batch).pow(2).mean()
"""


@pytest.mark.parametrize("through_graph", [True, False])
def test_a_sum_loses_its_graph_if_that_is_measured(through_graph):
    own = keeper("train.py:7 <module>", "total", through_graph)
    changes = proposed(SUM, "user-leak", [own])
    cut = "total += model(batch).pow(2).mean().detach()\n"
    first = next(change for change, after in changes if cut in after)
    assert first.title == "Keep total without graphs (train.py:7)"
    assert first.only_if_measured


@pytest.mark.parametrize(
    ("claimed", "measured", "says"),
    [
        (Results.SAME, Results.SAME, "the same to the bit, measured on the CPU over 6 steps"),
        (Results.ROUNDED, Results.SAME, "the same up to rounding (a sum may round differently)"),
        (Results.SAME, Results.OTHER, "different: other numbers, measured on the CPU over 6 steps"),
    ],
)
def test_one_thing_is_said_of_the_results(claimed, measured, says):
    words = {
        Results.SAME: "the same to the bit, measured on the CPU over 6 steps",
        Results.OTHER: "other numbers, measured on the CPU over 6 steps",
    }
    change = Change("one", claimed, "a sum may round differently", "")
    assert results_in_words(TriedChange(change, ended(), Proof(measured, words[measured]))) == says


def test_what_is_expected_of_the_results_and_was_not_measured_is_said_so():
    change = Change("one", Results.ROUNDED, "unless dropout draws", "", only_if_measured=True)
    trial = TriedChange(change, ended(), Proof(None, "on the CPU it fails"))
    assert results_in_words(trial) == (
        "should be the same up to rounding (unless dropout draws; not measured: on the CPU it fails)"
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("output", "history.append(output.detach().cpu())"),
        ("hidden[:, 0]", "history.append(hidden[:, 0].clone())"),
        ("(step, output)", "history.append((step, output.detach().cpu()))"),
        (
            "{'out': output, 'step': step}",
            "history.append({'out': output.detach().cpu(), 'step': step})",
        ),
        ("output.detach()", "history.append(output.detach().cpu())"),
        ("a + b", "history.append((a + b).detach().cpu())"),
        ("tuple(t for t in parts)", "history.append(tuple(t.detach().cpu() for t in parts))"),
    ],
)
def test_what_a_list_keeps_is_kept_without_its_graph_or_on_the_cpu(entry, expected):
    every = texts(LOOP.format(entry=entry), "user-leak", [keeper("train.py:7 <module>", "history")])
    assert any(expected in after for after in every)


def test_under_no_grad_nothing_is_detached():
    text = "import torch\nkept = []\nwith torch.no_grad():\n    for x in data:\n        kept.append(model(x))\n"
    every = texts(text, "user-leak", [keeper("train.py:5 <module>", "kept")])
    assert any("kept.append(model(x).cpu())" in after for after in every)
    assert not any("detach" in after for after in every)


def test_a_function_whose_result_goes_backward_keeps_its_gradients():
    text = """import torch

def embed(x):
    return encoder(x)

for x in data:
    loss = head(embed(x)).mean()
    loss.backward()
"""
    changes = proposed(text, "user-leak", [keeper("train.py:4 embed", "encoder")])
    assert not any("no_grad" in after for _, after in changes)


def test_settings_are_proposed_only_where_the_recorded_requests_pass_with_one():
    text = "import torch\n"
    with_none = proposed(text, "allocator-fragmentation", replays=Replays(passes_with=None))
    with_one = proposed(
        text, "allocator-fragmentation", replays=Replays(passes_with="max_split_size_mb:64")
    )
    assert not any(change.environment for change, _ in with_none)
    assert [change.environment["PYTORCH_CUDA_ALLOC_CONF"] for change, _ in with_one] == [
        "expandable_segments:True",
        "max_split_size_mb:64",
    ]


def test_expandable_segments_are_not_proposed_where_the_program_ran_out_with_them():
    failed = Repeat(8 * GIB, "expandable_segments:True", False, "", 7 * GIB, 8 * GIB)
    changes = proposed(
        "import torch\n",
        "true-capacity",
        replays=Replays(passes_with="expandable_segments:True"),
        expandable=failed,
    )
    assert not any(change.environment for change, _ in changes)


@pytest.mark.parametrize("where", ["train.py:2", ""])
def test_a_setting_at_which_torch_stops_is_corrected_where_it_is_made(where):
    text = (
        'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb=128"\nimport torch\n'
    )
    trouble = SettingsTrouble(
        kind="malformed",
        variable="PYTORCH_CUDA_ALLOC_CONF",
        value="max_split_size_mb=128",
        instead="PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
        why="cannot be read",
        where=where,
        fatal=True,
    )
    change, after = proposed(text, "config-ineffective", settings=trouble)[0]
    if where:
        assert '"max_split_size_mb:128"' in after
    else:
        assert change.environment == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}


def test_other_results_come_last():
    text = "import torch\nbatch_size = 64\n" + LOOP.format(entry="loss")
    changes = [
        change
        for change, _ in proposed(text, "true-capacity", [keeper("train.py:9 <module>", "history")])
    ]
    ranks = [change.results is Results.OTHER for change in changes]
    assert ranks == sorted(ranks)
    assert True in ranks


def test_portions_are_as_much_smaller_as_the_card_is_too_small():
    refusal = Refusal(
        request_bytes=30 * GIB,
        device_free_bytes=2 * GIB,
        allocated_bytes=8 * GIB,
        reserved_bytes=8 * GIB,
        where="train.py:2 f",
    )
    text = "import torch\nchunk_size = 4096\n"
    facts = {"refusal": refusal, "usable_bytes": 10 * GIB, "capacity_bytes": 10 * GIB}
    every = texts(text, "true-capacity", **facts)
    assert "chunk_size = 1024\n" in every[0] or "chunk_size = 512\n" in every[0]


def test_a_number_of_a_function_that_nobody_calls_is_left_as_it_is():
    text = "import torch\ndef tiled(net, image, tile=192):\n    return net(image)\n"
    assert not texts(text, "true-capacity")
    assert any("tile=96" in after for after in texts(f"{text}tiled(net, x)\n", "true-capacity"))


def test_a_batch_is_not_taken_apart_where_a_layer_computes_over_all_of_it():
    text = """import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).cuda()
for x, y in loader:
    loss = torch.nn.functional.mse_loss(net(x), y)
    loss.backward()
"""
    assert not any(".chunk(" in after for after in texts(text, "true-capacity"))
    assert any(
        ".chunk(" in after
        for after in texts(text.replace(", torch.nn.BatchNorm1d(4)", ""), "true-capacity")
    )


def test_two_changes_of_one_place_are_not_made_together():
    one = Change("one", Results.SAME, "", "", (TextEdit("a.py", 4, 9, "x"),))
    other = Change("other", Results.OTHER, "", "", (TextEdit("a.py", 6, 7, "y"),))
    apart = Change("apart", Results.ROUNDED, "", "", (TextEdit("a.py", 9, 12, "z"),))
    assert together([one, other]) is None
    both = together([one, apart])
    assert edited(b"0123456789abcdef", both.edits) == b"0123xzcdef"
    assert both.results is Results.ROUNDED


def test_a_diff_is_taken_by_git(tmp_path):
    text = LOOP.format(entry="loss")
    own = program(text, [keeper("train.py:7 <module>", "history")])
    change = next(iter(candidates(own, "user-leak")))
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "change.diff").write_text(diff(own, change))
    subprocess.run(["git", "apply", "change.diff"], cwd=tmp_path, check=True)
    assert "loss.item()" in (tmp_path / "train.py").read_text()
    assert (tmp_path / "train.py").read_bytes() == changed_files(own, change)["train.py"]


def test_sources_are_the_script_and_what_it_imports_from_around_it(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "engine.py").write_text("from .model import Net\nimport os\n")
    (tmp_path / "pkg" / "model.py").write_text("class Net: pass\n")
    (tmp_path / "other.py").write_text("never = 1\n")
    (tmp_path / "main.py").write_text("from pkg.engine import Net\nimport torch\n")
    names = [
        source.name for source in sources_of(["python", "main.py", "config.yaml"], tmp_path, [])
    ]
    assert names[0] == "main.py"
    assert set(names) == {"main.py", "pkg/__init__.py", "pkg/engine.py", "pkg/model.py"}


def test_files_outside_the_folder_or_behind_a_link_are_never_changed(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (tmp_path / "outside.py").write_text("batch_size = 64\n")
    (folder / "real.py").write_text("batch_size = 64\n")
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    (folder / "inside.py").symlink_to(folder / "real.py")
    outside = str(tmp_path / "outside.py")
    for script in ("../outside.py", outside, "link.py", "inside.py"):
        names = [source.name for source in sources_of(["python", script], folder, [])]
        assert set(names) <= {"real.py"}, script


def test_a_script_that_is_not_there_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fix", "--capacity", "4GiB", "--", "python", "nothere.py"]) == 2
    assert "nothere.py does not exist" in capsys.readouterr().err


def unseen(*words, **options):
    """A rehearsal in which nobody saw the GPU used."""
    unseen.folder = options["working_folder"]
    return Rehearsal(
        device=words[1],
        torch="2.14.1",
        conf="",
        exit_code=0,
        seconds=1.0,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        retries=0,
        ooms=0,
        oom=None,
        trace=None,
        why_no_trace="",
        error="",
        exact=True,
        trust=(),
        notes=(),
    )


def test_the_program_runs_in_a_copy_and_one_that_uses_no_gpu_is_refused(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    with pytest.raises(NoFix, match="no use of the GPU was seen"):
        failure_of(["python", "train.py"], find_card("4090"), unseen, tmp_path, RehearsalLimits())
    assert unseen.folder != own and not unseen.folder.exists()


DRIVER = """
import contextlib, io, json, runpy, sys, warnings
import torch
warnings.simplefilter("ignore")
printed = []
for path in sys.argv[1:]:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(path)
        printed.append(out.getvalue())
    except Exception as error:
        printed.append(None)
print(json.dumps(printed))
"""


def numbers_in(text):
    return [float(number) for number in re.findall(r"-?\d[\d.]*(?:e[+-]\d+)?", text)]


def every_change(name):
    """Each change that is proposed for a program of fix_programs, whatever its cause, with the file as it is then."""
    text = (PROGRAMS / name).read_bytes()
    growers = [[]]
    for number, line in enumerate(text.decode().splitlines(), 1):
        stored = re.match(r"\s*([\w.]+)(\.append\(| \+= |\[\w+\] = )", line)
        if stored:
            growers.append([keeper(f"{name}:{number} f", stored[1])])
    changes = {}
    for several in growers:
        own = program(text.decode(), several, name=name)
        for change in candidates(own, "user-leak"):
            files = changed_files(own, change)
            if files and change.results is not Results.OTHER:
                changes[files[name]] = change
    return changes


@pytest.mark.parametrize("name", [pytest.param("attention.py", marks=pytest.mark.slow), "keeps.py"])
def test_a_changed_program_prints_what_its_change_promises(name, tmp_path):
    """On the CPU: to the bit where the results stay the same, to rounding where they are rounded. A program that no
    longer runs is never proposed, as it does not come to its end when it is rehearsed.
    """
    changes = every_change(name)
    paths = [PROGRAMS / name]
    for number, text in enumerate(changes):
        paths.append(tmp_path / f"{number}_{name}")
        paths[-1].write_bytes(text)
    command = [sys.executable, "-c", DRIVER, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    before, *after = json.loads(done.stdout.splitlines()[-1])
    assert before
    run = [(change, out) for change, out in zip(changes.values(), after, strict=True) if out]
    assert len(run) > len(changes) / 2
    for change, out in run:
        if change.results is Results.SAME and not change.only_if_measured:
            assert out == before, change.title
        elif not change.only_if_measured:
            assert numbers_in(out) == pytest.approx(numbers_in(before), rel=1e-4), change.title


MEASURED = {
    "attention.py": ("checkpoint(block, x", Results.SAME),
    "plain_batches.py": ("x.chunk(2)", Results.ROUNDED),
    "frequencies.py": ("x.chunk(2)", Results.ROUNDED),
    "lengths.py": ("x.chunk(2)", Results.ROUNDED),
    "detached_term.py": ("out.pow(2).mean().detach()", Results.OTHER),
    "zeroed.py": ("set_to_none=True", Results.OTHER),
    "drawn_once.py": ("while len(self.cache) >=", Results.OTHER),
    "one_before.py": ("while len(states) >=", Results.OTHER),
    "padded.py": ("x.chunk(", Results.OTHER),
    "vocabulary.py": ("checkpoint(loss_of", Results.ROUNDED),
}
"""Programs of fix_programs, a change of each, and what it does to the results in truth."""


@pytest.mark.slow
def test_what_a_changed_program_computes_is_measured(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # most people's Python caches code
    programs = []
    for name, (expected, _) in MEASURED.items():
        shutil.copy(PROGRAMS / name, tmp_path)
        text, *_ = [text for text in every_change(name) if expected in text.decode()]
        programs += [([name], {}), ([name], {name: text})]
    prover = Prover(tmp_path, sys.executable, Torch(tmp_path, "", is_users=True), ())
    # Twenty programs at once take longer than the limit for one change.
    runs = prover.runs(programs, limit_s=600)
    rows = zip(MEASURED.items(), runs[::2], runs[1::2], strict=True)
    for (name, (_, results)), before, after in rows:
        assert not before.error, (name, before.error)
        assert compared(before, before).results is Results.SAME, name
        assert compared(before, after).results is results, name


def ended(**differences):
    """A rehearsal of a program that fits, but for what differs."""
    rehearsal = unseen((), find_card("4090"), working_folder=None)
    return replace(rehearsal, peak_reserved_bytes=GIB, **differences)


@pytest.mark.parametrize(
    ("differences", "passes"),
    [
        ({}, True),
        ({"stopped": "--steps"}, True),
        ({"stopped": "--seconds"}, False),
        ({"ooms": 1}, False),
        ({"more_bytes": 24 * GIB}, True),
        ({"exit_code": 1}, False),
    ],
)
def test_a_change_passes_where_the_program_came_to_its_end_and_never_ran_out(differences, passes):
    change = Change("one", Results.SAME, "", "")
    assert TriedChange(change, ended(**differences)).passes is passes


@pytest.mark.parametrize(
    ("measured", "only_if_measured", "results"),
    [
        (None, False, Results.SAME),
        (None, True, Results.OTHER),
        (Results.ROUNDED, True, Results.ROUNDED),
        (Results.OTHER, False, Results.OTHER),
    ],
)
def test_what_was_measured_counts_before_what_a_rule_says(measured, only_if_measured, results):
    change = Change("one", Results.SAME, "", "", only_if_measured=only_if_measured)
    trial = TriedChange(change, ended(), Proof(measured, "on the CPU"))
    assert trial.results is results
    assert trial.is_refuted is (results is Results.OTHER and not only_if_measured)


def test_a_difference_with_smaller_numbers_is_not_said_to_be_the_same():
    change = Change("one", Results.SAME, "", "")
    trial = TriedChange(
        change, ended(), Proof(None, "with smaller numbers it differs", differs=True)
    )
    assert trial.results is Results.OTHER and not trial.is_refuted
    assert results_in_words(trial).startswith(f"{Results.OTHER.value} (")


def test_recomputed_blocks_with_running_statistics_are_said_to_change_the_results():
    text = """import torch
mlp = torch.nn.ModuleList([torch.nn.{norm}(8), torch.nn.Sequential(b, c)])
for block in mlp:
    x = block(x)
loss = x.mean()
loss.backward()
"""

    def recomputed(norm):
        changes = candidates(program(text.format(norm=norm)), "true-capacity")
        return next(change for change in changes if "Recompute" in change.title)

    assert recomputed("LayerNorm").results is Results.SAME
    assert recomputed("BatchNorm1d").results is Results.OTHER
    assert "running statistics twice" in recomputed("BatchNorm1d").why


def test_a_list_that_is_read_under_another_name_keeps_its_entries():
    shorter = [
        change for text, change in every_change("aliased.py").items() if b"del kept[:-" in text
    ]
    assert not shorter


def test_a_file_keeps_its_encoding_its_mark_and_its_line_ends():
    text = LOOP.format(entry="loss").replace("import torch", "import torch  # Grüße")
    for before in (
        b"\xef\xbb\xbf" + text.encode(),
        text.encode().replace(b"\n", b"\r\n"),
        b"# -*- coding: latin-1 -*-\n" + text.encode("latin-1"),
    ):
        source = SourceFile("train.py", before)
        line = source.calls("append")[0]
        edits = [source.lines_after(source.statement(line), "done = 1")]
        ending = b"\r\n" if b"\r\n" in before else b"\n"
        assert source.edited(edits) == before + b"    done = 1" + ending


def test_the_lines_of_a_string_are_not_indented():
    text = 'def f():\n    words = """a\nb"""\n    return words\n'
    source = SourceFile("train.py", text.encode())
    first, last = source.find(cst.FunctionDef)[0].body.body
    after = source.edited([source.within(first, last, "with torch.no_grad():")]).decode()
    assert after == (
        'def f():\n    with torch.no_grad():\n        words = """a\nb"""\n        return words\n'
    )


def test_two_words_in_one_place_of_the_command_are_not_put_together():
    one = Change("one", Results.OTHER, "", "", replaces={3: "8"})
    other = Change("other", Results.OTHER, "", "", replaces={3: "4"})
    assert together([one, other]) is None


def test_what_is_saved_is_compared_as_well():
    first, close, other = ([["value", str(size), [size, size]]] for size in (4.0, 4.000001, 5.0))
    for after, results in ((first, "SAME"), (close, "ROUNDED"), (other, "OTHER")):
        assert (
            compared(CpuRun(first, "", True), CpuRun(after, "", True)).results is Results[results]
        )
