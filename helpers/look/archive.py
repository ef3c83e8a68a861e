"""Files in and out of an archive or folder, without trusting it.

An archive is read into memory member by member and never extracted, so a path in it can point nowhere; links, devices,
absolute or climbing paths, oversized members and bombs are refused before anything is believed.

    BundleError(ValueError)
    ├── BundleMissing    no such path, or not readable
    ├── BundleBroken     not a bundle, or not the one that was captured (a digest differs, a file is missing)
    ├── BundleHostile    an archive that could harm its reader
    └── BundleTooNew     written under a newer schema than this reader knows
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

MEMBER_LIMIT_BYTES = 64 << 20
BUNDLE_LIMIT_BYTES = 256 << 20
MEMBER_LIMIT_COUNT = 100_000
HEADER_LIMIT_BYTES = 64 << 10


class BundleError(ValueError):
    """A bundle that cannot be used: what was seen, what was expected, what to do, in one line."""


class BundleMissing(BundleError):
    """There is nothing to read at that path."""


class BundleBroken(BundleError):
    """It is no bundle, or its content is not what its manifest says."""


class BundleHostile(BundleError):
    """An archive built, or damaged, so that reading it could do harm."""


class BundleTooNew(BundleError):
    """The manifest names a newer schema version."""


def read_files(path: Path) -> dict[str, bytes]:
    """Every file of a folder or archive by its name inside it. Raises a BundleError with a one-line reason."""
    try:
        if path.is_dir():
            return _read_folder(path)
        if path.is_file():
            return _read_archive(path)
    except OSError as error:
        raise BundleMissing(f"{str(error.filename or path)[:200]}: {error.strerror}; expected a readable bundle; "
                            "check its owner and mode") from error
    raise BundleMissing(f"{path}: no such file or folder; expected an evidence bundle (python -m helpers capture)")


def check_target(out: Path, force: bool = False) -> None:
    """Refuse, before any work is done, a place that cannot be written or must not be replaced. Raises BundleError.

    ``force`` allows replacing a file, an empty folder or a folder bundle; never another folder, and never through a link.
    """
    if os.path.lexists(out):
        if not force:
            raise BundleError(f"{out}: already there; choose another --out or add --force")
        if out.is_symlink() or not (out.is_file() or out.is_dir()):
            raise BundleError(f"{out}: a link or special file; expected a file or a bundle folder; choose another --out")
        if out.is_dir() and any(out.iterdir()) and not (out / "manifest.json").is_file():
            raise BundleError(f"{out}: a folder that is no bundle; --force replaces bundles only; choose another --out")
    if not out.parent.is_dir():
        raise BundleError(f"{out}: no folder {out.parent}; make it first or choose another --out")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise BundleError(f"{out}: {out.parent} may not be written; choose an --out that you may write to")


def write_files(files: dict[str, bytes], out: Path, force: bool = False) -> Path:
    """Write a folder, or an archive where ``out`` ends in .tar.gz, .tgz or .tar.zst, in one step; returns ``out``.

    Refuses to replace anything unless ``force`` is given (see check_target). A write that fails leaves nothing behind.
    """
    check_target(out, force)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if out.name.endswith((".tar.gz", ".tgz")):
            _pack(files, part)
        elif out.name.endswith(".tar.zst"):
            _pack_zst(files, part)
        else:
            _lay_out(files, part)
        if out.is_dir():
            shutil.rmtree(out)
        os.replace(part, out)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "strerror", None) or error
        raise BundleError(f"{out}: cannot be written ({why}); choose another --out") from error
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        elif part.exists():
            part.unlink()
    return out


def _safe(name: str, path: Path) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\x00" in name or "\\" in name:
        raise BundleHostile(f"{path}: member {name[:80]!r} points outside the bundle; do not use this archive")
    return "/".join(parts)


def _read_folder(path: Path) -> dict[str, bytes]:
    def refuse(error: OSError) -> None:
        raise error

    files: dict[str, bytes] = {}
    total = 0
    for folder, subfolders, names in os.walk(path, onerror=refuse, followlinks=False):
        for name in subfolders + names:
            full = Path(folder, name)
            mode = full.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise BundleHostile(f"{full}: a link or special file; expected plain files only; do not use this bundle")
            size = full.stat().st_size
            total += size
            _check_limits(size, total, len(files) + 1, path, name)
            files[full.relative_to(path).as_posix()] = full.read_bytes()
    return files


def _check_limits(size: int, total: int, count: int, path: Path, name: str) -> None:
    if size > MEMBER_LIMIT_BYTES:
        raise BundleHostile(f"{path}: {name[:80]!r} is larger than {MEMBER_LIMIT_BYTES >> 20} MiB; do not use this bundle")
    if total > BUNDLE_LIMIT_BYTES:
        raise BundleHostile(f"{path}: more than {BUNDLE_LIMIT_BYTES >> 20} MiB unpacked; do not use this bundle")
    if count > MEMBER_LIMIT_COUNT:
        raise BundleHostile(f"{path}: more than {MEMBER_LIMIT_COUNT} files; do not use this bundle")


def _read_archive(path: Path) -> dict[str, bytes]:
    with open(path, "rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as plain:
                return _read_tar(plain, path)
        if magic == b"\x28\xb5\x2f\xfd":
            with _unzstd(path) as unpacked:
                return _read_tar(unpacked, path)
    raise BundleBroken(f"{path}: neither a .tar.gz nor a .tar.zst; expected an evidence bundle")


class _Member(tarfile.TarInfo):
    """A header that is refused before its content is read: a long name or an extended header may itself be a bomb."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (not member.isreg() and member.size > HEADER_LIMIT_BYTES):
            raise BundleHostile(f"a header larger than {HEADER_LIMIT_BYTES >> 10} KiB; do not use this archive")
        return member


