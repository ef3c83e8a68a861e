"""A model, from the headers of its files, as the inputs of a sheet: kinds of layers, heads, widths,
windows, states, bytes of the weights. Nothing is downloaded, and no weight is read.
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
"""The file of a pipeline of diffusers: each part by its library and class."""
EYES = "mmproj"
"""In the names of GGUF files with the part of a model that sees or hears."""
ADAPTER = "adapter_config.json"
"""The file of a LoRA adapter (peft)."""
PARTIAL = {"adapter": "a LoRA adapter", EYES: "the part of a model that sees or hears"}
"""Values of general.type of a GGUF that is no whole model (gguf-py/gguf/constants.py)."""
WITHOUT_WEIGHTS = re.compile("Scheduler|Tokenizer|Processor|Extractor|Guider")
"""In the classes of a pipeline's parts that have no weights."""
MOST_OF_A_NAME = 60
"""Letters of an architecture's name: a header may have anything there."""
SUFFIX = re.compile(r"\.(json|gguf|safetensors)$")


def is_model(path: Path) -> bool:
    """Whether a path is a model's folder or file, by its name or its first bytes. Every folder
    counts as one: ``read_model`` says what it lacks.
    """
    if path.is_dir() or SUFFIX.search(path.name):
        return True
    return path.is_file() and start_of(path, 4) == b"GGUF"


def read_record(path: Path) -> ServerFacts:
    """The facts of a JSON record, which a person or a program wrote: its program, version,
    architecture (words about the model) and inputs.

    Inputs may have the names of configs or of servers' options in place of ours; where a record has
    both, ours count. Raises ValueError in one line.
    """
    record = json_file(path)
    inputs = record.get("inputs")
    if not isinstance(inputs, dict) or not isinstance(record.get("program"), str):
        expected = "program, version, architecture and inputs, an object"
        first_keys = list(record)[:6]
        raise wrong(path, first_keys, expected)
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
    """The facts of a model, from its folder or one of its files. Raises ValueError in one line.

    The first bytes of a file decide what it is; its name counts only where they do not tell.
    """
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
    # A GGUF of the part that sees comes last.
    ggufs = sorted(folder.glob("*.gguf"), key=lambda file: EYES in file.name)
    weights = sorted(folder.glob("*.safetensors"))
    if ggufs:
        return ggufs[0]
    if weights and not config.exists():
        return weights[0]
    return config


def _pipeline(folder: Path) -> ServerFacts:
    """The facts of a pipeline of diffusers: the bytes of its parts, each in a folder of its own.

    A part is a name in the pipeline's index whose class has weights, or a folder with a config.
    """
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
    """Whether an entry of a pipeline's index is a part with weights; a part is the list of its
    library and its class.
    """
    if not isinstance(kind, list) or len(kind) != 2 or None in kind:
        return False  # a setting, or a part that is switched off
    return not WITHOUT_WEIGHTS.search(str(kind[1]))


def _of_json(path: Path) -> ServerFacts:
    """The facts of a model, from its config or from the index of its weights."""
    content = json_file(path)
    if "weight_map" in content:  # an index, which says nothing about layers
        content = {}
    return _hugging_face(path, content, stored_weights(path.parent))


def _of_safetensors(path: Path) -> ServerFacts:
    """The facts of a model, from a file of its weights; where the file is one part of several, from
    all of them.
    """
    stored = of_files([path], "")
    if PART.fullmatch(path.name):
        stored = stored_weights(path.parent)
    return _hugging_face(path, {}, stored)


def _hugging_face(path: Path, config: dict[str, Any], stored: Stored) -> ServerFacts:
    """The facts of a model, from its config (empty: the one in the folder of ``path``) and its
    stored weights. Without any config the facts are the bytes alone, and say what is missing.

    Where no weights are here, they are computed from the config: ``parameters_wide`` says so.
    """
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
        model.path = "MODEL"  # there are no weights here that a server could load
    return model


