"""Values that must not leave the box, and the pseudonym each of them gets.

A pseudonym is the same wherever its value stands, so a story still reads: host-1, user-2,
gpu-uuid-3. Addresses become those that RFC 5737 and RFC 3849 keep for documentation. The
numbers count values in the order they were met and tell nothing of them.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from helpers.ground.grammar import vocabulary
from helpers.ground.tables import data

TABLE: dict[str, Any] = yaml.load(
    Path(__file__).with_name("redact.yaml").read_bytes(),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
"""Detectors, kinds, words and places: what is known of values that must not leave (redact.yaml)."""
WORDS = {"OF": "of secrets", "AFTER": "after a secret", "ALPHABET": "of a tokenizer"}
"""Pieces of patterns that are words of look/environment.json."""
LABELS = {
    kind: [*dict.fromkeys(f"{words},{words.replace(' ', '_')}".split(","))]
    for kind, text in TABLE["labels"].items()
    for words in [text.replace(", ", ",")]
}
"""What a field is called in other languages than English, by what it holds."""
_COLUMNS = {name: row["kind"] for row in TABLE["columns"] for name in row["names"].split()}
for _kind, _words in LABELS.items():
    _of = {word: TABLE["label_kinds"].get(_kind, _kind) for word in _words if word.isalpha()}
    _COLUMNS = _of | _COLUMNS


def _pieces() -> dict[str, str]:
    tokens = [one for row in data("look/secrets")["tokens"] for one in row["begins"].split()]
    begins = [one for one in tokens if one[-1] in "_-."]
    whole = {name: data("look/environment")[of].replace(" ", "|") for name, of in WORDS.items()}
    whole.update(BEGINS="|".join(map(re.escape, begins)), NEAR="|".join(begins).lower())
    whole["LAST"] = "|".join(f"{TABLE['tlds']} {TABLE['inside']}".split())
    whole |= {f"L_{kind.upper()}": "|".join(words) for kind, words in LABELS.items()}
    whole["COLUMNS"] = "|".join(_COLUMNS)
    for name, piece in [*TABLE["pieces"].items(), *TABLE["writing_pieces"].items()]:
        whole[name] = filled(piece, whole)
    return whole


def filled(text: str, whole: dict[str, str] | None = None) -> str:
    """A pattern of redact.yaml with its pieces in their places, in one line."""
    for name, piece in (PIECES if whole is None else whole).items():
        text = text.replace(f"{{{name}}}", piece)
    return "".join(text.split("\n"))


PIECES = _pieces()
WRITING = {name: re.compile(filled(text)) for name, text in TABLE["writing"].items()}
WORD_KINDS = tuple(TABLE["word_kinds"].split())
KINDS = (*WORD_KINDS, *TABLE["kinds"].split())
LOGINS = frozenset(TABLE["logins"].split())
COMMON = frozenset(TABLE["accounts"].split()) | frozenset(TABLE["common"].split()) | vocabulary()
"""Words that name nobody: system accounts and groups, words of the field and of failure
messages, and the pseudonyms' own.
"""
_FIELD = COMMON | frozenset(TABLE["field"].split())
PSEUDONYM = re.compile(rf"(?:{'|'.join(KINDS)}|ip)-\d{{1,6}}")
DOCUMENTATION = tuple(
    ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
)
IPV6_DOCUMENTATION = ipaddress.IPv6Network("2001:db8::/32")
NO_MACHINES = ("169.254.169.254", "8.8.8.8", "1.1.1.1")
"""Addresses that stand on all machines alike: the metadata of a cloud, public name servers."""
_OF_FIELD = re.compile(r"[a-z]{2,}\d{0,2}(?:[._-][a-z]{2,}\d{0,2})*")
_GIVEN = re.compile(rf"{PSEUDONYM.pattern}(?:[^\w:@-].*|https?:.*)?", re.DOTALL)
_PLAIN_HEX = re.compile(
    r"(?:[0-9a-f]{2}[:-]?){5}[0-9a-f]{2}|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}|[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
)
_BESIDE = re.compile(r"[^\W_]")
_PLAIN = re.compile(r"[\w.~+/=-]+")
_FREE_LENGTH = 8
HEAD = 10
_LONGEST = 2000
_MOST_SIGNS = 10
_CODES = 1 << 16
_NO_MORE = 1 << 17
_OF_WORDS = "letters", "digits", "of_words"
_PARTED = "person host domain account project bucket job email".split()
_ENDS_LINE = re.compile(r"[ \t|\u2502]*\n")
"""Values this long are found inside longer words too: a host's name in a file name without a
separator.
"""


@dataclass(frozen=True)
class Span:
    """A piece of text to be replaced: from ``start`` to before ``end``, by ``name``; where
    ``weak``, only if no other is there.
    """

    start: int
    end: int
    kind: str
    name: str
    joined: bool = False
    weak: bool = False


class Words:
    """Words of which it is soon said which may stand in a text: by three signs of each at a
    time, those of all words at once.
    """

    def __init__(self, words: Iterable[str] = ()):
        self.words = [*words]
        self._table = np.empty((0, _MOST_SIGNS), int)

    def likely(self, text: str) -> list[str]:
        rows = []
        for word in self.words[len(self._table) :]:
            threes, twos = (codes.tolist() for codes in _codes(word[:_MOST_SIGNS]))
            rows.append([*(threes or twos), *[_NO_MORE] * _MOST_SIGNS][:_MOST_SIGNS])
        self._table = np.vstack([self._table, rows]) if rows else self._table
        there = np.zeros(_NO_MORE + 1, bool)
        for codes in (_NO_MORE, *_codes(text)):
            there[codes] = True
        found = np.flatnonzero(there[self._table[:, 0]])
        return [self.words[at] for at in found[there[self._table[found]].all(1)]]


def _signs(text: str) -> Any:
    if text.isascii():
        return np.frombuffer(text.encode(), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _codes(text: str) -> tuple[Any, Any]:
    """A number for every three signs in succession, the same for the same three, and other
    numbers for every two.
    """
    signs = _signs(text).astype(np.uint32)
    twos = signs[:-1] * 31 + signs[1:]
    return (twos[:-1] * 31 + signs[2:]) % _CODES, _CODES + twos % _CODES


STRETCHES: dict[str, tuple[re.Pattern[str], int]] = {
    name: (re.compile(f"[{row['of']}]" if row["of"] else "(?!)"), row["least"])
    for name, row in TABLE["stretches"].items()
}
_BIT = {name: 1 << at for at, name in enumerate(STRETCHES)}
_CHARS = [*map(chr, range(128)), "\xe9"]
_BITS = np.array(
    [sum(_BIT[name] for name, (of, _) in STRETCHES.items() if of.match(char)) for char in _CHARS],
    np.uint32,
)


class Stretches:
    """Where in a text so many characters of one class stand in a row that what is looked for
    there can be (redact.yaml).
    """

    def __init__(self, text: str):
        signs = _signs(text)
        bits = _BITS.take(signs, mode="clip")
        blank = signs == 32
        bits[:-1] |= (blank[1:] != blank[:-1]) * np.uint32(_BIT["spaced"])
        self._in_row = {1: bits}
        self._any: dict[int, int] = {}

    def _of_size(self, size: int) -> Any:
        if size not in self._in_row:
            half = self._of_size(size - size // 2)
            shift = size // 2
            self._in_row[size] = half[: max(0, len(half) - shift)] & half[shift:]
        return self._in_row[size]

    def of(self, name: str) -> list[tuple[int, int]]:
        """Where each of a class begins and ends."""
        least = STRETCHES[name][1]
        bit = _BIT[name]
        signs = self._of_size(least)
        if least not in self._any:
            self._any[least] = int(np.bitwise_or.reduce(signs))
        if not self._any[least] & bit:
            return []
        at = np.flatnonzero(signs & bit)
        cuts = at[1:] - at[:-1] > 1
        firsts = [int(at[0]), *at[1:][cuts].tolist()]
        lasts = [*at[:-1][cuts].tolist(), int(at[-1])]
        return [(first, last + least) for first, last in zip(firsts, lasts, strict=True)]

    def numbered(self) -> list[int]:
        """Where words begin in which a number stands behind a letter, or behind a hyphen after
        one.
        """
        letter, digit, word = (self._in_row[1] & _BIT[name] > 0 for name in _OF_WORDS)
        hyphen = word & ~letter & ~digit
        ends = letter[:-1] & digit[1:]
        ends[:-1] |= letter[:-2] & hyphen[1:-1] & digit[2:]
        begins = np.flatnonzero(word & ~np.append(False, word[:-1]))
        behind = np.searchsorted(begins, np.flatnonzero(ends), "right") - 1
        found: list[int] = begins[np.unique(behind)].tolist()
        return found


class Known:
    """Values with their kinds and pseudonyms. It grows as values are found.

    Nothing here prints a value: the repr has only a count, so an error or a log cannot tell
    one. ``read`` keeps texts that were read to learn from, until they are replaced.
    """

    def __init__(self) -> None:
        self.read: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._wholes: dict[str, str] = {}
        self._forms: dict[str, tuple[str, str]] = {}
        self._words = Words()

    def __repr__(self) -> str:
        return f"Known({len(self._names)} values)"

    def add(self, kind: str, value: str) -> str:
        """Remember a value, to be replaced wherever it stands; its pseudonym, or "" where the
        value names nobody.
        """
        value = value.strip().strip("\0\ue000")
        if kind == "token":
            # What stands around it where it is said: quotes, a sign before it, the end of a
            # line of a shell.
            value = value.strip("\"'`\\").lstrip("=:")
        short = value.split(".")[0]
        if kind == "host" and short != value and not names_nobody(kind, short):
            # A host is the same one with and without its domain.
            self._names.setdefault(_canonical(value), self.found(kind, short))
        name = self.name(kind, value)
        if name and kind == "token" and len(value) >= 2 * HEAD and _PLAIN.fullmatch(value):
            # A logger leaves the beginning of it.
            self._wholes[name] = lower(value)
            self._forms.setdefault(lower(value)[:HEAD], (kind, name))
        for form in _forms(kind, value) if name else ():
            self._forms.setdefault(form, (kind, name))
        # One of a person's names alone is the same person; a house's word stands in many names.
        for part in re.findall(r"[^\W\d_]+", value) if name and kind in _PARTED else ():
            if len(part) > (3 if kind == "person" else 5) and is_strange(part):
                self._forms.setdefault(lower(part), (kind, name))
        return name

    def found(self, kind: str, value: str) -> str:
        """The pseudonym of a value that a text tells.

        Remembered, unless it is too long for a name or a word of the field.

        A secret that is such a word or a short number stays elsewhere, too.
        """
        secret = kind in ("token", "url-credential")
        low = value.lower()
        plain = len(value) <= 4 or low in COMMON or (len(value) <= 8 and value.isdigit())
        word = (secret or kind in WORD_KINDS) and low in VOCABULARY
        here = word or len(value) > _LONGEST or (secret and plain)
        return (self.name if here else self.add)(kind, value)

    def name(self, kind: str, value: str, login: bool = False) -> str:
        """The pseudonym of a value, without looking for it elsewhere; "" where the value names
        nobody.

        ``login``: it stands where only a login stands, so any word is one but the accounts that
        images come with.
        """
        low = value.lower()
        key = _canonical(value)
        if _GIVEN.fullmatch(low) or low in LOGINS if login else names_nobody(kind, value):
            return ""
        if key not in self._names:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            self._names[key] = _pseudonym(kind, self._numbers[kind])
        return self._names[key]

    def of_word(self, word: str) -> tuple[str, str] | None:
        """Kind and pseudonym of a word that is a known value by itself."""
        return self._forms.get(word)

    def spans(self, text: str, shortest: int = 0) -> list[Span]:
        """Where known values of at least ``shortest`` characters stand in a text, in any case.

        Spans may overlap.
        """
        low = lower(text)
        spans = []
        self._words.words += list(self._forms)[len(self._words.words) :]
        for form in self._words.likely(low):
            kind, name = self._forms[form]
            free = len(form) >= _FREE_LENGTH and kind != "mac" and not form.isdigit()
            for at in occurrences(form, low) if len(form) >= shortest else ():
                end = at + len(form)
                if len(form) == HEAD and kind == "token" and name in self._wholes:
                    whole = self._wholes[name]
                    end = at + len(os.path.commonprefix([whole, low[at : at + len(whole)]]))
                    if _ENDS_LINE.match(low, end) or _BESIDE.match(low, end):
                        continue  # the rest may stand in the next line; or it is another that begins so
                if free or not (_BESIDE.match(low[at - 1 : at]) or _BESIDE.match(low, end)):
                    spans.append(Span(at, end, kind, name))
        return spans


def occurrences(word: str, text: str) -> Iterator[int]:
    """Where a word stands in a text, one place after the end of the other."""
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))


def names_nobody(kind: str, value: str) -> bool:
    """Whether a value is too short or too common a word to be anybody's, an address of no
    machine, or a pseudonym of ours.
    """
    if len(value.encode()) < (3 if kind in WORD_KINDS else 4) or _GIVEN.fullmatch(value.lower()):
        return True
    if kind in WORD_KINDS:
        wordless = kind != "account" and not re.search(r"[^\W\d]", value)
        parts = _OF_FIELD.fullmatch(value) if kind in ("job", "project", "account") else None
        plain = parts and _FIELD.issuperset(re.findall("[a-z]{3,}", value))
        foreign = not value.isascii() and not is_foreign_name(value)
        return value.lower() in COMMON or wordless or foreign or bool(plain)
    return kind in ("ipv4", "ipv6") and not is_private(value)


def is_private(address: str) -> bool:
    """Whether an address names a machine: no loopback, no wildcard, none kept for
    documentation, none that all machines use.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip.is_loopback or ip.is_multicast or address in NO_MACHINES:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return int(ip) >> 24 not in (0, 255) and not any(ip in net for net in DOCUMENTATION)
    return not (ip.is_unspecified or ip in IPV6_DOCUMENTATION)


