"""The storages of this process's tensors, and which of them objects of Python refer to."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, device


class Storage(NamedTuple):
    """A tensor with the address and the bytes of its storage on the device; ``has_graph``: it
    carries a graph of autograd.
    """

    tensor: Tensor
    address: int
    bytes: int
    has_graph: bool


def storages_of(torch: ModuleType, *devices: str) -> dict[int, Storage]:
    """The storages of all tensors on some kinds of device, by the id of the tensor."""
    storages = {}
    for tensor in _tensors(torch):
        storage = storage_of(tensor, devices)
        if storage is not None:
            storages[id(tensor)] = storage
    return storages


def storage_of(tensor: Tensor, devices: Sequence[str]) -> Storage | None:
    """The storage of a tensor; None where it is on no device of these kinds, such as "cuda", or has
    no storage of its own.
    """
    try:
        storage = tensor.untyped_storage()
        # A fake tensor says "cuda", but its storage is on "meta" and has no bytes.
        if _kind_of(storage.device) not in devices:
            return None
        return Storage(
            tensor=tensor,
            address=storage.data_ptr(),
            bytes=storage.nbytes(),
            has_graph=not tensor.is_leaf,
        )
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # a wrapper without a storage of its own; what it wraps is a tensor too


@functools.cache
def _kind_of(where: device) -> str:
    """The kind of a device, "cuda" of "cuda:0"; cached, since torch makes a new text each time."""
    return where.type


def _tensors(torch: ModuleType) -> Iterator[Tensor]:
    """All tensors that Python knows, and the gradients of leaves: Python has no object for a
    gradient until .grad is asked for. (To ask another tensor than a leaf for it makes torch warn.)
    """
    for tensor in instances_of(torch.Tensor):
        yield tensor
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad


def instances_of(kind: type) -> Iterator[Any]:
    """All objects of a class that Python's collector knows. It asks type(), because isinstance
    would call a property __class__ of the program's objects.
    """
    for candidate in gc.get_objects():
        if issubclass(type(candidate), kind):
            yield candidate


def referred_to(storages: list[Storage]) -> dict[int, int]:
    """Those of ``storages`` to whose tensors some object of Python refers, as bytes by address. The
    others are kept by nothing but a graph of autograd.
    """
    # gc.get_referrers compares each object with each tensor: minutes for 100,000 of them.
    # A Storage refers to its tensor, too, but is ours.
    referrers = [
        referrer for referrer in gc.get_objects() if type(referrer) is not Storage
    ]
    tensors = {id(storage.tensor) for storage in storages}
    with_referrer = tensors.intersection(map(id, gc.get_referents(*referrers)))
    return {
        storage.address: storage.bytes
        for storage in storages
        if id(storage.tensor) in with_referrer
    }
