"""Changes of what keeps graphs or copies of a model: gradients stay where they were."""

import shutil
import sys
from dataclasses import replace

import pytest

pytest.importorskip("libcst")
from test_fix import PROGRAMS, ended, keeper, program, proposed, texts

from helpers.fix.candidates import candidates
from helpers.fix.change import Change, Results
from helpers.fix.program import changed_files
from helpers.fix.proof import CpuRun, Proof, Prover, compared
from helpers.fix.search import TriedChange
from helpers.fix.under_torch import on_cpu
from helpers.fix.view import results_in_words
from helpers.judge.program_facts import Replays
from helpers.rehearse.torches import Torch


def test_a_change_that_leaves_weights_without_gradients_is_refuted_and_comes_after_the_right_one(
    tmp_path,
):
    name = "carried_state.py"
    shutil.copy(PROGRAMS / name, tmp_path)
    own = program(
        (tmp_path / name).read_text(), [keeper(f"{name}:16 forward", "state", True)], name=name
    )
    changes = [change for change in candidates(own, "user-leak") if change.cuts_graphs]
    between_windows, _, within_one, _ = changes
    assert "(carried_state.py:29)" in between_windows.title
    unchanged = ([name], {})
    changed = [([name], changed_files(own, change)) for change in (between_windows, within_one)]
    prover = Prover(tmp_path, sys.executable, Torch(tmp_path, "", is_users=True), ())
    before, right, wrong = prover.runs([unchanged, *changed], limit_s=300)
    assert not right.error and not compared(before, right).loses_gradients
    proof = compared(before, wrong)
    assert proof.loses_gradients
    assert TriedChange(within_one, ended(), proof).is_refuted


def test_a_setting_with_which_the_recorded_requests_pass_is_tried_whatever_the_cause():
    passes = Replays(passes_with="expandable_segments:True")
    first, *_ = proposed("import torch\n", "true-capacity", replays=passes)
    change, _ = first
    assert change.environment == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


STATES = """import copy

snapshots = []
for epoch in range(16):
    score = train(model)
    snapshots.append((score, copy.deepcopy(model.state_dict())))
"""


def test_copies_of_a_state_that_a_list_keeps_are_made_on_the_cpu_first():
    first, after = proposed(STATES, "user-leak", [keeper("train.py:6 <module>", "snapshots")])[0]
    copies = '{name: value.to("cpu", copy=True) for name, value in model.state_dict().items()}'
    assert f"snapshots.append((score, {copies}))" in after
    assert first.results is Results.SAME


VALIDATES = """import torch

def validate(model):
    kept = []
    for x in batches():
        kept.append(model(x))
    return torch.cat(kept).mean().item()

for x in batches():
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    print(validate(model))
"""


def test_a_validation_that_keeps_graphs_first_gets_no_grad_which_is_measured():
    own = replace(keeper("train.py:6 validate", "kept"), with_graphs=True)
    first, after = proposed(VALIDATES, "user-leak", [own])[0]
    assert "@torch.no_grad()\ndef validate(model):" in after
    assert first.only_if_measured


def test_tensors_that_are_kept_alone_go_to_the_cpu_first():
    text = "import torch\nkept = []\nfor x in data:\n    y = model(x)\n    y.sum().backward()\n    kept.append(y)\n"
    own = replace(keeper("train.py:6 <module>", "kept"), tensors_alone=True)
    _, after = proposed(text, "user-leak", [own])[0]
    assert "kept.append(y.detach().cpu())" in after


METER = """class Meter:
    def update(self, values):
        self.history.append(scaled(values))
"""


@pytest.mark.parametrize(
    ("top", "changed"),
    [
        ("", "import torch\n\n"),
        ('"""What is measured."""\n\n', '"""What is measured."""\n\nimport torch\n\n'),
        ("import os\n\n", "import os\nimport torch\n\n"),
        ("from torch import nn\n\n", "from torch import nn\nimport torch\n\n"),
        ("import torch as t\n\n", "import torch as t\nimport torch\n\n"),
        ("import torch\n\n", "import torch\n\n"),
        ("import torch.nn\n\n", "import torch.nn\n\n"),
    ],
)
def test_a_file_that_a_change_lets_use_torch_imports_it(top, changed):
    line = top.count("\n") + 3
    afters = texts(top + METER, "user-leak", [keeper(f"train.py:{line} update", "meter.history")])
    decorated = next(after for after in afters if "no_grad" in after)
    assert decorated.startswith(changed)
    assert decorated.count("import torch\n") == changed.count("import torch\n")


