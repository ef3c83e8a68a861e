"""What torch's allocator in another process says of itself.

From outside nothing of it shows. A process that runs under ``record`` answers a signal.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from helpers.ground.units import show_bytes


def torch_numbers(pid: int, wait_s: float = 8.0) -> str:
    """What the allocator of a process holds on each device, in one line.

    The process is asked by SIGUSR1. Raises ValueError where it does not run under ``record``
    (the signal would end any other), does not listen, or is silent for ``wait_s`` seconds.
    """
    path = _record(pid)
    record = _read(path)
    if record["ended"] or record["signals"].get("SIGUSR1") != "recorder":
        raise _not_listening(pid)
    before = len(record["snapshots"])
    deadline = time.monotonic() + wait_s
    os.kill(pid, signal.SIGUSR1)
    while len(record["snapshots"]) <= before or not record["devices"]:
        if time.monotonic() > deadline:
            notes = " ".join(record["notes"])
            raise ValueError(f"process {pid} gave no numbers within {wait_s:g} s. {notes}")
        time.sleep(0.1)
        record = _read(path)
    return "; ".join(_words(device["index"], device["stats"]) for device in record["devices"])


def _record(pid: int) -> Path:
    """The file in which the recorder of a process keeps what it did."""
    for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == b"CASEBOOK_RECORD":
            for path in Path(json.loads(value)["folder"]).glob(f"{pid}-*.json"):
                return path
            raise _not_listening(pid)
    raise ValueError(
        f"process {pid} was not started under record, so torch's own numbers do not show; "
        "next time: python3 -m helpers record --out run.pickle -- python your_program.py"
    )


def _read(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def _not_listening(pid: int) -> ValueError:
    why = "it has not imported torch, or handles SIGUSR1 itself"
    return ValueError(f"process {pid} does not listen: {why}")


def _words(index: int, stats: dict[str, int]) -> str:
    reserved = _size(stats.get("reserved_bytes.all.current"))
    allocated = _size(stats.get("allocated_bytes.all.current"))
    return f"device {index}: torch holds {reserved}, its tensors {allocated}"


def _size(size: int | None) -> str:
    return "not known" if size is None else show_bytes(size)
