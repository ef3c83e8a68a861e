"""The detectors of redact.yaml over a text as its readers see it: what a value that nobody knows beforehand looks like.

A value may stand in a text as JSON, a URL or HTML writes it, cut by a terminal's colours, by tags or by a line's end. It is
looked for in each view of the text; what is found is replaced in the text itself, with everything around it untouched.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import unicodedata
import zlib
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

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
_MOST_UNPACKED = 1 << 20
_PACKED = (b"\x1f\x8b", b"\x78\x9c", b"\x78\x01", b"\x78\xda", b"\x78\x5e")
HIDDEN = "\ue000"
"""Stands around one word that was written as digits or in an encoding."""
_LONGEST = 2000
"""A value beyond this length goes here, and is not looked for elsewhere."""


class View:
    """A text as it reads in one way, which knows the place that each of its characters has in the text as it is written."""

    def __init__(self, text: str, of: View | None = None):
        self.text, self.of = text, of
        self._at: list[int] = []
        self._pieces: list[tuple[int, int, int]] = []

    def reread(
        self,
        pattern: re.Pattern[str],
        read: Callable[[re.Match[str]], str | None],
        before: str = "",
    ) -> View:
        """The view in which every match of ``pattern``, with what of ``before`` stands before it, reads as ``read`` says.

        A match of which ``read`` says None stays as it is.
        """
        parts, new, at, length = [], View("", self), 0, 0
        for match in pattern.finditer(self.text):
            words, start, end = read(match), *match.span()
            if words is None:
                continue
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

    ``decoded``: without the escapes of JSON, URLs and HTML, up to three deep; a colour reads as a separator. ``literals``: and
    with literals that a program puts together as one. ``unpacked``: with what is written in digits or in an encoding as the
    text that it stands for. ``uncoloured``: without colours and tags inside a line. ``joined``: and with every line joined to
    the next.
    """
    plain = View(text)
    yield "plain", plain
    quoted = bool(WRITING["quoted_signs"].search(text))
    decoded = _decoded(plain.reread(WRITING["quoted"], _plain) if quoted else plain)
    if decoded is not plain:
        yield "decoded", decoded
    literal = decoded.reread(WRITING["literals"], _joined)
    if literal is not decoded:
        yield "literals", literal
    for view in (plain, *([literal] if literal is not plain else [])):
        if (unpacked := _unpacked(view)) is not view:
            yield "unpacked", unpacked
    for name, pattern, before in (
        ("uncoloured", WRITING["glue"], ""),
        ("joined", WRITING["wrap"], TABLE["writing_pieces"]["BARS"]),
    ):
        # Glue first: a colour written as an escape is read here, not by the decoder.
        inner = plain.reread(pattern, lambda match: "", before)
        if inner is not plain:
            yield name, _decoded(inner.reread(WRITING["quoted"], _plain) if quoted else inner)


def _joined(match: re.Match[str]) -> str:
    items = next(filter(None, (match["list"], match["given"], match["inside"])), "")
    return "".join(['"', *re.findall(r"[\"']([^\"'\n]*)[\"']", items), '"']) if items else ""


def _unpacked(view: View) -> View:
    """The view with every run of digits or of an encoding as the text that it stands for, one in another too."""
    for _ in range(3):
        before = view
        for row in TABLE["runs"]:
            if not row["signs"] or any(sign in view.text for sign in row["signs"].split(" ")):
                pattern, way = WRITING[row["way"]], row["way"]
                view = view.reread(pattern, lambda match, way=way: _run(way, match))  # type: ignore[misc]
        if view is before:
            break
        view = _decoded(view)
    return view


def _run(way: str, match: re.Match[str]) -> str | None:
    """What a run stands for, between marks where it is one word that looks random; None where it is no text."""
    text = _decoded_run(way, match)
    hidden = text and WRITING["hidden"].fullmatch(text.strip("\"'"))
    return f"{HIDDEN}{text}{HIDDEN}" if hidden else text


