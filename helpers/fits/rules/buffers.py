"""Buffers beside weights and cache: activations, scores, graphs, the vision encoder, the driver."""

from __future__ import annotations

from helpers.fits.sheet import HIGH, LIKELY, LOW, Missing, Sheet, rule
from helpers.ground.units import GIB, MIB


@rule
def non_torch_bytes(s: Sheet) -> float:
    s.sources["non_torch_bytes"] = "records: 0.05 to 1.8 GiB"
    return s.either(0.05 * GIB, 0.4 * GIB, 1.8 * GIB)


@rule
def activation_peak_bytes(s: Sheet) -> float:
    s.sources["activation_peak_bytes"] = "records: 0.4 to 3 GiB, more with more batched tokens"
    return s.either(0.4 * GIB, 1.4 * GIB, 3 * GIB)


@rule
def cuda_graph_bytes(s: Sheet) -> float:
    if s.enforce_eager:
        s.sources["cuda_graph_bytes"] = "no graphs are captured"
        return 0
    if s.family == "llama.cpp":
        s.sources["cuda_graph_bytes"] = "within the compute buffer"
        return 0
    if s.family == "ollama":
        s.sources["cuda_graph_bytes"] = "within the graph"
        return 0
    s.sources["cuda_graph_bytes"] = "records: 0.1 to 2.2 GiB"
    return s.either(0.1 * GIB, 0.7 * GIB, 2.2 * GIB)


