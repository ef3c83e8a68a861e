"""Models of which a part is missing, cut off or another's: nothing fits, and nothing is started, while a part is not here."""

import json
import re

import pytest
from command_line import verb
from examples import examples
from fits_models import config, decoder, gguf, of, row, safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.ground.units import MIB

CARD = ("--gpu", "4090")
UNET = ["diffusers", "UNet2DConditionModel"]


def pointer(path, size):
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'5c' * 32}\nsize {size}\n"
    )
    return path


def pipeline(folder, **parts):
    """A pipeline whose parts are these numbers of MiB, None where the folder is not there."""
    kinds = {"_class_name": "MadeUpPipeline", "unet": UNET, "vae": ["diffusers", "AutoencoderKL"]}
    kinds.update(scheduler=["diffusers", "DDIMScheduler"], safety_checker=[None, None])
    (folder / "model_index.json").write_text(json.dumps(kinds))
    for part, size in parts.items():
        if size is not None:
            (folder / part).mkdir()
            (folder / part / "config.json").write_text("{}")
        if size:
            safetensors(folder / part / "model.safetensors", {"a": [size, 512 * 1024]})
    return folder


def test_a_pipeline_whose_parts_are_all_here_is_whole(tmp_path):
    whole = of(pipeline(tmp_path, unet=300, vae=40), *CARD)
    assert row(whole, "weights")["bytes"] == 340 * MIB and whole["incomplete"] == ""


@pytest.mark.parametrize("size", [None, 0])
def test_a_pipeline_without_a_part_or_its_weights_never_fits(tmp_path, size):
    out = verb("fits", pipeline(tmp_path, unet=300, vae=size), *CARD).out
    assert " ".join(out.split()).startswith(
        "Cannot tell whether it fits in 23.64 GiB: no weights of vae"
    )
    assert re.search(r"^weights +0\.29 ", out, re.MULTILINE)


def index(folder, names, total=None):
    content = {"weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
    if total:
        content["metadata"] = {"total_size": total}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


NAMES = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]


def test_an_index_without_a_size_counts_the_files_that_it_names(tmp_path):
    config(tmp_path)
    index(tmp_path, NAMES)
    for name in (*NAMES, "consolidated.safetensors"):
        safetensors(tmp_path / name, {"a": [500, 512 * 1024]})
    whole = of(tmp_path, *CARD)
    assert row(whole, "weights")["bytes"] == 1500 * MIB and whole["fits"] is True
    (tmp_path / NAMES[1]).unlink()
    answer = of(tmp_path, *CARD)
    assert (answer["fits"], answer["incomplete"]) == (None, "1 of 3 parts are not here")
    assert answer["start"] == []


def test_an_index_with_a_size_says_which_parts_are_not_here_and_starts_nothing(tmp_path):
    config(tmp_path)
    index(tmp_path, NAMES, total=1500 * MIB)
    header_alone = of(tmp_path, *CARD)
    assert row(header_alone, "weights")["bytes"] == 1500 * MIB and header_alone["cut_off"] == ""
    assert header_alone["start"][0].startswith("vllm serve MODEL ")
    safetensors(tmp_path / NAMES[0], {"a": [500, 512 * 1024]})
    answer = of(tmp_path, *CARD)
    assert answer["cut_off"] == "2 of 3 parts are not here" and answer["start"] == []
    assert row(answer, "weights")["bytes"] == 1500 * MIB
    assert verb("fits", tmp_path, *CARD).out.startswith("The file is incomplete (2 of 3 parts")


def test_a_part_that_is_cut_off_is_said_beside_an_index_with_a_size(tmp_path):
    config(tmp_path)
    index(tmp_path, NAMES, total=1500 * MIB)
    for name in NAMES:
        path = safetensors(tmp_path / name, {"a": [500, 512 * 1024]})
    with path.open("r+b") as file:
        file.truncate(90 * MIB)
    answer = of(tmp_path / NAMES[0], *CARD)
    assert f"{NAMES[2]}: {90 * MIB:,} of" in answer["cut_off"] and answer["start"] == []


def test_a_pointer_of_git_lfs_has_the_size_and_not_the_weights(tmp_path):
    config(tmp_path)
    pointer(tmp_path / "model.safetensors", 1500 * MIB)
    answer = of(tmp_path, *CARD)
    assert row(answer, "weights")["bytes"] == 1500 * MIB and answer["start"] == []
    assert (
        answer["cut_off"]
        == "model.safetensors is a git-lfs pointer; `git lfs pull` brings the weights"
    )
    done = verb("fits", pointer(tmp_path / "m.gguf", 99), *CARD)
    assert done.code == 2 and "seen a git-lfs pointer; expected the file itself" in done.err


