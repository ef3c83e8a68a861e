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
from helpers.fix.change import Change, Edit, Results, edited, together
from helpers.fix.imports import sources_of
from helpers.fix.program import Program, changed_files
from helpers.fix.proof import Proof, Prover, Run, compared
from helpers.fix.search import Trial
from helpers.fix.source import Source
from helpers.fix.view import diff, results_in_words
from helpers.judge.program_facts import (
    GrowerFacts,
    GrowthFacts,
    Holding,
    ProgramFacts,
    Refusal,
    Repeat,
    Replays,
)
from helpers.look.cards import find_card
from helpers.rehearse.rehearsal import Limits, Rehearsal
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
    sources = [Source(name, text.encode())]
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
def test_a_sum_first_loses_its_graph_and_is_called_no_list(through_graph):
    own = keeper("train.py:7 <module>", "total", through_graph)
    changes = proposed(SUM, "user-leak", [own])
    first, after = changes[0]
    assert "total += model(batch).pow(2).mean().detach()\n" in after
    assert first.title == "Keep total without its graph (train.py:7)"
    kept = [change for change, after in changes if "total += " in after]
    assert not any("entries" in change.title or "entry" in change.costs for change in kept)
    assert any(change.title == "Add total up on the CPU (train.py:7)" for change in kept)


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
    assert results_in_words(Trial(change, ended(), Proof(measured, words[measured]))) == says


def test_what_is_expected_of_the_results_and_was_not_measured_is_said_so():
    change = Change("one", Results.ROUNDED, "unless dropout draws", "", only_if_measured=True)
    trial = Trial(change, ended(), Proof(None, "on the CPU it fails"))
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
        (
            "lambda out=output, step=step: show(out, step)",
            "history.append(lambda out=output.detach().cpu(), step=step: show(out, step))",
        ),
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
    one = Change("one", Results.SAME, "", "", (Edit("a.py", 4, 9, "x"),))
    other = Change("other", Results.OTHER, "", "", (Edit("a.py", 6, 7, "y"),))
    apart = Change("apart", Results.ROUNDED, "", "", (Edit("a.py", 9, 12, "z"),))
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
        failure_of(["python", "train.py"], find_card("4090"), unseen, tmp_path, Limits())
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


@pytest.mark.parametrize("name", ["attention.py", "keeps.py"])
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
    "one_before.py": ("states.clear()", Results.OTHER),
    "by_method.py": ("trial.net = None", Results.OTHER),
    "padded.py": ("x.chunk(", Results.OTHER),
    "vocabulary.py": ("checkpoint(loss_of", Results.ROUNDED),
}
"""Programs of fix_programs, a change of each, and what it does to the results in truth."""


