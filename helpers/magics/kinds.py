"""A value of the notebook in a few words, and the order in which names are asked what they reach.

Only types are looked at, and what torch itself counts: nothing of the person's classes is called.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

from ..allocator.under_torch.references import length_of
from ..allocator.under_torch.storages import instances_of
from .runs import COLLECTIONS

MOST_PARAMETERS = 100_000
"""Parameters of one module that are added up at most, to bound the time."""
OTHER_LIBRARIES = ("cupy", "jax", "jaxlib", "tensorflow", "numba.cuda", "cudf")
"""Packages whose arrays may be on the GPU; torch does not count them."""
TENSOR, MODULE, OPTIMIZER, COLLECTION, OTHER, VIEW = range(6)
"""Kinds of a value, in the order in which names are asked (``rank``)."""


def name_of(kind: type) -> str:
    """The name of a class, without asking a metaclass of the person's."""
    return str(type.__getattribute__(kind, "__name__"))


def rank(value: object, torch: ModuleType) -> int:
    """The place of a value in the order in which names are asked what they reach.

    A tensor is counted for its own name before a collection or module that has it too, a parameter
    for its module before the optimizer, and a storage for whatever else has it before a small view.
    """
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        if _is_small_part(value):
            return VIEW
        return TENSOR
    if issubclass(kind, torch.nn.Module):
        return MODULE
    if issubclass(kind, torch.optim.Optimizer):
        return OPTIMIZER
    if issubclass(kind, COLLECTIONS):
        return COLLECTION
    return OTHER


def described(value: object, torch: ModuleType) -> str:
    """A value in a few words: "Linear, 1,050,624 parameters", "list of 268"."""
    kind = type(value)
    order = rank(value, torch)
    if order in (TENSOR, VIEW):
        return _tensor(value)
    if order == MODULE:
        return f"{name_of(kind)}, {_count(value, torch)} parameters"
    if order == OPTIMIZER:
        return f"optimizer {name_of(kind)}"
    if order == COLLECTION:
        return f"{name_of(kind)} of {length_of(value):,}"
    if issubclass(kind, BaseException):
        return f"exception {name_of(kind)}"
    return name_of(kind)


def is_of_another_library(value: object) -> bool:
    """Whether a value is an array of a library other than torch that may be on a GPU."""
    module = type.__getattribute__(type(value), "__module__")
    is_other = isinstance(module, str) and module.startswith(OTHER_LIBRARIES)
    return is_other and hasattr(type(value), "shape")


def _tensor(tensor: Any) -> str:
    """A tensor in words: "tensor float32, 8 x 1,024"."""
    try:
        shape = "one number"
        if tensor.dim():
            shape = " x ".join(f"{size:,}" for size in tensor.shape)
        _, _, element = str(tensor.dtype).partition(".")  # torch.float32
    except Exception:  # noqa: BLE001 - a class of the person's may answer with any error
        return name_of(type(tensor))
    if _is_small_part(tensor):
        shape += ", a view that keeps a larger tensor"
    return f"tensor {element}, {shape}"


def _is_small_part(tensor: Any) -> bool:
    """Whether a tensor is a view of less than half of its storage; False for a tensor without one,
    such as a sparse one, which raises an error.
    """
    try:
        size = tensor.numel() * tensor.element_size()
        return bool(size < tensor.untyped_storage().nbytes() / 2)
    except Exception:  # noqa: BLE001 - a class of the person's may answer with any error
        return False


def lacks_model(optimizer: object, torch: ModuleType) -> bool:
    """Whether no module in this kernel has any of the parameters that an optimizer changes."""
    groups = object.__getattribute__(optimizer, "__dict__").get("param_groups", ())
    changed: set[int] = set()
    for group in groups:
        changed.update(map(id, group["params"]))
    for module in instances_of(torch.nn.Module):
        attributes = object.__getattribute__(module, "__dict__")
        parameters = attributes.get("_parameters", {}).values()
        if not changed.isdisjoint(map(id, parameters)):
            return False
    return bool(changed)  # an optimizer without parameters lacks none


def states_of_optimizers(torch: ModuleType) -> frozenset[int]:
    """The ids of the tensors that optimizers of this kernel keep for their parameters."""
    tensors: set[int] = set()
    for optimizer in instances_of(torch.optim.Optimizer):
        states = object.__getattribute__(optimizer, "__dict__").get("state", {})
        for state in dict.values(states):
            tensors.update(map(id, dict.values(state)))
    return frozenset(tensors)


def _count(module: object, torch: ModuleType) -> str:
    """The number of elements of a module's parameters."""
    parameters = torch.nn.Module.parameters(module)
    counted = itertools.islice(parameters, MOST_PARAMETERS)
    return f"{sum(parameter.numel() for parameter in counted):,}"
