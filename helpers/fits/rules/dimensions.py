"""What a model and a request are: layers, heads, widths, batches, cards.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.sheet import MissingFigure, Sheet, rule


@rule
def n_layer(s: Sheet) -> float:
    """The number of layers, by a log of ollama."""
    # read: ollama llm/memory.go: the number that it logs (layers.model) counts the output as a
    # layer
    return s.layers_model - 1


@rule
def n_layer_swa(s: Sheet) -> float:
    """How many layers have a window, where no header says it: 0, unless a log prints caches of
    different lengths.
    """
    if "cache_cells" not in s.inputs:
        return 0
    # a log prints the cells of each cache: those with fewer than most have a window
    cells = s.sizes("cache_cells")
    return len(cells) - cells.count(max(cells))


@rule
def n_layer_kv(s: Sheet) -> float:
    """How many layers have a cache without a window."""
    # the other layers; one that shares another's cache holds none (read: llama.cpp
    # src/llama-hparams.cpp, has_kv)
    return s.n_layer - s.n_layer_swa - s.n_layer_recurrent - s.shared_kv_layers


def heads_on_a_card(s: Sheet, heads: float) -> float:
    """How many of the ``heads`` of a cache each card holds. vLLM and SGLang divide the heads over
    the cards, and their sizes are those of one card; of other servers all heads count.
    """
    if s.is_vllm:
        # read: vllm/config/model.py, get_num_kv_heads: at least one on each card
        return max(1, heads // s.tp)
    if s.is_sglang:
        # read: sglang/srt/configs/model_config.py, get_num_kv_heads, over the cards that share
        # attention
        return max(1, heads // max(1, s.tp // s.dp))
    return heads


@rule
def n_head(s: Sheet) -> float:
    """How many heads the queries of a layer have."""
    # Not given: a range, as models have one to sixteen heads of queries for each head of the cache.
    return s.either(1, 4, 16) * s.n_head_kv


@rule
def head_dim_k(s: Sheet) -> float:
    """The width of a head of the keys."""
    # Only inputs count, as the defaults of both are ranges. With latent attention (kv_lora_rank) a
    # head is not as wide as its share of the model.
    if "kv_lora_rank" not in s.inputs and "n_embd" in s.inputs and "n_head" in s.inputs:
        # transformers: the model's width over its heads, where no width of a head is given
        return s.n_embd // s.n_head
    raise MissingFigure("head_dim_k")


@rule
def has_swa(s: Sheet) -> float:
    """Whether layers have a window (sliding window attention)."""
    return "SWA" in s.tags or s.n_layer_swa > 0


@rule
def is_moe(s: Sheet) -> float:
    """Whether the model is a mixture of experts."""
    return "MoE" in s.tags or s.n_expert > 1


@rule
def is_mla(s: Sheet) -> float:
    """Whether the model has multi-head latent attention."""
    return "MLA" in s.tags or "kv_lora_rank" in s.inputs


@rule
def gguf_arch(s: Sheet) -> str:
    """The architecture, by the name that GGUF files have for it. A name that was not given is that
    of a well-known model with layers of the same kinds.
    """
    # Where no header gives it, the architecture decides which of ollama's formulas counts the graph
    # (graphs.py), so one stands for all that are built alike: gptoss for windows and experts,
    # gemma3 for windows alone, deepseek2 for latent attention, llama for any other.
    if s.has_swa:
        if s.is_moe:
            return "gptoss"
        return "gemma3"
    if s.is_mla:
        return "deepseek2"
    return "llama"


@rule
def sees(s: Sheet) -> float:
    """Whether llama.cpp or ollama loads a vision part, which has a buffer of its own there (see
    ``encoder``); never for other servers, which have it among their activations.
    """
    has_eyes = "vision" in s.tags or s.vision_parts > 0 or s.projector_weights_bytes > 0
    return s.is_ggml and has_eyes


@rule
def flash_attn(s: Sheet) -> float:
    """Whether attention is fused (flash attention) where no option sets it: by the release alone."""
    if s.is_ik_llama_cpp:
        # read: ik_llama.cpp common/common.h: on since November 2025
        return s.date >= 202511
    # read: llama.cpp pull request 15434: since the end of August 2025 flash attention is on where
    # the backend has it. September is the first month of which every release has the change. No
    # backend is looked at: those of the cards that are counted here are taken to have it.
    return s.date >= 202509


@rule
def n_batch(s: Sheet) -> float:
    """Tokens of a batch."""
    if s.is_ollama:
        # read: ollama api/types.go, NumBatch
        return 512
    # read: llama.cpp common/common.h, n_batch: 2,048; no batch is longer than the context
    return min(2048, s.n_ctx)


@rule
def n_ubatch(s: Sheet) -> float:
    """Tokens of a micro-batch, of which llama.cpp holds the activations at once."""
    # read: llama.cpp common/common.h, n_ubatch: 512; no micro-batch is larger than a batch
    return min(512, s.n_batch)


@rule
def cards(s: Sheet) -> float:
    """The number of cards: as many as free or total sizes are given, else one."""
    for name in ("card_free_bytes", "card_total_bytes"):
        if name in s.inputs:
            return len(s.sizes(name))
    return 1
