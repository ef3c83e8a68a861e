"""Records a block of a program that calls the recorder itself: ``with recording(out) as r:``."""

from __future__ import annotations

import importlib
import os
import sys

from .recorder import DEFAULT_EVENTS, Recorder

LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
"""Programs that start others, each in an environment that says its rank."""
MODULES = ("torch.distributed.run", "accelerate.commands.launch")
"""The same as modules, which ``python -m`` starts."""
OF_A_RANK = ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")
"""Variables that launchers set: torchrun and deepspeed the first, accelerate the second."""


def command_of_this_run() -> list[str]:
    """The words of the command that started this program; for a rank that a launcher started, those
    of the launcher's command, if that can be read. Empty in a notebook, whose kernel has no command
    of the user's.
    """
    words = list(getattr(sys, "orig_argv", [sys.executable, *sys.argv]))
    if any("ipykernel" in word for word in words):
        return []
    if any(name in os.environ for name in OF_A_RANK):
        return _launcher() or words  # no launcher above: the rank's own command
    return words


def _launcher() -> list[str]:
    """The command of the parent process where that is a launcher, else an empty list."""
    parent = f"/proc/{os.getppid()}/cmdline"
    try:
        with open(parent, encoding="utf-8", errors="replace") as file:
            words = file.read().rstrip("\0").split("\0")
    except OSError:
        return []
    # Python may stand before the launcher: it is a script.
    for number, word in enumerate(words):
        name = os.path.basename(word)
        if name in LAUNCHERS:
            return [name, *words[number + 1 :]]
        if word in MODULES:
            return ["python", "-m", *words[number:]]
    return []


class BlockRecording:
    """Records the requests of a block to torch's allocator; see ``recording``.

    After the block, ``trace`` is the file, a snapshot with the history of the block, taken at the
    first out-of-memory where there was one; None where there is none, and ``notes`` say why.
    ``facts``: everything else that the recorder kept (recorder.py). Raises ImportError without
    torch.
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
        """Remarks on the trace, or why there is none."""
        return list(self.facts["notes"])

    def __enter__(self) -> BlockRecording:
        self._recorder.torch_imported(self._torch)
        return self

    def __exit__(self, *error: object) -> None:
        """Finish, and choose the trace: the first snapshot that was kept at an out-of-memory, else
        the one at the end of the block; None where neither could be written.
        """
        self._recorder.finish("exit")
        # The history goes on if the whole program is being recorded.
        if self._recorder.history and "CASEBOOK_RECORD" not in os.environ:
            self._torch.cuda.memory._record_memory_history(enabled=None)
        folder = os.path.dirname(self._recorder.base)
        for reason in ("oom", "exit"):
            for snapshot in self.facts["snapshots"]:
                is_found = snapshot["reason"] == reason and "file" in snapshot
                if is_found and self.trace is None:
                    self.trace = os.path.join(folder, snapshot["file"])


def recording(
    out: str | os.PathLike[str],
    *,
    max_events: int = DEFAULT_EVENTS,
    hang_after_s: float | None = None,
) -> BlockRecording:
    """``with recording(out) as r:`` records what the block asks of torch's allocator.

    Afterwards ``r.trace`` is the file, whose name begins with ``out``. ``max_events``: the length
    of each device's ring buffer. ``hang_after_s``: after so many seconds without output and
    allocation stacks and a snapshot are kept. torch is imported by the call, which raises
    ImportError without it.
    """
    return BlockRecording(out, max_events, hang_after_s)
