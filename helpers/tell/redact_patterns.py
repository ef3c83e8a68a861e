"""The detectors of redact.yaml over a text as its readers see it: what a value that nobody knows beforehand looks like.

A value may stand in a text as JSON, a URL or HTML writes it, cut by a terminal's colours, by tags or by a line's end. It is
looked for in each view of the text; what is found is replaced in the text itself, with everything around it untouched.
"""

from __future__ import annotations

import html
import re
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from helpers.grammar import data

from .redact_known import (
    COMMON,
    PSEUDONYM,
    TABLE,
    WRITING,
    Known,
    Span,
    filled,
    lower,
    names_nobody,
    occurrences,
)

JOINT = "\n\x1e\n"
"""Stands between the items of a list of texts while they are read as one."""
SEPARATOR = "\x1f"
"""What a colour reads as where it parts two values: white space, as regular expressions see it."""
_PIECE, _NEAR, _BEYOND = 2048, 256, 2048
"""A text is read in pieces of so many characters: a detector is tried only in those that hold one of its words, or nearly."""
_LONGEST = 2000
"""A value beyond this length goes here, and is not looked for elsewhere."""


class View:
    """A text as it reads in one way, which knows the place that each of its characters has in the text as it is written."""

    def __init__(self, text: str, of: View | None = None):
        self.text, self.of = text, of
        self._at: list[int] = []
        self._pieces: list[tuple[int, int, int]] = []

    def reread(
        self, pattern: re.Pattern[str], read: Callable[[re.Match[str]], str], before: str = ""
    ) -> View:
        """The view in which every match of ``pattern``, with what of ``before`` stands before it, reads as ``read`` says."""
        parts, new, at, length = [], View("", self), 0, 0
        for match in pattern.finditer(self.text):
            words, start, end = read(match), *match.span()
            while before and start > at and self.text[start - 1] in before:
                start -= 1
            parts += [self.text[at:start], words]
            length += start - at + len(words)
            new._at.append(length - len(words))
            new._pieces.append((length, start, end))
            at = end
        new.text = "".join([*parts, self.text[at:]])
        return new if parts else self

    def place(self, at: int, end: bool = False) -> int:
        """Where the character at a place begins in the text as it is written; with ``end``, where it ends."""
        if self.of is None:
            return at + end
        number = bisect(self._at, at) - 1
        if number < 0:
            return self.of.place(at, end)
        after, start, stop = self._pieces[number]
        if at < after:
            return self.of.place(stop - 1 if end else start, end)
        return self.of.place(stop + at - after, end)

    def differs(self, start: int, end: int) -> bool:
        """Whether anything between two places reads other than in the text; the text as it is written is all new."""
        if self.of is None:
            return True
        first = bisect_left(self._at, start)
        if first < bisect(self._at, end):
            return True
        shift = 0 if not first else self._pieces[first - 1][2] - self._pieces[first - 1][0]
        return self.of.of is not None and self.of.differs(start + shift, end + shift)


def views(text: str) -> Iterator[tuple[str, View]]:
    """The text as it stands, then each view that shows something else.

    ``decoded``: without the escapes of JSON, URLs and HTML, up to three deep; a colour reads as a separator. ``uncoloured``:
    also without colours and tags inside a line. ``joined``: and with every line joined to the next.
    """
    plain = View(text)
    yield "plain", plain
    quoted = bool(WRITING["quoted_signs"].search(text))
    decoded = _decoded(plain.reread(WRITING["quoted"], _plain) if quoted else plain)
    if decoded is not plain:
        yield "decoded", decoded
    literal = plain.reread(WRITING["literals"], _joined)
    if literal is not plain:
        yield "literals", literal
    for name, pattern, before in (
        ("uncoloured", WRITING["glue"], ""),
        ("joined", WRITING["wrap"], TABLE["writing_pieces"]["BARS"]),
    ):
        # Glue first: a colour written as an escape is read here, not by the decoder.
        inner = plain.reread(pattern, lambda match: "", before)
        if inner is not plain:
            yield name, _decoded(inner.reread(WRITING["quoted"], _plain) if quoted else inner)


def _joined(match: re.Match[str]) -> str:
    return (
        "".join(['"', *re.findall(r"[\"']([^\"'\n]*)[\"']", match["list"]), '"'])
        if match["list"]
        else ""
    )


def _decoded(view: View) -> View:
    for _ in range(3):
        if not WRITING["hint"].search(view.text):
            break
        view = view.reread(WRITING["escape"], _plain)
    return view


