"""A model's config.json in place of a program: the command that trains such a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child import watch

PROGRAM = (
    Path(__file__).resolve().parents[1] / "trials" / "under_torch" / "train_model.py"
)
CHECK_S = 300.0
"""How long the check of a model may take: far more than its import of transformers and peft does.
"""
WAYS = {"full": "mixed", "lora": "bf16", "qlora": "bf16"}
"""What of a model is trained (--train), and the precision where none is given, which is our choice:
mixed, float32 weights computed in bfloat16, for a whole model; bf16 for adapters.
"""


class ModelError(ValueError):
    """Why a model cannot be trained: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class Training:
    """How the model of a config.json is trained. ``train``: a key of WAYS; a step has ``batch``
    sequences of ``sequence`` tokens; ``precision``: empty for that of WAYS; ``checkpointing``: its
    blocks are computed again in the backward pass.
    """

    config: str
    train: str
    sequence: int
    batch: int
    precision: str = ""
    checkpointing: bool = False

    def command(self) -> list[str]:
        """The command that trains it."""
        words = ["python", str(PROGRAM), "--config", self.config, "--train", self.train]
        words += ["--sequence", str(self.sequence), "--batch", str(self.batch)]
        precision = self.precision
        if not precision:
            precision = WAYS[self.train]
        words += ["--precision", precision]
        if self.checkpointing:
            words.append("--checkpointing")
        return words

    def check(self, python: str) -> None:
        """Raises ModelError where this Python's transformers cannot train it."""
        if not Path(self.config).is_file():
            raise ModelError(
                f"--model {self.config}: no such file; expected a config.json"
            )
        ended = watch([python, *self.command()[1:], "--check"], CHECK_S)
        if ended.exit_code != 0:
            raise ModelError(f"rehearse --model: {ended.last_line}")
