"""What fits: rows, sum and answers from made-up models and inputs; hostile headers end in one line."""

import ast
import json
from pathlib import Path

import pytest
from command_line import verb
from examples import examples
from fits_models import asked, config, decoder, gguf, of, row, safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.fits import rules
from helpers.fits.cards import FailedProcess
from helpers.fits.gguf import Gguf
from helpers.fits.servers import date_of, table
from helpers.fits.sheet import RULES, Sheet
from helpers.ground.units import GIB, MIB

LLAMA = {
    "n_layer": 32,
    "n_head_kv": 8,
    "head_dim_k": 128,
    "n_ctx": 8192,
    "kv_type": "f16",
    "weights_bytes": 15 * GIB,
}


RULE_FILES = sorted(Path(rules.__file__).parent.glob("*.py"))
SHEET = set(dir(Sheet)) | set(vars(Sheet("", "", {})))


def figures_read(path):
    """The figures that the rules of a file read, as attributes of the sheet or by their names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "s":
            yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ASKING:
            yield from (part.value for part in node.args if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
            if ast.unparse(node.comparators[0]) == "s.inputs":
                yield node.left.value


ASKING = {"has", "text", "sizes", "figure"}


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_every_figure_that_a_rule_reads_is_given_or_worked_out(path):
    inputs = {*RULES, *table()["defaults"], *table()["read"].split()}
    header = {name for part in ("config", "gguf") for name in table("models")[part]}
    unknown = set(figures_read(path)) - inputs - header - SHEET
    assert unknown == set()


@pytest.mark.parametrize(
    ("version", "family", "month"),
    [
        ("2025-12 (about b7437)", "llama.cpp", 202512),
        ("before 2025-05", "llama.cpp", 202504),
        ("build 850 (July 2023)", "llama.cpp", 202307),
        ("late 2024", "llama.cpp", 202411),
        ("b7300", "llama.cpp", 202512),
        ("0.6.x (V0)", "vLLM", 202409),
        ("0.21.1", "vLLM", 202605),
        ("2026", "vLLM", 202612),
        ("", "vLLM", 999912),
    ],
)
def test_a_release_is_the_month_it_came_out_in(version, family, month):
    assert date_of(version, family) == month


def test_the_cache_of_llama_cpp_is_padded_as_the_release_pads_it(tmp_path):
    token = 32 * 8 * (128 + 128) * 2
    three = {**LLAMA, "n_ctx": 10000, "n_parallel": 3}
    now = asked(tmp_path, "llama.cpp", "2026-01", **three)
    assert row(now, "kv")["bytes"] == 3 * 3584 * token  # 10240 / 3 rounded up to 256, three times
    unified = asked(tmp_path, "llama.cpp", "2026-01", **three, kv_unified=True)
    assert row(unified, "kv")["bytes"] == 10240 * token
    old = asked(tmp_path, "llama.cpp", "2023-06", **three)
    assert row(old, "kv")["bytes"] == 10000 * token
    small = asked(tmp_path, "llama.cpp", "2026-01", **{**LLAMA, "kv_type": "q8_0"})
    assert row(small, "kv")["bytes"] == 8192 * token * 34 // 64
    printed = asked(tmp_path, "llama.cpp", "2026-01", **three, cells_per_stream=4096)
    assert row(printed, "kv")["bytes"] == 3 * 4096 * token  # as a log prints them


def test_a_window_saves_cells_by_the_rule_of_its_release(tmp_path):
    window = {**LLAMA, "n_layer": 24, "n_layer_swa": 20, "n_swa": 1024, "n_ctx": 65536}
    token = 8 * 256 * 2
    for version, cells in (("2025-04", 65536), ("2025-05", 3072), ("2025-07", 1536), ("", 1536)):
        answer = asked(tmp_path, "llama.cpp", version, **window)
        assert row(answer, "kv")["bytes"] == token * (4 * 65536 + 20 * cells), version
    whole = asked(tmp_path, "llama.cpp", "", **window, swa_full=True)
    assert row(whole, "kv")["bytes"] == token * 24 * 65536


def test_states_of_recurrent_layers_follow_the_slots_and_not_the_context(tmp_path):
    inputs = {**LLAMA, "n_layer_recurrent": 24, "n_parallel": 4, "ssm_d_conv": 4}
    inputs.update(ssm_d_inner=4096, ssm_d_state=128, ssm_n_group=16)
    layer = 4 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096)
    for context in (8192, 65536):
        answer = asked(tmp_path, "llama.cpp", "", **{**inputs, "n_ctx": context})
        assert row(answer, "state")["bytes"] == 4 * 24 * layer
    drafted = asked(tmp_path, "llama.cpp", "2026-07", **inputs, num_speculative_tokens=2)
    assert row(drafted, "state")["bytes"] == 3 * 4 * 24 * layer, "a snapshot for each drafted token"
    whole = asked(tmp_path, "SGLang", "", **inputs)
    half = asked(tmp_path, "SGLang", "", **inputs, mamba_ssm_dtype="bfloat16")
    assert row(whole, "state")["bytes"] - row(half, "state")["bytes"] == 5 * 24 * 2 * 128 * 4096


def test_states_that_vllm_keeps_for_a_request_follow_its_prefix_caching(tmp_path):
    inputs = {"n_layer_kv": 17, "n_layer_recurrent": 48, "n_head_kv": 4, "head_dim_k": 256, "tp": 2}
    inputs.update(ssm_d_conv=4, ssm_d_inner=6144, ssm_d_state=128, ssm_n_group=16, kv_type="f16")
    inputs.update(num_speculative_tokens=3, n_ctx=184320, available_kv_bytes=round(110.59 * GIB))
    held = {None: 3194130, "align": 3194130, "none": 3233564}  # a public log prints the last
    for mode, tokens in held.items():
        answer = asked(tmp_path, "vLLM", "2026-07", **inputs, mamba_cache_mode=mode)
        assert answer["solved"]["tokens"] == tokens, mode
    without = asked(tmp_path, "vLLM", "2026-07", **inputs, prefix_caching=False)
    assert without["solved"]["tokens"] == held["none"]


def test_vllm_is_solved_in_blocks_and_says_what_would_have_fitted(tmp_path):
    inputs = {**LLAMA, "n_ctx": 131072, "card_total_bytes": 24 * GIB, "block_size": 16}
    inputs.update(gpu_memory_utilization=0.9, non_torch_bytes=GIB // 2, activation_peak_bytes=GIB)
    answer = asked(tmp_path, "vLLM", "0.8", **inputs)
    left = int(24 * GIB * 0.9) - 15 * GIB - GIB // 2 - GIB
    assert answer["fits"] is False
    assert row(answer, "kv")["bytes"] == left
    assert answer["solved"]["tokens"] == left // (16 * 131072) * 16 == answer["solved"]["context"]
    assert asked(tmp_path, "vLLM", "0.8", **{**inputs, "n_ctx": 16384})["fits"] is True
    more = asked(tmp_path, "vLLM", "0.8", (), "--context", 40960, **inputs)["solved"]["utilisation"]
    needs = (16.5 + 5) / 24
    assert needs <= more <= needs + 0.01


def test_groups_of_layers_share_one_pool_of_blocks(tmp_path):
    inputs = {"n_layer": 30, "n_layer_kv": 5, "n_layer_swa": 25, "n_head_kv": 2, "head_dim_k": 512}
    inputs.update(n_head_kv_swa=8, head_dim_swa=256, n_swa=1024, max_num_batched_tokens=2048)
    pool = {"n_ctx": 65536, "kv_cache_memory_bytes": 4 * GIB, "kv_type": "bf16"}
    answer = asked(tmp_path, "vLLM", "0.29", ("SWA",), **inputs, **pool)
    page = 16 * 8 * 512 * 2  # a page of the sliding layers; a full layer has half of it a token
    blocks = 4 * GIB // (page * 5)
    request = -(-65536 // 32) + 5 * (-(-(1023 + 2 * 2048) // 16) + 1)
    assert answer["cache"]["blocks"] == blocks
    assert answer["cache"]["request_blocks"] == request
    assert answer["solved"]["tokens"] == int(blocks / request * 65536)
    earlier = asked(tmp_path, "vLLM", "0.16", ("SWA",), **inputs, **pool)
    assert earlier["solved"]["tokens"] == blocks // 6 * 16


def test_a_block_of_a_hybrid_model_is_as_large_as_its_state(tmp_path):
    inputs = {"n_layer": 64, "n_layer_recurrent": 48, "n_head_kv": 4, "head_dim_k": 256, "tp": 2}
    inputs |= {"ssm_d_conv": 4, "ssm_d_inner": 6144, "ssm_d_state": 128, "ssm_n_group": 16}
    pool = {"kv_type": "fp8", "n_ctx": 131072, "kv_cache_memory_bytes": 5 * GIB}
    answer = asked(tmp_path, "vLLM", "0.27", ("hybrid",), **inputs, **pool)
    state = (3 * (6144 + 4096) * 2 + 128 * 6144 * 4) // 2
    block = -(-state // (16 * 2 * 512)) * 16
    assert answer["cache"]["block_size"] == block == 1568
    assert answer["cache"]["blocks"] == 5 * GIB // (block * 2 * 512 * 16)


def test_sglang_holds_one_page_more_and_takes_a_fraction_of_what_is_free(tmp_path):
    inputs = {**LLAMA, "n_ctx": None, "kv_type": "bf16", "page_size": 64, "tp": 2}
    held = asked(tmp_path, "SGLang", "2026-02", **inputs, tokens=20480)
    assert row(held, "kv")["bytes"] == (20480 + 64) * 32 * 4 * 256 * 2
    inputs.update(card_free_bytes=40 * GIB, mem_fraction_static=0.8)
    open_ = asked(tmp_path, "SGLang", "2026-02", **inputs)
    assert open_["solved"]["tokens"] == int(40 * GIB * 0.8 - 15 * GIB) // 65536 // 64 * 64
    none = asked(tmp_path, "SGLang", "", **{**inputs, "mem_fraction_static": 0.3})
    assert none["fits"] is False and none["solved"]["utilisation"] >= 0.37


def test_ollama_counts_as_its_estimate_does(tmp_path):
    inputs = {**LLAMA, "n_head": 32, "n_embd": 4096, "n_vocab": 128256, "kv_type": "q8_0"}
    answer = asked(tmp_path, "ollama", "2025-02", **inputs, card_free_bytes=23 * GIB)
    assert row(answer, "kv")["bytes"] == 32 * 8 * 256 * 8192
    graph = 4 * 512 * (1 + 4 * 4096 + 8192 * 33)
    assert row(answer, "compute")["bytes"] == graph
    assert answer["fits"] is True


def test_ollama_counts_by_the_graph_of_its_release(tmp_path):
    inputs = {**LLAMA, "n_head": 32, "n_embd": 4096, "n_vocab": 128256, "gguf_arch": "llama"}
    for version, graph in (("2024-07", 1 + 4 * 4096 + 2048 * 33), ("2024-09", 4096 + 128256)):
        answer = asked(tmp_path, "ollama", version, **{**inputs, "n_ctx": 2048})
        assert row(answer, "compute")["bytes"] == 4 * 512 * graph, version
    eyes = {**inputs, "gguf_arch": "gemma3", "n_layer_swa": 26, "n_swa": 1024}
    eyes |= {"projector_weights_bytes": GIB // 2, "card_free_bytes": 23 * GIB}
    assert asked(tmp_path, "ollama", "0.6.6", **eyes)["fits"] is True
    wide = {**eyes, "image_size": 1792}
    assert asked(tmp_path, "ollama", "0.6.6", **wide)["fits"] is False, "patches to the fourth"


def test_a_vision_encoder_leaves_no_promise(tmp_path):
    inputs = {**LLAMA, "n_head": 32, "n_embd": 4096, "n_vocab": 128256, "card_free_bytes": 60 * GIB}
    assert asked(tmp_path, "ollama", "2025-02", **inputs)["fits"] is True
    seeing = asked(tmp_path, "ollama", "2025-02", **inputs, projector_weights_bytes=GIB)
    assert seeing["fits"] is None and "image" in " ".join(seeing["missing"])


def test_what_is_not_given_is_named_and_nothing_is_guessed(tmp_path):
    answer = asked(tmp_path, "llama.cpp", "", **{**LLAMA, "weights_bytes": None})
    assert answer["fits"] is None
    said = " ".join(answer["missing"])
    assert "weights" in said and "--gpu" in said
    odd = asked(tmp_path, "llama.cpp", "", **{**LLAMA, "kv_type": "zork3"})
    assert row(odd, "kv")["bytes"] is None and "zork3" in row(odd, "kv")["source"]
    assert "not known" in " ".join(asked(tmp_path, "zork", **LLAMA)["missing"])


def test_several_cards_need_the_weights_to_fit_their_sum(tmp_path):
    cards = {"card_free_bytes": [8 * GIB, 4 * GIB], "n_ctx": 4096}
    assert asked(tmp_path, "llama.cpp", "2026-01", **{**LLAMA, **cards})["fits"] is False
    layers = asked(tmp_path, "llama.cpp", "2026-01", **{**LLAMA, **cards})["solved"]
    assert 0 < layers["layers_on_gpu"] < 33


def dealt(free, graph, layer, output, count):
    """Layers of blocks and output that ollama's EstimateGPULayers of 2025 deals round and round to cards with room."""
    used = [graph + 457 * MIB + layer for _ in free]
    room = [at for at, size in enumerate(free) if size >= used[at] + layer]
    held = 0
    for at in range(count + 1):
        size = layer if at < count else output
        if at == count and held < count:
            break
        for j in range(len(room), 0, -1):
            card = room[at % j]
            if free[card] > used[card] + size:
                used[card] += size
                held += 1
                break
            if at < count:
                room.remove(card)
    return held


