"""Reads the files that the recorder wrote for each process of a program, puts what went wrong
into notes, and chooses the snapshot to replay.

A *row* is what one process wrote (``facts`` in under_torch/recorder.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.ground.child import process_of
from helpers.ground.units import typed_size
from helpers.look.cards import cards
from helpers.look.environment import looks_secret, sounds_secret

ORDER = ("oom", "exit", "os._exit", "exec", "SIGTERM", "hang", "SIGUSR1")
"""Reasons of a snapshot, the one to replay first: where memory ran out, else the whole program,
else a part of it.
"""
NOT_LOADED = (
    "none of its Pythons loaded the recorder: python -I, -E and -S leave PYTHONPATH or sitecustomize "
    "out, and other programs know neither; the program itself can record with "
    "helpers.allocator.recording"
)
Row = dict[str, Any]
Fields = Mapping[str, Any]
"""An object of a record, by the names of its fields."""


def process_rows(folder: Path) -> list[Row]:
    """One row per process that imported torch, in the order of their process ids."""
    paths = sorted(folder.glob("*-*.json"))
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(rows, key=lambda row: int(row["pid"]))


def collect(folder: Path) -> tuple[list[Row], list[str]]:
    """One row per process that imported torch, and notes on them, in which each process that could
    not be recorded is named. Deletes the small files that the answer was read from, and a file that
    was half written; snapshots and stacks stay.
    """
    rows = process_rows(folder)
    notes = []
    for row in rows:
        row["argv"] = redacted(row.get("argv", []))
        notes += _notes_of_process(row)
    notes += _notes_of_stuck(folder)
    # Each Python of the program that read our sitecustomize announced itself by a file.
    broken = list(folder.glob("*.failed"))
    reached = list(folder.glob("*.reached"))
    too_old = list(folder.glob("*.too-old"))
    for path in broken:
        notes.append(
            f"process {_pid(path)}: the recorder could not start: {path.read_text()}"
        )
    if too_old:
        _pid_text, _, version = too_old[0].stem.partition("-")
        notes.append(
            f"one of its Pythons is {version}, and the recorder needs 3.9 or later"
        )
    elif not reached:
        # no file of any kind: the recorder's sitecustomize was never read
        notes.append(NOT_LOADED)
    elif not rows and not broken:
        notes.append("the command never imported torch")
    read = [*folder.glob("*-*.json"), *folder.glob("*.part")]  # .part: half written
    for path in [*read, *reached, *too_old, *broken]:
        path.unlink()
    return rows, notes


def _notes_of_process(row: Row) -> list[str]:
    """Notes on a process. Fills in ``ended`` where the process could not write it any more."""
    notes = []
    if not row["ended"]:  # the recorder writes it last: the process did not come so far
        row["ended"] = "killed or crashed"
        if process_of(int(row["pid"])).running:
            row["ended"] = "still running"
        notes.append(
            f"{row['ended']} at the end of the command, so it has no snapshot of its "
            "own end"
        )
    notes += [
        f"{hang['says']}; its stacks are in {hang['stacks']}" for hang in row["hangs"]
    ]
    notes += row["notes"]
    for snapshot in row["snapshots"]:
        if "why_not" in snapshot:
            notes.append(
                f"the snapshot at {snapshot['reason']} failed: {snapshot['why_not']}"
            )
    return [f"process {row['pid']}: {note}" for note in notes]


def _notes_of_stuck(folder: Path) -> list[str]:
    """A note for each file of stacks that the watch on a stuck interpreter wrote (quiet_watch.py).
    That watch opens its file at the start; a file that is still empty is deleted.
    """
    notes = []
    for path in folder.glob("*-stuck.stacks"):
        if path.stat().st_size:
            notes.append(
                f"process {_pid(path)}: one call held the interpreter for too long, so "
                f"no snapshot could be taken then; its stacks are in {path.name}"
            )
        else:
            path.unlink()
    return notes


def _pid(path: Path) -> str:
    """The process id with which the names of a process's files begin."""
    return path.name.partition("-")[0]


def best_snapshot(processes: Sequence[Fields]) -> str:
    """The name of the snapshot to replay; empty where there is none. ORDER says which reason comes
    first. Of several snapshots at an out-of-memory it is the earliest, of others the one with most
    events.
    """
    snapshots: list[Fields] = []
    for row in processes:
        snapshots += [
            snapshot
            for snapshot in row["snapshots"]
            if snapshot.get("file") and snapshot["reason"] in ORDER
        ]

    def rank(snapshot: Fields) -> tuple[int, float]:
        """The sort key; the least is the snapshot to replay."""
        reason = snapshot["reason"]
        if reason == "oom":
            return ORDER.index(reason), snapshot["at"]
        return ORDER.index(reason), -snapshot["events"]

    if not snapshots:
        return ""
    return str(min(snapshots, key=rank)["file"])


def process_of_trace(processes: Sequence[Fields]) -> Fields:
    """The process whose snapshot is the trace. Where no process that used a GPU has a snapshot, the
    first that used one; empty where none did.
    """
    users = [row for row in processes if row.get("devices")]
    chosen = best_snapshot([row for row in users if row.get("snapshots")])
    for row in users:
        files = [snapshot.get("file") for snapshot in row.get("snapshots", ())]
        if chosen and chosen in files:
            return row
    return next(iter(users), {})


def card_options(processes: Sequence[Fields], capacity_bytes: int) -> list[str]:
    """The options with which `rehearse` shows a program as many cards, and of the same kind, as the
    recorded program used, each of ``capacity_bytes``.
    """
    devices: list[Fields] = []
    for row in processes:
        if row.get("devices"):
            devices += row["devices"]
    used = {device.get("name") for device in devices}
    names = [key for key, card in cards().items() if card.name in used]
    count = 1 + max((device.get("index", 0) for device in devices), default=0)
    words = ["--capacity", typed_size(capacity_bytes)]
    # The table of cards has whole MiB, so the two are compared in MiB.
    if names and cards()[names[0]].total_bytes >> 20 == capacity_bytes >> 20:
        words = []  # --gpu says it
    if names:
        words += ["--gpu", names[0]]
    if count > 1:
        words += ["--gpus", str(count)]
    return words


def redacted(words: Sequence[str]) -> list[str]:
    """A command line that may be shown.

    ``***`` stands for the values of secret-sounding options, tokens, and passwords in URLs, ``~``
    for the home folder.
    """
    home = os.path.expanduser("~")
    shown = []
    is_secret_value = False  # the word before was an option such as --api-key
    for word in words:
        name, equals, value = word.partition("=")
        # A word right behind the option of a secret is its value, whatever it looks like.
        is_option = bool(equals) or name.startswith("-")
        names_secret = is_option and sounds_secret(name) and not is_secret_value
        if equals and looks_secret(value):
            text = f"{name}=***"
        elif is_secret_value or looks_secret(word):
            text = "***"
        elif equals and names_secret:
            text = f"{name}=***"
        else:
            text = word
        text = re.sub(r"://[^/@\s]+@", "://***@", text)
        if home != "/":  # the home of a container's user: every path begins with it
            text = re.sub(rf"(^|=){re.escape(home)}(?=/|$)", r"\1~", text)
        shown.append(text)
        is_secret_value = names_secret and not equals
    return shown
