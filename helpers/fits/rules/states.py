"""States of recurrent layers."""

from __future__ import annotations

from helpers.fits.sheet import Sheet, element_bytes, rule


@rule
def ssm_d_inner(s: Sheet) -> float:
    if s.given("d_inner"):
        # by its shorter name
        return s.d_inner
    if s.has("ssm_head", "ssm_heads"):
        # heads of the state times their width
        return s.ssm_heads * s.ssm_head
    # transformers configuration_mamba2.py, configuration_jamba.py: so many times the model's
    # width
    return s.ssm_expand * s.n_embd


@rule
def ssm_d_conv(s: Sheet) -> float:
    # by its shorter name
    return s.d_conv


@rule
def ssm_d_state(s: Sheet) -> float:
    # by its shorter name
    return s.d_state


@rule
def ssm_n_group(s: Sheet) -> float:
    if s.given("n_group"):
        # by its shorter name
        return s.n_group
    # one group where none is given
    return 1


@rule
def mamba_cache_mode(s: Sheet) -> str:
    if s.given("prefix_caching") and (not s.prefix_caching):
        # read: vllm/config/cache.py: none without prefix caching
        return "none"
    # read: vllm/config/cache.py; not given: the larger of none and align
    return "align"


@rule
def conv_state(s: Sheet) -> float:
    if s.given("conv_cache"):
        # read: llama.cpp src/llama-hparams.cpp, n_embd_r of a short convolution
        return s.n_embd * (s.conv_cache - 1)
    if s.given("n_embd_r"):
        # as given
        return s.n_embd_r
    if s.family == "vLLM":
        # read: vllm/model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator: a
        # column for each token drafted
        return (s.ssm_d_conv - 1 + s.num_speculative_tokens) * (
            s.ssm_d_inner + 2 * s.ssm_n_group * s.ssm_d_state
        )
    # read: llama.cpp src/llama-hparams.cpp, n_embd_r
    return (s.ssm_d_conv - 1) * (s.ssm_d_inner + 2 * s.ssm_n_group * s.ssm_d_state)


@rule
def scan_state(s: Sheet) -> float:
    if s.given("conv_cache"):
        # a convolution alone has no other state
        return 0
    if s.given("n_embd_s"):
        # as given
        return s.n_embd_s
    # read: llama.cpp src/llama-hparams.cpp, n_embd_s
    return s.ssm_d_state * s.ssm_d_inner


@rule
def scan_bytes(s: Sheet) -> float:
    if s.given("mamba_ssm_dtype"):
        # as given
        return element_bytes(s.text("mamba_ssm_dtype"))
    if s.given("mamba_ssm_cache_dtype"):
        # as given
        return element_bytes(s.text("mamba_ssm_cache_dtype"))
    # read: vllm/model_executor/layers/mamba/mamba_utils.py: float32 where the config says so, as
    # those of Qwen3.5 and Mamba2 do; --mamba-ssm-cache-dtype sets another
    return 4


@rule
def state_layer(s: Sheet) -> float:
    if s.family == "SGLang":
        # read: sglang/srt/configs/mamba_utils.py: convolutions as bf16, states as f32 or as
        # --mamba-ssm-dtype says
        return 2 * s.conv_state + s.scan_bytes * s.scan_state
    # read: llama.cpp, states are f32
    return 4 * (s.conv_state + s.scan_state)


@rule
def state_bytes(s: Sheet) -> float:
    if s.n_layer_recurrent == 0:
        s.sources["state_bytes"] = "no recurrent layers"
        return 0
    if s.family == "vLLM":
        s.sources["state_bytes"] = "states are pages of the one pool"
        return 0
    if s.family == "SGLang":
        s.sources["state_bytes"] = "records: one more than the slots"
        return (s.n_parallel + 1) * s.n_layer_recurrent * s.state_layer / s.tp
    if s.family == "llama.cpp" and s.date >= 202605:
        s.sources["state_bytes"] = (
            "read: llama.cpp src/llama-memory-recurrent.cpp, n_rows: one for each slot, "
            "whatever the context, and one for each token that is drafted at once (n_rs_seq, "
            "May 2026)"
        )
        return s.n_parallel * (1 + s.num_speculative_tokens) * s.n_layer_recurrent * s.state_layer
    s.sources["state_bytes"] = (
        "read: llama.cpp src/llama-memory-recurrent.cpp, one row for each slot, whatever "
        "the context"
    )
    return s.n_parallel * s.n_layer_recurrent * s.state_layer
