"""Parts of a forward pass run again in the backward pass, and passes without gradients lose their graphs."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("libcst")
import torch
from test_fix import GIB, program, texts

from helpers.fix.program import changed_files
from helpers.fix.recomputed import recomputed_parts
from helpers.judge.program_facts import Holding

TOP = """import torch
from torch import nn

torch.manual_seed(0)
"""
END = """
loss = pass_through(torch.linspace(-1, 1, 48).view(2, 3, 8)).pow(2).mean()
loss.backward()
result = [weight.grad for weight in net.parameters()]
"""


def recomputed(text):
    own = program(TOP + text + END)
    files = [changed_files(own, change) for change in recomputed_parts(own)]
    return [changed["train.py"].decode() for changed in files]


def gradients(text):
    names = {}
    exec(text, names)
    return names["result"]


BLOCK = "net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))\n\n\n"
SOLVER = f"""{BLOCK}def advance(u, step):
    return u + 0.1 * step * net(u)


def pass_through(u):
    means = []
    for step in range(5):
        u = advance(u, step)
        means.append(u.mean())
    return u + torch.stack(means).sum()
"""
CELL = """net = nn.LSTMCell(8, 8)


def pass_through(x):
    h = c = torch.zeros(2, 8)
    for at in range(3):
        h, c = net(x[:, at], (h, c))
    return h
"""
RUNGE_KUTTA = f"""{BLOCK}def pass_through(u):
    step = 0
    while step < 4:
        k = net(u)
        u = u + 0.1 * net(u + 0.05 * k)
        step += 1
    return u
"""
ENCODER = """layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
net = nn.TransformerEncoder(layer, 2)


def pass_through(x):
    return net(x)
"""
BLOCKS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        self.up = nn.Sequential(nn.Linear(4, 8), nn.Tanh())

    def forward(self, x):
        return x + self.up(self.down(x)) + self.up(self.down(2 * x))


net = Net()


def pass_through(x):
    return net(x)
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SOLVER, "u = checkpoint(advance, u, step, use_reentrant=False)"),
        (CELL, "h, c = checkpoint(net, x[:, at], (h, c), use_reentrant=False)"),
        (RUNGE_KUTTA, "k = checkpoint(net, u, use_reentrant=False)"),
        (ENCODER, "layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)"),
        (BLOCKS, "x + checkpoint(self.up, self.down(x), use_reentrant=False) +"),
    ],
)
def test_what_runs_again_in_the_backward_pass_has_the_same_gradients(text, wanted):
    first, *_ = recomputed(text)
    assert wanted in first
    before, after = gradients(TOP + text + END), gradients(first)
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize(
    "text",
    [
        "net = nn.Linear(8, 8)\n\n\ndef pass_through(x):\n    for part in range(3):\n        print(part)\n    return net(x)\n",
        f"{BLOCK}def pass_through(x):\n    return net(x)\n",
    ],
)
def test_a_pass_of_one_block_runs_once(text):
    assert recomputed(text) == []


EVALUATION = """import torch
net = torch.nn.Linear(8, 8).cuda()
for x in batches:
    loss = net(x).mean()
    loss.backward()
errors = []
for x in others:
    for part in x:
        errors.append(net(part).mean())
print(torch.stack(errors).mean())
"""


def test_a_loop_of_an_evaluation_in_no_function_is_put_below_no_grad():
    first, *_ = texts(EVALUATION, "true-capacity", holding=(Holding("train.py:9 <module>", GIB),))
    assert "with torch.no_grad():\n    for x in others:\n        for part in x:\n" in first
    training = texts(EVALUATION, "true-capacity", holding=(Holding("train.py:4 <module>", GIB),))
    assert not any("no_grad" in after for after in training)


def test_a_program_without_weights_has_no_gradients_to_do_without():
    text = "import torch\ndef product(n):\n    return torch.rand(n, n) @ torch.rand(n, n)\nproduct(8)\n"
    after = texts(text, "true-capacity", holding=(Holding("train.py:3 product", GIB),))
    assert not any("no_grad" in changed for changed in after)


COLLECTS = SOLVER.replace("    return u + 0.1", "    seen.append(u)\n    return u + 0.1")


def test_a_function_that_may_do_more_than_compute_is_measured():
    for text, is_measured in ((SOLVER, False), (CELL, False), (COLLECTS, True)):
        first, *_ = recomputed_parts(program(TOP + text + END))
        assert first.only_if_measured is is_measured


TWO_DEEP = """import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)).cuda()


def advance(u):
    return u + net(u)


def rollout(u):
    for step in range(9):
        u = advance(u)
    return u


for step in range(3):
    start = torch.rand(4, 8, device="cuda")
    end = rollout(start)
    loss = (end - start).pow(2).mean()
    loss.backward()
"""


def test_a_function_that_calls_a_module_through_another_is_part_of_the_forward_pass():
    refused = (Holding("train.py:6 advance", GIB), Holding("train.py:11 rollout", GIB))
    first, *others = texts(TWO_DEEP, "true-capacity", holding=refused)
    assert "u = checkpoint(advance, u, use_reentrant=False)" in first
    assert not any("no_grad" in after for after in others)
