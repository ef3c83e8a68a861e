"""The detectors of redact.yaml over a text as its readers see it: what a value that nobody knows beforehand looks like.

A value may stand in a text as JSON, a URL or HTML writes it, cut by a terminal's colours, by tags or by a line's end. It is
looked for in each view of the text; what is found is replaced in the text itself, with everything around it untouched.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from .redact_known import ACCOUNTS, COMMON, TABLE, Known, Span, lower, occurrences

JOINT = "\n\x1e\n"
"""Stands between the items of a list of texts while they are read as one."""
_COLOUR = r"(?:\x1b|\\x1b|\\u001[bB]|\\033|\\e)\[[0-9;:?]*[A-Za-z]"
_INLINE = (
    r"</?(?:span|b|i|u|em|strong|a|code|font|mark|wbr|tspan|kbd|tt|small|sub|sup)\b[^<>]{0,300}>"
)
_ESCAPE = re.compile(
    rf"(?P<colour>{_COLOUR})|(?P<bytes>(?:%[89A-Fa-f][0-9A-Fa-f])+|(?:\\x[89A-Fa-f][0-9A-Fa-f])+)"
    r"|%(?P<url>[0-7][0-9A-Fa-f])|\\x(?P<hex>[0-7][0-9A-Fa-f])|\\u(?P<wide>[0-9A-Fa-f]{4})|\\(?P<one>[nrt\"'/\\])"
    r"|(?P<entity>&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|amp|lt|gt|quot|apos|commat|sol|period|colon|lowbar|hyphen|num|nbsp);)"
)
_GLUE = re.compile(rf"{_COLOUR}|{_INLINE}|[\u00ad\u200b-\u200d\u2060\ufeff]", re.IGNORECASE)
_WRAP = re.compile(
    rf"{_GLUE.pattern}|[ \t]*(?:\\?\r?\n|\\n)(?:[ \t>|\u2502\u2503\x1e]*\\?\n)*[ \t>|\u2502\u2503]*",
    re.IGNORECASE,
)
_HINT = re.compile(r"[\x1b\\%&]")
_NOTHING = re.compile(r"(?!)")
_PIECE, _NEAR, _BEYOND = 2048, 256, 2048
"""A text is read in pieces of so many characters: a detector is tried only in those that hold one of its words, or nearly."""
_LONGEST_SHORT, _LONGEST = 5, 2000
"""A secret up to the first length may be a word, one beyond the second is no name: both go here, and stay elsewhere."""


class View:
    """A text in which every match of ``pattern`` reads as ``read`` says; ``place`` leads back into the first text."""

    def __init__(
        self,
        text: str,
        pattern: re.Pattern[str] = _NOTHING,
        read: Callable[[re.Match[str]], str] = str,
        under: View | None = None,
    ):
        self.under = under
        self._from: list[int] = []
        self._pieces: list[tuple[int, int, int]] = []
        parts, at, length = [], 0, 0
        for match in pattern.finditer(text):
            words = read(match)
            length += match.start() - at
            self._from.append(length)
            self._pieces.append((match.start(), match.end(), len(words)))
            parts += [text[at : match.start()], words]
            at, length = match.end(), length + len(words)
        self.text = "".join([*parts, text[at:]]) if parts else text

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def differs(self, start: int, end: int) -> bool:
        """Whether anything between two places reads other than in the text; the plain view is all new."""
        if not self._pieces or bisect_left(self._from, start - 1) < bisect_right(self._from, end):
            return True
        last = min(end, len(self.text)) - 1
        return bool(self.under and self.under.differs(self._at(start)[0], self._at(last)[1]))

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The piece of the first text that reads as ``start`` to ``end`` here."""
        first, last = self._at(start)[0], self._at(end - 1)[1]
        return self.under.place(first, last) if self.under else (first, last)

    def _at(self, index: int) -> tuple[int, int]:
        number = bisect_right(self._from, index) - 1
        if number < 0:
            return index, index + 1
        (start, end, length), first = self._pieces[number], self._from[number]
        if index < first + length:
            return start, end
        place = end + index - first - length
        return place, place + 1


def views(text: str) -> Iterator[tuple[str, View]]:
    """The text as it stands, then each view that shows something else.

    ``decoded``: without the escapes of JSON, URLs and HTML, up to three deep; a colour reads as a separator. ``uncoloured``:
    also without colours and tags inside a line. ``joined``: and with every line joined to the next.
    """
    yield "plain", View(text)
    decoded: View | None = None
    for _ in range(3):
        before = decoded.text if decoded else text
        deeper = View(before, _ESCAPE, _plain, decoded) if _HINT.search(before) else None
        if not deeper or deeper.text == before:
            break
        decoded = deeper
    if decoded:
        yield "decoded", decoded
    for name, pattern in (("uncoloured", _GLUE), ("joined", _WRAP)):
        # Glue first: a colour written as an escape is read here, not by the decoder.
        inner = View(text, pattern, lambda match: "")
        if inner:
            further = _HINT.search(inner.text)
            yield name, View(inner.text, _ESCAPE, _plain, inner) if further else inner


def glue(text: str, lines: bool) -> str:
    """The colours, tags and, with ``lines``, line ends of a piece: they stay where a value around them goes."""
    return "".join(match.group() for match in (_WRAP if lines else _GLUE).finditer(text))


def _plain(match: re.Match[str]) -> str:
    kind, text = match.lastgroup, match.group()
    if kind == "colour":
        return "\x1b"
    if kind == "bytes":
        return bytes.fromhex(text.replace("%", "").replace("\\x", "")).decode("utf-8", "replace")
    if kind == "one":
        return {"n": "\n", "r": "\r", "t": "\t"}.get(match["one"], match["one"])
    if kind == "entity":
        return html.unescape(text)
    return chr(int(match[kind or ""], 16))


