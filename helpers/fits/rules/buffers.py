"""Buffers beside weights and cache: activations, scores, graphs, the vision encoder, the driver."""

from __future__ import annotations

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
    if s.tp == 1 and s.date >= 202505 and "n_embd" in s.inputs:
        # read: vllm/v1/worker/gpu_worker.py: only what it took itself since its start; no
        # communicators on one card
        s.cite("records: 0.05 to 0.7 GiB on one card")
        return s.either(0.05, 0.4, 0.7) * GIB
    s.cite("records: 0.05 to 1.8 GiB")
    return s.either(0.05, 0.4, 1.8) * GIB


@rule
def activation_peak_bytes(s: Sheet) -> float:
    most = 3.0 * GIB
    if s.has("widest_step") and not s.vision_parts:
        s.cite(
            "records: 0.4 to 3 GiB; at most by the widest step of a batch and its samples"
        )
        most = min(most, 1.5 * s.widest_step + 0.3 * GIB)
        return s.either(min(0.4 * GIB, most), min(1.4 * GIB, most), most)
    s.cite("records: 0.4 to 3 GiB, more with more batched tokens")
    return s.either(0.4 * GIB, 1.4 * GIB, most)


@rule
def max_num_seqs(s: Sheet) -> float:
    # read: vllm/engine/arg_utils.py, the default of a server, by the memory of the card
    if s.has("card_total") and s.card_total >= 70 * GIB:
        return 1024
    return 256


@rule
def widest_step(s: Sheet) -> float:
    if not ("n_embd" in s.inputs and "n_vocab" in s.inputs):
        raise MissingFigure("widest_step")
    # read: vllm/model_executor/models/llama.py: gate, up and their product, and four rows of the
    # width, of 16 bits; fused_moe.py: of each expert of a token
    width = s.n_ff if s.n_expert <= 1 else s.n_ff_expert * s.n_expert_used
    step = 2 * s.max_num_batched_tokens * (3 * width / s.tp + 4 * s.n_embd)
    # read: vllm/v1/sample/sampler.py: logits, their logarithms, and sorted ones with their places
    # (32 bytes in all for each logit)
    samples = 32 * s.max_num_seqs * s.n_vocab / s.tp
    return max(step, samples)


@rule
def cuda_graph_bytes(s: Sheet) -> float:
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
    if not s.sees:
        return 0
    if s.is_ollama and not s.measured and s.architecture == "gemma3":
        # read: ollama fs/ggml/ggml.go, VisionGraphSize, with the image, the patches and the heads
        # of its header
        patches = (s.image_size // 14) ** 2
        return 4 * (3 * s.image_size**2 + 1152 * 14 + patches**2 * 16)
    return s.unbounded(
        0.1 * GIB,
        0.4 * GIB,
        "not predictable: the buffer of the vision encoder grows with the image, from 0.2 GiB to over 100 GiB (records)",
    )


@rule
def logits(s: Sheet) -> float:
    # read: llama.cpp, f32 logits of a micro-batch
    return 4 * s.n_vocab * s.n_ubatch


@rule
def scores(s: Sheet) -> float:
    # read: llama.cpp src/llama-graph.cpp, build_attn_mha: f32 scores of every head over the whole
    # context where attention is not fused, with four rows of the width and the mask
    return 4 * s.n_ubatch * (s.n_ctx * s.n_head + 4 * s.n_embd + s.n_ctx)


def most_beside(s: Sheet) -> float:
    """The most that a compute buffer of llama.cpp takes beside logits and scores."""
    # read: llama.cpp src/llama-graph.cpp, inputs, residual, projections in f32, and the mask in
    # f32
    hidden = 4 * s.n_ubatch * (8 * s.n_embd + s.n_ctx)
    copied = 0.0
    if s.share_on_gpu < 1 and s.has("weights"):
        # read: llama.cpp ggml/src/ggml-backend.cpp, ggml_backend_sched_split_graph: a matrix that
        # lies with the host is copied when it is used, one at a time, of which the output is the
        # largest
        copied = 4 * s.weights / (s.n_layer + 1)
    return hidden + 100 * MIB + s.encoder + copied


@rule
def compute(s: Sheet) -> float:
    if s.is_llama_cpp:
        return compute_of_llama_cpp(s)
    if s.measured:
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
    if s.end == LIKELY:
        return s.graph_held * s.cards
    # read: ollama format/bytes.go, HumanBytes2: half of the last digit
    half_digit = 0.05 * (GIB if s.graph_held >= GIB else MIB)
    least = s.graph
    most = s.graph_held
    if "gguf_arch" not in s.inputs:
        least = min(least, s.graph_other)
        most = max(most, s.graph_other)
    if s.end == LOW:
        return least - half_digit
    return most * s.cards + half_digit + s.encoder


def compute_of_llama_cpp(s: Sheet) -> float:
    """The compute buffer of llama.cpp, by the attention and the cards that it has."""
    is_scored = (
        not s.flash_attn and s.cards == 1 and not s.is_mla and "ik_" not in s.program
    )
    if is_scored:
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
        return min(16 * MIB, s.logits)
    # read: llama.cpp src/llama-graph.cpp, the mask as f16 for flash attention
    attention = 2 * s.n_ctx * s.n_ubatch
    if is_scored:
        attention = s.scores
    if s.end == HIGH:
        return s.logits + attention + most_beside(s)
    if is_scored:
        return max(s.logits, attention)
    logits = s.logits
    if s.date >= 202606:
        logits = min(logits, 0.3 * GIB)
    return logits + attention + 24 * MIB


@rule
def context_bytes(s: Sheet) -> float:
    if s.is_vllm:
        s.cite("vLLM's own measurement, or records of it")
        return s.non_torch_bytes
    if "card_free_bytes" in s.inputs and s.is_sglang:
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
