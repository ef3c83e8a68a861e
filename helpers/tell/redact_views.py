"""A text as its readers see it, with the way back to each character: escapes undone, colours and tags left out, lines joined.

A value may stand in a text as JSON, a URL or HTML writes it, cut by a terminal's colours, by tags or by a line's end. It is
looked for in each view; what is found is replaced in the text itself, with everything around it untouched.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

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


class View:
    """A text in which every match of ``pattern`` reads as ``read`` says; ``place`` leads back into the first text."""

    def __init__(
        self,
        text: str,
        pattern: re.Pattern[str],
        read: Callable[[re.Match[str]], str],
        under: View | None = None,
    ):
        self.under = under
        self._from: list[int] = []
        self._pieces: list[tuple[int, int, int]] = []
        parts, at, length = [], 0, 0
        for match in pattern.finditer(text):
            shown = read(match)
            length += match.start() - at
            self._from.append(length)
            self._pieces.append((match.start(), match.end(), len(shown)))
            parts += [text[at : match.start()], shown]
            at, length = match.end(), length + len(shown)
        self.text = "".join([*parts, text[at:]]) if parts else text

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def differs(self, start: int, end: int) -> bool:
        """Whether anything between two places reads other than in the text; the plain view is all new."""
        return (
            not self._pieces
            or bisect_left(self._from, start - 1) < bisect_right(self._from, end)
            or bool(
                self.under
                and self.under.differs(
                    self._at(start)[0], self._at(min(end, len(self.text)) - 1)[1]
                )
            )
        )

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The piece of the first text that reads as ``start`` to ``end`` here."""
        first, last = self._at(start)[0], self._at(end - 1)[1]
        return self.under.place(first, last) if self.under else (first, last)

    def _at(self, index: int) -> tuple[int, int]:
        number = bisect_right(self._from, index) - 1
        if number < 0:
            return index, index + 1
        (start, end, shown), first = self._pieces[number], self._from[number]
        if index < first + shown:
            return start, end
        place = end + index - first - shown
        return place, place + 1


def views(text: str) -> Iterator[tuple[str, View]]:
    """The text as it stands, then each view that shows something else."""
    yield "plain", View(text, _NOTHING, str)
    for name, make in (("decoded", decoded), ("uncoloured", uncoloured), ("joined", joined)):
        view = make(text)
        if view is not None:
            yield name, view


_NOTHING = re.compile(r"(?!)")


def decoded(text: str) -> View | None:
    """Without the escapes of JSON, URLs and HTML, up to three deep; a colour reads as a separator."""
    view: View | None = None
    for _ in range(3):
        if not _HINT.search(view.text if view else text):
            break
        deeper = View(view.text if view else text, _ESCAPE, _plain, view)
        if not deeper or deeper.text == (view.text if view else text):
            break
        view = deeper
    return view


def uncoloured(text: str) -> View | None:
    """Decoded, and without colours and tags inside a line."""
    return _without(text, _GLUE)


def joined(text: str) -> View | None:
    """Decoded, without colours and tags, and every line joined to the next."""
    return _without(text, _WRAP)


def _without(text: str, pattern: re.Pattern[str]) -> View | None:
    # Glue first: a colour written as an escape is read here, not by the decoder.
    inner = View(text, pattern, lambda match: "")
    if not inner:
        return None
    return View(inner.text, _ESCAPE, _plain, inner) if _HINT.search(inner.text) else inner


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