def lower(text: str) -> str:
    """Lower case, of the same length: a few letters (as İ) have a lower case of two characters
    and stay.
    """
    low = text.lower()
    same = len(low) == len(text)
    return low if same else "".join(c if len(c.lower()) != 1 else c.lower() for c in text)


def _canonical(value: str) -> str:
    """One key for all ways to write a value."""
    plain = re.sub(r"^(?:gpu|mig)-", "", value.strip().lower())
    if _PLAIN_HEX.fullmatch(plain):
        return re.sub("[:_.-]", "", plain)
    with suppress(ValueError):
        return ipaddress.ip_address(plain).exploded
    return plain


def _forms(kind: str, value: str) -> set[str]:
    """The ways in which a known value is written, lower case."""
    low = lower(value)
    forms = {low, re.sub(r"\s", "", low)}  # the second where a line ends inside it
    if kind == "mac":
        digits = _canonical(value)
        forms |= {":".join(re.findall("..", digits)), "-".join(re.findall("..", digits)), digits}
        forms |= {".".join(re.findall(".{1,4}", digits)), str(int(digits, 16))}
    elif kind in ("gpu-uuid", "uuid", "boot-id", "machine-id"):
        plain = re.sub(r"^(?:gpu|mig)-", "", low)
        forms |= {plain, plain.replace("-", "_"), plain.replace("-", "")}
    elif kind == "container" and len(low) == 64:
        forms.add(low[:12])
    elif kind == "ipv6":
        forms |= {ipaddress.ip_address(low).compressed, ipaddress.ip_address(low).exploded}
    return {form for form in forms if len(form) >= 3}


