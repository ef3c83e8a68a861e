"""Prints as JSON lines how much memory a box and one of its processes use: a program of its own,
which takes no GPU context.

A sample has the host's memory, VRAM and GTT of each amdgpu card, NVIDIA cards by NVML, the
processes that hold memory of them, and the watched process. A number on standard input is the next
process to watch; the end of standard input ends the program. Listing the open files of processes
costs most, so each sample lists those of a few processes, new ones first; then it reads one fdinfo
file for each client that it knows.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections import deque
from glob import glob
from typing import Any, Dict  # noqa: UP035 -- subscribed at run time, and a terminal has Python 3.8

from helpers.ground.units import KIB
from helpers.look.drm import parse_fdinfo
from helpers.look.nvml import Nvml, NvmlError

SCANNED = 10
"""Processes whose open files are listed in one sample: at 2 Hz all of 500 in 25 s."""
LIST_EVERY = 8
"""Samples from one listing of the processes to the next."""
READ_BYTES = 1 << 14
"""Of a file of /proc or /sys; /proc/PID/status has the most, some 2 KiB."""
POOLS = ("vram_used", "vram_total", "gtt_used", "gtt_total")
SIZES = (("rss_anon", b"RssAnon"), ("rss", b"VmRSS"), ("swap", b"VmSwap"))
"""The sizes of the watched process, and their names in /proc/PID/status."""
Row = Dict[str, Any]  # noqa: UP006
_MEMORY = re.compile(rb"(?m)^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s*(\d+)")
_STATUS = re.compile(rb"(?m)^(Name|State|RssAnon|VmRSS|VmSwap):\s*(\S+)")


def read(path: str) -> bytes:
    """The first READ_BYTES of a file; empty if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(READ_BYTES)
    except OSError:
        return b""


