"""Whether a text is in the workbook's own words.

The workbook's sentences are the literals of its own source, with gaps in place of values. A text
passes if each of its clauses is a clause of these sentences, and if each gap is filled with a
number, a size, a name that everybody knows, a word of a list, or a clause again. So a name that a
sentence quotes does not pass, even if it is an ordinary word that another sentence of the workbook
has.

A clause ends at a mark such as a full stop or a bracket. It is cut at its gaps into pieces, and a
text's clause passes if pieces and values can be laid end to end over all of its words (_is_said).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from helpers.ground.places import CHECKOUT
from helpers.look.wordings import table

from . import public
from .names import LIBRARIES

PLACES = """
helpers/*/*.py helpers/*/*/*.py env/remedies.yaml helpers/judge/*.json helpers/settings/*.json
helpers/ground/*.json helpers/tell/*.json helpers/trials/*.json
"""
"""The files with the workbook's sentences, as patterns."""
LABELS = LIBRARIES.union(
    """
ADDRESS allocated allocator AMD amd-smi amdgpu anon apu argument audit available B bitwise boot bytes
cache cached capacity card chunks compute confirmed container contradiction contradictory cpu CUDA
dangerous debug decides deprecated device devices discrete docker driver effective error event
failed failures fits fragmentation framebuffer free GiB gpu graphics grubby gtt harmless harms held
helps hidden hip host hsa id index ineffective integrated intended kept kernel kfd KiB layer likely
limit Linux live memory MemTotal message misspelt msec n none nvidia nvidia-smi nvidia-unified only
OOM operation other pages pasid passes PCI peak pending podman pool predicted process python3
PyTorch raised ram ran refused region rehearsal render replay requested reserved ring rocm rocm-smi
rocminfo root rss s says seconds seqno setting settings size slower smaller stated swap sysfs takes
tensors text tokens torch total ttm ulimit unallocated unattributed undecided unified unknown
unsupported untested usage used value vendor video vm vmid vram VRAM% weak weights Windows within wsl yes
""".split()
)
"""Words that may be a cell of a table or fill a gap alone, and names of facts in the
kernel's log.
"""
LINKS = frozenset(
    """
# . s/ /{ } above and at by case cat export from has in itself of on preset remove roughly
signal slow the to unset uses with
""".split()
)
"""Words that may be a whole piece, before, between or after gaps."""
# In source: a column such as "size:bytes" in a table's heads, or "answer": "x.y" in a mapping.
HEADING = re.compile(r"([A-Za-z][\w ]*):[a-z]+(?=[:,\"])|\"([\w -]+)\": \"\w+\.\w+\",")
_NUMBER = r"(?:[1-9]\d{0,5}|0\d{0,3})"
# The longest first, since an alternative that matches ends the search for a longer one.
_NAMES = sorted({*public.SETTING_NAMES, *public.BARE_NAMES}, key=len, reverse=True)
_SETTING = "|".join(map(re.escape, _NAMES))
FORMS = (
    public.PCI_ADDRESS.pattern,
    # Labels of names.Names.
    r"(?:process|box|group)-\d+|variable \d+|your file \d+, line \d+|cell \d+, line \d+",
    r"/dev/(?:kfd|dxg|nvidia\d{0,2}|nvidiactl|nvidia-uvm(?:-tools)?|dri/(?:card|renderD)\d{1,3})",
    r"/etc/modprobe\.d/(?:amdgpu|ttm|amdttm)\.conf(?:\.pre-ttm)?|/sys/class/kfd/kfd/proc",
    r"expected: \d{1,9}",
    # A device node, and an ID of a PCI device or of amdgpu's ring.
    r"(?:card|renderD)\d{1,3}|0x[0-9a-f]{1,4}",
    public.GFX.pattern,
    public.KERNEL_FILE.pattern,
    rf"(?:{_SETTING})(?:=-?\d{{1,9}})?",
    rf"(?:{'|'.join(public.OPTIONS)}):(?:{public.SWITCH})",
    # Numbers of up to six digits with a unit, numbers with commas, and counts of bytes and pages.
    rf"-?{_NUMBER}(?:\.\d{{1,4}})?(?: ?(?:%|[KMGT]i?B))?|\d{{1,3}}(?:,\d{{3}}){{1,4}}"
    r"|(?:0|[1-9]\d{0,12}) (?:bytes|B|pages)",
    r"run\.pickle",
    public.RELEASE.pattern,
)
"""Values that may fill a gap: addresses of cards, labels, device nodes, settings, numbers,
releases.
"""
GAP = "\0"
"""The character in place of a hole of a sentence, and of a value in a text."""
GROUPS_OF_DIGITS = re.compile(r"\d\)? \d")
"""As in telephone and account numbers, which no sentence of the workbook has."""
VALUES_ALONE = re.compile(r"(?:[^\w\0]*\0){3,}[^\w\0]*")
"""Three or more values without a word between them: no sentence, but possibly an identifier."""
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
NO_TEXT = re.compile(r'"""[^"]*"""|"\n\s*f?"')
"""What is removed from source: docstrings, and the seam between two literals that are one text."""
PATTERN = re.compile(r"\\[^n\"\\]|\(\?|://")
"""Parts of a regular expression or of an address, which no sentence has."""
OPTIONAL = re.compile(r"\[(?! (?!\())|(?<! )\]|\](?=\w)")
"""The brackets around an optional part of a sentence in JSON."""
HOLE = re.compile(r"\{[^{}\n]*\}(?:\.(?:[\w-]+|\{[^{}\n]*\}))*")
"""A replacement field of an f-string or of str.format, with an attribute or an ending after it."""
ENDING = re.compile(r"(?<=\w)\{[^{}\n]*\}")
"""A hole at the end of a word, such as a plural's "s", which can be empty."""
QUOTES = re.compile(r"['\"](?=\0)|(?<=\0)['\"]|(?<=\0)\|\0")
"""Quotation marks around a value, which only some values need in a shell; and further values after
"|".
"""
VALUES = re.compile(r"-?\0(?:=\0)?(?:[,-]\0)?(?:'?s)?")
"""A word that consists of values: x, -x, x=y, x-y, and "x's"."""
TOKEN = re.compile(r"([(\"']{0,2})(.*?)([)\"']{0,2}[.,;:?]?[)\"']?)")
"""The marks before a word, the word, and the marks after it."""
NAME = re.compile(r"\w[\w-]*\W*")
"""What may be somebody's name: a word without marks in it."""

# The state after a part of a clause, for _steps.
START = "start"
IN_GAP = "in a gap"  # the last piece has a gap behind it, which must be filled
FILLED = "filled"


class Piece(NamedTuple):
    """Words of a clause between its gaps, and whether a gap is before and after them."""

    words: tuple[str, ...]
    after_gap: bool
    before_gap: bool


@cache
def _forms() -> re.Pattern[str]:
    """Values that may fill a gap, as whole words."""
    own_names = map(re.escape, sorted(public.own_names(), key=len, reverse=True))
    forms = "|".join([*FORMS, *own_names])
    return re.compile(rf"(?<![\w.:/+-])(?:{forms})(?![\w+/-]|[.:]\w)", re.IGNORECASE)


def _clauses(text: str) -> Iterator[list[str]]:
    """The words of each clause of a text with gaps.

    A clause ends at a mark before or after a word. A word that would be a clause alone, such as
    "So,", begins the next clause, with its mark.
    """
    for line in text.replace(
        " \\\n", "\n"
    ).splitlines():  # a command over several lines
        clause: list[str] = []
        for token in line.split():
            before, word, after = TOKEN.fullmatch(token).groups()  # type: ignore[union-attr]
            if before and clause:
                yield clause
                clause = []
            is_word = word[:1].isalnum() and GAP not in word and not _is_value(word)
            is_alone = is_word and not clause and after
            if is_alone or not word:
                word = token
            clause.append(word)
            if after and not is_alone:
                yield clause
                clause = []
        if clause:
            yield clause


def _with_values(text: str) -> str:
    """A text with a gap in place of each value in it."""
    # Our command is called so where it is not installed.
    text = text.replace("python3 -m helpers", "casebook")
    with_gaps = _forms().sub(GAP, text)
    return QUOTES.sub("", with_gaps)


def _is_value(word: str) -> bool:
    """Whether a word may fill a gap: a word of LABELS, or gaps themselves."""
    is_label = word in LABELS or word.lower() in LABELS
    return is_label or VALUES.fullmatch(word) is not None


def _pieces_of(clause: list[str]) -> Iterator[Piece]:
    """The pieces of a clause, between its gaps."""
    words: list[str] = []
    after_gap = False
    for word in clause:
        if not VALUES.fullmatch(word):
            words.append(word)
            continue
        if words:
            yield Piece(tuple(words), after_gap, before_gap=True)
        words = []
        after_gap = True
    if words:
        yield Piece(tuple(words), after_gap, before_gap=False)


def _sentences() -> Iterator[str]:
    """The literals of the workbook that have several words, with gaps in place of values."""
    for file in _files():
        source = NO_TEXT.sub("", file.read_text("utf-8"))
        for literal in LITERAL.findall(source):
            if " " not in literal or PATTERN.search(literal):
                continue
            sentence = literal.replace("\\n", "\n").replace('\\"', '"')
            if file.suffix == ".json":
                sentence = OPTIONAL.sub("\n", sentence)
            yield _with_gaps(sentence)
            # Once more with the endings of words left out, for where they are empty.
            yield _with_gaps(ENDING.sub("", sentence))
    yield from (row["says"] for row in table())


def _files() -> Iterator[Path]:
    """The files with the workbook's sentences."""
    for pattern in PLACES.split():
        yield from CHECKOUT.glob(pattern)


def _with_gaps(sentence: str) -> str:
    """A literal with a gap in place of each hole; doubled braces are single ones in the text."""
    return HOLE.sub(GAP, sentence).replace("{{", "{").replace("}}", "}")


@cache
def _pieces() -> dict[str, set[Piece]]:
    """The clauses of the workbook's sentences, and their pieces, by their first word in small
    letters.

    A piece of a single word is left out if it may be a name, because any text could then contain
    it.
    """
    pieces: dict[str, set[Piece]] = {}
    for sentence in set(_sentences()):
        for clause in _clauses(_with_values(sentence)):
            without_gaps = Piece(tuple(clause), after_gap=False, before_gap=False)
            for piece in (without_gaps, *_pieces_of(clause)):
                first = piece.words[0].lower()
                if len(piece.words) > 1 or first in LINKS or _is_no_name(piece):
                    pieces.setdefault(first, set()).add(piece)
    return pieces


def _is_no_name(piece: Piece) -> bool:
    """Whether a piece of one word is no name: it has marks in it, as words of commands have, or
    consists of marks between two values.
    """
    if re.search(r"\w", piece.words[0]):
        return NAME.fullmatch(piece.words[0]) is None
    return piece.after_gap and piece.before_gap


def _is_said(clause: list[str]) -> bool:
    """Whether pieces, and values in their gaps, can be laid end to end over the whole clause."""
    reached = {(0, START)}
    waiting = [(0, START)]
    while waiting:
        begin, state = waiting.pop()
        if begin < len(clause):
            steps = set(_steps(clause, begin, state)) - reached
            reached |= steps
            waiting += steps
        elif state != IN_GAP:
            return True
    return False


def _steps(clause: list[str], begin: int, state: str) -> Iterator[tuple[int, str]]:
    """Each way to go on from a word of the clause: with a value, or with a piece that fits.

    Returns the number of the word after it, and the state then.
    """
    word = clause[begin]
    if _is_value(word):
        yield begin + 1, FILLED
    for piece in _pieces().get(word.lower(), ()):
        end = begin + len(piece.words)
        # The first word was compared in small letters, since a clause may begin a sentence.
        has_words = tuple(clause[begin + 1 : end]) == piece.words[1:]
        # A piece with a gap before it needs a value there. A piece without one may also begin the
        # clause, or stand in a gap itself, as a clause does that a sentence takes in.
        is_allowed = state == FILLED or not piece.after_gap
        if not has_words or not is_allowed:
            continue
        if piece.before_gap:
            yield end, IN_GAP
        else:
            yield end, FILLED


def is_heading(text: str) -> bool:
    """Whether a text is the heading of a column in one of the workbook's tables."""
    return text in _headings()


@cache
def _headings() -> frozenset[str]:
    """The headings of columns in the workbook's source."""
    headings: set[str] = set()
    for file in _files():
        for of_table, of_mapping in HEADING.findall(file.read_text("utf-8")):
            headings.add(of_table + of_mapping)  # one of both is empty
    return frozenset(headings)


def is_ours(text: str) -> bool:
    """Whether each clause of a text is one of the workbook's, with known values in its gaps."""
    # No other sentence of the workbook has a character beyond ASCII.
    is_ascii = text.replace("…", "").isascii()
    if not is_ascii or GROUPS_OF_DIGITS.search(text):
        return False
    with_gaps = _with_values(text)
    if VALUES_ALONE.fullmatch(with_gaps):
        return False
    return all(_is_said(clause) for clause in _clauses(with_gaps))
