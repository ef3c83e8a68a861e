"""Signs of life on standard error, while a command works and has nothing to print yet."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from helpers.ground.child.proc import carrying
from helpers.ground.places import PROGRAM
from helpers.ground.units import show_bytes
from helpers.tell.prose import within

NOTE_COLUMNS = 100
FIRST_SIGN_S = 5.0
LOOKS_EVERY_S = 1.0
CLEAR_LINE = "\r\x1b[K"


def print_notes(*notes: str, file: IO[str] | None = None) -> None:
    """Notes beside a program's own output, each marked and wrapped: on standard error, unless
    another file is named.
    """
    for note in notes:
        if note:
            marked = within(f"{PROGRAM}: {note}", NOTE_COLUMNS)
            print(marked, file=file or sys.stderr)


@contextmanager
def waits_for(work: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Says on a terminal what is being done when that takes more than a second, and takes the line
    back at its end.

    Call it with how many are done of how many.
    """
    began = time.monotonic()
    terminal = getattr(sys.stderr, "drawn", sys.stderr)
    quiet = quiet or not sys.stderr.isatty()

    def tell(done: int = 0, total: int = 0) -> None:
        count = f" {done} of {total}" if done else ""
        if not quiet and time.monotonic() - began >= 1:
            says = f"{CLEAR_LINE}{work}{count} ..."
            print(says, end="", file=terminal, flush=True)

    timer = threading.Timer(1, tell)
    try:
        with _beside(timer, timer.cancel, quiet):
            yield tell
    finally:
        if not quiet:
            print(CLEAR_LINE, end="", file=terminal, flush=True)


@contextmanager
def says_if_slow(line: str, quiet: bool = False) -> Iterator[None]:
    """A line on standard error, once what is done takes longer than FIRST_SIGN_S seconds."""
    timer = threading.Timer(FIRST_SIGN_S, print_notes, [line])
    with _beside(timer, timer.cancel, quiet):
        yield


@contextmanager
def says_it_runs(
    record: Path | None = None,
    quiet: bool = False,
    first_s: float = FIRST_SIGN_S,
    name: str = "",
) -> Iterator[None]:
    """A line on standard error after ``first_s`` seconds, and after each doubling of that time: how
    long a program has run, and the RAM of its processes.

    ``record`` is the folder by which its processes are found; once they are gone, a line says that
    the recording is read. Without it the time alone is said. ``name`` tells this run from others of
    the program, such as batch 8.
    """
    ended = threading.Event()
    tell = threading.Thread(target=_tell, args=(record, first_s, name, ended))
    with _beside(tell, ended.set, quiet):
        yield


@contextmanager
def _beside(
    thread: threading.Thread, stop: Callable[[], None], quiet: bool
) -> Iterator[None]:
    """Let a thread speak meanwhile, unless it is to be ``quiet``; then stop it, and wait for it, so
    that no line of it comes below the answer.
    """
    thread.daemon = True
    if not quiet:
        thread.start()
    try:
        yield
    finally:
        stop()
        if thread.is_alive():
            thread.join()


def _tell(
    record: Path | None, first_s: float, name: str, ended: threading.Event
) -> None:
    """Say how a program gets on, until it has ``ended`` or its processes are gone."""
    began = time.monotonic()
    next_line_s = first_s
    last_seen_s: float | None = None
    of_run = f"{name}: " if name else ""
    while not ended.wait(min(first_s, LOOKS_EVERY_S)):
        passed_s = time.monotonic() - began
        ram_bytes = _ram_bytes(record)
        if ram_bytes:
            last_seen_s = passed_s
        elif last_seen_s is not None and passed_s - last_seen_s >= first_s:
            print_notes(f"{of_run}the program has ended; its recording is being read")
            return
        if passed_s < next_line_s:
            continue
        next_line_s *= 2
        if ram_bytes:
            takes = f"{passed_s:.0f} s, {show_bytes(ram_bytes)} of RAM used"
            print_notes(f"{of_run}still running: {takes}")
        elif last_seen_s is None:
            print_notes(f"{of_run}still working: {passed_s:.0f} s")


def _ram_bytes(record: Path | None) -> int:
    """The RAM of the processes that a rehearsal with this record started; 0 where none is there."""
    if record is None:
        return 0
    pids = carrying(f"CASEBOOK_REHEARSE={record.absolute()}")
    return sum(map(_resident_bytes, pids))


def _resident_bytes(pid: int) -> int:
    """The RAM of a process; 0 where it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
