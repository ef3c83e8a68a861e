"""What is left: the ceiling, what is kept free, whole layers on each card."""

from __future__ import annotations

from helpers.fits.arithmetic import fullest_card, layers_in
from helpers.fits.sheet import LOW, MissingFigure, Sheet, rule
from helpers.ground.units import GIB, MIB


@rule
def others_bytes(s: Sheet) -> float:
    s.cite("nobody else is known to hold memory")
    return 0


@rule
def ceiling(s: Sheet) -> float:
    if s.is_sglang and "free_after_load" in s.inputs:
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
    if s.is_vllm:
        s.cite(
            "what --gpu-memory-utilization leaves, less what others and graphs take of it"
        )
        # Before 0.21 graphs lie outside of the share.
        graphs = s.cuda_graph_bytes if s.date < 202605 else 0
        return s.card_total * (1 - s.gpu_memory_utilization) - s.others_bytes - graphs
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
    if s.is_llama_cpp and "margin_bytes" in s.inputs:
        s.cite("as given")
        return s.margin_bytes * s.cards
    if s.is_llama_cpp and "gpu_layers_asked" in s.inputs:
        s.cite(
            "read: llama.cpp common/fit.cpp: --fit changes nothing where --n-gpu-layers is set"
        )
        return 0
    if not s.is_llama_cpp or s.date < 202512:
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
    if s.end == LOW:
        return 0
    return GIB * s.cards - s.context_bytes


@rule
def share_on_gpu(s: Sheet) -> float:
    if s.has("n_gpu_layers", "n_layer"):
        # layers are whole; the output is one more
        return min(1, s.n_gpu_layers / (s.n_layer + 1))
    return 1


@rule
def layer_bytes(s: Sheet) -> float:
    if s.in_weights:
        return (s.weights - s.in_weights + s.kv_bytes) / s.n_layer
    on_all_cards = s.weights + s.kv_bytes + s.state_bytes
    if s.is_ollama:
        # one of the blocks: weights and cache, alike for all
        return (on_all_cards - s.output_bytes) / s.n_layer
    # blocks and output, alike for all
    return on_all_cards / (s.n_layer + 1)


@rule
def layers_held(s: Sheet) -> float:
    # layers that ollama puts on the cards by itself, the output among them
    if not s.is_ollama or "n_gpu_layers" in s.inputs:
        raise MissingFigure("layers_held")
    # read: ollama llm/memory.go: the vision part goes on the first card; since 0.7.1 that of its
    # own engine goes with the output
    eyes = s.projector_weights_bytes + s.encoder
    with_output = 0.0
    if s.date >= 202505 and s.own_engine:
        with_output = eyes
    # read: ollama llm/memory.go, EstimateGPULayers; since 0.12.11 llm/server.go,
    # assignLayers: whole layers on each card, and the output where one has room
    return layers_in(
        s.sizes("card_sizes"),
        s.graph_room + (s.reserve + s.others_bytes) / s.cards,
        eyes - with_output,
        s.layer_bytes,
        s.output_bytes + with_output,
        s.n_layer,
    )


@rule
def tightest(s: Sheet) -> float:
    # bytes left on the fullest card
    # read: llama.cpp src/llama-model.cpp, load_tensors, get_layer_buft_list; layers are taken as
    # alike, so one more or less at the ends
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
    # the ceiling without the sum of the rows; what of the cache a log counts among the weights
    # (in_weights) is in both of them, and taken off once
    ceiling = s.ceiling
    layers = s.weights + s.kv_bytes + s.state_bytes - s.in_weights
    rest = (
        s.projector_weights_bytes
        + s.compute
        + s.context_bytes
        + s.others_bytes
        + s.reserve
    )
    return ceiling - s.share_on_gpu * layers - rest


def freed(s: Sheet) -> float:
    """Bytes of the cache that a shorter context than was asked for gives back; less than 0 for a
    longer one.
    """
    if "n_ctx_asked" in s.inputs and s.has("full_token"):
        return s.full_token * (s.n_ctx_asked - s.n_ctx)
    return 0


@rule
def spare(s: Sheet) -> float:
    # what is left, less than 0 where it does not fit: bytes, of TensorRT-LLM tokens
    if s.refused:
        # read: vllm/v1/worker/utils.py, request_memory: refused where less is free than the share
        return s.short_at_start
    if s.is_vllm:
        return _spare_of_vllm(s)
    if s.is_sglang and not s.has("tokens_asked"):
        # read: sglang model_runner.py: refused where no token fits
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
        # what of the layers no card has room for
        return min(s.left, (s.layers_held - s.n_layer - 1) * s.layer_bytes)
    return s.left


def _spare_of_vllm(s: Sheet) -> float:
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
    if "fit_short_bytes" in s.inputs:
        # as --fit prints it
        return freed(s) - s.fit_short_bytes
    if {"projected_bytes", "card_free_bytes", "fit_left_bytes"} <= s.inputs.keys():
        # as --fit prints it
        return freed(s) + s.fit_left_bytes - s.reserve
    is_dealt = s.cards > 1 and (s.date < 202512 or "tensor_split" in s.inputs)
    if is_dealt and s.has("tightest"):
        # each card with its whole layers; since December 2025 --fit moves them
        return min(s.left, s.tightest)
    return s.left
