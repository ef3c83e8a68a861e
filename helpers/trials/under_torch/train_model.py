"""Trains the language model of a config.json, as a plain script does: random tokens, a forward and
a backward pass, AdamW.

`casebook rehearse --model` runs it on a simulated card, under the user's own torch, transformers
and peft (helpers/rehearse/model.py). Nothing is downloaded. Weights have no values: they get memory
on the GPU in the order in which ``model.to("cuda")`` would move them. Several ranks share each
block of the model (FSDP2).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = 3
"""The optimizer makes its state in the first step; from the second on each is like the one
before.
"""
RANK = 16
"""Of LoRA's adapters: a usual choice, with which they take about 1 % of the model."""
NEEDS = {"full": (), "lora": ("peft",), "qlora": ("peft", "bitsandbytes")}
"""The packages that each way to train needs beside torch and transformers."""
CONTENT_LIMIT = 16 << 20
"""A config.json has some kB; a larger file is something else."""
MOST_SEEN = 60
MOST_ERROR = 300
"""Letters of a refused value, and of another package's error, in a message of one line."""
BF16_BYTES = 2
# Types of packages that only the user's own Python may have.
Library = Any
Config = Any
Model = Any
Tensor = Any


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--train", required=True, choices=NEEDS)
    parser.add_argument(
        "--sequence", required=True, type=int, help="tokens of a sequence"
    )
    parser.add_argument("--batch", required=True, type=int, help="sequences of a step")
    parser.add_argument("--precision", required=True, choices=("bf16", "mixed", "fp32"))
    parser.add_argument(
        "--checkpointing", action="store_true", help="recompute each layer"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say what is wrong, if anything"
    )
    return parser.parse_args()


def refuse_missing_packages(train: str) -> None:
    """Raise SystemExit if this Python lacks a package that this way to train needs."""
    missing = [
        name
        for name in ("transformers", *NEEDS[train])
        if not importlib.util.find_spec(name)
    ]
    if missing:
        raise SystemExit(
            f"{sys.executable} has no {missing[0]}; expected it there for "
            f"--train {train}; install it, or give --torch-python"
        )


def read_config(path: Path, sequence: int) -> Config:
    """The config as this Python's transformers reads it. Raises SystemExit if it is not that of a
    language model that can be trained with sequences of this length.
    """
    model_type = model_type_of(path)
    transformers = importlib.import_module("transformers")
    models = importlib.import_module("transformers.models.auto.modeling_auto")
    release = f"transformers {transformers.__version__}"
    if model_type not in transformers.CONFIG_MAPPING:
        raise SystemExit(
            f"{path}: {release} does not know model_type {model_type[:MOST_SEEN]!r}; "
            "expected a model_type that it has; a later release may have it"
        )
    try:
        config = transformers.AutoConfig.from_pretrained(path)
    except Exception as error:  # noqa: BLE001 -- whatever it raises, the config is at fault
        why = " ".join(str(error).split())
        raise SystemExit(f"{path}: {release} refuses it: {why[:MOST_ERROR]}") from None
    if type(config) not in models.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SystemExit(
            f"{path}: {model_type} is no causal language model; expected the "
            "config of a model that writes text, such as llama"
        )
    if getattr(config, "quantization_config", None):
        raise SystemExit(
            f"{path}: seen a quantization_config; expected none; take it out, "
            "and choose --train full, lora or qlora"
        )
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    if most and sequence > most:
        raise SystemExit(
            f"--sequence {sequence}: expected at most {most}, the model's positions"
        )
    return config


def model_type_of(path: Path) -> str:
    """The model_type of a config.json. Raises SystemExit if it has none."""
    expected = "expected a config.json with its model_type"
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(CONTENT_LIMIT))
    except (OSError, ValueError, RecursionError) as error:
        raise SystemExit(f"{path}: {type(error).__name__}; {expected}") from None
    model_type = None
    if isinstance(content, dict):
        model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise SystemExit(f"{path}: no model_type; {expected}")
    return model_type


def built(config: Config, options_of_model: dict[str, object], torch: Library) -> Model:
    """The model on the meta device, where weights have shapes and no memory."""
    with torch.device("meta"):
        auto = importlib.import_module("transformers").AutoModelForCausalLM
        return auto.from_config(config, **options_of_model)


def loaded_in_four_bits(
    model: Model, options_of_model: dict[str, object], torch: Library
) -> Model:
    """The model as ``from_pretrained`` loads it in four bits for QLoRA, from a file of zeros."""
    transformers = importlib.import_module("transformers")
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )
    with tempfile.TemporaryDirectory(prefix="rehearse-model-") as folder:
        model.config.save_pretrained(folder)
        write_zeros(model, Path(folder, "model.safetensors"))
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            quantization_config=settings,
            device_map={"": 0},  # the whole model on GPU 0
            **options_of_model,
        )


