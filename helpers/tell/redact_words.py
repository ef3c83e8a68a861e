"""One text without the values that must not leave, and the count of what was replaced."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field

from . import redact_patterns as patterns
from .redact_known import Known, Span
from .redact_pictures import without_words
from .redact_views import JOINT, View, glue, views

_BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/_-])(?:[A-Za-z0-9+/]{60,76}\r?\n)*[A-Za-z0-9+/_-]{20,}={0,2}(?![A-Za-z0-9+/=])"
)
_PACKED = (
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"%PDF",
    b"SQLite",
    b"PAR1",
    b"\x80\x02}",
    b"\x80\x04\x95",
    b"\x80\x05\x95",
)
_DEPTH = 2
_LINES_LEAST = 5
"""A known value cut by the end of a line is looked for from this length on."""


@dataclass
class Replaced:
    """What was replaced: how often each kind at each place, never the value. ``notes`` name what could not be read for sure."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def kinds(self) -> dict[str, int]:
        """How many of each kind, by kind."""
        found: Counter[str] = Counter()
        for (kind, _), count in self.counts.items():
            found[kind] += count
        return dict(sorted(found.items()))

    def rows(self) -> list[tuple[str, int, str]]:
        """Kind, count and place, in order."""
        return sorted((kind, count, where) for (kind, where), count in self.counts.items())

    def lines(self) -> list[str]:
        """The report for a person: a line a kind, with its places, then the notes."""
        told = []
        for kind, count in self.kinds().items():
            places = [where for one, _, where in self.rows() if one == kind]
            more = f" and {len(places) - 5} more places" if len(places) > 5 else ""
            told.append(f"{kind}: {count} in {'; '.join(places[:5])}{more}")
        return [*(told or ["nothing to replace was found"]), *self.notes]


def redact_text(
    text: str, known: Known, replaced: Replaced | None = None, where: str = "text"
) -> str:
    """The text with a pseudonym for every value of ``known`` and every value that a pattern finds.

    Values found by what stands before them are added to ``known``, so the same text later has the same pseudonyms.
    """
    learn(text, known)
    return replace(text, known, replaced, where)


def learn(text: str, known: Known) -> None:
    """Remember the values that a text tells: the user of a home folder, the host of a prompt, what has a shape of its own."""
    if text not in known.read:
        known.read[text] = _Read(text, known)
        for match in _BASE64.finditer(text):
            inner = decoded_base64(match.group())
            if isinstance(inner, str):
                learn(inner, known)


class _Read:
    """A text in each of its views, with what patterns find in it, as places in the text."""

    def __init__(self, text: str, known: Known):
        self.views = list(views(text))
        self.found = [
            _placed(span, view, name)
            for name, view in self.views
            for span in patterns.spans(view, known, strong=name == "joined")
        ]


def _placed(span: Span, view: View, name: str) -> Span:
    start, end = view.place(span.start, span.end)
    return Span(start, end, span.kind, span.name, name == "joined")


def replace(
    text: str, known: Known, replaced: Replaced | None = None, where: str = "text", depth: int = 0
) -> str:
    """The text with pseudonyms, by what is known so far and by patterns; ``learn`` all texts first."""
    replaced = Replaced() if replaced is None else replaced
    for _ in range(4):
        read = known.read.pop(text, None) or _Read(text, known)
        found = list(read.found)
        for name, view in read.views:
            found += [
                _placed(span, view, name)
                for span in known.spans(view.text, _LINES_LEAST if name == "joined" else 0)
            ]
        text, again = _put(text, found, replaced, where)
        if not again:
            break
    if depth < _DEPTH:
        text = _BASE64.sub(
            lambda match: _payload(match.group(), known, replaced, where, depth), text
        )
    return text


def _put(text: str, found: list[Span], replaced: Replaced, where: str) -> tuple[str, bool]:
    """The text with the spans replaced, the longest of those that overlap; whether any had to wait."""
    parts, at, waiting = [], 0, False
    for span in sorted(found, key=lambda s: (s.start, -s.end)):
        piece = text[span.start : span.end]
        if span.start < at:
            waiting |= span.end > at
        elif not span.joined or "\n" in piece or JOINT in piece or "\\n" in piece:
            parts += [text[at : span.start], span.name, glue(piece, span.joined)]
            at = span.end
            replaced.counts[span.kind, where] += 1
    return ("".join([*parts, text[at:]]), waiting) if parts else (text, False)


def decoded_base64(text: str) -> str | bytes | None:
    """What a run of base64 holds: a text, the bytes of a known binary form, or None where it is no base64 of either."""
    plain = "".join(text.split())
    try:
        raw = base64.b64decode(
            plain.replace("-", "+").replace("_", "/") + "=" * (-len(plain) % 4), validate=True
        )
    except (binascii.Error, ValueError):
        return None
    try:
        inner = raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw if raw.startswith((*_PACKED, b"\x89PNG", b"\xff\xd8\xff")) else None
    if all(char.isprintable() or char in "\r\n\t\x1b" for char in inner):
        return inner
    return raw if raw.startswith(_PACKED) else None


def _payload(text: str, known: Known, replaced: Replaced, where: str, depth: int) -> str:
    inner = decoded_base64(text)
    if inner is None:
        return text
    if isinstance(inner, str):
        learn(inner, known)
        clean = replace(inner, known, replaced, where + " (base64)", depth + 1)
        return text if clean == inner else _encoded(clean.encode(), text)
    picture = without_words(inner)
    if picture is None:
        replaced.counts["payload", where] += 1
        return known.name("payload", hashlib.sha256(text.encode()).hexdigest())
    return text if picture == inner else _encoded(picture, text)


def _encoded(raw: bytes, like: str) -> str:
    """Base64 of ``raw``, in the alphabet, padding and line length of ``like``."""
    line = like.split("\n")[0].rstrip("\r") if "\n" in like else ""
    text = base64.b64encode(raw).decode()
    if "-" in like or "_" in like:
        text = text.replace("+", "-").replace("/", "_")
    if not like.endswith("=") and len("".join(like.split())) % 4:
        text = text.rstrip("=")
    return (
        "\n".join(text[i : i + len(line)] for i in range(0, len(text), len(line))) if line else text
    )
