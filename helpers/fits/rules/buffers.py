"""Buffers beside weights and cache: activations, scores, graphs, the vision encoder, the driver.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.rules.pool import LARGE_CARD
from helpers.fits.sheet import HIGH, LIKELY, LOW, MissingFigure, Sheet, rule
from helpers.ground.units import GIB, MIB
from helpers.look.cards import (
    CONTEXT_IN_WORDS,
    CONTEXT_LEAST_BYTES,
    CONTEXT_LIKELY_BYTES,
    CONTEXT_MOST_BYTES,
)


@rule
def non_torch_bytes(s: Sheet) -> float:
    """Bytes of a card that vLLM's process takes outside torch: the driver's context, libraries."""
    # A model that was read from its header has a width (n_embd) among its inputs. A log or a record
    # without one keeps the wider range below, as less is known of its server.
    if s.tp == 1 and s.date >= 202505 and "n_embd" in s.inputs:
        # read: vllm/v1/worker/gpu_worker.py: it counts only what it took itself since its start,
        # and one card needs no communicators with others
        s.cite("records: 0.05 to 0.7 GiB on one card")
        return s.either(0.05, 0.4, 0.7) * GIB
    s.cite("records: 0.05 to 1.8 GiB")
    return s.either(0.05, 0.4, 1.8) * GIB


@rule
def activation_peak_bytes(s: Sheet) -> float:
    """Bytes of a card that activations take in the largest step of vLLM.

    That is a range from records. Where the dimensions of the model give its widest step, they bound
    the range from above; a vision part has activations that they do not count.
    """
    least = 0.4 * GIB
    likely = 1.4 * GIB
    most = 3.0 * GIB
    if s.has("widest_step") and not s.vision_parts:
        s.cite(
            "records: 0.4 to 3 GiB; at most by the widest step of a batch and its samples"
        )
        # records: no peak was above one and a half widest steps and 0.3 GiB
        most = min(most, 1.5 * s.widest_step + 0.3 * GIB)
        return s.either(min(least, most), min(likely, most), most)
    s.cite("records: 0.4 to 3 GiB, more with more batched tokens")
    return s.either(least, likely, most)


@rule
def max_num_seqs(s: Sheet) -> float:
    """How many requests vLLM runs at once."""
    # read: vllm/engine/arg_utils.py, the default of a server, by the memory of the card; the
    # smaller one where no card is known
    if s.has("card_total") and s.card_total >= LARGE_CARD:
        return 1024
    return 256


@rule
def widest_step(s: Sheet) -> float:
    """Bytes of a card that the widest layer of a step takes: the larger of a feed-forward and the
    sampling. Raises MissingFigure unless the model's header gives its width and vocabulary: with
    their defaults, which are ranges, this would be no bound.
    """
    if not ("n_embd" in s.inputs and "n_vocab" in s.inputs):
        raise MissingFigure("widest_step")
    # read: vllm/model_executor/models/llama.py: for each token gate, up and their product, and four
    # rows of the model's width, in 16 bits; fused_moe.py: those of each expert of a token
    width = s.n_ff
    if s.n_expert > 1:
        width = s.n_ff_expert * s.n_expert_used
    feed_forward = 2 * s.max_num_batched_tokens * (3 * width / s.tp + 4 * s.n_embd)
    # read: vllm/v1/sample/sampler.py: logits, their logarithms, and sorted ones with their places:
    # 32 bytes in all for each logit
    sampling = 32 * s.max_num_seqs * s.n_vocab / s.tp
    return max(feed_forward, sampling)


@rule
def cuda_graph_bytes(s: Sheet) -> float:
    """Bytes of a card that captured CUDA graphs take."""
    if s.enforce_eager or s.family in ("Transformers", "Diffusers"):
        s.cite("no graphs are captured")
        return 0
    if s.is_llama_cpp:
        s.cite("within the compute buffer")
        return 0
    if s.is_ollama:
        s.cite("within the graph")
        return 0
    s.cite("records: 0.1 to 2.2 GiB")
    return s.either(0.1, 0.7, 2.2) * GIB


@rule
def encoder(s: Sheet) -> float:
    """Bytes of the buffer of a vision encoder: 0 without one, known for gemma3 while ollama
    estimates it, else without a bound.
    """
    if not s.sees:
        return 0
    if s.is_ollama and not s.measured and s.architecture == "gemma3":
        # read: ollama fs/ggml/ggml.go, VisionGraphSize: the colours of the image, the embedding
        # and the scores of the patches, in f32, with the numbers of gemma3's header
        patch_pixels = 14
        width = 1152
        heads = 16
        patches = (s.image_size // patch_pixels) ** 2
        embedding = width * patch_pixels
        return 4 * (3 * s.image_size**2 + embedding + patches**2 * heads)
    return s.unbounded(
        0.1 * GIB,
        0.4 * GIB,
        "not predictable: the buffer of the vision encoder grows with the image, from 0.2 GiB to over 100 GiB (records)",
    )


@rule
def logits(s: Sheet) -> float:
    """Bytes of the logits of a micro-batch."""
    # read: llama.cpp: they are f32
    return 4 * s.n_vocab * s.n_ubatch


@rule
def scores(s: Sheet) -> float:
    """Bytes of the attention's scores of a micro-batch, where attention is not fused."""
    # read: llama.cpp src/llama-graph.cpp, build_attn_mha: f32 scores of every head over the whole
    # context, four rows of the model's width, and the mask
    return 4 * s.n_ubatch * (s.n_ctx * s.n_head + 4 * s.n_embd + s.n_ctx)