def _pseudonym(kind: str, number: int) -> str:
    if kind == "ipv4":
        net, last = divmod(number - 1, 254)
        return str(DOCUMENTATION[net][last + 1]) if net < len(DOCUMENTATION) else f"ip-{number}"
    return str(IPV6_DOCUMENTATION[number]) if kind == "ipv6" else f"{kind}-{number}"


def _words_of(row: dict[str, str]) -> list[str]:
    """Words beside which a detector finds what it looks for."""
    shown = re.sub("\u2039.*?\u203a", " ", row["example"])
    text = " ".join([row.get("near", ""), row["pattern"], row["what"], shown])
    return re.findall(r"[^\W\d_]{4,}", text.lower())


# What is not known to be evidence: runs that look drawn at random, addresses with a name in
# them, words with numbers.
_TOLD = data("tell/vocabulary")
VOCABULARY = (
    frozenset(" ".join(text for name, text in _TOLD.items() if len(name) == 1).split())
    | COMMON
    | frozenset(f"{TABLE['field']} {TABLE['written']}".split())
    | frozenset(re.findall(r"[^\W\d_]{2,}", " ".join([*_COLUMNS, *TABLE["labels"].values()])))
    | frozenset(word for row in TABLE["detectors"] for word in _words_of(row))
)
"""The words of the field (env/redact_vocabulary.py) and of redact.yaml: nobody's name, with a
number or without.
"""
FOREIGN, _SIGNS, ENGLISH = (frozenset(_TOLD[n].split()) for n in ("languages", "pairs", "english"))
"""Words of translations of programs, the pairs of signs that these have in Chinese, Japanese
and Korean, and English's own.
"""
_PAIRS = Counter(word[at : at + 2] for word in VOCABULARY for at in range(len(word) - 1))
_USUAL = frozenset(pair for pair, _ in _PAIRS.most_common(230))
_MACHINES, _INSIDE, _TLDS, _SERVICES, _PRODUCTS = (
    frozenset(TABLE[name].split()) for name in "machines inside tlds services field".split()
)
_PUBLIC = frozenset(TABLE["public"].split()) | frozenset(_TOLD["addresses"].split())
EVIDENCE = [
    (re.compile(row["pattern"]), re.compile(filled(row.get("after", "")), re.IGNORECASE))
    for row in TABLE["evidence"]
]
"""Runs that are evidence, by their own shape and by what stands before them."""
_ATOM = re.compile("[A-Za-z0-9]+")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_ENDINGS = "s es ed d ing ly er ers ion ions able ible ment".split()
_BEGINNINGS = "re un pre non no multi".split()
_WORD_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ACCENTED = re.compile(r"[^\W\d_]*[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff][^\W\d_]*")
_NUMBER = re.compile(
    r"\d+(?:[xX]\d+)*(?:[A-Za-z]{0,2}|[KMGT]iB|[KMG]Hz|bit|th)|0x[0-9a-fA-F]{1,16}"
)
_RACK = re.compile(r"(?:[rxcisbntghu]\d{1,4}){3,6}")
_MIXED = re.compile(r"[a-z]\d\w*[a-z]|\d[a-z]+\d")
_HEX = re.compile("[0-9a-f]{1,16}|[0-9A-F]{1,16}")
_LEAST_ODD = 5.0
_ODD_SHARE = 0.4
_LEAST_SIGNS = 6
BEFORE = 60


