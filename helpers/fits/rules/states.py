"""The states that recurrent layers (Mamba, short convolutions) keep in place of a cache.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.sheet import Sheet, element_bytes, rule


@rule
def ssm_d_inner(s: Sheet) -> float:
    """The inner width of a recurrent layer."""
    if s.has("ssm_head", "ssm_heads"):
        # where the header names both: heads of the state times their width
        return s.ssm_heads * s.ssm_head
    # transformers configuration_mamba2.py, configuration_jamba.py: the model's width, expanded
    return s.ssm_expand * s.n_embd


@rule
def mamba_cache_mode(s: Sheet) -> str:
    """How vLLM keeps the states of a request: none, align or all."""
    # read: vllm/model_executor/models/config.py: none without prefix caching; with it all for a
    # model that supports this, else align. Which models do is not known here: align is taken.
    if s.prefix_caching:
        return "align"
    return "none"


@rule
def conv_state(s: Sheet) -> float:
    """How many numbers the convolution of a recurrent layer keeps for a request."""
    # A convolution over n tokens keeps n - 1 of them.
    if "conv_cache" in s.inputs:
        # read: llama.cpp src/llama-hparams.cpp, n_embd_r of a short convolution
        return s.n_embd * (s.conv_cache - 1)
    # read: llama.cpp src/llama-hparams.cpp, n_embd_r of Mamba and its kin: the convolution is as
    # wide as the inner width and two states of each group
    columns = s.ssm_d_conv - 1
    if s.is_vllm:
        # read: vllm/model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator: a
        # column for each token drafted
        columns += s.num_speculative_tokens
    return columns * (s.ssm_d_inner + 2 * s.ssm_n_group * s.ssm_d_state)


@rule
def state_layer(s: Sheet) -> float:
    """Bytes that a recurrent layer keeps for a request."""
    convolution = s.conv_state
    # read: llama.cpp src/llama-hparams.cpp, n_embd_s; a short convolution has no other state
    scan_state = 0.0
    if "conv_cache" not in s.inputs:
        scan_state = s.ssm_d_state * s.ssm_d_inner
    if s.is_pooled:
        # read: sglang/srt/configs/mamba_utils.py, vllm/model_executor/layers/mamba/mamba_utils.py:
        # convolutions as bf16, states as float32 or as --mamba-ssm-dtype,
        # --mamba-ssm-cache-dtype or the config say
        return 2 * convolution + element_bytes(s.text("mamba_ssm_dtype")) * scan_state
    # read: llama.cpp, states are f32
    return 4 * (convolution + scan_state)


@rule
def state_bytes(s: Sheet) -> float:
    """Bytes of the states of all requests at once, for servers that keep them beside the cache."""
    if s.n_layer_recurrent == 0:
        s.cite("no recurrent layers")
        return 0
    if s.is_vllm:
        s.cite("states are pages of the one pool")
        return 0
    states = s.n_layer_recurrent * s.state_layer
    if s.is_sglang:
        s.cite("records: one more than the slots")
        return (s.n_parallel + 1) * states / s.tp
    if s.is_llama_cpp and s.date >= 202605:
        s.cite(
            "read: llama.cpp src/llama-memory-recurrent.cpp, n_rows: one for each slot, "
            "whatever the context, and one for each token that is drafted at once (n_rs_seq, "
            "May 2026)"
        )
        return s.n_parallel * (1 + s.num_speculative_tokens) * states
    s.cite(
        "read: llama.cpp src/llama-memory-recurrent.cpp, one row for each slot, whatever "
        "the context"
    )
    return s.n_parallel * states
