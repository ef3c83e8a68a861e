"""Which lines of a program belong to the step that runs, up to the backward pass over what they make."""

import linecache

import pytest

from helpers.allocator.under_torch import step_sources
from helpers.allocator.under_torch.step_sources import part_of_step

UNROLLED = """\
for batch in data:
    state = start(batch)
    for _ in range(40):
        state = cell(state)
    loss = criterion(state)
    optimizer.zero_grad()
    loss.backward()
"""
SUMMED = """\
for update in range(6):
    total = 0
    for part in parts:
        total = total + part_loss(part)
    with scaling:
        accelerator.backward(total)
"""
COLLECTED = """\
def training_step(batch):
    losses = []
    for part in batch:
        losses.append(model(part))
    for loss in losses:
        loss.backward()
"""
EVALUATED = """\
for epoch in range(9):
    outputs = []
    for x in validation:
        outputs.append(model(x))
    for x in training:
        loss = model(x)
        loss.backward()
"""
BETWEEN = """\
for batch in data:
    if is_time():
        loss = evaluate(model)
    loss = model(batch)
    loss.backward()
"""


INNER_STEPS = """\
for task in tasks:
    fast = weights
    for _ in range(5):
        loss = inner(task, fast)
        gradients = torch.autograd.grad(loss, fast, create_graph=True)
        fast = updated(fast, gradients)
    meta = outer(task, fast)
    meta.backward()
"""


def test_steps_whose_graph_another_backward_pass_goes_through_are_parts_of_its_step():
    part = part_of_step(INNER_STEPS, 4)
    assert (part.backward, part.loops) == (8, (3, 4, 5, 6))
    assert part_of_step(UNROLLED, 4).loops == (3, 4)
    single = UNROLLED.replace(
        "    for _ in range(40):\n        state", "    if batch:\n        state"
    )
    assert part_of_step(single, 4).loops == ()


@pytest.mark.parametrize(
    ("source", "line", "backward", "lines"),
    [
        (UNROLLED, 4, 7, {2, 3, 4, 5, 7}),
        (UNROLLED, 7, 7, {2, 3, 4, 5, 7}),
        (SUMMED, 4, 6, {2, 3, 4, 6}),
        ("for x in data:\n    objective(x).backward()\n", 2, 2, {2}),
    ],
    ids=["unrolled", "in its backward pass", "summed", "in one line"],
)
def test_what_a_backward_pass_goes_through_belongs_to_its_step(source, line, backward, lines):
    part = part_of_step(source, line)
    assert part is not None
    assert (part.backward, set(part.lines)) == (backward, lines)


@pytest.mark.parametrize(
    ("source", "line"),
    [(UNROLLED, 6), (EVALUATED, 4), (BETWEEN, 3), ("for x in data:\n    y = f(x)\n", 2), ("if", 1)],
    ids=["beside it", "a loop before the training", "another loss", "no backward", "no Python"],
)
def test_what_no_backward_pass_goes_through_belongs_to_no_step(source, line):
    assert part_of_step(source, line) is None


def test_the_functions_that_run_are_looked_at_from_the_innermost_outwards(tmp_path, monkeypatch):
    looked_at = []

    def rollout(state):
        looked_at.append(step_sources.running_part_of_step())
        return state

    path = tmp_path / "train.py"
    path.write_text(UNROLLED)
    source = compile(UNROLLED, str(path), "exec")

    class Loss:
        def backward(self):
            pass

    variables = {
        "data": [1],
        "start": lambda batch: batch,
        "cell": rollout,
        "criterion": lambda state: Loss(),
        "optimizer": type("Optimizer", (), {"zero_grad": lambda self: None})(),
    }
    exec(source, variables)
    linecache.clearcache()
    assert looked_at[0]["backward"] == "train.py:7 <module>"
    assert "train.py:4 <module>" in looked_at[0]["lines"]


def test_what_a_trainer_of_a_library_calls_belongs_to_its_step(tmp_path, monkeypatch):
    trainer = tmp_path / "site-packages" / "trainer.py"
    trainer.parent.mkdir()
    trainer.write_text(
        "def training_step(compute_loss):\n    loss = compute_loss()\n    loss.backward()\n"
    )
    monkeypatch.syspath_prepend(trainer.parent)
    looked_at = []

    def compute_loss():
        looked_at.append(step_sources.running_part_of_step())
        return type("Loss", (), {"backward": lambda self: None})()

    __import__("trainer").training_step(compute_loss)
    line = compute_loss.__code__.co_firstlineno + 1
    assert looked_at[0]["backward"] == "trainer.py:3 training_step"
    assert f"test_step_sources.py:{line} compute_loss" in looked_at[0]["lines"]
