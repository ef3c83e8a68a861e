"""A part of a program that knows this project, recorded by itself."""

from __future__ import annotations

import importlib
import os
import sys

from .recorder import DEFAULT_EVENTS, Recorder

LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
"""Programs that start others, each in an environment that says its rank."""
MODULES = ("torch.distributed.run", "accelerate.commands.launch")
"""Those that ``python -m`` starts."""
OF_A_RANK = ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")


def command_of_this_run() -> list[str]:
    """The command that started this program, or its launcher's; empty in a notebook."""
    words = list(getattr(sys, "orig_argv", [sys.executable, *sys.argv]))
    if any("ipykernel" in word for word in words):
        return []
    if any(name in os.environ for name in OF_A_RANK):
        return _launcher() or words
    return words


def _launcher() -> list[str]:
    """The command of the parent process where that is a launcher."""
    try:
        with open(
            f"/proc/{os.getppid()}/cmdline", encoding="utf-8", errors="replace"
        ) as file:
            words = file.read().rstrip("\0").split("\0")
    except OSError:
        return []
    for number, word in enumerate(words):
        name = os.path.basename(word)
        if name in LAUNCHERS:
            return [name, *words[number + 1 :]]
        if word in MODULES:
            return ["python", "-m", *words[number:]]
    return []


class BlockRecording:
    """``with recording(out) as r``: what the block asked of torch's allocator.

    After it, ``r.trace`` is the file (None: there is none, and ``r.notes`` say why), and
    ``r.facts`` everything else. The file is a snapshot (``out`` with the ending .pickle) with the
    history of the block, at the first out-of-memory where there was one. Raises ImportError where
    there is no torch.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        max_events: int,
        hang_after_s: float | None,
    ):
        base = os.path.splitext(os.path.abspath(os.fspath(out)))[0]
        self._torch = importlib.import_module("torch")
        self._recorder = Recorder(base, max_events, hang_after_s, whole_program=False)
        self.facts = self._recorder.facts
        self.facts["argv"] = command_of_this_run()
        self.trace: str | None = None

    @property
    def notes(self) -> list[str]:
        """What must be said about the trace, or why there is none."""
        return list(self.facts["notes"])

    def __enter__(self) -> BlockRecording:
        self._recorder.torch_imported(self._torch)
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.finish("exit")
        # Where the whole program is being recorded, its history goes on.
        if self._recorder.history and "CASEBOOK_RECORD" not in os.environ:
            self._torch.cuda.memory._record_memory_history(enabled=None)
        files = {
            snapshot["reason"]: snapshot["file"]
            for snapshot in reversed(self.facts["snapshots"])
            if "file" in snapshot
        }
        name = files.get("oom") or files.get("exit")
        if name:
            self.trace = os.path.join(os.path.dirname(self._recorder.base), name)


def recording(
    out: str | os.PathLike[str],
    *,
    max_events: int = DEFAULT_EVENTS,
    hang_after_s: float | None = None,
) -> BlockRecording:
    """``with recording(out) as r:`` keeps what the block asks of torch's allocator.

    Afterwards ``r.trace`` is the file. Nothing of torch is imported before the call, which raises
    ImportError where there is none.
    """
    return BlockRecording(out, max_events, hang_after_s)
