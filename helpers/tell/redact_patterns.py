"""The detectors of redact.yaml over a text as its readers see it: what a value that nobody
knows beforehand looks like.

A value may stand in a text as JSON, a URL or HTML writes it, cut by a terminal's colours, by
tags or by a line's end. It is looked for in each view of the text; what is found is replaced in
the text itself, with everything around it untouched.
"""

from __future__ import annotations

import base64
import codecs
import html
import re
import unicodedata
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from string import ascii_letters, digits
from types import SimpleNamespace
from typing import Any

from helpers.ground.tables import data

from . import redact_known as facts
from .redact_known import BEFORE, PSEUDONYM, TABLE, WRITING, Known, Span, filled, names_nobody

JOINT = "\n\x1e\n"
"""Stands between the items of a list of texts while they are read as one."""
SEPARATOR = "\x1f"
"""What a colour reads as where it parts two values: white space, as regular expressions see it."""
PAGE = 2048
_NEAR = 400
_BEYOND = 2048
"""A text is read in pieces of so many characters: a detector is tried only in those that hold
one of its words, or nearly.
"""
_AFTER = 8
"""What may stand behind the characters of a class: the filling of base64, a bracket."""
HIDDEN = "\ue000"  # stands around one word that was written as digits or in an encoding


Read = Callable[[re.Match[str]], str | None]


class View:
    """A text as it reads in one way, which knows the place that each of its characters has in
    the text as it is written.
    """

    def __init__(self, text: str, of: View | None = None):
        self.text = text
        self.of = of
        self._at: list[int] = []
        self._pieces: list[tuple[int, int, int]] = []

    def found(self, way: str) -> Iterator[re.Match[str]]:
        """Where a way of writing stands; looked for only where long enough stretches of its
        characters do.
        """
        pattern = WRITING[way]
        text = self.text
        if way == "numbered":
            begins = self.stretches.numbered()
            yield from filter(None, (pattern.match(text, at) for at in begins))
        elif way not in facts.STRETCHES:
            yield from pattern.finditer(text)
        else:
            for start, end in self.stretches.of(way):
                for match in pattern.finditer(text, start, end + _AFTER):
                    if match.start() >= end:
                        break
                    yield match

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "stretches"}

    @cached_property
    def stretches(self) -> facts.Stretches:
        return facts.Stretches(self.text)

    def reread(self, way: str, read: Read, before: str = "") -> View:
        """The view in which all that is written in a way, with what of ``before`` stands before
        it, reads as ``read`` says.

        A match of which ``read`` says None stays as it is.
        """
        parts = []
        new = View("", self)
        at = 0
        length = 0
        for match in self.found(way):
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

    def near(self) -> View:
        """The view without the blocks of lines that read as they are written, and whose
        neighbours do.
        """
        new = {True: None, False: "\n\n"}
        span = lambda at: (max(0, at[0] - PAGE), at[1] + PAGE)  # noqa: E731
        return self.reread("block", lambda one: new[self.differs(*span(one.span()))])

    def place(self, at: int, end: bool = False) -> int:
        """Where the character at a place begins in the text as it is written; with ``end``,
        where it ends.
        """
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
        """Whether anything between two places reads other than in the text; the text as it is
        written is all new.
        """
        if self.of is None:
            return True
        first = bisect_left(self._at, start)
        if first < bisect(self._at, end):
            return True
        shift = 0 if not first else self._pieces[first - 1][2] - self._pieces[first - 1][0]
        return self.of.of is not None and self.of.differs(start + shift, end + shift)


def parts(text: str) -> list[str]:
    """A long text in the parts that are read by themselves, in order: no value goes on from one
    to the next.
    """
    pieces = WRITING["element"].split(text)
    return [part for piece in pieces for part in WRITING["part"].findall(piece)]


