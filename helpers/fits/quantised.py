"""How many bits a weight takes, by what a model's config says of its quantisation."""

from __future__ import annotations

from collections.abc import Mapping

from helpers.fits.layers import first_of, part_of, whole_number
from helpers.fits.servers import table

PLAIN_BITS = 16
CONFIGS = ("quantization_config", "compression_config")
LEFT_OUT = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
"""How configs name the modules that a quantisation leaves as they are."""


def bits_of_config(config: Mapping[str, object]) -> dict[str, float]:
    """Bits of a weight of the attention, of other matrices and of experts, as inputs of a sheet.

    ``quant_unknown``, which leaves the weights unknown, where the config names a quantisation that is not known.
    """
    of_experts = {}
    expert_bits = _bits_of_type(config.get("expert_dtype"))
    if expert_bits is not None:
        of_experts["expert_bits"] = expert_bits
    quantisation = first_of(config, CONFIGS, dict)
    if quantisation is None:
        return of_experts
    bits = _bits(quantisation)
    if bits is None:
        return {"quant_unknown": 1}
    inputs = {"attention_bits": bits, "linear_bits": bits, "expert_bits": bits}
    method = str(quantisation.get("quant_method")).lower()
    left_out = first_of(quantisation, LEFT_OUT, list)
    if method in table("quantised")["experts_only"]:
        inputs.update(attention_bits=PLAIN_BITS, linear_bits=PLAIN_BITS)
    elif "attn" in str(left_out):
        inputs["attention_bits"] = PLAIN_BITS
    return {**inputs, **of_experts}


def _bits_of_type(name: object) -> float | None:
    """Bits of a weight by the name of its type or quantisation; None for one that is not known."""
    bits: float | None = table("quantised")["dtypes"].get(str(name).lower())
    return bits


def _bits(quantisation: Mapping[str, object]) -> float | None:
    """Bits of a weight with its scales; None where the form is not known."""
    # compressed-tensors and modelopt: groups of layers, each with its own weights
    for group in part_of(quantisation.get("config_groups")).values():
        weights = part_of(part_of(group).get("weights"))
        if weights:
            return _bits_of_group(weights)
    if quantisation.get("load_in_4bit") or quantisation.get("_load_in_4bit"):
        is_double = quantisation.get("bnb_4bit_use_double_quant")
        return _bits_of_type("nf4 double" if is_double else "nf4")
    for name in ("quant_algo", "fmt", "quant_method", "quant_type"):
        bits = _bits_of_type(quantisation.get(name))
        if bits is not None:
            return bits
    width = quantisation.get("bits") or quantisation.get("w_bit")
    group_size = quantisation.get("group_size") or quantisation.get("q_group_size")
    return _scaled(width, group_size)


def _bits_of_group(weights: Mapping[str, object]) -> float | None:
    """Bits of a weight of a group of layers."""
    group_size = weights.get("group_size")
    if weights.get("num_bits") != 4 or weights.get("type") != "float":
        return _scaled(weights.get("num_bits"), group_size)
    return _bits_of_type("nvfp4" if group_size == 16 else "mxfp4")


def _scaled(width: object, group_size: object) -> float | None:
    """Bits of a weight of so many, with a scale of 16 bits and a zero for each group of weights."""
    if not isinstance(width, (int, float)) or isinstance(width, bool):
        return None
    if not 0 < width <= PLAIN_BITS:
        return None
    weights = whole_number(group_size)
    if not weights:
        return float(width)
    return width + (PLAIN_BITS + width) / weights
