"""What a step does not need leaves the card: data that it reads no part of, graphs of other networks."""

import pytest

pytest.importorskip("libcst")
from test_fix import texts

from helpers.settings.trouble import SettingsTrouble

NETWORKS = """import torch
from torch.nn.functional import softplus
maker = network(64, 512).cuda()
judge = network(512, 1).cuda()
first = torch.optim.Adam(judge.parameters())
second = torch.optim.Adam(maker.parameters())
for real in loader:
    fake = maker(torch.randn(64, 64))
    loss = softplus(-judge(real)).mean() + softplus(judge(fake)).mean()
    first.zero_grad()
    loss.backward()
    first.step()
    loss = softplus(-judge(maker(torch.randn(64, 64)))).mean()
    second.zero_grad()
    loss.backward()
    second.step()
"""
TEACHER = """import torch
teacher = Teacher().cuda()
student = Student().cuda()
head = Head().cuda()
optimizer = torch.optim.Adam(student.parameters())
for x in loader:
    wanted = teacher(x)
    loss = (student(x) - wanted).pow(2).mean() + head(student(x)).mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "wanted", "count"),
    [
        (NETWORKS, "    fake = maker(torch.randn(64, 64)).detach()\n", 1),
        (TEACHER, "    wanted = teacher(x).detach()\n", 1),
    ],
)
def test_a_module_that_a_step_does_not_train_gets_no_graph(text, wanted, count):
    after = texts(text, "true-capacity")
    detached = [changed for changed in after if changed.count(".detach()") > text.count("detach()")]
    detached = [changed for changed in detached if "chunk" not in changed]
    assert len(detached) == count
    assert wanted in detached[0]


def test_a_variable_whose_name_torch_does_not_know_gets_its_name():
    line = 'os.environ["PYTORCH_CUDA_ALLOC_CONFIG"] = "expandable_segments:True"'
    trouble = SettingsTrouble(
        kind="misspelt",
        variable="PYTORCH_CUDA_ALLOC_CONFIG",
        value="expandable_segments:True",
        instead="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        why="has no effect",
        where="train.py:2",
    )
    first, *_ = texts(f"import os\n{line}\nimport torch\n", "config-ineffective", settings=trouble)
    assert first.splitlines()[1] == line.replace("CONFIG", "CONF")