@pytest.mark.parametrize(
    "free", [[22] * 4, [24, 12], [8], [40, 40], [10.5, 23.5, 6], [3, 3], [47.3, 11.2]]
)
def test_ollama_deals_whole_layers_to_cards_and_keeps_a_graph_on_each(free, tmp_path):
    inputs = {**LLAMA, "n_layer": 80, "n_head": 64, "n_embd": 8192, "n_vocab": 128256}
    inputs |= {"n_ctx": 16384, "card_free_bytes": [int(size * GIB) for size in free]}
    inputs |= {"weights_bytes": 40 * GIB, "output_bytes": GIB, "gguf_arch": "llama"}
    answer = asked(tmp_path, "ollama", "0.9", **inputs)
    context = 16384
    rows = 4 * 512
    partial = rows * 8192 + rows * (1 + 8192 + context) + 8192 * 8192 * 9 / 16
    partial += 4 * context * (512 * 64 + 128 * 8)
    full = rows * (1 + 4 * 8192 + context * 65)
    graph = partial if len(free) > 1 else max(partial, full)
    layer = (39 * GIB + row(answer, "kv")["bytes"]) / 80
    held = dealt(inputs["card_free_bytes"], graph, layer, GIB, 80)
    assert answer["solved"]["layers_on_gpu"] == held
    assert answer["fits"] is not (held < 81)


