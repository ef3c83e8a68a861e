"""A program run unchanged under torch's memory history: started, its signals passed on, and
what it left collected.

The recorder itself runs inside (helpers/trials/under_torch/recorder.py), put there by a sitecustomize on
PYTHONPATH: the program, its arguments, its input and output stay as they are. There is no limit
of time. A process that nothing could be put into is named.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helpers.ground.child import carrying, process_of, run_here, signal_name
from helpers.look.access import looks_secret, sounds_secret

INJECT = Path(__file__).resolve().parent / "under_torch" / "inject"
DEFAULT_EVENTS = 200_000
# Which snapshot answers best: where memory ran out, else the whole program, else how far it was.
ORDER = ("oom", "exit", "os._exit", "exec", "SIGTERM", "hang", "SIGUSR1")
NOT_LOADED = (
    "no Python of it loaded the recorder: python -I, -E and -S leave PYTHONPATH or sitecustomize out, and other programs "
    "know neither; the program itself can record with helpers.trials.under_torch.recording"
)
Rows = Sequence[Mapping[str, Any]]


class RecordError(ValueError):
    """Nothing was run: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Recording:
    """What was kept.

    ``exit_code`` is what the program's would be in a shell: 128 + n where signal n ended it
    (``signal``).

    ``trace`` is the file to replay and ``kind`` says what it is ("gpu snapshot" or "cpu
    profile"); None: ``why_no_trace``. ``folder`` holds every snapshot, the stacks, and
    record.json, which says all of this and one entry per process.
    """

    command: tuple[str, ...]
    exit_code: int
    signal: str
    seconds: float
    trace: Path | None
    kind: str
    why_no_trace: str
    folder: Path
    settings: dict[str, Any]
    processes: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


def record(
    command: Sequence[str],
    out: str | Path,
    *,
    max_events: int = DEFAULT_EVENTS,
    hang_after_s: float | None = None,
    cpu_profile: bool = False,
    python: str = "",
    term_s: float = 0.0,
) -> Recording:
    """Run ``command`` to its end and keep its trace at ``out`` (a .pickle or .jsonl), the rest
    in a folder beside it.

    ``max_events`` is the length of the ring buffer of each device; ``hang_after_s`` asks for
    stacks and a snapshot when a process that imported torch neither allocated nor wrote
    anything for so long; ``cpu_profile`` records the first training steps on the CPU by torch's
    profiler; ``python`` runs the command in place of the ``python`` that it names; ``term_s``
    above 0 ends all of it so many seconds after a SIGTERM. Raises RecordError where nothing can
    be run.
    """
    out = Path(out).absolute()
    folder = out.with_suffix(".record")
    argv = under(python, command)
    if max_events < 1 or (hang_after_s is not None and hang_after_s <= 0):
        numbers = f"--max-events {max_events}, --hang-after {hang_after_s}"
        raise RecordError(f"{numbers}: expected numbers above zero")
    kept = {path.suffix for path in folder.glob("*")} & {".pickle", ".jsonl", ".stacks"}
    if (folder / "record.json").is_file() and not kept:
        shutil.rmtree(folder)  # of a recording that kept nothing, so that it can be tried again
    for path in (out, out.with_suffix(".pickle"), out.with_suffix(".jsonl"), folder):
        if path.exists():
            why = "is there already; expected a new name; choose another --out, or add --force"
            raise RecordError(f"{path}: {why}")
    folder.mkdir(parents=True)

    def listening(number: int) -> list[int]:
        if number == signal.SIGTERM and term_s:
            return carrying(f"CASEBOOK_RECORD={environ['CASEBOOK_RECORD']}")
        rows = _rows(folder) if number == signal.SIGUSR1 else []
        mine = [row for row in rows if row["signals"].get("SIGUSR1") == "recorder"]
        return [row["pid"] for row in mine if not row["ended"]]

    settings = {"max_events": max_events, "hang_after_s": hang_after_s, "cpu_profile": cpu_profile}
    environ = environment(os.environ, folder, settings)
    began = time.monotonic()
    try:
        code = run_here(argv, environ, listening, term_s)
    except OSError as error:
        folder.rmdir()
        why = f"{error.strerror}; expected a program; give the command after --"
        raise RecordError(f"{argv[0]}: {why}") from error
    seconds = round(time.monotonic() - began, 3)
    processes, notes = collect(folder)
    best, kind = choose(processes)
    trace = None
    why = ""
    if best:
        trace = out.with_suffix(Path(best).suffix)
        try:
            os.link(folder / best, trace)
        except OSError:
            shutil.copyfile(folder / best, trace)  # a file system without hard links
    else:
        why = _why_no_trace(processes, notes, cpu_profile)
    ended = 128 - code if code < 0 else code, signal_name(-code) if code < 0 else "", seconds
    of = tuple(redacted(argv)), *ended, trace, kind, why, folder, settings
    recording = Recording(*of, tuple(processes), tuple(notes))
    text = json.dumps({"schema_version": 1, **asdict(recording)}, indent=1, default=str)
    (folder / "record.json").write_text(text)
    return recording


def remove(out: Path) -> None:
    """Take away what an earlier recording kept under that name; what no recording's folder
    stands beside is left.
    """
    folder = out.with_suffix(".record")
    if (folder / "record.json").is_file():
        shutil.rmtree(folder)
        for suffix in (".pickle", ".jsonl"):
            out.with_suffix(suffix).unlink(missing_ok=True)


