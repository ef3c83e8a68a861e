"""The language of forms: how a table writes down a line that a program prints.

A form is plain text as a program prints it. ``{requested}`` is a field, ``{requested:MiB}`` a
field whose number is in MiB, ``{free@ram}`` a field about another pool of memory than the row's,
``{...}`` up to 160 characters of anything and ``{..40}`` up to 40; ``<a|b>`` is either, ``<?x>``
may be missing; ``\\<`` and the like are the signs themselves. ``<...>`` is called a choice, and
what it offers its branches. Two files compile forms into regular expressions, and each has its
own fields: helpers/look/wordings.py and figure_forms.py.

An anchor is a piece of plain text that a form prints. Looking for a piece of text is much faster
than a regular expression, so a form is tried only where one of its anchors is found: the anchors
of a form are one or more pieces such that each text with the form contains at least one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple, Union

GAP = 160
"""The characters of ``{...}``: two lines of a terminal."""
SQUEEZED_OUT = "\\s|│┃`*\u200b\ufeff"
"""White space and the marks that frames and quotes put between words, as the inside of a regular
expression's ``[...]``.
"""
_SQUEEZED_OUT = re.compile(f"[{SQUEEZED_OUT}]+")
# One sign of the language: a sign behind a backslash, a gap, a field, or a sign of a choice.
# ``stray`` is a brace that belongs to no gap or field.
_TOKEN = re.compile(
    r"\\(?P<escaped>[<>{}|\\])|\{\.\.(?P<gap>\.|[0-9]{1,3})\}"
    r"|\{(?P<name>[a-z_]{1,30})(?:@(?P<pool>[a-z-]{1,20}))?(?::(?P<unit>[A-Za-z]{1,6}))?\}"
    r"|(?P<sign><\??|\||>)|(?P<stray>[{}])"
)
_UNIT_BEHIND = re.compile(r"\s*(bytes?|[KMGTkmgt]i?[Bb]|B)(?![a-zA-Z])")
"""A unit that the form prints as plain text behind a field."""
_MARKS = re.compile("[>#]")
"""Signs that a wrapped line loses at its start, where they are taken for marks of quoting. So no
anchor contains them.
"""
_INNERMOST_CHOICE = re.compile("<[^<>]*>")
"""A choice that contains no other choice."""
_FIELD = re.compile(r"\{[^{}]*\}|\0")
"""A field or a gap, or the NUL that outer_anchor writes in place of a choice."""


class Field(NamedTuple):
    """A value to read from a line: its name, its unit, and its pool of memory if that is another
    one than the row's.
    """

    name: str
    unit: str = ""
    pool: str = ""


class Gap(NamedTuple):
    """Up to ``characters`` of anything. ``over_lines``: the end of a line, too, as only ``{...}``
    allows it.
    """

    characters: int
    over_lines: bool = False


class Alternatives(NamedTuple):
    """A choice: the text has one of ``branches`` here, or nothing if it is ``optional``."""

    branches: tuple[list[Node], ...]
    optional: bool


Node = Union[str, Field, Gap, Alternatives]
"""A part of a form; plain words are text."""


def squeeze(text: str) -> str:
    """The text in lower case, without blanks and without the marks that frames and quotes put
    between words.
    """
    return _SQUEEZED_OUT.sub("", text).lower()


def parsed(form: str, fields: Collection[str]) -> list[Node]:
    """The parts of a form in their order; ``fields`` are the names that a field may have.

    Raises ValueError in one line for a text that is no form.
    """
    parser = _Parser(form, fields)
    end = 0
    for token in _TOKEN.finditer(form):
        parser.add(form[end : token.start()])
        end = token.end()
        parser.add_token(token)
    parser.add(form[end:])
    return parser.nodes()


class _OpenChoice:
    """A choice whose end was not read yet; also the whole form."""

    def __init__(self, optional: bool):
        self.branches: list[list[Node]] = [[]]
        self.optional = optional


class _Parser:
    """Builds the parts of a form from its tokens; ``stack`` has the choices that are open, the
    innermost last.
    """

    def __init__(self, form: str, fields: Collection[str]):
        self.form = form
        self.fields = fields
        self.stack = [_OpenChoice(optional=False)]

    def add(self, node: Node) -> None:
        """Append a part to the last branch of the innermost open choice. Text is joined to text
        before it, so that an escaped sign does not divide a word; empty text is left out.
        """
        nodes = self.stack[-1].branches[-1]
        if isinstance(node, str) and nodes and isinstance(nodes[-1], str):
            nodes[-1] += node
        elif node != "":
            nodes.append(node)

    def add_token(self, token: re.Match[str]) -> None:
        """Append the part that a match of _TOKEN stands for, or open or close a choice.

        Raises ValueError for a sign that the form has to write with a backslash.
        """
        kind = token.lastgroup
        if kind == "escaped":
            self.add(token["escaped"])
        elif kind == "gap" and token["gap"] == ".":  # {...}, not {..40}
            self.add(Gap(GAP, over_lines=True))
        elif kind == "gap":
            self.add(Gap(int(token["gap"])))
        elif kind == "stray":
            raise self._needs_backslash(token["stray"])
        elif kind == "sign":
            self._add_sign(token["sign"])
        else:
            self._add_field(token)

    def _add_field(self, token: re.Match[str]) -> None:
        """Append a field. Its unit is the one that it names; else the one that the form prints
        behind it; else empty. A field before a percent sign has the unit ``%``, whatever it names.
        """
        columns = token.groupdict(default="")
        name = columns["name"]
        if name not in self.fields:
            raise ValueError(f"form {self.form!r}: no field is called {name!r}")
        unit = columns["unit"]
        printed_unit = _UNIT_BEHIND.match(self.form, token.end())
        if not unit and printed_unit:
            unit = printed_unit[1]
        if self.form[token.end() :].lstrip().startswith("%"):
            unit = "%"
        self.add(Field(name, unit, columns["pool"]))

    def _add_sign(self, sign: str) -> None:
        """Open a choice, begin its next branch, or close it: then it is a part of the branch
        around it. Raises ValueError for ``|`` or ``>`` outside of every choice.
        """
        if sign in ("<", "<?"):
            self.stack.append(_OpenChoice(optional=sign == "<?"))
        elif len(self.stack) == 1:  # only the whole form is open, and no choice
            raise self._needs_backslash(sign)
        elif sign == "|":
            self.stack[-1].branches.append([])
        else:
            closed = self.stack.pop()
            self.add(Alternatives(tuple(closed.branches), closed.optional))

    def _needs_backslash(self, sign: str) -> ValueError:
        return ValueError(f"form {self.form!r}: {sign!r} needs a backslash")

    def nodes(self) -> list[Node]:
        """The parts of the whole form, once all of it was added. Raises ValueError where a choice
        is still open.
        """
        if len(self.stack) > 1:
            raise ValueError(f"form {self.form!r}: a < is not closed")
        return self.stack[0].branches[0]


def anchors(
    nodes: list[Node], spell: Callable[[str], str] = squeeze
) -> tuple[str, ...]:
    """The anchors of a form, given by its parts: the longest piece of plain text that stands
    outside of every choice, or one piece for each branch of a choice, whichever is longer. Empty
    where the form has no text that is always there, so that it has to be tried on every text.

    ``spell`` changes the form's text in the way that the text to be searched was changed.
    """
    best: tuple[str, ...] = ()
    for node in nodes:
        words: tuple[str, ...] = ()
        if isinstance(node, str):
            words = (max(_MARKS.split(spell(node)), key=len),)
        elif isinstance(node, Alternatives) and not node.optional:
            words = _anchors_of_choice(node, spell)
        # One short word among them is found in many texts, however long the others are.
        shortest = min(map(len, words), default=0)
        if shortest > min(map(len, best), default=0):
            best = words
    return best


def _anchors_of_choice(
    choice: Alternatives, spell: Callable[[str], str]
) -> tuple[str, ...]:
    """The anchors of all branches together. Empty if one branch has none: a text with that branch
    would contain no anchor of the others, and would never be tried.
    """
    words: list[str] = []
    for branch in choice.branches:
        words_of_branch = anchors(branch, spell)
        if not words_of_branch:
            return ()
        words += words_of_branch
    return tuple(words)


def outer_anchor(form: str) -> str:
    """The longest text outside of every choice, squeezed. It is one anchor of the form, found
    without parsing, which takes many times as long.

    Empty where only parsing tells: for a form with a backslash, or with a ``<`` that no ``>``
    closes. Empty also where all text stands in choices. The caller then takes ``anchors``.
    """
    if "\\" in form:  # the sign behind it is text, and begins no field or choice
        return ""
    # Choices may contain choices: from the inside outwards, each becomes a NUL.
    while "<" in form:
        form, count = _INNERMOST_CHOICE.subn("\0", form)
        if not count:  # a choice that is not closed, for which parsing has an error
            return ""
    words = squeeze(max(_FIELD.split(form), key=len))
    return max(_MARKS.split(words), key=len)