def write_zeros(model: Model, path: Path) -> None:
    """Write a safetensors file in which all weights of the model are zeros of bf16.

    The format: the length of the header in 8 bytes, the header as JSON, the weights. The weights
    are a hole in the file, which takes no room on the disk.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in model.state_dict().items():
        start = end
        end += BF16_BYTES * tensor.numel()
        row = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        header[name] = row
    text = json.dumps(header).encode()
    length = len(text).to_bytes(8, "little")
    with path.open("wb") as file:
        file.write(length + text)
        file.truncate(len(length) + len(text) + end)


def with_adapters(model: Model) -> Model:
    """The model with its weights frozen and LoRA's adapters at all of its linear layers."""
    peft = importlib.import_module("peft")
    settings = peft.LoraConfig(
        r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, settings)


def shard(torch: Library, model: Model, blocks: set[str], precision: str) -> None:
    """Split each block of the model over the ranks (FSDP2), and then its other weights; ``blocks``
    are the names of the classes of its blocks.
    """
    torch.distributed.init_process_group("nccl")
    fsdp = importlib.import_module("torch.distributed.fsdp")
    policy = fsdp.MixedPrecisionPolicy()
    if precision == "mixed":
        policy = fsdp.MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for module in model.modules():
        if type(module).__name__ in blocks:
            fsdp.fully_shard(module, mp_policy=policy)
    fsdp.fully_shard(model, mp_policy=policy)


def put_on_card(torch: Library, model: Model, card: str = "cuda") -> None:
    """Move a model to the GPU in the order of ``model.to("cuda")``; a weight on the meta device
    gets memory there, and no values.
    """

    def on_card(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return torch.empty_like(tensor, device=card)
        return tensor.to(card)

    for child in model.children():
        put_on_card(torch, child, card)
    tensors = [*model.parameters(recurse=False), *model.buffers(recurse=False)]
    if any(tensor.device.type != card for tensor in tensors):
        # The tensors are changed in place, so that a weight which two modules share stays one.
        torch.__future__.set_swap_module_params_on_conversion(True)
        model._apply(on_card, recurse=False)


def prepared(torch: Library, config: Config, chosen: argparse.Namespace) -> Model:
    """The model on the GPU, ready to be trained in the chosen way. Raises SystemExit if several
    ranks should share a model that names no blocks.
    """
    is_sharded = int(os.environ.get("WORLD_SIZE", "1")) > 1  # torchrun sets it
    dtype = torch.float32
    if chosen.precision == "bf16":
        dtype = torch.bfloat16
    options_of_model = {"torch_dtype": dtype}
    if hasattr(config, "dtype"):  # since transformers 4.56
        options_of_model = {"dtype": dtype}
    model = built(config, options_of_model, torch)
    # transformers' names of the classes of a block, which stay whole on a device.
    blocks = set(model._no_split_modules or ())
    if is_sharded and not blocks:
        raise SystemExit(
            f"--world: {type(model).__name__} names no blocks that ranks could share"
        )
    if chosen.train == "qlora":
        peft = importlib.import_module("peft")
        model = loaded_in_four_bits(model, options_of_model, torch)
        model = peft.prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=chosen.checkpointing
        )
    elif chosen.checkpointing:
        model.gradient_checkpointing_enable()
        # Under LoRA all weights before the first adapter are frozen, and a layer that is computed
        # again needs an input with gradients.
        model.enable_input_require_grads()
    if chosen.train != "full":
        model = with_adapters(model)
    if is_sharded:
        shard(torch, model, blocks, chosen.precision)
    put_on_card(torch, model)
    return model.train()


def train(torch: Library, model: Model, words: int, chosen: argparse.Namespace) -> None:
    """Train for a few steps with random tokens; ``words`` is the size of the model's vocabulary."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-5)  # usual for a trained model
    is_mixed = chosen.precision == "mixed"
    for _ in range(STEPS):
        tokens = torch.randint(0, words, (chosen.batch, chosen.sequence), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=is_mixed):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Train as the command line says; with ``--check`` only refuse what cannot be trained."""
    chosen = options()
    os.environ["HF_HUB_OFFLINE"] = "1"
    refuse_missing_packages(chosen.train)
    config = read_config(chosen.config, chosen.sequence)
    if chosen.check:
        return
    torch = importlib.import_module("torch")
    model = prepared(torch, config, chosen)
    train(torch, model, config.get_text_config().vocab_size, chosen)


if __name__ == "__main__":
    main()