def test_what_torch_prints_of_a_graph_is_no_result():
    lines = ["tensor(0.25, grad_fn=<DivBackward0>)", "tensor([1.5], requires_grad=True)"]
    detached = ["tensor(0.25)", "tensor([1.5])"]
    runs = [
        CpuRun(seen=[["print", line] for line in printed], ended=True)
        for printed in (lines, detached)
    ]
    assert compared(*runs).results is Results.SAME


TRIALS = """import torch


class Trial:
    def __init__(self, number):
        self.number = number

    def fit(self):
        self.model = torch.nn.Linear(8, 8)
        self.score = 1.0


trials = []
best = None
for number in range(20):
    trial = Trial(number)
    trial.fit()
    trials.append(trial)
    best = trial
print([trial.score for trial in trials])
"""


def test_a_collected_object_that_may_be_kept_elsewhere_is_not_emptied_as_if_nobody_used_it():
    own = [keeper("train.py:18 <module>", "trials")]
    changes = proposed(TRIALS, "user-leak", own)
    (change,) = [change for change, after in changes if "trial.model = None" in after]
    assert change.results is Results.OTHER
    assert change.costs == "no model of an earlier entry can be used or saved later"


def test_what_a_cpu_cannot_show_is_not_called_measured():
    says = "a sum may round differently"
    change = Change("Keep it on the CPU", Results.ROUNDED, says, only_on_a_gpu=True)
    proof = Proof(Results.SAME, "the same to the bit, measured on the CPU over 6 steps")
    trial = TriedChange(change, ended(), proof)
    assert results_in_words(trial) == f"the same up to rounding ({says}; a CPU cannot show it)"


RUNNING = """import torch

class Alignment:
    def update(self, x):
        mean = x.mean(0)
        centred = x - mean
        cov = centred.t() @ centred
        self.mean = self.momentum * self.mean + (1 - self.momentum) * mean
        self.cov = self.momentum * self.cov + (1 - self.momentum) * cov
        self.count = self.count + 1

for x in data:
    alignment.update(model(x))
    loss = alignment.cov.sum()
    loss.backward()
    optimizer.step()
"""


def test_all_states_that_a_method_carries_on_by_one_formula_are_cut_before_one_of_them():
    kept = keeper("train.py:9 update", "alignment.cov", through_graph=True)
    changed = [text for _, text in proposed(RUNNING, "user-leak", [kept]) if ".detach()" in text]
    detached = [
        [line.split(" = ")[0].strip() for line in text.splitlines() if ".detach()" in line]
        for text in changed
    ]
    assert detached[:2] == [["self.mean", "self.cov"], ["self.cov"]]


OF_A_GPU = """import torch

start = torch.cuda.Event(enable_timing=True)
noise = torch.Generator("cuda").manual_seed(5)
share = torch.cuda.memory_reserved() / max(1, torch.cuda.get_device_properties(0).total_memory)
start.record()
print(torch.rand(3, generator=noise, device="cuda").sum().item() > 0)
print(f"{start.elapsed_time(torch.cuda.Event()):.1f} ms, {share:.0%}")
"""


def test_a_program_that_asks_a_gpu_for_times_sizes_and_random_numbers_is_compared_on_the_cpu(
    tmp_path,
):
    (tmp_path / "train.py").write_text(OF_A_GPU)
    prover = Prover(tmp_path, sys.executable, Torch(tmp_path, "", is_users=True), ())
    (run,) = prover.runs([(["train.py"], {})], limit_s=300)
    assert run.ended and not run.error
    assert run.of("print") == [["True"], ["0.0 ms, 0%"]]


def test_what_is_sent_to_a_gpu_that_the_cpu_stands_for_is_a_copy():
    torch = pytest.importorskip("torch")
    here = torch.zeros(2)
    with on_cpu.on_cpu_mode(torch):
        for there in (here.to("cuda"), here.to(device="cuda:0"), here.cuda()):
            there += 1
        same = here.to(torch.float32)
    assert here.tolist() == [0, 0] and same is here
