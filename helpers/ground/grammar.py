"""The language of forms: how a line that a program prints is written down in a table.

A form is plain text as a program prints it. ``{requested}`` is a field, ``{requested:MiB}`` a
field with the unit that its number is in, ``{free@ram}`` one that counts another pool than the
row's, ``{...}`` up to 160 characters of anything and ``{..40}`` up to 40; ``<a|b>`` is either,
``<?x>`` may be missing; ``\\<`` and the like are the signs themselves. Which fields there are,
and what is read for one, whoever compiles the form says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple, Union

GAP = 160
"""The characters of ``{...}``."""
SQUEEZED_OUT = "\\s|│┃`*\u200b\ufeff"
"""White space and the marks that frames and quotes put between words, for a set of characters."""
_SQUEEZED_OUT = re.compile(f"[{SQUEEZED_OUT}]+")
_TOKEN = re.compile(
    r"\\(?P<escaped>[<>{}|\\])|\{\.\.(?P<gap>\.|[0-9]{1,3})\}"
    r"|\{(?P<name>[a-z_]{1,30})(?:@(?P<pool>[a-z-]{1,20}))?(?::(?P<unit>[A-Za-z]{1,6}))?\}"
    r"|(?P<sign><\??|\||>)|(?P<stray>[{}])"
)
_UNIT_BEHIND = re.compile(r"\s*(bytes?|[KMGTkmgt]i?[Bb]|B)(?![a-zA-Z])")
_MARKS = re.compile("[>#]")
_INNERMOST_CHOICE = re.compile("<[^<>]*>")
_FIELD = re.compile(r"\{[^{}]*\}|\0")
_FIELD_OR_CHOICE = re.compile(r"\{[^{}]*\}|<[^<>]*>")


class Field(NamedTuple):
    """What is read from a line: its name, its unit, and another pool than the row's."""

    name: str
    unit: str = ""
    pool: str = ""


class Gap(NamedTuple):
    """Up to so many characters of anything; ``{...}`` may go over lines."""

    characters: int
    over_lines: bool = False


class Alternatives(NamedTuple):
    """One of several sequences, or nothing where it is optional."""

    branches: tuple[list[Node], ...]
    optional: bool


Node = Union[str, Field, Gap, Alternatives]
"""A part of a form; plain words are text."""


def squeeze(text: str) -> str:
    """Lower case without blanks and the marks that frames and quotes put between words."""
    return _SQUEEZED_OUT.sub("", text).lower()


def parsed(form: str, fields: Collection[str]) -> list[Node]:
    """The nodes of a form whose fields are among ``fields``.

    Raises ValueError in one line where it is none.
    """
    parser = _Parser(form, fields)
    end = 0
    for token in _TOKEN.finditer(form):
        parser.add(form[end : token.start()])
        end = token.end()
        parser.take(token)
    parser.add(form[end:])
    return parser.nodes()


class _OpenChoice:
    """A choice whose end was not read yet; also the whole form."""

    def __init__(self, optional: bool):
        self.branches: list[list[Node]] = [[]]
        self.optional = optional


class _Parser:
    def __init__(self, form: str, fields: Collection[str]):
        self.form = form
        self.fields = fields
        self.stack = [_OpenChoice(optional=False)]

    def add(self, node: Node) -> None:
        """Adds a node behind the others; plain words go on with the words before them."""
        nodes = self.stack[-1].branches[-1]
        if isinstance(node, str) and nodes and isinstance(nodes[-1], str):
            nodes[-1] += node
        elif node != "":
            nodes.append(node)

    def take(self, token: re.Match[str]) -> None:
        kind = token.lastgroup
        if kind == "escaped":
            self.add(token["escaped"])
        elif kind == "gap":
            over_lines = token["gap"] == "."
            self.add(Gap(GAP if over_lines else int(token["gap"]), over_lines))
        elif kind == "stray":
            raise self._needs_backslash(token["stray"])
        elif kind == "sign":
            self._take_sign(token["sign"])
        else:
            self._take_field(token)

    def _take_field(self, token: re.Match[str]) -> None:
        name = token["name"]
        if name not in self.fields:
            raise ValueError(f"form {self.form!r}: no field is called {name!r}")
        unit = token["unit"]
        if not unit:
            behind = _UNIT_BEHIND.match(self.form, token.end())
            unit = behind[1] if behind else ""
        if self.form[token.end() :].lstrip().startswith("%"):
            unit = "%"
        self.add(Field(name, unit, token["pool"] or ""))

    def _take_sign(self, sign: str) -> None:
        if sign in ("<", "<?"):
            self.stack.append(_OpenChoice(optional=sign == "<?"))
        elif len(self.stack) == 1:
            raise self._needs_backslash(sign)
        elif sign == "|":
            self.stack[-1].branches.append([])
        else:
            closed = self.stack.pop()
            self.add(Alternatives(tuple(closed.branches), closed.optional))

    def _needs_backslash(self, sign: str) -> ValueError:
        return ValueError(f"form {self.form!r}: {sign!r} needs a backslash")

    def nodes(self) -> list[Node]:
        if len(self.stack) > 1:
            raise ValueError(f"form {self.form!r}: a < is not closed")
        return self.stack[0].branches[0]


def anchors(
    nodes: list[Node], spell: Callable[[str], str] = squeeze
) -> tuple[str, ...]:
    """Words of which one stands in every text that fits: the longest that a form has.

    ``spell`` writes them as the text is written.
    """
    best: tuple[str, ...] = ()
    for node in nodes:
        words: tuple[str, ...] = ()
        if isinstance(node, str):
            longest = max(_MARKS.split(spell(node)), key=len)
            words = (longest,) if longest else ()
        elif isinstance(node, Alternatives) and not node.optional:
            words = _anchors_of_choice(node, spell)
        if words and min(map(len, words)) > min(map(len, best), default=0):
            best = words
    return best


def _anchors_of_choice(
    choice: Alternatives, spell: Callable[[str], str]
) -> tuple[str, ...]:
    words: list[str] = []
    for branch in choice.branches:
        words_of_branch = anchors(branch, spell)
        if not words_of_branch:
            return ()
        words += words_of_branch
    return tuple(words)


def outer_text(form: str) -> list[str]:
    """The plain text outside of every field and choice, found without parsing; nothing of a form
    that only parsing tells apart.
    """
    if "\\" in form:
        return []
    while "<" in form:
        outside, count = _INNERMOST_CHOICE.subn("\0", form)
        if not count:
            return []
        form = outside
    return _FIELD.split(form)


def outer_anchor(form: str) -> str:
    """The longest words outside of every choice, found without parsing: most forms never need
    more. Empty where only parsing tells.
    """
    if "\\" in form:
        return ""
    pieces = _FIELD_OR_CHOICE.split(form)
    if "<" in "".join(pieces):
        pieces = outer_text(form)
    words = _SQUEEZED_OUT.sub("", max(pieces, key=len, default="")).lower()
    if ">" in words or "#" in words:
        words = max(_MARKS.split(words), key=len)
    return words
