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
"""Fixed, not the terminal's width: notes stand among a program's own output, also in logs."""
FIRST_SIGN_S = 5.0
"""Silence that a person takes for a hang."""
LOOKS_EVERY_S = 1.0
CLEAR_LINE = "\r\x1b[K"
"""To the first column, and erase to the end of the line (EL of ECMA-48)."""


def print_notes(*notes: str, file: IO[str] | None = None) -> None:
    """Print notes among a program's own output, each behind our name and wrapped; empty ones are
    left out. ``file``: standard error by default.
    """
    if file is None:
        file = sys.stderr
    for note in notes:
        if note:
            print(within(f"{PROGRAM}: {note}", NOTE_COLUMNS), file=file)


@contextmanager
def waits_for(work: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show in one line of a terminal which work takes more than a second; erase the line at its
    end.

    The block gets a function that it calls with how many parts are done and how many there are.
    """
    began = time.monotonic()
    # helpers/cli.py wraps standard error to hide escape codes; these go to the stream below.
    terminal = getattr(sys.stderr, "drawn", sys.stderr)
    quiet = quiet or not sys.stderr.isatty()

    def tell(done: int = 0, total: int = 0) -> None:
        if quiet or time.monotonic() - began < 1:
            return
        says = f"{CLEAR_LINE}{work} ..."
        if done:
            says = f"{CLEAR_LINE}{work} {done} of {total} ..."
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
    """Print a line to standard error if the block takes longer than FIRST_SIGN_S seconds."""
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
    """Print to standard error how long a program has run, and the RAM of its processes: after
    ``first_s`` seconds, and after each doubling of that time.

    ``record``: the folder of its recording, which the processes have in their environment; once
    they are gone, a line says that the recording is read. Without it only the time is printed.
    ``name`` tells this run from others of the program, such as batch 8.
    """
    ended = threading.Event()
    tell = threading.Thread(target=_tell, args=(record, first_s, name, ended))
    with _beside(tell, ended.set, quiet):
        yield


@contextmanager
def _beside(
    thread: threading.Thread, stop: Callable[[], None], quiet: bool
) -> Iterator[None]:
    """Run a thread that prints while the block runs, unless ``quiet``.

    At the end the thread is stopped and waited for, so that it prints no line below the answer.
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
    """Print how long a program runs, until ``ended`` is set, or its processes have been gone for
    ``first_s`` seconds after some were seen. While none was seen, the line says working instead of
    running, and nothing is said of the RAM.
    """
    began = time.monotonic()
    next_line_s = first_s
    last_seen_s: float | None = None
    of_run = ""
    if name:
        of_run = f"{name}: "
    while not ended.wait(min(first_s, LOOKS_EVERY_S)):
        passed_s = time.monotonic() - began
        ram_bytes = _ram_bytes(record)
        if ram_bytes:
            last_seen_s = passed_s
        elif last_seen_s is not None and passed_s - last_seen_s >= first_s:
            # A single look can miss processes that are being started.
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
    """The RAM of the processes of the rehearsal with this record; 0 where there are none."""
    if record is None:
        return 0
    pids = carrying(f"CASEBOOK_REHEARSE={record.absolute()}")
    return sum(map(_resident_bytes, pids))


def _resident_bytes(pid: int) -> int:
    """The RAM of a process; 0 where it has ended."""
    try:
        # Size in all, then what is resident, in pages (proc_pid_statm(5)).
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
