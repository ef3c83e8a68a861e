"""A model by its own header as the inputs of a sheet: layers by kind, heads, widths, windows,
states, bytes of its weights. Nothing is downloaded, no weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from helpers.fits.gguf import Gguf
from helpers.fits.headers import Safetensors, json_file, start_of, wrong
from helpers.fits.layers import layer_inputs, named, part_of, whole_number
from helpers.fits.quantised import bits_of_config
from helpers.fits.servers import table
from helpers.fits.sheet import Given

INDEX = "model.safetensors.index.json"
PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.(?:gguf|safetensors)")
PIPELINE = "model_index.json"
VARIANT = ".fp16."
SUFFIX = re.compile(r"\.(json|gguf|safetensors)$")


def is_model(path: Path) -> bool:
    """Whether a path is a model's folder or file, by its name or its first bytes."""
    if path.is_dir() or SUFFIX.search(path.name):
        return True
    return path.is_file() and start_of(path, 4) == b"GGUF"


def read_record(path: Path) -> Given:
    """Program, version, architecture and inputs of a JSON record, and nothing else of it.

    Raises ValueError in one line.
    """
    record = json_file(path)
    inputs = record.get("inputs")
    if not isinstance(inputs, dict) or not isinstance(record.get("program"), str):
        raise wrong(path, list(record)[:6], "program, version, architecture and inputs, an object")
    tags = record.get("architecture") or ()
    if not isinstance(tags, list):
        tags = (tags,)
    models = table("models")
    inputs = {**named(inputs, models["config"]), **named(inputs, models["options"]), **inputs}
    version = str(record.get("version") or "")
    return Given(record["program"], inputs, [str(tag) for tag in tags], version)


def read_model(path: Path) -> Given:
    """A model by its own header. Raises ValueError in one line."""
    if (path / PIPELINE).is_file():
        return _pipeline(path)
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"), key=lambda file: "mmproj" in file.name)
        path = (*ggufs, path / "config.json")[0]
    first_bytes = start_of(path, 4)
    if not first_bytes:
        raise wrong(path, "an empty file", "a GGUF, a safetensors file or a config.json")
    is_gguf = first_bytes == b"GGUF"
    if path.suffix == ".gguf" and not is_gguf:
        raise wrong(
            path, f"no GGUF: it begins with {first_bytes!r}", "a file that begins with GGUF"
        )
    if is_gguf:
        model = _gguf(path)
    elif path.suffix == ".safetensors":
        model = _hugging_face(path, {}, {}, [path])
    else:
        model = _of_json(path)
    model.path = str(path if is_gguf else path.parent)
    return model


def _pipeline(folder: Path) -> Given:
    """A pipeline of diffusers: the weights of its parts, each in a folder of its own."""
    sizes = []
    for part in sorted(file.parent for file in folder.glob("*/config.json")):
        files = sorted(part.glob("*.safetensors"))
        plain = [file for file in files if VARIANT not in file.name]
        sizes.append(sum(Safetensors(file).bytes for file in plain or files))
    inputs = {"model_bytes": sum(sizes), "largest_part_bytes": max(sizes, default=0)}
    model = Given("diffusers", inputs, path=str(folder))
    if not sum(sizes):
        model.missing.append("the weights of its parts, *.safetensors in a folder each")
        model.inputs = {}
    return model


def _of_json(path: Path) -> Given:
    """A model by its config, or by the index of its weights."""
    content = json_file(path)
    files = sorted(path.parent.glob("*.safetensors"))
    if "weight_map" in content:
        return _hugging_face(path, {}, content, files)
    index_path = path.parent / INDEX
    index = json_file(index_path) if index_path.exists() else {}
    return _hugging_face(path, content, index, files)


def _hugging_face(
    path: Path, config: dict[str, Any], index: dict[str, Any], files: Sequence[Path]
) -> Given:
    """A model by its config, or the one beside its weights, and the bytes of its weights."""
    beside = path.parent / "config.json"
    if not config and beside.exists():
        config = json_file(beside)
    if config:
        model = _config(config, path)
    else:
        lost = "config.json beside the weights: it names layers, heads and widths"
        model = Given("vLLM", {}, missing=[lost])
    weights = whole_number(part_of(index.get("metadata")).get("total_size"))
    if not weights:
        headers = [Safetensors(file) for file in files]
        weights = sum(header.bytes for header in headers)
        model.incomplete = _absent_parts(files)
        model.cut_off = _cut_off(headers)
    if weights:
        model.inputs["model_bytes"] = weights
    else:
        model.inputs["parameters_wide"] = 1
    return model


