"""What a model and a request are: layers, heads, widths, context, slots, types of the cache."""

from __future__ import annotations

from helpers.fits.sheet import LIKELY, LOW, Missing, Sheet, rule


@rule
def n_ctx(s: Sheet) -> float:
    if s.given("cache_cells"):
        # the cells that the log prints
        return max(s.sizes("cache_cells")) * s.streams
    if s.family == "ollama":
        # read: ollama envconfig/config.go, OLLAMA_CONTEXT_LENGTH
        return 4096
    # the model's own longest, where none is given: llama.cpp and vLLM
    return s.n_ctx_train


@rule
def n_ctx_held(s: Sheet) -> float:
    if "kobold" in s.program and s.date >= 202312 and (s.n_ctx % 256 == 0):
        # read: koboldcpp gpttype_adapter.cpp, extra_context_handle_fragmentation: 80 more than
        # asked with context shift, 120 and 128 in later files; a context of whole 256 is taken as
        # what was asked
        return s.n_ctx + (80 if s.date < 202411 else 128)
    # as asked
    return s.n_ctx


@rule
def dp(s: Sheet) -> float:
    if s.given("dp_size"):
        # as given
        return s.dp_size
    # attention is not divided by requests
    return 1


@rule
def kv_type_k(s: Sheet) -> str:
    # one type for both
    return s.text("kv_type")


@rule
def kv_type_v(s: Sheet) -> str:
    # one type for both
    return s.text("kv_type")


@rule
def n_layer(s: Sheet) -> float:
    # read: ollama llm/memory.go: the blocks and the output
    return s.layers_model - 1


@rule
def n_layer_swa(s: Sheet) -> float:
    if s.given("cache_cells"):
        # caches that the log prints beside those of most cells
        return len(s.sizes("cache_cells")) - s.sizes("cache_cells").count(
            max(s.sizes("cache_cells"))
        )
    # no sliding layer is given
    return 0


@rule
def n_layer_kv(s: Sheet) -> float:
    # the rest of the layers; a layer that shares another's cache holds nothing (read: llama.cpp
    # src/llama-hparams.cpp, has_kv)
    return (
        s.n_layer - s.n_layer_swa - s.n_layer_recurrent - s.shared_kv_layers - s.layers_cross_only
    )


@rule
def tensor_cards(s: Sheet) -> float:
    # cards that share each layer, of servers that count for one card
    return s.tp if s.family in ("vLLM", "SGLang") else 1


@rule
def heads(s: Sheet) -> float:
    if s.family == "vLLM":
        # read: vllm/config/model.py, get_num_kv_heads: at least one on each card
        return max(1, s.n_head_kv // s.tp)
    if s.family == "SGLang":
        # read: sglang/srt/configs/model_config.py, get_num_kv_heads, over the cards that share
        # attention
        return max(1, s.n_head_kv // max(1, s.tp // s.dp))
    # as given
    return s.n_head_kv


@rule
def heads_swa(s: Sheet) -> float:
    if s.family == "vLLM":
        # as heads
        return max(1, s.n_head_kv_swa // s.tp)
    if s.family == "SGLang":
        # as heads
        return max(1, s.n_head_kv_swa // s.tp)
    # as given
    return s.n_head_kv_swa


@rule
def n_head_kv_swa(s: Sheet) -> float:
    # sliding layers have the heads of the others, where nothing else is given
    return s.n_head_kv


@rule
def n_head(s: Sheet) -> float:
    # not given: one to sixteen heads of queries for each of the cache
    if s.end == LOW:
        return s.n_head_kv
    if s.end == LIKELY:
        return 4 * s.n_head_kv
    return 16 * s.n_head_kv


@rule
def head_dim_k(s: Sheet) -> float:
    if s.given("head_dim"):
        # by its name in config.json
        return s.head_dim
    if not s.given("kv_lora_rank") and s.given("n_embd") and s.given("n_head"):
        # transformers: the model's width over its heads, where no width of a head is given
        return s.n_embd // s.n_head
    raise Missing("head_dim_k")


@rule
def head_dim_v(s: Sheet) -> float:
    # values are as wide as keys, where nothing else is given
    return s.head_dim_k


@rule
def head_dim_swa(s: Sheet) -> float:
    # as n_head_kv_swa
    return s.head_dim_k


@rule
def head_dim_swa_v(s: Sheet) -> float:
    if s.given("head_dim_swa"):
        # as n_head_kv_swa
        return s.head_dim_swa
    # as n_head_kv_swa
    return s.head_dim_v


@rule
def encoder_len(s: Sheet) -> float:
    if s.given("max_num_tiles"):
        # transformers modeling_mllama.py: patches of every tile and one for its class
        return ((s.image_size // s.patch_size) ** 2 + 1) * s.max_num_tiles
    if "whisper" in s.program:
        # read: whisper.cpp src/whisper.cpp, n_audio_ctx
        return 1500
    if s.family == "ollama":
        # read: ollama GraphSize, mllama: tokens of four tiles
        return 1601 * 4
    raise Missing("encoder_len")


@rule
def has_swa(s: Sheet) -> float:
    # as given
    return "SWA" in s.tags or s.n_layer_swa > 0


@rule
def is_moe(s: Sheet) -> float:
    # as given
    return "MoE" in s.tags or (s.given("n_expert") and s.n_expert > 1)


@rule
def is_mla(s: Sheet) -> float:
    # as given
    return "MLA" in s.tags or s.given("kv_lora_rank")


@rule
def gguf_arch(s: Sheet) -> str:
    if s.has_swa and s.is_moe:
        # by its layers: sliding windows and experts
        return "gptoss"
    if s.has_swa:
        # by its layers
        return "gemma3"
    if s.is_mla:
        # by its attention
        return "deepseek2"
    # where nothing else is given
    return "llama"


@rule
def sees(s: Sheet) -> float:
    # a vision part
    return s.family in ("llama.cpp", "ollama") and (
        "vision" in s.tags
        or (s.given("vision_parts") and s.vision_parts > 0)
        or s.projector_weights_bytes > 0
    )


@rule
def eye(s: Sheet) -> float:
    if s.given("image_size"):
        # as given
        return s.image_size
    # Gemma 3 and Mistral Small 3.1, their headers' vision.image_size
    return 896 if s.text("gguf_arch") == "gemma3" else 1540


@rule
def flash_attn(s: Sheet) -> float:
    if "ik_" in s.program:
        # read: ik_llama.cpp common/common.h: on since November 2025
        return s.date >= 202511
    # read: llama.cpp pull request 15434 (August 2025): flash attention is on where the backend
    # has it
    return s.date >= 202509


@rule
def n_batch(s: Sheet) -> float:
    if s.family == "ollama":
        # read: ollama api/types.go, NumBatch
        return 512
    # read: llama.cpp common/common.h, n_batch
    return min(2048, s.n_ctx)


@rule
def n_ubatch(s: Sheet) -> float:
    # read: llama.cpp common/common.h, n_ubatch
    return min(512, s.n_batch)


@rule
def n_ctx_most(s: Sheet) -> float:
    if s.given("n_ctx_train"):
        # the model's own longest
        return s.n_ctx_train
    # no longest is given
    return 16777216


@rule
def cards(s: Sheet) -> float:
    # as given
    if s.given("card_free_bytes"):
        return len(s.sizes("card_free_bytes"))
    if s.given("card_total_bytes"):
        return len(s.sizes("card_total_bytes"))
    return 1
