"""What a box and one of its processes hold right now, as JSON lines: a program of its own, outside any GPU context.

Host memory, VRAM and GTT of each amdgpu card (Linux 5.14), NVIDIA cards by NVML, who holds them, and the process watched: a
number on standard input is the next one, its end ends the program. Listing processes and their open files costs most, so it is
spread: a few at a time, new ones first; one file a client; the largest holders at every sample, the others in turn.
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
from typing import Any

from helpers.look.nvml import Nvml, NvmlError
from helpers.units import printed_unit

SCANNED, LARGEST, LIST_EVERY = (
    10,
    12,
    8,
)  # at 2 Hz 500 processes are gone through in 25 s, new ones first
_HELD = re.compile(
    rb"^(?:drm-(resident|memory|total)-)?(vram|gtt|local)(?:\d*| mem)[ \t]*:[ \t]*(\d+)[ \t]*(\w*)",
    re.M,
)
_CLIENT = re.compile(rb"^(drm-client-id|pasid):\s*(\d+)", re.M)
_CARD = re.compile(rb"^(?:drm-)?pdev:\s*(\S+)", re.M)
_UNITS = {name.encode(): printed_unit(name) or 1 for name in ("kB", "KiB", "MiB", "GiB")}


def read(path: str) -> bytes:
    """The first 16 KiB of a file, or nothing where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 14) or b""
    except OSError:
        return b""


def held(fdinfo: bytes) -> dict[str, int]:
    """Bytes of VRAM and GTT of one DRM client: resident, else memory, else total, as helpers.look.drm has it."""
    found: dict[str, dict[bytes, int]] = {}
    for kind, place, number, unit in _HELD.findall(fdinfo):
        kinds = found.setdefault("gtt" if place == b"gtt" else "vram", {})
        kinds[kind or b"memory"] = kinds.get(kind or b"memory", 0) + int(number) * _UNITS.get(
            unit, 1
        )
    return {
        region: next(kinds[kind] for kind in (b"resident", b"memory", b"total") if kind in kinds)
        for region, kinds in found.items()
    }