def _cut_off(headers: Sequence[Gguf | Safetensors]) -> str:
    """How much is here of each file that is cut off behind its header; empty: none is."""
    return "; ".join(header.cut_off for header in headers if header.cut_off)


def _note_architecture(model: Given, kind: str) -> Given:
    """The model; an architecture that is not known is said."""
    name = re.sub("[^a-z0-9]", "", kind.lower())
    if not name.startswith(tuple(table("models")["known"])):
        model.missing.append(f"not known: architecture {kind or '(none)'}")
        model.notes.append("What is said of its cache is that of plain attention.")
    return model


def _first(values: Mapping[str, Any], names: Sequence[str], kinds: tuple[type, ...]) -> Any:
    """The first value of those kinds under one of the names; None where there is none."""
    for name in names:
        value = values.get(name)
        if value and isinstance(value, kinds):
            return value
    return None


def _config(config: dict[str, Any], path: Path) -> Given:
    text = {**config, **part_of(config.get("text_config") or config.get("llm_config"))}
    kind = str(text.get("model_type") or config.get("model_type") or "")[:60]
    models = table("models")
    if text.get("is_encoder_decoder") is True:
        raise wrong(path, "an encoder beside the decoder", "a model that is a decoder alone")
    header = named(text, models["config"])
    if not (whole_number(header.get("n_layer")) and whole_number(header.get("n_embd"))):
        expected = "a model's config.json with num_hidden_layers and hidden_size"
        raise wrong(path, f"no layers among {len(config)} keys", expected)
    if text.get("use_sliding_window") is False:
        header["n_swa"] = 0
    if kind in models["one_shared_expert"]:
        header.setdefault("n_expert_shared", 1)
    types = _first(text, models["types"], (list, str)) or ()
    inputs = layer_inputs(header, kind, types)
    inputs["tied"] = text.get("tie_word_embeddings", kind in models["tied"]) is True
    inputs["act"] = str(_first(text, models["acts"], (object,)) or "")
    inputs.update(bits_of_config({**config, **text}))
    inputs["vision_parts"] = sum(key.startswith("vision") for key in config)
    model = Given("vLLM", inputs)
    if text.get("compress_ratios"):
        model.notes.append(
            "Its cache is compressed layer by layer (compress_ratios); it is counted without that, "
            "so more tokens fit than are said."
        )
    return _note_architecture(model, kind)


def _gguf(path: Path) -> Given:
    gguf = Gguf(path)
    models = table("models")
    kind = str(gguf.keys.get("general.architecture", ""))[:60]
    header = named(gguf.keys, models["gguf"], kind + ".")
    header.setdefault("n_vocab", whole_number(gguf.keys.get("tokenizer.ggml.tokens")))
    parts = _parts(gguf)
    weights = sum(part.bytes for part in parts)
    incomplete = _absent_tensors(parts)
    cut_off = _cut_off(parts)
    host = 0
    if "output" in gguf.ends:
        host = gguf.ends.get("token_embd", 0)
    inputs = {"model_bytes": weights, "gguf_arch": kind, "host_bytes": host}
    inputs["elements"] = sum(part.elements for part in parts)
    if not (whole_number(header.get("n_layer")) and whole_number(header.get("n_embd"))):
        missing = ["layers and widths: its header names none"]
        model = Given("llama.cpp", inputs, missing=missing, cut_off=cut_off, incomplete=incomplete)
        return _note_architecture(model, kind)
    if not header.pop("head_dim_mla", 0):
        header.pop("kv_lora_rank", None)  # no tensors for the latent: every head is expanded
    if kind in models["no_window"]:
        header.pop("n_swa", None)
    inputs = {**layer_inputs(header, kind), **inputs}
    model = Given("llama.cpp", inputs, cut_off=cut_off, incomplete=incomplete)
    return _note_architecture(model, kind)


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


def _absent_parts(files: Sequence[Path]) -> str:
    """How many parts of weights in several files are not there, by their names; empty: none."""
    counts = [
        int(match[2]) for match in map(PART.fullmatch, (file.name for file in files)) if match
    ]
    count = max(counts, default=0)
    if count <= len(counts):
        return ""
    return f"{count - len(counts)} of {count} parts are not here"
