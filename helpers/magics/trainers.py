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
from collections.abc import Callable
from pathlib import Path

from ..allocator.under_torch.recording import BlockRecording, recording

PROGRAM = Path(__file__).resolve().parents[1] / "__main__.py"
LONGEST_S = 120
"""Seconds for `casebook diagnose` on a large snapshot."""


class _Watch:
    """The memory history of one training; ``recording`` is None while none is recorded."""

    def __init__(self, out: str):
        self.out = out
        self.recording: BlockRecording | None = None

    def begin(self) -> None:
        """Start recording, unless it was started before."""
        if self.recording is not None:
            return
        self.recording = recording(self.out)
        self.recording.__enter__()
        # Hugging Face's Trainer calls no callback after an error.
        atexit.register(self.end)

    def end(self) -> None:
        """Stop recording, and print a diagnosis if memory ran out."""
        ended = self.recording
        self.recording = None
        if ended is None:
            return
        atexit.unregister(self.end)  # else it would keep this object until the exit
        ended.__exit__()
        if ended.facts["ooms"] and ended.trace:
            command = [sys.executable, "-I", str(PROGRAM), "diagnose", ended.trace]
            says = f"out of memory: torch's snapshot is {ended.trace}"
            print(says, file=sys.stderr, flush=True)
            subprocess.run(command, stdout=sys.stderr, timeout=LONGEST_S, check=False)


def transformers_callback(out: str = "out_of_memory.pickle") -> object:
    """A callback for ``transformers.Trainer``; ``out`` is the snapshot's file."""
    base = importlib.import_module("transformers").TrainerCallback
    watch = _Watch(out)
    return _callback(base, on_train_begin=watch.begin, on_train_end=watch.end)


def lightning_callback(out: str = "out_of_memory.pickle") -> object:
    """A callback for Lightning's ``Trainer``; ``out`` is the snapshot's file."""
    base = importlib.import_module("lightning.pytorch").Callback
    watch = _Watch(out)
    return _callback(
        base, on_fit_start=watch.begin, on_exception=watch.end, on_fit_end=watch.end
    )


def _callback(base: type, **hooks: Callable[[], None]) -> object:
    """An object of a class derived from ``base``, a trainer's class of callbacks.

    ``hooks``: what to call by the name of the method; arguments that the trainer passes are
    ignored.
    """

    def method(hook: Callable[[], None]) -> Callable[..., None]:
        return lambda *_arguments, **_more: hook()

    methods = {name: method(hook) for name, hook in hooks.items()}
    return type("OutOfMemoryAnswer", (base,), methods)()
