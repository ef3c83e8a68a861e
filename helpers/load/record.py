"""A program run unchanged under torch's memory history: started, its signals passed on, and what it left collected.

The recorder itself runs inside (helpers/torchside/recorder.py), put there by a sitecustomize on PYTHONPATH: the program, its
arguments, its input and output stay as they are. There is no limit of time. A process that nothing could be put into is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helpers.child import signal_name
from helpers.look.environment import sounds_secret

INJECT = Path(__file__).resolve().parents[1] / "torchside" / "inject"
DEFAULT_EVENTS = 200_000
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# Which snapshot answers best: where memory ran out, else the whole program, else how far it was.
ORDER = ("oom", "exit", "os._exit", "SIGTERM", "hang", "SIGUSR1")
LOOKS_SECRET = re.compile(r"^(hf_|sk-|ghp_|gho_|github_pat_|xox[a-z]-|AKIA)\w+|^[0-9a-f]{32,}$")
TELL_IT = "; the program itself can record with helpers.torchside.recording"


class RecordError(ValueError):
    """Nothing was run: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Recording:
    """What was kept. ``exit_code`` is what the program's would be in a shell: 128 + n where signal n ended it (``signal``).

    ``trace`` is the file to replay and ``kind`` says what it is ("gpu snapshot" or "cpu profile"); None: ``why_no_trace``.
    ``folder`` holds every snapshot, the stacks, and record.json, which says all of this and one entry per process.
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
) -> Recording:
    """Run ``command`` to its end and keep its trace at ``out`` (a .pickle or .jsonl), the rest in a folder beside it.

    ``max_events`` is the length of the ring buffer of each device; ``hang_after_s`` asks for stacks and a snapshot when a
    process that imported torch neither allocated nor wrote anything for so long; ``cpu_profile`` records the first training
    steps on the CPU by torch's profiler; ``python`` runs the command in place of the ``python`` that it names. Raises
    RecordError where nothing can be run.
    """
    out = Path(out).absolute()
    folder = out.with_suffix(".record")
    argv = under(python, command)
    if max_events < 1 or (hang_after_s is not None and hang_after_s <= 0):
        raise RecordError(
            f"--max-events {max_events}, --hang-after {hang_after_s}: expected numbers above zero"
        )
    for path in (out, out.with_suffix(".pickle"), out.with_suffix(".jsonl"), folder):
        if path.exists():
            raise RecordError(
                f"{path}: is there already; expected a new name; choose another --out"
            )
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RecordError(
            f"{folder}: {error.strerror}; expected a place to write to; choose another --out"
        ) from error
    settings = {"max_events": max_events, "hang_after_s": hang_after_s, "cpu_profile": cpu_profile}
    began = time.monotonic()
    try:
        process = subprocess.Popen(argv, env=environment(os.environ, folder, settings))
    except OSError as error:
        folder.rmdir()
        raise RecordError(
            f"{argv[0]}: {error.strerror}; expected a program; give the command after --"
        ) from error
    with _passing_on(process, folder):
        code = process.wait()
    seconds = round(time.monotonic() - began, 3)
    processes, notes = collect(folder)
    best, kind = choose(processes)
    trace, why = None, ""
    if best:
        trace = out.with_suffix(Path(best).suffix)
        try:
            os.link(folder / best, trace)
        except OSError:
            shutil.copyfile(folder / best, trace)  # a file system without hard links
    else:
        why = _why_no_trace(processes, notes, cpu_profile)
    killed = signal_name(-code) if code < 0 else ""
    recording = Recording(
        tuple(redacted(argv)),
        128 - code if killed else code,
        killed,
        seconds,
        trace,
        kind,
        why,
        folder,
        settings,
        tuple(processes),
        tuple(notes),
    )
    (folder / "record.json").write_text(
        json.dumps({"schema_version": 1, **asdict(recording)}, indent=1, default=str)
    )
    return recording


def under(python: str, command: Sequence[str]) -> list[str]:
    """The command, run by ``python`` where one is given. Raises RecordError for no command, or one that is no Python's."""
    if not command:
        raise RecordError("no command; expected one after --, such as: -- python train.py")
    if not python:
        return list(command)
    if re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])):
        return [python, *command[1:]]
    if command[0].endswith(".py"):
        return [python, *command]
    raise RecordError(
        f"{command[0]}: expected python or a .py file with --torch-python; leave that option out"
    )


