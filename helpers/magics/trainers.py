"""Callbacks for the Trainers of Hugging Face and Lightning: torch's memory history is kept from the
start of training, a snapshot is written at the first out-of-memory, and the answer is printed.

``Trainer(..., callbacks=[transformers_callback()])``, and for Lightning
``Trainer(callbacks=[lightning_callback()])``.
"""

from __future__ import annotations

import atexit
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..allocator.under_torch.recording import BlockRecording, recording

PROGRAM = Path(__file__).resolve().parents[1] / "__main__.py"
LONGEST_S = 120


class _Watch:
    """The memory history of one training."""

    def __init__(self, out: str):
        self.out = out
        self.recording: BlockRecording | None = None

    def begin(self) -> None:
        if self.recording is None:
            self.recording = recording(self.out)
            self.recording.__enter__()
            atexit.register(
                self.end
            )  # no callback hears of an error in Hugging Face's Trainer

    def end(self) -> None:
        """Stop, and print the answer where memory ran out."""
        ended = self.recording
        self.recording = None
        if ended is None:
            return
        atexit.unregister(self.end)
        ended.__exit__()
        if ended.facts["ooms"] and ended.trace:
            command = [sys.executable, "-I", str(PROGRAM), "diagnose", ended.trace]
            print(
                f"out of memory: torch's snapshot is {ended.trace}",
                file=sys.stderr,
                flush=True,
            )
            subprocess.run(command, stdout=sys.stderr, timeout=LONGEST_S, check=False)


def transformers_callback(out: str = "out_of_memory.pickle") -> Any:
    """A callback for ``transformers.Trainer``; ``out`` is the snapshot's file."""
    base: Any = importlib.import_module("transformers").TrainerCallback
    watch = _Watch(out)

    class OutOfMemoryAnswer(base):
        def on_train_begin(self, *arguments: Any, **more: Any) -> None:
            watch.begin()

        def on_train_end(self, *arguments: Any, **more: Any) -> None:
            watch.end()

    return OutOfMemoryAnswer()


def lightning_callback(out: str = "out_of_memory.pickle") -> Any:
    """A callback for Lightning's ``Trainer``; ``out`` is the snapshot's file."""
    base: Any = importlib.import_module("lightning.pytorch").Callback
    watch = _Watch(out)

    class OutOfMemoryAnswer(base):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            watch.begin()

        def on_exception(
            self, trainer: Any, pl_module: Any, exception: BaseException
        ) -> None:
            watch.end()

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            watch.end()

    return OutOfMemoryAnswer()
