"""The files of a bundle, which is a folder or an archive: read without trusting it, and written in
one step.

An archive is read into memory member by member and never extracted, so a path in it has no effect;
links, devices, paths that lead out of it, oversized members and compression bombs are refused.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from helpers.ground.places import PROGRAM

from .files import opened, read_whole

# Captures keep to these limits (helpers/look/collection.py), so each can be read again. A bundle
# that is a bomb does not fill the RAM.
MEMBER_LIMIT_BYTES = 32 << 20
BUNDLE_LIMIT_BYTES = 128 << 20
MEMBER_LIMIT_COUNT = 100_000
MEMBER_LIMIT_DEPTH = 64
HEADER_LIMIT_BYTES = 64 << 10
"""Of a header of the archive, such as one with a long name."""
GZIP_MAGIC = b"\x1f\x8b"
"""How a gzip file begins (RFC 1952)."""
MOST_OF_NAME = 80
"""Letters of a file's name in the bundle that an error shows."""
MOST_OF_PATH = 200
MOST_OF_WHY = 300
"""Letters of a path and of a reason that an error shows, so that it stays one line."""


class BundleError(ValueError):
    """A bundle that cannot be used: what was seen, what was expected, what to do, in one line."""


class BundleHostile(BundleError):
    """An archive built, or damaged, so that reading it could do harm."""


def read_files(path: Path) -> dict[str, bytes]:
    """The content of every file of a folder or archive, by its path inside it.

    Raises a BundleError with a one-line reason.
    """
    try:
        if path.is_dir():
            return _read_folder(path)
        if path.exists():
            return _read_archive(path)
    except BundleHostile as error:
        raise BundleHostile(f"{path}: {error}; do not use this bundle") from error
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from error
    except OSError as error:
        advice = "expected a readable bundle; check its owner and mode"
        name = error.filename
        if not name:
            name = path
        shown = str(name)[:MOST_OF_PATH]
        raise BundleError(f"{shown}: {error.strerror}; {advice}") from error
    expected = f"expected an evidence bundle ({PROGRAM} capture)"
    raise BundleError(f"{path}: no such file or folder; {expected}")


def check_target(out: Path, force: bool = False) -> None:
    """Refuse, before any work is done, a place that cannot be written or must not be replaced.

    ``force`` allows replacing a file, an empty folder or a folder bundle; never another folder,
    and never through a link. Raises BundleError.
    """
    why = _why_not_written(out, force)
    if why:
        raise BundleError(f"{out}: {why}")


def _why_not_written(out: Path, force: bool) -> str:
    """Why ``out`` cannot be written or must not be replaced; empty if it can."""
    is_there = os.path.lexists(out)
    if is_there and not force:
        return "already there; choose another --out or add --force"
    if is_there and (out.is_symlink() or not (out.is_file() or out.is_dir())):
        return "a link or special file; expected a file or a bundle folder; choose another --out"
    is_bundle = (out / "manifest.json").is_file()
    if out.is_dir() and any(out.iterdir()) and not is_bundle:
        return "a folder that is no bundle; --force replaces bundles only; choose another --out"
    if not out.parent.is_dir():
        return f"no folder {out.parent}; make it first or choose another --out"
    if not os.access(out.parent, os.W_OK | os.X_OK):
        return f"{out.parent} may not be written; choose an --out that you may write to"
    return ""


def write_files(files: dict[str, bytes], out: Path, force: bool = False) -> Path:
    """Write files, by their paths in the bundle, to a folder ``out``, or to an archive if ``out``
    ends in .tar.gz or .tgz, in one step; returns ``out``.

    Refuses to replace anything unless ``force`` is given (see check_target). A write that fails
    leaves nothing behind. Raises BundleError.
    """
    check_target(out, force)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if out.name.endswith((".tar.gz", ".tgz")):
            _write_archive(files, part)
        else:
            _write_folder(files, part)
        if out.is_dir():
            shutil.rmtree(out)
        os.replace(part, out)
    except OSError as error:
        why = error.strerror
        if not why:  # raised by tarfile
            why = str(error)
        raise BundleError(
            f"{out}: cannot be written ({why}); choose another --out"
        ) from error
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        elif part.exists():
            part.unlink()
    return out


def _write_archive(files: dict[str, bytes], path: Path) -> None:
    # The manifest first (False sorts before True): a reader of the stream sees it at once.
    names = sorted(files, key=lambda name: (name != "manifest.json", name))
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(files[name]))


def _write_folder(files: dict[str, bytes], path: Path) -> None:
    path.mkdir()
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)


