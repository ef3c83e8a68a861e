"""The pool of pages of vLLM, SGLang and TensorRT-LLM: its size, and the tokens that it holds."""

from __future__ import annotations

from helpers.fits.arithmetic import up
from helpers.fits.sheet import Missing, Sheet, rule


@rule
def tokens_asked(s: Sheet) -> float:
    if s.given("tokens"):
        # as given
        return s.tokens
    if s.given("max_total_tokens"):
        # as given
        return s.max_total_tokens
    # room for one request of the whole context
    return s.n_ctx


@rule
def swa_ratio(s: Sheet) -> float:
    if s.n_layer_kv == 0:
        # read: sglang pool_configurator.py, HybridSWAPoolConfigurator: no ratio where every layer
        # slides
        return 1
    # read: sglang/srt/server_args.py, swa_full_tokens_ratio
    return 0.8


@rule
def block_size(s: Sheet) -> float:
    if s.family == "vLLM" and s.n_layer_recurrent and s.n_layer_kv and s.has("conv_state"):
        # read: vllm/platforms/interface.py: the first multiple of 16 whose page holds a state
        return 16 * up((2 * s.conv_state + s.scan_bytes * s.scan_state) / s.tp, 16 * s.full_layer)
    # read: vllm/config/cache.py, block_size, where no backend asks for more
    return 16


@rule
def max_num_batched_tokens(s: Sheet) -> float:
    # read: vllm/engine/arg_utils.py, the default of a server, 2048 on smaller cards
    return 8192 if s.date >= 202507 else 2048


@rule
def in_flight(s: Sheet) -> float:
    if s.date >= 202606:
        # read: vllm/config/vllm.py, max_in_flight_tokens: two batches with asynchronous
        # scheduling
        return 2 * s.max_num_batched_tokens
    # read: vllm/v1/kv_cache_interface.py, SlidingWindowSpec
    return s.max_num_batched_tokens


@rule
def one_kind(s: Sheet) -> float:
    # read: vllm/v1/core/kv_cache_utils.py, get_kv_cache_groups
    return (
        s.n_layer_recurrent == 0
        and (s.n_layer_cross == 0 or s.date < 202506)
        and (s.n_layer_swa == 0 or s.date < 202506 or s.disable_hybrid_kv_cache_manager)
    )


@rule
def page(s: Sheet) -> float:
    if s.n_layer_swa == 0:
        # read: unify_kv_cache_spec_page_size
        return s.block_size * s.full_layer
    if s.n_layer_kv == 0:
        # as above
        return s.block_size * s.swa_layer
    # as above: the smaller page takes more tokens
    return s.block_size * max(s.full_layer, s.swa_layer)


@rule
def kinds(s: Sheet) -> list[float]:
    # how many layers are of each kind
    return [n for n in (s.n_layer_kv, s.n_layer_swa, s.n_layer_recurrent, s.n_layer_cross) if n]


@rule
def group(s: Sheet) -> float:
    # read: _get_kv_cache_groups_uniform_page_size
    layers = s.sizes("kinds")
    if max(layers) < 1.5 * min(layers):
        return max(layers)
    return min(layers)


@rule
def groups(s: Sheet) -> float:
    # as group
    return (
        up(s.n_layer_kv, s.group)
        + up(s.n_layer_swa, s.group)
        + up(s.n_layer_recurrent, s.group)
        + up(s.n_layer_cross, s.group)
    )


