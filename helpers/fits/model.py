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
from helpers.fits.layers import STATES, layer_inputs, named, part_of, whole_number
from helpers.fits.quantised import bits_of_config
from helpers.fits.servers import table
from helpers.fits.sheet import ServerFacts
from helpers.fits.stored import PART, Stored, of_files, stored_weights
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
        raise wrong(
            path,
            list(record)[:6],
            "program, version, architecture and inputs, an object",
        )
    tags = record.get("architecture") or ()
    if not isinstance(tags, list):
        tags = (tags,)
    models = table("models")
    inputs = {
        **named(inputs, models["config"]),
        **named(inputs, models["options"]),
        **inputs,
    }
    version = str(record.get("version") or "")
    return ServerFacts(record["program"], inputs, [str(tag) for tag in tags], version)


def read_model(path: Path) -> ServerFacts:
    """A model by its own header. Raises ValueError in one line."""
    if (path / PIPELINE).is_file():
        return _pipeline(path)
    if path.suffix != ".gguf":
        _refuse_adapter(path)
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"), key=lambda file: EYES in file.name)
        files = sorted(path.glob("*.safetensors"))
        has_config = (path / "config.json").exists()
        path = (*ggufs, *([] if has_config else files), path / "config.json")[0]
    first_bytes = start_of(path, 4)
    if not first_bytes:
        raise wrong(
            path, "an empty file", "a GGUF, a safetensors file or a config.json"
        )
    if path.suffix == ".gguf" and pointer_bytes(path):
        raise wrong(
            path, "a git-lfs pointer", "the file itself, which `git lfs pull` brings"
        )
    is_gguf = first_bytes == b"GGUF"
    if path.suffix == ".gguf" and not is_gguf:
        raise wrong(
            path,
            f"no GGUF: it begins with {first_bytes!r}",
            "a file that begins with GGUF",
        )
    if is_gguf:
        return _gguf(path)
    if path.suffix == ".safetensors":
        return _of_safetensors(path)
    return _of_json(path)


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
    lacks = [f"{part}: {weights.incomplete}" for part, weights in stored.items()]
    lacks = [lack for lack in lacks if not lack.endswith(": ")]
    if absent:
        lacks.insert(0, f"no weights of {', '.join(absent)} are here")
    model.incomplete = "; ".join(lacks)
    model.cut_off = "; ".join(
        weights.cut_off for weights in stored.values() if weights.cut_off
    )
    return model


def _has_weights(kind: Any) -> bool:
    """Whether a part of a pipeline has weights, by its library and class."""
    if not isinstance(kind, list) or len(kind) != 2 or None in kind:
        return False  # a setting, or a part that is switched off
    return not WITHOUT_WEIGHTS.search(str(kind[1]))


def _of_json(path: Path) -> ServerFacts:
    """A model by its config, or by the index of its weights."""
    content = json_file(path)
    stored = stored_weights(path.parent)
    if "weight_map" in content:
        return _hugging_face(path, {}, stored)
    return _hugging_face(path, content, stored)


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
    is_asked_for = (
        path.name.startswith("adapter_") or not (folder / "config.json").exists()
    )
    if is_asked_for and adapter.is_file():
        base = str(json_file(adapter).get("base_model_name_or_path") or "its base")[:80]
        raise wrong(path, f"a LoRA adapter of {base}", "the folder of that model")


def _note_architecture(model: ServerFacts, kind: str) -> ServerFacts:
    """The model; an architecture that is not known is said."""
    models = table("models")
    name = re.sub("[^a-z0-9]", "", kind.lower())
    if kind not in models["counted"] and not name.startswith(tuple(models["known"])):
        model.inputs["unknown_cache"] = 1
        model.missing.append(f"not known: architecture {kind or '(none)'}")
        model.notes.append("What is said of its cache is that of plain attention.")
    return model


def _first(
    values: Mapping[str, Any], names: Sequence[str], kinds: tuple[type, ...]
) -> Any:
    """The first value of those kinds under one of the names; None where there is none."""
    for name in names:
        value = values.get(name)
        if value and isinstance(value, kinds):
            return value
    return None


