"""How many bits a weight takes, by the quantisation that a model's config names."""

from __future__ import annotations

from collections.abc import Mapping

from helpers.fits.layers import first_of, part_of, whole_number
from helpers.fits.servers import table

PLAIN_BITS = 16
"""Bits of a weight that is not quantised (float16, bfloat16), and of a scale."""
CONFIGS = ("quantization_config", "compression_config")
"""Names that configs have for their quantisation; the second is of compressed-tensors."""
LEFT_OUT = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
"""How configs name the modules that a quantisation leaves as they are."""


def bits_of_config(config: Mapping[str, object]) -> dict[str, float]:
    """The inputs of a sheet about bits of a weight, by their names: ``attention_bits``,
    ``linear_bits`` (of other matrices) and ``expert_bits``. A model that is not quantised has none
    of them.

    A quantisation that is not known has one input, ``quant_unknown``, which leaves the weights
    unknown. ``expert_dtype`` of the config is the type of the experts, whatever the rest has.
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
    # Modules that are left out are named by patterns, of which only attention is looked for: the
    # others, such as the output and routers, count as 16 bits anyway (model_bytes).
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
    """Bits of a weight with its scales; None where the quantisation is not known.

    A group of layers comes before 4 bits of bitsandbytes, that before a name of which
    ``dtypes`` of quantised.json has the bits, and that before a plain number of bits.
    """
    # compressed-tensors and modelopt have groups of layers; the first one with weights counts, as
    # nothing says how many layers each group has
    for group in part_of(quantisation.get("config_groups")).values():
        weights = part_of(part_of(group).get("weights"))
        if weights:
            return _bits_of_group(weights)
    # transformers BitsAndBytesConfig, which some releases write with an underscore. Its other
    # type, fp4 (bnb_4bit_quant_type), takes as much as nf4: 4 bits and a scale of 32 bits for 64
    # weights (bitsandbytes functional.py).
    if quantisation.get("load_in_4bit") or quantisation.get("_load_in_4bit"):
        if quantisation.get("bnb_4bit_use_double_quant"):
            return _bits_of_type("nf4 double")
        return _bits_of_type("nf4")
    # quant_algo is of NVIDIA ModelOpt, fmt of DeepSeek's FP8, quant_method of transformers,
    # quant_type of torchao. The first of them that is a known name counts: two known ones of a
    # config agree, and quant_method is often only that of the tool (modelopt, awq), which no row
    # has. The row bitsandbytes means its 8 bits, as its 4 bits are counted above.
    for name in ("quant_algo", "fmt", "quant_method", "quant_type"):
        bits = _bits_of_type(quantisation.get(name))
        if bits is not None:
            return bits
    # GPTQ and AWQ as transformers writes them; w_bit and q_group_size are AutoAWQ's own names.
    width = quantisation.get("bits") or quantisation.get("w_bit")
    group_size = quantisation.get("group_size") or quantisation.get("q_group_size")
    return _scaled(width, group_size)


def _bits_of_group(weights: Mapping[str, object]) -> float | None:
    """Bits of a weight with its scales, by the ``weights`` of a group of layers (``num_bits``,
    ``type``, ``group_size``); None where they are not known.
    """
    group_size = weights.get("group_size")
    # Only floats of 4 bits have scales of 8 bits; all others have those that ``_scaled`` counts.
    if weights.get("num_bits") != 4 or weights.get("type") != "float":
        return _scaled(weights.get("num_bits"), group_size)
    if group_size == 16:  # NVFP4 has a scale for 16 weights, MXFP4 for 32
        return _bits_of_type("nvfp4")
    return _bits_of_type("mxfp4")


def _scaled(width: object, group_size: object) -> float | None:
    """Bits of a weight of ``width`` bits with its part of the scale (16 bits) and the zero point
    (``width`` bits) that a group of ``group_size`` weights shares.

    None where ``width`` is no number of bits from above 0 to 16. Without a group size (GPTQ writes
    -1 for a whole column) the scale is too small to count.
    """
    if not isinstance(width, (int, float)) or isinstance(width, bool):
        return None
    if not 0 < width <= PLAIN_BITS:
        return None
    weights = whole_number(group_size)
    if not weights:
        return float(width)
    return width + (PLAIN_BITS + width) / weights