@rule
def encoder(s: Sheet) -> float:
    if not s.sees:
        # no vision part
        return 0
    if s.family == "ollama" and not s.measured and s.text("gguf_arch") in ("gemma3", "mistral3"):
        # read: ollama fs/ggml/ggml.go, VisionGraphSize, gemma3 and mistral3, with the image, the
        # patches and the heads of their headers
        return 4 * (
            3 * s.eye**2
            + (1152 if s.text("gguf_arch") == "gemma3" else 1024) * 14
            + (s.eye // 14) ** 4 * 16
        )
    if s.family == "ollama" and not s.measured and s.text("gguf_arch") == "llama4":
        # read: ollama VisionGraphSize, llama4: none beside the graph of the text
        return 0
    # not predictable: the buffer of the vision encoder grows with the image, from 0.2 GiB to over
    # 100 GiB (records)
    if s.end == LOW:
        return 0.1 * GIB
    if s.end == LIKELY:
        return 0.4 * GIB
    raise Missing(
        "encoder",
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


@rule
def mask(s: Sheet) -> float:
    # read: llama.cpp src/llama-graph.cpp, the mask as f16 for flash attention
    return 2 * s.n_ctx * s.n_ubatch


@rule
def hidden(s: Sheet) -> float:
    # read: llama.cpp src/llama-graph.cpp, inputs, residual, projections in f32, and the mask in
    # f32
    return 8 * 4 * s.n_embd * s.n_ubatch + 4 * s.n_ctx * s.n_ubatch


@rule
def copied(s: Sheet) -> float:
    if s.share_on_gpu < 1 and s.has("weights"):
        # read: llama.cpp ggml/src/ggml-backend.cpp, ggml_backend_sched_split_graph: a matrix that
        # lies with the host is copied when it is used, one at a time, of which the output is the
        # largest
        if s.end != HIGH:
            return 0
        return 4 * s.weights / (s.n_layer + 1)
    # all layers lie on the card
    return 0


@rule
def compute(s: Sheet) -> float:
    if s.family == "ollama" and s.measured:
        s.sources["compute"] = (
            "not predictable: since 0.12.11 ollama measures the graph; 96 MiB to 4.5 GiB in "
            "public logs"
        )
        if s.end == LOW:
            return 16 * MIB
        if s.end == LIKELY:
            return 0.5 * GIB
        raise Missing("compute", s.sources["compute"])
    if s.family == "ollama" and s.has("graph"):
        s.sources["compute"] = (
            "read: ollama fs/ggml/ggml.go, GraphSize: a graph on every card that it takes, "
            "printed to a tenth (format/bytes.go, HumanBytes2)"
        )
        if s.end == LOW:
            return min(s.graph, s.graph if s.given("gguf_arch") else s.graph_other) - s.half_digit
        if s.end == LIKELY:
            return s.graph_held * s.cards
        return (
            max(s.graph_held, s.graph_held if s.given("gguf_arch") else s.graph_other) * s.cards
            + s.half_digit
            + s.encoder
        )
    if (
        s.family == "llama.cpp"
        and s.cards == 1
        and (not s.flash_attn)
        and (not s.is_mla)
        and ("ik_" not in s.program)
    ):
        s.sources["compute"] = (
            "read: llama.cpp src/llama-graph.cpp, build_attn_mha: scores of every head where "
            "attention is not fused, and what a fused one takes; 4 to 100 MiB more in the "
            "records"
        )
        if s.end == LOW:
            return min(16 * MIB, s.logits)
        if s.end == LIKELY:
            return max(s.logits, s.scores)
        return s.logits + s.scores + s.hidden + 100 * MIB + s.encoder + s.copied
    if s.family == "llama.cpp" and (
        s.cards > 1 or not s.flash_attn or (s.is_mla and s.date < 202507)
    ):
        s.sources["compute"] = (
            "not predictable: without flash attention, with pipeline parallelism over several "
            "cards, or MLA without its own kernel the buffer has been up to 278 times the "
            "cache (records)"
        )
        if s.end == LOW:
            return min(16 * MIB, s.logits)
        if s.end == LIKELY:
            return max(s.logits, 0 if s.flash_attn else s.scores) * s.cards
        raise Missing("compute", s.sources["compute"])
    if s.family == "llama.cpp":
        s.sources["compute"] = (
            "read: logits of n_ubatch tokens, the attention mask and hidden states; 4 to 100 "
            "MiB more in the records"
        )
        if s.end == LOW:
            return min(16 * MIB, s.logits)
        if s.end == LIKELY:
            return (s.logits if s.date < 202606 else min(s.logits, 0.3 * GIB)) + s.mask + 24 * MIB
        return s.logits + s.mask + s.hidden + 100 * MIB + s.encoder + s.copied
    if s.family == "vLLM":
        s.sources["compute"] = "the activation peak that vLLM measures at start"
        return s.activation_peak_bytes
    if s.family == "SGLang":
        s.sources["compute"] = (
            "not predictable: 0.3 GiB to 52 GiB in the records, of what SGLang leaves free "
            "for activations, beside its fraction"
        )
        if s.end == LOW:
            return 0.3 * GIB
        if s.end == LIKELY:
            return 1 * GIB
        raise Missing("compute", s.sources["compute"])
    s.sources["compute"] = "not predictable for this program"
    if s.end == LOW:
        return 0
    if s.end == LIKELY:
        return 0.5 * GIB
    raise Missing("compute", s.sources["compute"])


@rule
def context_bytes(s: Sheet) -> float:
    if s.family == "vLLM":
        s.sources["context_bytes"] = "records, or as vLLM measured it"
        return s.non_torch_bytes
    if s.given("card_free_bytes") and s.family == "SGLang":
        s.sources["context_bytes"] = "SGLang reads what is free with its context there"
        return 0
    if s.family == "ollama":
        s.sources["context_bytes"] = (
            "ollama counts none beside what it keeps free; 0.2 to 0.6 GiB a card are taken of "
            "that (records)"
        )
        if s.end != HIGH:
            return 0
        return 0.6 * GIB * s.cards
    s.sources["context_bytes"] = (
        "records: the driver and its context, 0.45 GiB a card by llama.cpp's own accounting"
    )
    if s.end == LOW:
        return 0.2 * GIB * s.cards
    if s.end == LIKELY:
        return 0.45 * GIB * s.cards
    return 0.6 * GIB * s.cards
