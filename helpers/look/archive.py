"""Files in and out of an archive or folder, without trusting it.

An archive is read into memory member by member and never extracted, so a path in it can point
nowhere; links, devices, absolute or climbing paths, oversized members and bombs are refused
before anything is believed.
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

MEMBER_LIMIT_BYTES = 32 << 20
BUNDLE_LIMIT_BYTES = 128 << 20
MEMBER_LIMIT_COUNT = 100_000
MEMBER_LIMIT_DEPTH = 64
HEADER_LIMIT_BYTES = 64 << 10
_ODD = (OverflowError, ValueError, RecursionError)


class BundleError(ValueError):
    """A bundle that cannot be used: what was seen, what was expected, what to do, in one line."""


class BundleHostile(BundleError):
    """An archive built, or damaged, so that reading it could do harm."""


def read_files(path: Path) -> dict[str, bytes]:
    """Every file of a folder or archive by its name inside it.

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
        name = str(error.filename or path)[:200]
        raise BundleError(f"{name}: {error.strerror}; {advice}") from error
    expected = f"expected an evidence bundle ({PROGRAM} capture)"
    raise BundleError(f"{path}: no such file or folder; {expected}")


def check_target(out: Path, force: bool = False) -> None:
    """Refuse, before any work is done, a place that cannot be written or must not be replaced.

    Raises BundleError.

    ``force`` allows replacing a file, an empty folder or a folder bundle; never another folder,
    and never through a link.
    """
    why = ""
    if os.path.lexists(out):
        if not force:
            why = "already there; choose another --out or add --force"
        elif out.is_symlink() or not (out.is_file() or out.is_dir()):
            why = "a link or special file; expected a file or a bundle folder; choose another --out"
        elif (
            out.is_dir()
            and any(out.iterdir())
            and not (out / "manifest.json").is_file()
        ):
            why = "a folder that is no bundle; --force replaces bundles only; choose another --out"
    if not why and not out.parent.is_dir():
        why = f"no folder {out.parent}; make it first or choose another --out"
    elif not why and not os.access(out.parent, os.W_OK | os.X_OK):
        why = f"{out.parent} may not be written; choose an --out that you may write to"
    if why:
        raise BundleError(f"{out}: {why}")


def write_files(files: dict[str, bytes], out: Path, force: bool = False) -> Path:
    """Write a folder, or an archive where ``out`` ends in .tar.gz or .tgz, in one step; returns
    ``out``.

    Refuses to replace anything unless ``force`` is given (see check_target). A write that fails
    leaves nothing behind.
    """
    check_target(out, force)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if out.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(part, "w:gz", format=tarfile.PAX_FORMAT) as tar:
                for name in sorted(
                    files, key=lambda name: (name != "manifest.json", name)
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(files[name])
                    member.mode = 0o644
                    tar.addfile(member, io.BytesIO(files[name]))
        else:
            part.mkdir()
            for name, content in files.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).write_bytes(content)
        if out.is_dir():
            shutil.rmtree(out)
        os.replace(part, out)
    except OSError as error:
        why = error.strerror or error
        raise BundleError(
            f"{out}: cannot be written ({why}); choose another --out"
        ) from error
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        elif part.exists():
            part.unlink()
    return out


def _safe(name: str) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\x00" in name or "\\" in name:
        raise BundleHostile(f"member {name[:80]!r} points outside the bundle")
    return "/".join(parts)


def _read_folder(path: Path) -> dict[str, bytes]:
    def refuse(error: OSError) -> None:
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
            limits.check(name, state.st_size, plain=stat.S_ISREG(state.st_mode))
            files[name] = read_whole(full, MEMBER_LIMIT_BYTES)
    return files


class _Limits:
    """Refuses what is more than a bundle may hold, member by member."""

    def __init__(self) -> None:
        self.bytes = self.count = 0

    def check(self, name: str, size: int, plain: bool = True) -> None:
        """``plain``: it is a folder or a file of bytes. Raises BundleHostile."""
        self.bytes += size
        self.count += 1
        if not plain:
            raise BundleHostile(f"{name[:80]!r} is a link or special file")
        if name.count("/") > MEMBER_LIMIT_DEPTH:
            raise BundleHostile(
                f"{name[:80]!r} lies more than {MEMBER_LIMIT_DEPTH} folders deep"
            )
        if size > MEMBER_LIMIT_BYTES:
            raise BundleHostile(
                f"{name[:80]!r} is larger than {MEMBER_LIMIT_BYTES >> 20} MiB"
            )
        if self.bytes > BUNDLE_LIMIT_BYTES:
            raise BundleHostile(f"more than {BUNDLE_LIMIT_BYTES >> 20} MiB unpacked")
        if self.count > MEMBER_LIMIT_COUNT:
            raise BundleHostile(f"more than {MEMBER_LIMIT_COUNT} files")


def _read_archive(path: Path) -> dict[str, bytes]:
    with opened(path) as raw:
        if raw.read(2) != b"\x1f\x8b":
            raise BundleError("no .tar.gz; expected an evidence bundle")
        raw.seek(0)
        try:
            with gzip.GzipFile(fileobj=raw) as plain:
                files = _read_tar(plain)
        except BundleError:
            raise
        # ValueError and OverflowError: numbers of a header; RecursionError: headers nested in
        # headers.
        except (tarfile.TarError, EOFError, OSError, zlib.error, *_ODD) as error:
            why = f"the archive ends early or is damaged ({type(error).__name__}); copy it again"
            raise BundleError(why) from error
    tops = {name.partition("/")[0] for name in files}
    is_in_a_folder = len(tops) == 1 and all("/" in name for name in files)
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
        if member.size < 0 or (not member.isreg() and member.size > HEADER_LIMIT_BYTES):
            raise BundleHostile(f"a header larger than {HEADER_LIMIT_BYTES >> 10} KiB")
        return member


def _read_tar(stream: gzip.GzipFile) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    limits = _Limits()
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:
        for member in tar:
            name = _safe(member.name)
            if member.isdir():
                limits.check(name, 0)
                continue
            plain = member.isreg() and not member.issparse()
            limits.check(name, member.size, plain)
            if name in files:
                raise BundleHostile(f"member {name[:80]!r} is there twice")
            content = tar.extractfile(member)
            files[name] = content.read() if content else b""
            if len(files[name]) != member.size:
                raise BundleError(f"{name[:80]!r} ends early; copy the archive again")
    return files
