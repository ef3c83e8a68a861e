"""Saves the whole state of a training run, so that a kill at any moment loses no finished step.

A checkpoint is one file of torch.save, ``step-00000012.pt``. It is written under another name,
synced and renamed, so it is whole or not there; older ones are deleted after that. A disk that
reports fsync as done too early can still lose it.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import random
from pathlib import Path
from typing import Any

import torch

from helpers.look.files import write_atomic


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written. One line: seen, expected, what to do."""


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write ``state`` as the checkpoint of ``step``, which then survives a kill and a power cut.

    Raises CheckpointError if it cannot be written (disk full, no permission); the checkpoint before
    it stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(state, content)
    # With temporary files of write_atomic that a kill left.
    older = [path for path in folder.iterdir() if path.is_file()]
    try:
        write_atomic(folder / f"step-{step:08d}.pt", content.getvalue())
    except OSError as error:
        raise CheckpointError(
            f"{folder}: the checkpoint of step {step} cannot be written ({error.strerror}); "
            "expected room and permission; the one before it is whole: "
            "make room and start again"
        ) from error
    for path in older:
        path.unlink()


def load(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """(step, state) of the newest checkpoint; None if there is none."""
    paths = sorted(folder.glob("step-*.pt"))
    if not paths:
        return None
    newest = paths[-1]
    state = torch.load(newest, map_location="cpu", weights_only=True)
    step = int(newest.stem[len("step-") :])
    return step, state


def rng_states() -> dict[str, Any]:
    """The states of the random generators that a training step uses, by name: Python's, torch's on
    the CPU, and torch's on each GPU. Their types are those that torch.load reads with weights_only.
    """
    states: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def seed(number: int) -> None:
    """Seed the generators of ``rng_states``."""
    random.seed(number)
    torch.manual_seed(number)


def set_rng_states(states: dict[str, Any]) -> None:
    """Restore the states that ``rng_states`` returned."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))  # loaded as a list
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def fingerprint(value: object) -> str:
    """The SHA-256 of a nested state, with tensors and floats by their bits: two states have the
    same one if a run goes on from both with the same bits.
    """
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        bits = ctypes.string_at(data.data_ptr(), data.numel() * data.element_size())
        text = f"{data.dtype}{tuple(data.shape)}".encode() + bits
    elif isinstance(value, dict):
        parts = sorted((str(key), fingerprint(part)) for key, part in value.items())
        text = repr(parts).encode()
    elif isinstance(value, (list, tuple)):
        text = repr([fingerprint(part) for part in value]).encode()
    elif isinstance(value, float):
        text = value.hex().encode()
    else:
        text = repr(value).encode()
    return hashlib.sha256(text).hexdigest()
