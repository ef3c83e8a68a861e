"""The layers of a model by what its header says of them: which have attention, a window, a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from helpers.fits.arithmetic import listed
from helpers.fits.servers import table

MOST_LAYERS = 4096
MOST_WIDTH = 1 << 20
COUNTS = ("n_layer", "n_head", "n_head_kv")
"""Figures that are counts, so whole."""
STATES = ("ssm_", "conv_")
"""How names of figures of layers with a state begin."""


def whole_number(value: Any) -> int | None:
    """A number of a header that can be a count or a width."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 <= value < 1 << 48:
        return int(value)
    return None


def part_of(value: Any) -> dict[str, Any]:
    """A part of a header that should be an object, empty where it is none."""
    if isinstance(value, dict):
        return value
    return {}


def _is_negative(value: Any) -> bool:
    """Whether a figure of a header cannot be one; -1 is how some say that there is none."""
    return isinstance(value, (int, float)) and value < -1


def _is_fraction(value: Any) -> bool:
    """Whether a figure is no whole number."""
    return isinstance(value, float) and not value.is_integer()


def named(
    keys: Mapping[str, Any], names: Mapping[str, Sequence[str]], prefix: str = ""
) -> dict[str, Any]:
    """What a header says under the first of the names that it has; a list as a list of numbers."""
    values: dict[str, Any] = {}
    for name, others in names.items():
        for other in others:
            value = keys.get(prefix + other)
            if name in values or value is None:
                continue
            figures = value if isinstance(value, list) else [value]
            if any(_is_negative(figure) for figure in figures):
                raise ValueError(f"{other[:80]} is {value!r:.80}; expected 0 or more")
            if name in COUNTS and any(_is_fraction(figure) for figure in figures):
                raise ValueError(
                    f"{other[:80]} is {value!r:.80}; expected a whole number"
                )
            if isinstance(value, list) and value:
                numbers = [whole_number(part) or int(part is True) for part in value]
                values[name] = (
                    numbers if name in table("models")["lists"] else max(numbers)
                )
            elif whole_number(value) is not None:
                values[name] = whole_number(value)
    return values


def repeated_kinds(header: Mapping[str, Any], kind: str) -> list[str]:
    """The kinds of the layers that repeat through a model, where its header names no layer's."""
    models = table("models")
    pattern = header.get("pattern", models["windows"].get(kind))
    interval = header.get("interval", models["intervals"].get(kind))
    period = header.get("period")
    if pattern == "both":
        # transformers modeling_falcon_h1.py: attention and a state side by side
        return ["both"]
    if period is not None:
        # transformers configuration_jamba.py: attn_layer_offset is half of attn_layer_period
        most = min(period, MOST_LAYERS)
        return (
            ["recurrent"] * (most // 2)
            + ["full"]
            + ["recurrent"] * (most - most // 2 - 1)
        )
    if interval is not None:
        # transformers configuration_qwen3_next.py, full_attention_interval
        return ["recurrent"] * (min(interval, MOST_LAYERS) - 1) + ["full"]
    if not header.get("n_swa") or pattern is None:
        return ["full"]  # no window, or none that saves cells
    if isinstance(pattern, list):
        # llama.cpp: one flag for each layer
        if len(pattern) > 1:
            return pattern
        return ["full"]
    if pattern in (0, 1):
        return ["swa"]  # every layer has the window
    # transformers configuration_gemma3.py: the last of a pattern sees everything
    return ["swa"] * (min(pattern, MOST_LAYERS) - 1) + ["full"]


def for_each_layer(values: Sequence[Any], layers: int) -> list[Any]:
    """The values over and over, until each layer has one."""
    return list(islice(cycle(values), layers))


def layer_kinds(
    header: Mapping[str, Any], kind: str, types: Sequence[Any], heads: Sequence[float]
) -> list[str]:
    """Of each layer whether it is full, sliding, recurrent, both, or is without a cache."""
    layers = header["n_layer"]
    if len(types) < layers:
        types = for_each_layer(repeated_kinds(header, kind), layers)
    widths = for_each_layer(listed(header.get("n_ff", 0)), layers)
    words = table("models")["kinds"]
    kinds = []
    for number in range(layers):
        layer = words.get(str(types[number]), "full")
        if layer == "full" and not heads[number]:
            is_feed_forward = widths[number] and 0 in widths
            layer = "none" if is_feed_forward else "recurrent"
        kinds.append(layer)
    return kinds


def layer_inputs(
    header: dict[str, Any], kind: str, types: Sequence[Any] = ()
) -> dict[str, Any]:
    """The inputs of what a header says. Layers that share another's cache hold none."""
    layers = header["n_layer"]
    if not 0 < layers <= MOST_LAYERS:
        raise ValueError(f"{kind}: seen {layers} layers; expected 1 to {MOST_LAYERS}")
    if header.get("n_embd", 0) > MOST_WIDTH:
        raise ValueError(
            f"{kind}: seen a width of {header['n_embd']}; expected at most {MOST_WIDTH}"
        )
    if header.get("cross_layers"):
        raise ValueError(
            f"{kind}: seen layers that look at an encoder; expected a decoder alone"
        )
    has_states = any(name.startswith(STATES) for name in header)
    query_heads = header.get("n_head", 0 if has_states else 1)
    heads = for_each_layer(listed(header.get("n_head_kv", query_heads)), layers)
    kinds = layer_kinds(header, kind, types, heads)
    count = Counter(kinds)
    with_cache = max(0, layers - header.get("shared_kv_layers", 0))
    cached = list(zip(kinds, heads, strict=True))[:with_cache]
    full_heads = [number for layer, number in cached if layer in ("full", "both")]
    swa_heads = [number for layer, number in cached if layer == "swa"]
    inputs = {
        name: value for name, value in header.items() if not isinstance(value, list)
    }
    widths = listed(header.get("n_ff", 0))
    if len(widths) > 1:
        inputs["n_ff"] = sum(for_each_layer(widths, layers)) / layers
    inputs.update(
        n_layer_kv=len(full_heads),
        n_layer_swa=len(swa_heads),
        n_layer_ff=count["none"] or None,
        n_layer_recurrent=count["recurrent"] + count["both"],
        n_head=max(listed(query_heads)) or None,
        n_head_kv=max(full_heads, default=max(heads)),
    )
    if isinstance(header.get("n_head_kv"), list):
        inputs.update(
            heads_full=sum(full_heads),
            heads_swa_all=sum(swa_heads),
            n_head_kv_swa=max(swa_heads, default=0),
        )
    if not has_states and not {"n_head", "n_head_kv"} & {*header}:
        inputs.update(n_head=None, n_head_kv=None)  # nothing says how many
    if not max(heads):  # states alone: no head has a width
        inputs["head_dim_k"] = 1
    if "kv_lora_rank" in inputs:  # one latent for all heads
        inputs.update(head_dim_k=None, head_dim_v=None)
    return inputs
