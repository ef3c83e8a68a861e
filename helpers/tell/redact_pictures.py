"""Pictures without their words: a PNG or JPEG keeps what draws it and loses comments, EXIF, XMP, profiles, times and tails."""

from __future__ import annotations

import struct
import zlib

PNG = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = (
    b"IHDR",
    b"PLTE",
    b"IDAT",
    b"IEND",
    b"tRNS",
    b"gAMA",
    b"cHRM",
    b"sRGB",
    b"pHYs",
    b"sBIT",
    b"bKGD",
    b"acTL",
    b"fcTL",
    b"fdAT",
)


def without_words(raw: bytes) -> bytes | None:
    """The same picture without metadata; None where it is no whole PNG or JPEG. Words drawn in its pixels are not read."""
    return (
        _png(raw)
        if raw.startswith(PNG)
        else _jpeg(raw)
        if raw.startswith(b"\xff\xd8\xff")
        else None
    )


def _png(raw: bytes) -> bytes | None:
    kept, at = [PNG], len(PNG)
    while at + 12 <= len(raw):
        size, kind = struct.unpack(">I4s", raw[at : at + 8])
        end = at + 12 + size
        if end > len(raw) or struct.unpack(">I", raw[end - 4 : end])[0] != zlib.crc32(
            raw[at + 4 : end - 4]
        ):
            return None
        if kind in _PNG_KEPT:
            kept.append(raw[at:end])
        at = end
        if kind == b"IEND":
            return b"".join(kept)
    return None


def _jpeg(raw: bytes) -> bytes | None:
    """Application segments but JFIF's (APP0) and Adobe's colour transform (APP14) go, and so do comments."""
    kept, at = [raw[:2]], 2
    while at + 2 <= len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if marker == 0xD9:
            return b"".join([*kept, raw[at : at + 2]])
        end = at + 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
        if marker == 0xDA:
            # The picture itself: until a marker that is neither a stuffed byte nor a restart.
            while end + 1 < len(raw) and (
                raw[end] != 0xFF or raw[end + 1] == 0 or 0xD0 <= raw[end + 1] <= 0xD7
            ):
                end += 1
        if end < at + 4 or end + 1 >= len(raw):
            return None
        if not (0xE1 <= marker <= 0xED or marker in (0xEF, 0xFE)):
            kept.append(raw[at:end])
        at = end
    return None
