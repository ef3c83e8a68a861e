"""Weights: as a file or a log gives them, else by the dimensions.

A rule works out one figure of the sheet ``s`` from others. ``s.date`` is the month of the server's
release (202505: May 2025). *read*: found in the code of the server; *records*: fitted to what
servers printed.
"""

from __future__ import annotations

from helpers.fits.sheet import MissingFigure, Sheet, rule

UNCOUNTED = (
    "not known: the weights of this architecture, estimated as those of a plain decoder; "
    "model.safetensors.index.json says their bytes"
)
HEADER = "the bytes of the weights: model.safetensors.index.json"
QUANTISED_RANGE = (0.96, 1, 1.06)
"""Real sizes of quantised weights as shares of the computed one, low, likely and high (records):
what is left at 16 bits, and how scales are packed, differs.
"""


@rule
def weights(s: Sheet) -> float:
    """Bytes of the weights on all cards together; for servers with a pool on each card."""
    if "weights_bytes" in s.inputs:
        s.cite("as given")
        return s.weights_bytes
    if "host_bytes" in s.inputs and s.is_ggml:
        s.cite(
            "tensors of the model's header; the table of tokens stays with the host (read: "
            "llama.cpp src/llama-model.cpp, load_tensors: the input layer)"
        )
        return s.model_bytes - s.host_bytes
    s.cite("tensors of the model's header")
    return s.model_bytes / s.cards_alike - s.offload_bytes


def quantised_bytes(s: Sheet, bits: float) -> float:
    """Bytes of the weights with ``bits`` for each. A GGUF has its tables of tokens quantised, too;
    other forms leave them at 16 bits, which are 2 bytes.
    """
    size = s.parameters * bits / 8
    if not s.is_ggml:
        size += s.token_tables * (2 - bits / 8)
    return size


@rule
def model_bytes(s: Sheet) -> float:
    """Bytes of all weights of the model, where no file gives them: those of a quantisation that was
    chosen (quantised_bits), else by the dimensions of its config.

    Raises MissingFigure where there is no config, or weights lie beside it: then their bytes are
    known or missing. Parts that dimensions do not count leave the size without an upper bound.
    """
    if "quantised_bits" in s.inputs:
        return s.either(*QUANTISED_RANGE) * quantised_bytes(s, s.quantised_bits)
    if "parameters_wide" not in s.inputs:
        raise MissingFigure("model_bytes")
    s.cite("by the dimensions, to a few percent: no weights lie beside the config")
    bits = {
        "attention": s.attention_bits,
        "feed-forward": s.linear_bits,
        "experts": s.expert_bits,
        "states": s.linear_bits,
    }
    size = 0.0
    for part, count in parameters_by_part(s).items():
        size += count * bits.get(part, 16) / 8
    if s.vision_parts > 0:
        s.no_bound(
            "the vision part: no weights lie beside the config; the rest by its dimensions, "
            "to a few percent"
        )
    if "weights_uncounted" in s.inputs:
        return s.unbounded(0, size, UNCOUNTED)
    if min(bits.values()) == 16:
        return size  # nothing is quantised: there are no scales of unknown size
    return s.either(*QUANTISED_RANGE) * size


@rule
def token_tables(s: Sheet) -> float:
    """How many weights the tables of tokens have."""
    # one into the model and one out of it, unless they are tied; transformers
    # modeling_gemma3n.py, embed_tokens_per_layer: and one for each layer
    tables = 2
    if s.tied:
        tables = 1
    of_layers = s.n_layer * s.n_embd_per_layer * s.n_vocab_per_layer
    return tables * s.n_embd * s.n_vocab + of_layers


@rule
def parameters(s: Sheet) -> float:
    """How many weights the model has."""
    if "elements" in s.inputs:
        return s.elements
    return sum(parameters_by_part(s).values())