def test_weights_of_pickle_are_as_large_as_their_files(tmp_path):
    config(tmp_path)
    for name in ("pytorch_model-00001-of-00002.bin", "optimizer.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(700 * MIB)
    answer = of(tmp_path, *CARD)
    assert row(answer, "weights")["bytes"] == 700 * MIB
    assert answer["incomplete"] == "1 of 2 parts are not here"


def test_an_adapter_without_its_base_is_refused_in_one_line(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base-9b"}')
    weights = safetensors(tmp_path / "adapter_model.safetensors", {"a": [8, 4096]})
    for path in (tmp_path, weights, tmp_path / "adapter_config.json"):
        done = verb("fits", path, *CARD)
        assert done.code == 2 and done.err.count("\n") == 1, done.err
        assert "seen a LoRA adapter of some/base-9b; expected the folder of that model" in done.err
    keys = {"general.architecture": "llama", "general.type": "adapter"}
    done = verb("fits", gguf(tmp_path / "lora.gguf", keys, []), *CARD)
    assert done.code == 2 and "seen a LoRA adapter; expected the GGUF of the model" in done.err


def test_an_adapter_beside_its_base_is_not_counted_among_the_weights(tmp_path):
    config(tmp_path)
    safetensors(tmp_path / "model.safetensors", {"a": [500, 512 * 1024]})
    (tmp_path / "adapter_config.json").write_text("{}")
    safetensors(tmp_path / "adapter_model.safetensors", {"a": [80, 512 * 1024]})
    assert row(of(tmp_path, *CARD), "weights")["bytes"] == 500 * MIB


def test_a_vision_part_beside_a_gguf_is_said_and_is_no_model(tmp_path):
    model = decoder(tmp_path / "m.gguf")
    keys = {"general.architecture": "clip", "general.type": "mmproj"}
    eyes = gguf(tmp_path / "mmproj-F16.gguf", keys, [("v", "F16", (1024, 1024))])
    for path in (tmp_path, model):
        note = " ".join(of(path, *CARD)["notes"])
        assert (
            "mmproj-F16.gguf beside it is not counted: with --mmproj it takes up to 2.00 MiB"
            in note
        )
    done = verb("fits", eyes, *CARD)
    assert (
        done.code == 2 and "the part of a model that sees or hears; expected the GGUF" in done.err
    )


@pytest.mark.parametrize("alignment", ["wide", 0, 33, 1.5, True, [32, 32]])
def test_an_alignment_that_is_none_is_refused_in_one_line(tmp_path, alignment):
    path = decoder(tmp_path / "m.gguf")
    keys = {"general.architecture": "llama", "general.alignment": alignment}
    done = verb("fits", gguf(path, keys, [("x", "F16", (64, 64))]))
    assert done.code == 2 and done.err.count("\n") == 1 and "a power of two" in done.err


def test_a_gguf_of_the_other_byte_order_is_named_so(tmp_path):
    (tmp_path / "big.gguf").write_bytes(b"GGUF\x00\x00\x00\x03" + bytes(7) + b"\x09" + bytes(64))
    done = verb("fits", tmp_path / "big.gguf")
    assert done.code == 2 and "seen a GGUF in big-endian order; expected" in done.err


def test_a_list_of_more_texts_than_any_vocabulary_is_refused(tmp_path):
    path = tmp_path / "many.gguf"
    text = b"\x01" + bytes(7) + b"t"
    start = b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x01" + bytes(7)
    path.write_bytes(start + text + b"\x09\x00\x00\x00\x08\x00\x00\x00" + b"\xff" * 4 + bytes(4))
    assert "texts; expected at most" in verb("fits", path).err


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_header_with_wrong_bytes_is_answered_or_refused_in_one_line(tmp_path, changes):
    path = decoder(tmp_path / "m.gguf", vocab=4, **{"attention.sliding_window": 512})
    data = bytearray(path.read_bytes()[:4096])
    for at, byte in changes:
        data[at] = byte
    path.write_bytes(data)
    done = verb("fits", path, *CARD)
    assert done.code in (0, 2) and "Traceback" not in done.err
    assert done.code == 0 or done.err.count("\n") == 1
