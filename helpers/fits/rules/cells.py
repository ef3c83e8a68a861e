"""Cells of a cache of llama.cpp and ollama, each of one token, as their programs round them.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.arithmetic import pad, up
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet, rule

PADDING = 256
"""Cells of which a cache is rounded up to a multiple: llama.cpp (pull request 17046) and ollama
(ml/backend/ggml, CachePadding).
"""
GPT_OSS = ("gptoss", "gpt-oss")
"""The architecture, as ollama and as llama.cpp name it."""
GPT_OSS_CELLS = 4096
"""Cells of its window in ollama (GraphSize, gptoss; model/models/gptoss), in place of the 128
tokens of its header.
"""


@rule
def measured(s: Sheet) -> float:
    """Whether this release of ollama measures what it allocates, in place of an estimate. Models of
    its own engine are measured since 0.12.0, all others since 0.12.11.
    """
    if not s.is_ollama:
        return False
    if 202509 <= s.date < 202511 and s.own_engine:
        # read: ollama llm/server.go, ollamaServer of 0.12.0: models of its own engine are loaded
        # and counted
        return True
    # read: ollama llm/server.go of 0.12.11: it loads, counts and lays out anew, and estimates
    # nothing
    if "." in s.version:  # a release number, whose month is that of this very release
        return s.date >= 202511
    # Where only a month is known, an older release may have run then: three months later it is
    # taken to be gone, our choice.
    return s.date >= 202602


@rule
def own_engine(s: Sheet) -> float:
    """Whether ollama runs the model with its own engine, and not with llama.cpp."""
    # read: ollama fs/ggml/ggml.go, OllamaEngineRequired
    return s.architecture in table()["own_engine"]


@rule
def n_pad(s: Sheet) -> float:
    """The number of cells of which llama.cpp rounds a cache up to a multiple; 1 where it does not
    round.
    """
    if s.date >= 202511 and not s.is_ik_llama_cpp:
        # read: llama.cpp src/llama-context.cpp, pull request 17046
        return PADDING
    if s.date >= 202404:
        # read: llama.cpp llama_kv_cache::get_padding, more cells for flash attention; pull request
        # 6177 of March 2024 is the first to pad
        if s.flash_attn:
            return PADDING
        return 32
    return 1


@rule
def streams(s: Sheet) -> float:
    """How many caches llama.cpp has, which it calls streams: one for all slots, or one for each."""
    if s.date < 202507:
        # read: llama.cpp before pull request 14363: one cache for all slots
        return 1
    # read: llama.cpp src/llama-kv-cache.cpp, n_stream
    if s.kv_unified:
        return 1
    return s.n_parallel


@rule
def cells(s: Sheet) -> float:
    """Cells of the cache of layers without a window: tokens for which it has room, of all streams
    together.
    """
    if "cells_per_stream" in s.inputs:
        # as printed: cells are those of one stream
        return s.cells_per_stream * s.streams
    if s.is_llama_cpp and s.date >= 202511 and not s.is_ik_llama_cpp:
        # read: llama.cpp src/llama-context.cpp, n_ctx_seq
        return pad(pad(s.n_ctx, PADDING) // s.streams, PADDING) * s.streams
    if s.is_llama_cpp:
        # read: llama.cpp src/llama-model.cpp, create_memory, before November 2025
        return pad(up(s.n_ctx, s.streams), s.n_pad) * s.streams
    if s.measured:
        # read: ollama kvcache/causal.go, Init; ml/backend/ggml, CachePadding; 0.12.11 counts what
        # it allocates
        return pad(s.n_ctx, PADDING)
    # other servers, and ollama's estimate, round nothing
    return s.n_ctx


@rule
def swa_full(s: Sheet) -> float:
    """Whether layers with a window keep all tokens nevertheless."""
    # records: koboldcpp kept whole windows until the middle of 2026; read: llama.cpp
    # common/common.h, swa_full
    return "kobold" in s.program and s.date < 202606


@rule
def swa_cells(s: Sheet) -> float:
    """Cells of the cache of layers with a window, of all streams together; 0 without such layers."""
    if s.n_layer_swa == 0:
        return 0
    if "cache_cells" in s.inputs:
        # as printed: cells are those of one stream
        return min(s.sizes("cache_cells")) * s.streams
    if s.is_llama_cpp:
        return window_cells_of_llama_cpp(s)
    is_gpt_oss = s.architecture in GPT_OSS
    if s.measured:
        # read: ollama kvcache/causal.go, Init: a window for each slot and a batch, and a token more
        # for each window where slots share the cache
        window = s.n_swa
        if is_gpt_oss:
            window = GPT_OSS_CELLS
        elif s.n_parallel > 1:
            window += 1
        return min(s.cells, pad(s.n_parallel * window + s.n_batch, PADDING))
    if s.is_ollama and is_gpt_oss:
        # read: ollama GraphSize, gptoss
        return s.n_parallel * GPT_OSS_CELLS + s.n_batch
    if s.is_ollama and s.architecture == "gemma3":
        # read: ollama GraphSize, gemma3
        return s.n_parallel * s.n_swa + s.n_batch
    # no saving by the window is known
    return s.n_ctx


def window_cells_of_llama_cpp(s: Sheet) -> float:
    """Cells of the cache of layers with a window in llama.cpp, of all streams together. Each
    release adds a batch or a micro-batch to the windows, and rounds to its own multiple.
    """
    if s.swa_full or s.date < 202505:
        # read: llama.cpp before pull request 13194 (May 2025), and --swa-full: a window saves
        # nothing
        return s.cells
    if s.date < 202506:
        # read: llama.cpp src/llama-kv-cache.cpp of May 2025: a whole batch beside the windows, of
        # which later releases keep a micro-batch
        return min(s.cells, pad(s.n_swa * s.n_parallel + s.n_batch, s.n_pad))
    windows_a_stream = s.n_parallel // s.streams
    window_cells = s.n_swa * windows_a_stream + s.n_ubatch
    cells_a_stream = s.cells // s.streams
    if s.date < 202511:
        # read: llama.cpp src/llama-kv-cache-unified-iswa.cpp of June 2025
        return min(cells_a_stream, pad(window_cells, s.n_pad)) * s.streams
    # read: llama.cpp src/llama-kv-cache-iswa.cpp, issue 17037: the lesser one is rounded, too
    return pad(min(cells_a_stream, window_cells), PADDING) * s.streams


@rule
def step(s: Sheet) -> float:
    """The tokens of which a context is a multiple for the server, where the longest one is looked
    for; 1 where every number of tokens makes a difference.
    """
    if s.is_llama_cpp and s.date >= 202511:
        # read: llama.cpp src/llama-context.cpp
        return PADDING
    if s.is_sglang:
        # read: sglang: whole pages
        return s.page_size
    if s.is_vllm and s.one_kind:
        # read: estimate_max_model_len ends at whole blocks
        return s.block_size
    return 1