def _decoded_run(way: str, match: re.Match[str]) -> str | None:
    run = match.group()
    if way in ("spaced", "nulled"):
        return re.sub(" " if way == "spaced" else r"\\x00|\\0|\0", "", run)
    if way == "chars":
        return "".join(re.findall(r"[\"'](.)[\"']", run))
    if way == "turned":
        return f'"{next(filter(None, match.groups()))[::-1]}"'
    if way == "rot13":
        return codecs.decode(run, "rot13")
    if way in ("base85", "ascii85"):
        decode = base64.b85decode if way == "base85" else base64.a85decode
        run = run.removeprefix("<~").removesuffix("~>")
        # Most are no such thing, as their beginning tells.
        begin = _tried(decode, run[:10])
        sure = begin[:2] in _PACKED or read_bytes(begin)
        return read_bytes(_tried(decode, run)) if sure else None
    if way == "css":
        return "".join(chr(int(one, 16)) for one in re.findall(r"\\([0-9a-fA-F]+)", run))
    if way == "utf7":
        plain = run[1:-1] + "=" * (-len(run[1:-1]) % 4)
        return _tried(base64.b64decode, plain).decode("utf-16-be", "replace")
    if way == "base64_words":
        plain = run.replace("-", "+").replace("_", "/").rstrip("=")
        text = read_bytes(_tried(base64.b64decode, plain + "=" * (-len(plain) % 4)))
        # What is longer, and of words, stays base64 around what is replaced in it.
        return None if text and len(run) >= 20 and re.search(r"\s\S", text) else text
    if way == "base32":
        return read_bytes(
            _tried(base64.b32decode, run.rstrip("=") + "=" * (-len(run.rstrip("=")) % 8))
        )
    if way == "numbers":
        numbers = re.findall(r"0[xX][0-9a-fA-F]+|\d+", run)
        return read_bytes(_tried(lambda _: bytes(int(one, 0) for one in numbers), run))
    run = "".join(WRITING["dump_line"].findall(run)) or re.sub(r"0x|\\x", " ", run)
    return read_bytes(bytes.fromhex("".join(re.findall("[0-9a-fA-F]{2}", run))))


def _tried(decode: Callable[[str], bytes], text: str) -> bytes:
    """What is decoded; nothing where that is not possible."""
    try:
        return decode(text)
    except (binascii.Error, ValueError):
        return b""


def read_bytes(raw: bytes) -> str | None:
    """The text that bytes are, in UTF-8 or UTF-16, packed by zlib or gzip, or with a few that are none; None where none is."""
    if raw[:2] in _PACKED:
        try:
            raw = zlib.decompressobj(47).decompress(raw, _MOST_UNPACKED)
        except zlib.error:
            return None
    encoding = "utf-16-le" if raw[1:64:2].count(0) > len(raw[:64]) // 4 else "utf-8"
    encoding = "utf-16-be" if raw[0:64:2].count(0) > len(raw[:64]) // 4 else encoding
    text = raw.decode(encoding, "replace")
    odd = sum(not (char.isprintable() or char in "\r\n\t\x1b") or char == "\ufffd" for char in text)
    return text if text and odd * 8 <= len(text) else None


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
        return unicodedata.normalize("NFKC", text)
    if kind == "named":
        with suppress(KeyError):
            return unicodedata.lookup(match[kind])
        return text
    if kind == "entity":
        return html.unescape(text)
    if kind is None:  # a soft end of a line
        return ""
    return chr(int(match[kind], 8 if kind == "octal" else 16))


Piece = tuple[int, str, frozenset[str]]
"""Where a piece of a text begins, the piece with what is near it in lower case, and the words of detectors in it."""


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

    def matches(self, text: str, low: str, pieces: list[Piece]) -> Iterator[re.Match[str]]:
        """Where the pattern fits, in the pieces of a text that hold a word of ``near``."""
        if "at-hint" in self.flags:
            words = [one for one in self.near if any(one in here for _, _, here in pieces)]
            places = (at for word in words for at in occurrences(word, low))
            yield from filter(None, map(partial(self.pattern.match, text), places))
            return
        for start, near, here in pieces:
            if not here.isdisjoint(self.near) and self.gate.search(near):
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
        if self.kind == "token" and WRITING["name_of_secret"].fullmatch(match[group]):
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
    if "</th>" in text:
        read = lambda match: "\n" if match["row"] else " | " if match["cell"] else " "  # noqa: E731
        tables.append(("tabled", each[0][1].reread(WRITING["html_table"], read)))
    if detectors is DETECTORS:
        found += [
            placed(span, view, name) for name, view in tables for span in _cells(view.text, known)
        ]
    return each, found


