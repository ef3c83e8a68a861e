"""A model by its own header as the inputs of a sheet: layers by kind, heads, widths, windows,
states, bytes of its weights. Nothing is downloaded, no weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from helpers.fits.arithmetic import listed
from helpers.fits.gguf import Gguf
from helpers.fits.headers import json_file, pointer_bytes, start_of, wrong
from helpers.fits.layers import (
    first_of,
    has_states,
    layer_inputs,
    named,
    part_of,
    whole_number,
)
from helpers.fits.quantised import bits_of_config
from helpers.fits.servers import table
from helpers.fits.sheet import ServerFacts
from helpers.fits.stored import PART, Stored, absent_parts, of_files, stored_weights
from helpers.ground.units import show_bytes

PIPELINE = "model_index.json"
EYES = "mmproj"
"""In the names of GGUF files that hold the part of a model that sees or hears."""
ADAPTER = "adapter_config.json"
PARTIAL = {"adapter": "a LoRA adapter", EYES: "the part of a model that sees or hears"}
"""What is no model by itself, by the general.type of a GGUF (gguf-py/gguf/constants.py)."""
WITHOUT_WEIGHTS = re.compile("Scheduler|Tokenizer|Processor|Extractor|Guider")
SUFFIX = re.compile(r"\.(json|gguf|safetensors)$")


def is_model(path: Path) -> bool:
    """Whether a path is a model's folder or file, by its name or its first bytes."""
    if path.is_dir() or SUFFIX.search(path.name):
        return True
    return path.is_file() and start_of(path, 4) == b"GGUF"


def read_record(path: Path) -> ServerFacts:
    """Program, version, architecture and inputs of a JSON record, and nothing else of it.

    Raises ValueError in one line.
    """
    record = json_file(path)
    inputs = record.get("inputs")
    if not isinstance(inputs, dict) or not isinstance(record.get("program"), str):
        expected = "program, version, architecture and inputs, an object"
        raise wrong(path, list(record)[:6], expected)
    models = table("models")
    inputs = {
        **named(inputs, models["config"]),
        **named(inputs, models["options"]),
        **inputs,
    }
    tags = record.get("architecture", [])
    if not isinstance(tags, list):
        tags = [tags]
    version = str(record.get("version", ""))
    return ServerFacts(record["program"], inputs, [str(tag) for tag in tags], version)


def read_model(path: Path) -> ServerFacts:
    """A model by its own header. Raises ValueError in one line."""
    if (path / PIPELINE).is_file():
        return _pipeline(path)
    if path.suffix != ".gguf":
        _refuse_adapter(path)
    if path.is_dir():
        path = _file_to_read(path)
    first_bytes = start_of(path, 4)
    if first_bytes == b"GGUF":
        return _gguf(path)
    if not first_bytes:
        expected = "a GGUF, a safetensors file or a config.json"
        raise wrong(path, "an empty file", expected)
    if path.suffix == ".gguf" and pointer_bytes(path):
        expected = "the file itself, which `git lfs pull` brings"
        raise wrong(path, "a git-lfs pointer", expected)
    if path.suffix == ".gguf":
        seen = f"no GGUF: it begins with {first_bytes!r}"
        raise wrong(path, seen, "a file that begins with GGUF")
    if path.suffix == ".safetensors":
        return _of_safetensors(path)
    return _of_json(path)


def _file_to_read(folder: Path) -> Path:
    """The file of a model's folder that says most: a GGUF, else config.json, else the weights."""
    config = folder / "config.json"
    ggufs = sorted(folder.glob("*.gguf"), key=lambda file: EYES in file.name)
    weights = sorted(folder.glob("*.safetensors"))
    if ggufs:
        return ggufs[0]
    if weights and not config.exists():
        return weights[0]
    return config


def _pipeline(folder: Path) -> ServerFacts:
    """A pipeline of diffusers: the weights of its parts, each in a folder of its own."""
    classes = json_file(folder / PIPELINE)
    parts = {name for name, kind in classes.items() if _has_weights(kind)}
    parts |= {file.parent.name for file in folder.glob("*/config.json")}
    stored = {part: stored_weights(folder / part) for part in sorted(parts)}
    absent = [part for part, weights in stored.items() if not weights.bytes]
    sizes = [weights.bytes for weights in stored.values()]
    model = ServerFacts("diffusers", {}, path=str(folder))
    if any(sizes):
        model.inputs = {"model_bytes": sum(sizes), "largest_part_bytes": max(sizes)}
    lacks = []
    if absent:
        lacks.append(f"no weights of {', '.join(absent)} are here")
    for part, weights in stored.items():
        if weights.incomplete:
            lacks.append(f"{part}: {weights.incomplete}")
    model.incomplete = "; ".join(lacks)
    cut_off = [weights.cut_off for weights in stored.values() if weights.cut_off]
    model.cut_off = "; ".join(cut_off)
    return model


def _has_weights(kind: object) -> bool:
    """Whether a part of a pipeline has weights, by its library and class."""
    if not isinstance(kind, list) or len(kind) != 2 or None in kind:
        return False  # a setting, or a part that is switched off
    return not WITHOUT_WEIGHTS.search(str(kind[1]))


