"""A checkpoint is loaded to the CPU where it holds memory as the program runs out."""

from test_fix import proposed

from helpers.judge.program_facts import Holding, Refusal

RESUMED = """import torch

def resumed(path):
    return torch.load(path)

model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(1 << 30, 8, device="cuda")).sum().backward()
"""
LOADED = "Load the checkpoint to the CPU (train.py:4)"
REFUSED = Refusal(1 << 30, device_free_bytes=0, allocated_bytes=1 << 31, reserved_bytes=1 << 31)


def titles(line, refusal):
    """The changes of that program where a line holds most of the memory."""
    held = (Holding(line, 1 << 30),)
    changes = proposed(RESUMED, "true-capacity", holding=held, refusal=refusal)
    return [change.title for change, _ in changes]


def test_a_load_that_holds_memory_goes_to_the_cpu():
    assert LOADED in titles("train.py:4 resumed", REFUSED)


def test_a_load_that_holds_nothing_is_left_alone():
    others = titles("train.py:7 <module>", REFUSED)
    assert others and LOADED not in others


def test_what_processes_that_fill_a_card_together_load_goes_to_the_cpu():
    assert LOADED in titles("train.py:7 <module>", None)
