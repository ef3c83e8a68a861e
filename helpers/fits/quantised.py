"""How many bits a weight takes, by what a model's config says of its quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helpers.fits.layers import part_of, whole_number
from helpers.fits.servers import table

PLAIN_BITS = 16


def bits_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Bits of a weight of the attention, of other matrices and of experts, as inputs of a sheet.

    ``quant_unknown``, which leaves the weights unknown, where the config names a quantisation that is not known.
    """
    dtypes = table("quantised")["dtypes"]
    expert = dtypes.get(str(config.get("expert_dtype") or "").lower())
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(quantisation, dict):
        if expert is None:
            return {}
        return {"expert_bits": expert}
    bits = _bits(quantisation)
    if bits is None:
        return {"quant_unknown": 1}
    method = str(quantisation.get("quant_method") or "").lower()
    left_out = " ".join(map(str, _left_out(quantisation)))
    inputs = {
        "attention_bits": bits,
        "linear_bits": bits,
        "expert_bits": expert or bits,
    }
    if method in table("quantised")["experts_only"]:
        inputs.update(attention_bits=PLAIN_BITS, linear_bits=PLAIN_BITS)
    elif "attn" in left_out:
        inputs["attention_bits"] = PLAIN_BITS
    return inputs


def _left_out(quantisation: Mapping[str, Any]) -> list[Any]:
    """The modules that a quantisation leaves as they are."""
    for name in (
        "modules_to_not_convert",
        "ignore",
        "exclude_modules",
        "ignored_layers",
    ):
        modules = quantisation.get(name)
        if isinstance(modules, list):
            return modules
    return []


def _bits(quantisation: Mapping[str, Any]) -> float | None:
    """Bits of a weight with its scales; None where the form is not known."""
    rows = table("quantised")
    groups = quantisation.get("config_groups")
    if isinstance(groups, dict):
        # compressed-tensors and modelopt: groups of layers, each with its own weights
        for group in groups.values():
            weights = part_of(part_of(group).get("weights"))
            if weights.get("num_bits") == 4 and weights.get("type") == "float":
                return rows["dtypes"][
                    "nvfp4" if weights.get("group_size") == 16 else "mxfp4"
                ]
            if weights:
                return _grouped(weights.get("num_bits"), weights.get("group_size"))
    if quantisation.get("load_in_4bit") or quantisation.get("_load_in_4bit"):
        if quantisation.get("bnb_4bit_use_double_quant"):
            return rows["dtypes"]["nf4 double"]
        return rows["dtypes"]["nf4"]
    for name in ("quant_algo", "fmt", "quant_method", "quant_type"):
        bits = rows["dtypes"].get(str(quantisation.get(name) or "").lower())
        if bits is not None:
            return float(bits)
    width = quantisation.get("bits") or quantisation.get("w_bit")
    return _grouped(
        width, quantisation.get("group_size") or quantisation.get("q_group_size")
    )


def _grouped(width: Any, group: Any) -> float | None:
    """Bits of a weight of so many, with a scale of 16 bits and a zero for each group."""
    is_number = isinstance(width, (int, float)) and not isinstance(width, bool)
    if not is_number or not 0 < width <= PLAIN_BITS:
        return None
    bits = float(width)
    size = whole_number(group) or 0
    if not size:
        return bits
    return bits + (PLAIN_BITS + bits) / size