def parameters_by_part(s: Sheet) -> dict[str, float]:
    """How many weights each part of the model has, by the names that ``model_bytes`` has for the
    parts. Raises MissingFigure where dimensions do not give them.
    """
    # no dimension says the size of short convolutions, or of a quantisation that is not known
    if "conv_cache" in s.inputs or "quant_unknown" in s.inputs:
        raise MissingFigure("model_bytes", HEADER)
    # Each layer has attention, unless it is a feed-forward alone; beside recurrent layers only
    # those with a cache have it.
    with_attention = s.n_layer - s.n_layer_ff
    if s.n_layer_recurrent:
        with_attention = s.n_layer_kv + s.n_layer_swa
    attention = 0.0
    ff_layers = 0.0
    # transformers modeling_mamba.py: a model of states alone has no attention and no feed-forward
    if with_attention:
        attention = with_attention * attention_of_a_layer(s)
        # Where some layers are a feed-forward and nothing else, no other layer has one.
        ff_layers = s.n_layer_ff or s.n_layer
    # Of the layers with a feed-forward, the first n_dense have no experts, and of the rest each
    # moe_step-th has.
    moe_layers = 0.0
    if s.n_expert > 1:
        moe_layers = (ff_layers - min(s.n_dense, ff_layers)) // s.moe_step
    expert_width = s.n_ff_expert * s.n_expert
    # An expert that every token passes is counted with the dense feed-forwards: quantisations of
    # experts leave it out. Some configs give its own width.
    shared_width = s.n_ff_expert * s.n_expert_shared
    if s.n_ff_shared:
        shared_width = s.n_ff_shared * max(1, s.n_expert_shared)
    all_widths = (ff_layers - moe_layers) * s.n_ff + moe_layers * shared_width
    return {
        "attention": attention,
        "states": s.n_layer_recurrent * state_of_a_layer(s),
        "feed-forward": s.n_embd * matrices(s) * all_widths,
        "experts": s.n_embd * matrices(s) * moe_layers * expert_width,
        "embeddings": s.token_tables,
        # transformers modeling_gemma3n.py: per_layer_input_gate, per_layer_projection,
        # per_layer_model_projection
        "layer inputs": 3 * s.n_layer * s.n_embd * s.n_embd_per_layer,
        # two norms of each layer and one of the output; a router has a row for each expert
        "norms and routers": s.n_embd * (2 * s.n_layer + 1 + moe_layers * s.n_expert),
    }


def attention_of_a_layer(s: Sheet) -> float:
    """How many weights query, key, value and output of a layer have."""
    if "kv_lora_rank" in s.inputs:
        # transformers modeling_deepseek_v3.py, DeepseekV3Attention: queries, the latent, keys and
        # values that are expanded from it, and the output
        query_width = s.n_head * (s.n_nope + s.n_rot)
        value_width = s.n_head * s.head_dim_expanded
        latent = s.n_embd * (s.kv_lora_rank + s.n_rot)
        expanded = s.kv_lora_rank * (s.n_head * s.n_nope + value_width)
        return query(s, query_width) + latent + expanded + s.n_embd * value_width
    width = s.n_head * s.head_dim_k
    keys_and_values = s.n_head_kv * (s.head_dim_k + s.head_dim_v)
    return query(s, width) + s.n_embd * (width + keys_and_values)


def query(s: Sheet, width: float) -> float:
    """How many weights the query has: one matrix, or two with a narrower width between them."""
    if "q_lora_rank" in s.inputs:
        return s.q_lora_rank * (s.n_embd + width)
    return s.n_embd * width


def state_of_a_layer(s: Sheet) -> float:
    """How many weights a recurrent layer has: those of the matrices in and out of Mamba 2 and of
    gated delta networks, and of Mamba also the small ones.
    """
    if s.n_layer_recurrent == 0:
        return 0
    if "ssm_dt_rank" in s.inputs and "ssm_n_group" not in s.inputs:
        # Mamba of the first version; transformers modeling_mamba.py, in_proj, out_proj; x_proj,
        # dt_proj, A_log, D, conv1d
        beside = 2 * s.ssm_dt_rank + 3 * s.ssm_d_state + s.ssm_d_conv + 3
        return s.ssm_d_inner * (3 * s.n_embd + beside)
    # transformers modeling_mamba2.py, in_proj and out_proj; modeling_qwen3_next.py, in_proj_qkvz
    return s.n_embd * (3 * s.ssm_d_inner + 2 * s.ssm_n_group * s.ssm_d_state)


def matrices(s: Sheet) -> int:
    """How many matrices a feed-forward has: up and down, and a gate unless it is a plain one."""
    if s.plain_ff:
        return 2
    return 3


@rule
def n_ff(s: Sheet) -> float:
    """The width of the feed-forward layers, where the header does not give it."""
    # transformers configuration_gpt2.py, n_inner: its default, and that of models like it
    return 4 * s.n_embd


@rule
def in_weights(s: Sheet) -> float:
    """Bytes of the cache that a log of ollama counts among the weights; 0 for all others."""
    if s.is_ollama and s.date < 202504 and "weights_bytes" in s.inputs:
        # read: ollama llm/memory.go before 0.6.3: memory.weights.total counts the cache too,
        # that of the context that the log has, also where another one is tried
        return s.kv_bytes * s.n_ctx_asked / s.n_ctx
    return 0


@rule
def output_bytes(s: Sheet) -> float:
    """Bytes of the output matrix, where nothing gives them: a range, from none (where it is the
    table of tokens, too) to some layers.
    """
    if s.in_weights:
        # The output is not in memory.weights.total of ollama before 0.6.3, which is layers alone.
        return s.either(0, 1, 2) * s.weights / s.n_layer
    # about a layer; of a small model with a large vocabulary up to four
    return s.either(0, 1, 4) * s.weights / (s.n_layer + 1)