class Sampler:
    """One box under ``root``; ``pid`` is the process to watch, 0 for none."""

    def __init__(self, root: str = "", pid: int = 0):
        self.proc, self.pid, self.ticks, self.green = f"{root.rstrip('/')}/proc", pid, 0, 0
        self.cards = [
            (
                os.path.basename(os.path.realpath(path[: -len("/mem_info_vram_used")])),
                path[: -len("vram_used")],
            )
            for path in sorted(
                glob(f"{root.rstrip('/')}/sys/class/drm/card*/device/mem_info_vram_used")
            )
        ]
        self.known: set[int] = set()
        self.refused: set[int] = set()
        self.turn: deque[int] = deque()
        self.files: dict[
            int, dict[tuple[str, str], str]
        ] = {}  # of a process: (card, client): one fdinfo file of it
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.names: dict[int, str] = {}
        self.nvml: Nvml | None = None
        try:
            self.nvml = Nvml()
            self.green, self.why = self.nvml.number("nvmlDeviceGetCount_v2"), ""
        except (OSError, NvmlError) as error:
            self.why = f"NVML: {error}"

    def sample(self) -> dict[str, Any]:
        """One sample. What could not be read is absent; ``why`` says what cannot be seen at all."""
        self._find_holders()
        gpus: list[dict[str, Any]] = []
        for pci, path in self.cards:
            texts = {
                name: read(path + name)
                for name in ("vram_used", "vram_total", "gtt_used", "gtt_total")
            }
            gpus.append(
                {
                    "pci": pci,
                    **{name: int(text) for name, text in texts.items() if text.strip().isdigit()},
                }
            )
        holders = self._holders()
        for index in range(self.green):
            row: Any = self.nvml.gpu(index) if self.nvml else {}
            gpus.append(
                {
                    "pci": str(row.get("pci")),
                    "vram_used": row.get("used_bytes"),
                    "vram_total": row.get("total_bytes"),
                }
            )
            holders += [
                {
                    "pid": one["pid"],
                    "name": self._name(one["pid"]),
                    "pci": str(row.get("pci")),
                    "vram": one["used_bytes"],
                    "by": "NVML",
                }
                for one in (row.get("compute") or []) + (row.get("graphics") or [])
            ]
        memory = re.findall(
            rb"(?m)^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s*(\d+)",
            read(f"{self.proc}/meminfo"),
        )
        why = [self.why] * bool(self.why and not gpus)
        why += [f"processes whose open files this user may not see: {len(self.refused)}"] * bool(
            self.refused
        )
        self.ticks += 1
        return {
            "at": time.time(),
            "host": {name.decode(): int(kib) << 10 for name, kib in memory},
            "gpus": gpus,
            "holders": holders,
            "process": self._watched(holders),
            "why": why,
        }

    def _find_holders(self) -> None:
        if self.ticks % LIST_EVERY == 0:
            there = {int(name) for name in os.listdir(self.proc) if name.isdigit()}
            self.turn = deque(
                [*sorted(there - self.known), *(pid for pid in self.turn if pid in there)]
            )
            for gone in self.known - there:
                for kept in (self.files, self.rows, self.names):
                    kept.pop(gone, None)
            self.known, self.refused = there, self.refused & there
            if self.pid in there:
                self._scan(self.pid)
        for _ in range(min(SCANNED, len(self.turn))):
            self._scan(self.turn[0])
            self.turn.rotate(-1)

    def _scan(self, pid: int) -> None:
        folder, found = f"{self.proc}/{pid}", {}
        self.refused.discard(pid)
        try:
            names = [
                name
                for name in os.listdir(f"{folder}/fd")
                if os.readlink(f"{folder}/fd/{name}").startswith("/dev/dri/")
            ]
        except PermissionError:
            self.refused.add(pid)
            return
        except OSError:
            return  # it ended, or closed a file meanwhile: its turn comes again
        for name in names:
            text = read(f"{folder}/fdinfo/{name}")
            card, client = _CARD.search(text), _CLIENT.search(text)
            found[card[1].decode() if card else "", client[0].decode() if client else name] = (
                f"{folder}/fdinfo/{name}"
            )
        if found:
            self.files[pid] = found
        elif self.files.pop(pid, None):
            self.rows.pop(pid, None)

    def _holders(self) -> list[dict[str, Any]]:
        order = sorted(
            self.files,
            key=lambda pid: (
                -sum(row.get("vram", 0) for row in self.rows.get(pid, [{"vram": 1 << 62}]))
            ),
        )
        rest = order[LARGEST:]
        for pid in {
            *order[:LARGEST],
            *([rest[self.ticks % len(rest)]] if rest else []),
            *({self.pid} & set(rest)),
        }:
            cards: dict[str, dict[str, Any]] = {}
            for (pci, _), path in self.files[pid].items():
                row = cards.setdefault(
                    pci, {"pid": pid, "name": self._name(pid), "pci": pci, "by": "fdinfo"}
                )
                for region, size in held(read(path)).items():
                    row[region] = row.get(region, 0) + size
            self.rows[pid] = list(cards.values())
        return [row for rows in self.rows.values() for row in rows]

    def _name(self, pid: int) -> str:
        if pid not in self.names:
            self.names[pid] = read(f"{self.proc}/{pid}/comm").decode("utf-8", "replace").strip()
        return self.names[pid]

    def _watched(self, holders: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not self.pid:
            return None
        found = dict(
            re.findall(
                rb"(?m)^(Name|State|RssAnon|VmRSS|VmSwap):\s*(\S+)",
                read(f"{self.proc}/{self.pid}/status"),
            )
        )
        if not found:
            return {"pid": self.pid, "why": "no such process, or it has ended"}
        sizes = {
            name: int(found[key]) << 10
            for name, key in (("rss_anon", b"RssAnon"), ("rss", b"VmRSS"), ("swap", b"VmSwap"))
            if key in found
        }
        mine = [one for one in holders if one["pid"] == self.pid]
        sizes |= {
            region: sum(one.get(region) or 0 for one in mine)
            for region in ("vram", "gtt")
            if any(one.get(region) is not None for one in mine)
        }
        return {
            "pid": self.pid,
            **{
                key.decode().lower(): found.get(key, b"").decode("utf-8", "replace")
                for key in (b"Name", b"State")
            },
            **sizes,
        }


def main(pid: int = 0, every_s: float = 0.5, root: str = "") -> None:
    """Print a sample every ``every_s`` seconds until standard input ends or nobody reads any more."""
    sampler, due = Sampler(root, pid), time.monotonic()
    try:
        while True:
            print(json.dumps(sampler.sample()), flush=True)
            due = max(due + every_s, time.monotonic())
            while (wait := due - time.monotonic()) > 0:
                if select.select([0], [], [], wait)[0]:
                    words = os.read(0, 64).split()
                    if not words:
                        return
                    sampler.pid = int(words[-1])
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float, str), sys.argv[1:], strict=False)))
