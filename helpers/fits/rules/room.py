"""What is left: the ceiling, what is kept free, whole layers on each card."""

from __future__ import annotations

from helpers.fits.arithmetic import fullest_card, layers_in
from helpers.fits.sheet import HIGH, LOW, Missing, Sheet, rule
from helpers.ground.units import GIB, MIB


@rule
def others_bytes(s: Sheet) -> float:
    s.sources["others_bytes"] = "nobody else is known to hold memory"
    return 0


@rule
def ceiling(s: Sheet) -> float:
    if s.family == "SGLang" and s.given("free_after_load"):
        s.sources["ceiling"] = (
            "what was free before the load: what is free after it, and the weights"
        )
        return s.free_after_load + s.weights
    if s.given("card_free_bytes"):
        s.sources["ceiling"] = "what is free before the load"
        return (
            min(s.sizes("card_free_bytes"))
            if s.family in ("vLLM", "SGLang")
            else sum(s.sizes("card_free_bytes"))
        )
    s.sources["ceiling"] = "the cards as given"
    return (
        min(s.sizes("card_total_bytes"))
        if s.family in ("vLLM", "SGLang")
        else sum(s.sizes("card_total_bytes"))
    )


@rule
def reserve(s: Sheet) -> float:
    if s.family == "vLLM":
        s.sources["reserve"] = "what utilisation leaves to others"
        return min(s.sizes("card_total_bytes")) * (1 - s.gpu_memory_utilization)
    if s.family == "SGLang":
        s.sources["reserve"] = "what the fraction leaves to activations and graphs"
        return (s.ceiling - s.others_bytes) * (1 - s.mem_fraction_static)
    if s.family == "llama.cpp" and s.given("margin_bytes"):
        s.sources["reserve"] = "as given"
        return s.margin_bytes * s.cards
    if s.family == "llama.cpp" and s.given("gpu_layers_asked"):
        s.sources["reserve"] = (
            "read: llama.cpp common/fit.cpp: --fit changes nothing where --n-gpu-layers is set"
        )
        return 0
    if s.family == "llama.cpp" and s.date >= 202512 and s.given("card_free_bytes"):
        s.sources["reserve"] = (
            "read: llama.cpp common/common.h, fit_params_target: 1 GiB of what is free on "
            "each card, the driver's context with it, where neither layers nor context were "
            "set"
        )
        if s.end == LOW:
            return 0
        return 1 * GIB * s.cards - s.context_bytes
    if s.family == "llama.cpp" and s.date >= 202512:
        s.sources["reserve"] = (
            "read: llama.cpp common/common.h, fit_params_target: 1 GiB a card, where neither "
            "layers nor context were set"
        )
        return s.either(0, 1, 1) * GIB * s.cards
    if s.family == "ollama":
        s.sources["reserve"] = (
            "read: ollama discover/gpu.go: 457 MiB a card are kept free; llm/memory.go before "
            "0.12.11: and the size of a layer"
        )
        reserve: float = 457 * MIB
        if not s.measured and s.has("layer_bytes"):
            reserve += s.layer_bytes
        return reserve * s.cards
    s.sources["reserve"] = "none is known"
    return 0


@rule
def card_sizes(s: Sheet) -> list[float]:
    if s.given("card_free_bytes"):
        # what is free before the load
        return s.sizes("card_free_bytes")
    # the cards as given
    return s.sizes("card_total_bytes")


@rule
def shares(s: Sheet) -> list[float]:
    if s.given("tensor_split"):
        # as asked
        return s.sizes("tensor_split")
    # read: llama.cpp src/llama-model.cpp, load_tensors: by what is free on each card, where
    # --tensor-split is not given
    return s.sizes("card_sizes")


@rule
def n_gpu_layers(s: Sheet) -> float:
    # as asked
    return s.gpu_layers_asked


@rule
def share_on_gpu(s: Sheet) -> float:
    if s.has("n_gpu_layers") and s.has("n_layer"):
        # layers are whole; the output is one more
        return min(1, s.n_gpu_layers / (s.n_layer + 1))
    # all layers
    return 1


