"""What a rehearsal knows of torch's operators: which it computes along, and how.

Standard library alone.
"""

from __future__ import annotations

import re
from typing import Any

Operator = Any  # torch.ops: torch is the program's own, and not imported here
Torch = Any

# Operators whose result has a size that the device's values decide (torch's tag
# dynamic_output_shape, and those that call one).
SIZES = frozenset(
    "nonzero nonzero_out nonzero_numpy argwhere masked_select masked_select_out _unique _unique2 unique_dim unique_consecutive "
    "unique_dim_consecutive bincount one_hot repeat_interleave_Tensor repeat_interleave_self_Tensor _coalesce to_sparse "
    "_to_sparse to_sparse_sparse_dim tensor_split_tensor_indices_or_sections combinations".split()
)
# Products, convolutions and others that are left to nobody: their results are unknown.
LEFT_OUT = re.compile(
    r"(add|b|add?b|spars\w*)?(mm|mv)(_|$)|addm[mv]|baddbmm|conv|cudnn|scaled_dot|attention|_rnn|lstm|gru|grid_sampler"
    r"|linalg_|_linalg|fft|ctc_loss|_foreach|_fused|_amp_foreach|histc|native_\w*norm|embedding_bag|record_stream"
)
NAMES_OF_KIND = {
    "allocates": "lift_fresh empty new_empty empty_like empty_strided new_empty_strided resize_",
    "fills": "ones_like zeros_like full_like new_ones new_zeros new_full",
    "masks": "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put",
    "reads": "_local_scalar_dense equal _to_copy copy_ is_nonzero",
    "scatters": "masked_scatter masked_scatter_",
    "sizes": " ".join(SIZES),
}
KINDS = {name: kind for kind, names in NAMES_OF_KIND.items() for name in names.split()}


def name_of(operator: Operator) -> str:
    """The operator's name without its overload."""
    return str(operator.overloadpacket.__name__)


def kind_of(torch: Torch, operator: Operator) -> str:
    """What is done about an operator.

    views: nothing, its result lies in its input's memory or the device does all of it; allocates:
    what lies in the memory is known not to matter; exchanges: ranks send it to each other; fills:
    one value everywhere; masks: its masks are counted; reads: values go to the host or between
    devices; scatters: its mask is counted in the backward pass; sizes: values decide how large its
    result is; unknown: not computed; writes, computes: computed along, in place or not.
    """
    name = name_of(operator)
    schema = operator._schema
    if "c10d" in schema.name:
        return "exchanges"
    if name in KINDS:
        return KINDS[name]
    if getattr(torch.Tag, "dynamic_output_shape", None) in operator.tags:
        return "sizes"
    writes = any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in schema.arguments
    )
    if not writes and any(result.alias_info is not None for result in schema.returns):
        return "views"
    if LEFT_OUT.match(name) or torch.Tag.nondeterministic_seeded in operator.tags:
        return "unknown"
    return "writes" if writes else "computes"
