"""A model's config in place of a program: the command that trains it, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child import watch

PROGRAM = (
    Path(__file__).resolve().parents[1] / "trials" / "under_torch" / "train_model.py"
)
CHECK_S = 300.0
WAYS = {"full": "mixed", "lora": "bf16", "qlora": "bf16"}
"""What of a model is trained, and the precision where none is given."""


class ModelError(ValueError):
    """Why a model cannot be trained: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class Training:
    """How a model is trained: ``sequence`` tokens in each of ``batch`` sequences of a step."""

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
        words += ["--precision", self.precision or WAYS[self.train]]
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