def views(text: str) -> Iterator[tuple[str, View]]:
    """The text as it stands, then each view that shows something else.

    ``decoded``: without the escapes of JSON, URLs and HTML, up to three deep, with literals
    that a program puts together as one; a colour reads as a separator. ``unpacked``: with what
    is written in digits or in an encoding as the text that it stands for. ``uncoloured``:
    without colours and tags inside a line. ``joined``: and with every line joined to the next.
    """
    plain = View(text)
    yield "plain", plain
    quoted = bool(WRITING["quoted_signs"].search(text))
    decoded = _decoded(plain.reread("quoted", _quoted) if quoted else plain)
    decoded = decoded.reread("literals", _joined)
    if decoded is not plain:
        decoded = decoded.near()
        yield "decoded", decoded
    for view in dict.fromkeys((plain, decoded)):
        if (unpacked := _unpacked(view)) is not view:
            yield "unpacked", unpacked
    bars = TABLE["writing_pieces"]["BARS"]
    for name, way, before in (("uncoloured", "glue", ""), ("joined", "wrap", bars)):
        # Glue first: a colour written as an escape is read here, not by the decoder.
        inner = plain.reread(way, lambda match: "", before)
        if inner is not plain:
            inner = _decoded(inner.reread("quoted", _quoted) if quoted else inner)
            yield name, inner if name == "joined" else inner.near()


def _joined(match: re.Match[str]) -> str:
    items = next(filter(None, (match["list"], match["given"], match["inside"])), "")
    return "".join(['"', *re.findall(r"[\"']([^\"'\n]*)[\"']", items), '"']) if items else ""


def _unpacked(view: View) -> View:
    """The view with every run of digits or of an encoding as the text that it stands for, one
    in another too.
    """
    for _ in range(3):
        before = view
        for row in TABLE["runs"]:
            if not row["signs"] or any(sign in view.text for sign in row["signs"].split("  ")):
                view = view.reread(row["way"], partial(_run, row["way"]))
        if view is before:
            break
        view = _decoded(view).near()
    return view


def _run(way: str, match: re.Match[str]) -> str | None:
    """What a run stands for, between marks where it is one word that looks random; None where
    it is no text.
    """
    text = _decoded_run(way, match)
    hidden = text and WRITING["hidden"].fullmatch(text.strip("\"'"))
    return f"{HIDDEN}{text}{HIDDEN}" if hidden else text


def _decoded_run(way: str, match: re.Match[str]) -> str | None:
    run = match.group()
    if way in _WAYS:
        return _WAYS[way](run)
    if way in ("chars", "turned"):
        turned = next(filter(None, match.groups()), "")[::-1]
        return f'"{turned}"' if turned else "".join(re.findall(r"[\"'](.)[\"']", run))
    if way.startswith(("base85", "ascii85")):
        decode = base64.b85decode if way == "base85" else base64.a85decode
        run = run.removeprefix("<~").removesuffix("~>")
        # Most are no such thing, as their beginning tells.
        begin = _tried(decode, run[:10])
        sure = begin[:2] in facts.ZIPPED or facts.read_bytes(begin)
        return facts.read_bytes(_tried(decode, run)) if sure else None
    if way == "base64_words":
        text = facts.read_bytes(facts.base64_bytes(run) or b"")
        # What is longer, and of words, stays base64 around what is replaced in it.
        return None if text and len(run) >= 20 and re.search(r"\s\S", text) else text
    if way == "numbers":
        numbers = re.findall(r"0[xX][0-9a-fA-F]+|\d+", run)
        return facts.read_bytes(_tried(lambda _: bytes(int(one, 0) for one in numbers), run))
    run = "".join(WRITING["dump_line"].findall(run)) or re.sub(r"0x|\\x", " ", run)
    return facts.read_bytes(bytes.fromhex("".join(re.findall("[0-9a-fA-F]{2}", run))))


def _padded(run: str, whole: int) -> str:
    return run.rstrip("=") + "=" * (-len(run.rstrip("=")) % whole)


