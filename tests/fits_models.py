"""Made-up models for the tests of ``fits``: GGUF headers with sparse bodies, safetensors files, config.json; how it is asked."""

import json
import struct
from pathlib import Path

from command_line import verb

KINDS = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144)}
TYPES.update({"Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)})


def text(words):
    data = words.encode()
    return struct.pack("<Q", len(data)) + data


def value(one):
    if isinstance(one, str):
        return struct.pack("<I", 8) + text(one)
    if isinstance(one, list):
        kind, body = (8, text) if isinstance(one[0], str) else (KINDS[type(one[0])][0], None)
        form = KINDS.get(type(one[0]), (0, ""))[1]
        parts = b"".join(body(item) if body else struct.pack(form, item) for item in one)
        return struct.pack("<IIQ", 9, kind, len(one)) + parts
    kind, form = KINDS[type(one)]
    return struct.pack("<I", kind) + struct.pack(form, one)


def gguf(path, keys, tensors, version=3, counts=None):
    """A GGUF file of those keys and tensors (name, type, shape); its data is a hole. Returns its path."""
    head = b""
    offset = 0
    for name, kind, shape in tensors:
        number, block, size = TYPES[kind]
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", number, offset)
        elements = 1
        for one in shape:
            elements *= one
        offset += elements // block * size
    body = b"".join(text(name) + value(one) for name, one in keys.items())
    tensors_said, keys_said = counts or (len(tensors), len(keys))
    start = b"GGUF" + struct.pack("<IQQ", version, tensors_said, keys_said) + body + head
    path = Path(path)
    path.write_bytes(start)
    with path.open("r+b") as file:
        file.truncate(len(start) + 64 + offset)
    return path


def decoder(path, arch="llama", layers=4, embd=1024, heads=8, kv=2, vocab=1000, **more):
    """A small decoder as GGUF: its keys, and tensors of two types."""
    keys = {
        "general.architecture": arch,
        f"{arch}.block_count": layers,
        f"{arch}.embedding_length": embd,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv,
        f"{arch}.context_length": 131072,
        "tokenizer.ggml.tokens": [f"t{n}" for n in range(vocab)],
    }
    keys.update({f"{arch}.{name}": one for name, one in more.items()})
    tensors = [("token_embd.weight", "Q8_0", (embd, vocab)), ("output_norm.weight", "F32", (embd,))]
    tensors += [(f"blk.{n}.ffn_up.weight", "Q4_K", (embd, 4 * embd)) for n in range(layers)]
    return gguf(path, keys, tensors)


def config(folder, **keys):
    """A config.json of a decoder with grouped heads."""
    common = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }
    path = Path(folder) / "config.json"
    path.write_text(json.dumps({**common, **keys}))
    return path


def safetensors(path, shapes, lies=None):
    """A safetensors file of those shapes in bf16, with a hole for data."""
    tensors = {}
    at = 0
    for name, shape in shapes.items():
        size = 2
        for one in shape:
            size *= one
        tensors[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    tensors.update(lies or {})
    head = json.dumps(tensors).encode()
    path = Path(path)
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    with path.open("r+b") as file:
        file.truncate(8 + len(head) + at)
    return path


def asked(tmp_path, program, version="", tags=(), *options, **inputs):
    """The JSON answer to a record of these inputs."""
    path = tmp_path / "record.json"
    record = {"program": program, "version": version, "architecture": list(tags)}
    path.write_text(json.dumps({**record, "inputs": inputs, "truth": {"fits": "never read"}}))
    done = verb("fits", "--inputs", path, "--json", *options)
    assert done.code == 0, done.err
    return json.loads(done.out)


def row(answer, part):
    return next(one for one in answer["rows"] if one["part"] == part)


def of(path, *options):
    done = verb("fits", path, "--json", *options)
    assert done.code == 0, done.err
    return json.loads(done.out)
