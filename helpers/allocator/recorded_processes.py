"""What the recorder left of each process of a program: read, said in notes, and chosen from."""

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

# Which snapshot answers best: where memory ran out, else the whole program, else how far it was.
ORDER = ("oom", "exit", "os._exit", "exec", "SIGTERM", "hang", "SIGUSR1")
NOT_LOADED = (
    "none of its Pythons loaded the recorder: python -I, -E and -S leave PYTHONPATH or sitecustomize "
    "out, and other programs know neither; the program itself can record with "
    "helpers.allocator.recording"
)
Row = dict[str, Any]
Fields = Mapping[str, Any]
"""An object of a record, by the names of its fields."""


def process_rows(folder: Path) -> list[Row]:
    """One row per process that imported torch, by its number."""
    paths = sorted(folder.glob("*-*.json"))
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(rows, key=lambda row: int(row["pid"]))


def collect(folder: Path) -> tuple[list[Row], list[str]]:
    """One row per process that imported torch, and what must be said about them.

    The small files that told it go.
    """
    rows = process_rows(folder)
    notes = []
    for row in rows:
        row["argv"] = redacted(row.get("argv", []))
        notes += _notes_of_process(row)
    notes += _notes_of_stuck(folder)
    broken = list(folder.glob("*.failed"))
    reached = list(folder.glob("*.reached"))
    too_old = list(folder.glob("*.too-old"))
    for path in broken:
        notes.append(
            f"process {_pid(path)}: the recorder could not start: {path.read_text()}"
        )
    if too_old:
        version = too_old[0].stem.partition("-")[2]
        notes.append(
            f"one of its Pythons is {version}, and the recorder needs 3.9 or later"
        )
    elif not reached:
        notes.append(NOT_LOADED)
    elif not rows and not broken:
        notes.append("the command never imported torch")
    read = [*folder.glob("*-*.json"), *folder.glob("*.part")]
    for path in [*read, *reached, *too_old, *broken]:
        path.unlink()
    return rows, notes


def _notes_of_process(row: Row) -> list[str]:
    """What must be said of a process; where it said nothing of its end, ``ended`` is filled in."""
    notes = []
    # A process that cannot say any more how it ended was killed outright: its snapshot at the
    # end is missing, the earlier ones are not.
    if not row["ended"]:
        alive = process_of(int(row["pid"])).running
        row["ended"] = "still running" if alive else "killed or crashed"
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
    """The stacks that the timer wrote; empty files of it go."""
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
    return path.name.partition("-")[0]


def best_snapshot(processes: Sequence[Fields]) -> str:
    """The file that answers best: the first out-of-memory, else the end with the most events.

    Empty where there is none.
    """
    snapshots = [
        snapshot
        for row in processes
        for snapshot in row["snapshots"]
        if snapshot.get("file") and snapshot["reason"] in ORDER
    ]

    def rank(snapshot: Fields) -> tuple[int, float]:
        first = snapshot["at"] if snapshot["reason"] == "oom" else -snapshot["events"]
        return ORDER.index(snapshot["reason"]), first

    if not snapshots:
        return ""
    return str(min(snapshots, key=rank)["file"])


def process_of_trace(processes: Sequence[Fields]) -> Fields:
    """The process whose snapshot is the trace; else the first that used a GPU. Empty where none
    did.
    """
    users = [row for row in processes if row.get("devices")]
    chosen = best_snapshot([row for row in users if row.get("snapshots")])
    for row in users:
        files = [snapshot.get("file") for snapshot in row.get("snapshots", ())]
        if chosen and chosen in files:
            return row
    return next(iter(users), {})


def card_options(processes: Sequence[Fields], capacity_bytes: int) -> list[str]:
    """The options of `rehearse` for cards like those of a recorded program, of that size."""
    devices = [device for row in processes for device in row.get("devices") or ()]
    used = {device.get("name") for device in devices}
    names = [key for key, card in cards().items() if card.name in used]
    count = 1 + max((device.get("index", 0) for device in devices), default=0)
    is_whole_card = (
        bool(names) and cards()[names[0]].total_bytes >> 20 == capacity_bytes >> 20
    )
    words = [] if is_whole_card else ["--capacity", typed_size(capacity_bytes)]
    if names:
        words += ["--gpu", names[0]]
    if count > 1:
        words += ["--gpus", str(count)]
    return words


def redacted(words: Sequence[str]) -> list[str]:
    """A command line that may be shown.

    Values of secret-sounding options and tokens become ***, the home folder ~.
    """
    home = os.path.expanduser("~")
    shown = []
    hide = False
    for word in words:
        name, equals, value = word.partition("=")
        secret = (
            not hide and sounds_secret(name) and (bool(equals) or name.startswith("-"))
        )
        if equals and (looks_secret(value) or (secret and not looks_secret(word))):
            text = f"{name}=***"
        elif hide or looks_secret(word):
            text = "***"
        else:
            text = word
        text = re.sub(r"://[^/@\s]+@", "://***@", text)
        if home != "/":
            text = re.sub(rf"(^|=){re.escape(home)}(?=/|$)", r"\1~", text)
        shown.append(text)
        hide = secret and not equals
    return shown
