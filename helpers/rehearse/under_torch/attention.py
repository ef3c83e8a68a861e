"""What compiled flex_attention allocates. A rehearsal without a compiler would run torch's
uncompiled kernel, which holds the scores; the compiled one never does (torch/_inductor/kernel/flex/
flex_attention.py, read at torch 2.14).
"""

from __future__ import annotations

import importlib

from .operators import Torch
from .result_sizes import Value


def forward(
    torch: Torch, query: Value, key: Value, value: Value, *rest: Value
) -> Value:
    """The results of the operator flex_attention: the output, and for each query the logarithm of
    its sum and, since torch 2.9 (which has AuxOutput), its highest score.
    """
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
    """The results of flex_attention_backward: the gradients of query, key and value, and of the
    buffers that the score function captured, which are the last but one of the arguments.
    """
    *_, captured, _ = rest
    per_query = query.new_empty(query.shape[:-1], dtype=torch.float32)
    query_gradient = torch.empty_like(query)
    batch = query.shape[0]
    value_gradient = value.new_empty((batch, *value.shape[1:]))
    key_gradient = key.new_empty((batch, *key.shape[1:]))
    del per_query  # the kernel has read it; what follows may lie in its place
    captured_gradients = []
    for buffer in captured:
        gradient = None
        if buffer.requires_grad:
            gradient = torch.zeros_like(buffer)
        captured_gradients.append(gradient)
    return (
        query_gradient,
        key_gradient.sum_to_size(key.shape),
        value_gradient.sum_to_size(value.shape),
        tuple(captured_gradients),
    )


FUSED = {"flex_attention": forward, "flex_attention_backward": backward}
"""By the name of an operator, what allocates as its compiled kernel does."""
