"""The layers of a model, from its header: which have attention, a window, or a state.

A header is a config of Hugging Face or the keys of a GGUF, with the names of models.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, TypeVar

from helpers.fits.arithmetic import listed
from helpers.fits.servers import table

MOST_LAYERS = 4096
MOST_WIDTH = 1 << 20
"""No model has more layers, or is wider; lists are made as long as its layers."""
MOST_NUMBER = 1 << 48
"""Numbers of a header from here on are no counts and no widths."""
COUNTS = ("n_layer", "n_head", "n_head_kv")
"""Figures that have to be whole numbers."""
STATES = ("ssm_", "conv_")
"""How the names of figures begin that only layers with a state have."""
Value = TypeVar("Value")
Kind = TypeVar("Kind")


def whole_number(value: object) -> int | None:
    """A number of a header without its fraction; None where it cannot be a count or a width: for
    words, flags, and numbers below 0 or from MOST_NUMBER on.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    if 0 <= value < MOST_NUMBER:
        return int(value)
    return None


def part_of(value: object) -> dict[str, Any]:
    """A part of a header that should be an object; empty where it is something else."""
    if isinstance(value, dict):
        return value
    return {}


def first_of(
    values: Mapping[str, object], names: Sequence[str], *kinds: type[Kind]
) -> Kind | None:
    """The value of the first name that has one of these types and is not empty or 0; None where no
    name has.
    """
    for name in names:
        value = values.get(name)
        if value and isinstance(value, kinds):
            return value
    return None


def has_states(header: Mapping[str, object]) -> bool:
    """Whether some of the layers have a state."""
    return any(name.startswith(STATES) for name in header)


def named(
    keys: Mapping[str, object], names: Mapping[str, Sequence[str]], prefix: str = ""
) -> dict[str, Any]:
    """The figures of a header by our names.

    ``names`` has for each of ours the names that headers use, which have ``prefix`` before them;
    the first one in the header counts. A list is kept, with a number for each layer, for the
    figures that may differ (``lists`` of models.json); of any other list the largest number counts.
    What is no number is left out. Raises ValueError for a figure that cannot be one.
    """
    values: dict[str, Any] = {}
    for name, others in names.items():
        for other in others:
            value = keys.get(prefix + other)
            if name in values or value is None:  # null in a config: not given
                continue
            _refuse_wrong_figure(name, other, value)
            if isinstance(value, list) and value:
                numbers = [_number_of_a_layer(part) for part in value]
                values[name] = max(numbers)
                if name in table("models")["lists"]:
                    values[name] = numbers
            elif whole_number(value) is not None:
                values[name] = whole_number(value)
    return values


def _refuse_wrong_figure(name: str, key: str, value: object) -> None:
    """Raises ValueError for a figure below -1, which some headers write for none, or a count that
    is no whole number. ``key`` is the header's name for it.
    """
    figures = [value]
    if isinstance(value, list):
        figures = value
    for figure in figures:
        if isinstance(figure, (int, float)) and figure < -1:
            raise ValueError(f"{key[:80]} is {value!r:.80}; expected 0 or more")
        has_fraction = isinstance(figure, float) and not figure.is_integer()
        if has_fraction and name in COUNTS:
            raise ValueError(f"{key[:80]} is {value!r:.80}; expected a whole number")


def _number_of_a_layer(value: object) -> int:
    """An item of a list as a number: 1 for a flag that is set, 0 for anything that is no number."""
    if value is True:
        return 1
    return whole_number(value) or 0


