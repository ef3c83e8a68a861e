"""The cache of keys and values: bytes of a token of each layer, and of all that is kept.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.arithmetic import longest, up
from helpers.fits.rules.dimensions import heads_on_a_card
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet, element_bytes, rule


def bytes_of_type(s: Sheet, kind: str) -> float:
    """Bytes of an element of a cache of the type ``kind``, as the server counts them. Raises
    MissingFigure for a type that is not known.
    """
    ranges = table()["element_ranges"]
    if kind in ranges:
        # types of forks, whose blocks have become longer from one release to the next
        return s.either(*ranges[kind])
    if s.is_ollama and not s.measured and kind in ("q8_0", "q4_0"):
        # read: ollama fs/ggml/ggml.go, kvCacheBytesPerElement: smaller than the real 34/32 and
        # 18/32
        if kind == "q8_0":
            return 1
        return 0.5
    # read: ggml/src/ggml-common.h, blocks of 32 with their scales; torch dtypes
    return element_bytes(kind)


@rule
def bk(s: Sheet) -> float:
    """Bytes of an element of the keys."""
    return bytes_of_type(s, s.text("kv_type_k"))


@rule
def bv(s: Sheet) -> float:
    """Bytes of an element of the values."""
    return bytes_of_type(s, s.text("kv_type_v"))


@rule
def full_width(s: Sheet) -> float:
    """Bytes that a token's key and value take in one head of a layer without a window."""
    return s.head_dim_k * s.bk + s.head_dim_v * s.bv


@rule
def swa_width(s: Sheet) -> float:
    """Bytes that a token's key and value take in one head of a layer with a window."""
    return s.head_dim_swa * s.bk + s.head_dim_swa_v * s.bv


@rule
def full_layer(s: Sheet) -> float:
    """Bytes of a token in a layer without a window, on each card that has a part of the layer: keys
    and values of all heads, or with latent attention (kv_lora_rank) one latent for all heads.
    """
    if "bytes_per_token_layer" in s.inputs:
        return s.bytes_per_token_layer
    is_latent = "kv_lora_rank" in s.inputs
    if is_latent and s.is_vllm and s.text("kv_type") == "fp8_ds_mla":
        # read: vllm/v1/kv_cache_interface.py: the bytes of a token of the sparse layout
        return 656
    # Where a record gives the width of a head beside the latent, its cache has every head; models
    # read from a header never give both (layers.py).
    if not is_latent or "head_dim_k" in s.inputs:
        # read: llama.cpp src/llama-kv-cache.cpp; vllm/v1/kv_cache_interface.py; sglang
        # mem_cache/memory_pool.py; ollama GraphSize
        return heads_on_a_card(s, s.n_head_kv) * s.full_width
    # The latent of multi-head latent attention is one for all heads, not divided over cards.
    # Read: vllm/v1/kv_cache_interface.py, MLAAttentionSpec; sglang MLATokenToKVPool; llama.cpp
    # src/llama-kv-cache.cpp, has_v = !is_mla
    latent = (s.kv_lora_rank + s.n_rot) * s.bk
    if s.is_llama_cpp and s.date < 202601 and not s.is_ik_llama_cpp:
        # read: llama.cpp pull request 19067 (January 2026): before it a latent cache had values
        # too
        latent += s.kv_lora_rank * s.bv
    if s.is_pooled:  # llama.cpp keeps no keys of an indexer
        # read: vllm/model_executor/models/deepseek_v2.py, DeepseekV32IndexerCache: keys of 8 bits,
        # and a scale of 32 bits for 128 of them
        latent += s.index_width * (1 + 4 / 128)
    return latent


@rule
def swa_layer(s: Sheet) -> float:
    """Bytes of a token in a layer with a window, on each card."""
    return heads_on_a_card(s, s.n_head_kv_swa) * s.swa_width


@rule
def cards_of_a_layer(s: Sheet) -> float:
    """How many cards have a part of each layer."""
    if s.is_pooled:
        return s.tp
    return 1


@rule
def on_cards(s: Sheet) -> float:
    """The share of the caches that is on the cards: all of them, unless a log prints less."""
    if "kv_printed" in s.inputs:
        # The log prints the size of the cache on the cards (kv_printed), and that of every cache,
        # also of layers that stay with the host (cache_sizes).
        return min(1, s.kv_printed / sum(s.sizes("cache_sizes")))
    return 1