def test_llama_cpp_fills_each_card_by_its_share_and_the_fullest_decides(tmp_path):
    cards = {"card_free_bytes": [40 * GIB, 12 * GIB, 12 * GIB], "weights_bytes": 40 * GIB}
    before = {**LLAMA, **cards, "n_layer": 80}
    split = asked(tmp_path, "llama.cpp", "2025-10", **before, tensor_split=[1, 1, 1])
    assert split["fits"] is False, "a third of 40 GiB does not fit in 12"
    by_room = asked(tmp_path, "llama.cpp", "2025-10", **before)
    assert by_room["fits"] is None and by_room["spare_bytes"] > 0


def test_a_decoder_that_looks_at_an_encoder_is_refused_in_one_line(tmp_path):
    looks = {"cross_attention_layers": [3, 8, 13], "model_type": "mllama_text_model"}
    for keys in ({"is_encoder_decoder": True}, {"text_config": looks}):
        done = verb("fits", config(tmp_path, **keys))
        assert done.code == 2 and "expected" in done.err and done.err.count("\n") == 1


def test_a_gguf_header_gives_layers_weights_and_windows(tmp_path):
    plain = of(decoder(tmp_path / "a.gguf"), "--capacity", "8GiB", "--context", 4096)
    weights = 1000 * 1024 * 34 // 32 + 4096 + 4 * 4 * 1024 * 1024 * 144 // 256
    assert row(plain, "weights")["bytes"] == weights and plain["fits"] is True
    assert row(plain, "kv")["bytes"] == 4 * 2 * 256 * 2 * 4096
    apart = [("token_embd.weight", "F16", (64, 100)), ("output.weight", "F16", (64, 100))]
    both = gguf(tmp_path / "o.gguf", {"general.architecture": "llama"}, apart)
    assert row(of(both), "weights")["bytes"] == 64 * 100 * 2, (
        "the table of tokens stays with the host"
    )
    sliding = {"attention.sliding_window": 512, "attention.key_length": 64}
    gemma = decoder(tmp_path / "g.gguf", "gemma3", layers=12, **sliding)
    cells = 2 * 32768 + 10 * 1024
    assert row(of(gemma, "--context", 32768), "kv")["bytes"] == 2 * 128 * 2 * cells
    each = {"attention.head_count_kv": [8, 2], "attention.key_length": 64}
    uneven = decoder(tmp_path / "u.gguf", "openelm", layers=2, **each)
    assert row(of(uneven, "--context", 256), "kv")["bytes"] == 256 * 10 * 128 * 2
    latent = {"attention.key_length": 576, "attention.value_length": 512}
    latent |= {"attention.kv_lora_rank": 512, "attention.key_length_mla": 192}
    latent |= {"rope.dimension_count": 64}
    deep = decoder(tmp_path / "d.gguf", "deepseek2", kv=1, **latent)
    assert row(of(deep, "--context", 1024), "kv")["bytes"] == 4 * 1024 * 576 * 2
    before = of(deep, "--context", 1024, "--release", "2025-08")
    assert row(before, "kv")["bytes"] == 4 * 1024 * (576 + 512) * 2


