"""What a trial may take, what it takes, and whether the box is clean afterwards: limits, samples from outside, leftovers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.load.child import thread_states
from helpers.load.memory_group import Group, field, lines
from helpers.look.reading import MIB, Reading, not_available, seen

SAMPLE_S = 0.02
SLACK_BYTES = 64 * MIB
PY_SPY_S = 3.0

# Sets the limits of the process it then becomes: both hold for all that is started from there. RLIMIT_DATA counts private
# writable memory (setrlimit(2), since Linux 4.7), so that an allocation fails where a cgroup would kill.
_START = """
import os, resource, sys
limit, group, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
if group:
    with open(os.path.join(group, 'cgroup.procs'), 'w') as procs:
        procs.write(str(os.getpid()))
if limit:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print('{"event": "pid", "pid": %d}' % os.getpid(), flush=True)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    os.write(2, f'{argv[0]}: cannot be run: {error.strerror}'.encode())
    os._exit(127)
"""


@dataclass(frozen=True)
class Limits:
    """Seconds: of the whole trial, until its first word (``start_s``), and between two words of it (``silent_s``; None: any).

    ``host_bytes`` is the memory of each process, and of all together where a cgroup can be made; ``device_bytes`` what torch's
    allocator may take of the GPU. ``clean_s``: how long the box has to be clean again.
    """

    seconds: float = 120.0
    start_s: float = 90.0
    silent_s: float | None = 30.0
    host_bytes: int | None = None
    device_bytes: int | None = None
    clean_s: float = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"limit {name} is {value!r}; expected a number above 0")


def launched(argv: Sequence[str], limits: Limits, group: Group) -> list[str]:
    """The command line that sets the limits, says its number as one JSON line on stdout, and becomes ``argv``."""
    return [sys.executable, "-I", "-S", "-c", _START, str(limits.host_bytes or 0), group.path, *argv]


def driver_used(pci: str, root: str = "") -> Reading:
    """Memory that the driver counts as used on a card, VRAM and GTT together, read in sysfs: outside of any process."""
    source = f"/sys/bus/pci/devices/{pci}/mem_info_{{vram,gtt}}_used"
    if pci in ("", "cpu"):
        return not_available("this trial ran on the CPU", "bytes", source)
    found = [_number(f"{root}/sys/bus/pci/devices/{pci}/mem_info_{pool}_used") for pool in ("vram", "gtt")]
    if found[0] is None:
        return not_available("this driver has no such file in sysfs", "bytes", source)
    return seen(sum(one or 0 for one in found), "bytes", source)


class Sampler(threading.Thread):
    """Peaks of all processes of a session, and what each thread did shortly before ``deadline``; ended by ``stop``.

    A peak between two samples is missed: ``rss_anon_bytes`` is a lower bound. ``pids`` are all processes seen.
    """

    def __init__(self, pid: int, pci: str, deadline: float):
        super().__init__(daemon=True)
        self.pid, self.pci, self.deadline = pid, pci, deadline
        self.rss_anon_bytes = self.rss_file_bytes = self.samples = 0
        self.driver: Reading = driver_used(pci)
        self.pids: set[int] = {pid}
        self.stacks = ""
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            if self.samples % 5 == 0:
                self.pids |= {pid for pid in _children(self.pid)}
                used = driver_used(self.pci)
                if used.ok and (not self.driver.ok or int(used.value or 0) > int(self.driver.value or 0)):
                    self.driver = used
            sizes = [(field(f"/proc/{pid}/status", "RssAnon:") or 0, (field(f"/proc/{pid}/status", "RssFile:") or 0)
                      + (field(f"/proc/{pid}/status", "RssShmem:") or 0)) for pid in self.pids]
            self.rss_anon_bytes = max(self.rss_anon_bytes, sum(anon for anon, _ in sizes) * 1024)
            self.rss_file_bytes = max(self.rss_file_bytes, max((other for _, other in sizes), default=0) * 1024)
            self.samples += 1
            if not self.stacks and time.monotonic() > self.deadline:
                self.stacks = evidence(self.pid, sorted(self.pids))

    def stop(self) -> None:
        self._done.set()
        if self.ident is not None:
            self.join(PY_SPY_S + 1)


def evidence(session: int, pids: Sequence[int]) -> str:
    """What every thread of a session does now: state and place in the kernel, and the Python stacks where py-spy is there."""
    said = [thread_states(session)]
    spy = shutil.which("py-spy")
    for pid in pids if spy else ():
        try:
            done = subprocess.run([str(spy), "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=PY_SPY_S,
                                  stdin=subprocess.DEVNULL, check=False)
            said.append(f"py-spy, process {pid}:\n{done.stdout or done.stderr}")
        except (subprocess.TimeoutExpired, OSError) as error:
            said.append(f"py-spy, process {pid}: {error.__class__.__name__}")
    return "\n".join(said)


def leftovers(pids: Sequence[int], before: Reading, pci: str, clean_s: float) -> str:
    """Why the box is not clean after a trial, or empty: its processes live on, or the driver still counts its memory.

    Shared memory that its processes left (torch names it torch_PID_...) is removed.
    """
    until = time.monotonic() + clean_s
    while True:
        alive = [pid for pid in pids if (lines(f"/proc/{pid}/stat") or [") Z"])[0].rpartition(")")[2].split()[0] != "Z"]
        now = driver_used(pci)
        held = int(now.value or 0) - int(before.value or 0) if now.ok and before.ok else 0
        if not alive and held <= SLACK_BYTES:
            break
        if time.monotonic() >= until:
            who = f"processes {', '.join(map(str, alive))} live on" if alive else ""
            return who or f"the driver counts {held} bytes more as used than before the trial, and no process of it is left"
        time.sleep(0.02)
    for pid in pids:
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)
    return ""


def _children(session: int) -> list[int]:
    """Processes of a session; its number is the sixth field of /proc/PID/stat."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            words = (lines(f"/proc/{name}/stat") or [""])[0].rpartition(")")[2].split()
            if len(words) > 3 and words[3] == str(session):
                found.append(int(name))
    return found


def _number(path: str) -> int | None:
    text = " ".join(lines(path))
    return int(text) if text.isdigit() else None