@lru_cache(1 << 16)
def oddness(atom: str) -> float:
    """How many steps from one character to the next are such as no word, number or identifier has."""
    if atom.lower() in VOCABULARY or _NUMBER.fullmatch(atom):
        return 0.0
    odd = -1.0
    plain = False
    for part in _PARTS.findall(atom):
        low = part.lower()
        before = plain
        plain = len(part) > 2 and part.lower() in VOCABULARY
        odd += not (before and plain)
        if part.isdigit():
            odd += len(part) / 4
        elif not plain:
            odd += sum(low[at : at + 2] not in _USUAL for at in range(len(low) - 1))
    return max(odd, 0.0)


@lru_cache(1 << 16)
def random_in(run: str) -> tuple[tuple[int, int], ...]:
    """Where the parts of a run without blanks are that look drawn at random."""
    found: list[tuple[int, int]] = []
    group: list[re.Match[str]] = []

    def end() -> None:
        while group and (group[-1].group().isdigit() or 4 * oddness(group[-1].group()) < 1):
            group.pop()
        total = sum(oddness(one.group()) or _of_hex(one.group()) for one in group)
        size = sum(len(one.group()) for one in group)
        plain = len({char for one in group for char in one.group()}) < _LEAST_SIGNS
        plain |= len(group) < 3 and all(_HEX.fullmatch(one.group()) for one in group)
        plain |= len(group) > 1 and all(re.fullmatch("[A-Z]?[a-z]+", one.group()) for one in group)
        if total >= _LEAST_ODD and total >= _ODD_SHARE * size and not plain:
            stop = group[-1].end()
            found.append((group[0].start(), stop + len(run[stop:]) - len(run[stop:].lstrip("="))))
        group.clear()

    for atom in _ATOM.finditer(run):
        word = atom.group()
        known = oddness(word) < 0.15 * len(word) and not _of_hex(word)
        if word.isdigit() and len(word) < 17:
            known = not group
        if known:
            end()
        else:
            group.append(atom)
    end()
    return tuple(found)


