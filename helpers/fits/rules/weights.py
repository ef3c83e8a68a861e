"""Weights: as a file or a log gives them, else by the dimensions."""

from __future__ import annotations

from helpers.fits.sheet import HIGH, Missing, Sheet, rule


@rule
def weights(s: Sheet) -> float:
    if s.given("weights_bytes"):
        s.sources["weights"] = "as given"
        return s.weights_bytes
    if s.given("host_bytes") and s.family in ("llama.cpp", "ollama"):
        s.sources["weights"] = (
            "tensors of the model's header; the table of tokens stays with the host (read: "
            "llama.cpp src/llama-model.cpp, load_tensors: the input layer)"
        )
        return s.model_bytes - s.host_bytes
    s.sources["weights"] = "tensors of the model's header"
    if s.family in ("vLLM", "SGLang"):
        return s.model_bytes / (s.tp * s.pp)
    return s.model_bytes


@rule
def model_bytes(s: Sheet) -> float:
    if s.given("parameters_wide") and s.given("vision_parts") and (s.vision_parts > 0):
        s.sources["model_bytes"] = (
            "the vision part: no weights lie beside the config; the rest by its dimensions, "
            "to a few percent"
        )
        if s.end == HIGH:
            raise Missing("model_bytes", s.sources["model_bytes"])
        return int(2 * (s.parameters - s.matrices) + s.matrices * s.weight_bits / 8)
    if s.given("parameters_wide"):
        s.sources["model_bytes"] = (
            "by the dimensions, to a few percent: no weights lie beside the config"
        )
        return int(2 * (s.parameters - s.matrices) + s.matrices * s.weight_bits / 8)
    raise Missing("model_bytes")


@rule
def parameters_wide(s: Sheet) -> float:
    return s.n_embd


@rule
def query_in(s: Sheet) -> float:
    if s.given("q_lora_rank"):
        # transformers modeling_deepseek_v3.py
        return s.q_lora_rank * (s.n_embd + s.n_head * (s.n_nope + s.n_rot))
    # as above
    return s.n_embd * s.n_head * (s.n_nope + s.n_rot)


@rule
def attention_layer(s: Sheet) -> float:
    if s.given("kv_lora_rank"):
        # transformers modeling_deepseek_v3.py
        return (
            s.query_in
            + s.n_embd * (s.kv_lora_rank + s.n_rot)
            + s.n_head * (s.kv_lora_rank * (s.n_nope + s.n_value) + s.n_value * s.n_embd)
        )
    # query, key, value and output; transformers modeling_qwen3_next.py: and a gate as wide as the
    # query
    return s.n_embd * (
        (3 if s.given("interval") else 2) * s.n_head * s.head_dim_k
        + s.n_head_kv * (s.head_dim_k + s.head_dim_v)
    )


@rule
def n_value(s: Sheet) -> float:
    return s.n_nope


@rule
def n_dense(s: Sheet) -> float:
    if s.given("moe_step") and s.moe_step > 1:
        # transformers configuration_jamba.py, configuration_llama4.py: experts in each so many
        # layers
        return s.n_layer - s.n_layer // s.moe_step
    # no dense layers first
    return 0


@rule
def n_expert_shared(s: Sheet) -> float:
    if s.given("n_ff_mlp"):
        # transformers modeling_llama4.py: one shared expert
        return 1
    return 0


@rule
def n_ff(s: Sheet) -> float:
    if s.n_layer_recurrent == s.n_layer:
        # transformers modeling_mamba2.py: a state alone has no feed-forward
        return 0
    # transformers' default
    return 4 * s.n_embd


@rule
def n_ff_expert(s: Sheet) -> float:
    return s.n_ff


@rule
def gates(s: Sheet) -> float:
    if s.given("act") and s.text("act") in ("gelu", "relu", "gelu_new", "relu2"):
        # up and down
        return 2
    # gate, up and down
    return 3


