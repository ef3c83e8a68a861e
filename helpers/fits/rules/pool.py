"""The pool of pages of vLLM, SGLang and TensorRT-LLM: its size, and the tokens that it holds.

vLLM's pool consists of blocks of equal bytes. A model whose layers are of several kinds (without a
window, with one, recurrent) has its layers in groups of one kind: a block belongs to one group, and
has a page for each layer of it.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.arithmetic import up
from helpers.fits.sheet import MissingFigure, Sheet, rule
from helpers.ground.units import GIB, MIB

SGLANG_TIERS = (
    (163840, 16384, 512, 512),
    (61440, 8192, 256, 512),
    (35840, 4096, 32, 160),
    (20480, 4096, 48, 160),
    (0, 2048, 8, 8),
)
"""SGLang's defaults by the card (sglang/srt/arg_groups, handle_gpu_memory_settings): from so many
MiB on, tokens of a chunk, and requests of a graph where fewer than four cards share a layer, and
where four or more do.
"""
SGLANG_TIERS_BEFORE = (*SGLANG_TIERS[:3], (20480, 2048, 24, 80), SGLANG_TIERS[4])
"""The same until the spring of 2026."""
PREFILL_GRAPH_MIB = 400
"""8 MiB for each of some 50 sizes of a prefill graph (same function)."""
LARGE_CARD = 70 * GIB
"""Bytes of a card from which vLLM's defaults are larger (vllm/engine/arg_utils.py)."""


@rule
def swa_ratio(s: Sheet) -> float:
    """Tokens of SGLang's pool of layers with a window, for each token of the other pool."""
    # read: sglang/srt/server_args.py, swa_full_tokens_ratio; pool_configurator.py,
    # HybridSWAPoolConfigurator: no ratio where every layer slides
    if s.n_layer_kv:
        return 0.8
    return 1


@rule
def block_size(s: Sheet) -> float:
    """Tokens of a block of vLLM's pool: 16, or in a model that has recurrent layers beside
    attention as many as make a page as large as a state.
    """
    if s.is_vllm and s.n_layer_recurrent and s.n_layer_kv and s.has("state_layer"):
        # read: vllm/platforms/interface.py: the first multiple of 16 whose page holds a state
        return 16 * up(s.state_layer / s.tp, 16 * s.full_layer)
    # read: vllm/config/cache.py, block_size, where no backend asks for more
    return 16


@rule
def max_num_batched_tokens(s: Sheet) -> float:
    """The most tokens of a step of vLLM."""
    # A model that was read from its header has a width (n_embd) among its inputs; without one the
    # default of large cards counts, which needs more memory: our choice, to be on the safe side.
    # read: vllm/engine/arg_utils.py, the default of a server, by the memory of the card
    is_small = False
    if "n_embd" in s.inputs and s.has("card_total"):
        is_small = s.card_total < LARGE_CARD
    if s.date < 202507 or is_small:
        return 2048
    return 8192


@rule
def one_kind(s: Sheet) -> float:
    """Whether vLLM keeps the cache of all layers alike."""
    # read: vllm/v1/core/kv_cache_utils.py, get_kv_cache_groups: without groups (before June 2025,
    # or by an option) layers with a window are kept as those without one
    has_no_groups = s.date < 202506 or s.disable_hybrid_kv_cache_manager
    return s.n_layer_recurrent == 0 and (s.n_layer_swa == 0 or has_no_groups)


@rule
def page(s: Sheet) -> float:
    """Bytes of a block in one layer, which are the same for all kinds of layers."""
    # read: unify_kv_cache_spec_page_size: the largest page counts; layers with fewer bytes a token
    # keep more tokens in it
    if not s.n_layer_swa:
        return s.block_size * s.full_layer
    if not s.n_layer_kv:
        return s.block_size * s.swa_layer
    return s.block_size * max(s.full_layer, s.swa_layer)


@rule
def kinds(s: Sheet) -> list[float]:
    """How many layers there are of each kind that the model has: without a window, with one, and
    recurrent.
    """
    return [n for n in (s.n_layer_kv, s.n_layer_swa, s.n_layer_recurrent) if n]


@rule
def group(s: Sheet) -> float:
    """How many layers of one kind are a group; one block has a page for each of them."""
    # read: _get_kv_cache_groups_uniform_page_size
    layers = s.sizes("kinds")
    # Groups have one size. Usually it is that of the smallest kind, and a larger kind has several
    # groups. Where the kinds are nearly as large, padding the smaller ones to one group wastes
    # less.
    if max(layers) < 1.5 * min(layers):
        return max(layers)
    return min(layers)