def test_parts_of_a_split_gguf_are_added_up_and_a_lost_one_is_said(tmp_path):
    one = decoder(tmp_path / "m-00001-of-00002.gguf")
    alone = of(one)
    assert "1 of 2 parts" in " ".join(alone["missing"])
    assert (alone["fits"], alone["incomplete"]) == (None, "1 of 2 parts are not here")
    gguf(tmp_path / "m-00002-of-00002.gguf", {}, [("x", "F16", (1024, 1024))])
    both = of(one)
    assert row(both, "weights")["bytes"] == row(alone, "weights")["bytes"] + 2 * MIB
    assert not both["incomplete"] and "parts" not in str(both["missing"])


CARD = ("--gpu", "4090")


@pytest.mark.parametrize(
    "split, why",
    [
        ({"split.count": 3, "split.no": 1}, "2 of 3 parts are not here"),
        ({"split.count": 1, "split.tensors.count": 99}, "its parts have 6 of 99 tensors"),
    ],
)
def test_a_part_under_another_name_never_fits_by_itself(split, why, tmp_path):
    path = decoder(tmp_path / "sha256-0badc0de", layers=6)
    whole = of(path, "--context", 1024, *CARD)
    assert whole["fits"] is True
    layers = [(f"blk.{n}.ffn_up.weight", "Q4_K", (1024, 4096)) for n in range(6)]
    keys = {"general.architecture": "llama", "llama.block_count": 6, "llama.embedding_length": 1024}
    part = gguf(tmp_path / "blob", {**keys, **split}, layers)
    answer = of(part, "--context", 1024, *CARD)
    assert answer["fits"] is None and answer["incomplete"] == why
    shown = verb("fits", part, "--context", 1024, *CARD).out
    said = " ".join(shown.split())
    assert said.startswith(f"Cannot tell whether it fits in 23.64 GiB: {why}; what is here needs")
    assert "to spare" not in shown