def _quoted(name: str) -> str:
    """A file's name as an error shows it."""
    return repr(name[:MOST_OF_NAME])


def _safe(name: str) -> str:
    """A member's path in plain form. Raises BundleHostile for one that leads out of the bundle,
    also on another system than this one.
    """
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\x00" in name or "\\" in name:
        raise BundleHostile(f"member {_quoted(name)} points outside the bundle")
    return "/".join(parts)


def _read_folder(path: Path) -> dict[str, bytes]:
    def refuse(error: OSError) -> None:  # os.walk ignores errors by default
        raise error

    files = {}
    limits = _Limits()
    for folder, subfolders, names in os.walk(path, onerror=refuse, followlinks=False):
        for full in (Path(folder, name) for name in subfolders + names):
            state = full.lstat()
            name = full.relative_to(path).as_posix()
            if stat.S_ISDIR(state.st_mode):
                limits.check(name, 0)
                continue
            limits.check(name, state.st_size, is_plain=stat.S_ISREG(state.st_mode))
            files[name] = read_whole(full, MEMBER_LIMIT_BYTES)
    return files


class _Limits:
    """Counts the files of a bundle and their bytes, and refuses more than a bundle may have."""

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0

    def check(self, name: str, size_bytes: int, is_plain: bool = True) -> None:
        """Count one more file or folder. ``is_plain``: it is a folder or a regular file. Raises
        BundleHostile.
        """
        self.bytes += size_bytes
        self.count += 1
        if not is_plain:
            raise BundleHostile(f"{_quoted(name)} is a link or special file")
        if name.count("/") > MEMBER_LIMIT_DEPTH:
            raise BundleHostile(
                f"{_quoted(name)} lies more than {MEMBER_LIMIT_DEPTH} folders deep"
            )
        if size_bytes > MEMBER_LIMIT_BYTES:
            raise BundleHostile(
                f"{_quoted(name)} is larger than {MEMBER_LIMIT_BYTES >> 20} MiB"
            )
        if self.bytes > BUNDLE_LIMIT_BYTES:
            raise BundleHostile(f"more than {BUNDLE_LIMIT_BYTES >> 20} MiB unpacked")
        if self.count > MEMBER_LIMIT_COUNT:
            raise BundleHostile(f"more than {MEMBER_LIMIT_COUNT} files")


def _read_archive(path: Path) -> dict[str, bytes]:
    """The files of an archive. If all of them are below one folder, which is how a person packs a
    bundle again, their paths begin below it.
    """
    with opened(path) as raw:
        if raw.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            raise BundleError("no .tar.gz; expected an evidence bundle")
        raw.seek(0)
        try:
            with gzip.GzipFile(fileobj=raw) as tar:
                files = _read_tar(tar)
        except BundleError:
            raise
        except (
            tarfile.TarError,
            EOFError,
            OSError,
            zlib.error,
            OverflowError,  # numbers of a header
            ValueError,
            RecursionError,  # headers within headers
        ) as error:
            why = f"the archive ends early or is damaged ({type(error).__name__}); copy it again"
            raise BundleError(why) from error
    top_folders = {name.partition("/")[0] for name in files}
    is_in_a_folder = len(top_folders) == 1 and all("/" in name for name in files)
    if not is_in_a_folder or "manifest.json" in files:
        return files
    return {name.partition("/")[2]: content for name, content in files.items()}


class _Member(tarfile.TarInfo):
    """A header that is refused before its content is read: a long name or an extended header
    may itself be a bomb.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        is_large_header = not member.isreg() and member.size > HEADER_LIMIT_BYTES
        if member.size < 0 or is_large_header:
            raise BundleHostile(f"a header larger than {HEADER_LIMIT_BYTES >> 10} KiB")
        return member


def _read_tar(stream: gzip.GzipFile) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    limits = _Limits()
    # "r|": in one pass, without seeking.
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:
        for member in tar:
            name = _safe(member.name)
            if member.isdir():
                limits.check(name, 0)
                continue
            # A sparse member is short in the archive and may be of any size here.
            is_plain = member.isreg() and not member.issparse()
            limits.check(name, member.size, is_plain)
            if name in files:
                raise BundleHostile(f"member {_quoted(name)} is there twice")
            content = tar.extractfile(member)
            assert content is not None  # None stands for a folder or a special file
            files[name] = content.read()
            if len(files[name]) != member.size:
                raise BundleError(f"{_quoted(name)} ends early; copy the archive again")
    return files