def under(python: str, command: Sequence[str]) -> list[str]:
    """The command, run by ``python`` where one is given.

    Raises RecordError for no command, or one that is no Python's.
    """
    if not command:
        raise RecordError("no command; expected one after --, such as: -- python train.py")
    if not python:
        return list(command)
    if re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])):
        return [python, *command[1:]]
    if command[0].endswith(".py"):
        return [python, *command]
    why = "expected python or a .py file with --torch-python; leave that option out"
    raise RecordError(f"{command[0]}: {why}")


def environment(
    environ: Mapping[str, str], folder: Path, settings: Mapping[str, Any]
) -> dict[str, str]:
    """The program's environment: its own, the recorder's folder first on PYTHONPATH, and what
    the recorder is asked for.
    """
    path = os.pathsep.join(filter(None, [str(INJECT), environ.get("PYTHONPATH", "")]))
    asked = json.dumps({"folder": str(folder), **settings})
    # Else the profiler writes to the program's stderr (torch 2.13).
    quiet = {"KINETO_LOG_LEVEL": "99"} if settings.get("cpu_profile") else {}
    return {**quiet, **environ, "PYTHONPATH": path, "CASEBOOK_RECORD": asked}


def _rows(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("*-*.json"))
    rows = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    return sorted(rows, key=lambda row: int(row["pid"]))


def collect(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """One entry per process that imported torch, and what must be said about them; the small
    files that told it go.
    """
    rows = _rows(folder)
    notes = []
    for row in rows:
        row["argv"] = redacted(row.get("argv", []))
        # Whoever can no longer be asked was killed outright; its snapshot at the end is
        # missing, the earlier ones are not.
        if not row["ended"]:
            alive = process_of(int(row["pid"])).running
            row["ended"] = "still running" if alive else "killed or crashed"
            end = "at the end of the command, so it has no snapshot of its own end"
            notes.append(f"process {row['pid']}: {row['ended']} {end}")
        says = [f"{hang['says']}; its stacks are in {hang['stacks']}" for hang in row["hangs"]]
        says += [*row["notes"], *(row["cpu_trace"] or {}).get("notes", [])]
        failed = [one for one in row["snapshots"] if "why_not" in one]
        says += [f"the snapshot at {one['reason']} failed: {one['why_not']}" for one in failed]
        notes += [f"process {row['pid']}: {one}" for one in says]
    for path in folder.glob("*-stuck.stacks"):
        if not path.stat().st_size:
            path.unlink()
            continue
        pid = path.name.partition("-")[0]
        held = "one call held the interpreter for too long, so no snapshot could be taken then"
        notes.append(f"process {pid}: {held}; its stacks are in {path.name}")
    ends = ("failed", "reached", "too-old")
    broken, reached, old = (list(folder.glob(f"*.{end}")) for end in ends)
    for path in broken:
        pid = path.name.partition("-")[0]
        notes.append(f"process {pid}: the recorder could not start: {path.read_text()}")
    if old:
        version = old[0].stem.partition("-")[2]
        notes.append(f"a Python of it is {version}, and the recorder needs 3.9 or later")
    elif not reached:
        notes.append(NOT_LOADED)
    elif not rows and not broken:
        notes.append("no Python of it imported torch")
    for path in [*folder.glob("*-*.json"), *folder.glob("*.part"), *reached, *old, *broken]:
        path.unlink()
    return rows, notes


def choose(processes: Rows) -> tuple[str, str]:
    """The file that answers best, and its kind: the first out-of-memory, else the end with the
    most events; empty: none.
    """
    snapshots = [one for row in processes for one in row["snapshots"] if one.get("file")]
    snapshots = [one for one in snapshots if one["reason"] in ORDER]

    def rank(one: Mapping[str, Any]) -> tuple[int, float]:
        return ORDER.index(one["reason"]), one["at"] if one["reason"] == "oom" else -one["events"]

    if snapshots:
        return str(min(snapshots, key=rank)["file"]), "gpu snapshot"
    traces = [row["cpu_trace"] for row in processes if row["cpu_trace"]]
    longest = max(traces, key=lambda one: one["events"], default={"events": 0})
    return (str(longest["file"]), "cpu profile") if longest["events"] else ("", "")


def _why_no_trace(processes: Rows, notes: Sequence[str], cpu_profile: bool) -> str:
    reasons = [note for note in notes if "not available because" in note] or list(notes[-1:])
    reasons = reasons or ["nothing was allocated while it was recorded"]
    if processes and not cpu_profile:
        reasons.append("--cpu-profile records the first training steps on the CPU")
    return "; ".join(reasons)


def redacted(words: Sequence[str]) -> list[str]:
    """A command line that may be shown: values of secret-sounding options and tokens become
    ***, the home folder ~.
    """
    home = os.path.expanduser("~")
    shown = []
    hide = False
    for word in words:
        name, equals, value = word.partition("=")
        secret = not hide and sounds_secret(name) and (bool(equals) or name.startswith("-"))
        if equals and (looks_secret(value) or secret and not looks_secret(word)):
            text = f"{name}=***"
        else:
            text = "***" if hide or looks_secret(word) else word
        text = re.sub(r"://[^/@\s]+@", "://***@", text)
        if home != "/":
            text = re.sub(rf"(^|=){re.escape(home)}(?=/|$)", r"\1~", text)
        shown.append(text)
        hide = secret and not equals
    return shown