_WAYS: dict[str, Callable[[str], str | None]] = {
    "spaced": lambda run: run.replace(" ", ""),
    "nulled": lambda run: re.sub(r"\\x00|\\0|\0", "", run),
    "rot13": lambda run: codecs.decode(run, "rot13"),
    "css": lambda run: "".join(chr(int(one, 16)) for one in re.findall(r"\\([0-9a-fA-F]+)", run)),
    "utf7": lambda run: _tried(base64.b64decode, _padded(run[1:-1], 4)).decode(
        "utf-16-be", "replace"
    ),
    "base32": lambda run: facts.read_bytes(_tried(base64.b32decode, _padded(run, 8))),
}


def _tried(decode: Callable[[str], bytes], text: str) -> bytes:
    """What is decoded; nothing where that is not possible."""
    with suppress(ValueError):  # binascii's own is one
        return decode(text)
    return b""


def _decoded(view: View) -> View:
    for _ in range(3):
        if not WRITING["hint"].search(view.text):
            break
        view = view.reread("escape", _plain)
    return view


def _quoted(match: re.Match[str]) -> str | None:
    """A sign of quoted-printable, in a line that can be nothing else."""
    text = match.string
    start = match.string.rfind("\n", 0, match.start()) + 1
    line = text[start : text.find("\n", match.start()) % (len(text) + 1)]
    soft = text[:start].endswith(("=\n", "=\r\n"))
    sure = soft or WRITING["quoted_signs"].search(f"{line}\n")
    return _plain(match) if sure and WRITING["quoted_line"].fullmatch(line) else None


def _plain(match: re.Match[str]) -> str | None:
    kind = match.lastgroup
    text = match.group()
    if kind in ("colour", "end"):
        return SEPARATOR if kind == "colour" else "\n"
    if kind == "bytes":
        return bytes.fromhex(text.replace("%", "").replace("\\x", "")).decode("utf-8", "replace")
    if kind == "octets":
        return bytes(int(one, 8) for one in text.strip("\\").split("\\")).decode("utf-8", "replace")
    if kind == "one":
        return {"n": "\n", "r": "\r", "t": "\t"}.get(match["one"], match["one"])
    if kind == "broad":
        return unicodedata.normalize("NFKC", text)
    if kind == "named":
        with suppress(KeyError):
            return unicodedata.lookup(match[kind])
        return text
    if kind == "quote":
        return '"'
    if kind == "entity":
        return html.unescape(text)
    if kind is None:  # a soft end of a line, unless base64 ends there
        before = match.string[max(0, match.end() - 200) : match.end()]
        return None if WRITING["padded"].search(before) else ""
    return chr(int(match[kind], 8 if kind == "octal" else 16))


_CROSSES = re.compile(r"\\[snW]|\[\^")
_WITHIN = re.compile(r"\[\^[^\]]*\\[ns][^\]]*\]")
"""Whether a pattern may go over the end of a line, sets aside that leave it out."""
_MORE_LINES = re.compile(r"(?:\n+[^\n]*){0,3}")
Line = tuple[int, int]
"""Where a line, or what is near in a long one, begins and ends."""


class Page:
    """A view in which detectors look: its lower case, the words of detectors in it, and the
    lines that hold each.
    """

    def __init__(self, view: View):
        self.view = view
        self.text = view.text
        self.low = facts.lower(view.text).replace("\t", " ")
        likely = _HINTS.likely(self.low)  # which says nothing of a word of one sign
        self.words = frozenset(one for one in likely if len(one) > 1 or one in self.low)
        self._lines: dict[str, list[Line]] = {}

    def lines_with(self, word: str) -> list[Line]:
        """The lines with a word that show something new."""
        if word not in self._lines:
            lines = []
            low = self.low
            at = self.low.find(word)
            end = len(self.low)
            while at >= 0:
                start = low.rfind("\n", 0, at) + 1
                stop = low.find("\n", at + len(word))
                stop = stop if stop >= 0 else end
                if stop - start > _NEAR:
                    start = max(start, at - _NEAR)
                    stop = min(stop, at + len(word) + _BEYOND)
                lines.append((start, stop))
                at = low.find(word, stop)
            self._lines[word] = self._new(lines)
        return self._lines[word]

    def _new(self, lines: list[Line]) -> list[Line]:
        differs = self.view.differs
        return lines if self.view.of is None else [line for line in lines if differs(*line)]

    def lines_along(self, stretch: str) -> list[Line]:
        if stretch not in self._lines:
            self._lines[stretch] = self.lines_of(self.view.stretches.of(stretch))
        return self._lines[stretch]

    def lines_of(self, places: Iterable[Line]) -> list[Line]:
        return self._new([*dict.fromkeys(self._line(*place) for place in places)])

    def _line(self, at: int, end: int) -> Line:
        start = self.low.rfind("\n", 0, at) + 1
        stop = self.low.find("\n", end)
        return max(start, at - _NEAR), min(len(self.low) if stop < 0 else stop, end + _BEYOND)