def _of_hex(atom: str) -> float:
    plain = len(atom) < 4 or atom.lower() in VOCABULARY or not _HEX.fullmatch(atom)
    return 0.0 if plain else len(atom) / 2


def is_evidence(value: str, before: str) -> bool:
    """Whether a run is known to be evidence, by its own shape and by what stands before it."""
    return any(row.fullmatch(value) and after.search(before) for row, after in EVIDENCE)


@lru_cache(1 << 16)
def has_name(run: str) -> bool:
    """Whether a word with numbers, or one of several with hyphens, is a machine, an account or
    a login, for all that is known.
    """
    atoms = run.split("-")
    if len(atoms) == 1 or any(_is_numbered(atom, True) for atom in atoms):
        return _is_numbered(atoms[0], False) if len(atoms) == 1 else True
    numbered = any(
        re.fullmatch(r"[A-Za-z]+\d+|\d{2,4}|(?!0x)\d*[a-z]\w*\d{4}\w*", one)
        and one.lower() not in VOCABULARY
        for one in atoms[1:]
    )
    return numbered and (is_strange(run) or not _MACHINES.isdisjoint(run.lower().split("-")))


def _is_numbered(atom: str, among: bool) -> bool:
    match = re.fullmatch(r"([A-Za-z]+)(\d+)([A-Za-z]{0,2})", atom)
    if not match or atom.lower() in VOCABULARY:
        return not among and bool(_RACK.fullmatch(atom))
    stem, digits, rest = match.groups()
    low = stem.lower()
    leading = digits[0] == "0" and len(digits) > 1
    if low in _MACHINES:
        return leading or (len(digits) > 1 and low != "gpu")
    if len(stem) < 3:
        least = 5 if len(stem) == 1 else 4
        return low not in VOCABULARY and not rest and (len(digits) >= least or (leading and among))
    return not all(part.lower() in VOCABULARY or len(part) < 3 for part in _PARTS.findall(stem))


