"""The cache of keys and values: bytes of a token of each layer, and of all that is kept."""

from __future__ import annotations

from helpers.fits.arithmetic import longest, pad, up
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet, element_bytes, rule


def bytes_of_type(s: Sheet, kind: str) -> float:
    """Bytes of an element of a cache of that type, as the program counts them."""
    ranges = table()["element_ranges"]
    if kind in ranges:
        return s.either(*ranges[kind])
    if s.family == "ollama" and not s.measured and kind in ("q8_0", "q4_0"):
        # read: ollama fs/ggml/ggml.go, kvCacheBytesPerElement: smaller than the real 34/32 and
        # 18/32
        return 1 if kind == "q8_0" else 0.5
    # read: ggml/src/ggml-common.h, blocks of 32 with their scales; torch dtypes
    return element_bytes(kind)


@rule
def bk(s: Sheet) -> float:
    # of keys
    return bytes_of_type(s, s.text("kv_type_k"))


@rule
def bv(s: Sheet) -> float:
    # of values
    return bytes_of_type(s, s.text("kv_type_v"))


@rule
def has_v(s: Sheet) -> float:
    if s.family == "llama.cpp" and s.date < 202601 and "ik_" not in s.program:
        # read: llama.cpp pull request 19067 (January 2026): before it a latent cache had values
        # too
        return 1
    # read: llama.cpp src/llama-kv-cache.cpp, has_v = !is_mla
    return 0


@rule
def latent(s: Sheet) -> float:
    if s.family == "llama.cpp":
        # read: llama.cpp src/llama-kv-cache.cpp
        return s.kv_lora_rank * (s.bk + s.has_v * s.bv) + s.n_rot * s.bk
    # read: vllm/v1/kv_cache_interface.py, MLAAttentionSpec; sglang MLATokenToKVPool: not divided
    # over cards
    return (s.kv_lora_rank + s.n_rot) * s.bk


@rule
def full_layer(s: Sheet) -> float:
    if s.given("bytes_per_token_layer"):
        # as given
        return s.bytes_per_token_layer
    if s.family == "vLLM" and s.given("kv_lora_rank") and s.text("kv_type") == "fp8_ds_mla":
        # read: vllm/v1/kv_cache_interface.py: 656 bytes a token of the sparse layout
        return 656
    if s.given("kv_lora_rank") and (not s.given("head_dim_k")):
        # the latent of multi-head latent attention, one for all heads
        return s.latent
    # read: llama.cpp src/llama-kv-cache.cpp; vllm/v1/kv_cache_interface.py; sglang
    # mem_cache/memory_pool.py; ollama GraphSize
    return s.heads * (s.head_dim_k * s.bk + s.head_dim_v * s.bv)


@rule
def on_cards(s: Sheet) -> float:
    if s.given("kv_printed"):
        # what of the caches the log prints for the cards
        return min(1, s.kv_printed / sum(s.sizes("cache_sizes")))
    # all of it
    return 1


@rule
def full_token(s: Sheet) -> float:
    if s.given("cache_cells"):
        # the sizes and the cells that the log prints
        cells = s.sizes("cache_cells")
        return s.on_cards * longest(s.sizes("cache_sizes"), cells) / max(cells) / s.streams
    if s.given("kv_printed") and s.given("n_ctx_printed"):
        # the size and the context that the log prints
        return s.kv_printed / s.n_ctx_printed
    if s.given("heads_full"):
        # layer by layer from the model's header
        return s.heads_full * (s.head_dim_k * s.bk + s.head_dim_v * s.bv) / s.tensor_cards
    if s.family in ("vLLM", "SGLang") and s.pp > 1:
        # read: vllm/v1/core/kv_cache_utils.py: the card with most layers counts
        return up(s.n_layer_kv, s.pp) * s.full_layer
    # as full_layer
    return s.n_layer_kv * s.full_layer


@rule
def swa_layer(s: Sheet) -> float:
    # as full_layer
    return s.heads_swa * (s.head_dim_swa * s.bk + s.head_dim_swa_v * s.bv)


