"""A training run's whole state on disk, so that neither a kill nor a full disk at any moment
loses a finished step.

A checkpoint is one plain torch file whose name carries its step and the SHA-256 of its bytes:
``step-00000012-<sha256>.pt``. It is written under another name, synced, renamed, and the folder
is synced; the checkpoint before it stays. A torn or altered file does not match its name and
the one before is used. What is not covered: a disk that lies about fsync.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import torch

KEPT = 2
NAME = re.compile(r"step-(\d{8,})-([0-9a-f]{64})\.pt")
UNFINISHED = "unfinished.part"
READ_BYTES = 1 << 20

failpoint: Callable[[str], None] = lambda boundary: None  # noqa: E731
"""Called at every boundary of a save, with its name; the kill campaign puts its own here."""


class CheckpointError(RuntimeError):
    """One line: seen, expected, what to do."""


class _Hashed:
    """The file that torch.save writes to: every write reaches the kernel and the digest at
    once, and is a boundary.

    An error is kept until the end: raised inside torch's own writer it ends the process (its
    destructor checks positions).
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.digest = hashlib.sha256()
        self.writes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        done = 0
        while done < len(view) and self.error is None:
            try:
                done += os.write(self.descriptor, view[done:])
            except OSError as error:
                self.error = error
        self.writes += 1
        failpoint(f"write {self.writes}")
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Keep ``state`` as the checkpoint of ``step``; once this returns it survives a kill and a
    power cut.

    Raises CheckpointError where it cannot be written (disk full, no permission); the
    checkpoints before it are untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / UNFINISHED
    failpoint("begin")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            failpoint("opened")
            file = _Hashed(descriptor)
            torch.save(state, cast("IO[bytes]", file))
            if file.error is not None:
                raise file.error
            failpoint("written")
            os.fsync(descriptor)
            failpoint("synced")
        finally:
            os.close(descriptor)
        path = folder / f"step-{step:08d}-{file.digest.hexdigest()}.pt"
        os.replace(part, path)
        failpoint("renamed")
        _sync_folder(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(
            f"{folder}: the checkpoint of step {step} cannot be written ({error.strerror}); expected room "
            "and permission; the one before it is whole: make room and start again"
        ) from error
    failpoint("folder synced")
    for _, old in _checkpoints(folder)[KEPT:]:
        old.unlink()
        failpoint("older removed")
    return path


def load(folder: Path) -> tuple[int, dict[str, Any], tuple[str, ...]] | None:
    """The newest whole checkpoint: its step, its state, and what was wrong with newer ones;
    None where there is none at all.

    A torn one is set aside as NAME.torn. Raises CheckpointError where there are checkpoints and
    none is whole: to begin anew then is a decision for a person.
    """
    notes = []
    for step, path in _checkpoints(folder):
        try:
            whole = _sha256(path) == path.name.split("-")[2][:64]
        except OSError as error:
            whole = False
            notes.append(f"{path.name}: cannot be read ({error.strerror})")
        if whole:
            return step, torch.load(path, map_location="cpu", weights_only=True), tuple(notes)
        notes.append(
            f"the checkpoint of step {step} is torn (its bytes do not match its name), so the one before is used"
        )
        os.replace(path, path.with_name(path.name + ".torn"))
    if notes or any(folder.glob("*.torn")):
        raise CheckpointError(
            f"{folder}: none of its checkpoints is whole ({'; '.join(notes) or 'all were set aside'}); "
            "expected one; restore one from a backup, or begin anew in an empty folder"
        )
    return None


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of every checkpoint, the newest step first; of one step the one written
    last first.
    """
    paths = [path for path in folder.glob("step-*.pt") if NAME.fullmatch(path.name)]
    found = [(int(path.name.split("-")[1]), path) for path in paths]
    return sorted(found, key=lambda one: (one[0], one[1].stat().st_mtime_ns), reverse=True)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rng_states() -> dict[str, Any]:
    """Every random generator that a training step draws from: Python's, torch's on the CPU and
    on each GPU; in types that torch.load reads with weights_only.
    """
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
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
        torch.cuda.set_rng_state_all([one.cpu() for one in states["cuda"]])


def fingerprint(value: Any) -> str:
    """SHA-256 of a nested state, tensors and floats by their bits: equal where a run would go
    on bit-identically.
    """
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        bits = ctypes.string_at(data.data_ptr(), data.numel() * data.element_size())
        text = f"{data.dtype}{tuple(data.shape)}".encode() + bits
    elif isinstance(value, dict):
        text = repr(sorted((str(key), fingerprint(one)) for key, one in value.items())).encode()
    elif isinstance(value, (list, tuple)):
        text = repr([fingerprint(one) for one in value]).encode()
    else:
        text = (value.hex() if isinstance(value, float) else repr(value)).encode()
    return hashlib.sha256(text).hexdigest()