def runs(lines: Iterable[Line], more: int = 0) -> Iterator[Line]:
    """Lines beside each other, with so many characters more around them, as one."""
    start = end = -1
    for first, last in lines:
        if first - more > end + 1:
            if end >= 0:
                yield start, end
            start = max(0, first - more)
        start = max(start, 0)
        end = max(end, last + more)
    if end >= 0:
        yield start, end


class Detector:
    """A row of redact.yaml, compiled: a kind of value and how it is recognised.

    Its columns are described there.
    """

    def __init__(self, row: dict[str, str]):
        self.kind = row["kind"]
        self.what = row["what"]
        self.example = row["example"]
        self.source = row["source"]
        self.near = tuple(filter(None, filled(row.get("near", "")).split("|")))
        self.hints = frozenset(self.near)
        self.flags = frozenset(row.get("flags", "").split())
        how = re.MULTILINE | (re.IGNORECASE if "any-case" in self.flags else 0)
        self.text = filled(row["pattern"])
        self.how = how
        self.needs = re.compile(filled(row.get("needs", "")), how)
        self.unless = re.compile(filled(row.get("unless", "(?!)")), how)
        self.gate = re.compile(filled(row["gate"]), how) if "gate" in row else None
        self.stretch = row.get("stretch", "")
        self.also = row.get("also", "").split("|")
        self.crosses = bool(_CROSSES.search(_WITHIN.sub("", self.text)))

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled where a text has one of its words: most texts have those of a few."""
        return re.compile(self.text, self.how)

    def matches(self, page: Page) -> Iterator[re.Match[str]]:
        """Where the pattern fits: in the lines that hold a word of ``near`` and what the gate
        asks for, or near them.
        """
        words = sorted(self.hints & page.words, key=self.near.index)
        if "at-hint" in self.flags:
            places = (at for word in words for at in facts.occurrences(word, page.low))
            yield from filter(None, map(partial(self.pattern.match, page.text), places))
            return
        low = page.low
        each = [*map(page.lines_with, words)]
        lines = sorted({*chain(*each)}) if len(each) > 1 else each[0] if each else []
        if self.stretch:
            lines = page.lines_along(self.stretch)
        elif self.gate and not self.near:
            lines = page.lines_of(match.span() for match in self.gate.finditer(low))
        if self.gate and (self.near or self.stretch):
            lines = [line for line in lines if self.gate.search(low, *line)]
        if self.also[0]:
            lines = [line for line in lines if any(low.find(one, *line) >= 0 for one in self.also)]
        for start, end in runs(lines, PAGE if "page" in self.flags else 0):
            more = _MORE_LINES.match(page.low, end) if self.crosses else None
            beyond = more.end() if more else end
            for match in self.pattern.finditer(page.text, start, beyond):
                if match.start() > end:
                    break
                yield match

    def spans(self, match: re.Match[str], known: Known, joined: bool) -> Iterator[Span]:
        """The values of one match. They are remembered, to be found elsewhere too."""
        for group, value in match.groupdict().items():
            whole = "long" not in self.flags or WRITING["random"].fullmatch(value or "")
            if joined and (not whole or PSEUDONYM.match(value or "")):
                continue
            if value and group[0] == "v" and self._is_value(match, group):
                login = "login" in self.flags and names_nobody(self.kind, value)
                found = known.found if not login else partial(known.name, login=True)
                if name := found(self.kind, value):
                    yield Span(match.start(group), match.end(group), self.kind, name)

    def _is_value(self, match: re.Match[str], group: str) -> bool:
        start = match.start(group)
        text = match.string
        value = match[group]
        no: Any = self.unless.search(text[max(0, start - 60) : start])
        no = no or ("<th" in text[match.start() : start] and not _strange(value))  # the next head
        no = no or ("secret" in self.flags and not is_secret(match, group))
        no = no or (self.kind == "token" and WRITING["name_of_secret"].fullmatch(value))
        if no or (self.kind == "host" and facts.is_public(value)):
            return False
        checks = {"strange": _bare, "iban": facts.is_iban, "card": facts.is_card}
        sure = all(checks[flag](value) for flag in self.flags & checks.keys())
        return sure and bool(self.needs.search(value))


def is_secret(match: re.Match[str], group: str) -> bool:
    """Whether what follows a word as "token" or "password" is one, not code, a type, a count or
    a placeholder.
    """
    text = match.string
    value = match[group]
    begin = match.start()
    name = text[begin : match.start(group)]
    ours = PSEUDONYM.finditer(text, max(0, begin - 16), begin + 24)
    if any(one.start() <= begin < one.end() for one in ours):
        return False
    counted = facts.SECRETS["no_token_before"].search(text[max(0, begin - 12) : begin])
    if name.lower().startswith("token") and (counted or re.fullmatch(r"[\d.,]{1,15}", value)):
        return False
    pin = facts.SECRETS["password"].search(name) and re.fullmatch(r"\d{4,}", value)
    if facts.SECRETS["no_secret"].fullmatch(value) and not pin:
        return False
    if name[-1:] in ("'", '"', "`"):
        return not value.isspace()
    after = text[match.end(group) : match.end(group) + 1]
    if after in ("(", "[") or value.startswith("="):
        return False
    if not re.fullmatch(r"[A-Za-z_.]+", value):
        return True
    if facts.SECRETS["password"].search(name) and facts.is_strange(value):
        return True
    # A name of code, unless it stands as a setting of a file does.
    setting = re.search(r"[A-Z]{4}", name) or ":" in name or "= " not in name
    return after not in (",", ")", "]") and value.lower() not in name.lower() and bool(setting)


def _of_token(row: dict[str, str]) -> dict[str, str]:
    near = "|".join(row["begins"].lower().split())
    # Where a beginning leaves no doubt, lines joined to one may stand right before it.
    sure = all(len(one) >= 4 and one[-1] in "_-" for one in row["begins"].split())
    pattern = rf"{'' if sure else '(?<![A-Za-z0-9_])'}(?P<v>{row['shape']})(?![A-Za-z0-9])"
    more = {"kind": "token", "flags": "strong at-hint", "example": ""}
    return {**row, **more, "near": near, "pattern": pattern}


DETECTORS = [
    Detector(row) for row in (*TABLE["detectors"], *map(_of_token, data("look/secrets")["tokens"]))
]
_BY_WORD: dict[str, list[Detector]] = {}
for _row in DETECTORS:
    for _near in _row.near:
        _BY_WORD.setdefault(_near, []).append(_row)
_HINTS = facts.Words(sorted(_BY_WORD))


def detected(text: str, detectors: Iterable[Detector] = DETECTORS) -> tuple[Any, ...]:
    """A text in each of its views, every value found in it, and the questions to Known whose
    numbers are their names so far.
    """
    asked: list[Any] = []

    def ask(how: str, *what: Any, **more: bool) -> str:
        asked.append((how, what, more))
        return str(len(asked) - 1)

    known: Any = SimpleNamespace(found=partial(ask, "found"), name=partial(ask, "name"))
    each = list(views(text))
    runs = each[0][1].found("base64") if detectors is DETECTORS else ()
    runs = (run for run in runs if facts.decoded_base64(run.group()))
    held = [one.span() for one in chain(runs, WRITING["issue"].finditer(text))]
    tables = each[:1] + [one for one in each if one[0] == "uncoloured"]
    if "</th>" in text:
        read = lambda match: "\n" if match["row"] else " | " if match["cell"] else " "  # noqa: E731
        tables.append(("tabled", each[0][1].reread("html_table", read)))
    found = []
    for name, view in tables if detectors is DETECTORS else ():
        below = (_spans_of(*one, known) for one in facts.cells(view.text))
        found += [placed(span, view, name) for span in chain.from_iterable(below)]
    for name, view in each:
        over = name == "joined"
        found += [placed(one, view, name) for one in _spans(view, known, detectors, strong=over)]
        if detectors is DETECTORS:
            more = (_over_lines if over else _unknown)(text, view, known, held)
            found += [placed(one, view, name) for one in more]
    return each, found, asked


def named(found: tuple[Any, ...], known: Known) -> tuple[list[tuple[str, View]], list[Span]]:
    """The views of a text, and the spans ``detected`` in it by the pseudonyms of their values."""
    each, spans, asked = found
    names = [getattr(known, how)(*what, **more) for how, what, more in asked]
    told = ((names[int(span.name)], span) for span in spans)
    return each, [replace(span, name=name) for name, span in told if name]


Found = Iterator[tuple[str, int, int]]
"""Kinds of values, and where in a view each begins and ends."""


def _unknown(text: str, view: View, known: Known, held: list[tuple[int, int]]) -> Iterator[Span]:
    """What is not known to be evidence: addresses with a name in them, words with numbers,
    unknown words, random runs.
    """

    def inside(start: int, end: int) -> bool:
        first = view.place(start)
        last = view.place(end - 1)
        return any(one <= first and last < two for one, two in held)

    low = facts.lower(view.text)
    for way, read in {**_READERS, "random_run": _random}.items():
        for match in WRITING[way].finditer(low) if way == "dotted" else view.found(way):
            for kind, start, end in read(match) if view.differs(*match.span()) else ():
                if not inside(start, end):
                    yield from _spans_of(kind, match.string[start:end], start, known)
    for start, end in _unheard(view):
        first = view.place(start)
        word = view.text[start:end]  # of \\torch, an escape left orch
        cut = text[first - 2 : first - 1] == "\\" and not facts.is_unheard(text[first - 1] + word)
        name = "" if cut or inside(start, end) else known.name("name", word)
        if name:
            yield Span(start, end, "name", name, weak=True)


def _unheard(view: View) -> Iterator[Line]:
    """Where words stand that are none of the field, in no symbol of a program and no digest:
    somebody's name, for all we know.
    """
    text = view.text
    for match in WRITING["unheard"].finditer(text):
        start, end = match.span()
        if not facts.is_unheard(match.group()) or not view.differs(start, end):
            continue
        opens = _OPENS.search(text[max(0, start - 2 * _AFTER) : start])
        cut = opens and re.match(r"\d*m" if opens[1] else "[nrtbfv]", match.group())
        start += cut.end() if cut else 0
        ours = _GIVEN.match(text, match.start(), end + _AFTER)
        heard = ours or not facts.is_unheard(text[start:end]) or _is_said(text, start, end)
        if not (heard or _evident(text, start, end)):
            yield start, end


def _is_said(text: str, start: int, end: int) -> bool:
    """Whether it is a word of everyday English, and nobody's name, that stands beside another
    word as in a sentence.
    """
    around = f"{text[max(0, start - BEFORE) : start]}\0{text[end : end + BEFORE]}"
    return text[start:end].lower() in facts.ENGLISH and bool(WRITING["sentence"].fullmatch(around))


def _labelled(match: re.Match[str]) -> Found:
    """A number behind a word that programs do not have, in a line of another language."""
    line = match.string[max(0, match.start() - BEFORE) : match.start()].rpartition("\n")[2]
    label = None if line.isascii() else WRITING["label"].search(line)
    if label and facts.is_foreign_name(label[1]) and not facts.is_word(label[1].lower()):
        yield "serial", *match.span()


def _spans_of(kind: str, value: str, at: int, known: Known) -> Iterator[Span]:
    drawn = kind == "token" and re.fullmatch("[0-9a-fA-F]+", value)  # a digest stays elsewhere
    evidence = kind == "name" and facts.is_evidence(value, "")
    if name := not evidence and (known.name if drawn else known.found)(kind, value):
        yield Span(at, at + len(value), kind, name)


def _random(match: re.Match[str]) -> Found:
    run = match.group()
    text = match.string
    at = match.start()
    before = text[max(0, at - 2) : at]
    escape = "[nrtbfv]" if before[-1:] == "\\" else r"\d{1,3}m" if before[-1:] == "[" else "$^"
    if found := re.match(escape, run):
        at = at + found.end()
        run = run[found.end() :]
    for start, end in facts.random_in(run):
        ours = isinstance(inner := facts.decoded_base64(run), str) and PSEUDONYM.search(inner)
        if not (ours or PSEUDONYM.search(run[start:end]) or _evident(text, at + start, at + end)):
            yield "token", at + start, at + end


def _over_lines(text: str, view: View, known: Known, held: list[tuple[int, int]]) -> Iterator[Span]:
    """Random runs that go over the ends of lines, elements or literals, without the plain words
    beside them.
    """
    for match in view.found("random_run"):
        at = match.start()
        for start, end in facts.random_in(match.group()) if view.differs(*match.span()) else ():
            first = view.place(at + start)
            last = view.place(at + end - 1, end=True)
            if any(one < last and first < two for one, two in held):
                continue
            pieces = [one for one in WRITING["wrap"].split(text[first:last]) if one]
            begun = _BEGUN.findall(text[max(0, first - BEFORE) : first])[0]
            while len(pieces) > 1 and not _is_odd(pieces[0], begun):
                start = start + len(pieces.pop(0))
                begun = ""
            while len(pieces) > 1 and not _is_odd(pieces[-1]):
                end -= len(pieces.pop())
            value = view.text[at + start : at + end]
            plain = all(re.fullmatch("[0-9a-f]{1,16}", one) for one in pieces)
            digests = (end - start) % 8 and plain
            before = view.text[max(0, at + start - BEFORE) : at + start]
            if len(pieces) > 1 and not digests and facts.random_in(value):
                if not facts.is_evidence(value, before):
                    yield from _spans_of("token", value, at + start, known)


def _is_odd(piece: str, begun: str = "") -> bool:
    odd = sum(map(facts.oddness, re.findall("[A-Za-z0-9]+", piece))) * 4 >= len(piece)
    return len(piece) > 7 if piece.isdigit() else odd and not facts.is_evidence(begun + piece, "")


def _evident(text: str, start: int, end: int) -> bool:
    """Whether a piece of a text is known to be evidence, or within a symbol of a program or the
    name of a package that is.
    """
    before = text[max(0, start - BEFORE) : start]
    after = text[end : end + 4 * BEFORE]
    stem = before.rstrip(_WORD)
    whole = f"{before[len(stem) :]}{text[start:end]}{_HEAD.match(after)[0]}"  # type: ignore[index]
    symbol = stem[-1:] != "/" and WRITING["symbol"].fullmatch(whole)
    summed = WRITING["digest"].fullmatch(text, start, end) and WRITING["summed"].match(after)
    told = symbol or summed or WRITING["version"].match(after)
    return bool(told) or facts.is_evidence(text[start:end], before)


def _word(kind: str, odd: Callable[[str], bool], way: str = "", group: str | int = 0) -> Any:
    """A reader of one word: all of a match, or with what ends where it begins; found faster so
    than by its own beginning.
    """

    def read(match: re.Match[str]) -> Found:
        (start, end), before = match.span(group), max(0, match.start() - 2 * BEFORE)
        if way:
            found = WRITING[way].search(match.string[before : match.start()])
            start = before + found.start() if found else end
            end = end - way.startswith("of_")
        value = match.string[start:end]
        if value and odd(value) and not _evident(match.string, start, end):
            yield kind, start, end

    return read


def _strange(word: str) -> bool:
    return facts.is_strange(word) or facts.has_name(word)


def _private(address: str) -> bool:
    host = re.split(r"[:/?#\\]", address, maxsplit=1)[0]
    known = facts.is_public(address) or host.lower() in facts.LOGINS or names_nobody("host", host)
    return bool(host) and not known


def _address(match: re.Match[str]) -> Found:
    """Who asks for an address, and what it is asked with, where it is a public project's."""
    if match["user"] and not facts.is_public(match["host"] + match["rest"]):
        yield "user", *match.span("user")
    for value in re.finditer(r"(?<==)[^&=#\s]{4,}", match["rest"]):
        if _strange(value.group()):
            yield "token", match.start("rest") + value.start(), match.start("rest") + value.end()


