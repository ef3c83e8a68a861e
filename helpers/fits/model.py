"""A model by its own header as the inputs of a sheet: layers by kind, heads, widths, windows,
states, bytes of its weights.

A header is read in bounded bytes and nothing of it is believed: each length is held against
what was read, and against a limit. A ``ValueError`` says in one line what was seen and what was
expected.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable
from glob import escape
from math import prod
from pathlib import Path
from typing import Any

from helpers.fits.sheet import MOST, Given, Sheet, listed, table
from helpers.ground.units import MIB, printed_size
from helpers.look.messages import read_message

MOST_READ = 32 * MIB
"""Bytes of a header that are read: a GGUF's largest part is its vocabulary, an index of 100,000
tensors takes 12 MiB.
"""
MOST_TENSORS = 200_000
MOST_KEYS = 65_536
MOST_KEPT = 4096
MOST_LAYERS = 4096
MOST_BYTES = 1 << 50
INDEX = "model.safetensors.index.json"
SUFFIX = re.compile(r"\.(json|gguf|safetensors)$")
_SCALARS = {at: form for at, form in enumerate("BbHhIif?  Qqd") if form != " "}
_STRING = 8
_ARRAY = 9


def wrong(path: Path, seen: object, expected: str) -> ValueError:
    """What is wrong with a file, in one line."""
    return ValueError(f"{path.name}: seen {seen}; expected {expected}")


def start_of(path: Path, size: int, at: int = 0) -> bytes:
    """Bytes of a file, from its start or from ``at``."""
    with path.open("rb") as file:
        file.seek(at)
        return file.read(size)


def json_file(path: Path, at: int = 0, size: int = MOST_READ + 1) -> dict[str, Any]:
    """The JSON object in a file of bounded size, or in a part of it."""
    data = start_of(path, size, at)
    if len(data) > MOST_READ:
        raise wrong(path, f"more than {MOST_READ} bytes", "JSON of at most 32 MiB")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise wrong(path, f"no JSON ({error!s:.80})", "a whole file") from None
    if not isinstance(found, dict):
        raise wrong(path, f"a {type(found).__name__}", "a JSON object")
    return found


def safetensors_bytes(path: Path) -> int:
    """Bytes of the tensors of one safetensors file, by its header: 8 bytes of length, then JSON."""
    size = path.stat().st_size
    length = int.from_bytes(start_of(path, 8), "little")
    tensors = json_file(path, 8, min(length, MOST_READ + 1))
    tensors.pop("__metadata__", None)
    try:
        found = max((int(one["data_offsets"][1]) for one in tensors.values()), default=0)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        found = -1
    there = size - 8 - length or MOST_BYTES  # a header alone is enough
    if not 0 <= found <= there:
        raise wrong(
            path, f"tensors that end at {found} of {there} bytes", "all of them in the file"
        )
    return found


class Gguf:
    """The header of a GGUF file: ``keys`` (long arrays only as their length), ``bytes`` of its
    tensors, and those by type.
    """

    def __init__(self, path: Path):
        self.path = path
        self.data = start_of(path, MOST_READ)
        self.at = 4
        self.by_type = dict[str, int]()
        self.ends = dict[str, int]()
        version, tensors, keys = self._take("<IQQ")
        if version not in (2, 3) or tensors > MOST_TENSORS or keys > MOST_KEYS:
            most = f"version 2 or 3, at most {MOST_TENSORS} tensors and {MOST_KEYS} keys"
            raise wrong(path, f"version {version}, {tensors} tensors, {keys} keys", most)
        self.keys = {self._string(): self._value(*self._take("<I")) for _ in range(keys)}
        last = max((self._tensor() for _ in range(tensors)), default=0)
        self.bytes = sum(self.by_type.values())
        size = path.stat().st_size
        if size < self.at + last - 4096:
            raise wrong(path, f"{size} bytes", f"at least {self.at + last}: the file is cut off")

    def _tensor(self) -> int:
        """Counts a tensor; returns where it ends."""
        name = self._string()
        (rank,) = self._take("<I")
        shape = self._take(f"<{rank}Q") if rank <= 4 else ()
        kind, offset = self._take("<IQ")
        label, block, size = table("models")["ggml"].get(str(kind), ("", 1, 0))
        if rank > 4 or not label or prod(shape) >= 1 << 56 or offset >= 1 << 62:
            seen = f"tensor {name[:40]!r} of type {kind}, {rank} dimensions, {prod(shape)} elements"
            raise wrong(self.path, seen, "a type of ggml.h, at most 4 dimensions, 2^56 elements")
        whole = prod(shape) // block * size
        self.ends[name.partition(".")[0]] = whole
        self.by_type[label] = self.by_type.get(label, 0) + whole
        return int(offset + whole)

    def _moved(self, count: int) -> int:
        """Where the next bytes begin, after a step over them."""
        self.at += count
        if self.at > len(self.data):
            raise wrong(self.path, f"{len(self.data)} bytes", "a whole header, of at most 32 MiB")
        return self.at - count

    def _take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack_from(form, self.data, self._moved(struct.calcsize(form)))

    def _string(self) -> str:
        (length,) = self._take("<Q")
        return self.data[self._moved(length) : self.at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._take("<" + _SCALARS[kind])[0]
        if kind == _STRING:
            return self._string()
        inner, count = self._take("<IQ") if kind == _ARRAY else (_ARRAY, 0)
        if inner == _STRING:  # a vocabulary, of which only the number counts
            data = self.data
            at = self.at
            end = len(self.data)
            for _ in range(count):
                at += 8 + int.from_bytes(data[at : at + 8], "little")
                if at > end:
                    break
            self._moved(at - self.at)
            return count
        if inner not in _SCALARS:
            raise wrong(self.path, f"a value of type {kind}, {inner}", "a number, text or a list")
        start = self._moved(count * struct.calcsize(_SCALARS[inner]))
        form = f"<{min(count, MOST_KEPT)}{_SCALARS[inner]}"
        return list(struct.unpack_from(form, self.data, start)) if count <= MOST_KEPT else count


def read_model(path: Path) -> Given:
    """A model by its own header: nothing is downloaded, no weight is read.

    Raises ValueError in one line.
    """
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"), key=lambda one: "mmproj" in one.name)
        path = (*ggufs, path / "config.json")[0]
    if start_of(path, 4) == b"GGUF":
        return _gguf(path)
    config = {} if path.suffix == ".safetensors" else json_file(path)
    folder = path.parent
    index = folder / INDEX
    beside = folder / "config.json"
    about = config
    if "weight_map" not in config:
        about = json_file(index) if config and index.exists() else {}
    total = about["metadata"].get("total_size") if isinstance(about.get("metadata"), dict) else 0
    files = sorted(folder.glob("*.safetensors")) if config else [path]
    if not config or about is config:
        config = json_file(beside) if beside.exists() else {}
    lost = ["config.json beside the weights: it names layers, heads and widths"]
    known = _config(config, path) if config else Given("vLLM", {}, missing=lost)
    weights = _whole(total) or sum(map(safetensors_bytes, files))
    known.inputs.update({"model_bytes": weights} if weights else {"parameters_wide": 1})
    return known


def _known(kind: str, **given: Any) -> Given:
    """What a header gives; an architecture that is not known is said."""
    name = re.sub("[^a-z0-9]", "", kind.lower())
    found = Given(**given)
    if not any(map(name.startswith, table("models")["known"])):
        found.missing.append(f"not known: architecture {kind or '(none)'}")
        found.notes.append("What is said of its cache is that of plain attention.")
    return found


def _whole(value: Any) -> int | None:
    """A number of a header that can be a count or a width."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < 1 << 48 else None


