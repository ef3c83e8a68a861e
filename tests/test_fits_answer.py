"""What an answer of fits says: the headline, the line to start a server, its default context, and what would work."""

import re
from decimal import Decimal

import pytest
from command_line import verb
from fits_models import config, decoder, of, row, safetensors

from helpers.face.fit import what_fits
from helpers.fits.view import as_text
from helpers.ground.units import GIB, MIB, show_bytes
from helpers.look.cards import CONTEXT_IN_WORDS

CARD = ("--gpu", "4090")
SERVERS = r"\b(?:vllm|sglang|transformers|ollama|llama\.cpp)\b"


def plain(text):
    return " ".join(text.split())


def test_the_answer_is_read_in_a_terminal(tmp_path):
    out = verb("fits", config(tmp_path), *CARD).out
    assert plain(out).startswith(
        "The model fits Longest context: 17,392 tokens, certain to fit (asked: none; the model's own "
        "maximum is 131,072) Server: vLLM, assumed for this file; --server names another"
    )
    assert "At worst 17,392 tokens fit, likely 35,136, at best 51,120: how much vLLM" in plain(out)
    assert "--max-model-len 17392 " in out, "the line to paste asks for what is certain"
    assert "Up to 35,136 tokens likely fit: try that if you need more" in plain(out)
    assert "vLLM takes 21.75 GiB of 23.64 GiB, whatever the context" in plain(out)
    assert "Requests of 17,392 tokens that fit at once: 2" in out
    assert re.search(r"^total +23\.64 +23\.64 +23\.64$", out, re.MULTILINE), "one figure, no range"
    assert re.search(r"^weights +14\.96 ", out, re.MULTILINE)
    assert re.search(r"^part +likely, GiB +at best, GiB +at worst, GiB$", out, re.MULTILINE)
    assert out.count("Server: ") == 1
    # The line to start it is as long as the path of the model.
    lines = [line for line in out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80 and "read: vllm/worker" not in out
    assert "records: 0.1 to 2.2 GiB" in plain(verb("fits", config(tmp_path), *CARD, "--wide").out)


@pytest.mark.parametrize("context", [(), ("--context", 32768)])
@pytest.mark.parametrize("server", ["llama.cpp", "ollama", "vllm", "sglang", "transformers"])
def test_each_column_of_the_table_adds_up(tmp_path, server, context):
    out = verb("fits", config(tmp_path), *CARD, "--server", server, *context).out
    rows = re.findall(r"^(\w[\w ]*?)  +([\d.]+|-) +([\d.]+|-) +([\d.]+|-)$", out, re.MULTILINE)
    parts = [cells for name, *cells in rows if name not in ("total", "available on the card")]
    (total,) = (cells for name, *cells in rows if name == "total")
    for sizes, total_size in zip(zip(*parts, strict=True), total, strict=True):
        if total_size == "-":
            assert "-" in sizes
        else:
            assert sum(map(Decimal, sizes)) == Decimal(total_size)


def test_what_was_asked_for_and_does_not_fit_is_said_beside_what_does(tmp_path):
    path = config(tmp_path)
    answer = of(path, *CARD, "--context", 131072)
    assert answer["fits"] is False and answer["contexts"]["asked"] == 131072
    out = plain(verb("fits", path, *CARD, "--context", 131072).out)
    assert out.startswith(
        "The model fits, but not with the 131,072 tokens asked for Longest context: 17,392 tokens"
    )
    between = plain(verb("fits", path, *CARD, "--context", 32768).out)
    assert between.startswith(
        "The model likely fits with the 32,768 tokens asked for Longest context: 17,392 tokens"
    )
    assert "Only 17,392 tokens certainly fit: ask for fewer" in between
    assert "Missing" not in between
    assert of(path, *CARD, "--context", 8192)["fits"] is True
    small = plain(verb("fits", path, "--capacity", "4GiB").out)
    assert small.startswith("The model does not fit in 4.00 GiB: ")
    assert "too much with a context of 4,096; the weights alone take 14.96 GiB" in small
    short = of(path, "--capacity", "4GiB")
    too_much = short["total"]["bytes"] - short["ceiling_bytes"]
    assert abs(too_much + short["spare_bytes"]) < 16, "what the table shows, rounded by the row"


STARTS = {
    "vllm": ["vllm serve", "--max-model-len 17392", "--gpu-memory-utilization 0.92"],
    "llama.cpp": ["llama-server -m MODEL.gguf", "-c 53248", "-ngl 33"],
    "ollama": ["OLLAMA_CONTEXT_LENGTH=53248 ollama serve", '"num_ctx": 53248'],
    "sglang": ["sglang.launch_server", "--context-length", "--mem-fraction-static 0.699"],
    "transformers": ["from_pretrained(", 'device_map="cuda"', "max_new_tokens"],
}


@pytest.mark.parametrize("server", STARTS)
def test_the_line_to_start_each_server_can_be_pasted(tmp_path, server):
    answer = of(config(tmp_path), *CARD, "--server", server)
    line = "\n".join(answer["start"])
    for words in STARTS[server]:
        assert words in line
    assert answer["assumed"] is False
    shown = verb("fits", config(tmp_path), *CARD, "--server", server).out
    for part in line.splitlines():
        assert part in shown, "never wrapped but where a shell goes on"


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_the_share_of_the_card_is_said_once_as_the_line_to_start_has_it(tmp_path, server):
    for asked in ((), ("--context", 8192)):
        out = verb("fits", config(tmp_path), *CARD, "--server", server, *asked).out
        assert out.count("-utilization ") + out.count("-fraction-static ") == 1
        assert "Share of the card" not in out


def test_a_line_to_paste_has_what_was_asked_for(tmp_path):
    options = ("--server", "llama.cpp", "--slots", 4, "--kv", "q8_0", "--context", 16384)
    line = of(config(tmp_path), *CARD, *options)["start"][0]
    assert "-c 16384" in line and "-np 4" in line and "-ctk q8_0 -ctv q8_0" in line
    path = decoder(tmp_path / "a model.gguf")
    assert f"-m '{path}'" in of(path, *CARD)["start"][0]
    both = of(config(tmp_path), "--gpu", "h100", "--tp", 2)["start"][0]
    assert "--tensor-parallel-size 2" in both
    assert of(config(tmp_path), "--capacity", "4GiB")["start"] == [], "nothing to start"


@pytest.mark.parametrize(
    ("server", "release", "card", "tokens"),
    [
        ("ollama", "0.6.6", "h100", 2048),
        ("ollama", "0.6.7", "h100", 4096),
        ("ollama", "0.12", "h100", 4096),
        ("ollama", "0.15.5", "4080", 4096),
        ("ollama", "0.15.5", "4090", 32768),
        ("ollama", "0.33", "h100", 131072),
        ("llama.cpp", "2024-03", "4090", 512),
        ("llama.cpp", "2025-06", "4090", 4096),
        ("llama.cpp", "2026-03", "4090", 131072),
        ("vllm", "", "4090", 131072),
        ("sglang", "", "4090", 131072),
    ],
)
def test_the_default_context_is_that_of_the_server_its_release_and_the_card(
    tmp_path, server, release, card, tokens
):
    options = ("--server", server, "--gpu", card, *(("--release", release) if release else ()))
    contexts = of(config(tmp_path), *options)["contexts"]
    assert contexts["default"] == tokens and contexts["default_source"]
    assert contexts["asked"] is None


def test_ollama_reckons_with_its_default_and_says_the_longest(tmp_path):
    answer = of(config(tmp_path), *CARD, "--server", "ollama")
    assert answer["cache"]["n_ctx"] == 32768 < answer["contexts"]["longest"]
    out = plain(verb("fits", config(tmp_path), *CARD, "--server", "ollama").out)
    assert "asked: none; ollama's default here is 32,768; the model's own maximum is 131,072" in out


def test_where_the_model_does_not_fit_each_way_has_its_numbers(tmp_path):
    path = config(tmp_path)
    on_small = of(path, "--gpu", "3060", "--server", "llama.cpp")
    assert on_small["fits"] is False
    ways = {way["kind"]: way for way in on_small["ways"]}
    assert {"quantisation", "host", "card"} <= set(ways)
    assert on_small["ways"][0]["option"] == "Q8_0"
    layers = int(ways["host"]["option"].split()[1])
    assert 15 < layers < 30 and f"{layers} of 33 layers" in ways["host"]["says"]
    asked = ("--gpu", ways["card"]["option"].split()[1], "--server", "llama.cpp")
    assert of(path, *asked, "--context", 4096)["spare_bytes"] >= 0
    pooled = of(path, "--gpu", "4080")
    kinds = [way["kind"] for way in pooled["ways"]]
    assert "quantisation" in kinds and "cards" in kinds and "host" in kinds
    assert of(path, *CARD)["ways"] == [], "it fits"
    hugging = of(path, "--gpu", "3060", "--server", "transformers")
    assert any(way["option"] == 'device_map="auto"' for way in hugging["ways"])


def test_what_is_certain_to_fit_names_the_most_that_it_takes(tmp_path):
    path = config(tmp_path)
    asked = ("--server", "llama.cpp", "--context", 131072)
    ways = of(path, *CARD, *asked)["ways"]
    larger = next(way for way in ways if way["certain"] and way["kind"] == "card")
    there = of(path, "--gpu", larger["option"].split()[1], *asked)
    assert abs(larger["most_bytes"] - there["total"]["high_bytes"]) < 16
    assert all(way["most_bytes"] is None for way in ways if not way["certain"])
    said = plain(verb("fits", path, *CARD, *asked).out)
    size = show_bytes(larger["most_bytes"])
    assert f"131,072 tokens certainly fit (at most {size})" in said
    assert "131,072 tokens likely fit (about " in said


def test_sizes_of_cards_that_share_each_layer_are_said_to_be_per_card(tmp_path):
    path = config(tmp_path)
    out = plain(verb("fits", path, *CARD, "--server", "vllm", "--tp", 2).out)
    assert "Server: vllm on 2 cards" in out and "vllm takes 21.75 GiB of 23.64 GiB per card" in out
    assert "part per card likely, GiB" in out and "KiB per card" in out
    small = plain(verb("fits", path, "--capacity", "4GiB", "--tp", 2).out)
    assert "does not fit in 4.00 GiB per card: " in small
    wanted = plain(verb("fits", path, "--gpu", "4080", "--context", 60000).out)
    assert re.search(r"--tensor-parallel-size 2: 2 such cards; .* fit .* GiB per card", wanted)
    alone = verb("fits", path, *CARD).out
    assert "per card" not in alone


def test_a_smaller_cache_is_a_way_where_the_context_is_what_is_too_long(tmp_path):
    answer = of(config(tmp_path), *CARD, "--context", 60000)
    ways = {way["kind"]: way for way in answer["ways"]}
    assert ways["cache"]["option"] == "--kv-cache-dtype fp8"
    again = of(config(tmp_path), *CARD, "--context", 60000, "--kv", "fp8")
    assert again["contexts"]["longest"] >= ways["cache"]["context"] == 60000


def test_a_pipeline_of_diffusers_is_the_sum_of_its_parts(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    for part, rows in (("unet", 3000), ("text_encoder", 2000)):
        folder = tmp_path / part
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        safetensors(folder / "model.safetensors", {"a": [rows, 1024 * 1024]})
        safetensors(folder / "model.fp16.safetensors", {"a": [1, 1]})
    whole = of(tmp_path, "--gpu", "a100-40")
    assert row(whole, "weights")["bytes"] == 5000 * 2 * MIB and whole["program"] == "diffusers"
    assert whole["fits"] is None and whole["contexts"]["longest"] is None
    small = of(tmp_path, "--capacity", "9GiB")
    assert [way["option"] for way in small["ways"]] == ["pipe.enable_model_cpu_offload()"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--context", "-5"), "--context -5; expected 1 to 16,777,216"),
        (("--context", "0"), "--context 0; expected 1 to 16,777,216"),
        (("--context", 10**12), "--context 1000000000000; expected 1 to 16,777,216"),
        (("--context", "32k"), "--context: expected a whole number, seen '32k'"),
        (("--utilisation", "much"), "--utilisation: expected a number, seen 'much'"),
        (("--capacity", "24"), "24 is a card of 24 bytes; expected a size with its unit"),
        (("--box", "cuda-healthy"), "--box beside --gpu or --capacity; expected one card or box"),
        (("--tokens", "4096"), "--tokens for vLLM, whose pool has no size of its own"),
        (
            ("--utilisation", "0.5", "--server", "ollama"),
            "--utilisation for ollama, which takes no share of the card",
        ),
        (("--slots", "0"), "--slots 0; expected 1 to 65,536"),
        (("--slots", 10**12), "--slots 1000000000000; expected 1 to 65,536"),
        (("--tokens", 10**12), "--tokens 1000000000000; expected 1 to "),
        (("--tp", "0"), "--tp 0; expected 1 to 1,024"),
        (("--tp", "3"), "--tp 3; expected a divisor of the model's 32 heads"),
        (("--tp", "2", "--server", "ollama"), "--tp 2 for ollama, which divides no layer"),
        (("--capacity", "0"), "size '0': expected a size above 0, such as 20GiB"),
        (("--capacity", "-5GiB"), "size '-5GiB': expected bytes or a number with a unit"),
        (("--release", "banana"), "--release 'banana'; expected a release or a month"),
        (("--utilisation", "1.7"), "expected a share above 0"),
        (("--kv", "q9"), "type of the cache 'q9': not known, f32"),
        (("--server", "zork"), "expected llama.cpp, ollama, vllm, sglang"),
        (("--gpu", "8060s"), "expected --capacity SIZE"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(tmp_path, options, says):
    done = verb("fits", config(tmp_path), *CARD, *options)
    assert done.code == 2 and done.err.count("\n") == 1 and says in done.err


def test_without_a_card_the_weights_are_said_and_a_card_is_asked_for(tmp_path):
    out = plain(verb("fits", config(tmp_path)).out)
    assert out.startswith("The weights take 14.96 GiB; name a card to learn whether the model fits")


def test_nothing_likely_fits_while_a_part_of_it_is_not_known(tmp_path):
    path = config(tmp_path, num_attention_heads=None, num_key_value_heads=None)
    out = plain(verb("fits", path, *CARD).out)
    assert out.startswith("Cannot tell whether it fits in 23.64 GiB: ")


def test_memory_that_is_the_computers_is_said(tmp_path):
    assert "the computer's RAM" in plain(verb("fits", config(tmp_path), "--gpu", "gb10").out)


@pytest.mark.parametrize(
    ("server", "wrong"), [("vllm", "q8_0"), ("sglang", "fp8"), ("ollama", "q5_1")]
)
def test_a_type_of_the_cache_that_the_server_does_not_take_is_refused(tmp_path, server, wrong):
    done = verb("fits", config(tmp_path), *CARD, "--server", server, "--kv", wrong)
    assert done.code == 2 and done.err.count("\n") == 1
    assert f"--kv {wrong}; expected one that {server} takes: " in done.err


def test_a_quantised_cache_of_ollama_comes_with_the_attention_that_it_needs(tmp_path):
    answer = of(config(tmp_path), *CARD, "--server", "ollama", "--kv", "q8_0")
    assert "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0" in " ".join(answer["start"])


LARGE = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}


@pytest.mark.parametrize(
    ("card", "server", "option"),
    [
        ("4090", "vllm", "AWQ or GPTQ, 4 bits and --tensor-parallel-size 2"),
        ("4090", "llama.cpp", "Q4_K_M and -ngl "),
        ("a6000", "llama.cpp", "Q4_K_M"),
        ("h100", "vllm", "FP8"),
    ],
)
def test_a_model_of_70_billion_names_the_quantisation_cards_or_layers(
    tmp_path, card, server, option
):
    answer = of(config(tmp_path, **LARGE), "--gpu", card, "--server", server)
    assert answer["fits"] is False
    ways = [way["option"] for way in answer["ways"] if "quantisation" in way["kind"]]
    assert len(ways) >= 1 and ways[0].startswith(option)
    assert all(way["context"] >= 4096 for way in answer["ways"])


def test_more_cards_share_the_heads_evenly(tmp_path):
    odd = {**LARGE, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128}
    answer = of(config(tmp_path, **odd), "--gpu", "4090")
    counts = [way["option"].split()[-1] for way in answer["ways"] if way["kind"] == "cards"]
    assert "8" not in counts and "16" not in counts


def test_a_model_of_states_alone_has_a_context_of_any_length(tmp_path):
    heads = {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": None}
    states = {"state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 256}
    names = {"model_type": "mamba", "max_position_embeddings": None, **heads, **states}
    path = config(tmp_path, **names)
    out = plain(verb("fits", path, *CARD).out)
    assert out.startswith("The model fits with a context of any length") and "16777216" not in out
    assert "--max-model-len" not in " ".join(of(path, *CARD)["start"])


GIVES = {
    "--kv-cache-dtype fp8": ("--kv", "fp8"),
    "-ctk q8_0 -ctv q8_0": ("--kv", "q8_0"),
    "--tensor-parallel-size 2": ("--tp", 2),
}
"""What a change of a server is for this command."""
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def test_smaller_weights_and_a_smaller_cache_are_offered_together_where_neither_suffices(tmp_path):
    ways = of(config(tmp_path), *CARD, "--context", 131072)["ways"]
    pair = next(way for way in ways if way["option"].startswith("AWQ or GPTQ, 4 bits and --kv"))
    assert pair["certain"] is True and pair["context"] == 131072
    line = " ".join(pair["start"])
    assert "MODEL-AWQ" in line and "--kv-cache-dtype fp8" in line and "131072" in line
    quantised = config(tmp_path, quantization_config=AWQ)
    again = of(quantised, *CARD, "--context", 131072, "--kv", "fp8")
    assert again["fits"] is True
    need = again["ceiling_bytes"] - again["spare_bytes"]
    assert need == pytest.approx(pair["total_bytes"], rel=0.01)


@pytest.mark.parametrize("server", ["vllm", "llama.cpp", "sglang", "ollama", "transformers"])
@pytest.mark.parametrize("card", ["3060", "4090", "h100"])
def test_no_change_is_named_that_does_not_fit(tmp_path, server, card):
    path = config(tmp_path, **LARGE)
    asked = ("--server", server, "--context", 65536)
    answer = of(path, "--gpu", card, *asked)
    assert answer["ways"]
    for way in answer["ways"]:
        on_card = way["option"].split()[-1] if way["kind"] == "card" else card
        assert way["context"] == 65536 or "context" in way["kind"]
        shown = of(path, "--gpu", on_card)["ceiling_bytes"]
        assert 0 < way["total_bytes"] <= shown, way["option"]
        if way["option"] in GIVES:
            tokens = way["context"]
            again = of(path, "--gpu", card, *asked[:2], *GIVES[way["option"]], "--context", tokens)
            assert again["spare_bytes"] >= 0


def test_no_pair_has_a_change_that_suffices_alone(tmp_path):
    ways = of(config(tmp_path), *CARD, "--context", 60000)["ways"]
    alone = {way["option"] for way in ways if " and " not in way["kind"]}
    assert "--kv-cache-dtype fp8" in alone
    pairs = [way["option"].split(" and ") for way in ways if " and " in way["kind"]]
    assert not [pair for pair in pairs if alone & {*pair}]


def test_a_context_that_only_likely_fits_has_changes_that_make_it_certain(tmp_path):
    answer = of(config(tmp_path), *CARD, "--context", 32768)
    assert answer["fits"] is None and answer["ways"]
    assert all(way["certain"] for way in answer["ways"])
    sure = of(config(tmp_path), *CARD, "--context", 32768, "--kv", "fp8")
    assert sure["fits"] is True and sure["ways"] == []


def test_a_shorter_context_with_a_smaller_cache_is_named_beside_what_was_asked(tmp_path):
    ways = of(config(tmp_path), *CARD, "--context", 131072)["ways"]
    shorter = next(way for way in ways if way["kind"] == "cache and context")
    assert 17392 < shorter["context"] < 131072
    options = ("--kv", "fp8", "--context", shorter["context"])
    assert of(config(tmp_path), *CARD, *options)["fits"] is shorter["certain"] is True


def test_a_context_takes_as_much_in_what_a_server_needs_as_in_a_rehearsal(tmp_path):
    answer = of(config(tmp_path), "--gpu", "4090", "--server", "llama.cpp")
    (context,) = (part for part in answer["rows"] if part["part"] == "context")
    ends = [f"{context[end] / GIB:.1f}" for end in ("low_bytes", "high_bytes")]
    assert " to ".join(ends) + " GiB" in CONTEXT_IN_WORDS


def test_a_terminal_begins_with_the_answer_the_total_and_what_to_do(tmp_path):
    out = verb("fits", config(tmp_path), *CARD, "--context", 131072).out
    order = [
        "The model fits, but not with the 131,072 tokens asked for",
        "Server: vLLM",
        "Total with a context of 131,072: likely 35.35 GiB",
        "Start it with",
        "What to change for 131,072 tokens (first on this card, then on others)",
        "part   ",
    ]
    places = [out.index(words) for words in order]
    assert places == sorted(places)
    assert re.search(r"^total +35\.35 +33\.40 +37\.52$", out, re.MULTILINE), "what was asked for"


LONG = 10_000 * "x"


@pytest.mark.parametrize("option", ["--gpu", "--kv", "--server", "--release", "--context", "--box"])
def test_a_line_about_a_long_value_shows_at_most_both_of_its_ends(tmp_path, option):
    done = verb("fits", config(tmp_path), *CARD, option, LONG)
    assert done.code == 2 and done.err.count("\n") == 1
    assert 81 * "x" not in done.err and len(done.err) < 500


def test_a_model_of_a_long_name_is_not_there_in_one_line():
    done = verb("fits", LONG)
    assert done.code == 2 and done.err.count("\n") == 1 and 81 * "x" not in done.err


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("num_hidden_layers", -3, "num_hidden_layers is -3; expected 0 or more"),
        ("num_key_value_heads", -8, "num_key_value_heads is -8; expected 0 or more"),
        ("vocab_size", -5, "vocab_size is -5; expected 0 or more"),
        ("intermediate_size", -16, "intermediate_size is -16; expected 0 or more"),
        ("num_hidden_layers", 10**9, "seen 1000000000 layers; expected 1 to 4096"),
        ("num_hidden_layers", 0, "seen no layers"),
        ("num_hidden_layers", 32.5, "num_hidden_layers is 32.5; expected a whole number"),
        ("num_attention_heads", 0, "seen 0 heads, 8 of the cache; expected 1 or more of each"),
        ("num_key_value_heads", 0, "seen 32 heads, 0 of the cache; expected 1 or more of each"),
        ("num_key_value_heads", 64, "seen 64 heads of the cache for 32; expected at most 32"),
        ("hidden_size", 10**14, "seen a width of 100000000000000; expected at most 1048576"),
        ("max_position_embeddings", 0, "'n_ctx_train' is 0; expected 1 to"),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_one_line(tmp_path, key, value, says):
    done = verb("fits", config(tmp_path, **{key: value}), *CARD)
    assert done.code == 2 and done.err.count("\n") == 1 and says in done.err


def test_a_folder_of_a_header_that_was_cut_short_says_so(tmp_path):
    start = (5000).to_bytes(8, "little")
    (tmp_path / "model.safetensors").write_bytes(start + b'{"a":')
    done = verb("fits", tmp_path, *CARD)
    assert done.code == 2 and done.err.count("\n") == 1
    assert "a header of 5,000 bytes in a file of 13, cut off; expected a whole header" in done.err


@pytest.mark.parametrize(
    ("card", "cache", "weights"),
    [
        (("--gpu", "4090"), True, True),
        (("--gpu", "3090"), False, True),
        (("--gpu", "v100-16"), False, False),
        (("--gpu", "7900xtx"), False, False),
        (("--capacity", "24GiB"), True, True),
    ],
)
def test_fp8_is_offered_where_the_card_has_it(tmp_path, card, cache, weights):
    ways = of(config(tmp_path), *card, "--context", 131072)["ways"]
    options = " ".join(way["option"] for way in ways if "card" not in way["kind"])
    assert ("--kv-cache-dtype fp8" in options) is cache
    larger = of(config(tmp_path, num_hidden_layers=64), *card, "--context", 4096)["ways"]
    assert any(way["option"].startswith("FP8") for way in larger) is weights


def test_a_cache_of_fp8_says_which_cards_have_it_where_the_card_is_not_known(tmp_path):
    out = plain(verb("fits", config(tmp_path), "--capacity", "24GiB", "--context", 60000).out)
    assert "a cache of type fp8 (from compute capability 8.9 on, or MI300)" in out


@pytest.mark.parametrize("server", ["vllm", "sglang", "llama.cpp", "transformers", "ollama"])
@pytest.mark.parametrize("card", ["10GiB", "24GiB", "80GiB"])
@pytest.mark.parametrize("asked", [0, 131072])
def test_an_answer_says_likely_once_and_names_the_server_as_it_was_typed(
    tmp_path, server, card, asked
):
    fit = what_fits(str(config(tmp_path)), capacity=card, server=server, context=asked)
    lines = as_text(fit.answer).splitlines()
    headline = fit.verdict().verdict.title
    assert headline.startswith(lines[0]) and headline.count("likely") <= 1
    if " fit in " not in headline:
        assert re.match(r"Longest context: (likely )?[\d,]+ tokens", lines[1])
    unsourced = re.sub(r"\(read: [^)]*\)", "", plain(as_text(fit.answer)))
    assert set(re.findall(SERVERS, unsourced, re.IGNORECASE)) == {server}


def test_a_short_context_that_was_asked_for_and_fits_is_said_to_fit(tmp_path):
    path = config(tmp_path, num_key_value_heads=32)
    options = ("--server", "llama.cpp", "--capacity", "19200MiB", "--context", 512)
    answer = of(path, *options)
    assert answer["fits"] and 512 <= answer["contexts"]["longest"] < 4096
    assert "fits with the 512 tokens asked for" in plain(verb("fits", path, *options).out)
    assert answer["start"], "and how to start it is said, too"


def test_layers_of_which_none_goes_to_the_card_take_nothing_of_it(tmp_path):
    fit = what_fits(str(decoder(tmp_path / "small.gguf")), gpu="4090")
    on_the_host = fit.at(n_gpu_layers=0)
    assert row(on_the_host.answer.__dict__, "weights")["bytes"] == 0
    assert row(on_the_host.answer.__dict__, "kv")["bytes"] == 0
    assert row(fit.answer.__dict__, "weights")["bytes"] > 0
    assert "-ngl 0" in on_the_host.start
