"""Batches and evaluations in parts, and what is left as it is."""

import re

import pytest

pytest.importorskip("libcst")
from test_fix import GIB, keeper, program, proposed, texts

from helpers.fix.batches import evaluation_in_chunks
from helpers.fix.change import Results
from helpers.fix.regions import fails_in_step
from helpers.judge.program_facts import Holding, Refusal

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


TRAINER = """import lightning
model = Model()
trainer = lightning.Trainer(max_steps=10)
trainer.fit(model)
"""


@pytest.mark.parametrize("trained_bytes", [3 * GIB, 0])
def test_a_trainer_whose_optimizer_found_no_room_is_given_no_smaller_forward_pass(trained_bytes):
    refused = Refusal(GIB, 0, 7 * GIB, 8 * GIB, "train.py:4 <module>", of_optimizer=True)
    holding = (Holding("train.py:4 <module>", 7 * GIB),)
    own = program(
        TRAINER,
        refusal=refused,
        holding=holding,
        asked_before_forward_bytes=4 * GIB,
        trained_bytes=trained_bytes,
        usable_bytes=8 * GIB,
    )
    assert fails_in_step(own) is (trained_bytes > 0)


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


def test_a_model_called_inside_an_expression_of_an_evaluation_gets_its_batch_in_parts():
    refused = refused_at("train.py:5 accuracy", "train.py:6 <module>")
    after = texts(ACCURACY, "true-capacity", **refused)
    parts = "(torch.cat([net(part) for part in x.chunk(2)]).argmax(1) == y)"
    assert any(re.sub(r"chunk\(\d+\)", "chunk(2)", text).count(parts) for text in after)


NAMED = """import torch

model = torch.nn.Embedding(64, 64).cuda()
with torch.no_grad():
    for ids in batches:
        out = model(ids=ids)
"""


def test_a_batch_that_is_handed_on_by_name_keeps_that_name():
    after = texts(NAMED, "true-capacity", **refused_at("train.py:6 <module>"))
    in_parts = "out = torch.cat([model(ids=ids_part) for ids_part in ids.chunk(4)])"
    assert any(in_parts in text for text in after)


def test_what_needs_more_parts_than_are_ever_tried_is_left_as_it_is():
    refused = refused_at("train.py:8 evaluate", "train.py:13 <module>")
    assert list(evaluation_in_chunks(program(EVALUATION, **refused)))
    seventy_times_too_large = program(EVALUATION, usable_bytes=3 * GIB // 70, **refused)
    assert not list(evaluation_in_chunks(seventy_times_too_large))
