"""Files of a box, or of a file tree copied from one, found by pattern and read up to a limit,
without following a link out of the tree; and a file of our own written in one step.

Only regular files are opened: to open a device, a pipe or a socket can take for ever, or change
its state.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from helpers.ground.tables import data
from helpers.ground.units import show_bytes

FILE_LIMIT_BYTES = 1 << 20
"""Of a file of the box that a capture takes; the rest of it is cut off."""
TEXT_LIMIT_BYTES = 64 << 10
"""Of a small file of the box, such as one of /proc or /sys."""
WHOLE_LIMIT_BYTES = 256 << 20
"""Of a record, a notebook or a case, which is refused if it is larger."""
JSON_LIMIT_BYTES = 64 << 20
MOST_VALUES = 1_000_000
"""Of a JSON file, whose values take many times as much RAM as they take of the file."""
MATCH_LIMIT = 5000
"""Paths that one pattern gives: chosen far above what a box has of any kind."""
READ_BYTES = 1 << 16
_WILD = re.compile(r"[*?[]")

_WORDS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.ELOOP: "a loop of links",
}
"""Errors that are told in other words than the system's."""
_SPECIAL = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def sources(kind: str, reader: str = "") -> tuple[str, ...]:
    """The sources that a capture takes, in its order (helpers/look/sources.json): of kind ``files``
    their patterns, of kind ``command`` the command lines.

    ``reader``: only those that this module of the folder reads. ``{a,b}`` in a row stands for
    either.
    """
    patterns: list[str] = []
    for row in data("look/sources"):
        if kind in row and reader in ("", row["reader"]):
            patterns += _expanded(row[kind])
    return tuple(patterns)


def _expanded(pattern: str) -> list[str]:
    """Every pattern that one with ``{a,b}`` stands for, as a shell expands it."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [head]
    names, _, tail = rest.partition("}")
    patterns = []
    for name in names.split(","):
        patterns += [head + name + end for end in _expanded(tail)]
    return patterns


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts card2 before card10. Numbers come before letters, with which they cannot
    be compared.
    """
    key = []
    for digits, char in re.findall("([0-9]+)|([^0-9])", text, re.DOTALL):
        if digits:
            key.append((0, int(digits), ""))
        else:
            key.append((1, 0, char))
    return key


@dataclass(frozen=True)
class FoundPath:
    """A path that matches a pattern; or, if ``status`` is not ok, the path or pattern where the
    search ended, and why.
    """

    source: str
    status: str
    why: str


def fault(error: OSError) -> tuple[str, str]:
    """The status and the reason of a read that failed: EPERM and EACCES are refusals; after any
    other error there is no value.
    """
    status = "not_available"
    if error.errno in (errno.EACCES, errno.EPERM):
        status = "not_allowed"
    if error.errno in _WORDS:
        return status, _WORDS[error.errno]
    words = error.strerror
    if not words:
        words = str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        words = f"{words} ({errno.errorcode[error.errno]})"
    return status, words


def find(root: str, pattern: str) -> Iterator[FoundPath]:
    """The paths under ``root`` that match an absolute shell pattern, in natural order, without
    ``root`` before them.

    If none does, the pattern itself is returned as not available; for each folder that may not be
    listed, the rest of the pattern below it as not allowed.
    """
    matches = [FoundPath(pattern, "ok", "")]
    if _WILD.search(pattern):
        matches = _matches(root.rstrip("/"), pattern)
    if not matches:
        matches = [FoundPath(pattern, "not_available", "no such path")]
    matches.sort(key=lambda match: natural(match.source))
    yield from matches[:MATCH_LIMIT]
    if len(matches) > MATCH_LIMIT:
        why = f"{len(matches) - MATCH_LIMIT} further matches left out"
        yield FoundPath(pattern, "not_available", why)


def _matches(top: str, pattern: str) -> list[FoundPath]:
    """The matches of a pattern below the folder ``top``, found component by component."""
    matches = [FoundPath("", "ok", "")]
    parts = pattern.strip("/").split("/")
    for number, part in enumerate(parts):
        rest = "".join("/" + later for later in parts[number:])
        below: list[FoundPath] = []
        for match in matches:
            below += _below(top, match, part, rest)
        matches = below
    return matches