def named(keys: dict[str, Any], names: dict[str, list[str]], before: str = "") -> dict[str, Any]:
    """What a header says under the first of the names that it has; a list as a list of numbers."""
    found: dict[str, Any] = {}
    for name, value in ((n, keys.get(before + other)) for n in names for other in names[n]):
        if isinstance(value, list) and value:
            each = [_whole(one) or int(one is True) for one in value]
            found.setdefault(name, each if name in table("models")["lists"] else max(each))
        elif _whole(value) is not None:
            found.setdefault(name, _whole(value))
    return found


def _config(config: dict[str, Any], path: Path) -> Given:
    inner = config.get("text_config") or config.get("llm_config")
    text = {**config, **(inner if isinstance(inner, dict) else {})}
    kind = str(text.get("model_type") or config.get("model_type") or "")[:60]
    of = table("models")
    both = text.get("is_encoder_decoder") is True
    found = {**named(text, of["config"]), **(named(text, of["encoder_decoder"]) if both else {})}
    if not (_whole(found.get("n_layer")) and _whole(found.get("n_embd"))):
        expected = "a model's config.json with num_hidden_layers and hidden_size"
        raise wrong(path, f"no layers among {len(config)} keys", expected)
    found.update({"n_swa": 0} if text.get("use_sliding_window") is False else {})
    types = (one for one in map(text.get, of["types"]) if isinstance(one, (list, str)))
    inputs = _layers(found, kind, next(types, ()))
    tied = text.get("tie_word_embeddings", both or kind in of["tied"]) is True
    inputs.update(tied=tied, act=str(next(filter(None, map(text.get, of["acts"])), "")))
    inputs.update(_quantised(text.get("quantization_config")))
    eyes = [one for key, one in config.items() if key.startswith("vision")]
    parts = next((one for one in eyes if isinstance(one, dict)), {})
    inputs.update(named(parts, of["eyes"]), vision_parts=len(eyes))
    return _known(kind, program="vLLM", inputs=inputs)