@rule
def swa_blocks(s: Sheet) -> float:
    if s.n_layer_swa == 0:
        # no sliding layers
        return 0
    # read: SlidingWindowSpec.max_memory_usage_bytes
    return up(s.n_layer_swa, s.group) * (
        up(
            min(s.n_swa - 1 + s.in_flight, s.n_ctx),
            s.block_size * max(1, s.page // (s.block_size * s.swa_layer)),
        )
        + 1
    )


@rule
def full_blocks(s: Sheet) -> float:
    if s.n_layer_kv == 0:
        # no full layers
        return 0
    # read: FullAttentionSpec.max_memory_usage_bytes
    return up(s.n_layer_kv, s.group) * up(s.n_ctx, s.page // s.full_layer)


@rule
def cross_blocks(s: Sheet) -> float:
    if s.n_layer_cross == 0:
        # no cross attention
        return 0
    # read: vllm/v1/kv_cache_interface.py, CrossAttentionSpec.max_memory_usage_bytes
    return up(s.n_layer_cross, s.group) * up(s.encoder_len, s.block_size)


@rule
def request_blocks(s: Sheet) -> float:
    if s.one_kind:
        # read: FullAttentionSpec.max_memory_usage_bytes
        return up(s.n_ctx, s.block_size)
    # read: vllm/v1/kv_cache_interface.py, MambaSpec.max_memory_usage_bytes: two states of each
    # recurrent group with prefix caching, one without, and one for each token drafted
    mode = s.text("mamba_cache_mode")
    states = s.num_speculative_tokens + (1 if mode == "none" else 2)
    if mode == "all":
        states = up(s.n_ctx, s.block_size)
    recurrent_blocks = states * up(s.n_layer_recurrent, s.group)
    return s.full_blocks + s.swa_blocks + s.cross_blocks + recurrent_blocks


@rule
def block_bytes(s: Sheet) -> float:
    if s.one_kind:
        # read: kv_cache_utils.py, one group
        return s.block_size * s.token_bytes
    # read: get_num_blocks: groups share one pool
    return s.page * s.group


@rule
def blocks(s: Sheet) -> float:
    # read: get_num_blocks
    return s.available // s.block_bytes


@rule
def tokens_held(s: Sheet) -> float:
    if s.family == "vLLM" and s.date >= 202605 and s.has("n_ctx"):
        # read: vllm pull request 40694 and kv_cache_utils.py of 0.21: concurrency times
        # max_model_len
        return int(s.blocks / s.request_blocks * s.n_ctx)
    if s.family == "vLLM" and s.one_kind:
        # read: vllm/v1/core/kv_cache_utils.py, _report_kv_cache_config; worker.py of V0
        return s.blocks * s.block_size
    if s.family == "vLLM":
        # read: _report_kv_cache_config before 0.21
        return s.blocks // s.groups * s.block_size
    if s.family == "SGLang" and s.given("tokens"):
        # as given
        return s.tokens
    if s.family == "SGLang":
        # read: sglang pool_configurator.py, cell size
        return (
            s.available // (s.full_token + s.swa_ratio * s.swa_token) // s.page_size * s.page_size
        )
    if s.family == "TensorRT-LLM":
        # read: kvCacheManager calculateMaxNumBlocks, ceilDiv
        return (
            up(int(s.free_fraction * s.available) // s.token_bytes, s.tokens_per_block)
            * s.tokens_per_block
        )
    # no rounding is known
    return s.available // s.token_bytes


@rule
def slots_held(s: Sheet) -> float:
    if s.family == "vLLM":
        # read: get_max_concurrency_for_kv_cache_config
        return int(s.blocks / s.request_blocks)
    if s.family == "SGLang":
        # requests of the whole context
        return int(s.tokens_held / s.n_ctx)
    raise Missing("slots_held")


@rule
def gpu_memory_utilization(s: Sheet) -> float:
    if s.family == "vLLM":
        # read: vllm/config/cache.py, gpu_memory_utilization
        return 0.92 if s.date >= 202603 else 0.9
    raise Missing("gpu_memory_utilization")


@rule
def share_free(s: Sheet) -> float:
    if (
        s.family == "vLLM"
        and s.has("short_at_start")
        and s.short_at_start < 0
        and s.given("card_free_bytes")
    ):
        # read: vllm/v1/worker/utils.py, request_memory: at most what is free of the card
        return int(100 * min(s.sizes("card_free_bytes")) / min(s.sizes("card_total_bytes"))) / 100
    raise Missing("share_free")


@rule
def short_at_start(s: Sheet) -> float:
    if s.family == "vLLM" and s.given("card_free_bytes") and s.given("card_total_bytes"):
        # read: vllm/v1/worker/utils.py, request_memory: refused where less is free than the share
        return (
            min(s.sizes("card_free_bytes"))
            - min(s.sizes("card_total_bytes")) * s.gpu_memory_utilization
        )
    if s.family == "vLLM" and not s.given("card_free_bytes") and s.has("ceiling"):
        # read: vllm/v1/worker/utils.py, request_memory: refused where less is free than the share
        return s.ceiling * (1 - s.gpu_memory_utilization) - s.others_bytes
    raise Missing("short_at_start")


@rule
def available(s: Sheet) -> float:
    if s.given("kv_cache_memory_bytes"):
        # as given
        return s.kv_cache_memory_bytes
    if s.given("available_kv_bytes"):
        # as given
        return s.available_kv_bytes
    if s.family == "vLLM" and s.has("short_at_start") and s.short_at_start < 0:
        # refused before anything is loaded
        return 0
    if s.family == "vLLM" and s.given("peak_torch_bytes"):
        # read: vllm/worker/worker.py of V0, determine_num_available_blocks
        return (
            min(s.sizes("card_total_bytes")) * s.gpu_memory_utilization
            - s.peak_torch_bytes
            - s.non_torch_bytes
        )
    if s.family == "vLLM":
        # read: vllm/v1/worker/gpu_worker.py, determine_available_memory; graphs are counted since
        # 0.21
        return (
            min(s.sizes("card_total_bytes")) * s.gpu_memory_utilization
            - s.weights
            - s.non_torch_bytes
            - s.activation_peak_bytes
            - (s.cuda_graph_bytes if s.date >= 202605 else 0)
        )
    if s.family == "SGLang":
        # read: sglang model_runner_kv_cache_mixin.py: a fraction of what was free before the load
        return (s.ceiling - s.others_bytes) * s.mem_fraction_static - s.weights - s.state_bytes
    if s.family == "TensorRT-LLM" and not s.given("weights_bytes"):
        # read: what is free once the engine is loaded
        return s.ceiling - s.others_bytes
    if s.family == "TensorRT-LLM":
        # read: TensorRT-LLM KvCacheConfig
        return s.ceiling - s.others_bytes - s.weights - s.activation_peak_bytes
    raise Missing("available")
