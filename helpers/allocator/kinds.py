"""What is live at the peak by kind: parameters, gradients, activations and the like.

The kind follows from who asked for it and how long it stays. A mask says of each request of a trace
whether it belongs to a set.
"""

from __future__ import annotations

import numpy as np

from helpers.allocator.call_sites import LinesError, Mask, Requests
from helpers.allocator.steps import loops_of

WORKSPACES = "workspaces"
CACHED = "cached"
KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    WORKSPACES,
    "kept",
    "temporaries",
    CACHED,
)
BLAS_BYTES = ((2 * 4096 + 8 * 16) << 10, 32 << 20)
"""The workspace that torch gives to cuBLAS once and keeps: before Hopper 2 buffers of 4096 KiB and
8 of 16 KiB, from Hopper on 32 MiB (aten/src/ATen/cuda/CublasHandlePool.cpp).
"""
OPTIMIZER = ("torch/optim/", "Optimizer.step")
"""What the frames of an optimizer's code begin with."""
_MODULES = (
    "torch/nn/",
    "safetensors/",
    "transformers/",
    "accelerate/",
    "diffusers/",
    "peft/",
)
"""Where a model is built, moved to the card or loaded."""


def bytes_by_kind(requests: Requests) -> dict[str, int]:
    """Live bytes at the peak by kind. A request is of the first of these kinds that takes it:

    - workspaces: it stays to the end, has the size that cuBLAS asks for, and follows a request of
      the same stack, which was for the result of the operation;
    - optimizer state: the optimizer's code asks for it, and it stays;
    - gradients: a backward pass asks for it, and it outlives the pass or stays;
    - parameters, or buffers: the code of a model asked for it before the first step, and it stays;
    - kept: it stays, for no known purpose;
    - activations: it is there when a backward pass makes its next request;
    - temporaries: all others.
    """
    by_optimizer = _asked_in(requests, OPTIMIZER)
    by_model = asked_by_model(requests)
    before_steps = requests.at < _first_step(requests)
    # A program that ends may free everything before the trace does. So what is there at the last
    # request counts as staying to the end.
    last_request = requests.at.max(initial=0)
    stays = requests.until > last_request
    outlives_backward = _is_there_at_next(requests, ~requests.backward)
    there_in_backward = _is_there_at_next(requests, requests.backward)
    masks = {
        WORKSPACES: _workspaces(requests, stays & ~by_optimizer),
        "optimizer state": by_optimizer & stays,
        "gradients": requests.backward & (outlives_backward | stays),
        "parameters": stays & by_model & before_steps,
        "kept": stays,
        "activations": there_in_backward & ~requests.backward,
        "temporaries": np.ones(len(requests), bool),
    }
    left = requests.alive(requests.peak)
    sums = {}
    for kind, mask in masks.items():
        sums[kind] = int(requests.size[left & mask].sum())
        left = left & ~mask
    return sums


def _workspaces(requests: Requests, stays: Mask) -> Mask:
    """Which of the requests that stay (``stays``) are cuBLAS's workspaces, as a mask.

    A matrix product asks for its result first. So the request right before that for a workspace has
    the same stack, and is no workspace itself.
    """
    of_their_size = stays & np.isin(requests.size, BLAS_BYTES)
    of_same_stack = requests.stack[1:] == requests.stack[:-1]
    # The first request follows none, hence the False. Without any request the mask has only that
    # entry, one too many, and is cut below.
    follows_result: Mask = np.append(False, of_same_stack & ~of_their_size[:-1])
    return of_their_size & follows_result[: len(requests)]


def asked_by_model(requests: Requests) -> Mask:
    """Which requests the code of a model makes, or what builds, loads or moves it."""
    return _asked_in(requests, _MODULES)


def _asked_in(requests: Requests, folders: tuple[str, ...]) -> Mask:
    """Which requests have a frame in their stacks that begins with one of ``folders``."""
    return requests.with_stack(
        lambda frames: any(frame.startswith(folders) for frame in frames)
    )


def _is_there_at_next(requests: Requests, mask: Mask) -> Mask:
    """Which requests are still live when the next request of ``mask`` is made, or at the end of the
    trace where no such request follows; as a mask.
    """
    alloc_at = np.append(np.sort(requests.at[mask]), len(requests.trace))
    following = alloc_at[np.searchsorted(alloc_at, requests.at, "right")]
    return following < requests.until


def _first_step(requests: Requests) -> int:
    """The operation with which the first step begins. Where the trace shows no steps it is the
    first request of a backward pass; without one, as in inference, the end of the trace.
    """
    try:
        main_loop = loops_of(requests)[0]
        return int(main_loop.begins[0])
    except LinesError:
        in_backward = requests.at[requests.backward]
        return int(in_backward.min(initial=len(requests.trace)))