def is_strange(name: str) -> bool:
    """Whether a name has a part, between its capitals, digits and signs, that is no word of the
    field.
    """
    return any(_strange_parts(name))


@lru_cache(1 << 16)
def is_unheard(run: str) -> bool:
    """Whether a word, between signs, has a part of four letters or more that is no word of the
    field, and is no digest.
    """
    odd = any(len(part) > 3 for part in _strange_parts(run))
    return odd and not re.fullmatch("[0-9a-f]+|[0-9A-F]+", run) and not _NUMBER.fullmatch(run)


def _strange_parts(name: str) -> Iterator[str]:
    parts, plain = (
        ([], name) if name.isascii() else (_ACCENTED.findall(name), _ACCENTED.sub(" ", name))
    )
    for run in re.findall("[A-Za-z]+", plain):
        parts += [] if is_word(run.lower()) else _WORD_PARTS.findall(run)
    return (part for part in parts if len(part) > 2 and not is_word(part.lower()))


@lru_cache(1 << 16)
def is_word(low: str) -> bool:
    """Whether the vocabulary has a word, or that of which it is another form or a compound with
    a part of a computer.
    """
    glued = WRITING["glued"].fullmatch(low)
    known = low in FOREIGN or is_form(low, VOCABULARY)
    return known or bool(glued and is_form(glued[1] or glued[2], VOCABULARY))


def is_form(low: str, words: Set[str]) -> bool:
    """Whether words have a word, or that of which it is a plural or another form."""
    stems = [low[: -len(e)] for e in _ENDINGS if low.endswith(e) and len(low) > len(e) + 3]
    stems += [low[len(b) :] for b in _BEGINNINGS if low.startswith(b) and len(low) > len(b) + 4]
    return low in words or any(stem in words or f"{stem}e" in words for stem in stems)


def is_foreign_name(run: str) -> bool:
    """Whether letters of another script are no words of programs: they are somebody's name, for
    all that is known.
    """
    low = run.lower()
    words = WRITING["script_words"]
    if words.fullmatch(low) or low in VOCABULARY or low in FOREIGN:
        return False
    rest = words.sub(" ", low).split()
    return any(one[at : at + 2] not in _SIGNS for one in rest for at in range(len(one) - 1))


