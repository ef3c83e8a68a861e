"""What a box and one of its processes hold right now, as JSON lines: a program of its own,
outside any GPU context.

Host memory, VRAM and GTT of each amdgpu card (Linux 5.14), NVIDIA cards by NVML, who holds
them, and the process watched: a number on standard input is the next one, its end ends the
program. Listing processes and their open files costs most, so it is spread: a few at a time,
new ones first; of those that hold something one file a client is read at every sample.
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

from helpers.look.drm import parse_fdinfo
from helpers.look.nvml import Nvml, NvmlError

SCANNED = 10
LIST_EVERY = 8
"""At 2 Hz 500 processes are gone through in 25 s, new ones first."""
POOLS = ("vram_used", "vram_total", "gtt_used", "gtt_total")
SIZES = (("rss_anon", b"RssAnon"), ("rss", b"VmRSS"), ("swap", b"VmSwap"))
Row = Dict[str, Any]  # noqa: UP006
_MEMORY = re.compile(rb"(?m)^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s*(\d+)")
_STATUS = re.compile(rb"(?m)^(Name|State|RssAnon|VmRSS|VmSwap):\s*(\S+)")


def read(path: str) -> bytes:
    """The first 16 KiB of a file, or nothing where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 14) or b""
    except OSError:
        return b""


class Sampler:
    """One box under ``root``; ``pid`` is the process to watch, 0 for none."""

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
        self.turn: deque[int] = deque()
        # Of a process, by card and client: one fdinfo file of it.
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
        """One sample. What could not be read is absent; ``why`` says what cannot be seen at all."""
        self._find_holders()
        gpus = [self._amd(*card) for card in self.cards]
        holders = self._holders()
        for index in range(self.nvidia_count):
            self._add_nvidia(index, gpus, holders)
        why = []
        if self.why and not gpus:
            why.append(self.why)
        if self.refused:
            why.append(
                f"processes whose open files this user may not see: {len(self.refused)}"
            )
        self.ticks += 1
        memory = _MEMORY.findall(read(f"{self.proc}/meminfo"))
        return {
            "at": time.time(),
            "host": {name.decode(): int(kib) << 10 for name, kib in memory},
            "gpus": gpus,
            "holders": holders,
            "process": self._watched(holders),
            "why": why,
        }

    def _amd(self, pci: str, folder: str) -> Row:
        texts = {name: read(f"{folder}/mem_info_{name}") for name in POOLS}
        sizes = {
            name: int(text) for name, text in texts.items() if text.strip().isdigit()
        }
        return {"pci": pci, **sizes}

    def _add_nvidia(self, index: int, gpus: list[Row], holders: list[Row]) -> None:
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
            for process in card.get(kind) or ():
                pid = process["pid"]
                row = {"pid": pid, "name": self._name(pid), "pci": pci}
                holders.append({**row, "vram": process["used_bytes"], "by": "NVML"})

    def _find_holders(self) -> None:
        if self.ticks % LIST_EVERY == 0:
            running = {int(name) for name in os.listdir(self.proc) if name.isdigit()}
            new = sorted(running - self.running)
            old = [pid for pid in self.turn if pid in running]
            self.turn = deque([*new, *old])
            for gone in self.running - running:
                self.files.pop(gone, None)
                self.names.pop(gone, None)
            self.running = running
            self.refused = self.refused & running
            if self.pid in running:
                self._scan(self.pid)
        for _ in range(min(SCANNED, len(self.turn))):
            self._scan(self.turn[0])
            self.turn.rotate(-1)

    def _scan(self, pid: int) -> None:
        folder = f"{self.proc}/{pid}"
        files = {}
        self.refused.discard(pid)
        try:
            opened = {
                n: os.readlink(f"{folder}/fd/{n}") for n in os.listdir(f"{folder}/fd")
            }
        except PermissionError:
            self.refused.add(pid)
            return
        except OSError:
            return  # it ended, or closed a file meanwhile: its turn comes again
        for name in (
            name for name, path in opened.items() if path.startswith("/dev/dri/")
        ):
            path = f"{folder}/fdinfo/{name}"
            info = parse_fdinfo(read(path).decode("utf-8", "replace"))
            files[info.pci, info.client_id or f"fd {name}"] = path
        self.files[pid] = files

    def _holders(self) -> list[Row]:
        """What each process holds on each card."""
        holders: list[Row] = []
        for pid, files in self.files.items():
            cards: dict[str, Row] = {}
            for (pci, _), path in files.items():
                about = {
                    "pid": pid,
                    "name": self._name(pid),
                    "pci": pci,
                    "by": "fdinfo",
                }
                row = cards.setdefault(pci, about)
                info = parse_fdinfo(read(path).decode("utf-8", "replace"))
                for region in info.regions.keys() & {"vram", "gtt"}:
                    row[region] = row.get(region, 0) + info.regions[region]
            holders += cards.values()
        return holders

    def _name(self, pid: int) -> str:
        if pid not in self.names:
            self.names[pid] = (
                read(f"{self.proc}/{pid}/comm").decode("utf-8", "replace").strip()
            )
        return self.names[pid]

    def _watched(self, holders: list[Row]) -> Row | None:
        if not self.pid:
            return None
        status = dict(_STATUS.findall(read(f"{self.proc}/{self.pid}/status")))
        if not status:
            return {"pid": self.pid, "why": "no such process, or it has ended"}
        row: Row = {"pid": self.pid}
        for key in (b"Name", b"State"):
            row[key.decode().lower()] = status.get(key, b"").decode("utf-8", "replace")
        row.update(
            {name: int(status[key]) << 10 for name, key in SIZES if key in status}
        )
        cards = [row for row in holders if row["pid"] == self.pid]
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
                if select.select([0], [], [], max(0.0, due - time.monotonic()))[0]:
                    words = os.read(0, 64).split()
                    if not words:
                        return
                    sampler.pid = int(words[-1])
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float, str), sys.argv[1:])))  # noqa: B905
