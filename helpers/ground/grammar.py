"""The grammar of failure messages (messages.json): its rows, and the compiler of their templates.

A template is plain text as a program prints it. It is read on squeezed text (lower case, no
blanks), so a message wrapped at any column reads like a whole one. ``{requested}`` is a size
with its unit, ``{requested:MiB}`` a bare number of MiB, ``{device}`` a whole number, ``{...}``
up to 160 characters of anything and ``{..40}`` up to 40; ``<a|b>`` is either, ``<?x>`` may be
missing; ``\\<`` and the like are the signs themselves. Every pattern is bounded, and what
follows a gap is the first place that fits, so no text makes the reading slow. A pattern is
compiled when its row's longest words stand in a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from re import Pattern
from typing import Any

from helpers.ground.tables import data, lazy

SIZES = (
    "requested capacity free allowed process allocated reserved_unallocated reserved_total private_pools non_torch used "
    "weights cache buffer other"
).split()
WHOLE = "device pid tokens fits_tokens layers rank code".split()
WORDS = ("name", "shape", "dtype")
SIDES = "device pinned host cgroup shm on-chip commit disk none".split()
EVENTS = (
    "refused refused-by-limit no-room-at-start no-room-for-cache no-room-for-model workspace "
    "collective killed sigkill fault assert reset no-kernel mismatch missing-library no-device "
    "no-access no-node wrong-index unknown-option option-refused option-broken duplicate-gpu "
    "driver-refused leak busy stopped system-limit allocation-limit address-space not-killed "
    "reset-refused missing-link sizes note footer"
).split()
UNIT = r"(?:bytes?|octets?|байт|[kmgt]i?b(?:ytes?)?|[kmgt]io|[кмгт]и?б|b(?![a-z])|[kmgt]i(?![a-z])|[kmgt](?![a-z]))"
NUMBER = r"[0-9][0-9.,']{0,30}"
GAP = 160
_FIELDS = {
    # torch 2.3 printed the index as a character, so device 0 is a NUL that most pages drop.
    "device": r"[0-9]{1,3}|[\x00-\x08]",
    "share": "[0-9]{1,9}(?:[.,][0-9]{1,9})?",
    "shape": "[0-9][0-9,]{0,60}",
}
_DROPPED = re.compile("[\\s|│┃`*\u200b\ufeff]+")
_TOKEN = re.compile(
    r"\\([<>{}|\\])|\{\.\.(\.|[0-9]{1,3})\}|\{([a-z_]{1,30})(?::([A-Za-z]{1,6}))?\}|(<\??|\||>)|([{}])"
)
_OWN_UNIT = re.compile(r"\s*(bytes?|[KMGTkmgt]i?[Bb]|B)(?![a-zA-Z])")
_EDGE = re.compile("([<>])")
_MARKS = re.compile("[>#]")
_LONG = re.compile("(?<![a-z])[a-z]{6,}(?![a-z])")
_FIELD = re.compile(r"\{[^{}]*\}|>")


Node = Any
"""("text", words) | ("field", name, unit) | ("gap", characters) | ("choice", branches, optional)."""


def squeeze(text: str) -> str:
    """Lower case without blanks and the marks that frames and quotes put between words."""
    return _DROPPED.sub("", text).lower()


def parsed(template: str) -> list[Node]:
    """The nodes of a template. Raises ValueError in one line where it is none."""
    stack: list[tuple[list[list[Node]], bool]] = [([[]], False)]
    at = 0
    for token in _TOKEN.finditer(template):
        _text(stack[-1][0][-1], template[at : token.start()])
        at = token.end()
        escaped, gap, name, unit, sign, stray = token.groups()
        nodes = stack[-1][0][-1]
        if escaped:
            _text(nodes, escaped)
        elif gap:
            nodes.append(("gap", GAP if gap == "." else min(int(gap), GAP)))
        elif name:
            if name not in SIZES and name not in WHOLE and name not in WORDS and name != "share":
                raise ValueError(f"template {template!r}: no field is called {name!r}")
            own = _OWN_UNIT.match(template, at) if name in SIZES and not unit else None
            percent = "%" if name == "share" and template[at:].lstrip().startswith("%") else ""
            nodes.append(("field", name, unit or percent or (own.group(1) if own else "")))
        elif stray or (sign in ("|", ">") and len(stack) == 1):
            raise ValueError(f"template {template!r}: {sign or stray!r} needs a backslash")
        elif sign == "|":
            stack[-1][0].append([])
        elif sign == ">":
            branches, optional = stack.pop()
            stack[-1][0][-1].append(("choice", branches, optional))
        else:
            stack.append(([[]], sign == "<?"))
    if len(stack) > 1:
        raise ValueError(f"template {template!r}: a < is not closed")
    _text(stack[0][0][0], template[at:])
    return stack[0][0][0]


def _text(nodes: list[Node], words: str) -> None:
    if words and nodes and nodes[-1][0] == "text":
        nodes[-1] = ("text", nodes[-1][1] + words)
    elif words:
        nodes.append(("text", words))


def anchors(nodes: list[Node], plain: bool = False) -> tuple[str, ...]:
    """Words of which one stands in every text that fits: the longest that a template has.

    ``plain``: with their blanks.
    """
    best: tuple[str, ...] = ()
    for node in nodes:
        if node[0] == "text":
            words = " ".join(node[1].lower().split()) if plain else squeeze(node[1])
            words = max(_MARKS.split(words), key=len)
            found: tuple[str, ...] = (words,) if words else ()
        elif node[0] == "choice" and not node[2]:
            each = [anchors(branch, plain) for branch in node[1]]
            found = tuple(word for one in each for word in one) if all(each) else ()
        else:
            continue
        if found and min(map(len, found)) > min(map(len, best), default=0):
            best = found
    return best


def _outermost(text: str) -> tuple[str, ...]:
    """The longest words outside of every choice, without parsing: most rows never need more.

    () where there are none.
    """
    if "\\" in text:
        return ()
    if "<" in text:
        pieces = []
        depth = 0
        for piece in _EDGE.split(text):
            depth += (piece == "<") - (piece == ">")
            if not depth:
                pieces.append(piece)
        text = ">".join(pieces)
    longest = max(_FIELD.split(text), key=len)
    best = max(_MARKS.split(squeeze(longest)), key=len)
    return (best,) if len(best) > 5 else ()


class Template:
    """One wording, compiled when it is first needed.

    ``groups``: the pattern's groups as (field, unit).
    """

    def __init__(self, text: str):
        self.text = text
        self.anchors = _outermost(text) or anchors(parsed(text))
        self.groups: dict[str, tuple[str, str]] = {}
        self._pattern: Pattern[str] | None = None

    @property
    def nodes(self) -> list[Node]:
        return parsed(self.text)

    @property
    def pattern(self) -> Pattern[str]:
        """Raises ValueError for a text that is no template, or has no words that every such
        message has.
        """
        if self._pattern is None:
            if max(map(len, self.anchors), default=0) < 3:
                raise ValueError(f"template {self.text!r}: no words that every such message has")
            self._pattern = re.compile(self._sequence(self.nodes, False), re.DOTALL)
        return self._pattern

    def among(self, text: str) -> bool:
        """Whether a squeezed text can hold it at all."""
        return any(map(text.__contains__, self.anchors))

    def _sequence(self, nodes: list[Node], inner: bool = True) -> str:
        out = ""
        gap = 0
        chunk = ""
        for number, node in enumerate(nodes):
            if node[0] == "gap":
                out = out + self._after(gap, chunk)
                gap = node[1]
                chunk = ""
            elif node[0] == "text":
                # A wrapped line that begins with one has lost it: there it is a quoting mark.
                chunk += re.escape(squeeze(node[1])).replace(">", ">?").replace(r"\#", r"\#?")
            elif node[0] == "field":
                chunk += self._field(
                    node[1], node[2], number == len(nodes) - 1, not inner and number == 0
                )
            else:
                branches = "|".join(self._sequence(branch) for branch in node[1])
                chunk += f"(?:{branches}){'?' if node[2] else ''}"
        return out + (f".{{0,{gap}}}?" if gap and not chunk and inner else self._after(gap, chunk))

    def _after(self, gap: int, chunk: str) -> str:
        """What stands behind a gap is tried once, at its first place: a lookahead is not tried
        again.
        """
        if not gap or not chunk:
            return chunk
        name = f"gap_{len(self.groups)}"
        self.groups[name] = ("", "")
        return f"(?=(?P<{name}>.{{0,{gap}}}?{chunk}))(?P={name})"

    def _field(self, name: str, unit: str, last: bool, first: bool) -> str:
        group = f"{name}__{len(self.groups)}"
        self.groups[group] = (name, unit)
        if name in SIZES:
            begins = "(?<![0-9])" if first else ""
            return f"{begins}(?P<{group}>{NUMBER}{'' if unit else UNIT + '?'})"
        number = "[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,12}"
        words = "[\\w.:/@+-]{1,80}" + ("" if last else "?")
        return f"(?P<{group}>{_FIELDS.get(name, number if name in WHOLE else words)})"


class Entry:
    """A row of the table: ``program``, whose memory it is about (``side``), and what happened
    (``event``).
    """

    def __init__(self, data: Mapping[str, Any]):
        self.id: str = data["id"]
        self.program: str = data["program"]
        self.side: str = data["side"]
        self.event: str = data["event"]


class Row(Entry):
    """A row of wordings: ``forms`` begin a message, ``clauses`` are looked for behind one."""

    def __init__(self, data: Mapping[str, Any]):
        super().__init__(data)
        self.hints: tuple[str, ...] = tuple(data.get("hints", ()))
        self.backend: str = data.get("backend", "")
        self.retyped: bool = data.get("retyped", False)
        self.decimal: bool = data.get("decimal", False)
        form = data.get("form", ())
        self.forms = tuple(Template(text) for text in ([form] if isinstance(form, str) else form))
        self.clauses = tuple(Template(text) for text in data.get("clauses", ()))


class Line(Entry):
    """A row that is a regular expression for one raw line: the kernel's, or a line that stands
    alone.
    """

    def __init__(self, data: Mapping[str, Any]):
        super().__init__(data)
        self.kind: str = data.get("kind", "")
        self.literal: str = data["literal"]
        self.detail: str = data.get("detail", "")
        self.example: str = data["example"]
        self.pattern = lazy(data["pattern"], re.IGNORECASE)


def table() -> tuple[dict[str, Any], ...]:
    """Every row of messages.json as it is written."""
    return tuple(data("ground/messages"))


@lru_cache(None)
def meaning(row: str) -> str:
    """What the message of a row means, one plain sentence; empty for a row that is not there."""
    return next((data.get("says", "") for data in table() if data["id"] == row), "")


@lru_cache(1)
def rows() -> tuple[Row, ...]:
    """The wordings, the more telling first; the footers among them."""
    return tuple(Row(data) for data in table() if "pattern" not in data)


@lru_cache(2)
def lines(log: bool) -> tuple[Line, ...]:
    """The rows for raw lines: those of the kernel's log, or the others."""
    known = (data for data in table() if "pattern" in data)
    return tuple(Line(data) for data in known if bool(data.get("log")) is log)


@lru_cache(1)
def vocabulary() -> frozenset[str]:
    """The longer words of all wordings, in lower case: who takes one of them out of a text
    makes a message unreadable.
    """
    texts = (text for row in rows() for text in (*row.forms, *row.clauses))
    return frozenset(
        word for one in texts for word in _LONG.findall(_FIELD.sub(" ", one.text).lower())
    )


@lru_cache(8)
def plain_anchors(events: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Words in lower case, blanks and all, one of which a text has that holds such a message
    unwrapped; () is every event.
    """
    found: dict[str, None] = {}
    for row in rows():
        if row.event != "footer" and (not events or row.event in events):
            for template in (*row.forms, *row.clauses):
                found.update(dict.fromkeys(anchors(template.nodes, True)))
    for line in (*lines(True), *lines(False)):
        if not events or line.event in events:
            found[line.literal] = None
    shortest: list[str] = []
    for words in sorted(found, key=len):
        if not any(other in words for other in shortest):
            shortest.append(words)
    return tuple(shortest)
