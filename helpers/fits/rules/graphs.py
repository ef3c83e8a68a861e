"""The graph that ollama's own estimate adds for each architecture."""

from __future__ import annotations

from helpers.fits.sheet import LIKELY, LOW, Sheet, rule
from helpers.ground.units import GIB, MIB


@rule
def batch_row(s: Sheet) -> float:
    # a figure of 32 bits for each token of a batch
    return 4 * s.n_batch


@rule
def score_row(s: Sheet) -> float:
    # the mask and the scores of every head for one token
    return s.n_ctx * (1 + s.n_head)


@rule
def vocabulary_graph(s: Sheet) -> float:
    # read: ollama GraphSize: hidden states and logits of a batch
    return s.batch_row * (s.n_embd + s.n_vocab)


@rule
def vocabulary_weights(s: Sheet) -> float:
    # read: ollama GraphSize, partialOffload: the output matrix as Q6_K
    return s.n_embd * s.n_vocab * 105 / 128


@rule
def graph_by_cache(s: Sheet) -> float:
    # read: ollama llm/memory.go: where GraphSize names no graph, a sixth of the cache for each
    # head that shares one
    return s.n_head // s.n_head_kv * s.need_bytes / 6


@rule
def graph(s: Sheet) -> float:
    kind = s.text("gguf_arch")
    if kind == "llama" and s.date < 202408:
        # read: ollama llm/ggml.go before 0.3.5: no graph of the vocabulary
        return s.batch_row * (1 + 4 * s.n_embd + s.score_row)
    if kind in ("llama", "llama4"):
        # read: ollama GraphSize, llama
        return max(
            s.batch_row * (1 + 4 * s.n_embd + s.score_row),
            s.vocabulary_graph,
        )
    if kind == "mllama":
        # read: ollama GraphSize, mllama
        return max(
            s.batch_row * (2 + 3 * s.n_embd + s.head_dim_k * s.n_head + s.score_row),
            s.vocabulary_graph,
        )
    if kind in ("gemma", "gemma2", "gemma3", "gemma3n"):
        # read: ollama GraphSize, gemma
        return (4 if kind == "gemma3n" else 1) * max(
            s.vocabulary_graph,
            s.batch_row * (2 + s.score_row + 2 * s.n_embd + 2 * s.head_dim_k * s.n_head),
        )
    if kind == "command-r":
        # read: ollama GraphSize, command-r
        return max(
            s.vocabulary_graph,
            s.batch_row * (2 + 4 * s.n_embd + s.score_row),
        )
    if kind == "qwen2":
        # read: ollama GraphSize, qwen2
        return max(
            s.vocabulary_graph,
            s.batch_row * (1 + 2 * s.n_embd + s.score_row),
        )
    if kind == "phi2":
        # read: ollama GraphSize, phi2
        return max(
            s.vocabulary_graph,
            s.batch_row * (1 + 4 * s.n_embd + s.score_row),
        )
    if kind == "stablelm":
        # read: ollama GraphSize, stablelm
        return s.batch_row * (s.score_row + 3 * s.n_embd + 2)
    if kind == "deepseek2":
        # read: ollama GraphSize, deepseek2
        return max(
            s.batch_row * (3 * s.n_embd + s.n_vocab),
            s.batch_row
            * (3 * s.n_embd + 2 + s.n_ctx * (1 + s.n_head_kv) + 2 * s.head_dim_k * s.n_head_kv),
        )
    if kind == "chatglm":
        # read: ollama GraphSize, chatglm
        return s.vocabulary_graph
    if kind in ("gptoss", "gpt-oss") and s.flash_attn:
        # read: ollama GraphSize, gptoss with flash attention
        return (4 * s.n_parallel + s.n_ctx // 1024 + 110) * MIB
    if kind in ("gptoss", "gpt-oss"):
        # read: ollama GraphSize, gptoss; every layer at the whole context
        return 2 * (s.n_head // s.n_head_kv) * s.n_layer * s.n_ctx * s.full_layer / 6
    return s.graph_by_cache


@rule
def graph_other(s: Sheet) -> float:
    if s.given("graph"):
        # as printed
        return s.graph
    # as graph of a model that GraphSize does not name
    return s.graph_by_cache


@rule
def graph_held(s: Sheet) -> float:
    if s.cards > 1:
        # read: ollama llm/memory.go: several cards always take the partial graph
        return s.graph_partial
    # as graph
    return s.graph


@rule
def graph_room(s: Sheet) -> float:
    if s.given("gguf_arch"):
        # read: ollama llm/memory.go, EstimateGPULayers: the larger of both is kept free
        return max(s.graph_partial, s.graph_held)
    # as above, of an architecture that is not given
    if s.end == LOW:
        return min(max(s.graph_partial, s.graph_held), s.graph_other)
    if s.end == LIKELY:
        return max(s.graph_partial, s.graph_held)
    return max(s.graph_partial, s.graph_held, s.graph_other)


@rule
def graph_partial(s: Sheet) -> float:
    if s.given("graph"):
        # as printed
        return s.graph
    kind = s.text("gguf_arch")
    if kind in ("llama", "llama4") and s.is_moe and s.has("n_layer", "weights"):
        # read: ollama GraphSize, llama with ffn_gate_exps: three times a layer's experts, which
        # are nearly all of it
        return s.either(0.9, 0.97, 1) * s.mixtral_graph
    if kind in ("llama", "llama4"):
        # read: ollama GraphSize, llama, partialOffload
        return s.batch_row * s.n_embd + max(
            s.batch_row * (1 + s.n_embd + max(s.n_ctx, s.n_embd))
            + s.n_embd * s.n_embd * 9 / 16
            + 4 * s.n_ctx * (s.n_batch * s.n_head + s.n_embd // s.n_head * s.n_head_kv),
            s.vocabulary_graph + s.vocabulary_weights,
        )
    if kind == "mllama":
        # read: ollama GraphSize, mllama, partialOffload
        return max(
            4
            * (
                s.n_batch * (2 * s.n_embd + 1 + s.score_row + s.head_dim_k * s.n_head)
                + s.head_dim_k * s.n_ctx * s.n_head_kv
            ),
            s.vocabulary_graph + s.vocabulary_weights,
        )
    if kind in ("gemma", "gemma2", "gemma3", "gemma3n"):
        # read: ollama GraphSize, gemma, partialOffload
        return (4 if kind == "gemma3n" else 1) * max(
            s.vocabulary_graph + s.vocabulary_weights,
            s.batch_row * (2 * s.n_embd + 1 + 2 * s.head_dim_k * s.n_head + s.score_row)
            + 32 * s.head_dim_k * s.n_ctx
            + s.n_embd * s.head_dim_k * s.n_head * 9 / 16,
        )
    if kind == "command-r":
        # read: ollama GraphSize, command-r, partialOffload
        return max(
            s.vocabulary_graph + s.vocabulary_weights,
            s.batch_row * (1 + 2 * s.n_embd + s.score_row)
            + 4 * s.n_embd * s.n_ctx
            + s.n_embd * s.n_embd * 9 / 16,
        )
    if kind == "qwen2":
        # read: ollama GraphSize, qwen2, partialOffload
        return max(
            s.vocabulary_graph + s.vocabulary_weights,
            4 * (s.n_batch * (1 + 2 * s.n_embd + s.score_row) + s.n_embd * (1 + s.n_ctx)),
        )
    if kind == "phi2":
        # read: ollama GraphSize, phi2, partialOffload
        return max(
            s.batch_row * (2 * s.n_embd + s.n_vocab) + s.vocabulary_weights,
            s.batch_row * (2 + 3 * s.n_embd + s.score_row),
        )
    if kind == "stablelm":
        # read: ollama GraphSize, stablelm, partialOffload
        return max(
            s.batch_row * (s.n_vocab + 2 * s.n_embd),
            s.batch_row * (s.score_row + 3 * s.n_embd + 2),
        )
    if kind == "deepseek2":
        # read: ollama GraphSize, deepseek2, partialOffload
        return max(
            s.batch_row * (3 * s.n_embd + s.n_vocab) + s.vocabulary_weights,
            s.batch_row
            * (2 * s.n_embd + 1 + 2 * s.head_dim_k * s.n_head_kv + s.n_ctx * (1 + s.n_head_kv))
            + 4 * s.head_dim_k * s.n_ctx * s.n_head_kv
            + s.n_embd * s.head_dim_k * s.n_head_kv * 9 / 16,
        )
    if kind == "chatglm":
        # read: ollama GraphSize, chatglm, partialOffload
        return s.vocabulary_graph + s.vocabulary_weights
    # read: ollama llm/memory.go: the same, where GraphSize names one only
    return s.graph


@rule
def mixtral_graph(s: Sheet) -> float:
    # as graph_partial
    return max(
        (s.weights - s.in_weights) / s.n_layer
        + s.batch_row
        * (2 * s.n_ff + s.n_head_kv + s.n_embd + s.n_ctx + s.n_embd // s.n_head * s.n_head_kv),
        4
        * (
            s.n_ctx * s.n_batch * s.n_head
            + s.n_ctx * s.n_embd // s.n_head * s.n_head_kv
            + s.n_batch * 1024
            + s.n_embd // s.n_head * s.n_head_kv * s.n_batch
        ),
    )


@rule
def half_digit(s: Sheet) -> float:
    # read: ollama format/bytes.go, HumanBytes2
    return 0.05 * (GIB if s.graph_held >= GIB else MIB)