def test_what_a_changed_program_computes_is_measured(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # most people's Python caches code
    programs = []
    for name, (expected, _) in MEASURED.items():
        shutil.copy(PROGRAMS / name, tmp_path)
        text, *_ = [text for text in every_change(name) if expected in text.decode()]
        programs += [([name], {}), ([name], {name: text})]
    prover = Prover(tmp_path, sys.executable, Torch(tmp_path, "", own=True), ())
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
    assert Trial(change, ended(**differences)).passes is passes


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
    trial = Trial(change, ended(), Proof(measured, "on the CPU"))
    assert trial.results is results
    assert trial.is_refuted is (results is Results.OTHER and not only_if_measured)


def test_a_difference_with_smaller_numbers_is_not_said_to_be_the_same():
    change = Change("one", Results.SAME, "", "")
    trial = Trial(change, ended(), Proof(None, "with smaller numbers it differs", differs=True))
    assert trial.results is Results.OTHER and not trial.is_refuted
    assert results_in_words(trial).startswith(f"{Results.OTHER.value} (")


def test_recomputed_blocks_with_running_statistics_are_said_to_change_the_results():
    text = """import torch
mlp = torch.nn.Sequential(a, torch.nn.{norm}(8), b, c)
loss = mlp(x).mean()
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
        change for text, change in every_change("aliased.py").items() if b"kept[:] = [" in text
    ]
    assert all(change.only_if_measured for change in shorter)


def test_a_file_keeps_its_encoding_its_mark_and_its_line_ends():
    text = LOOP.format(entry="loss").replace("import torch", "import torch  # Grüße")
    for before in (
        b"\xef\xbb\xbf" + text.encode(),
        text.encode().replace(b"\n", b"\r\n"),
        b"# -*- coding: latin-1 -*-\n" + text.encode("latin-1"),
    ):
        source = Source("train.py", before)
        line = source.calls("append")[0]
        edits = [source.lines_after(source.statement(line), "done = 1")]
        ending = b"\r\n" if b"\r\n" in before else b"\n"
        assert source.edited(edits) == before + b"    done = 1" + ending


def test_the_lines_of_a_string_are_not_indented():
    text = 'def f():\n    words = """a\nb"""\n    return words\n'
    source = Source("train.py", text.encode())
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
        assert compared(Run(first, "", True), Run(after, "", True)).results is Results[results]


EVALUATION = """import torch
from torch import nn
net = nn.Conv2d(3, 3, 3, padding=1).cuda()

@torch.no_grad()
def evaluate(images):
    for low in images:
        out = net(low.to("cuda")).cpu()

for x, y in loader:
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    evaluate(images)
"""
TEACHER = """import torch
from torch import nn
for x, y in loader:
    features = net(x)
    with torch.no_grad():
        wanted = teacher(x)
    loss = nn.functional.mse_loss(features, wanted)
    loss.backward()
"""


def refused_at(*frames):
    where, *callers = frames
    return {
        "refusal": Refusal(
            request_bytes=2 * GIB,
            device_free_bytes=0,
            allocated_bytes=GIB,
            reserved_bytes=GIB,
            where=where,
            callers=tuple(callers),
        )
    }


def test_an_evaluation_that_does_not_fit_is_taken_apart_and_the_training_is_left_alone():
    refused = refused_at("train.py:8 evaluate", "train.py:13 <module>")
    changes = proposed(EVALUATION, "true-capacity", **refused)
    strips = [
        change
        for change, after in changes
        if "for low_part in low.chunk(4, dim=2)], dim=2)\n" in after
    ]
    assert [change.results for change in strips] == [Results.OTHER]
    whole = 'out = torch.cat([net(low_part.to("cuda")).cpu() for low_part in low.chunk(4)])\n'
    assert any(whole in after for _, after in changes)
    assert not any("x.chunk(" in after or "save_on_cpu" in after for _, after in changes)


@pytest.mark.parametrize("given", ["graph", "graph, pool=self.pool"])
def test_graphs_are_captured_into_one_pool(given):
    text = f"import torch\nfor batch in sizes:\n    with torch.cuda.graph({given}):\n        net(batch)\n"
    first, *_ = texts(text, "allocator-fragmentation")
    assert "import torch\n\nGRAPH_POOL = torch.cuda.graph_pool_handle()\n" in first
    assert "torch.cuda.graph(graph, pool=GRAPH_POOL)" in first


def test_what_is_called_without_gradients_gets_no_second_no_grad():
    text = """import torch
net = torch.nn.Linear(8, 8).cuda()
def capture(x):
    return net(x)

@torch.inference_mode()
def main():
    capture(data)
"""
    refused = refused_at("train.py:4 capture", "train.py:8 main")
    assert not any("no_grad" in after for after in texts(text, "true-capacity", **refused))
    plain = text.replace("@torch.inference_mode()\n", "")
    refused = refused_at("train.py:4 capture", "train.py:7 main")
    holding = (Holding("train.py:4 capture", GIB),)
    after = texts(plain, "true-capacity", holding=holding, **refused)
    assert any("no_grad" in text for text in after)


STEPS = """import torch
net = torch.nn.Linear(8, 8).cuda()
opt = torch.optim.Adam(net.parameters())
for x, y in loader:
    loss = torch.nn.functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
"""


def test_a_card_too_small_for_the_states_of_an_optimizer_gets_no_smaller_forward_pass():
    holding = (Holding("train.py:2 <module>", 4 * GIB), Holding("train.py:7 <module>", 4 * GIB))
    facts = {
        **refused_at("train.py:7 <module>"),
        "holding": holding,
        "asked_before_forward_bytes": 4 * GIB,
        "usable_bytes": 8 * GIB,
    }
    after = texts(STEPS, "true-capacity", **facts)
    assert "fused=True" in after[0]
    without = texts(STEPS.replace("Adam(", "NAdam("), "true-capacity", **facts)
    assert "foreach=False" in without[0]
    assert any("Adafactor" in text for text in after)
    assert not any("x.chunk(2)" in text or "save_on_cpu" in text for text in after)
    large = {**facts, "asked_before_forward_bytes": GIB}
    assert any("x.chunk(2)" in text for text in texts(STEPS, "true-capacity", **large))


MADE = """import torch
net = torch.nn.Linear(8, 8).cuda()

def make_batch(size):
    x = torch.randn(size, 8)
    return x.cuda(), x.sum(1).long().cuda()

for step in range(5):
    x, y = make_batch(64)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
"""


ACCURACY = """import torch
net = torch.nn.Linear(8, 8).cuda()
@torch.no_grad()
def accuracy(x, y):
    return (net(x).argmax(1) == y).float().mean().item()
accuracy(*data)
"""


def test_a_model_called_inside_an_expression_of_an_evaluation_gets_its_batch_in_parts():
    refused = refused_at("train.py:5 accuracy", "train.py:6 <module>")
    after = texts(ACCURACY, "true-capacity", **refused)
    parts = "(torch.cat([net(part) for part in x.chunk(2)]).argmax(1) == y)"
    assert any(re.sub(r"chunk\(\d+\)", "chunk(2)", text).count(parts) for text in after)


@pytest.mark.parametrize(
    ("text", "is_put"), [(ACCURACY, False), (ACCURACY.replace("@torch.no_grad()\n", ""), True)]
)
def test_a_program_without_a_backward_pass_and_no_grad_computes_no_gradients(text, is_put):
    after = texts(text, "true-capacity")
    assert (
        any("import torch\n\ntorch.set_grad_enabled(False)\n" in text for text in after) is is_put
    )


GIVEN = """import torch
def train(model, x, y, step):
    loss = torch.nn.functional.cross_entropy(model(x), y) * step
    loss.backward()
"""


def test_a_batch_of_a_counted_loop_is_taken_in_parts():
    loop = "for at, (x, y) in enumerate(tqdm(loader)):"
    after = texts(STEPS.replace("for x, y in loader:", loop), "true-capacity")
    assert any("for x_part, y_part in zip(x.chunk(2), y.chunk(2)):" in text for text in after)


def test_a_batch_that_a_function_is_given_is_taken_in_parts():
    after = texts(GIVEN, "true-capacity", **refused_at("train.py:3 train"))
    parts = "    for x_part, y_part in zip(x.chunk(2), y.chunk(2)):\n"
    assert any(parts in text for text in after)


def test_a_batch_that_a_function_makes_is_taken_in_parts():
    after = texts(MADE, "true-capacity", **refused_at("train.py:10 <module>"))
    parts = "    x, y = make_batch(64)\n    for x_part, y_part in zip(x.chunk(2), y.chunk(2)):\n"
    assert any(parts in text for text in after)
    in_function = MADE.replace("for step in range(5):", "def train(net):")
    after = texts(in_function, "true-capacity", **refused_at("train.py:10 train"))
    assert any(parts in text for text in after)
    embedded = MADE.replace("return x.cuda(),", "return net(x.cuda()),")
    after = texts(embedded, "true-capacity", **refused_at("train.py:10 <module>"))
    assert not any("x.chunk(2)" in text for text in after)


def test_a_step_is_only_made_smaller_where_a_step_failed():
    after = texts(STEPS, "true-capacity", **refused_at("train.py:5 <module>"))
    assert not any("foreach=False" in text for text in after)
    assert any("x.chunk(2)" in text for text in after)


MATCHING = """import torch
def assign(anchors, boxes):
    overlap = iou(anchors.unsqueeze(0), boxes)
    return overlap.max(-1)

anchors = make_anchors().cuda()
for images, boxes in loader:
    with torch.no_grad():
        best, which = assign(anchors, boxes)
    loss = net(images).mul(best).mean()
    loss.backward()
"""


def test_what_a_function_computes_for_each_sample_without_gradients_is_taken_apart():
    after = texts(
        MATCHING, "true-capacity", **refused_at("train.py:3 assign", "train.py:9 <module>")
    )
    inner = "overlap = torch.cat([iou(anchors.unsqueeze(0), boxes_part) for boxes_part in boxes.chunk(4)])"
    outer = (
        "best, which = map(torch.cat, zip(*(assign(anchors, boxes_part) "
        "for boxes_part in boxes.chunk(4))))"
    )
    assert any(inner in text for text in after)
    assert any(outer in text for text in after)
    with_gradients = MATCHING.replace("with torch.no_grad()", "if True")
    refused = refused_at("train.py:3 assign", "train.py:9 <module>")
    assert not any("zip(*(" in text for text in texts(with_gradients, "true-capacity", **refused))


def test_a_teacher_in_a_forward_pass_is_no_evaluation():
    after = texts(TEACHER, "true-capacity", **refused_at("train.py:6 <module>"))
    assert any("x.chunk(2)" in text for text in after)


@pytest.mark.parametrize(
    "later", ["correct = (out.argmax(1) == y).sum()", "memory.append(out.detach())"]
)
def test_a_batch_is_not_taken_apart_where_its_outputs_are_read_after_the_backward_pass(later):
    text = f"""import torch
for x, y in loader:
    out = net(x)
    loss = torch.nn.functional.cross_entropy(out, y)
    loss.backward()
    {later}
"""
    assert not any(".chunk(" in after for after in texts(text, "true-capacity"))
    without = text.replace(later, "optimizer.step()")
    assert any("x.chunk(2)" in after for after in texts(without, "true-capacity"))


def test_a_batch_is_not_taken_apart_where_a_state_of_its_size_is_carried_on():
    text = """import torch
for x, y in loader:
    out, state = net(x, state)
    loss = torch.nn.functional.cross_entropy(out, y)
    loss.backward()
"""
    assert not any(".chunk(" in after for after in texts(text, "true-capacity"))


def test_the_loss_of_the_parts_is_added_up_only_where_it_is_read():
    text = """import torch
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
"""
    assert not any("whole_loss" in after for after in texts(text, "true-capacity"))
    printed = f"{text}    print(loss.item())\n"
    assert any("loss = whole_loss\n" in after for after in texts(printed, "true-capacity"))


def test_a_short_sequence_is_not_cut_into_more_segments_than_it_has_layers():
    text = """import torch
mlp = torch.nn.Sequential({layers})
loss = mlp(x).mean()
loss.backward()
"""
    short = texts(text.format(layers="a, b, c"), "true-capacity")
    long = texts(text.format(layers="a, b, c, d"), "true-capacity")
    assert not any("checkpoint_sequential" in after for after in short)
    assert any("checkpoint_sequential(mlp, 4, x" in after for after in long)


def test_attention_is_written_as_the_file_writes_such_calls():
    text = """import math
import torch
import torch.nn.functional as F

def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    y = scores.softmax(-1) @ v
    return y
"""
    first, *_ = texts(text, "true-capacity")
    assert "y = F.scaled_dot_product_attention(q, k, v, scale=1.0 / math.sqrt(q.size(-1)))" in first


def test_what_an_evaluation_step_of_lightning_keeps_has_no_graph_to_cut():
    text = """import torch
class Segmenter(LightningModule):
    def validation_step(self, batch, number):
        self.outputs.append(self.net(batch))

loss.backward()
"""
    kept = [keeper("train.py:4 validation_step", "self.outputs")]
    every = texts(text, "user-leak", kept)
    assert any("self.outputs.append(self.net(batch).cpu())" in after for after in every)
    assert not any("detach()" in after or "no_grad" in after for after in every)