@rule
def full_token(s: Sheet) -> float:
    """Bytes of a token in all layers without a window: for servers with a pool on one card, else on
    all cards together. What a log prints comes before the model's header, and that before
    dimensions.
    """
    if "cache_cells" in s.inputs:
        # the sizes and the cells that the log prints; the caches with most cells have no window,
        # and cells are those of one stream
        cells = s.sizes("cache_cells")
        size = longest(s.sizes("cache_sizes"), cells)
        return s.on_cards * size / max(cells) / s.streams
    if "kv_printed" in s.inputs and "tokens_printed" in s.inputs:
        # the pool and its tokens that the log of SGLang prints, for one card; the pool has a page
        # more than the tokens
        return s.kv_printed / (s.tokens_printed + s.page_size)
    if "kv_printed" in s.inputs and "n_ctx_printed" in s.inputs:
        # the size and the context that the log prints
        return s.kv_printed / s.n_ctx_printed
    if "heads_full" in s.inputs:
        # layer by layer from the model's header
        return s.heads_full * s.full_width / s.cards_of_a_layer
    if s.is_pooled:
        # read: vllm/v1/core/kv_cache_utils.py: of pipeline stages the one with most layers counts
        return up(s.n_layer_kv, s.pp) * s.full_layer
    return s.n_layer_kv * s.full_layer


@rule
def swa_token(s: Sheet) -> float:
    """Bytes of a token in all layers with a window: for servers with a pool on one card, else on
    all cards together.
    """
    if s.n_layer_swa == 0:
        return 0
    if "cache_cells" in s.inputs:
        # the sizes and the cells that the log prints; caches with fewer cells have a window
        sizes = s.sizes("cache_sizes")
        cells = s.sizes("cache_cells")
        rest = sum(sizes) - longest(sizes, cells)
        return s.on_cards * rest / min(cells) / s.streams
    if "heads_swa_all" in s.inputs:
        # layer by layer from the model's header
        return s.heads_swa_all * s.swa_width / s.cards_of_a_layer
    return s.n_layer_swa * s.swa_layer


@rule
def token_bytes(s: Sheet) -> float:
    """Bytes of a token as long as it is within every window."""
    return s.full_token + s.swa_token


@rule
def swa_window(s: Sheet) -> float:
    """Tokens of the window; 0 where no layer has one."""
    if s.n_layer_swa == 0:
        return 0
    return s.n_swa


def paged(s: Sheet, tokens: float) -> float:
    """Bytes of a pool of SGLang that holds so many tokens (read: sglang memory_pool.py): it has one
    page more, and layers with a window have whole pages for their share of the tokens.
    """
    size = (tokens + s.page_size) * s.full_token
    if s.n_layer_swa:
        pages = int(s.swa_ratio * tokens) // s.page_size + 1
        size += pages * s.page_size * s.swa_token
    return size


@rule
def need_bytes(s: Sheet) -> float:
    """Bytes of the cache that the context needs: all of it, or one request of it in a pool."""
    if s.family == "Diffusers":
        s.cite("a pipeline of images keeps no cache")
        return 0
    if "unknown_cache" in s.inputs:
        s.no_bound(
            "the cache of an architecture that is not known: counted as plain attention"
        )
    if s.is_vllm:
        s.cite("read: check_enough_kv_cache_memory: one request of max_model_len")
        return s.request_blocks * s.block_bytes
    if s.is_sglang:
        s.cite(
            "read: sglang memory_pool.py: one page more than the tokens; "
            "pool_configurator.py: the sliding pool is cut to whole pages"
        )
        return paged(s, s.tokens_asked)
    if s.family == "Transformers":
        s.cite(
            "read: transformers cache_utils.py, DynamicCache: the window of sliding layers"
        )
        return s.n_ctx * s.full_token + min(s.n_ctx, s.swa_window) * s.swa_token
    if s.is_ollama:
        s.cite("read: ollama fs/ggml/ggml.go, GraphSize")
    else:
        s.cite("read: llama.cpp src/llama-kv-cache.cpp")
    return s.cells * s.full_token + s.swa_cells * s.swa_token


@rule
def kv_bytes(s: Sheet) -> float:
    """Bytes that the cache takes. A server with a pool fills it with all that its share leaves,
    once that is known. A cache that a log prints is taken as it is. Any other is what is asked for.
    """
    if s.is_vllm and s.has("available"):
        s.cite("vLLM gives the cache all that its share leaves")
        return s.available
    if "tokens_printed" in s.inputs and "kv_printed" in s.inputs:
        s.cite("as the log prints it, of one card")
        return s.kv_printed
    # With its tokens given (tokens), the pool of SGLang is as large as they need: see need_bytes.
    if s.is_sglang and s.has("available") and "tokens" not in s.inputs:
        s.cite("read: sglang memory_pool.py")
        return paged(s, s.tokens_held)
    if s.family == "TensorRT-LLM" and s.has("available"):
        s.cite("as tokens_held")  # rounded to whole blocks there
        return s.tokens_held * s.token_bytes
    # With its cells or its context, a printed size gives the bytes of a token, and so need_bytes.
    gives_a_token = "cache_cells" in s.inputs or "n_ctx_printed" in s.inputs
    if "kv_printed" in s.inputs and not gives_a_token:
        s.cite("as the log prints it")
        return s.kv_printed
    s.cite("the cache of what is asked for")
    return s.need_bytes
