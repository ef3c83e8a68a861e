"""Signs of life on standard error, while a command works and has nothing to print yet."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from helpers.ground.places import PROGRAM
from helpers.ground.units import show_bytes
from helpers.tell.prose import within

NOTE_COLUMNS = 100
FIRST_SIGN_S = 5.0
LOOKS_EVERY_S = 1.0


def print_lines(lines: Iterable[str], file: IO[str]) -> None:
    """Notes beside a program's own output, each marked and wrapped."""
    for line in lines:
        if line:
            print(within(f"{PROGRAM}: {line}", NOTE_COLUMNS), file=file)


@contextmanager
def says_if_slow(
    line: str, quiet: bool = False, after_s: float = FIRST_SIGN_S
) -> Iterator[None]:
    """A line on standard error, once what is done takes longer than ``after_s`` seconds."""
    timer = threading.Timer(after_s, print_lines, ([line], sys.stderr))
    with _beside(timer, timer.cancel, quiet):
        yield


@contextmanager
def says_it_runs(
    record: Path | None = None, quiet: bool = False, first_s: float = FIRST_SIGN_S
) -> Iterator[None]:
    """A line on standard error after ``first_s`` seconds, and after each doubling of that time:
    how long the program has run, and the RAM of its processes, those that carry ``record``; once
    they are gone, that its recording is read. Without ``record``, the time alone.
    """
    ended = threading.Event()
    tell = threading.Thread(target=_tell, args=(record, first_s, ended))
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


def _tell(record: Path | None, first_s: float, ended: threading.Event) -> None:
    from helpers.ground.child.proc import carrying

    began = time.monotonic()
    wait_s = first_s
    gone_since = 0.0
    while not ended.wait(min(first_s, LOOKS_EVERY_S)):
        now = time.monotonic()
        pids = carrying(f"CASEBOOK_REHEARSE={record.absolute()}") if record else []
        ram_bytes = sum(map(_resident_bytes, pids))
        if ram_bytes:
            gone_since = now
        elif gone_since and now - gone_since >= first_s:
            print_lines(
                ["the program has ended; its recording is being read"], sys.stderr
            )
            return
        if now - began < wait_s:
            continue
        wait_s *= 2
        passed_s = now - began
        if ram_bytes:
            says = (
                f"still running: {passed_s:.0f} s, {show_bytes(ram_bytes)} of RAM used"
            )
            print_lines([says], sys.stderr)
        elif not gone_since:
            print_lines([f"still working: {passed_s:.0f} s"], sys.stderr)


def _resident_bytes(pid: int) -> int:
    """The RAM of a process; 0 where it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
