"""Whether gradient checkpointing was switched on and had no effect when the memory ran out.

A model of transformers recomputes its layers only while ``module.training`` is True
(transformers/modeling_layers.py, GradientCheckpointingLayer.__call__, since 4.53; in the forward
of each model before). After ``model.eval()`` it keeps every activation and says nothing.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING

from .own_files import only_line
from .storages import instances_of

if TYPE_CHECKING:
    from torch.nn import Module

EVALUATION = re.compile(r"\.(?:eval\(\)|train\(False\)|train\(mode=False\))")


def idle_checkpointing(torch: ModuleType) -> dict[str, str]:
    """The model whose checkpointing is on and has no effect, and the line that may be the reason.

    ``model``: the name of the model's class. ``where``: the one line of the program that switches
    to evaluation, "" where there are none or several.

    Returns an empty dictionary where checkpointing works, because a model that has it on is in
    training mode; and where it could save nothing: gradients are not recorded now, no model has it
    on, or all parameters of the model are frozen.
    """
    if not _gradients_are_recorded(torch):
        return {}
    modules = instances_of(torch.nn.Module)
    checkpointed = [module for module in modules if _has_checkpointing(module)]
    if not checkpointed or any(module.training for module in checkpointed):
        return {}
    # The one with most modules is the model itself: its parts have the switch, too.
    model = max(checkpointed, key=lambda module: len(list(module.modules())))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return {}
    return {"model": type(model).__name__, "where": only_line(EVALUATION)}


def _gradients_are_recorded(torch: ModuleType) -> bool:
    """Whether a forward pass that records a graph runs now, or a backward pass."""
    if torch.is_grad_enabled():
        return True
    # A backward pass runs with gradients off. Since torch 2.0; -1 where no backward pass runs.
    graph_task_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    return bool(graph_task_id() >= 0)


def _has_checkpointing(module: Module) -> bool:
    """Whether a model of transformers has checkpointing on. Other libraries have a switch of this
    name, too, but theirs works outside of training mode.
    """
    is_on = vars(module).get("gradient_checkpointing") is True
    return is_on and any(
        base.__module__.startswith("transformers.") for base in type(module).__mro__
    )