def _of_json(path: Path) -> ServerFacts:
    """A model by its config, or by the index of its weights."""
    content = json_file(path)
    if "weight_map" in content:
        content = {}
    return _hugging_face(path, content, stored_weights(path.parent))


def _of_safetensors(path: Path) -> ServerFacts:
    """A model by the file of its weights, with its other parts where it is one of several."""
    stored = of_files([path], "")
    if PART.fullmatch(path.name):
        stored = stored_weights(path.parent)
    return _hugging_face(path, {}, stored)


def _hugging_face(path: Path, config: dict[str, Any], stored: Stored) -> ServerFacts:
    """A model by its config, or the one beside its weights, and the bytes of its weights."""
    beside = path.parent / "config.json"
    if not config and beside.exists():
        config = json_file(beside)
    if config:
        model = _config(config, path)
    else:
        lost = "config.json beside the weights: it names layers, heads and widths"
        model = ServerFacts("vLLM", {}, missing=[lost])
    model.path = str(path.parent)
    model.incomplete = stored.incomplete
    model.cut_off = stored.cut_off
    if stored.bytes:
        model.inputs["model_bytes"] = stored.bytes
    else:
        model.inputs["parameters_wide"] = 1
    if not stored.files:
        model.path = "MODEL"  # no weights lie here that a server could load
    return model


def _refuse_adapter(path: Path) -> None:
    """Raises ValueError for an adapter, which is no model without its base."""
    folder = path if path.is_dir() else path.parent
    adapter = folder / ADAPTER
    has_config = (folder / "config.json").exists()
    if not adapter.is_file() or (has_config and not path.name.startswith("adapter_")):
        return
    base = json_file(adapter).get("base_model_name_or_path") or "its base"
    raise wrong(path, f"a LoRA adapter of {base!s:.80}", "the folder of that model")


def _note_architecture(model: ServerFacts, kind: str) -> ServerFacts:
    """The model; an architecture that is not known is said."""
    models = table("models")
    name = re.sub("[^a-z0-9]", "", kind.lower())
    if kind not in models["counted"] and not name.startswith(tuple(models["known"])):
        model.inputs["unknown_cache"] = 1
        model.missing.append(f"not known: architecture {kind or '(none)'}")
        model.notes.append("What is said of its cache is that of plain attention.")
    return model


def _config(config: dict[str, Any], path: Path) -> ServerFacts:
    """A model by its config. Raises ValueError."""
    text = _decoder_of(config)
    kind = ""
    if text.get("model_type"):
        kind = str(text["model_type"])[:60]
    models = table("models")
    header = named(text, models["config"])
    _refuse_unlike_layers(text, path)
    if not (header.get("n_layer") and header.get("n_embd")):
        expected = "a model's config.json with num_hidden_layers and hidden_size"
        raise wrong(path, f"no layers among {len(config)} keys", expected)
    _refuse_wrong_heads(header, path)
    if text.get("use_sliding_window") is False:
        header["n_swa"] = 0
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        header["n_head_kv"] = 1  # transformers configuration_falcon.py
    if kind in models["one_shared_expert"]:
        header.setdefault("n_expert_shared", 1)
    types = _types_of_layers(text, header)
    if isinstance(text.get("moe_layer_freq"), list):  # a flag for each layer
        header["n_dense"] = text["moe_layer_freq"].count(0)
    inputs = layer_inputs(header, kind, types)
    inputs["tied"] = text.get("tie_word_embeddings", kind in models["tied"]) is True
    act = first_of(text, models["acts"], str)
    inputs["plain_ff"] = kind in models["plain"] or act in models["plain_acts"]
    inputs.update(bits_of_config({**config, **text}))
    if kind in models["shared_blocks"]:
        inputs["quant_unknown"] = 1
    if kind not in models["counted"]:
        inputs["weights_uncounted"] = 1
    inputs["vision_parts"] = sum(key.startswith("vision") for key in config)
    model = ServerFacts("vLLM", inputs)
    if text.get("compress_ratios"):
        model.notes.append(
            "Its cache is compressed layer by layer (compress_ratios); it is counted without that, "
            "so more tokens fit than are said."
        )
    return _note_architecture(model, kind)


def _decoder_of(config: dict[str, Any]) -> dict[str, Any]:
    """What a config says of the decoder, which may be one part of the model."""
    nested = part_of(config.get("text_config") or config.get("llm_config"))
    defaults = part_of(table("models")["defaults"].get(nested.get("model_type")))
    text = {**defaults, **config, **nested}
    kind = text.get("model_type")
    # transformers configuration_dbrx.py, of MPT too; each part has an empty type of its own
    for part in ("attn_config", "ffn_config"):
        text.update(part_of(text.get(part)))
    text["model_type"] = kind
    return text