@rule
def recurrent_layer(s: Sheet) -> float:
    if s.given("conv_cache"):
        # transformers modeling_lfm2.py: three projections in and one out
        return 4 * s.n_embd**2
    # transformers modeling_mamba2.py and modeling_qwen3_next.py: projections in and out
    return s.n_embd * (3 * s.ssm_d_inner + 2 * s.ssm_n_group * s.ssm_d_state)


@rule
def expert_layer(s: Sheet) -> float:
    # experts, shared experts and their router
    return (
        s.gates * s.n_embd * (s.n_ff_expert * (s.n_expert + s.n_expert_shared) + s.n_ff_shared)
        + s.n_embd * s.n_expert
    )


@rule
def dense_layer(s: Sheet) -> float:
    # the feed-forward layer
    return s.gates * s.n_embd * s.n_ff


@rule
def n_layer_attention(s: Sheet) -> float:
    if s.given("n_layer_ff"):
        # a layer is attention, a state or a feed-forward
        return s.n_layer_kv + s.n_layer_swa
    # attention in each layer that has no state, or beside it
    return max(s.n_layer - s.n_layer_recurrent, s.n_layer_kv + s.n_layer_swa)


@rule
def fed(s: Sheet) -> float:
    if s.given("n_layer_ff"):
        # as n_layer_attention
        return s.n_layer_ff
    # a feed-forward in each layer
    return s.n_layer


@rule
def matrices(s: Sheet) -> float:
    # what a quantisation makes smaller
    count = 0.0
    if s.n_layer_attention:
        count += s.n_layer_attention * s.attention_layer
    if s.n_layer_recurrent:
        count += s.n_layer_recurrent * s.recurrent_layer
    count += (s.n_layer_cross - s.layers_cross_only) * s.attention_layer
    count += s.n_layer_encoder * (s.attention_layer + s.dense_layer)
    if s.n_expert <= 1:
        return count + s.fed * s.dense_layer
    dense = min(s.n_dense, s.fed)
    return count + dense * s.dense_layer + (s.fed - dense) * s.expert_layer


@rule
def parameters(s: Sheet) -> float:
    # matrices, embeddings and norms
    return s.matrices + s.n_vocab * s.n_embd * (1 if s.tied else 2) + (2 * s.n_layer + 1) * s.n_embd


@rule
def quant_group(s: Sheet) -> float:
    # OCP MX specification; the default of AutoGPTQ and AutoAWQ
    return {"mxfp4": 32, "nvfp4": 16}.get(s.text("quant"), 128)


@rule
def weight_bits(s: Sheet) -> float:
    if not s.given("quant"):
        # 16 bits each
        return 16
    if s.text("quant") in ("mxfp4", "nvfp4"):
        # 4 bits and a scale of 8 for a group
        return 4 + 8 / s.quant_group
    if s.text("quant") in ("fp8", "fbgemm_fp8", "modelopt", "eetq", "quark") and (
        not s.given("quant_bits")
    ):
        # vllm/model_executor/layers/quantization/fp8.py
        return 8
    if s.text("quant") == "bitsandbytes":
        # transformers utils/quantization_config.py
        return s.quant_bits
    # GPTQ and AWQ: a scale of 16 bits and a zero of 4 for a group
    return s.quant_bits + (20 / s.quant_group if s.quant_bits < 8 else 0)


@rule
def in_weights(s: Sheet) -> float:
    if s.family == "ollama" and s.date < 202504 and s.given("weights_bytes"):
        # read: ollama llm/memory.go before 0.6.3: memory.weights.total counts the cache too
        return s.kv_bytes * (s.n_ctx_asked if s.given("n_ctx_asked") else s.n_ctx) / s.n_ctx
    # weights alone
    return 0


@rule
def output_bytes(s: Sheet) -> float:
    if s.family == "ollama" and s.date < 202504 and s.given("weights_bytes"):
        # not given; the output is not in memory.weights.total before 0.6.3
        return s.either(0, 1, 2) * s.weights / s.n_layer
    # not given: about a layer
    return s.either(0, 1, 4) * s.weights / (s.n_layer + 1)
