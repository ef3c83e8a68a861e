"""Files of a box or of a tree copied from one, found by pattern and read with bounds, without following a path out of the tree;
and a file of our own written whole or not at all.

Only regular files are opened: opening a device, a pipe or a socket can wait for ever or change what it belongs to.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .bundle import natural

FILE_LIMIT_BYTES = 1 << 20
TEXT_LIMIT_BYTES = 64 << 10
MATCH_LIMIT = 5000

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


@dataclass(frozen=True)
class Found:
    """A path that a pattern led to, or (``status`` not ok) where and why it led no further."""

    source: str
    status: str
    why: str


def fault(error: OSError) -> tuple[str, str]:
    """Status and reason of a refused or failed read. EPERM and EACCES are refusals; anything else means there is no value."""
    number = error.errno or 0
    status = "not_allowed" if number in (errno.EACCES, errno.EPERM) else "not_available"
    name = errno.errorcode.get(number, "")
    return status, _WORDS.get(number) or f"{error.strerror or error} ({name})"


def find(root: str, pattern: str) -> Iterator[Found]:
    """The paths under ``root`` that match an absolute shell pattern, in natural order, as seen from inside the tree.

    A pattern that matches nothing is itself found as not available; one that meets a folder it may not list, as not allowed.
    """
    plain, parts = _split(pattern)
    if not parts:
        yield Found(pattern, "ok", "")
        return
    found = list(_descend(_top(root), plain, parts))
    if not found:
        found.append(Found(pattern, "not_available", "no such path"))
    found.sort(key=lambda item: natural(item.source))
    yield from found[:MATCH_LIMIT]
    if len(found) > MATCH_LIMIT:
        why = f"{len(found) - MATCH_LIMIT} further matches left out"
        yield Found(pattern, "not_available", why)


def _top(root: str) -> str:
    return root.rstrip("/")


def _split(pattern: str) -> tuple[str, list[str]]:
    """The leading part of a pattern without wildcards, and the rest by component; no rest where there is no wildcard."""
    parts = pattern.strip("/").split("/")
    for number, part in enumerate(parts):
        if any(char in part for char in "*?["):
            return "".join("/" + p for p in parts[:number]), parts[number:]
    return "/" + "/".join(parts), []


def _descend(top: str, base: str, parts: list[str]) -> Iterator[Found]:
    rest = "".join("/" + part for part in parts)
    try:
        if not any(char in parts[0] for char in "*?["):
            names = [parts[0]]
            # Only the error matters: a folder that may not be searched is refused, not empty.
            os.stat(top + base + "/" + parts[0])
        elif not _inside(top, base):
            yield Found(base + rest, "not_available", "a link leads outside --root")
            return
        else:
            with os.scandir(top + base if top + base else "/") as entries:
                names = [
                    e.name
                    for e in entries
                    if fnmatch.fnmatchcase(e.name, parts[0])
                    and (parts[0].startswith(".") or not e.name.startswith("."))
                ]
    except OSError as error:
        status, why = fault(error)
        if status == "not_allowed" or error.errno not in (errno.ENOENT, errno.ENOTDIR):
            yield Found(base + rest, status, why)
        return
    for name in names:
        path = f"{base}/{name}"
        if len(parts) == 1:
            yield Found(path, "ok", "")
        else:
            yield from _descend(top, path, parts[1:])


def _inside(top: str, source: str) -> bool:
    if not top:
        return True
    real = os.path.realpath(top + source)
    return real == os.path.realpath(top) or real.startswith(os.path.realpath(top) + "/")


def read(
    root: str, source: str, limit_bytes: int = FILE_LIMIT_BYTES
) -> tuple[bytes | None, str, str]:
    """Content, status and reason of one file; content is None exactly where there is none, and cut at ``limit_bytes``."""
    top = _top(root)
    path = top + source
    try:
        if not _inside(top, source):
            return None, "not_available", "a link leads outside --root"
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = _SPECIAL.get(stat.S_IFMT(mode), "no file")
            return None, "not_available", f"{kind}, not a regular file"
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            return _drain(opened, limit_bytes)
        finally:
            os.close(opened)
    except OSError as error:
        return (None, *fault(error))


def text(root: str, source: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """The text of one small file without the white space around it; empty where there is none."""
    return (read(root, source, limit_bytes)[0] or b"").decode("utf-8", "replace").strip()


def _drain(opened: int, limit_bytes: int) -> tuple[bytes, str, str]:
    content = bytearray()
    while len(content) <= limit_bytes:
        more = os.read(opened, min(1 << 16, limit_bytes + 1 - len(content)))
        if not more:
            return bytes(content), "ok", ""
        content += more
    return bytes(content[:limit_bytes]), "truncated", f"cut after {limit_bytes >> 10} KiB"


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, a killed writer or a power cut leaves the old content or the new one, never a part.

    Threads of a process may write the same file at once. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        whole = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        with open(temporary, "wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
