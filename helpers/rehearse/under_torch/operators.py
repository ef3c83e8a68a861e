"""What a rehearsal does about each of torch's operators (kind_of). Standard library alone."""

from __future__ import annotations

import re
from typing import Any

Operator = Any  # one of torch.ops: torch is the program's own, and not imported here
Torch = Any  # the module torch

SIZES = frozenset(
    "nonzero nonzero_out nonzero_numpy argwhere masked_select masked_select_out _unique _unique2 unique_dim unique_consecutive "
    "unique_dim_consecutive bincount one_hot repeat_interleave_Tensor repeat_interleave_self_Tensor _coalesce to_sparse "
    "_to_sparse to_sparse_sparse_dim tensor_split_tensor_indices_or_sections combinations".split()
)
"""Operators whose result has a size that the values on the card decide: those with torch's tag
dynamic_output_shape (native_functions.yaml), and those that call one of them.
"""
LEFT_OUT = re.compile(
    r"(add|b|add?b|spars\w*)?(mm|mv)(_|$)|addm[mv]|baddbmm|conv|cudnn|scaled_dot|attention|_rnn|lstm|gru|grid_sampler"
    r"|linalg_|_linalg|fft|ctc_loss|_foreach|_fused|_amp_foreach|histc|native_\w*norm|embedding_bag|record_stream"
)
"""Operators that are not computed along, which is our choice by their kinds: matrix products,
convolutions, recurrent layers and solvers may take long on a CPU; optimizers seldom have only small
tensors; record_stream computes nothing.
"""
NAMES_OF_KIND = {
    "allocates": "lift_fresh empty new_empty empty_like empty_strided new_empty_strided resize_",
    "fills": "ones_like zeros_like full_like new_ones new_zeros new_full",
    "masks": "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put",
    "reads": "_local_scalar_dense equal _to_copy copy_ is_nonzero",
    "scatters": "masked_scatter masked_scatter_",
    "sizes": " ".join(SIZES),
}
"""By the kind of an operator (kind_of), the names of those that no other sign shows."""
KINDS: dict[str, str] = {}
"""The kind by the name of an operator."""
for _kind, _names in NAMES_OF_KIND.items():
    KINDS.update(dict.fromkeys(_names.split(), _kind))


def name_of(operator: Operator) -> str:
    """The operator's name without its overload."""
    return str(operator.overloadpacket.__name__)


def kind_of(torch: Torch, operator: Operator) -> str:
    """What an operator does, by which a rehearsal treats it:

    views: its result is in its input's memory, so there is nothing to compute; allocates: it leaves
    its result as the memory was; exchanges: ranks send it to each other; fills: its result is one
    value everywhere; masks: it selects by masks, whose true elements are counted; reads: values go
    to the host or between devices; scatters: the true elements of its mask are counted in a
    backward pass; sizes: values decide how large its result is; writes, computes: a result in
    place, or a new one; unknown: the same, but not computed along.
    """
    name = name_of(operator)
    schema = operator._schema
    if "c10d" in schema.name:
        return "exchanges"
    if name in KINDS:
        return KINDS[name]
    if getattr(torch.Tag, "dynamic_output_shape", None) in operator.tags:
        return "sizes"
    aliases = [argument.alias_info for argument in schema.arguments]
    writes = any(alias is not None and alias.is_write for alias in aliases)
    if not writes and any(result.alias_info is not None for result in schema.returns):
        return "views"
    is_random = torch.Tag.nondeterministic_seeded in operator.tags
    if LEFT_OUT.match(name) or is_random:
        return "unknown"
    if writes:
        return "writes"
    return "computes"
