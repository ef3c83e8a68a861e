"""Gradients with graphs of their own: a tensor and its gradient no longer keep each other."""

import pytest

pytest.importorskip("libcst")
from test_fix import keeper, proposed, texts

FORCES = """import torch


def energy_and_forces(model, {atoms}):
    energy = model({atoms})
    energy.sum().backward({how})
    return energy, -{atoms}.grad


for atoms in batches:
    energy, forces = energy_and_forces(model, atoms)
"""
KEPT = [keeper("train.py:5 energy_and_forces", "energy")]


def test_a_gradient_that_is_read_where_it_was_computed_is_kept_by_no_tensor():
    text = FORCES.format(atoms="atoms", how="create_graph=True")
    change, after = proposed(text, "user-leak", KEPT)[0]
    line = "(atoms_grad,) = torch.autograd.grad(energy.sum(), [atoms], create_graph=True)"
    assert f"    {line}\n    return energy, -atoms_grad\n" in after
    assert change.only_if_measured


def test_the_gradient_of_an_attribute_gets_a_name_of_its_own():
    text = FORCES.format(atoms="atoms", how="create_graph=True")
    text = text.replace("-atoms.grad", "-atoms.pos.grad")
    after = texts(text, "user-leak", KEPT)[0]
    assert "(atoms_pos_grad,) = torch.autograd.grad(energy.sum(), [atoms.pos], " in after


def test_a_backward_pass_without_graphs_of_its_gradients_stays():
    changed = texts(FORCES.format(atoms="atoms", how=""), "user-leak", KEPT)
    assert not [after for after in changed if "autograd.grad" in after]
