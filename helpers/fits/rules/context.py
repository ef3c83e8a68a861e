"""The context that a server takes where none is asked for.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.rules.cells import GPT_OSS
from helpers.fits.sheet import Sheet, rule
from helpers.ground.units import GIB

OLLAMA_TIERS = ((47 * GIB, 262144), (23 * GIB, 32768), (0, 4096))
"""Bytes of all cards from which on ollama gives a slot so many tokens (server/routes.go, Serve,
since 0.15.5). 47 and 23 mean cards of 48 and 24 GiB, which have a little less.
"""
# Where the default of a server comes from that takes the model's own maximum.
MAXIMA = {
    "vLLM": (
        "the model's own maximum; where that does not fit, the server refuses to start (read: "
        "vllm/config/model.py; vllm/v1/core/kv_cache_utils.py)"
    ),
    "SGLang": (
        "the model's own maximum; requests longer than the pool are refused (read: "
        "sglang/srt/configs/model_config.py)"
    ),
    "Transformers": "the model's own maximum; the cache grows with prompt and answer",
}
LONGER_ON_OLLAMA = (*GPT_OSS, "qwen3vl", "qwen3vlmoe")
"""Architectures to which ollama gave 8,192 tokens (server/routes.go, scheduleRunner)."""


@rule
def n_ctx(s: Sheet) -> float:
    """Tokens of the context of all slots together, where none is asked for: those of a log's cache,
    else the server's default.
    """
    if "cache_cells" in s.inputs:
        # the cells that the log prints, each cache those of one stream; the longest has no window
        return max(s.sizes("cache_cells")) * s.streams
    return s.default_context


@rule
def default_context(s: Sheet) -> float:
    """Tokens that the server takes by itself, for all slots."""
    if "ollama" in s.program:
        context = context_of_ollama(s)  # of one slot
        if s.has("n_ctx_train"):
            # read: ollama server/sched.go, effectiveContext; llm/server.go
            context = min(context, s.n_ctx_train)
        return context * s.n_parallel
    # Forks such as koboldcpp have defaults of their own, which are not counted: like any server
    # without a row in MAXIMA they are taken to use the model's own maximum.
    is_llama_cpp_itself = "llama" in s.program and not s.is_ik_llama_cpp
    if s.is_llama_cpp and is_llama_cpp_itself:
        return context_of_llama_cpp(s)
    s.cite(MAXIMA.get(s.family, "the model's own maximum"))
    return s.n_ctx_train


def context_of_ollama(s: Sheet) -> float:
    """Tokens of a slot of ollama by its own default, which depends on the release, the memory of
    all cards and, in some releases, the architecture. Without a card it is a range since 0.15.5.
    """
    if s.date < 202505:
        s.cite("read: ollama envconfig/config.go before 0.6.7")
        return 2048
    total_bytes = 0.0
    if "card_total_bytes" in s.inputs:
        total_bytes = sum(s.sizes("card_total_bytes"))
    if s.date < 202602:
        is_longer = s.date >= 202508 and s.architecture in LONGER_ON_OLLAMA
        if is_longer and total_bytes >= 20 * GIB:
            s.cite("read: ollama server/routes.go, scheduleRunner, 0.11 to 0.15.4")
            return 8192
        s.cite("read: ollama envconfig/config.go, 0.6.7 to 0.15.4")
        return 4096
    s.cite(
        "by the memory of all cards; layers that do not fit beside it go to the CPU (read: ollama "
        "server/routes.go, Serve, since 0.15.5)"
    )
    if not total_bytes:  # no card was named: any of OLLAMA_TIERS
        return s.either(4096, 4096, 262144)
    return next(tokens for least, tokens in OLLAMA_TIERS if total_bytes >= least)


def context_of_llama_cpp(s: Sheet) -> float:
    """Tokens of all slots of llama.cpp by its own default: fixed numbers until December 2025, but
    for the summer and autumn of 2024, when it was the model's maximum as it is now.
    """
    if 202411 <= s.date < 202512:
        s.cite("read: llama.cpp common/common.h, n_ctx, until December 2025")
        return 4096
    if s.date < 202406:
        s.cite("read: llama.cpp common/common.h, n_ctx, until the summer of 2024")
        return 512
    s.cite(
        "the model's own maximum; since December 2025 --fit cuts it to what is free (read: llama.cpp "
        "common/common.h, n_ctx; common/fit.cpp)"
    )
    return s.n_ctx_train