def most_beside(s: Sheet) -> float:
    """The most bytes that a compute buffer of llama.cpp takes beside logits and scores."""
    # read: llama.cpp src/llama-graph.cpp: inputs, residual and projections, eight rows of the
    # model's width, and the mask, in f32
    hidden = 4 * s.n_ubatch * (8 * s.n_embd + s.n_ctx)
    copied = 0.0
    # Only where some layers stay with the host is a matrix copied.
    if s.share_on_gpu < 1 and s.has("weights"):
        # read: llama.cpp ggml/src/ggml-backend.cpp, ggml_backend_sched_split_graph: a matrix that
        # lies with the host is copied when it is used, one at a time, of which the output is the
        # largest
        copied = 4 * s.weights / (s.n_layer + 1)
    # records: up to 100 MiB more
    return hidden + 100 * MIB + s.encoder + copied


@rule
def compute(s: Sheet) -> float:
    """Bytes of buffers for activations: for servers with a pool those of one card, else of all
    cards together.
    """
    if s.is_llama_cpp:
        return compute_of_llama_cpp(s)
    if s.measured:  # a release of ollama without an estimate
        return s.unbounded(
            16 * MIB,
            0.5 * GIB,
            "not predictable: since 0.12.11 ollama measures the graph; 96 MiB to 4.5 GiB in "
            "public logs",
        )
    if s.is_ollama and s.has("graph"):
        return compute_of_ollama(s)
    if s.is_vllm:
        s.cite("the activation peak that vLLM measures at start")
        return s.activation_peak_bytes
    if s.is_sglang:
        return s.unbounded(
            0.3 * GIB,
            GIB,
            "not predictable: 0.3 GiB to 52 GiB in the records, of what SGLang leaves free "
            "for activations, beside its fraction",
        )
    if s.family == "Diffusers":
        return s.unbounded(
            0.5 * GIB,
            2 * GIB,
            "not predictable: activations grow with the image or the video",
        )
    if s.family == "Transformers":
        return s.unbounded(
            0.2 * GIB, GIB, "not predictable: activations grow with the prompt"
        )
    return s.unbounded(0, 0.5 * GIB, "not predictable for this program")


