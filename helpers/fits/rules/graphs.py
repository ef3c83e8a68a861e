"""The compute graph that ollama estimates for each architecture, until it measured it.

The graph is the memory for what is computed between the layers. ollama estimates two: the full
graph for a model that is on the cards as a whole, the partial graph for one of which a part is
there.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from math import prod

from helpers.fits.rules.cells import GPT_OSS
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet, rule
from helpers.ground.units import MIB

LLAMAS = ("llama", "llama4")
"""Architectures that share the formula of the partial graph in GraphSize."""


@rule
def graph_by_cache(s: Sheet) -> float:
    """Bytes of the graph of an architecture for which ollama has no formula."""
    # read: ollama llm/memory.go: a sixth of the cache, times the heads of queries that share a head
    # of the cache
    return s.n_head // s.n_head_kv * s.need_bytes / 6


def vocabulary_weights(s: Sheet) -> float:
    """Bytes of the output matrix as Q6_K, 105 for 128 weights, which a partial graph copies (ollama
    GraphSize).
    """
    return s.n_embd * s.n_vocab * 105 / 128


def largest_graph(s: Sheet, side: str) -> float:
    """Bytes of the larger of two steps of a batch, the output and the attention. The numbers are
    those of the architecture's row in graphs.json, whose ``about`` explains them; ``side`` names
    the full or the partial graph.
    """
    row = table("graphs")["architectures"][s.architecture]
    output_embeds, *attention = row[side]
    f32_batch = 4 * s.n_batch
    graphs = [f32_batch * (output_embeds * s.n_embd + s.n_vocab)]
    if attention:  # a row without these numbers counts the output alone
        ones_bytes, embeds, widths = attention
        heads = s.figure(row["heads"])
        width = widths * s.head_dim_k * heads
        scores = s.n_ctx * (1 + heads)
        graphs.append(f32_batch * (ones_bytes + embeds * s.n_embd + width + scores))
    if side == "partial":
        # The output matrix is copied for its step; the rest of the row is part of the last step.
        graphs[0] += vocabulary_weights(s)
        for factor, *names in row["beside"]:
            graphs[-1] += factor * prod(map(s.figure, names))
    largest: float = row["times"] * max(graphs)
    return largest


@rule
def graph(s: Sheet) -> float:
    """Bytes of the full graph: that of a model that is on the cards as a whole."""
    if s.architecture == "llama" and s.date < 202408:
        # read: ollama llm/ggml.go before 0.3.5: no graph of the vocabulary
        return 4 * s.n_batch * (1 + 4 * s.n_embd + s.n_ctx * (1 + s.n_head))
    if s.architecture in table("graphs")["architectures"]:
        return largest_graph(s, "full")
    if s.architecture not in GPT_OSS:
        return s.graph_by_cache
    # gpt-oss has a formula of another form than the rows of graphs.json.
    if s.flash_attn:
        # read: ollama GraphSize, gptoss with flash attention
        return (4 * s.n_parallel + s.n_ctx // 1024 + 110) * MIB
    # read: ollama GraphSize, gptoss: twice what graph_by_cache counts, and of a cache in which
    # layers with a window keep the whole context, too
    return 2 * (s.n_head // s.n_head_kv) * s.n_layer * s.n_ctx * s.full_layer / 6


@rule
def graph_partial(s: Sheet) -> float:
    """Bytes of the partial graph: that of a model of which only a part is on the cards."""
    if "graph" in s.inputs:
        return s.graph  # a log prints one for both
    if s.architecture in LLAMAS:
        # read: ollama GraphSize, llama, partialOffload: a step of a batch in f32, and a matrix
        # that is copied, of 9 bytes for 16 weights
        f32_batch = 4 * s.n_batch
        copied = s.n_embd**2 * 9 / 16
        hidden = f32_batch * (1 + s.n_embd + max(s.n_ctx, s.n_embd))
        scores = s.n_batch * s.n_head
        keys = s.n_embd // s.n_head * s.n_head_kv
        attention = hidden + copied + 4 * s.n_ctx * (scores + keys)
        output = f32_batch * (s.n_embd + s.n_vocab) + vocabulary_weights(s)
        return f32_batch * s.n_embd + max(attention, output)
    if s.architecture in table("graphs")["architectures"]:
        return largest_graph(s, "partial")
    # read: ollama llm/memory.go: the same, where GraphSize has only one
    return s.graph


@rule
def graph_held(s: Sheet) -> float:
    """Bytes of the graph that ollama puts on each card."""
    # read: ollama llm/memory.go: on several cards it is the partial graph, even of a whole model
    if s.cards > 1:
        return s.graph_partial
    return s.graph


@rule
def graph_room(s: Sheet) -> float:
    """Bytes that ollama keeps free for a graph while it deals layers to the cards."""
    # read: ollama llm/memory.go, EstimateGPULayers: the larger of both is kept free
    larger = max(s.graph_partial, s.graph_held)
    if "gguf_arch" in s.inputs:
        return larger
    # The architecture is assumed (see gguf_arch), so its formula and that of all others make a
    # range.
    return s.either(min(larger, s.graph_other), larger, max(larger, s.graph_other))