@rule
def layer_bytes(s: Sheet) -> float:
    if s.family == "ollama" and s.date < 202504 and s.given("weights_bytes"):
        # as in_weights
        return (s.weights - s.in_weights + s.kv_bytes) / s.n_layer
    if s.family == "ollama":
        # one of the blocks: weights and cache, alike for all
        return (s.weights - s.output_bytes + s.kv_bytes + s.state_bytes) / s.n_layer
    # blocks and output, alike for all
    return (s.weights + s.kv_bytes + s.state_bytes) / (s.n_layer + 1)


@rule
def eyes_first(s: Sheet) -> float:
    if s.date >= 202505 and s.own_engine:
        # read: ollama llm/memory.go since 0.7.1: the vision part of its own engine goes with the
        # output
        return 0
    # read: ollama llm/memory.go: on the first card
    return s.projector_weights_bytes + s.encoder


@rule
def layers_held(s: Sheet) -> float:
    if s.family == "ollama" and not s.given("n_gpu_layers"):
        # read: ollama llm/memory.go, EstimateGPULayers; since 0.12.11 llm/server.go,
        # assignLayers: whole layers on each card, and the output where one has room
        return layers_in(
            s.sizes("card_sizes"),
            s.graph_room + s.reserve / s.cards + s.others_bytes / s.cards,
            s.eyes_first,
            s.layer_bytes,
            s.output_bytes + s.projector_weights_bytes + s.encoder - s.eyes_first,
            s.n_layer,
        )
    raise Missing("layers_held")


@rule
def tightest(s: Sheet) -> float:
    # read: llama.cpp src/llama-model.cpp, load_tensors, get_layer_buft_list; layers are taken as
    # alike, so one more or less at the ends
    return fullest_card(
        s.sizes("card_sizes"),
        s.sizes("shares"),
        fixed=(s.compute + s.context_bytes + s.others_bytes + s.reserve) / s.cards,
        layer=s.layer_bytes,
        count=int(s.share_on_gpu * (s.n_layer + 1)),
        off=int(s.either(1, 0, -1)),
    )


@rule
def on_card(s: Sheet) -> float:
    # the sum of the rows
    return (
        s.share_on_gpu * (s.weights + s.kv_bytes + s.state_bytes - s.in_weights)
        + s.projector_weights_bytes
        + s.compute
        + s.context_bytes
        + s.others_bytes
        + s.reserve
    )


@rule
def spare(s: Sheet) -> float:
    if s.family == "vLLM" and s.has("short_at_start") and s.short_at_start < 0:
        # read: vllm/v1/worker/utils.py, request_memory: refused where less is free than the share
        return s.short_at_start
    if s.family == "vLLM" and not s.has("n_ctx"):
        # read: _check_enough_kv_cache_memory
        return s.available
    if s.family == "vLLM" and not s.has("need_bytes"):
        # what a request takes is not known: at least something must be left for it
        if s.end != HIGH:
            return s.available
        raise Missing(
            "spare", "what a request takes is not known: at least something must be left for it"
        )
    if s.family == "vLLM":
        # read: _check_enough_kv_cache_memory
        return s.available - s.need_bytes
    if s.family == "TensorRT-LLM":
        # read: kvCacheManager: blocks for one request
        return s.tokens_held - (s.n_ctx if s.given("n_ctx") else 1)
    if s.family == "SGLang" and s.has("tokens_asked"):
        # read: sglang pool_configurator.py
        return s.available - s.need_bytes
    if s.family == "SGLang":
        # read: sglang model_runner.py: refused where no token fits
        return s.available - 1
    if s.family == "llama.cpp" and s.given("fit_short_bytes"):
        # as --fit prints it
        return s.freed - s.fit_short_bytes
    if (
        s.family == "llama.cpp"
        and s.given("projected_bytes")
        and s.given("card_free_bytes")
        and s.given("fit_left_bytes")
    ):
        # as --fit prints it
        return s.freed + s.fit_left_bytes - s.reserve
    if s.family == "ollama" and s.has("layers_held") and s.layers_held < s.n_layer + 1:
        # what of the layers no card has room for
        return min(s.ceiling - s.on_card, (s.layers_held - s.n_layer - 1) * s.layer_bytes)
    if s.family == "llama.cpp" and (
        s.cards > 1 and (s.date < 202512 or s.given("tensor_split")) and s.has("tightest")
    ):
        # the sum of the rows against the ceiling, and each card with its whole layers; since
        # December 2025 --fit moves them
        return min(s.ceiling - s.on_card, s.tightest)
    # the sum of the rows against the ceiling
    return s.ceiling - s.on_card