@lru_cache(1 << 16)
def is_host(name: str) -> bool:
    """Whether a name with dots is a machine's: it ends as those of a net do, and is neither
    code nor of a public project.
    """
    *labels, last = name.lower().split(".")
    if not labels or is_public(name):
        return False
    odd = (one for one in labels if one not in VOCABULARY and _MIXED.search(one))
    strange = any(odd) or any(is_strange(one) or has_name(one) for one in labels)
    return (strange and last in _TLDS | _INSIDE) or last in ("lan", "corp", "intranet")


def is_public(address: str) -> bool:
    """Whether an address, a host with the first part of its path, is one of the public projects
    that evidence needs.
    """
    host, _, path = address.lower().partition("/")
    ends = [host.split(".", at)[-1] for at in range(host.count(".") + 1)]
    *labels, product, last = ["", *host.split(".")]
    # What a product serves to all; a path behind another's address may begin with somebody's name.
    ours = product in _PRODUCTS and last in _TLDS and not any(map(is_strange, labels))
    if ours and (not path or labels[1:] and labels[1] in _SERVICES):
        return True
    return any(one in _PUBLIC or f"{one}/{path.split('/')[0]}" in _PUBLIC for one in ends)


def is_iban(value: str) -> bool:
    """Whether the check digits of ISO 13616 hold, which of a hundred other texts one does."""
    plain = value.replace(" ", "")
    return int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4])) % 97 == 1


def is_card(value: str) -> bool:
    """Whether the check digit of ISO 7812 holds."""
    digits = [int(char) for char in reversed(value) if char.isdigit()]
    each = (sum(divmod(2 * one, 10)) if at % 2 else one for at, one in enumerate(digits))
    return sum(each) % 10 == 0


# --- what bytes and base64 hold

_MOST_UNPACKED = 1 << 20
ZIPPED = (b"\x1f\x8b", b"\x78\x9c", b"\x78\x01", b"\x78\xda", b"\x78\x5e")
_PNG_KEPT = b"IHDR PLTE IDAT IEND tRNS gAMA cHRM sRGB pHYs sBIT bKGD acTL fcTL fdAT".split()
PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"
PACKED = (
    *(b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"%PDF", b"\x7fELF"),
    *(b"SQLite format 3", b"PAR1", b"\x80\x02}", b"\x80\x04\x95", b"\x80\x05\x95"),
)
"""How files begin that hold text in a form which no detector reads."""


def read_bytes(raw: bytes) -> str | None:
    """The text that bytes are, in UTF-8 or UTF-16, packed by zlib or gzip, or with a few that
    are none; None where none is.
    """
    if raw[:2] in ZIPPED:
        try:
            raw = zlib.decompressobj(47).decompress(raw, _MOST_UNPACKED)
        except zlib.error:
            return None
    encoding = "utf-16-le" if raw[1:64:2].count(0) > len(raw[:64]) // 4 else "utf-8"
    encoding = "utf-16-be" if raw[0:64:2].count(0) > len(raw[:64]) // 4 else encoding
    text = raw.decode(encoding, "replace")
    odd = sum(not (char.isprintable() or char in "\r\n\t\x1b") or char == "\ufffd" for char in text)
    return text if text and odd * 8 <= len(text) else None


def base64_bytes(text: str) -> bytes | None:
    """The bytes of base64, also of its alphabet for addresses and without its padding; None
    where it is none.
    """
    plain = "".join(text.split()).replace("-", "+").replace("_", "/")
    with suppress(ValueError):  # binascii's own is one
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    return None


@lru_cache(1 << 12)
def decoded_base64(text: str) -> str | bytes | None:
    """What a run of base64 holds: a text, the bytes of a known binary form, or None where it is
    no base64 of either.
    """
    raw = base64_bytes(text) or b""
    if raw.startswith((PNG[:4], JPEG)):
        return raw
    inner = read_bytes(raw)
    return raw if inner is None and raw.startswith(PACKED) else inner


SECRETS = {name: re.compile(filled(text), re.IGNORECASE) for name, text in TABLE["secrets"].items()}

_LONGEST_HEAD = 25
_TEXTS = "token place phone day iban card serial".split()
_HEADS = Words(_COLUMNS)


