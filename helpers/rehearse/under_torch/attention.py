"""What compiled flex_attention allocates: unlike torch's own kernel for it, which a rehearsal
runs, it never holds the scores (torch/_inductor/kernel/flex/flex_attention.py, read at torch 2.14).
"""

from __future__ import annotations

import importlib

from .operators import Torch
from .result_sizes import Value


def forward(
    torch: Torch, query: Value, key: Value, value: Value, *rest: Value
) -> Value:
    """The output, and two numbers for each query; until torch 2.8 one."""
    out = torch.empty_like(query)
    if value.shape[-1] != query.shape[-1]:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    logsumexp = query.new_empty(query.shape[:-1], dtype=torch.float32)
    module = importlib.import_module("torch.nn.attention.flex_attention")
    if not hasattr(module, "AuxOutput"):
        return out, logsumexp
    max_scores = torch.empty_like(logsumexp)
    return out, logsumexp, max_scores


def backward(
    torch: Torch, query: Value, key: Value, value: Value, *rest: Value
) -> Value:
    """The gradients of query, key, value, and of what the score function captured."""
    *_, captured, _ = rest
    per_query = query.new_empty(query.shape[:-1], dtype=torch.float32)
    query_gradient = torch.empty_like(query)
    batch = query.shape[0]
    value_gradient = value.new_empty((batch, *value.shape[1:]))
    key_gradient = key.new_empty((batch, *key.shape[1:]))
    del per_query  # the kernel has read it; what follows may lie in its place
    captured_gradients = [
        torch.zeros_like(buffer) if buffer.requires_grad else None
        for buffer in captured
    ]
    return (
        query_gradient,
        key_gradient.sum_to_size(key.shape),
        value_gradient.sum_to_size(value.shape),
        tuple(captured_gradients),
    )


FUSED = {"flex_attention": forward, "flex_attention_backward": backward}