def test_a_gguf_without_tensors_and_a_folder_without_all_safetensors_never_fit(tmp_path):
    keys = {"general.architecture": "llama", "llama.block_count": 6, "llama.embedding_length": 1024}
    answer = of(gguf(tmp_path / "empty.gguf", keys, []), "--context", 1024, *CARD)
    assert (answer["fits"], answer["incomplete"]) == (None, "its header names no tensors")
    config(tmp_path)
    safetensors(tmp_path / "model-00002-of-00003.safetensors", {"x": (1000, 1000)})
    answer = of(tmp_path / "config.json", "--context", 1024, *CARD)
    assert (answer["fits"], answer["incomplete"]) == (None, "2 of 3 parts are not here")


def test_parts_that_already_need_more_than_there_is_do_not_fit(tmp_path):
    keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 1024}
    large = [("blk.0.ffn_up.weight", "F16", (1 << 20, 1 << 14))]
    answer = of(gguf(tmp_path / "m-00001-of-00002.gguf", keys, large), "--context", 1024, *CARD)
    assert answer["fits"] is False


def test_tensors_of_one_and_two_bits_are_counted_by_their_blocks(tmp_path):
    keys = {"general.architecture": "llama"}
    shape = (1024, 1024)
    for kind, bits in (("Q1_0", 9 / 8), ("Q2_0", 9 / 4)):  # ggml-common.h of August 2026
        path = gguf(tmp_path / f"{kind}.gguf", keys, [("blk.0.ffn_up.weight", kind, shape)])
        assert row(of(path), "weights")["bytes"] == MIB * bits / 8


def test_a_config_gives_weights_by_its_dimensions_or_by_what_lies_beside_it(tmp_path):
    whole = row(of(config(tmp_path)), "weights")["bytes"]
    assert abs(whole / (2 * 8_030_261_248) - 1) < 0.001  # a decoder of 8.03 billion, tied to none
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    assert row(of(config(tmp_path, **experts)), "weights")["bytes"] > 5 * whole
    plain = config(tmp_path, hidden_act="relu2", tie_word_embeddings=True)
    gate = 32 * 4096 * 14336
    embeddings = 128256 * 4096
    assert row(of(plain), "weights")["bytes"] == whole - 2 * (gate + embeddings)
    safetensors(tmp_path / "model.safetensors", {"a": [1024, 1024], "b": [512]})
    assert row(of(tmp_path), "weights")["bytes"] == 2 * MIB + 1024
    index = {"metadata": {"total_size": 7 * GIB}, "weight_map": {"a": "x.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert row(of(tmp_path), "weights")["bytes"] == 7 * GIB


@pytest.mark.parametrize(
    "keys",
    [
        {"quantization_config": {"quant_method": "sieve", "strength": 4}},
        {"layer_types": ["conv", "full_attention"] * 16, "conv_L_cache": 3},
    ],
)
def test_weights_that_the_dimensions_do_not_give_are_asked_for(tmp_path, keys):
    answer = of(config(tmp_path, **keys), "--gpu", "b200")
    assert row(answer, "weights")["bytes"] is None and answer["fits"] is None
    assert "the bytes of the weights: model.safetensors.index.json" in answer["missing"]


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_use_double_quant": True,
            },
            4 + 8 / 64 + 32 / 64 / 256,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            4 + 20 / 32,
        ),
    ],
)
def test_a_quantised_config_alone_gives_the_weights_by_their_bits(tmp_path, quantisation, bits):
    plain = row(of(config(tmp_path)), "weights")["bytes"]
    embeddings = 2 * 2 * 4096 * 128256
    small = row(of(config(tmp_path, quantization_config=quantisation)), "weights")
    expected = (plain - embeddings) * bits / 16 + embeddings
    assert small["bytes"] == pytest.approx(expected, rel=0.005)
    assert small["low_bytes"] < small["bytes"] < small["high_bytes"]


