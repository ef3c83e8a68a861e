"""A model's config is rehearsed in place of a program."""

import json
import struct
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from command_line import verb
from test_rehearse import GIB, RUN

from helpers.commands.rehearse_answer import what_to_run_next
from helpers.look.cards import cards
from helpers.rehearse.every_card import cards_that_fit, fitting_table
from helpers.rehearse.model import PROGRAM, ModelError, Training
from helpers.rehearse.search import SearchError
from helpers.trials.under_torch import train_model

LORA = "--model config.json --train lora --sequence 2048 --batch 1"
STAND_IN = """
__version__ = "9.9"
CONFIG_MAPPING = {"llama": None, "clip": None}
class Config:
    def __init__(self, content):
        self.__dict__.update(content)
    def get_text_config(self):
        return self
class Vision(Config):
    pass
class AutoConfig:
    @staticmethod
    def from_pretrained(path):
        import json
        content = json.load(open(path))
        if content.get("hidden_size") == "wide":
            raise ValueError("Validation error:\\n  hidden_size is no number")
        return (Config if content["model_type"] == "llama" else Vision)(content)
"""
AUTO = "import transformers\nMODEL_FOR_CAUSAL_LM_MAPPING = {transformers.Config: None}\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--model config.json --train lora --sequence 2048", "no --batch; expected --batch 8"),
        ("--model config.json --sequence 9 --batch 1", "no --train; expected --train full, lora"),
        (LORA.replace("2048", "0"), "seen --sequence 0; expected 1 or more"),
        (LORA, "config.json: no such file; expected a config.json"),
        (f"{LORA} -- python train.py", "seen --model and a command"),
        (f"{LORA} --against-commit main", "seen --model and --against-commit"),
        (f"{LORA.replace('lora', 'qlora')} --world 4", "--train qlora and --world 4"),
        (f"{LORA.replace('lora', 'qlora')} --precision fp32", "--train qlora and --precision fp32"),
        ("--train lora -- python train.py", "seen --train without --model"),
        ("--checkpointing -- python train.py", "seen --checkpointing without --model"),
    ],
)
def test_a_model_that_cannot_be_trained_as_asked_is_refused_in_one_line(
    options, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = verb("rehearse", "--gpu", "4090", *options.split())
    assert done.code == 2 and says in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--gpu all -- python train.py", "--gpu all without --model"),
        (f"--gpu all {LORA} --capacity 20GiB", "--gpu all and --capacity"),
        (f"--gpu all {LORA} --find-batch batch", "--gpu all and --find-batch"),
    ],
)
def test_all_cards_are_only_for_a_model_and_leave_no_other_card(
    options, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = verb("rehearse", *options.split())
    assert done.code == 2 and says in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"model_type": "zzz"}', "transformers 9.9 does not know model_type 'zzz'"),
        ('{"model_type": "clip"}', "clip is no causal language model"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "Validation error: hidden_size is no"),
        ('{"model_type": "llama", "max_position_embeddings": 1024}', "expected at most 1024"),
        ('{"model_type": "llama", "quantization_config": {"bits": 4}}', "a quantization_config"),
        ('{"model_type": ["llama"]}', "no model_type; expected a config.json"),
        ("[[[", "JSONDecodeError; expected a config.json"),
        ("[" * 100_000, "expected a config.json"),
        ("7", "no model_type"),
    ],
)
def test_a_config_that_no_model_can_be_built_from_is_refused_in_one_line(
    content, says, tmp_path, monkeypatch
):
    package = tmp_path / "transformers"
    (package / "models" / "auto").mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "models" / "__init__.py").touch()
    (package / "models" / "auto" / "__init__.py").touch()
    (package / "models" / "auto" / "modeling_auto.py").write_text(AUTO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = tmp_path / "config.json"
    config.write_text(content)
    with pytest.raises(ModelError) as refused:
        Training(str(config), "full", 2048, 1).check(sys.executable)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (dict(batch=8), "rehearse --gpu 4090 --model c.json --train full --sequence 64 --batch 8 "),
        (dict(batch=1), "rehearse --gpu all --model c.json --train full --sequence 64 --batch 1"),
        (dict(model=""), "fix --gpu 4090 -- python train.py"),
        (
            dict(model="", torch_python="/env/bin/python"),
            "fix --gpu 4090 --torch-python /env/bin/python -- python train.py",
        ),
        (dict(world=8), ""),
    ],
)
def test_a_model_that_does_not_fit_is_tried_with_less_and_a_program_is_changed(options, command):
    names = "capacity box held precision checkpointing world torch torch_python".split()
    given = dict(gpu="4090", gpus=1, model="c.json", train="full", sequence=64)
    arguments = SimpleNamespace(**{**dict.fromkeys(names), **given, "batch": 0, **options})
    _, run_next = what_to_run_next(arguments, ["python", "train.py"])
    assert run_next.startswith(f"casebook {command}" if command else "") and bool(run_next) == bool(
        command
    )
    assert run_next.endswith("--find-batch batch") == (options == {"batch": 8})