def _read_tar(stream: BinaryIO | gzip.GzipFile, path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = count = 0
    try:
        with tarfile.open(fileobj=_Capped(stream, path), mode="r|", tarinfo=_Member) as tar:
            for member in tar:
                count += 1
                name = _safe(member.name, path)
                if member.isdir():
                    _check_limits(0, total, count, path, name)
                    continue
                if not member.isreg() or member.issparse():
                    raise BundleHostile(f"{path}: member {name[:80]!r} is a link or special file; do not use this archive")
                total += member.size
                _check_limits(member.size, total, count, path, name)
                if name in files:
                    raise BundleHostile(f"{path}: member {name[:80]!r} is there twice; do not use this archive")
                opened = tar.extractfile(member)
                files[name] = opened.read() if opened else b""
                if len(files[name]) != member.size:
                    raise BundleBroken(f"{path}: {name[:80]!r} ends early; copy the archive again")
    except BundleHostile as error:
        raise BundleHostile(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error
    except BundleError:
        raise
    except (*_DAMAGE, *_zstd_errors()) as error:
        raise BundleBroken(f"{path}: the archive ends early or is damaged ({type(error).__name__}); copy it again") from error
    return _without_top_folder(files)


_DAMAGE: tuple[type[Exception], ...] = (tarfile.TarError, EOFError, OSError, zlib.error, OverflowError, ValueError,
                                        RecursionError)


def _zstd_errors() -> tuple[type[Exception], ...]:
    try:
        import zstandard
    except ImportError:
        return ()
    return (zstandard.ZstdError,)


def _without_top_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    tops = {name.split("/", 1)[0] for name in files}
    if "manifest.json" in files or len(tops) != 1 or not all("/" in name for name in files):
        return files
    return {name.split("/", 1)[1]: content for name, content in files.items()}


class _Capped(io.RawIOBase):
    """A stream that ends with BundleHostile when more comes out of it than a bundle may hold."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, path: Path):
        self._stream, self._path, self._left = stream, path, 2 * BUNDLE_LIMIT_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BundleHostile(f"{self._path}: unpacks to more than {BUNDLE_LIMIT_BYTES >> 20} MiB; do not use this archive")
        return data


class _unzstd:
    """The decompressed stream of a .tar.zst, by the zstandard package or the zstd program."""

    def __init__(self, path: Path):
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BinaryIO:
        try:
            import zstandard
        except ImportError:
            program = shutil.which("zstd")
            if program is None:
                raise BundleMissing(f"{self._path}: zstd is not at hand; install zstd, or make a .tar.gz of it") from None
            self._process = subprocess.Popen([program, "-dc", "--memory=256MB", str(self._path)],
                                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            assert self._process.stdout is not None
            return self._process.stdout  # type: ignore[return-value]
        self._file = open(self._path, "rb")
        return zstandard.ZstdDecompressor(max_window_size=1 << 28).stream_reader(self._file, read_across_frames=True)

    def __exit__(self, *exc: object) -> None:
        if self._process is None:
            self._file.close()
            return
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()


def can_write_zst() -> bool:
    """Whether this interpreter or this machine can write .tar.zst."""
    try:
        import zstandard  # noqa: F401
    except ImportError:
        return shutil.which("zstd") is not None
    return True


def _members(files: dict[str, bytes]) -> Iterator[tuple[tarfile.TarInfo, BinaryIO]]:
    for name in sorted(files, key=lambda n: (n != "manifest.json", n)):
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(files[name]), 0o644
        yield member, io.BytesIO(files[name])


def _pack(files: dict[str, bytes], part: Path) -> None:
    with tarfile.open(part, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for member, content in _members(files):
            tar.addfile(member, content)


def _pack_zst(files: dict[str, bytes], part: Path) -> None:
    if not can_write_zst():
        raise BundleError(f"{part.stem}: zstd is not at hand; choose an --out that ends in .tar.gz, or install zstd")
    with tempfile.TemporaryFile() as plain:
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for member, content in _members(files):
                tar.addfile(member, content)
        plain.seek(0)
        try:
            import zstandard
        except ImportError:
            with open(part, "wb") as out:
                subprocess.run([str(shutil.which("zstd")), "-q", "-c"], stdin=plain, stdout=out, check=True)
            return
        with open(part, "wb") as out:
            zstandard.ZstdCompressor().copy_stream(plain, out)


def _lay_out(files: dict[str, bytes], part: Path) -> None:
    part.mkdir()
    for name, content in files.items():
        target = part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
