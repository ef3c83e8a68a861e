"""The detectors of redact.yaml over a text as its readers see it: what a value that nobody knows beforehand looks like.

A value may stand in a text as JSON, a URL or HTML writes it, cut by a terminal's colours, by tags or by a line's end. It is
looked for in each view of the text; what is found is replaced in the text itself, with everything around it untouched.
"""

from __future__ import annotations

import html
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from helpers.grammar import data

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
_PIECE, _NEAR, _BEYOND = 2048, 256, 2048
"""A text is read in pieces of so many characters: a detector is tried only in those that hold one of its words, or nearly."""
_LONGEST_SHORT, _LONGEST = 5, 2000
"""A secret up to the first length may be a word, one beyond the second is no name: both go here, and stay elsewhere."""


class View(NamedTuple):
    """A text as it reads in one way: each character stands for ``starts`` to before ``ends`` of the text as it is written."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def reread(self, pattern: re.Pattern[str], read: Callable[[re.Match[str]], str]) -> View:
        """The view in which every match of ``pattern`` reads as ``read`` says, which is shorter."""
        parts, starts, ends, at = [], array("q"), array("q"), 0
        for match in pattern.finditer(self.text):
            words, start, end = read(match), *match.span()
            parts += [self.text[at:start], words]
            starts += array("q", [*self.starts[at:start], *[self.starts[start]] * len(words)])
            ends += array("q", [*self.ends[at:start], *[self.ends[end - 1]] * len(words)])
            at = end
        if not parts:
            return self
        starts += array("q", self.starts[at:])
        return View("".join([*parts, self.text[at:]]), starts, ends + array("q", self.ends[at:]))

    def differs(self, start: int, end: int) -> bool:
        """Whether anything between two places reads other than in the text; the text as it is written is all new."""
        last, before = min(end, len(self.text)), self.ends[start - 1] if start else 0
        return isinstance(self.starts, range) or self.ends[last - 1] - before != last - start


def views(text: str) -> Iterator[tuple[str, View]]:
    """The text as it stands, then each view that shows something else.

    ``decoded``: without the escapes of JSON, URLs and HTML, up to three deep; a colour reads as a separator. ``uncoloured``:
    also without colours and tags inside a line. ``joined``: and with every line joined to the next.
    """
    plain = decoded = View(text, range(len(text)), range(1, len(text) + 1))
    yield "plain", plain
    for _ in range(3):
        if not _HINT.search(decoded.text):
            break
        decoded = decoded.reread(_ESCAPE, _plain)
    if decoded is not plain:
        yield "decoded", decoded
    for name, pattern in (("uncoloured", _GLUE), ("joined", _WRAP)):
        # Glue first: a colour written as an escape is read here, not by the decoder.
        inner = plain.reread(pattern, lambda match: "")
        if inner is not plain:
            further = _HINT.search(inner.text)
            yield name, inner.reread(_ESCAPE, _plain) if further else inner


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


WORDS = {"OF": "of secrets", "AFTER": "after a secret", "ALPHABET": "of a tokenizer"}
"""Pieces of patterns that are words of look/environment.json."""


def _detectors() -> tuple[Detector, ...]:
    """The rows of redact.yaml, whose pieces may use pieces above them, and a row for each token of look/secrets.json."""
    names = data("look/environment")
    whole = {piece: names[name].replace(" ", "|") for piece, name in WORDS.items()}

    def filled(text: str) -> str:
        for name, piece in whole.items():
            text = text.replace(f"{{{name}}}", piece)
        return "".join(text.split("\n"))

    for name, piece in TABLE["pieces"].items():
        whole[name] = filled(piece)
    detectors = []
    for row in [*TABLE["detectors"], *map(_of_token, data("look/secrets")["tokens"])]:
        flags = frozenset(row.get("flags", "").split())
        how = re.MULTILINE | (re.IGNORECASE if "any-case" in flags else 0)
        patterns: dict[str, Any] = {
            name: re.compile(filled(row.get(name, none)), how)
            for name, none in (("pattern", ""), ("gate", ""), ("needs", ""), ("unless", "(?!)"))
        }
        near = tuple(filled(row["near"]).split("|"))
        about = {name: row[name] for name in ("kind", "what", "example", "source")}
        detectors.append(Detector(near=near, flags=flags, **patterns, **about))
    for name, text in TABLE["secrets"].items():
        _SECRETS[name] = re.compile(filled(text), re.IGNORECASE)
    return tuple(detectors)


def _of_token(row: dict[str, str]) -> dict[str, str]:
    near = "|".join(row["begins"].lower().split())
    pattern = rf"\b(?P<v>{row['shape']})(?![A-Za-z0-9])"
    more = {"kind": "token", "flags": "strong at-hint", "example": ""}
    return {**row, **more, "near": near, "pattern": pattern}


_SECRETS: dict[str, re.Pattern[str]] = {}
DETECTORS = _detectors()


def detected(
    text: str, known: Known, detectors: Iterable[Detector] = DETECTORS
) -> tuple[list[tuple[str, View]], list[Span]]:
    """A text in each of its views, and every value that a detector finds in them, at its place in the text."""
    each = list(views(text))
    return each, [
        placed(span, view, name)
        for name, view in each
        for span in _spans(view, known, detectors, strong=name == "joined")
    ]


def placed(span: Span, view: View, name: str) -> Span:
    """A span of a view as one of the text itself; in the ``joined`` view it may go over the ends of lines."""
    start, end = view.starts[span.start], view.ends[span.end - 1]
    return Span(start, end, span.kind, span.name, name == "joined")


def _spans(view: View, known: Known, detectors: Iterable[Detector], strong: bool) -> Iterator[Span]:
    """What detectors find in one view; ``strong`` tries the surest alone."""
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


def _is_secret(match: re.Match[str], group: str) -> bool:
    """Whether what follows a word as "token" or "password" is one, not code, a type, a count or a placeholder."""
    text, value, begin = match.string, match[group], match.start()
    name = text[begin : match.start(group)]
    if name.lower().startswith("token") and (
        _SECRETS["no_token_before"].search(text[max(0, begin - 12) : begin])
        or not re.search(r"[^\d.,]", value)
    ):
        return False
    pin = _SECRETS["password"].search(name) and re.fullmatch(r"\d{4,}", value)
    if _SECRETS["no_secret"].fullmatch(value) and not pin:
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