def test_a_python_without_the_packages_is_named():
    argv = [sys.executable, "-I", "-S", PROGRAM, "--check", "--config", "x", "--train", "qlora"]
    argv += ["--sequence", "1", "--batch", "1", "--precision", "bf16"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert (
        f"{sys.executable} has no transformers; expected it there for --train qlora" in done.stderr
    )


def test_the_command_says_how_the_model_is_trained():
    full = Training("c.json", "full", 4096, 8).command()
    assert (
        full[2:]
        == "--config c.json --train full --sequence 4096 --batch 8 --precision mixed".split()
    )
    lora = Training("c.json", "lora", 4096, 8, checkpointing=True).command()
    assert lora[-3:] == ["--precision", "bf16", "--checkpointing"]


def test_a_file_of_zeros_holds_each_weight_and_takes_no_room(tmp_path):
    weights = {
        "embed": SimpleNamespace(shape=(1 << 20, 4096), numel=lambda: 1 << 32),
        "norm": SimpleNamespace(shape=(4096,), numel=lambda: 4096),
    }
    path = tmp_path / "model.safetensors"
    train_model.write_zeros(SimpleNamespace(state_dict=lambda: weights), path)
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    assert header["embed"]["data_offsets"] == [0, 1 << 33]
    assert header["norm"] == {
        "dtype": "BF16",
        "shape": [4096],
        "data_offsets": [1 << 33, (1 << 33) + 8192],
    }
    assert path.stat().st_size == 8 + length + (1 << 33) + 8192
    assert path.stat().st_blocks * 512 < 1 << 20


def test_a_model_moves_as_a_script_moves_it_and_shared_weights_stay_shared():
    torch = pytest.importorskip("torch")

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(8, 4)
            self.head = torch.nn.Linear(4, 8, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("scale", torch.ones(2))

    with torch.device("meta"):
        model = Small()
    made = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.empty_like:
                made.append(tuple(args[0].shape))
            return function(*args, **(kwargs or {}))

    with Watch():
        train_model.put_on_card(torch, model, "cpu")
    assert made == [(8, 4), (2,)]
    assert model.head.weight is model.embed.weight
    assert not model.embed.weight.is_meta


def rehearsed(card, needed_gib, allocated_gib=0):
    """A rehearsal on a card of a program that reserves so much."""
    fits = card.total_bytes - card.held_bytes >= needed_gib * GIB
    return replace(
        RUN,
        device=card,
        exit_code=0 if fits else 1,
        ooms=0 if fits else 1,
        error="" if fits else "OutOfMemoryError",
        peak_reserved_bytes=int(needed_gib * GIB),
        peak_allocated_bytes=int((allocated_gib or needed_gib) * GIB),
        more_bytes=0,
        devices=(),
    )


def test_the_cards_that_fit_come_smallest_first_and_each_kind_is_rehearsed():
    runs = []

    def run(card):
        runs.append(card)
        return rehearsed(card, 20)

    rows = cards_that_fit(run)
    sizes = [row.card.total_bytes for row in rows]
    assert sizes == sorted(sizes)
    sized = [card for card in cards().values() if card.total_bytes]
    assert len(rows) == len([card for card in sized if card.total_bytes >= 20 * GIB])
    kinds = {card.capability for card in runs}
    assert kinds == {card.capability for card in sized} and len(runs) == len(kinds)
    assert all(row.rehearsal.device.capability == row.card.capability for row in rows)
    assert all(row.left_bytes == row.card.total_bytes - 20 * GIB for row in rows)
    assert "4090" in fitting_table(rows).text(0)


def test_a_card_between_what_is_allocated_and_reserved_is_rehearsed_itself():
    runs = []

    def run(card):
        runs.append(card.name)
        return rehearsed(card, 30 if card.total_bytes > 30 * GIB else 20, allocated_gib=20)

    names = {row.name: row.rehearsal.device.name for row in cards_that_fit(run)}
    assert names["4090"] == cards()["4090"].name and cards()["4090"].name in runs


def test_what_others_hold_counts_on_each_card():
    rows = cards_that_fit(lambda card: rehearsed(card, 20), held_bytes=4 * GIB)
    assert min(row.card.total_bytes for row in rows) >= 24 * GIB


def test_a_program_that_fails_otherwise_gives_no_list():
    def run(card):
        return replace(rehearsed(card, 1), exit_code=1, error="ValueError: no such layer")

    with pytest.raises(SearchError, match="no such layer"):
        cards_that_fit(run)