class Sampler:
    """The box whose files are under ``root``; ``pid`` is the process to watch, 0 for none.

    ``running`` are all processes, ``to_scan`` the same in the order in which their open files are
    listed, ``refused`` those whose open files this user may not list. ``files`` has for each
    process one fdinfo file for each of its clients, by (PCI address, client). ``why`` says why no
    NVIDIA card is seen.
    """

    def __init__(self, root: str = "", pid: int = 0):
        root = root.rstrip("/")
        self.proc = f"{root}/proc"
        self.pid = pid
        self.ticks = 0
        self.nvidia_count = 0
        used = sorted(glob(f"{root}/sys/class/drm/card*/device/mem_info_vram_used"))
        folders = list(map(os.path.dirname, used))
        self.cards = [
            (os.path.basename(os.path.realpath(folder)), folder) for folder in folders
        ]
        self.running: set[int] = set()
        self.refused: set[int] = set()
        self.to_scan: deque[int] = deque()
        self.files: dict[int, dict[tuple[str, str], str]] = {}
        self.names: dict[int, str] = {}
        self.nvml: Nvml | None = None
        try:
            self.nvml = Nvml()
            self.nvidia_count = self.nvml.number("nvmlDeviceGetCount_v2")
            self.why = ""
        except (OSError, NvmlError):
            self.why = "no GPU is seen: no amdgpu card in sysfs, and NVIDIA's library does not answer"

    def sample(self) -> Row:
        """One sample. A value that could not be read is absent; ``why`` says what cannot be seen."""
        self._find_holders()
        gpus = [self._amd(*card) for card in self.cards]
        holders = self._holders()
        for index in range(self.nvidia_count):
            self._add_nvidia(index, gpus, holders)
        why = []
        if self.why and not gpus:  # with an amdgpu card NVIDIA's library is not missed
            why.append(self.why)
        if self.refused:
            why.append(
                f"processes whose open files this user may not see: {len(self.refused)}"
            )
        self.ticks += 1
        memory = _MEMORY.findall(read(f"{self.proc}/meminfo"))
        return {
            "at": time.time(),
            "host": {name.decode(): int(kib) * KIB for name, kib in memory},
            "gpus": gpus,
            "holders": holders,
            "process": self._watched(holders),
            "why": why,
        }

    def _amd(self, pci: str, folder: str) -> Row:
        """The sizes of an amdgpu card's pools."""
        card: Row = {"pci": pci}
        for name in POOLS:
            text = read(f"{folder}/mem_info_{name}")
            if text.strip().isdigit():
                card[name] = int(text)
        return card

    def _add_nvidia(self, index: int, gpus: list[Row], holders: list[Row]) -> None:
        """Add the NVIDIA card with that index, and its processes."""
        if self.nvml is None:
            return
        card = self.nvml.gpu(index)
        pci = str(card.get("pci"))
        sizes = {
            "vram_used": card.get("used_bytes"),
            "vram_total": card.get("total_bytes"),
        }
        gpus.append({"pci": pci, **sizes})
        for kind in ("compute", "graphics"):
            if not card.get(kind):  # none, or they could not be read
                continue
            for process in card[kind]:
                pid = process["pid"]
                row = {"pid": pid, "name": self._name(pid), "pci": pci}
                holders.append({**row, "vram": process["used_bytes"], "by": "NVML"})

    def _find_holders(self) -> None:
        """List the processes, if it is time, and the open files of the next few."""
        if self.ticks % LIST_EVERY == 0:
            running = {int(name) for name in os.listdir(self.proc) if name.isdigit()}
            new = sorted(running - self.running)
            old = [pid for pid in self.to_scan if pid in running]
            self.to_scan = deque([*new, *old])
            for ended in self.running - running:
                self.files.pop(ended, None)
                self.names.pop(ended, None)
            self.running = running
            self.refused = self.refused & running
            # Without waiting for its turn: it is the process that somebody looks at.
            if self.pid in running:
                self._scan(self.pid)
        for _ in range(min(SCANNED, len(self.to_scan))):
            self._scan(self.to_scan[0])
            self.to_scan.rotate(-1)

    def _scan(self, pid: int) -> None:
        """Note the fdinfo files of a process's DRM clients."""
        folder = f"{self.proc}/{pid}"
        self.refused.discard(pid)
        try:
            descriptors = os.listdir(f"{folder}/fd")
            opened = {name: os.readlink(f"{folder}/fd/{name}") for name in descriptors}
        except PermissionError:
            self.refused.add(pid)
            return
        except OSError:
            return  # it ended, or closed a file meanwhile: its turn comes again
        files = {}
        for name, target in opened.items():
            if not target.startswith("/dev/dri/"):
                continue
            path = f"{folder}/fdinfo/{name}"
            info = parse_fdinfo(read(path).decode("utf-8", "replace"))
            client = info.client_id
            if not client:  # then each descriptor counts as a client
                client = f"fd {name}"
            files[info.pci, client] = path
        self.files[pid] = files

    def _holders(self) -> list[Row]:
        """A row for each process and card on which it has a client, with its VRAM and GTT there."""
        holders: list[Row] = []
        for pid, files in self.files.items():
            rows: dict[str, Row] = {}
            for (pci, _), path in files.items():
                if pci not in rows:
                    name = self._name(pid)
                    rows[pci] = {"pid": pid, "name": name, "pci": pci, "by": "fdinfo"}
                info = parse_fdinfo(read(path).decode("utf-8", "replace"))
                for region in info.regions.keys() & {"vram", "gtt"}:
                    so_far = rows[pci].get(region, 0)
                    rows[pci][region] = so_far + info.regions[region]
            holders += rows.values()
        return holders

    def _name(self, pid: int) -> str:
        """The name of a process, which is read once."""
        if pid not in self.names:
            name = read(f"{self.proc}/{pid}/comm").decode("utf-8", "replace")
            self.names[pid] = name.strip()
        return self.names[pid]

    def _watched(self, holders: list[Row]) -> Row | None:
        """The watched process with its sizes, its VRAM and GTT on all cards together."""
        if not self.pid:
            return None
        status = dict(_STATUS.findall(read(f"{self.proc}/{self.pid}/status")))
        if not status:
            return {"pid": self.pid, "why": "no such process, or it has ended"}
        row: Row = {"pid": self.pid}
        for key in (b"Name", b"State"):
            row[key.decode().lower()] = status.get(key, b"").decode("utf-8", "replace")
        for name, key in SIZES:
            if key in status:
                row[name] = int(status[key]) * KIB
        cards = [holder for holder in holders if holder["pid"] == self.pid]
        for region in ("vram", "gtt"):
            sizes = [card[region] for card in cards if card.get(region) is not None]
            if sizes:
                row[region] = sum(sizes)
        return row


def main(pid: int = 0, every_s: float = 0.5, root: str = "") -> None:
    """Print a sample every ``every_s`` seconds until standard input ends or nobody reads."""
    sampler = Sampler(root, pid)
    due = time.monotonic()
    try:
        while True:
            print(json.dumps(sampler.sample()), flush=True)
            due = max(due + every_s, time.monotonic())
            while time.monotonic() < due:
                wait_s = max(0.0, due - time.monotonic())
                has_input, _, _ = select.select([0], [], [], wait_s)
                if has_input:
                    words = os.read(0, 64).split()  # numbers, the last one counts
                    if not words:  # its end
                        return
                    sampler.pid = int(words[-1])
    except BrokenPipeError:
        # Python flushes standard output at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float, str), sys.argv[1:])))  # noqa: B905
