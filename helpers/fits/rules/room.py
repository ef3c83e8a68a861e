"""What is left: the ceiling, what is kept free, whole layers on each card.

The ceiling is what the cards can give. The sum of the rows of an answer is weights, cache, states,
buffers, the driver's context, what others hold and the reserve, which is what a server keeps free.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.arithmetic import fullest_card, layers_in
from helpers.fits.sheet import LOW, MissingFigure, Sheet, rule
from helpers.ground.units import GIB, MIB


@rule
def others_bytes(s: Sheet) -> float:
    """Bytes that other processes hold: 0 where nobody says them."""
    s.cite("nobody else is known to hold memory")
    return 0


@rule
def ceiling(s: Sheet) -> float:
    """Bytes that the cards can give: of a pool those of the smallest card, else of all."""
    if s.is_sglang and "free_after_load" in s.inputs:
        # The log prints no other figure from before the load.
        s.cite("what was free before the load: what is free after it, and the weights")
        return s.free_after_load + s.weights
    s.cite("the named sizes of the cards")
    if "card_free_bytes" in s.inputs:
        s.cite("what is free before the load")
    sizes = s.sizes("card_sizes")
    if s.is_pooled:
        return min(sizes)
    return sum(sizes)


@rule
def reserve(s: Sheet) -> float:
    """Bytes that the server keeps free: of servers with a pool on one card, else on all together."""
    if s.is_vllm:
        s.cite(
            "what --gpu-memory-utilization leaves, less what others and graphs take of it"
        )
        left = s.card_total * (1 - s.gpu_memory_utilization) - s.others_bytes
        if s.date < 202605:  # before 0.21 graphs are outside of the share
            left -= s.cuda_graph_bytes
        return left
    if s.is_sglang:
        s.cite("what --mem-fraction-static leaves, less activations and graphs")
        free = s.ceiling - s.others_bytes - s.context_bytes
        left = free * (1 - s.mem_fraction_static)
        return left - s.compute - s.cuda_graph_bytes
    if s.is_ollama:
        s.cite(
            "read: ollama discover/gpu.go: 457 MiB a card are kept free; llm/memory.go before "
            "0.12.11: and the size of a layer"
        )
        kept: float = 457 * MIB
        if not s.measured and s.has("layer_bytes"):
            kept += s.layer_bytes
        return kept * s.cards
    if s.is_llama_cpp:
        return _reserve_of_llama_cpp(s)
    s.cite("none is known")
    return 0


def _reserve_of_llama_cpp(s: Sheet) -> float:
    """Bytes that llama.cpp keeps free on all cards: the margin of --fit, since December 2025. 0
    where --fit has nothing to change, or is older than that.
    """
    if "margin_bytes" in s.inputs:
        s.cite("as given")
        return s.margin_bytes * s.cards
    if "gpu_layers_asked" in s.inputs:
        s.cite(
            "read: llama.cpp common/fit.cpp: --fit changes nothing where --n-gpu-layers is set"
        )
        return 0
    if s.date < 202512:
        s.cite("none is known")
        return 0
    if "card_free_bytes" not in s.inputs:
        s.cite(
            "read: llama.cpp common/common.h, fit_params_target: 1 GiB a card, where neither "
            "layers nor context were set"
        )
        return s.either(0, 1, 1) * GIB * s.cards
    s.cite(
        "read: llama.cpp common/common.h, fit_params_target: 1 GiB of what is free on "
        "each card, the driver's context with it, where neither layers nor context were "
        "set"
    )
    # At best nothing is kept, as for the named sizes above. The context is a row of its own, so it
    # is taken off here.
    if s.end == LOW:
        return 0
    return GIB * s.cards - s.context_bytes


@rule
def share_on_gpu(s: Sheet) -> float:
    """The share of the layers that is on the cards: all, unless their number is given."""
    if s.has("n_gpu_layers", "n_layer"):
        # layers are whole; the output is one more
        return min(1, s.n_gpu_layers / (s.n_layer + 1))
    return 1


@rule
def layer_bytes(s: Sheet) -> float:
    """Bytes of one layer: its weights, cache and state."""
    if s.in_weights:
        # the weights of a log without the cache that it counts among them, and the whole cache
        return (s.weights - s.in_weights + s.kv_bytes) / s.n_layer
    on_all_cards = s.weights + s.kv_bytes + s.state_bytes
    if s.is_ollama:
        # one of the blocks, which are taken as alike
        return (on_all_cards - s.output_bytes) / s.n_layer
    # one of the blocks and the output, which are taken as alike
    return on_all_cards / (s.n_layer + 1)


@rule
def layers_held(s: Sheet) -> float:
    """How many layers ollama puts on the cards by itself, the output among them. Raises
    MissingFigure for other servers, and where the number is given.
    """
    if not s.is_ollama or "n_gpu_layers" in s.inputs:
        raise MissingFigure("layers_held")
    # read: ollama llm/memory.go: the vision part goes on the first card; since 0.7.1 (May 2025)
    # that of its own engine goes with the output
    on_first_card = s.projector_weights_bytes + s.encoder
    with_output = 0.0
    if s.date >= 202505 and s.own_engine:
        with_output = on_first_card
        on_first_card = 0
    # read: ollama llm/memory.go, EstimateGPULayers; since 0.12.11 llm/server.go,
    # assignLayers: whole layers on each card, and the output where one has room
    return layers_in(
        s.sizes("card_sizes"),
        fixed=s.graph_room + (s.reserve + s.others_bytes) / s.cards,
        first=on_first_card,
        layer=s.layer_bytes,
        last=s.output_bytes + with_output,
        count=s.n_layer,
    )


@rule
def tightest(s: Sheet) -> float:
    """Bytes that are left on the card with the least room, below 0 where its layers do not fit."""
    # read: llama.cpp src/llama-model.cpp, load_tensors, get_layer_buft_list. Layers are taken as
    # alike though they are not, so at best each card has one layer fewer, at worst one more.
    return fullest_card(
        s.sizes("card_sizes"),
        s.sizes("tensor_split"),
        fixed=(s.compute + s.context_bytes + s.others_bytes + s.reserve) / s.cards,
        layer=s.layer_bytes,
        count=int(s.share_on_gpu * (s.n_layer + 1)),
        off=int(s.either(1, 0, -1)),
    )


@rule
def left(s: Sheet) -> float:
    """Bytes that are left: the ceiling without the sum of the rows."""
    ceiling = s.ceiling
    # the part of the cache that a log counts among the weights is in both of them
    layers = s.weights + s.kv_bytes + s.state_bytes - s.in_weights
    buffers = s.projector_weights_bytes + s.compute + s.context_bytes
    kept = s.others_bytes + s.reserve
    return ceiling - s.share_on_gpu * layers - buffers - kept


def freed(s: Sheet) -> float:
    """Bytes of the cache that a shorter context than the one that was asked for gives back; below 0
    for a longer one.
    """
    if "n_ctx_asked" in s.inputs and s.has("full_token"):
        return s.full_token * (s.n_ctx_asked - s.n_ctx)
    return 0


@rule
def spare(s: Sheet) -> float:
    """What is left, below 0 where the model does not fit: bytes, but tokens for TensorRT-LLM.

    A server without a pool has what its rows leave of the ceiling. A pool has what it holds beyond
    one request of the context; where no context is known, it has to hold something at all.
    """
    if s.refused:
        # read: vllm/v1/worker/utils.py, request_memory: refused where less is free than the share
        return s.short_at_start
    if s.is_vllm:
        return _spare_of_vllm(s)
    if s.is_sglang and not s.has("tokens_asked"):
        # read: sglang model_runner.py: refused where no token fits, so one byte is the least
        return s.available - 1
    if s.is_pooled:
        # read: sglang pool_configurator.py
        return s.available - s.need_bytes
    if s.family == "TensorRT-LLM":
        # read: kvCacheManager: blocks for one request
        if "n_ctx" not in s.inputs:
            return s.tokens_held - 1
        return s.tokens_held - s.n_ctx
    if s.is_llama_cpp:
        return _spare_of_llama_cpp(s)
    if s.is_ollama and s.has("layers_held") and s.layers_held < s.n_layer + 1:
        # below 0 by the layers for which no card has room
        return min(s.left, (s.layers_held - s.n_layer - 1) * s.layer_bytes)
    return s.left


def _spare_of_vllm(s: Sheet) -> float:
    """Bytes of vLLM's pool that are left beside one request of the whole context; the whole pool
    where no context or no size of a request is known.
    """
    # read: _check_enough_kv_cache_memory
    if not s.has("n_ctx"):
        return s.available
    if not s.has("need_bytes"):
        s.no_bound(
            "what a request takes is not known: at least something must be left for it"
        )
        return s.available
    return s.available - s.need_bytes


def _spare_of_llama_cpp(s: Sheet) -> float:
    """Bytes that llama.cpp leaves: as --fit prints them, corrected for another context than that of
    its log; else those on all cards together, or on the card with the least room if they are fewer.
    """
    if "fit_short_bytes" in s.inputs:  # how much --fit lacks
        return freed(s) - s.fit_short_bytes
    if {"projected_bytes", "card_free_bytes", "fit_left_bytes"} <= s.inputs.keys():
        # what it prints is free before the margin is taken off
        return freed(s) + s.fit_left_bytes - s.reserve
    # Whole layers go to each card; since December 2025 --fit moves them to where there is room.
    is_fixed = s.date < 202512 or "tensor_split" in s.inputs
    if s.cards > 1 and is_fixed and s.has("tightest"):
        return min(s.left, s.tightest)
    return s.left
