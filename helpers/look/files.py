"""Files of a box or of a tree copied from one, found by pattern and read with bounds, without
following a path out of the tree; and a file of our own written whole or not at all.

Only regular files are opened: opening a device, a pipe or a socket can wait for ever or change
what it belongs to.
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
TEXT_LIMIT_BYTES = 64 << 10
WHOLE_LIMIT_BYTES = 256 << 20
"""Of a record, a notebook, a case: read whole or not at all."""
JSON_LIMIT_BYTES = 64 << 20
MOST_VALUES = 1_000_000
MATCH_LIMIT = 5000
_WILD = re.compile(r"[*?[]")

_WORDS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.ELOOP: "a loop of links",
}
_SPECIAL = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def sources(kind: str, reader: str = "") -> tuple[str, ...]:
    """What a capture takes, in its order (helpers/look/sources.json): the patterns of
    ``files``, or each ``command`` line.

    ``reader``: those that one module of this folder reads. ``{a,b}`` in a row stands for either.
    """
    patterns: list[str] = []
    for row in data("look/sources"):
        if kind in row and reader in ("", row["reader"]):
            patterns += _expanded(row[kind])
    return tuple(patterns)


def _expanded(pattern: str) -> list[str]:
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [head]
    names, _, tail = rest.partition("}")
    ends = _expanded(tail)
    return [head + name + end for name in names.split(",") for end in ends]


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key that puts card2 before card10 and never compares a number with a word."""
    parts = re.findall("([0-9]+)|([^0-9])", text, re.DOTALL)
    return [(0, int(digits), "") if digits else (1, 0, char) for digits, char in parts]


@dataclass(frozen=True)
class FoundPath:
    """A path that a pattern led to, or (``status`` not ok) where and why it led no further."""

    source: str
    status: str
    why: str


def fault(error: OSError) -> tuple[str, str]:
    """Status and reason of a refused or failed read.

    EPERM and EACCES are refusals; anything else means there is no value.
    """
    number = error.errno or 0
    status = "not_available"
    if number in (errno.EACCES, errno.EPERM):
        status = "not_allowed"
    if number in _WORDS:
        return status, _WORDS[number]
    words = error.strerror or str(error)
    if number in errno.errorcode:
        words = f"{words} ({errno.errorcode[number]})"
    return status, words


def find(root: str, pattern: str) -> Iterator[FoundPath]:
    """The paths under ``root`` that match an absolute shell pattern, in natural order, as seen
    from inside the tree.

    A pattern that matches nothing is itself found as not available; one that meets a folder it
    may not list, as not allowed.
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
    """What in a folder one component of a pattern matches, or why that is not known; ``rest``:
    it and what follows it.
    """
    base = folder.source
    if folder.status != "ok":
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
        with os.scandir(top + base or "/") as entries:
            names = [
                entry.name for entry in entries if fnmatch.fnmatchcase(entry.name, part)
            ]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return []
        return [FoundPath(base + rest, *fault(error))]
    if not part.startswith("."):
        names = [name for name in names if not name.startswith(".")]
    return [FoundPath(f"{base}/{name}", "ok", "") for name in names]


def _inside(top: str, source: str) -> bool:
    if not top:
        return True
    real = os.path.realpath(top + source)
    return real == os.path.realpath(top) or real.startswith(os.path.realpath(top) + "/")


def read(
    root: str, source: str, limit_bytes: int = FILE_LIMIT_BYTES
) -> tuple[bytes | None, str, str]:
    """Content, status and reason of one file; content is None exactly where there is none, and
    cut at ``limit_bytes``.
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
    """A regular file to read from.

    Raises OSError, whose ``strerror`` says it where the path leads to anything else.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = _SPECIAL.get(stat.S_IFMT(mode), "no file")
        raise OSError(0, f"{kind}, not a regular file", str(path))
    without_waiting = os.O_NONBLOCK | os.O_NOCTTY
    return open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | without_waiting)
    )


def read_whole(path: str | Path, limit_bytes: int = WHOLE_LIMIT_BYTES) -> bytes:
    """All of a regular file of at most so many bytes.

    Raises OSError, whose ``strerror`` says what else it is.
    """
    content = _start(path, limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(0, f"larger than {show_bytes(limit_bytes)}", str(path))
    return content


def json_of(path: str | Path) -> object:
    """What a regular file of JSON holds, of bounded size and with a bounded number of values.

    Raises OSError, whose ``strerror`` says what else it is, and ValueError in one line.
    """
    content = read_whole(path, JSON_LIMIT_BYTES)
    if content.count(b",") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    try:
        parsed: object = json.loads(content.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("values within values without end") from None
    return parsed


def _start(path: str | Path, most: int) -> bytes:
    content = bytearray()
    with opened(path) as file:
        block = file.read(min(1 << 16, most))
        while block:
            content += block
            block = file.read(min(1 << 16, most - len(content)))
    return bytes(content)


def boot_id(root: str = "") -> str:
    """The name that the kernel drew when it last started, or nothing."""
    return text(root, "/proc/sys/kernel/random/boot_id")


def text(root: str, source: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """The text of one small file without the white space around it; empty where there is none."""
    content, _, _ = read(root, source, limit_bytes)
    if content is None:
        return ""
    return content.decode("utf-8", "replace").strip()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, a killed writer or a power cut leaves the old content or
    the new one, never a part.

    Threads of a process may write the same file at once. Raises OSError.
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
            error.filename = str(path)  # the only one that anybody knows
        with suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