def environment(
    environ: Mapping[str, str], folder: Path, settings: Mapping[str, Any]
) -> dict[str, str]:
    """The program's environment: its own, the recorder's folder first on PYTHONPATH, and what the recorder is asked for."""
    path = os.pathsep.join(filter(None, [str(INJECT), environ.get("PYTHONPATH", "")]))
    found = {
        **environ,
        "PYTHONPATH": path,
        "CASEBOOK_RECORD": json.dumps({"folder": str(folder), **settings}),
    }
    if settings.get("cpu_profile"):
        found.setdefault(
            "KINETO_LOG_LEVEL", "99"
        )  # else the profiler writes to the program's stderr (torch 2.13)
    return found


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes], folder: Path) -> Iterator[None]:
    """Pass every signal on to the program while it runs; possible in a main thread only."""

    def forward(number: int, frame: object) -> None:
        # The terminal sends Ctrl-C to the program by itself; a second one would stop its clean-up.
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return
        listening = [
            row["pid"]
            for row in _rows(folder)
            if row["signals"].get("SIGUSR1") == "recorder" and not row["ended"]
        ]
        for pid in (listening if number == signal.SIGUSR1 else []) or [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {
            number: signal.signal(number, forward)
            for number in FORWARDED
            if signal.getsignal(number) != signal.SIG_IGN
        }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = (
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))
    )
    return sorted(rows, key=lambda row: int(row["pid"]))


def collect(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """One entry per process that imported torch, and what must be said about them; the small files that told it go."""
    rows, notes = _rows(folder), []
    for row in rows:
        row["argv"], who = redacted(row.get("argv", [])), f"process {row['pid']}"
        # Whoever can no longer be asked was killed outright; its snapshot at the end is missing, the earlier ones are not.
        if not row["ended"]:
            row["ended"] = (
                "still running" if Path(f"/proc/{row['pid']}").exists() else "killed or crashed"
            )
            notes.append(
                f"{who}: {row['ended']} at the end of the command, so it has no snapshot of its own end"
            )
        notes += [
            f"{who}: {hang['says']}; its stacks are in {hang['stacks']}" for hang in row["hangs"]
        ]
        notes += [
            f"{who}: {note}" for note in [*row["notes"], *(row["cpu_trace"] or {}).get("notes", [])]
        ]
        notes += [
            f"{who}: the snapshot at {one['reason']} failed: {one['why_not']}"
            for one in row["snapshots"]
            if "why_not" in one
        ]
    for path in folder.glob("*-stuck.stacks"):
        if path.stat().st_size:
            notes.append(
                f"process {path.name.partition('-')[0]}: one call held the interpreter for too long, so no snapshot "
                f"could be taken then; its stacks are in {path.name}"
            )
        else:
            path.unlink()
    failed = list(folder.glob("*.failed"))
    notes += [
        f"process {path.name.partition('-')[0]}: the recorder could not start: {path.read_text()}"
        for path in failed
    ]
    reached, old = list(folder.glob("*.reached")), list(folder.glob("*.too-old"))
    if old:
        notes.append(
            f"a Python of it is {old[0].stem.partition('-')[2]}, and the recorder needs 3.9 or later"
        )
    elif not reached:
        notes.append(
            "no Python of it loaded the recorder: python -I, -E and -S leave PYTHONPATH or sitecustomize out, and "
            "other programs know neither" + TELL_IT
        )
    elif not rows and not failed:
        notes.append("no Python of it imported torch")
    for path in [*folder.glob("*-*.json"), *folder.glob("*.part"), *reached, *old, *failed]:
        path.unlink()
    return rows, notes


def choose(processes: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The file that answers best, and its kind: the first out-of-memory, else the end with the most events; empty: none."""
    kept = [
        one
        for row in processes
        for one in row["snapshots"]
        if one.get("file") and one["reason"] in ORDER
    ]
    if kept:
        best = min(
            kept,
            key=lambda one: (
                ORDER.index(one["reason"]),
                one["at"] if one["reason"] == "oom" else -one["events"],
            ),
        )
        return str(best["file"]), "gpu snapshot"
    traces = [
        row["cpu_trace"] for row in processes if row["cpu_trace"] and row["cpu_trace"]["events"]
    ]
    return (
        (str(max(traces, key=lambda one: one["events"])["file"]), "cpu profile")
        if traces
        else ("", "")
    )


def _why_no_trace(
    processes: Sequence[Mapping[str, Any]], notes: Sequence[str], cpu_profile: bool
) -> str:
    said = [note for note in notes if "not available because" in note] or list(notes[-1:])
    asked = (
        ""
        if cpu_profile or not processes
        else "; --cpu-profile records the first training steps on the CPU"
    )
    return "; ".join(said or ["nothing was allocated while it was recorded"]) + asked


def redacted(words: Sequence[str]) -> list[str]:
    """A command line that may be shown: values of secret-sounding options and tokens become ***, the home folder ~."""
    home, found, hide = os.path.expanduser("~"), [], False
    for word in words:
        name, equals, value = word.partition("=")
        option = not hide and sounds_secret(name) and (bool(equals) or name.startswith("-"))
        shown = (
            "***"
            if hide or LOOKS_SECRET.match(word)
            else f"{name}=***"
            if option and equals
            else word
        )
        if equals and LOOKS_SECRET.match(value):
            shown = f"{name}=***"
        shown = re.sub(r"://[^/@\s]+@", "://***@", shown)
        found.append(
            re.sub(rf"(^|=){re.escape(home)}(?=/|$)", r"\1~", shown) if home != "/" else shown
        )
        hide = option and not equals
    return found
