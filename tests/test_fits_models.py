"""Models by their configs alone: the parameters that transformers counts, a cache computed by hand."""

import json
from pathlib import Path

import pytest
from fits_models import config, of, row

from helpers.fits.servers import table
from helpers.ground.units import GIB

CONTENT = json.loads((Path(__file__).parent / "data" / "models.json").read_text())
MODELS = CONTENT["models"]
"""Configs without what nothing reads. ``parameters``: counted by transformers (``source`` says by
which, and with which script), those of the part that reads text. ``cache_token``: bytes of a token
in 16 bits of the layers that see everything, ``window_token``: of those with a window; where a row
is named after its model type, as transformers' own cache has them after nine tokens.
"""
LARGE = ("--capacity", "4096GiB")


def named(name):
    return next(model for model in MODELS if model["model"] == name)


def answer_of(folder, content, *options):
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return of(path, *LARGE, *options)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["model"])
def test_weights_and_cache_follow_from_the_config(tmp_path, model):
    answer = answer_of(tmp_path, model["config"])
    weights = row(answer, "weights")["bytes"]
    assert weights == pytest.approx(2 * model["parameters"], rel=0.004)
    assert answer["cache"]["full_token"] == model["cache_token"]
    assert answer["cache"]["swa_token"] == model["window_token"]
    assert not [line for line in answer["missing"] if "not known: architecture" in line]


def test_weights_are_certain_of_those_architectures_alone_that_were_counted(tmp_path):
    counted = set()
    for model in MODELS:
        text = model["config"].get("text_config") or model["config"].get("llm_config") or {}
        counted |= {model["config"]["model_type"], text.get("model_type")}
    assert set(table("models")["counted"]) == counted - {None}
    weights = row(of(config(tmp_path, model_type="longcat_flash"), *LARGE), "weights")
    assert weights["bytes"] > weights["low_bytes"] == 0 and weights["high_bytes"] is None


def test_a_model_whose_weights_nobody_counted_neither_fits_nor_fails_for_certain(tmp_path):
    for size in ("4GiB", "4096GiB"):
        answer = of(config(tmp_path, model_type="longcat_flash"), "--capacity", size)
        assert answer["fits"] is None
        assert "not known: the weights of this architecture" in " ".join(answer["missing"])


LINEAR = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
REST = 2 * (2 * 128256 * 4096 + 65 * 4096)
"""Of Llama 3.1 8B: weights of its linear layers; bytes of its tables of tokens and norms."""
STORED = {
    # four bits; of each 128 weights a scale of 16 bits and a zero of four
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        LINEAR / 2 + LINEAR / 128 * 2.5,
    ),
    # eight bits; a scale for each row, too few to count
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, LINEAR),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, LINEAR),
    # four bits; of each 64 a scale of eight bits, and of 256 of those one of 32 bits
    "nf4": (
        {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        LINEAR / 2 + LINEAR / 64 + LINEAR / 64 / 256 * 4,
    ),
    # four bits; of each 16 a scale of eight bits
    "nvfp4": (
        {"config_groups": {"0": {"weights": {"num_bits": 4, "group_size": 16, "type": "float"}}}},
        LINEAR / 2 + LINEAR / 16,
    ),
}
"""Quantisations, and the bytes of the linear layers as each stores them."""


@pytest.mark.parametrize("name", STORED)
def test_quantised_weights_are_as_large_as_their_form_stores_them(tmp_path, name):
    quantisation, linear = STORED[name]
    weights = row(of(config(tmp_path, quantization_config=quantisation), *LARGE), "weights")
    assert weights["bytes"] == pytest.approx(linear + REST, rel=0.001)
    assert weights["low_bytes"] <= linear + REST <= weights["high_bytes"]


def test_experts_of_another_type_than_the_rest_are_counted_apart(tmp_path):
    quantisation = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    content = {**named("ds-v2-lite")["config"], "quantization_config": quantisation}
    plain = row(answer_of(tmp_path, content), "weights")["bytes"]
    mixed = row(answer_of(tmp_path, {**content, "expert_dtype": "fp4"}), "weights")["bytes"]
    experts = 26 * 64 * 3 * 2048 * 1408
    assert plain - mixed == pytest.approx(experts * (8.002 - 4.25) / 8, rel=0.001)


def test_the_longest_context_is_what_the_card_leaves_over_a_token(tmp_path):
    content = named("bamba-9b")["config"]
    options = ("--server", "llama.cpp", "--context", 262144)
    whole = answer_of(tmp_path, content, "--capacity", "24GiB", *options)
    assert whole["contexts"]["longest"] == 262144
    less = answer_of(tmp_path, content, "--capacity", "23GiB", "--server", "llama.cpp")
    token = 3 * 2 * 8 * 128 * 2 + 2 * 512  # three layers with a cache, and a row of the mask
    short = GIB - whole["spare_bytes"]
    steps = -(-short // (token * 256))
    assert less["contexts"]["longest"] == 262144 - steps * 256 < 262144


def test_an_architecture_that_is_not_known_never_certainly_fits(tmp_path):
    answer = of(config(tmp_path, model_type="zork"), "--gpu", "h100")
    assert answer["fits"] is None and answer["contexts"]["longest_low"] is None
    assert "architecture zork" in " ".join(answer["missing"])


def test_heads_that_a_config_does_not_name_are_missing_and_no_states(tmp_path):
    answer = of(config(tmp_path, num_attention_heads=None, num_key_value_heads=None), *LARGE)
    assert answer["fits"] is None and "the number of heads of the cache" in answer["missing"]
    assert row(answer, "state")["bytes"] == 0


def test_layers_that_differ_one_by_one_are_refused(tmp_path):
    blocks = [{"attention": {"n_heads_in_group": 8}}] * 32
    with pytest.raises(AssertionError, match="block_configs"):
        of(config(tmp_path, block_configs=blocks), *LARGE)
    with pytest.raises(AssertionError, match="per_layer_config: layers have heads of their own"):
        of(config(tmp_path, model_type="gemma4", per_layer_config={"05": {"head_dim": 512}}))