def compute_of_ollama(s: Sheet) -> float:
    """The graph on every card that ollama takes, as it estimates it."""
    s.cite(
        "read: ollama fs/ggml/ggml.go, GraphSize: a graph on every card that it takes, "
        "printed to a tenth (format/bytes.go, HumanBytes2)"
    )
    # The likely graph is the estimate itself. The least is one graph on one card, as ollama may put
    # all layers there; the most is the graph on every card and a vision encoder.
    if s.end == LIKELY:
        return s.graph_held * s.cards
    # half of the last digit that it prints
    half_digit = 0.05 * MIB
    if s.graph_held >= GIB:
        half_digit = 0.05 * GIB
    least = s.graph
    most = s.graph_held
    if "gguf_arch" not in s.inputs:
        # The formula is that of an assumed architecture: the one for all others widens the range.
        least = min(least, s.graph_other)
        most = max(most, s.graph_other)
    if s.end == LOW:
        return least - half_digit
    return most * s.cards + half_digit + s.encoder


def compute_of_llama_cpp(s: Sheet) -> float:
    """Bytes of the compute buffer of llama.cpp.

    The buffer is bounded for one card, by the scores of all heads where attention is not fused, and
    for fused attention on one card, of MLA only since July 2025. Otherwise it has no upper bound.
    """
    # Scores are counted for plain attention alone: MLA and ik_llama.cpp compute them otherwise.
    is_plain = s.cards == 1 and not s.is_mla and not s.is_ik_llama_cpp
    has_scores = is_plain and not s.flash_attn
    if has_scores:
        s.cite(
            "read: llama.cpp src/llama-graph.cpp, build_attn_mha: scores of every head where "
            "attention is not fused, and what a fused one takes; 4 to 100 MiB more in the "
            "records"
        )
    elif s.cards > 1 or not s.flash_attn or (s.is_mla and s.date < 202507):
        s.no_bound(
            "not predictable: without flash attention, with pipeline parallelism over several "
            "cards, or MLA without its own kernel the buffer has been up to 278 times the "
            "cache (records)"
        )
        # Each card of a pipeline has a buffer; fused attention keeps no scores in it.
        if s.end == LIKELY and s.flash_attn:
            return s.logits * s.cards
        if s.end == LIKELY:
            return max(s.logits, s.scores) * s.cards
    else:
        s.cite(
            "read: logits of n_ubatch tokens, the attention mask and hidden states; 4 to 100 "
            "MiB more in the records"
        )
    if s.end == LOW:
        # records: every buffer has at least 16 MiB, but those of models with a small vocabulary
        return min(16 * MIB, s.logits)
    # read: llama.cpp src/llama-graph.cpp, the mask as f16 for flash attention
    attention = 2 * s.n_ctx * s.n_ubatch
    if has_scores:
        attention = s.scores
    if s.end == HIGH:
        return s.logits + attention + most_beside(s)
    if has_scores:
        # Scores are given back before the logits are computed, so the larger one is likely enough.
        return max(s.logits, attention)
    logits = s.logits
    if s.date >= 202606:
        # records: since June 2026 no buffer has more than 0.3 GiB of logits
        logits = min(logits, 0.3 * GIB)
    # records: 24 MiB is the middle of 4 to 100 MiB more
    return logits + attention + 24 * MIB


@rule
def context_bytes(s: Sheet) -> float:
    """Bytes of the driver's context and of libraries, which a program does not allocate itself: for
    servers with a pool those of one card, else of all cards together.
    """
    if s.is_vllm:
        s.cite("vLLM's own measurement, or records of it")
        return s.non_torch_bytes
    if "card_free_bytes" in s.inputs and s.is_sglang:
        # That reading is without the context already.
        s.cite("SGLang reads what is free with its context there")
        return 0
    if s.is_ollama:
        s.cite(
            f"ollama counts none beside what it keeps free; {CONTEXT_IN_WORDS} are taken of "
            "that (records)"
        )
        return s.cards * s.either(0, 0, CONTEXT_MOST_BYTES)
    s.cite(
        "records: the driver and its context, 0.45 GiB a card by llama.cpp's own accounting"
    )
    return s.cards * s.either(
        CONTEXT_LEAST_BYTES, CONTEXT_LIKELY_BYTES, CONTEXT_MOST_BYTES
    )