@rule
def request_blocks(s: Sheet) -> float:
    """Blocks that one request of the whole context takes, in all groups."""
    if s.one_kind:
        # read: FullAttentionSpec.max_memory_usage_bytes
        return up(s.n_ctx, s.block_size)
    # read: vllm/v1/kv_cache_interface.py, MambaSpec.max_memory_usage_bytes: each recurrent group
    # has a state for every block of tokens (mode all), two (align), or one (none), and in the last
    # two modes another for each token drafted
    mode = s.text("mamba_cache_mode")
    if mode == "all":
        states = up(s.n_ctx, s.block_size)
    elif mode == "none":
        states = 1 + s.num_speculative_tokens
    else:
        states = 2 + s.num_speculative_tokens
    blocks = states * up(s.n_layer_recurrent, s.group)
    if s.n_layer_kv:
        # read: FullAttentionSpec.max_memory_usage_bytes; a block has as many tokens as fit its page
        blocks += up(s.n_layer_kv, s.group) * up(s.n_ctx, s.page // s.full_layer)
    if s.n_layer_swa:
        # read: vllm/v1/kv_cache_interface.py, SlidingWindowSpec.max_memory_usage_bytes: the last
        # tokens of the window, those of a batch, and a block more, as a window begins within one;
        # vllm/config/vllm.py, max_in_flight_tokens: two batches with asynchronous scheduling
        batched = s.max_num_batched_tokens
        if s.date >= 202606:
            batched *= 2
        tokens = min(s.n_swa - 1 + batched, s.n_ctx)
        pages_a_block = max(1, s.page // (s.block_size * s.swa_layer))
        blocks_a_group = up(tokens, s.block_size * pages_a_block) + 1
        blocks += up(s.n_layer_swa, s.group) * blocks_a_group
    return blocks


@rule
def block_bytes(s: Sheet) -> float:
    """Bytes of a block of vLLM's pool, in all layers of its group."""
    if s.one_kind:
        # read: kv_cache_utils.py, one group
        return s.block_size * s.token_bytes
    # read: get_num_blocks: groups share one pool
    return s.page * s.group


@rule
def blocks(s: Sheet) -> float:
    """Blocks of the pool."""
    # read: get_num_blocks
    return s.available // s.block_bytes


@rule
def tokens_held(s: Sheet) -> float:
    """Tokens for which the pool has room, as each server prints them at start."""
    if s.is_vllm and s.date >= 202605 and s.has("n_ctx"):
        # read: vllm pull request 40694 and kv_cache_utils.py of 0.21: concurrency times
        # max_model_len
        return int(s.blocks / s.request_blocks * s.n_ctx)
    if s.is_vllm:
        # read: vllm/v1/core/kv_cache_utils.py, _report_kv_cache_config before 0.21; worker.py of
        # V0
        groups = 1.0
        if not s.one_kind:
            groups = sum(up(layers, s.group) for layers in s.sizes("kinds"))
        return s.blocks // groups * s.block_size
    if s.is_sglang and "tokens" in s.inputs:
        return s.tokens  # of a log or a record
    if s.is_sglang:
        # read: sglang pool_configurator.py, cell size; whole pages
        token = s.full_token + s.swa_ratio * s.swa_token
        pages = s.available // token // s.page_size
        return pages * s.page_size
    if s.family == "TensorRT-LLM":
        # read: kvCacheManager calculateMaxNumBlocks, ceilDiv
        tokens = int(s.free_fraction * s.available) // s.token_bytes
        return up(tokens, s.tokens_per_block) * s.tokens_per_block
    # no rounding is known
    return s.available // s.token_bytes


@rule
def slots_held(s: Sheet) -> float:
    """How many requests of the whole context the pool of vLLM or SGLang holds at once. Raises
    MissingFigure for others: their slots are tried one by one (solving.py).
    """
    if s.is_vllm:
        # read: get_max_concurrency_for_kv_cache_config
        return int(s.blocks / s.request_blocks)
    if s.is_sglang:
        return int(s.tokens_held / s.n_ctx)
    raise MissingFigure("slots_held")


@rule
def request_tokens(s: Sheet) -> float:
    """The most tokens of one request: in a pool the whole context, else that of one slot."""
    if s.is_pooled:
        return s.n_ctx
    # the context is the sum over all slots
    return s.n_ctx / s.n_parallel


@rule
def gpu_memory_utilization(s: Sheet) -> float:
    """The share of the card that vLLM takes by default. Raises MissingFigure for other servers."""
    if not s.is_vllm:
        raise MissingFigure("gpu_memory_utilization")
    # read: vllm/config/cache.py, gpu_memory_utilization
    if s.date >= 202603:
        return 0.92
    return 0.9


@rule
def mem_fraction_static(s: Sheet) -> float:
    """The share of the free memory that SGLang takes for weights and pool by default. Raises
    MissingFigure for other servers.
    """
    if not s.is_sglang:
        raise MissingFigure("mem_fraction_static")
    # read: sglang/srt/arg_groups (until the spring of 2026 server_args.py),
    # handle_gpu_memory_settings
    if "card_total_bytes" not in s.inputs:
        return 0.88  # its default where it cannot read the size of the card
    tiers = SGLANG_TIERS_BEFORE
    reserved_mib = 0.0
    if s.date >= 202606:
        tiers = SGLANG_TIERS
        reserved_mib = PREFILL_GRAPH_MIB
    card_mib = s.card_total / MIB
    _, chunk, requests, requests_of_four = next(
        tier for tier in tiers if card_mib >= tier[0]
    )
    if s.tp >= 4:
        requests = requests_of_four
    # 512 MiB, 1.5 MiB a token of a chunk, 2 MiB a request of a graph, and 1 GiB for each eight
    # cards of the model; at least 10 GiB of a card of more than 60
    parallel_mib = s.tp * s.pp / 8 * 1024
    reserved_mib += 512 + 1.5 * chunk + 2 * requests + parallel_mib
    if card_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    return round(max(0.01, (card_mib - reserved_mib) / card_mib), 3)


@rule
def card_total(s: Sheet) -> float:
    """Bytes of the smallest card: these servers take the same of each."""
    return min(s.sizes("card_total_bytes"))


@rule
def card_free(s: Sheet) -> float:
    """Bytes that are free on the card with the least."""
    return min(s.sizes("card_free_bytes"))


@rule
def share_free(s: Sheet) -> float:
    """The share of the card that vLLM can be given where it refuses its share: what is free, in
    whole percents rounded down. Raises MissingFigure where it does not refuse, or nothing says what
    is free.
    """
    if s.refused and "card_free_bytes" in s.inputs:
        # read: vllm/v1/worker/utils.py, request_memory: at most what is free of the card
        return int(100 * s.card_free / s.card_total) / 100
    raise MissingFigure("share_free")


@rule
def short_at_start(s: Sheet) -> float:
    """Bytes that are free beyond vLLM's share; below 0 it refuses to start."""
    # read: vllm/v1/worker/utils.py, request_memory: refused where less is free than the share
    if "card_free_bytes" in s.inputs:
        return s.card_free - s.card_total * s.gpu_memory_utilization
    # No reading says what is free: it is what others leave of the card.
    return s.ceiling * (1 - s.gpu_memory_utilization) - s.others_bytes


@rule
def refused(s: Sheet) -> float:
    """Whether vLLM refuses to start before it loads anything."""
    return s.is_vllm and s.has("short_at_start") and s.short_at_start < 0


@rule
def available(s: Sheet) -> float:
    """Bytes of a card for the pool. Raises MissingFigure for a server without one.

    They are as given (kv_cache_memory_bytes) or printed (available_kv_bytes), and 0 where vLLM
    refuses to start; else what the server's share leaves beside weights and activations.
    """
    for name in ("kv_cache_memory_bytes", "available_kv_bytes"):
        if name in s.inputs:
            return s.figure(name)
    if s.refused:
        return 0
    if s.is_vllm:
        share = s.card_total * s.gpu_memory_utilization
        if "peak_torch_bytes" in s.inputs:
            # read: vllm/worker/worker.py of V0, determine_num_available_blocks
            return share - s.peak_torch_bytes - s.non_torch_bytes
        # read: vllm/v1/worker/gpu_worker.py, determine_available_memory; graphs are counted since
        # 0.21 (May 2026)
        left = share - s.weights - s.non_torch_bytes - s.activation_peak_bytes
        if s.date >= 202605:
            left -= s.cuda_graph_bytes
        return left
    free = s.ceiling - s.others_bytes
    if s.is_sglang:
        # read: sglang model_runner_kv_cache_mixin.py: a fraction of what was free before the load,
        # when its context was there already; activations take of the rest
        free -= s.context_bytes
        return free * s.mem_fraction_static - s.weights - s.state_bytes
    if s.family != "TensorRT-LLM":
        raise MissingFigure("available")
    if "weights_bytes" not in s.inputs:
        # Its log prints no weights, but what is free once the engine is loaded: they are out of
        # that.
        return free
    # read: TensorRT-LLM KvCacheConfig
    return free - s.weights - s.activation_peak_bytes
