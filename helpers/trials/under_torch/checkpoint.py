"""A training run's whole state on disk, so that a kill at any moment loses no finished step.

A checkpoint is one plain torch file, ``step-00000012.pt``. It is written under another name,
synced and renamed, so it is whole or not there; older ones go after that. What is not covered: a
disk that lies about fsync.
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
    """One line: seen, expected, what to do."""


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Keep ``state`` as the checkpoint of ``step``; once this returns it survives a kill and a
    power cut.

    Raises CheckpointError where it cannot be written (disk full, no permission); the
    checkpoint before it is untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(state, content)
    # Also files that a kill left under another name.
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
    """The newest checkpoint, its step and its state; None where there is none."""
    paths = sorted(folder.glob("step-*.pt"))
    if not paths:
        return None
    state = torch.load(paths[-1], map_location="cpu", weights_only=True)
    return int(paths[-1].stem.partition("-")[2]), state


def rng_states() -> dict[str, Any]:
    """Every random generator that a training step draws from: Python's, torch's on the CPU and
    on each GPU; in types that torch.load reads with weights_only.
    """
    states: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def seed(number: int) -> None:
    """Seed them all."""
    random.seed(number)
    torch.manual_seed(number)


def set_rng_states(states: dict[str, Any]) -> None:
    """Put back what ``rng_states`` gave."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def fingerprint(value: object) -> str:
    """SHA-256 of a nested state, tensors and floats by their bits: the same for two states from
    which a run goes on bit-identically.
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
