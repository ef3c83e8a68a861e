"""What no step trains gets no graph, and a setting gets the name that torch knows."""

import pytest

pytest.importorskip("libcst")
from test_fix import proposed, texts

from helpers.settings.trouble import SettingsTrouble

TEACHER = """import torch


class Teacher(torch.nn.Module):
    pass


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


@pytest.mark.parametrize("pass_through", ["teacher(x)", "encode(teacher, x)"])
def test_what_no_optimizer_trains_is_computed_without_gradients(pass_through):
    text = TEACHER.replace("teacher(x)", pass_through)
    changes = proposed(text, "true-capacity")
    wanted = f"    with torch.no_grad():\n        wanted = {pass_through}\n    loss"
    (change,) = [change for change, after in changes if wanted in after]
    assert change.only_if_measured
    trained = text.replace("student.parameters()", "[*student.parameters(), *teacher.parameters()]")
    assert not [after for after in texts(trained, "true-capacity") if "no_grad" in after]


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
