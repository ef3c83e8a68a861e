"""Whether a text is in the workbook's own words.

The workbook's sentences stand in its own source, with gaps where values stand. A text passes if each
clause of it is one of those, and if in each gap is a number, a size, a name that everybody knows, a
word of a list, or such a sentence again. So a name that a sentence quotes does not pass, though it
may be an ordinary word that stands elsewhere in the workbook.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from helpers.ground.places import CHECKOUT
from helpers.look.wordings import table

from . import public
from .names import LIBRARIES

PLACES = """
helpers/*/*.py helpers/*/*/*.py env/remedies.yaml helpers/judge/*.json helpers/settings/*.json
helpers/ground/*.json helpers/tell/*.json helpers/trials/*.json
"""
"""Where the workbook's sentences stand."""
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
"""Words that stand alone in a cell, or in the gap of a sentence, and names of the kernel's facts."""
LINKS = frozenset(
    """
# . s/ /{ } above and at by case cat export from has in itself of on preset remove roughly
signal slow the to unset uses with
""".split()
)
"""Words that stand alone between two gaps, or at one."""
HEADING = re.compile(r"([A-Za-z][\w ]*):[a-z]+(?=[:,\"])|\"([\w -]+)\": \"\w+\.\w+\",")
_NUMBER = r"(?:[1-9]\d{0,5}|0\d{0,3})"
_SETTING = "|".join(
    map(
        re.escape,
        sorted({*public.SETTING_NAMES, *public.BARE_NAMES}, key=len, reverse=True),
    )
)
FORMS = (
    public.PCI_ADDRESS.pattern,
    r"(?:process|box|group)-\d+|variable \d+|your file \d+, line \d+|cell \d+, line \d+",
    r"/dev/(?:kfd|dxg|nvidia\d{0,2}|nvidiactl|nvidia-uvm(?:-tools)?|dri/(?:card|renderD)\d{1,3})",
    r"/etc/modprobe\.d/(?:amdgpu|ttm|amdttm)\.conf(?:\.pre-ttm)?|/sys/class/kfd/kfd/proc",
    r"expected: \d{1,9}",
    r"(?:card|renderD)\d{1,3}|0x[0-9a-f]{1,4}",
    public.GFX.pattern,
    public.KERNEL_FILE.pattern,
    rf"(?:{_SETTING})(?:=-?\d{{1,9}})?",
    rf"(?:{'|'.join(public.OPTIONS)}):(?:{public.SWITCH})",
    rf"-?{_NUMBER}(?:\.\d{{1,4}})?(?: ?(?:%|[KMGT]i?B))?|\d{{1,3}}(?:,\d{{3}}){{1,4}}"
    r"|(?:0|[1-9]\d{0,12}) (?:bytes|B|pages)",
    r"run\.pickle",
    public.RELEASE.pattern,
)
"""Addresses of cards, names that stand for others, settings, numbers, sizes and releases."""
GAP = "\0"
"""What stands for a hole of a sentence, and for a value in a text."""
GROUPS_OF_DIGITS = re.compile(r"\d\)? \d")
"""As in numbers of telephones and accounts."""
VALUES_ALONE = re.compile(r"(?:[^\w\0]*\0){3,}[^\w\0]*")
"""Three with no word, which are no sentence."""
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
NO_TEXT = re.compile(r'"""[^"]*"""|"\n\s*f?"')
"""A docstring, and what is between two literals that are one text."""
PATTERN = re.compile(r"\\[^n\"\\]|\(\?|://")
"""What stands in a regular expression or an address, and in no sentence."""
OPTIONAL = re.compile(r"\[(?! (?!\())|(?<! )\]|\](?=\w)")
"""Around a part that a sentence can go without."""
HOLE = re.compile(r"\{[^{}\n]*\}(?:\.(?:[\w-]+|\{[^{}\n]*\}))*")
ENDING = re.compile(r"(?<=\w)\{[^{}\n]*\}")
"""A hole for the end of a word, which can be empty."""
QUOTES = re.compile(r"['\"](?=\0)|(?<=\0)['\"]|(?<=\0)\|\0")
"""Those around a value, which a shell needs for some alone, and all but the first of several."""
VALUES = re.compile(r"-?\0(?:=\0)?(?:[,-]\0)?(?:'?s)?")
TOKEN = re.compile(r"([(\"']{0,2})(.*?)([)\"']{0,2}[.,;:?]?[)\"']?)")
"""A word between the marks that a sentence puts around one; all other marks are of the word."""
NAME = re.compile(r"\w[\w-]*\W*")
"""What may be somebody's name: a word without marks in it."""

START = "start"
IN_GAP = "in a gap"
FILLED = "filled"


class Piece(NamedTuple):
    """Words of a clause between its gaps, and whether a gap is before them and behind them."""

    words: tuple[str, ...]
    after_gap: bool
    before_gap: bool


@cache
def _forms() -> re.Pattern[str]:
    own_names = map(re.escape, sorted(public.own_names(), key=len, reverse=True))
    forms = "|".join([*FORMS, *own_names])
    return re.compile(rf"(?<![\w.:/+-])(?:{forms})(?![\w+/-]|[.:]\w)", re.IGNORECASE)


def _clauses(text: str) -> Iterator[list[str]]:
    """The words of each clause of a text with gaps. A word alone is of the clause behind it."""
    for line in text.replace(" \\\n", "\n").splitlines():
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
    """A text with a gap for each value in it."""
    text = text.replace("python3 -m helpers", "casebook")
    return QUOTES.sub("", _forms().sub(GAP, text))


def _is_value(word: str) -> bool:
    return (
        not LABELS.isdisjoint([word, word.lower()])
        or VALUES.fullmatch(word) is not None
    )


def _pieces_of(clause: list[str]) -> Iterator[Piece]:
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
    """The texts of the workbook that have several words, with gaps where values stand."""
    for place in PLACES.split():
        for file in CHECKOUT.glob(place):
            source = NO_TEXT.sub("", file.read_text("utf-8"))
            for literal in LITERAL.findall(source):
                if " " in literal and not PATTERN.search(literal):
                    sentence = literal.replace("\\n", "\n").replace('\\"', '"')
                    if file.suffix == ".json":
                        sentence = OPTIONAL.sub("\n", sentence)
                    yield _with_gaps(sentence)
                    yield _with_gaps(ENDING.sub("", sentence))
    yield from (row["says"] for row in table())


def _with_gaps(sentence: str) -> str:
    return HOLE.sub(GAP, sentence).replace("{{", "{").replace("}}", "}")


@cache
def _pieces() -> dict[str, set[Piece]]:
    """The clauses of the workbook's sentences, and their pieces, by their first words in small
    letters.
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
    """Whether a piece of one word is a part of a command, or marks between two values."""
    if re.search(r"\w", piece.words[0]):
        return NAME.fullmatch(piece.words[0]) is None
    return piece.after_gap and piece.before_gap


def _is_said(clause: list[str]) -> bool:
    """Whether pieces, and values in their gaps, make up the clause."""
    ends = [(0, START)]
    for begin, state in ends:  # grows while it is read
        if begin == len(clause):
            if state != IN_GAP:
                return True
            continue
        for step in _steps(clause, begin, state):
            if step not in ends:
                ends.append(step)
    return False


def _steps(clause: list[str], begin: int, state: str) -> Iterator[tuple[int, str]]:
    """Where a value or a piece that begins there ends, and whether a gap has to be filled then."""
    word = clause[begin]
    if _is_value(word):
        yield begin + 1, FILLED
    for piece in _pieces().get(word.lower(), ()):
        end = begin + len(piece.words)
        has_words = tuple(clause[begin + 1 : end]) == piece.words[1:]
        if has_words and (state == FILLED or not piece.after_gap):
            yield end, IN_GAP if piece.before_gap else FILLED


def is_heading(text: str) -> bool:
    """Whether it is the heading of a column of ours."""
    return text in _headings()


@cache
def _headings() -> frozenset[str]:
    headings: set[str] = set()
    for place in PLACES.split():
        for file in CHECKOUT.glob(place):
            headings.update(map("".join, HEADING.findall(file.read_text("utf-8"))))
    return frozenset(headings)


def is_ours(text: str) -> bool:
    """Whether each clause of a text is one of the workbook's, with known values in its gaps."""
    spoken = _with_values(text)
    is_plain = text.replace("…", "").isascii()
    if not is_plain or GROUPS_OF_DIGITS.search(text) or VALUES_ALONE.fullmatch(spoken):
        return False
    return all(map(_is_said, _clauses(spoken)))