def cells(text: str) -> Iterator[tuple[str, str, int]]:
    """What stands below the heads of redact.yaml, and where: in fields of equal number, or of
    words that begin or end as heads.
    """
    below = seen = 0
    low = lower(text)
    places = {at for word in _HEADS.likely(low) for at in occurrences(word, low)}
    for head in sorted(at for at in places if WRITING["head"].match(low, at)):
        start = text.rfind("\n", 0, head) + 1
        end = text.find("\n", head)
        if start < below or end < seen:
            continue
        seen = end + 1
        line = text[start:end].replace("(REASON)", "")
        two = WRITING["two_heads"].fullmatch(line)
        mark = next((one for one in ",|;\t\u2502\u2503\u2551" if line.count(one) > 1), "")
        mark = "\u2506" if "\u2506" in line else two[1] if two else mark
        first = text[end + 1 : text.find("\n", end + 1) % (len(text) + 1)]
        wide = r"\S+(?: \S+)*"
        more = len(re.findall(wide, first)) - len(re.findall(wide, line))
        frame = line[:1] == " " and (more == 1 or (more == 0 and first[:1] == " "))
        cut = re.compile(rf"[^{mark}]+" if mark else wide if frame else r"\S+")
        names = list(cut.finditer(line))
        shown = 2 * sum(name.group().isupper() for name in names) > len(names)
        shown = shown or (line[:1] == " " and first[:1].isdigit())  # by pandas
        sure = len(names) > 1 and (mark or frame or (len(names) > 2 and shown))
        sure = sure and (mark or max(len(name.group()) for name in names) < _LONGEST_HEAD)
        if not sure or WRITING["no_table"].search(re.sub(f'["{mark}]', "", line) if mark else line):
            continue
        below = end
        for row in re.compile(".+").finditer(text, end + 1, end + 20_000):
            if row.start() > below + 1:
                break
            below = row.end()
            if WRITING["rule"].fullmatch(row.group()):
                continue
            fields = list(cut.finditer(row.group()))
            indexed = len(fields) == len(names) + 1
            pairs = list(zip(names, fields[indexed:], strict=False))
            if len(fields) != len(names) + (frame and more) or not (mark or frame):
                starts = {one.start() for one in fields}
                ends = {one.end() for one in fields}
                kept = sum(a.start() in starts or a.end() in ends for a in names)
                if not mark and kept * 3 > 2 * len(names):
                    under = [(a, b) for a in names for b in fields if a.start() < b.end()]
                    pairs = [(a, b) for a, b in under if b.start() < a.end()]
                elif len(fields) != len(names) or (row.start() != end + 1 and len(names) < 4):
                    break
            for name, field in pairs:
                part = WRITING["of_head"].fullmatch(lower(name.group().strip(" \"'`\u2502")))
                value = field.group().strip(" \"'`\u2502").rstrip("+*:")
                at = row.start() + field.start() + field.group().index(value)
                tells = not re.search("[A-Za-z]", value) or not is_evidence(value, "")
                kind = _COLUMNS[part["name"]] if part else ""
                if kind == "number":
                    kind = "serial" if WRITING["of_number"].fullmatch(value) else ""
                none: Any = SECRETS["no_secret"].fullmatch(value)
                none = none and not value.strip("-+(")[:2].isdigit()
                free = kind in _TEXTS and part and part["name"] != "token" and not none
                if free or (kind and tells and WRITING["of_cell"].fullmatch(value)):
                    yield kind, value, at


def without_words(raw: bytes) -> bytes | None:
    """A PNG without comments, EXIF, XMP, profiles, times and tails; None where it is no whole one.

    What draws it stays as it is. Words drawn in its pixels are not read.
    """
    if not raw.startswith(PNG):
        return None
    kept = [PNG]
    at = len(PNG)
    while at + 12 <= len(raw):
        size, kind = struct.unpack(">I4s", raw[at : at + 8])
        chunk = raw[at : at + 12 + size]
        at += 12 + size
        if at > len(raw) or int.from_bytes(chunk[-4:], "big") != zlib.crc32(chunk[4:-4]):
            return None
        if kind in _PNG_KEPT:
            kept.append(chunk)
        if kind == b"IEND":
            return b"".join(kept)
    return None
