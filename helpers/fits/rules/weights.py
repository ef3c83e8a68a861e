"""Weights: as a file or a log gives them, else by the dimensions."""

from __future__ import annotations

from helpers.fits.sheet import Missing, Sheet, rule

EIGHT_BITS = ("fp8", "fbgemm_fp8", "modelopt", "eetq", "quark")
"""Quantisations whose config names no bits: vllm/model_executor/layers/quantization/fp8.py."""
FOUR_BIT_GROUPS = {"mxfp4": 32, "nvfp4": 16}
"""Weights that share a scale of 8 bits: OCP MX specification."""


@rule
def weights(s: Sheet) -> float:
    if s.given("weights_bytes"):
        s.cite("as given")
        return s.weights_bytes
    if s.given("host_bytes") and s.is_ggml:
        s.cite(
            "tensors of the model's header; the table of tokens stays with the host (read: "
            "llama.cpp src/llama-model.cpp, load_tensors: the input layer)"
        )
        return s.model_bytes - s.host_bytes
    s.cite("tensors of the model's header")
    return s.model_bytes / (s.tp * s.pp if s.is_pooled else 1)


@rule
def model_bytes(s: Sheet) -> float:
    if not s.given("parameters_wide"):
        raise Missing("model_bytes")
    size = int(2 * (s.parameters - s.matrices) + s.matrices * s.weight_bits / 8)
    if s.vision_parts > 0:
        return s.unbounded(
            size,
            size,
            "the vision part: no weights lie beside the config; the rest by its dimensions, "
            "to a few percent",
        )
    s.cite("by the dimensions, to a few percent: no weights lie beside the config")
    return size


@rule
def attention_layer(s: Sheet) -> float:
    if s.given("kv_lora_rank"):
        # transformers modeling_deepseek_v3.py
        query = s.n_embd * s.n_head * (s.n_nope + s.n_rot)
        if s.given("q_lora_rank"):
            query = s.q_lora_rank * (s.n_embd + s.n_head * (s.n_nope + s.n_rot))
        latent = s.n_embd * (s.kv_lora_rank + s.n_rot)
        values = s.kv_lora_rank * (s.n_nope + s.n_value) + s.n_value * s.n_embd
        return query + latent + s.n_head * values
    # query, key, value and output; transformers modeling_qwen3_next.py: and a gate as wide as the
    # query
    queries = 3 if s.given("interval") else 2
    keys_and_values = s.n_head_kv * (s.head_dim_k + s.head_dim_v)
    return s.n_embd * (queries * s.n_head * s.head_dim_k + keys_and_values)


@rule
def recurrent_layer(s: Sheet) -> float:
    if s.given("conv_cache"):
        # transformers modeling_lfm2.py: three projections in and one out
        return 4 * s.n_embd**2
    # transformers modeling_mamba2.py and modeling_qwen3_next.py: projections in and out
    return s.n_embd * (3 * s.ssm_d_inner + 2 * s.ssm_n_group * s.ssm_d_state)


@rule
def n_dense(s: Sheet) -> float:
    # transformers configuration_jamba.py, configuration_llama4.py: experts in each so many layers
    return s.n_layer - s.n_layer // s.moe_step


@rule
def n_expert_shared(s: Sheet) -> float:
    # transformers modeling_llama4.py: one shared expert
    return s.given("n_ff_mlp")


@rule
def n_ff(s: Sheet) -> float:
    if s.n_layer_recurrent == s.n_layer:
        # transformers modeling_mamba2.py: a state alone has no feed-forward
        return 0
    # transformers' default
    return 4 * s.n_embd


@rule
def n_layer_attention(s: Sheet) -> float:
    if s.given("n_layer_ff"):
        # a layer is attention, a state or a feed-forward
        return s.n_layer_kv + s.n_layer_swa
    # attention in each layer that has no state, or beside it
    return max(s.n_layer - s.n_layer_recurrent, s.n_layer_kv + s.n_layer_swa)


@rule
def matrices(s: Sheet) -> float:
    # what a quantisation makes smaller
    count = 0.0
    if s.n_layer_attention:
        count += s.n_layer_attention * s.attention_layer
    if s.n_layer_recurrent:
        count += s.n_layer_recurrent * s.recurrent_layer
    # a plain feed-forward is up and down; others have a gate beside them
    is_plain = s.text("act") in ("gelu", "relu", "gelu_new", "relu2")
    row = (2 if is_plain else 3) * s.n_embd
    # a feed-forward in each layer, where the header counts none of its own
    fed = s.n_layer_ff if s.given("n_layer_ff") else s.n_layer
    if s.n_expert <= 1:
        return count + fed * row * s.n_ff
    experts = s.n_ff_expert * (s.n_expert + s.n_expert_shared) + s.n_ff_shared
    router = s.n_embd * s.n_expert
    dense = min(s.n_dense, fed)
    return count + dense * row * s.n_ff + (fed - dense) * (row * experts + router)


@rule
def parameters(s: Sheet) -> float:
    # matrices, embeddings and norms
    return s.matrices + s.n_vocab * s.n_embd * (1 if s.tied else 2) + (2 * s.n_layer + 1) * s.n_embd


@rule
def weight_bits(s: Sheet) -> float:
    if not s.given("quant"):
        return 16
    kind = s.text("quant")
    if kind in FOUR_BIT_GROUPS:
        return 4 + 8 / FOUR_BIT_GROUPS[kind]
    if kind in EIGHT_BITS and not s.given("quant_bits"):
        return 8
    if kind == "bitsandbytes" or s.quant_bits >= 8:
        # transformers utils/quantization_config.py
        return s.quant_bits
    # GPTQ and AWQ: a scale of 16 bits and a zero of 4 for a group
    return s.quant_bits + 20 / s.quant_group


@rule
def in_weights(s: Sheet) -> float:
    if s.family == "ollama" and s.date < 202504 and s.given("weights_bytes"):
        # read: ollama llm/memory.go before 0.6.3: memory.weights.total counts the cache too
        return s.kv_bytes * s.n_ctx_asked / s.n_ctx
    return 0


@rule
def output_bytes(s: Sheet) -> float:
    if s.in_weights:
        # not given; the output is not in memory.weights.total before 0.6.3
        return s.either(0, 1, 2) * s.weights / s.n_layer
    # not given: about a layer
    return s.either(0, 1, 4) * s.weights / (s.n_layer + 1)