def repeated_kinds(header: Mapping[str, Any], kind: str) -> list[str]:
    """The kinds of layers (see ``layer_kinds``) in the order in which they repeat through a model,
    for one whose header does not name each layer. ``kind`` is the architecture.

    ``period`` and ``interval`` of a header say how often a layer has attention among those with a
    state, ``pattern`` how often one has no window among those with one; models.json has the last
    two for architectures whose headers leave them out.
    """
    models = table("models")
    pattern = header.get("pattern", models["windows"].get(kind))
    interval = header.get("interval", models["intervals"].get(kind))
    period = header.get("period")
    if pattern == "both":
        # transformers modeling_falcon_h1.py: attention and a state side by side
        return ["both"]
    if period is not None:
        # transformers configuration_jamba.py: one layer of a period has attention, the one at
        # attn_layer_offset, which is half of attn_layer_period
        kinds = ["recurrent"] * min(period, MOST_LAYERS)
        kinds[len(kinds) // 2] = "full"
        return kinds
    if interval is not None:
        # transformers configuration_qwen3_next.py, full_attention_interval
        return ["recurrent"] * (min(interval, MOST_LAYERS) - 1) + ["full"]
    if not header.get("n_swa") or pattern is None:
        return ["full"]  # no window, or none that saves cells
    if isinstance(pattern, list):
        # llama.cpp: one flag for each layer, 1 for a window; a single one says nothing of layers
        if len(pattern) > 1:
            return pattern
        return ["full"]
    if pattern in (0, 1):
        return ["swa"]  # every layer has the window
    # transformers configuration_gemma3.py: the last of a pattern sees everything
    return ["swa"] * (min(pattern, MOST_LAYERS) - 1) + ["full"]


def for_each_layer(values: Sequence[Value], layers: int) -> list[Value]:
    """A value for each layer: the values repeat until every layer has one."""
    return list(islice(cycle(values), layers))


def layer_kinds(
    header: Mapping[str, Any],
    kind: str,
    types: Sequence[object] | None,
    heads: Sequence[float],
) -> list[str]:
    """The kind of each layer: ``full`` (attention to all tokens), ``swa`` (within a window),
    ``recurrent`` (a state), ``both`` (attention and a state), or ``none`` (no cache and no state).

    ``kind`` is the architecture, ``types`` what the header calls each layer (None where it does
    not), ``heads`` how many heads of the cache each has.
    """
    layers = header["n_layer"]
    # A list that is shorter than the model cannot be meant, as for layers that were added.
    if types is None or len(types) < layers:
        types = for_each_layer(repeated_kinds(header, kind), layers)
    widths = for_each_layer(listed(header.get("n_ff", 0)), layers)
    words = table("models")["kinds"]
    kinds = []
    for number in range(layers):
        layer = words.get(str(types[number]), "full")
        # GGUFs do not name the kinds: a layer with no heads of the cache is one without attention.
        if layer == "full" and not heads[number]:
            layer = "recurrent"
            # Where layers have either a feed-forward or a state, its width tells which.
            if widths[number] and 0 in widths:
                layer = "none"
        kinds.append(layer)
    return kinds


def _refuse_wrong_layers(header: Mapping[str, Any], kind: str) -> None:
    """Raises ValueError for a model with impossible layers, or with more than a decoder."""
    layers = header["n_layer"]
    width = header.get("n_embd", 0)
    wrong = ""
    if not 0 < layers <= MOST_LAYERS:
        wrong = f"{layers} layers; expected 1 to {MOST_LAYERS}"
    elif width > MOST_WIDTH:
        wrong = f"a width of {width}; expected at most {MOST_WIDTH}"
    elif header.get("cross_layers"):
        wrong = "layers that look at an encoder; expected a decoder alone"
    if wrong:
        raise ValueError(f"{kind}: seen {wrong}")


def layer_inputs(
    header: Mapping[str, Any], kind: str, types: Sequence[object] | None = None
) -> dict[str, Any]:
    """The inputs of a sheet that a header gives: its figures, with how many layers there are of
    each kind, and the heads of their caches.

    ``kind`` is the architecture, ``types`` what the header calls each layer (None where it does
    not). The last ``shared_kv_layers`` layers share another's cache and count as without one.
    Raises ValueError for layers that cannot be meant.
    """
    _refuse_wrong_layers(header, kind)
    layers = header["n_layer"]
    query_heads = header.get("n_head")
    if query_heads is None:
        query_heads = int(not has_states(header))  # 1, or 0 in a model of states alone
    heads = for_each_layer(listed(header.get("n_head_kv", query_heads)), layers)
    kinds = layer_kinds(header, kind, types, heads)
    count = Counter(kinds)
    with_cache = max(0, layers - header.get("shared_kv_layers", 0))
    full_heads = []
    swa_heads = []
    for number in range(with_cache):
        if kinds[number] in ("full", "both"):
            full_heads.append(heads[number])
        elif kinds[number] == "swa":
            swa_heads.append(heads[number])
    inputs = {
        name: value for name, value in header.items() if not isinstance(value, list)
    }
    widths = listed(header.get("n_ff", 0))
    if len(widths) > 1:
        inputs["n_ff"] = sum(for_each_layer(widths, layers)) / layers
    inputs.update(
        n_layer_kv=len(full_heads),
        n_layer_swa=len(swa_heads),
        n_layer_ff=count["none"],
        n_layer_recurrent=count["recurrent"] + count["both"],
        n_head=max(listed(query_heads)),
        n_head_kv=max(full_heads, default=max(heads)),
    )
    # Only where layers differ in their heads the sums are needed (full_token and swa_token).
    if isinstance(header.get("n_head_kv"), list):
        inputs.update(
            heads_full=sum(full_heads),
            heads_swa_all=sum(swa_heads),
            n_head_kv_swa=max(swa_heads, default=0),
        )
    _remove_unknown_heads(inputs, header, heads)
    return inputs


def _remove_unknown_heads(
    inputs: dict[str, Any], header: Mapping[str, Any], heads: Sequence[float]
) -> None:
    """Set the heads and their widths to None where the header does not give them: then an answer
    names them as missing. The width becomes 1 in a model without a cache, where any would do.
    """
    if not inputs["n_head"]:
        inputs["n_head"] = None
    says_heads = "n_head" in header or "n_head_kv" in header
    if not has_states(header) and not says_heads:
        inputs.update(n_head=None, n_head_kv=None)
    if not max(heads):  # a model of states alone: any width does
        inputs["head_dim_k"] = 1
    if "kv_lora_rank" in inputs:  # one latent for all heads
        inputs.update(head_dim_k=None, head_dim_v=None)