def _config(config: dict[str, Any], path: Path) -> ServerFacts:
    nested = part_of(config.get("text_config") or config.get("llm_config"))
    defaults = part_of(table("models")["defaults"].get(nested.get("model_type")))
    text = {**defaults, **config, **nested}
    for part in (
        "attn_config",
        "ffn_config",
    ):  # transformers configuration_dbrx.py, of MPT too
        text = {**text, **part_of(text.get(part))}
    kind = str(text.get("model_type") or config.get("model_type") or "")[:60]
    models = table("models")
    header = named(text, models["config"])
    _refuse_unlike_layers(text, path)
    if not (whole_number(header.get("n_layer")) and whole_number(header.get("n_embd"))):
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
    act = _first(text, models["acts"], (str,))
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


def _types_of_layers(text: Mapping[str, Any], header: dict[str, Any]) -> Sequence[str]:
    """What kind each layer is, as the config says; adds to the header what it says of linear
    attention.
    """
    models = table("models")
    places = _first(text, models["attention_at"], (list,))
    linear = part_of(text.get("linear_attn_config"))
    if linear:
        header.update(named(linear, models["linear_attention"]))
        places = [layer - 1 for layer in linear.get("full_attn_layers") or ()]
    if places:
        return [
            "attention" if at in places else "mamba" for at in range(header["n_layer"])
        ]
    return _first(text, models["types"], (list, str)) or ()


def _refuse_unlike_layers(text: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError for a model whose layers are not all those of one decoder."""
    if text.get("is_encoder_decoder") is True:
        raise wrong(
            path, "an encoder beside the decoder", "a model that is a decoder alone"
        )
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
    has_states = any(name.startswith(STATES) for name in header)
    if not (heads and of_cache) and not has_states:
        raise wrong(
            path, f"{heads} heads, {of_cache} of the cache", "1 or more of each"
        )
    if of_cache > heads > 0 and "n_head" in header:
        raise wrong(
            path, f"{of_cache} heads of the cache for {heads}", f"at most {heads}"
        )


def _gguf(path: Path) -> ServerFacts:
    gguf = Gguf(path)
    models = table("models")
    kind = str(gguf.keys.get("general.architecture", ""))[:60]
    form = gguf.keys.get("general.type")
    if form in PARTIAL or kind == "clip":
        seen = PARTIAL.get(str(form), PARTIAL[EYES])
        raise wrong(path, seen, "the GGUF of the model that it belongs to")
    model = ServerFacts("llama.cpp", {}, path=str(path), notes=_beside(path))
    header = named(gguf.keys, models["gguf"], kind + ".")
    header.setdefault("n_vocab", whole_number(gguf.keys.get("tokenizer.ggml.tokens")))
    parts = _parts(gguf)
    weights = sum(part.bytes for part in parts)
    model.incomplete = _absent_tensors(parts)
    model.cut_off = "; ".join(part.cut_off for part in parts if part.cut_off)
    host = 0
    if "output" in gguf.ends:
        host = gguf.ends.get("token_embd", 0)
    inputs = {"model_bytes": weights, "gguf_arch": kind, "host_bytes": host}
    inputs["elements"] = sum(part.elements for part in parts)
    if not (whole_number(header.get("n_layer")) and whole_number(header.get("n_embd"))):
        model.inputs = inputs
        model.missing.append("layers and widths: its header names none")
        return _note_architecture(model, kind)
    if not header.pop("head_dim_mla", 0):
        header.pop(
            "kv_lora_rank", None
        )  # no tensors for the latent: every head is expanded
    if kind in models["no_window"]:
        header.pop("n_swa", None)
    model.inputs = {**layer_inputs(header, kind), **inputs}
    return _note_architecture(model, kind)


def _beside(path: Path) -> list[str]:
    """Notes of the other GGUF files in a folder: what is not counted, and that one was chosen."""
    notes = []
    files = sorted(path.parent.glob("*.gguf"))
    eyes = [file for file in files if EYES in file.name]
    if eyes:
        size = show_bytes(max(file.stat().st_size for file in eyes))
        notes.append(
            f"{eyes[0].name} beside it is not counted: with --mmproj it takes up to {size} more, and "
            "a buffer that grows with the image"
        )
    return notes


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
    match = PART.fullmatch(first.path.name)
    by_name = int(match[2]) if match else 1
    count = max(by_name, whole_number(first.keys.get("split.count")) or 1)
    if count > len(parts):
        return f"{count - len(parts)} of {count} parts are not here"
    tensors = sum(part.tensors for part in parts)
    counted = whole_number(first.keys.get("split.tensors.count")) or 0
    if not tensors:
        return "its header names no tensors"
    if counted > tensors:
        return f"its parts have {tensors} of {counted} tensors"
    return ""