@rule
def swa_token(s: Sheet) -> float:
    if s.given("cache_cells") and s.n_layer_swa:
        # the sizes and the cells that the log prints
        sizes = s.sizes("cache_sizes")
        cells = s.sizes("cache_cells")
        rest = sum(sizes) - longest(sizes, cells)
        return s.on_cards * rest / min(cells) / s.streams
    if s.given("heads_swa_all"):
        # layer by layer from the model's header
        swa_width = s.head_dim_swa * s.bk + s.head_dim_swa_v * s.bv
        return s.heads_swa_all * swa_width / s.tensor_cards
    if s.n_layer_swa == 0:
        # no sliding layers
        return 0
    # as swa_layer
    return s.n_layer_swa * s.swa_layer


@rule
def token_bytes(s: Sheet) -> float:
    if s.family == "vLLM":
        # read: vllm/worker/cache_engine.py of V0: a block holds every layer's tokens
        return (
            s.full_token + s.swa_token + (s.n_layer_cross * s.full_layer if s.n_layer_cross else 0)
        )
    # bytes of a token while no window limits it
    return s.full_token + s.swa_token


@rule
def cross_bytes(s: Sheet) -> float:
    if s.n_layer_cross == 0:
        # no cross attention is given
        return 0
    if s.family == "ollama" and s.text("gguf_arch") == "mllama":
        # read: ollama GraphSize, mllama: 32 bits, whatever the type of the cache
        return s.n_layer_cross * s.heads * (s.head_dim_k + s.head_dim_v) * 4 * s.encoder_len
    if s.family == "llama.cpp" and "whisper" in s.program:
        # read: whisper.cpp src/whisper.cpp, whisper_init_state: kv_cross, in the type of the
        # cache
        return s.n_layer_cross * pad(s.encoder_len, s.n_pad) * s.full_layer
    if s.family in ("llama.cpp", "ollama"):
        # read: llama.cpp src/models/t5-dec.cpp: keys and values of the encoder are computed anew
        # for each batch
        return 0
    # read: transformers cache_utils.py, EncoderDecoderCache: keys and values of the encoder's
    # output
    return s.n_parallel * s.n_layer_cross * s.encoder_len * s.full_layer


@rule
def need_bytes(s: Sheet) -> float:
    if s.family == "vLLM":
        s.sources["need_bytes"] = "read: check_enough_kv_cache_memory: one request of max_model_len"
        return s.request_blocks * s.block_bytes
    if s.family == "SGLang":
        s.sources["need_bytes"] = (
            "read: sglang memory_pool.py: one page more than the tokens; "
            "pool_configurator.py: the sliding pool is cut to whole pages"
        )
        return (s.tokens_asked + s.page_size) * s.full_token + (
            int(s.swa_ratio * s.tokens_asked) // s.page_size * s.page_size + s.page_size
            if s.n_layer_swa
            else 0
        ) * s.swa_token
    if s.family == "ollama":
        s.sources["need_bytes"] = "read: ollama fs/ggml/ggml.go, GraphSize"
        return s.cells * s.full_token + s.swa_cells * s.swa_token + s.cross_bytes
    s.sources["need_bytes"] = "read: llama.cpp src/llama-kv-cache.cpp"
    return s.cells * s.full_token + s.swa_cells * s.swa_token + s.cross_bytes


@rule
def kv_bytes(s: Sheet) -> float:
    if s.family == "vLLM" and s.has("available"):
        s.sources["kv_bytes"] = "vLLM gives the cache all that its share leaves"
        return s.available
    if s.family == "SGLang" and s.has("available") and (not s.given("tokens")):
        s.sources["kv_bytes"] = "read: sglang memory_pool.py"
        return (s.tokens_held + s.page_size) * s.full_token + (
            int(s.swa_ratio * s.tokens_held) // s.page_size * s.page_size + s.page_size
            if s.n_layer_swa
            else 0
        ) * s.swa_token
    if s.family == "TensorRT-LLM" and s.has("available"):
        s.sources["kv_bytes"] = "as tokens_held"
        return s.tokens_held * s.token_bytes
    if s.given("kv_printed") and (not s.given("cache_cells")) and (not s.given("n_ctx_printed")):
        s.sources["kv_bytes"] = "as the log prints it"
        return s.kv_printed
    s.sources["kv_bytes"] = "the cache of what is asked for"
    return s.need_bytes


@rule
def freed(s: Sheet) -> float:
    if s.given("n_ctx_asked") and s.has("full_token"):
        # the cache of what is no longer asked for
        return s.full_token * (s.n_ctx_asked - s.n_ctx)
    # as asked
    return 0