def _refuse_adapter(path: Path) -> None:
    """Raises ValueError for a LoRA adapter, which is no model without its base. A folder with a
    config of its own is a model, unless the adapter's own file was named.
    """
    folder = path
    if not path.is_dir():
        folder = path.parent
    adapter = folder / ADAPTER
    if not adapter.is_file():
        return
    has_config = (folder / "config.json").exists()
    if has_config and not path.name.startswith("adapter_"):
        return  # a model, and an adapter beside it
    base = json_file(adapter).get("base_model_name_or_path")
    if not base:
        base = "its base"
    raise wrong(path, f"a LoRA adapter of {base!s:.80}", "the folder of that model")


def _note_architecture(model: ServerFacts, kind: str) -> ServerFacts:
    """The model, with notes where its architecture ``kind`` is not known. It is known where tests
    compare its numbers (``counted`` of models.json), or where its name begins like one whose cache
    was read (``known``).
    """
    models = table("models")
    name = re.sub("[^a-z0-9]", "", kind.lower())
    if kind not in models["counted"] and not name.startswith(tuple(models["known"])):
        model.inputs["unknown_cache"] = 1
        if not kind:
            kind = "(none)"
        model.missing.append(f"not known: architecture {kind}")
        model.notes.append("What is said of its cache is that of plain attention.")
    return model


def _config(config: dict[str, Any], path: Path) -> ServerFacts:
    """The facts that a config.json gives, for vLLM, as nobody has named a server. Raises
    ValueError.

    The flags among the inputs (``quant_unknown``, ``weights_uncounted``, ``vision_parts``) say
    which weights the dimensions do not give.
    """
    text = _decoder_of(config)
    kind = ""
    if text.get("model_type"):
        kind = str(text["model_type"])[:MOST_OF_A_NAME]
    models = table("models")
    header = named(text, models["config"])
    _refuse_unlike_layers(text, path)
    if not (header.get("n_layer") and header.get("n_embd")):
        expected = "a model's config.json with num_hidden_layers and hidden_size"
        raise wrong(path, f"no layers among {len(config)} keys", expected)
    _refuse_wrong_heads(header, path)
    # configs of Qwen2 name a window that most of its models do not use
    if text.get("use_sliding_window") is False:
        header["n_swa"] = 0
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        header["n_head_kv"] = 1  # transformers configuration_falcon.py
    if kind in models["one_shared_expert"]:
        header.setdefault("n_expert_shared", 1)
    types = _types_of_layers(text, header)
    # for each layer 1: experts, 0: dense
    if isinstance(text.get("moe_layer_freq"), list):
        header["n_dense"] = text["moe_layer_freq"].count(0)
    inputs = layer_inputs(header, kind, types)
    inputs["tied"] = text.get("tie_word_embeddings", kind in models["tied"]) is True
    activation = first_of(text, models["acts"], str)
    is_plain = kind in models["plain"] or activation in models["plain_acts"]
    inputs["plain_ff"] = is_plain
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
    """The keys of a config about the decoder, which may be one part of the model. Keys of the part
    come before those of the whole, and both before the defaults of models.json.
    """
    nested = part_of(config.get("text_config") or config.get("llm_config"))
    defaults = part_of(table("models")["defaults"].get(nested.get("model_type")))
    text = {**defaults, **config, **nested}
    kind = text.get("model_type")
    # transformers configuration_dbrx.py, of MPT too: figures are in parts of the config. Each part
    # has an empty model_type of its own, so the decoder's is put back.
    for part in ("attn_config", "ffn_config"):
        text.update(part_of(text.get(part)))
    text["model_type"] = kind
    return text