def _quantised(how: Any) -> dict[str, Any]:
    """A config's quantisation of its matrices: the method, the bits and the weights that share
    a scale.
    """
    how = how if isinstance(how, dict) else {}
    inner = how.get("config_groups")
    for _ in range(2):  # compressed-tensors: the first group, and its weights
        inner = inner if isinstance(inner, dict) else {}
        inner = inner.get("weights", next(iter(inner.values()), {}))
    both = {**(inner if isinstance(inner, dict) else {}), **how}
    found = named(both, table("models")["quantised"])
    if how.get("load_in_4bit") or how.get("load_in_8bit"):
        found["quant_bits"] = 4 if how.get("load_in_4bit") else 8
    return {**found, "quant": str(how.get("quant_method", ""))[:40] or None}


def _kinds(found: dict[str, Any], kind: str, types: Any, heads: list[Any]) -> list[str]:
    """Of each layer whether it is full, sliding, recurrent, both, sees an encoder's tokens
    alone, or is without a cache.
    """
    of = table("models")
    layers = found["n_layer"]
    cross = listed(found.get("cross_layers", ()))
    if len(types) < layers:
        given = {"pattern": of["windows"].get(kind), "interval": of["intervals"].get(kind), **found}
        types = (Sheet("", "", given).value("layer_unit") or ["full"]) * layers
    own = (listed(found.get("n_ff", 0)) * layers)[:layers]
    bare = ["none" if n and 0 in own else "recurrent" for n in own]  # of layers without heads
    kinds = [of["kinds"].get(str(one), "full") for one in types[:layers]]
    kinds = [bare[at] if one == "full" and not heads[at] else one for at, one in enumerate(kinds)]
    return ["cross" if at in cross else one for at, one in enumerate(kinds)]


def _layers(found: dict[str, Any], kind: str, types: Any = ()) -> dict[str, Any]:
    """The inputs of what a header says. Layers that share another's cache hold none."""
    layers = found["n_layer"]
    query = found.get("n_head", 0)
    if not 0 < layers <= MOST_LAYERS:
        raise ValueError(f"{kind}: seen {layers} layers; expected 1 to {MOST_LAYERS}")
    heads = (listed(found.get("n_head_kv", query)) * layers)[:layers]
    kinds = list(zip(_kinds(found, kind, types, heads), heads, strict=True))
    of = Counter(one for one, _ in kinds)
    kinds = kinds[: max(0, layers - found.get("shared_kv_layers", 0))]
    full, swa = ([h for one, h in kinds if one in ks] for ks in (("full", "both"), ("swa",)))
    inputs = {name: value for name, value in found.items() if not isinstance(value, list)}
    inputs.update(n_layer_kv=len(full), n_layer_swa=len(swa), n_layer_ff=of["none"] or None)
    inputs["n_layer_recurrent"] = of["recurrent"] + of["both"]
    if of["cross"]:
        inputs.update(n_layer_cross=of["cross"], layers_cross_only=of["cross"])
    inputs.update(n_head=max(listed(query)) or None, n_head_kv=max(full, default=max(heads)))
    if isinstance(found.get("n_head_kv"), list):
        most = max(swa, default=0)
        inputs.update(heads_full=sum(full), heads_swa_all=sum(swa), n_head_kv_swa=most)
    if "kv_lora_rank" in inputs:  # one latent for all heads
        inputs.update(head_dim_k=None, head_dim_v=None)
    return inputs


