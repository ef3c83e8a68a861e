"""What a session of processes takes and does while it runs."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence

from helpers.ground.child.bounded import watch
from helpers.ground.child.proc import field, session_pids, thread_states

SAMPLE_S = 0.02
PY_SPY_S = 3.0


def stacks_of(session: int, pids: Sequence[int]) -> str:
    """What every thread of a session does now: place in the kernel, and Python stacks where
    py-spy is there.
    """
    texts = [thread_states(session)]
    spy = shutil.which("py-spy")
    if spy is None:
        return texts[0]
    for pid in pids:
        lines: list[str] = []
        ended = watch([spy, "dump", "--pid", str(pid)], PY_SPY_S, on_line=lines.append)
        texts.append(f"py-spy, process {pid}:")
        texts += lines or [f"{ended.fate}: {ended.last_line}"]
    return "\n".join(texts)


class Sampler(threading.Thread):
    """Peaks of all processes of a session, and what each thread did shortly before
    ``deadline``; ended by ``stop``.

    A peak between two samples is missed: ``rss_anon_bytes`` is a lower bound. ``pids`` are all
    processes seen. ``device_bytes`` is the highest answer of ``used``, which is asked now and
    then (None: it never had one).
    """

    def __init__(
        self, pid: int, deadline: float, used: Callable[[], int | None] = lambda: None
    ):
        super().__init__(daemon=True)
        self.pid = pid
        self.deadline = deadline
        self.used = used
        self.rss_anon_bytes = 0
        self.samples = 0
        self.device_bytes: int | None = None
        self.pids: set[int] = {pid}
        self.stacks = ""
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            if self.samples % 5 == 0:
                self.pids.update(session_pids(self.pid))
                self._sample_device()
            anonymous = sum(_anonymous_bytes(pid) for pid in self.pids)
            self.rss_anon_bytes = max(self.rss_anon_bytes, anonymous)
            self.samples += 1
            if not self.stacks and time.monotonic() > self.deadline:
                self.stacks = stacks_of(self.pid, sorted(self.pids))

    def _sample_device(self) -> None:
        used = self.used()
        if used is not None:
            self.device_bytes = max(used, self.device_bytes or 0)

    def stop(self) -> None:
        self._done.set()
        if self.ident is not None:
            self.join(PY_SPY_S + 1)


def _anonymous_bytes(pid: int) -> int:
    """Anonymous memory of a process; 0 where it has none, or is gone."""
    kilobytes = field(f"/proc/{pid}/status", "RssAnon:")
    return 0 if kilobytes is None else kilobytes * 1024