def glue(text: str, lines: bool) -> str:
    """The colours, tags and, with ``lines``, line ends of a piece: they stay where a value around them goes."""
    return "".join(
        match.group() for match in (WRITING["wrap"] if lines else WRITING["glue"]).finditer(text)
    )


def last_wrap(text: str, start: int, end: int) -> re.Match[str] | None:
    """The last end of a line, or what parts a value as one does, between two places."""
    return max(WRITING["wrap"].finditer(text, start, end), key=re.Match.start, default=None)


def _plain(match: re.Match[str]) -> str:
    kind, text = match.lastgroup, match.group()
    if kind in ("colour", "end"):
        return SEPARATOR if kind == "colour" else "\n"
    if kind == "bytes":
        return bytes.fromhex(text.replace("%", "").replace("\\x", "")).decode("utf-8", "replace")
    if kind == "one":
        return {"n": "\n", "r": "\r", "t": "\t"}.get(match["one"], match["one"])
    if kind == "broad":
        return chr(ord(text) - 0xFEE0)
    if kind == "entity":
        return html.unescape(text)
    if kind is None:  # a soft end of a line
        return ""
    return chr(int(match[kind], 8 if kind == "octal" else 16))


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
        self, text: str, low: str, pieces: list[tuple[int, str]], grams: set[str]
    ) -> Iterator[re.Match[str]]:
        """Where the pattern fits, in the pieces (where each begins, and its text in lower case) that hold a word of ``near``.

        ``grams``: every three characters that follow each other in the text, by which most words are known not to stand there.
        """
        words = [
            one for one in self.near if len(one) < 3 or (one[:3] in grams and one[-3:] in grams)
        ]
        if "at-hint" in self.flags:
            places = (at for word in words for at in occurrences(word, low))
            yield from filter(None, map(partial(self.pattern.match, text), places))
            return
        for start, near in pieces if words else ():
            if any(word in near for word in words) and self.gate.search(near):
                for match in self.pattern.finditer(text, start, start + _PIECE + _BEYOND):
                    if match.start() >= start + _PIECE:
                        break
                    yield match

    def spans(self, match: re.Match[str], known: Known, joined: bool) -> Iterator[Span]:
        """The values of one match. They are remembered, to be found elsewhere too."""
        for group, value in match.groupdict().items():
            if joined and "long" in self.flags and not WRITING["random"].fullmatch(value or ""):
                continue
            if value and group[0] == "v" and self._is_value(match, group):
                login = "login" in self.flags and names_nobody(self.kind, value)
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
        if "iban" in self.flags and not _is_iban(match[group]):
            return False
        if "card" in self.flags and not _is_card(match[group]):
            return False
        return bool(self.needs.search(match[group]))


def _is_iban(value: str) -> bool:
    """Whether the check digits of ISO 13616 hold, which of a hundred other texts one does."""
    plain = value.replace(" ", "")
    return int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4])) % 97 == 1


def _is_card(value: str) -> bool:
    """Whether the check digit of ISO 7812 holds."""
    digits = [int(char) for char in reversed(value) if char.isdigit()]
    return (
        sum(sum(divmod(2 * one, 10)) if at % 2 else one for at, one in enumerate(digits)) % 10 == 0
    )


def _only_here(kind: str, value: str) -> bool:
    """Whether a value goes where it stands and stays elsewhere: too long for a name, or a secret that is a word or a number."""
    plain = len(value) <= 4 or value.lower() in COMMON or (len(value) <= 8 and value.isdigit())
    return len(value) > _LONGEST or (kind in ("token", "url-credential") and plain)


def _detectors() -> tuple[Detector, ...]:
    """The rows of redact.yaml, whose pieces may use pieces above them, and a row for each token of look/secrets.json."""
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
    # Where a beginning leaves no doubt, lines joined to one may stand right before it.
    sure = all(len(one) >= 4 and one[-1] in "_-" for one in row["begins"].split())
    pattern = rf"{'' if sure else '(?<![A-Za-z0-9_])'}(?P<v>{row['shape']})(?![A-Za-z0-9])"
    more = {"kind": "token", "flags": "strong at-hint", "example": ""}
    return {**row, **more, "near": near, "pattern": pattern}


_SECRETS: dict[str, re.Pattern[str]] = {}
DETECTORS = _detectors()


def detected(
    text: str, known: Known, detectors: Iterable[Detector] = DETECTORS
) -> tuple[list[tuple[str, View]], list[Span]]:
    """A text in each of its views, and every value that a detector finds in them, at its place in the text."""
    each = list(views(text))
    found = [
        placed(span, view, name)
        for name, view in each
        for span in _spans(view, known, detectors, strong=name == "joined")
    ]
    tables = each[:1] + [one for one in each if one[0] == "uncoloured"]
    if detectors is DETECTORS:
        found += [
            placed(span, view, name) for name, view in tables for span in _cells(view.text, known)
        ]
    return each, found