def _types_of_layers(
    text: Mapping[str, object], header: dict[str, Any]
) -> Sequence[object] | None:
    """What kind each layer is, as the config says; adds to the header what it says of linear
    attention.
    """
    models = table("models")
    places = first_of(text, models["attention_at"], list)
    linear = part_of(text.get("linear_attn_config"))
    if linear:
        header.update(named(linear, models["linear_attention"]))
        places = [number - 1 for number in linear.get("full_attn_layers") or ()]
    if places:
        return [
            "attention" if at in places else "mamba" for at in range(header["n_layer"])
        ]
    return first_of(text, models["types"], list, str)


def _refuse_unlike_layers(text: Mapping[str, object], path: Path) -> None:
    """Raises ValueError for a model whose layers are not all those of one decoder."""
    if text.get("is_encoder_decoder") is True:
        expected = "a model that is a decoder alone"
        raise wrong(path, "an encoder beside the decoder", expected)
    # block_configs is of Nemotron-NAS, per_layer_config of Gemma 4 as transformers 5.24 writes it.
    for name in ("block_configs", "per_layer_config"):
        if text.get(name):
            expected = "the model's GGUF, which names the heads of each layer"
            raise wrong(path, f"{name}: layers have heads of their own", expected)


def _refuse_wrong_heads(header: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError where the queries of a model with attention have no head, or the cache has
    more heads than they.
    """
    heads = max(listed(header.get("n_head", 1)))
    of_cache = max(listed(header.get("n_head_kv", heads)))
    if not (heads and of_cache) and not has_states(header):
        seen = f"{heads} heads, {of_cache} of the cache"
        raise wrong(path, seen, "1 or more of each")
    if of_cache > heads > 0 and "n_head" in header:
        seen = f"{of_cache} heads of the cache for {heads}"
        raise wrong(path, seen, f"at most {heads}")


def _gguf(path: Path) -> ServerFacts:
    """A model by the header of its GGUF, or of the first of its parts. Raises ValueError."""
    gguf = Gguf(path)
    models = table("models")
    kind = str(gguf.keys.get("general.architecture", ""))[:60]
    form = gguf.keys.get("general.type")
    if form in PARTIAL or kind == "clip":
        seen = PARTIAL.get(str(form), PARTIAL[EYES])
        raise wrong(path, seen, "the GGUF of the model that it belongs to")
    model = ServerFacts("llama.cpp", {}, path=str(path), notes=_note_of_eyes(path))
    header = named(gguf.keys, models["gguf"], kind + ".")
    header.setdefault("n_vocab", whole_number(gguf.keys.get("tokenizer.ggml.tokens")))
    parts = _parts(gguf)
    model.incomplete = _absent_tensors(parts)
    model.cut_off = "; ".join(part.cut_off for part in parts if part.cut_off)
    host = 0
    if "output" in gguf.bytes_by_name:
        # a model without an output of its own has the table of tokens on the card, too
        host = gguf.bytes_by_name.get("token_embd", 0)
    inputs = {
        "model_bytes": sum(part.bytes for part in parts),
        "elements": sum(part.elements for part in parts),
        "gguf_arch": kind,
        "host_bytes": host,
    }
    if not (header.get("n_layer") and header.get("n_embd")):
        model.inputs = inputs
        model.missing.append("layers and widths: its header names none")
        return _note_architecture(model, kind)
    if not header.pop("head_dim_mla", 0):
        # No tensors for the latent: every head is expanded.
        header.pop("kv_lora_rank", None)
    if kind in models["no_window"]:
        header.pop("n_swa", None)
    model.inputs = {**layer_inputs(header, kind), **inputs}
    return _note_architecture(model, kind)


def _note_of_eyes(path: Path) -> list[str]:
    """That the part of a model that sees or hears lies beside it and is not counted; else empty."""
    files = sorted(path.parent.glob(f"*{EYES}*.gguf"))
    if not files:
        return []
    size = show_bytes(max(file.stat().st_size for file in files))
    return [
        f"{files[0].name} beside it is not counted: with --mmproj it takes up to {size} more, and "
        "a buffer that grows with the image"
    ]


def _parts(gguf: Gguf) -> list[Gguf]:
    """All parts of a GGUF that lie beside it, itself first."""
    path = gguf.path
    match = PART.fullmatch(path.name)
    if not match:
        return [gguf]
    others = sorted(path.parent.glob(f"{escape(match[1])}-?????-of-{match[2]}.gguf"))
    return [gguf, *(Gguf(file) for file in others if file.name != path.name)]


def _absent_tensors(parts: Sequence[Gguf]) -> str:
    """Which parts or tensors of a GGUF are not here: by what its header counts, else its name."""
    first = parts[0]
    absent = absent_parts([part.path.name for part in parts])
    count = whole_number(first.keys.get("split.count"))
    if count and count > len(parts):
        absent = f"{count - len(parts)} of {count} parts are not here"
    if absent:
        return absent
    tensors = sum(part.tensors for part in parts)
    tensors_in_header = whole_number(first.keys.get("split.tensors.count"))
    if not tensors:
        return "its header names no tensors"
    if tensors_in_header and tensors_in_header > tensors:
        return f"its parts have {tensors} of {tensors_in_header} tensors"
    return ""
