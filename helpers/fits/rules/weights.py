"""Weights: as a file or a log gives them, else by the dimensions."""

from __future__ import annotations

from helpers.fits.sheet import Missing, Sheet, rule

NOT_PLAIN = ("quant", "kv_lora_rank", "interval", "n_layer_ff", "n_ff_mlp", "moe_step")
"""Keys of a config whose weights its dimensions do not give: quantised, latent attention, gates and
experts of some layers alone.
"""


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
    if s.n_layer_recurrent or any(map(s.given, NOT_PLAIN)):
        raise Missing("model_bytes", "the bytes of the weights: model.safetensors.index.json")
    s.cite("by the dimensions, to a few percent: no weights lie beside the config")
    if s.vision_parts > 0:
        s.no_bound(
            "the vision part: no weights lie beside the config; the rest by its dimensions, "
            "to a few percent"
        )
    # query, key, value and output
    attention = 2 * s.n_head * s.head_dim_k + s.n_head_kv * (s.head_dim_k + s.head_dim_v)
    embeddings = s.n_vocab * (1 if s.tied else 2)
    norms = 2 * s.n_layer + 1
    return 2 * s.n_embd * (s.n_layer * attention + s.feed_forward + embeddings + norms)


@rule
def n_ff(s: Sheet) -> float:
    # transformers' default
    return 4 * s.n_embd


@rule
def feed_forward(s: Sheet) -> float:
    # columns of all layers; a plain one is up and down, others have a gate beside them
    matrices = 2 if s.text("act") in ("gelu", "relu", "gelu_new", "relu2") else 3
    if s.n_expert <= 1:
        return s.n_layer * matrices * s.n_ff
    dense = min(s.n_dense, s.n_layer)
    experts = s.n_ff_expert * (s.n_expert + s.n_expert_shared) + s.n_ff_shared
    router = s.n_expert
    return dense * matrices * s.n_ff + (s.n_layer - dense) * (matrices * experts + router)


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