def _gguf(path: Path) -> Given:
    header = Gguf(path)
    kind = str(header.keys.get("general.architecture", ""))[:60]
    found = named(header.keys, table("models")["gguf"], kind + ".")
    found.setdefault("n_vocab", _whole(header.keys.get("tokenizer.ggml.tokens")))
    weights, missing = _parts(header, path)
    host = header.ends.get("token_embd", 0) if "output" in header.ends else 0
    inputs = {"model_bytes": weights, "gguf_arch": kind, "host_bytes": host}
    if not (_whole(found.get("n_layer")) and _whole(found.get("n_embd"))):
        missing.append("layers and widths: its header names none")
        return _known(kind, program="llama.cpp", inputs=inputs, missing=missing)
    if not found.pop("head_dim_mla", 0):
        found.pop("kv_lora_rank", None)  # no tensors for the latent: every head is expanded
    if kind in table("models")["no_window"]:
        found.pop("n_swa", None)
    inputs = {**_layers(found, kind), **inputs}
    types = [f"{label} {size / max(1, header.bytes):.0%}" for label, size in header.by_type.items()]
    notes = ["Weights by type: " + ", ".join(types)]
    return _known(kind, program="llama.cpp", inputs=inputs, missing=missing, notes=notes)


def _parts(header: Gguf, path: Path) -> tuple[int, list[str]]:
    """Bytes of all parts of a split GGUF that lie beside it, and what is not there."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if match is None:
        return header.bytes, []
    parts = list(path.parent.glob(f"{escape(match[1])}-?????-of-{match[2]}.gguf"))
    lost = [f"{int(match[2]) - len(parts)} of {int(match[2])} parts"]
    return sum(Gguf(one).bytes for one in parts), lost * (len(parts) < int(match[2]))


# A server's log as the inputs of a sheet: what it was given, what it printed that it took, how
# it ended and what to change.


def read_log(lines: Iterable[str]) -> Given:
    """What a log says, of its last load. Raises ValueError where no line is a server's."""
    log = Given("", {})
    known = table("logs")
    programs = Counter[str]()
    kept = list[str]()
    seen: dict[tuple[str, str, bool, int, str], dict[Any, Any]] = {}
    runs, host, draft = (re.compile(known[one]) for one in ("runs", "host", "beside"))
    forms = [(row["has"], re.compile(row["form"]), row) for row in known["lines"]]
    beside = ""  # a draft's own model or context is taken beside the model's
    for line in (raw[:4000] for raw in lines):
        kept.append(line)
        for words, program, at in known["again"]["words"]:
            if words in line and not (beside and at):
                seen = {k: spot for k, spot in seen.items() if k[-1] != program or k[3] < at}
                beside = beside if at else ""
        beside = "draft" if draft.search(line) else beside
        if runs.search(line):
            log.fits = True
            kept = []  # what failed before was tried again
        for _, form, row in [one for one in forms if one[0] in line]:
            match = form.search(line)
            how = row.get("how", "last")
            groups = [group for group in match.groups() if group] if match else []
            if groups and not (host.search(groups[0]) if how in known["added"] else beside):
                programs[row["program"]] += 1
                log.version = row.get("until", log.version)
                key = (row["key"], how, "printed" in row, row.get("at", 1), row["program"])
                spot = seen.setdefault(key, {})
                named = how in ("each", "cards")
                spot[groups[0] + beside if named else len(spot)] = _value(groups[-1], row)
    for (name, how, printed, *_), spot in seen.items():
        values = list(spot.values())
        many = how in ("list", "cards")
        whole = sum(values) if how in ("each", "add") else values if many else values[-1]
        (log.printed if printed else log.inputs)[name] = whole
    log.inputs["n_ctx_printed"] = log.inputs.get("n_ctx")
    found = [one for one in read_message(kept).messages if one.event in known["failed"]]
    if not programs and not found:
        raise ValueError(f"no line of a server among {len(kept)}; {known['expected']}")
    held = log.printed.get("layers_on_gpu", MOST)  # fewer than all run beside the card
    log.fits = log.fits if held >= log.inputs.get("layers_model", 0) else False
    log.program = programs.most_common(1)[0][0] if programs else found[-1].program
    for last in found[-1:]:
        log.inputs = {"card_total_bytes": last.capacity and last.capacity.bytes, **log.inputs}
        words = " ".join(last.words.split())[:160]
        advice = known["advice"].get(last.row)
        log.fits = False
        log.notes = [f"It ended in: {words}", *([advice] if advice else [])]
    return log


def _value(text: str, row: dict[str, Any]) -> Any:
    """What a row's last group says: sizes, a size in its unit, a word, or a number."""
    if row.get("unit") == "sizes":
        return [printed_size(one) for one in re.findall(r"\d+(?:\.\d+)? [KMGT]iB", text)]
    if "unit" in row:
        return printed_size(text, row["unit"])
    text = text.replace(",", "")
    words = table("logs")["words"]
    is_word = text in words or not re.fullmatch(r"[\d.]+", text)
    return words.get(text, text) if is_word else float(text) if "." in text else int(text)