def _below(top: str, folder: FoundPath, part: str, rest: str) -> list[FoundPath]:
    """The entries of a folder that match one component of a pattern, or why they are not known;
    ``rest`` is the pattern from this component on.
    """
    base = folder.source
    if folder.status != "ok":  # the search ended here at an earlier component
        return [folder]
    try:
        if not _WILD.search(part):
            # Only the error matters: a folder that may not be searched is refused, not empty.
            os.stat(f"{top}{base}/{part}")
            return [FoundPath(f"{base}/{part}", "ok", "")]
        if not _inside(top, base):
            return [
                FoundPath(base + rest, "not_available", "a link leads outside --root")
            ]
        names = os.listdir(f"{top}{base}/")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return []
        return [FoundPath(base + rest, *fault(error))]
    if not part.startswith("."):  # as a shell does
        names = [name for name in names if not name.startswith(".")]
    names = [name for name in names if fnmatch.fnmatchcase(name, part)]
    return [FoundPath(f"{base}/{name}", "ok", "") for name in names]


def _inside(top: str, source: str) -> bool:
    """Whether a path, with its links followed, is in the file tree ``top``; empty: this box's."""
    if not top:
        return True
    real_top = os.path.realpath(top)
    real = os.path.realpath(top + source)
    return real == real_top or real.startswith(f"{real_top}/")


def read(
    root: str, source: str, limit_bytes: int = FILE_LIMIT_BYTES
) -> tuple[bytes | None, str, str]:
    """(content, status, reason) of one file. The content is cut off at ``limit_bytes``; it is None
    if the file cannot be read.
    """
    top = root.rstrip("/")
    try:
        if not _inside(top, source):
            return None, "not_available", "a link leads outside --root"
        content = _start(top + source, limit_bytes + 1)
    except OSError as error:
        return (None, *fault(error))
    if len(content) <= limit_bytes:
        return content, "ok", ""
    return content[:limit_bytes], "truncated", f"cut after {limit_bytes >> 10} KiB"


def opened(path: str | Path) -> BinaryIO:
    """A regular file, open for reading. Raises OSError, also for anything but a regular file."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = _SPECIAL.get(stat.S_IFMT(mode), "no file")
        raise OSError(0, f"{kind}, not a regular file", str(path))
    # By now another file may have taken its place: O_NONBLOCK does not wait for a pipe's writer.
    without_waiting = os.O_NONBLOCK | os.O_NOCTTY
    return open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | without_waiting)
    )


def read_whole(path: str | Path, limit_bytes: int = WHOLE_LIMIT_BYTES) -> bytes:
    """All of a regular file. Raises OSError, also for a larger file and for one of another kind."""
    content = _start(path, limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(0, f"larger than {show_bytes(limit_bytes)}", str(path))
    return content


def json_of(path: str | Path) -> object:
    """The value in a JSON file of limited size. Raises OSError as ``read_whole`` does, and
    ValueError in one line.
    """
    content = read_whole(path, JSON_LIMIT_BYTES)
    # Commas part the values, which are counted before parsing them takes RAM.
    if content.count(b",") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    try:
        parsed: object = json.loads(content.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("values within values without end") from None
    return parsed


def _start(path: str | Path, limit_bytes: int) -> bytes:
    """The first bytes of a regular file, read in pieces: its size may be wrong or unknown, as in
    /proc.
    """
    content = bytearray()
    with opened(path) as file:
        block = file.read(min(READ_BYTES, limit_bytes))
        while block:
            content += block
            block = file.read(min(READ_BYTES, limit_bytes - len(content)))
    return bytes(content)


def boot_id(root: str = "") -> str:
    """The random id that the kernel gave itself when it started (random(4)), or an empty text."""
    return text(root, "/proc/sys/kernel/random/boot_id")


def text(root: str, source: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """The text of one small file without the white space around it; empty if it cannot be read."""
    content, _, _ = read(root, source, limit_bytes)
    if content is None:
        return ""
    return content.decode("utf-8", "replace").strip()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that it has its old content or the new one at any time, never a part: for a
    reader meanwhile, and after a kill or a power cut. Threads may write the same file at once.
    Raises OSError.
    """
    temporary = path.with_name(
        f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp"
    )
    try:
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogatepass")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)  # the caller does not know the temporary file
        with suppress(OSError):
            temporary.unlink()
        raise
    # The new name of the file is on the disk only once its folder is (fsync(2)).
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