_COLUMNS = {name: row["kind"] for row in TABLE["columns"] for name in row["names"].split()}


def _cells(text: str, known: Known) -> Iterator[Span]:
    """What stands below the heads of redact.yaml: in fields of equal number, or of words that begin or end where heads do."""
    below = seen = 0
    for head in WRITING["head"].finditer(lower(text)):
        start, end = text.rfind("\n", 0, head.start()) + 1, text.find("\n", head.end())
        if start < below or end < seen:
            continue
        seen, line = end + 1, text[start:end].replace("(REASON)", "")
        mark = next((one for one in ",|;\t\u2502\u2503\u2551" if line.count(one) > 1), "")
        cut = re.compile(rf"[^{mark}]+" if mark else r"\S+")
        names = list(cut.finditer(line))
        upper = sum(name.group().isupper() for name in names)
        frame = line[:1] == " " and text[end + 1 : end + 3].strip() == "0"
        sure = len(names) > 1 and (mark or frame or (len(names) > 2 and upper * 2 > len(names)))
        if not sure or WRITING["no_table"].search(line):
            continue
        below = end
        for row in re.compile(".+").finditer(text, end + 1, end + 20_000):
            if row.start() > below + 1:
                break
            below = row.end()
            if WRITING["rule"].fullmatch(row.group()):
                continue
            fields = list(cut.finditer(row.group()))
            pairs = list(zip(names, fields, strict=False))
            if len(fields) != len(names) or not mark:
                edges = {one.start() for one in fields}, {one.end() for one in fields}
                kept = sum(a.start() in edges[0] or a.end() in edges[1] for a in names)
                aligned = not mark and kept * 3 > 2 * len(names)
                if not aligned and (len(fields) != len(names) or row.start() != end + 1):
                    break
                if aligned:
                    under = ((a, b) for a in names for b in fields)
                    pairs = [
                        (a, b) for a, b in under if a.start() < b.end() and b.start() < a.end()
                    ]
            for name, field in pairs:
                part = WRITING["of_head"].fullmatch(lower(name.group().strip()))
                kind = _COLUMNS[part["name"]] if part else ""
                value = field.group().strip(" \"'`").rstrip("+*:")
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
    pieces = _pieces(view, low, tuple(detectors))
    for detector in detectors:
        if not strong or detector.flags & {"strong", "long"}:
            for match in detector.matches(text, low, pieces):
                yield from detector.spans(match, known, strong)


def _pieces(view: View, low: str, detectors: tuple[Detector, ...]) -> list[Piece]:
    """The pieces of a view that show something new. Most words are known not to be there by every three characters that are."""
    words, grams = _index(detectors)
    codes = np.frombuffer(low.encode("utf-32-le", "surrogatepass"), np.uint32)
    steps, here = _grams(codes), np.empty(_GRAMS + 1, bool)
    pieces = []
    for start in range(0, len(low), _PIECE):
        if view.differs(start, start + _PIECE + _NEAR):
            first, last = max(0, start - 64), start + _PIECE + _NEAR
            near = low[first:last]
            here[:] = False
            here[steps[first:last]] = here[_GRAMS] = True
            maybe = np.flatnonzero(here[grams].all(axis=1))
            pieces.append((start, near, frozenset(words[at] for at in maybe if words[at] in near)))
    return pieces


_GRAMS, _MOST_GRAMS = 1 << 15, 6


def _grams(codes: Any) -> Any:
    """A number below _GRAMS for every three characters that follow each other."""
    return (codes[:-2] * 961 + codes[1:-1] * 31 + codes[2:]) % _GRAMS


@cache
def _index(detectors: tuple[Detector, ...]) -> tuple[list[str], Any]:
    """All words of detectors, and for each the numbers of its characters by three; _GRAMS stands for none."""
    words = sorted({word for detector in detectors for word in detector.near})
    grams = np.full((len(words), _MOST_GRAMS), _GRAMS)
    for row, word in zip(grams, words, strict=True):
        numbers = _grams(np.array(list(map(ord, word))))[:_MOST_GRAMS]
        row[: len(numbers)] = numbers
    return words, grams


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