def _at_host(match: re.Match[str]) -> Found:
    user = WRITING["at_user"].search(match.string[max(0, match.start() - BEFORE) : match.start()])
    host = match["host"]
    name = user.group() if user else ""
    odd = _strange(host) or facts.is_host(host)
    named = odd or (len(name) > 1 and facts.is_strange(name))
    if len(name) > 1 and named and not facts.is_public(host) and not host.endswith(_UNITS):
        yield "user", match.start() - len(name), match.start()
        if odd:
            yield "host", *match.span("host")


def _bare(word: str) -> bool:
    """Whether a word without a sign may be a name: strange, no identifier of code, no key of a
    program's settings, no file.
    """
    inner = word.partition(".")[2] if word.count(".") > 1 else ""
    if inner and not (facts.is_strange(inner) or facts.is_host(word)):
        return False
    return word.count("_") < 2 and not word.endswith(_SOURCES) and facts.is_strange(word)


def _person(match: re.Match[str]) -> Found:
    """Names of which none is a word of the field, or one is not where nothing but a sign stands
    beside them.
    """
    odd = [*map(facts.is_strange, match.group().split())]
    if all(odd) or (any(odd) and match["alone"]):
        yield "person", *match.span()


_READERS: dict[str, Any] = {
    "numbered": _word("name", facts.has_name),
    "dotted": _word("host", facts.is_host, "labels"),
    "site": _word("host", _private, "labels"),
    "full": _word("host", _private, group="v"),
    "share": _word("host", _private, group="v"),
    "script": _word("name", facts.is_foreign_name),
    "six_digits": _labelled,
    "address": _address,
    "at_host": _at_host,
    "person": _person,
}
_GIVEN = re.compile(rf"[^\W_]*(?:{'|'.join(facts.KINDS)})-\d")
_OPENS = re.compile(r"(?:\\|((?:\x1b|\\x1b|\\033|u001b)\[[\d;]*))\Z")
"""An escape or a colour whose last sign is the first of the next word."""
_BEGUN = re.compile(r"[\w.+-]*\Z")
_WORD = f"{ascii_letters}{digits}_"
_HEAD = re.compile(r"[\w.]*")
_UNITS, _SOURCES = (tuple(row.split()) for row in TABLE["whole"].values())


def placed(span: Span, view: View, name: str) -> Span:
    """A span of a view as one of the text itself; in the ``joined`` view it may go over the
    ends of lines.
    """
    start = view.place(span.start)
    end = view.place(span.end - 1, end=True)
    return replace(span, start=start, end=end, joined=name == "joined")


def _spans(view: View, known: Known, detectors: Iterable[Detector], strong: bool) -> Iterator[Span]:
    """What detectors find in one view; ``strong`` tries the surest alone."""
    page = Page(view)
    near = {one for word in page.words for one in _BY_WORD[word]}
    for detector in detectors:
        here = detector in near or not detector.near
        if here and (not strong or detector.flags & {"strong", "long"}):
            for match in detector.matches(page):
                yield from detector.spans(match, known, strong)
