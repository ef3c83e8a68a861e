"""The graph that ollama's own estimate adds for each architecture, until it measured it."""

from __future__ import annotations

from math import prod

from helpers.fits.rules.cells import GPT_OSS
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet, rule
from helpers.ground.units import MIB

LLAMAS = ("llama", "llama4")


@rule
def graph_by_cache(s: Sheet) -> float:
    # read: ollama llm/memory.go: where GraphSize names no graph, a sixth of the cache for each
    # head that shares one
    return s.n_head // s.n_head_kv * s.need_bytes / 6


def vocabulary_weights(s: Sheet) -> float:
    """The output matrix as Q6_K, which a partial graph copies (ollama GraphSize)."""
    return s.n_embd * s.n_vocab * 105 / 128


def largest_graph(s: Sheet, side: str) -> float:
    """The larger of two steps of a batch, the output and the attention, by the row of the
    architecture in graphs.json; ``side`` is full or partial.
    """
    row = table("graphs")["architectures"][s.architecture]
    output_embeds, *attention = row[side]
    graphs = [4 * s.n_batch * (output_embeds * s.n_embd + s.n_vocab)]
    if attention:
        ones_bytes, embeds, widths = attention
        heads = s.figure(row["heads"])
        width = widths * s.head_dim_k * heads
        scores = s.n_ctx * (1 + heads)
        graphs.append(4 * s.n_batch * (ones_bytes + embeds * s.n_embd + width + scores))
    if side == "partial":
        graphs[0] += vocabulary_weights(s)
        for factor, *names in row["beside"]:
            graphs[-1] += factor * prod(map(s.figure, names))
    largest: float = row["times"] * max(graphs)
    return largest


@rule
def graph(s: Sheet) -> float:
    # bytes of the graph of a model that is on the card as a whole
    if s.architecture == "llama" and s.date < 202408:
        # read: ollama llm/ggml.go before 0.3.5: no graph of the vocabulary
        return 4 * s.n_batch * (1 + 4 * s.n_embd + s.n_ctx * (1 + s.n_head))
    if s.architecture in table("graphs")["architectures"]:
        return largest_graph(s, "full")
    if s.architecture not in GPT_OSS:
        return s.graph_by_cache
    if s.flash_attn:
        # read: ollama GraphSize, gptoss with flash attention
        return (4 * s.n_parallel + s.n_ctx // 1024 + 110) * MIB
    # read: ollama GraphSize, gptoss; every layer at the whole context
    return 2 * (s.n_head // s.n_head_kv) * s.n_layer * s.n_ctx * s.full_layer / 6


@rule
def graph_partial(s: Sheet) -> float:
    # bytes of the graph of a model of which a part is on the card
    if "graph" in s.inputs:
        # as printed
        return s.graph
    if s.architecture in LLAMAS:
        # read: ollama GraphSize, llama, partialOffload
        rows = 4 * s.n_batch
        attention = (
            rows * (1 + s.n_embd + max(s.n_ctx, s.n_embd)) + s.n_embd**2 * 9 / 16
        )
        attention += (
            4 * s.n_ctx * (s.n_batch * s.n_head + s.n_embd // s.n_head * s.n_head_kv)
        )
        output = rows * (s.n_embd + s.n_vocab) + vocabulary_weights(s)
        return rows * s.n_embd + max(attention, output)
    if s.architecture in table("graphs")["architectures"]:
        return largest_graph(s, "partial")
    # read: ollama llm/memory.go: the same, where GraphSize names one only
    return s.graph


@rule
def graph_held(s: Sheet) -> float:
    # bytes of the graph on each card that it takes
    # read: ollama llm/memory.go: several cards always take the partial graph
    if s.cards > 1:
        return s.graph_partial
    return s.graph


@rule
def graph_room(s: Sheet) -> float:
    # bytes that are kept free for a graph as layers are dealt to the cards
    # read: ollama llm/memory.go, EstimateGPULayers: the larger of both is kept free
    larger = max(s.graph_partial, s.graph_held)
    if "gguf_arch" in s.inputs:
        return larger
    # of an architecture that is not given
    return s.either(min(larger, s.graph_other), larger, max(larger, s.graph_other))
