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


HESSIAN = """import torch


def trace(model, x, y):
    params = [p for p in model.parameters() if p.requires_grad]
    loss = criterion(model(x), y)
    loss.backward(create_graph=True)
    grads = [p.grad for p in params]
    products = torch.autograd.grad(grads, params, grad_outputs=random_like(params))
    return sum(h.sum() for h in products).item()
"""


def test_a_list_of_gradients_is_computed_where_it_is_needed():
    kept = [keeper("train.py:7 trace", "")]
    changes = [after for after in texts(HESSIAN, "user-leak", kept) if ".backward(" not in after]
    assert len(changes) == 1
    line = "grads = list(torch.autograd.grad(loss, params, create_graph=True))"
    assert f"    loss = criterion(model(x), y)\n    {line}\n    products" in changes[0]
