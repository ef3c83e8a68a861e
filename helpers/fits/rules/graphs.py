"""The graph that ollama's own estimate adds for each architecture."""

from __future__ import annotations

from helpers.fits.sheet import LIKELY, LOW, Sheet, rule
from helpers.ground.units import GIB, MIB


@rule
def graph(s: Sheet) -> float:
    if s.text("gguf_arch") == "llama" and s.date < 202408:
        # read: ollama llm/ggml.go before 0.3.5: no graph of the vocabulary
        return 4 * s.n_batch * (1 + 4 * s.n_embd + s.n_ctx * (1 + s.n_head))
    if s.text("gguf_arch") in ("llama", "llama4"):
        # read: ollama GraphSize, llama
        return max(
            4 * s.n_batch * (1 + 4 * s.n_embd + s.n_ctx * (1 + s.n_head)),
            4 * s.n_batch * (s.n_embd + s.n_vocab),
        )
    if s.text("gguf_arch") == "mllama":
        # read: ollama GraphSize, mllama
        return max(
            4 * s.n_batch * (2 + 3 * s.n_embd + s.head_dim_k * s.n_head + s.n_ctx * (1 + s.n_head)),
            4 * s.n_batch * (s.n_embd + s.n_vocab),
        )
    if s.text("gguf_arch") in ("gemma", "gemma2", "gemma3", "gemma3n"):
        # read: ollama GraphSize, gemma
        return (4 if s.text("gguf_arch") == "gemma3n" else 1) * max(
            4 * s.n_batch * (s.n_embd + s.n_vocab),
            4
            * s.n_batch
            * (2 + s.n_ctx + s.n_ctx * s.n_head + 2 * s.n_embd + 2 * s.head_dim_k * s.n_head),
        )
    if s.text("gguf_arch") == "command-r":
        # read: ollama GraphSize, command-r
        return max(
            4 * s.n_batch * (s.n_embd + s.n_vocab),
            4 * s.n_batch * (2 + 4 * s.n_embd + s.n_ctx * (1 + s.n_head)),
        )
    if s.text("gguf_arch") == "qwen2":
        # read: ollama GraphSize, qwen2
        return max(
            4 * s.n_batch * (s.n_embd + s.n_vocab),
            4 * s.n_batch * (1 + 2 * s.n_embd + s.n_ctx + s.n_ctx * s.n_head),
        )
    if s.text("gguf_arch") == "phi2":
        # read: ollama GraphSize, phi2
        return max(
            4 * s.n_batch * (s.n_embd + s.n_vocab),
            4 * s.n_batch * (1 + 4 * s.n_embd + s.n_ctx + s.n_ctx * s.n_head),
        )
    if s.text("gguf_arch") == "stablelm":
        # read: ollama GraphSize, stablelm
        return 4 * s.n_batch * (s.n_ctx * (1 + s.n_head) + 3 * s.n_embd + 2)
    if s.text("gguf_arch") == "deepseek2":
        # read: ollama GraphSize, deepseek2
        return max(
            4 * s.n_batch * (3 * s.n_embd + s.n_vocab),
            4
            * s.n_batch
            * (3 * s.n_embd + 2 + s.n_ctx * (1 + s.n_head_kv) + 2 * s.head_dim_k * s.n_head_kv),
        )
    if s.text("gguf_arch") == "chatglm":
        # read: ollama GraphSize, chatglm
        return 4 * s.n_batch * (s.n_embd + s.n_vocab)
    if s.text("gguf_arch") in ("gptoss", "gpt-oss") and s.flash_attn:
        # read: ollama GraphSize, gptoss with flash attention
        return (4 * s.n_parallel + s.n_ctx // 1024 + 110) * MIB
    if s.text("gguf_arch") in ("gptoss", "gpt-oss"):
        # read: ollama GraphSize, gptoss; every layer at the whole context
        return 2 * (s.n_head // s.n_head_kv) * s.n_layer * s.n_ctx * s.full_layer / 6
    # read: ollama llm/memory.go: where GraphSize names no graph, a sixth of the cache for each
    # head that shares one
    return s.n_head // s.n_head_kv * s.need_bytes / 6


@rule
def graph_other(s: Sheet) -> float:
    if s.given("graph"):
        # as printed
        return s.graph
    # as graph of a model that GraphSize does not name
    return s.n_head // s.n_head_kv * s.need_bytes / 6


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
    if s.text("gguf_arch") in ("llama", "llama4") and s.is_moe and s.has("n_layer", "weights"):
        # read: ollama GraphSize, llama with ffn_gate_exps: three times a layer's experts, which
        # are nearly all of it
        if s.end == LOW:
            return 0.9 * s.mixtral_graph
        if s.end == LIKELY:
            return 0.97 * s.mixtral_graph
        return s.mixtral_graph
    if s.text("gguf_arch") in ("llama", "llama4"):
        # read: ollama GraphSize, llama, partialOffload
        return 4 * s.n_batch * s.n_embd + max(
            4 * s.n_batch * (1 + s.n_embd + max(s.n_ctx, s.n_embd))
            + s.n_embd * s.n_embd * 9 / 16
            + 4 * s.n_ctx * (s.n_batch * s.n_head + s.n_embd // s.n_head * s.n_head_kv),
            4 * s.n_batch * (s.n_embd + s.n_vocab) + s.n_embd * s.n_vocab * 105 / 128,
        )
    if s.text("gguf_arch") == "mllama":
        # read: ollama GraphSize, mllama, partialOffload
        return max(
            4
            * (
                s.n_batch * (2 * s.n_embd + 1 + s.n_ctx * (1 + s.n_head) + s.head_dim_k * s.n_head)
                + s.head_dim_k * s.n_ctx * s.n_head_kv
            ),
            4 * s.n_batch * (s.n_embd + s.n_vocab) + s.n_embd * s.n_vocab * 105 / 128,
        )
    if s.text("gguf_arch") in ("gemma", "gemma2", "gemma3", "gemma3n"):
        # read: ollama GraphSize, gemma, partialOffload
        return (4 if s.text("gguf_arch") == "gemma3n" else 1) * max(
            4 * s.n_embd * s.n_batch + s.n_embd * s.n_vocab * 105 / 128 + 4 * s.n_vocab * s.n_batch,
            4
            * s.n_batch
            * (2 * s.n_embd + 1 + 2 * s.head_dim_k * s.n_head + s.n_ctx + s.n_ctx * s.n_head)
            + 32 * s.head_dim_k * s.n_ctx
            + s.n_embd * s.head_dim_k * s.n_head * 9 / 16,
        )
    if s.text("gguf_arch") == "command-r":
        # read: ollama GraphSize, command-r, partialOffload
        return max(
            4 * s.n_batch * (s.n_embd + s.n_vocab) + s.n_embd * s.n_vocab * 105 / 128,
            4 * s.n_batch * (1 + 2 * s.n_embd + s.n_ctx * (1 + s.n_head))
            + 4 * s.n_embd * s.n_ctx
            + s.n_embd * s.n_embd * 9 / 16,
        )
    if s.text("gguf_arch") == "qwen2":
        # read: ollama GraphSize, qwen2, partialOffload
        return max(
            4 * s.n_batch * (s.n_embd + s.n_vocab) + s.n_embd * s.n_vocab * 105 / 128,
            4
            * (
                s.n_batch * (1 + 2 * s.n_embd + s.n_ctx * (1 + s.n_head)) + s.n_embd * (1 + s.n_ctx)
            ),
        )
    if s.text("gguf_arch") == "phi2":
        # read: ollama GraphSize, phi2, partialOffload
        return max(
            4 * s.n_batch * (2 * s.n_embd + s.n_vocab) + s.n_embd * s.n_vocab * 105 / 128,
            4 * s.n_batch * (2 + 3 * s.n_embd + s.n_ctx + s.n_ctx * s.n_head),
        )
    if s.text("gguf_arch") == "stablelm":
        # read: ollama GraphSize, stablelm, partialOffload
        return max(
            4 * s.n_batch * (s.n_vocab + 2 * s.n_embd),
            4 * s.n_batch * (s.n_ctx * (1 + s.n_head) + 3 * s.n_embd + 2),
        )
    if s.text("gguf_arch") == "deepseek2":
        # read: ollama GraphSize, deepseek2, partialOffload
        return max(
            4 * s.n_batch * (3 * s.n_embd + s.n_vocab) + s.n_embd * s.n_vocab * 105 / 128,
            4
            * s.n_batch
            * (2 * s.n_embd + 1 + 2 * s.head_dim_k * s.n_head_kv + s.n_ctx + s.n_ctx * s.n_head_kv)
            + 4 * s.head_dim_k * s.n_ctx * s.n_head_kv
            + s.n_embd * s.head_dim_k * s.n_head_kv * 9 / 16,
        )
    if s.text("gguf_arch") == "chatglm":
        # read: ollama GraphSize, chatglm, partialOffload
        return 4 * s.n_batch * (s.n_embd + s.n_vocab) + s.n_embd * s.n_vocab * 105 / 128
    # read: ollama llm/memory.go: the same, where GraphSize names one only
    return s.graph


@rule
def mixtral_graph(s: Sheet) -> float:
    # as graph_partial
    return max(
        (s.weights - s.in_weights) / s.n_layer
        + 4
        * s.n_batch
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