@dataclass(frozen=True)
class Detector:
    """A row of redact.yaml, compiled: a kind of value and how it is recognised. Its columns are described there."""

    kind: str
    what: str
    near: tuple[str, ...]
    flags: frozenset[str]
    pattern: re.Pattern[str]
    gate: re.Pattern[str]
    needs: re.Pattern[str]
    unless: re.Pattern[str]
    example: str
    source: str

    def matches(
        self, text: str, low: str, pieces: list[tuple[int, str]]
    ) -> Iterator[re.Match[str]]:
        """Where the pattern fits, in the pieces (where each begins, and its text in lower case) that hold a word of ``near``."""
        if "at-hint" in self.flags:
            places = (at for word in self.near for at in occurrences(word, low))
            yield from filter(None, map(partial(self.pattern.match, text), places))
            return
        for start, near in pieces:
            if any(word in near for word in self.near) and self.gate.search(near):
                for match in self.pattern.finditer(text, start, start + _PIECE + _BEYOND):
                    if match.start() >= start + _PIECE:
                        break
                    yield match

    def spans(self, match: re.Match[str], known: Known) -> Iterator[Span]:
        """The values of one match. They are remembered, to be found elsewhere too."""
        for group, value in match.groupdict().items():
            if value and group[0] == "v" and self._is_value(match, group):
                login = "login" in self.flags and value.lower() in COMMON - ACCOUNTS
                name = (
                    known.name(self.kind, value, login)
                    if login or _only_here(self.kind, value)
                    else known.add(self.kind, value)
                )
                if name:
                    yield Span(match.start(group), match.end(group), self.kind, name)

    def _is_value(self, match: re.Match[str], group: str) -> bool:
        start, text = match.start(group), match.string
        if self.unless.search(text[max(0, start - 60) : start]):
            return False
        if "secret" in self.flags and not _is_secret(match, group):
            return False
        return bool(self.needs.search(match[group]))


def _only_here(kind: str, value: str) -> bool:
    if len(value) > _LONGEST:
        return True
    return kind in ("token", "url-credential") and len(value) <= _LONGEST_SHORT


def _compiled(rows: Iterable[dict[str, Any]], pieces: dict[str, str]) -> tuple[Detector, ...]:
    """The detectors of the table; the pieces may use pieces above them."""
    whole: dict[str, str] = {}

    def filled(text: str) -> str:
        for name, piece in whole.items():
            text = text.replace(f"{{{name}}}", piece)
        return "".join(text.split("\n"))

    for name, piece in pieces.items():
        whole[name] = filled(piece)
    detectors = []
    for row in rows:
        flags = frozenset(row.get("flags", "").split())
        how = re.MULTILINE | (re.IGNORECASE if "any-case" in flags else 0)
        patterns: dict[str, Any] = {
            name: re.compile(filled(row.get(name, none)), how)
            for name, none in (("pattern", ""), ("gate", ""), ("needs", ""), ("unless", "(?!)"))
        }
        near = tuple(row["near"].split("|"))
        about = {name: row[name] for name in ("kind", "what", "example", "source")}
        detectors.append(Detector(near=near, flags=flags, **patterns, **about))
    return tuple(detectors)


DETECTORS = _compiled(TABLE["detectors"], TABLE["pieces"])


def spans(
    view: View, known: Known, strong: bool = False, detectors: Iterable[Detector] = DETECTORS
) -> Iterator[Span]:
    """Every value that a detector finds; ``strong`` tries the surest alone."""
    text, low = view.text, lower(view.text)
    pieces = [
        (start, low[max(0, start - 64) : start + _PIECE + _NEAR])
        for start in range(0, len(text), _PIECE)
        if view.differs(start, start + _PIECE + _NEAR)
    ]
    for detector in detectors:
        if not strong or "strong" in detector.flags:
            for match in detector.matches(text, low, pieces):
                yield from detector.spans(match, known)


_NO_TOKEN_BEFORE = re.compile(
    r"(?:pad|eos|bos|unk|mask|cls|sep|special|next|num|per|max|min|first|last|prompt|image|audio|new"
    r"|stop|by|each|s)[_ -]?$",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"none|null|true|false|str|int|bytes|bool|optional|any|\.\.\.|[*x•]+|os\.environ.*|getpass.*|"
    r"(?:self|args|cfg|config|settings|kwargs)\.\w+|[$%{<].*|[\d.,eE+_-]*"
    r"|[\d.,]+(?:[munµ]?s|[kmgt]i?b|%|x|it/s)",
    re.IGNORECASE,
)
_PASSWORD, _PIN = re.compile("pass|pwd|psk", re.IGNORECASE), re.compile(r"\d{4,}")


def _is_secret(match: re.Match[str], group: str) -> bool:
    """Whether what follows a word as "token" or "password" is one, not code, a type, a count or a placeholder."""
    text, value, begin = match.string, match[group], match.start()
    name = text[begin : match.start(group)]
    if name.lower().startswith("token") and (
        _NO_TOKEN_BEFORE.search(text[max(0, begin - 12) : begin])
        or not re.search(r"[^\d.,]", value)
    ):
        return False
    if _NO_SECRET.fullmatch(value) and not (_PASSWORD.match(name) and _PIN.fullmatch(value)):
        return False
    if group == "v":  # in quotes
        return not value.isspace()
    after = text[match.end(group) :][:1]
    if after in ("(", "[") or value.startswith("="):
        return False
    if not re.fullmatch(r"[A-Za-z_.]+", value):
        return True
    # A name of code, unless it stands as a setting of a file does.
    setting = re.search(r"[A-Z]{4}", name) or ":" in name or "= " not in name
    return after not in (",", ")", "]") and value.lower() not in name.lower() and bool(setting)