def _types_of_layers(
    text: Mapping[str, object], header: dict[str, Any]
) -> Sequence[object] | None:
    """What the config calls each layer, by a list of words or of the layers that have attention;
    None where it does not name them. The figures of linear attention are added to the header.
    """
    models = table("models")
    places = first_of(text, models["attention_at"], list)
    linear = part_of(text.get("linear_attn_config"))
    if linear:
        header.update(named(linear, models["linear_attention"]))
        numbers = linear.get("full_attn_layers")
        if numbers is None:
            numbers = []
        places = [number - 1 for number in numbers]  # it counts from 1
    if not places:
        return first_of(text, models["types"], list, str)
    types = ["mamba"] * header["n_layer"]
    for place in range(len(types)):
        if place in places:
            types[place] = "attention"
    return types


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
    """Raises ValueError where a model with attention has no heads, or its cache has more heads than
    its queries.
    """
    heads = max(listed(header.get("n_head", 1)))
    cache_heads = max(listed(header.get("n_head_kv", heads)))
    if not (heads and cache_heads) and not has_states(header):
        seen = f"{heads} heads, {cache_heads} of the cache"
        raise wrong(path, seen, "1 or more of each")
    if cache_heads > heads > 0 and "n_head" in header:
        seen = f"{cache_heads} heads of the cache for {heads}"
        raise wrong(path, seen, f"at most {heads}")


def _gguf(path: Path) -> ServerFacts:
    """The facts of a model, from the header of its GGUF, and the bytes of the other parts of it.

    The first part's header has the keys. Where they name no layers, the facts are bytes alone.
    Raises ValueError for a GGUF that is no whole model.
    """
    gguf = Gguf(path)
    models = table("models")
    kind = str(gguf.keys.get("general.architecture", ""))[:MOST_OF_A_NAME]
    form = gguf.keys.get("general.type")
    # clip: the part that sees, in files that are older than general.type
    if form in PARTIAL or kind == "clip":
        seen = PARTIAL.get(str(form), PARTIAL[EYES])
        raise wrong(path, seen, "the GGUF of the model that it belongs to")
    model = ServerFacts("llama.cpp", {}, path=str(path), notes=_note_of_eyes(path))
    header = named(gguf.keys, models["gguf"], kind + ".")
    # Without a key for it, the vocabulary is as long as its list, of which ``Gguf`` keeps the
    # length.
    header.setdefault("n_vocab", whole_number(gguf.keys.get("tokenizer.ggml.tokens")))
    parts = _parts(gguf)
    model.incomplete = _absent_tensors(parts)
    model.cut_off = "; ".join(part.cut_off for part in parts if part.cut_off)
    host_bytes = 0
    if "output" in gguf.bytes_by_name:
        # Only the host needs the table of tokens, unless it is the output, too.
        host_bytes = gguf.bytes_by_name.get("token_embd", 0)
    inputs = {
        "model_bytes": sum(part.bytes for part in parts),
        "elements": sum(part.elements for part in parts),
        "gguf_arch": kind,
        "host_bytes": host_bytes,
    }
    if not (header.get("n_layer") and header.get("n_embd")):
        model.inputs = inputs
        model.missing.append("layers and widths: its header names none")
        return _note_architecture(model, kind)
    if not header.pop("head_dim_mla", 0):
        # Its file is older than the tensors for the latent: the cache has every head.
        header.pop("kv_lora_rank", None)
    if kind in models["no_window"]:
        header.pop("n_swa", None)
    model.inputs = {**layer_inputs(header, kind), **inputs}
    return _note_architecture(model, kind)


def _note_of_eyes(path: Path) -> list[str]:
    """The note that the part of a model that sees or hears is in its folder and is not counted; no
    note where there is none.
    """
    files = sorted(path.parent.glob(f"*{EYES}*.gguf"))
    if not files:
        return []
    size = show_bytes(max(file.stat().st_size for file in files))
    return [
        f"{files[0].name} beside it is not counted: with --mmproj it takes up to {size} more, and "
        "a buffer that grows with the image"
    ]


def _parts(gguf: Gguf) -> list[Gguf]:
    """A GGUF and the other parts of the same model in its folder, the given one first."""
    path = gguf.path
    match = PART.fullmatch(path.name)
    if not match:
        return [gguf]
    name, count = match.groups()
    files = sorted(path.parent.glob(f"{escape(name)}-?????-of-{count}.gguf"))
    return [gguf, *(Gguf(file) for file in files if file.name != path.name)]


def _absent_tensors(parts: Sequence[Gguf]) -> str:
    """How many parts or tensors of a GGUF are not here, by the counts in its header, else by the
    names of the parts; empty where all are.
    """
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