def test_experts_have_a_type_of_their_own_where_the_config_says_so(tmp_path):
    experts = {"num_local_experts": 8, "model_type": "mixtral"}
    eight = {"quantization_config": {"quant_method": "fp8"}}
    all_of_eight = row(of(config(tmp_path, **experts, **eight)), "weights")["bytes"]
    four = row(of(config(tmp_path, **experts, **eight, expert_dtype="fp4")), "weights")["bytes"]
    widths = 32 * 8 * 3 * 4096 * 14336
    assert all_of_eight - four == pytest.approx(widths * (8 - 4.25) / 8, rel=0.01)
    only = {"quantization_config": {"quant_method": "mxfp4"}}
    rest = row(of(config(tmp_path, **experts, **only)), "weights")["bytes"]
    assert rest - four == pytest.approx((32 * 2.5 * 4096 * 4096), rel=0.05), "attention in 16 bits"


def test_layers_of_a_config_are_told_apart_by_kind(tmp_path):
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    state = {"linear_num_value_heads": 32, "linear_value_head_dim": 128}
    state |= {"linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4}
    hybrid = config(tmp_path, model_type="qwen3_next", layer_types=kinds * 8, **state)
    answer = of(hybrid, "--server", "llama.cpp", "--context", 4096, "--slots", 2)
    assert row(answer, "kv")["bytes"] == 8 * 8 * 256 * 2 * 4096
    assert row(answer, "state")["bytes"] == 2 * 24 * 4 * (3 * (4096 + 4096) + 128 * 4096)
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    deep = config(tmp_path, model_type="deepseek_v3", **latent, v_head_dim=128)
    assert of(deep, "--context", 1024)["cache"]["full_token"] == 32 * 576 * 2
    odd = of(config(tmp_path, model_type="zorkformer"))
    assert "not known: architecture zorkformer" in odd["missing"]
    assert row(odd, "weights")["bytes"] > 0


def test_an_input_that_nothing_reads_is_named(tmp_path):
    inputs = {"num_hidden_layers": 42, "n_head_kv": 8, "head_dim": 256, "ctx_size": 8192}
    answer = asked(tmp_path, "llama.cpp", "b3500", **inputs, moon_phase=3)
    assert row(answer, "kv")["bytes"] == 2 * 42 * 8 * 256 * 2 * 8192, "by the names of others too"
    assert answer["notes"] == ["not read, as no rule knows them: moon_phase"]


def test_a_box_gives_the_ceiling_that_ttm_gives(tmp_path):
    path = config(tmp_path)
    ttm = json.loads(verb("ttm", "strix-halo-3-gttsize", "--json").out)
    answer = of(path, "--box", "strix-halo-3-gttsize", "--server", "llama.cpp")
    assert answer["ceiling_bytes"] == ttm["binding_bytes"] and row(answer, "others")["bytes"]
    held = of(path, "--box", "rx7900xt-container")
    assert held["ceiling_bytes"] > row(held, "others")["bytes"] > 19 * GIB
    assert held["fits"] is False, "another process holds nearly all of it"
    assert held["solved"]["tokens"] == 0, "vLLM is refused before it loads anything"
    assert held["ways"][0]["kind"] == "others" and held["ways"][0]["context"] > 4096
    one, two = (of(path, "--box", "rx7900xt-container", "--tp", n) for n in (1, 2))
    assert one["ceiling_bytes"] > row(one, "others")["bytes"], "of the card that it takes alone"
    assert two["ceiling_bytes"] == one["ceiling_bytes"] and ";" in two["ceiling_source"]
    assert verb("fits", path, "--box", "cpu-only").err.count("\n") == 1


def test_what_the_failed_process_held_counts_as_gone_and_is_said(tmp_path):
    path = config(tmp_path)
    failed = of(path, "--box", "cuda-24gb-tuning")
    assert row(failed, "others")["bytes"] < GIB and failed["fits"] is True
    said = " ".join(failed["notes"])
    assert "23.53 GiB" in said and "22.88 GiB" in said and "--held 23.53GiB" in said
    counted = of(path, "--box", "cuda-24gb-tuning", "--held", "23.53GiB")
    assert counted["fits"] is False and row(counted, "others")["bytes"] > 23 * GIB
    assert not counted["notes"]


HOSTILE = {
    "cut.gguf": b"GGUF\x03\x00\x00\x00\x01",
    "lies.gguf": b"GGUF\x03\x00\x00\x00" + b"\xff" * 16,
    "long.gguf": b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x01" + bytes(7) + b"\xff" * 7 + b"\x00",
    "nested.gguf": b"GGUF\x03\x00\x00\x00"
    + bytes(8)
    + b"\x01"
    + bytes(7)
    + b"\x01"
    + bytes(7)
    + b"a\x09\x00\x00\x00\x09\x00\x00\x00"
    + b"\x01"
    + bytes(7),
    "version.gguf": b"GGUF\x63\x00\x00\x00" + bytes(16),
    "empty.json": b"",
    "deep.json": b"[" * 200_000,
    "list.json": b"[1, 2]",
    "package.json": b'{"name": "left-pad", "version": "1.0"}',
    "layers.json": b'{"num_hidden_layers": 1e300, "hidden_size": -4}',
    "many.json": b'{"num_hidden_layers": 999999, "hidden_size": 64, "num_attention_heads": 4}',
    "half.json": b'{"num_hidden_layers": 32, "hidden',
    "long.safetensors": b"\xff" * 8 + b"{}",
    "lies.safetensors": b"\x2c" + bytes(7) + b'{"a":{"data_offsets":[0,99999999999999999]}}..',
    "list.safetensors": b"\x02" + bytes(7) + b"[]",
    "other.log": b"Es war einmal ein Kind, das hatte 12 GiB Speicher.\n" * 50,
    "binary.log": bytes(range(256)) * 64,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_no_model_or_lies_is_refused_in_one_line(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    done = verb("fits", path)
    assert done.code == 2 and done.out == "", done.out
    assert done.err.count("\n") == 1 and "expected" in done.err, done.err


def test_a_model_of_which_only_the_header_is_here_is_answered_as_the_whole(tmp_path):
    whole = decoder(tmp_path / "m.gguf", layers=6)
    answer = of(whole, "--context", 4096, *CARD)
    header = Gguf(whole)
    part = tmp_path / "part.gguf"
    part.write_bytes(whole.read_bytes()[: header.header_bytes])
    cut = of(part, "--context", 4096, *CARD)
    assert cut["rows"] == answer["rows"] and cut["fits"] is answer["fits"] is True
    size = -(-header.header_bytes // 32) * 32 + header.bytes
    assert f"{header.header_bytes:,} of {size:,} bytes" in cut["cut_off"]
    assert not answer["cut_off"]
    part.write_bytes(whole.read_bytes()[: header.header_bytes - 3])
    done = verb("fits", part)
    assert done.code == 2 and done.err.count("\n") == 1
    assert (
        f"cut off inside its header, after {header.header_bytes - 3:,} bytes; expected a whole"
        in done.err
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    config(folder)
    tensors = safetensors(folder / "model.safetensors", {"a": [1024, 1024]})
    complete = of(folder)
    length = int.from_bytes(tensors.read_bytes()[:8], "little")
    tensors.write_bytes(tensors.read_bytes()[: 8 + length])
    cut = of(folder)
    assert row(cut, "weights") == row(complete, "weights")
    assert "model.safetensors: " in cut["cut_off"] and complete["cut_off"] == ""


def test_a_file_cut_off_behind_its_header_is_said_first_and_is_not_started(tmp_path):
    path = decoder(tmp_path / "m.gguf", layers=20)
    start = "The model fits\nLongest context: 131,072 tokens, the model's own maximum"
    whole = verb("fits", path, *CARD).out
    assert whole.startswith(start) and "Start it with" in whole
    header = Gguf(path)
    path.write_bytes(path.read_bytes()[: header.header_bytes + 500])
    out = verb("fits", path, *CARD).out
    said = " ".join(out.split())
    here = f"m.gguf: {header.header_bytes + 500:,} of "
    assert said.startswith(f"The file is incomplete ({here}")
    assert f"bytes are here). Once it is whole: {' '.join(start.split())}" in said
    assert "Start it with" not in out and "llama-server" not in out
    assert of(path, *CARD)["start"] == []


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.gguf", b"", "seen an empty file; expected"),
        ("empty.safetensors", b"", "seen an empty file; expected"),
        ("archive.gguf", b"PK\x03\x04" + bytes(range(128, 250)), "seen no GGUF: it begins with"),
        ("page.gguf", b"<!DOCTYPE html>", "seen no GGUF: it begins with b'<!DO'; expected"),
        ("magic.gguf", b"GGUF", "cut off inside its header, after 4 bytes"),
        ("head.safetensors", b"\x99" + bytes(7) + b'{"a": ', "in a file of 14, cut off"),
    ],
)
def test_a_file_that_is_empty_cut_or_of_another_kind_is_named_so(name, content, says, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    done = verb("fits", path)
    assert done.code == 2 and done.err.count("\n") == 1
    assert says in done.err and "JSON" not in done.err


def test_little_beyond_a_header_is_read(tmp_path):
    large = decoder(tmp_path / "large.gguf", layers=40)
    assert Gguf(large).header_bytes < large.stat().st_size / 100
    with large.open("r+b") as file:
        file.truncate(400 * GIB)  # a hole
    assert of(large)["rows"]


def test_a_gguf_of_a_million_tensors_is_refused(tmp_path):
    many = gguf(tmp_path / "many.gguf", {"general.architecture": "llama"}, [], counts=(10**6, 1))
    assert "1000000 tensors" in verb("fits", many).err


@pytest.mark.parametrize(
    "wrong", [{"n_ctx": -1}, {"n_layer": 0}, {"n_ctx": 1e300}, {"n_head_kv": {}}, {"tp": "two"}]
)
def test_an_input_that_cannot_be_is_refused_in_one_line(wrong, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"program": "vLLM", "inputs": {**LLAMA, **wrong}}))
    done = verb("fits", "--inputs", path)
    assert done.code == 2 and done.err.count("\n") == 1 and "expected" in done.err


RULED = sorted({*RULES, *(one["key"] for one in table("logs")["lines"])})
HEADER = sorted({name for names in table("models")["config"].values() for name in names})
ODD = st.one_of(
    st.sampled_from([None, True, 0, 1, -1, 0.5, 64, 4096, 1 << 40, 1e300, 10**400, "f16", ""]),
    st.sampled_from([[], {}, [1, 2], [0], ["a"], [[1]], {"a": 1}, float("nan"), float("inf")]),
)
PROGRAMS = ["llama.cpp", "ollama", "vLLM", "SGLang", "TensorRT-LLM", "zork"]


@given(
    st.sampled_from(PROGRAMS),
    st.dictionaries(st.sampled_from([*RULED, *table("models")["config"]]), ODD, max_size=8),
    st.dictionaries(st.sampled_from([*HEADER, "quantization_config", "layer_types"]), ODD),
)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_figure_of_a_record_or_a_config_ends_in_more_than_a_line(
    tmp_path, program, inputs, header
):
    record = {"program": program, "architecture": ["SWA"], "inputs": {**LLAMA, **inputs}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    config(tmp_path, **header, text_config=header)
    for asked_for in (("--inputs", tmp_path / "record.json"), (tmp_path, "--server", program)):
        done = verb("fits", *asked_for, "--capacity", "24GiB")
        assert done.code in (0, 2) and "Traceback" not in done.err, done.err
        assert done.code == 0 or done.err.count("\n") == 1, done.err


def test_a_window_that_a_config_switches_off_saves_nothing(tmp_path):
    window = {"model_type": "gemma3_text", "sliding_window": 1024, "head_dim": 128}
    on = of(config(tmp_path, **window), "--server", "llama.cpp", "--context", 32768)
    assert on["cache"]["swa_cells"] == 1536
    off = config(tmp_path, **window, use_sliding_window=False)
    assert of(off, "--server", "llama.cpp", "--context", 32768)["cache"]["swa_cells"] == 0


def test_a_process_that_failed_is_taken_off_only_while_it_is_in_what_is_used():
    failed = FailedProcess(bytes=12 * GIB, used_bytes=23 * GIB)
    assert failed.is_still_in(23 * GIB) and failed.is_still_in(22 * GIB)
    assert not failed.is_still_in(13 * GIB), "it has ended, and 13 GiB are all of others"
    assert not failed.is_still_in(11 * GIB), "less than it held"
    assert FailedProcess(bytes=12 * GIB, used_bytes=0).is_still_in(13 * GIB), (
        "nothing says what was used"
    )