_COLUMNS = {name: row["kind"] for row in TABLE["columns"] for name in row["names"].split()}


def _cells(text: str, known: Known) -> Iterator[Span]:
    """What stands below the heads of redact.yaml: in fields of equal number, or of words that begin or end where heads do."""
    below = 0
    for head in WRITING["head"].finditer(text):
        start, end = text.rfind("\n", 0, head.start()) + 1, text.find("\n", head.end())
        line = text[start:end].replace("(REASON)", "")
        cut = re.compile(next((rf"[^{one}]+" for one in ",|" if line.count(one) > 1), r"\S+"))
        names = list(cut.finditer(line))
        upper = sum(name.group().isupper() for name in names)
        sure = len(names) > 2 and (cut.pattern != r"\S+" or upper * 2 > len(names))
        if start < below or end < 0 or not sure or WRITING["no_table"].search(line):
            continue
        below = end
        for row in re.compile(".+").finditer(text, end + 1, end + 20_000):
            fields = list(cut.finditer(row.group()))
            pairs = list(zip(names, fields, strict=False))
            if len(fields) != len(names) or cut.pattern == r"\S+":
                edges = {one.start() for one in fields}, {one.end() for one in fields}
                pairs = [
                    (a, b)
                    for a in names
                    for b in fields
                    if a.start() < b.end() and b.start() < a.end()
                ]
                kept = sum(a.start() in edges[0] or a.end() in edges[1] for a in names)
                sure = cut.pattern == r"\S+" and kept * 3 > 2 * len(names)
            if row.start() > below + 1 or not sure:
                break
            below = row.end()
            for name, field in pairs:
                part = re.fullmatch(WRITING["head"], name.group().strip())
                word = re.search(rf"(?:{'|'.join(_COLUMNS)})$", name.group().strip(), re.IGNORECASE)
                kind = _COLUMNS.get(word.group().lower(), "") if part and word else ""
                value = field.group().strip().rstrip("+*:")
                if kind and WRITING["cell"].fullmatch(value) and (named := known.add(kind, value)):
                    at = row.start() + field.start() + field.group().index(value)
                    yield Span(at, at + len(value), kind, named)


def placed(span: Span, view: View, name: str) -> Span:
    """A span of a view as one of the text itself; in the ``joined`` view it may go over the ends of lines."""
    start, end = view.place(span.start), view.place(span.end - 1, end=True)
    return Span(start, end, span.kind, span.name, name == "joined")


def _spans(view: View, known: Known, detectors: Iterable[Detector], strong: bool) -> Iterator[Span]:
    """What detectors find in one view; ``strong`` tries the surest alone."""
    text, low = view.text, lower(view.text)
    pieces = [
        (start, low[max(0, start - 64) : start + _PIECE + _NEAR])
        for start in range(0, len(text), _PIECE)
        if view.differs(start, start + _PIECE + _NEAR)
    ]
    grams = {low[at : at + 3] for at in range(len(low))}
    for detector in detectors:
        if not strong or detector.flags & {"strong", "long"}:
            for match in detector.matches(text, low, pieces, grams):
                yield from detector.spans(match, known, strong)


def _is_secret(match: re.Match[str], group: str) -> bool:
    """Whether what follows a word as "token" or "password" is one, not code, a type, a count or a placeholder."""
    text, value, begin = match.string, match[group], match.start()
    name = text[begin : match.start(group)]
    ours = PSEUDONYM.finditer(text, max(0, begin - 16), begin + 24)
    if any(one.start() <= begin < one.end() for one in ours):
        return False
    if name.lower().startswith("token") and (
        _SECRETS["no_token_before"].search(text[max(0, begin - 12) : begin])
        or not re.search(r"[^\d.,]", value)
    ):
        return False
    pin = _SECRETS["password"].search(name) and re.fullmatch(r"\d{4,}", value)
    if _SECRETS["no_secret"].fullmatch(value) and not pin:
        return False
    if name[-1:] in ("'", '"', "`"):
        return not value.isspace()
    after = text[match.end(group) :][:1]
    if after in ("(", "[") or value.startswith("="):
        return False
    if not re.fullmatch(r"[A-Za-z_.]+", value):
        return True
    # A name of code, unless it stands as a setting of a file does.
    setting = re.search(r"[A-Z]{4}", name) or ":" in name or "= " not in name
    return after not in (",", ")", "]") and value.lower() not in name.lower() and bool(setting)
