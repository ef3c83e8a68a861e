"""How much memory the processes of a session use while they run, and what they do."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence

from helpers.ground.child.bounded import watch
from helpers.ground.child.proc import field, session_pids, thread_states

SAMPLE_S = 0.02
"""Between two samples of the processes' memory: chosen to catch short peaks at little cost."""
SEARCH_EVERY = 5
"""Samples from one search for new processes, which reads all of /proc, to the next."""
PY_SPY_S = 3.0
"""The time that py-spy has for one process; a process that hangs in the kernel can hang it, too."""


def stacks_of(session: int, pids: Sequence[int]) -> str:
    """What every thread of a session does now: where it waits in the kernel, and, if py-spy is
    installed, the Python stacks of ``pids``.
    """
    texts = [thread_states(session)]
    spy = shutil.which("py-spy")
    if spy is None:
        return texts[0]
    for pid in pids:
        lines: list[str] = []
        ended = watch([spy, "dump", "--pid", str(pid)], PY_SPY_S, on_line=lines.append)
        texts.append(f"py-spy, process {pid}:")
        if not lines:
            lines = [f"{ended.fate}: {ended.last_line}"]
        texts += lines
    return "\n".join(texts)


class Sampler(threading.Thread):
    """Samples the processes of the session ``pid`` until ``stop``.

    ``rss_anon_bytes`` is the peak of their anonymous memory, and a lower bound, since a peak
    between two samples is missed. ``device_bytes`` is the highest answer of ``used``, which
    gives bytes of GPU memory or None; None if it never gave bytes. ``pids`` are all processes
    seen. ``stacks`` says what each thread did at ``deadline`` (of the monotonic clock).
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
            if self.samples % SEARCH_EVERY == 0:
                self.pids.update(session_pids(self.pid))
                self._sample_device()
            anonymous = sum(_anonymous_bytes(pid) for pid in self.pids)
            self.rss_anon_bytes = max(self.rss_anon_bytes, anonymous)
            self.samples += 1
            if not self.stacks and time.monotonic() > self.deadline:
                self.stacks = stacks_of(self.pid, sorted(self.pids))

    def _sample_device(self) -> None:
        used = self.used()
        if used is None:
            return
        if self.device_bytes is None or used > self.device_bytes:
            self.device_bytes = used

    def stop(self) -> None:
        """End the sampling; a sample that py-spy holds up gets the time that py-spy has."""
        self._done.set()
        if self.ident is not None:  # it was started
            self.join(PY_SPY_S + 1)


def _anonymous_bytes(pid: int) -> int:
    """Anonymous memory of a process; 0 if it has none, or has ended."""
    kib = field(f"/proc/{pid}/status", "RssAnon:")
    if kib is None:
        return 0
    return kib * 1024
